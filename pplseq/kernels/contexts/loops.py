"""Compiled loops over the rows of a chain of contexts: filtering, posteriors with expected counts, the best path.

The readable twin is :mod:`pplseq.kernels.contexts.reference`, which also does what is refused here: where digits may be lost,
or a row is impossible. A step looks at the contexts that are reached and at the symbols that its word allows. Importing this
module imports numba.

Shapes: init (N, Z) and emit (T, N, Z) logarithms; table (Z, M) of a context and a symbol, each entry 0 or at least LEAST;
successor (Z, M) the context that they lead to, which ends with the symbol; symbol (Z,) the last one of each; in_order: M where
the symbols of every context lead to contexts one after the other, as numbers go, else -1; lengths (N,). Those contexts are
counted without a sign: an index that may be negative hinders a processor's vectors.
"""

from __future__ import annotations

import math

import numpy as np

from pplseq.kernels.compiled import jit

LEAST = 1e-25  # of the table; times LOWEST it is no denormal number, so that a sum is zero only where nothing is possible
LOWEST = 1e-280  # a smaller message may be what is left of one that underflowed


@jit
def allowed_symbols(emit, t, n, symbol, marks, allowed):
    """Lists the symbols of contexts that a word allows. Returns their number, and the largest emission or NaN."""
    most, number = -np.inf, 0
    marks[:] = False
    for z in range(len(symbol)):
        value = emit[t, n, z]
        if value != -np.inf:
            if value != value:
                return 0, np.nan
            marks[symbol[z]] = True
            most = max(most, value)
    for c in range(len(marks)):
        if marks[c]:
            allowed[number] = c
            number += 1
    return number, most


@jit(entry=True)
def forward(begin_row, end_row, init, table, successor, symbol, in_order, emit, lengths, messages, steps):
    """Filtering of some rows. False: digits may be lost, or a row is impossible.

    Args:
        messages: (T, N, Z) out, p(context_t | x_<=t), the last one carried over padded steps. steps: (T, N) out,
            log p(x_t | x_<t), 0 at padded steps.
    """
    num_steps, size, num_symbols = emit.shape[0], len(symbol), table.shape[1]
    marks, allowed, alive = np.empty(num_symbols, np.bool_), np.empty(num_symbols, np.int64), np.empty(size, np.int64)
    new = np.empty(size)
    for n in range(begin_row, end_row):
        count = 0
        for t in range(max(lengths[n], 1)):
            if t == 0:
                most = -np.inf
                for z in range(size):
                    new[z] = init[n, z]
                    value = init[n, z] + emit[0, n, z]
                    most = most if most > value else value
            else:
                number, most = allowed_symbols(emit, t, n, symbol, marks, allowed)
                new[:] = 0.0
                for k in range(count):
                    s = alive[k]
                    own = messages[t - 1, n, s]
                    if number == in_order:
                        first = np.uint64(successor[s, 0])
                        for c in range(np.uint64(num_symbols)):
                            new[first + c] += own * table[s, c]
                    else:
                        for i in range(number):
                            new[successor[s, allowed[i]]] += own * table[s, allowed[i]]
            total, count = 0.0, 0
            for z in range(size):
                value = emit[t, n, z]
                if t == 0:
                    value = math.exp(new[z] + value - most) if new[z] + value != -np.inf else 0.0
                    if value < LOWEST and new[z] + emit[t, n, z] != -np.inf:
                        return False
                else:
                    value = new[z] * math.exp(value - most) if value != -np.inf and new[z] > 0.0 else 0.0
                    if value < LOWEST and new[z] > 0.0 and emit[t, n, z] != -np.inf:
                        return False
                new[z] = value
                total += value
                if value > 0.0:
                    alive[count] = z
                    count += 1
            if not total >= LOWEST or not total < np.inf or not most == most:
                return False
            for z in range(size):
                messages[t, n, z] = new[z] / total
            steps[t, n] = math.log(total) + most if t < lengths[n] else 0.0
        for t in range(max(lengths[n], 1), num_steps):
            steps[t, n] = 0.0
            for z in range(size):
                messages[t, n, z] = messages[t - 1, n, z]
    return True


