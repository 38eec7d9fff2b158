"""Lag covariances as operators against dense ones."""

import numpy as np
import pytest
from support.lag_texts import counts_of, covariances

from pplseq.models.text_lds.lag_covariances import DenseLagCovariances, LagCovariances

V = 11


@pytest.fixture
def sequences():
    rng = np.random.default_rng(0)
    return [np.append(rng.integers(0, V, size=n), np.arange(V)) for n in (30, 1, 57, 12)]


def dense_truth(sequences, lag, probs, pseudo_counts, normalize):
    """alpha T_k/T W (P - a b') W by definition, pair by pair."""
    pairs = np.zeros((V, V))
    for ids in sequences:
        for t in range(len(ids) - lag):
            pairs[ids[t + lag], ids[t]] += 1
    total = sum(len(ids) for ids in sequences)
    alpha = total / (total + pseudo_counts * V) * (pairs.sum() / total if normalize == "tokens" else 1)
    pairs /= pairs.sum()
    return (alpha * (pairs - np.outer(pairs.sum(1), pairs.sum(0)))) / np.sqrt(np.outer(probs, probs))


@pytest.mark.parametrize("normalize", ["tokens", "pairs"])
@pytest.mark.parametrize("pseudo_counts", [0.0, 2.5])
def test_operators_equal_the_definition(sequences, pseudo_counts, normalize):
    cov = covariances(sequences, V, pseudo_counts, max_lag=3, normalize=normalize)
    counts = np.bincount(np.concatenate(sequences), minlength=V) + pseudo_counts
    np.testing.assert_allclose(cov.probs, counts / counts.sum(), rtol=1e-14)
    block = np.random.default_rng(1).normal(size=(V, 3))
    unit = np.sqrt(cov.probs)
    truths = [np.eye(V) - np.outer(unit, unit)]
    truths += [dense_truth(sequences, lag, cov.probs, pseudo_counts, normalize) for lag in (1, 2, 3)]
    for lag, truth in enumerate(truths):
        np.testing.assert_allclose(cov.dense(lag), truth, atol=1e-12)
        np.testing.assert_allclose(cov.apply(lag, block), truth @ block, atol=1e-12)
        np.testing.assert_allclose(cov.apply_transposed(lag, block), truth.T @ block, atol=1e-12)


@pytest.mark.parametrize("pseudo_counts", [0.0, 1.0, 50.0])
def test_margins_are_zero(sequences, pseudo_counts):
    cov = covariances(sequences, V, pseudo_counts)
    for lag in range(8):
        assert np.abs(cov.apply(lag, cov.unit[:, None])).max() < 1e-12
        assert np.abs(cov.apply_transposed(lag, cov.unit[:, None])).max() < 1e-12


def test_short_lines_have_a_definite_sequence_of_covariances():
    """Averaged over tokens; averaged over pairs it need not be one."""
    lines = [np.array([0, 1]), np.array([1, 0]), np.array([2])] * 20
    smallest = {}
    for normalize in ("tokens", "pairs"):
        cov = covariances(lines, 3, max_lag=1, normalize=normalize)
        one = cov.dense(1)
        smallest[normalize] = np.linalg.eigvalsh(np.block([[cov.dense(0), one.T], [one, cov.dense(0)]]))[0]
    assert smallest["tokens"] > -1e-12 > smallest["pairs"]


def test_the_row_is_the_later_word():
    """0 is always followed by 1, and 1 by anything."""
    rng = np.random.default_rng(0)
    ids = np.concatenate([[0, 1, 2 + rng.integers(3)] for _ in range(200)])
    cov = covariances([ids], 5)
    assert cov.dense(1)[1, 0] > 0.5
    assert cov.dense(1)[0, 1] < 0


def test_pseudo_counts_keep_the_sequence_of_covariances_definite():
    """The block Toeplitz matrix of a circular text stays positive semidefinite, and gains definiteness outside u."""
    rng = np.random.default_rng(2)
    ids = np.repeat(rng.integers(0, 5, size=60), 2)
    circular = counts_of([ids], 5, max_lag=3)
    for k in range(1, 4):  # exact stationarity: pairs over the end too
        circular.lags[k - 1][:] = 0
        for later, earlier in zip(np.roll(ids, -k), ids, strict=True):
            circular.lags[k - 1][later, earlier] += 1
    for pseudo_counts in (0.0, 0.5, 20.0):
        cov = LagCovariances.from_counts(circular, pseudo_counts)
        blocks = [[cov.dense(i - j) if i >= j else cov.dense(j - i).T for j in range(4)] for i in range(4)]
        values = np.linalg.eigvalsh(np.block(blocks))
        assert values[0] > -1e-12
        assert (values > 1e-9).sum() == 16


