"""Compiled loop over the steps of a chain, row by row: samples. Importing this module imports numba.

The readable twin is :mod:`pplseq.kernels.path_scan`; shapes are as in :mod:`pplseq.kernels.chain_loops`.
"""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.compiled import jit


@jit(entry=True)
def sample(begin_row, end_row, table, first_matrix, stride, filtered, lengths, uniform, paths):
    """Backward sampling of some rows.

    Args:
        filtered: (T, N, K) log p(z_t | x_<=t). uniform: (S, T, N) in [0, 1).
        paths: (S, T, N) out; padded steps repeat the last.
    """
    num_states = filtered.shape[2]
    weight = np.empty(num_states)
    for s in range(len(paths)):
        for n in range(begin_row, end_row):
            length = max(lengths[n], 1)
            position = 0
            for t in range(length - 1, -1, -1):
                log = table[first_matrix[n] + t * stride] if t < length - 1 else table[0]
                top, total = -np.inf, 0.0
                for i in range(num_states):
                    weight[i] = filtered[t, n, i] + (log[i, position] if t < length - 1 else 0.0)
                    top = max(top, weight[i])
                for i in range(num_states):
                    weight[i] = math.exp(weight[i] - top) if weight[i] > -np.inf else 0.0
                    total += weight[i]
                left, position = uniform[s, t, n] * total, -1
                for i in range(num_states):
                    if weight[i] > 0.0:
                        position = i
                        left -= weight[i]
                        if left < 0.0:
                            break
                position = max(position, 0)
                paths[s, t, n] = position
            for t in range(length, paths.shape[1]):
                paths[s, t, n] = paths[s, t - 1, n]
