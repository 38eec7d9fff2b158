"""Sources that know nothing but the stream: nothing at all, a cache of its words, and n-grams counted on the way."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.models.props.source import PutBack, Trail

LARGEST = 1e12  # a decaying cache counts in units that grow; above this they are scaled back


class UniformSource:
    """A source that finds all words equally probable, whatever came before."""

    name = "uniform"

    def __init__(self, num_words: int):
        checks.count("num_words", num_words)
        self.num_words = num_words

    def predict(self) -> np.ndarray:
        """(V,) probabilities of the next word."""
        return np.full(self.num_words, 1 / self.num_words)

    def log_prob_of(self, word: int) -> float:
        """log 1 / V, nats."""
        return -math.log(self.num_words)

    def observe(self, word: int) -> None:
        """Nothing to remember."""

    def reset(self) -> None:
        """Nothing to forget."""

    def mark(self) -> PutBack:
        """Nothing to put back."""
        return lambda: None

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


class UnigramCache:
    """The words of the stream so far, recent ones more where there is decay.

        p(w) = (c_w + a / V) / (n + a),   c_w = sum over past tokens w of decay^age

    Args:
        num_words: V.
        decay: in (0, 1], with the last token of age 0; 1 counts all tokens alike, .99 has a memory of about 100 tokens.
        smoothing: a, tokens' worth of the uniform distribution.

    Cost: O(1) a token by ``log_prob_of``, O(V) by ``predict``.

    Source: Kuhn and De Mori, A cache-based natural language model for speech recognition (1990).
    """

    name = "cache"

    def __init__(self, num_words: int, *, decay: float = 1.0, smoothing: float = 1.0):
        checks.count("num_words", num_words)
        if not 0 < decay <= 1:
            raise ValueError(f"decay: expected above 0 and at most 1, got {decay}")
        if not 0 < smoothing < math.inf:
            raise ValueError(f"smoothing: expected a positive number, got {smoothing}")
        self.num_words, self.decay, self.smoothing = num_words, decay, smoothing
        self.counts, self.total, self._unit = (
            np.zeros(num_words),
            0.0,
            1.0,
        )  # counts are in units that grow by 1 / decay
        self._trail = Trail()

    def predict(self) -> np.ndarray:
        """(V,) probabilities."""
        a = self.smoothing * self._unit
        return (self.counts + a / self.num_words) / (self.total + a)

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        a = self.smoothing * self._unit
        return math.log((self.counts[y] + a / self.num_words) / (self.total + a))

    def observe(self, y: int) -> None:
        """Counts a token."""
        self._trail.add(partial(self._take_back, y, self.counts, self.counts[y], self.total, self._unit))
        self._unit /= self.decay
        if self._unit > LARGEST:
            self.counts = self.counts / self._unit  # the old ones stay as they are, to be put back
            self.total /= self._unit
            self._unit = 1.0
        self.counts[y] += self._unit
        self.total += self._unit

    def _take_back(self, y: int, counts: np.ndarray, count: float, total: float, unit: float) -> None:
        self.counts, self.total, self._unit = counts, total, unit
        self.counts[y] = count

    def mark(self) -> PutBack:
        """Takes back the tokens that are counted from here on."""
        return self._trail.mark()

    def reset(self) -> None:
        """Nothing: a cache lasts from sequence to sequence."""

    def state_dict(self) -> dict[str, Any]:
        """Counts of the words seen, and their unit."""
        seen = np.flatnonzero(self.counts)
        return {"words": seen, "counts": self.counts[seen], "total": self.total, "unit": self._unit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from counts."""
        self.counts = np.zeros(self.num_words)
        self.counts[np.asarray(state["words"], dtype=np.int64)] = np.asarray(state["counts"], dtype=np.float64)
        self.total, self._unit = float(state["total"]), float(state["unit"])


