"""Whole rows of a Gaussian chain with small states by compiled loops: likelihood, smoothed means, gradients, the sums of EM.

Of small systems the operations around a chain cost more than its numbers: a system comes and goes as one vector. The readable
twins are :class:`~pplseq.infer.gaussian.chain.GaussianChain` with the gradients of :mod:`pplseq.infer.gaussian.likelihood`, and
the regressions of :mod:`pplseq.models.lds.statistics`; both say what holds for rows that are not whole.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

from pplseq.kernels import compiled
from pplseq.kernels.gaussian.compiled_kalman import FIRST_ROOM, MOST_NUMBERS, most_states, tiles_for
from pplseq.kernels.kalman import DOUBLE, Convergence

MOST_CELLS = 1 << 23  # numbers of all steps of the smallest block of rows
MOST_KEPT = 1 << 20  # numbers of covariances that are worth keeping for other rows
LOOPS, WORTH = "kernels.gaussian.whole_loops", 8.0  # seconds of the twins that compiling is worth, which takes about as long
FORWARD_OPERATIONS, BACKWARD_OPERATIONS = 100, 1000  # of their twins, besides the products
OFFSET, FULL_NOISE, SHIFT, FULL_COVARIANCE = 1, 2, 4, 8  # as in whole_loops.py
FILTER, MEANS, SUMS, MOMENTS = 1, 2, 4, 8
NO_MEANS = np.empty((0, 0, 0))


class Numbers(NamedTuple):
    """x_1 ~ N(first, start), x_t = matrix x_{t-1} + offset + N(0, noise), y_t = loadings x_t + shift + N(0, covariance), as one
    vector in double precision.

    numbers: one behind the other matrix (h, h), offset (h,), the factor of noise (h, h) or its diagonal (h,), loadings (n, h),
    shift (n,), the factor of covariance (n, n) or its diagonal (n,), first (h,), the factor of start (h, h). Factors are lower
    triangles F of F F'; that of covariance has logarithms on its diagonal.
    form: which there are: the sum of LOOPS = "kernels.gaussian.whole_loops"
