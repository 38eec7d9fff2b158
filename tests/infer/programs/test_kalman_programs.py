"""Programs with Gaussian states: affine code of every kind, and what is refused."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.grids import grid
from support.oracles.gaussian import GaussianSequence, kalman_loop

from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov

F64 = torch.float64
close = torch.testing.assert_close
H, N, B, T = 3, 2, 4, 5
EYE = torch.eye(H, dtype=torch.float64)


def parameters():
    torch.manual_seed(0)
    return 0.4 * torch.randn(H, H, dtype=torch.float64), torch.randn(N, H, dtype=torch.float64)


def log_prob(mean, matrix, offset=None, vectorize=True, n=N):
    """Log-likelihoods where y's mean is written as code, and as matrix and offset."""
    A, _ = parameters()
    y, results = torch.randn(B, T, n, dtype=torch.float64), []

    def code(x):
        return dist.Normal(mean(x), 0.5).to_event(1)

    def lazy(x):
        return LinearGaussian(x, matrix, torch.full((n,), 0.25, dtype=torch.float64), offset)

    for observe in (code, lazy):
        handler = KalmanCollapse(vectorize=vectorize)
        with handler, pyro.plate("rows", B, dim=-1):
            x = None
            for t in markov(range(T)):
                fn = LinearGaussian(None, None, EYE) if x is None else LinearGaussian(x, A, EYE)
                x = pyro.sample(f"z_{t}", fn)
                pyro.sample(f"x_{t}", observe(x), obs=y[:, t])
        results.append(handler.chains["z_0"].log_prob())
    return results


A, C = parameters()
c, d = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, -1.0, 2.0]).double()
AFFINE = {
    "x @ C.T": (lambda x: x @ C.T, C, None),
    "c + x @ C.T": (lambda x: c + x @ C.T, C, c),
    "x @ C.T - c": (lambda x: x @ C.T - c, C, -c),
    "c - x @ C.T": (lambda x: c - x @ C.T, -C, c),
    "-(x @ C.T)": (lambda x: -(x @ C.T), -C, None),
    "2 * (x @ C.T)": (lambda x: 2 * (x @ C.T), 2 * C, None),
    "(x @ C.T) / 2": (lambda x: (x @ C.T) / 2, C / 2, None),
    "(x @ C.T) * c": (lambda x: (x @ C.T) * c, c.unsqueeze(-1) * C, None),
    "linear": (lambda x: torch.nn.functional.linear(x, C, c), C, c),
    "two matrices": (lambda x: (x @ A.T + 1) @ C.T, C @ A, C @ torch.ones(H, dtype=torch.float64)),
    "residual": (lambda x: (x + 0.1 * (x @ A.T)) @ C.T, C @ (EYE + 0.1 * A), None),
    "difference": (lambda x: (x - x @ A.T) @ C.T, C @ (EYE - A), None),
    "slice": (lambda x: x[..., 1:], EYE[1:], None),
    "slice, all dimensions": (lambda x: x[:, :2], EYE[:2], None),
    "column": (lambda x: (C @ x.unsqueeze(-1)).squeeze(-1), C, None),
    "shifted": (lambda x: x + d, EYE, d),
    "shifted from the left": (lambda x: d + x, EYE, d),
    "shifted down": (lambda x: x - d, EYE, -d),
    "shifted by a number": (lambda x: x + 2, EYE, 2 * torch.ones(H, dtype=torch.float64)),
    "shifted twice": (lambda x: (x + d) + d, EYE, 2 * d),
    "shifted, then moved": (lambda x: (x + d) @ C.T + c, C, C @ d + c),
    "from d to x": (lambda x: d - x, -EYE, d),
    "linear without bias": (lambda x: torch.nn.functional.linear(x, C) + c, C, c),
    "shifted and added": (lambda x: ((x + d) + 0.5 * x) @ C.T, 1.5 * C, C @ d),
}


