"""Compiled loops over the means of a Gaussian chain: filter, smoother, sums of gradients and EM. Importing this imports numba.

Rows whose steps have the same covariances go side by side, as lanes, longest first: loops over lanes are what the compiler
makes vector instructions of, and each number of a matrix serves all of them. What the filter finds of a few rows is kept, and
read by the smoother while it is in a core's cache. The readable twin is :mod:`pplseq.kernels.gaussian.kalman_means`;
:mod:`pplseq.kernels.gaussian.compiled_kalman` calls these loops.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.product_loops import add_outer, add_product, set_to, turned_times

ROOM, KEPT = 1 << 19, 1 << 15  # numbers of a block, and of all blocks that are kept for the smoother
LANES, FEWEST = 64, 8  # rows of a block
SUMS, MOMENTS = 1, 2  # what is wanted
HALF_LOG_2PI = math.log(2 * math.pi) / 2

# order (R,) rows, of which those with the same column of index (T, U), the filtered node of each step, stand together; column
# (R,) of each of order; lengths (R,) of rows; or empty ones: rows as they stand, of one column, all T steps
Order = namedtuple("Order", "order column lengths index")
# values (R, T, n), 0 where missing; first (1 | R, h), offset (0 | 1 | T-1, 1 | R, h), shift (n,), matrix (1, h, h). Of kinds of
# observations loadings (P, n, h) and sizes (P,), how many numbers are seen. Of nodes kind (N,), gain (N, h, n), whitener
# (N, n, n) and half_log_det (N,)
Way = namedtuple("Way", "values first offset shift matrix loadings sizes kind gain whitener half_log_det")
# of nodes kind (N,), back (N, h, h) Sigma A', inverse (N, n, n) S^-1 and turned (N, n, h) -K'; of kinds upward (P, h, n) M';
# ahead (1, h, h) A'
Tables = namedtuple("Tables", "kind back inverse turned upward ahead")

# Sums over steps t and rows of products of x = E[x_t | all], lam and e, the derivatives of log p in the predicted mean and, but
# for the sign, in the observation; of covariances sums over steps and rows, N being minus the second derivative.
# states (14, h, h): see the numbers below; seen (2, n, h): e x' and K' - K' A' N A P; noise (2, n, n): e e' and
# S^-1 + K' A' N A K; vectors (6, h): lam of all steps but the first, of the first, x, x of the first and last steps, and of
# steps of which nothing is seen; errors (n,): e
Sums = namedtuple("Sums", "states seen noise vectors errors")
STEP, MOVE, START, SECOND, FIRST, LAST = range(6)  # lam x_{t-1}', lam lam' (t > 1), lam lam' (t = 1); x x', of t = 1, of t = T
LATER_STEP, LATER, LATER_START = 6, 7, 8  # N_{t+1} A P_t|t, N_{t+1}, N_1
COVARIANCE, FIRST_COVARIANCE, LAST_COVARIANCE, LAG_ONE = 9, 10, 11, 12  # Cov(x_t | all), t = 1, t = T, Cov(x_{t+1}, x_t | all)
UNSEEN = 13  # x x' of steps of which nothing is seen
SUMS_OF_STATES, SUMS_OF_VECTORS = 14, 6


def size_of_sums(h, n):
    return SUMS_OF_STATES * h * h + 2 * n * (h + n) + SUMS_OF_VECTORS * h + n


def parts_of(out, h, n):
    """Sums in a vector of numbers."""
    a, b = SUMS_OF_STATES * h * h, 2 * n * h
    c, d = a + b + 2 * n * n, SUMS_OF_VECTORS * h
    return Sums(
        out[:a].reshape(SUMS_OF_STATES, h, h), out[a : a + b].reshape(2, n, h), out[a + b : c].reshape(2, n, n),
        out[c : c + d].reshape(SUMS_OF_VECTORS, h), out[c + d : c + d + n],
    )  # fmt: skip


sums_in = jit(parts_of)


def num_lanes(num_steps, numbers):
    """Rows of which so many numbers a step stay in the cache."""
    return max(FEWEST, min(LANES, ROOM // (num_steps * numbers) // 8 * 8))


lanes_of = jit(num_lanes)


def rows_kept(num_steps, numbers):
    """Rows of whole blocks that are kept for the smoother."""
    lanes = num_lanes(num_steps, numbers)
    return lanes * max(1, KEPT // (num_steps * numbers * lanes))


# ---------------------------------------------------------------- blocks of rows
@jit
def next_block(given, num_steps, begin, end, rows, ends):
    """Rows of the next block and their ends, longest first; how many, and their column."""
    most, width = min(len(rows), end - begin), 0
    column = given.column[begin] if len(given.column) else 0
    while width < most and (len(given.column) == 0 or given.column[begin + width] == column):
        row = given.order[begin + width] if len(given.order) else begin + width
        rows[width], ends[width] = row, given.lengths[row] if len(given.lengths) else num_steps
        width += 1
    return width, column


@jit
def room_in(kept, at, num_steps, h, n, width):
    """Means (T, h, lanes) and innovations (T, n, lanes) of a block, and the place behind them."""
    middle = at + num_steps * h * width
    behind = middle + num_steps * n * width
    return kept[at:middle].reshape(num_steps, h, width), kept[middle:behind].reshape(num_steps, n, width), behind


# ---------------------------------------------------------------- filter
@jit
def put_rows(values, at, rows, width, out):
    """out (h, lanes) = vectors of a step (T, 1 | R, h)."""
    several = values.shape[1] > 1
    for lane in range(width):
        row = rows[lane] if several else 0
        for i in range(out.shape[0]):
            out[i, lane] = values[at, row, i]


@jit
def filter_block(way, index, rows, ends, width, column, lacking, means, errors, squares, tiles):
    """Filtered means (T, h, lanes) and innovations (T, n, lanes) of some rows; their log-likelihood, nats.

    Where there is room for them, squares (T, R): squared lengths of white innovations.
    """
    n, h, total = way.values.shape[2], way.matrix.shape[1], 0.0
    base, ahead, white = np.zeros((h, width)), np.empty((h, width)), np.empty((n, width))
    values, shift, by_step = way.values, way.shift, len(way.offset) > 1
    put_rows(way.first.reshape(1, *way.first.shape), 0, rows, width, ahead)
    if len(way.offset):
        put_rows(way.offset, 0, rows, width, base)
    for t in range(ends[0]):
        while ends[width - 1] <= t:
            width -= 1
        node = index[t, column]
        kind = way.kind[node]
        if t:
            if by_step:
                put_rows(way.offset, t - 1, rows, width, base)
            for i in range(h):
                for lane in range(width):
                    ahead[i, lane] = base[i, lane]
            add_product(way.matrix, 0, means[t - 1], width, ahead, tiles)
        for lane in range(width):
            for i in range(n):
                errors[t, i, lane] = values[rows[lane], t, i] - shift[i]
        add_product(lacking, kind, ahead, width, errors[t], tiles)
        for i in range(h):
            for lane in range(width):
                means[t, i, lane] = ahead[i, lane]
        add_product(way.gain, node, errors[t], width, means[t], tiles)
        for i in range(n):
            for lane in range(width):
                white[i, lane] = 0.0
        add_product(way.whitener, node, errors[t], width, white, tiles)
        square = 0.0
        for i in range(n):
            for lane in range(width):
                square += white[i, lane] * white[i, lane]
        total -= square / 2 + width * (way.half_log_det[node] + way.sizes[kind] * HALF_LOG_2PI)
        if len(squares):
            for lane in range(width):
                squares[t, rows[lane]] = 0.0
                for i in range(n):
                    squares[t, rows[lane]] += white[i, lane] * white[i, lane]
    return total


@jit(entry=True)
def filter_rows(
    begin, end, order, column, lengths, index, values, first, offset, shift, matrix, loadings, sizes, kind, gain, whitener,
    half_log_det, filtered, squares, kept, tiles,
):  # fmt: skip
    """The log-likelihood of rows begin..end-1 of the order, nats.

    Args:
        order ... half_log_det: see Order and Way. Where there is room for them, filtered (R, T, h) means, squares (T, R),
            squared lengths of white innovations, and kept (rows T (h + n),), what smooth_rows reads. tiles: see product_loops.
    """
    given = Order(order, column, lengths, index)
    way = Way(values, first, offset, shift, matrix, loadings, sizes, kind, gain, whitener, half_log_det)
    num_steps, h, n, total, at = len(index), matrix.shape[1], values.shape[2], 0.0, 0
    most = min(lanes_of(num_steps, h + n), end - begin)
    rows, ends, lacking = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(loadings.shape)
    for p in range(len(loadings)):
        for i in range(n):
            for j in range(h):
                lacking[p, i, j] = -loadings[p, i, j]
    room = kept if len(kept) else np.empty(most * num_steps * (h + n))
    while begin < end:
        width, place = next_block(given, num_steps, begin, end, rows, ends)
        means, errors, behind = room_in(room, at, num_steps, h, n, width)
        total += filter_block(way, index, rows, ends, width, place, lacking, means, errors, squares, tiles)
        if len(filtered):
            for lane in range(width):
                for t in range(ends[lane]):
                    for i in range(h):
                        filtered[rows[lane], t, i] = means[t, i, lane]
        begin += width
        at = behind if len(kept) else 0
    return total


# ---------------------------------------------------------------- smoother
@jit(entry=True)
def tables_of(made, matrix, loadings, gain, whitener, moved, back, inverse, turned, upward, ahead, tiles):
    """What the smoother goes by, see Tables, of the first nodes. moved: (N, h, h) A Sigma."""
    num_kinds, n, h = loadings.shape
    for node in range(made):
        for i in range(h):
            for j in range(h):
                back[node, i, j] = moved[node, j, i]
            for a in range(n):
                turned[node, a, i] = -gain[node, i, a]
        set_to(0.0, inverse[node])
        turned_times(whitener, node, whitener[node], inverse[node], 1.0, tiles)
    for i in range(h):
        for p in range(num_kinds):
            for a in range(n):
                upward[p, i, a] = loadings[p, a, i]
        for j in range(h):
            ahead[0, i, j] = matrix[0, j, i]


@jit
def add_sum(vectors, width, out):
    for i in range(vectors.shape[0]):
        total = 0.0
        for lane in range(width):
            total += vectors[i, lane]
        out[i] += total


@jit
def smooth_block(
    tables, index, rows, ends, most, column, means, errors, nothing, wanted, smoothed, adjoints, blames, sums, tiles
):
    """Adds what the smoothed means of a block say, or writes them; see smooth_rows."""
    n, h = errors.shape[1], means.shape[1]
    adjoint, ahead, error = np.zeros((h, most)), np.zeros((h, most)), np.empty((n, most))
    last = np.empty((h, most))
    # taken out here, as every look into an array counts references
    steps, moves, start, second = sums.states[STEP], sums.states[MOVE], sums.states[START], sums.states[SECOND]
    unseen, ends_second, vectors, errors_second = sums.states[UNSEEN], sums.states[LAST], sums.vectors, sums.noise[0]
    later, firsts, states_sum, ends_sum, unseen_sum = vectors[0], vectors[1], vectors[2], vectors[4], vectors[5]
    errors_state, errors_sum = sums.seen[0], sums.errors
    state, begun = means[0], 0  # rows whose last step is behind t
    for t in range(ends[0] - 1, -1, -1):
        width, node = begun, index[t, column]
        while width < most and ends[width] > t:
            width += 1
        state = means[t]
        for i in range(n):
            for lane in range(width):
                error[i, lane] = 0.0
        if begun:
            add_product(tables.back, node, adjoint, begun, state, tiles)
            for i in range(h):
                for lane in range(begun):
                    ahead[i, lane] = 0.0
            add_product(tables.ahead, 0, adjoint, begun, ahead, tiles)
            add_product(tables.turned, node, ahead, begun, error, tiles)
            if wanted & (SUMS | MOMENTS):
                add_outer(adjoint, state, begun, steps, tiles)
                add_outer(adjoint, adjoint, begun, moves, tiles)
                add_sum(adjoint, begun, later)
        if wanted & MOMENTS and begun < width:
            for i in range(h):
                for lane in range(begun, width):
                    last[i, lane - begun] = state[i, lane]
            add_outer(last, last, width - begun, ends_second, tiles)
            add_sum(last, width - begun, ends_sum)
        add_product(tables.inverse, node, errors[t], width, error, tiles)
        for i in range(h):
            for lane in range(width):
                adjoint[i, lane] = ahead[i, lane]
        add_product(tables.upward, tables.kind[node], error, width, adjoint, tiles)
        begun = width
        if len(smoothed):
            for lane in range(width):
                for i in range(h):
                    smoothed[rows[lane], t, i] = state[i, lane]
        if len(adjoints):
            for lane in range(width):
                for i in range(h):
                    adjoints[rows[lane], t, i] = adjoint[i, lane]
                for i in range(n):
                    blames[rows[lane], t, i] = error[i, lane]
        if wanted & (SUMS | MOMENTS):
            add_outer(error, state, width, errors_state, tiles)
            add_outer(error, error, width, errors_second, tiles)
            add_sum(error, width, errors_sum)
        if wanted & MOMENTS:
            add_outer(state, state, width, second, tiles)
            add_sum(state, width, states_sum)
            if tables.kind[node] == nothing:
                add_outer(state, state, width, unseen, tiles)
                add_sum(state, width, unseen_sum)
    if wanted & (SUMS | MOMENTS):
        add_outer(adjoint, adjoint, begun, start, tiles)
        add_sum(adjoint, begun, firsts)
    if wanted & MOMENTS:
        add_outer(state, state, begun, sums.states[FIRST], tiles)
        add_sum(state, begun, sums.vectors[3])


@jit(entry=True)
def smooth_rows(
    begin, end, order, column, lengths, index, kind, back, inverse, turned, upward, ahead, nothing, wanted, smoothed, adjoints,
    errors, kept, out, tiles,
):  # fmt: skip
    """What is wanted of the smoothed means of rows begin..end-1 of the order, whose filtered ones filter_rows has kept.

    Args:
        order ... ahead: see Order and Tables. nothing: the kind of which nothing is seen, or -1.
        wanted: SUMS of all that gradients are made of, which are added in ``out``, see Sums; MOMENTS: sums of states with them.
        smoothed (R, T, h), adjoints (R, T, h) and errors (R, T, n): room for means, lam and e, or empty.
    """
    given, tables = Order(order, column, lengths, index), Tables(kind, back, inverse, turned, upward, ahead)
    num_steps, h, n, at = len(index), ahead.shape[1], inverse.shape[1], 0
    most = min(lanes_of(num_steps, h + n), end - begin)
    sums, rows, ends = sums_in(out, h, n), np.empty(most, np.int64), np.empty(most, np.int64)
    while begin < end:
        width, place = next_block(given, num_steps, begin, end, rows, ends)
        means, innovations, at = room_in(kept, at, num_steps, h, n, width)
        smooth_block(
            tables, index, rows, ends, width, place, means, innovations, nothing, wanted, smoothed, adjoints, errors, sums,
            tiles,
        )  # fmt: skip
        begin += width
