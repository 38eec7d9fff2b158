"""Series that every package of state space models is tested on: log-likelihoods as published, or as statsmodels stores them.

The data come with statsmodels; numbers are of Stata, EViews and GAUSS at the parameters given here (statsmodels' own tests name
the sources), and of statsmodels' exact diffuse filter.
"""

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.models import HMM, LDS

F64 = torch.float64
SWITCHING = "statsmodels.tsa.regime_switching.tests."
SPACE = "statsmodels.tsa.statespace.tests.results."


def series(module, name):
    """A list of numbers in a module of tests, which has markers of its own and so is read and not imported."""
    pytest.importorskip("statsmodels")
    spec = importlib.util.find_spec(module)
    for statement in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == name:
            return np.array(ast.literal_eval(statement.value), dtype=float)
    return pytest.skip(f"{module} has no {name}")


def switching(stay, back):
    """Start, in the long run, and transitions of two regimes: p(1 -> 1) and p(2 -> 1)."""
    matrix = torch.tensor([[stay, 1 - stay], [back, 1 - back]], dtype=F64)
    return torch.tensor([back, 1 - stay], dtype=F64) / (back + 1 - stay), matrix


def test_the_federal_funds_rate_has_two_regimes():
    """Stata's manual of mswitch, example 1."""
    x = series(SWITCHING + "test_markov_regression", "fedfunds")
    start, matrix = switching(0.9820939, 0.0503587)
    model = HMM(2, num_features=1, covariance="tied")
    model.set_parameters(initial=start, transition=matrix, loc=[[3.70877], [9.556793]], covariance=[[2.107562**2]])
    assert model.score(x[None, :, None]) == pytest.approx(-508.63592, abs=1e-4)


@pytest.mark.slow
def test_em_finds_the_regimes_of_the_federal_funds_rate():
    x = series(SWITCHING + "test_markov_regression", "fedfunds")
    start, _ = switching(0.9820939, 0.0503587)
    model = HMM(2, num_features=1, covariance="tied")
    model.fit(x[None, :, None], seed=0, num_restarts=2, tolerance=1e-7, max_iterations=300)
    low, high = sorted(model.loc.flatten().tolist())
    assert low == pytest.approx(3.70877, rel=0.01) and high == pytest.approx(9.556793, rel=0.01)
    # the start is learned, too: what the regime of the first quarter had of probability is gained
    assert model.score(x[None, :, None]) == pytest.approx(-508.63592 - float(start[0].log()), abs=0.05)


def test_growth_of_the_national_product_in_recessions():
    """J. D. Hamilton (1989), A new approach to the economic analysis of nonstationary time series and the business cycle."""
    x = torch.tensor(series(SWITCHING + "test_markov_autoregression", "rgnp"))
    start, matrix = switching(0.754673, 0.095915)
    mean = torch.tensor([-0.358811, 1.163516], dtype=F64)
    weights = torch.tensor([0.013486, -0.057521, -0.246983, -0.212923], dtype=F64)
    scale = torch.tensor(-0.262658, dtype=F64).exp()

    def model(x):
        regimes = []
        for t in pyro.markov(range(len(x)), history=4):
            probs = matrix[regimes[-1]] if regimes else start
            regimes.append(pyro.sample(f"s_{t}", dist.Categorical(probs), infer={"enumerate": "parallel"}))
            if t >= 4:
                pull = sum(w * (x[t - k] - mean[regimes[t - k]]) for k, w in enumerate(weights, 1))
                pyro.sample(f"x_{t}", dist.Normal(mean[regimes[t]] + pull, scale), obs=x[t])

    assert -TraceBlockedEnum_ELBO().loss(model, no_guide, x) == pytest.approx(-181.26339, abs=1e-4)


def test_trend_and_cycle_of_the_national_product():
    """P. K. Clark (1987), The cyclical component of U.S. economic activity; observed without noise."""
    truth = pytest.importorskip(SPACE + "results_kalman_filter").uc_uni
    x = torch.tensor(np.log(truth["data"]))[None, :, None]
    trend, cycle, drift, first, second = truth["parameters"]
    move = torch.tensor([[1, 0, 0, 1], [0, first, second, 0], [0, 1, 0, 0], [0, 0, 0, 1]], dtype=F64)
    model = LDS(4, 1, offsets="none").set_parameters(
        transition=move, state_noise=torch.tensor([trend**2, cycle**2, 0.0, drift**2]), emission=[[1.0, 1.0, 0.0, 0.0]],
        emission_noise=[0.0], initial_mean=torch.zeros(4), initial_covariance=100 * move @ move.T,
    )  # fmt: skip
    chain = model.posterior(x)
    found = chain.token_log_probs()[0, truth["start"] :].sum().item()
    assert found == pytest.approx(truth["loglike"], abs=1e-4)
    states = chain.filtered_states().means[0, truth["start"] :].detach()
    np.testing.assert_allclose(states[:, [0, 1, 3]], truth["states"], atol=1e-4)


def test_the_index_of_wholesale_prices():
    """Stata's manual of arima, example 1: an ARMA(1, 1) of differences, observed without noise."""
    truth = pytest.importorskip(SPACE + "results_sarimax").wpi1_stationary
    (weight,), (average,), (mean,) = truth["params_ar"], truth["params_ma"], truth["params_mean"]
    x = torch.tensor(np.diff(truth["data"])).reshape(1, -1, 1) - mean
    shock = torch.tensor([[1.0], [average]], dtype=F64)
    model = LDS(2, 1, offsets="none", initial="stationary").set_parameters(
        transition=[[weight, 1.0], [0.0, 0.0]], state_noise=truth["params_variance"][0] * shock @ shock.T,
        emission=[[1.0, 0.0]], emission_noise=[0.0],
    )  # fmt: skip
    assert model.score(x) == pytest.approx(truth["loglike"], abs=1e-4)


def test_carbon_dioxide_over_mauna_loa():
    """Trend and seasons by months, with gaps, from an exact diffuse start of 13 states."""
    co2 = pytest.importorskip("statsmodels.datasets.co2").load().data["co2"].resample("MS").mean().to_numpy()
    move = torch.zeros(13, 13, dtype=F64)
    move[0, :2], move[1, 1], move[2, 2:] = 1.0, 1.0, -1.0
    move[3:, 2:-1] = torch.eye(10, dtype=F64)
    noise = torch.zeros(13, dtype=F64)
    noise[:3] = torch.tensor([0.05, 1e-4, 0.002])
    see = torch.zeros(1, 13, dtype=F64)
    see[0, [0, 2]] = 1.0
    model = LDS(13, 1, offsets="none", initial="diffuse")
    model.set_parameters(transition=move, state_noise=noise, emission=see, emission_noise=[0.02])
    # statsmodels' UnobservedComponents(co2, "lltrend", seasonal=12, use_exact_diffuse=True) at these variances
    assert model.score(co2[None, :, None]) == pytest.approx(-171.4172461, abs=1e-5)
