"""Expected counts of words in an online EM, exact at a cost that does not grow with the number of words.

A word seen at step t enters the statistics as the matrix g 1[i = k], which every later step multiplies by (1 - g) R. The
product of the R's forgets its columns: sooner or later all of them are equal, and from then on the matrix only shrinks,
since the columns of R sum to one. So the few words seen last are *hot*, each with its matrix, and all others are *cold*:
one number a state, and one running product of (1 - g) for all of them.
"""

from __future__ import annotations

import copy
import operator
from collections import deque
from typing import Any

import numpy as np

from pplseq import checks

SPREAD = 1e-13  # of a matrix's columns, relative to their largest, below which they count as equal
REBASE = 1e-3  # the running product at which cold numbers are rewritten: below, differences of averages lose digits
NEGLIGIBLE = 1e-290  # counts below have lost their digits, and their columns differ by rounding
FIRST_CAPACITY = 32


class ColdWords:
    """One number a perturbation state for every word seen long enough ago, and their weighted sums over steps.

    ``values`` are relative to ``scale``; with C the sum over steps of weight times scale since the last rebase, a word's
    weighted sum is ``sums + values C - corrections``.
    """

    def __init__(self, num_own: int, averaging: bool):
        self.num_own, self.averaging = num_own, averaging
        self.places: dict[int, int] = {}
        self.values = np.zeros((16, num_own))
        self.sums = np.zeros((16 if averaging else 0, num_own))
        self.corrections = np.zeros_like(self.sums)
        self.scale, self.weighted = 1.0, 0.0

    def __deepcopy__(self, memo: dict[int, Any]) -> ColdWords:
        """A copy; of all words at once, as a stream has many."""
        new = copy.copy(self)
        new.places, new.values = dict(self.places), self.values.copy()
        new.sums, new.corrections = self.sums.copy(), self.corrections.copy()
        return new

    def place(self, word: int) -> int:
        """Where the word's numbers are."""
        place = self.places.get(word)
        if place is None:
            place = self.places[word] = len(self.places)
            if place == len(self.values):
                self.values = np.concatenate([self.values, np.zeros_like(self.values)])
                self.sums = np.concatenate([self.sums, np.zeros_like(self.sums)])
                self.corrections = np.concatenate([self.corrections, np.zeros_like(self.corrections)])
        return place

    def shrink(self, factor: float) -> None:
        """All numbers times a factor."""
        self.scale *= factor
        if self.scale < REBASE:
            self.rebase()

    def rebase(self) -> None:
        """Writes the running product into the numbers."""
        if self.averaging:
            self.sums += self.values * self.weighted - self.corrections
            self.corrections[:] = 0.0
        self.values *= self.scale
        self.scale, self.weighted = 1.0, 0.0

    def add(self, word: int, values: np.ndarray, sums: np.ndarray | None) -> None:
        """A hot word's numbers, and their weighted sums so far."""
        place = self.place(word)
        relative = values / self.scale
        self.values[place] += relative
        if sums is not None:
            self.sums[place] += sums
            self.corrections[place] += relative * self.weighted

    def weighted_sums(self, places) -> np.ndarray:
        """(..., K_p) at places."""
        return self.sums[places] + self.values[places] * self.weighted - self.corrections[places]


