"""Moves of a Markov chain as they are learned, and which moves and starts of states are allowed, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.stationary import stationary_log_probs
from pplseq.infer.fit.closed_forms import dirichlet_mode
from pplseq.infer.fit.held import Slot, kept

PERSISTENCE = 3.0  # first logits of staying: regimes that do not last are rarely what is looked for
RARE = 1e-10  # the smallest probability of a move that a count gives: gradients still reach it


class MarkovMoves(nn.Module):
    """A state that moves as a Markov chain, by a full matrix.

    Args:
        num_states: Z. initial: "learned", or "stationary": a row begins in the long run.
    """

    regime_of: Tensor

    def __init__(self, num_states: int, dtype: torch.dtype, initial: str = "learned"):
        super().__init__()
        self.num_states = self.num_regimes = num_states
        self.is_stationary = initial == "stationary"
        self.register_buffer("regime_of", torch.arange(num_states), persistent=False)
        self.transition_logits = nn.Parameter(persistent(num_states, 0.1, dtype))
        if not self.is_stationary:
            self.start_logits = nn.Parameter(torch.zeros(num_states, dtype=dtype))

    @property
    def initial_logits(self) -> Tensor:
        """(Z,) log p of the first state."""
        if self.is_stationary:
            return stationary_log_probs(torch.log_softmax(self.transition_logits, -1))
        return torch.log_softmax(self.start_logits, -1)

    def values(self) -> dict[str, Tensor]:
        found = {} if self.is_stationary else {"initial": torch.softmax(self.start_logits, -1)}
        return found | {"transition": torch.softmax(self.transition_logits, -1)}

    @torch.no_grad()
    def set_values(self, *, initial: Any = None, transition: Any = None) -> None:
        """Sets p(first state) (Z,) and p(next state) (Z, Z).

        Raises:
            ValueError: for other shapes, and rows that are no probabilities.
        """
        for name, given in (("initial", initial), ("transition", transition)):
            if given is None:
                continue
            logits = self.transition_logits if name == "transition" else self.start_logits
            value = checks.shape(name, checks.numbers(name, given).double().to(logits), logits.shape)
            value = checks.finite(name, value)
            if not bool(((value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-4)).all()):
                raise ValueError(f"{name}: every row must hold probabilities that sum to 1")
            logits.copy_(value.log())

    @property
    def durations(self) -> Tensor:
        """(Z,) means of how long a state lasts."""
        return 1 / (1 - torch.softmax(self.transition_logits.detach(), -1).diagonal())

    @property
    def slots(self) -> dict[str, Slot]:
        # where rows begin says what moves are, too, so that those within bounds are not the best ones, moved
        found = {} if self.is_stationary else {"initial": Slot(self.start_logits, True)}
        return found | {"transition": Slot(self.transition_logits, True, clips=not self.is_stationary)}

    def state_axes(self) -> dict[str, Sequence[int]]:
        axes: dict[str, Sequence[int]] = {"start_logits": (0,), "transition_logits": (0, 1)}
        return {name: axes[name] for name, _ in self.named_parameters()}

    def units(self) -> dict[str, Tensor]:
        return {"transition_logits": torch.softmax(self.transition_logits.detach(), -1).clamp_min(1e-6).rsqrt()}

    @torch.no_grad()
    def initialize(self, matrix: Tensor) -> None:
        """Moves of logits (Z, Z), and any first state."""
        self.transition_logits.copy_(matrix)
        if not self.is_stationary:
            self.start_logits.zero_()

    @torch.no_grad()
    def maximize(self, start: Tensor, counts: Tensor) -> None:
        """The likeliest parameters of expected first states (Z,) and moves (Z, Z) [from, to]; rows of which nothing is known
        keep theirs."""
        self.transition_logits.copy_(kept(self.transition_logits, shares(counts, self.transition_logits)))
        if not self.is_stationary:
            self.start_logits.copy_(kept(self.start_logits, shares(start, self.start_logits)))


def shares(counts: Tensor, before: Tensor) -> Tensor:
    """Logarithms of the shares (..., Z) of counts; none is impossible, so that gradients reach it."""
    return dirichlet_mode(counts, None, torch.log_softmax(before, -1)).clamp_min(math.log(RARE))


def persistent(num_states: int, spread: float, dtype: torch.dtype) -> Tensor:
    """(Z, Z) logits, drawn at random, of states that last."""
    return PERSISTENCE * torch.eye(num_states, dtype=dtype) + spread * torch.randn(num_states, num_states, dtype=dtype)



def allowed_moves(graph, num_states: int) -> Tensor | None:
    """(Z, Z) bool [from, to], or None where everything is allowed."""
    if graph is None:
        return None
    if isinstance(graph, str):
        if graph != "left_right":
            raise ValueError(f"graph must be a (Z, Z) bool mask, 'left_right' or None, got {checks.shown(graph)}")
        return torch.ones(num_states, num_states).triu().bool()
    graph = checks.numbers("graph", graph)
    if tuple(graph.shape) != (num_states, num_states) or graph.dtype != torch.bool:
        raise ValueError(
            f"graph must be a bool mask (Z, Z) = {(num_states, num_states)}, got {graph.dtype} of shape {tuple(graph.shape)}"
        )
    dead = (~graph.any(-1)).nonzero()
    if len(dead):
        raise ValueError(
            f"graph: state {int(dead[0])} is a dead end, no state follows it; allow at least one, itself perhaps"
        )
    return None if bool(graph.all()) else graph


def allowed_starts(states, num_states: int) -> Tensor | None:
    if states is None:
        return None
    mask = torch.zeros(num_states, dtype=torch.bool)
    for state in states:
        if not isinstance(state, Integral) or not 0 <= int(state) < num_states:
            raise ValueError(f"start_states must be among 0..{num_states - 1}, got {checks.shown(state)}")
        mask[int(state)] = True
    if not bool(mask.any()):
        raise ValueError("start_states must name at least one state, or be None for all; got none")
    return mask


def shared_rows(ties, num_states: int) -> Tensor | None:
    """(Z,) the emission that each state has, or None where each has its own."""
    if ties is None:
        return None
    rows = checks.numbers("ties", ties)
    found = sorted(set(rows.flatten().tolist()))
    if rows.shape != (num_states,) or rows.dtype.is_floating_point or found != list(range(len(found))):
        raise ValueError(
            f"ties must give each of the {num_states} states the number 0, 1, ... of its emission, all of which occur; got "
            f"{checks.shown(rows.tolist())}"
        )
    return rows.long()
