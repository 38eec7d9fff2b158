"""Compiled loops over the steps of a chain, row by row: likelihood and posteriors. Importing this module imports numba.

The readable twin is :mod:`pplseq.kernels.scan`; :mod:`pplseq.kernels.chain.piece_call` calls these loops.

A row is cut into pieces of time. Within a piece, messages are probabilities, normalised at every step (linear space); where an
entry comes out so small that digits may be lost, and is no true zero, the piece is done again in log space. Between pieces
messages are logarithms. The pass backward makes those of a piece again from the one before it: nothing of size T x K is kept.

Shapes: init (N, K), table (M, K, K) of log matrices [from, to], emit (T, N, K), lengths (N,), first_matrix (N,): the matrix
into step t of row n is number ``first_matrix[n] + (t - 1) * stride``, with stride 0 where all steps share it.

Elements are named by index, ``probs[k + 1, j]``, not through views of rows: a view costs as much as a small step, and copying
one takes seconds to compile.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pplseq.kernels.chain import LOWEST
from pplseq.kernels.chain.loops import FEW, add_pairs
from pplseq.kernels.compiled import jit
from pplseq.kernels.loop_math import exponentials, log_of, log_sum, product

FAR = 300.0  # nats that two sides of a pair may lie apart before it is done entry by entry
NEGLIGIBLE = -50.0  # nats below the largest term of a sum, whatever the number of terms
TOGETHER = 64  # numbers of a matrix up to which those of several steps have their exponentials at once
GROUP = 64  # steps

# Room for a piece of P steps. logs, weights: (P, K) emissions less their largest, and the exponentials of that. probs:
# (P + 1, K) filtered beliefs, [0] before the piece. factors: (P, K) what a pair consists of besides probs and matrix. steps:
# (3, P) rows TOP and MATRIX, logarithms of what was divided out, and MASS, the rest of p(x_t | x_<t). scaled, transposed:
# (K, K) the matrix over its largest entry, whose logarithm is shift[0]. rows: (3, K) rows WORK, FUTURE and MOVED. group:
# (GROUP, K^2) the same as scaled of steps that have matrices of their own, and peaks (GROUP,) their largest logarithms, of
# length 0 where that is not worth it; apart: their exponents.
Room = namedtuple("Room", "logs weights probs factors steps scaled transposed shift rows group peaks apart")
TOP, MATRIX, MASS = 0, 1, 2
WORK, FUTURE, MOVED = 0, 1, 2
# Which matrices a row's piece takes: number which + k * stride of the table leads into its step k; none if k = 0 of the first.
Links = namedtuple("Links", "first table which stride")


@jit
def make_room(piece, num_states, stride):
    group = GROUP if stride and num_states * num_states <= TOGETHER else 0
    return Room(
        np.empty((piece, num_states)), np.empty((piece, num_states)), np.empty((piece + 1, num_states)),
        np.empty((piece, num_states)), np.empty((3, piece)), np.empty((num_states, num_states)),
        np.empty((num_states, num_states)), np.empty(1), np.empty((3, num_states)),
        np.empty((group, num_states * num_states)), np.empty(group), np.empty((group, num_states * num_states)),
    )  # fmt: skip


@jit
def largest_of(table, number):
    """The largest entry of one of the table's matrices; 0 where all are -inf."""
    most = -np.inf
    for i in range(table.shape[1]):
        for j in range(table.shape[2]):
            most = max(most, table[number, i, j])
    return most if most > -np.inf else 0.0


@jit
def scale_matrix(table, number, room):
    """Sets the room's matrices to exp(log - max) and its transpose, and its shift to that maximum."""
    num_states, most, scaled, transposed = table.shape[1], largest_of(table, number), room.scaled, room.transposed
    for i in range(num_states):
        for j in range(num_states):
            transposed[i, j] = table[number, i, j] - most
    exponentials(transposed, scaled, num_states)
    for i in range(num_states):
        for j in range(num_states):
            transposed[j, i] = scaled[i, j]
    room.shift[0] = most


