"""Small regular expressions, turned into a deterministic automaton by the positions of their symbols.

Read are symbols, `.`, sets `[ab]` and `[^ab]`, groups `( )`, alternatives `|` and the repetitions `* + ? {m} {m,} {m,n}`, as
Python's `re.fullmatch` reads them; a backslash takes the next character as it is.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pplseq import checks

MAX_STATES, MOST_NESTED = 10_000, 100
MOVES, STEPS = 1000, 500  # for each of max_states: entries of a table, and steps on the way to it, a second or so each
ATOM = 20  # steps that reading a symbol or a parenthesis takes
SPECIAL = ".[]()|*+?{}\\"


class TooMuch(ValueError):
    """A pattern whose automaton needs more than is allowed; limit: of what, in words."""

    def __init__(self, pattern: str, limit: str):
        super().__init__(f"pattern: {checks.shown(pattern)} needs more than {limit}; raise max_states")
        self.limit = limit


class Part(NamedTuple):
    """A part of an expression: whether it matches the empty string, and positions of symbols that may begin and end it.

    Sets of positions are whole numbers, a bit for each.
    """

    nullable: bool
    first: int
    last: int


def places_of(bits: int) -> Iterator[int]:
    """The places of a number's ones, from the lowest."""
    digits = bin(bits)[:1:-1]
    place = digits.find("1")
    while place >= 0:
        yield place
        place = digits.find("1", place + 1)


class Positions:
    """An expression's symbols, numbered from the left, and which may follow which.

    Source: V. M. Glushkov, The abstract theory of automata (1961); A. Aho et al., Compilers (2006), section 3.9.
    """

    def __init__(self, pattern: str, symbols: tuple[str, ...] | None, most: int, nested: int) -> None:
        self.pattern, self.place, self.depth, self.most, self.nested = pattern, 0, 0, most, nested
        self.symbols = symbols or tuple(sorted(self._literals()))
        if not self.symbols:
            raise self._error("no symbol in it; say by symbols= which there are")
        self.matches: list[frozenset[str]] = []
        self.follow: list[int] = []
        self.steps = 0
        self.known = frozenset(self.symbols)
        try:
            self.whole = self._alternatives()
        except RecursionError:
            raise self._error("more parentheses within each other than Python's recursion limit allows") from None
        if self.place < len(pattern):
            raise self._error("a closing parenthesis that nothing opens")

    # ------------------------------------------------------------------------------------------------ reading
    def _alternatives(self) -> Part:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return Part(any(p.nullable for p in parts), self._any(p.first for p in parts), self._any(p.last for p in parts))

    def _sequence(self) -> Part:
        part = Part(True, 0, 0)
        while self._next() not in ("", "|", ")"):
            part = self._joined(part, self._repeated())
        return part

    def _repeated(self) -> Part:
        start = self.place
        part = self._atom()
        if self._next() == "{":
            low, high = self._bounds()
            end = self.place
            if max(low, high or 0) > self.most:
                raise self._error(f"more than {self.most:,} repetitions; raise max_states")
            copies = [part] + [self._copy(start) for _ in range(max(low, high or 0, 1) - 1)]
            self.place = end
            part = self._copies(copies, low, high)
        elif self._take("*"):
            part = self._loop(part)._replace(nullable=True)
        elif self._take("+"):
            part = self._loop(part)
        elif self._take("?"):
            part = part._replace(nullable=True)
        if self._next() in tuple("*+?{"):
            raise self._error("a repetition of a repetition; put parentheses around the inner one")
        return part

    def _copy(self, start: int) -> Part:
        self.place = start
        return self._atom()

    def _copies(self, copies: list[Part], low: int, high: int | None) -> Part:
        """One behind the other, from the first on: fewer of them end early, so that each is followed by the next alone."""
        if high == 0:
            return Part(True, 0, 0)
        for one, other in itertools.pairwise(copies):
            self._follows(one, other)
        if high is None:
            self._loop(copies[-1])
        nullable = copies[0].nullable
        ends = copies if nullable else copies[max(low, 1) - 1 :]
        return Part(low == 0 or nullable, copies[0].first, self._any(copy.last for copy in ends))

    def _bounds(self) -> tuple[int, int | None]:
        """The numbers in braces; None stands for no upper one."""
        end = self.pattern.find("}", self.place)
        low, comma, high = self.pattern[self.place + 1 : end].partition(",")
        numbers = [number for number in (low, high) if number]
        if end < 0 or not numbers or not all(number.isdecimal() for number in numbers):
            raise self._error("expected {m}, {m,} or {m,n}")
        if max(map(len, numbers)) > len(str(self.most)) + 1:  # before it is read: Python refuses numbers of 4,300 digits
            raise self._error(f"more than {self.most:,} repetitions; raise max_states")
        bounds = int(low or 0), (int(high) if high else None) if comma else int(low)
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise self._error("expected {m,n} with m <= n")
        self.place = end + 1
        return bounds

    def _atom(self) -> Part:
        self._step(ATOM)
        character = self._next()
        self.place += 1
        if character == "(":
            self.depth += 1
            if self.depth > self.nested:
                raise self._error(f"more than {self.nested} parentheses within each other; raise max_nested")
            part = self._alternatives()
            self.depth -= 1
            if not self._take(")"):
                raise self._error("a parenthesis that is not closed")
            return part
        if character == "[":
            return self._set()
        if character == ".":
            return self._symbols(self.known)
        if character == "\\":
            character = self._next()
            self.place += 1
        elif character in SPECIAL:
            self.place -= 1
            raise self._error(f"{character!r} out of place")
        return self._symbols(frozenset([character]))

    def _set(self) -> Part:
        end = self.pattern.find("]", self.place)
        inside = self.pattern[self.place : end].removeprefix("^")
        if end < 0 or not inside:
            raise self._error("expected [symbols] or [^symbols]")
        negated = self._next() == "^"
        self.place = end + 1
        return self._symbols(self.known - set(inside) if negated else frozenset(inside))

    def _symbols(self, matched: frozenset[str]) -> Part:
        unknown = matched - self.known
        if unknown:
            raise self._error(f"symbol {min(unknown)!r} is not one of {', '.join(map(repr, self.symbols))}")
        if len(self.matches) >= self.most:
            raise self._error(f"it has more than {self.most:,} symbols with its repetitions; raise max_states")
        self.matches.append(matched)
        self.follow.append(0)
        here = 1 << (len(self.matches) - 1)
        return Part(False, here, here)

    # ------------------------------------------------------------------------------------------------ putting together
    def _step(self, number: int = 1) -> None:
        """Refuses what would take too long, such as thousands of parts each of which may be left out."""
        self.steps += number
        if self.steps > STEPS * self.most:
            raise TooMuch(self.pattern, f"{STEPS * self.most:,} steps ({STEPS} for each of max_states)")

    def _any(self, sets: Iterable[int]) -> int:
        """The union."""
        found = 0
        for own in sets:
            found |= own
        return found

    def _follows(self, left: Part, right: Part) -> None:
        self._step(left.last.bit_count())
        for position in places_of(left.last):
            self.follow[position] |= right.first

    def _joined(self, left: Part, right: Part) -> Part:
        self._follows(left, right)
        return Part(
            left.nullable and right.nullable,
            left.first | right.first if left.nullable else left.first,
            left.last | right.last if right.nullable else right.last,
        )

    def _loop(self, part: Part) -> Part:
        self._follows(part, part)
        return part

    def _literals(self) -> set[str]:
        """All characters of the pattern that stand for themselves."""
        found, escaped, braces = set(), False, False
        for character in self.pattern:
            braces = (braces or character == "{") and character != "}"
            if escaped or (character not in SPECIAL and character != "^" and not braces):
                found.add(character)
            escaped = character == "\\" and not escaped
        return found

    def _next(self) -> str:
        return self.pattern[self.place : self.place + 1]

    def _take(self, character: str) -> bool:
        taken = self._next() == character
        self.place += taken
        return taken

    def _error(self, message: str) -> ValueError:
        return ValueError(f"pattern: {message}, at place {self.place} of {checks.shown(self.pattern)}")


