"""Scans over chains whose steps share one transition matrix: two tensor operations a step.

The scans of :mod:`pplseq.infer.kernels.scan` keep messages in log space and are right whatever the numbers. Here messages
are products of probabilities, rescaled every few steps. Where a product underflowed is found afterwards, for all steps at
once, and those rows are given back to the caller, who redoes them in log space.

Shapes: init (N, K), log_matrix (K, K) [from, to], emit (T, N, K), valid (T, N) or None, all as in ``scan`` with rows N.
"""

from __future__ import annotations

import torch
from torch import Tensor

# within so many steps a message stays in range unless its row is redone anyway
RESCALE_EVERY = {torch.float64: 8, torch.float32: 2}
# a smaller entry may have lost digits, or be what is left of several that underflowed
LOWEST = {torch.float64: 1e-280, torch.float32: 1e-30}
MAX_CELLS = 1 << 16  # of one tile of a max step: it stays in a core's own cache
MAX_RESCALE = 64


def applies(log_matrix: Tensor, emit: Tensor) -> bool:
    """Whether the chain is of the kind meant here, in a type whose range is known."""
    return log_matrix.dim() == 2 and emit.dtype in LOWEST and emit.shape[0] > 1


def _relative(log: Tensor, dim) -> tuple[Tensor, Tensor]:
    """exp(log - max) and that max, over ``dim``; finite also where everything is -inf."""
    top = log.amax(dim, keepdim=True).clamp_min(torch.finfo(log.dtype).min)
    return (log - top).exp_(), top


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
        log p(z_t | x_<=t) (T, N, K), the last one carried over padded steps; log p(x_t | x_<t) (T, N), 0 at padded steps;
        and the rows (N,) that have to be redone in log space.
    """
    every = RESCALE_EVERY[emit.dtype]
    matrix, matrix_top = _relative(log_matrix, (-2, -1))
    relative, emit_top = _relative_emit(emit, valid)
    first, first_top = _relative(init, -1)
    messages = torch.empty_like(relative)
    out, weights = messages.unbind(), relative.unbind()
    message = torch.mul(first, weights[0], out=out[0])
    for t in range(1, len(out)):
        if t % every == 0:
            message = message / message.sum(-1, keepdim=True)
        message = torch.mm(message, matrix, out=out[t]).mul_(weights[t])
    total = messages.sum(-1)
    redo = _lost_forward(messages, total, init, log_matrix, emit, valid)

    log_total = total.log()
    filtered = messages.log_().sub_(log_total.unsqueeze(-1))
    steps = log_total + emit_top.squeeze(-1)
    carried = torch.arange(1, len(out), device=emit.device) % every != 0  # not rescaled: the total before is in it
    steps[1:] += matrix_top.squeeze() - log_total[:-1].where(carried.unsqueeze(-1), 0.0)
    steps[0] += first_top.squeeze(-1)
    if valid is not None:
        steps = steps.where(valid, 0.0)
        last = (valid.sum(0) - 1).clamp_min(0)
        ends = filtered.gather(0, last[None, :, None].expand(1, *filtered.shape[1:]))
        filtered = torch.where(valid.unsqueeze(-1), filtered, ends)
    return filtered, steps, redo


def _lost_forward(messages, total, init, log_matrix, emit, valid) -> Tensor:
    """(N,) rows in which an entry, or a whole message, is too small to be trusted and is not a true zero."""
    low = ~(messages >= LOWEST[emit.dtype])  # NaN counts as low
    gone = ~(total > 0)
    if valid is not None:
        low, gone = low & valid.unsqueeze(-1), gone & valid
    gone = gone.any(0)
    if not bool(low.any()):
        return gone
    low &= ~torch.isneginf(emit)
    low[0] &= ~torch.isneginf(init)
    low[1:] &= _reaches(messages[:-1] > 0, log_matrix)
    return low.any(-1).any(0) | gone


def _backward_messages(log_matrix, relative, valid) -> Tensor:
    """p(x_>t | z_t) up to a factor per step and row, (T, N, K)."""
    every = RESCALE_EVERY[relative.dtype]
    transposed = _relative(log_matrix, (-2, -1))[0].T.contiguous()
    messages = torch.empty_like(relative)
    out, weights = messages.unbind(), relative.unbind()
    padded = None if valid is None else (~valid).unsqueeze(-1).unbind()
    message, evidence = out[-1].fill_(1.0), torch.empty_like(out[-1])
    for t in range(len(out) - 1, 0, -1):
        torch.mul(message, weights[t], out=evidence)
        if t % every == 0:
            evidence /= evidence.sum(-1, keepdim=True)
        message = torch.mm(evidence, transposed, out=out[t - 1])
        if padded is not None:
            message.masked_fill_(padded[t], 1.0)
    return messages


def _lost_backward(messages, log_matrix, emit, valid) -> Tensor:
    low = ~(messages >= LOWEST[emit.dtype])
    if valid is not None:
        low &= valid.unsqueeze(-1)
    if not bool(low.any()):
        return low.new_zeros(low.shape[1])
    positive = (messages[1:] > 0) & ~torch.isneginf(emit[1:])
    low[:-1] &= _reaches(positive, log_matrix.T) | messages[:-1].isnan()
    return low.any(-1).any(0)


def backward_pass(log_matrix: Tensor, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """log p(x_>t | z_t) up to a constant per step and row (T, N, K), and the rows (N,) to be redone in log space."""
    messages = _backward_messages(log_matrix, _relative_emit(emit, valid)[0], valid)
    redo = _lost_backward(messages, log_matrix, emit, valid)
    return messages.log_(), redo


def smooth(
    filtered: Tensor,
    steps: Tensor,
    log_matrix: Tensor,
    emit: Tensor,
    valid: Tensor | None,
    weight: Tensor | None = None,
    pairs: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Single and pair marginals from the results of the forward pass, without a logarithm.

    Args:
        filtered, steps: log p(z_t | x_<=t) (T, N, K) and log p(x_t | x_<t) (T, N).
        weight: (N,) multiplies each row of the pairs; None stands for one.
        pairs: False to leave out the pairs.

    Returns:
        p(z_t | x) (T, N, K), 0 at padded steps; sum over t and rows of weight * p(z_t, z_{t+1} | x) (K, K); and the rows
        (N,) to be redone in log space, which are left out of the pairs.
    """
    lowest = LOWEST[emit.dtype]
    matrix, matrix_top = _relative(log_matrix, (-2, -1))
    relative, emit_top = _relative_emit(emit, valid)
    backward = _backward_messages(log_matrix, relative, valid)
    redo = _lost_backward(backward, log_matrix, emit, valid)
    forward = filtered.exp()
    low = ~(forward >= lowest)
    if bool(low.any()):
        low &= ~torch.isneginf(filtered)
        redo |= (low if valid is None else low & valid.unsqueeze(-1)).any(-1).any(0)

    # the evidence of a step relative to what the messages have in common
    scale = (steps - emit_top.squeeze(-1) - matrix_top.squeeze()).exp_()
    evidence = relative.mul_(backward)[1:] if pairs else None
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
    forward = forward[:-1].mul_(share.unsqueeze(-1))
    if bool(redo.any()):  # 0 times what overflowed there is no 0
        forward[:, redo], evidence[:, redo] = 0.0, 0.0
    num_states = emit.shape[-1]
    summed = forward.reshape(-1, num_states).T @ evidence.reshape(-1, num_states)
    return posterior, summed.mul_(matrix), redo


