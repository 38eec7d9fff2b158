"""Emissions from ordinary distributions: columns of a vector that are independent given the state, mixtures, shared rows."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pplseq.distributions.compositions import JointColumns
from pplseq.distributions.dense import GaussianEmission
from pplseq.distributions.state import Conditional, Emission, take_rows

Part = tuple[Sequence[int], TorchDistribution, float]  # columns, their distribution (*b, d), a value in its support


class CircularNormal(dist.VonMises):
    """The von Mises distribution over angles, radians; its density to the last digit, also for concentrations above 10^4."""

    def log_prob(self, value: Tensor) -> Tensor:
        kappa = self.concentration
        return kappa * ((value - self.loc).cos() - 1) - math.log(2 * math.pi) - torch.special.i0e(kappa).log()


class Columns(Conditional):
    """Vectors whose columns are independent, each with a distribution of its own; NaN columns are summed out.

    Args:
        parts: for some columns each: which, a distribution of batch shape (*b, d) over single numbers, and a number of its
            support, which stands in for what is missing; or a :class:`~pplseq.distributions.compositions.JointColumns`.
    """

    def __init__(self, parts: Sequence[Part]):
        self.parts = parts
        size = sum(len(columns) for columns, *_ in parts)
        shapes = {_batch(part) for _, part, _ in parts}
        shape = shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes)
        super().__init__(shape, torch.Size([size]), validate_args=False)

    @property
    def support(self):
        supports: list[Any] = [part.support for _, part, _ in self.parts]
        if len(supports) > 1:
            return constraints.real_vector
        return supports[0] if supports[0].event_dim else constraints.independent(supports[0], 1)

    def expand(self, batch_shape, _instance=None):
        shape = torch.Size(batch_shape)
        return Columns([(c, part.expand(shape + part.batch_shape[len(_batch(part)) :]), fill) for c, part, fill in self.parts])

    def log_prob(self, value: Tensor) -> Tensor:
        """(*B,) log p(seen columns of value), nats; 0 where none is."""
        total = value.new_zeros(())
        for columns, part, fill in self.parts:
            own = value if len(self.parts) == 1 else value[..., list(columns)]
            if isinstance(part, JointColumns):
                total = total + part.log_prob(own)
                continue
            seen = ~own.isnan()
            density = part.log_prob(torch.where(seen, own, fill))  # a NaN would reach the gradient
            total = total + torch.where(seen, density, 0.0).sum(-1)
        return total

    def sample(self, sample_shape=()):
        with torch.no_grad():
            drawn = [part.sample(torch.Size(sample_shape)) for _, part, _ in self.parts]
        first, shape = self.parts[0][1], torch.Size(sample_shape) + self.batch_shape + self.event_shape
        # levels are whole numbers, beside which others need not be
        kinds = [first.logits.dtype if isinstance(first, dist.Categorical) else drawn[0].dtype, *(each.dtype for each in drawn)]
        kind = functools.reduce(torch.promote_types, kinds)
        result = torch.empty(shape, dtype=kind, device=drawn[0].device)
        for (columns, *_), values in zip(self.parts, drawn, strict=True):
            result[..., list(columns)] = values.to(result)
        return result

    @property
    def places(self) -> list[list[int]]:
        """Of each part its numbers among those that :meth:`moments` tell: a level of a column of levels is one, others are one
        a column; by columns."""
        width = {column: _levels(part) or 1 for columns, part, _ in self.parts for column in columns}
        first = dict(zip(sorted(width), itertools.accumulate([width[c] for c in sorted(width)], initial=0), strict=False))
        return [[first[c] + level for c in columns for level in range(width[c])] for columns, *_ in self.parts]

    def moments(self) -> tuple[Tensor, Tensor]:
        """(*b, K) means and (*b, K, K) covariances; of levels as numbers that are 0 or 1, see :attr:`places`."""
        means, variances, blocks = [], [], []
        for (_, part, _), place in zip(self.parts, self.places, strict=True):
            shape = (*self.batch_shape, len(place))
            if _levels(part):
                probs = part.probs.squeeze(-2)
                means.append(probs.expand(shape))
                variances.append((probs * (1 - probs)).expand(shape))
                blocks.append((place, torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)))
            elif isinstance(part, JointColumns):
                means.append(part.mean.expand(shape))
                variances.append(means[-1])
                blocks.append((place, part.covariance_matrix))
            else:
                means.append(part.mean.expand(shape))
                variances.append(part.variance.expand(shape))
        order = torch.tensor([place for each in self.places for place in each]).argsort()
        mean, covariance = torch.cat(means, -1)[..., order], torch.diag_embed(torch.cat(variances, -1)[..., order])
        for place, block in blocks:
            at = torch.tensor(place, device=mean.device)
            covariance[..., at.unsqueeze(-1), at] = block
        return mean, covariance


def _batch(part: TorchDistribution) -> torch.Size:
    """The batch shape of a part, without that of its columns."""
    return part.batch_shape if isinstance(part, JointColumns) else part.batch_shape[:-1]


def _levels(part: TorchDistribution) -> int:
    """How many levels a part's one column has; 0 of numbers."""
    return part.logits.shape[-1] if isinstance(part, dist.Categorical) else 0