class WordStatistics:
    """Expected counts S(k, w) of words in the perturbation states, as rows of a stream's matrix ``rho``.

    The rows are the K_p normalisers, sum_w rho(k, w, .), then K_p rows a slot of hot words.

    Args:
        table: (K_p, V) probabilities before the first maximisation; not copied.
        num_sources: K_s. smoothing: pseudo-count of a state's words together, which may change.
        window: most hot words; a word beyond goes cold before its columns are equal, and ``residual`` says how unequal the
            worst were, relative to their largest. averaging: keep weighted sums over steps.
    """

    def __init__(self, table: np.ndarray, num_sources: int, smoothing: float, window: int, averaging: bool):
        self.table, self.num_sources, self.smoothing, self.window = table, num_sources, smoothing, window
        self.num_own, self.num_words = table.shape
        self.num_states = num_sources + self.num_own
        self.capacity = min(FIRST_CAPACITY, window)
        self.cold = ColdWords(self.num_own, averaging)
        self.hot: deque[tuple[int, int]] = deque()  # (word, slot), oldest first
        self.free = list(range(self.capacity))
        self.slots: dict[int, list[int]] = {}
        self.residual = 0.0

    @property
    def num_rows(self) -> int:
        return self.num_own * (1 + self.capacity)

    def is_missing(self, y) -> bool:
        return y < 0

    def _counts(self, y: int, rows: np.ndarray, cold: np.ndarray | None) -> list[float]:
        """Of one word in every perturbation state, from the stream's rows (S, or its weighted sums) and the cold ones."""
        counts = [0.0] * self.num_own if cold is None else cold.tolist()
        width = self.num_own
        for slot in self.slots.get(y, ()):
            start = width * (1 + slot)
            for k, value in enumerate(rows[start : start + width].tolist()):
                counts[k] += value
        return counts

    def probs(self, y: int, rows: np.ndarray, maximized: bool, weight: float | None) -> list[float]:
        """lambda_k(y) of every perturbation state.

        Args:
            rows: the stream's, S; or its mean over tokens, with ``weight``, the sum of their weights.
        """
        if not maximized:
            return self.table[:, y].tolist()
        place = self.cold.places.get(y)
        cold = None
        if place is not None:
            if weight is None:
                cold = self.cold.values[place] * self.cold.scale
            else:
                cold = self.cold.weighted_sums(place) / weight
        counts, totals = self._counts(y, rows, cold), rows[: self.num_own].tolist()
        smoothing, share = self.smoothing, self.smoothing / self.num_words
        result = []
        for count, total in zip(counts, totals, strict=True):
            total += smoothing
            result.append((count + share) / total if total > 0 else 1 / self.num_words)
        return result

    def likelihood(
        self, y: int, rows: np.ndarray, maximized: bool, weight: float | None, priors: list[float]
    ) -> tuple[list[float], float]:
        """The same, and the log of what the numbers are to be multiplied by."""
        return self.probs(y, rows, maximized, weight), 0.0

    def shrink(self, factor: float) -> None:
        """The words outside of the stream's matrix, times a factor."""
        self.cold.shrink(factor)

    def weigh(self, weight: float) -> None:
        """Adds the cold words of this step to their weighted sums."""
        self.cold.weighted += weight * self.cold.scale

    # ---------------------------------------------------------------- a step
    def add(self, rho: np.ndarray, g: float, y: int) -> None:
        """Enters a word of weight g into the stream's rows (R, K), which must have a free slot."""
        flat, width = rho.reshape(-1), self.num_states + 1
        flat[self.num_sources : self.num_sources + self.num_own * width : width] += g
        slot = self.free.pop()
        start = self.num_own * (1 + slot) * self.num_states + self.num_sources
        flat[start : start + self.num_own * width : width] = g
        self.hot.append((y, slot))
        self.slots.setdefault(y, []).append(slot)

    def _spread(self, rho: np.ndarray, slot: int) -> float:
        """Of the columns of a hot word's matrix, relative to their largest."""
        worst = 0.0
        for row in rho[self.num_own * (1 + slot) : self.num_own * (2 + slot)].tolist():
            top = max(row)
            if top > NEGLIGIBLE and (spread := (top - min(row)) / top) > worst:
                worst = spread
        return worst

    def cool(self, rho: np.ndarray, rows: np.ndarray, sums: np.ndarray | None) -> None:
        """Moves words whose columns are equal to the cold ones, and makes room for one more where the window allows.

        Args:
            rho: (R, K). rows: (R,) S. sums: (R,) weighted sums over steps, or None. All three are changed.
        """
        while self.hot:
            word, slot = self.hot[0]
            spread = self._spread(rho, slot)
            if spread > SPREAD:
                if len(self.hot) < self.window:
                    return
                self.residual = max(self.residual, spread)
            self._leave(word, slot, rho, rows, sums)

    def cool_all(self, rho: np.ndarray, rows: np.ndarray, sums: np.ndarray | None) -> None:
        """Moves all hot words to the cold ones: where a boundary makes their columns equal."""
        for word, slot in list(self.hot):
            self._leave(word, slot, rho, rows, sums)

    def _leave(self, word, slot, rho, rows, sums) -> None:
        self.hot.popleft()
        start, stop = self.num_own * (1 + slot), self.num_own * (2 + slot)
        self.cold.add(word, rows[start:stop], None if sums is None else sums[start:stop])
        rho[start:stop] = 0.0
        rows[start:stop] = 0.0
        if sums is not None:
            sums[start:stop] = 0.0
        self.free.append(slot)
        taken = self.slots[word]
        taken.remove(slot)
        if not taken:
            del self.slots[word]

    def grow(self) -> bool:
        """Whether there was no free slot, and rows for more were added behind the others."""
        if self.free:
            return False
        more = min(self.capacity, self.window - self.capacity)
        self.free = list(range(self.capacity, self.capacity + more))
        self.capacity += more
        return True

    # ---------------------------------------------------------------- all words at once
    def counts(self, rows: np.ndarray, weight: float | None) -> tuple[np.ndarray, np.ndarray]:
        """The words seen (N,) and their S (N, K_p), or its mean; costs as much as there are. Arguments as for ``probs``."""
        seen = slice(len(self.cold.places))
        cold = self.cold.values[seen] * self.cold.scale if weight is None else self.cold.weighted_sums(seen) / weight
        words = np.array([*self.cold.places, *(word for word, _ in self.hot)], dtype=np.int64)
        hot = np.array([rows[self.num_own * (1 + s) : self.num_own * (2 + s)] for _, s in self.hot])
        words, index = np.unique(words, return_inverse=True)
        total = np.zeros((len(words), self.num_own))
        np.add.at(total, index.reshape(-1), np.concatenate([cold, hot.reshape(len(self.hot), self.num_own)]))
        return words, total

    def emission(self, rows: np.ndarray, maximized: bool, weight: float | None) -> np.ndarray:
        """(K_p, V) probabilities of all words. Arguments as for ``probs``."""
        if not maximized:
            return self.table.copy()
        words, counts = self.counts(rows, weight)
        total = rows[: self.num_own] + self.smoothing
        whole = np.full((self.num_own, self.num_words), self.smoothing / self.num_words)
        whole[:, words] += counts.T
        empty = total <= 0
        whole[empty] = 1 / self.num_words
        return whole / np.where(empty, 1.0, total)[:, None]

    def check(self, y) -> int:
        """The word's id as an int.

        Raises:
            TypeError, ValueError: for what is none; names y.
        """
        word = word_id(y)
        if not -1 <= word < self.num_words:
            raise ValueError(
                f"y must be a word id in 0..{self.num_words - 1}, or -1 for a missing word; got {word}. Give words outside "
                "the vocabulary an id of their own (unknown_id)"
            )
        return word


def word_id(y) -> int:
    """A whole number as an int; raises TypeError for anything else."""
    try:
        if not isinstance(y, bool):
            return operator.index(y)
    except TypeError:
        pass
    raise TypeError(f"y must be a word id (an integer), got {checks.shown(y)}; encode words with the vocabulary")
