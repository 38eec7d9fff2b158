"""One compiled loop over whole rows of a Gaussian chain: their likelihood, and all sums that gradients and EM are made of.

Whole rows have one length and nothing missing, so that they share all covariances. Importing this module imports numba;
:mod:`pplseq.kernels.gaussian.whole` calls it, and names the twins.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.gaussian.kalman_loops import CAREFUL, EPS, FILTERED, Back, Nodes, walk, walk_back
from pplseq.kernels.gaussian.mean_loops import product

SHARED = (2785073428, 2407404995)  # checksums of kalman_loops.py and mean_loops.py: numba looks at this file alone
LOG_2PI = math.log(2 * math.pi)
FIRST_ROOM = 128  # nodes that there is room for at first
ROOM = 1 << 16  # numbers of a block of rows, filtered, that stay in a core's cache
LANES, FEWEST = 64, 8  # rows of a block

# Sums over steps t and rows of products of x = E[x_t | all], lam and e, the derivatives of log p in the predicted mean and, but
# for the sign, in the observation; of covariances sums over steps, the same for each row, N being minus the second derivative.
# log_prob: nats; is_exact: 0 where digits of smoothed covariances are lost. states (13, h, h): see the numbers below; seen
# (2, n, h): e x' and K' - K' A' N A P; noise (2, n, n): e e' and S^-1 + K' A' N A K; vectors (5, h): lam of all steps but the
# first, of the first, x, x of the first and last steps; errors (n,): e
Sums = namedtuple("Sums", "log_prob is_exact states seen noise vectors errors")
STEP, MOVE, START, SECOND, FIRST, LAST = range(6)  # lam x_{t-1}', lam lam' (t > 1), lam lam' (t = 1); x x', of t = 1, of t = T
LATER_STEP, LATER, LATER_START = 6, 7, 8  # N_{t+1} A P_t|t, N_{t+1}, N_1
COVARIANCE, FIRST_COVARIANCE, LAST_COVARIANCE, LAG_ONE = 9, 10, 11, 12  # Cov(x_t | all), t = 1, t = T, Cov(x_{t+1}, x_t | all)


@jit
def more(array, many):
    """The same with room for more along the first axis."""
    result = np.empty((many,) + array.shape[1:], array.dtype)
    result[: len(array)] = array
    return result


@jit
def nodes_of(num, h, n):
    integers = np.empty((7, num), np.int64)
    reals = np.empty((5, num))
    return Nodes(
        np.empty((num, h, h)), reals[0], reals[1], integers[0], reals[2], integers[1], integers[2], integers[3], integers[4],
        integers[5], integers[6], np.empty(num, np.int64), np.empty((num, h, h)), np.empty((num, h, n)), np.empty((num, n, n)),
        reals[3], np.empty((num, h, h)),
    )  # fmt: skip


@jit
def filtered_path(system, start, num_steps, waits):
    """Nodes of all steps (see kalman_loops.walk), how many, and the node of each step (T, 1)."""
    n, h = system.loadings.shape[1:]
    room = min(num_steps + 1, FIRST_ROOM)
    nodes, fixed = nodes_of(room, h, n), np.empty(room, np.int64)
    nodes.predicted[0] = (start + start.T) / 2
    nodes.size[0] = np.abs(start).max()
    nodes.least[0], nodes.age[0], nodes.last[0], nodes.first[0] = np.inf, 0, 0.0, -1
    index, which, now = np.empty((num_steps, 1), np.int64), np.zeros((num_steps, 1), np.int64), np.zeros(1, np.int64)
    counts = np.array([1, 0, 0, -1])
    t = walk(0, system, which, index, now, nodes, counts, fixed, waits)
    while t < num_steps:
        room *= 4
        nodes, fixed = Nodes(
            more(nodes.predicted, room), more(nodes.size, room), more(nodes.least, room), more(nodes.age, room),
            more(nodes.last, room), more(nodes.first, room), more(nodes.kind, room), more(nodes.parent, room),
            more(nodes.later, room), more(nodes.sibling, room), more(nodes.step, room), more(nodes.row, room),
            more(nodes.filtered, room), more(nodes.gain, room), more(nodes.whitener, room), more(nodes.half_log_det, room),
            more(nodes.moved, room),
        ), more(fixed, room)  # fmt: skip
        t = walk(t, system, which, index, now, nodes, counts, fixed, waits)
    return nodes, counts[FILTERED], index


@jit
def times(left, i, right, j, out):
    """out = left[i] @ right[j], of matrices."""
    for row in range(left.shape[1]):
        for col in range(right.shape[2]):
            out[row, col] = 0.0
        for k in range(left.shape[2]):
            a = left[i, row, k]
            for col in range(right.shape[2]):
                out[row, col] += a * right[j, k, col]


@jit
def turned_times(left, i, right, out, scale):
    """out += scale left[i]' @ right, of matrices."""
    for k in range(left.shape[1]):
        for row in range(left.shape[2]):
            a = scale * left[i, k, row]
            for col in range(right.shape[1]):
                out[row, col] += a * right[k, col]


