"""Compiled loops over the rows of a chain, from tables: likelihood, posteriors, expected counts, best paths, samples.

The readable twins are :mod:`pplseq.kernels.scan` and :mod:`pplseq.kernels.path_scan`; a row in which digits may be lost goes to
:mod:`pplseq.kernels.chain.piece_loops`. Importing this module imports numba.

What costs time in short rows is the way into a loop, and in long ones of few states the exponential of every emission, a
division and a logarithm a step. Here emissions come as a table of probabilities, of which a step names a row (of densities
every step has its own); messages are scaled only where they have become small.

Shapes: start (1, K) of all rows, or (N, K); matrix and transposed (M, K, K), and moves (N, T) which of them leads into each
step, or None where all steps have the first; weights (V, K) each row over its largest entry, whose logarithm is shift (V,);
index (N, T) the row of weights of each step, -1 the last; lengths (N,) the steps of each row, or of length 0 where all have T.
Of few states ``states`` is a tuple of that length, so that loops over them have a length that is
known when they are compiled, a class of code a number; of more it is a tuple of one number. Elements are named by index, not
through views of rows: a view costs as much as a small step.
"""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.chain import LOWEST
from pplseq.kernels.compiled import jit
from pplseq.kernels.loop_math import exponentials, product

# messages whose sum is not between them are scaled; they grow where rows of a matrix sum to more than 1, and those of the pass
# back may not grow beyond HIGHEST
SMALL, LARGE, HIGHEST = 1e-30, 1e30, 1e280
FEW = 16  # states up to which a product goes entry by entry
PIECE = 256  # steps of which messages are kept, of a likelihood and of long rows
CELLS = 1 << 12  # numbers whose exponentials are taken at once
AT_ONCE = 1 << 15  # numbers in a row's messages up to which a row is one piece: those of more would leave a core's cache


@jit(inline="always")
def size_of(states, matrix):
    return len(states) if len(states) > 1 else matrix.shape[1]


