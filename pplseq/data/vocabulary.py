"""The words of a language and their numbers, and how words are rewritten before they are looked up."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pplseq import checks
from pplseq.data.sources import UNITS, existing_path, is_shown, join_tokens, split_line, split_words, tokens_of

EOS = "<eos>"
UNKNOWN = "<unk>"
DIGITS = re.compile(r"[0-9]+")
LONG_WORD = 12  # letters of a word, on average, from which on a text of one word a line is taken for one without spaces
_BETWEEN_WORDS = re.compile(r"[ \t\r\n]")


def units_of(units: str | None, vocabulary: Vocabulary | None) -> str:
    """What is a word of a text: these units, or the vocabulary's, or words.

    Raises:
        ValueError: units that there are not, or that are not the vocabulary's.
    """
    found = checks.choice("units", units or ("words" if vocabulary is None else vocabulary.units), UNITS)
    if vocabulary is not None and vocabulary.units != found:
        raise ValueError(f"units: the vocabulary is of {vocabulary.units}, got {found!r}; leave units out, or the vocabulary")
    return found


def without_spaces(words: Iterable[str], counts: Iterable[int], num_lines: int) -> str:
    """What to say of a text whose lines are mostly one long word, as of languages written without spaces; "" of others.

    Args:
        words, counts: its words and how often each stands there. num_lines: of its lines those that are not blank.
    """
    pairs = list(zip(words, counts, strict=True))
    num_words, num_letters = sum(count for _, count in pairs), sum(len(word) * count for word, count in pairs)
    if num_words > 1.5 * num_lines or num_letters < LONG_WORD * num_words:
        return ""
    return (
        f"most lines are one word, of {num_letters / num_words:.0f} letters on average: a text without spaces? Then take "
        "characters for words: units='characters' (--units characters), or split the words beforehand"
    )


@dataclass(frozen=True)
class Vocabulary:
    """An immutable two-way map between words and ids 0..V-1.

    Args:
        words: the V words; a word's id is its place.
        unknown: the word that stands for words outside the vocabulary. Where it is not one of `words`
            (then `unknown_id` is None), encoding such a word is an error.
        eos: the word that ends every line. Where it is not one of `words` (`eos_id` None), lines carry no end.
        units: what of a text is a word: "words" between white space; "characters", with ␠, ␉, ... for spaces, tabs and other
            controls; or "bytes" of UTF-8, with <0xE4> for what is no printable ASCII.

    Raises:
        ValueError: units that there are not; a word is empty, holds a space, a tab or an end of line, or stands twice.
    """

    words: tuple[str, ...]
    unknown: str | None = UNKNOWN
    eos: str = EOS
    units: str = "words"
    index: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        if isinstance(self.words, str):
            raise TypeError("words: expected a sequence of words, got one string; split it into words first")
        checks.choice("units", self.units, UNITS)
        words = tuple(self.words)
        index = {word: number for number, word in enumerate(words)}
        for number, word in enumerate(words):
            if not isinstance(word, str) or not word or _BETWEEN_WORDS.search(word):
                shown = checks.shown(word)
                raise ValueError(f"words: word {number} is {shown}; a word is not empty and holds no space, tab or line end")
            if index[word] != number:
                raise ValueError(
                    f"words: {checks.shown(word)} stands twice (ids {number} and {index[word]}); list each word once"
                )
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "index", index)

    @classmethod
    def build(
        cls,
        lines: Iterable[Sequence[str]],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        add_eos: bool = True,
        unknown: str = UNKNOWN,
        eos: str = EOS,
        units: str = "words",
    ) -> Vocabulary:
        """Collect the vocabulary of training lines, most frequent words first.

        Args:
            lines: sequences of words, without `eos`.
            min_count: words seen less often are dropped; from 2 on the vocabulary has `unknown` in any case.
            max_size: keep at most this many words, `eos` and `unknown` included; None for no limit.
            add_eos: include `eos`, counted once a line.
            unknown: word for dropped and new words; it is added as soon as a word is dropped, or if it stands in the text.
            eos: word that ends a line.
            units: what the words of the lines are; see the class.

        Raises:
            TypeError: a line is a string. ValueError: no words, `eos` stands in the text itself, or `max_size` leaves no room.
        """
        counts: Counter[str] = Counter()
        num_lines = 0
        for line in lines:
            if isinstance(line, str):
                raise TypeError(f"lines: line {num_lines + 1} is a string; expected a list of words (line.split())")
            counts.update(line)
            num_lines += 1
        return cls.from_counts(
            counts,
            num_lines=num_lines if add_eos else None,
            min_count=min_count,
            max_size=max_size,
            unknown=unknown,
            eos=eos,
            units=units,
        )

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        *,
        num_lines: int | None,
        min_count: int = 1,
        max_size: int | None = None,
        unknown: str = UNKNOWN,
        eos: str = EOS,
        units: str = "words",
    ) -> Vocabulary:
        """Make the vocabulary of counted words: by falling count, equal counts in the order of `counts`.

        Args:
            counts: word -> occurrences, `eos` left out.
            num_lines: occurrences of `eos`; None leaves it out of the vocabulary.
            min_count, max_size, unknown, eos, units: as in `build`.
        """
        checks.count("min_count", min_count)
        if not counts:
            raise ValueError("lines: found no words; a vocabulary needs at least one")
        special = {} if num_lines is None else {eos: num_lines}
        if num_lines is not None and eos in counts:
            raise ValueError(
                f"lines: the text holds the end-of-line word {checks.shown(eos)} itself; remove it there (one is added at the "
                "end of every line), or choose another, Vocabulary.build(lines, eos=...)"
            )
        # The unknown word's own occurrences never fall under the cut.
        kept = {word: count for word, count in counts.items() if count >= min_count or word == unknown}
        room = None if max_size is None else max_size - len(special)
        if min_count > 1 or len(kept) < len(counts) or unknown in counts or (room is not None and len(kept) > room):
            special[unknown] = counts.get(unknown, 0)
            kept.pop(unknown, None)
            room = None if room is None else room - 1
        if room is not None and room < 1:
            raise ValueError(f"max_size (max_vocabulary): {max_size} leaves no room beside {' and '.join(special)}; raise it")
        ranked = sorted(kept.items(), key=lambda item: -item[1])[:room]
        if unknown in special:
            special[unknown] = sum(counts.values()) - sum(count for _, count in ranked)
        ranked = sorted([*special.items(), *ranked], key=lambda item: -item[1])
        return cls(tuple(word for word, _ in ranked), unknown=unknown, eos=eos, units=units)

    def split(self, text: str) -> list[str]:
        """The words of a line of text, in this vocabulary's units; its end is none of them."""
        return split_line(text, self.units)

    def join(self, words: Iterable[str]) -> str:
        """The text of words: inverse of :meth:`split`, but for white space between words, and bytes that are not UTF-8."""
        return join_tokens(words, self.units)

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-line word, None if the vocabulary has none."""
        return self.index.get(self.eos)

    @property
    def unknown_id(self) -> int | None:
        """Id of the word that stands for unknown words, None if the vocabulary has none."""
        return None if self.unknown is None else self.index.get(self.unknown)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """Ids of words.

        Args:
            words: (N,) words.

        Returns:
            (N,) int64; a word outside the vocabulary gives `unknown_id`.

        Raises:
            TypeError: `words` is one string, or a word is none.
            ValueError: a word is unknown and the vocabulary has no word for unknown words.
        """
        if isinstance(words, str):
            raise TypeError(f"words: expected a list of words, got the string {checks.shown(words)}; split it first")
        unknown_id = -1 if self.unknown_id is None else self.unknown_id
        ids = np.fromiter((self.number(word, unknown_id) for word in words), dtype=np.int64, count=len(words))
        if self.unknown_id is None and ids.size and ids.min() < 0:
            raise ValueError(self.unknown_word_message(words[int(np.argmin(ids))]))
        return ids

    def number(self, word: str, unknown: int) -> int:
        """The id of a word, or of a character as it stands in a text, such as a space; else ``unknown``."""
        found = self.index.get(word)
        if found is None and self.units != "words" and isinstance(word, str) and len(own := tokens_of(word, self.units)) == 1:
            found = self.index.get(own[0])
        if found is None and not isinstance(word, str):
            raise TypeError(f"words: expected strings, got {checks.shown(word)}")
        return unknown if found is None else found

    def unknown_word_message(self, word: str, place: str = "words") -> str:
        """The error text for a word that cannot be encoded: where it stands and what to do."""
        lacks = f"{place}: the word {word!r} is not in the vocabulary ({len(self)} words), which has no word for unknown words"
        if self.unknown is None:
            return f"{lacks}; give words that it has"
        return (
            f"{lacks} ({self.unknown!r}); make it with min_count=2 (--min-count 2) or more, so that rare and new words become "
            f"{self.unknown!r}, or correct the text"
        )

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of ids.

        Raises:
            ValueError: an id outside 0..V-1.
        """
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < len(self.words):
                raise ValueError(f"ids: expected 0..{len(self.words) - 1}, got {number}")
        return [self.words[number] for number in numbers]

    @property
    def special_words(self) -> dict[str, str | None]:
        """Unknown word, end word and units, as :meth:`load` takes them: a file of words does not tell them."""
        units = {} if self.units == "words" else {"units": self.units}
        return {"unknown": self.unknown, "eos": self.eos, **units}

    def fingerprint(self) -> str:
        """sha256 (hex) of the words in order: equal exactly for vocabularies that encode alike."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the words, one a line in the order of their ids."""
        Path(path).write_bytes("".join(f"{word}\n" for word in self.words).encode())

    @classmethod
    def load(
        cls, path: str | Path, *, unknown: str | None = UNKNOWN, eos: str = EOS, units: str = "words"
    ) -> Vocabulary:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a folder, or not UTF-8 text with one word a line.
        """
        path = existing_path(path)
        if path.is_dir():
            raise ValueError(f"{path}: expected a vocabulary, a word per line, got a folder; name one of the files in it")
        try:
            lines = path.read_bytes().decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a vocabulary: byte {error.start} is not UTF-8 text") from error
        words = [line.removesuffix("\r") for line in lines]
        if words[-1] == "":
            words.pop()
        if not words:
            raise ValueError(f"{path}: the vocabulary is empty; expected a word per line")
        try:
            return cls(tuple(words), unknown=unknown, eos=eos, units=units)
        except ValueError as error:
            raise ValueError(f"{path}: not a vocabulary, a word per line: {error}") from error


@dataclass(frozen=True)
class WordForms:
    """Lower-casing, and a word in the place of digits; called with a word, it gives the form that the vocabulary has.

    Args:
        lower: lower-case words.
        digits: what stands for every run of digits: with "NUM", `1,250` is `NUM,NUM` and `7th` is `NUMth`; None keeps
            them. It is put in after lower-casing.

    Raises:
        ValueError: `digits` is empty or holds white space or digits.

    Source:
        Belanger & Kakade, "A Linear Dynamical System Model for Text" (2015), section 6: case is kept, digits become NUM.
    """

    lower: bool = False
    digits: str | None = None

    def __post_init__(self):
        if self.digits is not None and (split_words(self.digits) != [self.digits] or DIGITS.search(self.digits)):
            raise ValueError(f"digits: expected a word without digits, such as 'NUM', got {self.digits!r}")

    def __call__(self, word: str) -> str:
        if not (self.lower or self.digits) or is_shown(word):
            return word
        word, digits = word.lower() if self.lower else word, self.digits
        return word if digits is None else DIGITS.sub(lambda _: digits, word)
