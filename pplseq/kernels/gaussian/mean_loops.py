"""Compiled loops over the means of a Gaussian chain with small states. Importing this module imports numba.

The readable twin is :mod:`pplseq.kernels.gaussian.kalman_means`; :mod:`pplseq.kernels.gaussian.compiled_kalman` calls them.

Rows whose steps have the same covariances go side by side, as lanes, and share each number of a matrix: loops over lanes are
what the compiler makes vector instructions of.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.product_loops import product

LANES = 64  # rows of a block: its vectors stay in a core's nearest cache, and a loop over them is worth its start


# residual (T, R, n), first (R, h), offset (0 | 1 | T-1, 1 | R, h). Tables of kinds (P, ., .): loadings M, ahead (h + n, h), A
# over -M A. Of nodes (N, ., .): update (h + n, n), K over L^-1; back (2 h, h), Sigma A' over A'; blame (n, n + h), S^-1 beside
# -K'; kind (N,). Of kinds, raised (P, h, n): M'. index (T, 1 | R); order (R,) rows, of which those of a block have the
# same nodes; lengths (R,)
Means = namedtuple("Means", "residual first offset loadings ahead update back blame raised kind index order lengths")


@jit(inline="always")
def innovate(given, t, block, width, kind, mean, base, shift, out, tiles):
    """out (h + n, lanes) = the predicted mean over what the observation lacks then, from the filtered mean before (h, lanes).

    base and shift are room, (h + n, lanes) each.
    """
    h, n = given.first.shape[1], given.residual.shape[2]
    for lane in range(width):
        row = given.order[block + lane]
        for i in range(n):
            base[h + i, lane] = given.residual[t, row, i]
    if t == 0 or len(given.offset):
        for lane in range(width):
            row = given.order[block + lane]
            for i in range(h):
                if t == 0:
                    base[i, lane] = given.first[row, i]
                else:
                    at = t - 1 if len(given.offset) > 1 else 0
                    base[i, lane] = given.offset[at, row if given.offset.shape[1] > 1 else 0, i]
        for i in range(n):
            for lane in range(width):
                total = 0.0
                for j in range(h):
                    total += given.loadings[kind, i, j] * base[j, lane]
                shift[i, lane] = total
        for i in range(n):
            for lane in range(width):
                base[h + i, lane] -= shift[i, lane]
    else:
        for i in range(h):
            for lane in range(width):
                base[i, lane] = 0.0
    if t:
        product(given.ahead, kind, mean, base, width, out, tiles)
    else:
        for i in range(h + n):
            for lane in range(width):
                out[i, lane] = base[i, lane]


@jit(entry=True)
def filter_means(begin, end, blocks, given, means, squares, tiles):
    """Filtered means (T, R, h), and squared lengths (T, R) of white innovations, of blocks begin..end-1."""
    num_steps, _, n = given.residual.shape
    h = given.first.shape[1]
    mean, rest = np.zeros((h, LANES)), np.zeros((n, LANES))
    base, shift, out = np.zeros((h + n, LANES)), np.zeros((n, LANES)), np.zeros((h + n, LANES))
    for which in range(begin, end):
        block, width = blocks[which], blocks[which + 1] - blocks[which]
        column = given.order[block] if given.index.shape[1] > 1 else 0
        for t in range(num_steps):
            node = given.index[t, column]
            innovate(given, t, block, width, given.kind[node], mean, base, shift, out, tiles)
            for i in range(n):
                for lane in range(width):
                    rest[i, lane] = out[h + i, lane]
                    out[h + i, lane] = 0.0
            product(given.update, node, rest, out, width, out, tiles)
            for i in range(h):
                for lane in range(width):
                    mean[i, lane] = out[i, lane]
            for lane in range(width):
                row, total = given.order[block + lane], 0.0
                for i in range(n):
                    total += out[h + i, lane] * out[h + i, lane]
                squares[t, row] = total
                for i in range(h):
                    means[t, row, i] = out[i, lane]


@jit(entry=True)
def smooth_means(begin, end, blocks, given, means, smoothed, adjoints, errors, tiles):
    """Smoothed means (T, R, h) of blocks begin..end-1, from filtered ones.

    Where there is room for them (T, R, .), else (0, R, .): lambda_t, the gradient of log p(y_t, y_t+1, ... | past) in the
    predicted mean, and e_t = S^-1 v - K' A' lambda_{t+1}, minus that in y_t; both 0 behind a row's end.
    """
    num_steps, _, n = given.residual.shape
    h = given.first.shape[1]
    mean, base, shift = np.zeros((h, LANES)), np.zeros((h + n, LANES)), np.zeros((n, LANES))
    out, moved, both = np.zeros((h + n, LANES)), np.zeros((2 * h, LANES)), np.zeros((n + h, LANES))
    adjoint, ahead, error = np.zeros((h, LANES)), np.zeros((h, LANES)), np.zeros((n, LANES))
    zero = np.zeros((max(n, 2 * h), LANES))
    for which in range(begin, end):
        block, width = blocks[which], blocks[which + 1] - blocks[which]
        column = given.order[block] if given.index.shape[1] > 1 else 0
        for i in range(h):
            for lane in range(width):
                adjoint[i, lane] = 0.0
        for t in range(num_steps - 1, -1, -1):
            node = given.index[t, column]
            kind = given.kind[node]
            product(given.back, node, adjoint, zero, width, moved, tiles)
            for lane in range(width):
                row = given.order[block + lane]
                for i in range(h):
                    smoothed[t, row, i] = means[t, row, i] + moved[i, lane]
            if t == 0 and not len(adjoints):
                break
            if t:
                for lane in range(width):
                    row = given.order[block + lane]
                    for i in range(h):
                        mean[i, lane] = means[t - 1, row, i]
            innovate(given, t, block, width, kind, mean, base, shift, out, tiles)
            for i in range(n):
                for lane in range(width):
                    both[i, lane] = out[h + i, lane]
            for i in range(h):
                for lane in range(width):
                    ahead[i, lane] = moved[h + i, lane]
                    both[n + i, lane] = ahead[i, lane]
            product(given.blame, node, both, zero, width, error, tiles)
            product(given.raised, kind, error, ahead, width, adjoint, tiles)
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
