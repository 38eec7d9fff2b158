"""An HMM's rows through the compiled loops of :mod:`pplseq.kernels.chain.loops`, from tables of log-probabilities.

Sums return None where those loops do not do: where digits may be lost, or a row is impossible. The general scans,
:mod:`pplseq.kernels.scan` and :mod:`pplseq.kernels.path_scan`, are the readable twins and the way that is left then; and as
long as compiling does not pay, which callers ask first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled
from pplseq.kernels.chain import LOWEST
from pplseq.kernels.compiled import array

LOOPS = "kernels.chain.loops"
# of the scans: operations a step, mostly of arrays (a fifth of a tensor's), and passes over a matrix a step and row
TWINS = {"likelihood": (0.6, 1), "smooth": (2, 4), "viterbi": (0.8, 2)}
FEW = 4  # states up to which loops are compiled for a number of them
MOST_STATES = 64  # with more of them products of matrices gain
FEW_LANES = 32  # rows from which a loop takes several side by side
REFUSED = 64  # rows that go one by one where one of them was refused
KEPT = 1 << 22  # numbers kept on the way to a row's best path


class Emissions(NamedTuple):
    """Probabilities of observations (V, K) over the largest of their row, whose logarithm is shift (V,), float64; and, for
    paths, their logarithms (V, K). Where there may be gaps, the last row is theirs: 1 in every state."""

    weights: np.ndarray
    shift: np.ndarray
    logs: np.ndarray | None = None


class Rows(NamedTuple):
    """Which row of the emissions' tables each step has, numbers (N, T), -1 for a gap; how many steps each row has, lengths
    (N,), or of length 0 where all have T; and which matrix leads into each step, moves (N, T), or None for the first."""

    numbers: np.ndarray
    lengths: np.ndarray = np.empty(0, np.int64)
    moves: np.ndarray | None = None


class Chain(NamedTuple):
    """p(z_1), (1, K) of all rows or (B, K), transitions (M, K, K) and their transposes; for paths, logarithms of the two."""

    probs: tuple[np.ndarray, np.ndarray, np.ndarray]
    logs: tuple[np.ndarray, np.ndarray] | None = None


class Smoothed(NamedTuple):
    """log_prob (B,); posterior (B, T, K); expected starts in the shape of p(z_1), and of all rows transitions (M, K, K) and, if
    asked for, visits (V, K) of each state with each row of the emissions' tables, else (0, 1)."""

    log_prob: np.ndarray
    posterior: np.ndarray
    starts: np.ndarray
    pairs: np.ndarray
    visits: np.ndarray


def applies(num_states: int, *tables: Tensor) -> bool:
    """Whether there are loops for tables of so many states."""
    if num_states > MOST_STATES or not compiled.available():
        return False
    return all(table.dtype == torch.float64 and table.device.type == "cpu" for table in tables)


def emissions_of(logs: Tensor) -> Emissions | None:
    """From log-probabilities (V, K) of words, or densities of observations."""
    given = array(logs)
    if not compiled.pays(f"{LOOPS}.scaled", 5, 10 * given.size):
        top = given.max(-1, keepdims=True)
        top = np.where(top > -np.inf, top, 0.0)
        weights = np.exp(given - top)
        return None if (~(weights >= LOWEST) & (given != -np.inf)).any() else Emissions(weights, top[:, 0], given)
    from pplseq.kernels.chain import loops

    found = Emissions(np.empty(given.shape), np.empty(len(given)), given)
    return found if loops.scaled(given, found.shift, found.weights) else None


def chain_of(initial: Tensor, matrix: Tensor) -> Chain | None:
    """From log-probabilities, (K,) of all rows or (B, K), and (K, K) or (M, K, K)."""
    num_states = matrix.shape[-1]
    logs = array(initial).reshape(-1, num_states), array(matrix).reshape(-1, num_states, num_states)
    start, transitions = np.exp(logs[0]), np.exp(logs[1])
    for probs, log in ((start, logs[0]), (transitions, logs[1])):
        if not probs.min() >= LOWEST and (~(probs >= LOWEST) & (log != -np.inf)).any():  # NaN too
            return None
    return Chain((start, transitions, np.ascontiguousarray(transitions.transpose(0, 2, 1))), logs)


def states_of(num_states: int, moves: np.ndarray | None = None) -> tuple[int, ...]:
    """What names the code that is compiled for a number of states, under one matrix."""
    return (0,) * num_states if num_states <= FEW and moves is None else (0,)


def are_words(rows: Rows, num_words: int, gaps: bool = True) -> bool:
    """Whether all steps are words 0..V-1, or gaps if these may be."""
    numbers, least = rows.numbers, -1 if gaps else 0
    if not compiled.pays(f"{LOOPS}.all_within", 2, 3 * numbers.size):
        beyond = (numbers < least) | (numbers >= num_words)
        if len(rows.lengths):
            beyond &= np.arange(numbers.shape[1]) < rows.lengths[:, None]
        return not beyond.any()
    from pplseq.kernels.chain import loops

    return loops.all_within(numbers, rows.lengths, least, num_words)


def pays(loop: str, sizes: tuple[int, ...], num_states: int) -> bool:
    """Whether a loop, "likelihood", "smooth" or "viterbi", does so many rows and steps, or the scans."""
    (num_rows, num_steps), (operations, passes) = sizes, TWINS[loop]
    return compiled.pays(f"{LOOPS}.{loop}", operations * num_steps, passes * num_rows * num_steps * num_states**2)


def declined(loop: str, reason: str) -> None:
    """Says that the loop for which :func:`pays` was asked does not do these."""
    compiled.declined(f"{LOOPS}.{loop}", reason)


