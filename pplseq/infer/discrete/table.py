"""Chains of rows under one matrix, without gradients, from tables that were made before: those of a model's parameters."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.dense import DenseChain, Tables
from pplseq.infer.discrete.long import LongDenseChain
from pplseq.infer.discrete.results import Factors
from pplseq.kernels.chain import call
from pplseq.threads import once


class TableChain(DenseChain):
    """A :class:`DenseChain` without gradients.

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

    def _lower(self) -> Factors:
        if self.valid is not None or self.seen is not None:
            return super()._lower()
        transition = self.transition
        assert isinstance(transition, DenseTransition), "what it was made with"
        return Factors(transition.initial, transition.matrix, self.emission.log_likelihood(self.obs), None, shared=True)

    @once
    def _tables(self) -> Tables | None:
        emissions = call.emissions_of(self.factors.emit.flatten(0, 1)) if self._word_tables is None else self._word_tables
        return None if emissions is None else Tables(self._chain, emissions, self._rows, self.batch_shape)

    def viterbi(self) -> tuple[Tensor, Tensor]:
        if not self._pays("viterbi"):
            return super().viterbi()
        words, own = self._word_tables, self._chain.logs
        logs = self.factors.emit.flatten(0, 1).numpy() if words is None else words.logs
        assert logs is not None and own is not None, "tables of a model have them"
        first = np.zeros(len(self._rows.numbers), np.int64)
        paths, log_prob = call.viterbi(*own, first, 0, logs, self._rows)
        if self.check and not log_prob.min() > -np.inf:
            self._possible()  # says where
        return torch.from_numpy(paths), torch.from_numpy(log_prob)


class LongTableChain(TableChain, LongDenseChain):
    """A :class:`TableChain` of words whose other questions are those of a :class:`LongDenseChain`."""
