"""Chains of contexts by whichever does the work: :mod:`pplseq.kernels.contexts.loops`, or their twin in tensor operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled, twice
from pplseq.kernels.compiled import array
from pplseq.kernels.contexts import reference
from pplseq.kernels.contexts.reference import ContextSteps, Smoothed
from pplseq.kernels.scan import Forward

# seconds of the twin's work for which a loop is compiled, about what that takes
WORTH = {"forward": 0.5, "smooth": 0.5, "k_best": 2.0}
POINTERS = 1 << 23  # back pointers of a row that are kept
OPERATIONS = 40  # of the twin, on tensors, a step
PER_MOVE = {"forward": 12, "smooth": 24, "k_best": 15}  # multiplications that one takes as long as


def _pays(loop: str, times: int, emit: Tensor, log: Tensor, *given: Tensor) -> bool:
    """Whether a loop does this work, so many times for each move."""
    if any(part.dtype != torch.float64 or part.device.type != "cpu" for part in (emit, log, *given)):
        return False
    if not compiled.available() or not emit.numel():
        return False
    share = float((emit[len(emit) // 2] > -torch.inf).to(torch.float64).mean())  # of the contexts that a word allows, roughly
    moves = times * PER_MOVE[loop] * emit.numel() * share * log.shape[-1] * share
    return compiled.pays(f"kernels.contexts.loops.{loop}", times * OPERATIONS * len(emit), moves, worth=WORTH[loop])


def _arguments(steps: ContextSteps, emit: Tensor, valid: Tensor | None) -> tuple[Any, ...]:
    """What loops take besides the table."""
    lengths = np.full(emit.shape[1], len(emit)) if valid is None else array(valid.sum(0))
    return array(steps.successor), array(steps.symbol), steps.num_symbols if steps.in_order else -1, array(emit), lengths


def forward_pass(init: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None) -> Forward:
    """Filtering, without gradients; cost: the moves that words allow."""
    if _pays("forward", 1, emit, steps.log, init) and steps.probs is not None:
        from pplseq.kernels.contexts import loops

        messages, found = np.empty(emit.shape), np.empty(emit.shape[:2])
        given = array(init), steps.probs, *_arguments(steps, emit, valid), messages, found
        if _all_rows(lambda part, begin, end: loops.forward(begin, end, *given), steps, emit):
            step_log_prob = torch.from_numpy(found)
            return Forward(step_log_prob.sum(0), torch.from_numpy(messages), step_log_prob, in_logs=False)
    with torch.no_grad():
        return reference.forward_pass(init, steps, emit, valid)


def _all_rows(run: Any, steps: ContextSteps, emit: Tensor) -> bool:
    """Whether a loop did for all rows."""
    done = []
    compiled.by_rows(lambda *part: done.append(run(*part)), emit.shape[1], emit.numel() * steps.num_symbols)
    return all(done)


@torch.no_grad()
def smooth(
    forward: Forward, steps: ContextSteps, emit: Tensor, valid: Tensor | None, weight: Tensor | None = None,
    counts: bool = False, entropy: bool = False,
) -> Smoothed:  # fmt: skip
    """Posteriors, and what else is asked for, from what :func:`forward_pass` gives; weight: (R,) of each row in the counts."""
    if not forward.in_logs and _pays("smooth", 1, emit, steps.log):
        from pplseq.kernels.contexts import loops

        rows, table = emit.shape[1], steps.probs
        parts = compiled.num_parts(rows, emit.numel() * steps.num_symbols)
        posterior, inner = np.empty(emit.shape), np.empty(rows if entropy else 0)
        sums = np.zeros((parts, *steps.log.shape)) if counts else np.zeros((parts, 0, 0))
        weights = np.ones(rows) if weight is None else array(weight)
        given = table, *_arguments(steps, emit, valid), array(forward.messages), weights, posterior

        def run(part: int, begin: int, end: int) -> bool:
            return loops.smooth(begin, end, *given, sums[part], inner)

        if _all_rows(run, steps, emit):
            found = torch.from_numpy(sums[0] if parts == 1 else sums.sum(0)) if counts else None
            return Smoothed(torch.from_numpy(posterior), found, torch.from_numpy(inner) if entropy else None)
    beta = reference.backward_pass(forward.filtered, steps, emit, valid)
    return reference.smooth(forward.filtered, beta, steps, emit, valid, weight, counts, entropy)


def k_best_pass(
    init: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k most probable paths: contexts (k, T, R), and log-probabilities (k, R), -inf where there are fewer."""
    if k * len(emit) * steps.size <= POINTERS and _pays("k_best", k, emit, steps.log, init):
        from pplseq.kernels.contexts import loops

        path, found = np.empty((k, *emit.shape[:2]), np.int64), np.empty((k, emit.shape[1]))
        given = array(init), array(steps.log), *_arguments(steps, emit, valid), path, found
        if _all_rows(lambda part, begin, end: loops.k_best(begin, end, *given), steps, emit):
            return torch.from_numpy(path), torch.from_numpy(found)
    return reference.k_best_pass(init, steps, emit, valid, k)


# ---------------------------------------------------------------- gradients
def forward_twin(init, log, emit, successor, symbol, in_order, valid) -> tuple[Tensor, Tensor, Tensor, bool]:
    """The slow twin of :class:`ContextLogProb`: plain torch operations, differentiable to any order."""
    found = reference.forward_pass(init, ContextSteps(log, successor, symbol), emit, valid)
    return found.log_prob, found.messages.detach(), found.step_log_prob.detach(), True


class ContextLogProb(torch.autograd.Function):
    """log p(x) of each row; the backward is forward-backward (Fisher's identity), no graph over time.

    Returns the fields of :class:`~pplseq.kernels.scan.Forward`, of which log p(x) (R,) is differentiable.
    """

    @staticmethod
    def forward(ctx, init, log, emit, successor, symbol, in_order, valid):
        found = forward_pass(init, ContextSteps(log, successor, symbol, in_order), emit, valid)
        ctx.in_logs, ctx.in_order = found.in_logs, in_order
        ctx.save_for_backward(init, log, emit, successor, symbol, valid, found.messages, found.step_log_prob)
        ctx.mark_non_differentiable(found.messages, found.step_log_prob)
        return found.log_prob, found.messages, found.step_log_prob, found.in_logs

    @staticmethod
    def backward(ctx, *grads):
        weight, (*args, messages, step_log_prob) = grads[0], ctx.saved_tensors
        if torch.is_grad_enabled():
            given = *args[:-1], ctx.in_order, args[-1]
            return twice.gradients(lambda *a: forward_twin(*a)[0], given, weight)
        _, log, emit, successor, symbol, valid = args
        forward = Forward(weight, messages, step_log_prob, ctx.in_logs)
        steps = ContextSteps(log, successor, symbol, ctx.in_order)
        found = smooth(forward, steps, emit, valid, weight, counts=ctx.needs_input_grad[1])
        single = found.posterior * weight.unsqueeze(-1)
        return single[0].clone(), found.counts, single, None, None, None, None  # else two leaves share one gradient


def log_prob(init: Tensor, steps: ContextSteps, emit: Tensor, valid: Tensor | None) -> Forward:
    """log p(x) of each row, differentiable to any order, which alone carries a gradient."""
    if not twice.derivatives_wanted(init, steps.log, emit):
        return forward_pass(init, steps, emit, valid)
    given = init, steps.log, emit, steps.successor, steps.symbol, steps.in_order, valid
    return Forward(*twice.apply(ContextLogProb, forward_twin, *given))