@grid({"case": AFFINE, "vectorize": [True, False]})
def test_affine_code(case, vectorize):
    mean, matrix, offset = AFFINE[case]
    close(*log_prob(mean, matrix, offset, vectorize, n=len(matrix)))


@pytest.mark.parametrize("vectorize", [True, False])
def test_a_lazy_conditional_of_affine_code(vectorize):
    torch.manual_seed(1)
    y, R, found = torch.randn(B, T, N, dtype=torch.float64), torch.ones(N, dtype=torch.float64), []
    for written in (True, False):
        handler = KalmanCollapse(vectorize=vectorize)
        with handler, pyro.plate("rows", B, dim=-1):
            x = None
            for t in markov(range(T)):
                if x is None:
                    x = pyro.sample(f"z_{t}", LinearGaussian(None, None, EYE))
                elif written:
                    x = pyro.sample(f"z_{t}", LinearGaussian(x + d, A, EYE, d))
                else:
                    x = pyro.sample(f"z_{t}", LinearGaussian(x, A, EYE, A @ d + d))
                if written:
                    pyro.sample(f"x_{t}", LinearGaussian(2 * x - d, C, R, c), obs=y[:, t])
                else:
                    pyro.sample(f"x_{t}", LinearGaussian(x, 2 * C, R, c - C @ d), obs=y[:, t])
        found.append(handler.chains["z_0"].log_prob())
    close(*found)


SCALAR = {
    "x[..., 1]": (lambda x: x[..., 1], EYE[1:2]),
    "x[..., -1]": (lambda x: x[..., -1], EYE[2:]),
    "sum": (lambda x: x.sum(-1), torch.ones(1, H, dtype=torch.float64)),
    "weighted sum": (lambda x: (x * C[0]).sum(-1), C[:1]),
    "x @ vector": (lambda x: x @ C[0], C[:1]),
}


@pytest.mark.parametrize("case", SCALAR)
def test_one_number_a_row(case):
    mean, matrix = SCALAR[case]
    y = torch.randn(B, T, dtype=torch.float64)
    found = []
    for lazy in (False, True):
        handler = KalmanCollapse()
        with handler, pyro.plate("rows", B, dim=-1):
            x = None
            for t in markov(range(T)):
                x = pyro.sample(f"z_{t}", LinearGaussian(None, None, EYE) if x is None else LinearGaussian(x, A, EYE))
                if lazy:
                    noise = torch.full((1,), 0.25, dtype=torch.float64)
                    pyro.sample(f"x_{t}", LinearGaussian(x, matrix, noise), obs=y.unsqueeze(-1)[:, t])
                else:
                    pyro.sample(f"x_{t}", dist.Normal(mean(x), 0.5), obs=y[:, t])
        found.append(handler.chains["z_0"].log_prob())
    close(*found)


def run(body, loop=range(2)):
    with KalmanCollapse(), pyro.plate("rows", B, dim=-1):
        x = pyro.sample("z_0", LinearGaussian(None, None, EYE))
        return body(x)


NOT_AFFINE = {
    "exp": lambda x: torch.exp(x),
    "square": lambda x: x**2,
    "product": lambda x: x * x,
    "softmax": lambda x: x.softmax(-1),
    "reciprocal": lambda x: 1 / x,
    "comparison": lambda x: x > 0,
    "equality": lambda x: x == 0,
    "inequality": lambda x: x != 0,
    "equality from the left": lambda x: torch.zeros(B, H) == x,
    "transposed": lambda x: x.T,
    "data": lambda x: x.data,
    "product from the left": lambda x: torch.ones(B, B) @ x,
    "bool": lambda x: bool(x.sum(-1)[0]),
    "float": lambda x: float(x[..., 0]),
    "item": lambda x: x.item(),
    "numpy": lambda x: x.numpy(),
    "a row": lambda x: x[0],
    "norm": lambda x: x.norm(dim=-1),
    "detach": lambda x: x.detach(),
    "cat": lambda x: torch.cat([x, x], -1),
    "in place": lambda x: x.add_(1),
    "matrix of states": lambda x: x @ x.T,
    "sum of all": lambda x: x.sum(),
}


