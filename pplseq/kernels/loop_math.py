"""Compiled functions that loops over chains call. Importing this module imports numba."""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.compiled import jit

LOG2E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
SMALLEST = -708.0  # its exponential is the last one with all digits
NAN_BITS = np.int64(0x7FF8000000000000)
C = tuple(1.0 / math.factorial(i) for i in range(14))


@jit(fastmath={"contract"})  # reassociation would undo the reduction in two parts
def exponentials(x, out, num_rows):
    """out = exp(x) for x <= 0, in the first rows, to two units in the last place; below SMALLEST what is exp(SMALLEST), so that
    only -inf gives 0."""
    size = num_rows * x.shape[1]
    x, out = x.ravel(), out.ravel()
    bits = out.view(np.int64)
    for j in range(size):
        v = SMALLEST if x[j] < SMALLEST else x[j]
        n = np.rint(v * LOG2E)
        r = (v - n * LN2_HIGH) - n * LN2_LOW
        p = C[11] + r * (C[12] + r * C[13])
        p = C[7] + r * (C[8] + r * (C[9] + r * (C[10] + r * p)))
        p = C[3] + r * (C[4] + r * (C[5] + r * (C[6] + r * p)))
        out[j] = 1.0 + r * (1.0 + r * (C[2] + r * p))
        shifted = bits[j] + (np.int64(n) << 52)
        bits[j] = np.int64(0) if x[j] == -np.inf else (shifted if x[j] == x[j] else NAN_BITS)


@jit
def log_sum(x, k):
    """log sum_j exp(x[k, j])."""
    most, total = -np.inf, 0.0
    for j in range(x.shape[1]):
        most = max(most, x[k, j])
    most = most if most > -np.inf else 0.0
    for j in range(x.shape[1]):
        total += math.exp(x[k, j] - most)
    return math.log(total) + most if total != 0.0 else -np.inf


@jit
def log_of(value, is_log):
    return value if is_log else (math.log(value) if value > 0 else -np.inf)


@jit(inline="always")  # passing arrays to a function costs more than a small product
def product(vectors, k, matrix, out, to):
    """out[to] = vectors[k] @ matrix."""
    num_states = matrix.shape[0]
    for j in range(num_states):
        out[to, j] = 0.0
    whole = num_states - num_states % 4
    for i in range(0, whole, 4):
        a, b, c, d = vectors[k, i], vectors[k, i + 1], vectors[k, i + 2], vectors[k, i + 3]
        for j in range(num_states):
            out[to, j] += a * matrix[i, j] + b * matrix[i + 1, j] + c * matrix[i + 2, j] + d * matrix[i + 3, j]
    for i in range(whole, num_states):
        a = vectors[k, i]
        for j in range(num_states):
            out[to, j] += a * matrix[i, j]
