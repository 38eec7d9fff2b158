"""EM of an input-output HMM from many starts at once: exact where there is a formula, uphill elsewhere.

Source: Y. Bengio and P. Frasconi (1995), An input output HMM architecture, section 3; A. P. Dempster, N. M. Laird and
D. B. Rubin (1977), Maximum likelihood from incomplete data via the EM algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.infer.fit.em import ROUNDING
from pplseq.kernels.restart_scan import Expectation
from pplseq.models.iohmm.restarts.history import RestartBlock, Restarts
from pplseq.models.iohmm.restarts.networks import Penalty
from pplseq.models.iohmm.restarts.outputs import Parameters
from pplseq.models.iohmm.restarts.problem import PARTS, Penalties, RestartProblem, put, take


class Step(NamedTuple):
    """Parameters, and the (R,) log-likelihoods and objectives, nats, that they have."""

    parameters: Parameters
    log_likelihood: Tensor
    objective: Tensor


def run_em(
    problem: RestartProblem,
    parameters: Parameters,
    *,
    max_iterations: int = 100,
    tolerance: float = 1e-5,
    blocks: list[RestartBlock] | None = None,
    precisions: Mapping[str, float] | None = None,
    gradient: bool = False,
    on_iteration: Callable[[int, Tensor], None] | None = None,
) -> Restarts:
    """EM from R starts as one batch; every restart stops when it has converged by itself.

    Args:
        problem: data and networks. parameters: where to start, restarts last.
        max_iterations: M-steps at most. tolerance: a restart stops when it gains less, nats per step of the data.
        blocks: settings of successive blocks of restarts, for their priors; None for one without.
        precisions: part ("initial", "transition", "emission", "noise") -> precision of a Normal prior of its weights.
        gradient: generalised EM, uphill also where there is a formula.
        on_iteration: called with the number of the iteration and the log-likelihoods (of restarts still running).

    Returns:
        What became of them, ``parameters`` included. A restart whose log-likelihood is NaN or -inf, or whose objective fell by
        more than rounding, stops; the first two are in ``dropped``, the last keeps the parameters before.
    """
    like = next(iter(parameters["transition"].values()))
    num_restarts, dtype = like.shape[-1], like.dtype
    blocks = blocks or [RestartBlock(num_restarts)]
    block = torch.repeat_interleave(torch.arange(len(blocks)), torch.tensor([b.num_restarts for b in blocks]))
    if len(block) != num_restarts:
        raise ValueError(f"blocks hold {len(block)} restarts, but parameters are of {num_restarts}")
    prior = RestartPriors(blocks, block, like, precisions or {})
    nan = torch.full((num_restarts,), math.nan, dtype=dtype)
    result = Restarts(
        nan.clone(), nan.clone(), torch.empty(0), torch.empty(0), torch.zeros(num_restarts, dtype=torch.long),
        torch.zeros(num_restarts, dtype=torch.bool), block,
    )  # fmt: skip
    result.parameters = {part: {k: v.clone() for k, v in weights.items()} for part, weights in parameters.items()}
    active = torch.arange(num_restarts, device=like.device)
    before: Step | None = None
    trace, objectives = [], []
    for iteration in range(max_iterations + 1):
        expected = problem.expect(parameters)
        log_likelihood = expected.log_prob.sum(0)
        objective = log_likelihood + problem.log_prior(parameters, prior.at(iteration, active))
        for values, value in ((trace, log_likelihood), (objectives, objective)):
            values.append(nan.clone())
            values[-1][active.cpu()] = value.cpu()
        if on_iteration is not None:
            on_iteration(iteration, log_likelihood)
        broken = ~torch.isfinite(log_likelihood)
        stop = broken.clone()
        if before is not None:
            gain = objective - before.objective
            fell = gain < -ROUNDING.get(dtype, ROUNDING[torch.float32]) * before.objective.abs().clamp_min(1.0)
            if bool(fell.any()):  # back to the parameters before
                where = fell.nonzero().squeeze(-1)
                result.fell += active[where].tolist()
                put(parameters, where, take(before.parameters, where))
                log_likelihood = torch.where(fell, before.log_likelihood, log_likelihood)
                objective = torch.where(fell, before.objective, objective)
            converged = prior.settled(iteration, active) & ~fell & (gain <= tolerance * problem.num_steps)
            stop = stop | fell | converged
            result.converged[active[converged].cpu()] = True
        if iteration == max_iterations:
            stop = torch.ones_like(stop)
        if bool(stop.any()):
            where, there = stop.nonzero().squeeze(-1), active[stop]
            put(result.parameters, there, take(parameters, where))
            there = there.cpu()
            result.log_likelihoods[there] = log_likelihood[where].cpu()
            result.log_posteriors[there] = objective[where].cpu()
            result.num_iterations[there] = iteration
            result.note_collapses(there, broken[where], log_likelihood[where], expected.emit[..., where])
            active, going = active[~stop], ~stop
            if not len(active):
                break
            parameters = take(parameters, going)
            problem.take(going)
            expected = Expectation(*(value[..., going] for value in expected))
            log_likelihood = log_likelihood[going]
        penalties = prior.at(iteration + 1, active)  # a step climbs under its own prior
        before = Step(parameters, log_likelihood, log_likelihood + problem.log_prior(parameters, penalties))
        parameters, floored = problem.maximize(parameters, expected, penalties, gradient=gradient)
        if floored is not None and bool(floored.any()):
            result.floored = sorted({*result.floored, *active[floored].tolist()})
    result.trace, result.objectives = torch.stack(trace), torch.stack(objectives)
    return result


class RestartPriors:
    """The priors of each restart, iteration by iteration."""

    def __init__(self, blocks: list[RestartBlock], block: Tensor, like: Tensor, precisions: Mapping[str, float]):
        self.first, self.over, self.fixed = (
            torch.tensor([float(getattr(b, name)) for b in blocks]).to(like)[block.to(like.device)]
            for name in ("prior", "prior_iterations", "fixed_start")
        )
        self.precisions = precisions

    def at(self, iteration: int, restarts: Tensor) -> Penalties:
        first, over = self.first[restarts], self.over[restarts]
        concentration, starts = None, None
        if bool((first > 1).any()):
            left = torch.where(over > 0, (1 - iteration / over.clamp_min(1)).clamp_min(0), 1.0)
            concentration = 1 + (first - 1) * left
            starts = torch.where(self.fixed[restarts] > 0, 1.0, concentration)
        return {
            part: Penalty(
                starts if part == "initial" else concentration, self.precisions.get(part, 0.0),
                self.precisions.get("noise", 0.0),
            )
            for part in PARTS
        }  # fmt: skip

    def settled(self, iteration: int, restarts: Tensor) -> Tensor:
        """Whether the objective itself has stopped moving."""
        return (iteration > self.over[restarts]) | (self.first[restarts] == 1)
