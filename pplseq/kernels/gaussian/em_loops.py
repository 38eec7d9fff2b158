"""A compiled iteration of EM over whole rows of a Gaussian chain: sums over steps, the M-step, and coordinates.

The usual case alone: no priors, nothing held, every regression determined, every covariance clearly above its floor. All else
is refused, and the way that all systems take says what is the matter. Importing this module imports numba;
:mod:`pplseq.kernels.gaussian.whole` calls it. The readable twins are :mod:`pplseq.models.lds.quick_em` and
:mod:`pplseq.models.lds.statistics`.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.gaussian.block_loops import (
    COVARIANCE,
    FIRST,
    FIRST_COVARIANCE,
    LAG_ONE,
    LAST,
    LAST_COVARIANCE,
    LATER_STEP,
    MOMENTS,
    MOVE,
    SECOND,
    STEP,
    sums_in,
)
from pplseq.kernels.gaussian.whole_loops import (
    DONE,
    FULL_COVARIANCE,
    FULL_NOISE,
    MORE_ROOM,
    OFFSET,
    REFUSED,
    SHIFT,
    backward,
    forward,
    given_by,
    gram,
)

CLEAR = 1e-4  # as in models/lds/parameters.py: pivots of a covariance, of its deviations, of which no digits are lost
OPEN = 1e-6  # pivots of moments, of units, below which a direction may be open
CLEARLY = 1e12  # as in models/lds/statistics.py
NOTHING, LOST, FLOOR = 1e-10, 1e-12, 1e-6  # as in infer/fit/em.py and models/lds/fit.py
VARIES = 1e-9  # the least variance, of the mean square, of data that certainly are not alike

# A regression W on r: current weights (m, k), and of moments E[r r'] (k, k), cross E[(y - W r) r'] (m, k) and scatter
# E[(y - W r)(y - W r)'] (m, m) the sums over so many steps
Regression = namedtuple("Regression", "weights moment cross scatter count")


# ---------------------------------------------------------------- small matrices
@jit
def product(left, right):
    """left @ right."""
    out = np.zeros((left.shape[0], right.shape[1]))
    for i in range(left.shape[0]):
        for k in range(left.shape[1]):
            for j in range(right.shape[1]):
                out[i, j] += left[i, k] * right[k, j]
    return out


@jit
def turned_product(left, right):
    """left @ right'."""
    out = np.zeros((left.shape[0], right.shape[0]))
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            for k in range(left.shape[1]):
                out[i, j] += left[i, k] * right[j, k]
    return out


@jit
def cholesky(matrix, out, share):
    """out = the lower factor; False unless every pivot is above this share of its deviation."""
    for i in range(len(matrix)):
        for j in range(i):
            value = matrix[i, j]
            for k in range(j):
                value -= out[i, k] * out[j, k]
            out[i, j], out[j, i] = value / out[j, j], 0.0
        value = matrix[i, i]
        for k in range(i):
            value -= out[i, k] * out[i, k]
        if not (value > 0.0 and value > share * share * matrix[i, i]):
            return False
        out[i, i] = math.sqrt(value)
    return True


@jit
def step_of(about):
    """(m, k) X of X moment = cross, and whether the moments determine it."""
    m, k = about.cross.shape
    scale, unit, factor = np.empty(k), np.empty((k, k)), np.empty((k, k))
    for i in range(k):
        if not about.moment[i, i] > 0.0:
            return factor, False
        scale[i] = math.sqrt(about.moment[i, i])
    for i in range(k):
        for j in range(k):
            unit[i, j] = about.moment[i, j] / scale[i] / scale[j]
    if not cholesky(unit, factor, math.sqrt(OPEN)):
        return factor, False
    step = np.empty((m, k))
    for row in range(m):
        for i in range(k):
            value = about.cross[row, i] / scale[i]
            for j in range(i):
                value -= factor[i, j] * step[row, j]
            step[row, i] = value / factor[i, i]
        for i in range(k - 1, -1, -1):
            value = step[row, i]
            for j in range(i + 1, k):
                value -= factor[j, i] * step[row, j]
            step[row, i] = value / factor[i, i]
        for i in range(k):
            step[row, i] /= scale[i]
    return step, True


@jit
def is_above(covariance, lowest):
    """Whether a covariance is clearly above the floor in every direction: of variances (m,)."""
    size = len(covariance)
    unit = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            unit[i, j] = covariance[i, j] / math.sqrt(lowest[i] * lowest[j])
            if not abs(unit[i, j]) < CLEARLY:
                return False
        unit[i, i] -= 2.0
    return cholesky(unit, np.empty((size, size)), 0.0)


