"""ASOS: its statistics against smoothing the whole text, its EM, and its likelihood."""

import os
import signal

import numpy as np
import pytest
from support.lag_texts import counts_of, covariances, hmm_tables, hmm_text, random_parameters

from pplseq.models import TextLDS
from pplseq.models.text_lds.asos import asos_likelihood, asos_statistics, maximize
from pplseq.models.text_lds.asos_em import fit_asos
from pplseq.models.text_lds.horizon import filter_gain, horizon_check
from pplseq.models.text_lds.lag_covariances import LagCovariances
from pplseq.models.text_lds.realisation import realise
from pplseq.models.text_lds.steady_state import SteadyState, TextParameters
from pplseq.models.text_lds.subspace import subspace_identification

V, H = 40, 3


@pytest.fixture(scope="module")
def ids():
    return hmm_text(*hmm_tables(num_words=V), 100_000)


@pytest.fixture(scope="module")
def cov(ids):
    return covariances([ids], V)


@pytest.fixture(scope="module")
def start(cov):
    return realise(subspace_identification(cov, H), cov, "paper").parameters


@pytest.fixture(scope="module")
def smoothed(start, cov, ids):
    """Filtered and smoothed means of the whole text in steady state."""
    steady = SteadyState(start)
    table = (steady.gain().T / np.sqrt(cov.probs)[:, None])[ids]
    states = np.zeros_like(table)
    state = np.zeros(H)
    for t in range(len(ids)):
        state = steady.filter_matrix @ state + table[t]
        states[t] = state
    backwards = states.copy()
    inputs = states @ steady.smoother_input.T
    for t in range(len(ids) - 2, -1, -1):
        backwards[t] = steady.smoother @ backwards[t + 1] + inputs[t]
    return states, backwards


