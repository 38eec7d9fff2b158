"""Paths through a chain of factors: the best one, the k best, and samples; see :mod:`pplseq.kernels.scan`."""

from __future__ import annotations

import math
from typing import TypeGuard

import torch
from torch import Tensor

from pplseq.kernels import compiled, shared_matrix
from pplseq.kernels.chain import call, piece_call
from pplseq.kernels.scan import LogMatrices, StepMatrices, as_rows, is_shared
from pplseq.kernels.triton import scans as device

MAX_CELLS = 1 << 26  # cells of the largest temporary in a max step


def max_forward(message: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """max_i (message_i + A_ij) and the arg max, (*B, K); by tiles of target states where B K K is large."""
    num_to = matrix.shape[-1]
    tile = max(1, MAX_CELLS // max(1, message.numel()))
    if tile >= num_to:
        best = (message.unsqueeze(-1) + matrix).max(-2)
        return best.values, best.indices
    parts = [(message.unsqueeze(-1) + part).max(-2) for part in matrix.split(tile, -1)]
    return torch.cat([p.values for p in parts], -1), torch.cat([p.indices for p in parts], -1)


def viterbi_pass(init: Tensor, matrices: LogMatrices, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The most probable path, as positions (T, *B), and its log-probability log p(path, x) (*B,)."""
    if loops_apply(matrices, emit) and call.pays("viterbi", _sizes(emit)[:2], emit.shape[-1]):
        return piece_call.viterbi_pass(init, matrices.log, matrices.shared, emit, valid)
    if isinstance(matrices, StepMatrices) and device.applies(matrices, emit):
        return device.viterbi_pass(init, matrices, emit, valid)
    return viterbi_in_torch(init, matrices, emit, valid)


def loops_apply(matrices: LogMatrices, emit: Tensor) -> TypeGuard[StepMatrices]:
    """Whether the compiled loops do for this chain's paths."""
    if not isinstance(matrices, StepMatrices) or matrices.restart is not None:
        return False
    return piece_call.applies(matrices.log, emit) and not bool(matrices.log.isnan().any())


def viterbi_in_torch(init: Tensor, matrices: LogMatrices, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """:func:`viterbi_pass` in tensor operations, a few a step."""
    if is_shared(matrices, emit):
        batch, (emit, valid) = emit.shape[1:-1], as_rows(emit, valid)
        path, log_prob = shared_matrix.viterbi_pass(init.reshape(emit.shape[1:]), matrices.log, emit, valid)
        return path.reshape(-1, *batch), log_prob.reshape(batch)
    message = init + emit[0]
    if valid is not None:
        message = message.where(valid[0].unsqueeze(-1), 0.0)
    pointers, log_prob = [], _nothing(emit)
    identity = torch.arange(emit.shape[-1], device=emit.device)
    for t in range(1, emit.shape[0]):
        best, pointer = max_forward(message, matrices.at(t))
        best = best + emit[t]
        if valid is not None:
            keep = valid[t].unsqueeze(-1)
            best, pointer = torch.where(keep, best, message), torch.where(keep, pointer, identity)
        message, log_prob = rescaled(best, log_prob, (-1,))
        pointers.append(pointer)
    best, position = message.max(-1)
    log_prob = (log_prob + best).to(emit.dtype)
    path = [position]
    for pointer in reversed(pointers):
        position = pointer.gather(-1, position.unsqueeze(-1)).squeeze(-1)
        path.append(position)
    return torch.stack(path[::-1]), log_prob


def _nothing(emit: Tensor) -> Tensor:
    return torch.zeros(emit.shape[1:-1], dtype=torch.float64, device=emit.device)


def rescaled(score: Tensor, total: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Scores relative to their best, which is added to the total: sums of thousands of logs lose digits in float32."""
    top = score.amax(dims, keepdim=True).clamp_min(torch.finfo(score.dtype).min)
    return score - top, total + top.reshape(total.shape)


def k_best_pass(
    init: Tensor, matrices: LogMatrices, emit: Tensor, valid: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k most probable distinct paths: positions (k, T, *B) and log-probabilities (k, *B), -inf where there are fewer.

    List Viterbi: k hypotheses a state; cost k times Viterbi's.
    """
    batch, num_states = emit.shape[1:-1], emit.shape[-1]
    message = emit.new_full((*batch, num_states, k), -math.inf)
    first = init + emit[0]
    if valid is not None:
        # a row without steps has one path
        nothing = torch.zeros_like(first).index_fill_(-1, torch.arange(1, num_states, device=emit.device), -math.inf)
        first = first.where(valid[0].unsqueeze(-1), nothing)
    message[..., 0] = first
    identity = torch.arange(num_states * k, device=emit.device).view(num_states, k)
    pointers, total = [], _nothing(emit)
    for t in range(1, emit.shape[0]):
        # (*B, from, k, to) -> (*B, to, from * k)
        score = message.unsqueeze(-1) + matrices.at(t).unsqueeze(-2)
        score = score.reshape(*batch, num_states * k, num_states).transpose(-1, -2)
        best = score.topk(k, dim=-1)
        values, pointer = best.values + emit[t].unsqueeze(-1), best.indices
        if valid is not None:
            keep = valid[t][..., None, None]
            values, pointer = torch.where(keep, values, message), torch.where(keep, pointer, identity)
        message, total = rescaled(values, total, (-2, -1))
        pointers.append(pointer)
    best, position = message.flatten(-2).topk(k, dim=-1)  # (*B, k) positions in state * k + rank
    log_prob = (total.unsqueeze(-1) + best).to(emit.dtype)
    path = [position // k]
    for pointer in reversed(pointers):
        position = pointer.flatten(-2).gather(-1, position)
        path.append(position // k)
    return torch.stack(path[::-1]).movedim(-1, 0), log_prob.movedim(-1, 0)


def sample_pass(matrices: LogMatrices, filtered: Tensor, valid: Tensor | None, num_samples: int) -> Tensor:
    """Exact posterior paths by backward sampling from the filtered messages: positions (S, T, *B)."""
    if isinstance(matrices, StepMatrices) and device.applies(matrices, filtered):
        return device.sample_pass(matrices, filtered, valid, num_samples)
    # the same numbers whichever way: the same paths
    uniform = torch.rand(num_samples, *filtered.shape[:-1], dtype=torch.float64, device=filtered.device)
    num_rows, num_steps, num_states = _sizes(filtered)
    if loops_apply(matrices, filtered):
        work = 12 * num_steps, 10 * num_samples * num_steps * num_rows * num_states
        if compiled.pays("kernels.chain.loops.sample", *work):
            return piece_call.sample_pass(matrices.log, matrices.shared, filtered, valid, uniform)
    return sample_in_torch(matrices, filtered, valid, uniform)


def _sizes(emit: Tensor) -> tuple[int, int, int]:
    """Rows, steps and states of (T, *B, K)."""
    return emit.shape[1:-1].numel(), emit.shape[0], emit.shape[-1]


def sample_in_torch(matrices: LogMatrices, filtered: Tensor, valid: Tensor | None, uniform: Tensor) -> Tensor:
    """:func:`sample_pass` in tensor operations, a few a step, by ``uniform`` (S, T, *B)."""
    last = uniform[:, -1]
    if valid is not None:  # a row's own last step
        at = valid.sum(0).sub(1).clamp_min(0).expand(len(uniform), 1, *valid.shape[1:])
        last = uniform.gather(1, at).squeeze(1)
    position = place_of(filtered[-1].expand(len(uniform), *filtered.shape[1:]), last)
    path = [position]
    for t in range(filtered.shape[0] - 1, 0, -1):
        column = take_columns(matrices.at(t), position)
        new = place_of(filtered[t - 1] + column, uniform[:, t - 1])
        position = new if valid is None else torch.where(valid[t], new, position)
        path.append(position)
    return torch.stack(path[::-1], 1)


def take_columns(matrix: Tensor, position: Tensor) -> Tensor:
    """matrix[..., :, position]: (*S, *B, K)."""
    if matrix.dim() == 2:
        return matrix.T[position]
    transposed = matrix.transpose(-1, -2)
    batch = torch.broadcast_shapes(transposed.shape[:-2], position.shape)
    transposed = transposed.expand(*batch, *transposed.shape[-2:])
    index = position.expand(batch)[..., None, None].expand(*batch, 1, transposed.shape[-1])
    return transposed.gather(-2, index).squeeze(-2)


def place_of(log_weight: Tensor, uniform: Tensor) -> Tensor:
    """One index per row of unnormalised log weights (..., K), by a number (...) in [0, 1): where shares add up to more."""
    log = log_weight.double()
    top = log.amax(-1, keepdim=True)
    total = (log - torch.where(top.isneginf(), 0.0, top)).exp().cumsum(-1)
    last = total[..., -1:].contiguous()
    place = torch.searchsorted(total, uniform.expand(total.shape[:-1]).unsqueeze(-1) * last, right=True).squeeze(-1)
    # none but for rounding: the last one of a share
    return torch.minimum(place, torch.searchsorted(total, last).squeeze(-1))


def sample_log(log_weight: Tensor) -> Tensor:
    """One index per row of unnormalised log weights (Gumbel-max, so that -inf is never drawn if anything is finite)."""
    noise = torch.empty_like(log_weight).exponential_().log_()
    return (log_weight - noise).argmax(-1)
