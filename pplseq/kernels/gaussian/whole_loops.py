"""Compiled loops over whole rows of a Gaussian chain: likelihood, smoothed means, and the sums of gradients and EM.

Whole rows have one length and nothing missing, so that they share all covariances. A call of a compiled function takes as long
as a short row, so there are two entries, and they take few arrays: a system comes as one vector of numbers, and what
:func:`forward` finds of covariances stays in two vectors, which :func:`backward` reads. Importing this module imports numba;
:mod:`pplseq.kernels.gaussian.whole` calls it, and names the twins.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.gaussian.block_loops import (
    FILTER,
    LAG_ONE,
    LATER,
    LATER_START,
    LATER_STEP,
    MOMENTS,
    MOVE,
    START,
    STEP,
    SUMS,
    Tables,
    Way,
    add_second_order,
    filter_block,
    lanes_of,
    smooth_block,
    sums_in,
)
from pplseq.kernels.gaussian.kalman_loops import FILTERED, Nodes, System, walk
from pplseq.kernels.product_loops import turned_times

DONE, MORE_ROOM, REFUSED = range(3)
OFFSET, FULL_NOISE, SHIFT, FULL_COVARIANCE = 1, 2, 4, 8  # what a vector of numbers holds

# A system as a vector of numbers holds it: factors are lower triangles F of covariances F F'. matrix (1, h, h), offset (h,),
# noise (h, h) a factor, loadings (1, n, h), shift (n,), covariance (n, n) a factor, first (h,), start (h, h) a factor
Given = namedtuple("Given", "matrix offset noise loadings shift covariance first start")


# ---------------------------------------------------------------- a system, and room for what is found
@jit
def triangle(numbers, at, full, logarithms, out):
    """out = the factor at a place, all of it or its diagonal, which may be logarithms; the place behind it."""
    size = len(out)
    for i in range(size):
        for j in range(size):
            out[i, j] = numbers[at + i * size + j] if full and j < i else 0.0
        value = numbers[at + (i * size + i if full else i)]
        out[i, i] = math.exp(value) if logarithms else value
    return at + (size * size if full else size)


@jit
def gram(factor):
    """F F' of a lower triangle."""
    size = len(factor)
    out = np.empty((size, size))
    for i in range(size):
        for j in range(i + 1):
            value = 0.0
            for k in range(j + 1):
                value += factor[i, k] * factor[j, k]
            out[i, j], out[j, i] = value, value
    return out


@jit
def given_by(numbers, h, n, form):
    """A system from its numbers: matrix, offset, noise, loadings, shift, covariance, first, start."""
    offset, shift, at = np.zeros(h), np.zeros(n), h * h
    noise, covariance, start = np.empty((h, h)), np.empty((n, n)), np.empty((h, h))
    matrix = numbers[:at].reshape(1, h, h)
    if form & OFFSET:
        for i in range(h):
            offset[i] = numbers[at + i]
        at += h
    at = triangle(numbers, at, form & FULL_NOISE != 0, False, noise)
    loadings = numbers[at : at + n * h].reshape(1, n, h)
    at += n * h
    if form & SHIFT:
        for i in range(n):
            shift[i] = numbers[at + i]
        at += n
    at = triangle(numbers, at, form & FULL_COVARIANCE != 0, True, covariance)
    first = numbers[at : at + h]
    triangle(numbers, at + h, True, False, start)
    return Given(matrix, offset, noise, loadings, shift, covariance, first, start)


@jit
def nodes_in(reals, integers, many, h, n):
    """Room for so many nodes, in vectors of room_for(many, ...) numbers."""
    wide, long = many * h * h, many * h * n
    at = 3 * wide + long + many * n * n
    return Nodes(
        reals[:wide].reshape(many, h, h), reals[at : at + many], reals[at + many : at + 2 * many],
        integers[:many], reals[at + 2 * many : at + 3 * many], integers[many : 2 * many], integers[2 * many : 3 * many],
        integers[3 * many : 4 * many], integers[4 * many : 5 * many], integers[5 * many : 6 * many],
        integers[6 * many : 7 * many], integers[7 * many : 8 * many],
        reals[wide : 2 * wide].reshape(many, h, h), reals[3 * wide : 3 * wide + long].reshape(many, h, n),
        reals[3 * wide + long : at].reshape(many, n, n), reals[at + 3 * many : at + 4 * many],
        reals[2 * wide : 3 * wide].reshape(many, h, h),
    )  # fmt: skip


