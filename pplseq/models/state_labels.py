"""Observed states as people have them: numbers or names, None or NaN where one is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.models.forms import as_frame, is_table, missing, whole


def names_of_states(states: Any) -> tuple[str, ...] | None:
    """What observed states are called, in alphabetical order; None where they are numbers."""
    found: set[str] = set()
    for value in _items(states):
        found |= {str(value)} if isinstance(value, str) else set(names_of_states(value) or ())
    return tuple(sorted(found)) or None


def numbers_of_states(states: Any, names: Sequence[str] | None) -> Any:
    """Observed states as numbers, sequence by sequence as they came: of names their places among ``names``, -1 where unknown.

    Raises:
        ValueError: for a name that is not among them. TypeError: for True and False.
    """
    if isinstance(states, (list, tuple)) or _is_of_objects(states):
        found = [numbers_of_states(value, names) for value in _items(states)]
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


def _is_of_objects(states: Any) -> bool:
    return is_table(states) or isinstance(states, np.ndarray) and states.dtype.kind in "OU"


def _items(states: Any) -> Any:
    if _is_of_objects(states):
        return np.asarray(as_frame(states, "states"), dtype=object).flat
    return states if isinstance(states, (list, tuple)) else ()
