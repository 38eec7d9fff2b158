"""Hidden semi-Markov models: regimes that last as long as a distribution of durations says, as chains of more states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.infer.fit.closed_forms import dirichlet_mode
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.infer.fit.held import Slot, kept
from pplseq.models.hmm.program import HMM
from pplseq.models.regimes import RegimeQueries

DURATIONS = ("explicit", "poisson", "negative_binomial", "geometric")

WIDEST = 30.0  # of the logarithm of a rate


class SemiMarkovHMM(RegimeQueries, HMM):
    """An HMM whose regimes last D ~ durations[regime] steps and then move to another regime.

    "explicit" durations 1..M are any distribution: a state of the chain is a regime and how many steps are left. "poisson" ones
    are 1 plus a Poisson number, of those up to M. Those of "negative_binomial" are M plus a negative binomial number: a regime
    has M phases in a row, each of geometric length; "geometric" ones have one phase, as in an HMM. The chain is exact, the last
    duration of a row may go on behind it, and a row begins with a new regime. ``decode``, ``n_best`` and ``entropy`` are of
    paths of the chain (a regime, and how many steps are left or which phase it is), several of which may have the same regimes.

    Args:
        num_states: R, of regimes, at least 2. num_words, num_features, emission, ...: as of
            :class:`~pplseq.models.hmm.program.HMM`, of the R regimes.
        duration: see above. max_duration: M of "explicit" and "poisson" durations. num_phases: M of "negative_binomial".

    Raises:
        ValueError: for sizes or options that do not fit together.

    Example::

        model = SemiMarkovHMM(2, emission="poisson", max_duration=20).fit(counts)
        model.durations  # (2, 20)

    Source: S.-Z. Yu (2010), Hidden semi-Markov models, Artificial Intelligence 174(2); M. J. Johnson and A. S. Willsky (2013),
    Bayesian nonparametric hidden semi-Markov models, JMLR 14, section 4.2. Cost: that of a dense chain of R M states.
    """

    _sizes: tuple[int, int, str]
    name = "semi_markov_hmm"
    methods = ("em", "sgd", "lbfgs")

    def __init__(
        self, num_states: int, num_words: int | None = None, *, duration: str = "explicit", max_duration: int | None = None,
        num_phases: int | None = None, **options: Any,
    ):  # fmt: skip
        regimes_ = checks.count("num_states", num_states, 2)
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
        size = checks.count(name, size)
        for option in ("priors", "graph", "start_states", "ties", "transition"):
            if options.get(option) is not None:
                raise ValueError(f"{option}: a semi-Markov model has none; use HMM, or leave it out")
        # the parameters are made by the constructors above
        vars(self)["_sizes"], vars(self)["num_regimes"] = (regimes_, size, duration), regimes_
        regimes = torch.arange(regimes_).repeat_interleave(size)
        super().__init__(regimes_ * size, num_words, ties=regimes.tolist(), **options)
        self.register_buffer("regime_of", regimes, persistent=False)
        self._config = {"num_states": regimes_} | {n: v for n, v in self._config.items() if n not in ("num_states", "ties")}
        self._config |= {"duration": duration} | ({} if duration == "geometric" else {name: size})

    def _make_tables(self, num_states: int, dtype: torch.dtype) -> None:
        regimes, size, duration = self._sizes
        self.start_logits = nn.Parameter(0.1 * torch.randn(regimes, dtype=dtype))
        self.move_logits = nn.Parameter(0.1 * torch.randn(regimes, regimes, dtype=dtype))
        shape = (regimes, size) if duration == "explicit" else (regimes,)
        self.duration_logits = nn.Parameter(0.1 * torch.randn(shape, dtype=dtype))

    # ---------------------------------------------------------------- values
    @property
    def _is_listed(self) -> bool:
        """Whether a state of the chain is a regime and how many steps are left."""
        return self._sizes[2] in ("explicit", "poisson")

    def _log_durations(self) -> Tensor:
        """(R, M) log p(D = 1..M)."""
        if self._sizes[2] == "explicit":
            return torch.log_softmax(self.duration_logits, -1)
        more = torch.arange(self._sizes[1]).to(self.duration_logits)
        return torch.log_softmax(more * self.duration_logits.unsqueeze(-1) - torch.lgamma(more + 1), -1)

    def _moves(self) -> Tensor:
        """(R, R) log p(next regime | regime that ends)."""
        itself = torch.eye(self._sizes[0], dtype=torch.bool, device=self.move_logits.device)
        return torch.log_softmax(self.move_logits.masked_fill(itself, -torch.inf), -1)

    @property
    def initial_logits(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(N,) log p of the first state."""
        regimes, size, _ = self._sizes
        start = torch.log_softmax(self.start_logits, -1)
        if self._is_listed:
            return (start.unsqueeze(-1) + self._log_durations()).flatten()
        return torch.cat([start.unsqueeze(-1), start.new_full((regimes, size - 1), -torch.inf)], -1).flatten()

    @property
    def transition_logits(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(N, N) log p of the next state, [from, to]."""
        regimes, size, _ = self._sizes
        moves = self._moves()
        same = torch.eye(regimes, dtype=torch.bool, device=moves.device)
        if self._is_listed:
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

    @property
    def durations(self) -> Tensor:
        """(R, M) p(D = 1..M) of "explicit" and "poisson" durations; (R,) means of others."""
        if self._is_listed:
            return self._log_durations().detach().exp()
        return self._sizes[1] * (1 + self.duration_logits.detach().exp())

    def estimates(self) -> dict[str, Tensor]:
        found = {"initial": torch.softmax(self.start_logits, -1), "transition": self._moves().exp()}
        value = {"explicit": lambda logits: torch.softmax(logits, -1), "poisson": torch.exp}.get(self._sizes[2], torch.sigmoid)
        found["duration"] = value(self.duration_logits)
        return found | self.emissions.values()

    @torch.no_grad()
    def set_parameters(self, *, initial=None, transition=None, duration=None, **parameters):
        """Sets p(first regime) (R,), p(next regime) (R, R) with a diagonal of zeros, duration (R, M), of "poisson" ones the
        rate (R,), or of others the probability (R,) of staying in a phase, and emissions; returns the model."""
        for name, value, own in (
            ("initial", initial, self.start_logits), ("transition", transition, self.move_logits),
            ("duration", duration, self.duration_logits),
        ):  # fmt: skip
            if value is None:
                continue
            value = checks.finite(name, torch.as_tensor(np.asarray(value), dtype=torch.float64).to(own))
            single = name == "duration" and own.dim() == 1  # a rate or a probability of each regime
            rates = single and self._sizes[2] == "poisson"
            outside = value <= 0 if rates else (value < 0) | (value > 1 + 1e-4)
            if value.shape != own.shape or bool(outside.any()):
                what = "rates above 0" if rates else "probabilities"
                raise ValueError(f"{name} must hold {what} of shape {tuple(own.shape)}, got {checks.shown(value.tolist())}")
            if not single and (
                bool(((value.sum(-1) - 1).abs() > 1e-4).any()) or (name == "transition" and bool(value.diagonal().any()))
            ):
                raise ValueError(f"{name}: every row must sum to 1" + (", with 0 on the diagonal" * (name == "transition")))
            own.copy_(torch.special.logit(value.clamp_max(1)) if single and not rates else value.log())
        return super().set_parameters(**parameters)

    @property
    def num_free_parameters(self) -> int:
        regimes, size, duration = self._sizes
        each = 1 if not self._is_listed else size - 1 if duration == "explicit" else min(size - 1, 1)
        return regimes - 1 + regimes * (regimes - 2) + regimes * each + self.emissions.num_free - self._num_held

    @property
    def slots(self) -> dict[str, Slot]:
        regimes, _, duration = self._sizes
        others = ~torch.eye(regimes, dtype=torch.bool, device=self.move_logits.device)
        held = Slot(self.duration_logits, raw_of=torch.special.logit, support=(0.0, 1.0))
        if duration == "explicit":
            held = Slot(self.duration_logits, True)
        elif duration == "poisson":
            held = held._replace(raw_of=Tensor.log, support=(0.0, torch.inf))
        return {
            "initial": Slot(self.start_logits, True), "transition": Slot(self.move_logits, True, others),
            "duration": held, **self.emissions.slots,
        }  # fmt: skip

    def _state_axes(self) -> Mapping[str, Sequence[int]]:
        return {"start_logits": (0,), "move_logits": (0, 1), "duration_logits": (0,)} | self._emission_axes()

    # ---------------------------------------------------------------- fit
    @torch.no_grad()
    def initialize(self, batch: Batch, how: str = "") -> None:
        """Emissions around what the data hold, nearly even moves and durations."""
        for logits in (self.start_logits, self.move_logits, self.duration_logits):
            logits.copy_(0.1 * torch.randn(logits.shape, dtype=torch.float64))
        if self._sizes[2] == "poisson":
            self.duration_logits.add_(math.log(max(1.0, self._sizes[1] / 2)))
        self._initialize_emissions(batch, how)

    @torch.no_grad()
    def maximize(self, statistics: Statistics) -> list[str]:
        regimes, size, duration = self._sizes
        start = statistics["initial"].reshape(regimes, size)
        counts = statistics["transition"].reshape(regimes, size, regimes, size)
        others = 1 - torch.eye(regimes).to(counts)
        if self._is_listed:
            entered = counts[:, 0] * others.unsqueeze(-1)
            lasted = start + entered.sum(0)
            if duration == "explicit":
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
        found = dirichlet_mode(start.sum(-1), None, torch.log_softmax(self.start_logits, -1))
        self.start_logits.copy_(kept(self.start_logits, found))
        self.move_logits.copy_(kept(self.move_logits, dirichlet_mode(moved, None, self._moves())))
        return self.emissions.maximize(statistics, None)


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
