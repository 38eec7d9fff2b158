"""Stochastic gradients for an input-output HMM, from many starts at once."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.drawing import undrawn
from pplseq.infer.fit import optimizers
from pplseq.models.iohmm.restarts.em import RestartPriors
from pplseq.models.iohmm.restarts.held_out import HeldOutScores
from pplseq.models.iohmm.restarts.history import RestartBlock, RestartRun, Restarts
from pplseq.models.iohmm.restarts.outputs import Parameters
from pplseq.models.iohmm.restarts.problem import RestartProblem, moved, put, take
from pplseq.runs.fits import LOG_INTERVAL

NEAR = 1e-6  # of a logarithm


class SGDRun(RestartRun):
    """Adam on the log-likelihood (plus log prior) of R starts as one batch, a mini-batch of sequences a step, in random order.

    Likelihoods of the outcome are over all mini-batches, at the last parameters.

    Args:
        problems: the mini-batches. parameters: where to start. num_steps: steps.
        lr: Adam's; falls to a tenth over the run.
        precisions, blocks: see :class:`~pplseq.models.iohmm.restarts.em.EMRun`.
        boxes: by "part_network.weight" the (low, high) between which weights stay: each step ends at the nearest there.
        validation, early_stop: see :class:`~pplseq.models.iohmm.restarts.held_out.HeldOutScores`; every ``LOG_INTERVAL`` steps.
    """

    def __init__(
        self, problems: list[RestartProblem], parameters: Parameters, *, num_steps: int = 500, lr: float = 0.05,
        precisions: Mapping[str, float] | None = None, blocks: list[RestartBlock] | None = None,
        boxes: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        validation: RestartProblem | None = None, early_stop: int | None = None,
    ):  # fmt: skip
        self.problems, self.precisions, self.num_steps = problems, precisions or {}, num_steps
        self.blocks = blocks or [RestartBlock(next(iter(parameters["transition"].values())).shape[-1])]
        self.parameters = {p: {k: v.detach().clone() for k, v in w.items()} for p, w in parameters.items()}
        self.boxes = [(*name.split("_network.", 1), *both) for name, both in (boxes or {}).items()]
        self._keep_inside()
        self.flat = [value for weights in self.parameters.values() for value in weights.values()]
        self.parts = [part for part, weights in self.parameters.items() for _ in weights]
        self.optimizer = optimizers.Adam(self.flat, lr=lr)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.1 ** (1 / max(num_steps, 1)))
        self.total = sum(problem.num_steps for problem in problems)
        self.iteration, self.order, self.trace = 0, [], []
        self.restarts = torch.arange(self.flat[0].shape[-1])
        self.held_out = HeldOutScores(validation, early_stop, len(self.restarts))
        self.kept = {p: {k: v.clone() for k, v in w.items()} for p, w in self.parameters.items()}

    order: list[int]  # mini-batches that are still to come in this pass
    trace: list[Tensor]

    @property
    def ended(self) -> bool:
        return self.iteration >= self.num_steps or bool(self.held_out.stopped.all())

    def step(self) -> Tensor:
        self.order = self.order or torch.randperm(len(self.problems)).tolist()
        problem = self.problems[self.order.pop()]
        with undrawn(*problem.modules[:1]):
            found = self._climb(problem)
            if self.iteration % LOG_INTERVAL == 0 or self.iteration == self.num_steps:
                self._look()
        return found

    def _look(self) -> None:
        better = self.held_out.look(self.iteration, self.restarts, self.parameters)
        put(self.kept, better.nonzero().squeeze(-1), take(self.parameters, better))

    def _climb(self, problem: RestartProblem) -> Tensor:
        log_likelihood, gradient = problem.gradient(self.parameters)
        grads = [value for weights in gradient.values() for value in weights.values()]
        share = problem.num_steps / self.total
        usual = self.total / len(self.problems)  # steps: a mini-batch counts by how many it has, so that all make up the whole
        for value, grad, part in zip(self.flat, grads, self.parts, strict=True):
            precision = 0.0 if part in problem.held else self.precisions.get(part, 0.0)
            uphill = (grad - share * precision * value if precision else grad) / usual
            value.grad = -uphill.nan_to_num(0.0)  # a restart that broke stays as it is; it is dropped in the end
        self.optimizer.step()
        self._keep_inside()
        for name, value in self._above_floors(0.0).items():
            self.parameters["noise"][name].copy_(value)
        self.schedule.step()
        self.trace.append((log_likelihood.cpu() / share).where(~self.held_out.stopped, torch.nan))
        self.iteration += 1
        return log_likelihood

    def _keep_inside(self) -> None:
        for part, weight, low, high in self.boxes:
            value = self.parameters[part][weight]
            value.copy_(value.clamp(low.to(value).unsqueeze(-1), high.to(value).unsqueeze(-1)))

    def _above_floors(self, shift: float) -> dict[str, Tensor]:
        """Noises, moved by ``shift``, where no variance is below its floor: numbers that repeat have no likeliest one."""
        noise = {} if "noise" in self.problems[0].held else self.parameters.get("noise", {})
        weights = {f"noise.{name}": value + shift for name, value in noise.items() if value.numel()}
        if not weights:
            return {}
        return {name.removeprefix("noise."): value for name, value in self.problems[0].outputs.inside(weights).items()}

    def best(self) -> tuple[Parameters, int] | None:
        return (self.parameters, int(self.trace[-1].nan_to_num(-torch.inf).argmax())) if self.trace else None

    def cut(self) -> None:
        if self.iteration % LOG_INTERVAL:
            self._look()
        self.num_steps = self.iteration

    def outcome(self) -> Restarts:
        best = self.held_out.has_best
        put(self.parameters, best.nonzero().squeeze(-1), take(self.kept, best))
        num_restarts = self.flat[0].shape[-1]
        expected = [problem.expect(self.parameters) for problem in self.problems]
        log_likelihood = functools.reduce(operator.add, (value.log_prob.sum(0) for value in expected))
        sizes = torch.tensor([block.num_restarts for block in self.blocks])
        block = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        likelihoods = torch.stack(self.trace) if self.trace else torch.empty(0, num_restarts)
        result = Restarts(
            log_likelihood.cpu(), torch.empty(0), likelihoods, likelihoods, torch.full((num_restarts,), self.iteration),
            torch.zeros(num_restarts, dtype=torch.bool), block, validations=self.held_out.table,
        )  # fmt: skip
        flat_blocks = [RestartBlock(num_restarts)]  # Dirichlet priors are of EM
        priors = RestartPriors(flat_blocks, torch.zeros_like(block), log_likelihood, self.precisions)
        penalties = priors.at(0, torch.arange(num_restarts))
        result.log_posteriors = (log_likelihood + self.problems[0].log_prior(self.parameters, penalties)).cpu()
        result.parameters = self.parameters
        low = [self.parameters["noise"][name] - NEAR < value for name, value in self._above_floors(-NEAR).items()]
        result.floored = sorted({one for part in low for one in part.flatten(0, -2).any(0).nonzero().flatten().tolist()})
        visits = functools.reduce(operator.add, (value.emit.sum(1, keepdim=True) for value in expected))
        result.note_collapses(torch.arange(num_restarts), ~torch.isfinite(log_likelihood), log_likelihood, visits)
        return result

    def state(self) -> dict[str, Any]:
        names = ("iteration", "order", "trace", "parameters", "kept")
        return {name: getattr(self, name) for name in names} | {
            "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict(),
            "held_out": self.held_out.state(),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        self.iteration, self.order, self.trace = state["iteration"], state["order"], state["trace"]
        for part, weights in state["parameters"].items():
            for name, value in weights.items():
                self.parameters[part][name].copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.kept = moved(state["kept"], self.flat[0].device)
        self.held_out.restore(state["held_out"])
