"""Subspace identification against dense algebra and known dynamics; realisations."""

import numpy as np
import pytest
from support.lag_texts import complement, covariances, dense_noise, hmm_tables, hmm_text, random_parameters

from pplseq.kernels.matrix_equations import stationary_covariance
from pplseq.models.text_lds.asos import asos_likelihood
from pplseq.models.text_lds.lag_covariances import DenseLagCovariances
from pplseq.models.text_lds.realisation import METHODS, SCALES, realise
from pplseq.models.text_lds.steady_state import SteadyState, on_arrays
from pplseq.models.text_lds.subspace import BlockHankel, randomized_svd, subspace_identification, tall_qr

V = 40


@pytest.fixture(scope="module")
def tables():
    return hmm_tables(num_words=V)


@pytest.fixture(scope="module")
def cov(tables):
    return covariances([hmm_text(*tables, 50_000)], V, 1.0)


@pytest.fixture(scope="module")
def small():
    rng = np.random.default_rng(0)
    return covariances([np.append(rng.integers(0, 9, size=300), np.arange(9)) for _ in range(3)], 9, 1.0)


def system_covariances(parameters, unit, num_lags=7):
    """Psi_k of a model with independent noises: C A^k Sigma C'."""
    c, a = parameters.emission, parameters.transition
    stationary = on_arrays(stationary_covariance, a, parameters.state_noise)
    matrices = [np.eye(len(unit)) - np.outer(unit, unit)]
    for k in range(1, num_lags + 1):
        matrices.append(c @ np.linalg.matrix_power(a, k) @ stationary @ c.T)
    return DenseLagCovariances(np.stack(matrices))


def test_implicit_hankel_equals_dense(small):
    r = 3
    dense = np.block([[small.dense(r + i - j) for j in range(1, r + 1)] for i in range(1, r + 1)])
    blocks = np.random.default_rng(1).normal(size=(r, 9, 4))
    hankel = BlockHankel(small, r)
    flat = blocks.reshape(r * 9, 4)
    np.testing.assert_allclose(hankel.apply(blocks).reshape(r * 9, 4), dense @ flat, atol=1e-12)
    np.testing.assert_allclose(hankel.apply_transposed(blocks).reshape(r * 9, 4), dense.T @ flat, atol=1e-12)


def test_randomized_svd_equals_dense(cov):
    r = 3
    dense = np.block([[cov.dense(r + i - j) for j in range(1, r + 1)] for i in range(1, r + 1)])
    left, values, right = randomized_svd(BlockHankel(cov, r), 3)
    expected = np.linalg.svd(dense, compute_uv=False)
    np.testing.assert_allclose(values[:3], expected[:3], rtol=1e-9)
    n = 3
    found = (left[:, :, :n].reshape(-1, n) * values[:n]) @ right[:, :, :n].reshape(-1, n).T
    assert np.linalg.norm(dense - found, 2) == pytest.approx(expected[3], rel=1e-6)


@pytest.mark.parametrize("condition", [10.0, 1e7])
def test_tall_qr_in_single_precision(condition):
    """The second is too ill-conditioned for Gram matrices."""
    matrix = np.random.default_rng(0).normal(size=(300, 5)) @ np.diag(np.geomspace(1, 1 / condition, 5))
    matrix = matrix.astype(np.float32)
    orthonormal, triangle = tall_qr(matrix)
    np.testing.assert_allclose(orthonormal.T @ orthonormal, np.eye(5), atol=1e-6)
    np.testing.assert_allclose(orthonormal @ triangle, matrix, atol=1e-6)
    np.testing.assert_array_equal(np.tril(triangle, -1), 0)


def test_single_precision_identifies_the_same(tables, cov):
    single = covariances([hmm_text(*tables, 50_000)], V, 1.0, dtype=np.float32)
    found, expected = subspace_identification(single, 3), subspace_identification(cov, 3)
    np.testing.assert_allclose(found.singular_values[:3], expected.singular_values[:3], rtol=1e-5)
    values = np.sort(np.abs(np.linalg.eigvals(found.transition)))
    np.testing.assert_allclose(values, np.sort(np.abs(np.linalg.eigvals(expected.transition))), atol=1e-4)
    gains = [realise(i, c, "restricted").fit.history[-1].gain for i, c in ((found, single), (expected, cov))]
    assert gains[0] == pytest.approx(gains[1], abs=1e-4)