@jit
def walk_whole(given, nodes, integers, many, num_steps, tol, agree, tiles):
    """Nodes of all steps; DONE, MORE_ROOM or REFUSED."""
    h, n = len(given.first), len(given.shift)
    start, covariance, precision = gram(given.start), np.empty((1, n, n)), 0.0
    spread = gram(given.covariance)
    for i in range(n):
        size = 0.0
        for j in range(h):
            size += given.loadings[0, i, j] * given.loadings[0, i, j]
        for j in range(n):
            covariance[0, i, j] = spread[i, j]
        if not spread[i, i] > 0.0:
            return REFUSED
        precision = max(precision, size / spread[i, i])
    if not precision < np.inf:
        return REFUSED
    system = System(
        given.matrix[0], gram(given.noise), given.loadings, covariance, np.ones((1, n)), np.full(1, precision), -1, tol, agree
    )
    nodes.size[0] = 0.0
    for i in range(h):
        for j in range(h):
            nodes.predicted[0, i, j] = start[i, j]
            nodes.size[0] = max(nodes.size[0], abs(start[i, j]))
    nodes.least[0], nodes.age[0], nodes.last[0], nodes.first[0] = np.inf, 0, 0.0, -1
    at = 8 * many
    counts, fixed = integers[at : at + 4], integers[at + 4 : at + 4 + many]
    index = integers[at + 4 + many : at + 4 + many + num_steps].reshape(num_steps, 1)
    counts[0], counts[1], counts[2], counts[3] = 1, 0, 0, -1
    kinds, now = np.zeros((num_steps, 1), np.int64), np.zeros(1, np.int64)
    made = walk(0, system, kinds, index, now, nodes, counts, fixed, True, tiles)
    return DONE if made == num_steps else MORE_ROOM


@jit
def constant_of(nodes, index, n):
    """log p of a row whose innovations are zero."""
    total = 0.0
    for t in range(len(index)):
        total -= nodes.half_log_det[index[t, 0]]
    return total - len(index) * n * math.log(2 * math.pi) / 2


# ---------------------------------------------------------------- gradients
@jit
def of_factor(states, plus, minus, count, factor, full, logarithms, out, at):
    """At a place, the gradient in a factor F (see triangle), from that in F F'; the place behind it."""
    size = len(factor)
    for i in range(size):
        for j in range(0 if full else i, size if full else i + 1):
            value = 0.0
            for k in range(j, size if j <= i else j):
                value += (states[plus, i, k] - count * states[minus, i, k]) * factor[k, j]
            out[at + (i * size + j if full else i)] = value * factor[i, i] if logarithms and i == j else value
    return at + (size * size if full else size)


@jit
def to_gradients(given, sums, count, form, out):
    """The gradients in all numbers of a system, where they stand."""
    (n, h), states, at = given.loadings.shape[1:], sums.states, 0
    for i in range(h):
        for j in range(h):
            out[at] = states[STEP, i, j] - count * states[LATER_STEP, i, j]
            at += 1
    if form & OFFSET:
        for i in range(h):
            out[at + i] = sums.vectors[0, i]
        at += h
    at = of_factor(states, MOVE, LATER, count, given.noise, form & FULL_NOISE != 0, False, out, at)
    for a in range(n):
        for j in range(h):
            out[at] = sums.seen[0, a, j] - count * sums.seen[1, a, j]
            at += 1
    if form & SHIFT:
        for a in range(n):
            out[at + a] = sums.errors[a]
        at += n
    at = of_factor(sums.noise, 0, 1, count, given.covariance, form & FULL_COVARIANCE != 0, True, out, at)
    for i in range(h):
        out[at + i] = sums.vectors[1, i]
    of_factor(states, START, LATER_START, count, given.start, True, False, out, at + h)


# ---------------------------------------------------------------- the two entries
@jit
def way_of(given, nodes, integers, many, num_steps):
    at = 8 * many + 4 + many
    index = integers[at : at + num_steps].reshape(num_steps, 1)
    return Way(given.first, given.offset, given.shift, given.matrix, given.loadings, nodes.gain, nodes.whitener, index)


