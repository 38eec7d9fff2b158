"""Parameters of a linear dynamical system, from how they are usually written to how they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.kernels.matrix_equations import check_stable, stationary_covariance, symmetric

__all__ = [
    "Parameters", "RegressionPrior", "as_prior", "check_stable", "covariance_of", "scale_of", "stationary_belief",
    "stationary_mean",
]  # fmt: skip

REGRESSIONS = ("transition", "emission")


class Parameters(NamedTuple):
    """What a system is, as it is usually written; None for what a model has not.

    Both moves and observations are regressions, y = W (z, 1, u) + noise, whose weights W (size, k) stand side by side in
    ``transition`` or ``emission`` (size, h), ``_offset`` (size,) and ``_inputs`` (size, U).

    state_noise: (h, h). emission_noise: (n, n), or (n,) variances. initial_mean: (h,). initial_covariance: (h, h).
    """

    transition: Tensor
    transition_offset: Tensor | None
    transition_inputs: Tensor | None
    state_noise: Tensor
    emission: Tensor
    emission_offset: Tensor | None
    emission_inputs: Tensor | None
    emission_noise: Tensor
    initial_mean: Tensor | None
    initial_covariance: Tensor | None

    def detach(self) -> Parameters:
        """The same without gradients."""
        return Parameters(*(None if value is None else value.detach() for value in self))

    def columns(self, kind: str) -> dict[str, Tensor]:
        """The parts (size, columns) of a regression's weights, by name."""
        parts = {name: getattr(self, name) for name in (kind, f"{kind}_offset", f"{kind}_inputs")}
        return {name: v.unsqueeze(-1) if v.dim() == 1 else v for name, v in parts.items() if v is not None}

    def weights(self, kind: str) -> Tensor:
        """(size, k) W of a regression."""
        return torch.cat([*self.columns(kind).values()], -1)

    def with_weights(self, kind: str, weights: Tensor) -> Parameters:
        """The same with another W."""
        columns = self.columns(kind)
        parts = weights.split([part.shape[-1] for part in columns.values()], -1)
        named = zip(columns, parts, strict=True)
        return self._replace(**{name: part.squeeze(-1) if name.endswith("_offset") else part for name, part in named})

    def extras(self, kind: str, x: Tensor, inputs: Tensor | None) -> Tensor:
        """(B, T, k - h) what beside the state x (B, T, n) is regressed on: ones for the offset, inputs."""
        parts = [x.new_ones(*x.shape[:2], 1 if getattr(self, f"{kind}_offset") is not None else 0)]
        if getattr(self, f"{kind}_inputs") is not None and inputs is not None:
            parts.append(inputs)
        return torch.cat(parts, -1)

    def shift(self, kind: str, inputs: Tensor | None) -> Tensor | None:
        """Offset and inputs (*b, U) of a regression: (*b, size), (size,), or None for neither."""
        offset, weights = getattr(self, f"{kind}_offset"), getattr(self, f"{kind}_inputs")
        if weights is None or inputs is None:
            return offset
        driven = inputs @ weights.T
        return driven if offset is None else offset + driven


class RegressionPrior(NamedTuple):
    """Pseudo-observations: log p(W, S) = -count/2 log|S| - tr S^-1 (count variance I + strength W W') / 2 + constant.

    Args:
        count: how many steps of residual variance ``variance`` they are worth.
        variance: of the noise, in every direction.
        strength: pulls the weights, but no offset, towards zero (ridge regression).
    """

    count: float = 0.0
    variance: float = 1.0
    strength: float = 0.0

    def log_prob(self, weights: Tensor, noise: Tensor, shrunk: Tensor) -> Tensor:
        """The log density (up to a constant, nats) at weights (n, k) and a covariance (n, n); shrunk: (k,) bool."""
        if self.count == 0 and self.strength == 0:
            return weights.new_zeros(())
        factor = torch.linalg.cholesky(noise)
        pull = weights * shrunk
        target = self.count * self.variance * torch.eye(len(noise)).to(noise) + self.strength * pull @ pull.T
        return -self.count * factor.diagonal().log().sum() - torch.cholesky_solve(target, factor).trace() / 2


def as_prior(name: str, prior: RegressionPrior | Mapping[str, Any] | None) -> RegressionPrior:
    """A prior from a mapping of its arguments, or None for none; raises for what is none."""
    try:
        prior = RegressionPrior(**prior) if isinstance(prior, Mapping) else RegressionPrior(*(prior or ()))
    except TypeError:
        raise TypeError(
            f"{name} must be a RegressionPrior, or a mapping of its {', '.join(RegressionPrior._fields)}; got {prior!r}"
        ) from None
    if not (prior.count >= 0 and prior.variance > 0 and prior.strength >= 0):
        raise ValueError(f"{name}: count and strength must not be negative and variance positive, got {prior}")
    return prior


def stationary_mean(transition: Tensor, offset: Tensor | None) -> Tensor:
    """(h,) m = A m + offset."""
    if offset is None:
        return transition.new_zeros(len(transition))
    return torch.linalg.solve(torch.eye(len(transition)).to(transition) - transition, offset)


def stationary_belief(transition: Tensor, offset: Tensor | None, noise: Tensor) -> GaussianBelief:
    """The distribution that states tend to without inputs.

    Raises:
        ValueError: for an unstable transition.
    """
    return GaussianBelief(stationary_mean(transition, offset), stationary_covariance(transition, noise))


def covariance_of(scale: Tensor) -> Tensor:
    """S S' of a triangular factor (h, h), or of standard deviations (h,); what is above the diagonal does not count."""
    factor = torch.diag(scale) if scale.dim() == 1 else scale.tril()
    return factor @ factor.mT


def scale_of(name: str, covariance: Tensor, *, diagonal: bool = False, definite: bool = False) -> Tensor:
    """The triangular factor (h, h), or the standard deviations (h,), of a covariance (h, h), which may be singular.

    Args:
        name: of the covariance, for messages. diagonal: give standard deviations. definite: it may not be singular.

    Raises:
        ValueError: for what is no such covariance.
    """
    checks.finite(name, covariance)
    if not torch.allclose(covariance, covariance.T, rtol=1e-4, atol=1e-8):
        raise ValueError(f"{name} must be symmetric")
    if diagonal and bool((covariance - torch.diag(covariance.diagonal())).any()):
        raise ValueError(f"{name} must be diagonal in this model; make it with {name}='full'")
    values, vectors = torch.linalg.eigh(symmetric(covariance))
    smallest, tolerance = float(values[0]), 10 * torch.finfo(values.dtype).eps * float(values[-1].abs())
    if smallest < -tolerance or (definite and smallest <= tolerance):
        kind = "definite" if definite else "semi-definite"
        raise ValueError(f"{name} must be positive {kind}, but its smallest eigenvalue is {smallest:.3g}")
    if diagonal:
        return covariance.diagonal().clamp_min(0).sqrt()
    # Cholesky fails for what is singular: R' of the root's QR
    factor = torch.linalg.qr((vectors * values.clamp_min(0).sqrt()).T)[1].T
    return factor * torch.where(factor.diagonal() < 0, -1.0, 1.0)
