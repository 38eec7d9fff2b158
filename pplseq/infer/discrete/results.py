"""What a chain is in numbers, and what the queries on it return."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from torch import Tensor

from pplseq import notebooks
from pplseq.infer.discrete.mixtures import Quantiles, Shares, intervals_of
from pplseq.infer.frames import forecast_frame, frame_html


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
    wide_probs (R, Z), at row and step wide_places (R, 2).
    """

    ids: Tensor | None
    probs: Tensor
    wide_places: Tensor | None = None
    wide_probs: Tensor | None = None

    def _repr_html_(self) -> str | None:
        """For notebooks; None for states in blocks, whose positions have other names at every step."""
        return None if self.ids is not None else notebooks.by_steps("Probabilities of states", self.probs)

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
    occur. block_pairs: (P, 2) or None. occupancy: (Z,) expected visits. marginals: what emission statistics need.
    """

    start: Tensor
    transition: Tensor
    block_pairs: Tensor | None
    occupancy: Tensor
    marginals: StateMarginals


class NextDistribution(NamedTuple):
    """The step behind the chain: state_log_probs (*B, Z) and, for word emissions, word_log_probs (*B, V), nats.

    Of vectors a model gives means (*B, D) and covariances (*B, D, D), uncertainty about the state included, and in
    ``quantiles`` what :meth:`intervals` asks; column_names: of a frame's columns, where the model was fitted to one; times: of
    each row the times of the steps, where the observations came as frames that say how theirs go on. sequences: what
    the rows are called, and what the column is that said so.
    """

    state_log_probs: Tensor
    word_log_probs: Tensor | None
    means: Tensor | None = None
    covariances: Tensor | None = None
    quantiles: Quantiles | None = None
    column_names: tuple[str, ...] | None = None
    times: tuple[Any, ...] | None = None
    sequences: tuple[str, tuple[Any, ...]] | None = None

    def intervals(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (*B, D) of intervals that hold each number with this probability (of counts, at least): exact
        quantiles of the mixture over states.

        Raises:
            ValueError: for words and angles, which have no order; for a level outside of (0, 1).
        """
        return intervals_of(self.quantiles, level)

    _repr_html_ = frame_html

    def frame(self, row: int | None = None, level: float = 0.95) -> Any:
        """The forecast of K steps as a frame of pandas: of each column the mean, and the ends of its interval beside it; of
        words x0, x1, ... the probability of each word, and whether it comes.

        Args:
            row: one sequence; None for all, with a first column that says which where they are several. level: of intervals.

        Raises:
            ValueError: for a single step (of ``predict_next``): ask forecast. ImportError: where pandas is missing.
        """
        means, quantiles = self.means, self.quantiles
        if means is None and self.word_log_probs is not None:
            means = self.word_log_probs.exp()
            quantiles = Shares(means)
        ends = functools.partial(intervals_of, quantiles, level)
        return forecast_frame(means, ends, row, self.column_names, self.times, self.sequences)


class MissingWords(NamedTuple):
    """log p(x_t | everything seen) of missing words: (R, V) nats, at row and step places (R, 2)."""

    places: Tensor
    log_probs: Tensor

    def in_order(self) -> MissingWords:
        """Sorted by row, then step."""
        order = (self.places[:, 0] * (int(self.places[:, 1].max()) + 1) + self.places[:, 1]).argsort()
        return MissingWords(self.places[order], self.log_probs[order])
