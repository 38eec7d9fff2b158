"""Likelihood of a chain of hierarchical transitions on a GPU; sizes are those of its tokens, the device is asked nothing.

The distinct pairs of blocks of a batch are numbered on the device, in room for as many as there are tokens. Factors are those
of :mod:`pplseq.kernels.pair_scan`, whose plans are made on the host; features are of all blocks.

A restart cuts a row into segments that depend on each other by nothing but where they start. So where states have topics, which
last within a segment, each topic of a row is a row of its own, and the topics are a chain of few states over those rows' steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.kernels import twice
from pplseq.kernels.pair_scan import PairPlan, TopicForward, pair_matrices_reference
from pplseq.kernels.scan import Forward, filtered_twin
from pplseq.kernels.triton import chain, pairs
from pplseq.kernels.triton.launch import serve

MOST_FEATURES = 256


class Pairs(NamedTuple):
    """Distinct pairs of blocks, in room for N of them.

    left, entered: (N,) blocks, 0 behind the last. num_pairs: () how many there are.
    number: (T, B) which pair leads into each step. used: (T-1, B) where one does.
    """

    left: Tensor
    entered: Tensor
    number: Tensor
    used: Tensor
    num_pairs: Tensor


def number_pairs(block: Tensor, used: Tensor, num_blocks: int) -> Pairs:
    """The distinct pairs of successive blocks (T, B) where they are ``used`` (T-1, B)."""
    nothing = num_blocks * num_blocks
    keys = torch.where(used, block[:-1] * num_blocks + block[1:], nothing).reshape(-1)
    ordered, order = keys.sort(stable=True)
    before = torch.cat([ordered.new_full((1,), -1), ordered[:-1]])
    first = (ordered != before) & (ordered < nothing)
    rank = (first.cumsum(0) - 1).clamp_min(0)
    distinct = keys.new_zeros(len(keys) + 1).scatter(0, torch.where(first, rank, len(keys)), ordered)[:-1]
    number = torch.zeros_like(keys).scatter(0, order, rank).view_as(used)
    number = torch.cat([torch.zeros_like(number[:1]), number])
    return Pairs(distinct // num_blocks, distinct % num_blocks, number, used, first.sum())


class DevicePairs(torch.autograd.Function):
    """log p(x_t | x_<t) (T, B), whose gradient is taken to be the same at all steps of a segment, and the messages.

    The backward is forward-backward, and the products with the features.
    """

    @staticmethod
    def forward(ctx, out, into, gate, init, emit, begin, found, filled, valid, restart, product_dtype):
        flags = chain.flags_of(valid, restart, emit)
        a, b = out.to(product_dtype), into.to(product_dtype)
        log = pairs.log_matrices(a, b, found.left, found.entered, filled, found.num_pairs)
        log = log.to(emit.dtype)
        messages, steps = chain.filtered(init, log, found.number, gate, emit, flags, begin)
        ctx.save_for_backward(out, into, gate, init, emit, begin, log, flags, messages, steps, filled, valid, restart)
        ctx.found, ctx.product_dtype = found, product_dtype
        ctx.mark_non_differentiable(messages)
        return steps, messages

    @staticmethod
    def backward(ctx, *grads):
        weight, found = grads[0], ctx.found
        out, into, gate, init, emit, begin, log, flags, messages, steps, filled, valid, restart = ctx.saved_tensors
        if torch.is_grad_enabled():
            args = (out, into, gate, init, emit, begin, found, filled, valid, restart, ctx.product_dtype)
            return twice.gradients(lambda *a: reference(*a)[0], args, weight)
        ahead = chain.look_back(log, found.number, gate, emit, flags)
        left, right, shift = chain.pair_sides(messages, steps, gate, emit, ahead)
        both = messages + ahead
        chance = (both - torch.logsumexp(both, -1, keepdim=True).clamp_min(torch.finfo(both.dtype).min)).exp()
        order, first = chain.by_matrix(found.number[1:], found.used, len(found.left))
        tokens = (value.flatten(0, 1) for value in (left, right, shift, chance[:-1]))
        scale = weight[1:].flatten()
        a, b = out.to(ctx.product_dtype), into.to(ctx.product_dtype)
        given = (log, a, b, found.left, found.entered, order, first, *tokens, scale, found.num_pairs)
        grad_out, grad_into = pairs.feature_sums(*given)
        real = (flags & 1).unsqueeze(-1) > 0
        single = torch.where(real, chance * weight.unsqueeze(-1), 0.0)
        grad_gate = torch.where(found.used.unsqueeze(-1), chance[:-1] * weight[1:].unsqueeze(-1), 0.0)
        to_begin = None
        if begin is not None:
            to_begin = torch.where((flags & 2).unsqueeze(-1) > 0, single, 0.0)
            to_begin[0] = 0.0  # the first step comes from `init`
        of_features = grad_out.to(out.dtype), grad_into.to(into.dtype)
        return *of_features, grad_gate, single[0].clone(), single, to_begin, None, None, None, None, None


def applies(out: Tensor, emit: Tensor) -> bool:
    """Whether the kernels do for features (M, K, D) and emissions (T, B, K)."""
    width, features = out.shape[1:]
    return serve(out, emit) and width <= pairs.MOST_WIDTH and features <= MOST_FEATURES and emit.numel() > 0


def chain_log_prob(
    out: Tensor,
    into: Tensor,
    gate: Tensor,
    init: Tensor,
    emit: Tensor,
    block: Tensor,
    *,
    filled: Tensor | None = None,
    valid: Tensor | None = None,
    restart: Tensor | None = None,
    restart_to: Tensor | None = None,
    product_dtype: torch.dtype | None = None,
) -> Forward:
    """log p(x) of each row, differentiable to any order.

    Args:
        out, into: (M, K, D) features of all blocks. block: (T, B) the block open at each step.
        filled: (M, K) False at padded slots, or None. Others as of :func:`~pplseq.kernels.pair_scan.pair_chain_log_prob`.

    Cost: 2 P K^2 D flops forward for P distinct pairs, twice that and 2 T B K^2 exponentials backward.
    """
    args = out, into, gate, init.expand(emit.shape[1:]), emit, block, filled, valid, restart, restart_to
    steps, messages = _pass_over(*args, product_dtype)
    return Forward(steps.sum(0, dtype=torch.float64).to(emit.dtype), messages, steps.detach())


def _pass_over(out, into, gate, init, emit, block, filled, valid, restart, begin, product_dtype) -> tuple[Tensor, Tensor]:
    """What :class:`DevicePairs` gives."""
    used = torch.ones_like(block[1:], dtype=torch.bool) if valid is None else valid[1:]
    if restart is not None:
        used = used & ~restart[1:]
    found = number_pairs(block, used, len(out))
    filled = None if filled is None else filled[found.entered]
    args = (out, into, gate, init, emit, begin, found, filled, valid, restart)
    return twice.apply(DevicePairs, reference, *args, product_dtype or out.dtype)


def topic_log_prob(
    out: Tensor,
    into: Tensor,
    gate: Tensor,
    init: Tensor,
    emit: Tensor,
    block: Tensor,
    *,
    valid: Tensor | None = None,
    restart: Tensor | None = None,
    restart_to: Tensor | None = None,
    mix: Tensor,
    lift: Tensor | None = None,
    product_dtype: torch.dtype | None = None,
) -> Forward:
    """log p(x) of each row where states have C topics, differentiable to any order; the states of its messages are (T, B, C K).

    Args:
        gate: (T-1, B, C, K). init: (B, C, K). emit: (T, B, C, K). restart_to: (T, B, K) log p(z_t) afresh, whatever the topic,
            and lift (T, B, C) what a topic adds to it. mix: (C, C) log p(c' | c) there. Others as of :func:`chain_log_prob`.

    Cost: as of :func:`chain_log_prob` for B C rows, but that a pair's matrix is made once.
    """
    num_topics = emit.shape[2]

    def rows(value: Tensor | None) -> Tensor | None:  # the same for each topic of a row
        return None if value is None else value.repeat_interleave(num_topics, 1)

    steps, messages = _pass_over(
        out, into, gate.flatten(1, 2), init.flatten(0, 1), emit.flatten(1, 2), rows(block), None, rows(valid), rows(restart),
        rows(restart_to), product_dtype,
    )  # fmt: skip
    steps, messages = (value.unflatten(1, (-1, num_topics)) for value in (steps, messages))
    return TopicForward(steps, messages, mix, lift, valid, restart, in_logs=True)


def reference(out, into, gate, init, emit, begin, found: Pairs, filled, valid, restart, product_dtype):
    """The slow twin of :class:`DevicePairs`: a matrix a step, in torch operations."""
    plan = PairPlan(found.left, found.entered, [], found.number[1:], found.number, [])
    matrices = pair_matrices_reference(out, into, gate, plan, filled, product_dtype)
    if restart is not None:
        matrices = torch.where(restart[1:][..., None, None], begin[1:].unsqueeze(-2), matrices)
    messages, steps = filtered_twin(init, matrices, emit, valid, False, None, None)
    return steps, messages.detach()
