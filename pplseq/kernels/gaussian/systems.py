"""Gaussian chains of a system with small states by compiled loops: likelihood, smoothed means, gradients, the sums of EM.

Of small systems the operations around a chain cost more than its numbers: a system comes and goes as one vector. The readable
twins are :class:`~pplseq.infer.gaussian.chain.GaussianChain` with the gradients of :mod:`pplseq.infer.gaussian.likelihood`, and
the regressions of :mod:`pplseq.models.lds.statistics`.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from pplseq.kernels import compiled
from pplseq.kernels.gaussian.compiled_kalman import (
    FIRST_ROOM,
    MOST_NUMBERS,
    NO_MEANS,
    NONE,
    Means,
    alike,
    backward_nodes,
    filtered_nodes,
    most_states,
    numbers_of_node,
    tiles_for,
)
from pplseq.kernels.kalman import DOUBLE, Convergence

MOST_CELLS = 1 << 23  # numbers of all steps of the smallest block of rows
MOST_KEPT = 1 << 20  # numbers of covariances that are worth keeping for other rows
MOST_NODES = 1 << 27  # numbers of covariances, were each of its own
MOST_BITS = 62  # numbers of a vector whose gaps go into one integer
# loops that no other way uses, and seconds of the twins that compiling them, and those that they call for, is worth
FORWARD, FORWARD_WORTH = "kernels.gaussian.system_loops.matrices_of", 6.0
BACKWARD, BACKWARD_WORTH = "kernels.gaussian.system_loops.add_covariances", 10.0
FORWARD_OPERATIONS, BACKWARD_OPERATIONS = 100, 1000  # of their twins, besides the products
OFFSET, FULL_NOISE, SHIFT, FULL_COVARIANCE = 1, 2, 4, 8  # as in system_loops.py
SUMS, MOMENTS = 1, 2  # as in mean_loops.py


class Numbers(NamedTuple):
    """x_1 ~ N(first, start), x_t = matrix x_{t-1} + offset + N(0, noise), y_t = loadings x_t + shift + N(0, covariance), as one
    vector in double precision.

    numbers: one behind the other matrix (h, h), offset (h,), the factor of noise (h, h) or its diagonal (h,), loadings (n, h),
    shift (n,), the factor of covariance (n, n) or its diagonal (n,), first (h,), the factor of start (h, h). Factors are lower
    triangles F of F F'; that of covariance has logarithms on its diagonal.
    form: which there are: the sum of OFFSET, FULL_NOISE, SHIFT and FULL_COVARIANCE.
    """

    numbers: np.ndarray
    h: int
    n: int
    form: int


class Kinds(NamedTuple):
    """What is observed when, of which covariances are made.

    which: (T, U) kinds of observations in distinct columns, -1 behind their ends. patterns: (P, n) of kinds, 1 where a number
    is seen. nothing: the kind of which none is, or -1.
    """

    which: np.ndarray
    patterns: np.ndarray
    nothing: int


class Rows(NamedTuple):
    """Observations: values (R, T, n), 0 where missing, and their kinds.

    order: rows, columns and lengths, see :data:`pplseq.kernels.gaussian.mean_loops.Order`. Of distinct pairs of columns and
    lengths: at (V,) columns, or None for all rows alike; ends (V,) lengths; weights (V,) how many rows.
    """

    values: np.ndarray
    kinds: Kinds
    order: tuple[np.ndarray, np.ndarray, np.ndarray]
    at: np.ndarray | None
    ends: np.ndarray
    weights: np.ndarray

    @property
    def num_steps(self) -> int:
        """Of all rows together."""
        return len(self.values) * self.values.shape[1] if self.at is None else int(self.ends @ self.weights)


def applies(shape: tuple[int, int, int], h: int, forward_only: bool) -> bool:
    """Whether the loops do for rows (R, T, n), of which filtered means have room; both ways, unless ``forward_only``."""
    num_rows, num_steps, n = shape
    if h > most_states() or n > MOST_NUMBERS or num_steps * (h + n) * min(num_rows, 8) > MOST_CELLS:
        return False
    multiplications = num_rows * num_steps * h * (2 * h + 4 * n)
    if forward_only:
        return compiled.pays(FORWARD, FORWARD_OPERATIONS, multiplications, worth=FORWARD_WORTH)
    return compiled.pays(BACKWARD, BACKWARD_OPERATIONS + num_steps, 4 * multiplications, worth=BACKWARD_WORTH)


def is_worth_keeping(num_steps: int, h: int, n: int) -> bool:
    """Whether covariances of so many steps are few enough to be kept for other rows."""
    return min(num_steps + 1, FIRST_ROOM) * numbers_of_node(h, n) <= MOST_KEPT


@functools.lru_cache(16)
def _all_seen(num_rows: int, num_steps: int, n: int) -> tuple:
    kinds = Kinds(np.zeros((num_steps, 1), np.int64), np.ones((1, n)), -1)
    return kinds, (NONE, NONE, NONE), None, np.array([num_steps]), np.array([num_rows], np.float64)


def seen_rows(values: np.ndarray) -> Rows:
    """Rows (R, T, n) of which all is seen."""
    return Rows(values, *_all_seen(*values.shape))


def rows_of(values: np.ndarray, lengths: np.ndarray | None, h: int) -> Rows | None:
    """Rows (R, T, n) with gaps (NaN), or of these lengths (R,); None where nothing is seen, and of too many covariances."""
    (num_rows, num_steps, n), missing = values.shape, np.isnan(values)
    if n > MOST_BITS:
        return None
    lengths = np.full(num_rows, num_steps) if lengths is None else lengths
    behind = np.arange(num_steps) >= lengths[:, None]
    full, (has_ends, has_gaps) = (1 << n) - 1, (bool(behind.any()), bool(missing.any()))
    if has_gaps and not (~missing & ~behind[..., None]).any():
        return None
    values = np.where(missing | behind[..., None] if has_ends else missing, 0.0, values)
    codes = ~missing @ (1 << np.arange(n)) if has_gaps else np.full((num_rows, num_steps), full)
    if has_ends:
        codes[behind] = full
    found, which = np.unique(codes, return_inverse=True)
    which = which.reshape(codes.shape).T
    with_gaps = (codes != full).any(1)
    if has_ends:
        which = np.where(behind.T & with_gaps, -1, which)
    first, column = alike(which)
    kinds = Kinds(
        np.ascontiguousarray(which[: lengths.max(), first]), (found[:, None] >> np.arange(n) & 1).astype(np.float64),
        0 if found[0] == 0 else -1,
    )  # fmt: skip
    if kinds.which.size * numbers_of_node(h, n) > MOST_NODES:
        return None
    order = np.lexsort((-lengths, column))
    pairs, weights = np.unique(column * (num_steps + 1) + lengths, return_counts=True)
    at, ends = np.divmod(pairs, num_steps + 1)
    return Rows(values, kinds, (order, column[order], lengths), at, ends, weights.astype(np.float64))


@functools.cache
def _loops() -> tuple[ModuleType, ModuleType, ModuleType]:
    from pplseq.kernels.gaussian import covariance_loops, mean_loops, system_loops

    return covariance_loops, mean_loops, system_loops


@functools.cache
def _agree(tol: float) -> float:
    return Convergence(tol, True, False, 1).agree


class System:
    """A system, and what is seen of it when: rows share its covariances, which are found at the first question.

    Every question is None where values or system are not finite, noise is zero, or digits would be lost: the long way then says
    why, or keeps them.

    Args:
        tol: error of the log-likelihood that counts as none; see :class:`~pplseq.infer.gaussian.chain.GaussianChain`.

    Cost: a few h^3 a step until nothing changes any more and behind a gap, else (h + n)^2 a step and row. Memory: h + n numbers
    for each step of a block of rows, and h^2 for each step with a covariance of its own.
    """

    def __init__(self, numbers: Numbers, kinds: Kinds, tol: float):
        self.numbers, self.kinds, self.tol, self.key = numbers, kinds, tol, numbers.numbers.tobytes()
        self._found: Any = None  # what the walk came to

    def is_of(self, numbers: Numbers, num_steps: int, tol: float) -> bool:
        """Whether this is that system, seen whole for so many steps: the same numbers, bit by bit."""
        own = self.numbers
        same = numbers.form == own.form and numbers.n == own.n and numbers.h == own.h
        same = same and num_steps == len(self.kinds.which) and tol == self.tol and len(self.kinds.patterns) == 1
        return same and numbers.numbers.tobytes() == self.key

    @property
    def is_small(self) -> bool:
        """Whether its covariances may be kept."""
        return self._found is not None and self._found[1][1] * numbers_of_node(self.numbers.h, self.numbers.n) <= MOST_KEPT

    def _walk(self) -> bool:
        """Finds covariances; whether there are any."""
        if self._found is not None:
            return True
        (numbers, h, n, form), (which, patterns, nothing) = self.numbers, self.kinds
        covariances, _, loops = _loops()
        matrices = loops.matrices_of(numbers, h, n, form, patterns)
        matrix, offset, noise, loadings, shift, spread, first, start, _, _, sizes, precision, largest = matrices
        if not largest < np.inf:
            return False
        system = matrix, noise, loadings, spread, patterns, precision, nothing, self.tol, _agree(self.tol)
        store, counts, _, index = filtered_nodes(start, system, which, which.shape[1], True)
        nodes = covariances.nodes_of(store)
        # more numbers than states, far more precise than what was known: the chain makes few of them, and keeps all digits
        if n > h and covariances.EPS * nodes.size[: counts[0]].max() * largest > covariances.CAREFUL:
            return False
        way = first, offset, shift, matrix, loadings, sizes, nodes.kind, nodes.gain, nodes.whitener, nodes.half_log_det
        self._found = matrices, counts, store, nodes, index, way
        return True

    def _means(self, rows: Rows) -> Means | None:
        if not self._walk():
            return None
        _, counts, _, nodes, index, way = self._found
        return Means(rows.values, (*rows.order, index), way, nodes.moved, int(counts[1]))

    def log_prob(self, rows: Rows) -> float | None:
        """Nats of all rows."""
        means = self._means(rows)
        return None if means is None else _finite(means.filter())

    def _add_covariances(self, rows: Rows, out: np.ndarray, spreads: np.ndarray) -> bool:
        """Sums over steps of what covariances say, of all rows; whether all digits are there."""
        matrices, counts, store, nodes, index, _ = self._found
        made, loops = int(counts[1]), _loops()[2]
        columns = index
        if rows.at is not None:
            columns = np.where(np.arange(len(index))[:, None] < rows.ends, index[:, rows.at], -1)
        steady = nodes.later[:made] == nodes.parent[:made]
        given = matrices[0][0], matrices[3], nodes.kind, nodes.gain, nodes.whitener
        back, many, places = backward_nodes(columns, given, steady, self.tol, _agree(self.tol), True)
        return loops.add_covariances(
            matrices[0], *store, *back, many, places, rows.ends, rows.weights, len(spreads) > 0, out, spreads,
            tiles_for(self.numbers.h),
        )  # fmt: skip

    def smoothed_means(self, rows: Rows) -> np.ndarray | None:
        """(R, T, h) E[x_t | all y of the row], 0 behind its end."""
        if (means := self._means(rows)) is None:
            return None
        shape = *rows.values.shape[:2], self.numbers.h
        smoothed = np.empty(shape) if rows.at is None else np.zeros(shape)
        return None if _finite(means.smooth(-1, 0, smoothed)[0]) is None else smoothed

    def gradients(self, rows: Rows) -> tuple[float, np.ndarray] | None:
        """Nats of all rows, and their gradients in the numbers of the system."""
        if (means := self._means(rows)) is None:
            return None
        log_prob, sums = means.smooth(-1, SUMS)
        self._add_covariances(rows, sums, NO_MEANS)
        out, (_, h, n, form) = np.empty(len(self.numbers.numbers)), self.numbers
        _loops()[2].gradients_of(self._found[0][9], sums, h, n, form, out)
        return None if _finite(log_prob) is None else (log_prob, out)

    def moments(self, rows: Rows) -> tuple[float, Moments] | None:
        """Nats of all rows, and the expected statistics of EM."""
        if (means := self._means(rows)) is None:
            return None
        log_prob, sums = means.smooth(self.kinds.nothing, MOMENTS)
        h, n = self.numbers.h, self.numbers.n
        spreads = np.zeros((len(self.kinds.patterns), h, h))
        if not self._add_covariances(rows, sums, spreads) or _finite(log_prob) is None:
            return None
        return log_prob, _moments(self._found[0], self.kinds, rows, _loops()[1].parts_of(sums, h, n), spreads)


def _finite(log_prob: float) -> float | None:
    return log_prob if abs(log_prob) < np.inf else None


class Moments(NamedTuple):
    """Sums over steps and rows, of states given all observations.

    seen_count: steps of which anything is seen. counts: (n,) how often each number is. seen, second, before, first: (h, h) of
    E[x x'], of steps of which anything is seen, all steps, all but the last, t = 1; seen_state, state, state_before and
    first_state: (h,) of E[x]. move, move_state, move_sum: of E[(x_t - A x_{t-1} - a) .'] (h, h) with itself, with x_{t-1}, and
    (h,) alone. error, error_state, error_sum: of y - C x - c where anything is seen, what is missing given the rest: (n, n),
    (n, h), (n,).
    """

    seen_count: float
    counts: np.ndarray
    seen: np.ndarray
    second: np.ndarray
    before: np.ndarray
    first: np.ndarray
    seen_state: np.ndarray
    state: np.ndarray
    state_before: np.ndarray
    first_state: np.ndarray
    move: np.ndarray
    move_state: np.ndarray
    move_sum: np.ndarray
    error: np.ndarray
    error_state: np.ndarray
    error_sum: np.ndarray


def _moments(matrices: tuple, kinds: Kinds, rows: Rows, sums: Any, spreads: np.ndarray) -> Moments:
    """E[move | all] is noise times lambda, and E[error | all] covariance times e.

    Source: S. J. Koopman (1993), Disturbance smoother for state space models, Biometrika 80(1).
    """
    at = _loops()[1]
    matrix, noise, loadings, covariance, num_steps = matrices[0][0], matrices[2], matrices[3], matrices[8], rows.num_steps
    states, seen, noises, vectors, errors = sums
    spread, second = states[at.COVARIANCE], states[at.SECOND] + states[at.COVARIANCE]
    before, after = spread - states[at.LAST_COVARIANCE], spread - states[at.FIRST_COVARIANCE]
    across = matrix @ states[at.LAG_ONE].T
    moved = noise @ states[at.MOVE] @ noise + after - across - across.T + matrix @ before @ matrix.T
    error_state, error, n = covariance @ seen[0], covariance @ noises[0] @ covariance, len(covariance)
    if len(kinds.patterns) == 1 and kinds.nothing < 0 and kinds.patterns.all():
        raised = loadings[0] @ spread
        error_state, error = error_state - raised, error + raised @ loadings[0].T
        seen_count, counts, seen_second, seen_state = num_steps, np.full(n, float(num_steps)), second, vectors[2]
    else:
        assert rows.at is not None, "rows of one kind are all seen"
        steps = np.zeros(len(spreads))  # of each kind
        for column, end, weight in zip(rows.at, rows.ends, rows.weights, strict=True):
            steps += weight * np.bincount(kinds.which[:end, column], minlength=len(steps))
        seen_second, seen_state = second - states[at.UNSEEN], vectors[2] - vectors[5]
        for kind, (pattern, count) in enumerate(zip(kinds.patterns, steps, strict=True)):
            if kind == kinds.nothing:
                seen_second = seen_second - spreads[kind]
                continue
            raised = loadings[kind] @ spreads[kind]
            own = raised @ loadings[kind].T
            if not pattern.all():  # errors of what is seen, and of the rest given these
                gain = (covariance * pattern) @ np.linalg.inv(matrices[5][kind]) * pattern
                raised, own = gain @ raised, gain @ own @ gain.T + count * (covariance - gain @ covariance)
            error_state, error = error_state - raised, error + own
        seen_count, counts = num_steps - (steps[kinds.nothing] if kinds.nothing >= 0 else 0.0), steps @ kinds.patterns
    return Moments(
        float(seen_count), counts, seen_second, second, states[at.SECOND] - states[at.LAST] + before,
        states[at.FIRST] + states[at.FIRST_COVARIANCE], seen_state, vectors[2], vectors[2] - vectors[4], vectors[3],
        (moved + moved.T) / 2, noise @ (states[at.STEP] - states[at.LATER_STEP]), noise @ vectors[0],
        (error + error.T) / 2, error_state, covariance @ errors,
    )  # fmt: skip


@functools.cache
def lower(size: int) -> np.ndarray:
    """(size, size) which entries a lower triangle has."""
    return np.tri(size, dtype=np.bool_)


def double(value: torch.Tensor) -> np.ndarray:
    """The same numbers in double precision, without gaps and gradients."""
    value = value.detach()
    return np.ascontiguousarray((value if value.dtype == DOUBLE else value.to(DOUBLE)).numpy())
