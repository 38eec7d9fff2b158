"""Labelled strings, one a line: `+ 0101`, or `0101<TAB>1`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pplseq import checks
from pplseq.data.sources import listing, read_text
from pplseq.data.vocabulary import split_words

LABELS = {"+": True, "1": True, "true": True, "yes": True, "-": False, "0": False, "false": False, "no": False}
_HEAD = re.compile(r"\d+\s+\d+")


class LabelledStrings(NamedTuple):
    """Strings of symbols, whether each is in the language, and all symbols: sorted, or as they were given."""

    strings: list[tuple[str, ...]]
    labels: list[bool]
    symbols: tuple[str, ...]

    @property
    def one_class(self) -> bool:
        """Whether all labels are the same."""
        return len(set(self.labels)) < 2

    def to_abbadingo(self) -> str:
        """The strings as the Abbadingo competition has them: "N L", then a line a string: label, length, and its symbols as
        their places in ``symbols``."""
        places = {symbol: str(place) for place, symbol in enumerate(self.symbols)}
        lines = [f"{len(self.strings)} {len(self.symbols)}"]
        for string, label in zip(self.strings, self.labels, strict=True):
            lines.append(" ".join([str(int(label)), str(len(string)), *(places[symbol] for symbol in string)]))
        return "\n".join(lines) + "\n"


def read_labelled_strings(path: str | Path, *, symbols: Sequence[str] | None = None) -> LabelledStrings:
    """Read labelled strings.

    A line is `+ STRING` or `- STRING`, or STRING, a tab, and a label (1, +, true, yes; 0, -, false, no). Symbols are single
    characters, or words where any string has a space within. The string may be empty. Lines that begin with # and blank
    lines are left out. A first line of two numbers says that the file is one of the Abbadingo competition: how many strings and
    symbols there are; then a line a string: its label (1 or 0), its length, and its symbols, which are numbers.

    Args:
        path: a UTF-8 file, plain or packed as .gz or .xz; "-" reads standard input.
        symbols: of other strings that these go with: strings are then words where one of these symbols is longer than a
            character, even if no string here has a space, and other symbols are an error.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line without a label, an unknown label, a string with two labels, an unknown symbol, by their lines; no
            strings at all.
    """
    name, lines = read_text(path, "a file of labelled strings")
    known = None if symbols is None else frozenset(symbols)
    long = known is not None and any(len(symbol) > 1 for symbol in known)
    texts: dict[str, tuple[bool, int]] = {}
    found: list[tuple[str, bool]] = []
    head: list[int] | None = None  # of an Abbadingo file
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        if head is None and not found and _HEAD.fullmatch(line.strip()):
            head, long = [int(part) for part in line.split()], True
            continue
        text, label = (_split if head is None else _split_numbers)(line, f"{name}, line {number}")
        text = " ".join(split_words(text))  # so that two spaces do not make another string
        before = texts.setdefault(text, (label, number))
        if before[0] != label:
            raise ValueError(
                f"{name}, line {number}: {checks.shown(text)} has another label than in line {before[1]}; decide for one"
            )
        if known is not None:
            own = split_words(text) if long or " " in text else text
            if strange := [symbol for symbol in own if symbol not in known]:
                raise ValueError(
                    f"{name}, line {number}: unknown symbol {strange[0]!r}; known: {listing(sorted(known))}"
                )
        found.append((text, label))
    if head is not None and (len(found) != head[0] or len({s for text, _ in found for s in text.split()}) > head[1]):
        raise ValueError(f"{name}: its first line says {head[0]} strings of {head[1]} symbols, and there are others")
    if not found:
        raise ValueError(f"{name}: no strings in it; expected lines like '+ 0101' or '- 00'")
    words = long or any(" " in text for text, _ in found)
    strings = [tuple(split_words(text)) if words else tuple(text) for text, _ in found]
    symbols = tuple(sorted({symbol for string in strings for symbol in string}) if symbols is None else symbols)
    if not symbols:
        raise ValueError(f"{name}: only the empty string is in it, so there are no symbols")
    return LabelledStrings(strings, [label for _, label in found], symbols)


def _split_numbers(line: str, where: str) -> tuple[str, bool]:
    """(string, label) of a line of an Abbadingo file."""
    label, *rest = line.split()
    if label not in ("0", "1"):
        raise ValueError(f"{where}: unknown label {label!r}; an Abbadingo file has 1 and 0, strings without one are left out")
    if not rest or not all(part.isdecimal() for part in rest) or int(rest[0]) != len(rest) - 1:
        raise ValueError(f"{where}: expected a label, a length and as many symbols, got {checks.shown(line.strip())}")
    return " ".join(rest[1:]), label == "1"


def _split(line: str, where: str) -> tuple[str, bool]:
    """(string, label) of a line."""
    if "\t" in line:
        text, _, label = line.rpartition("\t")
        if text.strip() in ("+", "-") and label.strip() in LABELS:
            raise ValueError(
                f"{where}: {checks.shown(line)} may be the string {text.strip()!r} with the label {label.strip()!r}, or the "
                "string "
                f"{label.strip()!r} with the label {text.strip()!r}; if the second is meant, write a space instead of the tab"
            )
        if label.strip().lower() in LABELS:
            return text.strip(), LABELS[label.strip().lower()]
        if text.strip() in ("+", "-"):  # a tab behind the sign
            return label.strip(), LABELS[text.strip()]
        raise ValueError(f"{where}: unknown label {label.strip()!r}; expected 1 or 0, + or -, true or false, yes or no")
    sign, rest = line.lstrip()[0], line.lstrip()[1:]
    if sign not in "+-" or (rest and not rest[0].isspace()):
        raise ValueError(
            f"{where}: {line.strip()!r} has no label; write '+ STRING' or '- STRING', or STRING, a tab and 1 or 0"
        )
    return rest.strip(), LABELS[sign]
