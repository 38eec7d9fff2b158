"""Compiled loops over chains of any matrices, row by row: likelihood and posteriors. Importing this module imports numba.

The readable twin is :mod:`pplseq.kernels.scan`; :mod:`pplseq.kernels.chain.piece_call` calls these loops.

A row is cut into pieces of time. Within a piece messages are probabilities, by the steps of
:mod:`pplseq.kernels.chain.loops`, whose tables are made for the piece; where digits may be lost, the piece is done again in log
space. Between pieces messages are logarithms. The pass backward makes those of a piece again from the one before it: nothing of
size T x K is kept.

Shapes: init (N, K), table (M, K, K) of log matrices [from, to], emit (T, N, K), lengths (N,), first_matrix (N,): the matrix
into step t of row n is number ``first_matrix[n] + (t - 1) * stride``, with stride 0 where all steps share it. index (1, P)
numbers the steps of a piece, 0..P-1; moves (1, P) which of the room's matrices leads into each.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pplseq.kernels.chain import LOWEST
from pplseq.kernels.chain.loops import FEW, add_pairs, backward_piece, forward_piece, mass_of
from pplseq.kernels.compiled import jit
from pplseq.kernels.loop_math import exponentials, log_of, log_sum, product

FAR = 300.0  # nats that two sides of a pair may lie apart before it is done entry by entry
NEGLIGIBLE = -50.0  # nats below the largest term of a sum, whatever the number of terms

# Room for a piece of P steps. logs, weights: (P, K) emissions less their largest, and the exponentials of that. probs:
# (P + 1, K) messages, [0] before the piece. factors: (P + 1, K) what a pair consists of besides probs and matrix. tops and
# scales (P,): logarithms of what was divided out of emissions and matrices, and masses (P,) the rest of p(x_t | x_<t), or of
# length 0. matrices, transposed: (G, K, K) matrices into steps over K times their largest entries, whose logarithms are peaks
# (G,): one for all, or those of G steps; apart: (G * K, K) their exponents; flat, turned: the same numbers as they. start:
# (1, K) what the first piece begins with. Of one step work, future and moved (1, K), single (K,). none: of length 0.
Room = namedtuple(
    "Room",
    "logs weights probs factors tops scales masses matrices transposed peaks apart flat turned start work future moved single "
    "none",
)
# Which matrices a row's piece takes: number which + k * stride of the table leads into its step k; none if k = 0 of the first.
Links = namedtuple("Links", "first table which stride")


@jit
def make_room(piece, num_states, group, forward):
    flat, turned = np.empty((group * num_states, num_states)), np.empty((group * num_states, num_states))
    return Room(
        np.empty((piece, num_states)), np.empty((piece, num_states)), np.empty((piece + 1, num_states)),
        np.empty((piece + 1, num_states)), np.empty(piece), np.empty(piece), np.empty(piece if forward else 0),
        flat.reshape(group, num_states, num_states), turned.reshape(group, num_states, num_states), np.empty(group),
        np.empty((group * num_states, num_states)), flat, turned, np.empty((1, num_states)), np.empty((1, num_states)),
        np.empty((1, num_states)), np.empty((1, num_states)), np.empty(num_states), np.empty((0, 0)),
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
def scale_matrices(table, number, stride, begin, end, turned, both, room):
    """Sets the room's matrices begin to end - 1 to exp(log - peak), of which no row sums to more than 1, from numbers of the
    table ``stride`` apart, that of the first of these; or transposed, if turned; or both."""
    num_states, less, log_size = table.shape[1], room.apart, math.log(table.shape[1])
    first, size = begin * num_states, (end - begin) * num_states
    for at in range(begin, end):
        most = largest_of(table, number) + log_size
        room.peaks[at] = most
        row = at * num_states
        if turned:
            for j in range(num_states):
                for i in range(num_states):
                    less[row + j, i] = table[number, i, j] - most
        else:
            for i in range(num_states):
                for j in range(num_states):
                    less[row + i, j] = table[number, i, j] - most
        number += stride
    exponentials(less[first:], room.turned[first:] if turned else room.flat[first:], size)
    for at in range(begin, end if both else begin):
        for i in range(num_states):
            for j in range(num_states):
                if turned:
                    room.matrices[at, j, i] = room.transposed[at, i, j]
                else:
                    room.transposed[at, j, i] = room.matrices[at, i, j]


@jit
def scale_group(links, begin, size, turned, both, room):
    """Sets the room's matrices to those into so many steps of a piece, from ``begin`` on."""
    first = 1 if links.first and begin == 0 else 0
    number = links.which + (begin + first) * links.stride
    scale_matrices(links.table, number, links.stride, first, size, turned, both, room)


