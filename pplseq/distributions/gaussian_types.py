"""What Gaussian messages are made of: beliefs about a state, and what an observation says about it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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
