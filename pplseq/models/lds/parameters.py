"""Parameters of a linear dynamical system, from how they are usually written to how they are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.kernels.matrix_equations import check_stable, stationary_covariance, symmetric

__all__ = ["check_stable", "covariance_of", "scale_of", "stationary_belief", "stationary_mean"]


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
