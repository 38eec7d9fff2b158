"""EM of an input-output HMM from many starts at once: exact where there is a formula, uphill elsewhere.

Source: Y. Bengio and P. Frasconi (1995), An input output HMM architecture, section 3; A. P. Dempster, N. M. Laird and
D. B. Rubin (1977), Maximum likelihood from incomplete data via the EM algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq.distributions.drawing import undrawn
from pplseq.infer.fit.em import ROUNDING
from pplseq.kernels.restart_scan import Expectation
from pplseq.models.iohmm.restarts.held_out import HeldOutScores
from pplseq.models.iohmm.restarts.history import RestartBlock, RestartRun, Restarts
from pplseq.models.iohmm.restarts.networks import Penalty
from pplseq.models.iohmm.restarts.outputs import Parameters
from pplseq.models.iohmm.restarts.problem import PARTS, Penalties, RestartProblem, moved, put, take


class Step(NamedTuple):
    """Parameters, and the (R,) log-likelihoods and objectives, nats, that they have."""

    parameters: Parameters
    log_likelihood: Tensor
    objective: Tensor


class EMRun(RestartRun):
    """EM from R starts as one batch; every restart stops when it has converged by itself.

    A restart whose log-likelihood is NaN or -inf, or whose objective fell by more than rounding, stops; the first two are in
    ``dropped``, the last keeps the parameters before.

    Args:
        problem: data and networks. parameters: where to start, restarts last.
        max_iterations: M-steps at most. tolerance: a restart stops when it gains less, nats per step of the data.
        blocks: settings of successive blocks of restarts, for their priors; None for one without.
        precisions: part ("initial", "transition", "emission", "noise") -> precision of a Normal prior of its weights.
        gradient: generalised EM, uphill also where there is a formula.
        validation, early_stop: see :class:`~pplseq.models.iohmm.restarts.held_out.HeldOutScores`; after every M-step.
    """

    def __init__(
        self, problem: RestartProblem, parameters: Parameters, *, max_iterations: int = 100, tolerance: float = 1e-5,
        blocks: list[RestartBlock] | None = None, precisions: Mapping[str, float] | None = None, gradient: bool = False,
        validation: RestartProblem | None = None, early_stop: int | None = None,
    ):  # fmt: skip
        like = next(iter(parameters["transition"].values()))
        num_restarts = like.shape[-1]
        blocks = blocks or [RestartBlock(num_restarts)]
        block = torch.repeat_interleave(torch.arange(len(blocks)), torch.tensor([b.num_restarts for b in blocks]))
        if len(block) != num_restarts:
            raise ValueError(f"blocks hold {len(block)} restarts, but parameters are of {num_restarts}")
        self.problem, self.gradient, self.tolerance = problem, gradient, tolerance * problem.num_steps
        self.max_iterations, self.rounding = max_iterations, ROUNDING.get(like.dtype, ROUNDING[torch.float32])
        self.prior = RestartPriors(blocks, block, like, precisions or {})
        self.nan = torch.full((num_restarts,), math.nan, dtype=like.dtype)
        self.held_out = HeldOutScores(validation, early_stop, num_restarts)
        self.result = Restarts(
            self.nan.clone(), self.nan.clone(), torch.empty(0), torch.empty(0),
            torch.zeros(num_restarts, dtype=torch.long), torch.zeros(num_restarts, dtype=torch.bool), block,
        )  # fmt: skip
        self.result.parameters = {part: {k: v.clone() for k, v in w.items()} for part, w in parameters.items()}
        self.parameters, self.before = parameters, None
        self.active = torch.arange(num_restarts, device=like.device)
        self.iteration, self.trace, self.objectives = 0, [], []

    before: Step | None  # what the last step began with
    trace: list[Tensor]
    objectives: list[Tensor]

    @property
    def ended(self) -> bool:
        return not len(self.active)

    def step(self) -> Tensor:
        with undrawn(*self.problem.modules[:1]):
            return self._step()

    def _step(self) -> Tensor:
        problem, prior, result, iteration = self.problem, self.prior, self.result, self.iteration
        expected = problem.expect(self.parameters)
        log_likelihood = found = expected.log_prob.sum(0)
        objective = log_likelihood + problem.log_prior(self.parameters, prior.at(iteration, self.active))
        for values, value in ((self.trace, log_likelihood), (self.objectives, objective)):
            values.append(self.nan.clone())
            values[-1][self.active.cpu()] = value.cpu()
        broken = ~torch.isfinite(log_likelihood)
        stop = broken.clone()
        if iteration:
            better = self.held_out.look(iteration, self.active, self.parameters)
            self._keep(better.to(stop.device), broken, log_likelihood, objective, expected)
            stop = stop | self.held_out.stopped.to(stop.device)[self.active]
        if (before := self.before) is not None:
            gain = objective - before.objective
            fell = gain < -self.rounding * before.objective.abs().clamp_min(1.0)
            if bool(fell.any()):  # back to the parameters before
                where = fell.nonzero().squeeze(-1)
                result.fell += self.active[where].tolist()
                put(self.parameters, where, take(before.parameters, where))
                log_likelihood = torch.where(fell, before.log_likelihood, log_likelihood)
                objective = torch.where(fell, before.objective, objective)
            converged = prior.settled(iteration, self.active) & ~fell & (gain <= self.tolerance)
            stop = stop | fell | converged
            result.converged[self.active[converged].cpu()] = True
        if iteration == self.max_iterations:
            stop = torch.ones_like(stop)
        if bool(stop.any()):
            last = stop & (broken | ~self.held_out.has_best.to(stop.device)[self.active])
            self._keep(last, broken, log_likelihood, objective, expected)
            result.num_iterations[self.active[stop].cpu()] = iteration
            self.active, going = self.active[~stop], ~stop
            if self.ended:
                return found
            self.parameters = take(self.parameters, going)
            problem.take(going)
            expected = Expectation(*(value[..., going] for value in expected))
            log_likelihood = log_likelihood[going]
        self.iteration += 1
        penalties = prior.at(self.iteration, self.active)  # a step climbs under its own prior
        objective = log_likelihood + problem.log_prior(self.parameters, penalties)
        self.before = Step(self.parameters, log_likelihood, objective)
        self.parameters, floored = problem.maximize(self.parameters, expected, penalties, gradient=self.gradient)
        if floored is not None and bool(floored.any()):
            result.floored = sorted({*result.floored, *self.active[floored].tolist()})
        return found

    def _keep(
        self, kept: Tensor, broken: Tensor, log_likelihood: Tensor, objective: Tensor, expected: Expectation
    ) -> None:
        """Writes down what those of the running restarts (a mask) have come to."""
        where, there = kept.nonzero().squeeze(-1), self.active[kept]
        put(self.result.parameters, there, take(self.parameters, where))
        there = there.cpu()
        self.result.log_likelihoods[there] = log_likelihood[where].cpu()
        self.result.log_posteriors[there] = objective[where].cpu()
        self.result.note_collapses(there, broken[where], log_likelihood[where], expected.emit[..., where])

    def outcome(self) -> Restarts:
        self.result.validations = self.held_out.table
        self.result.trace, self.result.objectives = torch.stack(self.trace), torch.stack(self.objectives)
        return self.result

    def state(self) -> dict[str, Any]:
        names = ("iteration", "parameters", "active", "trace", "objectives")
        before = None if self.before is None else self.before._asdict()
        return {name: getattr(self, name) for name in names} | {
            "before": before, "result": vars(self.result), "memory": self.problem.memory(), "held_out": self.held_out.state(),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        device = self.active.device
        self.iteration, self.trace, self.objectives = state["iteration"], state["trace"], state["objectives"]
        self.parameters, self.active = (moved(state[name], device) for name in ("parameters", "active"))
        self.before = None if state["before"] is None else Step(**moved(state["before"], device))
        self.result = Restarts(**state["result"])
        self.result.parameters = moved(self.result.parameters, device)
        self.problem.remember(moved(state["memory"], device))
        self.held_out.restore(state["held_out"])

    def best(self) -> tuple[Parameters, int] | None:
        if self.before is None:
            return None
        return self.before.parameters, int(self.before.log_likelihood.nan_to_num(-math.inf).argmax())

    def cut(self) -> None:
        if self.before is not None:
            self.result.num_iterations[self.active.cpu()] = self.iteration
            last = ~self.held_out.has_best.to(self.active.device)[self.active]
            there = self.active[last]
            put(self.result.parameters, there, take(self.before.parameters, last))
            there, last = there.cpu(), last.cpu()
            self.result.log_likelihoods[there] = self.before.log_likelihood.cpu()[last]
            self.result.log_posteriors[there] = self.before.objective.cpu()[last]
        self.active = self.active[:0]


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
