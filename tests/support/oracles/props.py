"""The online EM recursion written out over all words: slow, to be read, and what the fast forms are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class DenseStream:
    """Online EM of a hidden Markov model whose first K_s states have emissions given from outside.

        R(i, k)          = phi(i) tau(i, k) / (phi tau)(k)                             with the old filter phi
        rho_tau(i, j, k) <- g 1[j = k] R(i, j)       + (1 - g) sum_l rho_tau(i, j, l) R(l, k)
        rho_eps(i, w, k) <- g 1[i = k] 1[w = y]      + (1 - g) sum_l rho_eps(i, w, l) R(l, k)
        S = sum_k rho(..., k) phi(k)

    A new sequence starts from ``initial``: its state is independent of the last one, so R(i, k) = phi(i), and no
    transition is counted, but a first state:

        rho_pi(j, k)     <- g 1[j = k] at the first token + (1 - g) sum_l rho_pi(j, l) R(l, k)

    Args:
        initial: (K,). transition: (K, K) [from, to]. emission: (K_p, W) of the perturbations, states K_s..K-1.
        step_sizes: g of steps 1, 2, ..., a function.
        warm_up: steps before the first maximisation; None keeps the parameters.
        smoothing: pseudo-count of a state's words together after step t, beside statistics that sum to one, a function.
        transition_prior, initial_prior: the weights of the first parameters after step t, functions; moves are then learned
            from the first step on. None: without, after the warm-up; or, of ``initial``, not at all.

    Source: O. Cappé (2011), Online EM algorithm for hidden Markov models, Algorithm 1; M. Wojnowicz and X. Zhao (2018),
    PROPS, eqs. 8-16 and Algorithm 1.
    """

    initial: np.ndarray
    transition: np.ndarray
    emission: np.ndarray
    step_sizes: Any
    warm_up: int | None = 20
    smoothing: Any = lambda t: 0.0  # noqa: E731
    transition_prior: Any = None
    initial_prior: Any = None
    num_steps: int = 0
    fresh: bool = True  # the next step begins a sequence
    history: list = field(default_factory=list)  # statistics after every step

    def __post_init__(self):
        num_states, (num_own, num_words) = len(self.initial), self.emission.shape
        self.num_sources = num_states - num_own
        self.filter = np.array(self.initial)
        self.first = np.array(self.initial), np.array(self.transition)
        self.rho_transition = np.zeros((num_states, num_states, num_states))
        self.rho_initial = np.zeros((num_states, num_states))
        self.rho_emission = np.zeros((num_states, num_words, num_states))

    def step(self, y: int, source_probs=()) -> float:
        """One token, -1 for a missing one, with f^k(y) of every source; returns p(y | past)."""
        num_states, identity = len(self.initial), np.eye(len(self.initial))
        self.num_steps += 1
        g = self.step_sizes(self.num_steps)
        prior = self.initial if self.fresh else self.filter @ self.transition
        likelihood = np.ones(num_states)
        if y >= 0:
            likelihood = np.concatenate([np.asarray(source_probs, float), self.emission[:, y]])
        predictive = float(prior @ likelihood)
        if self.fresh:
            back = np.repeat(self.filter[:, None], num_states, 1)
        else:
            back = self.filter[:, None] * self.transition / prior
        self.rho_transition = (1 - g) * np.einsum("ijl,lk->ijk", self.rho_transition, back)
        if not self.fresh:
            self.rho_transition += g * np.einsum("jk,ij->ijk", identity, back)
        self.rho_initial = (1 - g) * self.rho_initial @ back
        if self.fresh:
            self.rho_initial += g * identity
        self.rho_emission = (1 - g) * np.einsum("iwl,lk->iwk", self.rho_emission, back)
        if y >= 0:
            self.rho_emission[:, y] += g * identity
        self.filter = prior * likelihood / predictive
        self.fresh = False
        self.history.append((self.transition_statistics, self.emission_statistics))
        if self.warm_up is not None:
            if self.transition_prior is not None or self.num_steps >= self.warm_up:
                self._maximize_moves()
            if self.num_steps >= self.warm_up:
                self._maximize_emission()
        return predictive

    @property
    def transition_statistics(self) -> np.ndarray:
        """(K, K) S of transitions."""
        return self.rho_transition @ self.filter

    @property
    def emission_statistics(self) -> np.ndarray:
        """(K, W) S of words."""
        return self.rho_emission @ self.filter

    def _maximize_moves(self) -> None:
        counts = self.transition_statistics
        first_initial, first_transition = self.first
        if self.transition_prior is not None:
            counts = counts + self.transition_prior(self.num_steps) * first_initial[:, None] * first_transition
        visits = counts.sum(1, keepdims=True)
        self.transition = np.where(visits > 0, counts / np.where(visits > 0, visits, 1), self.transition)
        if self.initial_prior is not None:
            starts = self.rho_initial @ self.filter + self.initial_prior(self.num_steps) * first_initial
            self.initial = starts / starts.sum() if starts.sum() > 0 else self.initial

    def _maximize_emission(self) -> None:
        counts = self.emission_statistics[self.num_sources :]
        num_words = counts.shape[1]
        smoothing = self.smoothing(self.num_steps)
        total = counts.sum(1, keepdims=True) + smoothing
        smoothed = (counts + smoothing / num_words) / np.where(total > 0, total, 1)
        self.emission = np.where(total > 0, smoothed, 1 / num_words)


def averaged(history: list, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weighted mean over steps of the statistics in a stream's history."""
    share = np.asarray(weights) / np.sum(weights)
    means: Any = (sum(w * step[part] for w, step in zip(share, history, strict=True)) for part in (0, 1))
    transition, emission = means
    return transition, emission


