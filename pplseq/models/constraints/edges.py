"""Automata over tokens as Ctrl-G has them: edges with the tokens that lead along them, in dictionaries and files of JSON."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.models.constraints.tables import TooLarge, WordTable, check_moves

KEYS = ("edges", "initial_state", "accept_states")


def read_edges(graph: str | Path | Mapping[str, Any], words: Sequence[str], most: int) -> WordTable:
    """The smallest automaton of the same texts, over words whose places are the tokens. A token without an edge leads nowhere.

    Args:
        graph: {"edges": [(from, to, tokens)], "initial_state": ..., "accept_states": [...]}, or a file of JSON of it. States
            are numbers, strings or tuples. tokens: V truth values, or token ids.
        words: what the V tokens are called. most: states.

    Raises:
        ValueError, TypeError: for a file or parts that are none, with the edge, and where a token leads from a state to two.
    """
    name = "graph"
    if isinstance(graph, (str, Path)):
        name, graph = str(graph), _from_file(Path(graph))
    if not isinstance(graph, Mapping):
        raise TypeError(f"{name}: expected a mapping with {', '.join(KEYS)}, got {type(graph).__name__}")
    if missing := [key for key in KEYS if key not in graph]:
        raise ValueError(f"{name}: expected a mapping with {', '.join(KEYS)}; {', '.join(missing)} not there")
    edges, number = list(graph["edges"]), {}
    for place, edge in enumerate(edges):
        if not isinstance(edge, Sequence) or isinstance(edge, str) or len(edge) != 3:
            raise ValueError(f"{name}: edge {place}: expected (from, to, tokens), got {checks.shown(edge)}")
        for state in edge[:2]:
            number.setdefault(_state(state), len(number))
    at_edges = {str(state): state for state in number}
    for state in map(_state, (graph["initial_state"], *graph["accept_states"])):
        if state not in number and str(state) in at_edges:
            raise ValueError(
                f"{name}: state {checks.shown(state)} is at no edge, where {checks.shown(at_edges[str(state)])} is; write "
                "numbers and strings alike"
            )
        number.setdefault(state, len(number))
    if len(number) >= most:
        raise TooLarge(f"{name} of {len(number)} states", most)
    none = np.zeros((1, len(words)), dtype=bool)
    masks = np.array([_mask(edge[2], len(words), f"{name}: edge {place}") for place, edge in enumerate(edges)] or none)
    # tokens that lead along the same edges are one class
    _, kept, of = np.unique(np.packbits(masks, 0), axis=1, return_index=True, return_inverse=True)
    dead = len(number)
    check_moves(dead + 1, len(kept) + 1, most, name)
    moves = np.full((dead + 1, len(kept) + 1), dead)
    for place, (edge, mask) in enumerate(zip(edges, masks[:, kept], strict=False)):
        start, end = (number[_state(state)] for state in edge[:2])
        own = np.append(False, mask)  # class 0 is of words that are no tokens
        if bool((own & (moves[start] != dead) & (moves[start] != end)).any()):
            raise ValueError(
                f"{name}: edge {place}: a token leads from state {checks.shown(edge[0])} to two states; expected a "
                "deterministic automaton"
            )
        moves[start, own] = end
    if edges and str(_state(graph["initial_state"])) not in at_edges:
        raise ValueError(
            f"{name}: initial_state {checks.shown(graph['initial_state'])} is at no edge, so that no text could have a token; "
            f"edges have {checks.shown([*at_edges.values()])}"
        )
    accepting = np.zeros(dead + 1, dtype=bool)
    accepting[[number[_state(state)] for state in graph["accept_states"]]] = True
    first = number[_state(graph["initial_state"])]
    swap = np.arange(dead + 1)  # the start is state 0
    swap[[0, first]] = first, 0
    classes = {word: int(own) + 1 for word, own in zip(words, of.reshape(-1), strict=True)}
    return WordTable(classes, swap[moves][swap], accepting[swap]).smallest()


def _from_file(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path}: expected JSON ({checks.shown(str(error))}). Reading a pickled automaton would run code of whoever made "
            "it: load it where you trust it and give the dictionary, or write it as JSON, with tokens.tolist() of every edge"
        ) from None


def _state(state: Any) -> Hashable:
    """As a key: JSON has lists for tuples."""
    if isinstance(state, (list, tuple)):
        return tuple(map(_state, state))
    if isinstance(state, np.integer):
        return int(state)
    if not isinstance(state, (int, str)):
        raise TypeError(f"graph: states are numbers, strings or tuples of them, got {checks.shown(state)}")
    return state


def _mask(tokens: Any, size: int, where: str) -> np.ndarray:
    """(V,) bool of truth values, or of ids."""
    given = np.asarray(sorted(tokens) if isinstance(tokens, (set, frozenset)) else tokens)
    if given.shape == (size,) and (given.dtype == bool or size > 2 and bool(np.isin(given, (0, 1)).all())):
        return given.astype(bool)
    if given.ndim == 1 and (given.dtype.kind in "iu" or not given.size) and len(np.unique(given)) == given.size:
        if not given.size or 0 <= given.min() <= given.max() < size:
            return np.isin(np.arange(size), given)
    raise ValueError(
        f"{where}: expected {size} truth values, one a token, or ids in 0..{size - 1}, each once; got "
        f"{given.dtype} of shape {given.shape}: {checks.shown(tokens)}"
    )