@jit
def scale_of(covariance, lowest, full, factor):
    """factor = that of a covariance, or deviations on the diagonal; False where it is not clearly above its floor."""
    if full:
        return is_above(covariance, lowest) and cholesky(covariance, factor, CLEAR)
    for i in range(len(covariance)):
        for j in range(len(covariance)):
            factor[i, j] = 0.0
        if not 2.0 * lowest[i] < covariance[i, i] < lowest[i] * CLEARLY:
            return False
        factor[i, i] = math.sqrt(covariance[i, i])
    return True


# ---------------------------------------------------------------- the M-step
@jit
def fit_regression(about, lowest, full, weights, factor):
    """weights and factor = the likeliest ones; False where that is not plain."""
    step, determined = step_of(about)
    if not (determined and about.count > 0.0):
        return False
    moved, raised = turned_product(step, about.cross), turned_product(product(step, about.moment), step)
    covariance = np.empty(about.scatter.shape)
    for i in range(len(covariance)):
        for j in range(i + 1):
            value = (
                (about.scatter[i, j] + about.scatter[j, i] + raised[i, j] + raised[j, i]) / 2
                - moved[i, j]
                - moved[j, i]
            )
            covariance[i, j] = covariance[j, i] = value / about.count
        for j in range(weights.shape[1]):
            weights[i, j] = about.weights[i, j] + step[i, j]
    return scale_of(covariance, lowest, full, factor)


@jit
def bordered(matrix, vector, more):
    """[matrix | vector], if there are more columns; else matrix."""
    if not more:
        return matrix.copy()
    out = np.empty((matrix.shape[0], matrix.shape[1] + 1))
    out[:, :-1], out[:, -1] = matrix, vector
    return out


@jit
def moment_of(second, first, count, more):
    """Of a state, with a one if there are more columns."""
    if not more:
        return second.copy()
    out = np.empty((len(first) + 1, len(first) + 1))
    out[:-1, :-1], out[-1, :-1], out[:-1, -1], out[-1, -1] = second, first, first, count
    return out


@jit
def set_floors(count, first, second, out):
    """out = a share of variances, from sums of vectors and their squares; whether any of them clearly varies."""
    varies = False
    for i in range(len(out)):
        square, mean = second[i] / max(count, NOTHING), first[i] / max(count, NOTHING)
        variance = square - mean * mean
        varies = varies or variance > VARIES * square
        out[i] = FLOOR * (max(variance, LOST * square) if square > 0.0 else 1.0)
    return varies


@jit
def regressions_of(given, sums, num_rows, num_steps, form):
    """Of moves and of observations: see pplseq.kernels.gaussian.whole.Moments."""
    states, steps = sums.states, float(num_rows * num_steps)
    matrix, loadings = given.matrix[0], given.loadings[0]
    noise, covariance, spread = gram(given.noise), gram(given.covariance), states[COVARIANCE]
    before, after = spread - states[LAST_COVARIANCE], spread - states[FIRST_COVARIANCE]
    across = turned_product(matrix, states[LAG_ONE])
    moved = product(product(noise, states[MOVE]), noise) + after - across - across.T
    moved += turned_product(product(matrix, before), matrix)
    error = product(product(covariance, sums.noise[0]), covariance) + turned_product(
        product(loadings, spread), loadings
    )
    state, state_before = sums.vectors[2], sums.vectors[2] - sums.vectors[4]
    moves = product(noise, states[STEP] - states[LATER_STEP])
    errors = product(covariance, sums.seen[0]) - product(loadings, spread)
    moved_sum = product(noise, sums.vectors[0].copy().reshape(-1, 1))[:, 0]
    error_sum = product(covariance, sums.errors.copy().reshape(-1, 1))[:, 0]
    offset, shift, moving = form & OFFSET != 0, form & SHIFT != 0, steps - num_rows
    of_moves = Regression(
        bordered(matrix, given.offset, offset), moment_of(states[SECOND] - states[LAST] + before, state_before, moving, offset),
        bordered(moves, moved_sum, offset), moved, moving,
    )  # fmt: skip
    of_data = Regression(
        bordered(loadings, given.shift, shift), moment_of(states[SECOND] + spread, state, steps, shift),
        bordered(errors, error_sum, shift), error, steps,
    )  # fmt: skip
    return of_moves, of_data