FORWARD_OPERATIONS, BACKWARD_OPERATIONS = 100, 1000  # of their twins, besides the products
OFFSET, FULL_NOISE, SHIFT and FULL_COVARIANCE.
    """

    numbers: np.ndarray
    h: int
    n: int
    form: int


def applies(shape: tuple[int, int, int], h: int, forward_only: bool) -> bool:
    """Whether the loops do for rows (R, T, n), of which filtered means have room; both ways, unless ``forward_only``."""
    num_rows, num_steps, n = shape
    if h > most_states() or n > MOST_NUMBERS or num_steps * (h + n) * min(num_rows, 8) > MOST_CELLS:
        return False
    multiplications = num_rows * num_steps * h * (2 * h + 4 * n)
    if forward_only:
        return compiled.pays(f"{LOOPS}.forward", FORWARD_OPERATIONS, multiplications, worth=WORTH)
    return compiled.pays(f"{LOOPS}.backward", BACKWARD_OPERATIONS + num_steps, 4 * multiplications, worth=WORTH)


def is_worth_keeping(num_steps: int, h: int, n: int) -> bool:
    """Whether covariances of so many steps are few enough to be kept for other rows."""
    return min(num_steps + 1, FIRST_ROOM) * _numbers_of_node(h, n) <= MOST_KEPT


def _numbers_of_node(h: int, n: int) -> int:
    return 3 * h * h + h * n + n * n + 4


@functools.cache
def _loops() -> ModuleType:
    from pplseq.kernels.gaussian import whole_loops

    return whole_loops


@functools.cache
def _agree(tol: float) -> float:
    return Convergence(tol, True, False, 1).agree


class WholeSystem:
    """A system over so many steps: whole rows under it share its covariances, which are found at the first question.

    Every question is None where values or system are not finite, noise is zero, or digits would be lost: the long way then says
    why, or keeps them.

    Args:
        tol: error of the log-likelihood that counts as none; see :class:`~pplseq.infer.gaussian.chain.GaussianChain`.

    Cost: a few h^3 a step until nothing changes any more, then (h + n)^2 a step and row. Memory: h + n numbers for each step
    of a block of rows, and h^2 for each step with a covariance of its own.
    """

    def __init__(self, system: Numbers, num_steps: int, tol: float):
        self.system, self.num_steps, self.tol, self.key = system, num_steps, tol, system.numbers.tobytes()
        self._is_walked = False
        self._make_room(min(num_steps + 1, FIRST_ROOM))

    def is_of(self, system: Numbers, num_steps: int, tol: float) -> bool:
        """Whether this is that system: the same numbers, bit by bit."""
        same = system.form == self.system.form and system.n == self.system.n and system.h == self.system.h
        return same and num_steps == self.num_steps and tol == self.tol and system.numbers.tobytes() == self.key

    @property
    def is_small(self) -> bool:
        """Whether its covariances may be kept."""
        return self._room[1].size <= MOST_KEPT

    def _make_room(self, many: int) -> None:
        reals = np.empty(many * _numbers_of_node(self.system.h, self.system.n))
        self._room = many, reals, np.empty(9 * many + 4 + self.num_steps, np.int64)

    def _arguments(self) -> tuple:
        numbers, h, _, form = self.system
        return numbers, h, form, self.tol, _agree(self.tol), *self._room

    def _forward(self, values: np.ndarray, wanted: int) -> float | None:
        loops, tiles = _loops(), tiles_for(self.system.h)
        while True:
            status, log_prob = loops.forward(values, *self._arguments(), not self._is_walked, wanted, tiles)
            if status != loops.MORE_ROOM:
                break
            self._make_room(4 * self._room[0])
        self._is_walked |= status == loops.DONE
        return log_prob if status == loops.DONE else None

    def _work(self, values: np.ndarray) -> int:
        """Multiplications of the filter, roughly."""
        return len(values) * self.num_steps * self.system.h * (2 * self.system.h + 4 * self.system.n)

    def log_prob(self, values: np.ndarray) -> float | None:
        """Nats of all rows (R, T, n)."""
        work = self._work(values)
        if compiled.num_parts(len(values), work) == 1:
            return self._forward(values, FILTER)
        if self._forward(values, 0) is None:
            return None
        found: dict[int, float | None] = {}

        def run(part: int, begin: int, end: int) -> None:
            found[part] = self._forward(values[begin:end], FILTER)

        compiled.by_rows(run, len(values), work)
        return _sum(found.values())

    def _backward(self, values: np.ndarray, wanted: int, smoothed: np.ndarray) -> tuple[float | None, np.ndarray]:
        """Nats, and the numbers of all parts together, see :func:`pplseq.kernels.gaussian.whole_loops.backward`."""
        if self._forward(values, 0) is None:
            return None, NO_MEANS
        loops, about, (numbers, h, n, _) = _loops(), self._arguments(), self.system
        tiles = tiles_for(h)
        size, found = len(numbers) + 13 * h * h + 2 * n * (h + n) + 5 * h + n, {}

        def run(part: int, begin: int, end: int) -> None:
            own, out = smoothed[begin:end], np.zeros(size)
            found[part] = *loops.backward(values[begin:end], *about, wanted, own, out, tiles), out

        compiled.by_rows(run, len(values), 4 * self._work(values))
        log_prob = _sum([value if status == loops.DONE else None for status, value, _ in found.values()])
        out = found.pop(0)[2]
        for part in found.values():
            out += part[2]
        return log_prob, out

    def smoothed_means(self, values: np.ndarray) -> np.ndarray | None:
        """(R, T, h) E[x_t | all y of the row]."""
        smoothed = np.empty((*values.shape[:2], self.system.h))
        return None if self._backward(values, MEANS, smoothed)[0] is None else smoothed

    def gradients(self, values: np.ndarray) -> tuple[float, np.ndarray] | None:
        """Nats of all rows, and their gradients in the numbers of the system."""
        log_prob, out = self._backward(values, SUMS, NO_MEANS)
        return None if log_prob is None else (log_prob, out[: len(self.system.numbers)])

    def moments(self, values: np.ndarray) -> tuple[float, Moments] | None:
        """Nats of all rows, and the expected statistics of EM."""
        log_prob, out = self._backward(values, MOMENTS, NO_MEANS)
        if log_prob is None:
            return None
        return log_prob, _moments(self.system, out)


def _sum(parts) -> float | None:
    parts = list(parts)
    return None if None in parts else sum(parts)


class Moments(NamedTuple):
    """Sums over steps and rows, of states given all observations.

    second, before, after: (h, h) of E[x x'], all steps, all but the last, all but the first; first: of E[x_1 x_1'] . state,
    state_before, first_state: (h,) of E[x]. move, move_state: of E[(x_t - A x_{t-1} - a) .'] (h, h) with itself, with x_{t-1},
    and (h,) alone. error, error_state, error_sum: of y - C x - c: (n, n), (n, h) and (n,).
    """

    second: np.ndarray
    before: np.ndarray
    first: np.ndarray
    state: np.ndarray
    state_before: np.ndarray
    first_state: np.ndarray
    move: np.ndarray
    move_state: np.ndarray
    move_sum: np.ndarray
    error: np.ndarray
    error_state: np.ndarray
    error_sum: np.ndarray


def _moments(system: Numbers, out: np.ndarray) -> Moments:
    """E[move | all] is noise times lambda, and E[error | all] covariance times e.

    Source: S. J. Koopman (1993), Disturbance smoother for state space models, Biometrika 80(1).
    """
    from pplseq.kernels.gaussian import block_loops as at

    matrix, noise, loadings, covariance = _matrices(system)
    states, seen, noises, vectors, errors = _sums(out[len(system.numbers) :], system.h, system.n)
    spread = states[at.COVARIANCE]
    before, after = spread - states[at.LAST_COVARIANCE], spread - states[at.FIRST_COVARIANCE]
    across = matrix @ states[at.LAG_ONE].T
    moved = noise @ states[at.MOVE] @ noise + after - across - across.T + matrix @ before @ matrix.T
    error = covariance @ noises[0] @ covariance + loadings @ spread @ loadings.T
    return Moments(
        states[at.SECOND] + spread, states[at.SECOND] - states[at.LAST] + before,
        states[at.FIRST] + states[at.FIRST_COVARIANCE], vectors[2], vectors[2] - vectors[4], vectors[3],
        (moved + moved.T) / 2, noise @ (states[at.STEP] - states[at.LATER_STEP]), noise @ vectors[0],
        (error + error.T) / 2, covariance @ seen[0] - loadings @ spread, covariance @ errors,
    )  # fmt: skip


def _sums(out: np.ndarray, h: int, n: int) -> list[np.ndarray]:
    """Those of :class:`pplseq.kernels.gaussian.block_loops.Sums`."""
    found, at = [], 0
    for shape, size in (
        ((13, h, h), 13 * h * h), ((2, n, h), 2 * n * h), ((2, n, n), 2 * n * n), ((5, h), 5 * h), ((n,), n),
    ):  # fmt: skip
        found.append(out[at : at + size].reshape(shape))
        at += size
    return found


def _matrices(system: Numbers) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Matrix, noise, loadings and covariance, written out."""
    numbers, h, n, form = system
    at = h * h + (h if form & OFFSET else 0)
    noise, at = _covariance(numbers, at, h, bool(form & FULL_NOISE), False)
    loadings = numbers[at : at + n * h].reshape(n, h)
    covariance, _ = _covariance(numbers, at + n * h + (n if form & SHIFT else 0), n, bool(form & FULL_COVARIANCE), True)
    return numbers[: h * h].reshape(h, h), noise, loadings, covariance


def _covariance(numbers: np.ndarray, at: int, size: int, full: bool, logarithms: bool) -> tuple[np.ndarray, int]:
    if not full:
        part = numbers[at : at + size]
        return np.diag(np.exp(2 * part) if logarithms else part * part), at + size
    factor = np.where(lower(size), numbers[at : at + size * size].reshape(size, size), 0.0)
    if logarithms:
        factor.flat[:: size + 1] = np.exp(factor.flat[:: size + 1])
    return factor @ factor.T, at + size * size


@functools.cache
def lower(size: int) -> np.ndarray:
    """(size, size) which entries a lower triangle has."""
    return np.tri(size, dtype=np.bool_)


def double(value: torch.Tensor) -> np.ndarray:
    """The same numbers in double precision, without gaps and gradients."""
    value = value.detach()
    return np.ascontiguousarray((value if value.dtype == DOUBLE else value.to(DOUBLE)).numpy())