@jit
def scale_group(links, begin, step, room):
    """Sets the room's group to the matrices into its steps from ``begin`` on, before ``step``, see :func:`scale_matrix`."""
    table, group, num_states = links.table, room.apart, links.table.shape[1]
    end = min(step, begin + GROUP)
    for k in range(begin, end):
        number, at = 0, k - begin
        if not (links.first and k == 0):
            number = links.which + k * links.stride
        most = largest_of(table, number)
        for i in range(num_states):
            for j in range(num_states):
                group[at, i * num_states + j] = table[number, i, j] - most
        room.peaks[at] = most
    exponentials(group, room.group, end - begin)


@jit
def read_emissions(emit, n, begin, step, room):
    """The emissions of a piece of so many steps, into the room."""
    num_states, logs, steps = emit.shape[2], room.logs, room.steps
    for k in range(step):
        most = -np.inf
        for j in range(num_states):
            most = max(most, emit[begin + k, n, j])
        most = most if most > -np.inf else 0.0
        steps[TOP, k] = most
        for j in range(num_states):
            logs[k, j] = emit[begin + k, n, j] - most
    exponentials(logs, room.weights, step)


@jit
def log_product(vectors, k, table, number, backward, room, out, to):
    """out[to, j] = log sum_i exp(vectors[k, i] + log_ij), or log_ji: a product, entry by entry where its result is too small.

    Overwrites the room's row WORK.
    """
    num_states, most = table.shape[1], -np.inf
    for i in range(num_states):
        most = max(most, vectors[k, i])
    most = most if most > -np.inf else 0.0
    for i in range(num_states):
        room.rows[WORK, i] = math.exp(vectors[k, i] - most)
    if backward:
        product(room.rows, WORK, room.transposed, out, to)
    else:
        product(room.rows, WORK, room.scaled, out, to)
    for j in range(num_states):
        if out[to, j] >= LOWEST:
            out[to, j] = math.log(out[to, j]) + most + room.shift[0]
            continue
        largest, total = -np.inf, 0.0
        for i in range(num_states):
            largest = max(largest, vectors[k, i] + (table[number, j, i] if backward else table[number, i, j]))
        if largest > -np.inf:
            for i in range(num_states):
                term = vectors[k, i] + (table[number, j, i] if backward else table[number, i, j]) - largest
                if not term < NEGLIGIBLE:
                    total += math.exp(term)
            out[to, j] = math.log(total) + largest
        else:  # NaN stays
            out[to, j] = largest + (out[to, j] - out[to, j])


# ---------------------------------------------------------------- forward
@jit
def begin_probs(messages, p, n, out, to):
    """out[to] = exp(messages[p, n] - top); returns top, or NaN if digits may be lost."""
    num_states, top = messages.shape[2], -np.inf
    for j in range(num_states):
        top = max(top, messages[p, n, j])
    if not top > -np.inf:
        return np.nan
    for j in range(num_states):
        out[to, j] = math.exp(messages[p, n, j] - top)
        if not out[to, j] >= LOWEST and not messages[p, n, j] == -np.inf:
            return np.nan
    return top


