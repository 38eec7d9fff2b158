"""Observed states as people have them: numbers or names, None or NaN where one is not known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.models.forms import as_frame, is_table, missing, unmasked, whole


def names_of_states(states: Any, number: int = 0) -> tuple[str, ...] | None:
    """What observed states are called, in alphabetical order; None where they are numbers.

    Args:
        number: of states: those that no name is given of are called "state 2" and so on, behind the others.

    Raises:
        ValueError: for an empty name, and names beside numbers.
    """
    found = _texts(states)
    if not found:
        return None
    if not all(name.strip() for name in found):
        raise ValueError("states: the name of a state is empty, ''; give it a name, or None where the state is not known")
    if (other := next(_numbers(states), None)) is not None:
        raise ValueError(
            f"states: names and numbers are mixed, {checks.shown(min(found))} and {checks.shown(other)}; give names alone, or "
            "numbers alone, and None where a state is not known"
        )
    return (*sorted(found), *(f"state {k}" for k in range(len(found), number)))


def _texts(states: Any) -> set[str]:
    found: set[str] = set()
    for value in _items(states):
        found |= {str(value)} if isinstance(value, str) else _texts(value)
    return found


def _numbers(states: Any) -> Iterator[Any]:
    """Those of known states."""
    if isinstance(states, (list, tuple)) or _is_of_objects(states):
        for value in _items(states):
            yield from _numbers(value)
    elif getattr(states, "ndim", 0):
        yield from (value for value in states.flatten().tolist() if value >= 0)
    elif not isinstance(states, str) and not missing(states) and not (isinstance(states, (int, float)) and states < 0):
        yield states


def numbers_of_states(states: Any, names: Sequence[str] | None) -> Any:
    """Observed states as numbers, sequence by sequence as they came: of names their places among ``names``, -1 where unknown.

    Raises:
        ValueError: for a name that is not among them, and names beside numbers. TypeError: for True and False.
    """
    states = unmasked(states, words=True)
    names_of_states(states)
    return _as_numbers(states, names)


def _as_numbers(states: Any, names: Sequence[str] | None) -> Any:
    if isinstance(states, (list, tuple)) or _is_of_objects(states):
        found = [_as_numbers(value, names) for value in _items(states)]
        if isinstance(states, (list, tuple)) or any(map(np.ndim, found)):
            return found
        return np.asarray(found).reshape(np.shape(states))
    if getattr(states, "ndim", 0):
        kind: Any = states.dtype
        floats = kind.kind == "f" if isinstance(states, np.ndarray) else getattr(kind, "is_floating_point", False)
        return whole(checks.numbers("states", states).detach().cpu().double().numpy()) if floats else states
    if isinstance(states, str):
        if names is not None and states in names:
            return names.index(states)
        there = "the model's have numbers, as no fit was given names" if names is None else f"there are {', '.join(names)}"
        raise ValueError(f"states: no state is called {str(states)[:40]!r}; {there}.{checks.nearest(states, names or ())}")
    if missing(states):
        return -1
    if isinstance(states, (bool, np.bool_)):
        raise TypeError(f"states: expected the numbers 0, 1, ... of states, or their names, got {states}; write int(...)")
    return int(states) if isinstance(states, float) and states.is_integer() else states


def named(path: Any, names: Sequence[str] | None) -> Any:
    """Paths of states (..., T), or a list of them, by name: arrays of text, None at padded steps; without names as they are."""
    if names is None:
        return path
    if isinstance(path, list):
        return [named(part, names) for part in path]
    told = np.array([*names, None], dtype=object)  # the last, for -1
    return told[np.asarray(path.cpu())]


def checked_names(names: Sequence[str] | None, number: int) -> tuple[str, ...] | None:
    """Names of all states, as they are told to a constructor."""
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(name, str) and name.strip() for name in names):
        raise TypeError(f"state_names: expected a name for each of {number} states, got {checks.shown(names)}")
    if len(names) != number or len(set(names)) != number:
        raise ValueError(f"state_names: expected {number} different names, got {checks.shown([*names])}")
    return tuple(names)


def _is_of_objects(states: Any) -> bool:
    return is_table(states) or isinstance(states, np.ndarray) and states.dtype.kind in "OU"


def _items(states: Any) -> Any:
    if _is_of_objects(states):
        return np.asarray(as_frame(unmasked(states, words=True), "states"), dtype=object).flat
    return states if isinstance(states, (list, tuple)) else ()
