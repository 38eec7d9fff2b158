"""Compiled loop over the steps of a second-order chain: the best path. Importing this module imports numba.

The readable twin is :func:`pplseq.kernels.higher_order.second_order.k_best_pass` of one path.
"""

from __future__ import annotations

import numpy as np

from pplseq.kernels.compiled import jit


@jit(entry=True)
def viterbi(begin_row, end_row, init, table, emit, lengths, path, log_prob):
    """The most probable paths of some rows; of equally good ones that by the first states before.

    Args:
        init: (R, M, M), table: (M, M, M) log p(c | a, b), emit: (T, R, M, M), all logarithms. lengths: (R,), 1 or more.
        path: (T, R) out, pairs a M + b; padded steps repeat the last. log_prob: (R,) out, log p(path, x).
    """
    num_steps, size = emit.shape[0], emit.shape[2]
    pointers = np.empty((num_steps, size, size), np.uint16)
    score, best, source = np.empty((size, size)), np.empty((size, size)), np.empty((size, size), np.int64)
    for n in range(begin_row, end_row):
        total = 0.0
        for t in range(lengths[n]):
            if t == 0:
                for b in range(size):
                    for c in range(size):
                        best[b, c] = init[n, b, c]
            else:
                best[:] = -np.inf
                source[:] = 0
                for a in range(size):
                    for b in range(size):
                        own = score[a, b]
                        if own == -np.inf:  # words allow few pairs
                            continue
                        for c in range(size):
                            value = own + table[a, b, c]
                            better = value > best[b, c]
                            best[b, c] = value if better else best[b, c]
                            source[b, c] = a if better else source[b, c]
            top = -np.inf
            for b in range(size):
                for c in range(size):
                    best[b, c] += emit[t, n, b, c]
                    top = max(top, best[b, c])
                    pointers[t, b, c] = source[b, c]
            total += top
            shift = top if top > -np.inf else 0.0
            for b in range(size):
                for c in range(size):  # sums of thousands of logs would lose digits
                    score[b, c] = best[b, c] - shift
        before, last = 0, 0
        for b in range(size):
            for c in range(size):
                if score[b, c] > score[before, last]:
                    before, last = b, c
        for t in range(num_steps - 1, -1, -1):
            path[t, n] = before * size + last
            if t < lengths[n]:
                before, last = pointers[t, before, last], before
        log_prob[n] = total
