"""Observed zeros and ones whose logits were computed from states and data, as a network's: summed over inner plates row by row.

Such logits are no table that rows share. They go to :mod:`pplseq.kernels.binary` as they are, of all steps of a vectorised loop
at once.
"""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pplseq.distributions.timed import Timed
from pplseq.infer.programs.factors.lookups import Lookup
from pplseq.kernels.binary.log_probs import row_log_probs
from pplseq.kernels.log_semiring import in_float32


def has_logits(fn: Any) -> bool:
    """Whether a distribution is a Bernoulli by cell with logits that are no table's."""
    own = fn.__dict__
    return type(fn) is dist.Bernoulli and "logits" in own and "probs" not in own and type(own["logits"]) is not Lookup


def sums_by_row(part: Any) -> Tensor | None:
    """(*plates, *variables) of one site, inner plates summed and masked rows 0; None where its sums are no sums of rows."""
    site = part.site
    if site.own is not None or not has_logits(site.fn) or isinstance(site.value, Timed):
        return None
    mask = site.mask if isinstance(site.mask, Tensor) else None
    if site.mask is False:
        return None
    logits, value = site.fn.__dict__["logits"].unsqueeze(0), site.value.unsqueeze(0)
    found = _sums(part, logits, value, None if mask is None else mask.unsqueeze(0))
    return None if found is None else found.squeeze(0)


def sums_at_steps(parts: list[Any], places: list[int]) -> Tensor | None:
    """(T, *plates, *variables) of one site of a vectorised loop at all of its steps; None as above."""
    first = parts[0]
    whole = first.site.whole[0]
    logits = whole.fn.__dict__["logits"]
    if not isinstance(logits, Timed) or places != list(range(len(logits.steps))) or whole.mask is False:
        return None
    alike = [_all_steps(x, len(places)) for x in (logits, whole.value, whole.mask if isinstance(whole.mask, Tensor) else None)]
    return _sums(first, *alike)


def _all_steps(value, count: int) -> Any:
    """(T, ...) of one a step, or of one for all."""
    if value is None:
        return None
    return value.steps if isinstance(value, Timed) else value.expand(count, *value.shape)


def _sums(part: Any, logits: Tensor, value: Tensor, mask: Tensor | None) -> Tensor | None:
    """(N, *plates, *variables) from logits (N, *enumerated, *plates), value (N, *plates) and mask."""
    nesting, dims = part.nesting, part.dims
    if logits.dim() - 1 < nesting or value.dim() - 1 > nesting or mask is not None and mask.dim() - 1 > nesting:
        return None
    # plates: first those that stay, then those that are summed
    last = [dim for dim in range(-nesting, 0) if dim in part.summed]
    if not last or last != list(range(-len(last), 0)):
        return None
    count, plates = len(logits), logits.shape[logits.dim() - nesting :]
    rows, cells = plates[: nesting - len(last)], plates[nesting - len(last) :]
    if any(size != part.sizes[dim] for size, dim in zip(cells, last, strict=True)):
        return None
    lead = logits.shape[1 : logits.dim() - nesting]
    at = [len(lead) + nesting + dim for dim in dims]
    if any(size > 1 and k not in at for k, size in enumerate(lead)):
        return None
    order = sorted(range(len(at)), key=at.__getitem__)  # in which variables lie in memory
    sizes = [lead[at[k]] if at[k] >= 0 else 1 for k in order]
    value = value.reshape(count, *(1,) * (nesting - value.dim() + 1), *value.shape[1:])
    if any(own not in (1, size) for own, size in zip(value.shape[1:], plates, strict=True)):
        return None
    if not bool(((value == 0) | (value == 1)).all()):
        return None
    if mask is not None:
        mask = mask.reshape(count, *(1,) * (nesting - mask.dim() + 1), *mask.shape[1:])
        if any(size > 1 for size in mask.shape[1 + len(rows) :]):
            return None
        if any(own not in (1, size) for own, size in zip(mask.shape[1:], rows, strict=False)):
            return None
        mask = mask.reshape(count, *mask.shape[1 : 1 + len(rows)]).expand(count, *rows).reshape(count, -1)
    num_rows, num_cells = torch.Size(rows).numel(), torch.Size(cells).numel()
    logits = in_float32(logits).reshape(count, -1, num_rows, 1, num_cells)
    value = value.expand(count, *plates).reshape(count, num_rows, num_cells) != 0
    found = row_log_probs(logits, value, mask)
    found = found.reshape(count, *sizes, *rows, *(1,) * len(last))
    return found.movedim(tuple(range(1, 1 + len(order))), tuple(1 + nesting + k for k in order))