class ColumnEmission(Emission):
    """p(x | z) over (D,) vectors, from any distributions of single numbers.

    Args:
        make: parameters by name, (*b, Z, d) each, -> :class:`Columns` of batch shape (*b, Z).
        parameters: those of all states.
    """

    support_constraint = constraints.real_vector

    def __init__(self, make: Callable[[Mapping[str, Tensor]], Columns], parameters: Mapping[str, Tensor]):
        self.make, self.parameters = make, parameters
        everything = make(parameters)
        *batch, self.num_states = everything.batch_shape
        self.batch_shape, self.event_shape = torch.Size(batch), everything.event_shape

    def harmless(self) -> Tensor:
        return torch.full(self.event_shape, torch.nan)  # for which each column has a number of its own

    def log_likelihood(self, obs: Tensor) -> Tensor:
        if obs.shape[-1:] != self.event_shape:
            raise ValueError(f"obs must end in dimension D = {self.event_shape[0]}, got shape {tuple(obs.shape)}")
        return self.make(self.parameters).log_prob(obs.unsqueeze(-2))

    def distribution(self, state: Tensor) -> Columns:
        return self.make({name: take_rows(value, state) for name, value in self.parameters.items()})


class MixtureEmission(Emission):
    """p(x | z) = sum_m weight[z, m] Normal(x; loc[z, m], covariance[z, m]).

    Args:
        log_weights: (*b, Z, M). components: of Z * M states, those of a state behind each other.
    """

    support_constraint = constraints.real_vector

    def __init__(self, log_weights: Tensor, components: GaussianEmission):
        self.log_weights, self.components = log_weights, components
        self.num_states, self.num_components = log_weights.shape[-2:]
        self.batch_shape, self.event_shape = components.batch_shape, components.event_shape

    def joint(self, obs: Tensor) -> Tensor:
        """(*B, Z, M) log p(obs, component | z), nats."""
        return self.components.log_likelihood(obs).unflatten(-1, (self.num_states, -1)) + self.log_weights

    def log_likelihood(self, obs: Tensor) -> Tensor:
        return torch.logsumexp(self.joint(obs), -1)

    def distribution(self, state: Tensor) -> dist.TorchDistribution:
        state = state.unsqueeze(-1) * self.num_components + torch.arange(self.num_components, device=state.device)
        weights = dist.Categorical(
            logits=take_rows(self.log_weights, state[..., 0] // self.num_components), validate_args=False
        )
        loc = self.components.loc
        if loc.dim() > 2:  # parameter sets: theirs stand beside the rows
            return _BatchedMixture(self, state)
        return dist.MixtureSameFamily(weights, self.components.distribution(state), validate_args=False)


class _BatchedMixture(Conditional):
    """A mixture of one state each under several sets of parameters; sampled and scored through its components."""

    def __init__(self, emission: MixtureEmission, state: Tensor):
        self.emission, self.state = emission, state[..., 0] // emission.num_components
        shape = torch.broadcast_shapes(emission.batch_shape, self.state.shape)
        super().__init__(shape, emission.event_shape, validate_args=False)

    @property
    def support(self):
        return constraints.real_vector

    def log_prob(self, value: Tensor) -> Tensor:
        every = self.emission.log_likelihood(value)
        shape = torch.broadcast_shapes(every.shape[:-1], self.state.shape)
        return every.expand(*shape, -1).gather(-1, self.state.expand(shape).unsqueeze(-1)).squeeze(-1)

    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape) + self.batch_shape
        with torch.no_grad():
            rows = take_rows(self.emission.log_weights, self.state.expand(shape))
            picked = dist.Categorical(logits=rows, validate_args=False).sample()
            return self.emission.components.distribution(self.state * self.emission.num_components + picked).sample()


class SharedEmission(Emission):
    """An emission whose rows several states share: p(x | z) = base(x | rows[z]).

    Args:
        base: of E states. rows: (Z,) which of them each state has.
    """

    def __init__(self, base: Emission, rows: Tensor):
        self.base, self.rows, self.num_states = base, rows, len(rows)
        self.batch_shape, self.event_shape = base.batch_shape, base.event_shape
        self.support_constraint = base.support_constraint
        if hasattr(base, "num_words"):
            self.num_words, self.word_log_prob = base.num_words, self._word_log_prob

    def log_likelihood(self, obs: Tensor) -> Tensor:
        return self.base.log_likelihood(obs)[..., self.rows]

    def distribution(self, state: Tensor) -> TorchDistribution:
        return self.base.distribution(self.rows[state])

    def _word_log_prob(self, state_log_prob: Tensor) -> Tensor:
        return self.base.word_log_prob(pooled(state_log_prob.exp(), self.rows, self.base.num_states).log())


def pooled(weight: Tensor, rows: Tensor, number: int) -> Tensor:
    """(..., E) sums of weights (..., Z) over the states that share a row."""
    return weight.new_zeros(*weight.shape[:-1], number).index_add_(-1, rows, weight)
