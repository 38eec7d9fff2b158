"""Held-out data of restarts: each restart keeps the parameters that were best on them, and may stop early."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pplseq.models.iohmm.restarts.outputs import Parameters
from pplseq.models.iohmm.restarts.problem import RestartProblem


class HeldOutScores:
    """Scores of R restarts on held-out data while they are fitted.

    Args:
        problem: the data, with the networks of the training data; None: nothing is scored, and the last parameters are kept.
        early_stop: a restart stops after so many scores in a row without a new best; None: none does.
        num_restarts: R.

    Attributes:
        scores: of every iteration (R,) nats per step at the parameters that it left, NaN where there was no look.
        best: (R,) the lowest, inf where there is none. stopped: (R,) restarts that stopped early.
    """

    def __init__(self, problem: RestartProblem | None, early_stop: int | None, num_restarts: int):
        self.problem, self.early_stop = problem, early_stop
        self.scores: list[Tensor] = []
        self.best = torch.full((num_restarts,), math.inf, dtype=torch.float64)
        self.since = torch.zeros(num_restarts, dtype=torch.long)
        self.stopped = torch.zeros(num_restarts, dtype=torch.bool)

    def look(self, iteration: int, restarts: Tensor, parameters: Parameters) -> Tensor:
        """Scores the parameters that an iteration left of some restarts (positions): a mask of those that are a new best."""
        if self.problem is None:
            return torch.zeros(len(restarts), dtype=torch.bool)
        nats = -self.problem.log_prob(parameters).sum(0).double().cpu() / self.problem.num_steps
        nats, there = nats.nan_to_num(math.inf, posinf=math.inf), restarts.cpu()
        while len(self.scores) <= iteration:
            self.scores.append(torch.full_like(self.best, math.nan))
        going = ~self.stopped[there]
        self.scores[iteration][there[going]] = nats[going]
        better = going & (nats < self.best[there])
        self.best[there[better]] = nats[better]
        self.since[there[going]] += 1
        self.since[there[better]] = 0
        if self.early_stop is not None:
            self.stopped |= self.since >= self.early_stop
        return better

    @property
    def has_best(self) -> Tensor:
        """(R,) restarts that keep parameters of an earlier iteration than their last."""
        return self.best.isfinite()

    @property
    def table(self) -> Tensor:
        """(N, R) all scores, from those of the start on, of which there are none."""
        return torch.stack(self.scores) if self.scores else self.best.new_empty(0, len(self.best))

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` needs."""
        return {name: getattr(self, name) for name in ("scores", "best", "since", "stopped")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what another's :meth:`state` said."""
        vars(self).update(state)