# of nodes: back (N, h, h) P A' of the filtered P; inverse (N, n, n) S^-1; turned (N, n, h) -K'; information, loops (N, h, h):
# what the observation says beyond the past, and A - A K M
Tables = namedtuple("Tables", "back inverse turned information loops")


@jit
def tables_of(system, nodes, num):
    n, h = system.loadings.shape[1:]
    tables = Tables(
        np.zeros((num, h, h)), np.zeros((num, n, n)), np.empty((num, n, h)), np.zeros((num, h, h)), np.empty((num, h, h))
    )
    matrix, seen, moved = system.matrix.reshape(1, h, h), np.empty((n, h)), np.empty((h, n))
    for k in range(num):
        times(nodes.whitener, k, system.loadings, 0, seen)
        for i in range(h):
            for j in range(h):
                tables.back[k, i, j] = nodes.moved[k, j, i]
            for j in range(n):
                tables.turned[k, j, i] = -nodes.gain[k, i, j]
        turned_times(nodes.whitener, k, nodes.whitener[k], tables.inverse[k], 1.0)
        for a in range(n):
            for i in range(h):
                for j in range(h):
                    tables.information[k, i, j] += seen[a, i] * seen[a, j]
        times(matrix, 0, nodes.gain, k, moved)
        for i in range(h):
            for j in range(h):
                tables.loops[k, i, j] = matrix[0, i, j]
            for a in range(n):
                scale = moved[i, a]
                for j in range(h):
                    tables.loops[k, i, j] -= scale * system.loadings[0, a, j]
    return tables


@jit
def add_outer(left, right, width, out):
    """out += left @ right', of vectors (., lanes)."""
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            total = 0.0
            for lane in range(width):
                total += left[i, lane] * right[j, lane]
            out[i, j] += total


@jit
def add_sum(vectors, width, out):
    for i in range(vectors.shape[0]):
        total = 0.0
        for lane in range(width):
            total += vectors[i, lane]
        out[i] += total


@jit
def filter_block(values, block, width, system, offset, shift, first, nodes, index, means, errors):
    """Filtered means (T, h, lanes) and innovations (T, n, lanes) of some rows; returns the sum of their squares, white."""
    num_steps, n, h, total = len(index), values.shape[2], len(first), 0.0
    matrix, loadings = system.matrix.reshape(1, h, h), system.loadings
    ahead, base, white, zero = np.empty((h, width)), np.empty((h, width)), np.empty((n, width)), np.zeros((n, width))
    lacking = np.empty((1, n, h))
    lacking[0] = -loadings[0]
    for i in range(h):
        for lane in range(width):
            base[i, lane] = offset[i]
    for t in range(num_steps):
        node = index[t, 0]
        if t == 0:
            for i in range(h):
                for lane in range(width):
                    ahead[i, lane] = first[i]
        else:
            product(matrix, 0, means[t - 1], base, width, ahead)
        for lane in range(width):
            for i in range(n):
                errors[t, i, lane] = values[block + lane, t, i] - shift[i]
        product(lacking, 0, ahead, errors[t], width, errors[t])
        product(nodes.gain, node, errors[t], ahead, width, means[t])
        product(nodes.whitener, node, errors[t], zero, width, white)
        for i in range(n):
            for lane in range(width):
                total += white[i, lane] * white[i, lane]
    return total


