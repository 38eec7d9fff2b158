"""Months and their sums over quarters in one model, beside months as one big Gaussian and, where it is there, statsmodels."""

import numpy as np
import pytest
import torch
from support.dense_lds import joint, values

from pplseq import StructuralModel
from pplseq.models import ConstrainedLDS


def months_and_quarters(monthly):
    """Of a model of months one of (month, sum of three): its states, this month's noise, and the last two months."""
    known, h = monthly.values, monthly.num_states
    noise, month = known.emission_noise, torch.cat([known.emission[0], torch.tensor([1, 0, 0])])
    transition = torch.block_diag(known.transition, torch.zeros(3, 3))
    transition[h + 1], transition[h + 2, h + 1] = month, 1
    return ConstrainedLDS(h + 3, 2, {
        "transition": transition, "emission": torch.stack([month, month + torch.tensor([0] * (h + 1) + [1, 1])]),
        "state_noise": torch.block_diag(known.state_noise, noise[:, None], torch.zeros(2, 2)), "emission_noise": "zero",
        "initial_mean": torch.zeros(h + 3),
        "initial_covariance": torch.block_diag(known.initial_covariance, noise[:, None], torch.eye(2)),
    }, offsets="none")  # fmt: skip


def monthly_model():
    model = StructuralModel(trend="stochastic", seasonal=4, harmonics=1)
    return model.set_parameters(level=0.3, slope=0.02, seasonal=0.1, noise=0.5, width=3.0)


def told_months_and_sums():
    months = 10 + np.cumsum(np.random.default_rng(0).normal(size=15))
    x = np.full((15, 2), np.nan)
    x[:7, 0] = months[:7]
    x[3, 0] = np.nan
    x[8::3, 1] = months[6:].reshape(-1, 3).sum(1)  # a month of the first quarter is told beside its sum
    x[12, 0] = months[12]
    return x


def test_months_given_sums_are_those_of_the_joint_gaussian():
    monthly, x = monthly_model(), told_months_and_sums()
    both = months_and_quarters(monthly)
    mean, prior, look, shift, _ = joint(values(monthly) | {"emission_noise": np.zeros((1, 1))}, 15)
    own = values(monthly)["emission_noise"].item() * np.eye(15)
    centre, spread = look @ mean + shift, look @ prior @ look.T + own
    told = [np.eye(15)[t] for t in np.flatnonzero(~np.isnan(x[:, 0]))]
    told += [np.eye(15)[t - 2 : t + 1].sum(0) for t in np.flatnonzero(~np.isnan(x[:, 1]))]
    told, numbers = np.array(told), np.concatenate([column[~np.isnan(column)] for column in x.T])
    total = told @ spread @ told.T
    gain = np.linalg.solve(total, told @ spread).T
    error = numbers - told @ centre
    log_prob = -0.5 * (error @ np.linalg.solve(total, error) + np.linalg.slogdet(2 * np.pi * total)[1])
    assert both.num_free_parameters == 0 and both.score(x) == pytest.approx(log_prob, abs=1e-9)  # known in full: no fit
    back = both.reconstruct(x)
    np.testing.assert_allclose(back.means[0, :, 0], centre + gain @ error, atol=1e-9)
    np.testing.assert_allclose(back.covariances[0, :, 0, 0], (spread - gain @ told @ spread).diagonal(), atol=1e-9)
    np.testing.assert_allclose(back.means[0, 6:, 0].reshape(-1, 3).sum(1), x[8::3, 1], atol=1e-9)
    found = both.outliers(x)
    assert found.num_values == len(numbers) and len(found) == 0
    assert both.outliers(x + np.where(np.arange(15) == 11, 40.0, 0)[:, None]).steps.tolist() == [11]


def test_the_likelihood_is_that_of_statsmodels():
    representation = pytest.importorskip("statsmodels.tsa.statespace.kalman_filter")
    both, x = months_and_quarters(monthly_model()), told_months_and_sums()
    own, h = values(both), both.num_states
    model = representation.KalmanFilter(2, h, k_posdef=h)
    model.bind(x.copy())
    model["design"], model["transition"], model["selection"] = own["emission"], own["transition"], np.eye(h)
    model["state_cov"], model["obs_cov"] = own["state_noise"], own["emission_noise"]
    model.initialize_known(own["initial_mean"], own["initial_covariance"])
    assert both.score(x) == pytest.approx(model.loglike(), abs=1e-8)