def viterbi_pass(init: Tensor, log_matrix: Tensor, emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The most probable path (T, N) and log p(path, x) (N,).

    Only the best scores are kept on the way forward; on the way back the predecessor is looked for again, for one state a
    row. Scores are laid out with states first, so that a maximum over predecessors runs over whole rows of numbers.
    """
    num_steps, num_rows, num_states = emit.shape
    tile = max(1, min(num_states, MAX_CELLS // (num_states * num_rows)))
    matrices = [part.contiguous().unsqueeze(-1) for part in log_matrix.split(tile, 1)]
    buffers = [emit.new_empty(num_states, part.shape[1], num_rows) for part in (matrices[0], matrices[-1])]
    buffers = [buffers[0]] * (len(matrices) - 1) + [buffers[1]]
    weights = emit.transpose(1, 2).contiguous().unbind()
    scores = torch.empty(num_steps, num_states, num_rows, dtype=emit.dtype, device=emit.device)
    out = scores.unbind()
    torch.add(init.T, weights[0], out=out[0])
    if valid is not None:
        out[0].masked_fill_(~valid[0], 0.0)
    log_prob = torch.zeros(num_rows, dtype=torch.float64, device=emit.device)
    score = out[0]
    for t in range(1, num_steps):
        before = score.unsqueeze(1)
        for part, buffer, best in zip(matrices, buffers, out[t].split(tile), strict=True):
            torch.amax(torch.add(before, part, out=buffer), 0, out=best)
        score = out[t].add_(weights[t])
        if valid is not None:
            torch.where(valid[t], score, before.squeeze(1), out=score)
        if t % MAX_RESCALE == 0:  # sums of thousands of logs would lose digits in float32
            top = score.amax(0).clamp_min(torch.finfo(emit.dtype).min)
            score -= top
            log_prob += top
    best, position = score.max(0)
    path, into = [position], log_matrix.T.contiguous()
    rows = scores.transpose(1, 2).contiguous().unbind()
    for t in range(num_steps - 1, 0, -1):
        new = (rows[t - 1] + into[position]).argmax(-1)
        position = new if valid is None else torch.where(valid[t], new, position)
        path.append(position)
    return torch.stack(path[::-1]), (log_prob + best).to(emit.dtype)
