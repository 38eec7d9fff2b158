"""Scans over a chain whose steps share few transition matrices: each distinct pair of blocks is made once.

    init     (B, K)      log p(z_1)
    pairs    (P, K, K)   p(z_t | z_{t-1}) of each distinct pair, [from, to], as probabilities
    pair_of  (T-1, B)    which of them leads into step t = 2..T
    emit     (T, B, K)   log p(x_t | z_t)
    valid    (T, B) or None     False at padded steps (the message is carried over unchanged)
    restart  (T, B) or None     True where p(z_t | z_{t-1}) = exp(restart_to), (T, B, K)

Messages are probabilities, normalised at every step. Where a row's probability of a step comes out too small to be trusted
(`TRUSTED`), the caller has to take the scans in log space of :mod:`pplseq.kernels.scan` instead.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pplseq.kernels import twice
from pplseq.kernels.log_semiring import safe_log
from pplseq.kernels.scan import Forward, forward_twin

TRUSTED = {torch.float32: 1e-20, torch.float64: 1e-200}  # smallest scaled probability of a step whose digits are sound


class PairSoftmax(torch.autograd.Function):
    """p(z' | z) of distinct pairs of blocks, (P, K, K): p(block entered | z) softmax_j(out_i . into_j).

    Pairs come sorted by the block left, so that one product serves all that leave the same block. Only one block's
    (K, M) scores of blocks are held at a time.
    """

    @staticmethod
    def forward(ctx, out, into, weight, bias, left, entered, names, filled, product_dtype):
        count, width = len(left), out.shape[1]
        probs, gate, norm = out.new_empty(count, width, width), out.new_empty(count, width), out.new_empty(len(out), width)
        a, b, to_blocks = out.to(product_dtype), into.to(product_dtype), weight.to(product_dtype).T
        groups = _groups(left)
        for block, some in groups:
            scores = a[block] @ b[entered[some]].flatten(0, 1).T  # (K, n K)
            probs[some] = scores.view(width, -1, width).transpose(0, 1)
            logits = (a[block] @ to_blocks).to(out.dtype) + bias  # (K, M)
            norm[block] = torch.logsumexp(logits, -1)
            gate[some] = (logits[:, names[some]] - norm[block].unsqueeze(-1)).T
        gate.exp_()
        if filled is not None:
            probs.masked_fill_(~filled.unsqueeze(1), -math.inf)
        probs = torch.softmax(probs, -1).mul_(gate.unsqueeze(-1))
        ctx.save_for_backward(out, into, weight, bias, left, entered, names, filled, probs, gate, norm)
        ctx.groups, ctx.product_dtype = groups, product_dtype
        return probs

    @staticmethod
    def backward(ctx, *grads):
        (grad,) = grads
        out, into, weight, bias, left, entered, names, filled, probs, gate, norm = ctx.saved_tensors
        if torch.is_grad_enabled():
            args = (out, into, weight, bias, left, entered, names, filled, ctx.product_dtype)
            return twice.gradients(pair_softmax_reference, args, grad)
        width, dtype = probs.shape[-1], ctx.product_dtype
        weighted = probs * grad
        of_gate = weighted.sum(-1)  # (P, K), of log p(block entered | z)
        # a gate that underflowed takes its row's gradient with it
        share = of_gate / gate.clamp_min(torch.finfo(gate.dtype).tiny)
        scores = weighted.addcmul_(probs, share.unsqueeze(-1), value=-1).to(dtype)
        a, b, to_blocks = out.to(dtype), into.to(dtype), weight.to(dtype)
        grad_out, grad_into, grad_weight = torch.zeros_like(out), torch.zeros_like(into), torch.zeros_like(weight)
        grad_bias = torch.zeros_like(bias)
        for block, some in ctx.groups:
            wide = scores[some].transpose(0, 1).reshape(width, -1)  # (K, n K)
            onto = entered[some]
            to = b[onto].flatten(0, 1)
            grad_into.index_add_(0, onto, (wide.T @ a[block]).view(len(onto), width, -1).to(into.dtype))
            logits = (a[block] @ to_blocks.T).to(out.dtype) + (bias - norm[block].unsqueeze(-1))
            grad_logits = logits.exp_().mul_(of_gate[some].sum(0).unsqueeze(-1)).neg_()
            grad_logits.index_add_(1, names[some], of_gate[some].T)
            grad_bias += grad_logits.sum(0)
            grad_logits = grad_logits.to(dtype)
            grad_out[block] = wide @ to + grad_logits @ to_blocks
            grad_weight += grad_logits.T @ a[block]
        return grad_out, grad_into, grad_weight, grad_bias, None, None, None, None, None


def _groups(left: Tensor) -> list[tuple[int, slice]]:
    """(block, where its pairs stand) for each distinct block in a sorted (P,)."""
    blocks, sizes = left.unique_consecutive(return_counts=True)
    ends = sizes.cumsum(0).tolist()
    return [(block, slice(end - size, end)) for block, size, end in zip(blocks.tolist(), sizes.tolist(), ends, strict=True)]


def pair_softmax(
    out: Tensor,
    into: Tensor,
    weight: Tensor,
    bias: Tensor,
    left: Tensor,
    entered: Tensor,
    names: Tensor,
    filled: Tensor | None = None,
    product_dtype: torch.dtype | None = None,
) -> Tensor:
    """(P, K, K) p(z' | z) between the states of P pairs of blocks.

        p(z' = j of block b | z = i) = softmax_b(out_i . weight_b + bias_b) softmax_j(out_i . into_j)

    Args:
        out: (L, K, D) features of the blocks that are left. into: (E, K, D) of those that are entered.
        weight: (M, D). bias: (M,), of all blocks.
        left: (P,) row of ``out``, sorted. entered: (P,) row of ``into``. names: (P,) which of the M blocks it is.
        filled: (P, K) False at padded slots of the block entered, or None. product_dtype: of the matrix products.

    Cost: 2 P K^2 D + 2 L K M D flops forward, 2 to 3 times that backward; P K^2 numbers kept.
    """
    args = (out, into, weight, bias, left, entered, names, filled, product_dtype or out.dtype)
    return twice.apply(PairSoftmax, pair_softmax_reference, *args)


def pair_softmax_reference(
    out, into, weight, bias, left, entered, names, filled=None, product_dtype: torch.dtype | None = None
) -> Tensor:
    """The slow twin of :func:`pair_softmax`."""
    dtype = product_dtype or out.dtype
    scores = (out.to(dtype)[left] @ into.to(dtype)[entered].transpose(-1, -2)).to(out.dtype)
    if filled is not None:
        scores = scores.masked_fill(~filled.unsqueeze(1), -math.inf)
    gate = torch.log_softmax((out.to(dtype) @ weight.to(dtype).T).to(out.dtype) + bias, -1)[left, :, names]
    return (torch.log_softmax(scores, -1) + gate.unsqueeze(-1)).exp()


class PairChainLogProb(torch.autograd.Function):
    """log sum over paths; the backward is forward-backward, and the gradients of a pair's tokens add up in one product."""

    @staticmethod
    def forward(ctx, init, pairs, emit, pair_of, valid, restart, restart_to):
        num_steps, num_rows, width = emit.shape
        top = emit.amax(-1).clamp_min(torch.finfo(emit.dtype).min)
        likely = (emit - top.unsqueeze(-1)).exp_()
        init_top = init.amax(-1).clamp_min(torch.finfo(emit.dtype).min)
        begin = None if restart is None else restart_to.exp()
        messages, totals = emit.new_empty(emit.shape), emit.new_empty(num_steps, num_rows)
        message = (init - init_top.unsqueeze(-1)).exp_()
        for t in range(num_steps):
            score = message if t == 0 else torch.bmm(message.unsqueeze(1), pairs[pair_of[t - 1]]).squeeze(1)
            if restart is not None and begin is not None and t > 0:
                score = torch.where(restart[t].unsqueeze(-1), begin[t], score)
            score = score * likely[t]
            total = score.sum(-1)
            new = score / total.unsqueeze(-1)
            if valid is not None:
                new = torch.where(valid[t].unsqueeze(-1), new, message)
                total = total.where(valid[t], 1.0)
            message = torch.mul(new, 1.0, out=messages[t])
            totals[t] = total
        steps = totals.log() + top
        steps[0] += init_top
        if valid is not None:
            steps = steps.where(valid, 0.0)
        ctx.save_for_backward(init, pairs, emit, restart_to, likely, messages, totals, pair_of, valid, restart, begin)
        log_prob = steps.sum(0, dtype=torch.float64).to(emit.dtype)
        ctx.mark_non_differentiable(messages, steps)
        return log_prob, messages, steps

    @staticmethod
    def backward(ctx, *grads):
        weight = grads[0]
        init, pairs, emit, restart_to, likely, messages, totals, pair_of, valid, restart, begin = ctx.saved_tensors
        if torch.is_grad_enabled():
            args = (init, pairs, emit, pair_of, valid, restart, restart_to)
            return twice.gradients(lambda *a: _pair_chain_twin(*a)[0], args, weight)
        num_steps, num_rows, width = likely.shape
        beta = torch.ones_like(likely[0])
        behind = torch.empty_like(likely)  # e_t beta_t / c_t: what lies behind the move into step t
        single = torch.empty_like(likely)
        for t in range(num_steps - 1, -1, -1):
            single[t] = messages[t] * beta
            behind[t] = likely[t] * beta / totals[t].unsqueeze(-1)
            if valid is not None:
                single[t] *= valid[t].unsqueeze(-1)
                behind[t] *= valid[t].unsqueeze(-1)
            if t == 0:
                break
            new = torch.bmm(pairs[pair_of[t - 1]], behind[t].unsqueeze(-1)).squeeze(-1)
            if restart is not None:
                # a message that ends here: all of its mass goes on as restart_to
                total = (begin[t] * behind[t]).sum(-1, keepdim=True)
                new = torch.where(restart[t].unsqueeze(-1), total.expand_as(new), new)
            beta = new if valid is None else torch.where(valid[t].unsqueeze(-1), new, beta)
        single *= weight.unsqueeze(-1)
        right = behind[1:] * weight.unsqueeze(-1)
        if restart is not None:
            right = right.masked_fill(restart[1:].unsqueeze(-1), 0.0)
        grad_pairs = _sum_outer(messages[:-1].flatten(0, 1), right.flatten(0, 1), pair_of.flatten(), len(pairs))
        to_restart = None if restart is None else single * restart.unsqueeze(-1)
        if to_restart is not None:
            to_restart[0] = 0.0  # the first step comes from `init`
        return single[0], grad_pairs, single, None, None, None, to_restart


def _pair_chain_twin(init, pairs, emit, pair_of, valid, restart, restart_to):
    """The slow twin of :class:`PairChainLogProb`: a matrix a step and row, in log space."""
    matrices = safe_log(pairs)[pair_of]
    if restart is not None:
        fresh = restart_to[1:].unsqueeze(-2)
        matrices = torch.where(restart[1:][..., None, None], fresh, matrices)
    log_prob, messages, steps = forward_twin(init, matrices, emit, valid, False, None, None)
    return log_prob, messages.exp(), steps


def _sum_outer(left: Tensor, right: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """(G, K, K) sums of left_n right_n' over the n of each group: groups of equal size as one batch of products."""
    count = torch.bincount(group, minlength=num_groups)
    order = group.argsort(stable=True)
    left, right = left[order], right[order]
    first = count.cumsum(0) - count
    result = left.new_zeros(num_groups, left.shape[-1], right.shape[-1])
    for size in count.unique().tolist():
        if size == 0:
            continue
        groups = (count == size).nonzero().squeeze(-1)
        rows = first[groups].unsqueeze(-1) + torch.arange(size, device=left.device)
        result[groups] = left[rows].transpose(1, 2) @ right[rows]
    return result


def pair_chain_log_prob(
    init: Tensor,
    pairs: Tensor,
    emit: Tensor,
    pair_of: Tensor,
    valid: Tensor | None = None,
    restart: Tensor | None = None,
    restart_to: Tensor | None = None,
) -> Forward | None:
    """log p(x) of each row, differentiable; see the module's head for the factors. None where digits would be lost."""
    args = (init.expand(emit.shape[1:]), pairs, emit, pair_of, valid, restart, restart_to)
    log_prob, messages, steps = twice.apply(PairChainLogProb, _pair_chain_twin, *args)
    top = emit.detach().amax(-1).clamp_min(torch.finfo(emit.dtype).min)
    scaled = steps - top
    if valid is not None:
        scaled = scaled.where(valid, 0.0)
    scaled = scaled[1:]
    trusted = (scaled > math.log(TRUSTED[emit.dtype])).all() & log_prob.isfinite().all()
    if not twice.transformed() and not bool(trusted):
        return None
    return Forward(log_prob, messages, steps, in_logs=False)
