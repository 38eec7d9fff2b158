"""The stationary start of R restarts: no weights of its own, but those of the transitions, which it bends in the M-step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pplseq.distributions.stationary import stationary_log_probs
from pplseq.kernels.restart_scan import Expectation
from pplseq.models.iohmm.restarts.climbing import Climber
from pplseq.models.iohmm.restarts.networks import Penalty, RestartNetwork, Rows, Weights, inner


class StationaryStart(RestartNetwork):
    """p with p A = p of the transitions' matrix A, for R of them.

    The M-step of transitions then has no formula: that of transitions without a start is taken where it does not lower the
    expected log-likelihood with the start, and steps uphill go on from there.

    Args:
        transition: that no inputs drive.
    """

    def __init__(self, transition: RestartNetwork):
        super().__init__(transition.network, num_climbs=transition.num_climbs)
        self.transition = transition

    def rows(self, inputs: Tensor | None) -> Rows:
        return Rows(None, None, 1)

    def log_probs(self, weights: Weights, rows: Rows) -> Tensor:
        """(1, Z, 1, R) of the weights of the transitions."""
        matrix = self.transition.log_probs(weights, Rows(None, None, 1))[:, :, 0].movedim(-1, 0)  # (R, Z, Z) [from, to]
        return stationary_log_probs(matrix).T[None, :, None]

    def log_prior(self, weights, penalty, *, softmax=False, bernoulli=False) -> Any:
        """It has no weights of its own."""
        return 0.0

    def fit(self, weights: Weights, rows: Rows, expected: Expectation, penalty: Penalty, gradient: bool) -> Weights:
        """Weights of the transitions with an expected log-likelihood, and prior, at least as high."""

        def objective(own: Weights) -> Tensor:
            start = inner(expected.start.unsqueeze(0), self.log_probs(own, rows))
            moves = inner(expected.pair, self.transition.log_probs(own, rows))
            return start + moves + self.transition.log_prior(own, penalty, softmax=True)

        if not gradient:
            found = self.transition.fit_softmax(weights, rows, expected.pair, penalty)
            better = objective(found) >= objective(weights)
            weights = {name: torch.where(better, found[name], value) for name, value in weights.items()}
        if self.climber is None:
            self.climber = Climber(weights)
        return self.climber.climb(weights, objective, self.num_climbs)