@pytest.mark.parametrize("case", NOT_AFFINE)
def test_what_is_not_affine_is_refused(case):
    with pytest.raises(TypeError, match="not affine in the latent state"):
        run(NOT_AFFINE[case])


SITES = {
    "scale": (lambda x: dist.Normal(torch.zeros(B), x[..., 0]), "mean of a Gaussian only|not affine"),
    "rate": (lambda x: dist.Poisson(x[..., 0]), "mean of a Gaussian only|not affine"),
    "logits": (lambda x: dist.Bernoulli(logits=x[..., 0]), "mean of a Gaussian only|not affine"),
    "laplace": (lambda x: dist.Laplace(x[..., 0], 1.0), "cannot be integrated out"),
    "masked": (lambda x: dist.Normal(x, 1.0).to_event(1).mask(True), "cannot be integrated out|mean of a Gaussian"),
    "two states": (lambda x: LinearGaussian(x.unsqueeze(-1), C, torch.ones(N)), "A must be|last dimension"),
}


@pytest.mark.parametrize("case", SITES)
def test_sites_that_cannot_be_collapsed_are_named(case):
    make, message = SITES[case]
    with pytest.raises((TypeError, ValueError), match=message):
        run(lambda x: pyro.sample("y_0", make(x), obs=torch.zeros(B)))


def test_chains_are_first_order():
    def body(x):
        second = pyro.sample("z_1", LinearGaussian(x, A, EYE))
        third = pyro.sample("z_2", LinearGaussian(second, A, EYE))
        pyro.sample("y_2", LinearGaussian(third, C, torch.ones(N, dtype=torch.float64)), obs=torch.zeros(B, N).double())
        fork = pyro.sample("z_3", LinearGaussian(x, A, EYE))
        pyro.sample("y_3", LinearGaussian(fork, C, torch.ones(N, dtype=torch.float64)), obs=torch.zeros(B, N).double())

    with pytest.raises(ValueError, match="'z_3' does not follow the last state"):
        run(body)


def test_a_site_outside_the_plates_of_its_chain():
    with pytest.raises(ValueError, match="same plates"):
        with KalmanCollapse():
            x = pyro.sample("z_0", LinearGaussian(None, None, EYE))
            with pyro.plate("rows", B):
                pyro.sample("y_0", LinearGaussian(x, C, torch.ones(N)), obs=torch.zeros(B, N))


def test_other_sites_are_left_alone():
    with poutine.trace() as trace, KalmanCollapse():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        x = pyro.sample("z_0", LinearGaussian(None, None, EYE))
        pyro.sample("y_0", LinearGaussian(x, C, torch.ones(N, dtype=torch.float64), a * c), obs=c)
        pyro.sample("b", dist.MultivariateNormal(torch.zeros(2), torch.eye(2)))
    assert [n for n, s in trace.trace.nodes.items() if s["type"] == "sample"] == ["a", "b", "z_0__chain"]


def test_a_state_has_no_value_outside():
    with KalmanCollapse():
        x = pyro.sample("z_0", LinearGaussian(None, None, EYE))
    assert "z_0" in repr(x)
    with pytest.raises(TypeError, match="has no value outside KalmanCollapse"):
        LinearGaussian(x, C, torch.ones(N)).sample()


