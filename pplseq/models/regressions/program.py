"""Hidden Markov models whose states are regressions on inputs and on the steps before: of vectors, and of numbers of which
regimes share coefficients."""

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
from pplseq.models.regressions import vectors
from pplseq.models.regressions.fit import m_step, moments_of
from pplseq.models.regressions.numbers import NumberRegressions
from pplseq.models.regressions.steps import RegressedSteps
from pplseq.models.regressions.vectors import VectorRegressions


class RegressedRegimes(RegressedSteps):
    """The program: regimes move as a Markov chain, and each step is the regression of its regime."""

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
            x: (B, T, D) observations (D = 1 of a switching regression), of which the first ``order`` are given; None to
                generate, from about the mean of the data fitted.
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


class ARHMM(RegressedRegimes, VectorRegressions):
    """States z_t move as a Markov chain, and vectors follow the autoregression of their state, exactly:

        x_t ~ N(constants[z_t] + sum_l lags[z_t, l] x_{t-l} + inputs[z_t] u_t, covariances[z_t])

    The first ``order`` vectors of a row are given, and explained by nothing; with ``order=0`` vectors may be missing (NaN). EM
    is in closed form: a weighted regression for each state. For single numbers with coefficients that states share, or
    Hamilton's deviations from switching means, there is :class:`~pplseq.models.regressions.program.SwitchingRegression`.

    Args:
        num_states: Z. num_features: D. order: p, or 0 for regressions on inputs alone. num_inputs: U, of exogenous regressors.
        duration, max_duration, num_phases: how long a state lasts, as of
            :class:`~pplseq.models.hmm.durations.SemiMarkovHMM`; None: as a Markov chain has it.
        state_names: what the states are called, as of :class:`~pplseq.models.hmm.program.HMM`.
        dtype: "float64" or "float32".

    Raises:
        ValueError: for sizes that do not fit.

    Example::

        model = ARHMM(3, 2, order=2).fit(paths, num_restarts=4, seed=0)
        print(model.estimates()["lags"])

    Cost: Z D (D + p D + U) a step beside the chain's Z^2.

    Source: H.-M. Krolzig (1997), Markov-switching vector autoregressions, chapters 5 and 6.
    """

    name = "arhmm"
    methods = ("em", "lbfgs", "sgd")

    def __init__(
        self, num_states: int, num_features: int, *, order: int = 1, num_inputs: int = 0, duration: str | None = None,
        max_duration: int | None = None, num_phases: int | None = None, state_names: Sequence[str] | None = None,
        dtype: str = "float64",
    ):  # fmt: skip
        durations = dict(duration=duration, max_duration=max_duration, num_phases=num_phases)
        super().__init__(num_states, num_features, order, num_inputs, durations, state_names, dtype)

    def _state_axes(self) -> Mapping[str, Sequence[int]]:
        moves = {f"moves.{name}": axes for name, axes in self.moves.state_axes().items()}
        return moves | {"weights": (0,), "scale": (0,)}

    # ---------------------------------------------------------------- what EM asks for (see pplseq.infer.fit.em)
    def initialize(self, batch: Batch, how: str = "") -> None:
        """Regressions of stretches of the data that are dealt out to the states at random."""
        vectors.start(self, batch)

    def expected_statistics(self, chain: Chain, batch: Batch) -> Statistics:
        counts = chain.expected_counts()
        found = vectors.regression_statistics(self, self.regimes(counts.marginals.probs), batch)
        return found | {"initial": counts.start.double(), "transition": counts.transition.double()}

    def maximize(self, statistics: Statistics) -> list[str]:
        return vectors.m_step(self, statistics)


class SwitchingRegression(RegressedRegimes, NumberRegressions):
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
    _turns = ("residuals",) * 4 + ("segments",) * 4  # for regimes that are short, and for those that last
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
