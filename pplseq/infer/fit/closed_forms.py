"""Maximisers in closed form, of which models build their M-steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.infer.fit.em import floor_eigenvalues
from pplseq.kernels.chain import statistics


def dirichlet_mode(counts: Tensor, concentration: Tensor | float | None, previous: Tensor) -> Tensor:
    """log of the most probable rows of a table: p_i ~ counts_i + concentration_i - 1.

    Args:
        counts: (..., N) expected counts. concentration: of the Dirichlet prior, at least 1; None for none.
        previous: (..., N) logits of rows that nothing is known about, which keep them.
    """
    weight = counts if concentration is None else counts + (concentration - 1.0)
    if (small := statistics.small_modes(weight, previous)) is not None:
        return small
    total = weight.sum(-1, keepdim=True)
    known = total > 0
    found = (weight / total).log()
    if bool(known.all()):
        return found
    return torch.where(known, found, torch.log_softmax(previous.to(weight.dtype), -1))


class NormalWishart(NamedTuple):
    """Prior of a Gaussian's mean and precision: L ~ Wishart(2 shape + D - 1, (2 rate)^-1 I), mean ~ N(loc, (strength L)^-1).

    In one dimension, and for diagonal covariances in each, L ~ Gamma(shape, rate).
    """

    loc: Tensor  # (D,)
    strength: float
    shape: float
    rate: float


def gaussian_mode(
    weight: Tensor, first: Tensor, second: Tensor, covariance: str, prior: NormalWishart | None, floor: Tensor | float,
    moved: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The most probable means and covariances of weighted Gaussian data.

    Args:
        weight: (Z,) expected visits. first: (Z, D) sum of x. second: (Z, D) sum of x^2 for "diag" and "spherical",
            (Z, D, D) sum of x x' for "full", the same summed over states (D, D) for "tied".
        covariance: which kind; "tied" is one full matrix for all states.
        prior: of means and precisions, or None. The density is maximised over (mean, precision).
        floor: smallest variance in any direction, or (D,) variances that no covariance may lie below anywhere ("spherical":
            below their mean); the result is the maximum under that constraint.
        moved: from the best means (Z, D) to those that are allowed, at which covariances are then taken; None where all are.

    Returns:
        means (Z, D); covariances (Z, D), (Z, D, D), (D, D) or for "spherical" (Z, 1); a mask (Z,) (tied: (1,)) of those
        that met the floor. Rows of states with weight 0 are meaningless without a prior.
    """
    size = first.shape[-1]
    floor = torch.as_tensor(floor).to(first).expand(size)
    strength, extra, centre = (prior.strength, 2 * prior.rate, prior.loc) if prior else (0.0, 0.0, torch.zeros(size))
    centre = centre.to(first)
    mass = (weight + strength).unsqueeze(-1)
    mean = best = (first + strength * centre) / mass
    if moved is not None:
        mean = moved(best)
    # the prior's pseudo-observations lie at its centre; precision's prior and the mean's normaliser add to the count
    count = weight + 1 + 2 * (prior.shape - 1) if prior else weight
    if covariance in ("diag", "spherical"):
        scatter = second + strength * centre**2 - mass * best**2 + mass * (mean - best).square()
        if covariance == "spherical":
            scatter = scatter.sum(-1, keepdim=True)
            floor = floor.mean()
            count = (weight + 1) * size + 2 * (prior.shape - 1) if prior else weight * size
        variance = (scatter + extra) / count.unsqueeze(-1)
        return mean, variance.maximum(floor), (variance < floor).any(-1)
    unit = floor.sqrt()
    unit = torch.outer(unit, unit)  # in these units the floor is 1 in every direction
    around = strength * torch.outer(centre, centre) - mass.unsqueeze(-1) * best.unsqueeze(-1) * best.unsqueeze(-2)
    if moved is not None:
        apart = mean - best
        around = around + mass.unsqueeze(-1) * apart.unsqueeze(-1) * apart.unsqueeze(-2)
    if covariance == "tied":
        known = torch.isfinite(around).all(-1).all(-1)
        scatter = second + around[known].sum(0)
        count = weight.sum() + len(weight) + 2 * (prior.shape - 1) if prior else weight.sum()
        value, floored = floor_eigenvalues((scatter + extra * torch.eye(size).to(first)) / count / unit, 1.0)
        return mean, value * unit, floored.reshape(1)
    scatter = second + around + extra * torch.eye(size).to(first)
    scatter = scatter / count[:, None, None] / unit
    known = torch.isfinite(scatter).all(-1).all(-1)  # the eigenvalues of NaN raise
    value, floored = floor_eigenvalues(scatter.where(known[:, None, None], torch.eye(size).to(first)), 1.0)
    return mean, value * unit, floored & known


def with_held(best: Tensor, fixed: Tensor, held: Tensor, covariances: Tensor) -> Tensor:
    """Means (Z, D) of which some are held: the others move as their covariances with these say."""
    best = best.where(best.isfinite(), held.to(best))  # of a state that nothing is known about
    mean = torch.where(fixed, held.to(best), best)
    for state in (fixed.any(-1) & ~fixed.all(-1)).nonzero().flatten().tolist():
        own, covariance = fixed[state], covariances[state].to(best)
        gain = torch.linalg.solve(covariance[own][:, own], covariance[own][:, ~own]).T
        mean[state, ~own] = best[state, ~own] + gain @ (mean[state, own] - best[state, own])
    return mean
