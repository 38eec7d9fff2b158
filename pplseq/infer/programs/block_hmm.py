"""A whole chain as one distribution over sequences: the third way to write the same model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq import checks
from pplseq.distributions.state import Belief, Conditional, Emission, Transition
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.chain import Chain


class BlockHMM(Conditional):
    """p(x_1..x_T) of a hidden Markov chain, the states summed out, as one site.

        pyro.sample("x", BlockHMM(transition, emission, num_steps=T, lengths=lengths), obs=x)

    Works with every transition family; one site costs less than a loop, but has no sites for single states or words.

    Args:
        transition, emission: the specs.
        num_steps: T.
        lengths: (*B,) valid steps of each row, or None.
        start: the belief one step before, or None.
        inputs: (*B, T[, U]) what transitions depend on, or None.
        batch_shape: shape of a batch of sequences; plates expand it.

    Values have shape (*B, T[, D]), time last but for event dimensions of one step.
    """

    def __init__(
        self,
        transition: Transition,
        emission: Emission,
        num_steps: int,
        *,
        lengths: Tensor | None = None,
        start: Belief | None = None,
        inputs: Tensor | None = None,
        batch_shape=(),
    ):
        self.transition, self.emission, self.num_steps = transition, emission, checks.count("num_steps", num_steps)
        self.lengths, self.start, self.inputs = lengths, start, inputs
        shapes = [torch.Size(batch_shape), transition.batch_shape, emission.batch_shape]
        shapes += [lengths.shape] if lengths is not None else []
        shapes += [start.shape] if start is not None else []
        event_shape = torch.Size([num_steps, *emission.event_shape])
        super().__init__(torch.broadcast_shapes(*shapes), event_shape, validate_args=False)

    @property
    def support(self):
        return constraints.independent(self.emission.support_constraint, 1)

    def expand(self, batch_shape, _instance=None):
        return BlockHMM(
            self.transition, self.emission, self.num_steps, lengths=self.lengths, start=self.start, inputs=self.inputs,
            batch_shape=batch_shape,
        )  # fmt: skip

    def chain(self, value: Tensor) -> Chain:
        """The chain of observed sequences, for every posterior query."""
        if value.shape[value.dim() - len(self.event_shape) :] != self.event_shape:
            raise ValueError(f"value must end in shape {tuple(self.event_shape)}, got {tuple(value.shape)}")
        time = -len(self.event_shape)
        obs, valid, inputs = value.movedim(time, 0), None, None
        event = self.emission.event_shape
        rows = obs.shape[1 : obs.dim() - len(event)]
        batch = torch.broadcast_shapes(rows, *(part.shape for part in (self.lengths, self.start) if part is not None))
        obs = obs.reshape(self.num_steps, *(1,) * (len(batch) - len(rows)), *rows, *event)
        obs = obs.expand(self.num_steps, *batch, *event)
        if self.lengths is not None:
            steps = torch.arange(self.num_steps, device=value.device).view(-1, *(1,) * len(batch))
            valid = (steps < self.lengths).expand(self.num_steps, *batch)
        if self.inputs is not None:
            inputs = self.inputs.movedim(-1 - self.transition.input_dims, 0)
        return build_chain(self.transition, self.emission, obs, valid=valid, start=self.start, inputs=inputs)

    def log_prob(self, value: Tensor) -> Tensor:
        """(*B,) nats."""
        return self.chain(value).log_prob()

    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape) + self.batch_shape
        state, words = self.start, []
        for t in range(self.num_steps):
            inputs = None if self.inputs is None else self.inputs.select(-1 - self.transition.input_dims, t)
            law = self.transition(state, inputs=inputs)
            missing = shape[: len(shape) - len(law.batch_shape)]
            state = law.expand(shape[len(missing) :]).sample(missing)
            words.append(self.emission(state).sample())
        return torch.stack(words, -len(self.event_shape))
