"""The scans over time: forward, backward and their gradient over one chain of factors.

Every function here takes the same factors, time first and rows after it:

    init   (*B, K)              log p(z_1)                          (or the carried belief, one step on)
    pair   (T-1, *B, K, K)      log p(z_t | z_{t-1}), [from, to]    per step and row, or
           (*b, K, K)           one matrix shared by all steps      (``shared=True``; b broadcasts to B)
    emit   (T, *B, K)           log p(x_t | z_t), 0 for a missing token, -inf for a forbidden state
    valid  (T, *B) or None      False at padded steps (the message is carried over unchanged)

and, only beside a shared matrix, steps at which the state is drawn afresh:

    restart     (T, *B) or None     True where p(z_t | z_{t-1}) = exp(restart_to)
    restart_to  (*b, K)

Messages are normalised at every step, so float32 keeps its precision on chains of any length, and the normaliser of
step t is log p(x_t | x_<t).
"""

from __future__ import annotations

import math
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from pplseq.kernels import shared_matrix, twice
from pplseq.kernels.chain import piece_call
from pplseq.kernels.chain.piece_call import Kept
from pplseq.kernels.log_semiring import logsumexp
from pplseq.kernels.triton import scans as device
from pplseq.threads import once


def log_normalise(score: Tensor) -> tuple[Tensor, Tensor]:
    """score - logsumexp(score) over the last axis, and that logsumexp (-inf where nothing is possible, never NaN)."""
    total = logsumexp(score, -1) if score.requires_grad else torch.logsumexp(score, -1)
    return score - total.clamp_min(torch.finfo(score.dtype).min).unsqueeze(-1), total


class LogMatrices(Protocol):
    """The steps of a chain as linear maps in log space."""

    shared: bool
    restart: Tensor | None

    def at(self, t: int) -> Tensor:
        """The log matrix that leads into step t (t >= 1)."""
        ...

    def forward(self, t: int, message: Tensor) -> Tensor:
        """log sum_i exp(message_i) A_ij, (*B, K), for a normalised message."""
        ...

    def backward(self, t: int, message: Tensor) -> Tensor:
        """log sum_j A_ij exp(message_j) up to a constant, (*B, K)."""
        ...


