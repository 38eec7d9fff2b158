"""What Gaussian messages are made of: beliefs about a state, and what an observation says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Size, Tensor, linalg


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
    """What n <= h numbers y = M x + residual noise say about their state, not yet brought to the state's size.

    log p(y | x) = constant - |R (y - M x)|^2 / 2 (nats), where R' R is the inverse of the noise covariance.

    Args:
        residual: (*B, n) y. A time dimension may stand before *B. loadings: (n, h) M.
        whitener: R, (n, n), or (n,) where it is diagonal. normalizer: () log p of a residual that fits exactly.

    It can be read, and taken apart, like the :class:`Evidence` that it is; each part is computed when it is asked for.
    """

    residual: Tensor
    loadings: Tensor
    whitener: Tensor
    normalizer: Tensor

    @property
    def shape(self) -> Size:
        """(*B,), with time before it where there is one."""
        return self.residual.shape[:-1]

    def whiten(self, values: Tensor) -> Tensor:
        """R values, for (n, k)."""
        return self.whitener.unsqueeze(-1) * values if self.whitener.dim() == 1 else self.whitener @ values

    @property
    def white_loadings(self) -> Tensor:
        """(n, h) R M."""
        return self.whiten(self.loadings)

    @property
    def weighted_loadings(self) -> Tensor:
        """(n, h) R' R M."""
        white = self.white_loadings
        return white * self.whitener.unsqueeze(-1) if self.whitener.dim() == 1 else self.whitener.mT @ white

    @property
    def vector(self) -> Tensor:
        return self.residual @ self.weighted_loadings

    @property
    def matrix(self) -> Tensor:
        white = self.white_loadings
        return white.mT @ white

    @property
    def constant(self) -> Tensor:
        white = self.residual * self.whitener if self.whitener.dim() == 1 else self.residual @ self.whitener.mT
        return self.normalizer - linalg.vecdot(white, white) / 2

    def to(self, dtype) -> LinearEvidence:
        """With parameters, not residuals, in another precision."""
        return LinearEvidence(
            self.residual, self.loadings.to(dtype), self.whitener.to(dtype), self.normalizer.to(dtype)
        )

    def dense(self) -> Evidence:
        """The same, written out."""
        return Evidence(self.vector, self.matrix, self.constant)

    def __iter__(self):
        return iter(self.dense())

    def _replace(self, **parts) -> Evidence:
        return self.dense()._replace(**parts)
