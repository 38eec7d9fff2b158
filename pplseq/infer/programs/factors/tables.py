"""From recorded sites to tables of log-values: alike sites of many steps are computed as one stack, inner plates are summed.

A table has the shape (*plates, *variables): one dimension for every plate dimension (size 1 where it does not depend on it),
then one for each of its variables, in the order of the program.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions.utils import probs_to_logits

from pplseq.infer.programs.factors import binary, normal, statistics
from pplseq.infer.programs.factors.enumeration import Site, Variable
from pplseq.infer.programs.factors.lookups import Lookup
from pplseq.kernels.log_semiring import in_float32


@dataclass(eq=False)
class Stack:
    """Tables of G alike sites, or one that all of them share: (G or 1, *plates, *variables)."""

    values: Tensor


@dataclass(eq=False)
class Table:
    """One of a stack: log-values over ``variables``, in their order."""

    stack: Stack
    place: int
    variables: tuple[Variable, ...]
    plates: frozenset
    site: Site | None = None

    @property
    def value(self) -> Tensor:
        return self.stack.values[self.place]


def make_tables(sites: list[Site], nesting: int, *, padding: bool = False) -> list[Table]:
    """The tables of all sites, in their order.

    Args:
        padding: whether masked states take their first value alone (for maxima and draws), instead of any.
    """
    groups: dict[tuple, list] = defaultdict(list)
    for place, site in enumerate(sites):
        part = _Part(site, nesting, padding)
        groups[part.key].append((place, part))
    tables: list[Table | None] = [None] * len(sites)
    for group in groups.values():
        parts = [part for _, part in group]
        stack = Stack(parts[0].evaluate(parts))
        for k, (place, part) in enumerate(group):
            tables[place] = Table(stack, min(k, len(stack.values) - 1), part.variables, part.keep, part.site)
    return [table for table in tables if table is not None]


def canonical(value: Tensor, dims: list[int], nesting: int, event: int = 0) -> Tensor:
    """(*variables, *plates, *event) of a tensor whose enumerated dimensions ``dims`` lie to the left of its plates."""
    lead = value.shape[: value.dim() - event]
    if len(lead) < nesting:
        value = value.reshape((1,) * (nesting - len(lead)) + tuple(value.shape))
        return value if not dims else value.reshape((1,) * len(dims) + tuple(value.shape))
    sizes = [lead[dim] if len(lead) >= -dim else 1 for dim in dims]
    tail = value.shape[len(lead) - nesting :]
    order = [dim for dim, size in zip(dims, sizes, strict=True) if size > 1]
    if order != sorted(order):  # from left to right, dimensions rise
        rest = [d for d in range(-len(lead), -nesting) if d not in order]
        ranks = [d - event for d in (*rest, *order)]
        value = value.permute(*ranks, *range(-nesting - event, 0))
    return value.reshape((*sizes, *tail))


def narrow(value: Tensor, event: int = 0) -> Tensor:
    """A tensor without the copies that ``expand`` made: size 1 where it has stride 0 in front of its event dimensions."""
    batch = value.dim() - event
    if any(stride == 0 and size > 1 for stride, size in zip(value.stride()[:batch], value.shape[:batch], strict=True)):
        for dim in range(batch):
            if value.stride(dim) == 0 and value.shape[dim] > 1:
                value = value.narrow(dim, 0, 1)
    return value


def unwrap(fn) -> tuple:
    """The distribution inside ``Independent`` and how many dimensions that adds to its events; None for a mask."""
    extra = 0
    while type(fn) is dist.Independent:
        extra += fn.reinterpreted_batch_ndims
        fn = fn.base_dist
    return fn, extra


def _parameter(fn) -> tuple[str, Tensor, int] | None:
    """Name, value and event dimensions of the one parameter of a distribution that is computed in stacks."""
    own = fn.__dict__
    if type(fn) is dist.Bernoulli:
        name = "logits" if "logits" in own and "probs" not in own else "probs"
        return name, own[name], 0
    if type(fn) in (dist.Categorical, dist.OneHotCategorical):
        inner = fn._categorical if type(fn) is dist.OneHotCategorical else fn
        name = "logits" if "logits" in inner.__dict__ and "probs" not in inner.__dict__ else "probs"
        return name, inner.__dict__[name], 1
    return None


class _Part:
    """What one site says, brought to the layout that alike sites share."""

    def __init__(self, site: Site, nesting: int, padding: bool):
        self.site, self.nesting, self.padding = site, nesting, padding
        # where a site of an unrolled loop has a variable is not where that variable's own site has it
        found_at = sorted(site.variables.items(), key=lambda at: at[1].number)
        involved, self.dims = [variable for _, variable in found_at], [dim for dim, _ in found_at]
        self.keep = frozenset().union(*(v.plates for v in involved))
        self.sizes = [1] * nesting
        for frame in site.frames:
            self.sizes[frame.dim] = frame.size
        kept = {dim for dim, _ in self.keep}
        self.summed = tuple(dim for dim in range(-nesting, 0) if self.sizes[dim] != 1 and dim not in kept)
        self.variables = tuple(involved)
        fn, self.extra = unwrap(site.fn)
        found = None if torch.is_tensor(site.mask) and site.mask.dim() > nesting else _parameter(fn)
        mask = site.mask
        self.mask = None
        if site.own is None or padding:
            if isinstance(mask, Tensor) and mask.dim() > nesting:
                found = None
            elif isinstance(mask, Tensor):
                self.mask = canonical(narrow(mask), [], nesting)
            elif mask is False:
                self.mask = torch.zeros((1,) * nesting, dtype=torch.bool)
        self.kind: object = None
        self.reading: statistics.Reading | None = None
        if self._prepare_lookup(fn):
            return
        if found is not None and self._prepare(fn, *found):
            value = None if self.value is None else (self.value.shape, self.value.dtype)
            where = None if self.mask is None else self.mask.shape
            own = None if site.own is None else self.variables.index(site.own)
            self.key = (
                type(fn), self.name, self.parameter.shape, self.parameter.dtype, value, where, self.summed, own, self.extra,
                tuple(self.sizes), len(self.variables),
            )  # fmt: skip
        else:
            self.kind = None
            whole = site.whole if site.own is None and binary.has_logits(fn) and fn is site.fn else None
            self.key = (id(site),) if whole is None else ("steps", id(whole[0]))

    def _prepare_lookup(self, fn) -> bool:
        """Whether this site's parameter is a table looked up at states, which alike sites share."""
        site, nesting = self.site, self.nesting
        told = statistics.looked_up(fn)
        if told is None and type(fn) is not dist.Normal or torch.is_tensor(site.mask) and site.mask.dim() > nesting:
            return False
        if site.own is not None and self.mask is not None or type(fn) is dist.Poisson and site.own is not None:
            return False
        reading = normal.read_normal(self, fn) if told is None else statistics.read(self, *told)
        if reading is None:
            return False
        name = reading.name
        self.kind, self.name, self.lookup_states = type(fn), name, [v.size for v in self.variables]
        value, mask = None, None
        if site.own is None:
            dims = len(fn.event_shape) + self.extra
            if site.value.dim() - dims > nesting:
                return False
            found = narrow(site.value, dims)
            self.value = found.reshape((1,) * (nesting + dims - found.dim()) + tuple(found.shape))
            value, mask = (self.value.shape, self.value.dtype), None if self.mask is None else self.mask.shape
        own = None if site.own is None else self.variables.index(site.own)
        self.reading = reading
        self.key = type(fn), reading.key, value, mask, self.summed, own, self.extra, tuple(self.sizes), len(self.variables)
        return True

    def _prepare(self, fn, name: str, parameter: Tensor, event: int) -> bool:
        """Whether this site is computed in a stack; sets parameter (*variables, *plates, *event) and value."""
        site, nesting = self.site, self.nesting
        if site.own is not None and self.extra:
            return False
        if type(parameter) is Lookup:
            parameter = parameter.value()
        parameter = in_float32(narrow(parameter, event + self.extra))
        # a dimension per variable of the distribution; an enumerated site has its own variable as the event
        given = [dim for dim, v in zip(self.dims, self.variables, strict=True) if v is not site.own]
        if parameter.dim() - event - self.extra > nesting:
            batch = parameter.shape[: parameter.dim() - event - self.extra]
            if any(batch[d] > 1 and d not in given for d in range(-len(batch), -nesting)):
                return False
        plates = parameter.shape[max(0, parameter.dim() - event - self.extra - nesting) : parameter.dim() - event - self.extra]
        if site.own is None and any(
            size > 1 and dim - len(plates) not in self.summed for dim, size in enumerate(plates)
        ):
            return False  # another distribution for every row
        self.kind, self.name = type(fn), name
        self.parameter = canonical(parameter, given, nesting, event + self.extra)
        self.value = None
        if site.own is None:
            value_event = len(fn.event_shape) + self.extra
            value = site.value
            if value.dim() - value_event > nesting:
                return False
            value = narrow(value, value_event)
            self.value = value.reshape((1,) * (nesting + value_event - value.dim()) + tuple(value.shape))
        return True

    # ------------------------------------------------------------------------------------------------ all alike sites
    def evaluate(self, parts: list[_Part]) -> Tensor:
        """(G, *plates, *variables)"""
        values = self._evaluate(parts)
        return values.expand(*values.shape[: 1 + self.nesting], *(variable.size for variable in self.variables))

    def _evaluate(self, parts: list[Any]) -> Tensor:
        if self.reading is not None and self.site.own is not None:
            return statistics.enumerated(self)
        if self.reading is not None:
            value, mask = torch.stack([part.value for part in parts]), None
            if self.mask is not None:
                mask = torch.stack([part.mask for part in parts])
            self._check(parts, value)
            found = statistics.observed(parts, value, mask)
            if found is not None:
                return found
            self.kind = None
        if self.kind is None:
            found = binary.sums_at_steps(parts, [part.site.whole[1] for part in parts]) if self.key[0] == "steps" else None
            return torch.stack([part.alone() for part in parts]) if found is None else found
        parameter = torch.stack([part.parameter for part in parts])
        mask = None if self.mask is None else torch.stack([part.mask for part in parts])
        if self.site.own is not None:
            return self._enumerated(parameter, mask)
        value = torch.stack([part.value for part in parts])
        self._check(parts, value)
        found = self._observed(parameter, value, mask)
        return torch.stack([part.alone() for part in parts]) if found is None else found

    def _check(self, parts: list[_Part], value: Tensor) -> None:
        fn = self.site.fn
        if not getattr(fn, "_validate_args", False):
            return
        inner, _ = unwrap(fn)
        if isinstance(inner, dist.Categorical):
            fine = (value >= 0) & (value < inner.param_shape[-1]) & (value == value.floor())
        else:
            fine = inner.support.check(value)
        if not bool(fine.all()):
            for part in parts:  # says which, as Pyro would
                part.site.fn.log_prob(part.site.value)

    def _log_probs(self, parameter: Tensor) -> Tensor:
        """Log-probabilities of all values: a last dimension of K, 2 for a Bernoulli."""
        logits = parameter
        if self.name == "probs":
            logits = probs_to_logits(parameter, is_binary=self.kind is dist.Bernoulli)
        if self.kind is dist.Bernoulli:
            return torch.nn.functional.logsigmoid(torch.stack([-logits, logits], -1))
        return logits

    def _plates_first(self, value: Tensor, variables: int) -> Tensor:
        """(G, *variables, *plates, ...) -> (G, *plates, *variables, ...)"""
        return value.movedim(tuple(range(1, 1 + variables)), tuple(range(1 + self.nesting, 1 + self.nesting + variables)))

    def _enumerated(self, parameter: Tensor, mask: Tensor | None) -> Tensor:
        own = self.variables.index(self.site.own)
        logs = self._log_probs(parameter)
        table = self._plates_first(logs, len(self.variables) - 1)
        table = table.movedim(-1, 1 + self.nesting + own)
        return _padded(table, mask, self.nesting, own) if mask is not None else table

    def _observed(self, parameter: Tensor, value: Tensor, mask: Tensor | None) -> Tensor | None:
        count, nesting = len(self.variables), self.nesting
        logs = self._log_probs(parameter)  # (G, *variables, *plates, *extra, values)
        if not bool(logs.detach().isfinite().all()):
            return None  # no count of zero may meet an infinity
        counts = self._counts(value, mask, logs)  # (G, *plates, *extra, values)
        # what is summed goes to the end: (G, variables, summed) and (G, rows, summed)
        summed = [1 + nesting + dim for dim in self.summed] + list(range(1 + nesting, counts.dim()))
        rows = [d for d in range(1, 1 + nesting) if d not in summed]
        full = [self.sizes[dim] if dim in self.summed else counts.shape[1 + nesting + dim] for dim in range(-nesting, 0)]
        counts = counts.expand(-1, *full, *counts.shape[1 + nesting :])
        shape = [counts.shape[d] for d in summed]
        tail = logs.shape[1 + count + nesting :]
        logs = logs.expand(*logs.shape[: 1 + count], *(
            size if dim in self.summed else 1 for dim, size in zip(range(-nesting, 0), self.sizes, strict=True)
        ), *tail)  # fmt: skip
        order = [*range(1 + count), *(d + count for d in rows), *(d + count for d in summed)]
        states = logs.shape[1 : 1 + count]
        logs = logs.permute(order).reshape(len(logs), states.numel(), -1)
        flat = counts.permute(0, *rows, *summed).reshape(len(counts), -1, torch.Size(shape).numel())
        result = flat @ logs.transpose(1, 2)  # (G, rows, variables)
        sizes = [1 if dim in self.summed else counts.shape[1 + nesting + dim] for dim in range(-nesting, 0)]
        return result.reshape(len(counts), *sizes, *states)

    def _counts(self, value: Tensor, mask: Tensor | None, like: Tensor) -> Tensor:
        """How often each value was seen: (G, *plates, *extra, values), 0 where masked."""
        if mask is not None:
            mask = mask.reshape(*mask.shape, *(1,) * (value.dim() - mask.dim()))
            value = torch.where(mask, value, 0)
        if self.kind is dist.Bernoulli:
            value = value.to(like.dtype)
            counts = torch.stack([1 - value, value], -1)
            return counts if mask is None else counts * mask.unsqueeze(-1)
        if self.kind is dist.Categorical:
            seen = torch.nn.functional.one_hot(value.long(), like.shape[-1]).to(like.dtype)
            return seen if mask is None else seen * mask.unsqueeze(-1)
        return value.to(like.dtype)

    def alone(self) -> Tensor:
        """(*plates, *variables) of one site, by its own ``log_prob``."""
        site, count = self.site, len(self.variables)
        found = binary.sums_by_row(self)
        if found is not None:
            return found
        score = self._binary()
        if score is None:
            score = in_float32(site.fn.log_prob(site.value) if site.score is None else site.score)
        mask, late = (None if site.own is not None else site.mask), None
        if mask is False:
            score = torch.zeros_like(score)
        elif isinstance(mask, Tensor):
            if self.mask is not None and all(self.mask.shape[dim] == 1 for dim in self.summed):
                late = self.mask  # whole sums
            else:
                score = torch.where(mask, score, 0.0)
        score = canonical(score, self.dims, self.nesting)
        score = score.expand(*score.shape[:count], *(
            size if dim in self.summed else own
            for dim, size, own in zip(range(-self.nesting, 0), self.sizes, score.shape[count:], strict=True)
        ))  # fmt: skip
        if self.summed:
            score = score.sum(self.summed, keepdim=True)
        if late is not None:
            score = torch.where(late, score, 0.0)
        score = score.movedim(tuple(range(count)), tuple(range(self.nesting, self.nesting + count)))
        if site.own is not None and self.mask is not None:
            own = self.variables.index(site.own)
            score = _padded(score.unsqueeze(0), self.mask.unsqueeze(0), self.nesting, own).squeeze(0)
        return score

    def _binary(self) -> Tensor | None:
        """Log-probabilities of a Bernoulli's observed values in few passes over its parameter; None for anything else."""
        fn, value = self.site.fn, self.site.value
        if self.site.own is not None or type(fn) is not dist.Bernoulli or value.dim() > self.nesting:
            return None
        found = _parameter(fn)
        if found is None or not bool(((value == 0) | (value == 1)).all()):
            return None
        name, parameter, _ = found
        parameter = in_float32(parameter.value() if type(parameter) is Lookup else parameter)
        value = value.to(parameter.dtype)
        if name == "logits":
            return torch.nn.functional.logsigmoid(parameter * (2 * value - 1))
        eps = torch.finfo(parameter.dtype).eps
        return torch.addcmul(1 - value, parameter, 2 * value - 1).clamp(eps, 1 - eps).log()


def _padded(table: Tensor, mask: Tensor, nesting: int, own: int) -> Tensor:
    """Where masked, a state has one value, its first: a table of 0 there and -inf elsewhere."""
    count = table.dim() - 1 - nesting
    mask = mask.reshape(*mask.shape, *(1,) * count)
    first = torch.arange(table.shape[1 + nesting + own], device=table.device) == 0
    first = first.reshape(-1, *(1,) * (count - 1 - own))
    return torch.where(mask, table, torch.where(first, 0.0, -torch.inf).to(table.dtype))
