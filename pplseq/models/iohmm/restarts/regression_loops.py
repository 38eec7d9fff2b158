"""Compiled passes over the rows of softmax regressions. Importing this module imports numba.

The readable twin is in :mod:`pplseq.models.iohmm.restarts.regressions`.
"""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.loop_math import exponentials

MATH = 4034617263  # checksum of loop_math.py: for machine code on disk, numba notices changes in this file alone
CHUNK = 512  # rows at a time: they stay in a core's own cache


@jit(entry=True)
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
