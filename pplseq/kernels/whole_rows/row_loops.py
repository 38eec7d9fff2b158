"""Compiled loops over the rows of an HMM with tables, all in linear space: likelihood, posteriors and expected counts.

The readable twins are :mod:`pplseq.kernels.scan` and, compiled, :mod:`pplseq.kernels.chain_loops`, to which a row goes in which
digits may be lost; :mod:`pplseq.kernels.whole_rows.tables` calls these loops. Importing this module imports numba.

What costs time in short rows is the way into a loop, and in long ones of few states the exponential of every emission, a
division and a logarithm a step. Here emissions come as a table of probabilities, (V, K), of which a step names a row (of
densities every step has its own); messages are scaled only where they have become small.

Shapes: start (K,), matrix and transposed (K, K), weights (V, K) each row over its largest entry, whose logarithm is shift (V,),
index (N, T) the row of weights of each step. Of few states ``states`` is a tuple of that length, so that loops over them have a
length that is known when they are compiled, a class of code a number; of more it is a tuple of one number.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pplseq.kernels.chain_loops import add_pairs
from pplseq.kernels.compiled import jit
from pplseq.kernels.loop_math import exponentials, product

LOWEST = 1e-280  # a smaller number may have lost digits, or be what is left of several that underflowed
SMALL = 1e-30  # messages whose sum is smaller are scaled
FEW = 4  # states up to which a product goes entry by entry
PIECE = 256  # steps of which messages are kept, of a likelihood and of long rows
# checksums of loop_math.py and chain_loops.py: for machine code on disk, numba notices changes in this file alone
MATH, CHAIN = 4034617263, 1353184899

Tables = namedtuple("Tables", "start matrix transposed weights shift states")


@jit(inline="always")
def size_of(tables):
    return len(tables.states) if len(tables.states) > 1 else tables.matrix.shape[0]


@jit(entry=True)
def scaled(logs, shift, out):
    """out = exp(logs - shift), shift the largest of each row. False: an entry that is no zero comes out too small.

    Overwrites logs.
    """
    num_rows, size, safe = logs.shape[0], logs.shape[1], True
    for i in range(num_rows):
        most = -np.inf
        for j in range(size):
            most = max(most, logs[i, j])
        most = most if most > -np.inf else 0.0
        shift[i] = most
        for j in range(size):
            logs[i, j] -= most
    exponentials(logs, out, num_rows)
    for i in range(num_rows):
        for j in range(size):
            if not out[i, j] >= LOWEST:  # NaN is not
                safe = safe and logs[i, j] == -np.inf
    return safe


@jit(entry=True)
def all_within(index, size):
    """Whether all numbers (N, T) are in 0..size - 1."""
    for n in range(index.shape[0]):
        for k in range(index.shape[1]):
            if not 0 <= index[n, k] < size:
                return False
    return True


@jit
def lost(tables, probs, k, word, j):
    """Whether entry j of the message behind row k of probs is so small for want of digits, and no true zero."""
    if tables.weights[word, j] == 0.0:
        return False
    for i in range(tables.matrix.shape[0]):
        if probs[k, i] > 0.0 and tables.matrix[i, j] > 0.0:
            return True
    return False


@jit
def forward_piece(tables, index, n, begin, end, probs):
    """Messages of some steps, probs[k + 1] that of step begin + k up to a factor, from probs[0] before them.

    Returns the logarithm of all factors, shifts included; NaN where digits may be lost or the row is impossible.
    """
    transposed, matrix, weights, shift = tables.transposed, tables.matrix, tables.weights, tables.shift
    num_states, log = size_of(tables), 0.0
    for k in range(end - begin):
        word = index[n, begin + k]
        total, least = 0.0, np.inf
        if begin + k == 0:
            for j in range(num_states):
                value = tables.start[j] * weights[word, j]
                probs[1, j] = value
                total += value
                if not value >= LOWEST and tables.start[j] > 0.0 and weights[word, j] > 0.0:
                    return np.nan
        elif num_states <= FEW:
            for j in range(num_states):
                value = 0.0
                for i in range(num_states):
                    value += probs[k, i] * transposed[j, i]
                value *= weights[word, j]
                probs[k + 1, j] = value
                total += value
                least = min(least, value)
        else:
            product(probs, k, matrix, probs, k + 1)
            for j in range(num_states):
                value = probs[k + 1, j] * weights[word, j]
                probs[k + 1, j] = value
                total += value
                least = min(least, value)
        if not least >= LOWEST:
            for j in range(num_states):
                if not probs[k + 1, j] >= LOWEST and lost(tables, probs, k, word, j):
                    return np.nan
        if not total >= LOWEST:
            return np.nan
        log += shift[word]
        if total < SMALL:
            log += math.log(total)
            factor = 1.0 / total
            for j in range(num_states):
                probs[k + 1, j] *= factor
    return log


@jit
def log_prob_of(tables, index, n, probs):
    """log p(x) of a row; NaN where digits may be lost or the row is impossible. probs: (PIECE + 1, K) room."""
    total, num_steps = 0.0, index.shape[1]
    for begin in range(0, num_steps, PIECE):
        end = min(begin + PIECE, num_steps)
        total += forward_piece(tables, index, n, begin, end, probs)
        for j in range(probs.shape[1]):
            probs[0, j] = probs[end - begin, j]
    mass = 0.0
    for j in range(probs.shape[1]):
        mass += probs[0, j]
    return total + math.log(mass)


@jit(entry=True)
def likelihood(begin_row, end_row, start, matrix, transposed, weights, shift, states, index, log_prob):
    """log_prob (N,) out, log p(x) of some rows. False: digits may be lost, or a row is impossible."""
    tables = Tables(start, matrix, transposed, weights, shift, states)
    probs = np.empty((min(PIECE, index.shape[1]) + 1, len(start)))
    for n in range(begin_row, end_row):
        log_prob[n] = log_prob_of(tables, index, n, probs)
        if not log_prob[n] == log_prob[n]:
            return False
    return True


# What expected counts need of a piece of P steps: probs (P + 1, K) messages, factors (P + 1, K) what a pair consists of besides
# messages and matrix, or (1, K) of the last step where no pairs are asked for, rows (2, K) FUTURE and MOVED; and carry, the
# message before each piece.
Room = namedtuple("Room", "probs factors rows carry")
FUTURE, MOVED = 0, 1
AT_ONCE = 1 << 15  # numbers in a row's messages up to which a row is one piece: those of more would leave a core's cache


@jit
def backward_piece(tables, index, n, begin, end, room, posterior, row, offset):
    """Posteriors of the steps begin - 1..end - 2 behind the messages of a piece and, as factors of pairs, the room's.

    False: digits may be lost. posterior: out, of the step begin + k - 1 at [row, k + offset]. rows[FUTURE]: evidence behind the
    piece before, for its first step after.
    """
    probs, factors, rows = room.probs, room.factors, room.rows
    matrix, transposed, weights = tables.matrix, tables.transposed, tables.weights
    num_states, kept = size_of(tables), len(factors) > 1
    for k in range(end - begin - 1, -1 if begin > 0 else 0, -1):
        word, both, total, least, place = index[n, begin + k], 0.0, 0.0, np.inf, k if kept else 0
        for j in range(num_states):
            factors[place, j] = weights[word, j] * rows[FUTURE, j]
        if num_states <= FEW:
            for i in range(num_states):
                value = 0.0
                for j in range(num_states):
                    value += factors[place, j] * matrix[i, j]
                rows[MOVED, i] = value
                both += probs[k, i] * value
                total += value
                least = min(least, value)
        else:
            product(factors, place, transposed, rows, MOVED)
            for i in range(num_states):
                both += probs[k, i] * rows[MOVED, i]
                total += rows[MOVED, i]
                least = min(least, rows[MOVED, i])
        if not (both >= LOWEST and total >= LOWEST):
            return False
        if not least >= LOWEST:
            for i in range(num_states):
                if rows[MOVED, i] >= LOWEST:
                    continue
                for j in range(num_states):
                    if rows[FUTURE, j] > 0.0 and weights[word, j] > 0.0 and matrix[i, j] > 0.0:
                        return False
        share, scale = 1.0 / both, 1.0 / total if total < SMALL else 1.0
        for i in range(num_states):
            posterior[row, k + offset, i] = probs[k, i] * rows[MOVED, i] * share
            factors[place, i] *= share
            rows[FUTURE, i] = rows[MOVED, i] * scale
    return True


@jit
def add_row(tables, index, n, room, log_prob, posterior, shown, starts, pairs, visits):
    """Likelihood, posteriors and expected counts of a row. False: digits may be lost, or it is impossible.

    Messages of one piece are there at a time, made once more on the way back from those before each piece.

    Args:
        posterior: (N, T, K) out, or where not shown, (1, P + 1, K) room. pairs: (1, K, K), to which is added what the matrix
            makes expected transitions; or (0, 1, 1), for none.
    """
    num_steps, num_states, size = index.shape[1], size_of(tables), len(room.probs) - 1
    last, total, mass = (num_steps - 1) // size, 0.0, 0.0
    for number in range(last + 1):
        begin = number * size
        if number > 0:
            for j in range(num_states):
                room.probs[0, j] = room.probs[size, j]
                room.carry[number, j] = room.probs[size, j]
        total += forward_piece(tables, index, n, begin, min(begin + size, num_steps), room.probs)
    for j in range(num_states):
        mass += room.probs[num_steps - last * size, j]
    log_prob[n] = total + math.log(mass)
    if not log_prob[n] == log_prob[n]:
        return False
    row, mass = n if shown else 0, 1.0 / mass
    for number in range(last, -1, -1):
        begin = number * size
        end = min(begin + size, num_steps)
        offset, first, beyond = begin - 1 if shown else 0, 0 if number > 0 else 1, end - begin
        if number < last:
            for j in range(num_states):
                room.probs[0, j] = room.carry[number, j]
            forward_piece(tables, index, n, begin, end, room.probs)
        else:
            for j in range(num_states):
                room.rows[FUTURE, j] = 1.0
                posterior[row, beyond + offset, j] = room.probs[beyond, j] * mass
            beyond += 1
        if not backward_piece(tables, index, n, begin, end, room, posterior, row, offset):
            return False
        if len(visits):
            for k in range(first, beyond):
                for j in range(num_states):
                    visits[index[n, begin + k - 1], j] += posterior[row, k + offset, j]
        if len(pairs):
            if number == 0:
                for j in range(num_states):
                    room.probs[0, j], room.factors[0, j] = 0.0, 0.0
            add_pairs(end - begin, room, num_states, pairs, 0)
    for j in range(num_states):
        starts[j] += posterior[row, 0 if shown else 1, j]
    return True


@jit
def add_rows(begin_row, end_row, tables, index, log_prob, posterior, starts, pairs, visits):
    """:func:`smooth`, of tables as one."""
    num_states, num_steps, shown = size_of(tables), index.shape[1], len(posterior) > 0
    size = num_steps if num_steps * num_states <= AT_ONCE else PIECE
    room = Room(
        np.empty((size + 1, num_states)), np.empty((size + 1 if len(pairs) else 1, num_states)), np.empty((2, num_states)),
        np.empty(((num_steps - 1) // size + 1, num_states)),
    )  # fmt: skip
    out = posterior if shown else np.empty((1, size + 1, num_states))
    for n in range(begin_row, end_row):
        if not add_row(tables, index, n, room, log_prob, out, shown, starts, pairs, visits):
            return False
    for i in range(num_states if len(pairs) else 0):
        for j in range(num_states):
            pairs[0, i, j] *= tables.matrix[i, j]
    return True


@jit(entry=True)
def smooth(
    begin_row, end_row, start, matrix, transposed, weights, shift, states, index, log_prob, posterior, starts, pairs, visits
):  # fmt: skip
    """Posteriors and expected counts of some rows. False: digits may be lost, or a row is impossible.

    Args:
        log_prob: (N,) out. posterior: (N, T, K) out, or (0, 0, 0) where it is not asked for. starts: (K,) and pairs:
            (1, K, K), zero before: expected starts and transitions, which are left out where pairs is (0, 1, 1). visits:
            (V, K), zero before: expected visits of a state with each row of weights; or of length 0.
    """
    tables = Tables(start, matrix, transposed, weights, shift, states)
    return add_rows(begin_row, end_row, tables, index, log_prob, posterior, starts, pairs, visits)


# ---------------------------------------------------------------- the best path
@jit
def best_from(tables, score, j):
    """max_i score_i + log_ij, and the first such i."""
    best, source = score[0] + tables.transposed[j, 0], 0
    for i in range(1, size_of(tables)):
        value = score[i] + tables.transposed[j, i]
        better = value > best
        best, source = value if better else best, i if better else source
    return best, source


@jit(entry=True)
def viterbi(begin_row, end_row, start, matrix, transposed, weights, shift, states, index, path, log_prob):
    """The most probable paths of some rows, from tables that are logarithms.

    Args:
        path: (N, T) out. log_prob: (N,) out, log p(path, x).
    """
    tables = Tables(start, matrix, transposed, weights, shift, states)
    num_states, num_steps = size_of(tables), index.shape[1]
    pointers, score, new = np.empty((num_steps, num_states), np.uint8), np.empty(num_states), np.empty(num_states)
    for n in range(begin_row, end_row):
        total = 0.0
        for k in range(num_steps):
            word, top = index[n, k], -np.inf
            for j in range(num_states):
                if k == 0:
                    best, source = start[j], 0
                else:
                    best, source = best_from(tables, score, j)
                new[j] = best + weights[word, j]
                pointers[k, j] = source
                top = max(top, new[j])
            total += top
            less = top if top > -np.inf else 0.0
            for j in range(num_states):  # sums of thousands of logs would lose digits
                score[j] = new[j] - less
        position = 0
        for j in range(1, num_states):
            position = j if score[j] > score[position] else position
        for k in range(num_steps - 1, -1, -1):
            path[n, k] = position
            position = pointers[k, position]
        log_prob[n] = total
