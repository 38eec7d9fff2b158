"""Seasons of waves, cycles and autoregressions: dense Gaussians, what they are made of, and what does not fit."""

import numpy as np
import pytest
import torch

from pplseq import StructuralModel, checks
from pplseq.models.structural.components import partial_weights, stationary_weights


def kernel(model, steps):
    """Covariances of x at two steps, from powers of the moves."""
    move, noise, spread = model.transition, model.state_noise, model._initial_belief.covariance
    seen = model.emission[0]
    found = torch.zeros(steps, steps).double()
    for s in range(steps):
        ahead = spread
        for t in range(s, steps):
            found[s, t] = found[t, s] = seen @ ahead @ seen
            ahead = move @ ahead
        spread = move @ spread @ move.T + noise
    return (found + model.emission_noise[0, 0] * torch.eye(steps).double()).detach()


OPTIONS = {
    "waves": ({"seasonal": 4, "harmonics": 2}, {}, 1 + 3),
    "two seasons": ({"seasonal": [4, 8]}, {}, 1 + 3 + 4),
    "part of a season": ({"seasonal": [365.25, 7], "harmonics": [2, 3]}, {}, 1 + 4 + 6),
    "cycle": ({"cycle": True, "trend": "fixed"}, {"frequency": 0.6, "damping": 0.9}, 2 + 2),
    "ar": ({"ar": 3}, {"ar_weights": [0.5, 0.2, -0.1]}, 1 + 3),
    "arma": ({"ar": 1, "ma": 2, "level": "fixed"}, {"ar_weights": [0.5], "ma_weights": [0.4, -0.3]}, 1 + 3),
    "a moving average": ({"ma": 1, "level": "none"}, {"ma_weights": [0.7]}, 2),
    "no level": ({"seasonal": 4, "level": "none", "ar": 2, "ma": 1}, {"ar_weights": [0.5, 0.2], "ma_weights": [-0.8]}, 3 + 2),
}


def made(name):
    options, values, size = OPTIONS[name]
    model = StructuralModel(**options)
    variances = {own: 0.2 + 0.1 * k for k, own in enumerate(model.variances)}
    assert model.num_states == size
    return model.set_parameters(width=5.0, noise=0.3, **variances, **values)


@pytest.mark.parametrize("name", OPTIONS)
def test_likelihoods_gradients_and_folders(name, tmp_path):
    model, x = made(name), np.random.default_rng(0).normal(size=10)
    dense = torch.distributions.MultivariateNormal(torch.zeros(10).double(), kernel(model, 10))
    assert model.score(x) == pytest.approx(float(dense.log_prob(torch.tensor(x))), abs=1e-8)
    batch = model._as_batch(x)
    value = model.log_joint(batch.x)
    for parameter, gradient in zip(parameters := list(model.parameters()), torch.autograd.grad(value, parameters), strict=True):
        with torch.no_grad():
            parameter[0] += 1e-5
            above = model.score(x)
            parameter[0] -= 2e-5
            below = model.score(x)
            parameter[0] += 1e-5
        assert float(gradient[0]) == pytest.approx((above - below) / 2e-5, abs=1e-6)
    loaded = StructuralModel.load(model.save(tmp_path / "model"))
    assert loaded.score(x) == model.score(x) and loaded.config == model.config
    parts = model.components(x)
    torch.testing.assert_close(sum(p.means for key, p in parts.items() if key != "slope"), model.reconstruct(x).means[..., 0])


def test_a_season_of_all_its_waves_is_one_of_dummies():
    """Without shocks: both are any pattern that sums to 0."""
    x = np.random.default_rng(1).normal(size=20)
    waves = StructuralModel(seasonal=5, harmonics=2, initial="diffuse").set_parameters(level=0.3, noise=0.4, seasonal=0.0)
    dummies = StructuralModel(seasonal=5, initial="diffuse").set_parameters(level=0.3, noise=0.4, seasonal=0.0)
    one, other = (model.forecast(x, 6).means for model in (waves, dummies))
    torch.testing.assert_close(one, other)


def test_what_starts_where_it_tends_to_is_not_diffuse():
    model = StructuralModel(ar=2, initial="diffuse").set_parameters(level=0.1, noise=0.2, ar=0.5, ar_weights=[0.4, 0.3])
    x = np.random.default_rng(2).normal(size=12)
    wide = StructuralModel(ar=2).set_parameters(level=0.1, noise=0.2, ar=0.5, ar_weights=[0.4, 0.3], width=1e9)
    assert model.score(x) == pytest.approx(wide.score(x) + 0.5 * np.log(1e9), abs=1e-4)
    assert wide.aic(x) == pytest.approx(model.aic(x)) == pytest.approx(2 * (5 + 1) - 2 * model.score(x))


def autocovariances(ar, ma, steps):
    """Of ARMA with shocks of variance 1, from its responses to one."""
    response = np.zeros(2000)
    for t in range(2000):
        past = [response[t - k] for k in range(1, len(ar) + 1) if t >= k]
        response[t] = np.dot(ar[: len(past)], past) + (1.0, *ma)[t] if t <= len(ma) else np.dot(ar[: len(past)], past)
    found = np.array([response[: 2000 - h] @ response[h:] for h in range(steps)])
    return torch.tensor(found[abs(np.subtract.outer(range(steps), range(steps)))])


