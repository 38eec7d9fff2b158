"""Words that were never seen: their tags, guessed from endings, shapes and letters, and the probability of their spelling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from pplseq import checks

CLASSES = ("capitals", "shape")
CODE_POINTS = 0x110000
BEGIN, END, FIRST_LETTER = 0, 1, 2  # of the numbers of letters
CELLS = 1 << 21  # letters x tags that are looked at together


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


class _Level(NamedTuple):
    """Strings of some length, each one that is a letter shorter and the letter behind it.

    Attributes:
        codes: (E,) number of the shorter string times the number of letters, and the letter; rising.
        first: (E + 1,) where the tags of each begin among tags (M,), with their counts (M,).
        first_before: (E' + 1,) of the strings that are a letter shorter, where their tags begin among tags_before (M',), with
            how often some letter followed in words of that tag, and how many different ones: totals, kinds (M',).
        shares: (E,) of all that follows the shorter string, of all tags together. escapes: (E',) p(a letter that no tag has had
            behind the shorter string).
    """

    codes: np.ndarray
    first: np.ndarray
    tags: np.ndarray
    counts: np.ndarray
    first_before: np.ndarray
    tags_before: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    shares: np.ndarray
    escapes: np.ndarray


class TagSpellings:
    """P(tag | word) by Bayes' rule from a character n-gram model of the rare words of each tag.

        p(tag | word)  in proportion to  p(tag) prod_i p(letter_i | tag, the `order` - 1 letters before)
        p(c | tag, h)  =  (1 - e(h)) (n(tag, h c) + m(tag, h) n(h c) / n(h)) / (n(tag, h) + m(tag, h))  +  e(h) p(c | tag, h')
        e(h)  =  m(h) / (n(h) + m(h))

    up to an end, with n counts in the rare words of the tag, or of all, m how many different letters follow h there, and h'
    without its first letter. The weights are those of Witten and Bell (1991). All tags back off with the same probability e(h),
    from their own letters to those of all tags: what no tag has had speaks for none, and a tag that has not had h, or has no
    rare words at all, is taken to spell as all do together.

    Args:
        words: V words. word_tags: (V, N) how often each had each tag.
        max_count: words up to this frequent are rare; all are taken where none is.
        count_power: a word that occurs n times counts as n to this power.
        order: letters of the longest strings that are counted.

    Source: Peng, Schuurmans and Wang (2003), Language and task independent text categorization with simple language models.
    """

    def __init__(
        self, words: Sequence[str], word_tags: np.ndarray, *, max_count: float = 10, count_power: float = 0.5, order: int = 6
    ):
        totals = word_tags.sum(1)
        rare = np.flatnonzero((totals > 0) & (totals <= max_count))
        rare = rare if len(rare) else np.flatnonzero(totals > 0)
        self.order, self.num_tags = checks.count("order", order), word_tags.shape[1]
        self.letters: dict[str, int] = {}
        for i in rare.tolist():
            for letter in words[i]:
                self.letters.setdefault(letter, len(self.letters) + FIRST_LETTER)
        self._num_letters = len(self.letters) + FIRST_LETTER
        weights = word_tags[rare] * totals[rare, None] ** (count_power - 1)
        # tags whose words are all frequent are improbable, not impossible
        self.log_prior = np.log((weights.sum(0) + 0.5) / (weights.sum() + 0.5 * self.num_tags))
        at, tags = np.nonzero(weights)
        first = np.searchsorted(at, np.arange(len(rare) + 1))
        letters, word, predicted = self._numbers([words[i] for i in rare.tolist()])
        row, entry = _entries(first, word[predicted])  # letters that are predicted, once with each tag of their word
        counts, size = weights[at, tags][entry], self.num_tags
        self._levels: list[_Level] = []
        before, num_before = np.zeros(len(letters), np.int64), 1
        for _ in range(order):
            known = before >= 0
            codes, number = np.unique(before[known] * self._num_letters + letters[known], return_inverse=True)
            node = np.full(len(letters), -1)
            node[known] = number
            keys, which = np.unique(node[predicted][row] * size + tags[entry], return_inverse=True)
            of_string = np.bincount(which, counts, len(keys))
            parent = codes[keys // size] // self._num_letters
            keys_before, which = np.unique(parent * size + keys % size, return_inverse=True)
            strings = np.bincount(keys // size, of_string, len(codes))
            prefix = codes // self._num_letters
            prefixes, kinds = (np.bincount(prefix, some, num_before) for some in (strings, codes % self._num_letters != BEGIN))
            self._levels.append(
                _Level(
                    codes, np.searchsorted(keys // size, np.arange(len(codes) + 1)), keys % size, of_string,
                    np.searchsorted(keys_before // size, np.arange(num_before + 1)), keys_before % size,
                    np.bincount(which, of_string, len(keys_before)), np.bincount(which, minlength=len(keys_before)),
                    strings / prefixes[prefix], kinds / np.maximum(prefixes + kinds, 1),  # nothing follows an end
                )
            )  # fmt: skip
            before, num_before = _behind(node, word), len(codes)

    def _numbers(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(P,) numbers of letters, -1 for new ones, behind order - 1 beginnings and before an end of each word; the word of
        each; and whether it is a letter or an end, which are predicted."""
        begins, get = [BEGIN] * (self.order - 1), self.letters.get
        letters = np.array([x for word in words for x in (*begins, *(get(letter, -1) for letter in word), END)], np.int64)
        lengths = np.array([len(word) + self.order for word in words], np.int64)
        return letters, np.repeat(np.arange(len(words)), lengths), letters != BEGIN

    def log_probs(self, words: Sequence[str]) -> np.ndarray:
        """(n, N) log P(tag | word), nats.

        Cost: letters x order x N.
        """
        found = np.empty((len(words), self.num_tags))
        some: list[int] = []
        room = CELLS // self.num_tags
        for i, word in enumerate(words):
            some.append(i)
            room -= len(word) + self.order
            if room <= 0 or i == len(words) - 1:
                found[some] = self._log_joint([words[i] for i in some])
                some, room = [], CELLS // self.num_tags
        top = found.max(1, keepdims=True, initial=-np.inf)
        return found - top - np.log(np.exp(found - top).sum(1, keepdims=True))

    def _log_joint(self, words: Sequence[str]) -> np.ndarray:
        """(n, N) log p(tag, word), nats."""
        letters, word, predicted = self._numbers(words)
        # the shortest backs off to all letters alike, with the end and one for all that are new
        probs = np.full((int(predicted.sum()), self.num_tags), 1 / self._num_letters)
        before = np.zeros(len(letters), np.int64)
        for level in self._levels:
            code = np.where((before >= 0) & (letters >= 0), before * self._num_letters + letters, -1)
            node = np.searchsorted(level.codes, code)
            node[level.codes[np.minimum(node, len(level.codes) - 1)] != code] = -1
            known, string = np.flatnonzero(before[predicted] >= 0), node[predicted]
            shares = np.where(string >= 0, level.shares[string], 0.0)[:, None].repeat(self.num_tags, 1)
            row, entry = _entries(level.first_before, before[predicted])
            tag, kinds = level.tags_before[entry], level.kinds[entry]
            total = level.totals[entry] + kinds
            shares[row, tag] *= kinds / total
            scale = np.zeros_like(probs)
            scale[row, tag] = 1 / total
            row, entry = _entries(level.first, string)
            shares[row, level.tags[entry]] += level.counts[entry] * scale[row, level.tags[entry]]
            escapes = level.escapes[before[predicted][known]][:, None]
            probs[known] = (1 - escapes) * shares[known] + escapes * probs[known]
            before = _behind(node, word)
        joint = np.repeat(self.log_prior[None], len(words), 0)
        np.add.at(joint, word[predicted], np.log(probs))
        return joint


def _entries(first: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places first[r] .. first[r + 1] - 1 of each row r that is not negative, in one row, and which of the rows they are of."""
    known = np.flatnonzero(rows >= 0)
    start, sizes = first[rows[known]], first[rows[known] + 1] - first[rows[known]]
    return np.repeat(known, sizes), np.arange(sizes.sum()) + np.repeat(start - (sizes.cumsum() - sizes), sizes)


def _behind(node: np.ndarray, word: np.ndarray) -> np.ndarray:
    """What stands one place before each, -1 where a word begins."""
    before = np.full(len(node), -1)
    same = word[1:] == word[:-1]
    before[1:][same] = node[:-1][same]
    return before
