"""From a line of a stream to word ids, and from the models' numbers to a line of JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.sources.lines import answer_lines, too_long

DIGITS = 6  # behind the point, of what is written


class Line(NamedTuple):
    """A line of a stream, encoded.

    Attributes:
        answer: the beginning of its JSON line. words, ids: (T,) of what is learned or scored, without words left out.
        known: (T,) False for a word read as the unknown word.
    """

    answer: dict[str, Any]
    words: list[str]
    ids: list[int]
    known: list[bool]

    def aligned(self, values: Sequence[float | None]) -> list[float | None]:
        """(T,) values for the "words" of the answer: null at words that were left out."""
        if len(self.words) == len(self.answer["words"]):
            return list(values)
        rest, left_out = iter(values), set(self.answer["unknown"])
        return [None if t in left_out else next(rest) for t in range(len(self.answer["words"]))]


class Encoder:
    """Encodes lines of words, or of JSON as `pplseq query` reads it.

    Args:
        vocabulary: of the models.
        eos: whether every line ends in the end-of-line word; None where the vocabulary has one.
        unknown: what to do with a word outside the vocabulary: "unk" reads it as the unknown word, "skip" leaves it out,
            "error" refuses its line; None is "unk" where the vocabulary has such a word, else "error".
        lower: lower-case the words.

    Raises:
        ValueError: the vocabulary lacks the word that an option needs.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, eos: bool | None = None, unknown: str | None = None, lower: bool = False
    ) -> None:
        self.vocabulary, self.lower = vocabulary, lower
        if eos and vocabulary.eos_id is None:
            raise ValueError(f"--eos: the vocabulary has no {checks.shown(vocabulary.eos)}; leave --eos out")
        if unknown == "unk" and vocabulary.unknown_id is None:
            raise ValueError(
                f"--unknown unk: the vocabulary has no {checks.shown(vocabulary.unknown)}; choose --unknown skip or error"
            )
        self.end = vocabulary.eos if eos is not False and vocabulary.eos_id is not None else None
        self.unknown = unknown or ("error" if vocabulary.unknown_id is None else "unk")

    def encode(self, number: int, raw: bytes | int) -> Line:
        """A line; one that cannot be read has an "error" in its answer and no words, a blank one no words.

        Args:
            number: of the line. raw: its bytes, or the length of one that is too long.
        """
        if isinstance(raw, int):
            return Line({"line": number, "error": too_long(raw)}, [], [], [])
        if not self.vocabulary.split(raw.decode("utf-8-sig", "replace")):
            return Line({"line": number, "words": [], "unknown": []}, [], [], [])
        lines: list[Line] = []

        def take(words: list[str | None]) -> dict[str, Any]:
            lines.append(self.of_words(words))
            return lines[0].answer

        split = self.vocabulary.split
        answer = {**next(answer_lines([raw], take, end=self.end, lower=self.lower, split=split)), "line": number}
        return lines[0]._replace(answer=answer) if lines else Line(answer, [], [], [])

    def of_words(self, words: Sequence[str | None]) -> Line:
        """A line's words as they stand, whether it ends there or not.

        Raises:
            ValueError: a gap, or a word that is refused.
        """
        if None in words:
            raise ValueError(
                f'word {words.index(None) + 1} is null: a stream has no gaps; leave the word out of "words"'
            )
        unknown = [t for t, word in enumerate(words) if word not in self.vocabulary]
        if unknown and self.unknown == "error":
            word = words[unknown[0]]
            raise ValueError(
                f"the word {checks.shown(word)} is not among the {len(self.vocabulary)} of the vocabulary; --unknown skip "
                "leaves such "
                "words out" + ("" if self.vocabulary.unknown_id is None else ", --unknown unk reads them as unknown")
            )
        answer = {"words": list(words), "unknown": unknown}
        if self.unknown == "skip":
            words = [word for word in words if word in self.vocabulary]
        kept = [word for word in words if word is not None]
        known = [word in self.vocabulary for word in kept]
        return Line(answer, kept, self.vocabulary.encode(kept).tolist(), known)


def rounded(values: Sequence[float]) -> list[float | None]:
    """Numbers for a JSON line; null where there is none that JSON knows (infinite, or not a number)."""
    return [round(value, DIGITS) if math.isfinite(value) else None for value in values]
