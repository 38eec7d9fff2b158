"""Compiled loops over the steps of a chain, row by row: samples, and expected counts where all states are few.

The readable twins are :mod:`pplseq.kernels.path_scan`, whose shapes are as in :mod:`pplseq.kernels.chain_loops`, and
:mod:`pplseq.kernels.restart_scan`. Importing this module imports numba.
"""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.compiled import jit

SMALL = 1e-250  # probabilities below are taken for 0, and what that may lose is carried along
LEAST = 1e-290  # of a step's sum, and of a bound of what was lost: no number becomes denormal
ALLOWED = 1e-14  # share of a row's probability that may be lost


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


@jit(entry=True)
def scaled_expectation(init, move, emit, init_index, pair_index, emit_index, starts, log_prob, start, pairs, visits):
    """Forwards and backwards over scaled probabilities, row by row.

    Args:
        init: (I, Z) log. move: (L, Z, Z) probabilities. emit: (M, Z) log. init_index: (B,). pair_index, emit_index: (N,), of
            packed positions: row b at step t stands at starts[t] + b, starts (T + 1,).
        log_prob: (B,) out. start, pairs, visits: expected counts in the shapes of the tables, of 0, out.

    A state whose share of the past is below SMALL is dropped. The paths through it go on in ``lost``, a bound of the
    probability that they would have, by the same recursion; at the end of a row it bounds the share of counts that is missing.

    Returns:
        Whether every number is right; not where more than ALLOWED may be lost, which calls for logarithms.
    """
    num_steps, num_states = len(starts) - 1, init.shape[1]
    alpha, scale = np.empty((num_steps, num_states)), np.empty(num_steps)
    weight, beta, ahead = np.empty((num_steps, num_states)), np.empty(num_states), np.empty(num_states)
    lost, now = np.zeros(num_states), np.zeros(num_states)
    for b in range(len(log_prob)):
        length, total = 0, 0.0
        lost[:] = 0.0
        while length < num_steps and starts[length] + b < starts[length + 1]:
            t, n = length, starts[length] + b
            top = -np.inf
            for j in range(num_states):
                value = emit[emit_index[n], j] + (init[init_index[b], j] if t == 0 else 0.0)
                weight[t, j] = value
                top = max(top, value)
            if not (top > -np.inf and top < np.inf):
                return False
            norm = 0.0
            for j in range(num_states):
                weight[t, j] = math.exp(weight[t, j] - top)
                before, astray = 1.0, 0.0
                if t:
                    before = 0.0
                    for i in range(num_states):
                        before += alpha[t - 1, i] * move[pair_index[n], i, j]
                        astray += lost[i] * move[pair_index[n], i, j]
                alpha[t, j], now[j] = before * weight[t, j], astray * weight[t, j]
                norm += alpha[t, j]
            if not norm > LEAST:
                return False
            for j in range(num_states):
                alpha[t, j] /= norm
                lost[j] = max(now[j] / norm, LEAST)
                if alpha[t, j] < SMALL:
                    alpha[t, j] = 0.0
                    lost[j] += SMALL
            scale[t] = norm
            total += math.log(norm) + top
            length += 1
        if not lost.sum() <= ALLOWED:
            return False
        log_prob[b] = total
        for j in range(num_states):
            beta[j] = 1.0
        for t in range(length - 1, -1, -1):
            n = starts[t] + b
            entry = emit_index[n]
            for j in range(num_states):
                visits[entry, j] += alpha[t, j] * beta[j]
                if t == 0:
                    start[init_index[b], j] += alpha[t, j] * beta[j]
                ahead[j] = weight[t, j] * beta[j] / scale[t]
            if t:
                own = pair_index[n]
                for i in range(num_states):
                    beta[i] = 0.0
                    for j in range(num_states):
                        value = move[own, i, j] * ahead[j]
                        beta[i] += value
                        pairs[own, i, j] += alpha[t - 1, i] * value
    return True
