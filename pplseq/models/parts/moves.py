"""Which moves and starts of states are allowed, checked."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from pplseq import checks


def allowed_moves(graph, num_states: int) -> Tensor | None:
    """(Z, Z) bool [from, to], or None where everything is allowed."""
    if graph is None:
        return None
    if isinstance(graph, str):
        if graph != "left_right":
            raise ValueError(f"graph must be a (Z, Z) bool mask, 'left_right' or None, got {checks.shown(graph)}")
        return torch.ones(num_states, num_states).triu().bool()
    graph = checks.numbers("graph", graph)
    if tuple(graph.shape) != (num_states, num_states) or graph.dtype != torch.bool:
        raise ValueError(
            f"graph must be a bool mask (Z, Z) = {(num_states, num_states)}, got {graph.dtype} of shape {tuple(graph.shape)}"
        )
    dead = (~graph.any(-1)).nonzero()
    if len(dead):
        raise ValueError(
            f"graph: state {int(dead[0])} is a dead end, no state follows it; allow at least one, itself perhaps"
        )
    return None if bool(graph.all()) else graph


def allowed_starts(states, num_states: int) -> Tensor | None:
    if states is None:
        return None
    mask = torch.zeros(num_states, dtype=torch.bool)
    for state in states:
        if not isinstance(state, Integral) or not 0 <= int(state) < num_states:
            raise ValueError(f"start_states must be among 0..{num_states - 1}, got {checks.shown(state)}")
        mask[int(state)] = True
    if not bool(mask.any()):
        raise ValueError("start_states must name at least one state, or be None for all; got none")
    return mask


def shared_rows(ties, num_states: int) -> Tensor | None:
    """(Z,) the emission that each state has, or None where each has its own."""
    if ties is None:
        return None
    rows = checks.numbers("ties", ties)
    found = sorted(set(rows.flatten().tolist()))
    if rows.shape != (num_states,) or rows.dtype.is_floating_point or found != list(range(len(found))):
        raise ValueError(
            f"ties must give each of the {num_states} states the number 0, 1, ... of its emission, all of which occur; got "
            f"{checks.shown(rows.tolist())}"
        )
    return rows.long()
