"""Words that were never seen: their tags, guessed from their endings and shapes, and the probability of their spelling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np

from pplseq import checks

CLASSES = ("capitals", "shape")
CODE_POINTS = 0x110000


def capital_class(word: str) -> str:
    """Brants' two classes of words."""
    return "capital" if word[:1].isupper() else "other"


def shape_class(word: str) -> str:
    """Classes of words that look alike: digits, web addresses, punctuation, hyphens, capitals."""
    if any(c.isdigit() for c in word):
        if all(c.isdigit() or c in ".,:/-%$" for c in word):
            return "number"
        return "digit"
    if not any(c.isalpha() for c in word):
        return "punctuation"
    if "@" in word or "://" in word or word.lower().startswith("www."):
        return "address"
    if word.isupper():
        return "letter" if len(word) == 1 else "upper"
    hyphen = "-hyphen" if "-" in word[1:-1] else ""
    if word[0].isupper():
        return ("mixed" if any(c.isupper() for c in word[1:]) else "capital") + hyphen
    return "other" + hyphen


class SuffixGuesser:
    """P(tag | suffix, class of word), smoothed from short suffixes to long ones.

        P(t | s_i) = (P^(t | s_i) + theta P(t | s_{i-1})) / (1 + theta)

    with s_i the last i letters. Each class of words has a trie of its own.

    Args:
        words: V words.
        word_tags: (V, N) how often each had each tag.
        max_count: only words that are no more frequent than this count.
        max_length: of suffixes.
        theta: weight of the shorter suffix; None: the standard deviation of the tags' probabilities without a suffix (Brants).
        classes: "capitals" (two tries, capitalised or not) or "shape" (see :func:`shape_class`).

    Source: T. Brants (2000), TnT: a statistical part-of-speech tagger, section 2.3.
    """

    def __init__(
        self,
        words,
        word_tags: np.ndarray,
        *,
        max_count: int = 10,
        max_length: int = 10,
        theta: float | None = None,
        classes: str = "capitals",
    ):
        checks.choice("classes", classes, CLASSES)
        if max_count < 1 or max_length < 0 or not (theta is None or theta >= 0):
            raise ValueError(
                f"max_count must be at least 1, max_length and theta not negative; got {max_count}, {max_length} and {theta}"
            )
        self.class_of = capital_class if classes == "capitals" else shape_class
        self.max_length = max_length
        totals = word_tags.sum(-1)
        rare = np.flatnonzero(totals <= max_count)
        if not len(rare):
            rare = np.arange(len(words))
        self.tag_probs = word_tags.sum(0) / totals.sum()
        spread = float(self.tag_probs.std(ddof=1)) if len(self.tag_probs) > 1 else 0.0
        self.theta = spread if theta is None else theta
        keys: dict[tuple[str, str], int] = {}
        rows, sources = [], []  # endings, and words that have them
        for v in rare.tolist():
            word = words[v]
            kind = self.class_of(word)
            for i in range(min(max_length, len(word)) + 1):
                rows.append(keys.setdefault((kind, word[len(word) - i :]), len(keys)))
                sources.append(v)
        # an ending has few of all tags: those that it has, one ending behind the other
        word, tag = np.nonzero(word_tags[rare])
        of_word = np.searchsorted(word, np.arange(len(rare) + 1))
        place = np.searchsorted(rare, sources)
        number = of_word[place + 1] - of_word[place]
        entry = np.arange(number.sum()) + np.repeat(of_word[place] - (number.cumsum() - number), number)
        num_tags = word_tags.shape[1]
        codes, which = np.unique(np.repeat(rows, number) * num_tags + tag[entry], return_inverse=True)
        counts = np.bincount(which, word_tags[rare[word[entry]], tag[entry]], len(codes))
        self._keys, ending = keys, codes // num_tags
        self._tags = codes % num_tags
        self._probs = counts / np.bincount(ending, counts, len(keys))[ending]
        self._first = np.searchsorted(ending, np.arange(len(keys) + 1))

    def tag_given_word(self, word: str) -> np.ndarray:
        """(N,) P(tag | the word's ending and class)."""
        kind, probs = self.class_of(word), self.tag_probs
        for i in range(min(self.max_length, len(word)) + 1):
            row = self._keys.get((kind, word[len(word) - i :]))
            if row is None:
                break
            probs = self.theta * probs
            here = slice(self._first[row], self._first[row + 1])
            probs[self._tags[here]] += self._probs[here]
            probs /= 1 + self.theta
        return probs


class SpellingModel:
    """p(word) letter by letter up to an end, over all strings of Unicode: p(letter | letter before) from a list of words,
    backing off to single letters and to all code points by the estimate of Witten and Bell (1991).

    Args:
        words: each counts once.
    """

    def __init__(self, words: Iterable[str]):
        self._pairs, self._letters, self._contexts, self._followers = Counter(), Counter(), Counter(), Counter()
        for word in words:
            for pair in zip(("", *word), (*word, ""), strict=True):  # "" stands for both ends
                self._followers[pair[0]] += pair not in self._pairs
                self._pairs[pair] += 1
                self._contexts[pair[0]] += 1
                self._letters[pair[1]] += 1
        self._num_letters = self._letters.total()

    def log_prob(self, word: str) -> float:
        """log p(word), nats."""
        total, num_seen = 0.0, max(len(self._letters), 1)
        for before, letter in zip(("", *word), (*word, ""), strict=True):
            prob = (self._letters[letter] + num_seen / (CODE_POINTS + 1)) / (self._num_letters + num_seen)
            followers = self._followers[before]
            if followers:
                prob = (self._pairs[before, letter] + followers * prob) / (self._contexts[before] + followers)
            total += math.log(prob)
        return total