@jit
def read_emissions(emit, n, begin, step, room):
    """The emissions of a piece of so many steps, into the room."""
    num_states, logs = emit.shape[2], room.logs
    for k in range(step):
        most = -np.inf
        for j in range(num_states):
            most = max(most, emit[begin + k, n, j])
        most = most if most > -np.inf else 0.0
        room.tops[k] = most
        for j in range(num_states):
            logs[k, j] = emit[begin + k, n, j] - most
    exponentials(logs, room.weights, step)


@jit
def log_product(vectors, k, table, number, backward, room, out, to):
    """out[to, j] = log sum_i exp(vectors[k, i] + log_ij), or log_ji: a product, entry by entry where its result is too small.

    Overwrites the room's row of work.
    """
    num_states, most = table.shape[1], -np.inf
    for i in range(num_states):
        most = max(most, vectors[k, i])
    most = most if most > -np.inf else 0.0
    for i in range(num_states):
        room.work[0, i] = math.exp(vectors[k, i] - most)
    if backward:
        product(room.work, 0, room.transposed[0], out, to)
    else:
        product(room.work, 0, room.matrices[0], out, to)
    for j in range(num_states):
        if out[to, j] >= LOWEST:
            out[to, j] = math.log(out[to, j]) + most + room.peaks[0]
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
def forward_probs(messages, p, n, links, step, index, moves, both, room):
    """Filters a piece in linear space, from the log belief messages[p, n] before it. False: digits may be lost.

    both: transposes of matrices of steps are made as well.
    """
    num_states, group = messages.shape[2], len(room.peaks)
    top = begin_probs(messages, p, n, room.probs, 0)
    if not top == top:
        return False
    for j in range(num_states):
        room.start[0, j] = room.probs[0, j]
    states, row = (len(room.none),), len(room.none)  # zeros, not known when this is compiled: the code is that of rows' loops
    group = group if links.stride else step
    for begin in range(0, step, group):
        size, fresh, before = min(group, step - begin), links.first and begin == 0, 1.0
        if links.stride:
            scale_group(links, begin, size, num_states <= FEW, both, room)
        if begin:
            before = mass_of(room.probs, begin, num_states)
        log = forward_piece(
            room.start, room.matrices, room.transposed, room.weights, room.tops, states, index, moves, row, begin, fresh,
            size, room.probs[begin:], room.masses[begin:],
        )  # fmt: skip
        if not log == log:
            return False
        if len(room.masses):
            room.masses[begin] /= before
        for k in range(size):
            room.scales[begin + k] = room.peaks[k if links.stride else 0]
    room.scales[0] = top + (0.0 if links.first else room.scales[0])
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
                scale_matrices(links.table, number, 0, 0, 1, False, False, room)
            log_product(probs, k, links.table, number, False, room, probs, k + 1)
        for j in range(num_states):
            probs[k + 1, j] += room.logs[k, j]
        norm = log_sum(probs, k + 1)
        if len(room.masses):
            room.masses[k] = norm
        norm = norm if norm != -np.inf else 0.0
        for j in range(num_states):
            probs[k + 1, j] -= norm


