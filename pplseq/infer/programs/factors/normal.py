"""Normal observations whose mean or scale is looked up at states: three sufficient statistics, without losing digits.

    log N(y; m, s) = -y^2 / 2 s^2 + y m / s^2 - m^2 / 2 s^2 - log s - log(2 pi) / 2,

summed over the cells of inner plates, is linear in the sums of y^2, of y and of ones. Large numbers are subtracted in it
where data and means lie far from zero for their scale, so both are counted from a centre of the data, in double precision;
where states lie too many scales apart even so, densities are computed one by one.
"""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pplseq.infer.programs.factors.lookups import Lookup
from pplseq.infer.programs.factors.statistics import Cells, Reading, flat, read, weighted

# the largest square of a distance in scales, of the type of the tables; errors are some 1e-16 of that, in nats
MOST = {torch.float64: 1e4, torch.float32: 1e8}
FEW = 64  # numbers of a constant that are compared by value


def read_normal(part: Any, fn: dist.Normal) -> Reading | None:
    """How the parameters of a site are read; None where they are not tables looked up at the same states, or constants."""
    loc, scale = fn.__dict__["loc"], fn.__dict__["scale"]
    looked, other = (loc, scale) if type(loc) is Lookup else (scale, loc)
    if type(looked) is not Lookup or part.site.own is not None or looked.table.dtype not in MOST:
        return None
    reading = read(part, "loc" if looked is loc else "scale", looked, 0)
    if reading is None:
        return None
    reading.sums = normal_sums
    if type(other) is not Lookup:
        reading.other = _constant(other, reading)
        return None if reading.other is None else reading
    second = read(part, "scale", other, 0)
    if second is None or second.order != reading.order or second.axes != reading.axes:
        return None
    for a, b in zip(looked.entries, other.entries, strict=True):
        if a.dim is None and a.index is not b.index and not torch.equal(a.index, b.index):
            return None
    reading.other, reading.other_key = second.table(other.table), ("table", id(other.table))
    return reading


def _constant(value: Tensor, reading: Reading) -> Tensor | None:
    """(*1, *axes) of a parameter that no state chooses, where it depends on nothing but counting axes."""
    for dim in range(value.dim()):
        if value.shape[dim] > 1 and value.stride(dim) == 0:
            value = value.narrow(dim, 0, 1)
    places = [axis.at for axis in reading.axes]
    if any(size > 1 and dim - value.dim() not in places for dim, size in enumerate(value.shape)):
        return None
    base = value if value._base is None else value._base
    if value.requires_grad or value.numel() > FEW:
        layout = value.shape, value.stride(), value.storage_offset()
        reading.other_key = ("constant", id(base), *layout)
    else:
        reading.other_key = ("number", value.shape, *value.flatten().tolist())
    sizes = [value.shape[at] if at is not None and value.dim() >= -at else 1 for at in places]
    order = sorted(range(len(places)), key=lambda k: -math.inf if (place := places[k]) is None else place)
    found = value.reshape([sizes[k] for k in order])
    found = found.permute([order.index(k) for k in range(len(places))])
    return found.reshape(*(1,) * reading.num_states, *found.shape)


def normal_sums(parts: list[Any], cells: Cells, value: Tensor, mask: Tensor | None) -> Tensor | None:
    """(G * rows, states) log-densities summed over the cells of each row; None where digits would be lost."""
    reading = parts[0].reading
    own = reading.table(reading.lookup.table)
    dtype, other = own.dtype, reading.other.to(own.dtype)
    loc, scale = (own, other) if reading.name == "loc" else (other, own)
    loc, scale = (part.double().expand(own.shape) for part in (loc, scale))
    if not bool((scale.detach() > 0).all()) or not value.is_floating_point():
        return None
    value, seen = value.double(), torch.ones((), dtype=torch.bool, device=value.device) if mask is None else mask
    alone = cells.has_own_entries(reading)
    centre = _centre(value.detach(), seen, cells.counting if alone else [])
    value = torch.where(seen, value - centre, 0.0)
    among = _of_entries(centre, reading) if alone else centre.reshape(())
    loc = loc - among
    if not _keeps_digits(value.detach(), loc.detach(), scale.detach(), reading, alone, dtype):
        return None
    precision = scale.square().reciprocal()
    rest = 0.5 * loc.square() * precision + scale.log() + 0.5 * math.log(2 * math.pi)
    tables = [(value, loc * precision, rest), (value.square(), -0.5 * precision, torch.zeros_like(rest))]
    total = torch.zeros((), dtype=torch.float64, device=value.device)
    for numbers, eta, less in tables:
        found = weighted(parts, cells, numbers, mask, *(flat(table, reading.num_states) for table in (eta, less)))
        if found is None:
            return None
        total = total + found
    return total.to(dtype)


def _centre(value: Tensor, seen: Tensor, counting: list[int]) -> Tensor:
    """The mean of what was seen, of each cell along counting dimensions; size 1 elsewhere."""
    over = [d for d in range(value.dim()) if d - value.dim() not in counting]
    seen = seen.expand(torch.broadcast_shapes(seen.shape, value.shape)) if seen.dim() else seen.expand(value.shape)
    count = seen.sum(over, keepdim=True)
    total = torch.where(seen, value, 0.0).sum(over, keepdim=True)
    return total / count.clamp_min(1)


def _of_entries(centre: Tensor, reading: Reading) -> Tensor:
    """(*1, *axes) of a centre along the batch dimensions that axes count."""
    places: list[int] = [axis.at for axis in reading.axes]  # pyright: ignore[reportAssignmentType]
    order = sorted(range(len(places)), key=lambda k: places[k])
    found = centre.reshape([centre.shape[places[k]] for k in order]).permute([order.index(k) for k in range(len(places))])
    return found.reshape(*(1,) * reading.num_states, *found.shape)


def _keeps_digits(value: Tensor, loc: Tensor, scale: Tensor, reading: Reading, alone: bool, dtype: torch.dtype) -> bool:
    if alone:
        over = [d for d in range(value.dim()) if d - value.dim() not in [axis.at for axis in reading.axes]]
        far = _of_entries(value.abs().amax(over, keepdim=True), reading)
    else:
        far = value.abs().max()
    # NaN and infinities are no digits
    return bool((((far + loc.abs()) / scale).square() < MOST[dtype]).all())
