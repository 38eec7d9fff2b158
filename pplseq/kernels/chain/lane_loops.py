"""Compiled loops over several rows of an HMM of few states side by side: a processor's vectors hold a state of each.

A row alone waits for every step's products and division before its next step begins. The same sums, row by row, are in
:mod:`pplseq.kernels.chain.loops`, whose names and arguments these are, and whose readable twins are theirs; rows that these
loops refuse go there. They are for full rows with one start, and tables in which every start and transition is possible, so
that a small message has lost digits. :mod:`pplseq.kernels.chain.call` calls them. Importing this module imports numba.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pplseq.kernels.chain import LOWEST
from pplseq.kernels.chain.loops import AT_ONCE, PIECE, SMALL
from pplseq.kernels.compiled import jit

MOST_LANES = 64  # rows side by side

Tables = namedtuple("Tables", "start matrix transposed weights shift states")
# Of T steps and W rows: probs (T + 1, K, W) messages and seen (T, K, W) the weights of what is seen. Of one step factors,
# future, moved and joint (1, K, W), total and log (W,). first (K, K): the matrix into the first step
Lanes = namedtuple("Lanes", "probs seen factors future moved joint total log first")


@jit
def lanes_for(num_rows, num_steps, num_states):
    """How many rows to take at a time."""
    return max(1, min(MOST_LANES, num_rows, AT_ONCE // (num_steps * num_states)))


@jit
def room_for_lanes(num_steps, num_states, width):
    step, numbers = np.empty((4, num_states, width)), np.empty((2, width))
    return Lanes(
        np.empty((num_steps + 1, num_states, width)), np.empty((num_steps, num_states, width)), step[:1], step[1:2], step[2:3],
        step[3:], numbers[0], numbers[1], np.zeros((num_states, num_states)),
    )  # fmt: skip


# ---------------------------------------------------------------- one step
# Each a function of its own, of few arrays, as a compiler makes vectors of those alone; each is told which (K, W) of its arrays
# are meant, since a view costs more than its numbers.
@jit
def move(matrix, vectors, k, beside, m, states, width, moved, joint, to, total):
    """moved[0] = matrix @ vectors[k], joint[to] = moved[0] * beside[m], and total (W,) its sums over states.

    Returns:
        How many numbers have lost digits, and how many sums are small.
    """
    lost, few = 0, 0
    for lane in range(width):
        total[lane] = 0.0
    for j in range(len(states)):
        for lane in range(width):
            value = 0.0
            for i in range(len(states)):
                value += matrix[j, i] * vectors[k, i, lane]
            both = value * beside[m, j, lane]
            moved[0, j, lane], joint[to, j, lane] = value, both
            total[lane] += both
            lost += (not value >= LOWEST) | ((not both >= LOWEST) & (beside[m, j, lane] != 0.0))
    for lane in range(width):
        few += not total[lane] >= SMALL
    return lost, few


@jit
def multiply(left, k, right, width, out):
    """out[0] = left[k] * right[0]."""
    for j in range(out.shape[1]):
        for lane in range(width):
            out[0, j, lane] = left[k, j, lane] * right[0, j, lane]


@jit
def scale(vectors, k, factors, width, out, to):
    """out[to] = vectors[k] * factors (W,)."""
    for j in range(out.shape[1]):
        for lane in range(width):
            out[to, j, lane] = vectors[k, j, lane] * factors[lane]


@jit
def are_possible(total, width):
    for lane in range(width):
        if not total[lane] >= LOWEST:
            return False
    return True


# ---------------------------------------------------------------- all steps
@jit
def forward_lanes(tables, index, row, width, begin, end, lanes):
    """Messages of some steps of rows, lanes.probs[k + 1] those of step begin + k, from probs[0] before them.

    The logarithms of all factors are added to lanes.log. False: digits may be lost, or a row is impossible.
    """
    probs, seen, total, num_states = lanes.probs, lanes.seen, lanes.total, len(tables.states)
    if begin == 0:
        for j in range(num_states):
            lanes.first[j, 0] = tables.start[0, j]
            for lane in range(width):
                probs[0, j, lane] = 1.0 if j == 0 else 0.0
    for k in range(end - begin):
        for lane in range(width):
            word = index[row + lane, begin + k]
            lanes.log[lane] += tables.shift[word]
            for j in range(num_states):
                seen[k, j, lane] = tables.weights[word, j]
        matrix = tables.transposed if begin + k else lanes.first
        lost, few = move(matrix, probs, k, seen, k, tables.states, width, lanes.moved, probs, k + 1, total)
        if lost or few and not are_possible(total, width):
            return False
        for lane in range(width if few else 0):
            if total[lane] < SMALL:
                lanes.log[lane] += math.log(total[lane])
                for j in range(num_states):
                    probs[k + 1, j, lane] /= total[lane]
    return True


@jit
def likelihood_of_lanes(tables, index, row, width, log_prob, lanes):
    """log_prob of rows out. False: as of :func:`forward_lanes`."""
    num_steps, size, num_states = index.shape[1], len(lanes.seen), len(tables.states)
    lanes.log[:] = 0.0
    for begin in range(0, num_steps, size):
        end = min(begin + size, num_steps)
        if not forward_lanes(tables, index, row, width, begin, end, lanes):
            return False
        for j in range(num_states):
            for lane in range(width):
                lanes.probs[0, j, lane] = lanes.probs[end - begin, j, lane]
    for lane in range(width):
        total = 0.0
        for j in range(num_states):
            total += lanes.probs[0, j, lane]
        log_prob[row + lane], lanes.total[lane] = lanes.log[lane] + math.log(total), 1.0 / total
    return True


@jit
def backward_lanes(tables, num_steps, width, lanes):
    """From messages in lanes.probs to posteriors in their place. False: digits may be lost.

    The evidence of later steps is scaled so that with a step's messages it makes one. lanes.total: 1 over the sums of the last
    step's messages.
    """
    probs, factors, future, moved, total = lanes.probs, lanes.factors, lanes.future, lanes.moved, lanes.total
    future[:] = 1.0
    scale(future, 0, total, width, future, 0)
    scale(probs, num_steps, total, width, probs, num_steps)
    for k in range(num_steps - 1, 0, -1):
        multiply(lanes.seen, k, future, width, factors)
        lost, few = move(tables.matrix, factors, 0, probs, k, tables.states, width, moved, lanes.joint, 0, total)
        if lost or few and not are_possible(total, width):
            return False
        for lane in range(width):
            total[lane] = 1.0 / total[lane]
        scale(moved, 0, total, width, future, 0)
        scale(lanes.joint, 0, total, width, probs, k)
    return True


# ---------------------------------------------------------------- the two entries
@jit(entry=True)
def likelihood(begin_row, end_row, start, matrix, transposed, weights, shift, states, index, log_prob):
    """As :func:`~pplseq.kernels.chain.loops.likelihood`, of the rows before one that is refused, which is returned."""
    tables, size = Tables(start, matrix, transposed, weights, shift, states), min(PIECE, index.shape[1])
    most = lanes_for(end_row - begin_row, size, len(states))
    lanes = room_for_lanes(size, len(states), most)
    for row in range(begin_row, end_row, most):
        if not likelihood_of_lanes(tables, index, row, min(most, end_row - row), log_prob, lanes):
            return row
    return end_row


@jit(entry=True)
def smooth(begin_row, end_row, start, matrix, transposed, weights, shift, states, index, log_prob, posterior, starts):
    """Posteriors as of :func:`~pplseq.kernels.chain.loops.smooth`, of the rows before one that is refused, which is returned.

    Messages of all steps are kept.
    """
    tables, num_steps, num_states = Tables(start, matrix, transposed, weights, shift, states), index.shape[1], len(states)
    most = lanes_for(end_row - begin_row, num_steps, num_states)
    lanes = room_for_lanes(num_steps, num_states, most)
    for row in range(begin_row, end_row, most):
        width = min(most, end_row - row)
        if not likelihood_of_lanes(tables, index, row, width, log_prob, lanes):
            return row
        if not backward_lanes(tables, num_steps, width, lanes):
            return row
        for k in range(num_steps):
            for lane in range(width):
                for j in range(num_states):
                    posterior[row + lane, k, j] = lanes.probs[k + 1, j, lane]
        for j in range(num_states):
            for lane in range(width):
                starts[j] += lanes.probs[1, j, lane]
    return end_row
