"""Components that are first-order chains: steps of one or several variables, whose tables reach one step back at most.

The states of a step are the joint states of its variables, numbered with the last variable running fastest. Such a chain goes
to :mod:`pplseq.kernels.scan` as a whole, where components of any other form are eliminated variable by variable.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pplseq.infer.discrete.results import Factors
from pplseq.infer.programs.factors.scan import Problem, spread_over

MOST_VARIABLES = 4  # a step
MOST_JOINT = 48  # joint states of several variables, up to which their full matrix is cheaper than one variable at a time
MOST_CELLS = 1 << 22  # of matrices that differ by step or row
Tables = list[tuple[Tensor, list[int]]]  # (G or 1, R or 1, *event), and the steps that they are of


@dataclass
class Steps:
    """width: variables a step. sizes: of each of a step's variables. length: how many steps."""

    width: int
    sizes: tuple[int, ...]
    length: int

    @property
    def num_states(self) -> int:
        result = 1
        for size in self.sizes:
            result *= size
        return result


def find_steps(problem: Problem) -> Steps | None:
    """The fewest variables a step that make a component a chain; None if it is none."""
    if not problem.moves or problem.moves[-1].after:
        return None
    order = [move.variable for move in problem.moves]
    rank = {number: place for place, number in enumerate(order)}
    spans = [(min(ranks), max(ranks)) for numbers in problem.numbers for ranks in [[rank[n] for n in numbers]]]
    for width in range(1, min(MOST_VARIABLES, len(order)) + 1):
        if len(order) % width:
            continue
        if any(last // width - first // width > 1 for first, last in spans):
            continue
        sizes = tuple(problem.size[n] for n in order[:width])
        if all(problem.size[n] == sizes[place % width] for place, n in enumerate(order)):
            return Steps(width, sizes, len(order) // width)
    return None


def lower(problem: Problem, stacks: list[tuple[Tensor, list[int]]], always: bool = False) -> Factors | None:
    """The factors of a component that is a chain, (T, R, K); None if it is none, or (unless ``always``) pays as none.

    Args:
        stacks: tables of one shape, (G, R or 1, *variables), and their places in ``problem.numbers``.
    """
    steps = find_steps(problem)
    if steps is None or not always and steps.width > 1 and steps.num_states > MOST_JOINT:
        return None
    width, length, joint = steps.width, steps.length, steps.num_states
    rank = {move.variable: place for place, move in enumerate(problem.moves)}
    emits: Tables = []
    pairs: Tables = []
    for values, places in stacks:
        parts: dict[tuple, tuple[list[int], list[int]]] = {}
        for k, place in enumerate(places):
            ranks = [rank[n] for n in problem.numbers[place]]
            first, last = min(ranks) // width, max(ranks) // width
            slots = tuple(r - first * width for r in ranks)
            found = parts.setdefault((slots, first != last), ([], []))
            found[0].append(k)
            found[1].append(last)
        for (slots, crosses), (own, at) in parts.items():
            same = values.stride(0) == 0
            if same or len(own) < len(values):
                some = values[:1] if same else values[torch.tensor(own, device=values.device)]
            else:
                some = values
            sizes = steps.sizes * (2 if crosses else 1)
            some = _spread(some, slots, sizes, joint, crosses)
            (pairs if crosses else emits).append((some, at))
    pair = _pairs(pairs, length, joint, problem.rows, emits[0][0] if emits else pairs[0][0])
    if pair is None:
        return None
    matrix, shared = pair
    emit = _emissions(emits, length, problem.rows, joint, matrix)
    if not shared:
        matrix = matrix.expand(length - 1, problem.rows, joint, joint)
    return Factors(emit.new_zeros(problem.rows, joint), matrix, emit, None, shared)


def _spread(values: Tensor, slots: tuple[int, ...], sizes: tuple[int, ...], joint: int, crosses: bool) -> Tensor:
    """(G, R, *variables) -> (G, R, K), or (G, R, K, K) between steps; dimensions of size 1 stay where they can."""
    lead = values.shape[:2]
    flat = spread_over(values.reshape(-1, *values.shape[2:]), slots, tuple(range(len(sizes))))
    flat = flat.expand(flat.shape[0], *sizes)
    return flat.reshape(*lead, joint, joint) if crosses else flat.reshape(*lead, joint)


def _pairs(pairs: Tables, length: int, joint: int, rows: int, like: Tensor) -> tuple[Tensor, bool] | None:
    """(K, K) or (R, K, K) of all steps, or (T - 1, R or 1, K, K); and whether the former. None if large."""
    every = list(range(1, length))
    if length == 1:
        return like.new_zeros(joint, joint), True
    if pairs and all(len(values) == 1 and sorted(at) == every for values, at in pairs):
        total = sum((values.squeeze(0) for values, _ in pairs[1:]), start=pairs[0][0].squeeze(0))
        return (total.squeeze(0) if len(total) == 1 else total), True
    if (length - 1) * rows * joint * joint > MOST_CELLS:
        return None
    return _at_steps(pairs, length, (joint, joint), like)[1:], False


def _emissions(emits: Tables, length: int, rows: int, joint: int, like: Tensor) -> Tensor:
    return _at_steps(emits, length, (joint,), like).expand(length, rows, joint)


def _at_steps(parts: Tables, length: int, event: tuple[int, ...], like: Tensor) -> Tensor:
    """(T, R or 1, *event) the sum of tables at steps; several tables may be of one step."""
    total: Tensor | None = None
    some: dict[torch.Size, Tables] = {}  # of some steps only, by shape: put together before any is spread over time
    whole: Tables = []
    for values, at in parts:
        if len(set(at)) == len(at) == length:
            whole.append((values, at))
        else:
            some.setdefault(values.shape[1:], []).append((values, at))
    for tables in some.values():
        joined = [place for _, at in tables for place in at]
        values = torch.cat([values.expand(len(at), *values.shape[1:]) for values, at in tables])
        if len(set(joined)) != length or len(joined) != length:
            zeros = values.new_zeros(length, *values.shape[1:])
            values, joined = zeros.index_add(0, torch.tensor(joined, device=values.device), values), list(range(length))
        whole.append((values, joined))
    for values, at in whole:
        if at != sorted(at) and len(values) > 1:
            values = values[torch.tensor(at).argsort().to(values.device)]
        total = values if total is None else total + values
    if total is None:
        return like.new_zeros(length, 1, *event)
    return total.expand(length, *total.shape[1:])
