"""The EM of linear dynamical systems: against absolute moments of the joint Gaussian, step by step; and it never falls."""

import warnings

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroParam, PyroSample
from support.dense_lds import dense, textbook_em, values

from pplseq.distributions.gaussian_types import masked_precisions
from pplseq.models.lds import statistics as lds_em
from pplseq.models.lds.parameters import stationary_mean
from pplseq.models.lds.program import LDS
from pplseq.models.lds.statistics import Regression, RegressionPrior

F64 = torch.float64
close = torch.testing.assert_close
H, N, U = 2, 3, 2
OPTIONS = {
    "plain": dict(),
    "diagonal": dict(state_noise="diagonal", emission_noise="diagonal"),
    "inputs": dict(num_inputs=U),
    "inputs into observations": dict(num_inputs=U, inputs_to="emission", offsets="none"),
    "inputs into moves": dict(num_inputs=U, inputs_to="transition", offsets="emission"),
    "no offsets": dict(offsets="none"),
    "one state": dict(num_states=1),
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def make(options, **more):
    """A model with arbitrary parameters."""
    torch.manual_seed(3)
    options = {"num_states": H, **options, **more}
    model = LDS(options.pop("num_states"), N, **options)
    for name, value in model.named_parameters():
        if name != "transition":
            value.data += 0.3 * torch.randn_like(value)
    return model


def sequences(missing=True, seed=0):
    """Ragged sequences with holes of every kind, and their inputs."""
    rng = np.random.default_rng(seed)
    lengths = (7, 4, 1, 6)
    x = [0.5 * rng.normal(size=(length, N)).cumsum(0) + [1.0, -2.0, 4.0] for length in lengths]
    inputs = [rng.normal(size=(length, U)) for length in lengths]
    if missing:
        x[0][2], x[0][-1], x[0][3, 0], x[1][0, 1:], x[2][0, 2] = np.nan, np.nan, np.nan, np.nan, np.nan
    return x, inputs


def given(model, inputs):
    return dict(inputs=inputs) if model.num_inputs else {}


@every_option
@pytest.mark.parametrize("missing", [False, True])
def test_one_step_is_the_textbook_s(options, missing):
    model = make(options)
    x, inputs = sequences(missing)
    diagonal = [name for name in ("state_noise", "emission_noise") if options.get(name) == "diagonal"]
    wanted = textbook_em(values(model), x, inputs if model.num_inputs else None, diagonal)
    model.fit(x, **given(model, inputs), warm_start=True, max_iterations=1)
    for name, value in values(model).items():
        if value is None:
            assert wanted[name] is None
        else:
            np.testing.assert_allclose(value, wanted[name], atol=1e-8, err_msg=name)


def test_statistics_are_those_of_the_joint_gaussian():
    model = make(dict(num_inputs=U))
    x, inputs = sequences(missing=False)
    batch = model._as_batch(x, inputs=inputs)
    got = model.expected_statistics(model.posterior(batch.x, batch.lengths, inputs=batch.inputs), batch)
    truths = [dense(values(model), row, u) for row, u in zip(x, inputs, strict=True)]
    moment = sum(np.einsum("ti,tj->ij", t.mean[:-1], t.mean[:-1]) for t in truths)
    moment += sum(t.covariance[k, :, k] for t in truths for k in range(len(t.mean) - 1))
    np.testing.assert_allclose(got["transition_moment"][:H, :H], moment)
    pairs = sum(t.mean[1:].T @ t.mean[:-1] for t in truths)
    pairs += sum(t.covariance[k + 1, :, k] for t in truths for k in range(len(t.mean) - 1))
    weights = model.values.weights("transition")
    absolute = got["transition_cross"] + weights @ got["transition_moment"]
    np.testing.assert_allclose(absolute[:, :H], pairs)
    assert float(got["transition_count"]) == 7 + 4 + 1 + 6 - 4 and float(got["emission_count"]) == 18
    close(got["emission_moment"][H, H], torch.tensor(18.0, dtype=F64))  # ones


@every_option
@pytest.mark.parametrize("initial", ["learned", "stationary"])
def test_the_objective_never_falls(options, initial):
    model = make(options, initial=initial, state_prior=dict(count=1.0, strength=0.5), emission_prior=RegressionPrior(0.5, 2.0))
    x, inputs = sequences()
    history = model.fit(x, **given(model, inputs), initialization="random", max_iterations=6, tolerance=0, seed=1).history
    gains = np.diff(history.log_posteriors)
    assert len(gains) == 5 and (gains > 0).all()
    assert all(bool(value.isfinite().all()) for value in model.parameters())


@pytest.mark.parametrize("folder", [False, True])
def test_a_fit_that_is_cut_short_ends_where_the_objective_has_not_fallen(folder, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 30, 2, dtype=torch.float64).cumsum(1) * 0.3 + torch.randn(2, 30, 2, dtype=torch.float64)
    for most in range(3, 40, 3):
        options = {"folder": tmp_path / str(most)} if folder and most % 9 == 3 else {}
        model = LDS(2, 2).fit(x, max_iterations=most, tolerance=0, **options)
        assert model.score(x) > model.history.log_likelihoods[-1] - 1e-9
    if folder:
        again = LDS(2, 2).fit(x, max_iterations=39, tolerance=0, folder=tmp_path / "12", resume=True)
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


def test_a_fit_ends_where_the_gain_is_as_small_as_was_asked_for():
    torch.manual_seed(0)
    x = 100 + 0.3 * torch.randn(2, 30, 2, dtype=torch.float64).cumsum(1) + torch.randn(2, 30, 2, dtype=torch.float64)
    history = LDS(2, 2).fit(x, max_iterations=300, tolerance=1e-8).history
    assert not history.converged or np.diff(history.log_posteriors)[-1] <= 1e-8 * history.num_tokens


def test_em_in_a_stationary_start_ends_where_the_gradient_vanishes():
    model = LDS(1, 1, initial="stationary")
    x = [np.cumsum(np.random.default_rng(k).normal(size=(12, 1)), 0) for k in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        model.fit(x, max_iterations=50, tolerance=0)
    batch = model._as_batch(x)
    model.zero_grad()
    (-model.log_joint(batch.x) / batch.num_tokens).backward()
    assert all(float(value.grad.abs().max()) < 0.02 for value in model.parameters())


# ------------------------------------------------------------------------------------------------ the parts
def regression(seed=0, steps=30, size=2, width=3):
    torch.manual_seed(seed)
    r, weights = torch.randn(steps, width, dtype=F64), torch.randn(size, width, dtype=F64)
    y = torch.randn(steps, size, dtype=F64) + r @ torch.randn(width, size, dtype=F64)
    e = y - r @ weights.T
    return r, y, weights, Regression(torch.tensor(float(steps), dtype=F64), r.T @ r, e.T @ r, e.T @ e)


FREE = torch.tensor([True, True, True])
PLAIN = dict(free=FREE, shrunk=FREE, prior=RegressionPrior(), floor=1e-9)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
@pytest.mark.parametrize("options", [{}, dict(num_inputs=2), dict(initial="stationary", emission_noise="diagonal")])
def test_em_s_chain_is_the_program_s(sizes, options):
    model = LDS(*sizes, **options)
    x = torch.randn(4, 7, sizes[1], dtype=F64) + 3
    x[0, 2] = x[1, 0] = torch.nan
    inputs = torch.randn(4, 7, 2, dtype=F64) if model.num_inputs else None
    batch = model._as_batch(x, torch.tensor([7, 7, 3, 1]), inputs=inputs)
    direct, program = model.chain_of(batch), model.posterior(batch.x, batch.lengths, **batch.known)
    for found, expected in zip(
        (direct.token_log_probs(), *direct.smoothed_states()), (program.token_log_probs(), *program.smoothed_states()),
        strict=True,
    ):
        close = torch.testing.assert_close
        dense = [value if isinstance(value, torch.Tensor) else value.dense() for value in (found, expected)]
        close(*dense, rtol=1e-11, atol=1e-11)


def test_the_mode_is_least_squares():
    r, y, weights, statistics = regression()
    got, noise, floored = lds_em.regression_mode(weights, torch.eye(2, dtype=F64), statistics, **PLAIN)
    wanted = torch.linalg.lstsq(r, y).solution.T
    close(got, wanted)
    residual = y - r @ wanted.T
    close(noise, residual.T @ residual / len(y))
    assert not floored


def test_held_columns_stay_and_the_others_fit_the_rest():
    r, y, weights, statistics = regression()
    options = PLAIN | dict(free=torch.tensor([False, True, True]))
    got, *_ = lds_em.regression_mode(weights, torch.eye(2, dtype=F64), statistics, **options)
    assert torch.equal(got[:, 0], weights[:, 0])
    close(got[:, 1:], torch.linalg.lstsq(r[:, 1:], y - r[:, :1] @ weights[:, :1].T).solution.T)


def test_the_prior_is_pseudo_observations():
    """Ridge: sqrt(strength) times unit rows whose target is zero; count: rows of pure noise."""
    r, y, weights, statistics = regression()
    prior, shrunk = RegressionPrior(count=4.0, variance=0.5, strength=2.0), torch.tensor([True, True, False])
    got, noise, _ = lds_em.regression_mode(
        weights, torch.eye(2, dtype=F64), statistics, **PLAIN | dict(prior=prior, shrunk=shrunk)
    )
    rows = 2.0**0.5 * torch.eye(3, dtype=F64)[:2]
    wanted = torch.linalg.lstsq(torch.cat([r, rows]), torch.cat([y, torch.zeros(2, 2, dtype=F64)])).solution.T
    close(got, wanted)
    residual, pull = y - r @ wanted.T, wanted[:, :2]
    close(noise, (residual.T @ residual + 2 * pull @ pull.T + 4 * 0.5 * torch.eye(2)) / (len(y) + 4))

    def objective(w, s):
        factor = torch.linalg.cholesky(s)
        e = y - r @ w.T
        data = -len(y) * factor.diagonal().log().sum() - torch.cholesky_solve(e.T @ e, factor).trace() / 2
        return data + prior.log_prob(w, s, shrunk)

    best = objective(got, noise)
    for _ in range(20):
        assert objective(got + 0.03 * torch.randn(2, 3), noise) < best
        wobble = 0.03 * torch.randn(2, 2, dtype=F64)
        assert objective(got, noise + wobble @ wobble.T) < best


def test_collinear_regressors_leave_open_what_the_data_leave_open():
    r, y, weights, _ = regression()
    r = torch.cat([r, r[:, :1]], 1)
    weights = torch.cat([weights, weights[:, :1]], 1)
    e = y - r @ weights.T
    statistics = Regression(torch.tensor(30.0, dtype=F64), r.T @ r, e.T @ r, e.T @ e)
    four = torch.ones(4, dtype=torch.bool)
    got, noise, _ = lds_em.regression_mode(weights, torch.eye(2, dtype=F64), statistics, **PLAIN | dict(free=four, shrunk=four))
    close(r @ got.T, r[:, :3] @ torch.linalg.lstsq(r[:, :3], y).solution)
    close(got[:, 0], got[:, 3])  # nothing tells the two apart
    assert torch.isfinite(noise).all()


def test_noise_has_a_floor():
    r, _, weights, _ = regression()
    y = r @ weights.T
    y[:, 1] = y[:, 0]
    statistics = Regression(torch.tensor(30.0, dtype=F64), r.T @ r, (y - r @ weights.T).T @ r, torch.zeros(2, 2).double())
    for diagonal in (False, True):
        _, noise, floored = lds_em.regression_mode(
            weights, torch.eye(2, dtype=F64), statistics, **PLAIN | dict(floor=1e-3, diagonal=diagonal)
        )
        assert floored and float(torch.linalg.eigvalsh(noise)[0]) > 0.99e-3


def test_without_first_states_the_stationary_mode_is_the_plain_one():
    _, _, weights, statistics = regression()
    weights = 0.3 * weights / torch.linalg.matrix_norm(weights[:, :2], 2)
    r, y, _, _ = regression()
    y = 0.2 * y
    e = y - r @ weights.T
    statistics = Regression(torch.tensor(30.0, dtype=F64), r.T @ r, e.T @ r, e.T @ e)
    plain = lds_em.regression_mode(weights, torch.eye(2, dtype=F64), statistics, **PLAIN)
    got = lds_em.stationary_mode(
        weights, torch.eye(2, dtype=F64), statistics, torch.zeros(2, dtype=F64), torch.zeros(2, 2, dtype=F64),
        torch.tensor(0.0, dtype=F64), lambda w: stationary_mean(w[:, :2], w[:, 2]), **PLAIN,
    )  # fmt: skip
    close(got[0], plain[0])
    close(got[1], plain[1])


@pytest.mark.parametrize("diagonal", [False, True])
def test_precisions_of_what_is_observed(diagonal):
    root = torch.randn(3, 3, dtype=F64)
    noise = root @ root.T + torch.eye(3)
    noise = torch.diag(noise.diagonal()) if diagonal else noise
    patterns = torch.tensor([[True, True, True], [True, False, True], [False, False, True], [False] * 3])
    precisions, log_dets = masked_precisions(noise.diagonal() if diagonal else noise, patterns)
    for pattern, precision, log_det in zip(patterns, precisions, log_dets, strict=True):
        block = noise[pattern][:, pattern]
        wanted = torch.zeros(3, 3, dtype=F64)
        wanted[pattern.outer(pattern)] = torch.linalg.inv(block).flatten()
        close(precision, wanted)
        close(log_det, torch.linalg.slogdet(block).logabsdet)


class OwnSpecs(LDS):
    def specs(self, given, start, transitions, emissions):
        transition, emission = super().specs(given, start, transitions, emissions)
        return lambda z, t: transition(z, t), emission


class OwnNoise(LDS):
    @property
    def state_noise(self):
        return torch.eye(self.num_states, dtype=torch.float64)


class OwnProgram(LDS):
    def model(self, x=None, lengths=None, start=None, inputs=None, **known):
        return super().model(x, lengths, start, inputs, **known)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OwnSpecs, "OwnSpecs has its own specs"), (OwnNoise, "OwnNoise has its own state_noise"),
        (OwnProgram, "OwnProgram has a program of its own"),
    ],
)  # fmt: skip
def test_em_is_for_distributions_that_it_knows(kind, message):
    x, model = torch.randn(2, 9, 2, dtype=torch.float64), kind(2, 2)
    with pytest.raises(ValueError, match=f"method: {message}, which the closed forms of EM are not for"):
        model.fit(x)
    assert model.fit(x, method="lbfgs", num_steps=2).history.num_iterations == 2


def test_em_sets_plain_parameters_only():
    x, model = torch.randn(2, 9, 2, dtype=torch.float64), LDS(2, 2)
    model.transition = PyroParam(0.5 * torch.eye(2, dtype=torch.float64), dist.constraints.unit_interval)
    with pytest.raises(ValueError, match="method: transition is constrained"):
        model.fit(x)
    model = LDS(2, 2)
    model.transition = PyroSample(dist.Normal(torch.zeros(2, 2, dtype=torch.float64), 1.0).to_event(2))
    for method in ("em", "lbfgs", "sgd"):
        with pytest.raises(ValueError, match="method: transition is drawn from a prior"):
            model.fit(x, method=method)
