"""Compiled loops between a system as one vector of numbers and what goes over its steps: its matrices, sums of covariances over
all steps, and gradients. Importing this module imports numba; :mod:`pplseq.kernels.gaussian.systems` calls these loops.
"""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.gaussian.covariance_loops import CAREFUL, EPS, Store, back_in, nodes_in
from pplseq.kernels.gaussian.mean_loops import (
    COVARIANCE,
    FIRST_COVARIANCE,
    LAG_ONE,
    LAST_COVARIANCE,
    LATER,
    LATER_START,
    LATER_STEP,
    MOVE,
    START,
    STEP,
    sums_in,
)
from pplseq.kernels.product_loops import times, turned_times

OFFSET, FULL_NOISE, SHIFT, FULL_COVARIANCE = 1, 2, 4, 8  # what a vector of numbers holds


# ---------------------------------------------------------------- a system
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


@jit(entry=True)
def matrices_of(numbers, h, n, form, patterns):
    """A system from its numbers, for observations of these kinds (P, n), of which 1 is seen and 0 is missing.

    Returns:
        matrix (1, h, h), offset (0 | 1, 1, h), noise (h, h), loadings (P, n, h), shift (n,), covariances (P, n, n), first
        (1, h), start (1, h, h), covariance (n, n), factors of noise, covariance and start, and of each kind how many numbers
        are seen and their precision; and the largest, which is not finite where a number has no noise.
    """
    offset, shift, at = np.zeros((1 if form & OFFSET else 0, 1, h)), np.zeros(n), h * h
    factors = np.empty((h, h)), np.empty((n, n)), np.empty((h, h))
    if form & OFFSET:
        for i in range(h):
            offset[0, 0, i] = numbers[at + i]
        at += h
    at = triangle(numbers, at, form & FULL_NOISE != 0, False, factors[0])
    weights = numbers[at : at + n * h].reshape(n, h)
    at += n * h
    if form & SHIFT:
        for i in range(n):
            shift[i] = numbers[at + i]
        at += n
    at = triangle(numbers, at, form & FULL_COVARIANCE != 0, True, factors[1])
    triangle(numbers, at + h, True, False, factors[2])
    covariance, kinds = gram(factors[1]), len(patterns)
    loadings, covariances = np.empty((kinds, n, h)), np.empty((kinds, n, n))
    sizes, precision = np.zeros(kinds), np.zeros(kinds)
    for p in range(kinds):
        for i in range(n):
            size, seen = 0.0, patterns[p, i]
            for j in range(h):
                loadings[p, i, j] = weights[i, j] * seen
                size += loadings[p, i, j] * loadings[p, i, j]
            for j in range(n):
                covariances[p, i, j] = covariance[i, j] * seen * patterns[p, j]
            covariances[p, i, i] += 1.0 - seen
            sizes[p] += seen
            ratio = size / covariances[p, i, i] if covariances[p, i, i] > 0.0 else np.inf
            precision[p] = ratio if not ratio <= precision[p] else precision[p]
    start, largest_precision = gram(factors[2]), 0.0
    for p in range(kinds):
        largest_precision = precision[p] if not precision[p] <= largest_precision else largest_precision
    return (
        numbers[: h * h].reshape(1, h, h), offset, gram(factors[0]), loadings, shift, covariances,
        numbers[at : at + h].reshape(1, h), start.reshape(1, h, h), covariance, factors, sizes, precision, largest_precision,
    )  # fmt: skip


# ---------------------------------------------------------------- sums of covariances
@jit
def largest(matrix, k):
    most = 0.0
    for i in range(matrix.shape[1]):
        for j in range(matrix.shape[2]):
            most = max(most, abs(matrix[k, i, j]))
    return most


