"""Queries of models whose chain has several states for one regime: its history, or how long it still lasts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.discrete.results import StateMarginals
from pplseq.models.batch import as_given
from pplseq.models.estimator import Estimator, Sample
from pplseq.models.parts.protocols import Moves
from pplseq.models.state_labels import named


class RegimeQueries(Estimator):
    """Answers about R regimes instead of the N states of the chain.

    Attributes:
        num_regimes: R. regime_of: (N,) the regime of each state. moves: of the chain.
    """

    num_regimes: int
    regime_of: Tensor
    moves: Moves

    @property
    def durations(self) -> Tensor:
        """How long regimes last: (R, M) p(D = 1..M) of "explicit" and "poisson" durations; (R,) means of others."""
        return self.moves.durations

    @property
    def _num_observable_states(self) -> int:
        return self.num_regimes

    def regimes(self, probs: Tensor) -> Tensor:
        """(..., R) probabilities of (..., N) those of states."""
        if checks.numbers("probs", probs).shape[-1:] != self.regime_of.shape or not torch.is_floating_point(probs):
            raise ValueError(f"probs must be floating-point and end in N = {len(self.regime_of)}, got {checks.shown(probs)}")
        return probs.new_zeros(*probs.shape[:-1], self.num_regimes).index_add_(-1, self.regime_of, probs)

    def _of_regimes(self, states: StateMarginals, x) -> StateMarginals:
        return states._replace(ids=None, probs=as_given(self.regimes(states.probs), x))

    def filter(self, x, lengths=None, **known) -> StateMarginals:
        """p(regime_t | x_1..x_t) at each step, (B, T, R)."""
        return self._of_regimes(self._posterior(x, lengths, **known)[1].filtered_states(), self._results_like(x, **known))

    def smooth(self, x, lengths=None, **known) -> StateMarginals:
        """p(regime_t | x_1..x_T) at each step, (B, T, R)."""
        return self._of_regimes(self._posterior(x, lengths, **known)[1].marginals(), self._results_like(x, **known))

    def decode(self, x, lengths=None, **known):
        """The regimes of the most probable path of states, (B, T), -1 at padded steps."""
        path = self._posterior(x, lengths, **known)[1].viterbi()[0]
        return named(as_given(self._regime(path), self._results_like(x, **known)), self.state_names)

    def _best_paths(self, x, n: int, lengths, known) -> tuple[Any, Tensor]:
        paths, log_probs = super()._best_paths(x, n, lengths, known)
        return [self._regime(path) for path in paths] if isinstance(paths, list) else self._regime(paths), log_probs

    def _regime(self, path: Tensor) -> Tensor:
        return torch.where(path < 0, path, self.regime_of[path])

    def sample_states(self, x, num_samples: int = 1, lengths=None, *, seed: int | None = None, **known) -> Tensor:
        """(S, B, T) paths of regimes drawn from their exact posterior, -1 at padded steps."""
        return self._regime(super().sample_states(x, num_samples, lengths, seed=seed, **known))

    def sample(self, num_steps: int | None = None, num_sequences: int = 1, *, seed: int | None = None, **known) -> Sample:
        """Sequences drawn from the model, with their regimes; see :meth:`~pplseq.models.estimator.Estimator.sample`."""
        drawn: Sample = super().sample(num_steps, num_sequences, seed=seed, **known)  # pyright: ignore[reportArgumentType]
        return drawn._replace(states=self._regime(drawn.states))
