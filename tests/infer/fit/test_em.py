"""EM: its closed forms against numerical maxima, its loop on models that behave and one that does not."""

import copy
import math

import numpy as np
import pytest
import torch
from support.grids import grid

from pplseq.infer.fit.closed_forms import NormalWishart, dirichlet_mode, gaussian_mode
from pplseq.infer.fit.em import Batch, StepSize, expectation_maximization
from pplseq.models import HMM

F64 = torch.float64
close = torch.testing.assert_close
COVARIANCES = ("diag", "full", "tied", "spherical")


def batch_of(model, num_steps=12, rows=8, seed=0):
    return Batch(model.sample(num_steps, rows, seed=seed)[0])


def halves(batch):
    return [Batch(*(None if v is None else v[half] for v in batch)) for half in (slice(0, 3), slice(3, None))]


# ------------------------------------------------------------------------------------------------ closed forms
@pytest.mark.parametrize("concentration", [None, 1.0, 2.5])
def test_dirichlet_mode(concentration):
    counts = torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=F64)
    previous = torch.tensor([[0.2, 0.3, 0.5]], dtype=F64).log().expand(2, 3)
    got = dirichlet_mode(counts, concentration, previous).exp()
    extra = 0.0 if concentration is None else concentration - 1
    close(got[0], (counts[0] + extra) / (4 + 3 * extra))
    close(got[1], torch.full((3,), 1 / 3, dtype=F64) if extra else previous[1].exp())


def gaussian_data(num_states=2, size=3, num_rows=30):
    x = torch.randn(num_rows, size, dtype=F64) @ torch.randn(size, size, dtype=F64) + 1.0
    return x, torch.rand(num_rows, num_states, dtype=F64)


def moments(x, weight, covariance):
    if covariance in ("diag", "spherical"):
        second = weight.T @ x**2
    else:
        second = torch.einsum("nz,ni,nj->zij", weight, x, x)
        second = second.sum(0) if covariance == "tied" else second
    return weight.sum(0), weight.T @ x, second


