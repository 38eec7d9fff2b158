"""Compiled products of matrices, and factors, for loops that make thousands of them. Importing this module imports numba.

From some size on they go by tiles of four rows and four columns: what is read serves sixteen multiplications, which on one core
is as fast as the products of a library. Machine code for tiles slows the loops over small matrices that it stands beside, so
there is code for either: ``tiles`` is (True,) for large matrices and None for others. It is always an argument, of which numba
drops the branch that is not taken before anything is compiled.
"""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.compiled import jit

SQUARE = 16


@jit(fastmath={"contract"})  # sums in another order would go along a row, and not across columns
def add_times(left, right, width, out, lower):
    """out += left @ right, of so many columns; where only the lower triangle is wanted, little more than that."""
    rows, size = left.shape
    four_rows, four = rows - rows % 4, size - size % 4
    for i in range(0, four_rows, 4):
        end = min(width, i + 4) if lower else width
        for j in range(0, four, 4):
            a, b, c, d = left[i, j], left[i, j + 1], left[i, j + 2], left[i, j + 3]
            e, f, g, h = left[i + 1, j], left[i + 1, j + 1], left[i + 1, j + 2], left[i + 1, j + 3]
            k, l, m, n = left[i + 2, j], left[i + 2, j + 1], left[i + 2, j + 2], left[i + 2, j + 3]
            o, p, q, r = left[i + 3, j], left[i + 3, j + 1], left[i + 3, j + 2], left[i + 3, j + 3]
            if a == b == c == d == e == f == g == h == k == l == m == n == o == p == q == r == 0:
                continue  # of a shift of many states, most
            for col in range(end):
                w, x, y, z = right[j, col], right[j + 1, col], right[j + 2, col], right[j + 3, col]
                out[i, col] += a * w + b * x + c * y + d * z
                out[i + 1, col] += e * w + f * x + g * y + h * z
                out[i + 2, col] += k * w + l * x + m * y + n * z
                out[i + 3, col] += o * w + p * x + q * y + r * z
        for j in range(four, size):
            a, b, c, d = left[i, j], left[i + 1, j], left[i + 2, j], left[i + 3, j]
            for col in range(end):
                w = right[j, col]
                out[i, col] += a * w
                out[i + 1, col] += b * w
                out[i + 2, col] += c * w
                out[i + 3, col] += d * w
    for i in range(four_rows, rows):
        end = min(width, i + 1) if lower else width
        for j in range(size):
            a = left[i, j]
            for col in range(end):
                out[i, col] += a * right[j, col]


@jit(entry=True, fastmath={"contract"})
def multiply(left, right, out):
    """out = left @ right."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = 0.0
    add_times(left, right, out.shape[1], out, False)


@jit
def turned(matrix, scale):
    """scale matrix'."""
    rows, cols = matrix.shape
    out = np.empty((cols, rows))
    for i in range(rows):
        for j in range(cols):
            out[j, i] = scale * matrix[i, j]
    return out


@jit
def set_to(value, out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = value


@jit
def mirror(out):
    """The lower triangle above it as well, by squares that lie in the nearest cache."""
    size = len(out)
    for top in range(0, size, SQUARE):
        for left in range(0, top + 1, SQUARE):
            for i in range(top, min(top + SQUARE, size)):
                for j in range(left, min(left + SQUARE, i)):
                    out[j, i] = out[i, j]


@jit(fastmath={"contract"}, inline="always")
def add_product(matrix, node, vectors, width, out, tiles):
    """out += matrix[node] @ vectors, of so many lanes."""
    if tiles is not None:
        add_times(matrix[node], vectors, width, out, False)
        return
    size = matrix.shape[2]
    if width == 1:  # the compiler's preparations for lanes would cost more than the sums
        for i in range(matrix.shape[1]):
            total = out[i, 0]
            for j in range(size):
                total += matrix[node, i, j] * vectors[j, 0]
            out[i, 0] = total
        return
    whole = size - size % 4
    for i in range(matrix.shape[1]):
        for j in range(0, whole, 4):
            a, b, c, d = matrix[node, i, j], matrix[node, i, j + 1], matrix[node, i, j + 2], matrix[node, i, j + 3]
            for lane in range(width):
                many = a * vectors[j, lane] + b * vectors[j + 1, lane] + c * vectors[j + 2, lane] + d * vectors[j + 3, lane]
                out[i, lane] += many
        for j in range(whole, size):
            a = matrix[node, i, j]
            for lane in range(width):
                out[i, lane] += a * vectors[j, lane]


@jit
def times(left, i, right, j, out, tiles):
    """out = left[i] @ right[j], of matrices."""
    if tiles is not None:
        set_to(0.0, out)
        add_times(left[i], right[j], right.shape[2], out, False)
        return
    for row in range(left.shape[1]):
        for col in range(right.shape[2]):
            out[row, col] = 0.0
        for k in range(left.shape[2]):
            a = left[i, row, k]
            for col in range(right.shape[2]):
                out[row, col] += a * right[j, k, col]


@jit
def turned_times(left, i, right, out, scale, tiles):
    """out += scale left[i]' @ right, of matrices."""
    if tiles is not None:
        add_times(turned(left[i], scale), right, right.shape[1], out, False)
        return
    for k in range(left.shape[1]):
        for row in range(left.shape[2]):
            a = scale * left[i, k, row]
            for col in range(right.shape[1]):
                out[row, col] += a * right[k, col]


@jit
def add_outer(left, right, width, out, tiles):
    """out += left @ right', of vectors (., lanes)."""
    if tiles is not None:
        add_times(left[:, :width], turned(right[:, :width], 1.0), right.shape[0], out, False)
        return
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            total = 0.0
            for lane in range(width):
                total += left[i, lane] * right[j, lane]
            out[i, j] += total


@jit
def factorize(total, whitener, node):
    """The lower Cholesky factor in the place of ``total``, its inverse in whitener[node]; returns log det / 2, or NaN."""
    n, log_det = total.shape[0], 0.0
    for i in range(n):
        for j in range(i + 1):
            value = total[i, j]
            for k in range(j):
                value -= total[i, k] * total[j, k]
            if i > j:
                total[i, j] = value / total[j, j]
            elif value > 0:
                total[i, i] = math.sqrt(value)
                log_det += math.log(total[i, i])
            else:
                total[i, i] = np.nan
                log_det = np.nan
    for j in range(n):
        for i in range(n):
            value = 1.0 if i == j else 0.0
            for k in range(j, i):
                value -= total[i, k] * whitener[node, k, j]
            whitener[node, i, j] = value / total[i, i] if i >= j else 0.0
    return log_det