class OnlineNGram:
    """N-grams counted on the stream, interpolated by absolute discounting.

        p(w | c) = (max(n(c w) - D, 0) + D v(c) p(w | c without its first token)) / n(c)

    n(c w) counts the n-gram, n(c) its context, v(c) the different tokens behind it; below the unigrams stands the uniform
    distribution, and a context that was never seen hands on to the shorter one.

    Args:
        num_words: V.
        order: longest n-gram.
        discount: D in (0, 1).

    Cost: O(order) a token by ``log_prob_of``, O(V + order) by ``predict``; memory: one number an n-gram.

    Source: Ney, Essen and Kneser, On structuring probabilistic dependences in stochastic language modelling (1994).
    """

    name = "online-ngram"

    def __init__(self, num_words: int, order: int = 3, *, discount: float = 0.75):
        checks.count("num_words", num_words)
        if not isinstance(order, int) or isinstance(order, bool) or order < 1:
            raise ValueError(f"order: expected a whole number of at least 1, got {checks.shown(order)}")
        if not 0 < discount < 1:
            raise ValueError(f"discount: expected between 0 and 1, got {discount}")
        self.num_words, self.order, self.discount = num_words, order, discount
        self.counts: dict[tuple[int, ...], dict[int, int]] = {}  # context -> token -> how often
        self.totals: dict[tuple[int, ...], int] = {}
        self._context: deque[int] = deque(maxlen=order - 1)
        self._trail = Trail()

    def _contexts(self) -> list[tuple[int, ...]]:
        """The contexts of the next token, shortest first, as far as they were seen."""
        context, seen = tuple(self._context), []
        for length in range(len(context) + 1):
            part = context[len(context) - length :]
            if part not in self.totals:
                break  # nor was any longer one
            seen.append(part)
        return seen

    def predict(self) -> np.ndarray:
        """(V,) probabilities."""
        probs = np.full(self.num_words, 1 / self.num_words)
        for context in self._contexts():
            followers, total = self.counts[context], self.totals[context]
            probs *= self.discount * len(followers) / total
            words = np.fromiter(followers.keys(), np.int64, len(followers))
            probs[words] += (np.fromiter(followers.values(), np.float64, len(followers)) - self.discount) / total
        return probs

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        prob = 1 / self.num_words
        for context in self._contexts():
            followers, total = self.counts[context], self.totals[context]
            prob *= self.discount * len(followers) / total
            if y in followers:
                prob += (followers[y] - self.discount) / total
        return math.log(prob)

    def observe(self, y: int) -> None:
        """Counts the token behind all its contexts."""
        context, counted = tuple(self._context), list[tuple[int, ...]]()
        self._trail.add(partial(self._take_back, context, counted, y))
        for length in range(len(context) + 1):
            part = context[len(context) - length :]
            followers = self.counts.setdefault(part, {})
            followers[y] = followers.get(y, 0) + 1
            self.totals[part] = self.totals.get(part, 0) + 1
            counted.append(part)
        self._context.append(y)

    def _take_back(self, context: tuple[int, ...], counted: list[tuple[int, ...]], y: int) -> None:
        self._context = deque(context, maxlen=self.order - 1)
        for part in counted:
            self.totals[part] -= 1
            self.counts[part][y] -= 1
            if not self.counts[part][y]:
                del self.counts[part][y]
            if not self.totals[part]:
                del self.totals[part], self.counts[part]

    def mark(self) -> PutBack:
        """Takes back the tokens that are counted from here on."""
        return self._trail.mark()

    def reset(self) -> None:
        """The context is empty; the counts stay."""
        self._trail.add(partial(self._take_back, tuple(self._context), [], 0))
        self._context.clear()

    def state_dict(self) -> dict[str, Any]:
        """Context and counts, an array (n, length + 2) of (context, token, count) for each length of context."""
        grams: list[list[tuple[int, ...]]] = [[] for _ in range(self.order)]
        for context, followers in self.counts.items():
            grams[len(context)] += [(*context, word, count) for word, count in followers.items()]
        arrays = [np.array(rows, dtype=np.int64).reshape(-1, n + 2) for n, rows in enumerate(grams)]
        return {"context": list(self._context), "grams": arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from counts, of n-grams as long as these."""
        if len(state["grams"]) != self.order:
            raise ValueError(
                f"order: the counts are of {len(state['grams'])}-grams, this source has order {self.order}"
            )
        self._context = deque((int(y) for y in state["context"]), maxlen=self.order - 1)
        self.counts, self.totals = {}, {}
        for rows in state["grams"]:
            for *context, word, count in np.asarray(rows).tolist():
                self.counts.setdefault(tuple(context), {})[word] = count
                self.totals[tuple(context)] = self.totals.get(tuple(context), 0) + count