@pytest.mark.parametrize("threads", [1, 3])
def test_moments_equal_single_products(sequences, threads, monkeypatch):
    monkeypatch.setattr("pplseq.models.text_lds.lag_covariances.ROW_CHUNK", 4)
    cov = covariances(sequences, V, 1.0, max_lag=3, num_threads=threads)
    rng = np.random.default_rng(3)
    emission, forward, backward = rng.normal(size=(V, 2)), rng.normal(size=(4, 2, 2)), rng.normal(size=(4, 2, 2))
    dense = DenseLagCovariances(np.stack([cov.dense(k) for k in range(4)]))
    for horizon in (1, 3):
        grams = [emission.T @ cov.dense(k) @ emission for k in range(horizon + 1)]
        combination = sum(cov.dense(k) @ emission @ forward[k] for k in range(horizon + 1))
        combination = combination + sum(cov.dense(k).T @ emission @ backward[k] for k in range(1, horizon + 1))
        for covariance in (cov, dense):
            weights = forward[: horizon + 1], backward[: horizon + 1]
            found = covariance.moments(emission, *weights, horizon=horizon)
            np.testing.assert_allclose(found.grams, grams, atol=1e-12)
            np.testing.assert_allclose(found.combination, combination, atol=1e-12)
            assert covariance.moments(emission, horizon=horizon).combination is None


def test_restriction_to_a_subspace(sequences):
    cov = covariances(sequences, V, 1.0, max_lag=3)
    basis = np.linalg.qr(cov.project(np.random.default_rng(4).normal(size=(V, 4))))[0]
    inside = cov.restrict(basis)
    np.testing.assert_allclose(inside.dense(0), np.eye(4), atol=1e-12)
    for lag in range(4):
        np.testing.assert_allclose(inside.dense(lag), basis.T @ cov.dense(lag) @ basis, atol=1e-12)
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(4, 4)))[0]
    np.testing.assert_allclose(inside.restrict(turn[:, :2]).dense(2), cov.restrict(basis @ turn[:, :2]).dense(2), atol=1e-12)


@pytest.mark.parametrize("normalize", ["tokens", "pairs"])
def test_held_out_text_is_centred_and_whitened_by_the_training_text(sequences, normalize):
    training = covariances(sequences, V, 1.0, max_lag=2, normalize=normalize)
    ids = np.random.default_rng(6).integers(0, 5, size=400)  # some training words do not occur
    validation = LagCovariances.from_counts(counts_of([ids], V, 2), probs_from=training)
    words = (np.eye(V)[ids] - training.probs) / training.unit
    np.testing.assert_allclose(validation.dense(0), words.T @ words / len(ids), atol=1e-12)
    assert validation.trace == pytest.approx(np.trace(validation.dense(0)))
    for lag in (1, 2):
        truth = words[lag:].T @ words[:-lag] / (len(ids) - (lag if normalize == "pairs" else 0))
        np.testing.assert_allclose(validation.dense(lag), truth, atol=1e-12)
        np.testing.assert_allclose(validation.apply_transposed(lag, np.eye(V)), truth.T, atol=1e-12)


def test_single_precision_stays_close(sequences):
    double = covariances(sequences, V, 1.0, max_lag=2)
    single = covariances(sequences, V, 1.0, max_lag=2, dtype=np.float32)
    assert single.dense(1).dtype == np.float32
    np.testing.assert_allclose(single.dense(1), double.dense(1), atol=1e-5)
    np.testing.assert_allclose(single.restrict(np.eye(V)).dense(2), double.dense(2), atol=1e-5)


def test_bad_counts_are_refused(sequences):
    counts = counts_of(sequences, V + 2)
    with pytest.raises(ValueError, match="'w11' and 1 other words never occur"):
        LagCovariances.from_counts(counts, 0.0)
    with pytest.raises(ValueError, match="pseudo_counts: expected a number of at least 0, got nan"):
        LagCovariances.from_counts(counts, float("nan"))
    with pytest.raises(ValueError, match="max_lag: expected 1..7"):
        LagCovariances.from_counts(counts, max_lag=8)
    with pytest.raises(ValueError, match="count both with one vocabulary"):
        LagCovariances.from_counts(counts, probs_from=covariances(sequences, V))
    with pytest.raises(ValueError, match="no two words 3 places apart"):
        covariances([np.arange(3)] * 5, 3)
    with pytest.raises(ValueError, match="normalize: expected one of tokens, pairs"):
        covariances(sequences, V, normalize="lines")
    with pytest.raises(TypeError, match="dtype: expected float64 or float32"):
        covariances(sequences, V, dtype=np.int64)
    counts.counts = counts.counts * np.nan
    with pytest.raises(ValueError, match="NaN"):
        LagCovariances.from_counts(counts)
    with pytest.raises(ValueError, match="NaN"):
        DenseLagCovariances(np.full((2, 3, 3), np.nan))
    with pytest.raises(ValueError, match="expected .L . 1, m, m."):
        DenseLagCovariances(np.eye(3))
