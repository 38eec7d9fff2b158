"""Interpolated modified Kneser-Ney n-gram models, all orders as sorted arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # those of KenLM's --discount_fallback


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length n > 1, sorted by context, then word.

    keys: context * (V + 1) + word, where context is the number of the (n-1)-gram before the word;
    suffixes: number of the (n-1)-gram that an n-gram ends in;
    opens_line: the n-gram starts with <s>;
    counts: occurrences, later adjusted;
    probs: interpolated probability of the last word;
    backoff: weight of the lower order after each context, 1 where nothing follows it.
    """

    keys: np.ndarray
    suffixes: np.ndarray
    opens_line: np.ndarray
    counts: np.ndarray
    probs: np.ndarray | None = None
    backoff: np.ndarray | None = None

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Numbers of n-grams, -1 for those never seen."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)


class KneserNey:
    """Interpolated modified Kneser-Ney language model of n-grams within a line.

        p(w | c) = max(a(c w) - D(a(c w)), 0) / sum_v a(c v) + gamma(c) p(w | c without its first word)

    a is the count for the highest order and for n-grams at the start of a line, else the number of distinct words seen
    before the n-gram; D takes the values D1, D2, D3+ of each order, D_i = i - (i + 1) Y n_{i+1} / n_i with
    Y = n_1 / (n_1 + 2 n_2), where n_i n-grams have a = i; gamma(c) is the mass that the discounts free. Below the
    unigrams stands the uniform distribution over the vocabulary. Each line begins with the context <s>, which is no
    word of the vocabulary; `<unk>` is a word like any other.

    Where counts are too few to give discounts (some n_i is 0, or D_i is not in (0, i]), an order uses 0.5, 1, 1.5.

    Args:
        order: longest n-gram, at least 1.

    Attributes:
        discounts: (order, 3) D1, D2, D3+ of each order, shortest first.
        num_ngrams: distinct n-grams of each order; for unigrams V and the start <s>.
        vocabulary: of the training text.
        They exist after `fit`; orders longer than every line of the text are left out.

    Cost: O(order N log N) time and O(order N) memory for N training tokens.

    Source: Chen and Goodman, An Empirical Study of Smoothing Techniques for Language Modeling (1998), section 4.1.6;
        start of line and fallback as in KenLM's lmplz (Heafield et al. 2013).
    """

    def __init__(self, order: int = 5):
        if not isinstance(order, int) or isinstance(order, bool):
            raise TypeError(f"order: expected an integer, got {checks.shown(order)}")
        checks.count("order", order)
        self.order = order
        self.vocabulary: Vocabulary | None = None

    def fit(self, text: Text) -> KneserNey:
        """Count the n-grams of a training text and estimate the probabilities.

        Returns:
            The model itself.

        Raises:
            ValueError: a text without tokens.
        """
        if text.num_tokens == 0:
            raise ValueError(f"text: {text.name!r} has no tokens to learn from")
        self.vocabulary = text.vocabulary
        num_words = len(self.vocabulary)
        orders = self._count(text)
        unigrams = np.bincount(orders[0].suffixes if orders else text.tokens, minlength=num_words)[:num_words]
        adjusted = [unigrams, *_adjusted_counts(orders)]
        self.discounts = np.array([_discounts(counts) for counts in adjusted])
        self.num_ngrams = [num_words + 1, *(len(order.keys) for order in orders)]

        uniform = np.full(num_words, 1 / num_words)
        probs, _ = _interpolate(unigrams, np.zeros(num_words, np.int64), 1, self.discounts[0], uniform)
        self._unigram_probs = np.append(probs, 0.0)  # <s> is never predicted
        self._orders, lower = [], self._unigram_probs
        for order, counts, discounts in zip(orders, adjusted[1:], self.discounts[1:], strict=True):
            contexts = order.keys // (num_words + 1)
            lower, backoff = _interpolate(counts, contexts, len(lower), discounts, lower[order.suffixes])
            self._orders.append(replace(order, probs=lower, backoff=backoff))
        return self

    def log_prob(self, text: Text) -> np.ndarray:
        """Log-probability of every token given the words before it in its line.

        Returns:
            (N,) nats, in the order of `text.tokens`.

        Raises:
            RuntimeError: not fitted.
            ValueError: the text is encoded with another vocabulary.
        """
        vocabulary = self._fitted_vocabulary()
        if text.vocabulary is not vocabulary and text.vocabulary.words != vocabulary.words:
            raise ValueError(
                f"text: {text.name!r} is encoded with another vocabulary ({len(text.vocabulary)} words, the model has "
                f"{len(vocabulary)}); encode it with the model's: read_text(path, vocabulary=model.vocabulary)"
            )
        words, places = self._with_line_starts(text)
        probs, grams = self._unigram_probs[words], words
        for length, order in enumerate(self._orders, start=2):
            ends = np.flatnonzero(places >= length - 1)
            contexts = grams[ends - 1]
            found = order.find(contexts * (len(vocabulary) + 1) + words[ends])
            shorter = np.where(contexts >= 0, order.backoff[contexts], 1.0) * probs[ends]
            probs[ends] = np.where(found >= 0, order.probs[found], shorter)
            grams = _scatter(found, ends, len(words))
        return np.log(probs[places > 0])

    def perplexity(self, text: Text) -> float:
        """exp(-mean log-probability) over all tokens, `<eos>` and `<unk>` counted, every line on its own.

        Raises:
            RuntimeError, ValueError: as `log_prob`; ValueError for a text without tokens.
        """
        if text.num_tokens == 0:
            raise ValueError(f"text: {text.name!r} has no tokens to score")
        return float(np.exp(-self.log_prob(text).mean()))

    def next_word(self, context: Sequence[str] | Sequence[int] = ()) -> np.ndarray:
        """Log-probabilities of the next word of a line.

        Args:
            context: the line so far, from its start, as words or as ids; () for the first word.

        Returns:
            (V,) nats.

        Raises:
            RuntimeError: not fitted.
            TypeError: `context` is one string.
            ValueError: an id outside the vocabulary, or an unknown word where it has no `<unk>`.
        """
        vocabulary = self._fitted_vocabulary()
        num_words = len(vocabulary)
        known: Any = context
        if isinstance(context, str) or any(isinstance(word, str) for word in context):
            known = vocabulary.encode(known)
        ids = np.array([num_words, *known], dtype=np.int64)
        if ids[1:].size and not 0 <= ids[1:].min() <= ids[1:].max() < num_words:
            raise ValueError(f"context: expected ids from 0 to {num_words - 1}, got {ids[1:].tolist()}")
        probs = self._unigram_probs[:num_words].copy()
        for length, order in enumerate(self._orders[: len(ids)], start=1):
            gram = self._gram(ids[-length:])
            if gram < 0:
                break  # nor has any longer context been seen
            first, last = np.searchsorted(order.keys, np.array([gram, gram + 1]) * (num_words + 1))
            probs *= order.backoff[gram]
            probs[order.keys[first:last] - gram * (num_words + 1)] = order.probs[first:last]
        return np.log(probs)

    def log_prob_of(self, word: int, context: Sequence[int] = ()) -> float:
        """Log-probability of one id behind a line's ids so far, nats: as `next_word`, at a cost independent of V."""
        num_words = len(self._fitted_vocabulary())
        if not 0 <= word < num_words:
            raise ValueError(f"word: expected an id from 0 to {num_words - 1}, got {word}")
        ids, prob = np.array([num_words, *context], dtype=np.int64), float(self._unigram_probs[word])
        for length, order in enumerate(self._orders[: len(ids)], start=1):
            gram = self._gram(ids[-length:])
            if gram < 0:
                break
            found = int(order.find(np.array([gram * (num_words + 1) + word]))[0])
            prob = float(order.probs[found]) if found >= 0 else float(order.backoff[gram]) * prob
        return math.log(prob) if prob > 0 else -math.inf

    def _gram(self, ids: np.ndarray) -> int:
        """The number of an n-gram, -1 if never seen."""
        gram = ids[:1]
        for order, word in zip(self._orders, ids[1:], strict=False):
            gram = order.find(gram * (len(self._fitted_vocabulary()) + 1) + word)
        return int(gram[0])

    def _fitted_vocabulary(self) -> Vocabulary:
        if self.vocabulary is None:
            raise RuntimeError("the model has not seen a text yet; call fit(text) first")
        return self.vocabulary

    def _with_line_starts(self, text: Text) -> tuple[np.ndarray, np.ndarray]:
        """Word ids with <s> (number V) before every line, and each one's place in its line, 0 for <s>."""
        starts = text.line_starts[:-1][text.lengths > 0]
        words = np.insert(text.tokens.astype(np.int64), starts, len(self._fitted_vocabulary()))
        bounds = np.append(starts + np.arange(len(starts)), len(words))
        return words, np.arange(len(words)) - np.repeat(bounds[:-1], np.diff(bounds))

    def _count(self, text: Text) -> list[_Order]:
        """The n-grams of orders 2, 3, ... with their counts; an n-gram is its (n-1)-gram context and a word."""
        words, places = self._with_line_starts(text)
        orders, grams = [], words
        for length in range(2, self.order + 1):
            ends = np.flatnonzero(places >= length - 1)
            if not ends.size:
                break  # no line is that long
            keys, first, numbers, counts = np.unique(
                grams[ends - 1] * (len(self._fitted_vocabulary()) + 1) + words[ends],
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            example = ends[first]
            orders.append(_Order(keys, grams[example], places[example] == length - 1, counts))
            grams = _scatter(numbers, ends, len(words))
        return orders


def _scatter(numbers: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """`numbers` at `places`, -1 elsewhere."""
    scattered = np.full(size, -1)
    scattered[places] = numbers
    return scattered


def _adjusted_counts(orders: list[_Order]) -> Iterator[np.ndarray]:
    """Distinct words before each n-gram; the count itself at a line's start, which nothing precedes, and at the top."""
    for order, longer in zip(orders, orders[1:], strict=False):
        preceding = np.bincount(longer.suffixes, minlength=len(order.keys))
        yield np.where(order.opens_line, order.counts, preceding)
    if orders:
        yield orders[-1].counts


def _discounts(counts: np.ndarray) -> tuple[float, float, float]:
    """D1, D2, D3+ of the adjusted counts of one order."""
    _, n1, n2, n3, n4 = np.bincount(np.minimum(counts, 5), minlength=6)[:5].tolist()
    if not n1 or not n2 or not n3:
        return FALLBACK_DISCOUNTS
    y = n1 / (n1 + 2 * n2)
    discounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    # of 0, what nothing but frequent words follow would leave no mass to others
    in_range = all(0 < discount <= i for i, discount in enumerate(discounts, start=1))
    return discounts if in_range else FALLBACK_DISCOUNTS


def _interpolate(counts, contexts, num_contexts, discounts, lower_probs) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of one order's n-grams, and the weight of the lower order after each context."""
    discount = np.array([0.0, *discounts])[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, num_contexts)
    freed = np.bincount(contexts, discount, num_contexts)
    backoff = np.divide(freed, totals, out=np.ones(num_contexts), where=totals > 0)
    return (counts - discount) / totals[contexts] + backoff[contexts] * lower_probs, backoff
