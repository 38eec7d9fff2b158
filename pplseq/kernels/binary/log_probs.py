"""Log-probabilities of many observed zeros and ones from logits that nothing shares: one pass forward, one backward.

Plain operations go over tensors of the logits' size five times, and again for their gradients; where these are larger than a
core's cache that is most of the work. Here the cells of a row are summed as they are read, and rows that were not seen cost
nothing. The loops are in :mod:`pplseq.kernels.binary.binary_loops`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels import compiled, twice


def row_log_probs(logits: Tensor, value: Tensor, seen: Tensor | None = None) -> Tensor:
    """(N, A, R, S) sums over D of log p(value | logits) in nats, Bernoulli by cell; 0 for rows that were not seen.

    Args:
        logits: (N, A, R, S, D). value: (N, R, D) bool. seen: (N, R) bool, or None for all.

    Each cell is off by a unit in the last place of 1, or of its own value where that is larger: a cell that is certain to
    less than that counts as certain. Derivatives of all orders. Cost: O(N A R S D) time, no memory of that size but for the
    gradient of the logits.
    """
    if seen is None:
        seen = value.new_ones(value.shape[:2])
    fits = logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64)
    if not fits or not compiled.pays("kernels.binary.binary_loops.forward", 20, TWIN_WORK * logits.numel()):
        twice.refuse_jit()
        return twin(logits, value, seen)
    return twice.apply(RowLogProbs, twin, logits, value, seen)


def twin(logits: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """:func:`row_log_probs` in plain operations."""
    seen, value = seen[:, None, :, None], value[:, None, :, None]
    logits = torch.where(seen.unsqueeze(-1), logits, 0.0)  # a NaN that was not seen does no harm
    cells = torch.nn.functional.logsigmoid(torch.where(value, logits, -logits))
    return torch.where(seen, cells.sum(-1), 0.0)


class RowLogProbs(torch.autograd.Function):
    """:func:`row_log_probs` by compiled loops."""

    @staticmethod
    def forward(ctx, logits, value, seen):
        from pplseq.kernels.binary import binary_loops

        ctx.save_for_backward(logits, value, seen)
        found = logits.new_empty(logits.shape[:-1])
        arrays = *map(compiled.array, (logits, value, seen)), found.numpy()
        compiled.by_rows(
            lambda _, begin, end: binary_loops.forward(begin, end, *arrays), value.shape[1], WORK * logits.numel()
        )
        return found

    @staticmethod
    def backward(ctx, *grads):
        (grad,), args = grads, ctx.saved_tensors
        if torch.is_grad_enabled():
            return twice.gradients(twin, args, grad)
        from pplseq.kernels.binary import binary_loops

        found = torch.empty(args[0].shape, dtype=args[0].dtype)
        arrays = *map(compiled.array, (*args, grad)), found.numpy()
        compiled.by_rows(
            lambda _, begin, end: binary_loops.backward(begin, end, *arrays), args[1].shape[1], WORK * found.numel()
        )
        return found, None, None


WORK, TWIN_WORK = 16, 40  # multiplications' time of a cell, and in torch with the way back