@jit
def forward_probs(messages, p, n, links, step, room):
    """Filters a piece in linear space, from the log belief messages[p, n] before it. False: digits may be lost."""
    num_states, probs, weights, logs, steps = messages.shape[2], room.probs, room.weights, room.logs, room.steps
    scaled, transposed, shift = room.scaled, room.transposed, room.shift
    table, first, stride = links.table, links.first, links.stride
    which, top = links.which, begin_probs(messages, p, n, probs, 0)
    group, peaks, grouped = room.group, room.peaks, len(room.peaks) > 0
    if not top == top:
        return False
    for k in range(step):
        plain, at = first and k == 0, k % GROUP
        number = which + k * stride
        if grouped and at == 0:
            scale_group(links, k, step, room)
        if plain:
            for j in range(num_states):
                probs[1, j] = probs[0, j]
            steps[MATRIX, k] = top
        else:
            if stride and not grouped:
                scale_matrix(table, number, room)
            steps[MATRIX, k] = (peaks[at] if grouped else shift[0]) + (top if k == 0 else 0.0)
        total, least = 0.0, np.inf
        if grouped and not plain:
            for j in range(num_states):
                value = 0.0
                for i in range(num_states):
                    value += probs[k, i] * group[at, i * num_states + j]
                value *= weights[k, j]
                probs[k + 1, j] = value
                total += value
                least = min(least, value)
        elif num_states <= FEW and not plain:
            for j in range(num_states):
                value = 0.0
                for i in range(num_states):
                    value += probs[k, i] * transposed[j, i]
                value *= weights[k, j]
                probs[k + 1, j] = value
                total += value
                least = min(least, value)
        else:
            if not plain:
                product(probs, k, scaled, probs, k + 1)
            for j in range(num_states):
                value = probs[k + 1, j] * weights[k, j]
                probs[k + 1, j] = value
                total += value
                least = min(least, value)
        if not total >= LOWEST:
            return False
        if not least >= LOWEST:  # true zeros?
            for j in range(num_states):
                if probs[k + 1, j] >= LOWEST or logs[k, j] == -np.inf or (plain and messages[p, n, j] == -np.inf):
                    continue
                if plain:
                    return False
                for i in range(num_states):
                    if probs[k, i] > 0 and table[number, i, j] > -np.inf:
                        return False
        steps[MASS, k] = total
        factor = 1.0 / total
        for j in range(num_states):
            probs[k + 1, j] *= factor
    return True


@jit
def forward_logs(messages, p, n, links, step, room):
    """As :func:`forward_probs`, in log space: the room's probs and MASS hold logarithms."""
    num_states, probs = messages.shape[2], room.probs
    for j in range(num_states):
        probs[0, j] = messages[p, n, j]
    for k in range(step):
        if links.first and k == 0:
            for j in range(num_states):
                probs[1, j] = probs[0, j]
        else:
            number = links.which + k * links.stride
            if links.stride:
                scale_matrix(links.table, number, room)
            log_product(probs, k, links.table, number, False, room, probs, k + 1)
        for j in range(num_states):
            probs[k + 1, j] += room.logs[k, j]
        norm = log_sum(probs, k + 1)
        room.steps[MASS, k] = norm
        norm = norm if norm != -np.inf else 0.0
        for j in range(num_states):
            probs[k + 1, j] -= norm


