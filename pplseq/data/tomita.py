"""Tomita's seven regular languages over {0, 1}, the strings he taught them with, and the strings they are tested on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

from pplseq import checks

SYMBOLS = "01"


class Grammar(NamedTuple):
    """One language.

    Attributes:
        number: 1 to 7.
        description: in words.
        regex: a regular expression of the language, as Python's `re.fullmatch` reads it.
        num_states: of the smallest deterministic automaton, a state that rejects for ever included.
        accepts: whether a string is in the language, told from the words of the description, not from `regex`.
        positive, negative: Tomita's training strings.
    """

    number: int
    description: str
    regex: str
    num_states: int
    accepts: Callable[[str], bool]
    positive: tuple[str, ...]
    negative: tuple[str, ...]

    @property
    def strings(self) -> list[str]:
        """The training strings, those of the language first."""
        return [*self.positive, *self.negative]

    @property
    def labels(self) -> list[bool]:
        """Whether each of `strings` is in the language."""
        return [True] * len(self.positive) + [False] * len(self.negative)


def all_strings(max_length: int, symbols: str = SYMBOLS) -> list[str]:
    """Every string of at most max_length symbols, the empty one included, the short ones first; 8,191 for 12 bits."""
    return ["".join(s) for length in range(max_length + 1) for s in itertools.product(symbols, repeat=length)]


def random_strings(num_strings: int, max_length: int, *, seed: int, symbols: str = SYMBOLS) -> list[str]:
    """Strings drawn, with replacement, uniformly from all of at most max_length symbols: most are long."""
    generator = random.Random(seed)
    lengths = range(max_length + 1)
    sizes = [len(symbols) ** length for length in lengths]
    drawn = generator.choices(lengths, sizes, k=num_strings)
    return ["".join(generator.choices(symbols, k=length)) for length in drawn]


def tomita(number: int) -> Grammar:
    """Tomita's grammar of that number.

    Raises:
        ValueError: a number that is not 1 to 7.

    Source: M. Tomita, Dynamic construction of finite-state automata from examples using hill-climbing, Proc. 4th Annual
        Conference of the Cognitive Science Society (1982), 105-108.
    """
    if number not in GRAMMARS:
        raise ValueError(f"number: expected one of {', '.join(map(str, GRAMMARS))}, got {checks.shown(number)}")
    return GRAMMARS[number]


def _runs(string: str) -> list[tuple[str, int]]:
    """The symbols and lengths of a string's runs."""
    return [(symbol, len(list(run))) for symbol, run in itertools.groupby(string)]


def _no_odd_zeros_after_odd_ones(string: str) -> bool:
    odd = [symbol for symbol, length in _runs(string) if length % 2]
    return "1" not in odd or "0" not in odd[odd.index("1") :]


def _at_most_four_runs(string: str) -> bool:
    runs = [symbol for symbol, _ in _runs(string)]
    return len(runs) + (runs[:1] == ["1"]) <= 4  # a string that begins with 1 has an empty run of 0s before


def _grammar(number, description, regex, num_states, accepts, positive, negative) -> Grammar:
    return Grammar(number, description, regex, num_states, accepts, tuple(positive.split()), tuple(negative.split()))


GRAMMARS = {
    grammar.number: grammar
    for grammar in (
        _grammar(
            1, "only 1s", "1*", 2,
            lambda s: "0" not in s,
            "1 11 111 1111 11111 111111 1111111 11111111 1111111111",
            "0 00 10 01 011 110 0000 11111110 10111111",
        ),
        _grammar(
            2, "10 again and again", "(10)*", 3,
            lambda s: s == "10" * (len(s) // 2),
            "10 1010 101010 10101010 10101010101010 10101010101010101010",
            "1 0 11 00 01 101 100 1001010 10110 110101010",
        ),
        _grammar(
            3, "no odd run of 0s anywhere after an odd run of 1s", "(0|11)*(1(00|1)*)?", 5,
            _no_odd_zeros_after_odd_ones,
            "1 0 01 11 00 100 110 111 000 100100 110000011100001 111101100010011100",
            "10 101 010 1010 1110 1011 10001 111010 1001000 11111000 0111001101 11011100110",
        ),
        _grammar(
            4, "no 000", "(1|01|001)*0?0?", 4,
            lambda s: "000" not in s,
            "1 0 10 01 00 100100 001111110100 0100100100 11100 010",
            "000 11000 0001 000000000 11111000011 1101010000010111 1010010001 0000 00000",
        ),
        _grammar(
            5, "an even number of 0s and an even number of 1s", "(00|11|(01|10)(00|11)*(01|10))*", 4,
            lambda s: s.count("0") % 2 == 0 and s.count("1") % 2 == 0,
            "11 00 1001 0101 1010 1000111101 1001100001111010 111111 0000",
            "0 111 011 000000000 1000 01 10 1110010100 010111111110 0001",
        ),
        _grammar(
            6, "as many 1s as 0s, modulo 3", "(01|(1|00)(10)*(0|11))*", 3,
            lambda s: (s.count("1") - s.count("0")) % 3 == 0,
            "10 01 1100 101010 111 000000 10111 0111101111 100100100",
            "1 0 11 00 101 011 11001 1111 00000000 010111 10111101111 1001001001",
        ),
        _grammar(
            7, "0s, then 1s, then 0s, then 1s", "0*1*0*1*", 5,
            _at_most_four_runs,
            "1 0 10 01 11111 000 00110011 0101 0000100001111 00100 011111011111 00",
            "1010 00110011000 0101010101 1011010 10101 010100 101001 100100110101",
        ),
    )
}  # fmt: skip
