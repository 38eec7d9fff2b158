"""What :mod:`pplseq.kernels.scan` and :mod:`pplseq.kernels.path_scan` ask of a GPU, in their terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pplseq.kernels.triton import chain, paths, shared

if TYPE_CHECKING:
    from pplseq.kernels.scan import StepMatrices


class Steps(NamedTuple):
    """The factors of a chain with all batch dimensions as one; see :mod:`pplseq.kernels.triton.chain`."""

    table: Tensor
    number: Tensor
    emit: Tensor
    flags: Tensor
    begin: Tensor | None

    @property
    def products(self) -> bool:
        """Whether matrix products serve."""
        return self.begin is None and shared.pays(self.table, self.emit)


def applies(matrices: StepMatrices, emit: Tensor) -> bool:
    """Whether the kernels do for this chain."""
    return emit.shape[0] > 1 and chain.applies(matrices.log, emit)


def steps_of(matrices: StepMatrices, emit: Tensor, valid: Tensor | None) -> Steps:
    """A chain's factors as the kernels take them."""
    num_steps, *batch, num_states = emit.shape
    device, batch = emit.device, torch.Size(batch)
    num_rows, table = batch.numel(), matrices.log.reshape(-1, num_states, num_states)
    if matrices.shared:
        number = torch.arange(len(table), device=device).reshape(matrices.log.shape[:-2]).expand(batch).reshape(-1)
        number = number.expand(num_steps, num_rows)
    else:
        number = torch.arange(-num_rows, (num_steps - 1) * num_rows, device=device).view(num_steps, num_rows).clamp_min(0)
    restart = begin = None
    if matrices.restart is not None and matrices.restart_to is not None:
        restart = matrices.restart.expand(num_steps, *batch).reshape(num_steps, num_rows)
        begin = matrices.restart_to.expand(*emit.shape).reshape(num_steps, num_rows, num_states)
    valid = None if valid is None else valid.reshape(num_steps, num_rows)
    rows = emit.reshape(num_steps, num_rows, num_states)
    return Steps(table, number, rows, chain.flags_of(valid, restart, rows), begin)


def forward_pass(init: Tensor, matrices: StepMatrices, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """log p(z_t | x_<=t) (T, *B, K) and log p(x_t | x_<t) (T, *B)."""
    s = steps_of(matrices, emit, valid)
    start = init.expand(emit.shape[1:]).reshape(s.emit.shape[1:])
    if s.products:
        messages, steps = shared.filtered(start, s.table[0], s.emit, s.flags)
    else:
        messages, steps = chain.filtered(start, s.table, s.number, None, s.emit, s.flags, s.begin)
    return messages.reshape(emit.shape), steps.reshape(emit.shape[:-1])


def backward_pass(matrices: StepMatrices, emit: Tensor, valid: Tensor | None) -> Tensor:
    """log p(x_>t | z_t) up to a constant a step, (T, *B, K)."""
    s = steps_of(matrices, emit, valid)
    if s.products:
        return shared.look_back(s.table[0], s.emit, s.flags).reshape(emit.shape)
    return chain.look_back(s.table, s.number, None, s.emit, s.flags).reshape(emit.shape)


def pair_posterior(
    matrices: StepMatrices, emit: Tensor, filtered: Tensor, steps: Tensor, ahead: Tensor, valid: Tensor | None,
    weight: Tensor | None,
) -> Tensor:  # fmt: skip
    """weight * p(z_{t-1}, z_t | x): (T-1, *B, K, K), or summed to the shape of shared matrices."""
    s = steps_of(matrices, emit, valid)
    num_steps, num_rows, num_states = s.emit.shape
    filtered, ahead = filtered.reshape(s.emit.shape), ahead.reshape(s.emit.shape)
    sides = chain.pair_sides(filtered, steps.reshape(num_steps, num_rows), None, s.emit, ahead)
    left, right, shift = (value.flatten(0, 1) for value in sides)
    scale = emit.new_ones(num_rows) if weight is None else weight.reshape(-1)
    order, first = chain.by_matrix(s.number[1:], s.flags[1:] == 1, len(s.table))
    scale = scale.expand(num_steps - 1, num_rows).reshape(-1)
    return chain.pair_counts(s.table, order, first, left, right, shift, scale).reshape(matrices.log.shape)


def viterbi_pass(init: Tensor, matrices: StepMatrices, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The most probable paths (T, *B) and log p(path, x) (*B,)."""
    s = steps_of(matrices, emit, valid)
    start = init.expand(emit.shape[1:]).reshape(s.emit.shape[1:])
    path, log_prob = paths.best_paths(start, s.table, s.number, s.emit, s.flags, s.begin)
    return path.reshape(emit.shape[:-1]), log_prob.reshape(emit.shape[1:-1])


def sample_pass(matrices: StepMatrices, filtered: Tensor, valid: Tensor | None, num_samples: int) -> Tensor:
    """Posterior paths (S, T, *B) by backward sampling from log p(z_t | x_<=t) (T, *B, K)."""
    s = steps_of(matrices, filtered, valid)
    uniform = torch.rand(num_samples, *s.number.shape, dtype=torch.float64, device=filtered.device)
    found = paths.drawn_paths(s.table, s.number, s.emit, s.flags, s.begin, uniform)
    return found.reshape(num_samples, *filtered.shape[:-1])
