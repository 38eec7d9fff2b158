"""Numbers of which some are 0 for a reason of their own: zero-inflated and hurdle distributions."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pplseq.distributions.state import Conditional, inside

MOST = 100_000  # counts that are gone through for a draw above 0


class WithZeros(Conditional):
    """0 with probability ``gate``, else a draw from ``base``; with ``hurdle`` from what base is above 0.

    Args:
        base: over single numbers. gate: in (0, 1), of its batch shape or one that goes with it. hurdle: whether all zeros are
            those of the gate; of continuous bases, which are never 0, they are in any case.

    Source: D. Lambert (1992), Zero-inflated Poisson regression, Technometrics 34(1); J. Mullahy (1986), Specification and
    testing of some modified count data models, Journal of Econometrics 33(3).
    """

    def __init__(self, base: TorchDistribution, gate: Tensor, hurdle: bool = False):
        self.base, self.gate, self.hurdle = base, gate, hurdle
        self.counts = bool(getattr(base.support, "is_discrete", False))
        super().__init__(torch.broadcast_shapes(base.batch_shape, gate.shape), validate_args=False)

    @property
    def support(self):
        return self.base.support if self.counts else constraints.real

    def expand(self, batch_shape, _instance=None):
        return WithZeros(self.base.expand(batch_shape), self.gate.expand(batch_shape), self.hurdle)

    @property
    def log_none(self) -> Tensor:
        """log P(0) under the base; -inf of a continuous one."""
        if not self.counts:
            return torch.full_like(self.gate, -torch.inf)
        return self.base.log_prob(torch.zeros_like(self.gate))

    def share(self) -> Tensor:
        """How the base's densities and moments count above 0: 1 - gate, of a hurdle by what base is above 0."""
        if not (self.hurdle and self.counts):
            return 1 - self.gate
        return (1 - self.gate) / -torch.expm1(self.log_none.clamp_max(-torch.finfo(self.gate.dtype).tiny))

    def log_prob(self, value: Tensor) -> Tensor:
        zero = value == 0
        # at 0 a continuous base may have no gradient
        elsewhere: Any = self.base.support
        above = self.share().log() + self.base.log_prob(torch.where(zero, inside(elsewhere).to(value), value))
        none = self.gate.log()
        if self.counts and not self.hurdle:
            none = torch.logaddexp(none, torch.log1p(-self.gate) + self.log_none)
        return torch.where(zero, none, above)

    @property
    def mean(self) -> Tensor:
        return self.share() * self.base.mean

    @property
    def variance(self) -> Tensor:
        return self.share() * (self.base.variance + self.base.mean.square()) - self.mean.square()

    @torch.no_grad()
    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape) + self.batch_shape
        drawn = self.base.expand(self.batch_shape).sample(torch.Size(sample_shape))
        if self.hurdle and self.counts:
            drawn = self._above(drawn)
        return torch.where(dist.Bernoulli(self.gate.expand(shape), validate_args=False).sample() > 0, 0.0, drawn)

    def _above(self, drawn: Tensor) -> Tensor:
        """Draws anew what is 0, by inversion of what the base is above it."""
        left, share, above = drawn == 0, torch.rand_like(drawn), -torch.expm1(self.log_none)
        for count in range(1, MOST):
            if not bool(left.any()):
                break
            share = share - self.base.log_prob(torch.full_like(self.gate, float(count))).exp().nan_to_num(0.0) / above
            now = left & (share <= 1e-12)  # what rounding leaves of the last one's share
            drawn, left = torch.where(now, float(count), drawn), left & ~now
        return drawn.clamp_min(1.0)
