"""Log-probabilities of tables looked up at states: natural parameters times sufficient statistics, one product of matrices.

An observation y of a site ``Bernoulli(probs[x, u, d])`` has log p(y | x) = y eta[x, u, d] - A(eta[x, u, d]): summed over the
cells of inner plates that is linear in how often each entry (u, d) of the table was met, and in the sum of y there. These
statistics are of the data alone, (steps, rows, entries); nothing of the size steps x rows x states x cells is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions.utils import probs_to_logits

from pplseq.infer.programs.factors.lookups import Lookup
from pplseq.kernels.log_semiring import in_float32

MOST_ENTRIES = 8  # times as many entries of a table as there are cells, so that statistics stay no larger than the data


@dataclass
class Axis:
    """One dimension of a table that no state chooses: what runs over it in a batch.

    size: of the table. at: the batch dimension (negative) along which it simply counts 0, 1, 2, ..; None where data choose.
    entry: the place of the index that chooses. value: whether it is the observed value itself.
    """

    size: int
    at: int | None = None
    entry: int | None = None
    value: bool = False


@dataclass
class Reading:
    """How a site's table is to be read. order: the table's dimensions, those of states in the order of the site's variables,
    then the axes."""

    name: str
    lookup: Lookup
    order: list[int]
    num_states: int  # dimensions of states
    axes: list[Axis]
    other: Tensor | None = None  # of two parameters the second, (*states or 1, *axes or 1)
    other_key: tuple = ()
    sums: Any = None  # what takes the place of `weighted` then

    @property
    def key(self) -> tuple:
        axes = tuple((axis.size, axis.at, axis.entry, axis.value) for axis in self.axes)
        data = tuple(self.lookup.entries[axis.entry].index.shape for axis in self.axes if axis.entry is not None)
        return self.name, id(self.lookup.table), tuple(self.order), self.num_states, axes, data, self.other_key

    def table(self, value: Tensor) -> Tensor:
        """Of the table's shape -> (*states, *axes)"""
        return value.permute(self.order)


def looked_up(fn) -> tuple[str, Lookup, int] | None:
    """Name, table and event dimensions of a distribution whose one parameter is a lookup."""
    own = fn.__dict__
    if type(fn) is dist.Categorical:
        name, event = "logits" if "logits" in own and "probs" not in own else "probs", 1
    elif type(fn) is dist.Bernoulli:
        name, event = "logits" if "logits" in own and "probs" not in own else "probs", 0
    elif type(fn) is dist.Poisson:
        name, event = "rate", 0
    else:
        return None
    found = own.get(name)
    return (name, found, event) if type(found) is Lookup else None


def read(part: Any, name: str, lookup: Lookup, event: int) -> Reading | None:
    """How the table of a site is read; None where it is not as simple as that."""
    site, nesting, own = part.site, part.nesting, part.site.own
    inner = event + part.extra  # dimensions of the parameter that belong to no batch
    trail = lookup.trail
    if trail < event or lookup.dim() - inner > nesting + len(site.variables) + 37:
        return None
    places: dict[int, int] = {}  # number of a variable -> its dimension of the table
    axes: list[tuple[int, Axis]] = []
    for place, entry in enumerate(lookup.entries):
        if entry.dim is not None:
            variable = site.variables.get(entry.dim - trail + inner)
            if variable is None or variable is own or variable.number in places:
                return None
            if variable.size != lookup.table.shape[place]:
                return None
            places[variable.number] = place
            continue
        if own is not None or entry.index.dim() + trail - inner > nesting:
            return None
        axes.append((place, Axis(lookup.table.shape[place], _counting(entry.index, trail - event), place)))
    if len(places) != len(site.variables) - (own is not None):
        return None
    for k in range(trail):  # from the left
        place, at = len(lookup.entries) + k, k - trail + event
        is_value = event and k == trail - 1
        axis = Axis(lookup.table.shape[place], None if is_value else at, None, bool(is_value))
        axes.append((place, axis))
    if own is not None:
        if len(axes) != event or part.extra:
            return None
        order = [places[v.number] for v in part.variables if v is not own]
        return Reading(name, lookup, [*order, *(place for place, _ in axes)], len(order), [axis for _, axis in axes])
    order = [places[v.number] for v in part.variables]
    return Reading(name, lookup, [*order, *(place for place, _ in axes)], len(order), [axis for _, axis in axes])


def _counting(index: Tensor, shift: int) -> int | None:
    """The batch dimension, extra dimensions of events counted, along which an index is 0, 1, 2, ..."""
    long = [d for d in range(-index.dim(), 0) if index.shape[d] > 1]
    if len(long) != 1:
        return None
    flat = index.reshape(-1)
    if index.stride(long[0]) != 1 or not bool((flat == torch.arange(len(flat), device=flat.device)).all()):
        return None
    return long[0] - shift


