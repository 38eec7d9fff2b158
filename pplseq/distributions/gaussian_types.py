"""What Gaussian messages are made of: beliefs about a state, and what an observation says about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Size, Tensor, linalg

LOG_2PI = math.log(2 * math.pi)


class GaussianBelief(NamedTuple):
    """N(mean, covariance): what is known about a state.

    Args:
        mean: (*B, h).
        covariance: (h, h), one for all rows, or (*B, h, h); zero where the state is known.
    """

    mean: Tensor
    covariance: Tensor

    def detach(self) -> GaussianBelief:
        """The same belief without its gradient: what a segment hands to the next one."""
        return GaussianBelief(self.mean.detach(), self.covariance.detach())


class Evidence(NamedTuple):
    """What an observation y says about its state x: log p(y | x) = constant + vector' x - x' matrix x / 2 (nats).

    Args:
        vector: (*B, h). matrix: (h, h), or (*B, h, h). constant: (*B,). A time dimension may stand before *B.
    """

    vector: Tensor
    matrix: Tensor
    constant: Tensor

    @property
    def shape(self) -> Size:
        """(*B,), with time before it where there is one."""
        return self.vector.shape[:-1]


@dataclass(eq=False)
class LinearEvidence:
    """Observed numbers y = M x + noise, as they are: no noise is inverted, so that it may be small, or zero.

    Args:
        residual: (*B, n) y. A time dimension may stand before *B. May be float64 where the rest is float32.
        loadings: M, (n, h), or one of each kind of observation, (P, n, h).
        noise: its covariance, (n, n) or (P, n, n), or variances (n,); may be singular.
        which: (*B) the kind of each observation, or None where there is one.
        observed: (P, n) bool, the coordinates that are seen, or None for all.
        extra: (*B) nats to add, or None.

    It can be read, and taken apart, like the :class:`Evidence` that it is, where the noise is not singular.
    """

    residual: Tensor
    loadings: Tensor
    noise: Tensor
    which: Tensor | None = None
    observed: Tensor | None = None
    extra: Tensor | None = None

    @property
    def shape(self) -> Size:
        """(*B,), with time before it where there is one."""
        return self.residual.shape[:-1]

    def tables(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Loadings (1 | P, n, h), noise (1 | P, n, n) and the coordinates seen (P, n), or None for all."""
        loadings = self.loadings if self.loadings.dim() == 3 else self.loadings.unsqueeze(0)
        noise = torch.diag(self.noise) if self.noise.dim() == 1 else self.noise
        return loadings, noise if noise.dim() == 3 else noise.unsqueeze(0), self.observed

    def dense(self) -> Evidence:
        """What the numbers say about the state, written out."""
        loadings, noise, observed = self.tables()
        patterns = (
            torch.ones(len(noise), len(noise[0]), dtype=torch.bool, device=noise.device)
            if observed is None
            else observed
        )
        precisions, log_dets = masked_precisions(noise, patterns)
        count = patterns.sum(-1).to(log_dets)
        weighted = loadings.mT @ precisions  # (P, h, n)
        information = weighted @ loadings
        weighted, information, precisions, log_dets, count = (
            part.expand(max(len(loadings), len(patterns)), *part.shape[1:])
            for part in (weighted, (information + information.mT) / 2, precisions, log_dets, count)
        )
        kinds = torch.zeros((), dtype=torch.long, device=noise.device) if self.which is None else self.which
        residual = self.residual.to(weighted)
        residual = residual if observed is None else torch.where(patterns[kinds], residual, 0.0)
        if self.which is None:
            vector, squares = residual @ weighted[0].mT, linalg.vecdot(residual, residual @ precisions[0])
        else:
            vector = (weighted[kinds] @ residual.unsqueeze(-1)).squeeze(-1)
            squares = linalg.vecdot(residual, (precisions[kinds] @ residual.unsqueeze(-1)).squeeze(-1))
        constant = -(squares + (log_dets + LOG_2PI * count)[kinds]) / 2
        constant = constant if self.extra is None else constant + self.extra
        return Evidence(vector, information[kinds], constant)

    @property
    def vector(self) -> Tensor:
        return self.dense().vector

    @property
    def matrix(self) -> Tensor:
        return self.dense().matrix

    @property
    def constant(self) -> Tensor:
        return self.dense().constant

    def __iter__(self):
        return iter(self.dense())

    def _replace(self, **parts) -> Evidence:
        return self.dense()._replace(**parts)


def residual_of(value: Tensor, offset: Tensor, matrix: Tensor) -> Tensor:
    """(*B, n) value - offset, for a :class:`LinearEvidence` with loadings (..., n, h).

    Of more numbers than there are states some say nothing of the state: they count in units of their noise, however small
    beside the offset, so that the difference of float32 numbers is kept in float64.
    """
    if value.dtype == torch.float32 and matrix.shape[-2] > matrix.shape[-1]:
        value, offset = value.double(), offset.double()
    return value - offset


def masked_precisions(noise: Tensor, patterns: Tensor) -> tuple[Tensor, Tensor]:
    """Precisions of the observed coordinates of a Gaussian, zero elsewhere.

    Args:
        noise: (n, n) or (P, n, n), or (n,) variances. patterns: (P, n) bool, the observed coordinates.

    Returns:
        (P, n, n) precisions, and (P,) log-determinants of the observed blocks of ``noise``.
    """
    weight = patterns.to(noise)
    if noise.dim() == 1:
        return torch.diag_embed(weight / noise), weight @ noise.log()
    block = weight.unsqueeze(-1) * weight.unsqueeze(-2)
    factor = torch.linalg.cholesky(noise * block + torch.diag_embed(1 - weight))  # ones where nothing is observed
    return torch.cholesky_inverse(factor) * block, 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
