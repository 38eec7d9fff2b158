"""The steady state of a word model against dense V x V algebra."""

import numpy as np
import pytest
from support.lag_texts import complement, dense_noise, random_parameters

from pplseq.models.text_lds.steady_state import SteadyState, TextParameters, largest_reduction

V = 13


@pytest.fixture(params=[1, 2, 5])
def case(request):
    probs = np.random.default_rng(0).dirichlet(np.ones(V))
    return random_parameters(np.sqrt(probs), request.param, seed=request.param), probs


def evidence_table(steady, probs):
    """(V, h): b_i = C'D^-1 W e_i, with log p(w_i | x) = const_i + b_i . x - x' Lam x / 2."""
    return (steady.parameters.emission @ steady.precision_factor.T) / np.sqrt(probs)[:, None]


def test_everything_against_dense_algebra(case):
    parameters, probs = case
    unit, c, a = np.sqrt(probs), parameters.emission, parameters.transition
    steady = SteadyState(parameters)
    basis = complement(unit)  # D is singular along u only
    inverse = basis @ np.linalg.inv(basis.T @ dense_noise(parameters, unit) @ basis) @ basis.T
    np.testing.assert_allclose(steady.information, c.T @ inverse @ c, atol=1e-11)
    np.testing.assert_allclose(evidence_table(steady, probs), (c.T @ inverse / unit).T, atol=1e-10)
    # steady covariances: fixed points of the filter
    filtered = np.linalg.inv(np.linalg.inv(steady.predicted) + steady.information)
    np.testing.assert_allclose(steady.filtered, filtered, atol=1e-12)
    np.testing.assert_allclose(a @ filtered @ a.T + parameters.state_noise, steady.predicted, atol=1e-12)
    stationary = steady.stationary
    np.testing.assert_allclose(a @ stationary @ a.T + parameters.state_noise, stationary, atol=1e-11)
    # innovations
    covariance = c @ steady.predicted @ c.T + dense_noise(parameters, unit)
    reduced = basis.T @ covariance @ basis
    np.testing.assert_allclose(
        basis @ np.linalg.inv(reduced) @ basis.T,
        np.eye(V) - np.outer(unit, unit) - c @ steady.innovation_weight @ c.T,
        atol=1e-11,
    )
    assert steady.log_det == pytest.approx(np.linalg.slogdet(reduced)[1], abs=1e-11)
    gain = steady.predicted @ c.T @ np.linalg.pinv(covariance, rcond=1e-10)
    np.testing.assert_allclose(steady.gain(), gain, atol=1e-10)
    np.testing.assert_allclose(steady.filter_matrix, a - gain @ c @ a, atol=1e-11)


def test_smoother_has_the_filter_s_eigenvalues(case):
    steady = SteadyState(case[0])
    filtered = steady.filtered
    # J = Sigma_0 H' Sigma_0^-1
    np.testing.assert_allclose(steady.smoother @ filtered, filtered @ steady.filter_matrix.T, atol=1e-12)
    j, v = steady.smoother, steady.smoothed
    np.testing.assert_allclose(filtered + j @ (v - steady.predicted) @ j.T, v, atol=1e-12)
    np.testing.assert_allclose(steady.smoothed_lag_one, v @ j.T, atol=1e-14)


def test_head_is_the_exact_filter(case):
    parameters, probs = case
    unit, c, a = np.sqrt(probs), parameters.emission, parameters.transition
    steady = SteadyState(parameters)
    head = steady.head()
    ids = np.random.default_rng(1).integers(0, V, size=12)
    words = (np.eye(V)[ids] - probs) / unit
    noise, table = dense_noise(parameters, unit), evidence_table(steady, probs)
    mean, covariance, found = np.zeros(len(a)), steady.stationary, np.zeros(len(a))
    for t, word in enumerate(words):
        if t:
            mean, covariance = a @ mean, a @ covariance @ a.T + parameters.state_noise
        gain = covariance @ c.T @ np.linalg.pinv(c @ covariance @ c.T + noise, rcond=1e-10)
        mean, covariance = mean + gain @ (word - c @ mean), covariance - gain @ c @ covariance
        at = min(t, len(head.covariances) - 1)
        found = head.filter_matrices[at] @ found + head.covariances[at] @ table[ids[t]]
        np.testing.assert_allclose(head.covariances[at], covariance, atol=1e-10)
        np.testing.assert_allclose(found, mean, atol=1e-9)
    np.testing.assert_allclose(head.covariances[-1], steady.filtered, atol=1e-12)
    np.testing.assert_allclose(head.filter_matrices[-1], steady.filter_matrix, atol=1e-12)
    assert len(steady.head(steady.predicted).covariances) <= 2


def test_rebasing_and_scaling(case):
    parameters, probs = case
    rebased = parameters.rebased()
    np.testing.assert_allclose(rebased.state_noise, np.eye(parameters.num_states))
    unit = np.sqrt(probs)
    np.testing.assert_allclose(dense_noise(rebased, unit), dense_noise(parameters, unit), atol=1e-12)
    before, after = SteadyState(parameters), SteadyState(rebased)
    assert after.log_det == pytest.approx(before.log_det, abs=1e-11)
    c, d = parameters.emission, rebased.emission
    np.testing.assert_allclose(d @ after.predicted @ d.T, c @ before.predicted @ c.T, atol=1e-11)
    np.testing.assert_allclose(
        largest_reduction(4 * before.gram, parameters.reduction), 4 * before.largest_reduction, rtol=1e-12
    )


def test_impossible_models_are_refused(case):
    parameters, _ = case
    assert SteadyState(parameters).largest_reduction == pytest.approx(0.6)
    with pytest.raises(ValueError, match="not positive definite.*eigenvalue of C'C M below 1, got 1.2"):
        SteadyState(parameters.scaled(np.sqrt(2.0)))
    h = parameters.num_states
    unstable = TextParameters(np.eye(h), parameters.emission, np.eye(h), parameters.reduction)
    with pytest.raises(ValueError, match="transition: its spectral radius is 1, but only a stable matrix"):
        SteadyState(unstable)
    with pytest.raises(ValueError, match="state_noise: expected a positive definite matrix"):
        TextParameters(parameters.transition, parameters.emission, -np.eye(h), parameters.reduction).rebased()
    with pytest.raises(ValueError, match=r"transition: expected shape"):
        TextParameters(np.eye(h + 1), parameters.emission, np.eye(h), np.eye(h))
    with pytest.raises(ValueError, match=r"emission: expected finite numbers"):
        SteadyState(TextParameters(parameters.transition, parameters.emission * np.nan, np.eye(h), parameters.reduction))