def side_by_side(num_rows: int, rows: Rows, num_steps: int, start: np.ndarray, matrix: np.ndarray) -> bool:
    """Whether several rows at a time go through :mod:`pplseq.kernels.chain.lane_loops`: many full rows of few states, under one
    start and a matrix without zeros, whose messages of so many steps stay in a core's cache."""
    from pplseq.kernels.chain import loops

    num_states = start.shape[1]
    if len(rows.lengths) or rows.moves is not None or not 1 < num_states <= FEW or num_rows < FEW_LANES or len(start) > 1:
        return False
    return FEW_LANES * num_steps * num_states <= loops.AT_ONCE and bool(start.all() and matrix.all())


def log_prob(chain: Chain, emissions: Emissions, rows: Rows) -> np.ndarray | None:
    """(B,) log p(x)."""
    from pplseq.kernels.chain import loops

    index, lengths, moves = rows
    found, states = np.empty(len(index)), states_of(emissions.weights.shape[1], moves)
    tables = *chain.probs, emissions.weights, emissions.shift, states

    def run(part: int, begin: int, end: int) -> bool:
        def one_by_one(first: int, last: int) -> bool:
            return loops.likelihood(first, last, *tables, index, moves, lengths, found)

        if not side_by_side(end - begin, rows, 1, *chain.probs[:2]):
            return one_by_one(begin, end)
        given = *_of_lanes(tables), index, found
        return _in_turns(lambda first: _lanes().likelihood(first, end, *given), one_by_one, begin, end)

    return found if _all_rows(run, rows, emissions) else None


def smooth(
    chain: Chain, emissions: Emissions, rows: Rows, visits: bool = False, pairs: bool = True, posterior: bool = True
) -> Smoothed | None:
    """Posteriors and expected counts; without ``pairs``, which take a third of the time, these are zeros (1, 1, 1), and without
    ``posterior`` there are none (0, 0, 0) of steps, nor memory for them."""
    from pplseq.kernels.chain import loops

    index, lengths, matrices = rows
    num_states = emissions.weights.shape[1]
    parts = compiled.num_parts(len(index), _work(rows, emissions))
    found, states = np.empty(len(index)), np.empty((*index.shape, num_states) if posterior else (0, 0, 0))
    starts = np.zeros((parts, *chain.probs[0].shape))
    moves = np.zeros((parts, *chain.probs[1].shape)) if pairs else np.zeros((parts, 0, 1, 1))
    counts = np.zeros((parts, *emissions.weights.shape)) if visits else np.zeros((parts, 0, 1))
    tables = *chain.probs, emissions.weights, emissions.shift, states_of(num_states, matrices)

    def run(part: int, begin: int, end: int) -> bool:
        def one_by_one(first: int, last: int) -> bool:
            sums = starts[part], moves[part], counts[part]
            return loops.smooth(first, last, *tables, index, matrices, lengths, found, states, *sums)

        counted = pairs or visits or not posterior
        if counted or not side_by_side(end - begin, rows, index.shape[1], *chain.probs[:2]):
            return one_by_one(begin, end)
        given = *_of_lanes(tables), index, found, states, starts[part, 0]
        return _in_turns(lambda first: _lanes().smooth(first, end, *given), one_by_one, begin, end)

    if not _all_rows(run, rows, emissions):
        return None
    sums = (starts, moves if pairs else np.zeros((1, 1, 1, 1)), counts)
    return Smoothed(found, states, *((part[0] if len(part) == 1 else part.sum(0)) for part in sums))


def viterbi(
    start: np.ndarray, table: np.ndarray, first: np.ndarray, stride: int, logs: np.ndarray, rows: Rows, repeats: bool = False,
    final: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The most probable paths (B, T) and log p(path, x) (B,), -inf of rows that are impossible.

    Args:
        logs: (V, K) what ``rows`` names rows of. start, table, first, stride, repeats, final: as for the loop, all logarithms.
    """
    from pplseq.kernels.chain import loops

    (index, lengths, _), num_states, logs = rows, logs.shape[1], np.ascontiguousarray(logs)
    path, found, states = np.empty(index.shape, np.int64), np.empty(len(index)), states_of(num_states)
    final = np.empty((0, num_states)) if final is None else final

    def run(part: int, begin: int, end: int) -> None:
        loops.viterbi(
            begin, end, start, table, first, stride, logs, states, index, lengths, KEPT, repeats, path, found, final
        )  # fmt: skip

    compiled.by_rows(run, len(index), index.size * num_states**2)
    return path, found


def _of_lanes(tables: tuple) -> tuple:
    """With the one matrix that these loops are for."""
    start, matrix, transposed, *rest = tables
    return start, matrix[0], transposed[0], *rest


def _lanes():
    from pplseq.kernels.chain import lane_loops

    return lane_loops


def _in_turns(lanes: Callable[[int], int], rows: Callable[[int, int], bool], begin: int, end: int) -> bool:
    """Rows begin..end - 1 side by side by ``lanes``, which says where they were refused, and those from there on one by one."""
    while begin < end and (begin := lanes(begin)) < end:
        last = min(begin + REFUSED, end)
        if not rows(begin, last):
            return False
        begin = last
    return True


def _work(rows: Rows, emissions: Emissions) -> int:
    return 4 * rows.numbers.size * emissions.weights.shape[1] ** 2


def _all_rows(run: Callable[[int, int, int], bool], rows: Rows, emissions: Emissions) -> bool:
    """Whether a loop did for all rows."""
    failed = []

    def part_of(part: int, begin: int, end: int) -> None:
        if not run(part, begin, end):
            failed.append(part)

    compiled.by_rows(part_of, len(rows.numbers), _work(rows, emissions))
    return not failed
