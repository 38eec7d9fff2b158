"""Gradient ascent of R objectives at once, each with its own step length, never downhill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

FIRST_STEP = 0.05
BETA = (0.9, 0.999)  # of Adam
GROW, SHRINK = 1.1, 0.5


class Climber:
    """Adam's direction, a step of its own length for each restart; a step that would lower an objective is not taken.

    What a climb learned of step lengths and gradients stays for the next one.

    Args:
        weights: name -> (..., R).

    Source: D. P. Kingma and J. Ba (2015), Adam. A generalised EM step only has to go up: A. P. Dempster, N. M. Laird and
        D. B. Rubin (1977), section 3.
    """

    def __init__(self, weights: dict[str, Tensor]):
        self.first = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.second = {name: torch.zeros_like(value) for name, value in weights.items()}
        value = next(iter(weights.values()))
        self.count, self.length = 0, torch.full_like(value.flatten(0, -2)[0], FIRST_STEP)

    @classmethod
    def of(cls, state: dict[str, Any]) -> Climber:
        """One that goes on from what ``vars`` of another said."""
        climber = cls.__new__(cls)
        vars(climber).update(state)
        return climber

    def take(self, restarts: Tensor) -> None:
        """Keeps some restarts only."""
        self.length = self.length[restarts]
        for moments in (self.first, self.second):
            for name, value in moments.items():
                moments[name] = value[..., restarts]

    def climb(
        self,
        weights: dict[str, Tensor],
        objective: Callable[[dict[str, Tensor]], Tensor],
        num_steps: int,
        inside: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda weights: weights,
    ) -> dict[str, Tensor]:
        """Weights after up to ``num_steps`` steps, with an objective (R,) at least as high in every restart.

        ``inside`` brings weights back to where they may be, before they are tried.
        """
        value, gradient = gradients(objective, weights)
        for _ in range(num_steps):
            direction = self._direction(gradient)
            trial = {name: weights[name] + self.length * step for name, step in direction.items()}
            trial = inside(trial)
            reached, new_gradient = gradients(objective, trial)
            better = reached >= value
            self.length = torch.where(better, self.length * GROW, self.length * SHRINK)
            weights = {name: torch.where(better, trial[name], weights[name]) for name in weights}
            gradient = {name: torch.where(better, new_gradient[name], gradient[name]) for name in weights}
            value = torch.where(better, reached, value)
            for name in weights:  # a direction that led down is forgotten
                self.first[name] = torch.where(better, self.first[name], 0.0)
        return weights

    def _direction(self, gradient: dict[str, Tensor]) -> dict[str, Tensor]:
        self.count += 1
        result = {}
        for name, value in gradient.items():
            self.first[name] = torch.lerp(value, self.first[name], BETA[0])
            self.second[name] = torch.lerp(value**2, self.second[name], BETA[1])
            scale = (self.second[name] / (1 - BETA[1] ** self.count)).sqrt() + torch.finfo(value.dtype).eps
            result[name] = self.first[name] / (1 - BETA[0] ** self.count) / scale
        return result


def gradients(objective: Callable, weights: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The objective's values (R,), and each one's gradient in its own weights."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
        value = objective(leaves)
        found = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True)  # counts have no dispersion
        grads = [torch.zeros_like(leaf) if own is None else own for leaf, own in zip(leaves.values(), found, strict=True)]
    return value.detach(), {name: grad.nan_to_num(0.0) for name, grad in zip(leaves, grads, strict=True)}
