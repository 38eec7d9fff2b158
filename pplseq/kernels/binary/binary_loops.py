"""Compiled loops over observed zeros and ones: log-probabilities and their gradients. Importing this module imports numba.

The readable twin is in :mod:`pplseq.kernels.binary.log_probs`. Shapes: logits (N, A, R, S, D), value (N, R, D), seen (N, R).

With z = logit for an observed one and -logit for a zero, a cell is log sigmoid(z) = min(z, 0) - log(1 + exp(-|z|)). Its
factors 1 + exp(-|z|), which are at most 2, are multiplied, so that many cells take one logarithm.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from pplseq.kernels.compiled import jit

LANES = 16  # cells handled side by side; rows are padded to a multiple with cells of probability one
FACTORS = 112  # before a logarithm is taken: 2^112 is within the range of float32
F, I = np.float32, np.int32
LOG2E, LN2_HIGH, LN2_LOW, LOWEST = F(1.4426950408889634), F(0.693359375), F(-2.12194440e-4), F(-87.0)
P1, P2, P3, P4, P5, P6 = F(1), F(1 / 2), F(1 / 6), F(1 / 24), F(1 / 120), F(1 / 720)
ONE, MAGIC, BIAS = F(1), F(12582912.0), I(127)  # adding and subtracting MAGIC rounds
LOG2E_64, LN2_HIGH_64, LN2_LOW_64 = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
LOWEST_64, MAGIC_64, BIAS_64 = -708.0, 6755399441055744.0, np.int64(1023)
C = tuple(1.0 / math.factorial(i) for i in range(14))


@intrinsic
def _as_float(_, bits):
    """The floating-point number with these bits."""
    found = types.float32 if bits == types.int32 else types.float64

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType() if found == types.float32 else ir.DoubleType())

    return found(bits), generate


def decay(x):
    """exp(x) for x <= 0 to two units in the last place, at least exp(LOWEST); any number for NaN."""
    raise NotImplementedError


@overload(decay, inline="always")
def _decay(x):
    if x == types.float32:

        def single(x):
            v = LOWEST if x < LOWEST else x
            n = (v * LOG2E + MAGIC) - MAGIC
            r = (v - n * LN2_HIGH) - n * LN2_LOW
            p = ONE + r * (P1 + r * (P2 + r * (P3 + r * (P4 + r * (P5 + r * P6)))))
            return p * _as_float(I((I(n) + BIAS) << I(23)))  # pyright: ignore[reportCallIssue]

        return single

    def double(x):
        v = LOWEST_64 if x < LOWEST_64 else x
        n = (v * LOG2E_64 + MAGIC_64) - MAGIC_64
        r = (v - n * LN2_HIGH_64) - n * LN2_LOW_64
        p = C[7] + r * (C[8] + r * (C[9] + r * (C[10] + r * (C[11] + r * (C[12] + r * C[13])))))
        p = 1.0 + r * (1.0 + r * (C[2] + r * (C[3] + r * (C[4] + r * (C[5] + r * (C[6] + r * p))))))
        return p * _as_float((np.int64(n) + BIAS_64) << np.int64(52))  # pyright: ignore[reportCallIssue]

    return double


@jit(inline="always")
def log_of_cells(low, factor, begin, end):
    """sum low - log prod factor, of so many cells, up to FACTORS; overwrites the first LANES of them."""
    for c in range(begin + LANES, end, LANES):
        for j in range(LANES):
            low[begin + j] += low[c + j]
            factor[begin + j] *= factor[c + j]
    for j in range(8):
        low[begin + j] += low[begin + 8 + j]
        factor[begin + j] *= factor[begin + 8 + j]
    for j in range(4):
        low[begin + j] += low[begin + 4 + j]
        factor[begin + j] *= factor[begin + 4 + j]
    least = (low[begin] + low[begin + 1]) + (low[begin + 2] + low[begin + 3])
    product = (factor[begin] * factor[begin + 1]) * (factor[begin + 2] * factor[begin + 3])
    return least - math.log(product)


@jit(entry=True, fastmath={"contract"})
def forward(begin, end, logits, value, seen, out):
    """out[n, a, r, s] = the sum of the log-probabilities of a row's cells, 0 for rows that were not seen; rows begin to end."""
    cells, states = logits.shape[4], logits.shape[3]
    padded = -(-cells // LANES) * LANES
    z = np.full(padded, np.inf, logits.dtype)  # beyond a row's cells: certain
    low, factor = np.empty(padded, logits.dtype), np.empty(padded, logits.dtype)
    zero, one = logits.dtype.type(0), logits.dtype.type(1)
    for n in range(logits.shape[0]):
        for a in range(logits.shape[1]):
            for r in range(begin, end):
                for s in range(states):
                    if not seen[n, r]:
                        out[n, a, r, s] = zero
                        continue
                    for d in range(cells):
                        x = logits[n, a, r, s, d]
                        z[d] = x if value[n, r, d] else -x
                    for c in range(0, padded, LANES):
                        for j in range(LANES):
                            x = z[c + j]
                            low[c + j] = zero if x > zero else x  # a NaN stays
                            factor[c + j] = one + decay(-abs(x))
                    total = 0.0
                    for c in range(0, padded, FACTORS):
                        total += log_of_cells(low, factor, c, min(padded, c + FACTORS))
                    out[n, a, r, s] = total


@jit(entry=True, fastmath={"contract"})
def backward(begin, end, logits, value, seen, grad, out):
    """out[n, a, r, s, d] = grad[n, a, r, s] times the derivative of log sigmoid(z) by the logit; rows begin to end."""
    cells, states = logits.shape[4], logits.shape[3]
    padded = -(-cells // LANES) * LANES
    z, slope = np.zeros(padded, logits.dtype), np.zeros(padded, logits.dtype)
    zero, one = logits.dtype.type(0), logits.dtype.type(1)
    for n in range(logits.shape[0]):
        for a in range(logits.shape[1]):
            for r in range(begin, end):
                for s in range(states):
                    if not seen[n, r]:
                        for d in range(cells):
                            out[n, a, r, s, d] = zero
                        continue
                    by = grad[n, a, r, s]
                    for d in range(cells):
                        x = logits[n, a, r, s, d]
                        z[d] = x if value[n, r, d] else -x
                    for c in range(0, padded, LANES):
                        for j in range(LANES):
                            x = z[c + j]
                            e = decay(-abs(x))
                            share = (e if x > zero else one) / (one + e)
                            slope[c + j] = by * (share if x == x else x)
                    for d in range(cells):
                        x = slope[d]
                        out[n, a, r, s, d] = x if value[n, r, d] else -x
