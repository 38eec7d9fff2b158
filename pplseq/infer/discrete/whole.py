"""Chains of rows without gaps under one matrix: likelihood, posteriors, counts and best paths straight from tables."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.long import LongDenseChain
from pplseq.infer.discrete.results import ExpectedCounts, Factors, StateMarginals
from pplseq.kernels.whole_rows import tables
from pplseq.threads import once

MOST_POINTERS = 1 << 26  # bytes that a best path may take on the way


class LongWordsChain(LongDenseChain):
    """A :class:`LongDenseChain` of words without gradients and gaps, whose likelihood, posteriors and best path come straight
    from tables.

    Args: as for :class:`WholeRowsChain`, of at most ``tables.MOST_OF_PATHS`` states.
    """

    def __init__(
        self, transition: DenseTransition, emission: Emission, obs: Tensor, chain: tables.Chain, words: tables.Emissions
    ):
        self._begin_whole(transition, emission, obs)
        self._chain, self._words_known = chain, words

    @once
    def _index(self) -> np.ndarray:
        return np.ascontiguousarray(self.obs.T.numpy())

    def log_prob(self) -> Tensor:
        found = tables.log_prob(self._chain, self._words_known, self._index)
        return super().log_prob() if found is None else torch.from_numpy(found)

    def marginals(self) -> StateMarginals:
        found = tables.smooth(self._chain, self._words_known, self._index, pairs=False)
        return super().marginals() if found is None else StateMarginals(None, torch.from_numpy(found.posterior))

    def viterbi(self) -> tuple[Tensor, Tensor]:
        logs = self._words_known.logs
        if logs is None or self.num_steps * self.transition.num_states > MOST_POINTERS:
            return super().viterbi()
        paths, log_prob = tables.viterbi(self._chain, logs, self._index)
        if not log_prob.min() > -np.inf:
            self._possible()  # says where
        return torch.from_numpy(paths), torch.from_numpy(log_prob)


class WholeRowsChain(DenseChain):
    """A :class:`DenseChain` without gradients, for the questions that are asked most; others take its factors.

    Args:
        transition, emission, obs: as for :class:`Chain`; every observation is there and was checked.
        chain: the transition as tables. words: the emission as tables; None for that of vectors.
        index: (B, T) the words, where they are at hand as an array.
    """

    def __init__(
        self, transition: DenseTransition, emission: Emission, obs: Tensor, chain: tables.Chain, words: tables.Emissions | None,
        index: np.ndarray | None = None,
    ):  # fmt: skip
        self._begin_whole(transition, emission, obs)
        self._chain, self._words_known, self._rows = chain, words, index
        self._found: tables.Smoothed | None = None
        self._has_pairs = False  # what was found
        self._likelihoods: np.ndarray | None = None
        self._fails = False  # whether these loops do not do

    @once
    def factors(self) -> Factors:
        transition = self.transition
        assert isinstance(transition, DenseTransition), "what it was made with"
        return Factors(transition.initial, transition.matrix, self.emission.log_likelihood(self.obs), None, shared=True)

    @property
    def _index(self) -> np.ndarray:
        """(B, T) the row of the emissions' tables that each step has."""
        if self._rows is None:
            if self._words_known is not None:
                self._rows = np.ascontiguousarray(self.obs.T.numpy())
            else:
                self._rows = np.arange(self.num_steps * self.obs.shape[1]).reshape(self.num_steps, -1).T.copy()
        return self._rows

    @once
    def _densities(self) -> tables.Emissions | None:
        return tables.emissions_of(self.factors.emit.flatten(0, 1))

    @property
    def _emissions(self) -> tables.Emissions | None:
        return self._densities if self._words_known is None else self._words_known

    def _log_prob(self) -> np.ndarray | None:
        """(B,) log p(x); None where these loops do not do."""
        if self._likelihoods is None and not self._fails:
            emissions = self._emissions
            self._likelihoods = None if emissions is None else tables.log_prob(self._chain, emissions, self._index)
            self._fails = self._likelihoods is None
        return self._likelihoods

    def _smoothed(self, pairs: bool) -> tables.Smoothed | None:
        """Posteriors, with expected transitions or without; None where these loops do not do."""
        if self._found is None or pairs and not self._has_pairs:
            emissions = self._emissions
            if emissions is None or self._fails:
                return None
            self._found = tables.smooth(self._chain, emissions, self._index, pairs=pairs)
            self._has_pairs, self._fails = pairs, self._found is None
            self._likelihoods = None if self._found is None else self._found.log_prob
        return self._found

    def log_prob(self) -> Tensor:
        found = self._log_prob()
        return super().log_prob() if found is None else torch.from_numpy(found)

    def total_log_prob(self) -> float:
        found = self._log_prob()
        return float(super().log_prob().sum() if found is None else found.sum())

    def marginals(self) -> StateMarginals:
        found = self._smoothed(pairs=False)
        return super().marginals() if found is None else StateMarginals(None, torch.from_numpy(found.posterior))

    def expected_counts(self) -> ExpectedCounts:
        found = self._smoothed(pairs=True)
        if found is None:
            return super().expected_counts()
        starts, pairs, posterior = map(torch.from_numpy, (found.starts, found.pairs, found.posterior))
        return ExpectedCounts(starts, pairs, None, posterior.sum((0, 1)), StateMarginals(None, posterior))

    def viterbi(self) -> tuple[Tensor, Tensor]:
        if self.transition.num_states > tables.MOST_OF_PATHS:
            return super().viterbi()
        logs = self.factors.emit.flatten(0, 1).numpy() if self._words_known is None else self._words_known.logs
        assert logs is not None, "tables of words have them"
        paths, log_prob = tables.viterbi(self._chain, logs, self._index)
        if not log_prob.min() > -np.inf:
            self._possible()  # says where
        return torch.from_numpy(paths), torch.from_numpy(log_prob)
