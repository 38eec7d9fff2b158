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
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled, compiled_chain
from pplseq.kernels.compiled import array
from pplseq.threads import once

FEW = 12  # entries of the pair table up to which sums over steps go entry by entry, as matrix products
STEP_CELLS = 1 << 17  # numbers in one step's matrices up to which restarts go together on a CPU: what its cache holds
SIDE_BY_SIDE = 24  # rows times parameter sets from which on one operation a step for all of them is faster
MOST_SCALED = 32  # states up to which scaled probabilities in loops are the faster way
MANY_STATES = 12  # from which on, with few entries, a step is a matrix product with all of them


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
    if _pays_one_by_one(pair, lattice, "kernels.path_loops.scaled_expectation"):
        rows, *counts = _expectation_one_by_one(init, pair, emit, lattice)
        return Expectation(lattice.unsort(rows), *counts)
    parts = [_expectation(*tables, lattice) for tables in _batches(init, pair, emit, lattice)]
    return parts[0] if len(parts) == 1 else Expectation(*(torch.cat(v, -1) for v in zip(*parts, strict=True)))


def log_prob(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> Tensor:
    """(B, R) log-likelihoods alone; arguments as for :func:`expectation`."""
    if _pays_one_by_one(pair, lattice, "kernels.chain_loops.forward"):
        return lattice.unsort(_log_prob_one_by_one(init, pair, emit, lattice))
    parts = []
    for tables in _batches(init, pair, emit, lattice):
        first, move, seen = tables
        *_, steps, risky = _forward(first, move.exp(), seen, lattice)
        rows = lattice.by_row(steps)
        _redo(*tables, lattice, risky, rows)
        parts.append(lattice.unsort(rows))
    return torch.cat(parts, -1)


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


def _expectation(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> Expectation:
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
    return Expectation(lattice.unsort(log_prob), *total)


def production(init: Tensor, pair: Tensor, lattice: Lattice) -> Tensor:
    """(Z, N, R) p(z_t | u_1..u_t) of every packed step: the open loop, which sees no outputs (equations 2 and 4)."""
    blind = copy.copy(lattice)
    blind.emit_index = torch.zeros(lattice.num_packed, dtype=torch.long, device=pair.device)
    return _forward(init, pair.exp(), torch.zeros_like(init[:, :1]), blind)[0]


def _reach(dtype: torch.dtype) -> float:
    return math.sqrt(torch.finfo(dtype).tiny)  # 1e-154 in float64


class _Steps:
    """message -> message @ matrix of each row's entry, (Z, n, R)."""

    def __init__(self, matrices: Tensor, lattice: Lattice):
        self.matrices, self.entry, self.stacked = matrices, lattice.pair_index, None
        self.num_states, _, self.num_entries, _ = matrices.shape
        if self.entry is not None and self.num_entries <= FEW and self.num_states >= MANY_STATES:
            self.stacked = matrices.permute(3, 0, 2, 1).flatten(-2)  # (R, Z, L Z)

    def __call__(self, message: Tensor, part: slice) -> Tensor:
        if self.stacked is not None and self.entry is not None:
            product = torch.matmul(message.permute(2, 1, 0), self.stacked)
            product = product.reshape(len(product), -1, self.num_states)
            entry = self.entry[part]
            own = torch.arange(len(entry), device=entry.device) * self.num_entries + entry
            return product.index_select(1, own).permute(2, 1, 0)
        if self.entry is None:
            own = self.matrices[:, :, part]
        elif self.num_entries == 1:
            own = self.matrices
        else:
            own = self.matrices.index_select(2, self.entry[part])
        result = message[0] * own[0]
        for z in range(1, self.num_states):
            result.addcmul_(message[z], own[z])
        return result


def _forward(init, matrices, emit, lattice):
    """Filtered probabilities and emissions over their step's mass (Z, N, R), step log-probabilities (N, R), risky (B, R)."""
    top = emit.amax(0)
    top = top.where(top != -math.inf, 0.0)
    weight = (emit - top).exp_()
    if lattice.emit_index is not None:
        weight, top = weight.index_select(1, lattice.emit_index), top.index_select(0, lattice.emit_index)
    advance = _Steps(matrices, lattice)
    alpha, norm = torch.empty_like(weight), torch.empty_like(top)
    tiny = torch.finfo(weight.dtype).tiny
    message = init.exp().index_select(1, lattice.init_index)
    for t, part in enumerate(lattice.slices):
        if t:
            message = advance(message[:, : lattice.sizes[t]], part)
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
    retreat = _Steps(matrices.transpose(0, 1), lattice)
    beta, future = torch.ones_like(alpha), torch.empty_like(weight)
    for t in range(len(lattice.sizes) - 1, -1, -1):
        part = lattice.slices[t]
        message = torch.mul(weight[:, part], beta[:, part], out=future[:, part])
        if t:
            first = lattice.slices[t - 1].start
            beta[:, first : first + lattice.sizes[t]] = retreat(message, part)
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


# ---------------------------------------------------------------- few and long rows: one after the other, compiled
def _pays_one_by_one(pair: Tensor, lattice: Lattice, loop: str) -> bool:
    """Whether a parameter set at a time, row by row, is the faster way."""
    few = lattice.sizes[0] * pair.shape[-1] < SIDE_BY_SIDE and pair.shape[0] <= compiled_chain.MOST_OWN
    if not few or pair.device.type != "cpu" or pair.dtype != torch.float64:
        return False
    operations, multiplications = 5 * len(lattice.sizes), 4 * lattice.num_packed * pair.shape[-1] * pair.shape[0] ** 2
    return compiled.pays(loop, operations, multiplications)


def _log_prob_one_by_one(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> Tensor:
    """(B, R), in the order of the sorted rows; the tables are those of ``restart_scan``."""
    found = [_forward_of_one(init[..., r], pair[..., r], emit[..., r], lattice)[0] for r in range(pair.shape[-1])]
    return torch.stack(found, -1)


def _expectation_one_by_one(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> tuple[Tensor, ...]:
    """log p(x | u) (B, R) by sorted row, and expected counts in the tables' shapes."""
    parts = [_expectation_of_one(init[..., r], pair[..., r], emit[..., r], lattice) for r in range(pair.shape[-1])]
    one, two, three, four = (torch.stack(part, -1) for part in zip(*parts, strict=True))
    return one, two, three, four


def _forward_of_one(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice):
    mask, num_states = lattice.mask, len(init)
    seen = emit if lattice.emit_index is None else emit.index_select(1, lattice.emit_index)
    emissions = emit.new_zeros(*mask.shape, num_states)
    emissions[mask] = seen.T
    table, first = array(pair.permute(2, 0, 1)), np.zeros(mask.shape[1], np.int64)
    if len(table) == 1:
        links = compiled_chain.Links(table, first, 0)
    else:
        numbers = torch.zeros(mask.shape, dtype=torch.int64)
        numbers[mask] = torch.arange(lattice.num_packed) if lattice.pair_index is None else lattice.pair_index
        links = compiled_chain.Links(table, first, 1, array(numbers))
    lengths = mask.sum(0).numpy()
    starts, shape = init[:, lattice.init_index].T, torch.Size(table.shape)
    steps, kept = compiled_chain.forward_along(starts, links, emissions, lengths, shape)
    return steps.sum(0), kept


def _expectation_of_one(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice):
    return _expectation_by_loops(init, pair, emit, lattice) or _expectation_in_pieces(init, pair, emit, lattice)


def _expectation_by_loops(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice):
    """Over scaled probabilities; None where they become too small for that."""
    from pplseq.kernels import path_loops

    if len(init) > MOST_SCALED:
        return None
    everything = torch.arange(lattice.num_packed)
    tables = init.T.contiguous(), pair.permute(2, 0, 1).exp().contiguous(), emit.T.contiguous()
    indices = (lattice.init_index, *(everything if i is None else i for i in (lattice.pair_index, lattice.emit_index)))
    log_prob = emit.new_zeros(lattice.sizes[0])
    counts = [torch.zeros_like(table) for table in tables]
    given = (value.detach().numpy() for value in (*tables, *indices, lattice.starts, log_prob, *counts))
    if not path_loops.scaled_expectation(*given):
        return None
    start, pairs, visits = counts
    return log_prob, start.T, pairs.permute(1, 2, 0), visits.T


def _expectation_in_pieces(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice):
    log_prob, kept = _forward_of_one(init, pair, emit, lattice)
    states, pairs = compiled_chain.smooth(kept, torch.ones_like(log_prob))
    assert pairs is not None, "asked for"
    start = torch.zeros_like(init).index_add_(1, lattice.init_index, states[0].T)
    packed = states[lattice.mask].T
    if lattice.emit_index is not None:
        packed = torch.zeros_like(emit).index_add_(1, lattice.emit_index, packed)
    return log_prob, start, pairs.permute(1, 2, 0), packed
