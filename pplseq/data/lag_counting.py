"""How often pairs of words stand k places apart: sorted keys, block by block, added up as sparse matrices."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

BLOCK_TOKENS = 1 << 22  # tokens counted at once: a block's keys take 8 bytes each, twice while they are sorted


def sparse():
    """scipy.sparse, on first use.

    Raises:
        ImportError: scipy is absent, with the extra that brings it.
    """
    try:
        import scipy.sparse
    except ImportError as error:
        raise ImportError('lag counts are sparse matrices of scipy: pip install "pplseq[text]"') from error
    return scipy.sparse


class PairCounter:
    """Adds up words and pairs of words of a stream of tokens, in pieces of any size.

    Args:
        num_words: V.
        max_lag: L; pairs 1..L places apart are counted, within a unit only.
        block_tokens: tokens that are collected before they are counted.

    The text is cut into units (lines or articles); a unit may go on from one piece to the next.
    """

    def __init__(self, num_words: int, max_lag: int, *, block_tokens: int = BLOCK_TOKENS):
        self.num_words, self.max_lag, self.block_tokens = num_words, max_lag, block_tokens
        self.counts = np.zeros(num_words, dtype=np.int64)
        # The word a key's low bits name stands earlier. Half-size keys are sorted in half the time.
        self.bits = max(1, (num_words - 1).bit_length())
        self.key_type = np.uint32 if 2 * self.bits <= 32 else np.uint64
        self.runs: list[list] = [[] for _ in range(max_lag)]
        self.tail = np.empty(0, np.int32)
        self.pieces: list[np.ndarray] = []
        self.starts: list[np.ndarray] = []
        self.waiting = 0

    def add(self, tokens: np.ndarray, starts: np.ndarray) -> None:
        """The next tokens of the text.

        Args:
            tokens: (N,) word ids.
            starts: (U,) rising places in 0..N where a unit begins; what stands before the first one goes on with the
                unit of the previous piece.
        """
        self.pieces.append(tokens)
        self.starts.append(np.asarray(starts, np.int64) + self.waiting)
        self.waiting += len(tokens)
        if self.waiting >= self.block_tokens:
            self._count()

    def _count(self) -> None:
        tokens = np.concatenate([self.tail, *self.pieces])
        starts = np.concatenate(self.starts) if self.starts else np.empty(0, np.int64)
        begin = len(self.tail)
        unit = np.zeros(len(tokens) + 1, dtype=np.int32)
        unit[begin + starts] = 1  # a unit that begins at the very end is kept in mind by its mark there
        np.cumsum(unit, out=unit)
        self.counts += np.bincount(tokens[begin:], minlength=self.num_words)
        for lag in range(1, self.max_lag + 1):
            first = max(begin, lag)  # pairs whose later word was in the tail are counted already
            if first >= len(tokens):
                continue
            same = unit[first:-1] == unit[first - lag : -1 - lag]
            later, earlier = tokens[first:][same], tokens[first - lag : len(tokens) - lag][same]
            keys = later.astype(self.key_type)
            keys <<= self.key_type(self.bits)
            keys |= earlier.astype(self.key_type)
            if len(keys):
                add_to(self.runs[lag - 1], self._run(keys))
        open_unit = tokens[unit[:-1] == unit[-1]] if self.max_lag else tokens[:0]
        self.tail = open_unit[-self.max_lag :].copy() if self.max_lag else open_unit
        self.pieces, self.starts, self.waiting = [], [], 0

    def _run(self, keys: np.ndarray):
        """Keys (reordered in place) as a CSR matrix of counts, row = later word."""
        keys.sort()
        edges = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        edges = np.concatenate([[0], edges, [len(keys)]])
        values = np.diff(edges)
        keys = keys[edges[:-1]]
        columns = (keys & self.key_type((1 << self.bits) - 1)).astype(np.int32)
        rows = np.bincount((keys >> self.key_type(self.bits)).astype(np.int64), minlength=self.num_words)
        indptr = np.concatenate([[0], np.cumsum(rows)])
        return csr_counts(values, columns, indptr, self.num_words)

    def result(self) -> tuple[np.ndarray, tuple]:
        """Word counts (V,) int64 and the L matrices N_k[later, earlier]; the counter may go on."""
        if self.waiting:
            self._count()
        matrices = []
        for runs in self.runs:
            matrices.append(sum_of(runs) if runs else empty_counts(self.num_words))
        return self.counts, tuple(matrices)


def add_to(runs: list, run) -> None:
    """A matrix more for a sum that is kept in runs: equal sizes are added first, so that every count is copied log(number of
    matrices) times and memory stays below twice that of the result."""
    runs.append(run)
    while len(runs) > 1 and runs[-2].nnz < 2 * runs[-1].nnz:
        last = runs.pop()
        runs[-1] = runs[-1] + last


def sum_of(runs: list):
    """The sum of the matrices that :func:`add_to` was given, which may go on."""
    while len(runs) > 1:
        last = runs.pop()
        runs[-1] = runs[-1] + last
    return runs[0]


def csr_counts(values, columns, indptr, num_words: int):
    """An int64 csr_array of sorted, distinct entries, with V columns; indices of 32 bits where they suffice."""
    index_type = np.int32 if len(columns) < 2**31 else np.int64
    matrix = sparse().csr_array(
        (values.astype(np.int64, copy=False), columns.astype(index_type, copy=False), indptr.astype(index_type)),
        shape=(len(indptr) - 1, num_words),
    )
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix


def empty_counts(num_words: int):
    return csr_counts(np.empty(0, np.int64), np.empty(0, np.int32), np.zeros(num_words + 1, np.int64), num_words)


def add_matrices(matrices: Iterable):
    """Sum of CSR matrices by halves: sizes stay balanced."""
    level = list(matrices)
    while len(level) > 1:
        pairs = [level[i] + level[i + 1] for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]
