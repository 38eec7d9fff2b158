"""Scans over chains whose steps share one transition matrix: two tensor operations a step.

The scans of :mod:`pplseq.kernels.scan` keep messages in log space and are right whatever the numbers. Here messages
are products of probabilities, rescaled every few steps. Where a product underflowed is found afterwards, for all steps at
once, and those rows are given back to the caller, who redoes them in log space.

Shapes: init (N, K), log_matrix (K, K) [from, to], emit (T, N, K), valid (T, N) or None, all as in ``scan`` with rows N.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels.step_ops import step_ops

# within so many steps a message stays in range unless its row is redone anyway
RESCALE_EVERY = {torch.float64: 8, torch.float32: 2}
# a smaller entry may have lost digits, or be what is left of several that underflowed
LOWEST = {torch.float64: 1e-280, torch.float32: 1e-30}
MAX_CELLS = 1 << 16  # of one tile of a max step: it stays in a core's own cache
RESCALE_SCORES = 64


def applies(log_matrix: Tensor, emit: Tensor) -> bool:
    """Whether the chain is of the kind meant here, in a type whose range is known."""
    return log_matrix.dim() == 2 and emit.dtype in LOWEST and emit.shape[0] > 1


def _relative(log: Tensor, dim) -> tuple[Tensor, Tensor]:
    """exp(log - max) and that max, over ``dim``; finite also where everything is -inf."""
    top = log.amax(dim, keepdim=True).clamp_min(torch.finfo(log.dtype).min)
    return (log - top).contiguous().exp_(), top


def _relative_emit(emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    relative, top = _relative(emit, -1)
    if valid is not None:  # what follows a row's end is never read, but must not decay to nothing
        relative = relative.masked_fill_(~valid.unsqueeze(-1), 1.0)
    return relative, top


def _reaches(positive: Tensor, log_matrix: Tensor) -> Tensor:
    """Which states are led to from any of the ``positive`` ones."""
    dtype = log_matrix.dtype
    return positive.to(dtype) @ (~torch.isneginf(log_matrix)).to(dtype) > 0


def forward_pass(init: Tensor, log_matrix: Tensor, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Filtering.

    Returns:
        p(z_t | x_<=t) (T, N, K), the last one carried over padded steps; log p(x_t | x_<t) (T, N), 0 at padded steps; and
        the rows (N,) that have to be redone in log space.
    """
    every = RESCALE_EVERY[emit.dtype]
    matrix, matrix_top = _relative(log_matrix, (-2, -1))
    relative, emit_top = _relative_emit(emit, valid)
    first, first_top = _relative(init, -1)
    messages = torch.empty_like(relative, memory_format=torch.contiguous_format)
    torch.mul(first, relative[0], out=messages[0])
    ops = step_ops(emit.device, relative[0].numel() * len(matrix), len(first))
    (factor,) = ops.views(matrix.unsqueeze(0))
    with np.errstate(all="ignore"):
        message, *out = ops.views(messages)
        for t, (target, weights) in enumerate(zip(out, ops.views(relative[1:]), strict=True), 1):
            if t % every == 0:
                message = message / message.sum(-1, keepdims=True)
            ops.product(message, factor, target)
            message = ops.multiply(target, weights, target)
    total = messages.sum(-1)
    redo = _lost_forward(messages, total, init, log_matrix, emit, valid)

    messages /= total.unsqueeze(-1)
    log_total = total.log_()
    steps = log_total + emit_top.squeeze(-1)
    carried = torch.arange(1, len(steps), device=emit.device) % every != 0  # not rescaled: the total before is in it
    steps[1:] += matrix_top.squeeze() - log_total[:-1].where(carried.unsqueeze(-1), 0.0)
    steps[0] += first_top.squeeze(-1)
    if valid is not None:
        steps = steps.where(valid, 0.0)
        last = (valid.sum(0) - 1).clamp_min(0)
        ends = messages.gather(0, last[None, :, None].expand(1, *messages.shape[1:]))
        messages = torch.where(valid.unsqueeze(-1), messages, ends)
    return messages, steps, redo


