"""Finite automata: what a string's symbols lead to; smallest form, equality of languages, pictures as DOT."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pplseq import checks
from pplseq.data.labelled_strings import LABELS as LABELS_OF_FILES
from pplseq.models.automata.pictures import read_dot, written

LABELS = ("reject", "accept")

OPPOSITES = {
    "accept": "reject", "accepted": "rejected", "pos": "neg", "positive": "negative", "member": "non-member", "in": "out",
    "valid": "invalid", "y": "n", "+1": "-1",
}  # fmt: skip
USUAL_LABELS = LABELS_OF_FILES | dict.fromkeys(OPPOSITES, True) | dict.fromkeys([*OPPOSITES.values(), "nonmember"], False)
"""Whether a usual word, in small letters, says that a string is in the language."""

String = str | Sequence[str]
"""A string of symbols: a str whose characters they are, or a sequence of symbols of any length each."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic finite automaton (a Moore machine: every state has a label, and a string gets its last state's).

    Attributes:
        symbols: the L symbols of strings.
        transitions: (Z, L) the state after each state and symbol.
        outputs: (Z,) the label of each state, as a place in labels.
        start: the state of the empty string.
        labels: names; of an acceptor "reject" and "accept".
        pos_label: the label of strings that are in the language; None: the one of two labels that usual words say, as "+" of
            "+" and "-", "yes" of "no" and "yes", or, where they say none, none: then :meth:`accepts` is an error.
    """

    symbols: tuple[str, ...]
    transitions: np.ndarray
    outputs: np.ndarray
    start: int = 0
    labels: tuple[str, ...] = LABELS
    pos_label: str | None = None

    def __post_init__(self) -> None:
        settle(self)
        object.__setattr__(self, "pos_label", usual_pos_label(self.labels) if self.pos_label is None else self.pos_label)
        if self.pos_label is not None and self.pos_label not in self.labels:
            raise ValueError(f"pos_label: expected one of the labels {', '.join(self.labels)}, got {self.pos_label!r}")

    @classmethod
    def from_regex(
        cls, pattern: str, symbols: Iterable[str] | None = None, *, max_states: int = 10_000, max_nested: int = 100
    ) -> Automaton:
        """The smallest automaton that accepts what `re.fullmatch` would.

        Args:
            pattern: of symbols, `.`, `[ab]`, `[^ab]`, `( )`, `|`, `* + ? {m,n}`; a backslash takes the next character as it is.
            symbols: single characters; default: those of the pattern.
            max_states: before it is made the smallest; more are refused. max_nested: parentheses within each other.

        Raises:
            ValueError: a pattern that cannot be read, by the place in it.
        """
        from pplseq.models.automata.regular_expressions import compile_pattern

        alphabet = None if symbols is None else tuple(symbols)
        found, transitions, accepting = compile_pattern(pattern, alphabet, max_states, max_nested)
        return cls(found, np.array(transitions), np.array(accepting)).minimise()

    @property
    def num_states(self) -> int:
        return len(self.outputs)

    # ------------------------------------------------------------------------------------------------ strings
    def run(self, string: String) -> int:
        """The state that a string leads to.

        Raises:
            ValueError: a symbol that the automaton does not have.
        """
        state = self.start
        for place, symbol in enumerate(string):
            if symbol not in self.symbols:
                raise ValueError(
                    f"string: symbol {checks.shown(symbol)} at place {place} is not one of {', '.join(self.symbols)}"
                )
            state = self.transitions[state, self.symbols.index(symbol)]
        return int(state)

    def classify(self, string: String) -> str:
        """The label of a string."""
        return self.labels[self.outputs[self.run(string)]]

    def accepts(self, string: String) -> bool:
        """Whether a string is in the language: whether its label is ``pos_label``.

        Raises:
            ValueError: where it is not known which label that is.
        """
        if self.pos_label is None:
            example = self.labels[-1]
            raise ValueError(
                f"pos_label: which of the labels {', '.join(self.labels)} is that of accepted strings is not known; say it "
                f"where the automaton is learned, fit(..., pos_label={checks.shown(example)}), or afterwards, "
                f"dataclasses.replace(automaton, pos_label={checks.shown(example)}); or ask classify(string)"
            )
        return self.classify(string) == self.pos_label

    # ------------------------------------------------------------------------------------------------ languages
    def minimise(self) -> Automaton:
        """The smallest automaton of the same language, states numbered as they are met, short strings first.

        Automata of one language become the same, number by number.

        Source: E. F. Moore, Gedanken-experiments on sequential machines (1956): labels are refined by what follows. Of the
            parts the largest keeps its number: J. Hopcroft, An n log n algorithm for minimizing states (1971).
        """
        order = self._reachable()
        position = np.full(self.num_states, -1)
        position[order] = np.arange(len(order))
        transitions = position[self.transitions[order]]
        group = refined(transitions, np.unique(self.outputs[order], return_inverse=True)[1].reshape(-1))
        # `order` begins at the start, so the first state of each group, in that order, gives the groups' order
        _, first = np.unique(group, return_index=True)
        rank = np.argsort(np.argsort(first))
        first = np.sort(first)
        outputs = self.outputs[order][first]
        return Automaton(self.symbols, rank[group[transitions[first]]], outputs, 0, self.labels, self.pos_label)

    def _reachable(self) -> np.ndarray:
        """States that strings lead to, the nearest to the start first, by symbols in order."""
        order, seen = [self.start], {self.start}
        for state in order:
            for following in self.transitions[state].tolist():
                if following not in seen:
                    seen.add(following)
                    order.append(following)
        return np.array(order)

    @property
    def key(self) -> tuple:
        """Hashable; two automata with the same symbols and labels have one language if and only if their keys are equal."""
        least = self.minimise()
        return least.symbols, least.labels, least.transitions.tobytes(), least.outputs.tobytes()

    def equals(self, other: Automaton | str) -> bool:
        """Whether both give every string the same label; a str is a regular expression over the same symbols."""
        return self.difference(other) is None

    def difference(self, other: Automaton | str) -> String | None:
        """A shortest string to which they give different labels; None if there is none.

        Args:
            other: an automaton, or a regular expression over the same symbols, which matches what is accepted.

        Returns:
            A str if every symbol is one character, else a tuple of symbols.

        Raises:
            ValueError: automata with different symbols or labels. TypeError: what is neither.
        """
        if isinstance(other, str):
            other = Automaton.from_regex(other, self.symbols)
            if len(self.labels) == 2 and self.pos_label is not None:
                names = sorted(self.labels, key=lambda name: name == self.pos_label)
                other = replace(other, labels=tuple(names), pos_label=self.pos_label)
        elif not isinstance(other, Automaton):
            raise TypeError(f"other: expected an Automaton or a regular expression, got {checks.shown(other)}")
        for name in ("symbols", "labels"):
            mine, others = getattr(self, name), getattr(other, name)
            if set(mine) != set(others):
                raise ValueError(f"other: expected the {name} {', '.join(mine)}, got {', '.join(others)}")
        column = [other.symbols.index(symbol) for symbol in self.symbols]
        label = np.array([self.labels.index(name) for name in other.labels])
        start = (self.start, other.start)
        came: dict[tuple[int, int], tuple[tuple[int, int], str] | None] = {start: None}
        queue = deque([start])
        while queue:
            pair = queue.popleft()
            mine, others = pair
            if self.outputs[mine] != label[other.outputs[others]]:
                string = []
                while (step := came[pair]) is not None:
                    pair, symbol = step
                    string.append(symbol)
                return self._joined(string[::-1])
            for place, symbol in enumerate(self.symbols):
                following = int(self.transitions[mine, place]), int(other.transitions[others, column[place]])
                if following not in came:
                    came[following] = pair, symbol
                    queue.append(following)
        return None

    def _joined(self, string: list[str]) -> String:
        return "".join(string) if all(len(symbol) == 1 for symbol in self.symbols) else tuple(string)

    # ------------------------------------------------------------------------------------------------ for people and files
    def to_dot(self, name: str = "automaton") -> str:
        """Graphviz's language; `dot -Tpng` draws it. Accepting states have two circles; other labels are written."""

        def quoted(text: str) -> str:
            return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

        lines = [f"digraph {quoted(name)} {{", "  rankdir=LR;", '  start [shape=none, label=""];']
        for state, output in enumerate(self.outputs):
            shape = "doublecircle" if self.labels[output] == self.pos_label else "circle"
            text = f'"{state}"' if self.labels == LABELS else f'"{state}: {written([self.labels[output]])[1:]}'
            lines.append(f"  {state} [shape={shape}, label={text}];")
        lines.append(f"  start -> {self.start};")
        for (state, following), symbols in self.edges().items():
            lines.append(f"  {state} -> {following} [label={written(symbols)}];")
        return "\n".join([*lines, "}"]) + "\n"

    @classmethod
    def from_dot(cls, text: str) -> Automaton:
        """The automaton of Graphviz's language, as :meth:`to_dot` and tools for automata (AALpy, LearnLib) write it.

        An arrow from a state without a circle (``shape=none``, ``point`` or ``plaintext``, or called ``__start...``) marks the
        start. Labels of arrows are symbols, several between commas or on lines of their own; a comma or a slash of a symbol has
        a backslash before it. Two circles accept; where states are written "name: label" or "name/label" they have these
        labels. Moves that are not drawn lead to a state that rejects.

        Raises:
            ValueError: for what is no deterministic automaton, by the state; for arrows with outputs (of Mealy machines), and
                moves that are missing where states have labels.
        """
        return cls(*read_dot(text, LABELS))

    def edges(self) -> dict[tuple[int, int], list[str]]:
        """The symbols that lead from each state to each next one."""
        edges: dict[tuple[int, int], list[str]] = {}
        for state, row in enumerate(self.transitions.tolist()):
            for symbol, following in zip(self.symbols, row, strict=True):
                edges.setdefault((state, following), []).append(symbol)
        return edges

    def to_dict(self) -> dict:
        """JSON-able; :meth:`from_dict` reads it."""
        return {
            "symbols": list(self.symbols),
            "transitions": self.transitions.tolist(),
            "outputs": self.outputs.tolist(),
            "start": self.start,
            "labels": list(self.labels),
            "pos_label": self.pos_label,
        }

    @classmethod
    def from_dict(cls, entries: dict) -> Automaton:
        """The automaton that :meth:`to_dict` wrote.

        Raises:
            ValueError: entries that are no automaton.
        """
        missing = {"symbols", "transitions", "outputs", "start", "labels"} - set(entries)
        if missing:
            raise ValueError(f"entries: expected those that to_dict writes, {', '.join(sorted(missing))} missing")
        symbols, labels = tuple(entries["symbols"]), tuple(entries["labels"])
        moves, outputs = np.array(entries["transitions"]), np.array(entries["outputs"])
        return cls(symbols, moves, outputs, entries["start"], labels, entries.get("pos_label"))


