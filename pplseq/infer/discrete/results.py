"""What a chain is in numbers, and what the queries on it return."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from pplseq import notebooks
from pplseq.infer.frames import framed


class Factors(NamedTuple):
    """A chain in numbers; see :mod:`pplseq.kernels.scan` for init, pair, emit, valid, restart."""

    init: Tensor
    pair: Tensor
    emit: Tensor
    valid: Tensor | None
    shared: bool = False
    restart: Tensor | None = None
    restart_to: Tensor | None = None


class StateMarginals(NamedTuple):
    """p(z_t | some or all of x). ids: (*B, T, K) which states, None for all. probs: (*B, T, K), 0 at padded steps.

    In block-sparse chains a missing token opens all states: its row of ``probs`` is 0 and its distribution stands in
    wide_probs (R, Z), at row and step wide_places (R, 2). names: of the states; times: of each row those of its steps;
    sequences: what the rows are called, and what the column is that said so; None where nothing says it.
    """

    ids: Tensor | None
    probs: Tensor
    wide_places: Tensor | None = None
    wide_probs: Tensor | None = None
    names: tuple[str, ...] | None = None
    times: tuple[Any, ...] | None = None
    sequences: tuple[str, tuple[Any, ...]] | None = None

    def _repr_html_(self) -> str | None:
        """For notebooks; None for states in blocks, whose positions have other names at every step."""
        return None if self.ids is not None else notebooks.by_steps("Probabilities of states", self.probs, self.names)

    def frame(self, row: int | None = None) -> Any:
        """A frame of pandas with a row for each step and a column for each state, "state 0", ... where they have no names.

        Args:
            row: which of the B sequences; None for all, one behind the other, with a first column that says which where they
                are several. The index is that of the frame that was asked about.

        Raises:
            ImportError: without pandas. ValueError: for states in blocks, which are others at every step, and for a row that is
                not there.
        """
        if self.ids is not None:
            raise ValueError("frame: states in blocks are others at every step; their columns are dense(num_states)")
        tables = []
        for probs in self.probs:
            there = (probs != 0).any(-1)  # not so at padded steps
            each = probs[there].detach().cpu().T.tolist()
            names = self.names or [f"state {k}" for k in range(probs.shape[-1])]
            tables.append(dict(zip(names, each, strict=True)))
        return framed(row, tables, self.times, self.sequences)

    def dense(self, num_states: int) -> Tensor:
        """(*B, T, Z) over all states: for small Z."""
        if self.ids is None:
            return self.probs
        full = self.probs.new_zeros(*self.probs.shape[:-1], num_states).scatter_add(-1, self.ids, self.probs)
        if self.wide_places is not None and self.wide_probs is not None:
            full[self.wide_places[:, 0], self.wide_places[:, 1]] = self.wide_probs
        return full


class PairMarginals(NamedTuple):
    """p(z_t, z_{t+1} | x), (*B, T-1, K, K), [from, to], 0 at padded steps; ids as in :class:`StateMarginals`."""

    ids: Tensor | None
    probs: Tensor


class ExpectedCounts(NamedTuple):
    """Expected sufficient statistics given x, summed over rows.

    start: (Z,). transition: (Z, Z) for dense chains, (P, K, K) for block-sparse ones, between the P pairs of blocks that
    occur; of a product the moves of each coordinate, as its tables are. block_pairs: (P, 2) or None. occupancy: (Z,) expected
    visits. marginals: what emission statistics need.
    """

    start: Tensor
    transition: Any
    block_pairs: Tensor | None
    occupancy: Tensor
    marginals: StateMarginals


class MissingWords(NamedTuple):
    """log p(x_t | everything seen) of missing words: (R, V) nats, at row and step places (R, 2)."""

    places: Tensor
    log_probs: Tensor

    def in_order(self) -> MissingWords:
        """Sorted by row, then step."""
        order = (self.places[:, 0] * (int(self.places[:, 1].max()) + 1) + self.places[:, 1]).argsort()
        return MissingWords(self.places[order], self.log_probs[order])