@dataclass
class Cells:
    """The grid of a group of alike sites: (G, *plates, *extra); which of its dimensions stay and which are summed, and the
    summed ones (negative) along which a table counts."""

    shape: list[int]
    kept: list[int]
    summed: list[int]
    counting: list[int]

    def has_own_entries(self, reading: Reading) -> bool:
        """Whether every cell of a sum has an entry of its own."""
        return len(set(self.counting)) == len(reading.axes) and all(
            axis.at is not None and self.shape[axis.at] == axis.size for axis in reading.axes
        )


# ------------------------------------------------------------------------------------------------ states
def enumerated(part: Any) -> Tensor:
    """(1, *plates, *variables) of an enumerated site, the same at all steps that look it up."""
    reading, own = part.reading, part.variables.index(part.site.own)
    logs, order = in_float32(reading.lookup.table), reading.order
    if part.kind is dist.Bernoulli:
        logs = probs_to_logits(logs, is_binary=True) if reading.name == "probs" else logs
        logs, order = torch.nn.functional.logsigmoid(torch.stack([-logs, logs], -1)), [*order, len(order)]
    elif reading.name == "probs":
        logs = probs_to_logits(logs)
    logs = logs.permute(order).movedim(-1, own)
    return logs.reshape(1, *(1,) * part.nesting, *logs.shape)


# ------------------------------------------------------------------------------------------------ observations
def observed(parts: list[Any], value: Tensor, mask: Tensor | None) -> Tensor | None:
    """(G, *plates, *variables) of alike sites, or None where the tables do not allow it.

    Args:
        value: (G, *plates, *extra), what was observed. mask: (G, *plates), or None.
    """
    first = parts[0]
    reading, nesting, extra = first.reading, first.nesting, first.extra
    natural = None if reading.other is not None else _natural(first.kind, reading)
    if natural is None and reading.other is None:
        return None
    grid = [len(parts), *(first.sizes[d] if d in first.summed else 1 for d in range(-nesting, 0)), *value.shape[1 + nesting :]]
    shape = [max(a, b) for a, b in zip(grid, value.shape, strict=True)]
    if mask is not None:
        mask = mask.reshape(*mask.shape, *(1,) * extra)
        shape = [max(a, b) for a, b in zip(shape, mask.shape, strict=True)]
        value = torch.where(mask, value, torch.zeros((), dtype=value.dtype, device=value.device))
    for part in parts[:1]:  # data may say more rows than the values do
        for axis in part.reading.axes:
            if axis.entry is not None and axis.at is None:
                index = part.reading.lookup.entries[axis.entry].index
                for d in range(-index.dim(), 0):
                    at = d - part.reading.lookup.trail + (1 if first.kind is dist.Categorical else 0)
                    shape[at] = max(shape[at], index.shape[d])
    kept = [d for d in range(1, 1 + nesting) if d - 1 - nesting not in first.summed]
    summed = [d for d in range(1, len(shape)) if d not in kept]
    states = first.lookup_states
    counting = [axis.at for axis in reading.axes if axis.at is not None and len(shape) + axis.at in summed]
    if natural is None:
        found = reading.sums(parts, Cells(shape, kept, summed, counting), value, mask)
    else:
        eta, rest = natural
        eta = flat(reading.table(eta), reading.num_states)
        rest = None if rest is None else flat(reading.table(rest), reading.num_states)
        found = weighted(parts, Cells(shape, kept, summed, counting), value, mask, eta, rest)
    if found is None:
        return None
    if first.kind is dist.Poisson:
        base = torch.lgamma(value + 1)
        base = (base if mask is None else torch.where(mask, base, 0.0)).expand(shape)
        found = found - (base.sum(summed) if summed else base).reshape(-1, 1)  # summed over no dimensions: over all
    sizes = [shape[d] if d in kept else 1 for d in range(1, 1 + nesting)]
    return found.reshape(len(parts), *sizes, *states)


def _natural(kind, reading: Reading) -> tuple[Tensor, Tensor | None] | None:
    """What multiplies the observed numbers, and what is subtracted at every cell: of the table's shape. For categorical values:
    log-probabilities, and None."""
    table = in_float32(reading.lookup.table)
    if kind is dist.Categorical:
        logs = probs_to_logits(table) if reading.name == "probs" else table
        return logs, None
    if kind is dist.Bernoulli:
        logits = probs_to_logits(table, is_binary=True) if reading.name == "probs" else table
        if not bool(logits.detach().isfinite().all()):
            return None
        return logits, torch.nn.functional.softplus(logits)
    if bool((table.detach() <= 0).any()):
        return None
    return table.log(), table


