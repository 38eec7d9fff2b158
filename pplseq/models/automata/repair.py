"""Repairs of automata that label a few training strings wrong: one transition after the other, while labels come right.

EM often ends next to a consistent automaton. A repair changes the one transition that makes most strings right, labels states
by the strings that end in them, and goes on until all are right or no single change helps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.models.automata.em import MAX_ENTRIES, SymbolTables
from pplseq.models.automata.prefix_tree import PrefixTree


def last_states(tree: PrefixTree, start: Tensor, move: Tensor) -> Tensor:
    """(M, R) where each distinct labelled string leads; start (R,), move (L, Z, R) the next state of each symbol and state."""
    state = move.new_empty(tree.num_nodes, len(start))
    state[0] = start
    for nodes, symbol, parents in tree.groups:
        state[nodes] = move[symbol].gather(0, state[parents])
    return state[tree.end]


def label_counts(tree: PrefixTree, start: Tensor, move: Tensor, num_labels: int) -> Tensor:
    """(Z, Y, R) how many distinct strings of each label lead to each state."""
    num_states = move.shape[1]
    place = last_states(tree, start, move) * num_labels + tree.label.unsqueeze(-1)
    counts = torch.zeros(num_states * num_labels, len(start), dtype=torch.int32)
    return counts.scatter_add_(0, place, torch.ones_like(place, dtype=torch.int32)).view(num_states, num_labels, -1)


def num_right(tree: PrefixTree, tables: SymbolTables) -> Tensor:
    """(R,) how many distinct training strings the hardened tables label right."""
    state = last_states(tree, tables.start.argmax(0), tables.transition.argmax(2))
    return (tables.output.argmax(1).gather(0, state) == tree.label.unsqueeze(-1)).sum(0)


def repair(tree: PrefixTree, tables: SymbolTables, which: Tensor) -> SymbolTables:
    """Hard tables in the place of those restarts' that single changes make label more strings right.

    Args:
        which: (R,) bool, the restarts to repair.

    Returns:
        The tables of all restarts. A repaired one has transitions 0 and 1, and as outputs the labels' shares among strings
        that end in a state: the tables of highest likelihood given the moves.

    Cost: N steps for each restart, change and round.
    """
    num_changes = max(1, tables.transition[..., 0].numel() - tables.start.shape[0] * tables.transition.shape[0])
    size = max(1, MAX_ENTRIES // (tree.num_nodes * num_changes))
    batches = [slice(first, first + size) for first in range(0, tables.num_restarts, size)]
    parts = [_repair_batch(tree, tables.restarts(batch), which[batch]) for batch in batches]
    return SymbolTables(*(torch.cat(batch, -1) for batch in zip(*parts, strict=True)))


def _repair_batch(tree: PrefixTree, tables: SymbolTables, which: Tensor) -> SymbolTables:
    num_labels = tables.output.shape[1]
    start, move = tables.start.argmax(0), tables.transition.argmax(2)
    num_symbols, num_states, _ = move.shape
    symbol, state, shift = (
        axis.reshape(-1)
        for axis in torch.meshgrid(*(torch.arange(n) for n in (num_symbols, num_states, num_states - 1)), indexing="ij")
    )
    change = torch.arange(len(symbol))
    right = num_right(tree, tables)
    before = right.clone()
    active = (which & (right < len(tree.end))).nonzero().squeeze(-1) if len(change) else change
    while len(active):
        tried = move[..., active].unsqueeze(-1).repeat(1, 1, 1, len(change))  # (L, Z, active, changes)
        old = tried[symbol, state, :, change]
        tried[symbol, state, :, change] = (old + shift.unsqueeze(-1) + 1) % num_states
        counts = label_counts(
            tree, start[active].repeat_interleave(len(change)), tried.view(num_symbols, num_states, -1), num_labels
        )
        most, best = counts.amax(1).sum(0).view(len(active), -1).max(-1)
        better = most > right[active]
        improved = active[better]
        move[..., improved] = tried[:, :, better.nonzero().squeeze(-1), best[better]]
        right[improved] = most[better]
        active = improved[right[improved] < len(tree.end)]
    changed = (right > before).nonzero().squeeze(-1)
    repaired = SymbolTables(*(table.clone() for table in tables))
    if len(changed):
        counts = label_counts(tree, start[changed], move[..., changed], num_labels).to(tables.output)
        total = counts.sum(1, keepdim=True)
        repaired.start[:, changed] = _one_hot(start[changed], num_states).T.to(tables.start)
        repaired.transition[..., changed] = _one_hot(move[..., changed], num_states).movedim(-1, 2).to(tables.start)
        # a state where no string ends has all labels alike
        repaired.output[..., changed] = torch.where(total > 0, counts / total.clamp_min(1), 1.0 / num_labels)
    return repaired


def _one_hot(index: Tensor, size: int) -> Tensor:
    return torch.nn.functional.one_hot(index, size)