@pytest.mark.parametrize("vectorize", [True, False])
def test_deterministic_notes_and_one_dtype(vectorize):
    """What a program notes of its states is left out; numbers of two kinds are refused by the name of their site."""
    A, C = parameters()
    y = torch.randn(B, T, N, dtype=torch.float64)

    def run(matrix, noted, observed):
        handler = KalmanCollapse(vectorize=vectorize)
        with poutine.trace() as trace, handler, pyro.plate("rows", B, dim=-1):
            x = None
            for t in markov(range(T)):
                x = pyro.sample(f"z_{t}", LinearGaussian(None, None, EYE) if x is None else LinearGaussian(x, A, EYE))
                if noted:
                    pyro.deterministic(f"mean_{t}", x @ matrix.T)
                pyro.sample(f"y_{t}", LinearGaussian(x, matrix, torch.eye(N, dtype=matrix.dtype)), obs=observed[:, t])
        assert not any(name.startswith("mean") for name in trace.trace.nodes)
        return handler.chains["z_0"].log_prob()

    close(run(C, True, y), run(C, False, y))
    with pytest.raises(
        TypeError, match="site 'y_0': the matrix of the state is torch.float32, but the chain's first state"
    ):
        run(C.float(), False, y)
    with pytest.raises(TypeError, match="site 'y_0': the observation is torch.float32"):
        run(C, False, y.float())


@grid({
    "by_step": ["noise", "matrix", "offset", "emission", "spread", "constant", "all"],
    "seen": [[1, 1, 1, 1], [1, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]],
    "vectorize": [True, False],
}, times=2)
def test_gradients_of_what_each_step_has(by_step, seen, vectorize):
    """As many numbers as states, all rows alike: one covariance path."""
    torch.manual_seed(0)
    size, rows, num_steps = 2, 2, len(seen)

    def draw(name):
        kind = "vector" if name in ("offset", "constant") else "noise" if name in ("noise", "spread") else "matrix"
        shape = (num_steps if by_step in (name, "all") else 1, size, *([] if kind == "vector" else [size]))
        value = torch.randn(shape, dtype=F64)
        value = value @ value.mT + 0.1 * torch.eye(size, dtype=F64) if kind == "noise" else 0.5 * value
        return value.requires_grad_()

    names = ("noise", "matrix", "offset", "emission", "spread", "constant")
    leaves, eye = {name: draw(name) for name in names}, torch.eye(size, dtype=F64)
    y, mask = torch.randn(rows, num_steps, size, dtype=F64), torch.tensor(seen, dtype=torch.bool)

    def at(name, t):
        return leaves[name][t] if len(leaves[name]) > 1 else leaves[name][0]

    with KalmanCollapse(vectorize=vectorize) as posterior, pyro.plate("rows", rows):
        x = None
        for t in markov(range(num_steps)):
            law = LinearGaussian(None, None, eye)
            if x is not None:
                law = LinearGaussian(x, at("matrix", t), at("noise", t), at("offset", t))
            x = pyro.sample(f"x_{t}", law)
            with poutine.mask(mask=mask[t]):
                pyro.sample(f"y_{t}", LinearGaussian(x, at("emission", t), at("spread", t), at("constant", t)), obs=y[:, t])
    every, later = range(num_steps), range(1, num_steps)
    moves = [[at(name, t) for t in later] for name in ("matrix", "noise", "offset")]
    gives = [[at(name, t) for t in every] for name in ("emission", "spread", "constant")]
    wanted = torch.zeros((), dtype=F64)
    for row in y:
        numbers = [row[t] if seen[t] else None for t in every]
        wanted = wanted + kalman_loop(GaussianSequence(torch.zeros(size, dtype=F64), eye, *moves, *gives, numbers)).log_prob
    found = posterior.chains["x_0"].log_prob().sum()
    close(found, wanted)
    held = list(leaves.values())
    grads = [torch.autograd.grad(value, held, allow_unused=True) if any(seen) else held for value in (found, wanted)]
    for name, one, other in zip(names, *grads, strict=True):
        one, other = (torch.zeros_like(leaves[name]) if g is None else g for g in (one, other))
        if name in ("noise", "spread"):  # of which only the symmetric part is defined
            one, other = one + one.mT, other + other.mT
        close(one, other, msg=lambda m, name=name: f"{name}: {m}")
