"""Numbers of several columns that go together: shares that sum to 1, and counts with a total."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq.distributions.state import Conditional


class JointColumns(Conditional):
    """A distribution of vectors (d,) whose numbers go together; a vector of NaN is summed out.

    Args:
        rates: (*b, d) what there is of each column, of a sum that means something.
    """

    def __init__(self, rates: Tensor):
        super().__init__(rates.shape[:-1], rates.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """(*b, d)."""
        raise NotImplementedError

    @property
    def covariance_matrix(self) -> Tensor:
        """(*b, d, d)."""
        raise NotImplementedError

    def marginals(self) -> Any:
        """The distributions of single numbers, of batch shape (*b, d); None where they are not known."""
        raise NotImplementedError


def _spread(shares: Tensor) -> Tensor:
    """(..., d, d) covariance of one draw from shares (..., d)."""
    return torch.diag_embed(shares) - shares.unsqueeze(-1) * shares.unsqueeze(-2)


class Shares(JointColumns):
    """The Dirichlet distribution of shares (d,), in part NaN: of what is missing it is known what is left for it.

    Shares that were seen and the rest are Dirichlet with the concentrations of these and the sum of the others, so that a
    missing share is summed out exactly; one that misses alone is 1 less the others. The density is that of all columns but
    one, whose number does not depend on which; shares are divided by their sum, which is 1 but for rounding.

    Args:
        concentration: (*b, d), positive.
    """

    def __init__(self, concentration: Tensor):
        self.concentration = concentration
        super().__init__(concentration)

    @property
    def support(self):
        return constraints.simplex

    def expand(self, batch_shape, _instance=None):
        return Shares(self.concentration.expand(torch.Size(batch_shape) + self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """(*B,) nats; 0 where nothing was seen."""
        own, missing = self.concentration, value.isnan()
        total = torch.lgamma(own.sum(-1))
        if not bool(missing.any()):
            return total - torch.lgamma(own).sum(-1) + ((own - 1) * log_shares(value)).sum(-1)
        partly = missing.any(-1) & ~missing.all(-1)
        logs, left = log_shares(value), log_rest(value)
        rest = torch.where(partly, torch.where(missing, own, 0.0).sum(-1), 1.0)
        seen = torch.where(missing, 0.0, (own - 1) * logs - torch.lgamma(own)).sum(-1)
        found = total + seen + torch.where(partly, (rest - 1) * left - torch.lgamma(rest), 0.0)
        return torch.where(missing.all(-1), 0.0, found)

    def sample(self, sample_shape=()):
        with torch.no_grad():
            drawn = dist.Dirichlet(self.concentration, validate_args=False).sample(torch.Size(sample_shape))
            drawn = drawn.clamp_min(torch.finfo(drawn.dtype).tiny)  # a zero, by rounding, would have no density
            return drawn / drawn.sum(-1, keepdim=True)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def covariance_matrix(self) -> Tensor:
        return _spread(self.mean) / (1 + self.concentration.sum(-1))[..., None, None]

    def marginals(self) -> Any:
        others = self.concentration.sum(-1, keepdim=True) - self.concentration
        return dist.Beta(self.concentration, others, validate_args=False)


def log_shares(value: Tensor) -> Tensor:
    """(..., d) logarithms of shares, divided by their sum where all are there; 0 where one is missing."""
    missing = value.isnan()
    logs = torch.where(missing, 1.0, value).log()
    complete = ~missing.any(-1, keepdim=True)
    return logs - torch.where(complete, torch.where(complete, value, 1.0).sum(-1, keepdim=True), 1.0).log()


def log_rest(value: Tensor) -> Tensor:
    """(...) logarithm of what seen shares leave to missing ones; 0 where none is missing, or all."""
    missing = value.isnan()
    partly = missing.any(-1) & ~missing.all(-1)
    return torch.where(partly, 1 - value.nan_to_num(0.0).sum(-1), 1.0).log()


class TotalCounts(JointColumns):
    """The multinomial distribution of counts (d,) given their total, with its coefficient; each row tells its own total.

    Args:
        probs: (*b, d), which sum to 1. trials: the total of draws and moments, that goes with (*b, 1); NaN where it is unknown.
    """

    def __init__(self, probs: Tensor, trials: Tensor):
        shape = probs.shape[:-1] if trials.dim() == 0 else torch.broadcast_shapes(probs.shape[:-1], trials.shape[:-1])
        self.probs, self.trials = probs.expand(*shape, -1), trials
        super().__init__(self.probs)

    @property
    def support(self):
        return constraints.independent(constraints.nonnegative_integer, 1)

    def expand(self, batch_shape, _instance=None):
        shape = torch.Size(batch_shape)
        return TotalCounts(self.probs.expand(shape + self.event_shape), self.trials.expand(*shape, 1))

    def log_prob(self, value: Tensor) -> Tensor:
        """(*B,) log p(counts | their total), nats; 0 where nothing was seen."""
        gone = value.isnan().any(-1)
        counts = torch.where(gone.unsqueeze(-1), 0.0, value).to(self.probs.dtype)
        none = (counts == 0) & (self.probs == 0)  # 0 log 0 is 0, and so is its gradient
        each = counts * torch.where(none, 1.0, self.probs).log() - torch.lgamma(counts + 1)
        return torch.where(gone, 0.0, torch.lgamma(counts.sum(-1) + 1) + each.sum(-1))

    def _known_trials(self) -> Tensor:
        if bool(self.trials.isnan().any()):
            raise ValueError(
                "trials: the total of multinomial counts is told by each row, and is unknown where there is none: give it, "
                "sample(..., trials=n), forecast(..., future_trials=n), or make the model with trials=n if all rows have one"
            )
        return self.trials

    def sample(self, sample_shape=()):
        with torch.no_grad():
            shape = torch.Size(sample_shape) + self.batch_shape
            probs = self.probs.expand(shape + self.event_shape)
            left = self._known_trials().expand(*shape, 1)[..., 0].to(probs.dtype)
            drawn = []
            for place in range(probs.shape[-1] - 1):  # of what is left, each column in turn
                share = probs[..., place] / probs[..., place:].sum(-1).clamp_min(torch.finfo(probs.dtype).tiny)
                drawn.append(torch.binomial(left.contiguous(), share.clamp(0.0, 1.0).contiguous()))
                left = left - drawn[-1]
            return torch.stack([*drawn, left], -1)

    @property
    def mean(self) -> Tensor:
        return self._known_trials() * self.probs

    @property
    def covariance_matrix(self) -> Tensor:
        return self._known_trials().unsqueeze(-1) * _spread(self.probs)

    def marginals(self) -> Any:
        if bool(self.trials.isnan().any()):
            return None
        return dist.Binomial(self.trials.expand(self.probs.shape), self.probs, validate_args=False)
