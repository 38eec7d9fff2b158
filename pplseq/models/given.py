"""What a program is given: observations with their gaps and padding, known states and inputs, or only sizes to generate."""

from __future__ import annotations

from typing import Any, TypedDict

import pyro
import torch
from pyro import poutine
from torch import Tensor


class Sizes(TypedDict, total=False):
    """How much is generated, or how much data stand for.

    num_sequences, num_steps: of what is generated where no observations are given.
    num_total: sequences that the given ones stand for: the log-likelihood of a mini-batch is scaled up to them.
    """

    num_sequences: int | None
    num_steps: int | None
    num_total: int | None


class Given:
    """Lets a program be written as its story; a model makes one with :meth:`~pplseq.models.base.SequenceModel.given`.

    A step t is an integer, or what :func:`pplseq.markov` yields for all steps at once.

    Args:
        shape: (B, T).
        x: (B, T[, n]) the observations as they were given, or None to generate.
        values: x with something harmless where it is missing, or None to generate.
        observed: (B, T), or (B, T, n) where vectors may be seen in part: False where x is missing.
        lengths: (B,) valid steps of each row, or None for all.
        states: (B, T) known states, negative where unknown, or None.
        num_total: sequences that the B rows stand for, or None.

    Attributes:
        inputs: (B, T[, U]) what the program depends on besides, or None.
        first: (B,) the observation before the first one, for a program whose steps depend on the one before; or None.

    Example::

        given = self.given(x, lengths, start, states=states, **sizes)
        transition, emission = self.specs()
        z = start
        with given.plate:
            for t in markov(given.steps):
                with given.valid(t):
                    z = pyro.sample(f"z_{t}", transition(z), obs=given.state(t))
                    with given.seen(t):
                        pyro.sample(f"x_{t}", emission(z), obs=given.value(t))
    """

    def __init__(
        self,
        shape: tuple[int, int],
        x: Tensor | None = None,
        values: Tensor | None = None,
        observed: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        states: Tensor | None = None,
        num_total: int | None = None,
    ):
        self.shape, self.x, self.lengths, self.states, self.num_total = shape, x, lengths, states, num_total
        self.inputs: Tensor | None = None
        self.first: Tensor | None = None
        self._values, self._before = values, None
        self._seen, self._observed = observed, None
        if observed is not None and observed.dim() > 2:
            self._seen = observed.any(-1)
            self._observed = observed if bool((self._seen & ~observed.all(-1)).any()) else None
        if self._seen is not None and bool(self._seen.all()):
            self._seen = None  # a mask that says nothing is left out

    @property
    def generates(self) -> bool:
        """Whether observations are drawn instead of given."""
        return self.x is None

    @property
    def missing(self) -> Tensor | None:
        """(B, T) where nothing was observed; None where something was everywhere."""
        return None if self._seen is None else ~self._seen

    @property
    def plate(self) -> pyro.plate:
        """The plate of the sequences."""
        rows = self.shape[0]
        if self.num_total in (None, rows):
            return pyro.plate("sequences", rows, dim=-1)
        return pyro.plate("sequences", self.num_total, subsample=torch.arange(rows), dim=-1)

    @property
    def steps(self) -> range:
        return range(self.shape[1])

    def valid(self, t):
        """A context in which padded steps are masked: neither their state nor their observation counts."""
        return _masked(None if self.lengths is None else t < self.lengths)

    def seen(self, t):
        """A context in which missing observations are masked."""
        return _masked(None if self._seen is None else self._seen[:, t])

    def state(self, t) -> Tensor | None:
        """(B,) known states, negative where unknown; None where none is known."""
        return None if self.states is None else self.states[:, t]

    def value(self, t) -> Tensor | None:
        """(B[, n]) the observation, anything where it is missing; None to generate it."""
        return None if self._values is None else self._values[:, t]

    def coordinates(self, t) -> Tensor | None:
        """(B, n) which coordinates of a vector are observed; None where every vector is seen whole or not at all."""
        return None if self._observed is None else self._observed[:, t]

    def input(self, t) -> Tensor | None:
        """(B[, U]) the input of a step."""
        return None if self.inputs is None else self.inputs[:, t]

    def before(self, t, generated: Tensor | None = None) -> Tensor | None:
        """(B,) the observation before step t, or what the program has ``generated`` last; None where nothing depends on it."""
        if self.first is None:
            return None
        if self.x is None:
            return self.first if generated is None else generated
        if self._before is None:
            self._before = torch.cat([self.first.unsqueeze(1), self.x[:, :-1]], 1)
        return self._before[:, t]


def _masked(mask: Any):
    return poutine.mask(mask=True if mask is None else mask)
