"""Parameter sets one after the other through the compiled loops: :mod:`pplseq.kernels.restart_scan` for few and long rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pplseq.kernels import compiled, compiled_chain

if TYPE_CHECKING:
    from pplseq.kernels.restart_scan import Lattice

SIDE_BY_SIDE = 24  # rows times parameter sets from which on one operation a step for all of them is faster


def pays(pair: Tensor, lattice: Lattice) -> bool:
    """Whether a parameter set at a time, row by row, is the faster way."""
    few = lattice.sizes[0] * pair.shape[-1] < SIDE_BY_SIDE and pair.shape[0] <= compiled_chain.MOST_OWN
    return few and pair.device.type == "cpu" and pair.dtype == torch.float64 and compiled.available()


def log_prob(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> Tensor:
    """(B, R), in the order of the sorted rows; the tables are those of ``restart_scan``."""
    found = [_forward(init[..., r], pair[..., r], emit[..., r], lattice)[0] for r in range(pair.shape[-1])]
    return torch.stack(found, -1)


def expectation(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p(x | u) (B, R) by sorted row, and expected counts in the tables' shapes."""
    parts = [_expectation(init[..., r], pair[..., r], emit[..., r], lattice) for r in range(pair.shape[-1])]
    one, two, three, four = (torch.stack(part, -1) for part in zip(*parts, strict=True))
    return one, two, three, four


def _forward(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice):
    mask, num_states = lattice.mask, len(init)
    seen = emit if lattice.emit_index is None else emit.index_select(1, lattice.emit_index)
    emissions = emit.new_zeros(*mask.shape, num_states)
    emissions[mask] = seen.T
    table = pair.permute(2, 0, 1).contiguous()
    first = torch.zeros(mask.shape[1], dtype=torch.int64)
    if len(table) == 1:
        links = compiled_chain.Links(table, first, 0)
    else:
        numbers = torch.zeros(mask.shape, dtype=torch.int64)
        numbers[mask] = torch.arange(lattice.num_packed) if lattice.pair_index is None else lattice.pair_index
        links = compiled_chain.Links(table, first, 1, numbers)
    lengths = mask.sum(0).numpy()
    steps, kept = compiled_chain.forward_along(init[:, lattice.init_index].T, links, emissions, lengths, table.shape)
    return steps.sum(0), kept


def _expectation(init: Tensor, pair: Tensor, emit: Tensor, lattice: Lattice):
    log_prob, kept = _forward(init, pair, emit, lattice)
    states, pairs = compiled_chain.smooth(kept, torch.ones_like(log_prob))
    assert pairs is not None, "asked for"
    start = torch.zeros_like(init).index_add_(1, lattice.init_index, states[0].T)
    packed = states[lattice.mask].T
    if lattice.emit_index is not None:
        packed = torch.zeros_like(emit).index_add_(1, lattice.emit_index, packed)
    return log_prob, start, pairs.permute(1, 2, 0), packed