@jit
def smooth_block(width, system, tables, index, means, errors, sums, with_moments):
    """Adds what the smoothed means of a block say."""
    num_steps, n, h = len(index), errors.shape[1], means.shape[1]
    upward, turned = np.empty((1, h, n)), np.empty((1, h, h))
    for i in range(h):
        for a in range(n):
            upward[0, i, a] = system.loadings[0, a, i]
        for j in range(h):
            turned[0, i, j] = system.matrix[j, i]
    adjoint, ahead, state, error = np.zeros((h, width)), np.zeros((h, width)), np.empty((h, width)), np.empty((n, width))
    zero = np.zeros((max(n, h), width))
    for t in range(num_steps - 1, -1, -1):
        node = index[t, 0]
        if t + 1 < num_steps:
            product(tables.back, node, adjoint, means[t], width, state)
            product(turned, 0, adjoint, zero, width, ahead)
            add_outer(adjoint, state, width, sums.states[STEP])
            add_outer(adjoint, adjoint, width, sums.states[MOVE])
            add_sum(adjoint, width, sums.vectors[0])
        else:
            state[:] = means[t]
        product(tables.inverse, node, errors[t], zero, width, error)
        product(tables.turned, node, ahead, error, width, error)
        product(upward, 0, error, ahead, width, adjoint)
        add_outer(error, state, width, sums.seen[0])
        add_outer(error, error, width, sums.noise[0])
        add_sum(error, width, sums.errors)
        if with_moments:
            add_outer(state, state, width, sums.states[SECOND])
            add_sum(state, width, sums.vectors[2])
            if t + 1 == num_steps:
                add_outer(state, state, width, sums.states[LAST])
                add_sum(state, width, sums.vectors[4])
    add_outer(adjoint, adjoint, width, sums.states[START])
    add_sum(adjoint, width, sums.vectors[1])
    if with_moments:
        add_outer(state, state, width, sums.states[FIRST])
        add_sum(state, width, sums.vectors[3])


@jit
def smoothed_path(system, nodes, num, tables, index, waits):
    """Nodes of the way back (see kalman_loops.walk_back), how many, and the node of each step (T, 1)."""
    num_steps, h = len(index), len(system.matrix)
    steady, settled_on = np.empty(num, np.bool_), np.full(num, -1)
    for k in range(num):
        steady[k] = nodes.later[k] == nodes.parent[k]
    room, counts = min(num_steps + 2, FIRST_ROOM), np.array([1])
    integers, reals = np.empty((6, room), np.int64), np.empty((2, room))
    back = Back(
        np.empty((room, h, h)), integers[0], integers[1], integers[2], integers[3], integers[4], reals[0], integers[5], reals[1]
    )
    back.information[0] = 0.0
    for part in (back.of, back.again, back.first, back.sibling):
        part[0] = -1
    back.later[0], back.least[0], back.age[0], back.last[0] = 0, np.inf, 0, 0.0
    found, now, given = np.empty((num_steps, 1), np.int64), np.zeros(1, np.int64), (tables.information, tables.loops)
    t = num_steps - 1
    while True:
        t = walk_back(
            t, index, found, now, given, steady, settled_on, back, counts, system.tol, system.agree, waits
        )
        if t < 0:
            return back, counts[0], found
        room *= 4
        back = Back(
            more(back.information, room), more(back.of, room), more(back.later, room), more(back.again, room),
            more(back.first, room), more(back.sibling, room), more(back.least, room), more(back.age, room),
            more(back.last, room),
        )  # fmt: skip


@jit
def largest(matrix, k):
    most = 0.0
    for i in range(matrix.shape[1]):
        for j in range(matrix.shape[2]):
            most = max(most, abs(matrix[k, i, j]))
    return most