def compile_pattern(
    pattern: str, symbols: tuple[str, ...] | None = None, max_states: int = MAX_STATES, max_nested: int = MOST_NESTED
) -> tuple[tuple[str, ...], list[list[int]], list[bool]]:
    """Symbols, next states and accepting states of an automaton whose state 0 is the start; not the smallest one.

    Args:
        max_states: of the automaton, and symbols of the expression with its repetitions written out.
        max_nested: parentheses within each other.

    Raises:
        ValueError: a pattern that cannot be read, by the place in it, or that needs more states.
    """
    positions = Positions(pattern, symbols, max_states, max_nested)
    return positions.symbols, *positions_to_states(positions, max_states)


def positions_to_states(positions: Positions, max_states: int) -> tuple[list[list[int]], list[bool]]:
    """Next states and accepting states of the automaton of an expression, as :func:`compile_pattern` returns them."""
    whole, num_symbols, steps = positions.whole, len(positions.symbols), 0
    # positions that a symbol may stand at; kinds of positions, as few symbols of many stand at one that others do not
    number_of = {symbol: number for number, symbol in enumerate(positions.symbols)}
    kinds: dict[frozenset[str], int] = {}
    for position, matched in enumerate(positions.matches):
        kinds[matched] = kinds.get(matched, 0) | 1 << position
    every = positions.known
    at_all = kinds.get(every, 0)
    some = [([number_of[symbol] for symbol in matched], places) for matched, places in kinds.items() if matched != every]
    # a state is the positions that the next symbol may be at, and whether the string may end here
    start = whole.first, whole.nullable
    number = {start: 0}
    queue, transitions = deque([start]), []
    reached_state: dict[int, int] = {}

    def state_of(reached: int) -> int:
        nonlocal steps
        if reached not in reached_state:
            steps += reached.bit_count()
            ahead = 0
            for position in places_of(reached):
                ahead |= positions.follow[position]
            state = ahead, bool(reached & whole.last)
            if state not in number:
                if len(number) >= max_states:
                    raise TooMuch(positions.pattern, f"{max_states:,} states")
                number[state] = len(number)
                queue.append(state)
            reached_state[reached] = number[state]
        return reached_state[reached]

    while queue:
        ahead, _ = queue.popleft()
        if (len(transitions) + 1) * num_symbols > MOVES * max_states:
            limit = f"{MOVES * max_states:,} moves, states times symbols ({MOVES} for each of max_states)"
            raise TooMuch(positions.pattern, limit)
        steps += len(some)
        if steps > STEPS * max_states:
            raise TooMuch(positions.pattern, f"{STEPS * max_states:,} steps ({STEPS} for each of max_states)")
        reached: dict[int, int] = {}
        for symbols, places in some:
            if here := ahead & places:
                for symbol in symbols:
                    reached[symbol] = reached.get(symbol, 0) | here
        row = [state_of(ahead & at_all)] * num_symbols if len(reached) < num_symbols else [0] * num_symbols
        for symbol, here in reached.items():
            row[symbol] = state_of(here | ahead & at_all)
        transitions.append(row)
    return transitions, [accepting for _, accepting in number]
