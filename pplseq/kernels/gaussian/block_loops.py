"""Compiled loops over blocks of whole rows of a Gaussian chain: means, and sums of them and of covariances.

Importing this module imports numba; :mod:`pplseq.kernels.gaussian.whole_loops` calls these loops.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.gaussian.kalman_loops import CAREFUL, EPS, Back, walk_back
from pplseq.kernels.product_loops import add_outer, add_times, product, times, turned_times

ROOM = 1 << 19
LANES, FEWEST = 64, 8  # rows of a block
FILTER, MEANS, SUMS, MOMENTS = 1, 2, 4, 8  # what is wanted

# Sums over steps t and rows of products of x = E[x_t | all], lam and e, the derivatives of log p in the predicted mean and, but
# for the sign, in the observation; of covariances sums over steps, the same for each row, N being minus the second derivative.
# states (13, h, h): see the numbers below; seen (2, n, h): e x' and K' - K' A' N A P; noise (2, n, n): e e' and
# S^-1 + K' A' N A K; vectors (5, h): lam of all steps but the first, of the first, x, x of the first and last steps;
# errors (n,): e
Sums = namedtuple("Sums", "states seen noise vectors errors")
STEP, MOVE, START, SECOND, FIRST, LAST = range(6)  # lam x_{t-1}', lam lam' (t > 1), lam lam' (t = 1); x x', of t = 1, of t = T
LATER_STEP, LATER, LATER_START = 6, 7, 8  # N_{t+1} A P_t|t, N_{t+1}, N_1
COVARIANCE, FIRST_COVARIANCE, LAST_COVARIANCE, LAG_ONE = 9, 10, 11, 12  # Cov(x_t | all), t = 1, t = T, Cov(x_{t+1}, x_t | all)

# What means go by: first (h,), offset (h,) and shift (n,); matrix (1, h, h), loadings (1, n, h); of nodes gain (N, h, n) and
# whitener (N, n, n); index (T, 1), the node of each step
Way = namedtuple("Way", "first offset shift matrix loadings gain whitener index")
# of nodes: back (N, h, h) P A' of the filtered P; inverse (N, n, n) S^-1; turned (N, n, h) -K'
Tables = namedtuple("Tables", "back inverse turned")
# what sums of covariances are made of: of kalman_loops.Nodes and Back
Path = namedtuple("Path", "predicted parent filtered gain whitener moved information of later")


@jit
def sums_in(out, h, n):
    """Sums in a vector of numbers."""
    a, b = 13 * h * h, 2 * n * h
    c, d = a + b + 2 * n * n, 5 * h
    return Sums(
        out[:a].reshape(13, h, h), out[a : a + b].reshape(2, n, h), out[a + b : c].reshape(2, n, n),
        out[c : c + d].reshape(5, h), out[c + d : c + d + n],
    )  # fmt: skip


# ---------------------------------------------------------------- means
@jit
def add_sum(vectors, width, out):
    for i in range(vectors.shape[0]):
        total = 0.0
        for lane in range(width):
            total += vectors[i, lane]
        out[i] += total


@jit
def filter_block(values, block, width, way, means, errors, tiles):
    """Filtered means (T, h, lanes) and innovations (T, n, lanes) of some rows; returns the sum of their squares, white."""
    num_steps, n, h, total, first = len(way.index), values.shape[2], len(way.first), 0.0, way.first
    matrix, index, shift = way.matrix, way.index, way.shift
    ahead, base, white, zero = np.empty((h, width)), np.empty((h, width)), np.empty((n, width)), np.zeros((n, width))
    lacking = np.empty((1, n, h))
    for i in range(n):
        for j in range(h):
            lacking[0, i, j] = -way.loadings[0, i, j]
    for i in range(h):
        for lane in range(width):
            base[i, lane] = way.offset[i]
    for t in range(num_steps):
        node = index[t, 0]
        if t == 0:
            for i in range(h):
                for lane in range(width):
                    ahead[i, lane] = first[i]
        else:
            product(matrix, 0, means[t - 1], base, width, ahead, tiles)
        for lane in range(width):
            for i in range(n):
                errors[t, i, lane] = values[block + lane, t, i] - shift[i]
        product(lacking, 0, ahead, errors[t], width, errors[t], tiles)
        product(way.gain, node, errors[t], ahead, width, means[t], tiles)
        product(way.whitener, node, errors[t], zero, width, white, tiles)
        for i in range(n):
            for lane in range(width):
                total += white[i, lane] * white[i, lane]
    return total


@jit
def smooth_block(block, width, way, tables, means, errors, sums, wanted, smoothed, tiles):
    """Adds what the smoothed means of a block say, or writes them to (R, T, h)."""
    index, num_steps, n, h = way.index, len(way.index), errors.shape[1], means.shape[1]
    with_sums, with_moments = wanted & (SUMS | MOMENTS) != 0, wanted & MOMENTS != 0
    upward, turned = np.empty((1, h, n)), np.empty((1, h, h))
    for i in range(h):
        for a in range(n):
            upward[0, i, a] = way.loadings[0, a, i]
        for j in range(h):
            turned[0, i, j] = way.matrix[0, j, i]
    adjoint, ahead, state, error = np.zeros((h, width)), np.zeros((h, width)), np.empty((h, width)), np.empty((n, width))
    zero = np.zeros((max(n, h), width))
    for t in range(num_steps - 1, -1, -1):
        node = index[t, 0]
        if t + 1 < num_steps:
            product(tables.back, node, adjoint, means[t], width, state, tiles)
            product(turned, 0, adjoint, zero, width, ahead, tiles)
            if with_sums:
                add_outer(adjoint, state, width, sums.states[STEP], tiles)
                add_outer(adjoint, adjoint, width, sums.states[MOVE], tiles)
                add_sum(adjoint, width, sums.vectors[0])
        else:
            for i in range(h):
                for lane in range(width):
                    state[i, lane] = means[t, i, lane]
        product(tables.inverse, node, errors[t], zero, width, error, tiles)
        product(tables.turned, node, ahead, error, width, error, tiles)
        product(upward, 0, error, ahead, width, adjoint, tiles)
        if wanted & MEANS:
            for lane in range(width):
                for i in range(h):
                    smoothed[block + lane, t, i] = state[i, lane]
        if with_sums:
            add_outer(error, state, width, sums.seen[0], tiles)
            add_outer(error, error, width, sums.noise[0], tiles)
            add_sum(error, width, sums.errors)
        if with_moments:
            add_outer(state, state, width, sums.states[SECOND], tiles)
            add_sum(state, width, sums.vectors[2])
            if t + 1 == num_steps:
                add_outer(state, state, width, sums.states[LAST], tiles)
                add_sum(state, width, sums.vectors[4])
    if with_sums:
        add_outer(adjoint, adjoint, width, sums.states[START], tiles)
        add_sum(adjoint, width, sums.vectors[1])
    if with_moments:
        add_outer(state, state, width, sums.states[FIRST], tiles)
        add_sum(state, width, sums.vectors[3])


@jit
def lanes_of(num_steps, numbers):
    """Rows of a block."""
    return max(FEWEST, min(LANES, ROOM // (num_steps * numbers) // 8 * 8))


# ---------------------------------------------------------------- covariances
@jit
def largest(matrix, k):
    most = 0.0
    for i in range(matrix.shape[1]):
        for j in range(matrix.shape[2]):
            most = max(most, abs(matrix[k, i, j]))
    return most


@jit
def add_covariances(matrix, path, made, places, sums, with_moments, limit, tiles):
    """Adds sums over steps of what covariances say; returns whether all digits are there (see SmoothedPath).

    Args:
        matrix: (1, h, h). made: nodes of the way back; places: (T, 1), that of each step. limit: of the
            largest entries of what is taken away from a variance, in those that it keeps, for all digits to be there.
    """
    h, n = path.gain.shape[1:]
    num_steps, is_exact = len(places), True
    counts = np.zeros(made, np.int64)
    for t in range(num_steps):
        counts[places[t, 0]] += 1
    pulled, smoothed, lag = np.empty((1, h, h)), np.empty((h, h)), np.empty((h, h))
    moved, raised, lowered, shared = np.empty((1, h, n)), np.empty((1, h, n)), np.empty((1, h, n)), np.empty((n, h))
    most = np.zeros(made)
    for k in range(1, made):
        node, later, count = path.of[k], path.later[k], counts[k]
        times(path.information, later, path.moved, node, pulled[0], tiles)
        times(matrix, 0, path.gain, node, moved[0], tiles)
        times(path.information, later, moved, 0, raised[0], tiles)
        for i in range(h):
            for a in range(n):
                lowered[0, i, a] = 0.0
        turned_times(matrix, 0, raised[0], lowered[0], 1.0, tiles)  # A' N A K
        for i in range(h):
            for j in range(h):
                sums.states[LATER_STEP, i, j] += count * pulled[0, i, j]
                sums.states[LATER, i, j] += count * path.information[later, i, j]
        for a in range(n):
            for j in range(h):
                shared[a, j] = 0.0
        turned_times(lowered, 0, path.filtered[node], shared, 1.0, tiles)
        for a in range(n):
            for j in range(h):
                sums.seen[1, a, j] += count * (path.gain[node, j, a] - shared[a, j])
        turned_times(path.whitener, node, path.whitener[node], sums.noise[1], float(count), tiles)
        turned_times(path.gain, node, lowered[0], sums.noise[1], float(count), tiles)
        if with_moments:
            for i in range(h):
                for j in range(h):
                    smoothed[i, j] = path.filtered[node, i, j]
            turned_times(path.moved, node, pulled[0], smoothed, -1.0, tiles)
            most[k] = max(largest(path.information, later), most[later])
            widest, size = 0.0, largest(path.moved, node)
            for i in range(h):
                widest = max(widest, smoothed[i, i])
            is_exact = is_exact and size * size * most[k] <= limit * widest
            after = path.of[later] if later else -1
            if after >= 0:  # of all steps but the last
                times(path.predicted, path.parent[after], pulled, 0, lag, tiles)
            for i in range(h):
                for j in range(h):
                    value = (smoothed[i, j] + smoothed[j, i]) / 2
                    sums.states[COVARIANCE, i, j] += count * value
                    if k == places[0, 0]:
                        sums.states[FIRST_COVARIANCE, i, j] = value
                    if k == places[num_steps - 1, 0]:
                        sums.states[LAST_COVARIANCE, i, j] = value
                    if after >= 0:
                        sums.states[LAG_ONE, i, j] += count * (path.moved[node, i, j] - lag[i, j])
    for i in range(h):
        for j in range(h):
            sums.states[LATER_START, i, j] = path.information[places[0, 0], i, j]
    return is_exact


@jit
def room_back(many, h):
    back = Back(
        np.empty((many, h, h)), np.full(many, -1), np.full(many, -1), np.full(many, -1), np.full(many, -1), np.full(many, -1),
        np.empty(many), np.full(many, -1), np.empty(many),
    )  # fmt: skip
    for i in range(h):
        for j in range(h):
            back.information[0, i, j] = 0.0
    back.later[0], back.least[0], back.age[0], back.last[0] = 0, np.inf, 0, 0.0
    return back


@jit
def add_second_order(way, nodes, made, tables, tol, agree, sums, with_moments, tiles):
    """Sums of covariances; whether all digits are there."""
    (h, n), num_steps = nodes.gain.shape[1:], len(way.index)
    information, closed, steady = np.empty((made, h, h)), np.empty((made, h, h)), np.empty(made, np.bool_)
    seen, moved = np.empty((1, n, h)), np.empty((1, h, n))
    for node in range(made):
        steady[node] = nodes.later[node] == nodes.parent[node]
        times(tables.inverse, node, way.loadings, 0, seen[0], tiles)
        times(way.matrix, 0, nodes.gain, node, moved[0], tiles)
        if tiles is not None:
            for i in range(h):
                for j in range(h):
                    information[node, i, j], closed[node, i, j] = 0.0, way.matrix[0, i, j]
                for a in range(n):
                    moved[0, i, a] = -moved[0, i, a]
            turned_times(way.loadings, 0, seen[0], information[node], 1.0, tiles)
            add_times(moved[0], way.loadings[0], h, closed[node], False)
        else:
            for i in range(h):
                for j in range(h):
                    known, step = 0.0, way.matrix[0, i, j]
                    for a in range(n):
                        known += way.loadings[0, a, i] * seen[0, a, j]
                        step -= moved[0, i, a] * way.loadings[0, a, j]
                    information[node, i, j], closed[node, i, j] = known, step
    room, begin, places = min(num_steps, 256) + 2, 0, np.empty_like(way.index)
    counts = np.empty(1, np.int64)
    while True:
        back, counts[0] = room_back(room, h), 1
        begin = walk_back(
            num_steps - 1, way.index, places, np.zeros(1, np.int64), (information, closed), steady, np.full(made, -1), back,
            counts, tol, agree, True, tiles,
        )  # fmt: skip
        if begin < 0:
            break
        room *= 4
    path = Path(
        nodes.predicted, nodes.parent, nodes.filtered, nodes.gain, nodes.whitener, nodes.moved, back.information, back.of,
        back.later,
    )  # fmt: skip
    return add_covariances(way.matrix, path, counts[0], places, sums, with_moments, CAREFUL / EPS, tiles)
