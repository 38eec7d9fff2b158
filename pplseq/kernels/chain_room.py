"""Room for a piece of a chain's time, and what is made of matrices and emissions in it. Importing this module imports numba.

:mod:`pplseq.kernels.chain_loops` works in it, whose shapes these are.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.loop_math import exponentials

FEW = 16  # states up to which a product goes entry by entry, which suits short rows
TOGETHER = 64  # numbers of a matrix up to which those of several steps have their exponentials at once
GROUP = 64  # steps

# Room for a piece of P steps. logs, weights: (P, K) emissions less their largest, and the exponentials of that. probs:
# (P + 1, K) filtered beliefs, [0] before the piece. factors: (P, K) what a pair consists of besides probs and matrix. steps:
# (3, P) rows TOP and MATRIX, logarithms of what was divided out, and MASS, the rest of p(x_t | x_<t). scaled, transposed:
# (K, K) the matrix over its largest entry, whose logarithm is shift[0]. rows: (3, K) rows WORK, FUTURE and MOVED. group:
# (GROUP, K^2) the same as scaled of steps that have matrices of their own, and peaks (GROUP,) their largest logarithms, of
# length 0 where that is not worth it; apart: their exponents.
Room = namedtuple("Room", "logs weights probs factors steps scaled transposed shift rows group peaks apart")
TOP, MATRIX, MASS = 0, 1, 2
WORK, FUTURE, MOVED = 0, 1, 2
# Which matrices a row's piece takes: number which + k * stride of the table leads into its step k, or where there are numbers
# (T, N), number numbers[begin + k, row]; none if k = 0 of the first.
Links = namedtuple("Links", "first table which stride numbers begin row")


@jit(inline="always")
def number_of(links, k):
    return links.numbers[links.begin + k, links.row] if len(links.numbers) else links.which + k * links.stride


@jit
def make_room(piece, num_states, stride):
    group = GROUP if stride and num_states * num_states <= TOGETHER else 0
    return Room(
        np.empty((piece, num_states)), np.empty((piece, num_states)), np.empty((piece + 1, num_states)),
        np.empty((piece, num_states)), np.empty((3, piece)), np.empty((num_states, num_states)),
        np.empty((num_states, num_states)), np.empty(1), np.empty((3, num_states)),
        np.empty((group, num_states * num_states)), np.empty(group), np.empty((group, num_states * num_states)),
    )  # fmt: skip


@jit
def scale_matrix(table, number, room):
    """Sets the room's matrices to exp(log - max) and its transpose, and its shift to that maximum."""
    num_states, most, scaled, transposed = table.shape[1], -np.inf, room.scaled, room.transposed
    for i in range(num_states):
        for j in range(num_states):
            most = max(most, table[number, i, j])
    most = most if most > -np.inf else 0.0
    for i in range(num_states):
        for j in range(num_states):
            transposed[i, j] = table[number, i, j] - most
    exponentials(transposed, scaled, num_states)
    for i in range(num_states):
        for j in range(num_states):
            transposed[j, i] = scaled[i, j]
    room.shift[0] = most


@jit
def scale_group(links, begin, step, room):
    """Sets the room's group to the matrices into its steps from ``begin`` on, before ``step``, see :func:`scale_matrix`."""
    table, group, num_states = links.table, room.apart, links.table.shape[1]
    end = min(step, begin + GROUP)
    for k in range(begin, end):
        number, most, at = 0, -np.inf, k - begin
        if not (links.first and k == 0):
            number = number_of(links, k)
        for i in range(num_states):
            for j in range(num_states):
                most = max(most, table[number, i, j])
        most = most if most > -np.inf else 0.0
        for i in range(num_states):
            for j in range(num_states):
                group[at, i * num_states + j] = table[number, i, j] - most
        room.peaks[at] = most
    exponentials(group, room.group, end - begin)


@jit
def read_emissions(emit, n, begin, step, room):
    """The emissions of a piece of so many steps, into the room."""
    num_states, logs, steps = emit.shape[2], room.logs, room.steps
    for k in range(step):
        most = -np.inf
        for j in range(num_states):
            most = max(most, emit[begin + k, n, j])
        most = most if most > -np.inf else 0.0
        steps[TOP, k] = most
        for j in range(num_states):
            logs[k, j] = emit[begin + k, n, j] - most
    exponentials(logs, room.weights, step)
