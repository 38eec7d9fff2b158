"""Restarts of a fit: how blocks of them begin, and what became of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.fit.em import FitHistory
from pplseq.models.iohmm.restarts.held_out import HeldOutScores

EMPTY = 1e-6  # expected visits to a state, over all data, below which it counts as empty


@dataclass(frozen=True)
class RestartBlock:
    """How a block of restarts begins, and which prior helps it on its way.

    Args:
        num_restarts: how many.
        concentration: rows of tables are drawn from a symmetric Dirichlet of it; small ones begin near a deterministic machine.
        fixed_start: start in state 0 (states can be renamed so that every deterministic machine does).
        prior: concentration of a Dirichlet prior of tables' rows, at least 1, ...
        prior_iterations: ... which falls linearly to 1 over so many iterations; 0 keeps it.
        scale: standard deviation of the weights of generalised linear models (and of layers, over the root of their inputs).
    """

    num_restarts: int = 1
    concentration: float = 1.0
    fixed_start: bool = False
    prior: float = 1.0
    prior_iterations: int = 0
    scale: float = 0.5

    def __post_init__(self):
        checks.count("num_restarts", self.num_restarts)
        checks.count("prior_iterations", self.prior_iterations, 0)
        for name in ("concentration", "scale"):
            checks.positive(name, getattr(self, name))
        if not self.prior >= 1:
            raise ValueError(f"prior must be at least 1 (below, the posterior density has no maximum), got {self.prior}")

    def replaced(self, num_restarts: int) -> RestartBlock:
        """The same settings for another number of restarts."""
        return replace(self, num_restarts=num_restarts)


@dataclass
class Restarts:
    """What became of each restart.

    Attributes:
        log_likelihoods, log_posteriors: (R,) nats at the last parameters.
        trace: (iterations, R) log-likelihoods, NaN after a restart stopped; objectives: the same with log priors.
        num_iterations: (R,) maximisation steps. converged: (R,). block: (R,) which block of settings.
        dropped: restart -> why. empty: restart -> its empty states. floored: restarts where a variance met its floor.
        fell: those whose objective fell. parameters: part -> name -> (..., R). scores: (R,) what the choice went by, higher is
            better. validations: (N, R) nats per step of held-out data at what iterations 0, 1, ... left, NaN where there was
            no look. chosen: the restart whose parameters the model has.
    """

    log_likelihoods: Tensor
    log_posteriors: Tensor
    trace: Tensor
    objectives: Tensor
    num_iterations: Tensor
    converged: Tensor
    block: Tensor
    dropped: dict[int, str] = field(default_factory=dict)
    empty: dict[int, list[int]] = field(default_factory=dict)
    floored: list[int] = field(default_factory=list)
    fell: list[int] = field(default_factory=list)
    parameters: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)
    scores: Tensor = field(default_factory=lambda: torch.empty(0))
    validations: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    chosen: int = -1

    def __len__(self) -> int:
        return len(self.log_likelihoods)

    @property
    def kept(self) -> Tensor:
        """Positions of the restarts that were not dropped."""
        mask = torch.ones(len(self), dtype=torch.bool)
        mask[list(self.dropped)] = False
        return mask.nonzero().squeeze(-1)

    @property
    def score(self) -> float:
        """That of the chosen restart."""
        return float(self.scores[self.chosen])

    def summary(self) -> str:
        """One line."""
        kept = self.log_likelihoods[self.kept]
        text = f"{len(self)} restarts, {int(self.converged.sum())} converged, {len(self.dropped)} dropped"
        if len(kept):
            text += f"; log-likelihood best {float(kept.max()):.6g}, median {float(kept.median()):.6g}"
        return text

    def note_collapses(self, there: Tensor, broken: Tensor, log_likelihood: Tensor, visits: Tensor) -> None:
        """Writes down which of some restarts (positions) broke (a mask), and which states they never visit.

        Args:
            there, broken, log_likelihood: (R,). visits: (Z, M, R) expected ones.
        """
        for restart, bad, value in zip(there.tolist(), broken.tolist(), log_likelihood.tolist(), strict=True):
            self.empty.pop(restart, None)  # of earlier parameters
            if bad:
                what = "is NaN" if math.isnan(value) else f"is {value}: some sequence has probability zero"
                self.dropped[restart] = f"its log-likelihood {what}"
        empty = ~(visits.sum(1) > EMPTY)
        for position in empty.any(0).nonzero().squeeze(-1).tolist():
            if int(there[position]) not in self.dropped:
                self.empty[int(there[position])] = empty[:, position].nonzero().squeeze(-1).tolist()

    @classmethod
    def join(cls, parts: list[Restarts]) -> Restarts:
        """Those of several runs in a row."""
        if len(parts) == 1:
            return parts[0]
        def joined(name: str) -> Tensor:
            values = [getattr(part, name) for part in parts]
            if values[0].dim() == 1:
                return torch.cat(values)
            longest = max(map(len, values))
            return torch.cat([_lengthened(value, longest) for value in values], 1)

        result = cls(
            joined("log_likelihoods"), joined("log_posteriors"), joined("trace"), joined("objectives"),
            joined("num_iterations"), joined("converged"), joined("block"),
            validations=joined("validations"),
        )  # fmt: skip
        first = 0
        for part in parts:
            result.dropped |= {first + k: why for k, why in part.dropped.items()}
            result.empty |= {first + k: states for k, states in part.empty.items()}
            result.floored += [first + k for k in part.floored]
            result.fell += [first + k for k in part.fell]
            first += len(part)
        result.parameters = {
            part: {name: torch.cat([one.parameters[part][name] for one in parts], -1) for name in weights}
            for part, weights in parts[0].parameters.items()
        }
        return result


def _lengthened(trace: Tensor, length: int) -> Tensor:
    return torch.cat([trace, trace.new_full((length - len(trace), trace.shape[1]), math.nan)])


class RestartRun:
    """A fit of many restarts as one batch, which may stop between two steps and go on elsewhere."""

    held_out: HeldOutScores

    @property
    def ended(self) -> bool:
        """Whether every restart has stopped."""
        raise NotImplementedError

    def step(self) -> Tensor:
        """One step; returns the (R,) log-likelihoods before it, of the restarts that were running."""
        raise NotImplementedError

    def outcome(self) -> Restarts:
        """What became of the restarts, in the end."""
        raise NotImplementedError

    def run(self) -> Restarts:
        """All steps."""
        while not self.ended:
            self.step()
        return self.outcome()

    def best(self) -> tuple[dict[str, dict[str, Tensor]], int] | None:
        """Parameters, and the place among them of the likeliest restart that still runs; None before the first step."""
        raise NotImplementedError

    def cut(self) -> None:
        """Ends what runs as it is."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """All that :meth:`restore` needs beside the arguments: tensors, numbers, lists and dictionaries."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what another's :meth:`state` said."""
        raise NotImplementedError


@dataclass
class RestartHistory(FitHistory):
    """The history of the restart that was chosen; what became of all: ``restarts``; (size, score) of sizes tried: ``sizes``."""

    restarts: Restarts = field(kw_only=True)
    sizes: list[tuple[int, float]] | None = None
