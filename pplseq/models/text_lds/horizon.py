"""Whether likelihoods from covariances at a few lags can be trusted: against filtering a sample of the text itself."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pplseq.models.text_lds.asos import asos_likelihood
from pplseq.models.text_lds.lag_covariances import LagCovariances, import_sparse
from pplseq.models.text_lds.steady_state import SteadyState, TextParameters


class HorizonCheck(NamedTuple):
    """Gains over independent Gaussian words on a sample, nats per token.

    asos: from the sample's own covariances, as EM computes it. steady: the filter in steady state from the first word on,
    as the paper filters. exact: the exact filter. difference: asos - exact; num_tokens: size of the sample.
    """

    asos: float
    steady: float
    exact: float
    num_tokens: int

    @property
    def difference(self) -> float:
        return self.asos - self.exact


def filter_gain(
    parameters: TextParameters | SteadyState, probs: np.ndarray, sequences: Sequence[np.ndarray], *, exact: bool = True
) -> float:
    """Log-likelihood of sequences over that of independent Gaussian words, by filtering; nats per token.

        -1/2 [log |S_t| + e_t' S_t^-1 e_t - w_t' w_t],  e_t = w_t - C A x_{t-1}

    Args:
        parameters: or their steady state. probs: mu (V,) of the centring and whitening.
        sequences: arrays of word ids, each starting anew.
        exact: with the stationary prior and the exact covariances of the first words; False takes the steady state.

    Raises:
        ValueError: no tokens, or ids outside the vocabulary.
    """
    steady = parameters if isinstance(parameters, SteadyState) else SteadyState(parameters)
    sequences = sorted((np.asarray(ids, dtype=np.int64) for ids in sequences if len(ids)), key=len, reverse=True)
    if not sequences:
        raise ValueError("sequences: expected at least one word, got none")
    emission, size = steady.parameters.emission, len(probs)
    for ids in sequences:
        if ids.min() < 0 or ids.max() >= size:
            raise ValueError(f"sequences: expected word ids in 0..{size - 1}, got {ids.min()}..{ids.max()}")
    table = emission.astype(np.float64) / np.sqrt(probs)[:, None]  # row i = C' W e_i
    lengths = np.array([len(ids) for ids in sequences])
    padded = np.zeros((len(sequences), lengths[0]), dtype=np.int64)
    for row, ids in zip(padded, sequences, strict=True):
        row[: len(ids)] = ids
    head = steady.head() if exact else None
    a, c_gram, factor = steady.transition, steady.gram, steady.precision_factor
    identity = np.eye(len(a))
    transit, filtered = steady.filter_matrix, steady.filtered
    weight, log_det = steady.innovation_weight, steady.log_det
    state, total = np.zeros((len(sequences), len(a))), 0.0
    for t in range(lengths[0]):
        active = int(np.searchsorted(-lengths, -t))  # sequences longer than t come first
        state = state[:active]
        if head is not None and t < len(head.covariances):
            transit, filtered = head.filter_matrices[t], head.covariances[t]
            excess = head.predicted[t] - steady.reduction
            inner = identity + c_gram @ excess
            weight, log_det = np.linalg.solve(inner.T, excess).T, np.linalg.slogdet(inner)[1]
        evidence = table[padded[:active, t]]
        seen = c_gram @ weight
        predicted = state @ a.T
        total += active * log_det - np.sum((evidence @ weight) * evidence)
        total -= 2 * np.sum(predicted * (evidence @ (identity - seen).T))
        total += np.sum((predicted @ (c_gram - seen @ c_gram)) * predicted)
        state = state @ transit.T + evidence @ (filtered @ factor).T
    return -0.5 * total / lengths.sum()


def count_pairs(sequences: Sequence[np.ndarray], num_words: int, max_lag: int) -> tuple:
    """Matrices of pair counts N_k[later, earlier], k = 1..L, within sequences."""
    sparse = import_sparse()
    ids = np.concatenate([np.asarray(sequence) for sequence in sequences])
    owner = np.repeat(np.arange(len(sequences)), [len(sequence) for sequence in sequences])
    lags = []
    for k in range(1, max_lag + 1):
        together = owner[k:] == owner[:-k]
        pair = (ids[k:][together], ids[:-k][together])
        ones = np.ones(len(pair[0]))
        lags.append(sparse.coo_array((ones, pair), shape=(num_words, num_words)).tocsr())
    return tuple(lags)


def horizon_check(
    parameters: TextParameters,
    cov: LagCovariances,
    sequences: Sequence[np.ndarray],
    *,
    horizon: int | None = None,
    tolerance: float = 0.1,
) -> HorizonCheck:
    """Compares the likelihood from covariances with that of filtering, on the same sample.

    They differ because lags beyond the horizon are taken from the model, and because covariances know no beginnings: in
    short sequences the first words are harder to predict than the rest.

    Args:
        parameters: a model. cov: training covariances, for mu and the horizon.
        sequences: a sample of the text, arrays of word ids.
        horizon: largest lag; None for that of ``cov``.
        tolerance: of the difference relative to the exact gain, above which a warning is given.

    Warns:
        RuntimeWarning: naming both likelihoods, if they differ by more.
    """
    horizon = cov.max_lag if horizon is None else horizon
    sequences = [np.asarray(ids) for ids in sequences if len(ids)]
    steady = SteadyState(parameters)
    gains = [filter_gain(steady, cov.probs, sequences, exact=exact) for exact in (False, True)]
    counts = np.bincount(np.concatenate(sequences), minlength=cov.num_words)
    sample = LagCovariances(
        cov.probs,
        count_pairs(sequences, cov.num_words, horizon),
        counts=counts,
        num_tokens=counts.sum() if cov.normalize == "tokens" else None,
        dtype=cov.dtype,  # pyright: ignore[reportArgumentType]
    )
    check = HorizonCheck(asos_likelihood(steady, sample).gain, gains[0], gains[1], int(counts.sum()))
    if abs(check.difference) > tolerance * max(abs(check.exact), 0.01):
        warnings.warn(
            f"the likelihood from lags 1..{horizon} is {check.asos:.4g} nats per token over independent words, but the "
            f"exact one of the same {check.num_tokens} tokens is {check.exact:.4g}; use more lags, or longer units of text",
            RuntimeWarning,
            stacklevel=2,
        )
    return check