@pytest.mark.parametrize("with_prior", [False, True], ids=["likelihood", "posterior"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_gaussian_mode_is_where_the_gradient_vanishes(covariance, with_prior):
    x, weight = gaussian_data()
    options = dict(loc=[0.5, -1.0, 2.0], loc_strength=1.7, precision_shape=2.2, precision_rate=0.9)
    model = HMM(2, num_features=3, covariance=covariance, priors=options if with_prior else None)
    prior = model.priors.normal_wishart(3, x) if with_prior else None
    loc, spread, floored = gaussian_mode(*moments(x, weight, covariance), covariance, prior, 1e-9)
    assert not floored.any()
    precision = 1 / spread if covariance in ("diag", "spherical") else torch.linalg.inv(spread)
    loc.requires_grad_()
    precision.requires_grad_()
    if covariance in ("diag", "spherical"):
        scale = precision.rsqrt().expand(2, 3)
        density = torch.distributions.Normal(loc, scale).log_prob(x.unsqueeze(1)).sum(-1)
    else:
        density = torch.distributions.MultivariateNormal(loc, precision_matrix=precision).log_prob(x.unsqueeze(1))
    objective = (weight * density).sum()
    if with_prior:
        objective = objective + model.priors.gaussian_log_density(covariance, loc, precision)
    for gradient in torch.autograd.grad(objective, (loc, precision)):
        close(gradient, torch.zeros_like(gradient), atol=1e-7, rtol=0)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_collapsing_covariance_stops_at_the_floor(covariance):
    x, weight = gaussian_data()
    x[:, 2] = 1.0  # no variance in this direction
    _, spread, floored = gaussian_mode(*moments(x, weight, covariance), covariance, None, 0.25)
    if covariance == "spherical":
        assert not floored.any()
        return
    assert floored.all()
    if covariance == "diag":
        close(spread[:, 2], torch.full((2,), 0.25, dtype=F64))
    else:
        close(torch.linalg.eigvalsh(spread).amin(-1), torch.full(spread.shape[:-2], 0.25, dtype=F64))


# ------------------------------------------------------------------------------------------------ the loop
MODELS = {"words": lambda **o: HMM(3, 5, **o)} | {
    c: lambda c=c, **o: HMM(3, num_features=2, covariance=c, **o) for c in COVARIANCES
}


@grid({"kind": MODELS, "priors": [None, True, dict(transition=3.0, initial=2.0, emission=1.5)]})
def test_never_falls_and_batches_change_nothing(kind, priors):
    model = MODELS[kind](priors=priors)
    batch = batch_of(model)
    other = copy.deepcopy(model)
    seen = []
    history = expectation_maximization(
        model, [batch], max_iterations=8, tolerance=0, on_iteration=lambda h: seen.append(h.num_iterations)
    )
    assert seen == list(range(1, 9)) and history.reason.startswith("max_iterations") and not history.converged
    assert np.all(np.diff(history.log_posteriors) > -1e-9) and history.num_tokens == 96
    pieces = expectation_maximization(other, halves(batch), max_iterations=8, tolerance=0)
    np.testing.assert_allclose(pieces.log_likelihoods, history.log_likelihoods)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        close(one, two)
    prior = np.subtract(history.log_posteriors, history.log_likelihoods)
    assert len(set(np.round(prior, 9))) == (1 if priors is None else 8) and (priors is not None or prior[0] == 0)


def test_stops_when_little_is_gained():
    model = HMM(2, 4)
    batch = batch_of(model)
    history = expectation_maximization(model, [batch], tolerance=1e-3)
    gains = np.diff(history.log_posteriors) / history.num_tokens
    assert history.converged and gains[-1] <= 1e-3 and np.all(gains[:-1] > 1e-3)
    assert float(model.log_prob(batch.x).sum()) == pytest.approx(history.log_likelihoods[-1])


def test_lengths_count_the_tokens():
    model = HMM(2, 4)
    batch = Batch(batch_of(model, 5, 2).x, torch.tensor([5, 2]))
    assert expectation_maximization(model, [batch], max_iterations=1).num_tokens == 7


@pytest.mark.parametrize("kind", MODELS)
def test_implied_statistics_are_a_fixed_point(kind):
    model = MODELS[kind]()
    before = copy.deepcopy(model)
    model.maximize(model._implied_statistics(10.0, 500.0))
    for name in ("initial", "transition", *(("emission",) if kind == "words" else ("loc", "covariances"))):
        close(getattr(model, name), getattr(before, name))


@pytest.mark.parametrize("kind", ["words", "full"])
def test_stepwise_comes_as_far_as_batch(kind):
    truth = MODELS[kind]()
    x, *_ = truth.sample(20, 60, seed=1)
    start = MODELS[kind]()
    start.initialize(Batch(x))
    batches = [Batch(part) for part in x.split(10)]
    whole, steps = copy.deepcopy(start), copy.deepcopy(start)
    expectation_maximization(whole, batches, max_iterations=10)
    history = expectation_maximization(steps, batches, max_iterations=10, step_size=0.7)
    assert np.isfinite(history.log_likelihoods).all()
    assert steps.score(x, per_token=True) > whole.score(x, per_token=True) - 0.05
    if kind == "words":  # words of other batches keep some probability
        assert (steps.emission > 0).all()


def test_step_sizes_add_up_as_convergence_demands():
    sizes = np.array([StepSize(0.7).at(step) for step in range(10_000)])
    assert sizes[0] < 1 and np.all(np.diff(sizes) < 0) and sizes.sum() > 40 and (sizes**2).sum() < 3


def test_the_first_stepwise_update_interpolates():
    model = HMM(2, 4)
    batch = batch_of(model)
    statistics = model.expected_statistics(model.posterior(batch.x))
    implied = model._implied_statistics(batch.x.shape[0], batch.num_tokens)
    eta = StepSize(0.6, 3.0).at(0)
    wanted = copy.deepcopy(model)
    wanted.maximize({name: (1 - eta) * implied[name] + eta * statistics[name] for name in implied})
    expectation_maximization(model, [batch], max_iterations=1, step_size=StepSize(0.6, 3.0))
    for one, two in zip(model.parameters(), wanted.parameters(), strict=True):
        close(one, two)


class Falling(HMM):
    """An M-step that makes things worse."""

    def maximize(self, statistics):
        return super().maximize(statistics | {"emission": statistics["emission"].flip(-1)})


def test_a_falling_objective_is_noticed_and_undone():
    model = Falling(2, 4).set_parameters(emission=[[0.7, 0.2, 0.05, 0.05], [0.6, 0.1, 0.2, 0.1]])
    batch = batch_of(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(RuntimeWarning, match="EM's objective fell"):
        history = expectation_maximization(model, [batch])
    assert not history.converged and history.num_iterations == 1
    assert float(model.log_prob(batch.x).sum()) == pytest.approx(history.log_likelihoods[-1])
    for name, value in model.state_dict().items():
        close(value, before[name])


def test_collapse_and_emptiness_are_told():
    x = torch.cat([torch.randn(1, 20, 1, dtype=F64), torch.full((1, 20, 1), 5.0, dtype=F64)], 1)
    model = HMM(2, num_features=1, covariance_floor=1e-3).set_parameters(loc=[[0.0], [5.0]], covariance=[[1.0], [0.1]])
    with pytest.warns(RuntimeWarning, match=r"states \[1\] collapsed to the smallest variance allowed, 0.001"):
        history = expectation_maximization(model, [Batch(x)])
    assert history.notes and model.covariances[1, 0, 0] == pytest.approx(1e-3)
    far = HMM(2, num_features=1).set_parameters(
        initial=[1.0, 0.0], transition=[[1.0, 0.0], [0.0, 1.0]], loc=[[0.0], [9.0]]
    )
    with pytest.warns(RuntimeWarning, match=r"states \[1\] are empty"):
        expectation_maximization(far, [Batch(x)], max_iterations=3)
    assert far.loc[1] == 9.0 and all(torch.isfinite(p).all() for p in far.emissions.parameters())


def test_float32_fits_too():
    model = HMM(3, 5, dtype="float32")
    batch = batch_of(model, 40, 20)
    history = expectation_maximization(model, [batch], max_iterations=30)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert history.log_likelihoods[-1] > history.log_likelihoods[0] and not history.notes


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(batches=[]), "nothing to fit"),
        (dict(max_iterations=0), "max_iterations must be at least 1"),
        (dict(tolerance=-1.0), "tolerance"),
        (dict(tolerance=math.nan), "tolerance"),
        (dict(step_size=0.5), "exponent"),
        (dict(step_size=1.1), "exponent"),
    ],
)
def test_bad_options(options, message):
    model = HMM(2, 4)
    with pytest.raises(ValueError, match=message):
        expectation_maximization(model, **{"batches": [batch_of(model)], **options})


def test_nan_is_an_error_at_once():
    model = HMM(2, 4)
    batch = batch_of(model)
    with torch.no_grad():
        model.transition_logits[0, 0] = math.nan
    with pytest.raises(ArithmeticError, match="NaN"):
        expectation_maximization(model, [batch])


def test_a_prior_of_the_precision_matrix_is_gamma_in_one_dimension():
    prior = NormalWishart(torch.zeros(1, dtype=F64), 0.5, 2.0, 3.0)
    x, weight = gaussian_data(2, 1)
    one = gaussian_mode(*moments(x, weight, "diag"), "diag", prior, 1e-9)
    two = gaussian_mode(*moments(x, weight, "full"), "full", prior, 1e-9)
    close(one[0], two[0])
    close(one[1], two[1].squeeze(-1))
