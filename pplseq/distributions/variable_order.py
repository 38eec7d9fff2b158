"""Transitions that depend on as much of the past as there is evidence for: variable-order Markov chains."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.distributions.dense import check_normalised
from pplseq.distributions.second_order import into_contexts
from pplseq.distributions.state import Transition, take_rows
from pplseq.kernels.log_semiring import in_float32


class VariableOrderTransition(Transition):
    """States are contexts, of one symbol or of several: p(symbol | context), and the context that the symbol leads to.

    A second-order chain of M symbols whose p(c | a, b) is the same for many a has few contexts: a pair (a, b) of its own for
    those that differ, and one (*, b) for all others. Paths of contexts and sequences of symbols are one to one.

    Args:
        initial: (Z,) log p of the first context; -inf for contexts that cannot be first.
        table: (Z, M) log p(symbol | context).
        successor: (Z, M) the context behind a context and a symbol.
        symbol: (Z,) the last symbol of each context.

    Source: D. Ron, Y. Singer, N. Tishby (1996), The power of amnesia: learning probabilistic automata with variable memory
        length (probabilistic suffix automata).
    """

    in_order = False

    def __init__(self, initial: Tensor, table: Tensor, successor: Tensor, symbol: Tensor):
        size, num_symbols = table.shape
        if tuple(initial.shape) != (size,) or tuple(symbol.shape) != (size,) or successor.shape != table.shape:
            raise ValueError(
                f"table (Z, M): with {tuple(table.shape)} initial and symbol must be (Z,) and successor (Z, M), got "
                f"{tuple(initial.shape)}, {tuple(symbol.shape)} and {tuple(successor.shape)}"
            )
        if not bool(((successor >= 0) & (successor < size)).all()):
            raise ValueError(f"successor: expected contexts 0..{size - 1}, got {int(successor.min())}..{int(successor.max())}")
        if not torch.equal(symbol[successor], torch.arange(num_symbols, device=symbol.device).expand(size, num_symbols)):
            raise ValueError("successor: expected contexts that end with the symbol which leads to them")
        check_normalised("initial", initial)
        check_normalised("table", table)
        self.initial, self.table = in_float32(initial), in_float32(table)
        self.successor, self.symbol = successor, symbol
        self.num_states, self.num_symbols, self.device = size, num_symbols, table.device

    def initial_log_prob(self):
        return self.initial

    def rows(self, previous, inputs=None):
        if previous is None:
            return self.initial
        return into_contexts(take_rows(self.table, previous), self.successor[previous], self.num_states)
