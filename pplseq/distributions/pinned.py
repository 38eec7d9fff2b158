"""Emissions of states pinned to sources: log-probabilities that another model gave to the tokens seen."""

from __future__ import annotations

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pplseq.distributions.conditional import ConditionalEmission
from pplseq.distributions.dense import CategoricalEmission
from pplseq.distributions.state import Conditional, Emission, broadcast_shapes


class PinnedEmission(Emission):
    """p(x_t | past, z_t) = f^z(x_t | past) for states z below K_s, and ``own`` for the states behind them.

    Used as ``pyro.sample(f"x_{t}", emission(z, inputs=f[:, t]), obs=x[:, t])``, where f (B, T, K_s) holds what the sources
    gave to the tokens that came: enough for every posterior, and small. To generate, or to fill gaps, the probabilities of
    all tokens are needed: :func:`pinned_tables`.

    Args:
        own: emission of the K - K_s perturbation states. num_sources: K_s.

    Source: M. Wojnowicz and X. Zhao (2018), PROPS, section II-B.
    """

    takes_inputs, input_dims = True, 1

    def __init__(self, own: Emission, num_sources: int):
        self.own, self.num_sources, self.num_states = own, num_sources, num_sources + own.num_states
        self.batch_shape, self.event_shape = own.batch_shape, own.event_shape
        self.support_constraint = own.support_constraint
        if hasattr(own, "num_words"):
            self.num_words = own.num_words

    def log_likelihood(self, obs: Tensor, inputs: Tensor) -> Tensor:
        """(*B, K) log p(obs | past, z), nats; inputs (*B, K_s) log f of the observed tokens."""
        own = self.own.log_likelihood(obs)
        if inputs.shape[-1] != self.num_sources:
            raise ValueError(
                f"inputs must end in the {self.num_sources} sources' log-probabilities, got {tuple(inputs.shape)}"
            )
        batch = broadcast_shapes(own.shape[:-1], inputs.shape[:-1])
        return torch.cat([inputs.to(own).expand(*batch, -1), own.expand(*batch, -1)], -1)

    def distribution(self, state: Tensor, inputs: Tensor) -> TorchDistribution:
        """p(x | past, z = state) at the observed token, (*B,)."""
        return _AtObserved(self, state, inputs)

    def word_log_prob(self, state_log_prob: Tensor, inputs: Tensor) -> Tensor:
        """(*B, V) log p(x | past) for states (*B, K) distributed as given and the sources' tables (*B, K_s, V)."""
        if inputs.shape[-2:] != (self.num_sources, self.num_words):
            raise ValueError(
                f"emission_inputs: the distribution of a token takes the sources' log-probabilities of all words, (B, K_s, V)"
                f" = (B, {self.num_sources}, {self.num_words}), got {tuple(inputs.shape)}; for gaps give tables at all steps"
            )
        assert isinstance(self.own, CategoricalEmission), "words have tables"
        return pinned_tables(self.own, self.num_sources).word_log_prob(state_log_prob, inputs)


def pinned_tables(own: CategoricalEmission, num_sources: int) -> ConditionalEmission:
    """The same where inputs are what sources give to all words, (*B, K_s, V) log-probabilities: it can generate."""

    def tables(inputs: Tensor) -> CategoricalEmission:
        rows = own.log_probs.expand(*inputs.shape[:-2], *own.log_probs.shape[-2:])
        return CategoricalEmission(torch.cat([inputs.to(rows), rows], -2))

    return ConditionalEmission(tables, num_sources + own.num_states, num_words=own.num_words, input_dims=2)


class _AtObserved(Conditional):
    """A distribution known at one point only: the token that came."""

    def __init__(self, emission: PinnedEmission, state: Tensor, inputs: Tensor, batch_shape=None):
        self.emission, self.state, self.inputs = emission, state, inputs
        if batch_shape is None:
            batch_shape = broadcast_shapes(torch.Size(state.shape), inputs.shape[:-1], emission.batch_shape)
        super().__init__(torch.Size(batch_shape), emission.event_shape, validate_args=False)

    @property
    def support(self):
        return self.emission.support_constraint

    def expand(self, batch_shape, _instance=None):
        shape = broadcast_shapes(self.batch_shape, torch.Size(batch_shape))
        return _AtObserved(self.emission, self.state, self.inputs, shape)

    def sample(self, sample_shape=()):
        raise ValueError(
            "a source's tokens cannot be drawn from their probabilities at observed tokens; to generate give the sources' "
            "log-probabilities of all words, source_log_probs (B, T, K_s, V)"
        )

    def log_prob(self, value: Tensor) -> Tensor:
        shape = broadcast_shapes(self.batch_shape, value.shape[: value.dim() - len(self.event_shape)])
        logs = self.emission.log_likelihood(value.expand(*shape, *self.event_shape), self.inputs)
        return logs.expand(*shape, -1).gather(-1, self.state.expand(shape).unsqueeze(-1)).squeeze(-1)