@pytest.mark.parametrize("ar, ma", [([0.5, 0.2], [0.4]), ([], [0.6, -0.2, 0.1]), ([0.7], [-0.3, 0.2]), ([0.3], [])])
def test_arma_is_the_process_of_its_responses(ar, ma):
    told = {f"{name}_weights": weights for name, weights in (("ar", ar), ("ma", ma)) if weights}
    model = StructuralModel(level="fixed", ar=len(ar), ma=len(ma))
    model.set_parameters(noise=0, width=9.0, **{"arma" if ma else "ar": 0.7}, **told)
    x = torch.randn(30, generator=torch.Generator().manual_seed(0)).double()
    dense = torch.distributions.MultivariateNormal(torch.zeros(30).double(), 0.7 * autocovariances(ar, ma, 30) + 9.0)
    assert model.score(x) == pytest.approx(float(dense.log_prob(x)), abs=1e-9)
    for name, weights in told.items():
        torch.testing.assert_close(model.estimates()[name[:2]].detach(), torch.tensor(weights).double())
    x[3:6] = torch.nan
    seen = ~x.isnan()
    dense = torch.distributions.MultivariateNormal(torch.zeros(27).double(), dense.covariance_matrix[seen][:, seen])
    assert model.score(x) == pytest.approx(float(dense.log_prob(x[seen])), abs=1e-9)


def test_arma_around_a_constant_is_fitted_to_the_largest_likelihood():
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(4)
    shocks, x = rng.normal(size=51), np.zeros(50)
    for t in range(50):
        x[t] = 0.6 * x[t - 1] + shocks[t + 1] + 0.5 * shocks[t]
    x, ones = x * 3 + 50, np.ones(50)
    model = StructuralModel(level="none", ar=1, ma=1, num_inputs=1).set_parameters(noise=0).fit(x, inputs=ones, fixed=["noise"])

    def worse(values):
        cov = np.exp(values[3]) * autocovariances([np.tanh(values[0])], [np.tanh(values[1])], 50)
        around = torch.full((50,), values[2], dtype=torch.float64)
        return -float(torch.distributions.MultivariateNormal(around, cov).log_prob(torch.tensor(x)))

    best = optimize.minimize(worse, [0.5, 0.5, 50.0, 2.0], method="BFGS")
    assert model.score(x, inputs=ones) == pytest.approx(-best.fun, abs=1e-4) and model.num_free_parameters == 4
    found = {name: value.detach() for name, value in model.estimates().items()}
    assert float(found["ar"]) == pytest.approx(np.tanh(best.x[0]), abs=0.01)
    assert float(found["ma"]) == pytest.approx(np.tanh(best.x[1]), abs=0.01)
    assert float(found["inputs"]) == pytest.approx(best.x[2], abs=0.05)
    assert set(model.components(x, inputs=ones)) == {"arma", "inputs"}
    summary = model.summary(x, inputs=ones)
    errors = dict(zip(summary.names, summary.errors.tolist(), strict=True))
    assert errors["ma[0]"] == pytest.approx(best.hess_inv[1, 1] ** 0.5 * (1 - np.tanh(best.x[1]) ** 2), rel=0.3)


def test_weights_are_those_of_a_stationary_process():
    partial = torch.tensor([0.9, -0.8, 0.5, 0.99]).double()
    weights = stationary_weights(partial)
    roots = np.roots([1.0, *-weights.numpy()])
    assert abs(roots).max() < 1
    torch.testing.assert_close(partial_weights(weights), partial)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StructuralModel(seasonal=7, harmonics=4), "harmonics: a season of 7 steps has at most 3, got 4"),
        (lambda: StructuralModel(harmonics=4), "harmonics: they are those of a season"),
        (lambda: StructuralModel(seasonal=[7, 7]), "seasonal: expected different numbers of steps"),
        (lambda: StructuralModel(seasonal=[24, 168], harmonics=[3]), "harmonics: expected one number for each of 2 seasons"),
        (lambda: StructuralModel(seasonal=[1.5]), "seasonal must be at least 2 steps"),
        (lambda: StructuralModel(ar=1).set_parameters(ar_weights=[1.0]), "ar_weights: they must be those of a stationary"),
        (lambda: StructuralModel(ma=1).set_parameters(ma_weights=[-1.0]), "ma_weights: they must be those of an invertible"),
        (lambda: StructuralModel().set_parameters(ma_weights=[0.5]), "ma_weights: this model has none; make it with ma=..."),
        (lambda: StructuralModel(level="none"), "level: .* without one there must be a season, a cycle, ar= or ma="),
        (lambda: StructuralModel(level="none", trend="fixed", ar=1), "level: a trend has one"),
        (lambda: StructuralModel(ma=1).fit([1.0, 3.0, 2.0, 5.0], times=[0, 1, 3, 4]), "times: arma moves step by step"),
        (lambda: StructuralModel().set_parameters(frequency=1.0), "frequency: this model has none; make it with cycle=True"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_does_not_fit_into_memory_is_refused_beforehand(monkeypatch):
    """12 matrices a step: a season of 365 steps and 1,500 rows took 19 GB."""
    monkeypatch.setattr(checks, "machine_memory", lambda: 16e9)
    x = np.zeros(1500)
    with pytest.raises(ValueError, match="seasonal: this takes 19 GB of memory, .* make it of waves, few harmonics="):
        StructuralModel(seasonal=365).fit(x)
    with pytest.raises(ValueError, match="x must vary"):  # which fits
        StructuralModel(seasonal=365, harmonics=5).fit(x)


def test_a_season_of_broken_steps_is_made_of_waves():
    with pytest.raises(ValueError, match="seasonal must be a whole number .*365.25; make such a season of waves, harmonics="):
        StructuralModel(seasonal=365.25)
    assert StructuralModel(seasonal=365.25, harmonics=2).num_states == 5
