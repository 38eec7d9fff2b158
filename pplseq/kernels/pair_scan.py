"""Scans over a chain whose steps share few transition matrices: each distinct pair of blocks is made once.

    out      (L, K, D)   features of leaving the states of the blocks that are left
    into     (E, K, D)   features of entering the states of the blocks that are entered
    gate     (T-1, B, K) log p(block of step t | z_{t-1}), of steps t = 2..T
    init     (B, K)      log p(z_1)
    emit     (T, B, K)   log p(x_t | z_t)

    valid    (T, B) or None     False at padded steps (the message is carried over unchanged)
    restart  (T, B) or None     True where p(z_t | z_{t-1}) = exp(restart_to), (T, B, K)

Where states have topics, which stay what they are but at a restart, gate, init and emit are those of C copies of each state,
(..., C, K), and messages have C rows for every matrix. A restart cuts a row into segments that depend on each other by nothing
but where they start; so each topic of a row is a row of its own, and topics are a chain of C states over those rows' steps:

    mix      (C, C)      log p(topic behind a restart | topic before)
    lift     (T, B, C)   what a topic adds to restart_to

A step's matrix is exp(gate_i) softmax_j(out_i . into_j) over the states j of the block entered. What depends on the token alone
(gate, emission) stays out of the K x K matrices, which are made per distinct pair of blocks, in groups that leave the same
block, so that a group's matrices stay in the processor's cache. Messages are probabilities, normalised at every step. Where a
row's probability of a step comes out too small to be trusted (`TRUSTED`), the caller has to take the scans in log space of
:mod:`pplseq.kernels.scan` instead.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.kernels import twice
from pplseq.kernels.precision import exact_products
from pplseq.kernels.scan import Forward, chain_log_prob, filtered_twin
from pplseq.threads import once

CACHED_CELLS = 1 << 18  # numbers that are worked on at once: a megabyte, half of a core's second-level cache
NARROW = 32  # states a block up to which float32 products are as fast as those of bfloat16 factors
TRUSTED = {torch.float32: 1e-20, torch.float64: 1e-200}  # smallest scaled probability of a step whose digits are sound


class PairPlan(NamedTuple):
    """Which pairs of blocks a batch needs, and where.

    Attributes:
        left, entered: (P,) rows of ``out`` and ``into`` of each distinct pair, sorted by the block left.
        groups: (row of ``out``, which pairs) for each block left.
        pair_of: (T-1, B) the pair that leads into each step.
        tokens: (P, C) the tokens t B + b of each pair, padded with (T-1) B. most: C of each group.
    """

    left: Tensor
    entered: Tensor
    groups: list[tuple[int, slice]]
    pair_of: Tensor
    tokens: Tensor
    most: list[int]


def plan_pairs(left: Tensor, entered: Tensor, pair_of: Tensor, used: Tensor | None = None) -> PairPlan:
    """The plan of a batch.

    Args:
        left: (P,) row of ``out``, sorted. entered: (P,) row of ``into``. pair_of: (T-1, B).
        used: (T-1, B) False where no pair is needed, or None.
    """
    count = len(left)
    blocks, sizes = left.unique_consecutive(return_counts=True)
    ends = sizes.cumsum(0).tolist()
    groups = [(b, slice(end - n, end)) for b, n, end in zip(blocks.tolist(), sizes.tolist(), ends, strict=True)]
    of_token = pair_of.flatten() if used is None else pair_of.masked_fill(~used, count).flatten()
    times = torch.bincount(of_token, minlength=count)[:count]
    first = (times.cumsum(0) - times).unsqueeze(-1)
    place = torch.arange(int(times.max()) if count else 0, device=left.device)
    inside = place < times.unsqueeze(-1)
    order = of_token.argsort(stable=True)
    tokens = torch.where(inside, order[torch.where(inside, first + place, 0)], len(of_token))
    return PairPlan(left, entered, groups, pair_of, tokens, [int(times[some].max()) for _, some in groups])


class PairGates(torch.autograd.Function):
    """log p(block entered | z) of distinct pairs, (P, K); see :func:`pair_gates`."""

    @staticmethod
    def forward(ctx, out, weight, bias, plan, names, product_dtype):
        width, to_blocks = out.shape[1], weight.to(product_dtype).T
        gates = out.new_empty(len(names), width)
        for first, last, some in _pieces(plan, width * len(bias)):
            scores = _scores(out[first:last].flatten(0, 1), to_blocks, bias)  # (l K, M)
            torch.log_softmax(scores, -1, out=scores)
            gates[some] = scores.view(last - first, width, -1)[plan.left[some] - first, :, names[some]]
        ctx.save_for_backward(out, weight, bias, names)
        ctx.plan, ctx.product_dtype = plan, product_dtype
        return gates

    @staticmethod
    def backward(ctx, *grads):
        (grad,) = grads
        out, weight, bias, names = ctx.saved_tensors
        plan, width, dtype = ctx.plan, out.shape[1], ctx.product_dtype
        if torch.is_grad_enabled():
            return twice.gradients(pair_gates_reference, (out, weight, bias, plan, names, dtype), grad)
        grad_out, grad_weight, grad_bias = torch.zeros_like(out), torch.zeros_like(weight), torch.zeros_like(bias)
        factor = weight.to(dtype)
        for first, last, some in _pieces(plan, width * len(bias)):
            rows, left, given = out[first:last].flatten(0, 1).to(dtype), plan.left[some] - first, grad[some]
            total = grad.new_zeros(last - first, width).index_add_(0, left, given).view(-1, 1)
            of_scores = _scores(rows, factor.T, bias)
            torch.softmax(of_scores, -1, out=of_scores).mul_(total.neg_())
            of_scores.view(last - first, width, -1)[left, :, names[some]] += given  # pairs are distinct
            grad_bias += of_scores.sum(0)
            of_scores = of_scores.to(dtype)
            _product(of_scores, factor, grad_out[first:last].view(-1, weight.shape[1]))
            grad_weight += of_scores.T @ rows
        return grad_out, grad_weight, grad_bias, None, None, None


def _scores(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """rows @ weight + bias, a product of the weight's type and a sum of the bias's."""
    if weight.dtype == bias.dtype:
        return torch.addmm(bias, rows, weight)
    return torch.mm(rows.to(weight.dtype), weight).to(bias.dtype).add_(bias)


def _pieces(plan: PairPlan, cells: int) -> list[tuple[int, int, slice]]:
    """(first block left, last, its pairs), so that a piece of `cells` a block stays in the processor's cache."""
    at_once = max(1, CACHED_CELLS // cells)
    groups = [plan.groups[k : k + at_once] for k in range(0, len(plan.groups), at_once)]
    return [(some[0][0], some[-1][0] + 1, slice(some[0][1].start, some[-1][1].stop)) for some in groups]


def pair_gates(
    out: Tensor, weight: Tensor, bias: Tensor, plan: PairPlan, names: Tensor, product_dtype: torch.dtype | None = None
) -> Tensor:
    """(P, K) log p(block entered | z) = log softmax_b(out_z . weight_b + bias_b) of the P pairs of a plan.

    Args:
        out: (L, K, D), the features of all blocks left. weight: (M, D). bias: (M,), of all blocks.
        names: (P,) which of the M blocks a pair enters.
        product_dtype: of the products of features and weights.

    Cost: 2 L K M D flops forward, thrice that backward; scores are held a few blocks at a time.
    """
    return twice.apply(PairGates, pair_gates_reference, out, weight, bias, plan, names, product_dtype or out.dtype)


def normalised_gates(out: Tensor, weight: Tensor, bias: Tensor, plan: PairPlan, names: Tensor, norm: Tensor) -> Tensor:
    """:func:`pair_gates` where the log normalisers (L, K) of the rows are known: 2 P K D flops, and no gradients."""
    gates = out.new_empty(len(names), out.shape[1])
    for block, some in plan.groups:
        scores = torch.addmm(bias[names[some]].unsqueeze(-1), weight[names[some]], out[block].T)  # (n, K)
        torch.sub(scores, norm[block], out=gates[some])
    return gates


def pair_gates_reference(out, weight, bias, plan, names, product_dtype=None) -> Tensor:
    """The slow twin of :func:`pair_gates`."""
    dtype = product_dtype or out.dtype
    scores = (out.to(dtype) @ weight.to(dtype).T).to(out.dtype) + bias
    return torch.log_softmax(scores, -1)[plan.left, :, names]


class PairChainSteps(torch.autograd.Function):
    """log p(x_t | x_<t) (T, B, C), whose gradient is taken to be the same at all steps of a segment, and messages (T, B, C, K),
    of topics on their own, C = 1 or more; the backward is forward-backward, and keeps the inner softmax alone."""

    @staticmethod
    def forward(ctx, out, into, gate_log, init, emit, restart_to, plan, filled, valid, restart, product_dtype):
        num_steps = len(emit)
        pairs = _inner_softmax(out.to(product_dtype), into.to(product_dtype), plan, filled, emit.dtype)
        likely, top = _scaled(emit)
        message, init_top = _scaled(init)
        begin = None if restart is None else restart_to.exp()
        gate = gate_log.exp()
        messages, totals = torch.empty_like(likely), torch.empty_like(top)
        with exact_products():
            for t in range(num_steps):
                score = message
                if t > 0:
                    pair = pairs.index_select(0, plan.pair_of[t - 1])  # [to, from]
                    score = torch.bmm(pair, (message * gate[t - 1]).transpose(1, 2)).transpose(1, 2)
                    if restart is not None and begin is not None:
                        score = torch.where(restart[t][:, None, None], begin[t].unsqueeze(-2), score)
                score = score * likely[t]
                total = score.sum(-1)
                new = score / total.unsqueeze(-1)
                if valid is not None:
                    new = torch.where(valid[t][:, None, None], new, message)
                    total = total.where(valid[t].unsqueeze(-1), 1.0)
                message = torch.mul(new, 1.0, out=messages[t])
                totals[t] = total
        steps = totals.log() + top
        steps[0] += init_top
        if valid is not None:
            steps = steps.where(valid.unsqueeze(-1), 0.0)
        given = out, into, gate_log, init, emit, restart_to
        ctx.save_for_backward(*given, filled, gate, pairs, likely, messages, totals, valid, restart, begin)
        ctx.plan, ctx.product_dtype = plan, product_dtype
        ctx.mark_non_differentiable(messages)
        return steps, messages

    @staticmethod
    def backward(ctx, *grads):
        weight, given = grads[0], ctx.saved_tensors[:6]
        filled, gate, pairs, likely, messages, totals, valid, restart, begin = ctx.saved_tensors[6:]
        if torch.is_grad_enabled():
            args = (*given, ctx.plan, filled, valid, restart, ctx.product_dtype)
            return twice.gradients(lambda *a: _twin(*a)[0], args, weight)
        out, into = given[:2]
        plan, num_steps = ctx.plan, len(likely)
        beta = torch.ones_like(likely[0])
        behind = torch.empty_like(likely)  # e_t beta_t / c_t: what lies behind the move into step t
        single = torch.empty_like(likely)
        rows = torch.empty_like(gate)  # (P v): the same seen from the state that is left
        with exact_products():
            for t in range(num_steps - 1, -1, -1):
                torch.mul(messages[t], beta, out=single[t])
                torch.mul(likely[t], beta, out=behind[t]).div_(totals[t].unsqueeze(-1))
                if valid is not None:
                    single[t] *= valid[t][:, None, None]
                    behind[t] *= valid[t][:, None, None]
                if t == 0:
                    break
                pair = pairs.index_select(0, plan.pair_of[t - 1])
                row = torch.bmm(behind[t], pair, out=rows[t - 1])
                new = row * gate[t - 1]
                if restart is not None:  # a segment ends here
                    new = torch.where(restart[t][:, None, None], 1.0, new)
                beta = new if valid is None else torch.where(valid[t][:, None, None], new, beta)
        weight, ends = weight.unsqueeze(-1), None if restart is None else restart[1:, :, None, None]
        single *= weight
        # by token, with a last row of zeros: p(z_{t-1} | x_1..x_{t-1}) p(block | z_{t-1}), and what lies behind
        tokens = [gate.new_empty(gate.shape[0] * gate.shape[1] + 1, gate.shape[2:].numel()) for _ in range(2)]
        for value in tokens:
            value[-1] = 0.0
        left, right = (value[:-1].view(gate.shape) for value in tokens)
        torch.mul(messages[:-1], gate, out=left)
        torch.mul(behind[1:], weight[1:], out=right)
        grad_gate = (left * rows).mul_(weight[1:])
        to_restart = None
        if ends is not None and begin is not None:
            to_restart = torch.cat([torch.zeros_like(begin[:1]), (single[1:] * ends).sum(-2)])  # the first step: from `init`
            right.masked_fill_(ends, 0.0)
            grad_gate.masked_fill_(ends, 0.0)
        through = grad_gate.sum(-2).flatten(0, 1)
        tokens.append(torch.cat([through, through.new_zeros(1, through.shape[1])]))
        grad_out, grad_into = _of_features(out, into, pairs, plan, tokens, ctx.product_dtype)
        return grad_out, grad_into, grad_gate, single[0].clone(), single, to_restart, *(None,) * 5


def _scaled(logs: Tensor) -> tuple[Tensor, Tensor]:
    """Their exponentials over the largest of the last axis, and its logarithm; ones where all are -inf."""
    top = logs.amax(-1)
    possible = top > -math.inf
    return torch.where(possible.unsqueeze(-1), logs - top.where(possible, 0.0).unsqueeze(-1), 0.0).exp_(), top


def _inner_softmax(out: Tensor, into: Tensor, plan: PairPlan, filled: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(P, K, K) softmax_j(out_i . into_j), [to, from]."""
    width, count = out.shape[1], len(plan.entered)
    # rounded up: of like sizes, the memory of one step fits the next
    pairs = out.new_empty(count + -count % 256, width, width, dtype=dtype)[:count]
    with _narrow_products(width):
        for some, groups in _pairs_at_once(plan, out[0].numel()):
            to, scores = into.index_select(0, plan.entered[some]), pairs[some]
            for block, these, _ in groups:
                _product(to[these].flatten(0, 1), out[block].T, scores[these].flatten(0, 1))
            if filled is not None:
                scores.masked_fill_(~filled[some].unsqueeze(-1), -math.inf)
            torch.softmax(scores, 1, out=scores)
    return pairs


def _pairs_at_once(plan: PairPlan, cells: int) -> list[tuple[slice, list[tuple[int, slice, int]]]]:
    """(some pairs, [(the block they leave, which of these, most tokens of one)]): as many whole groups as a cache holds.

    Args:
        cells: numbers that a pair takes.
    """
    pieces: list[tuple[slice, list[tuple[int, slice, int]]]] = []
    for (block, some), most in zip(plan.groups, plan.most, strict=True):
        if not pieces or (some.stop - pieces[-1][0].start) * cells > CACHED_CELLS:
            pieces.append((some, []))
        whole, groups = pieces[-1]
        groups.append((block, slice(some.start - whole.start, some.stop - whole.start), most))
        pieces[-1] = slice(whole.start, some.stop), groups
    return pieces


def _narrow_products(width: int):
    """Where blocks are narrow: rounding the factors of a product to bfloat16 would take longer than the product."""
    return exact_products() if width <= NARROW else nullcontext()


def _product(left: Tensor, right: Tensor, to: Tensor) -> None:
    """Writes left @ right, of any type, where it belongs."""
    if left.dtype == to.dtype:
        torch.mm(left, right, out=to)
    else:
        to.copy_(torch.mm(left, right))


def _of_features(out, into, pairs, plan: PairPlan, tokens: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gradients of both sets of features.

    Of one token: dS_ij = P_ij u_i (v_j - (P v)_i), with u what comes in at i and v what lies behind j.

    Args:
        tokens: (N + 1, C K) u and v of C rows each, and (N + 1, K) their sum of u (P v), with a last row of zeros.
    """
    coming, behind, through = tokens
    grad_out, grad_into, width = torch.zeros_like(out), torch.zeros_like(into), out.shape[1]
    a, b = out.to(dtype), into.to(dtype)
    with _narrow_products(width):
        for some, groups in _pairs_at_once(plan, out[0].numel()):
            which, entered = plan.tokens[some, : max(most for _, _, most in groups)], plan.entered[some]
            index, shape = which.reshape(-1), (len(which), -1, width)
            u, v = coming.index_select(0, index).view(shape), behind.index_select(0, index).view(shape)
            mean = through.index_select(0, index).view(shape).sum(1, keepdim=True)
            grad = torch.baddbmm(mean.expand(-1, width, -1), v.transpose(1, 2), u, beta=-1).mul_(pairs[some])
            grad, to = grad.to(dtype), b.index_select(0, entered)  # (n, K, K), [to, from]
            back = torch.empty_like(to, dtype=into.dtype)
            for block, these, _ in groups:
                wide = grad[these].flatten(0, 1)
                _product(wide, a[block], back[these].flatten(0, 1))
                _product(wide.T, to[these].flatten(0, 1), grad_out[block])
            grad_into.index_add_(0, entered, back)
    return grad_out, grad_into


def pair_chain_log_prob(
    out: Tensor,
    into: Tensor,
    gate: Tensor,
    init: Tensor,
    emit: Tensor,
    plan: PairPlan,
    *,
    filled: Tensor | None = None,
    valid: Tensor | None = None,
    restart: Tensor | None = None,
    restart_to: Tensor | None = None,
    mix: Tensor | None = None,
    lift: Tensor | None = None,
    product_dtype: torch.dtype | None = None,
) -> Forward | None:
    """log p(x) of each row, differentiable; see the module's head for the factors. None where digits would be lost.

    Args:
        filled: (P, K) False at padded slots of the block entered, or None. product_dtype: of the products of features.

    With topics, of which mix and lift are told, the states of its messages are (T, B, C K).

    Cost: 2 P K^2 D flops forward for the P distinct pairs, twice that backward, whatever C, and C K^2 a token; P K^2 numbers
    kept.
    """
    init = init.expand(emit.shape[1:])
    given = [value.unsqueeze(-2) for value in (gate, init, emit)] if mix is None else [gate, init, emit]
    args = (out, into, *given, restart_to, plan, filled, valid, restart, product_dtype or out.dtype)
    steps, messages = twice.apply(PairChainSteps, _twin, *args)
    if mix is None:
        log_prob = steps.sum(0, dtype=torch.float64).to(emit.dtype).squeeze(-1)
        forward = Forward(log_prob, messages.squeeze(-2), steps.detach().squeeze(-1), in_logs=False)
    else:
        forward = TopicForward(steps, messages, mix, lift, valid, restart, in_logs=False)
    if not twice.transformed():
        top = given[2].detach().amax(-1)
        sound = (steps.detach() - top > math.log(TRUSTED[emit.dtype])) | (top == -math.inf)
        sound = sound if valid is None else sound | ~valid.unsqueeze(-1)
        if not bool(sound[1:].all() & forward.log_prob.isfinite().all()):
            return None
    return forward


class TopicForward(Forward):
    """The chain of topics, which at a restart move by mix (C, C), over log p(x_t | x_<t) (T, B, C) and messages (T, B, C, K) of
    each on its own; the states of its messages are (T, B, C K)."""

    def __init__(
        self, steps: Tensor, messages: Tensor, mix: Tensor, lift: Tensor | None, valid: Tensor | None,
        restart: Tensor | None, in_logs: bool,
    ):  # fmt: skip
        if restart is not None and lift is not None:
            steps = steps + lift.where(restart.unsqueeze(-1), 0.0)
        stay = torch.full_like(mix, -math.inf).fill_diagonal_(0.0).expand(*steps[1:].shape, -1)
        moves = stay if restart is None else torch.where(restart[1:, :, None, None], mix, stay)
        topics = chain_log_prob(steps.new_zeros(len(mix)), moves, steps, valid)
        self.log_prob, self.step_log_prob, self.in_logs, self.kept = topics.log_prob, topics.step_log_prob, True, None
        self.topics, self.own = topics, (messages, in_logs)

    @once
    def messages(self) -> Tensor:  # logarithms, as a topic may be less than any number of the others and come back
        messages, in_logs = self.own
        return (self.topics.filtered.detach().unsqueeze(-1) + (messages if in_logs else messages.log())).flatten(-2)


def pair_matrices_reference(out, into, gate, plan: PairPlan, filled=None, product_dtype=None) -> Tensor:
    """(T-1, B, K, K) log p(z_t | z_{t-1}), [from, to]: a matrix a step and row."""
    dtype = product_dtype or out.dtype
    scores = (out.to(dtype)[plan.left] @ into.to(dtype)[plan.entered].transpose(-1, -2)).to(out.dtype)
    if filled is not None:
        scores = scores.masked_fill(~filled.unsqueeze(1), -math.inf)
    return torch.log_softmax(scores, -1)[plan.pair_of] + gate.unsqueeze(-1)


def _twin(out, into, gate, init, emit, restart_to, plan, filled, valid, restart, product_dtype):
    """The slow twin of :class:`PairChainSteps`, in log space."""
    one = gate.new_zeros(*gate.shape[:2], gate.shape[-1])
    matrices = pair_matrices_reference(out, into, one, plan, filled, product_dtype).unsqueeze(2) + gate.unsqueeze(-1)
    if restart is not None:
        matrices = torch.where(restart[1:, :, None, None, None], restart_to[1:, :, None, None, :], matrices)
    valid = None if valid is None else valid.unsqueeze(-1).expand(emit.shape[:-1])
    messages, steps = filtered_twin(init, matrices, emit, valid, False)
    return steps, messages.detach().exp()