def settle(machine: Any) -> None:
    """Symbols and labels of a machine that is being made as tuples, its tables as arrays that stay, checked.

    Raises:
        ValueError: other shapes, numbers that are no states or labels, and names that are there twice. TypeError: names that
            are no str.
    """

    def put(name: str, value: Any) -> None:
        object.__setattr__(machine, name, value)

    for name in ("symbols", "labels"):
        names = getattr(machine, name)
        names = tuple(names) if isinstance(names, Iterable) else (names,)
        for each in names:
            if not isinstance(each, str):
                raise TypeError(f"{name}: expected names that are str, got {checks.shown(each)}; give str(name)")
        if len(set(names)) != len(names):
            raise ValueError(f"{name}: expected each once, got {checks.shown(names)}")
        put(name, names)
    answers = ("states",) if isinstance(machine, Automaton) else ("states", "symbols")  # what says something
    tables = {name: _as_array(name, getattr(machine, name)) for name in ("transitions", "outputs", "start")}
    if not (states := len(tables["outputs"]) if tables["outputs"].ndim else 0):
        got = tables["outputs"].shape
        raise ValueError(f"outputs: expected the label of each of one or more states, got shape {got}")
    sizes = {"states": states, "symbols": len(machine.symbols)}
    for name, axes, most in (
        ("outputs", answers, len(machine.labels)), ("transitions", ("states", "symbols"), states), ("start", (), states),
    ):  # fmt: skip
        values, shape = tables[name], tuple(sizes[axis] for axis in axes)
        if values.shape != shape:
            raise ValueError(f"{name}: expected shape ({', '.join(axes)}) = {shape}, got {values.shape}")
        whole = np.issubdtype(values.dtype, np.integer) or values.dtype == bool
        if values.size and not (whole and 0 <= values.min() <= values.max() < most):
            raise ValueError(f"{name}: expected whole numbers from 0 to {most - 1}, got {checks.shown(values.tolist())}")
        values = values.astype(np.int64)
        values.setflags(write=False)
        put(name, values if axes else int(values))


