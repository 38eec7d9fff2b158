"""The merging algorithm of Brown word clustering: a table of the losses of all merges, kept up to date in numpy.

Words are handled in falling order of frequency. The first ones fill a window of slots; each further word is put in the
free slot, then the pair of slots whose merge loses the least average mutual information is merged. What is left of the
window is merged on, down to the number of blocks wanted (these are the blocks) and down to one (this is the tree).

With whole-number bigram counts n_ij between clusters i and j, h(x) = x log x, and the totals l_i and r_j of first and
second words, the average mutual information I of neighbouring clusters in N bigrams is

    N I = sum_ij n_ij log(N n_ij / (l_i r_j)) = sum_ij h(n_ij) - sum_i n_i. log l_i - sum_j n_.j log r_j + n_.. log N,

so a merge of i and j costs, in nats times bigrams (N times the loss of I),

    E_ij + G_ij,        G_ij = sum_k [ g(n_ik, n_jk) + g(n_ki, n_kj) ],        g(x, y) = h(x) + h(y) - h(x + y).

A step changes G only through the slots it touches (Liang's observation). Since g(x, 0) = 0, only the neighbours of the
word just inserted count, and a rare word has few; the logarithms of l and r stand in E alone, which costs O(1) for a
pair. A step is then O(m K) for a word with m neighbours among K clusters, plus one pass over K x K numbers to find the
smallest loss, where the classical table is O(K^2) logarithms.

Source: Brown et al. (1992), "Class-Based n-gram Models of Natural Language", section 3; Liang (2005), "Semi-Supervised
Learning for Natural Language", section 4.2.
"""

from collections.abc import Callable

import numpy as np

# Merges whose losses differ by less than this share of h(N) are tied: the first pair wins, whatever the rounding.
TIE = 1e-12


def xlogx(x):
    """h(x) = x log x of whole numbers, with h(0) = 0."""
    result = np.log(np.maximum(x, 1.0))
    result *= x
    return result


class Bigrams:
    """Counts of neighbouring pairs of words (or of blocks), as sparse rows both ways.

    first, second, counts:         (P,) the distinct pairs, and how often they stand
    first_totals, second_totals:   (V,) how often a word stands first, second in a pair
    """

    def __init__(self, first: np.ndarray, second: np.ndarray, num_words: int, counts: np.ndarray | None = None):
        """Pairs as they stand in a text, or, with `counts`, different ones in any order and how often each stands."""
        keys = first * num_words + second
        if counts is None:
            keys, counts = np.unique(keys, return_counts=True)
        else:
            order = np.argsort(keys)
            keys, counts = keys[order], counts[order]
        self.num_words, self.total = num_words, float(counts.sum())
        self.first, self.second = np.divmod(keys, num_words)
        self.counts = counts.astype(np.float64)
        self.first_totals = np.bincount(self.first, self.counts, num_words)
        self.second_totals = np.bincount(self.second, self.counts, num_words)
        order = np.argsort(self.second, kind="stable")
        rows = np.arange(num_words + 1)
        self._after = np.searchsorted(self.first, rows), self.second, self.counts
        self._before = np.searchsorted(self.second[order], rows), self.first[order], self.counts[order]

    @property
    def tolerance(self) -> float:
        return TIE * float(xlogx(self.total))

    def neighbours(self, word: int, block_of_word: np.ndarray, num_blocks: int) -> list[np.ndarray]:
        """[to, fro], each (num_blocks,) new: bigrams from `word` to each block and from each block to it."""
        counts = []
        for starts, words, word_counts in (self._after, self._before):
            row = slice(starts[word], starts[word + 1])
            counts.append(np.bincount(block_of_word[words[row]], word_counts[row], minlength=num_blocks))
        return counts

    def between_blocks(self, block_of_word: np.ndarray, num_blocks: int) -> np.ndarray:
        """(num_blocks, num_blocks) bigrams from block to block."""
        keys = block_of_word[self.first] * num_blocks + block_of_word[self.second]
        return np.bincount(keys, self.counts, num_blocks**2).reshape(num_blocks, num_blocks)

    def mutual_information(self) -> float:
        """sum_ij p_ij log2(p_ij / (p_i. p_.j)), in bits."""
        if not self.total:
            return 0.0
        independent = self.first_totals[self.first] * self.second_totals[self.second] / self.total
        return float((self.counts * np.log2(self.counts / independent)).sum() / self.total)


