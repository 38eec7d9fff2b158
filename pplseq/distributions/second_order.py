"""Transitions that depend on the last two states."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pplseq.distributions.dense import check_normalised
from pplseq.distributions.state import Transition, take_rows
from pplseq.distributions.stationary import stationary_log_probs
from pplseq.kernels.log_semiring import in_float32
from pplseq.threads import once


class SecondOrderTransition(Transition):
    """p(z_t = c | z_{t-2} = a, z_{t-1} = b) as a transition between pairs: state a M + b is followed by states b M + c.

    Args:
        initial: (M^2,) log p of the first pair, (state before the first, first state); -inf for pairs that cannot be first.
        table: (M, M, M) log p(c | a, b), [a, b, c].
    """

    in_order = True  # pairs behind a pair have numbers one after the other

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

    @once
    def symbol(self) -> Tensor:
        """(M^2,) the last state of each pair."""
        return torch.arange(self.num_tags, device=self.device).repeat(self.num_tags)

    @once
    def successor(self) -> Tensor:
        """(M^2, M) the pair behind a pair and a state."""
        return (self.symbol * self.num_tags).unsqueeze(-1) + torch.arange(self.num_tags, device=self.device)

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
        return into_contexts(take_rows(self.table.flatten(0, 1), previous), self.successor[previous], self.num_states)


def into_contexts(table: Tensor, successor: Tensor, num_states: int) -> Tensor:
    """(..., Z) log-probabilities of contexts from those (..., M) of the symbols that lead to them."""
    return table.new_full((*table.shape[:-1], num_states), -math.inf).scatter(-1, successor, table)
