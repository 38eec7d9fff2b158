"""How a stream learns, and what it says of a token and of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pplseq import checks

HELD = ("initial", "transition", "emission")
Number = Any  # a float of one user, a (B,) tensor of a batch


@dataclass(frozen=True)
class OnlineEM(checks.NamedArguments):
    """How a stream learns.

    Args:
        exponent: the step size of token t is t^-exponent; in (0.5, 1] for convergence. Text likes 0.8.
        step_size: a constant step in (0, 1) instead, for streams that drift: tokens older than a few times 1 / step_size
            are forgotten.
        warm_up: tokens before the first maximisation of what perturbations emit, and of moves without `transition_prior`.
        smoothing: pseudo-count of all words of a state together (each gets 1 / V of it), beside statistics that sum to one
            over states and words.
        prior_tokens: the same in tokens, prior_tokens / t beside the statistics of t tokens: a Dirichlet prior, whose weight
            falls as tokens come. V of them are Laplace's one a word; words of a text are rarer than that.
        transition_smoothing: pseudo-count of the transitions out of a state. A little (1e-3) keeps states alive that the
            first tokens starve: one that is never entered is never entered again.
        transition_prior: the moves that a stream begins with, in tokens: a Dirichlet prior whose weight, transition_prior / t
            beside the statistics of t tokens, falls as tokens come. With it moves are learned from the first token on, which
            is what a stream of many sources needs to be as good as its best one early; 0 waits for `warm_up`.
        initial_prior: the same for the probabilities of a sequence's first state, in sequences; None keeps them fixed, as
            Wojnowicz and Zhao do, which costs short sequences (tweets, sentences) much of what was learned.
        fixed: of "initial", "transition" and "emission" (of vectors: means and covariances) those that keep the values that the
            stream begins with.
        averaging: None, "recent" (the mean of the statistics with weights t^2, most of it from the last half), or the token
            from which on all count equally: smoother parameters for use after learning.
        window: most words whose posterior still depends on the future; a cap that costs exactness only on chains which
            stay in a state for very long, see ``StepInfo.residual``.

    Source: O. Cappé (2011), section 3.2; averaging with weights: O. Shamir and T. Zhang (2013), section 4.
    """

    exponent: float = 0.6
    step_size: float | None = None
    warm_up: int = 20
    smoothing: float = 0.05
    prior_tokens: float = 0.0
    transition_smoothing: float = 0.0
    transition_prior: float = 10.0
    initial_prior: float | None = 3.0
    averaging: str | int | None = None
    window: int = 256
    fixed: str | Sequence[str] = ()

    def __post_init__(self):
        if not 0.5 < self.exponent <= 1:
            raise ValueError(f"exponent must lie in (0.5, 1], got {self.exponent}")
        if self.step_size is not None and not 0 < self.step_size < 1:
            raise ValueError(f"step_size must lie in (0, 1), or be None for t^-exponent; got {self.step_size}")
        for name, least in (("warm_up", 1), ("window", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {checks.shown(value)}")
        for name in ("smoothing", "prior_tokens", "transition_smoothing", "transition_prior", "initial_prior"):
            if getattr(self, name) is None and name == "initial_prior":
                continue
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        given = [self.fixed] if isinstance(self.fixed, str) else self.fixed
        if isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ValueError(f"fixed: a stream holds parameters whole, by their names; got {checks.shown(self.fixed)}")
        object.__setattr__(self, "fixed", tuple(sorted({checks.choice("fixed", name, HELD) for name in given})))
        given = self.averaging
        number = isinstance(given, int) and not isinstance(given, bool) and given >= 0
        if not (given is None or given == "recent" or number):
            raise ValueError(f'averaging must be None, "recent" or the number of a token, got {checks.shown(given)}')

    def maximized(self, num_steps: Any) -> Any:
        """Whether what perturbations emit comes from statistics, after so many tokens (of each user)."""
        return (num_steps >= self.warm_up) & ("emission" not in self.fixed)

    def gain(self, t: int) -> float:
        """The step size of token t = 1, 2, ...; the first one is 1."""
        if t == 1:
            return 1.0
        return t**-self.exponent if self.step_size is None else self.step_size

    def smoothing_at(self, t: int) -> float:
        """The pseudo-count of a state's words together after t tokens."""
        return self.smoothing + self.prior_tokens * max(1 / max(t, 1), self.step_size or 0.0)

    def weight(self, t: int) -> float:
        """The weight of the statistics after token t in their mean over tokens."""
        return float(t * t) if self.averaging == "recent" else float(t >= self.averaging)  # pyright: ignore[reportOperatorIssue]


class StepInfo(NamedTuple):
    """What a stream knew of one token; numbers in nats, (B,) tensors for a batch of users.

    log_prob: log p(y_t | past), 0 for a missing token. filter: (K,) p(z_t | y_1..t), sources first.
    perturbation: P(z_t is a perturbation | y_1..t); log_odds: the same against the sources (inf without sources).
    anomaly: -log p(y_t | past); source_anomaly and perturbation_anomaly: the same given that z_t is a source, or a
    perturbation, state. residual: the largest relative error of a word's statistic that the window has cost so far.
    """

    log_prob: Number
    filter: Any
    perturbation: Number
    log_odds: Number
    source_anomaly: Number
    perturbation_anomaly: Number
    residual: Number

    @property
    def anomaly(self) -> Number:
        return -self.log_prob


class Parameters(NamedTuple):
    """initial (K,), transition (K, K), and of the perturbations emission (K_p, V), or loc and covariances."""

    initial: np.ndarray
    transition: np.ndarray
    emission: Any = None
    loc: Any = None
    covariances: Any = None
