"""Exact diffuse starts: the limit of ever larger variances, as dense regressions and as statsmodels have it."""

import math
import warnings

import pyro
import pytest
import torch
from support.grids import grid
from support.oracles.gaussian import GaussianSequence, diffuse_posterior, joint_posterior

from pplseq.distributions.gaussian_types import Evidence, GaussianBelief, LinearEvidence
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from pplseq.infer.gaussian.diffuse import DiffuseChain, gaussian_chain
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov
from pplseq.models import LDS

F64 = torch.float64
close = torch.testing.assert_close
LENGTHS = torch.tensor([9, 6, 9])


def system(h, n, seed=0):
    torch.manual_seed(seed)
    A, C = torch.randn(h, h, dtype=F64) / h**0.5, torch.randn(n, h, dtype=F64)
    roots = torch.randn(h, h, dtype=F64), torch.randn(n, n, dtype=F64)
    Q, R = (root @ root.T + 0.1 * torch.eye(len(root), dtype=F64) for root in roots)
    return [value.requires_grad_() for value in (A, Q, C, R)]


def data(n, missing):
    y = 100 + 5 * torch.randn(9, 3, n, dtype=F64)
    seen = torch.ones(9, 3, n, dtype=torch.bool)
    if missing:
        seen[0, 0], seen[4, 0], seen[3, 1], seen[2, 2, 0] = False, False, False, False
    return y, seen, torch.arange(9).unsqueeze(-1) < LENGTHS


def chain_of(values, y, seen, valid, unknown):
    A, Q, C, R = values
    patterns, which = torch.unique(seen.flatten(0, 1), dim=0, return_inverse=True)
    evidence = LinearEvidence(y.where(seen, 0.0), C, R, which.reshape(seen.shape[:2]), patterns)
    variances = torch.ones(len(A), dtype=F64).index_fill(0, torch.tensor(unknown), torch.inf)
    start = GaussianBelief(torch.ones(3, len(A), dtype=F64), torch.diag(variances))
    return gaussian_chain(start, Dynamics(A, Q), evidence, valid=valid, seen=seen.any(-1))


def sequence(values, y, seen, length, unknown=()):
    A, Q, C, R = values
    h, steps = len(A), range(length)
    said = [y[t][seen[t]] if bool(seen[t].any()) else None for t in steps]
    return GaussianSequence(
        torch.ones(h, dtype=F64), torch.eye(h, dtype=F64), [A] * (length - 1), [Q] * (length - 1),
        [torch.zeros(h, dtype=F64)] * (length - 1), [C[seen[t]] for t in steps], [R[seen[t]][:, seen[t]] for t in steps],
        [torch.zeros(int(seen[t].sum()), dtype=F64) for t in steps], said,
    )  # fmt: skip


