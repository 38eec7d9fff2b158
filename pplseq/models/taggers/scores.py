"""How good tags are: accuracy on known, unknown and ambiguous words, tags one by one, confusions, and tests of differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.data.tag_formats import NO_TAG
from pplseq.threads import once

RESAMPLED_CELLS = 1 << 22  # counts of sentences drawn at a time by the bootstrap


class TrainingWords(NamedTuple):
    """known: words of the training text; ambiguous: those of them that it tags in more than one way (None: not told)."""

    known: frozenset[str]
    ambiguous: frozenset[str] | None


def training_words(sentences: Iterable[TaggedSentence]) -> TrainingWords:
    """Known and ambiguous words of a training text; words without a tag are known."""
    tags: dict[str, set[str]] = {}
    for sentence in sentences:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            found = tags.setdefault(word, set())
            if tag is not None:
                found.add(tag)
    return TrainingWords(frozenset(tags), frozenset(word for word, found in tags.items() if len(found) > 1))


class Share(NamedTuple):
    """How many of how many are right."""

    num_correct: int
    num: int

    @property
    def accuracy(self) -> float:
        """The share of the right ones; NaN of none."""
        return self.num_correct / self.num if self.num else math.nan


class TagScore(NamedTuple):
    """A tag: precision, recall and F1 (NaN where undefined), num_gold tokens that have it, num_predicted that got it."""

    tag: str
    precision: float
    recall: float
    f1: float
    num_gold: int
    num_predicted: int


class ConfusionPair(NamedTuple):
    """count tokens of the tag `gold` that were tagged `predicted`; the words most often among them, with counts."""

    gold: str
    predicted: str
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    words: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TagScores:
    """Tags of a text against its gold tags. N tokens have a gold tag; the others are left out.

    Attributes:
        tags: all gold and predicted tags, sorted; K of them.
        words: (N,). gold, predicted: (N,) indices into `tags`.
        sentence_of: (N,) which sentence a token belongs to, rising.
        known, ambiguous: (N,) bool, or None where the training words are not given.
        num_unlabelled: tokens without a gold tag.
    """

    tags: tuple[str, ...]
    words: tuple[str, ...]
    gold: np.ndarray
    predicted: np.ndarray
    sentence_of: np.ndarray
    known: np.ndarray | None = None
    ambiguous: np.ndarray | None = None
    num_unlabelled: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.words)

    @once
    def correct(self) -> np.ndarray:
        """(N,) bool."""
        return self.gold == self.predicted

    @property
    def all_words(self) -> Share:
        return Share(int(self.correct.sum()), self.num_tokens)

    @property
    def accuracy(self) -> float:
        """The share of tokens with the right tag."""
        return self.all_words.accuracy

    @property
    def known_words(self) -> Share | None:
        """Of tokens whose word stands in the training text; None if that is not given."""
        return None if self.known is None else self._share(self.known)

    @property
    def unknown_words(self) -> Share | None:
        """Of tokens whose word does not stand in the training text."""
        return None if self.known is None else self._share(~self.known)

    @property
    def ambiguous_words(self) -> Share | None:
        """Of tokens whose word has more than one tag in the training text."""
        return None if self.ambiguous is None else self._share(self.ambiguous)

    def _share(self, among: np.ndarray) -> Share:
        return Share(int(self.correct[among].sum()), int(among.sum()))

    @once
    def sentence_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """(right tokens, tokens) of every sentence that has any with a gold tag."""
        _, place = np.unique(self.sentence_of, return_inverse=True)
        return np.bincount(place, self.correct).astype(np.int64), np.bincount(place)

    @property
    def sentences(self) -> Share:
        """Sentences without any wrong tag."""
        right, tokens = self.sentence_counts
        return Share(int((right == tokens).sum()), len(tokens))

    @once
    def confusion(self) -> np.ndarray:
        """(K, K) tokens by [gold, predicted]."""
        size = len(self.tags)
        return np.bincount(self.gold * size + self.predicted, minlength=size * size).reshape(size, size)

    def per_tag(self) -> list[TagScore]:
        """Every tag, the most frequent gold tag first.

        precision = right / predicted, recall = right / gold, F1 = 2 right / (predicted + gold).
        """
        right, gold = np.diag(self.confusion), self.confusion.sum(1)
        predicted = self.confusion.sum(0)
        with np.errstate(invalid="ignore"):
            columns = (right / predicted, right / gold, 2 * right / (predicted + gold), gold, predicted)
        return [
            TagScore(self.tags[k], *(column[k].item() for column in columns)) for k in np.argsort(-gold, kind="stable")
        ]

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the gold tags."""
        return float(np.mean([score.f1 for score in self.per_tag() if score.num_gold]))

    def confusion_pairs(self, top: int = 10, num_words: int = 3) -> list[ConfusionPair]:
        """The most frequent errors, with the words they happen to."""
        errors = self.confusion - np.diag(np.diag(self.confusion))
        found = []
        for cell in np.argsort(-errors, axis=None, kind="stable")[:top]:
            gold, predicted = divmod(int(cell), len(self.tags))
            if not errors[gold, predicted]:
                break
            places = np.flatnonzero((self.gold == gold) & (self.predicted == predicted))
            words = Counter(self.words[i] for i in places).most_common(num_words)
            found.append(ConfusionPair(self.tags[gold], self.tags[predicted], len(places), tuple(words)))
        return found

    def interval(self, level: float = 0.95, *, num_resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
        """Bootstrap interval of the accuracy, by the percentiles over sentences drawn with replacement.

        Sentences, not tokens, are drawn, because errors in a sentence depend on one another.

        Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
        """
        return bootstrap_interval(*self.sentence_counts, level=level, num_resamples=num_resamples, seed=seed)

    def summary(self) -> dict[str, Any]:
        """The numbers as a JSON-able dictionary, shares as {"accuracy", "correct", "num"}."""
        shares = {
            "all": self.all_words,
            "known": self.known_words,
            "unknown": self.unknown_words,
            "ambiguous": self.ambiguous_words,
            "sentences": self.sentences,
        }
        return {
            **{
                name: {"accuracy": _number(share.accuracy), "correct": share.num_correct, "num": share.num}
                for name, share in shares.items()
                if share is not None
            },
            "macro_f1": self.macro_f1,
            "num_unlabelled": self.num_unlabelled,
            "tags": {
                score.tag: {name: _number(value) for name, value in score._asdict().items() if name != "tag"}
                for score in self.per_tag()
            },
        }


def score_tags(
    gold: Sequence[TaggedSentence], predicted: Sequence[Sequence[str | None]], training: TrainingWords | None = None
) -> TagScores:
    """Score predicted tags.

    Args:
        gold: sentences with their tags; tokens without one (None) are left out.
        predicted: a tag a word of each sentence; None, no tag, is wrong.
        training: tells known from unknown words, and ambiguous ones.

    Raises:
        ValueError: another number of sentences or tags, or no gold tag at all.
    """
    if len(gold) != len(predicted):
        raise ValueError(f"predicted: expected {len(gold)} sentences as in gold, got {len(predicted)}")
    words: list[str] = []
    pairs: list[tuple[str, str]] = []
    sentence_of: list[int] = []
    num_unlabelled = 0
    for i, (sentence, tags) in enumerate(zip(gold, predicted, strict=True)):
        if len(sentence.words) != len(tags):
            raise ValueError(f"predicted: expected {len(sentence.words)} tags in sentence {i}, got {len(tags)}")
        for word, right, tag in zip(sentence.words, sentence.tags, tags, strict=True):
            if right is None:
                num_unlabelled += 1
                continue
            words.append(word)
            pairs.append((right, NO_TAG if tag is None else tag))
            sentence_of.append(i)
    if not words:
        raise ValueError("gold: expected at least one word with a tag, got none to score against")
    tags_seen = tuple(sorted({tag for pair in pairs for tag in pair}))
    index = {tag: k for k, tag in enumerate(tags_seen)}
    ids = np.array([(index[right], index[tag]) for right, tag in pairs])
    known = ambiguous = None
    if training is not None:
        known = np.array([word in training.known for word in words])
        if training.ambiguous is not None:
            ambiguous = np.array([word in training.ambiguous for word in words])
    return TagScores(
        tags_seen, tuple(words), ids[:, 0], ids[:, 1], np.array(sentence_of), known, ambiguous, num_unlabelled
    )


class McNemar(NamedTuple):
    """McNemar's test: tokens right in both, the first only, the second only, in neither; and the two-sided p-value."""

    num_both: int
    num_first: int
    num_second: int
    num_neither: int
    p_value: float


def mcnemar(first: TagScores, second: TagScores) -> McNemar:
    """Whether two taggers differ on the same text: the exact test on the tokens that one of them gets right.

    If both are equally good, the tokens that only the first gets right are Binomial(n, 1/2) among the n that just one
    does; p = 2 P(X <= min of the two), at most 1. Tokens count as independent, which makes p somewhat too small.

    Raises:
        ValueError: scores of different texts.

    Source: McNemar, Note on the sampling error of the difference between correlated proportions (1947); Dietterich,
        Approximate statistical tests for comparing supervised classification learning algorithms (1998).
    """
    _same_text(first, second)
    only_first = int((first.correct & ~second.correct).sum())
    only_second = int((second.correct & ~first.correct).sum())
    both = int((first.correct & second.correct).sum())
    neither = first.num_tokens - both - only_first - only_second
    return McNemar(both, only_first, only_second, neither, _sign_test(only_first, only_second))


def _sign_test(first: int, second: int) -> float:
    import torch

    num = torch.tensor(float(first + second), dtype=torch.float64)
    probs = torch.tensor(0.5, dtype=torch.float64)
    fewer = torch.arange(min(first, second) + 1, dtype=torch.float64)
    tail = torch.distributions.Binomial(num, probs).log_prob(fewer).logsumexp(0)
    return min(1.0, 2.0 * math.exp(tail))


def difference_interval(
    first: TagScores, second: TagScores, level: float = 0.95, *, num_resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of accuracy(first) - accuracy(second), by sentences, both on the same draws.

    Raises:
        ValueError: scores of different texts.
    """
    _same_text(first, second)
    right, tokens = first.sentence_counts
    gained = right - second.sentence_counts[0]
    return bootstrap_interval(gained, tokens, level=level, num_resamples=num_resamples, seed=seed)


def bootstrap_interval(
    values: np.ndarray, weights: np.ndarray, *, level: float = 0.95, num_resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of sum(values) / sum(weights) over units drawn with replacement.

    Args:
        values, weights: (S,) of each unit.
        level: of the interval, between 0 and 1.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level: expected between 0 and 1, got {level}")
    size, random, ratios = len(values), np.random.default_rng(checks.seed("seed", seed)), []
    at_a_time = max(1, RESAMPLED_CELLS // size)
    for start in range(0, num_resamples, at_a_time):
        draws = random.multinomial(size, np.full(size, 1 / size), size=min(at_a_time, num_resamples - start))
        ratios.append((draws @ values) / (draws @ weights))
    low, high = np.quantile(np.concatenate(ratios), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _same_text(first: TagScores, second: TagScores) -> None:
    same = first.words == second.words and np.array_equal(first.sentence_of, second.sentence_of)
    if not same or any(first.tags[i] != second.tags[j] for i, j in zip(first.gold, second.gold, strict=True)):
        raise ValueError("second: expected scores of the same text with the same gold tags as the first's, got another")


def _number(value: float) -> float | None:
    return None if isinstance(value, float) and math.isnan(value) else value