class MergeTable:
    """The losses of all merges between the clusters in K slots, updated as clusters come and merge.

    counts:         (K, K) bigrams from cluster i to cluster j, whole numbers in float64; `transposed` is its transpose
    first, second:  (K,) how often a word of the cluster stands first, second in any bigram of the text
    overlap:        (K, K) G of the module docstring, the sum over all k; its diagonal means nothing
    rest:           (K, K) E; inf where a merge is not allowed (with itself, an empty slot, a block of its own)
    """

    def __init__(self, num_slots: int):
        self.num_slots = num_slots
        square = (num_slots, num_slots)
        self.counts, self.transposed = np.zeros(square), np.zeros(square)
        self.first, self.second = np.zeros(num_slots), np.zeros(num_slots)
        self.overlap, self.rest = np.zeros(square), np.full(square, np.inf)
        self.mergeable = np.zeros(num_slots, dtype=bool)
        # E_ij = corner_ij + (n_i. + n_j.) log(l_i + l_j) - n_i. log l_i - n_j. log l_j + the same for second words.
        # While words are missing from the window, the sums n_i. and n_.j of `counts` are smaller than l_i and r_j.
        self._first_in_window, self._second_in_window = np.zeros(num_slots), np.zeros(num_slots)
        self._log_first, self._log_second = np.zeros(square), np.zeros(square)
        self._corner = np.full(square, np.inf)
        self._losses, self._tied = np.empty(square), np.empty(square, dtype=bool)

    def losses(self) -> np.ndarray:
        """(K, K) loss of every merge, in nats times bigrams; inf where there is none. The next call overwrites it."""
        return np.add(self.overlap, self.rest, out=self._losses)

    def best(self, tolerance: float) -> tuple[int, int]:
        """The pair of slots (kept, gone) of the smallest loss, the first of those within `tolerance` of it; the cluster
        with more bigrams is kept."""
        losses = self.losses()
        np.less_equal(losses, losses.min() + tolerance, out=self._tied)
        i, j = divmod(int(self._tied.argmax()), self.num_slots)
        return (i, j) if self.first[i] >= self.first[j] else (j, i)

    def insert(self, slot, to, fro, within, first, second, mergeable=True):
        """Put a cluster in an empty slot.

        Args:
            slot: the slot.
            to, fro: (K,) bigrams from the new cluster to each slot and from each slot to it; 0 at `slot` itself.
            within: bigrams inside the new cluster.
            first, second: how often its words stand first, second in any bigram of the text.
            mergeable: False for a cluster that stays alone.
        """
        for column in (fro, to):
            rows = np.flatnonzero(column)
            x = column[rows]
            h = xlogx(x)
            self.overlap[rows[:, None], rows] += h[:, None] + h - xlogx(x[:, None] + x)
        self.counts[:, slot], self.counts[slot] = fro, to
        self.transposed[:, slot], self.transposed[slot] = to, fro
        self.counts[slot, slot] = self.transposed[slot, slot] = within
        self._first_in_window += fro
        self._second_in_window += to
        self._first_in_window[slot], self._second_in_window[slot] = to.sum() + within, fro.sum() + within
        self.first[slot], self.second[slot] = first, second
        self.mergeable[slot] = mergeable
        self._set(self.overlap, slot, self._overlap_row(slot))
        self._refresh_slot(slot)
        changed = (to > 0) | (fro > 0)
        changed[slot] = True
        self._refresh_rest(np.flatnonzero(changed))

    def merge(self, kept, gone):
        """Merge the cluster in slot `gone` into the one in slot `kept`; cheap if `gone` has few neighbours."""
        # First two columns become one, in all rows; then, with these columns, two rows become one.
        pairs = []
        for counts, transposed in ((self.counts, self.transposed), (self.transposed, self.counts)):
            self._merge_columns(transposed[kept], transposed[gone])
            pair = counts[[kept, gone]]
            pair[:, kept] += pair[:, gone]
            pair[:, gone] = 0
            pairs.append((*pair, transposed))
        for table in (self.counts, self.transposed):
            table[kept] += table[gone]
            table[:, kept] += table[:, gone]
            table[gone] = table[:, gone] = 0
        row = self.overlap[kept].copy()
        for x, y, transposed in pairs:
            near = np.flatnonzero(y)
            x, others = x[near, None], transposed[near]
            both = x + y[near, None]
            row += (xlogx(both) - xlogx(x)).sum() - (xlogx(both + others) - xlogx(x + others)).sum(axis=0)
        for totals in (self.first, self.second, self._first_in_window, self._second_in_window):
            totals[kept] += totals[gone]
            totals[gone] = 0
        self.mergeable[gone] = False
        self._set(self.overlap, kept, row)
        self._set(self.overlap, gone, 0.0)
        self._set(self._corner, gone, np.inf)
        self._set(self.rest, gone, np.inf)
        self._refresh_slot(kept)
        self._refresh_rest(np.array([kept]))

    def recompute(self):
        """Compute G anew from the whole-number counts, so that rounding errors of many steps do not add up. O(K^3)."""
        for slot in range(self.num_slots):
            self._set(self.overlap, slot, self._overlap_row(slot))

    def _overlap_row(self, slot):
        row = np.zeros(self.num_slots)
        for counts, transposed in ((self.counts, self.transposed), (self.transposed, self.counts)):
            near = np.flatnonzero(counts[slot])
            x, others = counts[slot, near, None], transposed[near]
            row += xlogx(x).sum() + (xlogx(others) - xlogx(others + x)).sum(axis=0)
        return row

    def _merge_columns(self, x, y):
        """Update G for two columns (K,) of counts becoming one: only rows that have counts in `y` change."""
        rows = np.flatnonzero(y)
        both = x + y
        alone = xlogx(both) - xlogx(x) - xlogx(y)
        xr, yr = x[rows, None], y[rows, None]
        change = xlogx(xr + x) + xlogx(yr + y) - xlogx(xr + yr + both)
        change += alone
        change += alone[rows, None]
        self.overlap[rows] += change
        self.overlap[:, rows] = self.overlap[rows].T

    def _refresh_slot(self, i):
        """Recompute what in E depends on the four cells where clusters i and j meet, and on their totals."""
        ij, ji, ii, jj = self.counts[i], self.transposed[i], self.counts[i, i], self.counts.diagonal()
        # G merged these cells in pairs, by row and by column, as if k were a third cluster: take that back and merge
        # all four into one.
        corner = xlogx(ii + ji) + xlogx(ij + jj) + xlogx(ii + ij) + xlogx(ji + jj)
        corner -= xlogx(ii) + xlogx(ij) + xlogx(ji) + xlogx(jj) + xlogx(ii + ij + ji + jj)
        corner[~self.mergeable | ~self.mergeable[i]] = np.inf
        corner[i] = np.inf
        self._set(self._corner, i, corner)
        self._set(self._log_first, i, np.log(np.maximum(self.first + self.first[i], 1)))
        self._set(self._log_second, i, np.log(np.maximum(self.second + self.second[i], 1)))

    def _refresh_rest(self, rows):
        """Recompute the given rows and columns of E."""
        first, second = self._first_in_window, self._second_in_window
        alone = first * np.log(np.maximum(self.first, 1)) + second * np.log(np.maximum(self.second, 1))
        rest = (first[rows, None] + first) * self._log_first[rows]
        rest += (second[rows, None] + second) * self._log_second[rows]
        rest -= alone
        rest -= alone[rows, None]
        rest += self._corner[rows]
        self.rest[rows] = rest
        self.rest[:, rows] = rest.T

    @staticmethod
    def _set(table, i, row):
        table[i] = row
        table[:, i] = row