@jit
def add_covariances(system, nodes, back, made, places, sums, with_moments):
    """Adds sums over steps of what covariances say; returns whether all digits are there (see SmoothedPath)."""
    n, h = system.loadings.shape[1:]
    num_steps, matrix, is_exact = len(places), system.matrix.reshape(1, h, h), True
    counts = np.zeros(made, np.int64)
    for t in range(num_steps):
        counts[places[t, 0]] += 1
    pulled, smoothed, lag = np.empty((1, h, h)), np.empty((h, h)), np.empty((h, h))
    moved, raised, lowered, shared = np.empty((1, h, n)), np.empty((1, h, n)), np.empty((1, h, n)), np.empty((n, h))
    most = np.zeros(made)
    for k in range(1, made):
        node, later, count = back.of[k], back.later[k], counts[k]
        times(back.information, later, nodes.moved, node, pulled[0])
        times(matrix, 0, nodes.gain, node, moved[0])
        times(back.information, later, moved, 0, raised[0])
        lowered[0] = 0.0
        turned_times(matrix, 0, raised[0], lowered[0], 1.0)  # A' N A K
        for i in range(h):
            for j in range(h):
                sums.states[LATER_STEP, i, j] += count * pulled[0, i, j]
                sums.states[LATER, i, j] += count * back.information[later, i, j]
        shared[:] = 0.0
        turned_times(lowered, 0, nodes.filtered[node], shared, 1.0)
        for a in range(n):
            for j in range(h):
                sums.seen[1, a, j] += count * (nodes.gain[node, j, a] - shared[a, j])
        turned_times(nodes.whitener, node, nodes.whitener[node], sums.noise[1], float(count))
        turned_times(nodes.gain, node, lowered[0], sums.noise[1], float(count))
        if with_moments:
            smoothed[:] = nodes.filtered[node]
            turned_times(nodes.moved, node, pulled[0], smoothed, -1.0)
            most[k] = max(largest(back.information, later), most[later])
            widest, size = 0.0, largest(nodes.moved, node)
            for i in range(h):
                widest = max(widest, smoothed[i, i])
            is_exact = is_exact and EPS * size * size * most[k] <= CAREFUL * widest
            after = back.of[later] if later else -1
            if after >= 0:  # of all steps but the last
                times(nodes.predicted, nodes.parent[after], pulled, 0, lag)
            for i in range(h):
                for j in range(h):
                    value = (smoothed[i, j] + smoothed[j, i]) / 2
                    sums.states[COVARIANCE, i, j] += count * value
                    if k == places[0, 0]:
                        sums.states[FIRST_COVARIANCE, i, j] = value
                    if k == places[num_steps - 1, 0]:
                        sums.states[LAST_COVARIANCE, i, j] = value
                    if after >= 0:
                        sums.states[LAG_ONE, i, j] += count * (nodes.moved[node, i, j] - lag[i, j])
    sums.states[LATER_START] = back.information[places[0, 0]]
    return is_exact


@jit(entry=True)
def sums_of(values, first, start, offset, shift, system, with_gradient, with_moments, waits):
    """The log-likelihood of rows, and Sums.

    Args:
        values: (R, T, n). first, start: (h,) and (h, h) of the first state. offset, shift: (h,) and (n,), of moves and
            observations. system: see kalman_loops, of one kind. with_gradient, with_moments: of what sums are wanted: all
            that gradients are made of; beside them those of states.
    """
    num_rows, num_steps, n = values.shape
    h = len(first)
    nodes, num, index = filtered_path(system, start, num_steps, waits)
    sums = np.zeros((13, h, h)), np.zeros((2, n, h)), np.zeros((2, n, n)), np.zeros((5, h)), np.zeros(n)
    known, squares, is_exact = 0.0, 0.0, True
    for t in range(num_steps):
        known -= nodes.half_log_det[index[t, 0]]
    tables = tables_of(system, nodes, num if with_gradient else 0)
    gathered = Sums(0.0, 1, sums[0], sums[1], sums[2], sums[3], sums[4])
    most = max(FEWEST, min(LANES, ROOM // (num_steps * (h + n)) // 8 * 8))
    width = min(most, num_rows)
    for block in range(0, num_rows, most):
        width = min(most, num_rows - block)
        if block == 0 or width < most:
            means, errors = np.empty((num_steps, h, width)), np.empty((num_steps, n, width))
        squares += filter_block(values, block, width, system, offset, shift, first, nodes, index, means, errors)
        if with_gradient:
            smooth_block(width, system, tables, index, means, errors, gathered, with_moments)
    if with_gradient:
        back, made, places = smoothed_path(system, nodes, num, tables, index, waits)
        is_exact = add_covariances(system, nodes, back, made, places, gathered, with_moments)
    log_prob = num_rows * (known - num_steps * n * LOG_2PI / 2) - squares / 2
    return Sums(log_prob, is_exact, sums[0], sums[1], sums[2], sums[3], sums[4])
