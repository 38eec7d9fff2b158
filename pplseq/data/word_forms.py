"""How a word is rewritten before it is looked up."""

from __future__ import annotations

import re
from dataclasses import dataclass

DIGITS = re.compile(r"[0-9]+")


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
        if self.digits is not None and (self.digits.split() != [self.digits] or DIGITS.search(self.digits)):
            raise ValueError(f"digits: expected a word without digits, such as 'NUM', got {self.digits!r}")

    def __call__(self, word: str) -> str:
        word = word.lower() if self.lower else word
        return word if self.digits is None else DIGITS.sub(lambda _: self.digits, word)