@jit(entry=True)
def scaled(logs, shift, out):
    """out = exp(logs - shift), shift the largest of each row. False: an entry that is no zero comes out too small."""
    num_rows, size, safe = logs.shape[0], logs.shape[1], True
    piece = max(1, CELLS // size)
    less = np.empty((min(piece, num_rows), size))
    for begin in range(0, num_rows, piece):
        step, here = min(piece, num_rows - begin), out[begin:]
        for i in range(step):
            most = -np.inf
            for j in range(size):
                most = max(most, logs[begin + i, j])
            most = most if most > -np.inf else 0.0
            shift[begin + i] = most
            for j in range(size):
                less[i, j] = logs[begin + i, j] - most
        exponentials(less, here, step)
        for i in range(step):
            for j in range(size):
                if not here[i, j] >= LOWEST:  # NaN is not
                    safe = safe and less[i, j] == -np.inf
    return safe


@jit(inline="always")
def length_of(lengths, index, n):
    return lengths[n] if len(lengths) else index.shape[1]


@jit(entry=True)
def all_within(index, lengths, least, size):
    """Whether all numbers (N, T) of rows that long are in least..size - 1."""
    for n in range(index.shape[0]):
        for k in range(length_of(lengths, index, n)):
            if not least <= index[n, k] < size:
                return False
    return True


@jit(inline="always")
def mass_of(probs, k, num_states):
    total = 0.0
    for j in range(num_states):
        total += probs[k, j]
    return total


# ---------------------------------------------------------------- forward
@jit
def lost(matrix, transposed, move, weights, probs, k, word, j):
    """Whether entry j of the message behind row k of probs is so small for want of digits, and no true zero."""
    if weights[word, j] == 0.0:
        return False
    few = matrix.shape[1] <= FEW
    for i in range(matrix.shape[1]):
        if probs[k, i] > 0.0 and (transposed[move, j, i] if few else matrix[move, i, j]) > 0.0:
            return True
    return False


@jit
def forward_piece(start, matrix, transposed, weights, shift, states, index, moves, n, begin, fresh, step, probs, masses):
    """Messages of some steps, probs[k + 1] that of step begin + k up to a factor, from probs[0] before them, or from the start
    if fresh; masses[k] what step begin + k multiplies the sum over states by, shifts apart, or of length 0.

    Of up to FEW states transposed alone is used, of more matrix alone.

    Returns the logarithm of all factors, shifts included; NaN where digits may be lost or the row is impossible.
    """
    num_states, log, own, only, before = size_of(states, matrix), 0.0, n if len(start) > 1 else 0, matrix[0], 1.0
    for k in range(step):
        word, move = index[n, begin + k], 0 if moves is None else moves[n, begin + k]
        total, least = 0.0, np.inf
        if fresh and k == 0:
            for j in range(num_states):
                value = start[own, j] * weights[word, j]
                probs[1, j] = value
                total += value
                if not value >= LOWEST and start[own, j] > 0.0 and weights[word, j] > 0.0:
                    return np.nan
        elif num_states <= FEW:
            for j in range(num_states):
                value = 0.0
                for i in range(num_states):
                    value += probs[k, i] * transposed[move, j, i]
                value *= weights[word, j]
                probs[k + 1, j] = value
                total += value
                least = min(least, value)
        else:
            if moves is None:
                product(probs, k, only, probs, k + 1)
            else:
                product(probs, k, matrix[move], probs, k + 1)
            for j in range(num_states):
                value = probs[k + 1, j] * weights[word, j]
                probs[k + 1, j] = value
                total += value
                least = min(least, value)
        if not least >= LOWEST:
            for j in range(num_states):
                if not probs[k + 1, j] >= LOWEST and lost(matrix, transposed, move, weights, probs, k, word, j):
                    return np.nan
        if not total >= LOWEST:
            return np.nan
        log += shift[word]
        if len(masses):
            masses[k], before = total / before, total
        if total < SMALL or total > LARGE:
            log += math.log(total)
            factor, before = 1.0 / total, 1.0
            for j in range(num_states):
                probs[k + 1, j] *= factor
    return log


@jit(entry=True)
def likelihood(begin_row, end_row, start, matrix, transposed, weights, shift, states, index, moves, lengths, log_prob):
    """log_prob (N,) out, log p(x) of some rows. False: digits may be lost, or a row is impossible."""
    num_states = size_of(states, matrix)
    probs, masses = np.empty((min(PIECE, index.shape[1]) + 1, num_states)), np.empty(0)
    for n in range(begin_row, end_row):
        length, total, step = length_of(lengths, index, n), 0.0, 0
        for begin in range(0, length, PIECE):
            for j in range(num_states):
                probs[0, j] = probs[step, j]
            step = min(PIECE, length - begin)
            total += forward_piece(
                start, matrix, transposed, weights, shift, states, index, moves, n, begin, begin == 0, step, probs, masses
            )  # fmt: skip
        log_prob[n] = total + math.log(mass_of(probs, step, num_states)) if step else 0.0
        if not log_prob[n] == log_prob[n]:
            return False
    return True


# ---------------------------------------------------------------- backward
@jit(inline="always")  # a number of states that is known when this is compiled is worth a lot
def add_pairs(first, step, probs, factors, num_states, sums, move):
    """sums[move] += probs.T @ factors, of a piece's steps from the first on."""
    k = first
    while k + 4 <= step:
        for i in range(num_states):
            a, b, c, d = probs[k, i], probs[k + 1, i], probs[k + 2, i], probs[k + 3, i]
            for j in range(num_states):
                more = a * factors[k, j] + b * factors[k + 1, j] + c * factors[k + 2, j] + d * factors[k + 3, j]
                sums[move, i, j] += more
        k += 4
    while k < step:
        for i in range(num_states):
            for j in range(num_states):
                sums[move, i, j] += probs[k, i] * factors[k, j]
        k += 1


@jit
def backward_piece(
    matrix, transposed, weights, states, index, moves, n, begin, first, step, probs, factors, future, moved, single, scale,
    shown, posterior, to, pace, visits,
):  # fmt: skip
    """Posteriors of the steps before begin + first to begin + step - 1, from messages in probs, and in future (1, K) the
    evidence behind the last of these steps, which becomes that behind the step before them. False: digits may be lost.

    Of up to FEW states matrix alone is used, of more transposed alone.

    Args:
        first: 1 where the first step is that of the row, into which no matrix leads. factors: (P, K) out, what pairs consist
            of besides messages and matrix, times scale; or (1, K). single: (K,) out, the posterior before the first of these
            steps, if there are any, times shown, as in posterior (M, K), where that before step begin + k is number
            to + k * pace, or of length 0, and in visits (V, K), or of length 0.
    """
    num_states, only, kept = size_of(states, matrix), transposed[0], len(factors) > 1
    for k in range(step - 1, first - 1, -1):
        word, move, place = index[n, begin + k], 0 if moves is None else moves[n, begin + k], k if kept else 0
        both, total, least = 0.0, 0.0, np.inf
        for j in range(num_states):
            factors[place, j] = weights[word, j] * future[0, j]
        if num_states <= FEW:
            for i in range(num_states):
                value = 0.0
                for j in range(num_states):
                    value += factors[place, j] * matrix[move, i, j]
                moved[0, i] = value
                both += probs[k, i] * value
                total += value
                least = min(least, value)
        else:
            if moves is None:
                product(factors, place, only, moved, 0)
            else:
                product(factors, place, transposed[move], moved, 0)
            for i in range(num_states):
                both += probs[k, i] * moved[0, i]
                total += moved[0, i]
                least = min(least, moved[0, i])
        if not (both >= LOWEST and total >= LOWEST and total < HIGHEST):
            return False
        if not least >= LOWEST:
            for i in range(num_states):
                for j in range(num_states if not moved[0, i] >= LOWEST else 0):
                    entry = matrix[move, i, j] if num_states <= FEW else transposed[move, j, i]
                    if future[0, j] > 0.0 and weights[word, j] > 0.0 and entry > 0.0:
                        return False
        share, norm = 1.0 / both, 1.0 / total if total < SMALL else 1.0
        for i in range(num_states):
            value = probs[k, i] * moved[0, i] * (share * shown)
            factors[place, i] *= share * scale
            future[0, i], single[i] = moved[0, i] * norm, value
            if len(posterior):
                posterior[to + k * pace, i] = value
        if len(visits):
            word = index[n, begin + k - 1]
            for i in range(num_states):
                visits[word, i] += single[i]
    return True


@jit
def add_rows(
    begin_row, end_row, start, matrix, transposed, weights, shift, states, index, moves, lengths, log_prob, posterior, starts,
    pairs, visits,
):  # fmt: skip
    """:func:`smooth`.

    Messages of one piece are there at a time, made once more on the way back from those before each piece.
    """
    num_states, most, paired = size_of(states, matrix), index.shape[1], len(pairs) > 0
    size = most if most * num_states <= AT_ONCE else PIECE
    probs, carry = np.empty((size + 1, num_states)), np.empty(((most - 1) // size + 1, num_states))
    factors, future = np.empty((size + 1 if paired else 1, num_states)), np.empty((1, num_states))
    moved, single, masses = np.empty((1, num_states)), np.empty(num_states), np.empty(0)
    flat = posterior.reshape(posterior.shape[0] * posterior.shape[1], posterior.shape[2])
    for n in range(begin_row, end_row):
        length, log = length_of(lengths, index, n), 0.0
        last = (length - 1) // size
        for t in range(length, most if len(posterior) else 0):
            for j in range(num_states):
                posterior[n, t, j] = 0.0
        if length == 0:
            log_prob[n] = 0.0
            continue
        for number in range(last + 1):
            begin = number * size
            if number > 0:
                for j in range(num_states):
                    probs[0, j] = probs[size, j]
                    carry[number, j] = probs[size, j]
            step = min(size, length - begin)
            log += forward_piece(
                start, matrix, transposed, weights, shift, states, index, moves, n, begin, begin == 0, step, probs, masses
            )  # fmt: skip
        step = length - last * size
        mass, word = mass_of(probs, step, num_states), index[n, length - 1]
        log_prob[n] = log + math.log(mass)
        if not log_prob[n] == log_prob[n]:
            return False
        for j in range(num_states):
            future[0, j], single[j] = 1.0, probs[step, j] / mass
            if len(posterior):
                posterior[n, length - 1, j] = single[j]
            if len(visits):
                visits[word, j] += single[j]
        for number in range(last, -1, -1):
            begin = number * size
            step, first = min(size, length - begin), 0 if number > 0 else 1
            if number < last:
                for j in range(num_states):
                    probs[0, j] = carry[number, j]
                forward_piece(
                    start, matrix, transposed, weights, shift, states, index, moves, n, begin, begin == 0, step, probs, masses
                )  # fmt: skip
            if not backward_piece(
                matrix, transposed, weights, states, index, moves, n, begin, first, step, probs, factors, future, moved, single,
                1.0, 1.0, flat, n * most + begin - 1, 1, visits,
            ):  # fmt: skip
                return False
            if moves is None:
                add_pairs(first, step if paired else 0, probs, factors, num_states, pairs, 0)
            else:
                for k in range(first, step if paired else 0):
                    add_pairs(k, k + 1, probs, factors, num_states, pairs, moves[n, begin + k])
        for j in range(num_states):
            starts[n if len(starts) > 1 else 0, j] += single[j]
    for move in range(len(pairs)):
        for i in range(num_states):
            for j in range(num_states):
                pairs[move, i, j] *= matrix[move, i, j]
    return True


@jit(entry=True)
def smooth(
    begin_row, end_row, start, matrix, transposed, weights, shift, states, index, moves, lengths, log_prob, posterior, starts,
    pairs, visits,
):  # fmt: skip
    """Posteriors and expected counts of some rows. False: digits may be lost, or a row is impossible.

    Args:
        log_prob: (N,) out. posterior: (N, T, K) out, 0 behind a row's end, or (0, 0, 0) where it is not asked for. starts: as
            start, and pairs: (M, K, K), zero before: expected starts and transitions, which are left out where pairs has
            length 0. visits: (V, K), zero before: expected visits of a state with each row of weights; or of length 0.
    """
    return add_rows(
        begin_row, end_row, start, matrix, transposed, weights, shift, states, index, moves, lengths, log_prob, posterior,
        starts, pairs, visits,
    )  # fmt: skip


# ---------------------------------------------------------------- the best path
@jit
def best_piece(start, table, which, stride, weights, states, index, n, begin, step, scores, pointers):
    """Scores of the best paths to each state of some steps, less the largest of a step, from scores[0] before them; all tables
    are logarithms. Returns the sum of what was subtracted, NaN where some number is.

    Of few states pointers[k] says where the paths to step begin + k come from, and scores has room for two steps in turn; of
    more the scores of that step stay in scores[k + 1].
    """
    num_states = len(states) if len(states) > 1 else table.shape[1]
    total, kept = 0.0, 1 if len(states) > 1 else -1
    for k in range(step):
        word, top, at, to, no_number = index[n, begin + k], -np.inf, k & kept, (k + 1) & kept, False
        number = which + (begin + k - 1) * stride
        if begin + k == 0:
            for j in range(num_states):
                value = start[n if len(start) > 1 else 0, j] + weights[word, j]
                scores[to, j] = value
                top, no_number = max(top, value), no_number | (value != value)
        elif len(states) > 1:
            for j in range(num_states):
                best, source = scores[at, 0] + table[number, 0, j], 0
                for i in range(1, num_states):
                    value = scores[at, i] + table[number, i, j]
                    better = value > best
                    best, source = value if better else best, i if better else source
                best += weights[word, j]
                scores[to, j], pointers[k, j] = best, source
                top, no_number = max(top, best), no_number | (best != best)
        else:
            whole = num_states - num_states % 4
            for j in range(num_states):
                scores[to, j] = -np.inf
            for i in range(0, whole, 4):
                a, b, c, d = scores[at, i], scores[at, i + 1], scores[at, i + 2], scores[at, i + 3]
                for j in range(num_states):
                    one, two = a + table[number, i, j], b + table[number, i + 1, j]
                    three, four = c + table[number, i + 2, j], d + table[number, i + 3, j]
                    one, three = two if two > one else one, four if four > three else three
                    one = three if three > one else one
                    scores[to, j] = one if one > scores[to, j] else scores[to, j]
            for i in range(whole, num_states):
                a = scores[at, i]
                for j in range(num_states):
                    value = a + table[number, i, j]
                    scores[to, j] = value if value > scores[to, j] else scores[to, j]
            for j in range(num_states):
                value = scores[to, j] + weights[word, j]
                scores[to, j] = value
                top, no_number = max(top, value), no_number | (value != value)
        total += np.nan if no_number else top
        less = top if top > -np.inf else 0.0
        for j in range(num_states):  # sums of thousands of logs would lose digits
            scores[to, j] -= less
    return total


@jit(entry=True)
def viterbi(
    begin_row, end_row, start, table, first, stride, weights, states, index, lengths, most_kept, repeats, path, log_prob, final
):  # fmt: skip
    """The most probable paths of some rows, from tables that are logarithms.

    Args:
        start: (N, K), or (1, K) of all rows. table: (M, K, K), of which number first[n] + (t - 1) * stride leads into step t.
        most_kept: numbers kept on the way; of longer rows scores are made twice. repeats: behind its end a path repeats its
            last state, else it is -1. path: (N, T) out. log_prob: (N,) out, log p(path, x). final: (N, K) out, the scores of
            the last states relative to the best, of rows that have steps; or of length 0.
    """
    most, few = index.shape[1], len(states) > 1
    num_states = len(states) if few else table.shape[1]
    size = max(min(most, most_kept // num_states), 32)
    scores, carry = np.empty((2 if few else size + 1, num_states)), np.empty(((most - 1) // size + 1, num_states))
    pointers = np.empty((size if few else 0, num_states), np.uint8)
    for n in range(begin_row, end_row):
        length, position = length_of(lengths, index, n), 0
        last, log_prob[n] = (length - 1) // size, 0.0
        for turn in range(2 * last + 1):  # forward over all pieces, and back over all but the last, again forward in each
            back = turn > last
            number = 2 * last - turn if back else turn
            begin = number * size
            step = min(size, length - begin)
            for j in range(num_states if number > 0 else 0):
                carry[number, j] = carry[number, j] if back else scores[size & 1 if few else size, j]
                scores[0, j] = carry[number, j]
            total = best_piece(start, table, first[n], stride, weights, states, index, n, begin, step, scores, pointers)
            if not back:
                log_prob[n] += total
            if turn < last:
                continue
            if turn == last:
                to = step & 1 if few else step
                for j in range(num_states):
                    position = j if scores[to, j] > scores[to, position] else position
                    if len(final):
                        final[n, j] = scores[to, j]
                path[n, length - 1] = position
            for k in range(step - 1, -1 if number > 0 else 0, -1):
                if few:
                    position = int(pointers[k, position])
                else:  # found again: to keep it would cost more on the way
                    into = first[n] + (begin + k - 1) * stride
                    best, source = scores[k, 0] + table[into, 0, position], 0
                    for i in range(1, num_states):
                        value = scores[k, i] + table[into, i, position]
                        better = value > best
                        best, source = value if better else best, i if better else source
                    position = source
                path[n, begin + k - 1] = position
        for t in range(length, most):
            path[n, t] = (path[n, length - 1] if length else 0) if repeats else -1


# ---------------------------------------------------------------- samples
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