@jit(entry=True)
def forward(
    begin_row, end_row, init, table, first_matrix, stride, group, emit, lengths, index, moves, carry, in_logs, steps, messages
):  # fmt: skip
    """Filters some rows.

    Args:
        group: how many matrices there is room for. carry: (pieces + 1, N, K) out, the log belief before each piece, before the
            first log p(z_1).
        in_logs: (pieces, N) out, pieces done in log space. steps: (T, N) out, log p(x_t | x_<t).
        messages: (T, N, K) out, log p(z_t | x_<=t), or of length 0 where they are not wanted.
    """
    num_states, last, piece = init.shape[1], -1, index.shape[1]
    room = make_room(piece, num_states, group, True)
    for n in range(begin_row, end_row):
        if not stride and first_matrix[n] != last:
            last = first_matrix[n]
            scale_matrices(table, last, 0, 0, 1, False, True, room)
        length = max(lengths[n], 1) if len(messages) else lengths[n]
        for j in range(num_states):
            carry[0, n, j] = init[n, j]
        for p in range((length + piece - 1) // piece):
            begin, step = p * piece, min(length - p * piece, piece)
            read_emissions(emit, n, begin, step, room)
            links = Links(p == 0, table, first_matrix[n] + (begin - 1) * stride, stride)
            slow = not forward_probs(carry, p, n, links, step, index, moves, False, room)
            if slow:
                forward_logs(carry, p, n, links, step, room)
            in_logs[p, n] = slow
            for k in range(step):
                more = 0.0 if slow else room.scales[k]
                steps[begin + k, n] = room.tops[k] + log_of(room.masses[k], slow) + more
            for k in range(step if len(messages) else 0):
                norm = 0.0 if slow else math.log(mass_of(room.probs, k + 1, num_states))
                for j in range(num_states):
                    messages[begin + k, n, j] = log_of(room.probs[k + 1, j], slow) - norm
            norm = 0.0 if slow else math.log(mass_of(room.probs, step, num_states))
            for j in range(num_states):
                carry[p + 1, n, j] = log_of(room.probs[step, j], slow) - norm
        for t in range(lengths[n], len(steps)):
            steps[t, n] = 0.0
            if len(messages) and t > 0:
                for j in range(num_states):
                    messages[t, n, j] = messages[t - 1, n, j]


# ---------------------------------------------------------------- backward
@jit
def backward_probs(message, links, step, to, pace, scale, shown, index, moves, room, single, apart):
    """The posteriors of a piece in linear space. False: digits may be lost, and ``message`` is what it was.

    Args:
        message: (1, 1, K) log p(what follows the piece | its last state) up to a constant; becomes that of the piece before.
        scale: multiplies the room's factors. shown: multiplies what goes to single. single: (M, K) gets the posteriors of the
            steps before those of the piece, in every pace-th row from number ``to`` on.
        apart: gets the pairs of steps that have matrices of their own, by the number of the matrix.
    """
    group, future, num_states = len(room.peaks), room.future, message.shape[2]
    top = begin_probs(message, 0, 0, future, 0)
    if not top == top:
        return False
    states, row = (len(room.none),), len(room.none)  # as in the pass forward
    group = group if links.stride else step
    for low in range((step - 1) // group * group, -1, -group):
        size, first = min(group, step - low), 1 if links.first and low == 0 else 0
        if links.stride and step > group:  # else those of the pass forward are there
            scale_group(links, low, size, num_states > FEW, len(apart) > 0, room)
        if not backward_piece(
            room.matrices, room.transposed, room.weights, states, index, moves, row, low, first, size, room.probs[low:],
            room.factors[low:], future, room.moved, room.single, scale, shown, single, to + low * pace, pace, room.none,
        ):  # fmt: skip
            return False
        for k in range(first, size if links.stride and len(apart) else 0):
            set_pair(links, low + k, k, room, apart)
    for j in range(num_states):
        message[0, 0, j] = log_of(future[0, j], False)
    return True


@jit
def set_pair(links, k, at, room, apart):
    """The pairs of step k of a piece, whose matrix is one of the room's, and its own."""
    num_states, number = apart.shape[1], links.which + k * links.stride
    for i in range(num_states):
        for j in range(num_states):
            apart[number, i, j] = room.probs[k, i] * room.matrices[at, i, j] * room.factors[k, j]


@jit
def backward_logs(message, links, step, begin, n, scale, shown, room, single, apart):
    """As :func:`backward_probs`, in log space; on return the room's probs, logarithms before, are probabilities.

    Args:
        apart: gets pairs whose two sides lie far apart, or all where steps have matrices of their own, by the number of the
            matrix; of length 0: pairs are not wanted.
    """
    num_states, future, moved, probs, factors = message.shape[2], room.future, room.moved, room.probs, room.factors
    for k in range(step - 1, -1, -1):
        for j in range(num_states):
            factors[k, j] = 0.0
        if links.first and k == 0:
            break
        number, most = links.which + k * links.stride, -np.inf
        if links.stride:
            scale_matrices(links.table, number, 0, 0, 1, True, False, room)
            for i in range(num_states if len(apart) else 0):  # what was there before digits were lost
                for j in range(num_states):
                    apart[number, i, j] = 0.0
        for j in range(num_states):
            future[0, j] = room.logs[k, j] + message[0, 0, j]
            most = max(most, future[0, j])
        log_product(future, 0, links.table, number, True, room, moved, 0)
        norm = log_sum(moved, 0)
        norm = norm if norm != -np.inf else 0.0
        for i in range(num_states):
            message[0, 0, i] = moved[0, i] - norm
            moved[0, i] += probs[k, i]
        both = log_sum(moved, 0)
        for i in range(num_states):
            single[begin + k - 1, n, i] = shown * math.exp(moved[0, i] - both) if both != -np.inf else 0.0
        if both == -np.inf:  # an impossible row counts nothing
            continue
        if not links.stride and most + room.peaks[0] - both <= FAR:
            for j in range(num_states):
                factors[k, j] = scale * math.exp(future[0, j] + room.peaks[0] - both)
        elif len(apart):
            for i in range(num_states):
                for j in range(num_states):
                    log_pair = probs[k, i] + links.table[number, i, j] + future[0, j] - both
                    apart[number, i, j] += scale * math.exp(log_pair)
    for k in range(step):
        for j in range(num_states):
            probs[k, j] = math.exp(probs[k, j])


@jit(entry=True)
def smooth(
    begin_row, end_row, table, first_matrix, stride, group, emit, lengths, index, moves, carry, in_logs, scale, shown, single,
    pairs, apart,
):  # fmt: skip
    """Posteriors of some rows from what :func:`forward` kept.

    Args:
        scale, shown: (N,) multiply each row's posteriors of pairs, and of states.
        single: (T, N, K) out. pairs, apart: (M, K, K), zero before, or of length 0. Where matrices are shared,
        the sum of pairs is ``pairs`` times the scaled matrix, plus ``apart``; else the pairs of each step are ``apart``.
    """
    num_states, last, piece, num_rows = carry.shape[2], -1, index.shape[1], single.shape[1]
    flat = single.reshape(len(single) * num_rows, num_states)
    room, message = make_room(piece, num_states, group, False), np.empty((1, 1, num_states))
    for n in range(begin_row, end_row):
        if not stride and first_matrix[n] != last:
            last = first_matrix[n]
            scale_matrices(table, last, 0, 0, 1, False, True, room)
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
            slow = in_logs[p, n] or not forward_probs(carry, p, n, links, step, index, moves, step <= group, room)
            if slow:
                forward_logs(carry, p, n, links, step, room)
            if p == num_pieces - 1:
                mass = 1.0 if slow else mass_of(room.probs, step, num_states)
                for j in range(num_states):
                    value = room.probs[step, j]
                    single[begin + step - 1, n, j] = shown[n] * (math.exp(value) if slow else value / mass)
            if slow or not backward_probs(
                message, links, step, (begin - 1) * num_rows + n, num_rows, scale[n], shown[n], index, moves, room, flat, apart
            ):  # fmt: skip
                if not slow:
                    forward_logs(carry, p, n, links, step, room)
                backward_logs(message, links, step, begin, n, scale[n], shown[n], room, single, apart)
            if len(pairs):
                add_pairs(1 if links.first else 0, step, room.probs, room.factors, num_states, pairs, first_matrix[n])
