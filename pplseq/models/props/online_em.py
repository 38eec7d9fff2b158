"""Online EM of hidden Markov models some of whose states are pinned to sources: one token in, parameters out.

All rows of rho (transitions, first states, normalisers or moments, words seen last) are one matrix (R, K), so a step is two
small products: rho R and, with the new filter, S = rho phi.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from pplseq import checks
from pplseq.models.props.gaussian_statistics import GaussianStatistics
from pplseq.models.props.settings import OnlineEM, Parameters, StepInfo
from pplseq.models.props.word_statistics import WordStatistics

FAINT = 1e-250  # of the whole: what is far off underflows, and its logarithm is taken another way


class StreamState:
    """One user's stream: filter, statistics, parameters. ``step`` changes it in place; ``copy`` keeps one.

    Args:
        initial: (K,) p(z) of a sequence's first token. transition: (K, K) [from, to], sources first. Both are where the
            stream begins, and the priors of the options.
        emission: the statistics of the perturbation states, empty.
        options: see :class:`OnlineEM`.

    Cost: of a step O(window K^2), whatever the number of words; memory O(words seen K_p).
    """

    def __init__(self, initial, transition, emission: WordStatistics | GaussianStatistics, options: OnlineEM):
        self.first_initial, self.first_transition = np.array(initial, float), np.array(transition, float)
        self.initial, self.transition, self.options = self.first_initial, self.first_transition, options
        self.emissions: Any = emission  # both kinds answer the same questions
        self.num_states, self.num_own = len(self.initial), emission.num_own
        self.num_sources = self.num_states - self.num_own
        self.num_steps = 0
        self.clock = 0  # what the step size goes by: tokens, unless the stream was told to forget
        self.fresh = True  # the next token begins a sequence
        self.detached = False  # the statistics do not depend on the state before the next token
        self.filter = self.initial
        self.total_weight = 0.0
        self.sums: Any = None  # (R,) where means are kept
        self._averaged: tuple[np.ndarray, np.ndarray] | None = None
        self._allocate()

    def _allocate(self) -> None:
        """Room for the rows that there are now, with what is there kept; new rows come last."""
        num_states = self.num_states
        self.num_moves = num_states * num_states
        self.num_fixed = self.num_moves + num_states
        size = self.num_fixed + self.emissions.num_rows
        old = getattr(self, "rho", np.zeros((0, num_states)))
        self.rho, self.other = np.zeros((size, num_states)), np.zeros((size, num_states))
        self.rho[: len(old)] = old
        rows, self.rows = getattr(self, "rows", np.zeros(0)), np.zeros(size)
        self.rows[: len(rows)] = rows
        if self.options.averaging is not None:
            sums, self.sums = np.zeros(0) if self.sums is None else self.sums, np.zeros(size)
            self.sums[: len(sums)] = sums

    def copy(self) -> StreamState:
        """An independent copy."""
        return copy.deepcopy(self, {id(getattr(self.emissions, "table", None)): getattr(self.emissions, "table", None)})

    def new_sequence(self) -> None:
        """A boundary: the next token's state is drawn from ``initial``."""
        self.fresh = True

    def forget(self, memory: int = 100) -> None:
        """The stream has become another one: the step size goes back to that of token ``memory``, and falls from there again.

        Of what was learned before, about memory^-exponent remains beside every new token as long as it is near.
        """
        self.clock = min(self.clock, checks.count("memory", memory))

    @property
    def maximized(self) -> bool:
        """Whether the warm-up is over, so that emissions come from statistics."""
        return self.options.maximized(self.num_steps)

    @property
    def residual(self) -> float:
        """See :class:`StepInfo`."""
        return self.emissions.residual

    # ---------------------------------------------------------------- one token
    def step(
        self, y, source_log_probs=(), learn: bool = True, *, first: Callable[[], object] | None = None
    ) -> StepInfo:
        """Takes one token.

        Args:
            y: a word id, -1 for a missing one; or a vector (D,), NaN for a missing one.
            source_log_probs: (K_s,) log f^k(y | past) of every source; not read where y is missing.
            learn: False leaves parameters and statistics alone and only moves the filter; averaged parameters are then
                used where there is averaging.
            first: called when all was checked and nothing has changed; where it raises, nothing does.

        Raises:
            ValueError: for a y or log-probabilities out of range, and a token that is impossible in every state; the
                stream is then unchanged.
        """
        y = self.emissions.check(y)
        missing = self.emissions.is_missing(y)
        averaged = not learn and self.total_weight > 0
        before, prior, priors, joint, shift = self._joint(y, missing, source_log_probs, averaged)
        num_sources = self.num_sources
        by_source, by_own = sum(joint[:num_sources]), sum(joint[num_sources:])
        total = by_source + by_own
        if not 0 < total < math.inf:
            words = isinstance(self.emissions, WordStatistics)
            raise ValueError(
                f"y: token {self.num_steps + 1}, {y}, is impossible (probability {total}) in every state; "
                + (
                    "smooth the sources, or use smoothing > 0"
                    if words
                    else "leave it out, or divide all vectors by their scale"
                )
            )
        log_source, log_own = _log(by_source) + shift, _log(by_own) + shift
        if num_sources and by_source < FAINT * total and not missing:
            log_source = _log_sum(priors[:num_sources], self._checked(source_log_probs))
        if by_own < FAINT * total and not missing and isinstance(self.emissions, GaussianStatistics):
            rows = (self._mean_rows() if averaged else self.rows)[self.num_fixed :]
            log_own = _log_sum(priors[num_sources:], self.emissions.log_densities(y, rows, self.maximized).tolist())
        if first is not None:
            first()
        phi = np.array(joint)
        phi /= total
        if learn:
            self._learn(y, missing, before, prior, phi, min(priors))
        else:
            self.detached = True
        self.filter, self.fresh = phi, False
        source_prior, own_prior = sum(priors[:num_sources]), sum(priors[num_sources:])
        return StepInfo(
            0.0 if missing else math.log(total) + shift,
            phi,
            by_own / total,
            _log_ratio(log_own, log_source),
            -_log_ratio(log_source, _log(source_prior)) if num_sources else math.inf,
            -_log_ratio(log_own, _log(own_prior)) if self.num_own else math.inf,
            self.emissions.residual,
        )

    def score(self, y, source_log_probs=()) -> float:
        """log p(y | past), nats, of a token that might come next; arguments as for :meth:`step`. Changes nothing."""
        y = self.emissions.check(y)
        missing = self.emissions.is_missing(y)
        *_, joint, shift = self._joint(y, missing, source_log_probs, False)
        total = sum(joint)
        return 0.0 if missing else math.log(total) + shift if total > 0 else -math.inf

    def _joint(self, y, missing: bool, source_log_probs, averaged: bool) -> tuple:
        """The filter before, the states' prior (K,), also as a list, and p(z, y | past) / exp(shift) as a list, with shift."""
        initial, transition = self._mean_moves() if averaged else (self.initial, self.transition)
        before = initial if self.fresh else self.filter
        prior = before if self.fresh else before @ transition
        priors = prior.tolist()
        if missing:
            return before, prior, priors, priors, 0.0
        logs = self._checked(source_log_probs)
        rows, weight = (self._mean_rows(), self.total_weight) if averaged else (self.rows, None)
        own, shift = self.emissions.likelihood(
            y, rows[self.num_fixed :], self.maximized, weight, priors[self.num_sources :]
        )
        if logs and max(logs) > shift + 600:  # densities: the largest one must not overflow
            own, shift = [value * math.exp(shift - max(logs)) for value in own], max(logs)
        likelihood = [math.exp(value - shift) for value in logs] + own
        return before, prior, priors, [a * b for a, b in zip(priors, likelihood, strict=True)], shift

    def _checked(self, source_log_probs: Any) -> list[float]:
        if source_log_probs is None:
            source_log_probs = ()
        logs = source_log_probs.tolist() if hasattr(source_log_probs, "tolist") else list(source_log_probs)
        if len(logs) != self.num_sources:
            raise ValueError(
                f"source_log_probs must hold one number for each of the {self.num_sources} sources, got {len(logs)}"
            )
        for k, value in enumerate(logs):
            if not value < math.inf or (value > 1e-6 and isinstance(self.emissions, WordStatistics)):
                raise ValueError(f"source_log_probs: source {k} gives {value}; expected the log of a probability")
        return logs

    def _learn(self, y, missing: bool, before, prior, phi, least: float) -> None:
        """Statistics and parameters after a token with filter phi."""
        emissions, options, num_states = self.emissions, self.options, self.num_states
        t = self.num_steps = self.num_steps + 1
        self.clock += 1
        gain = options.gain(self.clock)
        keep = 1.0 - gain
        if not missing and emissions.grow():
            self._allocate()
        fixed = self.num_fixed
        back: Any = None
        if not self.fresh:
            back = before[:, None] * self.transition
            if least > 0:
                back /= prior
            else:  # a state that cannot be reached has no past of its own
                back = np.where(prior > 0, back / np.where(prior > 0, prior, 1.0), before[:, None])
        if self.fresh or self.detached:
            emissions.cool_all(self.rho[fixed:], self.rows[fixed:], None if self.sums is None else self.sums[fixed:])
            self.rho[:] = keep * self.rows[:, None]
            self.detached = False
        else:
            self.rho, self.other = np.dot(self.rho, keep * back, out=self.other), self.rho
        rho = self.rho
        emissions.shrink(keep)
        moves = self.num_moves
        if back is not None:
            rho[:moves].reshape(num_states, moves)[:, :: num_states + 1] += gain * back
        else:
            rho[moves:fixed].reshape(-1)[:: num_states + 1] += gain
        if not missing:
            emissions.add(rho[fixed:], gain, y)
        rows = np.dot(rho, phi, out=self.rows)
        if self.sums is not None:
            weight = options.weight(t)
            self.sums += weight * rows
            emissions.weigh(weight)
            self.total_weight += weight
            self._averaged = None
            emissions.cool(rho[fixed:], rows[fixed:], self.sums[fixed:])
        else:
            emissions.cool(rho[fixed:], rows[fixed:], None)
        emissions.smoothing = options.smoothing_at(t)
        if self.moves_learned:
            self.initial, self.transition = self.maximal_moves(rows, self.initial, self.transition)

    @property
    def moves_learned(self) -> bool:
        """Whether moves come from statistics: with a prior from the first token on."""
        return self.num_steps >= (1 if self.options.transition_prior else self.options.warm_up)

    def maximal_moves(self, rows: np.ndarray, initial: np.ndarray, transition: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(K,) and (K, K) from the rows of first states and moves; those given where nothing was counted."""
        options, counts = self.options, rows[self.num_moves : self.num_fixed]
        share = 1 / max(self.num_steps, 1)  # of one token beside the statistics
        if options.initial_prior is not None and "initial" not in options.fixed:
            counts = counts + share * options.initial_prior * self.first_initial
            if (total := counts.sum()) > 0:
                initial = counts / total
        return initial, self._maximal_transition(rows, transition, share)

    def _maximal_transition(self, rows: np.ndarray, otherwise: np.ndarray, share: float) -> np.ndarray:
        """The rows of transitions, each over its sum; a state never left keeps its old row."""
        if "transition" in self.options.fixed:
            return otherwise
        counts = rows[: self.num_moves].reshape(self.num_states, -1)
        if self.options.transition_prior:
            counts = counts + share * self.options.transition_prior * self.first_initial[:, None] * self.first_transition
        if self.options.transition_smoothing:
            counts = counts + self.options.transition_smoothing / self.num_states
        visits = counts.sum(1)
        if visits.all():
            return counts / visits[:, None]
        return np.where(visits[:, None] > 0, counts / np.where(visits > 0, visits, 1.0)[:, None], otherwise)

    # ---------------------------------------------------------------- parameters
    def _mean_rows(self) -> np.ndarray:
        """(R,) the statistics' mean over tokens."""
        return self.sums / self.total_weight

    def _mean_moves(self) -> tuple[np.ndarray, np.ndarray]:
        if self._averaged is None:
            self._averaged = self.initial, self.transition
            if self.moves_learned:
                self._averaged = self.maximal_moves(self._mean_rows(), self.initial, self.transition)
        return self._averaged

    def parameters(self, averaged: bool | None = None) -> Parameters:
        """The parameters now.

        Args:
            averaged: those of the statistics' mean over tokens; None: where the options ask for averaging.
        """
        average = self.total_weight > 0 if averaged is None else averaged
        if average and not self.total_weight > 0:
            raise ValueError('averaged: this stream keeps no means; give averaging="recent" when it starts')
        rows = (self._mean_rows() if average else self.rows)[self.num_fixed :]
        initial, transition = self._mean_moves() if average else (self.initial, self.transition)
        if isinstance(self.emissions, WordStatistics):
            weight = self.total_weight if average else None
            return Parameters(initial, transition, self.emissions.emission(rows, self.maximized, weight))
        loc, covariances = self.emissions.parameters(rows, self.maximized)
        return Parameters(initial, transition, None, loc, covariances)

    def emission(self) -> np.ndarray:
        """(K_p, V) word probabilities of the perturbation states."""
        return self.parameters().emission

    @property
    def loc(self) -> np.ndarray:
        """(K_p, D) means of the perturbation states."""
        return self.parameters().loc

    @property
    def covariances(self) -> np.ndarray:
        """(K_p, D, D) covariances of the perturbation states."""
        return self.parameters().covariances

    def predicted_states(self, averaged: bool | None = None) -> np.ndarray:
        """(K,) p(z of the next token | past)."""
        average = self.total_weight > 0 if averaged is None else averaged
        initial, transition = self._mean_moves() if average else (self.initial, self.transition)
        return initial.copy() if self.fresh else self.filter @ transition

    def word_probs(self, source_probs=(), averaged: bool | None = None) -> np.ndarray:
        """(V,) p(next word | past), from every source's (V,) probabilities; costs O(V K)."""
        prior, own = self.predicted_states(averaged), self.parameters(averaged).emission
        result = prior[self.num_sources :] @ own
        if len(source_probs) != self.num_sources:
            raise ValueError(
                f"source_probs must hold (V,) probabilities of each of the {self.num_sources} sources, got {len(source_probs)}"
            )
        for weight, probs in zip(prior[: self.num_sources], source_probs, strict=True):
            result += weight * np.asarray(probs)
        return result


def start_stream(
    *,
    initial,
    transition,
    emission=None,
    loc: Any = None,
    covariances: Any = None,
    full=True,
    floor=1e-3,
    options: OnlineEM | None = None,
) -> StreamState:
    """An empty stream.

    Args:
        initial: (K,). transition: (K, K) [from, to]. States without an emission of their own are sources and come first.
        emission: (K_p, V) word probabilities of the perturbations, or loc (K_p, D) and covariances (K_p, D, D).
        full: whether covariances are full. floor: added to every variance. options: see :class:`OnlineEM`.
    """
    options = options or OnlineEM()
    if emission is not None:
        emission = shared_table(np.asarray(emission, float))
        num_sources = len(initial) - len(emission)
        averaging = options.averaging is not None
        statistics = WordStatistics(emission, num_sources, options.smoothing_at(0), options.window, averaging)
    else:
        statistics = GaussianStatistics(np.asarray(loc), np.asarray(covariances), len(initial) - len(loc), full, floor)
    return StreamState(initial, transition, statistics, options)


_TABLES: WeakValueDictionary[tuple, np.ndarray] = WeakValueDictionary()


def shared_table(table: np.ndarray) -> np.ndarray:
    """The same numbers in the one read-only array that all who began with them hold: a user adds only the words it saw."""
    table = np.ascontiguousarray(table)
    key = table.shape, hashlib.sha256(table.tobytes()).digest()
    found = _TABLES.get(key)
    if found is None:
        found = _TABLES[key] = table.copy()
        found.flags.writeable = False
    return found


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _log_sum(priors: Sequence[float], logs: Sequence[float]) -> float:
    """log of the sum of priors times exp(logs)."""
    joint = [math.log(p) + value for p, value in zip(priors, logs, strict=True) if p > 0]
    top = max(joint, default=-math.inf)
    return top if top == -math.inf else top + math.log(sum(math.exp(value - top) for value in joint))


def _log_ratio(above: float, below: float) -> float:
    """The log of a quotient of what has these logs."""
    if above == -math.inf:
        return above
    return above - below
