"""Quantiles of mixtures over states: exact ends of the intervals of forecasts, where a normal approximation would not be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

DOUBLINGS = 2000  # of a bracket: more than there are powers of two in double precision
DROPPED = 1e-10  # probability of paths that are left out at a step
SIGNLESS = (1 << 63) - 1  # all bits of a double but its sign
LARGEST = 1 << 22  # numbers in the Gaussians of all paths of a step


class Quantiles:
    """What knows the distribution of each number of a forecast on its own; indexed as the forecast's tensors are."""

    def quantiles(self, share: float) -> Tensor:
        """Smallest numbers (B, K, D) that are not exceeded with at least this probability."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Quantiles:
        return _Part(self, index)


class _Part(Quantiles):
    def __init__(self, whole: Quantiles, index: Any):
        self.whole, self.index = whole, index

    def quantiles(self, share: float) -> Tensor:
        return self.whole.quantiles(share)[self.index]


class Shares(Quantiles):
    """Of numbers that are 1 with these probabilities (B, K, D), and 0 otherwise."""

    def __init__(self, probs: Tensor):
        self.probs = probs

    def quantiles(self, share: float) -> Tensor:
        return (1 - self.probs < share).to(self.probs)


@torch.no_grad()
def quantiles_of(cdf: Callable[[Tensor], Tensor], share: float, centre: Tensor, width: Tensor) -> Tensor:
    """Smallest numbers at which distribution functions reach ``share``, by bisection of the doubles, to the last digit.

    Args:
        cdf: numbers (...) -> their distribution functions, each of its own. centre, width: (...), width > 0: where to look
            first; infinite ones say nothing.

    Where a distribution function is no number, so is the answer. Cost: some 65 evaluations, and two for each time that the
    width doubles until the numbers lie within it.
    """
    known = centre.isfinite() & width.isfinite() & (width > 0)
    centre, width = centre.double().where(known, 0.0), width.double().where(known, 1.0)
    low, high = centre - width, centre + width
    for _ in range(DOUBLINGS):
        below_low, below_high = cdf(low), cdf(high)
        above, below = below_low >= share, below_high < share
        if not bool((above | below).any()):
            break
        width = torch.where(above | below, 2 * width, width)
        low, high = torch.where(above, centre - width, low), torch.where(below, centre + width, high)
    else:
        raise ArithmeticError(f"a distribution function does not reach {share:g} within double precision")
    unknown = below_low.isnan() | below_high.isnan()
    low, high = _ordered(low), _ordered(high)
    while bool((high - 1 > low).any()):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        reached = cdf(_number(middle)) >= share
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return _number(high).masked_fill(unknown, torch.nan)


def _ordered(x: Tensor) -> Tensor:
    """The place of a double among all that there are: neighbours are one apart, also around 0, which halves never reach."""
    bits = x.contiguous().view(torch.int64)
    return torch.where(bits < 0, -(bits & SIGNLESS), bits)


def _number(place: Tensor) -> Tensor:
    return torch.where(place < 0, -(-place).view(torch.float64), place.view(torch.float64))


def _sum_to_one(weights: Tensor) -> Tensor:
    """In double precision; single precision's rounding would hide the tails."""
    weights = weights.double()
    return weights / weights.sum(-1, keepdim=True)


class StateMixture(Quantiles):
    """A mixture over states of distributions of single numbers.

    Args:
        weights: (B, K, Z) probabilities. cdf: numbers (B, K, D) -> (B, K, Z, D) distribution functions of the states.
        means, variances: (B, K, D) of the mixture: where to look first. whole: (D,) which columns hold whole numbers, or None.
    """

    def __init__(
        self, weights: Tensor, cdf: Callable[[Tensor], Tensor], means: Tensor, variances: Tensor, whole: Tensor | None = None
    ):
        self.weights, self.cdf, self.whole = _sum_to_one(weights), cdf, whole
        self.centre, self.width = means, variances.clamp_min(0).sqrt()

    def quantiles(self, share: float) -> Tensor:
        """See :class:`Quantiles`."""

        def cdf(x: Tensor) -> Tensor:
            return (self.weights.unsqueeze(-1) * self.cdf(x)).sum(-2)

        found = quantiles_of(cdf, share, self.centre, self.width)
        if self.whole is not None:  # the jump is at a whole number, which rounding may have missed by a digit
            found = torch.where(self.whole, found.round(), found)
        return found


