"""Tags that stand for spans of words: B-NP I-NP O and the like, from and to spans, and which tag may follow which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pplseq import checks
from pplseq.data.columns import TaggedSentence

OUTSIDE = "O"
SAME = {"L": "E", "U": "S", "W": "S", "M": "I"}  # letters of BILOU, BMEWO and others, as BIOES has them
LETTERS = frozenset("BIES")
SCHEMES = ("iob1", "bio", "bioes")


class Span(NamedTuple):
    """Words start..end - 1 of a sentence, of a kind (NP, PER)."""

    kind: str
    start: int
    end: int


class Tag(NamedTuple):
    """A letter of B, I, E, S, O, and the kind; "" of O."""

    letter: str
    kind: str


def parsed(tag: str) -> Tag:
    """A tag's parts: `B-NP` is ("B", "NP").

    Raises:
        ValueError: no tag of spans.
    """
    if tag == OUTSIDE:
        return Tag(OUTSIDE, "")
    letter, _, kind = tag.partition("-")
    letter = SAME.get(letter, letter)
    if letter not in LETTERS:
        raise ValueError(f"tags: expected O, or such as B-NP and I-NP (letters B I E S, L U M W), got {tag!r}")
    return Tag(letter, kind)


def are_spans(tags: Iterable[str | None], *, with_kinds: bool = True) -> bool:
    """Whether all tags are such as B-NP, I-NP and O, with a kind (or without: B, I and O), and not all are O."""
    found = {tag for tag in tags if tag is not None}
    parts = [tag.partition("-") for tag in found - {OUTSIDE}]
    return bool(parts) and all(a in LETTERS | SAME.keys() and (kind or not with_kinds) for a, _, kind in parts)


def _written(letter: str, kind: str) -> str:
    return f"{letter}-{kind}" if kind else letter


def spans_of(tags: Iterable[str]) -> list[Span]:
    """The spans of a sentence's tags, of any scheme and whether or not they keep to it: as conlleval reads them.

    A span ends behind E and S, before B, S and O, and where the kind changes; any other tag than O opens one if none is open.

    Source: Tjong Kim Sang and Buchholz, Introduction to the CoNLL-2000 Shared Task: Chunking (2000); its program conlleval.
    """
    spans: list[Span] = []
    start, before = 0, Tag(OUTSIDE, "")
    number = 0
    for number, tag in enumerate((*tags, OUTSIDE)):
        now = parsed(tag)
        begins = now.letter in "BS" or before.letter in "OES" or now.kind != before.kind
        if before.letter != OUTSIDE and (begins or now.letter == OUTSIDE):
            spans.append(Span(before.kind, start, number))
        if now.letter != OUTSIDE and begins:
            start = number
        before = now
    return spans


def tags_of(spans: Iterable[Span], num_words: int, scheme: str) -> tuple[str, ...]:
    """The tags of spans that do not overlap: "bio" (B begins every span), "bioes" (E ends it, S is one of a single word), or
    "iob1" (B only where a span of the same kind stands right before).
    """
    checks.choice("scheme", scheme, SCHEMES)
    tags = [OUTSIDE] * num_words
    before = Span("", -1, -1)
    for span in sorted(spans, key=lambda span: span.start):
        kind, start, end = span
        if not before.end <= start < end <= num_words:
            raise ValueError(f"spans: {span} is empty, or overlaps {before}, or leaves the sentence of {num_words} words")
        tags[start:end] = [_written("I", kind)] * (end - start)
        if scheme != "iob1" or (before.end == start and before.kind == kind):
            tags[start] = _written("B", kind)
        if scheme == "bioes":
            tags[end - 1] = _written("S" if end == start + 1 else "E", kind)
        before = span
    return tuple(tags)


def converted(sentences: Iterable[TaggedSentence], scheme: str) -> list[TaggedSentence]:
    """The same sentences with their spans in a scheme.

    Raises:
        ValueError: a tag that is none of spans; None, whose span is not known (by the sentence's number).
    """
    found = []
    for number, (words, tags) in enumerate(sentences):
        if None in tags:
            raise ValueError(
                f"x: number {number} has a word without a tag ({words[tags.index(None)]!r}), so that its spans are not known; "
                "give all tags of a sentence, or leave it out"
            )
        found.append(TaggedSentence(words, tags_of(spans_of([str(tag) for tag in tags]), len(words), scheme)))
    return found


def scheme_of(tagger: Any, sentences: Sequence[TaggedSentence]) -> str | None:
    """The scheme that a tagger writes all spans in, where the tags of a text stand for spans; None of other taggers."""
    scheme = getattr(tagger, "spans", None)
    tags = (tag for sentence in sentences for tag in sentence.tags)
    return scheme if scheme and are_spans(tags, with_kinds=False) else None


def in_scheme(tagger: Any, sentences: Sequence[TaggedSentence]) -> Sequence[TaggedSentence]:
    """A text that a tagger is scored by, with its spans in the scheme that the tagger writes: IOB1's I-PER begins a person, as
    B-PER does elsewhere. Sentences that lack tags stay as they are, as their spans are not known."""
    scheme = scheme_of(tagger, sentences)
    if scheme is None:
        return sentences
    return [sentence if None in sentence.tags else converted([sentence], scheme)[0] for sentence in sentences]


def all_tags(tags: Iterable[str | None], scheme: str) -> tuple[str, ...]:
    """O and every letter of the scheme with every kind there is, sorted: with them every sentence has a tagging."""
    kinds = {parsed(tag).kind for tag in tags if tag is not None and tag != OUTSIDE}
    letters = "BIES" if scheme == "bioes" else "BI"
    return tuple(sorted([OUTSIDE, *(_written(letter, kind) for letter in letters for kind in kinds)]))


class Allowed(NamedTuple):
    """What a scheme allows: first (K,) tags of first words, after (K, K) [tag, next tag], last (K,) of last words; bool."""

    first: np.ndarray
    after: np.ndarray
    last: np.ndarray


def allowed(tags: Sequence[str], scheme: str) -> Allowed:
    """Which tags may begin, follow and end, so that every tagging is exactly one set of spans.

    With all else forbidden, `tags_of(spans_of(tags), n, scheme) == tags`.
    """
    checks.choice("scheme", scheme, SCHEMES)
    found = [parsed(tag) for tag in (OUTSIDE, *tags)]

    def goes_on(tag: Tag) -> bool:
        """Whether it needs a span that is open."""
        return tag.letter == "B" if scheme == "iob1" else tag.letter in "IE"

    def may_follow(before: Tag, now: Tag) -> bool:
        open_ = before.letter in ("BI" if scheme == "bioes" else "BIES")
        same = open_ and before.kind == now.kind
        return same if goes_on(now) else not (open_ and scheme == "bioes")

    table = np.array([[may_follow(before, now) for now in found[1:]] for before in found])
    last = np.array([scheme != "bioes" or tag.letter not in "BI" for tag in found[1:]])
    return Allowed(table[0], table[1:], last)
