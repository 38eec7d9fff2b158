"""Mealy machines: automata that answer every symbol with an output; learned from sequences of both, and read from DOT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pplseq import checks
from pplseq.models.automata.automaton import Automaton, String, refined, settle
from pplseq.models.automata.pictures import machine_of_dot, written
from pplseq.models.automata.state_merging import merge_states


@dataclass(frozen=True, eq=False)
class MealyMachine:
    """A deterministic machine that moves with every symbol and says an output.

    Attributes:
        symbols: the L symbols of inputs.
        transitions: (Z, L) the state after each state and symbol.
        outputs: (Z, L) what is then said, as a place in labels.
        labels: names of the outputs.
        start: the first state.
    """

    symbols: tuple[str, ...]
    transitions: np.ndarray
    outputs: np.ndarray
    labels: tuple[str, ...]
    start: int = 0

    def __post_init__(self) -> None:
        settle(self)

    @classmethod
    def learn(cls, inputs: Sequence[String], outputs: Sequence[String]) -> MealyMachine:
        """The machine of evidence-driven state merging, in its smallest form: it says all outputs right.

        Args:
            inputs, outputs: sequences of symbols, and what was said to each of them. What no sequence says is guessed.

        Raises:
            ValueError: sequences of several lengths or numbers; outputs that contradict each other, as no machine says two to
                one beginning; more than 1,000 states. TypeError: what are no sequences of str. ImportError: without numba.

        Example::

            MealyMachine.learn(["aab", "ba"], ["010", "01"]).run("ab")

        Source: a machine is the automaton of its questions, "what is said to this symbol now?", each of which is a symbol of
        its own whose answer is a label; see :func:`~pplseq.models.automata.state_merging.merge_states`.
        """
        for what, rows in (("inputs", inputs), ("outputs", outputs)):
            if isinstance(rows, str) or not hasattr(rows, "__len__") or not all(hasattr(row, "__len__") for row in rows):
                raise TypeError(f"{what}: expected a list of sequences of str, got {checks.shown(rows)}; write [sequence]")
        if len(inputs) != len(outputs):
            raise ValueError(f"outputs: expected one sequence for each of {len(inputs)} of inputs, got {len(outputs)}")
        # the question what is said to a symbol: longer than any, and after them all
        mark = "\uffff" * max((len(part) for told in inputs for part in told if isinstance(part, str)), default=1)

        def asked(symbol: str) -> str:
            return mark + symbol

        answers: dict[tuple[str, ...], str] = {}
        for row, (told, said) in enumerate(zip(inputs, outputs, strict=True)):
            if len(told) != len(said):
                raise ValueError(f"outputs: sequence {row} has {len(told)} inputs and {len(said)} outputs; expected as many")
            for what, value in (("inputs", told), ("outputs", said)):
                if strange := [part for part in value if not isinstance(part, str)]:
                    raise TypeError(f"{what}: expected symbols that are str, got {strange[0]!r}; give str(symbol)")
            for place, (symbol, output) in enumerate(zip(told, said, strict=True)):
                question = (*told[:place], asked(symbol))
                if answers.setdefault(question, output) != output:
                    raise ValueError(
                        f"outputs: to {checks.shown([*told[: place + 1]])} both {answers[question]!r} and {output!r} were said "
                        f"at its end; a machine says one, remove the wrong one (sequence {row})"
                    )
        symbols, labels = sorted({part for told in inputs for part in told}), sorted(set(answers.values()))
        if not symbols:
            raise ValueError("inputs: expected at least one symbol, got none")
        if len(labels) == 1:
            return cls(tuple(symbols), np.zeros((1, len(symbols)), int), np.zeros((1, len(symbols)), int), tuple(labels))
        found = merge_states([*answers], [*answers.values()], symbols=[*symbols, *map(asked, symbols)])
        moves = found.transitions[:, : len(symbols)]
        said = found.outputs[found.transitions[:, len(symbols) :]]
        return cls(tuple(symbols), moves, said, found.labels, found.start).minimise()

    @classmethod
    def from_dot(cls, text: str) -> MealyMachine:
        """What :meth:`to_dot` wrote, or another program: every arrow has labels "input/output", several between commas or on
        lines of their own; a slash or a comma of a name has a backslash before it.

        Raises:
            ValueError: text that is no such graph, moves that are missing, and two moves of one symbol.
        """
        return cls(*machine_of_dot(text))

    def to_dot(self) -> str:
        """Graphviz's text of it."""
        lines = ["digraph {", "  rankdir=LR", "  __start [shape=none, label=\"\"]", f"  __start -> s{self.start}"]
        lines += [f"  s{state} [shape=circle]" for state in range(self.num_states)]
        for state, row in enumerate(self.transitions.tolist()):
            for place, following in enumerate(row):
                label = written((self.symbols[place], self.labels[self.outputs[state, place]]), "/")
                lines.append(f"  s{state} -> s{following} [label={label}]")
        return "\n".join([*lines, "}"]) + "\n"

    @property
    def num_states(self) -> int:
        """Z"""
        return len(self.transitions)

    def run(self, string: String) -> list[str]:
        """What is said to each symbol of a string.

        Raises:
            ValueError: a symbol that the machine does not have.
        """
        state, said = self.start, []
        for place, symbol in enumerate(string):
            if symbol not in self.symbols:
                known = ", ".join(self.symbols)
                raise ValueError(f"string: symbol {checks.shown(symbol)} at place {place} is not one of {known}")
            number = self.symbols.index(symbol)
            said.append(self.labels[self.outputs[state, number]])
            state = self.transitions[state, number]
        return said

    def minimise(self) -> MealyMachine:
        """The smallest machine that says the same, states numbered as they are met, short strings first."""
        order = [self.start]
        for state in order:
            order += [to for to in dict.fromkeys(self.transitions[state].tolist()) if to not in order]
        position = np.full(self.num_states, -1)
        position[order] = np.arange(len(order))
        moves, said = position[self.transitions[order]], self.outputs[order]
        group = refined(moves, np.unique(said, axis=0, return_inverse=True)[1].reshape(-1))
        _, first = np.unique(group, return_index=True)
        rank, first = np.argsort(np.argsort(first)), np.sort(first)
        return MealyMachine(self.symbols, rank[group[moves[first]]], said[first], self.labels)

    def difference(self, other: MealyMachine) -> String | None:
        """A shortest string to whose last symbol they say different things; None if there is none.

        Raises:
            ValueError: a machine with other symbols. TypeError: what is none.
        """
        if not isinstance(other, MealyMachine):
            raise TypeError(f"other: expected a MealyMachine, got {checks.shown(other)}; an Automaton compares with to_moore()")
        if set(self.symbols) != set(other.symbols):
            raise ValueError(f"other: expected the symbols {', '.join(self.symbols)}, got {', '.join(other.symbols)}")
        start = (self.start, other.start)
        came: dict[tuple[int, int], tuple[str, ...]] = {start: ()}
        for pair in (queue := [start]):
            for number, symbol in enumerate(self.symbols):
                places = number, other.symbols.index(symbol)
                said = [m.labels[m.outputs[s, p]] for m, s, p in zip((self, other), pair, places, strict=True)]
                if said[0] != said[1]:
                    string = (*came[pair], symbol)
                    return "".join(string) if all(len(name) == 1 for name in self.symbols) else string
                after = (int(self.transitions[pair[0], places[0]]), int(other.transitions[pair[1], places[1]]))
                if after not in came:
                    came[after] = (*came[pair], symbol)
                    queue.append(after)
        return None

    def equals(self, other: MealyMachine) -> bool:
        """Whether both say the same to every string."""
        return self.difference(other) is None

    def to_moore(self, empty: str = "") -> Automaton:
        """The automaton that gives every string the last output, and the empty one the label ``empty``."""
        labels = tuple(dict.fromkeys([empty, *self.labels]))
        own = [labels.index(label) for label in self.labels]
        pairs = [(self.start, labels.index(empty))]
        table = []
        for state, _ in pairs:
            row = []
            for to, said in zip(self.transitions[state].tolist(), self.outputs[state].tolist(), strict=True):
                pair = (to, own[said])
                if pair not in pairs:
                    pairs.append(pair)
                row.append(pairs.index(pair))
            table.append(row)
        return Automaton(self.symbols, np.array(table), np.array([label for _, label in pairs]), 0, labels).minimise()
