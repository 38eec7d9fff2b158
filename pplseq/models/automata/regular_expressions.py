"""Small regular expressions, turned into a deterministic automaton by the positions of their symbols.

Read are symbols, `.`, sets `[ab]` and `[^ab]`, groups `( )`, alternatives `|` and the repetitions `* + ? {m} {m,} {m,n}`, as
Python's `re.fullmatch` reads them; a backslash takes the next character as it is.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_STATES, MOST_NESTED = 10_000, 100
SPECIAL = ".[]()|*+?{}\\"


class Part(NamedTuple):
    """A part of an expression: whether it matches the empty string, and positions of symbols that may begin and end it."""

    nullable: bool
    first: frozenset[int]
    last: frozenset[int]


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
        self.follow: list[set[int]] = []
        try:
            self.whole = self._alternatives()
        except RecursionError:
            raise self._error("more parentheses within each other than Python's recursion limit allows") from None
        if self.place < len(pattern):
            raise self._error("a closing parenthesis that nothing opens")

    # ------------------------------------------------------------------------------------------------ reading
    def _alternatives(self) -> Part:
        part = self._sequence()
        while self._take("|"):
            other = self._sequence()
            part = Part(part.nullable or other.nullable, part.first | other.first, part.last | other.last)
        return part

    def _sequence(self) -> Part:
        part = Part(True, frozenset(), frozenset())
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
            parts = [copy if k < low else copy._replace(nullable=True) for k, copy in enumerate(copies)]
            if high is None:
                parts[-1] = self._loop(parts[-1])
            part = Part(True, frozenset(), frozenset())
            if high != 0:
                for copy in parts:
                    part = self._joined(part, copy)
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

    def _bounds(self) -> tuple[int, int | None]:
        """The numbers in braces; None stands for no upper one."""
        end = self.pattern.find("}", self.place)
        low, comma, high = self.pattern[self.place + 1 : end].partition(",")
        numbers = [number for number in (low, high) if number]
        if end < 0 or not numbers or not all(number.isdecimal() for number in numbers):
            raise self._error("expected {m}, {m,} or {m,n}")
        bounds = int(low or 0), (int(high) if high else None) if comma else int(low)
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise self._error("expected {m,n} with m <= n")
        self.place = end + 1
        return bounds

    def _atom(self) -> Part:
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
            return self._symbols(frozenset(self.symbols))
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
        return self._symbols(frozenset(self.symbols) - set(inside) if negated else frozenset(inside))

    def _symbols(self, matched: frozenset[str]) -> Part:
        unknown = matched - set(self.symbols)
        if unknown:
            raise self._error(f"symbol {min(unknown)!r} is not one of {', '.join(map(repr, self.symbols))}")
        if len(self.matches) >= self.most:
            raise self._error(f"it has more than {self.most:,} symbols with its repetitions; raise max_states")
        self.matches.append(matched)
        self.follow.append(set())
        here = frozenset([len(self.matches) - 1])
        return Part(False, here, here)

    # ------------------------------------------------------------------------------------------------ putting together
    def _joined(self, left: Part, right: Part) -> Part:
        for position in left.last:
            self.follow[position] |= right.first
        return Part(
            left.nullable and right.nullable,
            left.first | right.first if left.nullable else left.first,
            left.last | right.last if right.nullable else right.last,
        )

    def _loop(self, part: Part) -> Part:
        for position in part.last:
            self.follow[position] |= part.first
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
        return ValueError(f"pattern: {message}, at place {self.place} of {self.pattern!r}")


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
    whole = positions.whole
    # a state is the set of positions that the last symbol may have been at; the start is before all of them
    sets: list[frozenset[int] | None] = [None]
    number: dict[frozenset[int] | None, int] = {None: 0}
    transitions: list[list[int]] = []
    for state in sets:
        ahead = whole.first if state is None else frozenset().union(*(positions.follow[p] for p in state))
        row = []
        for symbol in positions.symbols:
            reached = frozenset(p for p in ahead if symbol in positions.matches[p])
            if reached not in number:
                if len(sets) >= max_states:
                    raise ValueError(
                        f"pattern: {positions.pattern!r} needs more than {max_states:,} states; raise max_states"
                    )
                number[reached] = len(sets)
                sets.append(reached)
            row.append(number[reached])
        transitions.append(row)
    accepting = [whole.nullable if state is None else bool(state & whole.last) for state in sets]
    return transitions, accepting
