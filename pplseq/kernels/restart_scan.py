"""Forward-backward of many parameter sets over the same ragged rows at once, with transitions and emissions by input.

R parameter sets (restarts of a fit), B rows, Z states. Whatever depends on inputs or observations stands in tables over their
DISTINCT values, and a :class:`Lattice` says which entry each step of each row takes:

    init (Z, I, R)     log p(z_1 | u_1)
    pair (Z, Z, L, R)  log p(z_t | z_{t-1}, u_t), [from, to]
    emit (Z, M, R)     log p(x_t | z_t, u_t)

Symbols make short tables; real inputs make tables with an entry a step. Rows are sorted by length and packed step by step,
so that padding costs nothing. Restarts stand last and states first: a step is then a handful of operations on long vectors,
whether the restarts or the rows are many.

The scan works on probabilities, scaled at every step. What underflows is below 1e-308 of a row's mass then; rows where a step
leaves less than 1e-154, or a future outweighs its past by more than 1e154, go through the same recursion in log space.

Source: L. R. Rabiner (1989), A tutorial on hidden Markov models, section V.A; Y. Bengio and P. Frasconi (1995), An input output
HMM architecture, eqs. 10-12 (their beta contains f(x_t); here it does not).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels.chain import call
from pplseq.kernels.compiled import array
from pplseq.threads import once

FEW = 12  # entries of the pair table up to which sums over steps go entry by entry, as matrix products
STEP_CELLS = 1 << 17  # numbers in one step's matrices up to which restarts go together on a CPU: what its cache holds
MOST_NUMBERS = 1 << 16  # of steps, or in matrices, of sets that go through a loop together: what a cache holds
# states and steps a row below which, from so many rows on, counts go step by step for all rows of all sets: the way into a row
# costs a loop more than they do
FEW_STATES, FEW_STEPS, MANY_ROWS = 8, 10, 1 << 12
APART = 3000  # steps from which sets go one by one under one matrix, which a loop then keeps at hand


Tables = tuple[Tensor, Tensor, Tensor]


class Expectation(NamedTuple):
    """log p(x | u) (B, R), and expected counts given x by table entry: start (Z, I, R), pair (Z, Z, L, R), emit (Z, M, R)."""

    log_prob: Tensor
    start: Tensor
    pair: Tensor
    emit: Tensor


class Lattice:
    """Which table entries the steps of ragged rows take.

    Args:
        lengths: (B,) steps of each row, at least one.
        init_index: (B,) entry of the start table; None for entry 0 throughout.
        pair_index: (B, T) entry of the pair table, of the transition INTO step t (column 0 is not read); None if the table
            has one entry a packed step, in order (see :meth:`pack`).
        emit_index: (B, T) entry of the emission table; None as for ``pair_index``.
    """

    def __init__(self, lengths: Tensor, init_index=None, pair_index=None, emit_index=None):
        if not len(lengths) or int(lengths.min()) < 1:
            raise ValueError("lengths: every row must have at least one step; leave empty rows out")
        self.lengths = lengths
        self.order = torch.sort(lengths, descending=True, stable=True).indices
        steps = torch.arange(int(lengths.max()), device=lengths.device)
        self.mask = steps.unsqueeze(-1) < lengths[self.order]  # (T, B)
        sizes = self.mask.sum(-1)
        self.sizes = sizes.tolist()
        self.init_index = torch.zeros_like(lengths) if init_index is None else init_index[self.order]
        self.pair_index = None if pair_index is None else self.pack(pair_index)
        self.emit_index = None if emit_index is None else self.pack(emit_index)
        starts = sizes.cumsum(0) - sizes
        self.num_packed = sum(self.sizes)
        self.starts = torch.cat([starts, starts.new_tensor([self.num_packed])])  # (T + 1,)
        step, self.row = self.mask.nonzero(as_tuple=True)  # of each packed position
        self.before = (starts[step - 1] + self.row)[self.sizes[0] :]  # the position one step earlier, from step 2 on

    @once
    def slices(self) -> list[slice]:
        """Of each step, its packed positions."""
        return [slice(s, s + n) for s, n in zip(self.starts.tolist(), self.sizes, strict=False)]

    @once
    def rows(self) -> call.Rows:
        """For loops over rows, which are sorted."""
        everything, padded = torch.arange(self.num_packed), []
        for index in (self.emit_index, self.pair_index):
            full = torch.zeros(self.mask.shape, dtype=torch.long)
            full[self.mask] = everything if index is None else index
            padded.append(array(full.T))
        return call.Rows(padded[0], array(self.lengths[self.order]), padded[1])

    def pack(self, padded: Tensor) -> Tensor:
        """(B, T, ...) -> (N, ...): the steps of all rows, step by step."""
        return padded[self.order].transpose(0, 1)[: len(self.sizes)][self.mask]

    def only(self, row: int) -> Lattice:
        """The same for one of the sorted rows."""
        keep = self.row == row
        part = Lattice(self.lengths[self.order][row : row + 1])
        part.init_index = self.init_index[row : row + 1]
        everything = torch.arange(self.num_packed, device=keep.device)
        part.pair_index = (everything if self.pair_index is None else self.pair_index)[keep]
        part.emit_index = (everything if self.emit_index is None else self.emit_index)[keep]
        return part

    def by_row(self, steps: Tensor) -> Tensor:
        """(N, R) summed over the steps of each row: (B, R), sorted."""
        return steps.new_zeros(self.sizes[0], steps.shape[-1]).index_add_(0, self.row, steps)

    def unsort(self, rows: Tensor) -> Tensor:
        """(B, ...) in sorted order -> in the rows' own order."""
        result = torch.empty_like(rows)
        result[self.order] = rows
        return result


