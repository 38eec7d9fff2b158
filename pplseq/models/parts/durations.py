"""Regimes that last as long as a distribution of durations says, as moves of a chain of more states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.stationary import stationary_log_probs
from pplseq.infer.fit.closed_forms import dirichlet_mode
from pplseq.infer.fit.held import Slot, kept
from pplseq.models.parts.moves import MarkovMoves
from pplseq.models.parts.protocols import Moves

DURATIONS = ("explicit", "poisson", "negative_binomial", "geometric")
WIDEST = 30.0  # of the logarithm of a rate


def duration_size(duration: str, max_duration: int | None, num_phases: int | None) -> dict[str, int]:
    """M under the name of the argument that gives it.

    Raises:
        ValueError: for durations that there are not, and arguments that are missing or of others.
    """
    checks.choice("duration", duration, DURATIONS)
    listed = duration in ("explicit", "poisson")
    size, other = (max_duration, num_phases) if listed else (num_phases, max_duration)
    name = "max_duration" if listed else "num_phases"
    if duration == "geometric":
        size = 1 if size is None else size
        if size != 1:
            raise ValueError(f"num_phases: 'geometric' durations have one phase, got {num_phases}; leave it out")
    if size is None or other is not None:
        raise ValueError(
            f"{name}: {checks.shown(duration)} durations need it, and nothing else; got {max_duration=}, {num_phases=}"
        )
    return {name: checks.count(name, size)}


def moves_config(duration: str | None, max_duration: int | None, num_phases: int | None) -> dict[str, Any]:
    """What a config says of moves whose regimes may have durations; nothing where a Markov chain has them."""
    if duration is None:
        for name, value in (("max_duration", max_duration), ("num_phases", num_phases)):
            if value is not None:
                raise ValueError(f"{name}: it is of durations; say which, as duration='poisson', or leave it out; got {value}")
        return {}
    size = duration_size(duration, max_duration, num_phases)
    return {"duration": duration} | ({} if duration == "geometric" else size)


def moves_of(num_regimes: int, told: Mapping[str, Any], initial: str, dtype: torch.dtype, name: str = "num_regimes") -> Moves:
    """Moves as :func:`moves_config` told them. name: of the argument that says how many regimes there are."""
    if not told:
        return MarkovMoves(num_regimes, dtype, initial)
    duration, size = [*told.values(), 1][:2]  # "geometric" durations have one phase
    checks.fits([*told][-1], 8.0 * (checks.count(name, num_regimes, 2) * size) ** 2, "choose shorter durations")
    return DurationMoves(num_regimes, duration, size, dtype, initial)


class DurationMoves(nn.Module):
    """R regimes, each of which lasts D ~ durations[regime] steps and then moves to another one, as a chain of N = R M states.

    Of "explicit" durations 1..M, and of "poisson" ones (1 plus a Poisson number, of those up to M), a state is a regime and how
    many steps are left; of "negative_binomial" ones it is a regime and which of its M phases, each of geometric length.

    Args:
        num_regimes: R, at least 2. duration, size: which, and M. initial: "learned", a row begins with a new regime, or
            "stationary", it begins in the long run, in the midst of one.
    """

    regime_of: Tensor

    def __init__(self, num_regimes: int, duration: str, size: int, dtype: torch.dtype, initial: str = "learned"):
        super().__init__()
        self.num_regimes, self.size, self.duration = num_regimes, size, duration
        self.num_states, self.is_stationary = num_regimes * size, initial == "stationary"
        self.register_buffer("regime_of", torch.arange(num_regimes).repeat_interleave(size), persistent=False)
        if not self.is_stationary:
            self.start_logits = nn.Parameter(0.1 * torch.randn(num_regimes, dtype=dtype))
        self.move_logits = nn.Parameter(0.1 * torch.randn(num_regimes, num_regimes, dtype=dtype))
        shape = (num_regimes, size) if duration == "explicit" else (num_regimes,)
        self.duration_logits = nn.Parameter(0.1 * torch.randn(shape, dtype=dtype))

    # ---------------------------------------------------------------- the chain
    @property
    def is_listed(self) -> bool:
        """Whether a state of the chain is a regime and how many steps are left."""
        return self.duration in ("explicit", "poisson")

    def _log_durations(self) -> Tensor:
        """(R, M) log p(D = 1..M)."""
        if self.duration == "explicit":
            return torch.log_softmax(self.duration_logits, -1)
        more = torch.arange(self.size).to(self.duration_logits)
        return torch.log_softmax(more * self.duration_logits.unsqueeze(-1) - torch.lgamma(more + 1), -1)

    def _log_moves(self) -> Tensor:
        """(R, R) log p(next regime | regime that ends)."""
        itself = torch.eye(self.num_regimes, dtype=torch.bool, device=self.move_logits.device)
        return torch.log_softmax(self.move_logits.masked_fill(itself, -torch.inf), -1)

    @property
    def initial_logits(self) -> Tensor:
        """(N,) log p of the first state."""
        if self.is_stationary:
            return stationary_log_probs(self.transition_logits)
        start = torch.log_softmax(self.start_logits, -1)
        if self.is_listed:
            return (start.unsqueeze(-1) + self._log_durations()).flatten()
        return torch.cat([start.unsqueeze(-1), start.new_full((self.num_regimes, self.size - 1), -torch.inf)], -1).flatten()

    @property
    def transition_logits(self) -> Tensor:
        """(N, N) log p of the next state, [from, to]."""
        regimes, size, moves = self.num_regimes, self.size, self._log_moves()
        same = torch.eye(regimes, dtype=torch.bool, device=moves.device)
        if self.is_listed:
            enter = moves[:, None, :, None] + self._log_durations()
            steps = torch.diag(moves.new_ones(size - 1), -1).bool()[1:]  # from d + 1 to d steps that are left
            wait = torch.where(same[:, None, :, None] & steps[None, :, None, :], 0.0, -torch.inf).to(moves)
            return torch.cat([enter, wait], 1).reshape(regimes * size, -1)
        stay, leave = (nn.functional.logsigmoid(sign * self.duration_logits) for sign in (1, -1))
        here, ahead = torch.eye(size, device=moves.device).bool(), torch.diag(torch.ones(size - 1), 1).bool().to(moves.device)
        last = torch.zeros(size, size, dtype=torch.bool, device=moves.device)
        last[-1, 0] = True
        value = torch.where(here[None, :, None, :], stay[:, None, None, None], leave[:, None, None, None])
        value = torch.where(same[:, None, :, None] & (here | ahead)[None, :, None, :], value, -torch.inf)
        end = (leave.unsqueeze(-1) + moves)[:, None, :, None]
        return torch.where(~same[:, None, :, None] & last[None, :, None, :], end, value).reshape(regimes * size, -1)

    # ---------------------------------------------------------------- parameters
    @property
    def durations(self) -> Tensor:
        """(R, M) p(D = 1..M) of "explicit" and "poisson" durations; (R,) means of others."""
        if self.is_listed:
            return self._log_durations().detach().exp()
        return self.size * (1 + self.duration_logits.detach().exp())

    def values(self) -> dict[str, Tensor]:
        found = {} if self.is_stationary else {"initial": torch.softmax(self.start_logits, -1)}
        value = {"explicit": lambda logits: torch.softmax(logits, -1), "poisson": torch.exp}.get(self.duration, torch.sigmoid)
        return found | {"transition": self._log_moves().exp(), "duration": value(self.duration_logits)}

    @torch.no_grad()
    def set_values(self, *, initial: Any = None, transition: Any = None, duration: Any = None) -> None:
        """Sets p(first regime) (R,), p(next regime) (R, R) with a diagonal of zeros, and duration (R, M), of "poisson" ones the
        rate (R,), of others the probability (R,) of staying in a phase.

        Raises:
            ValueError: for other shapes, and numbers that are none of these. TypeError: for what are no numbers.
        """
        for name, value, own in (
            ("initial", initial, getattr(self, "start_logits", None)), ("transition", transition, self.move_logits),
            ("duration", duration, self.duration_logits),
        ):  # fmt: skip
            if value is None:
                continue
            if own is None:
                raise ValueError("initial: rows begin in the long run; make the model with initial='learned', or leave it out")
            value = checks.finite(name, checks.numbers(name, value).double().to(own))
            single = name == "duration" and own.dim() == 1  # a rate or a probability of each regime
            rates = single and self.duration == "poisson"
            outside = value <= 0 if rates else (value < 0) | (value > 1 + 1e-4)
            if value.shape != own.shape or bool(outside.any()):
                what = "rates above 0" if rates else "probabilities"
                raise ValueError(f"{name} must hold {what} of shape {tuple(own.shape)}, got {checks.shown(value.tolist())}")
            if not single and (
                bool(((value.sum(-1) - 1).abs() > 1e-4).any()) or (name == "transition" and bool(value.diagonal().any()))
            ):
                raise ValueError(f"{name}: every row must sum to 1" + (", with 0 on the diagonal" * (name == "transition")))
            own.copy_(torch.special.logit(value.clamp_max(1)) if single and not rates else value.log())

    @property
    def slots(self) -> dict[str, Slot]:
        others = ~torch.eye(self.num_regimes, dtype=torch.bool, device=self.move_logits.device)
        # where rows begin says what moves and durations are, too, so that those within bounds are not the best ones, moved
        clips = not self.is_stationary
        held = Slot(self.duration_logits, raw_of=torch.special.logit, support=(0.0, 1.0), clips=clips)
        if self.duration == "explicit":
            held = Slot(self.duration_logits, True, clips=clips)
        elif self.duration == "poisson":
            told = None if self.size > 1 else torch.zeros_like(self.duration_logits, dtype=torch.bool)  # else all last one step
            held = held._replace(raw_of=Tensor.log, support=(0.0, torch.inf), allowed=told)
        found = {} if self.is_stationary else {"initial": Slot(self.start_logits, True)}
        return found | {"transition": Slot(self.move_logits, True, others, clips=clips), "duration": held}

    def state_axes(self) -> dict[str, Sequence[int]]:
        axes: dict[str, Sequence[int]] = {"start_logits": (0,), "move_logits": (0, 1), "duration_logits": (0,)}
        return {name: axes[name] for name, _ in self.named_parameters()}

    def units(self) -> dict[str, Tensor]:
        return {"move_logits": self._log_moves().detach().exp().clamp_min(1e-6).rsqrt()}

    # ---------------------------------------------------------------- EM
    @torch.no_grad()
    def initialize(self, matrix: Tensor | None = None) -> None:
        """Nearly even moves and durations, or, as near as they come, those of a Markov chain with logits (R, R)."""
        for logits in self.parameters():
            logits.copy_(0.1 * torch.randn(logits.shape, dtype=torch.float64))
        if matrix is None:
            if self.duration == "poisson":
                self.duration_logits.add_(math.log(max(1.0, self.size / 2)))
            return
        matrix = matrix.double().log_softmax(-1)
        self.move_logits.copy_(matrix)
        stay = matrix.diagonal().exp().clamp(1e-3, 1 - 1e-3)
        if self.duration == "explicit":
            self.duration_logits.copy_(torch.arange(self.size).to(stay) * stay.log().unsqueeze(-1))
        elif self.duration == "poisson":
            self.duration_logits.copy_((stay / (1 - stay)).clamp(0.5, max(0.5, self.size / 2)).log())
        else:
            self.duration_logits.copy_(torch.special.logit((1 - self.size * (1 - stay)).clamp_min(0.1)))

    @torch.no_grad()
    def maximize(self, start: Tensor, counts: Tensor) -> None:
        """The likeliest parameters of expected first states (N,) and moves (N, N) [from, to]."""
        regimes, size = self.num_regimes, self.size
        start, counts = start.reshape(regimes, size), counts.reshape(regimes, size, regimes, size)
        others = 1 - torch.eye(regimes).to(counts)
        if self.is_listed:
            entered = counts[:, 0] * others.unsqueeze(-1)
            lasted = entered.sum(0) if self.is_stationary else start + entered.sum(0)
            if self.duration == "explicit":
                found = dirichlet_mode(lasted, None, torch.log_softmax(self.duration_logits, -1))
            else:
                found = _log_rates(lasted, self.duration_logits.to(lasted))
            moved = entered.sum(-1)
        else:
            moved = counts[:, -1, :, 0] * others
            within = torch.einsum("rdrd->r", counts)
            left = torch.einsum("rdre->rde", counts).diagonal(1, 1, 2).sum(-1) + moved.sum(-1)
            share = (within / (within + left)).clamp(1e-9, 1 - 1e-9)
            found = torch.where(within + left > 0, torch.special.logit(share), self.duration_logits)
        self.duration_logits.copy_(kept(self.duration_logits, found))
        if not self.is_stationary:
            found = dirichlet_mode(start.sum(-1), None, torch.log_softmax(self.start_logits, -1))
            self.start_logits.copy_(kept(self.start_logits, found))
        self.move_logits.copy_(kept(self.move_logits, dirichlet_mode(moved, None, self._log_moves())))


def _log_rates(lasted: Tensor, before: Tensor) -> Tensor:
    """(R,) logarithms of the likeliest rates of Poisson numbers 0..M-1, of which each was seen ``lasted`` (R, M) times: those
    at which they have the mean that was seen. By bisection, as that mean rises with the rate."""
    more = torch.arange(lasted.shape[-1]).to(lasted)
    total = lasted.sum(-1)
    mean, weight = (lasted @ more) / total, -torch.lgamma(more + 1)
    low, high = torch.full_like(mean, -WIDEST), torch.full_like(mean, WIDEST)
    for _ in range(70):
        middle = (low + high) / 2
        below = torch.softmax(more * middle.unsqueeze(-1) + weight, -1) @ more < mean
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.where(total > 0, (low + high) / 2, before)