def _lost_forward(messages, total, init, log_matrix, emit, valid) -> Tensor:
    """(N,) rows in which an entry, or a whole message, is too small to be trusted and is not a true zero."""
    if bool(messages.amin() >= LOWEST[emit.dtype]):  # not so if any is NaN
        return torch.zeros_like(total[0], dtype=torch.bool)
    low, gone = ~(messages >= LOWEST[emit.dtype]), ~(total > 0)
    if valid is not None:
        low, gone = low & valid.unsqueeze(-1), gone & valid
    gone = gone.any(0)
    low &= ~torch.isneginf(emit)
    low[0] &= ~torch.isneginf(init)
    low[1:] &= _reaches(messages[:-1] > 0, log_matrix)
    return low.any(-1).any(0) | gone


def lost_digits(probs: Tensor, logs: Tensor, valid: Tensor | None) -> Tensor:
    """(N,) rows in which probs = exp(logs) underflowed."""
    low = ~(probs >= LOWEST[probs.dtype]) & ~torch.isneginf(logs)
    return (low if valid is None else low & valid.unsqueeze(-1)).any(-1).any(0)


def _backward_messages(log_matrix, relative, valid) -> Tensor:
    """p(x_>t | z_t) up to a factor per step and row, (T, N, K)."""
    every = RESCALE_EVERY[relative.dtype]
    transposed = _relative(log_matrix, (-2, -1))[0].T.contiguous()
    messages = torch.empty_like(relative, memory_format=torch.contiguous_format)
    messages[-1] = 1.0
    ops = step_ops(relative.device, relative[0].numel() * len(transposed), relative.shape[1])
    (factor, evidence), padded = (ops.views(part.unsqueeze(0))[0] for part in (transposed, relative[0].clone())), None
    if valid is not None:
        padded = ops.views((~valid).unsqueeze(-1))
    out, weights = ops.views(messages), ops.views(relative)
    with np.errstate(all="ignore"):
        message = out[-1]
        for t in range(len(out) - 1, 0, -1):
            ops.multiply(message, weights[t], evidence)
            if t % every == 0:
                evidence /= evidence.sum(-1, keepdims=True)
            message = ops.product(evidence, factor, out[t - 1])
            if padded is not None:
                ops.keep(message, 1.0, padded[t])
    return messages


def _lost_backward(messages, log_matrix, emit, valid) -> Tensor:
    if bool(messages.amin() >= LOWEST[emit.dtype]):
        return torch.zeros(messages.shape[1], dtype=torch.bool, device=emit.device)
    low = ~(messages >= LOWEST[emit.dtype])
    if valid is not None:
        low &= valid.unsqueeze(-1)
    positive = (messages[1:] > 0) & ~torch.isneginf(emit[1:])
    low[:-1] &= _reaches(positive, log_matrix.T) | messages[:-1].isnan()
    return low.any(-1).any(0)