@grid({"missing": [False, True], "h, n, unknown": [(1, 1, [0]), (3, 1, [0, 1, 2]), (3, 2, [1]), (2, 3, [0, 1])]})
def test_it_is_the_regression_of_all_observations(h, n, unknown, missing):
    values, (y, seen, valid) = system(h, n), data(n, missing)
    chain = chain_of(values, y, seen, valid, unknown)
    assert isinstance(chain, DiffuseChain)
    truths = [
        diffuse_posterior(sequence(values, y[:, r], seen[:, r], length), unknown)
        for r, length in enumerate(LENGTHS.tolist())
    ]
    expected = torch.stack([truth[0] for truth in truths])
    found = chain.log_prob()
    close(found, expected, rtol=1e-8, atol=1e-8)
    close(chain.token_log_probs().sum(-1), expected, rtol=1e-8, atol=1e-8)
    grads = [torch.autograd.grad(v.sum(), values, retain_graph=True) for v in (found, expected)]
    for k in (1, 3):  # of symmetric matrices only the symmetric part counts
        for grad in grads:
            grad[k].copy_((grad[k] + grad[k].T) / 2)
    close(*grads, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        plain = chain_of(values, y, seen, valid, unknown)  # the lean way
        close(plain.log_prob(), expected, rtol=1e-8, atol=1e-8)
        last, pairs = plain.filtered(), plain.lag_one_covariances().dense()
    for states in (chain.smoothed_states(), plain.smoothed_states()):
        for r, (_, mean, covariance) in enumerate(truths):
            length = int(LENGTHS[r])
            blocks = covariance.reshape(length, h, length, h)
            own = torch.stack([blocks[t, :, t] for t in range(length)])
            close(states.means[r, :length], mean.reshape(length, h), rtol=1e-6, atol=1e-6)
            close(states.covariances.dense()[r, :length], own, rtol=1e-6, atol=1e-6)
            later = torch.stack([blocks[t + 1, :, t] for t in range(length - 1)])
            close(pairs[r, : length - 1], later, rtol=1e-6, atol=1e-6)
            covariance = last.covariance if last.covariance.dim() == 2 else last.covariance[r]
            close((last.mean[r], covariance), (mean[-h:], own[-1]), rtol=1e-6, atol=1e-6)
    close(plain.smoothed_states().covariances.total(), plain.smoothed_states().covariances.dense().sum((0, 1)))
    filtered = plain.filtered_states()
    for r, t in ((0, 8), (1, 5), (2, 7)):
        truth = diffuse_posterior(sequence(values, y[:, r], seen[:, r], t + 1), unknown)
        close(filtered.means[r, t], truth[1][-h:], rtol=1e-6, atol=1e-6)
        close(filtered.covariances.dense()[r, t], truth[2][-h:, -h:], rtol=1e-6, atol=1e-6)


def test_it_is_the_limit_of_large_variances():
    """log p + log(k) / 2 for each unknown coordinate."""
    values, (y, seen, _) = system(2, 1, seed=3), data(1, False)
    y, large = y / 100, 1e8
    chain = chain_of(values, y, seen, None, [0, 1])
    near = sequence(values, y[:, 0], seen[:, 0], 9)._replace(covariance=large * torch.eye(2, dtype=F64))
    expected = joint_posterior(near)[0] + 2 / 2 * torch.tensor(large).log()
    close(chain.log_prob()[0], expected, rtol=1e-5, atol=1e-5)


def test_information_says_the_same_as_numbers():
    values, (y, seen, _) = system(2, 2), data(2, False)
    chain = chain_of(values, y, seen, None, [0, 1])
    said = chain.evidence.dense()
    other = gaussian_chain(chain.start, chain.dynamics, Evidence(said.vector, said.matrix[0, 0], said.constant))
    close(other.log_prob(), chain.log_prob())
    close(other.smoothed_states().means, chain.smoothed_states().means)


def test_draws_have_the_moments_of_the_posterior():
    values, (y, seen, valid) = system(2, 1), data(1, False)
    with torch.no_grad():
        chain = chain_of(values, y, seen, valid, [0, 1])
        draws, states = chain.sample(4000, seed=0), chain.smoothed_states()
    spread = states.covariances.dense().diagonal(dim1=-2, dim2=-1)
    assert bool((draws[:, 1, 6:] == 0).all())
    error = (draws.mean(0) - states.means) / spread.sqrt().clamp_min(1e-9)
    assert float(error.abs().max()) < 5 / 4000**0.5
    close(draws.var(0), spread, rtol=0.15, atol=1e-9)


def test_programs_and_models_may_start_so():
    values, (y, _, _) = system(2, 1), data(1, False)
    A, Q, C, R = (value.detach() for value in values)
    with KalmanCollapse() as posterior, pyro.plate("rows", 3, dim=-1):
        x = None
        for t in markov(range(9)):
            x = pyro.sample(f"x_{t}", LinearGaussian(x, A, torch.full((2,), torch.inf, dtype=F64) if x is None else Q))
            pyro.sample(f"y_{t}", LinearGaussian(x, C, R), obs=y[t])
    model = LDS(2, 1, offsets="none", initial="diffuse")
    model.set_parameters(transition=A, state_noise=Q, emission=C, emission_noise=R)
    x = y.transpose(0, 1)
    chain = posterior.chains["x_0"]
    close(chain.log_prob(), model.posterior(x).log_prob().detach())
    assert model.score(x) == pytest.approx(float(chain.log_prob().sum()), rel=1e-12)
    assert float(model.log_joint(x).detach()) == pytest.approx(model.score(x), rel=1e-12)
    future, last = model.forecast(x, 2), chain.filtered()
    close(future.means[:, 0], last.mean @ A.T @ C.T)
    close(future.covariances[0, 0], C @ (A @ last.covariance @ A.T + Q) @ C.T + R)
    close(chain.forecast(2).state_covariances[0], A @ last.covariance @ A.T + Q)
    with pytest.raises(ValueError, match="a diffuse start can be integrated out by KalmanCollapse"):
        model.sample(3)
    with pytest.raises(ValueError, match="no row may be empty"):
        model.forecast([x[0], x[0, :0]], 2)


def test_single_precision_is_computed_in_double():
    values, (y, _, _) = system(2, 1), data(1, False)
    A, Q, C, R = (value.detach() for value in values)
    scores = []
    for dtype in ("float64", "float32"):
        model = LDS(2, 1, offsets="none", initial="diffuse", dtype=dtype)
        model.set_parameters(transition=A, state_noise=Q, emission=C, emission_noise=R)
        scores.append(model.score(y.transpose(0, 1)))
        assert model.smooth(y.transpose(0, 1)).means.dtype == model.transition.dtype
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)


