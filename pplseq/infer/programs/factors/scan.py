"""The sum (or maximum) over all variables of a product of tables, variable by variable along the order of the program.

The message after variable i is a table over the *frontier*: the variables so far that still occur in later tables. A
first-order chain has a frontier of one variable (K^2 a step), a factorial chain of n has n (K^{n+1} for each of its n variables
a step), a chain of second order two (K^3). Every table is multiplied in where its last variable comes; a variable is summed out
as soon as no later table has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pplseq.kernels.log_semiring import logsumexp
from pplseq.kernels.path_scan import sample_log

# how far, in nats, the entries of the tables that lead on may lie apart for scaled probabilities to keep their digits
REACH = {torch.float64: 600.0, torch.float32: 60.0}
MAX_LIFE = 6  # steps that a variable may stay in the frontier there


@dataclass
class Move:
    """What happens at one variable: it enters, tables are multiplied in, variables leave.

    Variables are numbers. before, after: the frontier. tables: places in the list of tables. leaving: numbers.
    """

    variable: int
    before: tuple[int, ...]
    tables: list[int]
    leaving: tuple[int, ...]
    after: tuple[int, ...]


def plan(order: list[int], kept: tuple[int, ...], tables: list[tuple[int, ...]]) -> list[Move]:
    """The moves of an elimination that takes variables in ``order``; ``kept`` are never summed out.

    Args:
        tables: the variables of each table.
    """
    rank = {number: place for place, number in enumerate(order)}
    enters: list[list[int]] = [[] for _ in order]
    last = dict(rank)
    for place, numbers in enumerate(tables):
        step = max(rank[n] for n in numbers if n in rank)
        enters[step].append(place)
        for number in numbers:
            if number in rank:
                last[number] = max(last[number], step)
    moves, frontier = [], kept
    leave: list[list[int]] = [[] for _ in order]
    for number, step in last.items():
        leave[step].append(number)
    for step, number in enumerate(order):
        leaving = tuple(leave[step])
        after = tuple(n for n in (*frontier, number) if n not in leaving)
        moves.append(Move(number, frontier, enters[step], leaving, after))
        frontier = after
    return moves


def largest(moves: list[Move], size: dict[int, int]) -> tuple[int, tuple[int, ...]]:
    """Cells of the largest table that the moves go through, and its variables."""
    best, at = 0, ()
    for move in moves:
        numbers = (*move.before, move.variable)
        cells = 1
        for number in numbers:
            cells *= size[number]
        if cells > best:
            best, at = cells, numbers
    return best, at


@dataclass
class Problem:
    """An elimination in numbers: rows (R or 1, *variables) of each table; how large each variable is."""

    moves: list[Move]
    numbers: list[tuple[int, ...]]  # the variables of each table
    size: dict[int, int]
    rows: int


def spread_over(value: Tensor, have: tuple[int, ...], want: tuple[int, ...]) -> Tensor:
    """(R, *have) -> (R, *want), size 1 where there is no such variable."""
    places = [have.index(n) for n in want if n in have]
    if places != sorted(places):
        value = value.permute(0, *(1 + p for p in places))
    sizes = iter(value.shape[1:])
    return value.reshape(value.shape[0], *(next(sizes) if n in have else 1 for n in want))


# ------------------------------------------------------------------------------------------------ in log space
def log_messages(problem: Problem, tables: list[Tensor], maximise: bool = False) -> list[Tensor]:
    """The message after every move: (R, *frontier) log of the sum (the maximum) of all that has left."""
    message = tables[0].new_zeros(1)
    messages = []
    for move in problem.moves:
        bag = _bag(problem, move, message, tables)
        gone = [1 + place for place, n in enumerate((*move.before, move.variable)) if n in move.leaving]
        if maximise and gone:
            bag = bag.amax(gone)
        else:
            for dim in sorted(gone, reverse=True):
                bag = logsumexp(bag, dim)
        message = bag
        messages.append(message)
    return messages


def _bag(problem: Problem, move: Move, message: Tensor, tables: list[Tensor]) -> Tensor:
    """(R, *before, variable) the message times all tables that come in, in logs."""
    want = (*move.before, move.variable)
    bag = message.unsqueeze(-1)
    for place in move.tables:
        bag = bag + spread_over(tables[place], problem.numbers[place], want)
    sizes = [problem.size[n] for n in want]
    return bag.expand(bag.shape[0], *sizes)


def choose(problem: Problem, tables: list[Tensor], given: dict[int, Tensor], sample: bool) -> dict[int, Tensor]:
    """The best values of all variables, or a draw from their joint distribution: number -> (R,) place.

    Args:
        given: values (R,) of kept variables.
    """
    messages = log_messages(problem, tables, maximise=not sample)
    chosen = dict(given)
    start = tables[0].new_zeros(1)
    for step in range(len(problem.moves) - 1, -1, -1):
        move = problem.moves[step]
        if not move.leaving:
            continue
        message = messages[step - 1] if step else start.reshape(1, *(1,) * len(move.before))
        bag = _bag(problem, move, message, tables)
        bag = bag.expand(problem.rows, *bag.shape[1:])
        kept = []
        for place, number in reversed(list(enumerate((*move.before, move.variable)))):
            if number in move.leaving:
                kept.append(number)
                continue
            index = chosen[number].reshape(-1, *(1,) * (bag.dim() - 1))
            index = index.expand(problem.rows, *(1 if d == place else s for d, s in enumerate(bag.shape[1:])))
            bag = bag.gather(1 + place, index).squeeze(1 + place)
        kept.reverse()
        flat = bag.reshape(problem.rows, -1)
        found = sample_log(flat) if sample else flat.argmax(-1)
        for number in reversed(kept):
            chosen[number] = found % problem.size[number]
            found = found // problem.size[number]
    return chosen


# ------------------------------------------------------------------------------------------------ the log of the sum
def log_sum(problem: Problem, stacks: list[tuple[Tensor, list[int]]]) -> Tensor:
    """(R or 1, *kept) the log of the sum over all variables but the kept ones, differentiable any number of times.

    Args:
        stacks: tables of one shape, (G, R or 1, *variables), and their places in ``problem.numbers``.
    """
    if keeps_digits(problem, stacks):
        result = scaled_log_sum(problem, stacks)
        if result is not None:
            return result
    tables: list[Tensor] = [stacks[0][0]] * len(problem.numbers)
    for values, places in stacks:
        for place, value in zip(places, values.unbind(0), strict=True):
            tables[place] = value
    return log_messages(problem, tables)[-1]


def keeps_digits(problem: Problem, stacks: list[tuple[Tensor, list[int]]]) -> bool:
    """Whether scaled probabilities do: what underflows in a message then never matters again.

    A part of a message that is lost is exp(-700) (exp(-87)) of its largest part; both can lead on to the same later states, and
    the tables on the way there, one a move for as long as a variable lives, tell them apart by no more than their spread.
    """
    dtype = stacks[0][0].dtype
    if dtype not in REACH or not problem.moves or problem.moves[-1].after:
        return False
    entered = {move.variable: step for step, move in enumerate(problem.moves)}
    life = max(step - entered[n] for step, move in enumerate(problem.moves) for n in move.leaving)
    if life > MAX_LIFE:
        return False
    links = [values.detach() for values, places in stacks if len(problem.numbers[places[0]]) > 1]
    spread = sum(float((values.amax() - values.amin()).nan_to_num(torch.inf)) for values in links)
    return spread * max(life, 1) < REACH[dtype]


def scaled_log_sum(problem: Problem, stacks: list[tuple[Tensor, list[int]]]) -> Tensor | None:
    """:func:`log_sum` by products of scaled probabilities; None where a row is impossible."""
    tables: list[Tensor] = [stacks[0][0]] * len(problem.numbers)
    total = stacks[0][0].new_zeros(1)
    for values, places in stacks:
        top = values.detach().amax(tuple(range(2, values.dim())), keepdim=True).clamp_min(torch.finfo(values.dtype).min)
        total = total + top.flatten(1).sum(0)
        for place, value in zip(places, (values - top).exp().unbind(0), strict=True):
            tables[place] = value
    message, tops = total.new_ones(1), []
    for move in problem.moves:
        old = [n for n in move.leaving if n != move.variable]
        links = [place for place in move.tables if any(n in old for n in problem.numbers[place])]
        have = move.before
        for place in links:
            gone = tuple(old) if place == links[-1] else ()
            message, have = _product(message, have, tables[place], problem.numbers[place], gone)
        if old and not links:
            message = message.sum([1 + have.index(n) for n in old])
            have = tuple(n for n in have if n not in old)
        want = have if move.variable in have else (*have, move.variable)
        message = message if want == have else message.unsqueeze(-1)
        for place in move.tables:
            if place not in links:
                message = message * spread_over(tables[place], problem.numbers[place], want)
        if move.variable in move.leaving:
            message, want = message.sum(1 + want.index(move.variable)), tuple(n for n in want if n != move.variable)
        if want != move.after:
            message = message.permute(0, *(1 + want.index(n) for n in move.after))
        top = message.detach()
        top = top.amax(tuple(range(1, top.dim())), keepdim=True) if top.dim() > 1 else top
        message = message / top
        tops.append(top.flatten().expand(message.shape[0]))
    if not bool(message.detach().isfinite().all()):
        return None
    rows = max(len(top) for top in tops)
    return message.log() + torch.stack([top.expand(rows) for top in tops]).log().sum(0) + total


def _product(message: Tensor, have: tuple, table: Tensor, numbers: tuple, gone: tuple) -> tuple[Tensor, tuple]:
    """The message times a table, summed over ``gone``; with the variables that are left."""
    left = tuple(n for n in dict.fromkeys((*have, *numbers)) if n not in gone)
    if have == gone and len(numbers) == 2 and numbers[0] == gone[0] and len(table) == 1 and message.dim() == 2:
        return message @ table[0], left
    places = {n: k + 1 for k, n in enumerate(dict.fromkeys((*have, *numbers)))}
    operand, lead = (table[0], []) if len(table) == 1 else (table, [0])
    result = torch.einsum(
        message, [0, *(places[n] for n in have)], operand, [*lead, *(places[n] for n in numbers)],
        [0, *(places[n] for n in left)],
    )  # fmt: skip
    return result, left
