"""A keyboard that learns its user's words: how many keystrokes its suggestions save.

    python examples/keyboard.py general.txt mine.txt --state keyboard

Before each key of a line the keyboard offers three words. If the word that is meant is among them, one tap writes it; else the
next letter is typed. Each line is learned when it is sent, so that words of one's own are offered the next time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pplseq.sources import PersonalStream


class Typed(NamedTuple):
    """keys: that were pressed, taps on suggestions among them. letters: that the lines have, with a space behind each word."""

    keys: int
    letters: int

    @property
    def saved(self) -> float:
        """The share of keystrokes that were spared."""
        return 1 - self.keys / self.letters


def type_line(stream: PersonalStream, line: str, offered: int = 3) -> Typed:
    """Types a line by letters and suggestions, and sends it: the stream learns from it."""
    words, keys = line.split(), 0
    for place, word in enumerate(words):
        before = "".join(f"{one} " for one in words[:place])
        for letters in range(len(word) + 1):
            keys += 1  # a tap, the next letter, or behind the last one the space
            if any(word == suggestion.word for suggestion in stream.suggest(before + word[:letters], offered)):
                break
    stream.read(line)
    return Typed(keys, sum(len(word) + 1 for word in words))


def type_lines(stream: PersonalStream, lines: Iterable[str], offered: int = 3) -> list[Typed]:
    """Types line after line."""
    return [type_line(stream, line, offered) for line in lines if line.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("general", help="text that the keyboard knows before")
    parser.add_argument("mine", type=Path, help="what is typed, a line at a time")
    parser.add_argument("--state", help="folder in which it is kept what was learned")
    options = parser.parse_args()
    with PersonalStream.open(f"ngram:{options.general}", state=options.state, by_line=True) as stream:
        for number, typed in enumerate(type_lines(stream, options.mine.read_text(encoding="utf-8").splitlines()), 1):
            print(f"line {number}: {typed.keys} keys for {typed.letters} letters, {typed.saved:.0%} saved")


if __name__ == "__main__":
    main()