@dataclass
class DenseGaussianStream:
    """The same for vectors: rho of (1, y, y y') instead of words; maximised without a variance floor.

    Args:
        loc: (K_p, D). covariances: (K_p, D, D). The rest as for :class:`DenseStream`.
    """

    initial: np.ndarray
    transition: np.ndarray
    loc: np.ndarray
    covariances: np.ndarray
    step_sizes: Any
    warm_up: int | None = 20
    num_steps: int = 0

    def __post_init__(self):
        num_states, size = len(self.initial), self.loc.shape[1]
        self.num_sources = num_states - len(self.loc)
        self.filter = np.array(self.initial)
        self.rho_transition = np.zeros((num_states, num_states, num_states))
        self.rho_moments = np.zeros((num_states, 1 + size + size * size, num_states))

    def step(self, y: np.ndarray, source_densities=()) -> float:
        """One vector, with f^k(y) of every source; returns p(y | past)."""
        self.num_steps += 1
        g = self.step_sizes(self.num_steps)
        first = self.num_steps == 1
        prior = self.initial if first else self.filter @ self.transition
        own = []
        for loc, covariance in zip(self.loc, self.covariances, strict=True):
            error = y - loc
            own.append(
                np.exp(-0.5 * error @ np.linalg.solve(covariance, error))
                / np.sqrt(np.linalg.det(2 * np.pi * covariance))
            )
        likelihood = np.concatenate([np.asarray(source_densities, float), own])
        predictive = float(prior @ likelihood)
        back = np.repeat(self.filter[:, None], len(prior), 1)
        if not first:
            back = self.filter[:, None] * self.transition / prior
        identity = np.eye(len(prior))
        self.rho_transition = (1 - g) * self.rho_transition @ back
        if not first:
            self.rho_transition += g * np.einsum("jk,ij->ijk", identity, back)
        moments = np.concatenate([[1.0], y, np.outer(y, y).ravel()])
        self.rho_moments = (1 - g) * self.rho_moments @ back + g * np.einsum("ik,m->imk", identity, moments)
        self.filter = prior * likelihood / predictive
        if self.warm_up is not None and self.num_steps >= self.warm_up:
            counts = self.rho_transition @ self.filter
            self.transition = counts / counts.sum(1, keepdims=True)
            mean = (self.rho_moments @ self.filter)[self.num_sources :]
            mean = mean / mean[:, :1]
            size = len(y)
            self.loc = mean[:, 1 : 1 + size]
            second = mean[:, 1 + size :].reshape(-1, size, size)
            self.covariances = second - self.loc[:, :, None] * self.loc[:, None, :]
        return predictive
