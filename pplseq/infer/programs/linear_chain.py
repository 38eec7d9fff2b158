"""A path of states with given potentials, as one distribution: what a conditional random field says about a sentence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq import checks
from pplseq.distributions.state import Conditional, broadcast_shapes
from pplseq.infer.discrete.dense import FactorChain
from pplseq.infer.discrete.results import Factors
from pplseq.kernels.scan import chain_log_prob


class LinearChain(Conditional):
    """p(z_1..z_T) = exp(sum_t scores[t, z_t] + sum_t pair[z_{t-1}, z_t]) / Z, over paths of states.

    Args:
        scores: (*B, T, K) log-potentials of the state at each step.
        pair: (K, K) log-potentials of neighbours, [from, to], or (*B, T-1, K, K), a matrix a step.
        lengths: (*B,) valid steps of each row, or None.

    Values have shape (*B, T); padded steps are ignored, and a negative state is an unknown one, which is summed out.

    Source: Lafferty, McCallum and Pereira, Conditional random fields (2001), eq. 1.
    """

    def __init__(self, scores: Tensor, pair: Tensor, lengths: Tensor | None = None, batch_shape=None):
        if scores.dim() < 2 or 0 in scores.shape[-2:]:
            raise ValueError(f"scores must have shape (..., T, K) with T and K at least 1, got {tuple(scores.shape)}")
        num_steps, num_states = scores.shape[-2:]
        shapes = [(num_states, num_states)] + ([] if pair.dim() == 2 else [(num_steps - 1, num_states, num_states)])
        wanted = shapes[-1]
        if tuple(pair.shape[-len(wanted) :]) != wanted:
            raise ValueError(
                f"pair must have shape {shapes[0]}, or (..., T-1, K, K) for one a step; got {tuple(pair.shape)}"
            )
        self.scores, self.pair, self.lengths = scores, pair, lengths
        if batch_shape is None:
            rows = [scores.shape[:-2], pair.shape[:-3]] + ([] if lengths is None else [lengths.shape])
            batch_shape = broadcast_shapes(*rows)
        super().__init__(torch.Size(batch_shape), torch.Size([num_steps]), validate_args=False)

    @property
    def support(self):
        return constraints.independent(constraints.integer_interval(-1, self.scores.shape[-1] - 1), 1)

    def expand(self, batch_shape, _instance=None):
        shape = broadcast_shapes(self.batch_shape, torch.Size(batch_shape))
        return LinearChain(self.scores, self.pair, self.lengths, shape)

    def _factors(self) -> Factors:
        num_steps, num_states = self.scores.shape[-2:]
        emit = self.scores.expand(*self.batch_shape, num_steps, num_states).movedim(-2, 0)
        shared, pair, valid = self.pair.dim() == 2, self.pair, None
        if not shared:
            pair = pair.expand(*self.batch_shape, num_steps - 1, num_states, num_states).movedim(-3, 0)
        if self.lengths is not None:
            steps = torch.arange(num_steps, device=emit.device).view(-1, *(1,) * len(self.batch_shape))
            valid = (steps < self.lengths).expand(num_steps, *self.batch_shape)
            checks.padding(valid)
        return Factors(torch.zeros_like(emit[0]), pair, emit, valid, shared)

    def chain(self) -> FactorChain:
        """Its chain, for every query about paths."""
        return FactorChain(self._factors(), missing="a chain of potentials says nothing about words or further steps")

    def log_prob(self, value: Tensor) -> Tensor:
        """(*B,) nats: log of a path's share of Z, or of all paths' that agree with the known states."""
        factors = self._factors()
        path = value.movedim(-1, 0).expand(factors.emit.shape[:-1])
        valid = torch.ones_like(path, dtype=torch.bool) if factors.valid is None else factors.valid
        partition = chain_log_prob(*factors).log_prob
        unknown = (path < 0) & valid
        if bool(unknown.any()):
            states = torch.arange(factors.emit.shape[-1], device=path.device)
            other = (path.unsqueeze(-1) != states) & ~unknown.unsqueeze(-1) & valid.unsqueeze(-1)
            # the start and the matrices are those of the partition function, so that gradients meet
            constrained = factors._replace(emit=factors.emit.masked_fill(other, -torch.inf))
            return chain_log_prob(*constrained).log_prob - partition
        path = path.clamp_min(0)
        score = factors.emit.gather(-1, path.unsqueeze(-1)).squeeze(-1)
        score = score.where(valid, 0.0).sum(0)
        if len(path) > 1:
            if factors.shared:
                steps = factors.pair[path[:-1], path[1:]]
            else:
                rows = path[:-1, ..., None, None].expand(*path[1:].shape, 1, factors.pair.shape[-1])
                steps = factors.pair.gather(-2, rows).squeeze(-2).gather(-1, path[1:].unsqueeze(-1)).squeeze(-1)
            score = score + steps.where(valid[1:], 0.0).sum(0)
        return score - partition

    def sample(self, sample_shape=()):
        """Paths (*sample_shape, *B, T); -1 at padded steps."""
        shape = torch.Size(sample_shape)
        paths = self.chain().sample(max(shape.numel(), 1))
        return paths.reshape(*shape, *self.batch_shape, self.scores.shape[-2])
