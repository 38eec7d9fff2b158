"""Markov-switching regression: a number a step, regressed on inputs and on the numbers before, with coefficients of regimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self, Unpack

import pyro
from torch import Tensor

from pplseq.distributions.state import Belief
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.infer.programs.markov import markov
from pplseq.models.base import Sizes, one_chain
from pplseq.models.regimes import RegimeQueries
from pplseq.models.switching.fit import m_step, moments_of
from pplseq.models.switching.parameters import SwitchingParameters


class SwitchingRegression(RegimeQueries, SwitchingParameters):
    """Regimes s_t move as a Markov chain, and numbers follow the regression of their regime.

        lags_of="values":      x_t ~ N(mean[s_t] + inputs[s_t] u_t + sum_i lags[s_t, i] x_{t-i}, variance[s_t])
        lags_of="deviations":  x_t - m_t ~ N(sum_i lags[s_t, i] (x_{t-i} - m_{t-i}), variance[s_t]),
                               m_t = mean[s_t] + inputs[s_t] u_t

    The second is Hamilton's: the mean that a lag deviates from is that of the lag's own regime, so the states of the chain are
    histories of order + 1 regimes, and everything about them stays exact. The first ``order`` numbers of a row are given.
    Queries speak of regimes. ``summary(x)`` has standard errors.

    Args:
        num_regimes: R. order: p, of the autoregression. num_inputs: U, of exogenous regressors.
        lags_of: see above.
        switching: which of "mean", "inputs", "lags" and "variance" differ between regimes; the others are shared.
        initial: "stationary" (as statsmodels) or "learned".
        duration, max_duration, num_phases: how long regimes last, as of
            :class:`~pplseq.models.hmm.durations.SemiMarkovHMM`; None: as a Markov chain has it. With lags of values.
        state_names: what the regimes are called, as of :class:`~pplseq.models.hmm.program.HMM`.
        dtype: "float64" or "float32".

    Raises:
        ValueError: for options that do not fit together.

    Example::

        hamilton = SwitchingRegression(2, order=4, lags_of="deviations", switching="mean").fit(growth, num_restarts=8, seed=0)
        print(hamilton.summary(growth))

    Source: J. D. Hamilton (1989), A new approach to the economic analysis of nonstationary time series, Econometrica 57(2),
    section 4; C.-J. Kim and C. R. Nelson (1999), State-space models with regime switching, chapter 4.
    """

    name = "switching_regression"
    methods = ("lbfgs", "em", "sgd")
    starts = ("residuals", "segments")
    turns = ("residuals",) * 4 + ("segments",) * 4  # for regimes that are short, and for those that last
    _of_states = RegimeQueries.regimes  # pyright: ignore[reportAssignmentType]
    _finalists = 2  # after 20 or 30 iterations of EM the better start is not yet known

    def __init__(
        self,
        num_regimes: int,
        *,
        order: int = 0,
        num_inputs: int = 0,
        lags_of: str = "values",
        switching: Sequence[str] | str = ("mean", "inputs", "lags", "variance"),
        initial: str = "stationary",
        duration: str | None = None,
        max_duration: int | None = None,
        num_phases: int | None = None,
        state_names: Sequence[str] | None = None,
        dtype: str = "float64",
    ):
        durations = dict(duration=duration, max_duration=max_duration, num_phases=num_phases)
        super().__init__(num_regimes, order, num_inputs, lags_of, switching, initial, durations, state_names, dtype)

    @one_chain
    def model(
        self,
        x: Tensor | None = None,
        lengths: Tensor | None = None,
        start: Belief | None = None,
        inputs: Tensor | None = None,
        *,
        states: Tensor | None = None,
        **sizes: Unpack[Sizes],
    ):
        """The generative program.

        Args:
            x: (B, T, 1) numbers, of which the first ``order`` are given; None to generate.
            lengths: (B,) valid steps, or None for all.
            start: the belief that the previous segment ended with; without lags only.
            inputs: (B, T, U).
            states: (B, T) known regimes, negative where unknown.
            **sizes: how much to generate, or what a mini-batch stands for: :class:`~pplseq.models.base.Sizes`.
        """
        given, see, (transition, emission) = self._told(x, lengths, start, inputs, {"states": states, **sizes})
        z = start
        with given.plate:
            for t in markov(given.steps, vectorize=not (given.generates and self.order)):
                with given.valid(t):
                    z = pyro.sample(f"z_{t}", transition(z), obs=given.state(t))
                    with given.seen(t):
                        see.last = pyro.sample(f"x_{t}", emission(z, inputs=see(t)), obs=given.value(t))
        return x

    def fit(self, x, lengths=None, *, method: str | None = None, **options) -> Self:
        """See :meth:`~pplseq.models.estimator.Estimator.fit`; "lbfgs", the default, makes up to 1,000 steps."""
        if method in (None, "lbfgs"):
            options.setdefault("num_steps", 1000)
        return super().fit(x, lengths, method=method, **options)

    def _state_axes(self) -> Mapping[str, Sequence[int]]:
        parts = {"mean": "raw_mean", "inputs": "inputs_weights", "lags": "lags_weights", "variance": "log_scale"}
        own: dict[str, Sequence[int]] = {parts[part]: (0,) for part in self.switching}
        return own | {f"moves.{name}": axes for name, axes in self.moves.state_axes().items()}

    # ---------------------------------------------------------------- what EM asks for (see pplseq.infer.fit.em)
    def expected_statistics(self, chain: Chain, batch: Batch) -> Statistics:
        x, seen = self.observed(batch.x)
        return moments_of(self, chain.expected_counts(), x[..., 0], seen, batch)

    def maximize(self, statistics: Statistics) -> list[str]:
        return m_step(self, statistics)
