"""Compiled loops of softmax regressions: passes over rows, and Newton's method by them. Importing this module imports numba.

The readable twin is in :mod:`pplseq.models.iohmm.restarts.regressions`.
"""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.loop_math import exponentials

EPS, TINY = 2.220446049250313e-16, 2.2250738585072014e-308
CHUNK = 512  # rows at a time: they stay in a core's own cache


@jit
def pass_over(features, counts, total, weights, allowed, derivatives, gradient, hessian):
    """The value of one regression at its weights, and what Newton's method needs there.

    Args:
        features: (F, N). counts: (K, N). total: (N,) their sums. weights: (F, K). allowed: (K,) bool.
        derivatives: whether to write gradient (F, K) and hessian (F K, F K), minus the second derivatives.

    Returns:
        sum_nk counts_nk log softmax(features weights)_nk, nats.
    """
    num_features, num_classes = weights.shape
    num_rows = len(total)
    logit, prob = np.empty((num_classes, CHUNK)), np.empty((num_classes, CHUNK))
    top, mass, cross = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    if derivatives:
        gradient[:] = 0.0
        hessian[:] = 0.0
    value = 0.0
    for begin in range(0, num_rows, CHUNK):
        size = min(CHUNK, num_rows - begin)
        for k in range(num_classes):
            for n in range(size):
                logit[k, n] = 0.0 if allowed[k] else -np.inf
            if allowed[k]:
                for f in range(num_features):
                    weight = weights[f, k]
                    for n in range(size):
                        logit[k, n] += features[f, begin + n] * weight
        for n in range(size):
            top[n] = logit[0, n]
            mass[n] = 0.0
        for k in range(1, num_classes):
            for n in range(size):
                top[n] = max(top[n], logit[k, n])
        for k in range(num_classes):
            for n in range(size):
                logit[k, n] -= top[n]
            for n in range(size, CHUNK):
                logit[k, n] = 0.0
        exponentials(logit, prob, num_classes)
        for k in range(num_classes):
            for n in range(size):
                mass[n] += prob[k, n]
        for n in range(size):
            top[n] = math.log(mass[n])
        for k in range(num_classes):
            if allowed[k]:
                for n in range(size):
                    value += counts[k, begin + n] * (logit[k, n] - top[n])
            else:
                for n in range(size):
                    if counts[k, begin + n] > 0.0:
                        value = -np.inf
        if not derivatives:
            continue
        for k in range(num_classes):
            for n in range(size):
                prob[k, n] /= mass[n]
        for k in range(num_classes):
            for f in range(num_features):
                own = 0.0
                for n in range(size):
                    own += features[f, begin + n] * (counts[k, begin + n] - total[begin + n] * prob[k, n])
                gradient[f, k] += own
            for j in range(k, num_classes):
                for n in range(size):
                    cross[n] = total[begin + n] * prob[k, n] * ((1.0 - prob[k, n]) if k == j else -prob[j, n])
                for f in range(num_features):
                    for g in range(f, num_features):
                        own = 0.0
                        for n in range(size):
                            own += features[f, begin + n] * features[g, begin + n] * cross[n]
                        hessian[f * num_classes + k, g * num_classes + j] += own
    if derivatives:
        for f in range(num_features):
            for g in range(f, num_features):
                for k in range(num_classes):
                    for j in range(k, num_classes):
                        own = hessian[f * num_classes + k, g * num_classes + j]
                        hessian[g * num_classes + j, f * num_classes + k] = own
                        hessian[f * num_classes + j, g * num_classes + k] = own
                        hessian[g * num_classes + k, f * num_classes + j] = own
    return value


@jit
def value_at(features, counts, total, weights, allowed, ridge, derivatives, gradient, hessian):
    """:func:`pass_over` with a Normal prior of these precisions (F,)."""
    value = pass_over(features, counts, total, weights, allowed, derivatives, gradient, hessian)
    for f in range(weights.shape[0]):
        for k in range(weights.shape[1]):
            value -= ridge[f] * weights[f, k] * weights[f, k] / 2
    return value


@jit
def solve(matrix, right, out):
    """out = matrix^-1 right, by Cholesky's factor, which takes the matrix's place; NaN where there is none."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1):
            value = matrix[i, j]
            for k in range(j):
                value -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = value / matrix[j, j] if j < i else math.sqrt(value) if value > 0.0 else np.nan
        value = right[i]
        for k in range(i):
            value -= matrix[i, k] * out[k]
        out[i] = value / matrix[i, i]
    for i in range(size - 1, -1, -1):
        for k in range(i + 1, size):
            out[i] -= matrix[k, i] * out[k]
        out[i] /= matrix[i, i]


@jit(entry=True)
def climb(features, counts, total, weights, allowed, ridge, max_iterations, halvings, tolerance):
    """Newton's method with halved steps, from weights (F, K), where the result goes; never down.

    Args:
        features ... allowed: as for :func:`pass_over`. ridge: (F,). max_iterations, tolerance: as for softmax_regression.
            halvings: of a step, at most.

    Returns:
        The value, nats; iterations; whether it is at rest.
    """
    (num_features, num_classes), unpenalised, mass, fair = weights.shape, True, 0.0, 0
    size, slight = num_features * num_classes, EPS**0.6
    gradient, hessian, trial = np.empty(weights.shape), np.empty((size, size)), np.empty(weights.shape)
    slope, step = np.empty(size), np.empty(size)
    for n in range(len(total)):
        mass += total[n]
    for k in range(num_classes):
        fair += 1 if allowed[k] else 0
    for f in range(num_features):
        unpenalised = unpenalised and ridge[f] == 0.0
    least = tolerance * max(mass, 1.0)
    value = value_at(features, counts, total, weights, allowed, ridge, True, gradient, hessian)
    for iteration in range(1, max_iterations + 1):
        for f in range(num_features):
            top = -np.inf
            for i in range(f * num_classes, (f + 1) * num_classes):
                slope[i] = gradient[f, i % num_classes] - ridge[f] * weights[f, i % num_classes]
                hessian[i, i] += ridge[f]
                top = max(top, hessian[i, i])
            for i in range(f * num_classes, (f + 1) * num_classes):  # a direction is flat (all classes up together, say)
                hessian[i, i] += slight * top + TINY**0.5  # in the feature's own units
        solve(hessian, slope, step)
        promise, share = 0.0, 1.0
        for f in range(num_features):
            mean = 0.0
            if unpenalised:  # adding the same to all classes changes nothing: rounding must not, either
                for k in range(num_classes):
                    mean += step[f * num_classes + k] / fair if allowed[k] else 0.0
            for k in range(num_classes):
                i = f * num_classes + k
                if unpenalised:
                    step[i] = step[i] - mean if allowed[k] else 0.0
                promise += slope[i] * step[i]
        if not promise / 2 > least:
            return value, iteration, True
        while True:
            for f in range(num_features):
                for k in range(num_classes):
                    trial[f, k] = weights[f, k] + share * step[f * num_classes + k]
            reached = value_at(features, counts, total, trial, allowed, ridge, share == 1.0, gradient, hessian)
            if reached >= value:
                break
            share /= 2
            if share < 0.5 ** (halvings - 1):
                return value, iteration, True
        value = reached
        weights[:] = trial
        if share < 1.0:
            value_at(features, counts, total, weights, allowed, ridge, True, gradient, hessian)
    return value, max_iterations, False
