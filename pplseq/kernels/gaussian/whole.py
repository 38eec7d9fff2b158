"""Whole rows of a Gaussian chain with small states: likelihood, and the sums of gradients and EM, by one compiled loop.

The readable twins are :class:`~pplseq.infer.gaussian.chain.GaussianChain` with the gradients of
:mod:`pplseq.infer.gaussian.likelihood`, and the regressions of :mod:`pplseq.models.lds.statistics`; both say what holds for
rows that are not whole.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from pplseq.kernels import compiled
from pplseq.kernels.gaussian.compiled_kalman import MOST_NUMBERS, MOST_STATES, backward_nodes, filtered_nodes
from pplseq.kernels.kalman import DOUBLE, Convergence

LOG_2PI = math.log(2 * math.pi)
MOST_CELLS = 1 << 23  # numbers of all steps of the smallest block of rows


class System(NamedTuple):
    """x_1 ~ N(first, start), x_t = matrix x_{t-1} + offset + N(0, noise), y_t = loadings x_t + shift + N(0, covariance).

    Arrays in double precision: (h,), (h, h); (h, h), (h,), (h, h); (n, h), (n,), (n, n).
    """

    first: np.ndarray
    start: np.ndarray
    matrix: np.ndarray
    offset: np.ndarray
    noise: np.ndarray
    loadings: np.ndarray
    shift: np.ndarray
    covariance: np.ndarray


class WholeRows(NamedTuple):
    """What the loop finds. log_prob: nats of all rows. sums: :class:`pplseq.kernels.gaussian.whole_loops.Sums`, those of
    moments zero where only gradients were wanted; None where neither was."""

    num_rows: int
    num_steps: int
    system: System
    log_prob: float
    sums: Any


def applies(num_rows: int, num_steps: int, h: int, n: int) -> bool:
    """Whether the loop is there for such rows, and their filtered means have room."""
    fits = h <= MOST_STATES and n <= MOST_NUMBERS and num_steps * (h + n) * min(num_rows, 8) <= MOST_CELLS
    return fits and compiled.available()


def whole_rows(
    system: System, values: np.ndarray, tol: float, *, gradient: bool = False, moments: bool = False
) -> WholeRows | None:
    """The likelihood of rows (R, T, n), with the sums that gradients are made of, and beside them with those of states.

    None where the values or the system are not finite, noise is zero, or digits would be lost: the long way then says why, or
    keeps them.

    Args:
        tol: error of the log-likelihood that counts as none; see :class:`~pplseq.infer.gaussian.chain.GaussianChain`.

    Cost: a few h^3 a step until nothing changes any more, then (h + n)^2 a step and row. Memory: h + n numbers for each step
    of a block of rows, and h^2 for each step with a covariance of its own.
    """
    from pplseq.kernels.gaussian import whole_loops as loops
    from pplseq.kernels.gaussian.kalman_loops import CAREFUL, EPS, FILTERED
    from pplseq.kernels.gaussian.kalman_loops import System as Loops

    variances = system.covariance.diagonal()
    if not (variances.all() and math.isfinite(values.sum())):
        return None
    loadings = system.loadings
    precision = float(((loadings * loadings).sum(1) / variances).max())
    if not math.isfinite(precision):
        return None
    about = Loops(
        system.matrix, system.noise, loadings[None], system.covariance[None], np.ones((1, len(variances))),
        np.array([precision]), -1, tol, Convergence(tol, True, False, 1).agree,
    )  # fmt: skip
    (num_rows, num_steps, n), h, agree = values.shape, len(system.first), about.agree
    nodes, counts, _, index = filtered_nodes(about, system.start[None], np.zeros((num_steps, 1), np.int64), 1, True)
    made = counts[FILTERED]
    gain, whitener, moved = nodes.gain[:made], nodes.whitener[:made], nodes.moved[:made]
    way = loops.Way(system.first, system.offset, system.shift, system.matrix[None], loadings[None], gain, whitener, index)
    known = -nodes.half_log_det[index].sum() - num_steps * n * LOG_2PI / 2
    work, wanted = num_rows * num_steps * h * (2 * h + 4 * n), gradient or moments
    if not wanted:
        squares = [0.0] * num_rows

        def run(part: int, begin: int, end: int) -> None:
            squares[part] = loops.filter_rows(values[begin:end], way)

        compiled.by_rows(run, num_rows, work)
        log_prob = num_rows * known - sum(squares) / 2
        return WholeRows(num_rows, num_steps, system, log_prob, None) if math.isfinite(log_prob) else None
    inverse, seen = whitener.swapaxes(1, 2) @ whitener, whitener @ loadings
    closed = system.matrix - system.matrix @ gain @ loadings
    tables = loops.Tables(*map(np.ascontiguousarray, (moved.swapaxes(1, 2), inverse, -gain.swapaxes(1, 2))))
    found = {}

    def run_back(part: int, begin: int, end: int) -> None:
        shapes = ((13, h, h), (2, n, h), (2, n, n), (5, h), (n,))
        sums = loops.Sums(*map(np.zeros, shapes))
        found[part] = loops.smooth_rows(values[begin:end], way, tables, sums, moments), sums

    compiled.by_rows(run_back, num_rows, 4 * work)
    squares, sums = found.pop(0)
    for other, its in found.values():
        squares += other
        for mine, more in zip(sums, its, strict=True):
            mine += more
    back, turns, places = backward_nodes(
        index, (seen.swapaxes(1, 2) @ seen, closed), nodes.later[:made] == nodes.parent[:made], tol, agree, True
    )
    path = loops.Path(
        nodes.predicted, nodes.parent, nodes.filtered, gain, whitener, moved, back.information, back.of, back.later
    )
    is_exact = loops.add_covariances(way.matrix, path, turns, places, sums, moments, CAREFUL / EPS)
    log_prob = num_rows * known - squares / 2
    return WholeRows(num_rows, num_steps, system, log_prob, sums) if is_exact and math.isfinite(log_prob) else None


def gradients(rows: WholeRows) -> System:
    """Of ``rows.log_prob``, in each of its parts, of covariances symmetric; see :mod:`pplseq.infer.gaussian.likelihood`."""
    from pplseq.kernels.gaussian import whole_loops as at

    count, (states, seen, noise, vectors, errors) = rows.num_rows, rows.sums
    return System(
        vectors[1], (states[at.START] - count * states[at.LATER_START]) / 2, states[at.STEP] - count * states[at.LATER_STEP],
        vectors[0], (states[at.MOVE] - count * states[at.LATER]) / 2, seen[0] - count * seen[1], errors,
        (noise[0] - count * noise[1]) / 2,
    )  # fmt: skip


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


def moments(rows: WholeRows) -> Moments:
    """The expected statistics of EM: E[move | all] is noise times lambda, and E[error | all] covariance times e.

    Source: S. J. Koopman (1993), Disturbance smoother for state space models, Biometrika 80(1).
    """
    from pplseq.kernels.gaussian import whole_loops as at

    count, system, (states, seen, noise, vectors, errors) = rows.num_rows, rows.system, rows.sums
    matrix, loadings = system.matrix, system.loadings
    spread = count * states[at.COVARIANCE]
    before, after = spread - count * states[at.LAST_COVARIANCE], spread - count * states[at.FIRST_COVARIANCE]
    across = matrix @ (count * states[at.LAG_ONE]).T
    moved = system.noise @ states[at.MOVE] @ system.noise + after - across - across.T + matrix @ before @ matrix.T
    error = system.covariance @ noise[0] @ system.covariance + loadings @ spread @ loadings.T
    return Moments(
        states[at.SECOND] + spread, states[at.SECOND] - states[at.LAST] + before,
        states[at.FIRST] + count * states[at.FIRST_COVARIANCE], vectors[2], vectors[2] - vectors[4], vectors[3],
        (moved + moved.T) / 2, system.noise @ (states[at.STEP] - count * states[at.LATER_STEP]), system.noise @ vectors[0],
        (error + error.T) / 2, system.covariance @ seen[0] - loadings @ spread, system.covariance @ errors,
    )  # fmt: skip


def double(value: torch.Tensor) -> np.ndarray:
    """The same numbers in double precision, without gaps and gradients."""
    value = value.detach()
    return np.ascontiguousarray((value if value.dtype == DOUBLE else value.to(DOUBLE)).numpy())
