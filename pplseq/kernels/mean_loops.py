"""Compiled loops over the means of a Gaussian chain with small states. Importing this module imports numba.

The readable twin is :mod:`pplseq.kernels.kalman_means`; :mod:`pplseq.kernels.compiled_kalman` calls these loops.

Eight rows whose steps have the same covariances go side by side and share each number of a matrix, which the compiler makes
one vector instruction of. A row alone wastes seven lanes, at no cost.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from pplseq.kernels.compiled import jit

LANES = 8

@jit(fastmath={"contract"})  # sums in another order would go along a row, and not across lanes
def product(matrix, node, vectors, base, sign, out):
    """out = base + sign matrix[node] @ vectors, lanes (., 8); out may be base, and not vectors."""
    for i in range(matrix.shape[1]):
        a, b, c, d, e, f, g, h = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for j in range(matrix.shape[2]):
            m = matrix[node, i, j]
            a += m * vectors[j, 0]
            b += m * vectors[j, 1]
            c += m * vectors[j, 2]
            d += m * vectors[j, 3]
            e += m * vectors[j, 4]
            f += m * vectors[j, 5]
            g += m * vectors[j, 6]
            h += m * vectors[j, 7]
        out[i, 0] = base[i, 0] + sign * a
        out[i, 1] = base[i, 1] + sign * b
        out[i, 2] = base[i, 2] + sign * c
        out[i, 3] = base[i, 3] + sign * d
        out[i, 4] = base[i, 4] + sign * e
        out[i, 5] = base[i, 5] + sign * f
        out[i, 6] = base[i, 6] + sign * g
        out[i, 7] = base[i, 7] + sign * h


# residual (T, R, n), first (R, h), offset (0 | 1 | T-1, 1 | R, h); tables (1 | P, ., .): matrix, backward (its transpose),
# loadings, unloadings (their transposes); of nodes (N, ., .): gain, ungain (its transpose), whitener, precision (S^-1),
# filtered; kind (N,); index (T, 1 | R); order (R,) rows, of which those of a block have the same nodes; lengths (R,)
Means = namedtuple(
    "Means", "residual first offset matrix backward loadings unloadings gain ungain whitener precision filtered kind index "
    "order lengths"
)  # fmt: skip


@jit(inline="always")
def expect(given, t, block, width, means, mean, vector, expected, zero):
    """expected = A x + a, or the first mean; mean is room for x."""
    h = given.first.shape[1]
    for lane in range(width):
        row = given.order[block + lane]
        for i in range(h):
            mean[i, lane] = means[t - 1, row, i] if t else 0.0
            if t == 0:
                vector[i, lane] = given.first[row, i]
            elif len(given.offset):
                at = t - 1 if len(given.offset) > 1 else 0
                vector[i, lane] = given.offset[at, row if given.offset.shape[1] > 1 else 0, i]
            else:
                vector[i, lane] = 0.0
    product(given.matrix, 0, mean, vector, 1.0, expected)


@jit(inline="always")
def innovate(given, t, block, width, kind, expected, rest):
    """rest = y - M expected."""
    for lane in range(width):
        row = given.order[block + lane]
        for i in range(rest.shape[0]):
            rest[i, lane] = given.residual[t, row, i]
    product(given.loadings, kind, expected, rest, -1.0, rest)


@jit(entry=True)
def filter_means(begin, end, blocks, given, means, squares):
    """Filtered means (T, R, h), and squared lengths (T, R) of white innovations, of blocks begin..end-1."""
    num_steps, _, n = given.residual.shape
    h = given.first.shape[1]
    mean, vector, expected = np.zeros((h, LANES)), np.zeros((h, LANES)), np.zeros((h, LANES))
    rest, white, zero = np.zeros((n, LANES)), np.zeros((n, LANES)), np.zeros((max(n, h), LANES))
    for which in range(begin, end):
        block, width = blocks[which], blocks[which + 1] - blocks[which]
        column = given.order[block] if given.index.shape[1] > 1 else 0
        for t in range(num_steps):
            node = given.index[t, column]
            expect(given, t, block, width, means, mean, vector, expected, zero)
            innovate(given, t, block, width, given.kind[node], expected, rest)
            product(given.whitener, node, rest, zero, 1.0, white)
            product(given.gain, node, rest, expected, 1.0, expected)
            for lane in range(width):
                row, total = given.order[block + lane], 0.0
                for i in range(n):
                    total += white[i, lane] * white[i, lane]
                squares[t, row] = total
                for i in range(h):
                    means[t, row, i] = expected[i, lane]


@jit(entry=True)
def smooth_means(begin, end, blocks, given, means, smoothed, adjoints, errors):
    """Smoothed means (T, R, h) of blocks begin..end-1, from filtered ones.

    Where there is room for them (T, R, .), else (0, R, .): lambda_t, the gradient of log p(y_t, y_t+1, ... | past) in the
    predicted mean, and e_t = S^-1 v - K' A' lambda_{t+1}, minus that in y_t; both 0 behind a row's end.
    """
    num_steps, _, n = given.residual.shape
    h = given.first.shape[1]
    mean, vector, expected = np.zeros((h, LANES)), np.zeros((h, LANES)), np.zeros((h, LANES))
    rest, error, zero = np.zeros((n, LANES)), np.zeros((n, LANES)), np.zeros((max(n, h), LANES))
    adjoint, ahead = np.zeros((h, LANES)), np.zeros((h, LANES))
    for which in range(begin, end):
        block, width = blocks[which], blocks[which + 1] - blocks[which]
        column = given.order[block] if given.index.shape[1] > 1 else 0
        adjoint[:] = 0.0
        for t in range(num_steps - 1, -1, -1):
            node = given.index[t, column]
            kind = given.kind[node]
            product(given.backward, 0, adjoint, zero, 1.0, ahead)
            product(given.filtered, node, ahead, zero, 1.0, mean)
            for lane in range(width):
                row = given.order[block + lane]
                for i in range(h):
                    smoothed[t, row, i] = means[t, row, i] + mean[i, lane]
            if t == 0 and not len(adjoints):
                break
            expect(given, t, block, width, means, mean, vector, expected, zero)
            innovate(given, t, block, width, kind, expected, rest)
            product(given.precision, node, rest, zero, 1.0, error)
            product(given.ungain, node, ahead, error, -1.0, error)
            product(given.unloadings, kind, error, ahead, 1.0, adjoint)
            for lane in range(width):
                row = given.order[block + lane]
                if t >= given.lengths[row]:
                    for i in range(h):
                        adjoint[i, lane] = 0.0
                    for i in range(n):
                        error[i, lane] = 0.0
                if len(adjoints):
                    for i in range(h):
                        adjoints[t, row, i] = adjoint[i, lane]
                    for i in range(n):
                        errors[t, row, i] = error[i, lane]
