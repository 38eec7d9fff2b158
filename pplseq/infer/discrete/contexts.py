"""Chains of contexts: the next symbol depends on the last two, or on as many as there is evidence for."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import Emission
from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.infer.discrete.chain import query
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.expectations import Steps
from pplseq.infer.discrete.results import ExpectedCounts, Factors
from pplseq.kernels.contexts import call, reference
from pplseq.kernels.contexts.reference import ContextSteps
from pplseq.threads import once


class ContextChain(DenseChain):
    """A chain over contexts of symbols; see :class:`~pplseq.infer.discrete.chain.Chain`.

    It takes one batch dimension. Cost: a step looks at the contexts that the words before reach and the symbols that its word
    allows, Z M where all are.

    Attributes:
        kind: the chain's name, for messages.
    """

    _tables = None  # pyright: ignore[reportAssignmentType]
    kind: ClassVar[str]
    transition: SecondOrderTransition | VariableOrderTransition

    def __init__(self, transition: SecondOrderTransition | VariableOrderTransition, emission: Emission, obs: Tensor, **options):
        super().__init__(transition, emission, obs, **options)  # pyright: ignore[reportArgumentType]
        if len(self.batch_shape) != 1 or emission.batch_shape:
            raise ValueError(
                f"obs: a {self.kind} chain takes one batch dimension, (T, B), got rows of shape {tuple(self.batch_shape)}; "
                "put the sequences in one plate"
            )

    def _lower(self) -> Factors:
        emit, transition = self._emit(), self.transition
        init = transition.initial_log_prob()
        if self.start is not None:  # with the table's gradient
            init = ContextSteps.of(transition).forward(self.start.dense(transition.num_states))
        return Factors(init.expand(emit.shape[1:]), transition.table, emit, self.valid)

    @once
    def _matrices(self) -> ContextSteps:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ContextSteps.of(self.transition, self.transition.table.detach())

    def _passed(self, factors: Factors) -> reference.Forward:
        return call.log_prob(factors.init, ContextSteps.of(self.transition, factors.pair), factors.emit, factors.valid)

    @once
    def _forward(self):
        return self._passed(self.factors)

    @once
    def _beta(self) -> Tensor:
        f = self.factors
        return reference.backward_pass(self._possible().filtered.detach(), self._matrices, f.emit.detach(), f.valid)

    def _log_prob_of(self, factors: Factors) -> Tensor:
        return self._passed(factors).log_prob

    def _predict(self, belief, inputs):
        return self._matrices.forward(belief.dense(self.transition.num_states))

    def _moved(self, filtered):
        return self._matrices.forward(filtered.flatten(0, 1)).view(filtered.shape)

    # ---------------------------------------------------------------- states and pairs
    def _smoothed(self, counts: bool = False, entropy: bool = False) -> call.Smoothed:
        f = self.factors
        return call.smooth(self._possible(), self._matrices, f.emit.detach(), f.valid, counts=counts, entropy=entropy)

    def _state_probs(self) -> Tensor:
        return self._smoothed().posterior

    @query
    def expected_counts(self) -> ExpectedCounts:
        """Expected starts (Z,), symbols behind contexts in the shape of the transition's table, and visits (Z,) given x, summed
        over rows."""
        found = self._smoothed(counts=True)
        probs, counts = found.posterior, found.counts
        assert counts is not None, "asked for"
        start = probs[0] if self.start is None else torch.zeros_like(probs[0])
        total = counts.view_as(self.transition.table)
        return ExpectedCounts(start.sum(0), total, None, probs.sum((0, 1)), self._by_state(probs))

    @query
    def entropy(self) -> Tensor:
        """(B,) entropy of p(z_1..z_T | x), nats: of the first context, and of each symbol given the context before."""
        entropy = self._smoothed(entropy=True).entropy
        assert entropy is not None, "asked for"
        return entropy

    # ---------------------------------------------------------------- paths
    def _best_path(self) -> tuple[Tensor, Tensor]:
        paths, log_prob = self._best_paths(1)
        return paths[0], log_prob[0]

    def _best_paths(self, k: int) -> tuple[Tensor, Tensor]:
        f = self.factors
        paths, log_prob = call.k_best_pass(f.init, self._matrices, f.emit, f.valid, k)
        return self._paths(paths), log_prob

    def _draw_paths(self, num_samples: int) -> Tensor:
        filtered = self._possible().filtered
        return self._paths(reference.sample_pass(self._matrices, filtered, self.factors.valid, num_samples))


class SecondOrderChain(ContextChain):
    """A chain over pairs (a, b) of the state before and the state, with ids a M + b; see :class:`ContextChain`."""

    kind = "second-order"

    def _as_steps(self) -> Steps:
        f, size = self.factors, self.transition.table.shape[-1]
        return Steps(f.init.unflatten(-1, (size, size)), f.pair, f.emit.unflatten(-1, (size, size)), True, 2)


class VariableOrderChain(ContextChain):
    """A chain over contexts of one symbol or of several; see :class:`ContextChain`."""

    kind = "variable-order"

    def _as_steps(self) -> Steps:
        raise TypeError(
            "a variable-order chain has no tables of steps: divergences, smoothing with a fixed lag and answers that gradients "
            "flow through are offered for DenseTransition and SecondOrderTransition; log_prob() has gradients here too"
        )