def backward_pass(log_matrix: Tensor, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """log p(x_>t | z_t) up to a constant per step and row (T, N, K), and the rows (N,) to be redone in log space."""
    messages = _backward_messages(log_matrix, _relative_emit(emit, valid)[0], valid)
    redo = _lost_backward(messages, log_matrix, emit, valid)
    return messages.log_(), redo


def smooth(
    forward: Tensor,
    steps: Tensor,
    log_matrix: Tensor,
    emit: Tensor,
    valid: Tensor | None,
    weight: Tensor | None = None,
    pairs: bool = True,
    lost: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Single and pair marginals from the results of the forward pass, without a logarithm.

    Args:
        forward, steps: p(z_t | x_<=t) (T, N, K) and log p(x_t | x_<t) (T, N).
        weight: (N,) multiplies each row of the pairs; None stands for one.
        pairs: False to leave out the pairs.
        lost: (N,) rows of ``forward`` that are known to have lost digits, or None.

    Returns:
        p(z_t | x) (T, N, K), 0 at padded steps; sum over t and rows of weight * p(z_t, z_{t+1} | x) (K, K); and the rows
        (N,) to be redone in log space, which are left out of the pairs.
    """
    lowest = LOWEST[emit.dtype]
    matrix, matrix_top = _relative(log_matrix, (-2, -1))
    relative, emit_top = _relative_emit(emit, valid)
    backward = _backward_messages(log_matrix, relative, valid)
    redo = _lost_backward(backward, log_matrix, emit, valid)
    if lost is not None:
        redo |= lost
    # the evidence of a step relative to what the messages have in common
    scale = (steps - emit_top.squeeze(-1) - matrix_top.squeeze()).exp_()
    evidence = relative.mul_(backward)[1:] if pairs else relative
    posterior = backward.mul_(forward)
    total = posterior.sum(-1, keepdim=True)
    scale = scale[1:] * total[1:].squeeze(-1)
    faint = ~(torch.minimum(scale, total[1:].squeeze(-1)) >= lowest)
    if valid is not None:
        faint &= valid[1:]
        posterior *= valid.unsqueeze(-1)
    redo |= faint.any(0) | ~(total[0].squeeze(-1) >= lowest)
    posterior /= total
    if not pairs:
        return posterior, None, redo

    share = (1.0 if weight is None else weight) / scale
    share = share.masked_fill(redo if valid is None else redo | ~valid[1:], 0.0)
    shares = forward[:-1] * share.unsqueeze(-1)
    if bool(redo.any()):  # 0 times what overflowed there is no 0
        shares[:, redo], evidence[:, redo] = 0.0, 0.0
    num_states = emit.shape[-1]
    summed = shares.reshape(-1, num_states).T @ evidence.reshape(-1, num_states)
    return posterior, summed.mul_(matrix), redo


def viterbi_pass(init: Tensor, log_matrix: Tensor, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The most probable path (T, N) and log p(path, x) (N,).

    Only the best scores are kept on the way forward; on the way back the predecessor is looked for again, for one state a
    row. Scores are laid out with states first, so that a maximum over predecessors runs over whole rows of numbers.
    """
    num_steps, num_rows, num_states = emit.shape
    tile = max(1, min(num_states, MAX_CELLS // (num_states * num_rows)))
    ops = step_ops(emit.device, num_states * num_states * num_rows)
    parts = [part.contiguous().unsqueeze(-1) for part in log_matrix.split(tile, 1)]
    buffers = [emit.new_empty(num_states, part.shape[1], num_rows) for part in (parts[0], parts[-1])]
    buffers = [buffers[0]] * (len(parts) - 1) + [buffers[1]]
    parts, buffers = ([ops.views(value.unsqueeze(0))[0] for value in values] for values in (parts, buffers))
    scores = torch.empty(num_steps, num_states, num_rows, dtype=emit.dtype, device=emit.device)
    torch.add(init.T, emit[0].T, out=scores[0])
    if valid is not None:
        scores[0].masked_fill_(~valid[0], 0.0)
    padded = None if valid is None else ops.views(~valid)
    out, before = ops.views(scores), ops.views(scores.unsqueeze(2))
    weights = ops.views(emit.transpose(1, 2).contiguous())
    tiles = list(zip(*(ops.views(rows) for rows in scores.split(tile, 1)), strict=True))
    log_prob = torch.zeros(num_rows, dtype=torch.float64, device=emit.device)
    for t in range(1, num_steps):
        for part, buffer, best in zip(parts, buffers, tiles[t], strict=True):
            ops.best_first(ops.add(before[t - 1], part, buffer), best)
        ops.add(out[t], weights[t], out[t])
        if padded is not None:
            ops.keep(out[t], out[t - 1], padded[t])
        if t % RESCALE_SCORES == 0:  # sums of thousands of logs would lose digits in float32
            top = scores[t].amax(0).clamp_min(torch.finfo(emit.dtype).min)
            scores[t] -= top
            log_prob += top
    best, position = scores[-1].max(0)

    # on the way back a step is small in any case: one state a row
    ops = step_ops(emit.device, num_states * num_rows)
    rows = ops.views(scores.transpose(1, 2).contiguous())
    (into,), (position,) = ops.views(log_matrix.T.contiguous().unsqueeze(0)), ops.views(position.unsqueeze(0))
    seen = None if valid is None else ops.views(valid)
    path = [position]
    for t in range(num_steps - 1, 0, -1):
        new = ops.best(rows[t - 1] + ops.take(into, position))
        position = new if seen is None else ops.where(seen[t], new, position)
        path.append(position)
    return ops.stack(path[::-1]), (log_prob + best).to(emit.dtype)
