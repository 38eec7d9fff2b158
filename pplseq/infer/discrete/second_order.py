"""The second-order chain: states whose transition depends on the last two of them, as a chain over pairs."""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.chain import query
from pplseq.infer.discrete.dense import DenseChain
from pplseq.infer.discrete.expectations import Steps
from pplseq.infer.discrete.results import ExpectedCounts, Factors
from pplseq.kernels.higher_order import second_order
from pplseq.kernels.scan import Forward, forward_in_log_space
from pplseq.threads import once


class HigherOrderChain(DenseChain):
    """A chain over what several symbols make up, in one batch dimension; its kernel lists, ranks and draws paths.

    Attributes:
        passes: the kernel, with ``k_best_pass`` and ``sample_pass``. kind: the chain's name, for messages.
    """

    _tables = None  # pyright: ignore[reportAssignmentType]
    passes: ClassVar[ModuleType]
    kind: ClassVar[str]
    _matrices: Any

    def __init__(self, transition: Any, emission: Emission, obs: Tensor, **options):
        super().__init__(transition, emission, obs, **options)
        if len(self.batch_shape) != 1 or emission.batch_shape:
            raise ValueError(
                f"obs: a {self.kind} chain takes one batch dimension, (T, B), got rows of shape {tuple(self.batch_shape)}; "
                "put the sequences in one plate"
            )

    def _best_path(self) -> tuple[Tensor, Tensor]:
        paths, log_prob = self._best_paths(1)
        return paths[0], log_prob[0]

    def _best_paths(self, k: int) -> tuple[Tensor, Tensor]:
        f = self.factors
        paths, log_prob = self.passes.k_best_pass(f.init, self._matrices, f.emit, f.valid, k)
        return self._paths(paths), log_prob

    def _draw_paths(self, num_samples: int) -> Tensor:
        filtered = self._possible().filtered
        return self._paths(self.passes.sample_pass(self._matrices, filtered, self.factors.valid, num_samples))


class SecondOrderChain(HigherOrderChain):
    """A chain over pairs (a, b) of the state before and the state, with ids a M + b; see
    :class:`~pplseq.infer.discrete.chain.Chain`.

    It takes one batch dimension. Cost: M^3 a token, where a dense chain over pairs takes M^4.
    """

    transition: SecondOrderTransition
    passes, kind = second_order, "second-order"

    def _lower(self) -> Factors:
        emit = self._emit()
        init = self.transition.initial_log_prob()
        if self.start is not None:
            moves = second_order.SecondOrderMatrices(self.transition.table)  # with the table's gradient
            init = moves.forward(1, self.start.dense(self.transition.num_states))
        return Factors(init.expand(emit.shape[1:]), self.transition.table, emit, self.valid)

    @once
    def _matrices(self) -> second_order.SecondOrderMatrices:
        return second_order.SecondOrderMatrices(self.transition.table.detach())

    @once
    def _forward(self):
        f = self.factors
        parts = (f.init, f.pair, f.emit)
        if f.emit.dtype in second_order.LOWEST and not (torch.is_grad_enabled() and any(p.requires_grad for p in parts)):
            with torch.no_grad():
                messages, steps, lost = second_order.forward_pass(f.init, self._matrices, f.emit, f.valid)
            if not bool(lost.any()):
                return Forward(steps.sum(0, dtype=torch.float64).to(steps.dtype), messages, steps, in_logs=False)
        # an autograd loop over steps
        return forward_in_log_space(f.init, second_order.SecondOrderMatrices(f.pair), f.emit, f.valid)

    def _as_steps(self) -> Steps:
        f, size = self.factors, self.transition.table.shape[-1]
        return Steps(f.init.unflatten(-1, (size, size)), f.pair, f.emit.unflatten(-1, (size, size)), True, 2)

    def _log_prob_of(self, factors: Factors) -> Tensor:
        moves = second_order.SecondOrderMatrices(factors.pair)
        return forward_in_log_space(factors.init, moves, factors.emit, factors.valid).log_prob

    def _best_path(self) -> tuple[Tensor, Tensor]:
        f = self.factors
        paths, log_prob = second_order.viterbi_pass(f.init, self._matrices, f.emit, f.valid)
        return self._paths(paths), log_prob

    def _predict(self, belief, inputs):
        return self._matrices.forward(1, belief.dense(self.transition.num_states))

    def _moved(self, filtered):
        return self._matrices.forward(1, filtered)  # one table for all steps

    # ---------------------------------------------------------------- pairs and triples
    def _state_probs(self) -> Tensor:
        f, forward = self.factors, self._possible()
        if not forward.in_logs:
            probs, lost = second_order.state_posterior(forward.messages, self._matrices, f.emit, f.valid)
            if not bool(lost.any()):
                return probs
        return super()._state_probs()

    def _triples(self):
        """(R, M, M, M) p(z_{t-1}, z_t, z_{t+1} | x), step by step, and the rows (R,) that have them."""
        f, forward, beta = self.factors, self._possible(), self._beta
        later = f.emit + beta
        for t in range(1, self.num_steps):
            rows = slice(None) if f.valid is None else f.valid[t].nonzero().squeeze(-1)
            yield self._matrices.triples(forward.filtered[t - 1, rows], later[t, rows]), rows

    @query
    def expected_counts(self) -> ExpectedCounts:
        """Expected starts (M^2,), transitions (M, M, M) and visits (M^2,) given x, summed over rows."""
        probs = self._state_probs()
        start = probs[0] if self.start is None else torch.zeros_like(probs[0])
        total = torch.zeros_like(self.transition.table)
        for triples, _ in self._triples():
            total += triples.sum(0)
        return ExpectedCounts(start.sum(0), total, None, probs.sum((0, 1)), self._by_state(probs))

    @query
    def entropy(self) -> Tensor:
        """(B,) entropy of p(z_1..z_T | x), nats."""
        forward = self._possible()
        if not forward.in_logs:
            return second_order.path_entropy(forward.messages, self._matrices, self.factors.valid)
        # of the first pair, and of each triple given its first two
        probs = self._state_probs()
        total = torch.special.entr(probs[0]).sum(-1)
        for triples, rows in self._triples():
            inner = torch.special.entr(triples.sum(-1)).sum((-1, -2))
            total[rows] += torch.special.entr(triples).sum((-1, -2, -3)) - inner
        return total
