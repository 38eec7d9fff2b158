"""The short ways of an HMM from data to answers: without programs, masks and checks of what was checked before.

Rows of any lengths under a model that is an :class:`~pplseq.models.hmm.program.HMM` as it stands; for all else, and where
anything is out of the ordinary, there are the ways that all models take, which are the readable twins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.product import ProductTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.models.hmm.rows import (
    PointSpecs,
    are_few,
    are_rows,
    chain_of_rows,
    chain_of_words,
    expectation_of_rows,
    log_prob_of_rows,
    maximize_words,
    may_be_whole,
    may_be_words,
)
from pplseq.models.hmm.tables import StateTables
from pplseq.models.parts.product_moves import ProductMoves
from pplseq.models.remembered import Remembered

# what leads from parameters and observations to a chain; an HMM that has its own way of any of it takes the long way
WAYS = frozenset((
    "specs", "_specs_given", "given", "observed", "_direct_chain", "posterior", "_as_batch", "_check_observations",
    "_point_specs",
    "_shared", "spec",
))  # fmt: skip


class LoopAnswers(StateTables):
    """What an HMM has beside its program.

    Attributes:
        _has_loops: of a class, not of those that inherit from it, which may have changed anything.
    """

    _has_loops: ClassVar[bool] = False
    priors: Any
    _factors: ProductMoves | None = None
    _rows: Tensor | None

    def _shared(self, emission: Emission) -> Emission:
        """The emission of all states, from that of those that have one of their own."""
        raise NotImplementedError

    def _point_specs(self) -> PointSpecs:
        initial = torch.log_softmax(self.initial_logits, -1)
        moves = [torch.log_softmax(logits, -1) for logits in self._move_logits.values()]
        return PointSpecs.of(self._moving(initial, moves), self._shared(self.emissions.spec()), self.parameters())

    def _moving(self, initial: Tensor, moves: Sequence[Tensor]) -> DenseTransition | ProductTransition:
        """The transition of log-probabilities of starts and moves."""
        if self._factors is not None:
            return ProductTransition(self._factors.sizes, initial, moves)
        return DenseTransition(initial, moves[0], getattr(self, "regime_of", None))  # of semi-Markov chains

    def _plain(self) -> Remembered[PointSpecs] | None:
        """What a model remembers that is as it is, with no way of its own to a chain; None of another."""
        own = self.__dict__
        if not vars(type(self)).get("_has_loops") or not WAYS.isdisjoint(own) or not self._is_one_chain:
            return None
        if self._factors is not None:  # which has kernels of its own
            return None
        if not WAYS.isdisjoint(vars(own["_modules"]["emissions"])):
            return None
        return own.get("_remembered")  # a model that was pickled by an earlier version has none

    def _chain_by_loops(self, x: Any) -> Chain | None:
        remembered = self._plain()
        specs = None if remembered is None else remembered.last()
        return None if specs is None else chain_of_words(specs, x)

    @torch.no_grad()
    def _chain_of_rows(self, batch: Batch) -> Chain | None:
        remembered = self._plain() if are_rows(batch) else None
        return None if remembered is None else chain_of_rows(remembered.get(self, self._point_specs), batch, self.observed)

    def _counts(self, batch: Batch) -> Remembered[PointSpecs] | None:
        """What a model remembers that the loops from parameters to counts are for."""
        if self._buffers.get("_rows") is not None or not are_rows(batch):
            return None
        return self._plain() if may_be_words(batch.x) or are_few(batch.x, self.num_states) else None

    def _expectation_by_loops(self, batch: Batch) -> tuple[Statistics, float] | None:
        remembered = self._counts(batch)
        return None if remembered is None else expectation_of_rows(self, remembered, batch)

    def _maximize_by_loops(self, statistics: Statistics) -> bool:
        """The M-step of a model that is small and as it is, without gradients; False where it is left to :meth:`maximize`."""
        if self.priors is not None or self._buffers.get("_rows") is not None:
            return False
        remembered = self._plain()
        return remembered is not None and maximize_words(self, remembered, statistics)

    def log_joint(self, x, lengths=None, *, share: float = 1.0, **known) -> Tensor:
        found = None
        if not known and may_be_whole(x):
            if not checks.TRUSTED.get():
                if may_be_words(x):  # which the loops look at
                    checks.lengths(lengths, x)
                else:
                    self._check_rows(x, lengths)
            remembered = self._counts(batch := Batch(x, lengths))
            found = None if remembered is None else log_prob_of_rows(self, remembered, batch)
        if found is None:
            return super().log_joint(x, lengths, share=share, **known)
        return found if self.priors is None else found + share * self.log_prior()