def gaussian_cdf(means: Tensor, deviations: Tensor) -> Callable[[Tensor], Tensor]:
    """Distribution functions of normals (..., Z, D) of numbers (..., D)."""
    return functools.partial(_normals, means.double(), deviations.double())  # which can be pickled


def _normals(means: Tensor, deviations: Tensor, x: Tensor) -> Tensor:
    return torch.special.ndtr((x.unsqueeze(-2) - means) / deviations)


class PathMixture(Quantiles):
    """What autoregressions with switching states foretell: at each step a mixture over all paths of Gaussians.

    A vector v, of which the first number is 1 and the others what is remembered, moves by a matrix and noise of the new state.

    Args:
        states: (B, Z) probabilities of the last state. matrix: (Z, Z) [from, to]. vector: (B, L) v after the last step.
        moves: of each step (B, Z, L', L) to (1, the D new numbers, others), of which the next step remembers the first L.
        noise: (Z, D, D) covariances of the new numbers. about: (B, D) that is added to them.

    Cost: Z^K Gaussians for K steps, but for paths that cannot be, or are less probable than 1e-10 all together.
    """

    def __init__(
        self, states: Tensor, matrix: Tensor, vector: Tensor, moves: Sequence[Tensor], noise: Tensor, about: Tensor
    ):
        self.states, self.matrix, self.vector = _sum_to_one(states), _sum_to_one(matrix), vector.double()
        self.moves, self.noise, self.about = [move.double() for move in moves], noise.double(), about.double()

    def paths(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each step the paths to it that count: weights (B, M), their last states (M,), and which paths they prolong (M,).

        Raises:
            ValueError: where there are more than fit into memory.
        """
        number, length = len(self.matrix), self.vector.shape[-1]
        weights, last = self.states @ self.matrix, torch.arange(number, device=self.states.device)
        found = [(weights, last, torch.zeros_like(last))]
        for step in range(1, len(self.moves)):
            if length == 1:  # nothing is remembered, so that the last state says all
                found.append((found[-1][0] @ self.matrix, last, torch.zeros_like(last)))
                continue
            weights, before, _ = found[-1]
            weights = (weights.unsqueeze(-1) * self.matrix[before]).flatten(1)
            order = weights.amax(0).argsort()
            kept = order[(weights[:, order].cumsum(-1) > DROPPED).any(0)].sort().values
            weights = weights[:, kept]
            if weights.numel() * length**2 > LARGEST:
                raise ValueError(
                    f"intervals: {step + 1} steps ahead is a mixture of {weights.shape[-1]:,} Gaussians; ask for {step} steps, "
                    "or draw paths (sample)"
                )
            found.append((weights / weights.sum(-1, keepdim=True), kept % number, kept // number))
        return found

    @torch.no_grad()
    def steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each step weights (B, M), means (B, M, D) and variances (B, M, D); for what is raised see :meth:`paths`."""
        size, length = self.noise.shape[-1], self.vector.shape[-1]
        new, mean = slice(1, 1 + size), self.vector.unsqueeze(1)
        spread = mean.new_zeros(len(mean), 1, length, length)
        for (weights, last, parents), move in zip(self.paths(), self.moves, strict=True):
            matrices = move[:, last]
            mean = (matrices @ mean[:, parents].unsqueeze(-1)).squeeze(-1)
            spread = matrices @ spread[:, parents] @ matrices.mT
            spread[..., new, new] += self.noise[last]
            yield weights, mean[..., new] + self.about.unsqueeze(1), spread[..., new, new].diagonal(dim1=-2, dim2=-1)
            mean, spread = mean[..., :length], spread[..., :length, :length]

    def quantiles(self, share: float) -> Tensor:
        """See :class:`Quantiles`."""
        found = []
        for weights, means, variances in self.steps():
            each, weight = gaussian_cdf(means, variances.clamp_min(0).sqrt()), weights.unsqueeze(-1)
            centre = (weight * means).sum(1)
            width = (weight * (variances + (means - centre.unsqueeze(1)).square())).sum(1).sqrt()
            found.append(quantiles_of(lambda x, each=each, weight=weight: (weight * each(x)).sum(1), share, centre, width))
        return torch.stack(found, 1)