def distance(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def test_statistics_equal_those_of_smoothing_the_text(start, cov, ids, smoothed):
    steady = SteadyState(start)
    states, backwards = smoothed
    found = asos_statistics(start, cov)
    assert distance(found.filtered_moment, states.T @ states / len(ids)) < 1e-3
    assert distance(found.smoothed_moment, backwards.T @ backwards / len(ids)) < 1e-3
    assert distance(found.state, backwards.T @ backwards / len(ids) + steady.smoothed) < 1e-3
    lag_one = backwards[1:].T @ backwards[:-1] / (len(ids) - 1) + steady.smoothed_lag_one
    assert distance(found.lag_one, lag_one) < 1e-3
    emission = np.zeros((V, H))
    np.add.at(emission, ids, backwards / len(ids))
    emission = (emission - np.outer(cov.probs, backwards.mean(0))) / cov.unit[:, None]
    assert distance(found.emission, emission) < 5e-3


def test_a_short_horizon_is_worse(start, cov, ids, smoothed):
    truth = smoothed[1].T @ smoothed[1] / len(ids)
    errors = [distance(asos_statistics(start, cov, horizon=r).smoothed_moment, truth) for r in (1, 7)]
    assert errors[0] > 3 * errors[1]


def test_likelihood_equals_filtering(start, cov, ids):
    likelihood = asos_likelihood(start, cov)
    pieces = np.split(ids, 20)  # side by side, which is faster; beginnings cost little
    assert likelihood.gain == pytest.approx(filter_gain(start, cov.probs, pieces, exact=False), abs=3e-4)
    assert asos_statistics(start, cov).likelihood.gain == pytest.approx(likelihood.gain, abs=1e-13)
    assert likelihood.log_prob - likelihood.gain == pytest.approx(-0.5 * (V - 1) * (np.log(2 * np.pi) + 1))


@pytest.mark.parametrize("num_states", [1, 3])
def test_filter_gain_equals_a_dense_gaussian(num_states):
    """The joint density of a short text, from its V T x V T covariance on the complement of u."""
    from support.lag_texts import complement, dense_noise

    probs = np.random.default_rng(0).dirichlet(np.ones(6))
    unit = np.sqrt(probs)
    parameters = random_parameters(unit, num_states)
    basis = complement(unit)
    c, a, total = basis.T @ parameters.emission, parameters.transition, 0.0
    stationary = SteadyState(parameters).stationary
    noise = basis.T @ dense_noise(parameters, unit) @ basis
    texts = [np.array([0, 3, 3, 1, 5]), np.array([2]), np.array([4, 4, 0])]
    for text in texts:
        words = ((np.eye(6)[text] - probs) / unit) @ basis
        n = len(text)
        blocks = [
            [
                c @ (np.linalg.matrix_power(a, i - j) @ stationary if i >= j else
                     stationary @ np.linalg.matrix_power(a.T, j - i)) @ c.T + (i == j) * noise
                for j in range(n)
            ]
            for i in range(n)
        ]  # fmt: skip
        covariance, flat = np.block(blocks), words.ravel()
        total -= 0.5 * (np.linalg.slogdet(covariance)[1] + flat @ np.linalg.solve(covariance, flat) - flat @ flat)
    assert filter_gain(parameters, probs, texts) == pytest.approx(total / 9, abs=1e-9)


def test_em_climbs(start, cov):
    for update_state_noise in (True, False):
        fit = fit_asos(cov, start, max_iterations=30, tolerance=0, update_state_noise=update_state_noise)
        gains = np.array([record.gain for record in fit.history])
        assert np.diff(gains).min() > -1e-6
        assert gains[-1] > gains[0] + 1e-3
        assert fit.remarks == []
        if update_state_noise:
            np.testing.assert_allclose(fit.parameters.state_noise, np.eye(H), atol=1e-12)
        else:
            np.testing.assert_array_equal(fit.parameters.state_noise, start.state_noise)


def test_rebasing_changes_coordinates_only(start, cov):
    """An M-step with Q, rebased, has the likelihood of the same M-step without rebasing."""
    statistics = asos_statistics(start, cov)
    rebased, gram, _ = maximize(statistics, cov)
    state, cross = statistics.state, statistics.lag_one
    a, c = cross @ np.linalg.inv(state), statistics.emission @ np.linalg.inv(state)
    plain = TextParameters(a, c, state - a @ cross.T - cross @ a.T + a @ state @ a.T, state)
    assert asos_likelihood(rebased, cov).gain == pytest.approx(asos_likelihood(plain, cov).gain, abs=1e-10)
    np.testing.assert_allclose(gram, rebased.emission.T @ rebased.emission, atol=1e-12)


def test_subspace_start_beats_random_ones_and_stays_ahead(start, cov):
    ours = fit_asos(cov, start, max_iterations=10, tolerance=0).history
    for seed in range(2):
        random = random_parameters(cov.unit, H, seed=seed, largest=0.3)
        theirs = fit_asos(cov, random, max_iterations=10, tolerance=0).history
        assert ours[0].gain > theirs[0].gain + 0.1
        assert ours[-1].gain >= theirs[-1].gain - 1e-6


def test_reversed_text_scores_worse(cov, ids):
    """Psi_k transposed is the reversed text: what is learnt from it does not fit the text."""
    gains = []
    for text in (ids, ids[::-1]):
        its = covariances([text], V)
        parameters = realise(subspace_identification(its, H), its, "restricted").parameters
        gains.append(filter_gain(parameters, cov.probs, [ids[:20_000]]))
    assert gains[0] > 0.1 and gains[1] < gains[0] - 0.1


def test_single_precision_learns_the_same(start, ids, cov):
    single = covariances([ids], V, dtype=np.float32)
    fit = fit_asos(single, start, max_iterations=5, tolerance=0)
    double = fit_asos(cov, start, max_iterations=5, tolerance=0)
    assert fit.parameters.emission.dtype == np.float32
    assert fit.history[-1].gain == pytest.approx(double.history[-1].gain, abs=1e-4)


def test_held_out_text_stops_em_and_the_best_is_kept(ids):
    """Few words to learn from and many states: EM soon learns what is not so."""
    training = covariances([ids[:3000]], V, 1.0)
    held_out = LagCovariances.from_counts(counts_of([ids[50_000:80_000]], V), probs_from=training)
    initial = realise(subspace_identification(training, 12), training, "line_search").parameters
    fit = fit_asos(training, initial, max_iterations=60, tolerance=0, evaluate=held_out, patience=2)
    values = [record.held_out for record in fit.history]
    assert fit.stop_reason == "patience"
    assert fit.best_iteration == int(np.argmax(values)) == len(values) - 3
    assert asos_likelihood(fit.parameters, held_out).gain == pytest.approx(max(values), abs=1e-12)
    expected = filter_gain(fit.parameters, training.probs, [ids[50_000:80_000]])
    assert max(values) == pytest.approx(expected, abs=5e-3)
    called = fit_asos(training, initial, max_iterations=3, tolerance=0, evaluate=lambda p: -np.trace(p.reduction))
    assert called.history[0].held_out == pytest.approx(-np.trace(initial.reduction))


def test_ctrl_c_keeps_what_is_there(start, cov):
    def interrupt(record):
        if record.iteration == 2:
            os.kill(os.getpid(), signal.SIGINT)

    fit = fit_asos(cov, start, max_iterations=50, tolerance=0, on_iteration=interrupt)
    assert fit.stop_reason == "interrupted" and len(fit.history) == 3
    assert asos_likelihood(fit.parameters, cov).gain == pytest.approx(fit.history[-1].gain, abs=1e-12)


def test_stopping_and_zero_iterations(start, cov):
    fit = fit_asos(cov, start, max_iterations=200, tolerance=1e-3)
    assert fit.converged and 2 < len(fit.history) < 100
    assert fit.history[-1].gain - fit.history[-2].gain < 1e-3
    only = fit_asos(cov, start, max_iterations=0)
    assert only.parameters is start and len(only.history) == 1


def test_horizon_check_compares_with_filtering(start, cov, ids):
    lines = np.split(ids[:30_000], 30)
    check = horizon_check(start, cov, lines)
    assert check.num_tokens == 30_000
    assert check.exact == pytest.approx(filter_gain(start, cov.probs, lines))
    assert abs(check.difference) < 0.02 and abs(check.steady - check.exact) < 0.01
    with pytest.warns(RuntimeWarning, match="likelihood from lags 1..1 is"):
        horizon_check(start, cov, [ids[k : k + 2] for k in range(0, 20_000, 2)], horizon=1)


def test_options_out_of_range(start, cov):
    with pytest.raises(ValueError, match="horizon: expected 1..7"):
        asos_statistics(start, cov, horizon=8)
    with pytest.raises(ValueError, match="max_iterations=-1"):
        fit_asos(cov, start, max_iterations=-1)
    with pytest.raises(ValueError, match="patience: expected at least 1"):
        fit_asos(cov, start, patience=0)
    with pytest.raises(ValueError, match="not positive definite"):
        fit_asos(cov, start.scaled(50.0))
    with pytest.raises(ValueError, match=r"sequences: expected word ids in 0..39, got 0..40"):
        filter_gain(start, cov.probs, [np.array([0, 40])])
    with pytest.raises(ValueError, match="expected at least one word"):
        filter_gain(start, cov.probs, [])
    small = TextParameters(start.transition, start.emission[:7], start.state_noise, start.reduction)
    with pytest.raises(ValueError, match="emission has 7 rows; expected 40"):
        fit_asos(cov, small)


def test_an_m_step_that_leaves_the_models_is_repaired(start, cov):
    statistics = asos_statistics(start, cov)
    steep = statistics._replace(emission=statistics.emission * 30, lag_one=statistics.state * 1.2)
    parameters, gram, remarks = maximize(steep, cov, state_noise=np.eye(H), radius=0.95)
    assert any("eigenvalues of A" in remark for remark in remarks) and any("D was not" in remark for remark in remarks)
    steady = SteadyState(parameters, emission_gram=gram)
    assert steady.largest_reduction < 1
    assert np.abs(np.linalg.eigvals(parameters.transition)).max() <= 0.95 + 1e-12


def test_options_that_there_are_not():
    with pytest.raises(TypeError, match="TextLDS.fit has no option 'device'. It is fitted on the CPU"):
        TextLDS(2, num_words=4).fit([[0, 1, 2, 3] * 5], device="cpu")
    with pytest.raises(TypeError, match="no option 'max_iteration'.*max_iterations"):
        TextLDS(2, num_words=4).fit([[0, 1, 2, 3] * 5], max_iteration=3)