def merge_words(
    bigrams: Bigrams,
    order: np.ndarray,
    num_blocks: int,
    *,
    window: int,
    own: np.ndarray,
    step: Callable[[], object] = lambda: None,
) -> np.ndarray:
    """Cluster words by the window algorithm.

    Args:
        bigrams: the counts.
        order: word ids in the order of insertion: words with a block of their own first, then by falling frequency.
        num_blocks, window: how many clusters to end with, and to keep while words come in; num_blocks <= window.
        own: (V,) bool, words with a block of their own.
        step: called once a word.

    Returns:
        (V,) block of each word; -1 for words not in `order`.

    Cost: O(V window m) for words with m neighbouring clusters on average, and O(V window^2) comparisons.
    """
    num_slots = window + 1
    table = MergeTable(num_slots)
    free = list(reversed(range(num_slots)))
    members: list[list[int]] = [[] for _ in range(num_slots)]
    # Words still to come are in a slot past the end, whose counts are cut off.
    slot_of_word = np.full(bigrams.num_words, num_slots)

    def merge_best():
        kept, gone = table.best(bigrams.tolerance)
        table.merge(kept, gone)
        slot_of_word[members[gone]] = kept
        members[kept] += members[gone]
        members[gone] = []
        free.append(gone)

    for position, word in enumerate(order):
        slot = free.pop()
        slot_of_word[word] = slot
        to, fro = (row[:num_slots] for row in bigrams.neighbours(word, slot_of_word, num_slots + 1))
        within, to[slot], fro[slot] = to[slot], 0, 0
        totals = bigrams.first_totals[word], bigrams.second_totals[word]
        table.insert(slot, to, fro, within, *totals, mergeable=not own[word])
        members[slot] = [word]
        if not free:
            merge_best()
        if (position + 1) % (32 * num_slots) == 0:
            table.recompute()
        step()
    while num_slots - len(free) > num_blocks:
        merge_best()
    slot_of_word[slot_of_word == num_slots] = -1
    filled = [slot for slot in range(num_slots) if members[slot]]
    block_of_slot = np.full(num_slots + 1, -1)
    block_of_slot[filled] = np.arange(len(filled))
    return block_of_slot[slot_of_word]


def merge_blocks(counts: np.ndarray, tolerance: float) -> list[str]:
    """Merge blocks down to one, least loss first, and name each by its way from the root of the tree of merges.

    Args:
        counts: (K, K) bigrams from block to block.
        tolerance: losses closer than this are tied, in nats times bigrams.

    Returns:
        K bit strings, none the beginning of another; "" if there is only one block.
    """
    num_blocks = len(counts)
    table = MergeTable(num_blocks)
    for i in range(num_blocks):
        to, fro = counts[i].copy(), counts[:, i].copy()
        to[i:] = fro[i:] = 0
        table.insert(i, to, fro, counts[i, i], counts[i].sum(), counts[:, i].sum())
    paths = [""] * num_blocks
    members = [[i] for i in range(num_blocks)]
    for _ in range(num_blocks - 1):
        kept, gone = table.best(tolerance)
        table.merge(kept, gone)
        for bit, side in (("0", kept), ("1", gone)):
            for i in members[side]:
                paths[i] = bit + paths[i]
        members[kept] += members[gone]
    return paths
