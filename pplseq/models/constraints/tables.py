"""Automata over words as tables: a class for each word that is named, class 0 for all others; products and joins of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pplseq.models.automata.automaton import LABELS, Automaton
from pplseq.models.automata.regular_expressions import MOVES, STEPS

OTHER = "any other word"
EXPLORED = 200  # moves for each of max_states that are found one by one
LONGEST_TEXT = 500  # of a constraint in an error


class WordTable(NamedTuple):
    """A deterministic automaton over words, start 0.

    Attributes:
        classes: the class of each word that is named, 1..C-1; every other word is of class 0.
        moves: (D, C). accepting: (D,) bool.
    """

    classes: Mapping[str, int]
    moves: np.ndarray
    accepting: np.ndarray

    def smallest(self) -> WordTable:
        """The smallest one of the same texts: states, classes and named words."""
        symbols = tuple(map(str, range(self.moves.shape[1])))
        least = Automaton(symbols, self.moves, self.accepting.astype(np.int64), 0, LABELS).minimise()
        # classes that move alike are one; class 0 stays the first
        alike: dict[bytes, int] = {}
        which = [alike.setdefault(column.tobytes(), len(alike)) for column in np.ascontiguousarray(least.transitions.T)]
        first = np.unique(which, return_index=True)[1]
        kept = {word: which[number] for word, number in self.classes.items() if which[number]}
        return WordTable(kept, least.transitions[:, first], least.outputs.astype(bool))

    def class_of(self, word: str) -> int:
        """The class of a word."""
        return self.classes.get(word, 0)

    def complement(self) -> WordTable:
        """Of all texts that this one does not accept."""
        return self._replace(accepting=~self.accepting)

    def automaton(self) -> Automaton:
        """With names of classes for symbols: up to three words of it."""
        names = [OTHER] * self.moves.shape[1]
        for number in range(1, len(names)):
            words = sorted(word for word, own in self.classes.items() if own == number)
            names[number] = " / ".join(words[:3]) + (f" / ... ({len(words)} words)" if len(words) > 3 else "")
        return Automaton(tuple(names), self.moves, self.accepting.astype(np.int64), 0, LABELS)


class TooLarge(ValueError):
    """An automaton that needs more than is allowed: of ``limit``, in words, or of so many states."""

    def __init__(self, what: str, most: int, limit: str = ""):
        what = what if len(what) <= LONGEST_TEXT else f"{what[:LONGEST_TEXT]}..."
        super().__init__(
            f"constraint: {what} needs an automaton of more than {limit or f'{most:,} states'}; raise max_states, or ask for "
            "less: fewer or shorter phrases, smaller bounds"
        )


def check_moves(num_states: int, num_classes: int, most: int, what: str, each: int = MOVES) -> None:
    """Raises TooLarge for a table of more moves than ``most`` states may have, so many for each of them."""
    if num_states * num_classes > each * most:
        limit = f"{each * most:,} moves, states times words that it tells apart ({each} for each of max_states)"
        raise TooLarge(what, most, limit)


def explored(
    start: Hashable,
    step: Callable[[Any, int], Hashable],
    accepts: Callable[[Any], bool],
    num_classes: int,
    classes: Mapping[str, int],
    most: int,
    what: str,
) -> WordTable:
    """The automaton whose states are what ``step(state, class)`` leads to from a start, in its smallest form.

    Raises:
        TooLarge: more than ``most`` states, or a table of more moves than so many may have.
    """
    number: dict[Any, int] = {start: 0}
    queue, moves = deque([start]), []
    while queue:
        state = queue.popleft()
        row = []
        for own in range(num_classes):
            after = step(state, own)
            if after not in number:
                if len(number) >= most:
                    raise TooLarge(what, most)
                check_moves(len(number) + 1, num_classes, most, what, EXPLORED)
                number[after] = len(number)
                queue.append(after)
            row.append(number[after])
        moves.append(row)
    accepting = np.array([bool(accepts(state)) for state in number])
    return WordTable(classes, np.array(moves).reshape(len(moves), num_classes), accepting).smallest()


def _together(first: WordTable, second: WordTable) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """Classes of words that both tell apart, and the pair of classes that each stands for."""
    pairs: dict[tuple[int, int], int] = {(0, 0): 0}
    classes = {}
    for word in [*first.classes, *(word for word in second.classes if word not in first.classes)]:
        pair = first.class_of(word), second.class_of(word)
        classes[word] = pairs.setdefault(pair, len(pairs))
    return classes, list(pairs)


def product(first: WordTable, second: WordTable, accepts: Callable[[Any, Any], Any], most: int, what: str) -> WordTable:
    """Of texts for which ``accepts(first accepts, second accepts)``."""
    classes, pairs = _together(first, second)
    a, b = ([row.tolist() for row in table.moves] for table in (first, second))

    def step(state, own):
        return a[state[0]][pairs[own][0]], b[state[1]][pairs[own][1]]

    def accepted(state):
        return accepts(first.accepting[state[0]], second.accepting[state[1]])

    return explored((0, 0), step, accepted, len(pairs), classes, most, what)


def joined(first: WordTable, second: WordTable, most: int, what: str) -> WordTable:
    """Of texts of the first with texts of the second behind them.

    A state is one of the first, with the set of states in which the second may be, begun at any place the first accepts.
    """
    classes, pairs = _together(first, second)
    a, b = ([row.tolist() for row in table.moves] for table in (first, second))

    steps = 0

    def begun(state: int, inside: Iterable[int]) -> tuple[int, frozenset[int]]:
        return state, frozenset(inside) | (frozenset([0]) if first.accepting[state] else frozenset())

    def step(state, own):
        nonlocal steps
        steps += len(state[1])
        if steps > STEPS * most:
            raise TooLarge(what, most, f"{STEPS * most:,} steps ({STEPS} for each of max_states)")
        mine, its = pairs[own]
        return begun(a[state[0]][mine], (b[inner][its] for inner in state[1]))

    def accepted(state):
        return any(second.accepting[inner] for inner in state[1])

    return explored(begun(0, ()), step, accepted, len(pairs), classes, most, what)