@jit(entry=True)
def forward(
    begin_row, end_row, init, table, first_matrix, stride, emit, lengths, piece, carry, in_logs, steps, messages
):  # fmt: skip
    """Filters some rows.

    Args:
        piece: steps of a piece. carry: (P + 1, N, K) out, the log belief before each piece, before the first log p(z_1).
        in_logs: (P, N) out, pieces done in log space. steps: (T, N) out, log p(x_t | x_<t).
        messages: (T, N, K) out, log p(z_t | x_<=t), or of length 0 where they are not wanted.
    """
    num_states, last = init.shape[1], -1
    room = make_room(piece, num_states, stride)
    for n in range(begin_row, end_row):
        if not stride and first_matrix[n] != last:
            last = first_matrix[n]
            scale_matrix(table, last, room)
        length = max(lengths[n], 1) if len(messages) else lengths[n]
        for j in range(num_states):
            carry[0, n, j] = init[n, j]
        for p in range((length + piece - 1) // piece):
            begin, step = p * piece, min(length - p * piece, piece)
            read_emissions(emit, n, begin, step, room)
            links = Links(p == 0, table, first_matrix[n] + (begin - 1) * stride, stride)
            slow = not forward_probs(carry, p, n, links, step, room)
            if slow:
                forward_logs(carry, p, n, links, step, room)
            in_logs[p, n] = slow
            for k in range(step):
                more = 0.0 if slow else room.steps[MATRIX, k]
                steps[begin + k, n] = room.steps[TOP, k] + log_of(room.steps[MASS, k], slow) + more
            for j in range(num_states):
                carry[p + 1, n, j] = log_of(room.probs[step, j], slow)
            if len(messages):
                for k in range(step):
                    for j in range(num_states):
                        messages[begin + k, n, j] = log_of(room.probs[k + 1, j], slow)
        for t in range(lengths[n], len(steps)):
            steps[t, n] = 0.0
            if len(messages) and t > 0:
                for j in range(num_states):
                    messages[t, n, j] = messages[t - 1, n, j]


# ---------------------------------------------------------------- backward
@jit
def backward_probs(message, links, step, begin, n, scale, shown, room, single):
    """The posteriors of a piece in linear space. False: digits may be lost, and ``message`` is what it was.

    Args:
        message: (1, 1, K) log p(what follows the piece | its last state) up to a constant; becomes that of the piece before.
        scale: multiplies the room's factors. shown: multiplies what goes to single. single: (T, N, K) gets the posteriors of
        steps begin - 1 to the last but one of the piece, or of length 0.
    """
    num_states, rows, probs, factors = message.shape[2], room.rows, room.probs, room.factors
    weights, logs, scaled, transposed = room.weights, room.logs, room.scaled, room.transposed
    table, first, stride = links.table, links.first, links.stride
    which, top = links.which, begin_probs(message, 0, 0, rows, FUTURE)
    group, grouped = room.group, len(room.peaks) > 0
    if not top == top:
        return False
    for k in range(step - 1, -1, -1):
        number = which + k * stride
        if first and k == 0:
            for j in range(num_states):
                factors[0, j] = 0.0
            return True
        for j in range(num_states):
            factors[k, j] = weights[k, j] * rows[FUTURE, j]
        at = k % GROUP
        if grouped and (at == GROUP - 1 or k == step - 1):
            scale_group(links, k - at, step, room)
        if stride and not grouped:
            scale_matrix(table, number, room)
        both, total, least = 0.0, 0.0, np.inf
        if grouped:
            for i in range(num_states):
                value = 0.0
                for j in range(num_states):
                    value += factors[k, j] * group[at, i * num_states + j]
                rows[MOVED, i] = value
                both += probs[k, i] * value
                total += value
                least = min(least, value)
        elif num_states <= FEW:
            for i in range(num_states):
                value = 0.0
                for j in range(num_states):
                    value += factors[k, j] * scaled[i, j]
                rows[MOVED, i] = value
                both += probs[k, i] * value
                total += value
                least = min(least, value)
        else:
            product(factors, k, transposed, rows, MOVED)
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
                    if rows[FUTURE, j] > 0 and logs[k, j] > -np.inf and table[number, i, j] > -np.inf:
                        return False
        share, norm = 1.0 / both, 1.0 / total
        if len(single):
            for i in range(num_states):
                single[begin + k - 1, n, i] = probs[k, i] * rows[MOVED, i] * (share * shown)
        share *= scale
        for j in range(num_states):
            factors[k, j] *= share
            rows[FUTURE, j] = rows[MOVED, j] * norm
    for j in range(num_states):
        message[0, 0, j] = log_of(rows[FUTURE, j], False)
    return True


@jit
def backward_logs(message, links, step, begin, n, scale, shown, room, single, apart):
    """As :func:`backward_probs`, in log space; on return the room's probs, logarithms before, are probabilities.

    Args:
        apart: gets pairs whose two sides lie far apart, by the number of their matrix; of length 0: pairs are not wanted.
    """
    num_states, rows, probs, factors = message.shape[2], room.rows, room.probs, room.factors
    for k in range(step - 1, -1, -1):
        for j in range(num_states):
            factors[k, j] = 0.0
        if links.first and k == 0:
            break
        number, most = links.which + k * links.stride, -np.inf
        if links.stride:
            scale_matrix(links.table, number, room)
        for j in range(num_states):
            rows[FUTURE, j] = room.logs[k, j] + message[0, 0, j]
            most = max(most, rows[FUTURE, j])
        log_product(rows, FUTURE, links.table, number, True, room, rows, MOVED)
        norm = log_sum(rows, MOVED)
        norm = norm if norm != -np.inf else 0.0
        for i in range(num_states):
            message[0, 0, i] = rows[MOVED, i] - norm
            rows[MOVED, i] += probs[k, i]
        both = log_sum(rows, MOVED)
        if len(single):
            for i in range(num_states):
                single[begin + k - 1, n, i] = shown * math.exp(rows[MOVED, i] - both) if both != -np.inf else 0.0
        if both == -np.inf:  # an impossible row counts nothing
            continue
        if most + room.shift[0] - both <= FAR:
            for j in range(num_states):
                factors[k, j] = scale * math.exp(rows[FUTURE, j] + room.shift[0] - both)
        elif len(apart):
            for i in range(num_states):
                for j in range(num_states):
                    log_pair = probs[k, i] + links.table[number, i, j] + rows[FUTURE, j] - both
                    apart[number, i, j] += scale * math.exp(log_pair)
    for k in range(step):
        for j in range(num_states):
            probs[k, j] = 0.0 if links.first and k == 0 else math.exp(probs[k, j])  # before the first step there is none


@jit
def add_step_pairs(links, step, room, apart):
    """The pairs of each step, where every step has a matrix of its own."""
    num_states, group, grouped = apart.shape[1], room.group, len(room.peaks) > 0
    for k in range(step):
        at = k % GROUP
        if grouped and at == 0:
            scale_group(links, k, step, room)
        if links.first and k == 0:
            continue
        number = links.which + k * links.stride
        if not grouped:
            scale_matrix(links.table, number, room)
        for i in range(num_states):
            for j in range(num_states):
                scaled = group[at, i * num_states + j] if grouped else room.scaled[i, j]
                apart[number, i, j] += room.probs[k, i] * scaled * room.factors[k, j]


@jit(entry=True)
def smooth(
    begin_row, end_row, table, first_matrix, stride, emit, lengths, piece, carry, in_logs, scale, shown, single, pairs, apart
):  # fmt: skip
    """Posteriors of some rows from what :func:`forward` kept.

    Args:
        scale, shown: (N,) multiply each row's posteriors of pairs, and of states.
        single: (T, N, K) out, or of length 0. pairs, apart: (M, K, K), zero before, or of length 0. Where matrices are shared,
        the sum of pairs is ``pairs`` times the scaled matrix, plus ``apart``; else the pairs of each step are ``apart``.
    """
    num_states, last = carry.shape[2], -1
    room, message = make_room(piece, num_states, stride), np.empty((1, 1, num_states))
    for n in range(begin_row, end_row):
        if not stride and first_matrix[n] != last:
            last = first_matrix[n]
            scale_matrix(table, last, room)
        for t in range(lengths[n], len(single)):
            for j in range(num_states):
                single[t, n, j] = 0.0
        for j in range(num_states):
            message[0, 0, j] = 0.0
        num_pieces = (lengths[n] + piece - 1) // piece
        for p in range(num_pieces - 1, -1, -1):
            begin, step = p * piece, min(lengths[n] - p * piece, piece)
            read_emissions(emit, n, begin, step, room)
            links = Links(p == 0, table, first_matrix[n] + (begin - 1) * stride, stride)
            slow = in_logs[p, n] or not forward_probs(carry, p, n, links, step, room)
            if slow:
                forward_logs(carry, p, n, links, step, room)
            if len(single) and p == num_pieces - 1:
                for j in range(num_states):
                    value = room.probs[step, j]
                    single[begin + step - 1, n, j] = shown[n] * (math.exp(value) if slow else value)
            if slow or not backward_probs(message, links, step, begin, n, scale[n], shown[n], room, single):
                if not slow:
                    forward_logs(carry, p, n, links, step, room)
                backward_logs(message, links, step, begin, n, scale[n], shown[n], room, single, apart)
            if len(pairs):
                add_pairs(0, step, room.probs, room.factors, num_states, pairs, first_matrix[n])
            elif len(apart):
                add_step_pairs(links, step, room, apart)
