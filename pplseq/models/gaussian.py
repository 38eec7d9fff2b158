"""The verbs of models with Gaussian states: moments where those of discrete states give probabilities."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.infer.gaussian.results import GaussianStates, StateMoments
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.models.batch import as_given
from pplseq.models.estimator import Estimator


class GaussianEstimator(Estimator):
    """An :class:`~pplseq.models.estimator.Estimator` whose states are vectors of size h = ``num_states``."""

    messenger = KalmanCollapse

    def _check_start(self, start: GaussianBelief | None, num_rows: int) -> None:
        checks.gaussian_start(start, num_rows, self.num_states)

    def posterior(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, lengths=None, start: GaussianBelief | None = None, **known
    ) -> GaussianChain:
        belief: Any = start
        chain: Any = super().posterior(x, lengths, belief, **known)
        return chain

    def filter(self, x, lengths=None, **known) -> StateMoments:  # pyright: ignore[reportIncompatibleMethodOverride]
        """p(z_t | x_1..x_t) at each step: means (B, T, h) and covariances (B, T, h, h), 0 at padded steps."""
        return self._moments(self._posterior(x, lengths, **known)[1].filtered_states(), self._results_like(x, **known))

    def smooth(self, x, lengths=None, **known) -> StateMoments:  # pyright: ignore[reportIncompatibleMethodOverride]
        """p(z_t | x_1..x_T) at each step; see :meth:`filter`."""
        return self._moments(self._posterior(x, lengths, **known)[1].smoothed_states(), self._results_like(x, **known))

    def decode(self, x, lengths=None, **known):
        """The most probable path of each sequence, which is that of the smoothed means: (B, T, h), or a list of (T_i, h)."""
        return as_given(self._posterior(x, lengths, **known)[1].smoothed_states().means, self._results_like(x, **known))

    def n_best(self, x, n: int, lengths=None, **known) -> Any:
        raise ValueError(
            "n_best: states are real numbers, of which there is no second-best path; ask decode for the most probable one and "
            "sample_states for others"
        )

    def sample_states(self, x, num_samples: int = 1, lengths=None, *, seed: int | None = None, **known) -> Tensor:
        """(S, B, T, h) paths of states drawn from their exact posterior, 0 at padded steps; lists are padded."""
        chain: GaussianChain = self._posterior(x, lengths, **known)[1]
        return chain.sample(checks.count("num_samples", num_samples), seed=seed)

    @staticmethod
    def _moments(states: GaussianStates, x) -> StateMoments:
        return StateMoments(as_given(states.means, x), as_given(states.covariances.dense(), x))
