"""Time in a vectorised loop is no dimension that sizes could be mistaken for: every way to use it, at sizes that meet."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.grids import grid

from pplseq.distributions.dense import CategoricalEmission, DenseTransition, StepTransition
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.distributions.noise import DiagonalNoise
from pplseq.distributions.partly_observed import PartlyObserved
from pplseq.distributions.timed import Timed
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import TimeIndex, markov

close = torch.testing.assert_close
F64 = torch.float64
MEET = [(3, 4), (2, 3)]  # rows and steps: T - 1 = B, and the size of a state too
SIZES = [*MEET, *(pytest.param(*s, marks=pytest.mark.slow) for s in [(1, 4), (4, 4), (3, 2), (1, 2), (2, 2)])]


def draw(*shape):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape) + 7))


# ------------------------------------------------------------------------------------------------ Gaussian states
def step(x, t, values):
    """A mean, a noise and an observation's distribution at step t, in each way to write one."""
    b, u, A, R, s, W, C = (values[name] for name in ("b", "u", "A", "R", "s", "W", "C"))
    plain = lambda mean, cov: dist.MultivariateNormal(mean, cov)  # noqa: E731
    eye = torch.eye(2, dtype=F64)
    return {
        "shared offset": lambda: plain(x @ C.T + b[t], eye),
        "shared offset first": lambda: plain(b[t] + x @ C.T, eye),
        "offset by rows": lambda: plain(x @ C.T + values["rows"][:, t], eye),
        "shared inputs": lambda: plain(x @ C.T + u[t] @ W.T, eye),
        "inputs by rows": lambda: plain(x @ C.T + values["inputs"][:, t] @ W.T, eye),
        "a network of inputs": lambda: plain(x @ C.T + torch.tanh(u[t] @ W.T).exp(), eye),
        "matrix": lambda: plain((A[t] @ x.unsqueeze(-1)).squeeze(-1), eye),
        "covariance": lambda: plain(x @ C.T, R[t]),
        "scale": lambda: dist.Normal(x @ C.T, s[t]).to_event(1),
        "one scale": lambda: dist.Normal(x @ C.T, s[t, :1]).to_event(1),
        "lazy offset": lambda: LinearGaussian(x, C, eye, offset=b[t]),
        "lazy matrix": lambda: LinearGaussian(x, A[t], eye),
        "lazy noise": lambda: LinearGaussian(x, C, R[t]),
        "lazy variances": lambda: LinearGaussian(x, C, DiagonalNoise(s[t].square())),
        "lazy inputs": lambda: LinearGaussian(x, C, eye, inputs=(W, u[t])),
        "lazy inputs by rows": lambda: LinearGaussian(x, C, eye, inputs=(W, values["inputs"][:, t]), offset=b[t]),
        "partly observed": lambda: PartlyObserved(x, C, eye, offset=b[t], observed=values["seen"][:, t]),
        "partly observed alike": lambda: PartlyObserved(x, C, eye, inputs=(W, u[t]), observed=values["alike"][t]),
        "partly observed matrix": lambda: PartlyObserved(x, A[t], eye, observed=values["seen"][:, t]),
    }  # fmt: skip


WAYS = list(step(None, 0, dict.fromkeys("buARsWC")))
OF_STATES = [way for way in WAYS if "partly" not in way]


def gaussian_values(rows, steps):
    root = 0.4 * draw(steps, 2, 2)
    return {
        "b": draw(steps, 2).requires_grad_(), "u": draw(steps, 3), "A": 0.5 * draw(steps, 2, 2), "s": draw(steps, 2).exp(),
        "R": root @ root.mT + torch.eye(2, dtype=F64), "W": draw(2, 3), "C": draw(2, 2), "rows": draw(rows, steps, 2),
        "inputs": draw(rows, steps, 3), "seen": draw(rows, steps, 2) > -0.5, "alike": draw(steps, 2) > 0,
        "y": draw(rows, steps, 2), "missing": draw(steps) > 0.5,
    }  # fmt: skip