@jit
def put_factor(factor, full, logarithms, out, at):
    """Writes a factor, or its diagonal, whose entries may become logarithms; the place behind it."""
    size = len(factor)
    for i in range(size):
        value = math.log(factor[i, i]) if logarithms else factor[i, i]
        if not full:
            out[at + i] = value
            continue
        for j in range(size):
            out[at + i * size + j] = factor[i, j] if j < i else 0.0
        out[at + i * size + i] = value
    return at + (size * size if full else size)


@jit
def put(values, out, at):
    """Writes a matrix; the place behind it."""
    out[at : at + values.size] = values.copy().reshape(-1)
    return at + values.size


@jit
def maximize(values, given, sums, form, floor, lowest, out):
    """out = numbers of the likeliest system; False where the M-step is not plain. lowest (h + n,): floors, out."""
    (num_rows, num_steps, n), h = values.shape, len(given.first)
    first, square = np.zeros(n), np.zeros(n)
    for row in range(num_rows):
        for t in range(num_steps):
            for i in range(n):
                first[i] += values[row, t, i]
                square[i] += values[row, t, i] * values[row, t, i]
    steps, states = float(num_rows * num_steps), sums.states
    moves, seen = regressions_of(given, sums, num_rows, num_steps, form)
    second = np.empty(h)
    for i in range(h):
        second[i] = seen.moment[i, i]
    set_floors(steps, sums.vectors[2], second, lowest[:h])
    if not set_floors(steps, first, square, lowest[h:]):
        return False
    if floor > 0.0:
        lowest[:] = floor
    weights, factor, at = np.empty(moves.cross.shape), np.empty((h, h)), 0
    if not fit_regression(moves, lowest[:h], form & FULL_NOISE != 0, weights, factor):
        return False
    at = put(weights[:, :h], out, at)
    if form & OFFSET:
        at = put(weights[:, h:], out, at)
    at = put_factor(factor, form & FULL_NOISE != 0, False, out, at)
    weights, blurred = np.empty(seen.cross.shape), np.empty((n, n))
    if not fit_regression(seen, lowest[h:], form & FULL_COVARIANCE != 0, weights, blurred):
        return False
    at = put(weights[:, :h], out, at)
    if form & SHIFT:
        at = put(weights[:, h:], out, at)
    at = put_factor(blurred, form & FULL_COVARIANCE != 0, True, out, at)
    start, mean = np.empty((h, h)), sums.vectors[3] / num_rows
    for i in range(h):
        for j in range(h):
            total = states[FIRST, i, j] + states[FIRST_COVARIANCE, i, j]
            start[i, j] = total / num_rows - mean[i] * mean[j]
        out[at + i] = mean[i]
    if not scale_of(start, lowest[:h], True, factor):
        return False
    put_factor(factor, True, False, out, at + h)
    return True


# ---------------------------------------------------------------- coordinates
@jit
def deviations_of(factor, out):
    """out = the deviations of a covariance; False where it is singular, or nearly."""
    for i in range(len(factor)):
        square = 0.0
        for j in range(i + 1):
            square += factor[i, j] * factor[i, j]
        out[i] = math.sqrt(square)
        if not (abs(factor[i, i]) > CLEAR * out[i] and out[i] < np.inf):
            return False
    return True


@jit
def put_weights(weights, deviations, out, units, at):
    for i in range(weights.shape[0]):
        for j in range(weights.shape[1]):
            out[at], units[at] = weights[i, j], deviations[i]
            at += 1
    return at


@jit
def put_scale(factor, full, out, units, at):
    """Logarithms of a factor's diagonal, and the rest in units of it."""
    size = len(factor)
    end = at + (size * size if full else size)
    for k in range(at, end):
        out[k], units[k] = 0.0, 1.0
    for i in range(size):
        out[at + (i * size + i if full else i)] = math.log(abs(factor[i, i]))
        if full:
            for j in range(i):
                out[at + i * size + j] = factor[i, j] * (1.0 if factor[j, j] > 0.0 else -1.0) / abs(factor[i, i])
    return end


