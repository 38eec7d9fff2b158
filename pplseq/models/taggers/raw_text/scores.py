"""Scores of raw text that was split and tagged, as the CoNLL 2018 shared task defines them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pplseq.models.taggers.raw_text.treebank import Sentence, Token
from pplseq.models.taggers.spans.scores import SpanScore

UNIVERSAL_FEATURES = frozenset(
    "PronType NumType Poss Reflex Foreign Abbr Gender Animacy Number Case Definite Degree VerbForm Mood Tense Aspect Voice "
    "Evident Polarity Person Polite".split()
)
METRICS = ("tokens", "sentences", "words", "upos", "xpos", "ufeats", "alltags", "lemmas")


class PlacedWord(NamedTuple):
    """A word of a text: the characters from start to end of its token, its form and columns; many: one of several words."""

    start: int
    end: int
    form: str
    columns: tuple[str, ...]
    many: bool


def score_raw_text(gold: Sequence[Sentence], found: Sequence[Sentence]) -> dict[str, SpanScore]:
    """F1 of tokens, sentences, words, and of UPOS, XPOS, UFeats, AllTags (these three together) and lemmas of words, by the
    METRICS' names.

    Tokens and sentences are right where they hold the same characters of the text, white space left out. Words are aligned
    where they hold the same characters; those of multiword tokens by the longest common sequence of their forms, in lower
    case. A tag is right where its word is aligned and has the same; a gold lemma `_` is right with any.

    Raises:
        ValueError: texts of different characters.

    Source: Zeman et al. (2018), CoNLL 2018 shared task: multilingual parsing from raw text to universal dependencies.
    """
    texts = ["".join("".join(t.text.split()) for s in sentences for t in s) for sentences in (gold, found)]
    if texts[0] != texts[1]:
        place = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
        raise ValueError(
            f"found: expected the text of gold, which differs at character {place + 1} (spaces left out): "
            f"{texts[0][place : place + 20]!r} and {texts[1][place : place + 20]!r}"
        )
    (tokens, sentences, words), (their_tokens, their_sentences, their_words) = _placed(gold), _placed(found)
    pairs = list(_aligned(words, their_words))
    tags = [[(*word.columns[1:3], _universal(word.columns[3])) for word in pair] for pair in pairs]
    right = {
        "tokens": len(set(tokens) & set(their_tokens)),
        "sentences": len(set(sentences) & set(their_sentences)),
        "words": len(pairs),
        **{name: sum(a[i] == b[i] for a, b in tags) for i, name in enumerate(("upos", "xpos", "ufeats"))},
        "alltags": sum(a == b for a, b in tags),
        "lemmas": sum(a.columns[0] in ("_", b.columns[0]) for a, b in pairs),
    }
    sizes = {"tokens": (len(their_tokens), len(tokens)), "sentences": (len(their_sentences), len(sentences))}
    return {name: SpanScore(right[name], *sizes.get(name, (len(their_words), len(words)))) for name in METRICS}


def _universal(features: str) -> str:
    return "|".join(sorted(f for f in features.split("|") if f.partition("=")[0] in UNIVERSAL_FEATURES))


def _placed(sentences: Sequence[Sentence]) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[PlacedWord]]:
    tokens, bounds, words, place = [], [], [], 0
    for sentence in sentences:
        first = place
        for token in sentence:
            end = place + len("".join(token.text.split()))
            tokens.append((place, end))
            words += _words(token, place, end)
            place = end
        bounds.append((first, place))
    return tokens, bounds, words


def _words(token: Token, start: int, end: int) -> list[PlacedWord]:
    forms = token.words or (token.text,)
    columns = token.columns or (("_",) * 8,) * len(forms)
    return [PlacedWord(start, end, form, row, len(forms) > 1) for form, row in zip(forms, columns, strict=True)]


def _aligned(gold: Sequence[PlacedWord], found: Sequence[PlacedWord]) -> Iterator[tuple[PlacedWord, PlacedWord]]:
    i = j = 0
    while i < len(gold) and j < len(found):
        a, b = gold[i], found[j]
        if not (a.many or b.many):
            if (a.start, a.end) == (b.start, b.end):
                yield a, b
            # the one that ends first can be aligned with nothing else
            i, j = i + (a.end <= b.end), j + (b.end <= a.end)
            continue
        if (a.end <= b.start) or (b.end <= a.start):
            i, j = i + (a.end <= b.start), j + (b.end <= a.start)
            continue
        if not a.many and a.start < b.start:
            i += 1
            continue
        if not b.many and b.start < a.start:
            j += 1
            continue
        # all words of both texts that a chain of overlapping multiword tokens holds
        end, first = max(a.end if a.many else 0, b.end if b.many else 0), (i, j)
        grown = True
        while grown:
            grown = False
            for words, at in ((gold, i), (found, j)):
                while at < len(words) and words[at].start < end:
                    if words[at].many and words[at].end > end:
                        end, grown = words[at].end, True
                    at += 1
        while i < len(gold) and gold[i].start < end:
            i += 1
        while j < len(found) and found[j].start < end:
            j += 1
        ours, theirs = gold[first[0] : i], found[first[1] : j]
        for n, m in _common([w.form.lower() for w in ours], [w.form.lower() for w in theirs]):
            yield ours[n], theirs[m]


def _common(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Places of a longest common sequence."""
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            best[i][j] = best[i + 1][j + 1] + 1 if a[i] == b[j] else max(best[i + 1][j], best[i][j + 1])
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            yield i, j
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
