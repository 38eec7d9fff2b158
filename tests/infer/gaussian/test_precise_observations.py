"""Observations as precise as one likes, exact ones included: values and gradients are those of the textbook."""

import warnings

import pytest
import torch
from support.grids import grid
from support.oracles.gaussian import GaussianSequence, kalman_loop

from pplseq.distributions.gaussian_types import GaussianBelief, LinearEvidence
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from pplseq.models.lds.program import LDS

F64 = torch.float64


def truth(values, x):
    """log p(x) by the textbook's filter, row by row, each step with the coordinates that are seen."""
    A, Q, C, R, mean, P = values
    total = mean.new_zeros(())
    for row in x:
        seen = [~y.isnan() for y in row]
        none = [mean.new_zeros(len(mean))] * (len(row) - 1)
        said = [y[o] if bool(o.any()) else None for y, o in zip(row, seen, strict=True)]
        total = total + kalman_loop(GaussianSequence(
            mean, P, [A] * len(none), [Q] * len(none), none, [C[o] for o in seen], [R[o][:, o] for o in seen],
            [mean.new_zeros(int(o.sum())) for o in seen], said,
        )).log_prob  # fmt: skip
    return total


def relative(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@grid({
    "dtype": ["float64", "float32"],
    "h, n": [(2, 1), (3, 3), (2, 4)],
    "missing": [False, True],
    "noise": [1e-3, 1e-8],
}, times=3)
def test_values_and_gradients_are_the_textbook_s(h, n, missing, noise, dtype):
    torch.manual_seed(0)
    A = torch.randn(h, h, dtype=F64)
    A = 0.9 * A / torch.linalg.eigvals(A).abs().max()
    model = LDS(h, n, dtype=dtype, offsets="none").set_parameters(
        transition=A, state_noise=torch.eye(h), emission=torch.randn(n, h), emission_noise=noise * torch.eye(n),
        initial_mean=torch.zeros(h), initial_covariance=torch.eye(h),
    )  # fmt: skip
    x = model.sample(24, 2, seed=1).x.detach()
    if missing:
        x[0, torch.rand(24, n) < 0.3] = torch.nan
        x[1, torch.rand(24) < 0.3] = torch.nan
    own = model.transition, model.state_noise, model.emission, model.emission_noise, *model._initial_belief
    values = [value.detach().double().requires_grad_() for value in own]
    expected = truth(values, x.double())
    expected.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score, joint = model.score(x), model.log_joint(x)
    joint.backward()
    bound = 1e-8 if dtype == "float64" else 1e-4
    assert (
        abs(score / float(expected.detach()) - 1) < bound
        and abs(float(joint.detach()) / float(expected.detach()) - 1) < bound
    )
    slack = bound * (20 if n > h else 1)  # of the textbook, which inverts what is nearly singular
    assert relative(model.transition.grad, values[0].grad) < slack
    assert relative(model.emission.grad, values[2].grad) < slack
    assert relative(model.initial_mean.grad, values[4].grad) < slack
    per_scale = 2 * (values[3].grad * values[3].detach()).diagonal()
    assert relative(model.emission_scale.grad.diagonal(), per_scale) < slack


@pytest.mark.parametrize("rows", [False, True])
def test_matrices_of_their_own_at_every_step(rows):
    """Loadings of every step, and row, with a noise of 1e-8."""
    torch.manual_seed(1)
    T, B, h, n = 9, 2, 2, 3
    C = torch.randn(T, *((B,) if rows else ()), n, h, dtype=F64, requires_grad=True)
    R, A = 1e-8 * torch.eye(n, dtype=F64), 0.9 * torch.eye(h, dtype=F64)
    y = torch.randn(T, B, n, dtype=F64)
    which = torch.arange(T * B).reshape(T, B) if rows else torch.arange(T).unsqueeze(1)
    evidence = LinearEvidence(y, C.flatten(0, -3), R, which.expand(T, B))
    eye = torch.eye(h, dtype=F64)
    chain = GaussianChain(GaussianBelief(torch.zeros(B, h, dtype=F64), eye), Dynamics(A, eye), evidence)
    nothing = [torch.zeros(h, dtype=F64)] * (T - 1)
    expected = sum(
        kalman_loop(GaussianSequence(
            torch.zeros(h, dtype=F64), eye, [A] * (T - 1), [eye] * (T - 1), nothing,
            [C[t, row] if rows else C[t] for t in range(T)], [R] * T, [torch.zeros(n, dtype=F64)] * T, list(y[:, row]),
        )).log_prob
        for row in range(B)
    )  # fmt: skip
    found = chain.log_prob().sum()
    assert abs(float(found.detach() / expected.detach()) - 1) < 1e-8
    grads = [torch.autograd.grad(value, C)[0] for value in (found, expected)]
    assert relative(*grads) < 1e-6


def second_order(y, dtype=F64, noise=0.0):
    """An autoregression of order two as states that are observed exactly; its parameters and its chain."""
    weights, spread = (torch.tensor(v, dtype=dtype, requires_grad=True) for v in ([0.5, 0.3], 0.7))
    A = torch.stack([weights, torch.tensor([1.0, 0.0], dtype=dtype)])
    Q = torch.diag(torch.stack([spread, 0 * spread]))
    P = torch.linalg.solve(torch.eye(4, dtype=dtype) - torch.kron(A, A), Q.reshape(-1)).reshape(2, 2)
    evidence = LinearEvidence(y, torch.tensor([[1.0, 0.0]], dtype=dtype), torch.full((1, 1), noise, dtype=dtype))
    return (weights, spread, P), GaussianChain(
        GaussianBelief(torch.zeros(y.shape[1], 2, dtype=dtype), P), Dynamics(A, Q), evidence
    )


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_exact_observations(dtype):
    y = torch.randn(30, 2, 1, generator=torch.Generator().manual_seed(1), dtype=F64).to(dtype)
    (weights, spread, P), chain = second_order(y, dtype)
    first = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=dtype), P).log_prob(y[:2, :, 0].T.flip(1))
    rest = torch.distributions.Normal(weights[0] * y[1:-1, :, 0] + weights[1] * y[:-2, :, 0], spread.sqrt()).log_prob(
        y[2:, :, 0]
    )
    expected = first + rest.sum(0)
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == F64 else {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close(chain.log_prob(), expected, **tolerance)
    found, wanted = (
        torch.autograd.grad(v.sum(), (weights, spread), retain_graph=True) for v in (chain.log_prob(), expected)
    )
    torch.testing.assert_close(found, wanted, **tolerance)
    with torch.no_grad():
        again = second_order(y, dtype)[1]
        torch.testing.assert_close(again.log_prob(), expected, **tolerance)
        for seen in (
            again.smoothed_states().means[..., 0],
            again.sample(1, seed=0)[0, ..., 0],
            again.filtered_states().means[..., 0],
        ):
            torch.testing.assert_close(seen.T, y[..., 0], **tolerance)
        assert again.forecast(2).state_covariances[0, 0, 0] == pytest.approx(0.7, abs=1e-6)


def test_what_has_no_density_is_named():
    eye, y = torch.eye(2, dtype=F64), torch.randn(5, 1, 1, dtype=F64)
    exact = LinearEvidence(y, eye[:1], torch.zeros(1, 1, dtype=F64))
    chain = GaussianChain(GaussianBelief(torch.zeros(1, 2, dtype=F64), eye), Dynamics(eye, 0 * eye), exact)
    with pytest.raises(ValueError, match="step 1: the covariance of its observation given the past is singular"):
        chain.log_prob()


def test_an_lds_may_observe_exactly():
    model = LDS(2, 1, offsets="none").set_parameters(
        transition=[[0.5, 0.3], [1.0, 0.0]], state_noise=[[0.7, 0.0], [0.0, 0.0]], emission=[[1.0, 0.0]], emission_noise=[0.0],
        initial_mean=[0.0, 0.0], initial_covariance=torch.eye(2),
    )  # fmt: skip
    x = torch.randn(1, 20, 1, dtype=F64)
    torch.testing.assert_close(model.smooth(x).means[..., :1], x)
    joint = model.log_joint(x)
    joint.backward()
    assert model.transition.grad.isfinite().all() and model.emission_scale.grad.isfinite().all()
    assert float(joint.detach()) == pytest.approx(model.score(x), rel=1e-12)


@grid({"dtype": ["float64", "float32"], "missing": [False, True], "noise": [1.0, 1e-4, 1e-8, 0.0]})
def test_smoothing_and_em_down_to_exact_observations(dtype, missing, noise):
    """Smoothed moments, and the statistics of the E-step, of h = 3 states of which n = 2 numbers are observed."""
    torch.manual_seed(3)
    h, n = 3, 2
    A, C = 0.6 * torch.eye(h, dtype=F64) + 0.2 * torch.randn(h, h, dtype=F64), torch.randn(n, h, dtype=F64)
    model = LDS(h, n, dtype=dtype, offsets="none").set_parameters(
        transition=A, state_noise=torch.eye(h), emission=C, emission_noise=[noise] * n, initial_mean=torch.zeros(h),
        initial_covariance=torch.eye(h),
    )  # fmt: skip
    x = torch.randn(2, 12, n, dtype=F64)
    if missing:
        x[0, 3], x[0, 5, 0], x[1, 0, 1] = torch.nan, torch.nan, torch.nan
    own = (model.transition, model.state_noise, model.emission, model.emission_noise, *model._initial_belief)
    A, Q, C, R, mean, P = (value.detach().double() for value in own)
    truths = []
    for row in x.to(model.transition.dtype).double():
        seen = [~y.isnan() for y in row]
        truths.append(kalman_loop(GaussianSequence(
            mean, P, [A] * 11, [Q] * 11, [mean] * 11, [C[o] for o in seen], [R[o][:, o] for o in seen],
            [mean.new_zeros(int(o.sum())) for o in seen],
            [y[o] if bool(o.any()) else None for y, o in zip(row, seen, strict=True)],
        )))  # fmt: skip
    close = {"rtol": 1e-7, "atol": 1e-7} if dtype == "float64" else {"rtol": 2e-3, "atol": 2e-4}
    moments = model.smooth(x)
    for k, truth in enumerate(truths):
        torch.testing.assert_close(moments.means[k].double(), truth.smoothed[0], **close)
        torch.testing.assert_close(moments.covariances[k].double(), truth.smoothed[1], **close)
    batch = model._as_batch(x)
    found = model.expected_statistics(model.chain_of(batch), batch)
    second = sum(m.T @ m + P.sum(0) for m, P in ((t.smoothed[0][:-1], t.smoothed[1][:-1]) for t in truths))
    torch.testing.assert_close(found["transition_moment"].double(), second, **close)
    assert all(bool(value.isfinite().all()) for value in found.values())