@jit(entry=True)
def forward(values, numbers, h, form, tol, agree, many, reals, integers, walks, wanted, tiles):
    """Covariances of whole rows (R, T, n), and, if FILTER is wanted, their log-likelihood.

    Args:
        numbers: of a system, see Given; form: what they hold. many: nodes that there is room for in reals and integers.
        walks: whether covariances are not yet there. tiles: see product_loops.

    Returns:
        DONE, MORE_ROOM or REFUSED, and nats.
    """
    num_rows, num_steps, n = values.shape
    total = 0.0
    for row in range(num_rows):
        for t in range(num_steps):
            for i in range(n):
                total += values[row, t, i]
    if not abs(total) < np.inf:
        return REFUSED, 0.0
    given, nodes, squares = given_by(numbers, h, n, form), nodes_in(reals, integers, many, h, n), 0.0
    if walks:
        status = walk_whole(given, nodes, integers, many, num_steps, tol, agree, tiles)
        if status != DONE:
            return status, 0.0
    if not wanted & FILTER:
        return DONE, 0.0
    way = way_of(given, nodes, integers, many, num_steps)
    most, means, errors = lanes_of(num_steps, h + n), np.empty((0, 0, 0)), np.empty((0, 0, 0))
    for block in range(0, num_rows, most):
        width = min(most, num_rows - block)
        if block == 0 or width < most:
            means, errors = np.empty((num_steps, h, width)), np.empty((num_steps, n, width))
        squares += filter_block(values, block, width, way, means, errors, tiles)
    log_prob = num_rows * constant_of(nodes, way.index, n) - squares / 2
    return DONE if abs(log_prob) < np.inf else REFUSED, log_prob


@jit(entry=True)
def backward(values, numbers, h, form, tol, agree, many, reals, integers, wanted, smoothed, out, tiles):
    """What :func:`forward` has prepared: the smoothed means (R, T, h) of rows, sums of them, gradients.

    Args:
        wanted: MEANS, which go into ``smoothed``; SUMS of all that gradients are made of, which go into ``out``, gradients
            first, then Sums; MOMENTS: sums of states with them.

    Returns:
        DONE, or REFUSED where digits would be lost or something is not finite; and nats.
    """
    num_rows, num_steps, n = values.shape
    given, nodes, squares, size = given_by(numbers, h, n, form), nodes_in(reals, integers, many, h, n), 0.0, len(numbers)
    way, made = way_of(given, nodes, integers, many, num_steps), integers[8 * many + FILTERED]
    tables = Tables(np.empty((made, h, h)), np.zeros((made, n, n)), np.empty((made, n, h)))
    for node in range(made):
        for i in range(h):
            for j in range(h):
                tables.back[node, i, j] = nodes.moved[node, j, i]
            for a in range(n):
                tables.turned[node, a, i] = -nodes.gain[node, i, a]
        turned_times(nodes.whitener, node, nodes.whitener[node], tables.inverse[node], 1.0, tiles)
    sums = sums_in(out[size:], h, n)
    most, means, errors = lanes_of(num_steps, h + n), np.empty((0, 0, 0)), np.empty((0, 0, 0))
    for block in range(0, num_rows, most):
        width = min(most, num_rows - block)
        if block == 0 or width < most:
            means, errors = np.empty((num_steps, h, width)), np.empty((num_steps, n, width))
        squares += filter_block(values, block, width, way, means, errors, tiles)
        smooth_block(block, width, way, tables, means, errors, sums, wanted, smoothed, tiles)
    log_prob, is_exact = num_rows * constant_of(nodes, way.index, n) - squares / 2, True
    if wanted & (SUMS | MOMENTS):
        is_exact = add_second_order(way, nodes, made, tables, tol, agree, sums, wanted & MOMENTS != 0, tiles)
        to_gradients(given, sums, num_rows, form, out)
        for i in range(h):  # of all rows together, as sums of means are
            for j in range(h):
                for k in range(LATER_STEP, LAG_ONE + 1):
                    sums.states[k, i, j] *= num_rows
    return DONE if is_exact and abs(log_prob) < np.inf else REFUSED, log_prob
