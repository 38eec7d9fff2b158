"""Chains with full matrices: one for all steps, or one a step."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.distributions.dense import StepTransition
from pplseq.infer.discrete.chain import Chain, query
from pplseq.infer.discrete.results import Factors
from pplseq.kernels.log_semiring import log_matmul


class DenseChain(Chain):
    """Full matrices: one for all steps, or one a step."""

    def _aligned(self, value: Tensor | None) -> Tensor | None:
        """(T, *B, ...) with room between T and B for a batch of parameter sets."""
        dims = max(len(self.transition.batch_shape), len(self.emission.batch_shape)) - len(self.batch_shape)
        return value if value is None or dims <= 0 else value.reshape(len(value), *(1,) * dims, *value.shape[1:])

    def _matrix(self, inputs: Tensor | None) -> Tensor:
        if isinstance(self.transition, StepTransition):
            return self.transition.matrices(inputs)
        return self.transition.matrix

    def _predict(self, belief, inputs):
        return log_matmul(belief.dense(self.transition.num_states).unsqueeze(-2), self._matrix(inputs)).squeeze(-2)

    @query
    def predicted_states(self) -> Tensor:
        """(T, *B, Z) log p(z_t | x_1..x_{t-1}), nats; without meaning at padded steps."""
        f, filtered = self.factors, self._possible().filtered
        first = f.init.expand(filtered.shape[1:]).unsqueeze(0)
        return torch.cat([first, log_matmul(filtered[:-1].unsqueeze(-2), f.pair).squeeze(-2)])

    def _emit(self) -> Tensor:
        obs, seen, states = self._aligned(self.obs), self._aligned(self.seen), self._aligned(self.states)
        if seen is not None:  # a NaN under the mask must not reach the gradient
            event = (...,) + (None,) * len(self.emission.event_shape)
            obs = torch.where(seen[event], obs, torch.zeros_like(obs))
        given = () if self.emission_inputs is None else (self._aligned(self.emission_inputs),)
        emit = self.emission.log_likelihood(obs, *given)
        if seen is not None:
            emit = torch.where(seen.unsqueeze(-1), emit, 0.0)
        if states is not None:
            numbers = torch.arange(emit.shape[-1], device=emit.device)
            forbidden = (states.unsqueeze(-1) >= 0) & (states.unsqueeze(-1) != numbers)
            emit = emit.masked_fill(forbidden, -torch.inf)
        return emit

    def _lower(self):
        transition, emit = self.transition, self._emit()
        inputs, valid = self._aligned(self.inputs), self._aligned(self.valid)
        per_step = isinstance(transition, StepTransition)
        first = None if inputs is None else inputs[0]
        if self.start is not None:
            init = self._predict(self.start, first)
        elif per_step:
            init = transition.initial_log_prob(first)
        else:
            init = transition.initial_log_prob()
        batch = torch.broadcast_shapes(emit.shape[1:-1], transition.batch_shape, init.shape[:-1])
        num_states = transition.num_states
        emit = emit.expand(emit.shape[0], *batch, num_states)
        valid = None if valid is None else valid.expand(self.num_steps, *batch)
        if not per_step:
            return Factors(init, transition.matrix, emit, valid, shared=True)
        if self.num_steps == 1:
            pair = emit.new_zeros(0, *batch, num_states, num_states)
        else:
            pair = transition.matrices(None if inputs is None else inputs[1:])
            pair = pair.expand(self.num_steps - 1, *batch, num_states, num_states)
        return Factors(init, pair, emit, valid)
