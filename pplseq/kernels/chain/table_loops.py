"""Compiled loops from an HMM's parameters to tables, and from expected counts to gradients or moments.

What lies between is :mod:`pplseq.kernels.chain.loops`: where data are few, making tables from logits, means and scales in
tensor operations costs several times that. :mod:`pplseq.kernels.chain.statistics` calls these loops and has their readable
twins. Importing this module imports numba.
"""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.chain import LOWEST
from pplseq.kernels.chain.loops import add_rows, all_within, scaled
from pplseq.kernels.compiled import jit


@jit
def softmax(logits, out):
    """out = softmax of each row of logits (N, M). False: an entry that is no zero comes out too small."""
    num_rows, size = logits.shape
    safe = scaled(logits, np.empty(num_rows), out)
    for i in range(num_rows):
        total = 0.0
        for j in range(size):
            total += out[i, j]
        for j in range(size):
            out[i, j] /= total
    return safe


@jit(entry=True)
def chain_tables(initial, transition, start, matrix, transposed):
    """start (1, K), matrix and transposed (K, K) out, from logits (1, K) and (K, K). False: as :func:`softmax`."""
    safe = softmax(initial, start)
    safe = softmax(transition, matrix) and safe
    for i in range(len(matrix)):
        for j in range(len(matrix)):
            transposed[j, i] = matrix[i, j]
    return safe


@jit(entry=True)
def word_tables(emission, probs, weights, shift):
    """probs (K, V), weights (V + 1, K) and shift (V + 1,) out, of which the last row is a gap's, from logits (K, V). False: as
    :func:`softmax`."""
    safe, num_states, num_words = softmax(emission, probs), probs.shape[0], probs.shape[1]
    for v in range(num_words):
        most = 0.0
        for i in range(num_states):
            most = max(most, probs[i, v])
        most = most if most > 0.0 else 1.0
        shift[v] = math.log(most)
        for i in range(num_states):
            weights[v, i] = probs[i, v] / most
            safe = safe and (weights[v, i] >= LOWEST or probs[i, v] == 0.0)
    weights[num_words], shift[num_words] = 1.0, 0.0
    return safe


@jit(entry=True)
def density_tables(x, loc, log_scale, weights, shift):
    """weights (N + 1, K) and shift (N + 1,) out, of which the last row is a gap's, of vectors x (N, D) under
    Normal(loc, exp(log_scale)), (K, D), and (K, D) or (K, 1).

    False: a density is too small beside the largest of its row.
    """
    num_states, size = loc.shape
    inverse, constant, logs = np.empty(loc.shape), np.empty(num_states), np.zeros(weights.shape)
    for i in range(num_states):
        constant[i] = -0.5 * size * math.log(2 * math.pi)
        for d in range(size):
            log = log_scale[i, d if log_scale.shape[1] > 1 else 0]
            inverse[i, d] = math.exp(-log)
            constant[i] -= log
    for r in range(len(x)):
        for i in range(num_states):
            square = 0.0
            for d in range(size):
                unit = (x[r, d] - loc[i, d]) * inverse[i, d]
                square += unit * unit
            logs[r, i] = constant[i] - 0.5 * square
    return scaled(logs, shift, weights)


@jit(entry=True)
def to_gradients(counts, probs, out):
    """out (N, M): gradients in the logits of probs (N, M) of draws from its rows, whose counts (M, N) stand in columns."""
    for i in range(out.shape[0]):
        total = 0.0
        for j in range(out.shape[1]):
            total += counts[j, i]
        for j in range(out.shape[1]):
            out[i, j] = counts[j, i] - total * probs[i, j]


@jit(entry=True)
def moments(x, probs, loc, log_scale, gradients, first, second, visits):
    """Expected sums, (K, D) out, of x and x^2 of vectors x (N, D) in states with probs (N, K), and of states, visits (K,) out.

    Or gradients in loc (K, D) and log_scale (K, D or 1), in the shapes of these.
    """
    first[:], second[:], visits[:] = 0.0, 0.0, 0.0
    for i in range(loc.shape[0]):
        for r in range(len(x)):
            visits[i] += probs[r, i]
        for d in range(loc.shape[1]):
            log = log_scale[i, d if log_scale.shape[1] > 1 else 0]
            centre, scale = (loc[i, d], math.exp(-log)) if gradients else (0.0, 1.0)
            one, two = 0.0, 0.0
            for r in range(len(x)):
                unit = (x[r, d] - centre) * scale
                one += probs[r, i] * unit
                two += probs[r, i] * unit * unit
            first[i, d] += one * scale
            second[i, d if second.shape[1] > 1 else 0] += two - visits[i] if gradients else two


@jit(entry=True)
def word_statistics(initial, transition, emission, index, lengths, states, gradients, starts, moves, visits):
    """log p(x) of rows of words (N, T), -1 for a gap, of lengths (N,), from logits (1, K), (K, K) and (K, V); NaN where digits
    may be lost, a row is impossible, or a number is no word.

    Args:
        states: as for the loops over rows. starts (1, K), moves (K, K) and visits (K, V): out, expected counts of all rows, or
            the gradients in the logits.
    """
    (num_states, num_words), num_rows = emission.shape, index.shape[0]
    start, matrix, transposed = np.empty((1, num_states)), np.empty(transition.shape), np.empty(transition.shape)
    probs, weights, shift = np.empty(emission.shape), np.empty((num_words + 1, num_states)), np.empty(num_words + 1)
    if not all_within(index, lengths, -1, num_words) or not chain_tables(initial, transition, start, matrix, transposed):
        return np.nan
    if not word_tables(emission, probs, weights, shift):
        return np.nan
    log_prob, posterior = np.empty(num_rows), np.empty((0, 0, 0))
    sums, pairs, counts = np.zeros((1, num_states)), np.zeros((1, num_states, num_states)), np.zeros(weights.shape)
    tables = matrix.reshape(1, num_states, num_states), transposed.reshape(1, num_states, num_states)
    if not add_rows(  # from 0, which is not known when this is compiled: the code is that of the loop over rows
        len(posterior), num_rows, start, *tables, weights, shift, states, index, None, lengths, log_prob, posterior, sums,
        pairs, counts,
    ):  # fmt: skip
        return np.nan
    total = 0.0
    for n in range(num_rows):
        total += log_prob[n]
    if gradients:
        to_gradients(sums.reshape(-1, 1), start, starts)
        to_gradients(pairs[0].T.copy(), matrix, moves)
        to_gradients(counts, probs, visits)
        return total
    for i in range(num_states):
        starts[0, i] = sums[0, i]
        for j in range(num_states):
            moves[i, j] = pairs[0, i, j]
        for v in range(num_words):
            visits[i, v] = counts[v, i]
    return total


@jit(entry=True)
def modes(counts, previous, out):
    """out (N, M): logarithms of each row of counts over its sum; of rows without counts, of the softmax of previous."""
    for i in range(len(counts)):
        total = 0.0
        for j in range(counts.shape[1]):
            total += counts[i, j]
        if total > 0.0:
            log_total = math.log(total)  # a share of counts of 1e-310 is no quotient: its divisor's inverse is infinite
            for j in range(counts.shape[1]):
                out[i, j] = math.log(counts[i, j]) - log_total if counts[i, j] != 0.0 else -np.inf
            continue
        most, total = -np.inf, 0.0
        for j in range(counts.shape[1]):
            most = max(most, previous[i, j])
        for j in range(counts.shape[1]):
            total += math.exp(previous[i, j] - most)
        for j in range(counts.shape[1]):
            out[i, j] = previous[i, j] - most - math.log(total)
