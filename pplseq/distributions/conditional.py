"""Emissions that depend on inputs besides the state, vectors of bits, and vectors with missing coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pplseq.distributions.state import Conditional, Emission, broadcast_shapes, take_rows


class ConditionalEmission(Emission):
    """An emission of its own for each step, given that step's inputs: p(x_t | z_t, v_t) = emission_of(v_t).

    Used as ``pyro.sample(f"x_{t}", emission(z, inputs=v[:, t]), obs=x[:, t])``.

    Args:
        emission_of: inputs (*B[, U]) -> an emission of batch shape (*B,): tables (*B, Z, V), means (*B, Z, D), ...
        num_states: Z.
        num_words: V where observations are words, else None.
        event_shape: of one observation: (D,) for vectors.
        input_dims: trailing dimensions of one step's inputs (1 for a feature vector, 0 for a symbol).
        support: the constraint that observations satisfy; by default what num_words and event_shape say.
        batch_shape: of parameter sets, where there are several (outer enumeration); what ``emission_of`` gives then has that
            batch shape and (*B,) broadcast.

    Source: Y. Bengio and P. Frasconi (1995), An input output HMM architecture, section 2 (the output networks).
    """

    takes_inputs = True

    def __init__(
        self,
        emission_of: Callable[[Tensor], Emission],
        num_states: int,
        *,
        num_words: int | None = None,
        event_shape: tuple[int, ...] = (),
        input_dims: int = 1,
        support: constraints.Constraint | None = None,
        batch_shape: tuple[int, ...] = (),
    ):
        self.emission_of, self.num_states, self.input_dims = emission_of, num_states, input_dims
        self.event_shape, self.batch_shape = torch.Size(event_shape), torch.Size(batch_shape)
        if num_words is not None:
            self.num_words = num_words
            support = support or constraints.integer_interval(0, num_words - 1)
        self.support_constraint = support or (constraints.real_vector if event_shape else constraints.real)

    def at(self, inputs: Tensor) -> Emission:
        """The emission of batch shape (*B,) for inputs (*B[, U])."""
        emission = self.emission_of(inputs)
        rows = broadcast_shapes(inputs.shape[: inputs.dim() - self.input_dims], self.batch_shape)
        if emission.num_states != self.num_states or emission.batch_shape != rows:
            raise ValueError(
                f"emission_of must give an emission of {self.num_states} states and batch shape {tuple(rows)} for inputs "
                f"{tuple(inputs.shape)}, got {emission.num_states} states and batch shape {tuple(emission.batch_shape)}"
            )
        return emission

    def log_likelihood(self, obs: Tensor, inputs: Tensor) -> Tensor:
        """(*B, Z) log p(obs | z, inputs) for every z, nats."""
        return self.at(inputs).log_likelihood(obs)

    def distribution(self, state: Tensor, inputs: Tensor) -> dist.TorchDistribution:
        """p(x | z = state, inputs) as an ordinary distribution of batch shape (*B,)."""
        return self.at(inputs).distribution(state)

    def word_log_prob(self, state_log_prob: Tensor, inputs: Tensor) -> Tensor:
        """(*B, V) log p(x | inputs) for states (*B, Z) distributed as given."""
        return self.at(inputs).word_log_prob(state_log_prob)


class Bits(dist.Bernoulli):
    """A Bernoulli distribution of which outcomes may be certain: infinite logits give 0 and -inf, not NaN."""

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(torch.where(value > 0.5, self.logits, -self.logits))


class BernoulliEmission(Emission):
    """p(x | z) = prod_d p_zd^x_d (1 - p_zd)^(1 - x_d) over vectors of D bits.

    Args:
        logits: (*b, Z, D) log p / (1 - p); infinite where an outcome is certain.
    """

    support_constraint = constraints.independent(constraints.boolean, 1)

    def __init__(self, logits: Tensor):
        if logits.dim() < 2:
            raise ValueError(f"logits must have shape (..., Z, D), got {tuple(logits.shape)}")
        self.logits = logits
        self.num_states, size = logits.shape[-2:]
        self.batch_shape, self.event_shape = logits.shape[:-2], torch.Size([size])

    @classmethod
    def from_probs(cls, probs: Tensor) -> BernoulliEmission:
        """The same from probabilities of a one; 0 and 1 are allowed."""
        return cls(torch.special.logit(probs))

    def log_likelihood(self, obs: Tensor) -> Tensor:
        if obs.shape[-1:] != self.event_shape:
            raise ValueError(f"obs must end in dimension D = {self.event_shape[0]}, got shape {tuple(obs.shape)}")
        return Bits(logits=self.logits, validate_args=False).log_prob(obs.unsqueeze(-2)).sum(-1)

    def distribution(self, state: Tensor) -> dist.TorchDistribution:
        return Bits(logits=take_rows(self.logits, state), validate_args=False).to_event(1)


class CoordinateEmission(Emission):
    """Another emission over vectors, of which NaN coordinates are missing: they are summed or integrated out.

    Args:
        base: a :class:`BernoulliEmission` or a :class:`~pplseq.distributions.dense.GaussianEmission`.

    Cost: with full covariances a Cholesky factor for every observation and state.
    """

    def __init__(self, base: Emission):
        self.base, self.num_states = base, base.num_states
        self.batch_shape, self.event_shape = base.batch_shape, base.event_shape
        self.support_constraint = base.support_constraint

    def log_likelihood(self, obs: Tensor) -> Tensor:
        states = torch.arange(self.num_states, device=obs.device)
        states = states.reshape(-1, *(1,) * (obs.dim() - 1)).expand(self.num_states, *obs.shape[:-1])
        return self.distribution(states).log_prob(obs).movedim(0, -1)

    def distribution(self, state: Tensor) -> dist.TorchDistribution:
        return SeenCoordinates(self.base.distribution(state))


class SeenCoordinates(Conditional):
    """A distribution over vectors whose ``log_prob`` is that of the coordinates that are not NaN.

    Args:
        base: independent normals or bits (``.to_event(1)``), or a multivariate normal.
    """

    def __init__(self, base: TorchDistribution):
        self.base = base
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def support(self):
        return self.base.support

    def expand(self, batch_shape, _instance=None):
        return SeenCoordinates(self.base.expand(batch_shape))

    def sample(self, sample_shape=()):
        """All coordinates."""
        return self.base.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """(*B,) log p(seen coordinates of value), nats; 0 where none is."""
        seen = ~value.isnan()
        value = torch.where(seen, value, 0.0)  # before anything is computed: a NaN would reach the gradient
        if isinstance(self.base, dist.Independent):
            return torch.where(seen, self.base.base_dist.log_prob(value), 0.0).sum(-1)
        weight = seen.to(value)
        residual = weight * (value - self.base.loc)
        # missing coordinates become independent standard normals at their means: they add a constant
        block = weight.unsqueeze(-1) * weight.unsqueeze(-2) * self.base.covariance_matrix + torch.diag_embed(1 - weight)
        density = torch.distributions.MultivariateNormal(torch.zeros_like(residual), block, validate_args=False)
        return density.log_prob(residual) + 0.5 * math.log(2 * math.pi) * (1 - weight).sum(-1)