def gaussian(values, state_way, way, vectorize):
    y, x = values["y"], None
    with pyro.plate("rows", len(y), dim=-1):
        for t in markov(range(y.shape[1]), vectorize=vectorize):
            if x is None:
                fn = LinearGaussian(None, None, torch.eye(2, dtype=F64))
            elif state_way is None:
                fn = LinearGaussian(x, 0.5 * torch.eye(2, dtype=F64), torch.eye(2, dtype=F64))
            else:
                fn = step(x, t, values)[state_way]()
            x = pyro.sample(f"x_{t}", fn)
            with poutine.mask(mask=~values["missing"][t]):
                pyro.sample(f"y_{t}", step(x, t, values)[way](), obs=y[:, t])


def same_either_way(handler, model, values):
    found = []
    for vectorize in (True, False):
        with handler() as posterior:
            model(vectorize)
        value = next(iter(posterior.chains.values())).log_prob()
        found.append((value, torch.autograd.grad(value.sum(), values, allow_unused=True)))
    close(found[0][0], found[1][0])
    for left, right in zip(found[0][1], found[1][1], strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            close(left, right)


@grid({
    "state_way, way": [*((None, w) for w in WAYS), *((w, "shared offset") for w in OF_STATES)],
    "rows, steps": SIZES,
})
def test_gaussian_states(rows, steps, state_way, way):
    values = gaussian_values(rows, steps)
    leaves = [values["b"], values["y"].requires_grad_()]
    same_either_way(KalmanCollapse, lambda v: gaussian(values, state_way, way, v), leaves)


def test_without_a_plate():
    values = gaussian_values(3, 4)
    y = values["y"][0]

    def model(vectorize):
        x = None
        for t in markov(range(4), vectorize=vectorize):
            fn = LinearGaussian(None, None, values["R"][0]) if x is None else LinearGaussian(x, values["A"][t], values["R"][t])
            x = pyro.sample(f"x_{t}", fn)
            pyro.sample(f"y_{t}", LinearGaussian(x, values["C"], values["R"][t]), obs=y[t])

    same_either_way(KalmanCollapse, model, [y.requires_grad_()])


# ------------------------------------------------------------------------------------------------ discrete states
def discrete_values(rows, steps):
    generator = torch.Generator().manual_seed(rows + steps)
    return {
        "x": torch.randint(4, (rows, steps), generator=generator), "u": draw(steps, 2), "v": draw(rows, steps, 2),
        "missing": draw(steps) > 0.3, "lengths": torch.randint(1, steps + 1, (rows,), generator=generator),
        "W": draw(3, 2).requires_grad_(), "common": torch.randint(4, (steps,), generator=generator),
    }  # fmt: skip


INPUTS = {
    "shared": lambda v, t: v["u"][t],
    "a product": lambda v, t: v["u"][t] @ torch.eye(2, dtype=F64),
    "by rows": lambda v, t: v["v"][:, t],
    "both": lambda v, t: v["v"][:, t] + v["u"][t],
    "one of many": lambda v, t: torch.stack([v["v"][:, t, 0], v["v"][:, t, 1].tanh()], -1),
    "a condition": lambda v, t: torch.where(v["missing"][t], v["u"][t], -v["u"][t]),
}


@grid({"nesting": [1, 2], "inputs": INPUTS, "rows, steps": SIZES})
def test_discrete_states(rows, steps, inputs, nesting):
    values = discrete_values(rows, steps)
    emission = CategoricalEmission(draw(3, 4).log_softmax(-1))

    def matrix_of(u):
        return ((values["W"] @ u.unsqueeze(-1)).transpose(-1, -2) + torch.eye(3, dtype=F64)).log_softmax(-1)

    transition = StepTransition(draw(3).log_softmax(-1), matrix_of, 3)

    def model(vectorize):
        z = None
        with pyro.plate("outer", 2, dim=-2) if nesting == 2 else poutine.scale(scale=1.0):
            with pyro.plate("rows", rows, dim=-1):
                for t in markov(range(steps), vectorize=vectorize):
                    with poutine.mask(mask=t < values["lengths"]):
                        z = pyro.sample(f"z_{t}", transition(z, inputs=INPUTS[inputs](values, t)))
                        with poutine.mask(mask=~values["missing"][t]):
                            x = values["common"][t] if inputs == "shared" else values["x"][:, t]
                            pyro.sample(f"x_{t}", emission(z), obs=x)

    same_either_way(BlockedEnum, model, [values["W"]])


# ------------------------------------------------------------------------------------------------ the values themselves
def test_values_of_all_steps_are_those_of_one_step():
    x, w = draw(3, 5, 2).requires_grad_(), draw(2, 4)
    t = TimeIndex(1, 5)
    part = x[:, t]
    assert isinstance(part, Timed) and part.shape == (3, 2) and part.dim() == 2 and len(part) == 3 and part.requires_grad
    operations = {
        "product": lambda v: v @ w, "einsum": lambda v: torch.einsum("bi,ij->bj", v, w), "sum": lambda v: v.sum(0),
        "reshape": lambda v: v.reshape(-1), "transpose": lambda v: v.T, "index": lambda v: v[:, 0],
        "max": lambda v: v.max(-1).values, "stack": lambda v: torch.stack([v, v], -1),
        "cat": lambda v: torch.cat([v, w[:, :2]]), "softmax": lambda v: v.softmax(-1), "norm": lambda v: v.norm(dim=-1),
        "where": lambda v: torch.where(v > 0, v, 0.0), "rows": lambda v: v[torch.tensor([0, 2])],
    }  # fmt: skip
    for name, operation in operations.items():
        close(operation(part).steps, torch.stack([operation(x[:, k]) for k in range(1, 5)]), msg=name)
    (gradient,) = torch.autograd.grad((part @ w).steps.sum(), x)
    close(gradient[:, 1:], w.sum(-1).expand(3, 4, 2))
    assert (gradient[:, 0] == 0).all()


def test_values_of_all_steps_are_no_numbers():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    part = x[0, TimeIndex(1, 4)]
    assert bool(part > 0) and not bool(part > 9)  # the same at all steps
    with pytest.raises(TypeError, match="at some steps of a vectorised loop and not at others.*vectorize=False"):
        bool(part > 2)
    for use in (float, int, lambda v: v.item(), lambda v: v.tolist(), lambda v: v.add_(1), lambda v: v.numpy()):
        with pytest.raises(TypeError, match=r"pplseq.markov\(\.\.\., vectorize=False\)"):
            use(part)
    with pytest.raises(TypeError, match="indexed by time again"):
        x[:, TimeIndex(1, 4)][TimeIndex(0, 1)]
    with pytest.raises(ValueError, match="of different loops meet"):
        part + x[0, TimeIndex(1, 3)]


def test_a_shared_transition_is_not_taken_for_rows():
    """The case that showed it: as many rows as steps behind the first."""
    b, x = draw(4, 3), torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]])
    eye = torch.eye(2, dtype=F64)
    transition = StepTransition(draw(2).log_softmax(-1), lambda u: (u[..., None] * eye).log_softmax(-1), 2)
    emission = CategoricalEmission(draw(2, 2).log_softmax(-1))
    dense = DenseTransition(draw(2).log_softmax(-1), draw(2, 2).log_softmax(-1))

    def model(vectorize, transition, inputs):
        z = None
        with pyro.plate("rows", 3):
            for t in markov(range(4), vectorize=vectorize):
                z = pyro.sample(f"z_{t}", transition(z, inputs=None if inputs is None else inputs[t][:2]))
                with poutine.mask(mask=b[t, 0] > 0):
                    pyro.sample(f"x_{t}", emission(z), obs=x[:, t])

    same_either_way(BlockedEnum, lambda v: model(v, transition, b.requires_grad_()), [b])
    with BlockedEnum() as one, torch.no_grad():
        model(True, dense, None)
    with BlockedEnum() as two, torch.no_grad():
        model(False, dense, None)
    close(one.chains["z_0"].log_prob(), two.chains["z_0"].log_prob())
