"""Outputs that are generalised linear models, column by column: against scikit-learn, draws and closed forms."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor
from torch.testing import assert_close

from pplseq.models import IOHMM
from pplseq.models.iohmm.restarts.responses import generalised_regression
from pplseq.models.parts.links import LINKS
from pplseq.models.parts.responses import ResponseColumns

NAMES = ["normal", "poisson", "categorical", "gamma"]


def two_kinds(rows=4, steps=40, seed=3):
    """A model of four columns with states far apart, data drawn from it and inputs."""
    torch.manual_seed(seed)
    truth = IOHMM(2, num_inputs=1, outputs=NAMES, num_outputs=[1, 1, 3, 1], mealy=True)
    with torch.no_grad():
        truth.emission_network.weight[:, 1] += torch.tensor([[0.0, 0, 2, 0, 0, 0], [4, 2, 0, 0, 2, 2]])
    inputs = [torch.randn(steps - 3 * row, 1).double() for row in range(rows)]
    return truth, truth.sample(inputs=inputs, seed=0)[0], inputs


def test_one_state_is_the_regression_of_scikit_learn():
    random = np.random.default_rng(0)
    u = random.normal(size=(120, 2))
    mean = np.exp(0.5 + u @ [0.7, -0.4])
    counts, sizes = random.poisson(mean).astype(float), random.gamma(2.0, mean / 2)
    bits = (random.random(120) < 1 / (1 + np.exp(-u[:, 0]))).astype(float)
    x = np.stack([counts, sizes, bits, bits], -1)[None]
    x[0, 5, 0] = x[0, 7] = np.nan
    names = ["poisson", "gamma", "bernoulli", "categorical"]
    model = IOHMM(1, num_inputs=2, outputs=names, num_outputs=[1, 1, 1, 2], mealy=True)
    model.fit(x, inputs=u[None], tolerance=1e-12, seed=0)
    peers = [PoissonRegressor(alpha=0, tol=1e-10), GammaRegressor(alpha=0, tol=1e-10), LogisticRegression(C=np.inf, tol=1e-10)]
    weight = model.emission_network.weight.detach().numpy()[0].T
    for column, (peer, place) in enumerate(zip(peers, (weight[0], weight[1], weight[2]), strict=True)):
        seen = ~np.isnan(x[0, :, column])
        peer.fit(u[seen], x[0, seen, column])
        np.testing.assert_allclose(place, np.append(peer.coef_, peer.intercept_), atol=2e-4)
    np.testing.assert_allclose(weight[4] - weight[3], weight[2], atol=1e-4)


@pytest.mark.parametrize("symbols", [0, 3])
def test_shares_of_trials_that_the_model_knows_beside_exposures_of_another_column(symbols):
    random = np.random.default_rng(0)
    u = random.integers(0, 3, 30) if symbols else np.zeros(30, int)
    x = np.stack([random.binomial(5, np.array([0.2, 0.5, 0.8])[u]), random.poisson(2.0, 30)], -1).astype(float)
    parts = {"mealy": True, "num_symbols": {"emission": 3}} if symbols else {"num_inputs": 0}
    model = IOHMM(1, outputs=["binomial", "poisson"], trials=5, **parts)
    known = {"inputs": u[None]} if symbols else {}
    model.fit(x[None], exposure=np.full((1, 30), 2.0), seed=0, **known)
    logits = model.emission_network.logits.detach().numpy().reshape(-1, 2)
    means = np.array([x[u == k].mean(0) for k in range(symbols or 1)])
    np.testing.assert_allclose(logits, np.stack([np.log(means[:, 0] / (5 - means[:, 0])), np.log(means[:, 1] / 2)], -1))


def test_a_square_root_link_does_not_begin_where_predictors_change_their_sign():
    random = np.random.default_rng(0)
    u = random.normal(size=(60, 2))
    eta = np.maximum(1.2 + u @ [0.5, 0.3], 0.2)
    x, features = random.poisson(eta**2).astype(float), np.c_[u, np.ones(60)]
    best = np.array([0.0, 0.0, np.sqrt(x.mean())])
    for _ in range(100):  # Fisher's scoring, whose weights are all 4
        best = np.linalg.lstsq(features, features @ best + (x / (features @ best) - features @ best) / 2, rcond=None)[0]
    for seed in range(5):
        model = IOHMM(1, num_inputs={"emission": 2}, outputs=["poisson"], links="sqrt", mealy=True)
        model.fit(x[None, :, None], inputs=u[None], seed=seed, tolerance=1e-12)
        weight = model.emission_network.weight.detach().numpy()[0, :, 0]
        np.testing.assert_allclose(weight, best, atol=1e-4)


def test_laplace_outputs_come_to_the_least_absolute_deviations():
    random = np.random.default_rng(0)
    u = random.normal(size=20)
    x = 1.0 + 0.7 * u + random.laplace(size=20)
    lines = []  # the best one goes through two of the points
    for i in range(20):
        for j in range(i):
            slope = (x[i] - x[j]) / (u[i] - u[j])
            lines.append((np.abs(x - x[i] - slope * (u - u[i])).mean(), slope, x[i] - slope * u[i]))
    column, given = ResponseColumns(["Laplace"], [1]).columns[0], (np.c_[u, np.ones(20)], x, np.ones((1, 20)), np.zeros((1, 2)))
    found = generalised_regression(column, *map(torch.from_numpy, given), {"scale": torch.ones(1, 1)}, 200, 1e-12)
    np.testing.assert_allclose(found.weights[0, :, 0], min(lines)[1:], atol=1e-3)
    np.testing.assert_allclose(-found.objective / 20 - np.log(2), min(lines)[0], rtol=1e-6)


def test_em_rises_finds_the_states_and_ends_at_a_maximum():
    truth, x, inputs = two_kinds()
    x = [row.clone() for row in x]
    x[0][3] = x[1][2, 1] = x[2][:4, 2] = x[3][5, 3] = torch.nan
    model = IOHMM(2, num_inputs=1, outputs=NAMES, num_outputs=[1, 1, 3, 1], mealy=True)
    model.fit(x, inputs=inputs, num_restarts=3, seed=0, tolerance=1e-8, max_iterations=200)
    trace = model.history.restarts.trace
    assert float((trace[1:] - trace[:-1]).nan_to_num(0.0).min()) > -1e-8
    assert model.score(x, inputs=inputs) > truth.score(x, inputs=inputs)
    batch = model._as_batch(x, inputs=inputs)
    model.log_joint(batch.x, batch.lengths, inputs=batch.inputs).backward()
    assert max(float(value.grad.abs().max()) for value in model.emission_network.parameters()) < 0.05


def test_moments_are_those_of_draws():
    truth, *_ = two_kinds()
    inputs = torch.tensor([[[0.3], [-0.5]]]).double()
    expected = truth.open_loop(inputs)
    drawn = truth.sample(inputs=inputs.expand(8_000, 2, 1), seed=1)[0][:, 1]
    classes = torch.nn.functional.one_hot(drawn[:, 2].long(), 3)
    drawn = torch.cat([drawn[:, :2], classes.to(drawn), drawn[:, 3:]], -1)
    scale = drawn.std(0)
    assert_close(expected.outputs[0, 1] / scale, drawn.mean(0) / scale, rtol=0, atol=0.05)
    got = expected.covariances[0, 1] / torch.outer(scale, scale)
    assert_close(got, torch.cov(drawn.T) / torch.outer(scale, scale), rtol=0, atol=0.1)


def test_gradients_nuts_and_folders(tmp_path):
    truth, x, inputs = two_kinds(rows=1, steps=12)
    start = truth.score(x, inputs=inputs)
    again = IOHMM.load(truth.save(tmp_path / "model"))
    assert again.score(x, inputs=inputs) == pytest.approx(start) and again.config == truth.config
    again.fit(x, inputs=inputs, method="sgd", warm_start=True, num_steps=20)
    assert again.score(x, inputs=inputs) > start
    options = dict(num_inputs=1, outputs=["poisson", "normal"], mealy=True, priors=True)
    sampled = IOHMM(1, **options).fit(
        [row[:, [1, 0]] for row in x], inputs=inputs, method="nuts", num_samples=4, warmup_steps=3, seed=0
    )
    assert sampled.history.samples["noise.raw"].shape[-2:] == (1, 1)
    mode = IOHMM(1, **options).fit([row[:, [1, 0]] for row in x], inputs=inputs, seed=0)
    assert np.all(np.diff(mode.history.log_posteriors) > -1e-8)


@pytest.mark.parametrize("name", LINKS)
def test_links_are_their_inverses_and_slopes(name):
    link = LINKS[name]
    eta = torch.linspace(0.2, 1.5, 7, dtype=torch.float64).requires_grad_()
    mean = link.mean(eta)
    assert_close(link.predictor(mean), eta)
    assert_close(torch.autograd.grad(mean.sum(), eta)[0], link.slope(eta))
    if link.logits is not None:
        wide = torch.tensor([-40.0, -3, 0, 1], dtype=torch.float64)
        assert_close(torch.sigmoid(link.logits(wide)), link.mean(wide))
        assert bool(link.logits(torch.tensor([-800.0, 800.0], dtype=torch.float64)).isfinite().all()) or name == "probit"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(outputs=["poisson", "gaussian"]), "a column of numbers is 'normal'"),
        (dict(outputs=["poisson", "categorical"]), "say how many classes"),
        (dict(outputs=["poisson"], num_outputs=[2]), "a single number"),
        (dict(outputs=["poisson"], links="identity"), "links: column 0, poisson, has log or sqrt"),
        (dict(outputs=["poisson"], links=["log", "log"]), "links: one for each of the 1 columns"),
        (dict(outputs="poisson", trials=3), "there are none"),
        (dict(outputs="gaussian", num_outputs=1, links="log"), "outputs have none"),
        (dict(outputs="categorical", num_outputs=[2, 3]), "a list of families, one for each column"),
        (dict(outputs=["categorical"], num_outputs=[2], feedback=True), "one-hot as inputs"),
        (dict(outputs=[]), "a family for each column"),
        (dict(outputs=["poison"]), "poisson"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        IOHMM(2, num_inputs=1, **options)


@pytest.mark.parametrize(
    ("value", "column", "what"),
    [(0.5, 1, "counts"), (-1, 1, "counts"), (3, 2, "whole numbers 0..2"), (0, 3, "positive"), (float("inf"), 0, "finite")],
)
def test_numbers_outside_a_family_are_refused(value, column, what):
    truth, x, inputs = two_kinds(rows=1, steps=4)
    x[0][2, column] = value
    with pytest.raises(ValueError, match=f"column {column} must hold {what}.*row 0, step 2"):
        truth.score(x, inputs=inputs)