def test_exact_covariances_give_the_system_back():
    probs = np.random.default_rng(0).dirichlet(np.ones(12))
    truth = random_parameters(np.sqrt(probs), 3, seed=1, radius=0.9)
    size = np.linalg.eigvalsh(truth.emission @ SteadyState(truth).stationary @ truth.emission.T)[-1]
    truth = truth.scaled(np.sqrt(0.6 / size))  # no more variance than words have
    system = system_covariances(truth, np.sqrt(probs))
    found = subspace_identification(system, 3)
    expected = np.linalg.eigvals(truth.transition)
    np.testing.assert_allclose(np.sort_complex(np.linalg.eigvals(found.transition)), np.sort_complex(expected), atol=1e-9)
    for lag in (1, 2, 6):
        product = found.emission @ np.linalg.matrix_power(found.transition, lag - 1) @ found.cross
        np.testing.assert_allclose(product, system.dense(lag), atol=1e-9)
    assert found.gap > 1e6 and found.radius == pytest.approx(0.9)
    # the consistent realisation has the same covariances, D included
    stationary = on_arrays(stationary_covariance, truth.transition, truth.state_noise)
    total = np.eye(12) - np.outer(np.sqrt(probs), np.sqrt(probs))
    realised = realise(found, system, "consistent")
    assert realised.report.feasible and np.allclose(realised.parameters.state_noise, np.eye(3))
    again = system_covariances(realised.parameters, np.sqrt(probs))
    np.testing.assert_allclose(again.dense(2), system.dense(2), atol=1e-8)
    np.testing.assert_allclose(
        dense_noise(realised.parameters, np.sqrt(probs)),
        total - truth.emission @ stationary @ truth.emission.T,
        atol=1e-8,
    )
    # and the innovation form predicts as its Kalman filter does
    predictor = realise(found, system, "innovation").predictor
    steady = SteadyState(realised.parameters)
    basis = complement(np.sqrt(probs))
    a, c = realised.parameters.transition, realised.parameters.emission
    for k in range(3):
        mine = predictor.emission @ np.linalg.matrix_power(predictor.transition, k) @ predictor.gain @ basis
        filters = c @ np.linalg.matrix_power(a, k + 1) @ steady.gain() @ basis
        np.testing.assert_allclose(mine, filters, atol=1e-7)


def test_eigenvalues_of_an_hmm_are_found(tables, cov):
    expected = np.sort(np.abs(np.linalg.eigvals(tables[0])))[-2::-1]
    found = subspace_identification(cov, 3)
    np.testing.assert_allclose(np.sort(np.abs(np.linalg.eigvals(found.transition)))[::-1], expected, atol=0.03)
    assert found.gap > 3


def test_all_realisations_are_models(cov):
    identification = subspace_identification(cov, 3)
    gains = {}
    for how in METHODS:
        start = realise(identification, cov, how)
        if how == "innovation":
            assert start.parameters is None and start.report.feasible
            continue
        assert SteadyState(start.parameters).largest_reduction < 1
        gains[how] = asos_likelihood(start.parameters, cov).gain
    assert gains["restricted"] > gains["line_search"] > 0
    assert gains["line_search"] >= gains["paper"] - 1e-3  # its own scale is tried too, but for rounding to the grid
    assert gains["restricted"] >= gains["consistent"] - 1e-4


def test_line_search_takes_the_likeliest_scale(cov):
    identification = subspace_identification(cov, 3)
    found = realise(identification, cov, "line_search")
    paper = realise(identification, cov, "paper")
    gains = [asos_likelihood(paper.parameters.scaled(np.sqrt(s / paper.scale)), cov).gain for s in SCALES]
    assert found.scale == SCALES[int(np.argmax(gains))]
    assert asos_likelihood(found.parameters, cov).gain == pytest.approx(max(gains), abs=1e-9)


def test_restricted_em_climbs_and_its_likelihood_is_the_lifted_model_s(cov):
    identification = subspace_identification(cov, 3)
    found = realise(identification, cov, "restricted", max_iterations=30)
    gains = np.array([record.gain for record in found.fit.history])
    assert np.diff(gains).min() > -1e-9
    best = found.fit.history[found.fit.best_iteration].gain
    assert asos_likelihood(found.parameters, cov).gain == pytest.approx(best, abs=1e-10)


def test_noises_that_fit_nothing_fall_back_with_a_report(small):
    """Words without dynamics: A^-1 G is noise."""
    start = realise(subspace_identification(small, 4), small, "consistent")
    assert start.method == "line_search" and not start.report.feasible
    assert start.report.smallest_noise < 0 and "line search" in start.report.reason
    assert SteadyState(start.parameters).largest_reduction < 1


def test_paper_realisation_is_scaled_to_a_margin(cov):
    identification = subspace_identification(cov, 3)
    object.__setattr__(identification, "emission", 100 * identification.emission)
    start = realise(identification, cov, "paper")
    assert not start.report.feasible and start.report.largest_reduction > 1
    assert SteadyState(start.parameters).largest_reduction == pytest.approx(0.98)


def test_eigenvalues_are_clipped():
    """A text that alternates for ever has an eigenvalue at -1."""
    ids = np.tile([0, 1, 2], 400)
    ids[1::2] = np.where(np.random.default_rng(0).random(600) < 0.5, 0, 1)
    ids[::2] = 2
    found = subspace_identification(covariances([ids], 3), 1, radius=0.9)
    assert found.radius > 0.98
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(found.transition)), 0.9)


def test_too_little_is_refused(small):
    with pytest.raises(ValueError, match=r"5 blocks need lags 1..9, but .* up to 7"):
        subspace_identification(small, 2, blocks=5)
    with pytest.raises(ValueError, match="at least 2"):
        subspace_identification(small, 2, blocks=1)
    with pytest.raises(ValueError, match="num_states: expected 1..8"):
        subspace_identification(small, 9)
    with pytest.raises(TypeError, match="num_states: expected an integer"):
        subspace_identification(small, 2.0)
    probs = np.random.default_rng(0).dirichlet(np.ones(12))
    system = system_covariances(random_parameters(np.sqrt(probs), 2), np.sqrt(probs))
    with pytest.raises(ValueError, match="has rank 2, so that at most 2 states"):
        subspace_identification(system, 3)
    with pytest.raises(ValueError, match="how: expected one of paper"):
        realise(subspace_identification(small, 2), small, "best")