def expectation(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> Expectation:
    """Log-likelihoods and expected counts of R parameter sets; see the module's head for the tables.

    Args:
        init, pair, emit: (Z, I, R), (Z, Z, L, R), (Z, M, R) logarithms; -inf allowed. lattice: of the rows.

    Returns:
        Impossible rows (log_prob -inf) count nothing; NaN in a parameter set gives NaN in its log_prob.

    Cost: R times the number of steps times Z^2.
    """
    return Expectation(*_by_whichever("smooth", _count_together, (init, pair, emit), lattice))


def log_prob(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> Tensor:
    """(B, R) log-likelihoods alone; arguments as for :func:`expectation`."""
    return _by_whichever("likelihood", _sum_together, (init, pair, emit), lattice)[0]


def _sum_together(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> tuple[Tensor, ...]:
    alpha, _, steps, risky = _forward(init, pair.exp(), emit, lattice)
    least = torch.stack([_least(logs) for logs in (alpha.log(), init, pair, emit - emit.amax(0))]).amin()
    if float(least) < _deepest(alpha.dtype):
        return _count_together(init, pair, emit, lattice)[:1]  # what is behind tells whether that which is lost decides
    rows = lattice.by_row(steps)
    _redo(init, pair, emit, lattice, risky, rows)
    return (lattice.unsort(rows),)


def _batches(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The tables of restarts that go through the scan at once."""
    num_restarts, most = pair.shape[-1], pair.shape[-1]
    if not pair.is_cuda:
        most = max(1, STEP_CELLS // (lattice.sizes[0] * pair.shape[0] ** 2))
    if most >= num_restarts:
        return [(init, pair, emit)]
    parts = torch.arange(num_restarts, device=pair.device).split(
        math.ceil(num_restarts / math.ceil(num_restarts / most))  # in equal parts
    )
    return [(init[..., p].contiguous(), pair[..., p].contiguous(), emit[..., p].contiguous()) for p in parts]


def _count_together(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> tuple[Tensor, ...]:
    matrices = pair.exp()
    alpha, weight, step_log_prob, risky = _forward(init, matrices, emit, lattice)
    log_prob = lattice.by_row(step_log_prob)
    gamma, weight, outweighed = _backward(matrices, alpha, weight, lattice)
    risky = risky | outweighed
    if bool(risky.any()):  # they count below
        keep = ~risky[lattice.row]
        gamma, weight, alpha = (value.where(keep, 0.0) for value in (gamma, weight, alpha))
    total = _count(gamma, alpha, weight, matrices, init.shape[1], emit.shape[1], lattice)
    _redo(init, pair, emit, lattice, risky, log_prob, total)
    return lattice.unsort(log_prob), *total


def production(init: Tensor, pair: Tensor, lattice: Lattice) -> Tensor:
    """(Z, N, R) p(z_t | u_1..u_t) of every packed step: the open loop, which sees no outputs (equations 2 and 4)."""
    blind = copy.copy(lattice)
    blind.emit_index = torch.zeros(lattice.num_packed, dtype=torch.long, device=pair.device)
    return _forward(init, pair.exp(), torch.zeros_like(init[:, :1]), blind)[0]


def _least(logs: Tensor) -> Tensor:
    """The least logarithm of what is no zero."""
    return logs.where(logs > -math.inf, 0.0).amin()


def _deepest(dtype: torch.dtype) -> float:
    """Logarithms of factors of which three, of a message, a matrix and an emission, have a product that is no zero."""
    return math.log(torch.finfo(dtype).tiny) / 3


def _reach(dtype: torch.dtype) -> float:
    return math.sqrt(torch.finfo(dtype).tiny)  # 1e-154 in float64


def _stepped(message: Tensor, matrices: Tensor, lattice: Lattice, part: slice) -> Tensor:
    """message @ matrix of each row's entry, (Z, n, R)."""
    if matrices.shape[2] > 1:
        matrices = matrices[:, :, part] if lattice.pair_index is None else matrices.index_select(2, lattice.pair_index[part])
    result = message[0] * matrices[0]
    for z in range(1, len(message)):
        result.addcmul_(message[z], matrices[z])
    return result


def _forward(init, matrices, emit, lattice):
    """Filtered probabilities and emissions over their step's mass (Z, N, R), step log-probabilities (N, R), risky (B, R)."""
    top = emit.amax(0)
    top = top.where(top != -math.inf, 0.0)
    weight = (emit - top).exp_()
    if lattice.emit_index is not None:
        weight, top = weight.index_select(1, lattice.emit_index), top.index_select(0, lattice.emit_index)
    alpha, norm = torch.empty_like(weight), torch.empty_like(top)
    tiny = torch.finfo(weight.dtype).tiny
    message = init.exp().index_select(1, lattice.init_index)
    for t, part in enumerate(lattice.slices):
        if t:
            message = _stepped(message[:, : lattice.sizes[t]], matrices, lattice, part)
        joint = torch.mul(message, weight[:, part], out=alpha[:, part])
        mass = torch.sum(joint, 0, out=norm[part]).clamp_min_(tiny)
        message = joint.div_(mass)
    weight /= norm
    lost = ~(norm >= _reach(norm.dtype))  # NaN too
    return alpha, weight, norm.log_().add_(top), _rows_of(lost, lattice)


def _rows_of(steps: Tensor, lattice: Lattice) -> Tensor:
    """(N, R) marks of steps -> (B, R) of rows."""
    if not bool(steps.any()):
        return steps[: lattice.sizes[0]]
    return lattice.by_row(steps.double()) > 0


def _backward(matrices, alpha, weight, lattice):
    """Posteriors (Z, N, R), emission times future over mass (Z, N, R), and rows whose future outweighs the past (B, R)."""
    matrices = matrices.transpose(0, 1)
    beta, future = torch.ones_like(alpha), torch.empty_like(weight)
    for t in range(len(lattice.sizes) - 1, -1, -1):
        part = lattice.slices[t]
        message = torch.mul(weight[:, part], beta[:, part], out=future[:, part])
        if t:
            first = lattice.slices[t - 1].start
            beta[:, first : first + lattice.sizes[t]] = _stepped(message, matrices, lattice, part)
    outweighed = ~(beta.amax(0) <= 1 / _reach(beta.dtype))
    return beta.mul_(alpha), future, _rows_of(outweighed, lattice)


def _count(
    gamma, alpha, future, matrices, num_starts: int, num_emissions: int, lattice: Lattice
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over rows and steps for each entry of the three tables."""
    first = lattice.sizes[0]
    start = _sum_entries(gamma[:, :first], lattice.init_index, num_starts)
    emit = gamma if lattice.emit_index is None else _sum_entries(gamma, lattice.emit_index, num_emissions)
    if len(lattice.before) == 0:
        return start, torch.zeros_like(matrices), emit
    before, after = alpha.index_select(1, lattice.before), future[:, first:]
    entry, num_entries = lattice.pair_index, matrices.shape[2]
    if entry is not None and num_entries <= FEW:
        pairs = torch.empty_like(matrices)
        for k in range(num_entries):
            left, right = before, after
            if num_entries > 1:
                at = (entry[first:] == k).nonzero().squeeze(-1)
                left, right = before.index_select(1, at), after.index_select(1, at)
            # (else each of the R products copies its own factors)
            left, right = left.permute(2, 0, 1).contiguous(), right.permute(2, 1, 0).contiguous()
            pairs[:, :, k] = torch.matmul(left, right).permute(1, 2, 0)
        return start, pairs.mul_(matrices), emit
    pairs = torch.zeros_like(matrices)
    for z in range(len(matrices)):
        each = before[z] * after
        if entry is None:
            pairs[z, :, first:] = each
        else:
            pairs[z] = _sum_entries(each, entry[first:], num_entries)
    return start, pairs.mul_(matrices), emit


def _sum_entries(value: Tensor, entry: Tensor, num_entries: int) -> Tensor:
    """(Z, N, R) summed over the positions of each entry: (Z, M, R)."""
    if num_entries == 1:
        return value.sum(1, keepdim=True)
    if num_entries <= FEW:
        which = torch.nn.functional.one_hot(entry, num_entries).to(value.dtype)
        return torch.matmul(which.T, value)
    return value.new_zeros(value.shape[0], num_entries, value.shape[2]).index_add_(1, entry, value)


# ------------------------------------------------------------------------------------------------ in log space
def expectation_in_log_space(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> Expectation:
    """:func:`expectation`, slower, for any numbers."""
    everything = torch.arange(lattice.num_packed, device=emit.device)
    entry = everything if lattice.pair_index is None else lattice.pair_index
    seen = everything if lattice.emit_index is None else lattice.emit_index
    sizes, slices = lattice.sizes, lattice.slices
    alpha = [init[:, lattice.init_index] + emit[:, seen[slices[0]]]]
    for part, size in zip(slices[1:], sizes[1:], strict=True):
        paths = alpha[-1][:, :size].unsqueeze(1) + pair[:, :, entry[part]]  # (from, to, n, R)
        alpha.append(torch.logsumexp(paths, 0) + emit[:, seen[part]])
    beta = [torch.zeros_like(message) for message in alpha]
    for t in range(len(sizes) - 1, 0, -1):
        ahead = emit[:, seen[slices[t]]] + beta[t]
        beta[t - 1][:, : sizes[t]] = torch.logsumexp(pair[:, :, entry[slices[t]]] + ahead, 1)
    log_prob = torch.logsumexp(alpha[0] + beta[0], 0)
    total = log_prob.where(log_prob != -math.inf, math.inf)  # an impossible row counts nothing
    gamma = torch.cat([(a + b - total[: a.shape[1]]).exp() for a, b in zip(alpha, beta, strict=True)], 1)
    start = torch.zeros_like(init).index_add_(1, lattice.init_index, gamma[:, : sizes[0]])
    emissions, pairs = torch.zeros_like(emit).index_add_(1, seen, gamma), torch.zeros_like(pair)
    for t in range(1, len(sizes)):
        left = (alpha[t - 1][:, : sizes[t]] - total[: sizes[t]]).unsqueeze(1)
        right = emit[:, seen[slices[t]]] + beta[t]
        pairs.index_add_(2, entry[slices[t]], (left + pair[:, :, entry[slices[t]]] + right).exp())
    return Expectation(lattice.unsort(log_prob), start, pairs, emissions)


def _redo(init, pair, emit, lattice, risky, log_prob, total=None) -> None:
    """Puts the risky rows (B, R) in, by the log-space recursion: into log_prob (B, R) and, if given, the counts."""
    for row in risky.any(1).nonzero().squeeze(-1).tolist():
        sets = risky[row].nonzero().squeeze(-1)
        result = expectation_in_log_space(init[..., sets], pair[..., sets], emit[..., sets], lattice.only(row))
        log_prob[row, sets] = result.log_prob[0]
        if total is not None:
            for counts, more in zip(total, result[1:], strict=True):
                counts[..., sets] += more


# ---------------------------------------------------------------- by the loops over rows
def _by_whichever(loop: str, together: Callable, tables: Tables, lattice: Lattice) -> tuple[Tensor, ...]:
    """What a loop over the rows of parameter sets finds; and of sets that it leaves, or of all as long as compiling it does not
    pay, what ``together`` does."""
    num_states, _, num_entries, num_sets = tables[1].shape
    groups, left, found = [], list(range(num_sets)), list[tuple[Tensor, ...]]()
    num_rows = lattice.sizes[0] * num_sets
    short = num_states < FEW_STATES and lattice.num_packed < FEW_STEPS * lattice.sizes[0] and num_rows >= MANY_ROWS
    # (of any number of states: where steps have matrices of their own, products of matrices gain nothing)
    if not (short and loop == "smooth") and call.applies(1, *tables) and call.pays(
        loop, (num_rows, len(lattice.sizes)), num_states
    ):  # fmt: skip
        size = max(1, MOST_NUMBERS // max(lattice.mask.numel(), num_entries * num_states**2))
        size = 1 if num_entries == 1 and lattice.num_packed >= APART else size
        groups, left = [left[first : first + size] for first in range(0, num_sets, size)], []
    order = list[int]()
    while groups:
        sets = groups.pop()
        if (values := _by_loop(loop, _sets(tables, sets), lattice)) is not None:
            found, order = [*found, values], order + sets
        elif len(sets) > 1:
            groups += [[r] for r in sets]
        else:
            left += sets
    if left:
        parts = _batches(*_sets(tables, left), lattice)
        found += [together(*part, lattice) for part in parts]  # pyright: ignore[reportCallIssue]
    if len(found) == 1:
        return found[0]
    place = np.argsort(order + left)
    return tuple(torch.cat(values, -1)[..., place] for values in zip(*found, strict=True))


def _sets(tables: Tables, which: list[int]) -> Tables:
    if len(which) == tables[1].shape[-1]:
        return tables
    together = slice(which[0], which[-1] + 1) if which[-1] - which[0] == len(which) - 1 else which
    init, pair, emit = (table[..., together] for table in tables)
    return init, pair, emit


def _by_loop(loop: str, tables: Tables, lattice: Lattice) -> tuple[Tensor, ...] | None:
    """Rows of all parameter sets, one behind the other, each with entries of its own set; None where digits may be lost."""
    init, pair, emit = tables
    num_starts, num_sets, num_rows = *init.shape[1:], lattice.sizes[0]
    starts = init.permute(2, 1, 0)  # (R, I, Z)
    starts = starts.expand(-1, num_rows, -1) if num_starts == 1 else starts[:, lattice.init_index]
    if num_starts == num_sets == 1:
        starts = starts[:, :1]
    chain = call.chain_of(starts.flatten(0, 1), pair.permute(3, 2, 0, 1).flatten(0, 1))
    emissions = call.emissions_of(emit.permute(2, 1, 0).flatten(0, 1))
    if chain is None or emissions is None:
        return None
    rows, led = lattice.rows, lattice.rows.moves
    if num_sets > 1 and led is not None:
        own, size = np.arange(num_sets)[:, None, None], (num_sets * num_rows, -1)
        numbers = (rows.numbers + own * emit.shape[1]).reshape(size)
        moves = (led + own * pair.shape[2]).reshape(size)
        rows = call.Rows(numbers, np.tile(rows.lengths, num_sets), moves)
    elif pair.shape[2] == 1:
        rows = rows._replace(moves=None)
    if loop == "likelihood":
        sums = call.log_prob(chain, emissions, rows)
        return None if sums is None else (lattice.unsort(torch.from_numpy(sums).view(num_sets, -1).T),)
    found = call.smooth(chain, emissions, rows, visits=True, posterior=False)
    if found is None:
        return None
    every = (torch.from_numpy(part) for part in (found.log_prob, found.starts, found.pairs, found.visits))
    log_prob, first, pairs, visits = (part.unflatten(0, (num_sets, -1)) for part in every)
    if num_starts > 1:
        first = torch.zeros_like(init.permute(2, 1, 0)).index_add_(1, lattice.init_index, first)
    elif num_sets > 1:
        first = first.sum(1, keepdim=True)
    return lattice.unsort(log_prob.T), first.permute(2, 1, 0), pairs.permute(2, 3, 1, 0), visits.permute(2, 1, 0)