def _as_array(name: str, value: Any) -> np.ndarray:
    try:
        return np.array(value)
    except ValueError as error:
        raise ValueError(f"{name}: expected a table whose rows are as long, got {checks.shown(value)}") from error


def refined(transitions: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Groups of states (Z,) of one label and one future each, from those of one label; transitions (Z, L).

    Only states that lead to one whose group has another number are looked at again; they differ from all that do not.
    """
    num_states, num_symbols = transitions.shape
    group, sizes = group.copy(), np.bincount(group).tolist()
    to = transitions.reshape(-1)
    short = to.astype(np.uint16) if num_states <= 2**16 else to  # which numpy sorts in linear time
    before = np.argsort(short, kind="stable") // max(1, num_symbols)  # states that lead to each, from first[state] on
    first = np.cumsum([0, *np.bincount(to, minlength=num_states)])
    seen = np.arange(num_states)
    while len(seen):
        parts: dict[int, dict[bytes, list[int]]] = {}
        for state, own, after in zip(seen.tolist(), group[seen].tolist(), group[transitions[seen]], strict=True):
            parts.setdefault(own, {}).setdefault(after.tobytes(), []).append(state)
        changed: list[int] = []
        for own, by_future in parts.items():
            found = sorted(by_future.values(), key=len)
            rest = sizes[own] - sum(map(len, found))
            if rest < len(found[-1]):  # the largest of those seen keeps the number
                kept = found.pop()
                if rest:
                    others = group == own
                    others[[*kept, *(state for part in found for state in part)]] = False
                    found.append(np.flatnonzero(others).tolist())
            for part in found:
                group[part] = len(sizes)
                sizes.append(len(part))
                sizes[own] -= len(part)
                changed += part
        leads = [before[first[state] : first[state + 1]] for state in changed]
        seen = np.unique(np.concatenate(leads)) if leads else seen[:0]
    return group


def usual_pos_label(labels: Sequence[str]) -> str | None:
    """The one of two labels that usual words say is that of accepted strings; None if they do not say."""
    said = [USUAL_LABELS.get(str(label).strip().lower()) for label in labels]
    return labels[said.index(True)] if len(said) == 2 and set(said) == {False, True} else None


class Candidate(NamedTuple):
    """One of several languages that were learnt.

    Attributes:
        automaton: its smallest one.
        members: which of the learnt automata have it, as places in the list.
    """

    automaton: Automaton
    members: tuple[int, ...]

    @property
    def num_found(self) -> int:
        """How many have it."""
        return len(self.members)


def distinct_automata(automata: Sequence[Automaton]) -> list[Candidate]:
    """Automata grouped by language, the smallest first, then the most frequent; "2 different automata fit your data"."""
    least: dict[tuple, Automaton] = {}
    members: dict[tuple, list[int]] = {}
    of_table: dict[tuple, tuple] = {}  # many restarts end in the very same table
    for place, automaton in enumerate(automata):
        table = (automaton.symbols, automaton.labels, automaton.start)
        table = (*table, automaton.transitions.tobytes(), automaton.outputs.tobytes())
        if table not in of_table:
            of_table[table] = automaton.key
            least.setdefault(of_table[table], automaton.minimise())
        members.setdefault(of_table[table], []).append(place)
    found = [Candidate(least[key], tuple(places)) for key, places in members.items()]
    return sorted(found, key=lambda candidate: (candidate.automaton.num_states, -candidate.num_found))


def harden(
    start: np.ndarray,
    transition: np.ndarray,
    output: np.ndarray,
    symbols: Sequence[str],
    labels: Sequence[str] = LABELS,
    pos_label: str | None = None,
) -> Automaton:
    """The automaton of the likeliest moves: argmax of every distribution.

    Args:
        start: (Z,) p(state of the empty string).
        transition: (L, Z, Z) p(next state | symbol, state), [symbol, from, to].
        output: (Z, Y) p(label | state), or (Z,) p(second label | state), where more than a half accepts.
        symbols: the L symbols. labels: names of the Y labels. pos_label: see :class:`Automaton`.

    Source: Bengio and Frasconi (1995), section 5: probabilities go to 0 or 1, which makes the extraction trivial.
    """
    start, transition, output = (np.asarray(table) for table in (start, transition, output))
    num_states = start.shape[-1] if start.ndim else 0
    if start.ndim != 1 or transition.shape != (len(symbols), num_states, num_states) or output.shape[:1] != start.shape:
        raise ValueError(
            "transition: expected start (Z,), transition (L, Z, Z) for L symbols and output (Z,) or (Z, Y), got shapes "
            f"{start.shape}, {transition.shape}, {output.shape} and {len(symbols)} symbols"
        )
    outputs = output.argmax(-1) if output.ndim == 2 else (output > 0.5).astype(np.int64)
    return Automaton(tuple(symbols), transition.argmax(-1).T, outputs, int(start.argmax()), tuple(labels), pos_label)
