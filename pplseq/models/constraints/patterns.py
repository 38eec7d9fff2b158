"""Regular expressions over words: the library's expressions over characters, with a character for each kind of word.

    the [stock bond] market (rose | fell) .{0,3} <number> \\(
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from pplseq import checks
from pplseq.models.automata.regular_expressions import Positions, TooMuch, positions_to_states
from pplseq.models.constraints.tables import TooLarge, WordTable

PARTS = 20  # words and signs of a pattern for each of max_states
FIRST = 0xE000  # characters of private use: none is special in an expression
TOKEN = re.compile(r"\s*(\{[^}]*\}|\[\^|[.\[\]()|*+?]|<[^<>\s]+>|(?:\\.|[^\s.\[\](){}|*+?\\])+|.)", re.DOTALL)


def escaped(word: str) -> str:
    """A word as a pattern that matches it alone."""
    return re.sub(r"([\\.\[\](){}|*+?<>^])", r"\\\1", word)


class _Token(NamedTuple):
    kind: str  # "word", "class" or "sign"
    text: str
    place: int


def _tokens(pattern: str, classes: Mapping[str, Iterable[str]], most: int) -> list[_Token]:
    found: list[_Token] = []
    for match in TOKEN.finditer(pattern.rstrip()):
        if len(found) == PARTS * most:
            limit = f"{PARTS * most:,} words and signs ({PARTS} for each of max_states)"
            raise TooLarge(f"the pattern {checks.shown(pattern)}", most, limit)
        text, place = match.group(1), match.start(1)
        if text.startswith("<") and text.endswith(">") and text[1:-1] in classes:
            found.append(_Token("class", text[1:-1], place))
        elif text in "[^.]()|*+?" or text.startswith("{"):
            found.append(_Token("sign", text, place))
        elif text == "\\":
            raise ValueError(f"pattern: a backslash with nothing behind it, at place {place} of {checks.shown(pattern)}")
        else:
            found.append(_Token("word", re.sub(r"\\(.)", r"\1", text), place))
    return found


class _WordPositions(Positions):
    """Positions of an expression whose words were replaced by characters; errors speak of the expression as it was given."""

    def __init__(self, pattern: str, given: str, places: list[int], names: Mapping[str, str], *rest):
        self.given, self.places, self.names = given, places, names
        super().__init__(pattern, *rest)

    def _error(self, message: str) -> ValueError:
        place = self.places[min(self.place, len(self.places) - 1)]
        for letter, name in self.names.items():
            message = message.replace(repr(letter), repr(name))
        return ValueError(f"pattern: {message}, at place {place} of {checks.shown(self.given)}")


def matching(pattern: str, classes: Mapping[str, Iterable[str]], most: int) -> tuple[WordTable, list[str]]:
    """The automaton of the texts that a pattern matches as a whole, and the words that stand in it themselves.

    Raises:
        ValueError: a pattern that cannot be read, by the place in it; TooLarge: more than ``most`` states.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"pattern: expected a string, got {type(pattern).__name__}")
    members = {name: frozenset(words) for name, words in classes.items()}
    tokens = _tokens(pattern, members, most)
    used = {token.text for token in tokens if token.kind == "class"}
    literals = list(dict.fromkeys(token.text for token in tokens if token.kind == "word"))
    # words that no part of the pattern tells apart share a letter
    letters: dict[tuple, str] = {}
    letter_of: dict[str, str] = {}
    for word in [*literals, *(word for name in sorted(used) for word in sorted(members[name]))]:
        kind = (word if word in literals else None, *(name for name in sorted(used) if word in members[name]))
        letter_of[word] = letters.setdefault(kind, chr(FIRST + 1 + len(letters)))
    other = chr(FIRST)
    names = {letter_of[word]: word for word in reversed(literals)} | {other: "any other word"}
    of_class = {name: "".join(dict.fromkeys(letter_of[word] for word in sorted(members[name]))) for name in used}

    parts: list[str] = []
    places: list[int] = []
    inside = False
    for token in tokens:
        part = token.text
        if token.kind == "word":
            part = letter_of[part]
        elif token.kind == "class":
            part = of_class[part] if inside else f"[{of_class[part]}]"
        elif part in ("[", "[^"):
            inside = True
        elif part == "]":
            inside = False
        parts.append(part)
        places += [token.place] * len(part)
    text = "".join(parts)
    symbols = (other, *letters.values())
    try:
        positions = _WordPositions(text, pattern, [*places, len(pattern)], names, symbols, most, 100)
        transitions, accepting = positions_to_states(positions, most)
    except TooMuch as error:
        raise TooLarge(f"the pattern {checks.shown(pattern)}", most, error.limit) from None
    number = {letter: place for place, letter in enumerate(symbols)}
    table = WordTable(
        {word: number[letter] for word, letter in letter_of.items()}, np.array(transitions), np.array(accepting, dtype=bool)
    )
    return table.smallest(), literals