@jit
def set_coordinates(given, form, out, units):
    """out, units (P,) = a system's coordinates, where its numbers stand; False where a covariance is singular, or nearly."""
    n, h = given.loadings.shape[1:]
    moved, seen, begun, at = np.empty(h), np.empty(n), np.empty(h), 0
    if not (
        deviations_of(given.noise, moved)
        and deviations_of(given.covariance, seen)
        and deviations_of(given.start, begun)
    ):
        return False
    at = put_weights(given.matrix[0], moved, out, units, at)
    if form & OFFSET:
        at = put_weights(given.offset.reshape(h, 1), moved, out, units, at)
    at = put_scale(given.noise, form & FULL_NOISE != 0, out, units, at)
    at = put_weights(given.loadings[0], seen, out, units, at)
    if form & SHIFT:
        at = put_weights(given.shift.reshape(n, 1), seen, out, units, at)
    at = put_scale(given.covariance, form & FULL_COVARIANCE != 0, out, units, at)
    at = put_weights(given.first.copy().reshape(h, 1), begun, out, units, at)
    put_scale(given.start, True, out, units, at)
    return True


@jit
def scale_in(coordinates, at, full, lowest, out):
    """out = the factor that coordinates at a place stand for; the place behind it, or -1 where it is not clearly above its
    floor."""
    size = len(out)
    for i in range(size):
        out[i, i] = math.exp(coordinates[at + (i * size + i if full else i)])
        for j in range(size):
            if j != i:
                out[i, j] = coordinates[at + i * size + j] * out[i, i] if full and j < i else 0.0
    covariance = gram(out)
    for i in range(size):
        if not full and not covariance[i, i] > 2.0 * lowest[i]:
            return -1
    if full and not is_above(covariance, lowest):
        return -1
    return at + (size * size if full else size)


# ---------------------------------------------------------------- the two entries
@jit(entry=True)
def step(values, numbers, h, form, tol, agree, many, floor, new, here, image, units, lowest, tiles):
    """An iteration of EM on whole rows (R, T, n).

    Args:
        numbers ... many: as for forward. floor: the smallest variance, or 0 for a share of that of the data, or the states.
        new, here, image, units (P,), lowest (h + n,): out, the next numbers, the coordinates of these and of those, the units
            of the latter, and the floors of states and data. tiles: see product_loops.

    Returns:
        DONE or REFUSED, and the log-likelihood at the numbers, nats.
    """
    num_steps, n = values.shape[1:]
    while True:
        reals, integers = np.empty(many * (3 * h * h + h * n + n * n + 4)), np.empty(9 * many + 4 + num_steps, np.int64)
        status, log_prob = forward(values, numbers, h, form, tol, agree, many, reals, integers, True, 0, tiles)
        if status != MORE_ROOM:
            break
        many *= 4
    if status != DONE:
        return REFUSED, 0.0
    out, no_means = np.zeros(len(numbers) + 13 * h * h + 2 * n * (h + n) + 5 * h + n), np.empty((0, 0, 0))
    status, log_prob = backward(values, numbers, h, form, tol, agree, many, reals, integers, MOMENTS, no_means, out, tiles)
    if status != DONE:
        return REFUSED, 0.0
    given, sums = given_by(numbers, h, n, form), sums_in(out[len(numbers) :], h, n)
    if not maximize(values, given, sums, form, floor, lowest, new):
        return REFUSED, 0.0
    for k in range(len(new)):
        if not abs(new[k]) < np.inf:
            return REFUSED, 0.0
    is_plain = set_coordinates(given, form, here, units) and set_coordinates(
        given_by(new, h, n, form), form, image, units
    )
    return DONE if is_plain else REFUSED, log_prob


@jit(entry=True)
def numbers_at(coordinates, h, n, form, lowest, new):
    """new (P,) = the numbers of a system from its coordinates; False where a covariance is not clearly above its floor."""
    full, seen, at = form & FULL_NOISE != 0, form & FULL_COVARIANCE != 0, h * h + (h if form & OFFSET else 0)
    for k in range(len(new)):
        new[k] = coordinates[k]
        if not abs(new[k]) < np.inf:
            return False
    noise, covariance = np.empty((h, h)), np.empty((n, n))
    behind = scale_in(coordinates, at, full, lowest[:h], noise)
    if behind < 0:
        return False
    put_factor(noise, full, False, new, at)
    at = behind + n * h + (n if form & SHIFT else 0)
    behind = scale_in(coordinates, at, seen, lowest[h:], covariance)
    if behind < 0:
        return False
    put_factor(covariance, seen, True, new, at)
    at = behind + h
    if scale_in(coordinates, at, True, lowest[:h], noise) < 0:
        return False
    put_factor(noise, True, False, new, at)
    return True