def test_em_climbs_and_lbfgs_gets_higher():
    y = data(1, False)[0]
    x = (y.cumsum(0) - 100 * torch.arange(9).reshape(-1, 1, 1)).transpose(0, 1)
    model = LDS(1, 1, offsets="none", initial="diffuse")
    model.set_parameters(transition=[[1.0]], emission=[[1.0]], state_noise=[[1.0]], emission_noise=[[1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, fixed=["transition", "emission"], max_iterations=20, tolerance=0.0)
        reached = model.score(x)
        gains = torch.tensor(model.history.log_likelihoods).diff()
        model.fit(x, method="lbfgs", fixed=["transition", "emission"], num_steps=8)
    assert bool((gains > -1e-9).all()) and float(gains[0]) > 0.1
    assert model.score(x) > reached and model.num_free_parameters == 2


def test_a_fit_without_a_scale_of_the_states_is_refused():
    x = torch.randn(1, 20, 1)
    with pytest.raises(ValueError, match=r"has no maximum; fix emission \(set_parameters"):
        LDS(1, 1, initial="diffuse").fit(x)
    with pytest.raises(ValueError, match="fix emission and transition"):
        LDS(2, 1, initial="diffuse").fit(x, fixed="emission", method="lbfgs")


@pytest.mark.parametrize("noise", [0.0, 1e-8])
def test_exact_observations(noise):
    """An exactly observed random walk: log p is that of its steps."""
    y = 1000 + torch.randn(12, 1, 1, dtype=F64).cumsum(0)
    one = torch.ones(1, 1, dtype=F64)
    start = GaussianBelief(torch.zeros(1, 1, dtype=F64), one * torch.inf)
    chain = gaussian_chain(start, Dynamics(one, 2 * one), LinearEvidence(y, one, noise * one))
    steps = torch.distributions.Normal(0.0, torch.tensor(2.0, dtype=F64).sqrt()).log_prob(y.flatten().diff()).sum()
    steps = steps - math.log(2 * math.pi) / 2  # of the first observation, Koopman's convention
    tolerance = 1e-6 if noise else 1e-12
    close(chain.log_prob()[0], steps, rtol=tolerance, atol=tolerance)
    close(chain.smoothed_states().means.flatten(), y.flatten(), rtol=1e-9, atol=1e-9)
    assert float(chain.smoothed_states().covariances.dense().abs().max()) <= 1.01 * noise + 1e-9


def test_exact_observations_with_gradients():
    """What is known of the first state exactly has no width to take differences over: values, and gradients by differences."""
    y = torch.randn(8, 1, 1, dtype=F64)
    root = torch.tensor([[1.0], [0.4]], dtype=F64)
    start = GaussianBelief(torch.zeros(1, 2, dtype=F64), torch.full((2,), torch.inf, dtype=F64).diag())

    def log_prob(weight):
        matrix = torch.stack([torch.stack([weight, torch.ones_like(weight)]), torch.zeros(2, dtype=F64)])
        evidence = LinearEvidence(y, torch.tensor([[1.0, 0.0]], dtype=F64), torch.zeros(1, 1, dtype=F64))
        return gaussian_chain(start, Dynamics(matrix, root @ root.T), evidence).log_prob().sum()

    weight, small = torch.tensor(0.6, dtype=F64, requires_grad=True), 1e-5
    value = log_prob(weight)
    with torch.no_grad():
        close(value, log_prob(weight), rtol=1e-12, atol=1e-12)
        difference = (log_prob(weight + small) - log_prob(weight - small)) / (2 * small)
    close(torch.autograd.grad(value, weight)[0], difference, rtol=1e-7, atol=1e-7)


def test_what_cannot_be_is_named():
    values, (y, seen, _) = system(2, 1), data(1, False)
    valid = torch.arange(9).unsqueeze(-1) < torch.tensor([9, 1, 9])
    with pytest.raises(ValueError, match="row 1: its observations do not determine the 2 coordinates"):
        chain_of(values, y, seen, valid, [0, 1]).log_prob()
    start = GaussianBelief(
        torch.zeros(3, 2, dtype=F64), torch.eye(2, dtype=F64).expand(3, 2, 2) * torch.tensor([torch.inf, 1])
    )
    A, Q, C, R = values
    with pytest.raises(ValueError, match="the same for all rows"):
        gaussian_chain(start, Dynamics(A, Q), LinearEvidence(y, C, R))
    inf = torch.tensor([[torch.inf, 1.0], [1.0, 2.0]], dtype=F64)
    with pytest.raises(ValueError, match="must be 0 beside the infinite variances"):
        gaussian_chain(start._replace(covariance=inf), Dynamics(A, Q), LinearEvidence(y, C, R))
    with pytest.raises(ValueError, match="start.covariance must be finite"):
        GaussianChain(start._replace(covariance=inf), Dynamics(A, Q), LinearEvidence(y, C, R))


def test_states_before_they_are_determined():
    values, (y, seen, _) = system(2, 1), data(1, False)
    chain = chain_of(values, y, seen, None, [0, 1])
    states = chain.filtered_states()
    assert bool(states.means[:, 0].isnan().all()) and bool(states.means[:, 1:].isfinite().all())
    assert bool(states.covariances.at(0).diagonal().isinf().all())
    assert bool((chain.token_log_probs()[:, 0] == 0).all())


def test_second_derivatives():
    values, (y, seen, valid) = system(2, 1), data(1, False)
    A, Q, C, R = (value.detach() for value in values)

    def found(logs):
        return chain_of((A, Q * logs[0].exp(), C * logs[2], R * logs[1].exp()), y, seen, valid, [0, 1]).log_prob().sum()

    def expected(logs):
        scaled = (A, Q * logs[0].exp(), C * logs[2], R * logs[1].exp())
        rows = enumerate(LENGTHS.tolist())
        return sum(diffuse_posterior(sequence(scaled, y[:, r], seen[:, r], n), [0, 1])[0] for r, n in rows)

    at = torch.tensor([0.1, -0.2, 1.1], dtype=F64)
    hessians = [torch.autograd.functional.hessian(function, at) for function in (found, expected)]
    close(*hessians, rtol=1e-5, atol=1e-5)
