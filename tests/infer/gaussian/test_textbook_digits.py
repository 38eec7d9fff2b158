"""``LDS`` against the textbook's filter in fifty digits: values and slopes, down to exact observations, in both precisions."""

import mpmath as mp
import torch
from support.grids import grid

from pplseq.models.lds.program import LDS

F64 = torch.float64
B, T, H = 2, 4, 2
STEP = mp.mpf(10) ** -20
NAMES = "transition state_scale emission emission_scale initial_mean initial_scale transition_offset emission_offset"


def exact(tensor):
    tensor = tensor.detach().double()
    return mp.matrix((tensor if tensor.dim() == 2 else tensor.unsqueeze(-1)).tolist())


def textbook(leaves, x):
    """log p(x) of leaves, name -> matrix, or (b, t) -> matrix of single steps; x (B, T, n) with NaN where nothing is seen."""
    A, L, C, E, m0, L0, a, c = (leaves[name] for name in NAMES.split())
    n, total = C.rows, mp.mpf(0)
    E = mp.matrix(n, n) + E
    for i in range(n):
        E[i, i] = mp.exp(E[i, i])  # of minus infinity: 0

    def at(name, b, t, otherwise):
        return leaves[name][b, t] if name in leaves else otherwise

    for b, rows in enumerate(x.double().tolist()):
        m, V = m0, L0 * L0.T
        for t, row in enumerate(rows):
            if t:
                A_t = at("transitions", b, t, A)
                m, V = A_t * m + a, A_t * V * A_t.T + L * L.T + at("state_noises", b, t, mp.matrix(H, H))
            seen = [i for i in range(n) if row[i] == row[i]]
            if not seen:
                continue
            pick = mp.matrix([[mp.mpf(i == j) for j in range(n)] for i in seen])
            C_t, R = pick * at("emissions", b, t, C), E * E.T + at("emission_noises", b, t, mp.matrix(n, n))
            error = mp.matrix([row[i] for i in seen]) - pick * c - C_t * m
            S = C_t * V * C_t.T + pick * R * pick.T
            inverse = S**-1
            gain = V * C_t.T * inverse
            total -= ((error.T * inverse * error)[0] + mp.log(mp.det(S)) + len(seen) * mp.log(2 * mp.pi)) / 2
            m, V = m + gain * error, V - gain * C_t * V
    return total


def covariances(*shape):
    root = torch.randn(*shape, shape[-1], dtype=F64)
    return root @ root.mT / shape[-1] + 0.3 * torch.eye(shape[-1], dtype=F64)


def drawn(n, noise, by_step, real):
    """A model, what is known of its steps, and data with gaps that it could have made."""
    model = LDS(H, n, dtype="float64" if real == F64 else "float32").set_parameters(
        transition=0.5 * torch.randn(H, H), state_noise=covariances(H), emission=torch.randn(n, H),
        emission_noise=noise * torch.linspace(1, 2, n), initial_mean=torch.randn(H), initial_covariance=covariances(H),
        transition_offset=torch.randn(H), emission_offset=torch.randn(n),
    )  # fmt: skip
    known = {}
    if by_step:
        known = {"transitions": 0.5 * torch.randn(B, T, H, H), "emissions": torch.randn(B, T, n, H),
                 "state_noises": covariances(B, T, H), "emission_noises": noise * covariances(B, T, n)}  # fmt: skip
        known = {name: value.to(real).requires_grad_() for name, value in known.items()}
    states = torch.randn(B, T, H, 1, dtype=F64)
    loadings = known.get("emissions", model.emission).detach().double()
    x = (loadings @ states).squeeze(-1) + model.emission_offset.detach() + noise**0.5 * torch.randn(B, T, n, dtype=F64)
    x[0, 1], x[0, 2, 0], x[1, 3, 1:] = torch.nan, torch.nan, torch.nan
    return model, known, x.to(real)


@grid({
    "real, bound": [(F64, 1e-8), (torch.float32, 1e-4)],
    "by_step": [False, True],
    "n, noise": [(2, 0.0), (3, 1e-8), (3, 1e-3), (5, 1e-6)],
}, times=2)
def test_values_and_slopes(n, noise, by_step, real, bound):
    torch.manual_seed(n)
    model, known, x = drawn(n, noise, by_step, real)
    leaves = {name: getattr(model, name) for name in NAMES.split()} | known
    found = model.log_joint(x, **known)
    slopes = dict(zip(leaves, torch.autograd.grad(found, leaves.values(), allow_unused=True), strict=True))
    value, score = found.item(), model.score(x, **{name: leaf.detach() for name, leaf in known.items()})
    with mp.workdps(50):
        written = {
            name: exact(leaf) if leaf.dim() < 4 else {(b, t): exact(leaf[b, t]) for b in range(B) for t in range(T)}
            for name, leaf in leaves.items()
        }
        truth = textbook(written, x)
        assert abs(value / float(truth) - 1) < bound and abs(score / float(truth) - 1) < bound
        moved, slope = dict(written), 0.0
        for name, leaf_slope in slopes.items():
            if leaf_slope is None or name == "emission_scale" and noise == 0:  # a logarithm of nothing has no slope
                assert leaf_slope is not None or f"{name}s" in known
                continue
            way = torch.randn(leaf_slope.shape, dtype=F64)
            way = way.tril() if name.endswith("scale") else way + way.mT if name.endswith("noises") else way
            way = way / (way.norm() * leaf_slope.double().norm())  # so that each counts
            slope += float((leaf_slope.double() * way).sum())
            old = written[name]
            if isinstance(old, dict):
                moved[name] = {place: matrix + STEP * exact(way[place]) for place, matrix in old.items()}
            else:
                moved[name] = old + STEP * exact(way)
        assert abs(slope - float((textbook(moved, x) - truth) / STEP)) < bound