class StepMatrices:
    """The transition factors of a chain as linear maps between messages in log space.

    A product ``log(exp(a) @ A)`` is done on probabilities scaled by row maxima: one exponential per matrix entry in all,
    and then matrix products. Where every entry of a row lies within ``reach`` of its row's maximum, each result is at
    least exp(-reach) and all that underflows is below its rounding error; otherwise each product is checked, and redone
    entry by entry in log space if any result came out smaller than that.
    """

    def __init__(self, log: Tensor, shared: bool, restart: Tensor | None = None, restart_to: Tensor | None = None):
        self.log, self.shared, self.restart, self.restart_to = log, shared, restart, restart_to
        self.reach = 500.0 if log.dtype == torch.float64 else 60.0

    @once
    def _parts(self) -> tuple[Tensor, Tensor, bool]:
        """Made on first use: the compiled loops have their own."""
        row_max = self.log.amax(-1, keepdim=True).clamp_min(torch.finfo(self.log.dtype).min)
        shifted = self.log - row_max
        safe = self.log.numel() > 0 and bool(shifted.amin() > -self.reach)
        return shifted.exp_(), row_max.squeeze(-1), safe

    @property
    def scaled(self) -> Tensor:
        """The matrices over their row maxima."""
        return self._parts[0]

    @property
    def row_max(self) -> Tensor:
        """Logarithms of the row maxima."""
        return self._parts[1]

    @property
    def safe(self) -> bool:
        """Every entry of a row lies within ``reach`` of its row's maximum."""
        return self._parts[2]

    def at(self, t: int) -> Tensor:
        """The log matrix that leads into step t (t >= 1)."""
        log = self._log_at(t)
        if self.restart is None or self.restart_to is None or not bool(self.restart[t].any()):
            return log
        return torch.where(self.restart[t][..., None, None], self.restart_to.unsqueeze(-2), log)

    def _log_at(self, t: int) -> Tensor:
        return self.log if self.shared else self.log[t - 1]

    def _scaled_at(self, t: int) -> tuple[Tensor, Tensor]:
        return (self.scaled, self.row_max) if self.shared else (self.scaled[t - 1], self.row_max[t - 1])

    def forward(self, t: int, message: Tensor) -> Tensor:
        """log sum_i exp(message_i) A_ij, (*B, K), for a normalised message."""
        result = self._forward(t, message)
        if self.restart is None or self.restart_to is None:
            return result
        return torch.where(self.restart[t].unsqueeze(-1), self.restart_to, result)

    def _forward(self, t: int, message: Tensor) -> Tensor:
        scaled, row_max = self._scaled_at(t)
        score = message + row_max
        top = score.amax(-1, keepdim=True).clamp_min(torch.finfo(score.dtype).min)
        product = vector_times((score - top).exp_(), scaled)
        if not self.safe and bool((product < math.exp(-self.reach)).any()):
            return torch.logsumexp(message.unsqueeze(-1) + self._log_at(t), -2)
        return product.log_().add_(top)

    def backward(self, t: int, message: Tensor) -> Tensor:
        """log sum_j A_ij exp(message_j) up to a constant, (*B, K)."""
        result = self._backward(t, message)
        if self.restart is None:
            return result
        return result.masked_fill(self.restart[t].unsqueeze(-1), 0.0)

    def _backward(self, t: int, message: Tensor) -> Tensor:
        scaled, row_max = self._scaled_at(t)
        top = message.amax(-1, keepdim=True).clamp_min(torch.finfo(message.dtype).min)
        product = vector_times((message - top).exp_(), scaled.transpose(-1, -2))
        if not self.safe and bool((product < math.exp(-self.reach)).any()):
            return torch.logsumexp(self._log_at(t) + message.unsqueeze(-2), -1)
        return product.log_().add_(top).add_(row_max)


def vector_times(vector: Tensor, matrix: Tensor) -> Tensor:
    """vector @ matrix over the last axes: one product for a shared matrix, a batched one otherwise."""
    if matrix.dim() == 2:
        return torch.matmul(vector, matrix)
    return torch.matmul(vector.unsqueeze(-2), matrix).squeeze(-2)


class Forward:
    """What one pass forward in time leaves behind.

    Args:
        log_prob: (*B,) log p(x).
        messages: (T, *B, K) p(z_t | x_<=t) or, if ``in_logs``, its logarithm; or what makes it again when it is asked for.
        step_log_prob: (T, *B) log p(x_t | x_<t), 0 at padded steps.
    """

    def __init__(self, log_prob: Tensor, messages: Tensor | Kept, step_log_prob: Tensor, in_logs: bool = True):
        self.log_prob, self.step_log_prob, self.in_logs = log_prob, step_log_prob, in_logs
        self.kept = messages if isinstance(messages, Kept) else None
        if isinstance(messages, Tensor):
            self.messages = messages

    @once
    def messages(self) -> Tensor:
        assert self.kept is not None, "given, unless they can be made again"
        return piece_call.messages(self.kept).reshape(*self.step_log_prob.shape, -1)

    @property
    def filtered(self) -> Tensor:
        """(T, *B, K) log p(z_t | x_<=t)."""
        return self.messages if self.in_logs else self.messages.log()

    @property
    def last(self) -> Tensor:
        """(*B, K) log p(z_T | x), of each row's own last step."""
        if self.kept is None or "messages" in self.__dict__:
            return self.filtered[-1]
        return piece_call.last_message(self.kept).reshape(*self.log_prob.shape, -1)