@jit(entry=True)
def add_covariances(
    matrix, squares, gains, whiteners, reals, integers, found, back_reals, back_integers, made, places, ends, weights,
    with_moments, out, spreads, tiles,
):  # fmt: skip
    """Adds sums over steps of what covariances say; returns whether all digits are there (see SmoothedPath).

    Args:
        matrix: (1, h, h). squares ... integers, found ... back_integers: nodes of the ways forth and back, of the latter the
            first ``made``. places: (T, V) the node of each step, of columns that end behind ends (V,) steps and stand for
            weights (V,) rows. out: see Sums. spreads: (P, h, h) of each kind, Cov(x_t | all), where moments are wanted.
    """
    nodes, back = nodes_in(Store(squares, gains, whiteners, reals, integers)), back_in(found, back_reals, back_integers)
    (h, n), is_exact = gains.shape[1:], True
    sums = sums_in(out, h, n)
    counts, firsts, lasts = np.zeros(made), np.zeros(made), np.zeros(made)
    for v in range(len(ends)):
        firsts[places[0, v]] += weights[v]
        lasts[places[ends[v] - 1, v]] += weights[v]
        for t in range(ends[v]):
            counts[places[t, v]] += weights[v]
    pulled, smoothed, lag = np.empty((1, h, h)), np.empty((h, h)), np.empty((h, h))
    moved, raised, lowered, shared = np.empty((1, h, n)), np.empty((1, h, n)), np.empty((1, h, n)), np.empty((n, h))
    most = np.zeros(made)
    for k in range(1, made):
        node, later, count = back.of[k], back.later[k], counts[k]
        times(back.information, later, nodes.moved, node, pulled[0], tiles)
        times(matrix, 0, nodes.gain, node, moved[0], tiles)
        times(back.information, later, moved, 0, raised[0], tiles)
        for i in range(h):
            for a in range(n):
                lowered[0, i, a] = 0.0
        turned_times(matrix, 0, raised[0], lowered[0], 1.0, tiles)  # A' N A K
        for i in range(h):
            for j in range(h):
                sums.states[LATER_STEP, i, j] += count * pulled[0, i, j]
                sums.states[LATER, i, j] += count * back.information[later, i, j]
                sums.states[LATER_START, i, j] += firsts[k] * back.information[k, i, j]
        for a in range(n):
            for j in range(h):
                shared[a, j] = 0.0
        turned_times(lowered, 0, nodes.filtered[node], shared, 1.0, tiles)
        for a in range(n):
            for j in range(h):
                sums.seen[1, a, j] += count * (nodes.gain[node, j, a] - shared[a, j])
        turned_times(nodes.whitener, node, nodes.whitener[node], sums.noise[1], count, tiles)
        turned_times(nodes.gain, node, lowered[0], sums.noise[1], count, tiles)
        if with_moments:
            for i in range(h):
                for j in range(h):
                    smoothed[i, j] = nodes.filtered[node, i, j]
            turned_times(nodes.moved, node, pulled[0], smoothed, -1.0, tiles)
            most[k] = max(largest(back.information, later), most[later])
            widest, size = 0.0, largest(nodes.moved, node)
            for i in range(h):
                widest = max(widest, smoothed[i, i])
            is_exact = is_exact and size * size * most[k] <= CAREFUL / EPS * widest
            after = back.of[later] if later else -1
            if after >= 0:  # of all steps but the last
                times(nodes.predicted, nodes.parent[after], pulled, 0, lag, tiles)
            kind = nodes.kind[node]
            for i in range(h):
                for j in range(h):
                    value = (smoothed[i, j] + smoothed[j, i]) / 2
                    sums.states[COVARIANCE, i, j] += count * value
                    sums.states[FIRST_COVARIANCE, i, j] += firsts[k] * value
                    sums.states[LAST_COVARIANCE, i, j] += lasts[k] * value
                    spreads[kind, i, j] += count * value
                    if after >= 0:
                        sums.states[LAG_ONE, i, j] += count * (nodes.moved[node, i, j] - lag[i, j])
    return is_exact


# ---------------------------------------------------------------- gradients
@jit
def of_factor(states, plus, minus, factor, full, logarithms, out, at):
    """At a place, the gradient in a factor F (see triangle), from that in F F'; the place behind it."""
    size = len(factor)
    for i in range(size):
        for j in range(0 if full else i, size if full else i + 1):
            value = 0.0
            for k in range(j, size if j <= i else j):
                value += (states[plus, i, k] - states[minus, i, k]) * factor[k, j]
            out[at + (i * size + j if full else i)] = value * factor[i, i] if logarithms and i == j else value
    return at + (size * size if full else size)


@jit(entry=True)
def gradients_of(factors, sums, h, n, form, out):
    """out (P,) = the gradients in all numbers of a system, where they stand. factors: of noise, covariance and start; sums: a
    vector, see Sums."""
    parts, at = sums_in(sums, h, n), 0
    states = parts.states
    for i in range(h):
        for j in range(h):
            out[at] = states[STEP, i, j] - states[LATER_STEP, i, j]
            at += 1
    if form & OFFSET:
        for i in range(h):
            out[at + i] = parts.vectors[0, i]
        at += h
    at = of_factor(states, MOVE, LATER, factors[0], form & FULL_NOISE != 0, False, out, at)
    for a in range(n):
        for j in range(h):
            out[at] = parts.seen[0, a, j] - parts.seen[1, a, j]
            at += 1
    if form & SHIFT:
        for a in range(n):
            out[at + a] = parts.errors[a]
        at += n
    at = of_factor(parts.noise, 0, 1, factors[1], form & FULL_COVARIANCE != 0, True, out, at)
    for i in range(h):
        out[at + i] = parts.vectors[1, i]
    of_factor(states, START, LATER_START, factors[2], True, False, out, at + h)
