"""Transitions of all families as maps between messages over all states: what a word that is not known yet opens."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pplseq.distributions.block import WIDE_CELLS, BlockTransition
from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.product import ProductTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import Transition
from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.kernels.contexts.reference import ContextSteps
from pplseq.kernels.log_semiring import ScaledMatrix, log_matmul, logsumexp, max_matmul
from pplseq.threads import once

KEPT_BYTES = 1 << 30  # of transition probabilities that are kept between steps, by default


class WideSteps(Protocol):
    """One step of a chain, in logs, for R messages at once; ``initial`` (Z,) log p(z_1)."""

    initial: Tensor

    def forward(self, message: Tensor) -> Tensor:
        """(R, Z) log sum_i exp(message_i) A_ij."""
        ...

    def backward(self, message: Tensor) -> Tensor:
        """(R, Z) log sum_j A_ij exp(message_j)."""
        ...

    def best_backward(self, message: Tensor) -> Tensor:
        """(R, Z) max_j log A_ij + message_j."""
        ...

    def rows(self, states: Tensor) -> Tensor:
        """(R, Z) log A out of states (R,)."""
        ...


class TiledSteps:
    """One matrix, or tiles of columns of a block-sparse transition that are made when they are needed.

    Args:
        transition: a :class:`DenseTransition` or :class:`BlockTransition`, one set of parameters, no state left out.
        kept_bytes: tiles whose exponentials are kept between steps; those beyond are made anew at every step.

    Cost: of a step, R Z^2 for R messages, and Z^2 h to make tiles of embeddings that are not kept, once for all messages; of a
        step forward out of K states, K Z h.
    """

    def __init__(self, transition: DenseTransition | BlockTransition, kept_bytes: float = KEPT_BYTES):
        self.transition, self.kept_bytes, self.initial = transition, kept_bytes, transition.initial_log_prob()
        self.size, self.device = len(self.initial), self.initial.device
        self._kept: dict[int, ScaledMatrix] = {}

    def columns(self, states: Tensor) -> Tensor:
        """(Z, Q) log A into states (Q,), behind a word that does not reset."""
        if isinstance(self.transition, DenseTransition):
            return self.transition.matrix[:, states]
        return self.transition.columns(states, unseen=False)

    def rows(self, states: Tensor) -> Tensor:
        """(R, Z) log A out of states (R,)."""
        if isinstance(self.transition, DenseTransition):
            return self.transition.matrix[states]
        return self.transition.wide_rows(states.unsqueeze(0)).squeeze(0)

    @once
    def _tiles(self) -> tuple[Tensor, ...]:
        if isinstance(self.transition, BlockTransition):
            return self.transition.column_tiles()
        return torch.arange(self.size, device=self.device).split(max(1, WIDE_CELLS // self.size))

    def _factor(self, number: int) -> ScaledMatrix:
        if number in self._kept:
            return self._kept[number]
        tile, transition = self._tiles[number], self.transition
        ready = transition.scaled_columns(tile) if isinstance(transition, BlockTransition) else None
        factor = ScaledMatrix(lambda: self.columns(tile), ready)
        if (number + 1) * factor.scaled.numel() * factor.scaled.element_size() <= self.kept_bytes:
            self._kept[number] = factor
        return factor

    def forward(self, message: Tensor) -> Tensor:
        """(R, Z) log sum_i exp(message_i) A_ij."""
        if torch.is_grad_enabled():
            return torch.cat([log_matmul(message, self.columns(tile)) for tile in self._tiles], -1)
        if len(self._kept) < len(self._tiles):
            live = (message > -torch.inf).any(0).nonzero().squeeze(-1)
            if 4 * len(live) < self.size:  # behind words that were seen, states of their blocks alone
                return self._forward_from(live, message)
        return torch.cat([self._factor(number).forward(message) for number in range(len(self._tiles))], -1)

    def _forward_from(self, live: Tensor, message: Tensor) -> Tensor:
        if not len(live):
            return torch.full_like(message, -torch.inf)
        parts = []
        for some in live.split(max(1, WIDE_CELLS // self.size)):
            parts.append(log_matmul(message[:, some], self.rows(some)))
        return parts[0] if len(parts) == 1 else logsumexp(torch.stack(parts), 0)

    def backward(self, message: Tensor) -> Tensor:
        """(R, Z) log sum_j A_ij exp(message_j); tiles that no message allows are not made."""
        parts = []
        for number, tile in enumerate(self._tiles):
            part = message[:, tile]
            live = (part.detach() > -torch.inf).any(0)
            if not bool(live.any()):
                continue
            few = number not in self._kept and 4 * int(live.sum()) < len(tile)
            if torch.is_grad_enabled() or few:
                parts.append(log_matmul(part[:, live], self.columns(tile[live]).T))
            else:
                parts.append(self._factor(number).backward(part))
        if not parts:
            return torch.full_like(message, -torch.inf)
        return parts[0] if len(parts) == 1 else logsumexp(torch.stack(parts), 0)

    def best_backward(self, message: Tensor) -> Tensor:
        """(R, Z) max_j log A_ij + message_j."""
        best = torch.full_like(message, -torch.inf)
        for tile in self._tiles:
            live = tile[(message[:, tile] > -torch.inf).any(0)]
            if len(live):
                best = torch.maximum(best, max_matmul(message[:, live], self.columns(live).T))
        return best


class WideContexts:
    """A transition between contexts of M symbols. Cost: Z M a message."""

    def __init__(self, transition: SecondOrderTransition | VariableOrderTransition):
        self.transition, self.initial = transition, transition.initial_log_prob()
        self.steps = ContextSteps.of(transition)

    def forward(self, message: Tensor) -> Tensor:
        """(R, Z) log sum_i exp(message_i) A_ij."""
        return self.steps.forward(message)

    def backward(self, message: Tensor) -> Tensor:
        """(R, Z) log sum_j A_ij exp(message_j)."""
        return self.steps.backward(message)

    def best_backward(self, message: Tensor) -> Tensor:
        """(R, Z) max_j log A_ij + message_j."""
        steps = self.steps
        parts = message.split(max(1, WIDE_CELLS // steps.log.numel()))
        return torch.cat([(part[:, steps.successor] + steps.log).amax(-1) for part in parts])

    def rows(self, states: Tensor) -> Tensor:
        """(R, Z) log A out of states (R,)."""
        return self.transition.rows(states)


class WideProduct:
    """A transition that is a product. Cost: Z (m + n) a message."""

    def __init__(self, transition: ProductTransition):
        self.initial, self.steps = transition.initial, transition.steps

    def forward(self, message: Tensor) -> Tensor:
        """(R, Z) log sum_i exp(message_i) A_ij."""
        return self.steps.forward(message.T).T

    def backward(self, message: Tensor) -> Tensor:
        """(R, Z) log sum_j A_ij exp(message_j)."""
        return self.steps.backward(message.T).T

    def best_backward(self, message: Tensor) -> Tensor:
        """(R, Z) max_j log A_ij + message_j."""
        return self.steps.best_backward(message.T).T

    def rows(self, states: Tensor) -> Tensor:
        """(R, Z) log A out of states (R,)."""
        return self.steps.rows(states)


def wide_steps(transition: Transition, kept_bytes: float = KEPT_BYTES) -> WideSteps:
    """The steps of a transition.

    Raises:
        TypeError: for a transition of another kind. ValueError: for one with a batch of parameters or states left out.
    """
    if isinstance(transition, (SecondOrderTransition, VariableOrderTransition)):
        return WideContexts(transition)
    if isinstance(transition, ProductTransition):
        return WideProduct(transition)
    if not isinstance(transition, (DenseTransition, BlockTransition)):
        raise TypeError(
            "transition: constraints are offered for DenseTransition, ProductTransition, SecondOrderTransition, "
            f"VariableOrderTransition and BlockTransition (softmax, table and hierarchical), got {type(transition).__name__}, "
            "whose steps depend on more than the state"
        )
    if transition.batch_shape:
        raise ValueError(
            f"transition: constraints take one set of parameters, got a batch {tuple(transition.batch_shape)}"
        )
    if isinstance(transition, BlockTransition) and not transition.layout.complete:
        raise ValueError(
            "transition: constraints take a model at test, got one with states left out; call posterior(x)"
        )
    return TiledSteps(transition, kept_bytes)
