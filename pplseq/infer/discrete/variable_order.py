"""The variable-order chain: states are contexts of as many symbols as there is evidence for."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.infer.discrete.chain import query
from pplseq.infer.discrete.expectations import Steps
from pplseq.infer.discrete.results import ExpectedCounts, Factors
from pplseq.infer.discrete.second_order import HigherOrderChain
from pplseq.kernels.higher_order import variable_order
from pplseq.threads import once


class VariableOrderChain(HigherOrderChain):
    """A chain over contexts; see :class:`~pplseq.infer.discrete.chain.Chain`.

    It takes one batch dimension. Cost: a step looks at the contexts that the words before reach and the symbols that its word
    allows, Z M where all are.
    """

    transition: VariableOrderTransition
    passes, kind = variable_order, "variable-order"

    def _lower(self) -> Factors:
        emit, transition = self._emit(), self.transition
        init = transition.initial_log_prob()
        if self.start is not None:
            init = self._steps(transition.table).forward(self.start.dense(transition.num_states))
        return Factors(init.expand(emit.shape[1:]), transition.table, emit, self.valid)

    def _steps(self, table: Tensor) -> variable_order.ContextSteps:
        return variable_order.ContextSteps(table, self.transition.successor, self.transition.symbol)

    @once
    def _matrices(self) -> variable_order.ContextSteps:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._steps(self.transition.table.detach())

    @once
    def _forward(self):
        f = self.factors
        return variable_order.forward_pass(f.init, self._steps(f.pair), f.emit, f.valid)

    @once
    def _beta(self) -> Tensor:
        f = self.factors
        return variable_order.backward_pass(self._possible().filtered.detach(), self._matrices, f.emit.detach(), f.valid)

    def _as_steps(self) -> Steps:
        raise TypeError(
            "a variable-order chain has no tables of steps: divergences, smoothing with a fixed lag and answers that gradients "
            "flow through are offered for DenseTransition and SecondOrderTransition; log_prob() has gradients here too"
        )

    def _predict(self, belief, inputs):
        return self._matrices.forward(belief.dense(self.transition.num_states))

    def _moved(self, filtered):
        return self._matrices.forward(filtered.flatten(0, 1)).view(filtered.shape)

    # ---------------------------------------------------------------- states and pairs
    def _state_probs(self) -> Tensor:
        f, forward = self.factors, self._possible()
        probs = torch.softmax(forward.filtered + self._beta, -1)
        return probs if f.valid is None else probs * f.valid.unsqueeze(-1)

    def _pairs(self):
        f = self.factors
        return variable_order.pair_posterior(self._possible().filtered, f.emit + self._beta, self._matrices, f.valid)

    @query
    def expected_counts(self) -> ExpectedCounts:
        """Expected starts (Z,), symbols behind contexts (Z, M) and visits (Z,) given x, summed over rows."""
        probs, size = self._state_probs(), self.transition.num_states
        start = probs[0] if self.start is None else torch.zeros_like(probs[0])
        total = torch.zeros_like(self.transition.table)
        for move, prob in self._pairs():
            total.index_put_((move.source % size, self.transition.symbol[move.target % size]), prob, accumulate=True)
        return ExpectedCounts(start.sum(0), total, None, probs.sum((0, 1)), self._by_state(probs))

    @query
    def entropy(self) -> Tensor:
        """(B,) entropy of p(z_1..z_T | x), nats: of the first context, and of each one given the one before."""
        total = torch.special.entr(self._state_probs()[0]).sum(-1)
        for move, prob in self._pairs():
            inner = torch.zeros_like(self.factors.emit[0]).view(-1).index_add_(0, move.source, prob)
            total = total.index_add(0, move.row, torch.special.entr(prob))
            total = total - torch.special.entr(inner).view(len(total), -1).sum(-1)
        return total