@jit(entry=True)
def smooth(begin_row, end_row, table, successor, symbol, in_order, emit, lengths, messages, weight, posterior, counts, entropy):
    """Posteriors of some rows from what :func:`forward` gives. False: digits may be lost.

    Args:
        weight: (N,) of each row in the counts. posterior: (T, N, Z) out, p(context_t | x), 0 at padded steps. counts: (Z, M),
            zero before: expected symbols behind contexts; or (0, 0). entropy: (N,) out, of the path given x, nats; or (0,).
    """
    num_steps, size, num_symbols = emit.shape[0], len(symbol), table.shape[1]
    marks, allowed = np.empty(num_symbols, np.bool_), np.empty(num_symbols, np.int64)
    evidence, future = np.empty(size), np.empty(size)
    counted, wanted = len(counts) > 0, len(entropy) > 0
    for n in range(begin_row, end_row):
        length, inner = lengths[n], 0.0
        for t in range(length, num_steps):
            for z in range(size):
                posterior[t, n, z] = 0.0
        for z in range(size if length else 0):
            posterior[length - 1, n, z] = messages[length - 1, n, z]
            future[z] = 1.0 if messages[length - 1, n, z] > 0.0 else 0.0
        for t in range(length - 1, 0, -1):
            number, most = allowed_symbols(emit, t, n, symbol, marks, allowed)
            for z in range(size):
                evidence[z] = future[z] * math.exp(emit[t, n, z] - most) if future[z] > 0.0 else 0.0
                if future[z] > 0.0 and evidence[z] < LOWEST:
                    return False
            both, highest = 0.0, 0.0
            for s in range(size):
                future[s] = 0.0
                own = messages[t - 1, n, s]
                if own > 0.0:
                    value = 0.0
                    if number == in_order:
                        first = np.uint64(successor[s, 0])
                        for c in range(np.uint64(num_symbols)):
                            value += table[s, c] * evidence[first + c]
                    else:
                        for i in range(number):
                            value += table[s, allowed[i]] * evidence[successor[s, allowed[i]]]
                    future[s] = value
                    both += own * value
                    highest = max(highest, value)
            if not both >= LOWEST:
                return False
            for s in range(size):
                own, value = messages[t - 1, n, s], future[s]
                posterior[t - 1, n, s] = own * value / both
                if value > 0.0:
                    share = weight[n] * own / both
                    for i in range(number if counted else 0):
                        c = allowed[i]
                        counts[s, c] += share * table[s, c] * evidence[successor[s, c]]
                    for i in range(number if wanted else 0):
                        prob = table[s, allowed[i]] * evidence[successor[s, allowed[i]]] / value
                        if prob > 0.0:
                            inner -= posterior[t - 1, n, s] * prob * math.log(prob)
                    future[s] = value / highest
                    if future[s] < LOWEST:
                        return False
        if wanted:
            for z in range(size if length else 0):
                if posterior[0, n, z] > 0.0:
                    inner -= posterior[0, n, z] * math.log(posterior[0, n, z])
            entropy[n] = inner
    return True


@jit(entry=True)
def k_best(begin_row, end_row, init, table, successor, symbol, in_order, emit, lengths, path, log_prob):
    """The k most probable paths of some rows; of equals that by the first contexts before. False: some is no number.

    Args:
        table: logarithms. path: (k, T, N) out; padded steps repeat the last. log_prob: (k, N) out, log p(path, x), -inf where
            there are fewer; a row without steps has one.
    """
    k, num_steps, size, num_symbols = len(path), emit.shape[0], len(symbol), table.shape[1]
    pointers = np.empty((num_steps, size * k), np.int32)
    marks, allowed, alive = np.empty(num_symbols, np.bool_), np.empty(num_symbols, np.int64), np.empty(size, np.int64)
    score, best, source = np.empty(size * k), np.empty(size * k), np.zeros(size * k, np.int64)
    for n in range(begin_row, end_row):
        total, count = 0.0, 0
        if lengths[n] == 0:
            for rank in range(k):
                score[rank] = 0.0 if rank == 0 else -np.inf
            alive[0], count = 0, 1
        for t in range(lengths[n]):
            best[:] = -np.inf
            if t == 0:
                for z in range(size):
                    best[z * k] = init[n, z]
            else:
                number = allowed_symbols(emit, t, n, symbol, marks, allowed)[0]
                for which in range(count):
                    s = alive[which]
                    if number == in_order and k == 1:
                        first, own = np.uint64(successor[s, 0]), score[s]
                        for c in range(np.uint64(num_symbols)):
                            value = own + table[s, c]
                            better = value > best[first + c]
                            best[first + c] = value if better else best[first + c]
                            source[first + c] = s if better else source[first + c]
                    else:
                        for i in range(number):
                            first = successor[s, allowed[i]] * k
                            for rank in range(k):
                                value, place = score[s * k + rank] + table[s, allowed[i]], first + k - 1
                                if not value > best[place]:
                                    break  # nor does a lower one get among the best
                                while place > first and value > best[place - 1]:
                                    best[place], source[place] = best[place - 1], source[place - 1]
                                    place -= 1
                                best[place], source[place] = value, s * k + rank
            top, count = -np.inf, 0
            for place in range(size * k):
                pointers[t, place] = source[place]
            for z in range(size):
                value = emit[t, n, z]
                if not value < np.inf:
                    return False
                if value > -np.inf and best[z * k] != -np.inf:
                    for place in range(z * k, z * k + k):
                        best[place] += value
                    if not best[z * k] < np.inf:
                        return False
                    top = max(top, best[z * k])
                    alive[count] = z
                    count += 1
            total += top
            for which in range(count):
                for place in range(alive[which] * k, alive[which] * k + k):
                    score[place] = best[place] - top  # sums of thousands of logs would lose digits
        for rank in range(k):
            last = alive[0] * k if count else 0
            for which in range(count):
                for place in range(alive[which] * k, alive[which] * k + k):
                    last = place if score[place] > score[last] else last
            some = count > 0 and score[last] > -np.inf
            log_prob[rank, n] = total + score[last] if some else -np.inf
            score[last] = -np.inf
            for t in range(num_steps - 1, -1, -1):
                path[rank, t, n] = last // k
                if some and 0 < t < lengths[n]:
                    last = pointers[t, last]
    return True
