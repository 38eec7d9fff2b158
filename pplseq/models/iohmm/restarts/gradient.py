"""Stochastic gradients for an input-output HMM, from many starts at once."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pplseq.models.iohmm.restarts.em import RestartPriors
from pplseq.models.iohmm.restarts.history import RestartBlock, Restarts
from pplseq.models.iohmm.restarts.outputs import Parameters
from pplseq.models.iohmm.restarts.problem import RestartProblem


def run_sgd(
    problems: list[RestartProblem],
    parameters: Parameters,
    *,
    num_steps: int = 500,
    learning_rate: float = 0.05,
    precisions: Mapping[str, float] | None = None,
    blocks: list[RestartBlock] | None = None,
    on_iteration: Callable[[int, Tensor], None] | None = None,
) -> Restarts:
    """Adam on the log-likelihood (plus log prior) of R starts as one batch, a mini-batch of sequences a step, in random order.

    Args:
        problems: the mini-batches. parameters: where to start. num_steps: steps.
        learning_rate: Adam's; falls to a tenth over the run.
        precisions, blocks, on_iteration: see :func:`run_em`.

    Returns:
        What became of them; likelihoods are over all mini-batches, at the last parameters.
    """
    blocks = blocks or [RestartBlock(next(iter(parameters["transition"].values())).shape[-1])]
    leaves = {p: {k: v.detach().clone() for k, v in w.items()} for p, w in parameters.items()}
    flat = [value for weights in leaves.values() for value in weights.values()]
    parts = [part for part, weights in leaves.items() for _ in weights]
    optimizer = torch.optim.Adam(flat, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1 ** (1 / max(num_steps, 1)))
    total = sum(problem.num_steps for problem in problems)
    order, trace = [], []
    for step in range(num_steps):
        order = order or torch.randperm(len(problems)).tolist()
        problem = problems[order.pop()]
        log_likelihood, gradient = problem.gradient(leaves)
        grads = [value for weights in gradient.values() for value in weights.values()]
        share = problem.num_steps / total
        for value, grad, part in zip(flat, grads, parts, strict=True):
            precision = (precisions or {}).get(part, 0.0)
            uphill = (grad - share * precision * value if precision else grad) / problem.num_steps
            value.grad = -uphill.nan_to_num(0.0)  # a restart that broke stays as it is; it is dropped below
        optimizer.step()
        schedule.step()
        trace.append(log_likelihood.cpu() / share)
        if on_iteration is not None:
            on_iteration(step, log_likelihood)
    num_restarts = flat[0].shape[-1]
    expected = [problem.expect(leaves) for problem in problems]
    log_likelihood = functools.reduce(operator.add, (value.log_prob.sum(0) for value in expected))
    block = torch.repeat_interleave(torch.arange(len(blocks)), torch.tensor([b.num_restarts for b in blocks]))
    likelihoods = torch.stack(trace) if trace else torch.empty(0, num_restarts)
    result = Restarts(
        log_likelihood.cpu(), torch.empty(0), likelihoods, likelihoods, torch.full((num_restarts,), num_steps),
        torch.zeros(num_restarts, dtype=torch.bool), block,
    )  # fmt: skip
    flat_blocks = [RestartBlock(num_restarts)]  # Dirichlet priors are of EM
    priors = RestartPriors(flat_blocks, torch.zeros_like(block), log_likelihood, precisions or {})
    penalties = priors.at(0, torch.arange(num_restarts))
    result.log_posteriors = (log_likelihood + problems[0].log_prior(leaves, penalties)).cpu()
    result.parameters = leaves
    visits = functools.reduce(operator.add, (value.emit.sum(1, keepdim=True) for value in expected))
    result.note_collapses(torch.arange(num_restarts), ~torch.isfinite(log_likelihood), log_likelihood, visits)
    return result
