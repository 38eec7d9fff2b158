"""Transitions that depend on the last two states."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pplseq.distributions.dense import check_normalised
from pplseq.distributions.state import Transition, take_rows
from pplseq.distributions.stationary import stationary_log_probs
from pplseq.kernels.log_semiring import in_float32


class SecondOrderTransition(Transition):
    """p(z_t = c | z_{t-2} = a, z_{t-1} = b) as a transition between pairs: state a M + b is followed by states b M + c.

    Args:
        initial: (M^2,) log p of the first pair, (state before the first, first state); -inf for pairs that cannot be first.
        table: (M, M, M) log p(c | a, b), [a, b, c].
    """

    def __init__(self, initial: Tensor, table: Tensor):
        size = table.shape[-1]
        if tuple(table.shape) != (size, size, size) or tuple(initial.shape) != (size * size,):
            raise ValueError(
                f"table must be (M, M, M) and initial (M^2,), got {tuple(table.shape)} and {tuple(initial.shape)}"
            )
        check_normalised("initial", initial)
        check_normalised("table", table)
        self.initial, self.table, self.num_tags = in_float32(initial), in_float32(table), size
        self.num_states, self.device = size * size, table.device

    @classmethod
    def stationary(cls, table: Tensor) -> SecondOrderTransition:
        """One that starts in the stationary distribution of its pairs; gradients flow. Cost: M^6.

        Raises:
            ValueError: where there is more than one, as the pairs fall into classes that never meet.
        """
        size = table.shape[-1]
        pairs = cls(table.new_zeros(size * size).log_softmax(-1), table).rows(torch.arange(size * size, device=table.device))
        return cls(stationary_log_probs(pairs), table)

    def initial_log_prob(self):
        return self.initial

    def rows(self, previous, inputs=None):
        if previous is None:
            return self.initial
        last = previous % self.num_tags
        table = take_rows(self.table.flatten(0, 1), previous)
        full = table.new_full((*table.shape[:-1], self.num_tags, self.num_tags), -math.inf)
        index = last[..., None, None].expand(*last.shape, 1, self.num_tags)
        return full.scatter(-2, index, table.unsqueeze(-2)).flatten(-2)
