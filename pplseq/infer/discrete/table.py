"""Chains of rows under one matrix, without gradients: likelihood, posteriors, counts and best paths straight from tables."""

from __future__ import annotations

from pplseq.threads import once

import numpy as np
import torch
from torch import Tensor

from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.long import LongDenseChain
from pplseq.infer.discrete.results import ExpectedCounts, Factors, StateMarginals
from pplseq.kernels.chain import call


class TableChain(DenseChain):
    """A :class:`DenseChain` without gradients, for the questions that are asked most; others take its factors.

    Args:
        transition, emission, obs, valid, seen: as for :class:`Chain`; they were checked.
        chain: the transition as tables. rows: which row of the emissions' tables each step has, of vectors that of its number
            in time and batch. words: the emission as tables; None for that of vectors.
    """

    def __init__(
        self, transition: DenseTransition, emission: Emission, obs: Tensor, valid: Tensor | None, seen: Tensor | None,
        chain: call.Chain, rows: call.Rows, words: call.Emissions | None,
    ):  # fmt: skip
        self._begin(transition, emission, obs, valid, seen)
        self._chain, self._rows, self._word_tables = chain, rows, words
        self._found: call.Smoothed | None = None
        self._has_pairs = False  # what was found
        self._likelihoods: np.ndarray | None = None
        self._fails = False  # whether these loops do not do

    def _lower(self) -> Factors:
        if self.valid is not None or self.seen is not None:
            return super()._lower()
        transition = self.transition
        assert isinstance(transition, DenseTransition), "what it was made with"
        return Factors(transition.initial, transition.matrix, self.emission.log_likelihood(self.obs), None, shared=True)

    @once
    def _densities(self) -> call.Emissions | None:
        return call.emissions_of(self.factors.emit.flatten(0, 1))

    @property
    def _emissions(self) -> call.Emissions | None:
        return self._densities if self._word_tables is None else self._word_tables

    def _log_prob(self) -> np.ndarray | None:
        """(B,) log p(x); None where these loops do not do."""
        if self._likelihoods is None and not self._fails:
            emissions = self._emissions
            self._likelihoods = None if emissions is None else call.log_prob(self._chain, emissions, self._rows)
            self._fails = self._likelihoods is None
        return self._likelihoods

    def _posterior(self, pairs: bool) -> call.Smoothed | None:
        """Posteriors, with expected transitions or without; None where these loops do not do."""
        if self._found is None or pairs and not self._has_pairs:
            emissions = self._emissions
            if emissions is None or self._fails:
                return None
            self._found = call.smooth(self._chain, emissions, self._rows, pairs=pairs)
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
        found = self._posterior(pairs=False)
        return super().marginals() if found is None else StateMarginals(None, torch.from_numpy(found.posterior))

    def expected_counts(self) -> ExpectedCounts:
        found = self._posterior(pairs=True)
        if found is None:
            return super().expected_counts()
        starts, pairs, posterior = map(torch.from_numpy, (found.starts, found.pairs, found.posterior))
        return ExpectedCounts(starts, pairs, None, posterior.sum((0, 1)), StateMarginals(None, posterior))

    def viterbi(self) -> tuple[Tensor, Tensor]:
        logs = self.factors.emit.flatten(0, 1).numpy() if self._word_tables is None else self._word_tables.logs
        assert logs is not None and self._chain.logs is not None, "tables of what is asked for paths have them"
        paths, log_prob = call.viterbi(*self._chain.logs, np.zeros(len(self._rows.index), np.int64), 0, logs, self._rows)
        if self.check and not log_prob.min() > -np.inf:
            self._possible()  # says where
        return torch.from_numpy(paths), torch.from_numpy(log_prob)


class LongTableChain(TableChain, LongDenseChain):
    """A :class:`TableChain` of words whose other questions are those of a :class:`LongDenseChain`."""