def is_shared(matrices: LogMatrices, emit: Tensor) -> TypeGuard[StepMatrices]:
    """Whether the scans of :mod:`pplseq.kernels.shared_matrix` do for this chain."""
    if not isinstance(matrices, StepMatrices) or not matrices.shared or matrices.restart is not None:
        return False
    return shared_matrix.applies(matrices.log, emit) and not device.applies(matrices, emit)


def as_rows(emit: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(T, N, K) and (T, N): all batch dimensions as one."""
    num_steps, *_, num_states = emit.shape
    return emit.reshape(num_steps, -1, num_states), None if valid is None else valid.reshape(num_steps, -1)


def forward_pass(init: Tensor, matrices: LogMatrices, emit: Tensor, valid: Tensor | None) -> Forward:
    """Filtering: log p(z_t | x_<=t) for every t. Cost: T K^2 a row."""
    if isinstance(matrices, StepMatrices) and matrices.restart is None and piece_call.pays(matrices.log, emit):
        steps, kept = piece_call.forward_pass(init, matrices.log, matrices.shared, emit, valid)
        return Forward(steps.sum(0).to(emit.dtype), kept, steps.to(emit.dtype))
    if isinstance(matrices, StepMatrices) and device.applies(matrices, emit):
        messages, steps = device.forward_pass(init, matrices, emit, valid)
        return Forward(steps.sum(0, dtype=torch.float64).to(emit.dtype), messages, steps)
    return forward_in_torch(init, matrices, emit, valid)


def forward_in_torch(init: Tensor, matrices: LogMatrices, emit: Tensor, valid: Tensor | None) -> Forward:
    """:func:`forward_pass` in tensor operations, a few a step: for other devices, and where products are large."""
    if not is_shared(matrices, emit):
        return forward_in_log_space(init, matrices, emit, valid)
    shape, (emit, valid), init = emit.shape, as_rows(emit, valid), init.reshape(-1, emit.shape[-1])
    messages, steps, redo = shared_matrix.forward_pass(init, matrices.log, emit, valid)
    in_logs = bool(redo.any())
    if in_logs:
        messages.log_()
        part = None if valid is None else valid[:, redo]
        redone = forward_in_log_space(init[redo], matrices, emit[:, redo], part)
        messages[:, redo], steps[:, redo] = redone.messages, redone.step_log_prob
    log_prob = steps.sum(0, dtype=torch.float64).to(emit.dtype)
    return Forward(log_prob.reshape(shape[1:-1]), messages.reshape(shape), steps.reshape(shape[:-1]), in_logs)


def forward_in_log_space(init: Tensor, matrices: LogMatrices, emit: Tensor, valid: Tensor | None) -> Forward:
    """:func:`forward_pass` for any matrices."""
    message, step = log_normalise(init + emit[0])
    if valid is not None:
        step = step.where(valid[0], 0.0)
    messages, steps = [message], [step]
    for t in range(1, emit.shape[0]):
        new, step = log_normalise(matrices.forward(t, message) + emit[t])
        if valid is not None:
            new, step = torch.where(valid[t].unsqueeze(-1), new, message), step.where(valid[t], 0.0)
        message = new
        messages.append(message)
        steps.append(step)
    steps = torch.stack(steps)
    return Forward(steps.sum(0, dtype=torch.float64).to(emit.dtype), torch.stack(messages), steps)


def backward_pass(matrices: LogMatrices, emit: Tensor, valid: Tensor | None) -> Tensor:
    """log p(x_>t | z_t) up to a constant per step, (T, *B, K)."""
    if isinstance(matrices, StepMatrices) and device.applies(matrices, emit):
        return device.backward_pass(matrices, emit, valid)
    if not is_shared(matrices, emit):
        return backward_in_log_space(matrices, emit, valid)
    shape, (emit, valid) = emit.shape, as_rows(emit, valid)
    beta, redo = shared_matrix.backward_pass(matrices.log, emit, valid)
    if bool(redo.any()):
        part = None if valid is None else valid[:, redo]
        beta[:, redo] = backward_in_log_space(matrices, emit[:, redo], part)
    return beta.reshape(shape)


def backward_in_log_space(matrices: LogMatrices, emit: Tensor, valid: Tensor | None) -> Tensor:
    """:func:`backward_pass` for any matrices."""
    message = torch.zeros_like(emit[0])
    messages = [message]
    for t in range(emit.shape[0] - 1, 0, -1):
        new = log_normalise(matrices.backward(t, emit[t] + message))[0]
        message = new if valid is None else torch.where(valid[t].unsqueeze(-1), new, message)
        messages.append(message)
    return torch.stack(messages[::-1])


def state_posterior(filtered: Tensor, beta: Tensor, valid: Tensor | None) -> Tensor:
    """p(z_t | x), (T, *B, K); zero at padded steps."""
    posterior = log_normalise(filtered + beta)[0].exp_()
    return posterior if valid is None else posterior.mul_(valid.unsqueeze(-1))


def _pair_sides(matrices: StepMatrices, emit: Tensor, forward: Forward, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log left side (message at t-1), log right side (t) and log weight of p(z_{t-1}, z_t | x)."""
    left, right = forward.filtered[:-1], emit[1:] + beta[1:]
    # the sum over both states of left + A + right, without forming the pairs
    total = forward.step_log_prob[1:] + torch.logsumexp(forward.filtered[1:] + beta[1:], -1)
    return left, right, -total.clamp_min(torch.finfo(emit.dtype).min)


def pair_posterior(
    matrices: LogMatrices, emit: Tensor, forward: Forward, beta: Tensor, valid: Tensor | None, weight: Tensor | None
) -> Tensor:
    """weight * p(z_{t-1}, z_t | x): (T-1, *B, K, K); where the matrix is shared, summed over time and rows to its shape.

    ``weight`` (*B,) multiplies each row (the incoming gradient); None stands for one.
    """
    assert isinstance(matrices, StepMatrices), "a second-order chain has triples instead"
    if device.applies(matrices, emit):
        return device.pair_posterior(matrices, emit, forward.filtered, forward.step_log_prob, beta, valid, weight)
    left, right, log_weight = _pair_sides(matrices, emit, forward, beta)
    # exp(-inf), not a product with 0: the other terms mean nothing there and may overflow
    if valid is not None:
        log_weight = log_weight.masked_fill(~valid[1:], -math.inf)
    if matrices.restart is not None:  # those pairs do not pass through the matrix
        log_weight = log_weight.masked_fill(matrices.restart[1:], -math.inf)
    scale = torch.ones_like(log_weight) if weight is None else weight.expand_as(log_weight)
    if not matrices.shared:
        pair = matrices.log + (left + log_weight.unsqueeze(-1)).unsqueeze(-1)
        return pair.add_(right.unsqueeze(-2)).exp_().mul_(scale[..., None, None])
    shape = matrices.log.shape
    left = left + matrices.row_max
    floor = torch.finfo(emit.dtype).min
    left_top, right_top = (side.amax(-1, keepdim=True).clamp_min(floor) for side in (left, right))
    common = (left_top + right_top).squeeze(-1) + log_weight
    left, right = left - left_top, right - right_top
    # where both sides peak at states between which there is (almost) no way, what underflows in the product may be all
    far = common > matrices.reach / 2
    any_far = bool(far.any())
    total = _far_pairs(matrices, left, right, common, scale, far) if any_far else 0.0
    scale = (scale * (common.masked_fill(far, -math.inf) if any_far else common).exp()).unsqueeze(-1)
    left, right = left.exp_().mul_(scale), right.exp_()
    if len(shape) == 2:
        num_states = shape[-1]
        return (matrices.scaled * (left.reshape(-1, num_states).T @ right.reshape(-1, num_states))).add_(total)
    return (matrices.scaled * torch.einsum("t...i,t...j->...ij", left, right)).sum_to_size(shape).add_(total)


PAIR_CELLS = 1 << 22


def _far_pairs(matrices, left, right, common, scale, far) -> Tensor:
    """The part of a shared matrix's pair posterior at the steps and rows where ``far``, pair by pair in log space."""
    shape = matrices.log.shape
    log = matrices.log - matrices.row_max.unsqueeze(-1)
    log = log.expand(*far.shape[1:], *shape[-2:])
    total = log.new_zeros(shape if len(shape) == 2 else log.shape)
    for where in far.nonzero().split(max(1, PAIR_CELLS // shape[-1] ** 2)):
        step, row = where[:, 0], tuple(where[:, 1:].T)
        index = (step, *row)
        pair = log[row] + (left[index] + common[index].unsqueeze(-1)).unsqueeze(-1) + right[index].unsqueeze(-2)
        pair = pair.exp_().mul_(scale[index][:, None, None])
        total = total + pair.sum(0) if len(shape) == 2 else total.index_put_(row, pair, accumulate=True)
    return total.sum_to_size(shape)


def smooth(
    matrices: LogMatrices,
    emit: Tensor,
    forward: Forward,
    valid: Tensor | None,
    weight: Tensor | None = None,
    pairs: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Both posteriors at once: p(z_t | x) (T, *B, K), and (unless ``pairs`` is False) what pair_posterior returns."""
    if forward.kept is not None:
        return piece_call.smooth(forward.kept, weight, scaled_states=False, pairs=pairs)
    if not is_shared(matrices, emit):
        beta = backward_pass(matrices, emit, valid)
        single = state_posterior(forward.filtered, beta, valid)
        return single, pair_posterior(matrices, emit, forward, beta, valid, weight) if pairs else None
    shape, (emit, valid) = emit.shape, as_rows(emit, valid)
    messages, steps = forward.messages.reshape(emit.shape), forward.step_log_prob.reshape(emit.shape[:-1])
    weight, lost, logs = None if weight is None else weight.reshape(-1), None, None
    if forward.in_logs:
        messages, logs = messages.exp(), messages
        lost = shared_matrix.lost_digits(messages, logs, valid)
    single, pair, redo = shared_matrix.smooth(messages, steps, matrices.log, emit, valid, weight, pairs, lost)
    if bool(redo.any()):
        part = None if valid is None else valid[:, redo]
        logs = messages[:, redo].log() if logs is None else logs[:, redo]
        emit, forward = emit[:, redo], Forward(forward.log_prob.reshape(-1)[redo], logs, steps[:, redo])
        beta = backward_in_log_space(matrices, emit, part)
        single[:, redo] = state_posterior(forward.filtered, beta, part)
        if pair is not None:
            pair += pair_posterior(matrices, emit, forward, beta, part, None if weight is None else weight[redo])
    return single.reshape(shape), pair


def filtered_twin(
    init: Tensor, pair: Tensor, emit: Tensor, valid: Tensor | None, shared: bool, restart: Tensor | None = None,
    restart_to: Tensor | None = None, width: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """log p(z_t | x_<=t) (T, *B, *K) and log p(x_t | x_<t) (T, *B), in plain torch operations, differentiable to any order,
    without a decision.

    Args:
        width: dimensions of a state: 1, or 2 for a chain over pairs (a, b), whose table is (M, M, M), [a, b, c].

    Cost: T K^2 numbers a row, kept for the backward.
    """

    def wide(value: Tensor) -> Tensor:
        return value.reshape(*value.shape, *(1,) * width)

    if valid is not None:  # what stands behind a row's end must not reach a gradient, were it NaN
        emit = torch.where(wide(valid), emit, 0.0)
    messages, steps = [], []
    for t in range(emit.shape[0]):
        score = init
        if t > 0:
            score = logsumexp(messages[-1].unsqueeze(-1) + (pair if shared else pair[t - 1]), -1 - width)
            if restart is not None and restart_to is not None:
                score = torch.where(restart[t].unsqueeze(-1), restart_to, score)
        score = score + emit[t]
        step = logsumexp(score.flatten(score.dim() - width), -1)
        score = score - wide(step.clamp_min(torch.finfo(step.dtype).min))
        if valid is not None:
            step = torch.where(valid[t], step, 0.0)
            score = score if t == 0 else torch.where(wide(valid[t]), score, messages[-1])
        messages.append(score)
        steps.append(step)
    return torch.stack(messages), torch.stack(steps)


def forward_twin(init, pair, emit, valid, shared, restart, restart_to) -> tuple[Tensor, Tensor, Tensor]:
    """The slow twin of :class:`ChainLogProb`: log p(x) (*B,); and without a graph what :func:`filtered_twin` gives."""
    messages, steps = filtered_twin(init, pair, emit, valid, shared, restart, restart_to)
    return steps.sum(0, dtype=torch.float64).to(emit.dtype), messages.detach(), steps.detach()


class ChainLogProb(torch.autograd.Function):
    """log sum over paths of a chain; the backward is forward-backward (Fisher's identity), no graph over time.

    Returns the fields of :class:`Forward`, of which log p(x) (*B,) is differentiable.
    """

    @staticmethod
    def forward(ctx, init, pair, emit, valid, shared, restart, restart_to):
        matrices = StepMatrices(pair, shared, restart, restart_to)
        result = forward_pass(init, matrices, emit, valid)
        if result.kept is None:
            ctx.save_for_backward(init, pair, restart, restart_to, emit, valid, result.step_log_prob, result.messages)
            ctx.mark_non_differentiable(result.step_log_prob, result.messages)
        else:  # it has what the backward needs
            ctx.save_for_backward(init, pair, restart, restart_to, emit, valid)
            ctx.mark_non_differentiable(result.step_log_prob)
        ctx.matrices, ctx.in_logs, ctx.kept = matrices, result.in_logs, result.kept
        return result.log_prob, result.messages if ctx.kept is None else ctx.kept, result.step_log_prob, result.in_logs

    @staticmethod
    def backward(ctx, *grads):
        weight, (init, pair, restart, restart_to, emit, valid, *result) = grads[0], ctx.saved_tensors
        matrices = ctx.matrices
        if torch.is_grad_enabled():
            args = (init, pair, emit, valid, matrices.shared, restart, restart_to)
            return twice.gradients(lambda *a: forward_twin(*a)[0], args, weight)
        if ctx.kept is not None:
            single, pairs = piece_call.smooth(ctx.kept, weight, pairs=ctx.needs_input_grad[1])
            return single[0].clone(), pairs, single, None, None, None, None
        forward = Forward(weight, result[1], result[0], ctx.in_logs)
        single, pairs = smooth(matrices, emit, forward, valid, weight, pairs=ctx.needs_input_grad[1])
        single, drawn = single.mul_(weight.unsqueeze(-1)), None
        if ctx.needs_input_grad[6]:
            drawn = (single[1:] * restart[1:].unsqueeze(-1)).sum(0).sum_to_size(restart_to.shape)
        return single[0].clone(), pairs, single, None, None, None, drawn  # else two leaves share one gradient


def chain_log_prob(
    init: Tensor,
    pair: Tensor,
    emit: Tensor,
    valid: Tensor | None = None,
    shared: bool = False,
    restart: Tensor | None = None,
    restart_to: Tensor | None = None,
) -> Forward:
    """log p(x) of each row, differentiable to any order, which alone carries a gradient; factors as in the module's head."""
    init = init.expand(emit.shape[1:])
    if not twice.derivatives_wanted(init, pair, emit, restart_to):
        twice.refuse_jit()
        return forward_pass(init, StepMatrices(pair, shared, restart, restart_to), emit, valid)
    return Forward(*twice.apply(ChainLogProb, forward_twin, init, pair, emit, valid, shared, restart, restart_to))