def weighted(parts, cells: Cells, value: Tensor, mask: Tensor | None, eta: Tensor, rest: Tensor | None) -> Tensor | None:
    """(G * rows, states) sums of value times eta less rest, tables (states, entries), over the cells of each row."""
    if rest is not None and cells.has_own_entries(parts[0].reading):
        return _direct(cells, value, mask, eta, rest)
    return _chosen(parts, cells, value, mask, eta, rest)


def _direct(cells: Cells, value: Tensor, mask: Tensor | None, weights: Tensor, less: Tensor) -> Tensor:
    """Every cell has an entry of its own: (G * rows, states) by a product with the observed numbers themselves."""
    shape, kept, summed, counting = cells.shape, cells.kept, cells.summed, cells.counting
    at = [len(shape) + d for d in counting]
    over = [d for d in summed if d not in at]  # cells that share an entry
    numbers = value.to(weights.dtype)
    if over:
        numbers = numbers.expand(*(shape[d] if d in over else own for d, own in enumerate(value.shape)))
        numbers = numbers.sum(over, keepdim=True)
    numbers = numbers.expand(*(1 if d in over else size for d, size in enumerate(shape)))
    order = [0, *kept, *at, *over]
    rows = numbers.permute(order).reshape(shape[0] * _product(shape[d] for d in kept), -1)
    found = rows @ weights.T
    copies = _product(shape[d] for d in over)
    if mask is None:
        return found - copies * less.sum(-1)
    if all(mask.shape[d] == 1 for d in summed):
        seen = mask.expand(*(1 if d in summed else size for d, size in enumerate(shape))).reshape(-1, 1).to(less.dtype)
        return found - seen * (copies * less.sum(-1))
    seen = mask.expand(shape).to(less.dtype)
    seen = (seen.sum(over, keepdim=True) if over else seen).permute(order).reshape(len(rows), -1)
    return found - seen @ less.T


def _chosen(parts, cells: Cells, value: Tensor, mask: Tensor | None, logs: Tensor, rest: Tensor | None) -> Tensor | None:
    """Data choose entries: how often each was met, and the sum of the numbers there."""
    shape, kept, summed, reading = cells.shape, cells.kept, cells.summed, parts[0].reading
    number, total = None, 1
    for axis in reading.axes:
        if axis.value:
            index = value.long()  # Pyro takes words of any type of number
            if bool(((index < 0) | (index >= axis.size)).any()):  # seen by nobody where Pyro's validation is off
                return None
        elif axis.entry is None:
            if axis.size == 1:
                continue
            index = torch.arange(axis.size, device=value.device)
            index = index.reshape(-1, *(1,) * (-axis.at - 1))
            if shape[axis.at] != axis.size:
                return None
        else:
            shift = reading.lookup.trail - (1 if parts[0].kind is dist.Categorical else 0)
            own = [part.reading.lookup.entries[axis.entry].index for part in parts]
            alike = own[0] if all(one is own[0] for one in own) else torch.stack(own)
            dims = own[0].dim() + shift
            lead = (len(parts),) if alike is not own[0] else (1,)
            index = alike.reshape(*lead, *(1,) * (len(shape) - 1 - dims), *own[0].shape, *(1,) * shift)
            if bool(((index < 0) | (index >= axis.size)).any()):
                return None
        number = index if number is None else number * axis.size + index
        total *= axis.size
    size = _product(shape[d] for d in summed)
    if number is None or total > MOST_ENTRIES * size and size > 1:
        return None
    number = number.expand(shape).permute(0, *kept, *summed).reshape(-1, size)
    seen = None if mask is None else mask.expand(shape).permute(0, *kept, *summed).reshape(-1, size)
    if rest is None and size == 1:
        found = logs.T[number.squeeze(1)]
        return found if seen is None else torch.where(seen, found, 0.0)
    ones = torch.ones((), dtype=logs.dtype, device=value.device).expand(number.shape) if seen is None else seen.to(logs.dtype)
    counts = logs.new_zeros(len(number), total).scatter_add_(1, number, ones)
    if rest is None:
        return counts @ logs.T if bool(logs.detach().isfinite().all()) else None
    numbers = value.to(logs.dtype).expand(shape).permute(0, *kept, *summed).reshape(-1, size)
    sums = logs.new_zeros(len(number), total).scatter_add_(1, number, numbers)
    return sums @ logs.T - counts @ rest.T


def flat(table: Tensor, num_states: int) -> Tensor:
    """(states, entries)"""
    return table.reshape(_product(table.shape[:num_states]), -1)


def _product(sizes) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result
