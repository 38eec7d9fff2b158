"""Which tags a word may have: dictionaries from text, files and mappings; and classes of rare words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.data.vocabulary import split_words
from pplseq.models.taggers.features import short_shape, suffix

MIN_CLASS = 5  # rare words that a class must have; smaller ones are joined
CLASS_SUFFIXES = (3, 2, 1, 0)


class TagDictionary:
    """word -> its tags, each with a weight; weights of a word sum to 1.

    Args:
        entries: word -> tags, or word -> {tag: weight}.

    Raises:
        ValueError: a word without tags, or a weight that is not positive.
        TypeError: a weight that is no number.

    Example::

        lexicon = TagDictionary({"run": ["NOUN", "VERB"], "the": {"DET": 1.0}})
    """

    def __init__(self, entries: Mapping[str, Iterable[str] | Mapping[str, float]]):
        self.entries: dict[str, dict[str, float]] = {}
        for word, tags in entries.items():
            if isinstance(tags, str):
                raise ValueError(
                    f"lexicon: the tags of {checks.shown(word)} are the string {checks.shown(tags)}; expected a list, or tag: "
                    "weight"
                )
            weights = dict(tags) if isinstance(tags, Mapping) else dict.fromkeys(tags, 1.0)
            total = sum(checks.number(f"lexicon: the weight of {tag!r} of {word!r}", w) for tag, w in weights.items())
            if not weights or not all(w > 0 and math.isfinite(w) for w in weights.values()):
                raise ValueError(f"lexicon: {checks.shown(word)} must have tags with positive weights, got {weights}")
            self.entries[word] = {tag: weight / total for tag, weight in weights.items()}

    @classmethod
    def of(cls, value) -> TagDictionary:
        """A dictionary from itself, a mapping, or the path of a file."""
        if isinstance(value, TagDictionary):
            return value
        if isinstance(value, Mapping):
            return cls(value)
        if isinstance(value, (str, Path)):
            return cls.read(value)
        raise TypeError(f"lexicon must be a mapping, a path or a TagDictionary, got {type(value).__name__}")

    @classmethod
    def from_sentences(cls, sentences: Iterable[TaggedSentence]) -> TagDictionary:
        """All tags that words have in tagged text, weighted by how often; words without a tag are left out."""
        counts: dict[str, Counter] = {}
        for words, tags in sentences:
            for word, tag in zip(words, tags, strict=True):
                if tag is not None:
                    counts.setdefault(word, Counter())[tag] += 1
        return cls(counts)

    @classmethod
    def read(cls, path: str | Path) -> TagDictionary:
        """Reads a UTF-8 file: a word a line, then its tags, between white space; a tag may have a weight, `NOUN:3`.

        Empty lines and comments, which begin with `# `, are left out; behind the word `#` stands a tab. A word may stand on
        several lines.

        Raises:
            OSError: there is no such file.
            ValueError: a line without tags or with a weight that is no positive number, by its number; a comment of nothing but
                tags; no words at all; text that is not UTF-8.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise type(error)(f"lexicon: {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"lexicon: {path} is not UTF-8 text: {error}") from None
        entries: dict[str, dict[str, float]] = {}
        comments: list[tuple[str, list[str]]] = []
        for number, line in enumerate(text.split("\n"), start=1):
            parts, where = split_words(line), f"lexicon: {path}, line {number}"
            if not parts:
                continue
            if line.startswith("# "):
                comments.append((where, parts[1:]))
                continue
            if len(parts) == 1:
                raise ValueError(f"{where}: the word {parts[0]!r} has no tags")
            for part in parts[1:]:
                tag, weight = _tag_and_weight(part, where)
                tags = entries.setdefault(parts[0], {})
                tags[tag] = tags.get(tag, 0.0) + weight
        if not entries:
            raise ValueError(f"lexicon: {path} lists no words; expected a word a line, its tags behind it")
        known = {"#", *(tag for tags in entries.values() for tag in tags)}
        for where, parts in comments:
            if parts and all(part in known or part.rpartition(":")[0] in known for part in parts):
                raise ValueError(
                    f"{where}: either a comment, or the word '#' with the tags {' '.join(parts)}; put a tab behind the word, "
                    "or say more in the comment"
                )
        return cls(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, word: object) -> bool:
        return word in self.entries

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags, sorted."""
        return tuple(sorted({tag for tags in self.entries.values() for tag in tags}))

    def joined(self, other: TagDictionary) -> TagDictionary:
        """Words and tags of both; the weights of words that both have are averaged."""
        entries = {word: dict(tags) for word, tags in self.entries.items()}
        for word, tags in other.entries.items():
            mine = entries.setdefault(word, {})
            for tag, weight in tags.items():
                mine[tag] = mine.get(tag, 0.0) + weight
        return TagDictionary(entries)

    def of_tags(self, tags: Iterable[str]) -> TagDictionary:
        """The part of it that speaks of these tags; words of which it lists none of them are left out."""
        kept = frozenset(tags)
        some = {word: {tag: w for tag, w in listed.items() if tag in kept} for word, listed in self.entries.items()}
        return TagDictionary({word: listed for word, listed in some.items() if listed})

    def weights(self, words: Sequence[str], tags: Sequence[str], open_tags: Iterable[str] | None = None) -> np.ndarray:
        """(tags, words) p(tag | word); words that are not listed share it among the open tags (None: all) alike.

        Raises:
            ValueError: a tag of the dictionary, or an open one, that is not among `tags`.
        """
        listed = ListedTags({word: self.entries[word] for word in words if word in self.entries}, tags)
        number, unlisted = listed.number, np.zeros(len(tags))
        for tag in tags if open_tags is None else open_tags:
            if tag not in number:
                raise ValueError(
                    f"open_tags: {tag!r} is no tag of the text or the lexicon; those are {', '.join(tags)}"
                )
            unlisted[number[tag]] = 1.0
        if not unlisted.any():
            raise ValueError("open_tags: expected at least one tag")
        table = listed.weights(words).T
        return np.where(table.any(0), table, (unlisted / unlisted.sum())[:, None])


def _tag_and_weight(text: str, where: str) -> tuple[str, float]:
    tag, colon, number = text.rpartition(":")
    if not colon or not tag or not number:  # the tag `:` among others
        return text, 1.0
    try:
        weight = float(number)
    except ValueError:
        return text, 1.0  # a tag with a colon in it
    if not weight > 0 or not math.isfinite(weight):
        raise ValueError(f"{where}: the weight of {tag!r} must be positive, got {number}")
    return tag, weight


def lexicon_entries(lexicon, strength: float | None) -> dict[str, dict[str, float]] | None:
    """The entries of what :meth:`TagDictionary.of` takes, as settings keep them; None where there is none.

    Raises:
        ValueError: a strength that is not positive, or without a lexicon.
        TypeError: a strength that is no number.
    """
    check_strength(strength)
    if lexicon is None and strength is not None:
        raise ValueError(f"lexicon_strength: there is no lexicon; give one, or leave out the strength {strength}")
    return None if lexicon is None else TagDictionary.of(lexicon).entries


def check_strength(strength: float | None) -> float | None:
    """The value of `lexicon_strength`."""
    if strength is not None and not (checks.number("lexicon_strength", strength) > 0 and math.isfinite(strength)):
        raise ValueError(f"lexicon_strength must be positive, or None (other tags are impossible), got {strength}")
    return strength


class ListedTags:
    """What a lexicon says of words to a tagger that counts tagged text.

    A word that training lacks has the tags g(tag) that its form suggests, and those that are listed:

        p(tag | word)  in proportion to  g(tag) w(tag | word)                   without a strength: other tags are impossible
        p(tag | word)  =  (g(tag) + strength w(tag | word)) / (1 + strength)    with one

    with w the weights of the lexicon. A word that training has is taken to have been seen `strength` times more (half a time,
    without one), with its listed tags as they are weighted.

    Args:
        entries: word -> {tag: weight}. tags: N of the training text. strength: sightings that a listing is worth, or None.

    Raises:
        ValueError: a tag that is none of them.

    Source: Halacsy, Kornai and Oravecz (2007), HunPos: an open source trigram tagger (listed tags of new words, weighted by
        the guesses of their endings).
    """

    def __init__(self, entries: Mapping[str, Mapping[str, float]], tags: Sequence[str], strength: float | None = None):
        self.number, self.strength = {tag: k for k, tag in enumerate(tags)}, strength
        self.entries = entries
        for word, weights in entries.items():
            for tag in weights:
                if tag not in self.number:
                    some = ", ".join(sorted(tags)[:20]) + (", ..." if len(tags) > 20 else "")
                    raise ValueError(
                        f"lexicon: {checks.shown(word)} has the tag {tag!r}, which no word of the training text has ({some}); "
                        "take it "
                        "out of the lexicon, or add tagged sentences with it"
                    )

    def __contains__(self, word: object) -> bool:
        return word in self.entries

    @property
    def limits(self) -> bool:
        """Whether tags that are not listed are impossible."""
        return self.strength is None

    def weights(self, words: Sequence[str]) -> np.ndarray:
        """(n, N) p(tag | word) of the lexicon; 0 of words that are not listed."""
        table = np.zeros((len(words), len(self.number)))
        for row, word in zip(table, words, strict=True):
            for tag, weight in self.entries.get(word, {}).items():
                row[self.number[tag]] = weight
        return table

    def tag_probs(self, words: Sequence[str], guesses: np.ndarray) -> np.ndarray:
        """(n, N) p(tag | word) of new words that are listed, from those that their forms suggest."""
        weights = self.weights(words)
        if self.strength is not None:
            return (guesses + self.strength * weights) / (1 + self.strength)
        probs = guesses * weights
        total = probs.sum(1, keepdims=True)
        return np.where(total > 0, probs / np.where(total > 0, total, 1.0), weights)  # the form suggests none that is listed

    def sightings(self, words: Sequence[str]) -> np.ndarray:
        """(n, N) pseudo-counts of words that training has."""
        return (0.5 if self.strength is None else self.strength) * self.weights(words)


class WordClasses:
    """Classes of words that training has not, or hardly: by shape and last letters, as many as there are rare words for.

    A word's class is that of its shape and suffix if enough rare words have them, or of its shape and a shorter suffix, down to
    the one class of all words.

    Args:
        words: rare words of the training text, which are like those to come.
        min_words: that a class must have.
    """

    def __init__(self, words: Iterable[str], min_words: int = MIN_CLASS):
        counts = Counter(key for word in words for key in _keys(word))
        kept = sorted(key for key, count in counts.items() if count >= min_words)
        self.names: tuple[str, ...] = ("<any>", *kept)
        self._known = frozenset(kept)

    @classmethod
    def of_names(cls, names: Sequence[str]) -> WordClasses:
        """The classes that have these :attr:`names`."""
        classes = cls(())
        classes.names, classes._known = tuple(names), frozenset(names[1:])
        return classes

    def __call__(self, word: str) -> str:
        """The name of a word's class."""
        return next((key for key in _keys(word) if key in self._known), "<any>")


def _keys(word: str) -> list[str]:
    shape = short_shape(word)[:6]
    return [f"<{shape} {suffix(word, n)}>" if n else f"<{shape}>" for n in CLASS_SUFFIXES if len(word) > n or not n]
