"""RPNI, the usual non-probabilistic learner of automata: merges states of the prefix tree as long as no label contradicts.

    from rpni import rpni  # this folder on the path

    automaton = rpni(["0", "1", "00", "11"], [True, False, True, False])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pplseq.models.automata.automaton import LABELS, Automaton, String
from pplseq.models.automata.labels import encoded_labels


def rpni(
    strings: Sequence[String],
    labels: Sequence[bool | int | str],
    *,
    symbols: Sequence[str] | None = None,
    pos_label: bool | int | str | None = None,
) -> Automaton:
    """The automaton that AALpy's RPNI learns, in its smallest form.

    Args:
        strings, labels, pos_label: as :class:`~pplseq.models.automata.learner.AutomatonLearner` takes them, of two classes.
        symbols: default: those of the strings. A symbol that no training string has at a state leads to a state that
            rejects for ever.

    Raises:
        ImportError: AALpy is not installed.
        ValueError: a string with two labels, other than two classes, classes that do not say which of them is accepted.

    Source: J. Oncina and P. García, Identifying regular languages in polynomial time (1992).
    """
    try:
        from aalpy.learning_algs import run_RPNI
    except ImportError as error:
        raise ImportError('RPNI needs the package AALpy: pip install "pplseq[automata]"') from error
    names, numbers, positive = encoded_labels(strings, labels, pos_label)
    if len(names) != 2 or positive is None:
        raise ValueError(f"pos_label: expected two labels and which of them is accepted, got {', '.join(names)}")
    data = [(tuple(string), bool(number)) for string, number in zip(strings, numbers, strict=True)]
    symbols = tuple(sorted({s for string, _ in data for s in string})) if symbols is None else tuple(symbols)
    learnt = run_RPNI(data, "dfa", print_info=False)
    if learnt is None:
        raise ValueError(
            "labels: expected one label for each string, got several for one of them; remove the wrong ones"
        )
    return of_peer(learnt, symbols)


def of_peer(learnt: Any, symbols: tuple[str, ...]) -> Automaton:
    """The smallest form of an automaton of AALpy; a symbol that has no move at a state leads to one that rejects for ever."""
    number = {state.state_id: place for place, state in enumerate(learnt.states)}
    dead = len(number)
    transitions = np.full((dead + 1, len(symbols)), dead)
    for state in learnt.states:
        for symbol, following in state.transitions.items():
            transitions[number[state.state_id], symbols.index(symbol)] = number[following.state_id]
    start = number[learnt.initial_state.state_id]
    if hasattr(learnt.initial_state, "is_accepting"):
        outputs = np.array([*(bool(state.is_accepting) for state in learnt.states), False]).astype(int)
        return Automaton(symbols, transitions, outputs, start, LABELS).minimise()
    labels = tuple(sorted({state.output for state in learnt.states}))
    outputs = np.array([*(labels.index(state.output) for state in learnt.states), 0])
    return Automaton(symbols, transitions, outputs, start, labels).minimise()
