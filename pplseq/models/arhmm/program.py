"""The autoregressive HMM: states that are vector autoregressions, of which a Markov chain chooses one at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import pyro
from torch import Tensor

from pplseq.distributions.state import Belief
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.infer.programs.markov import markov
from pplseq.models.arhmm.fit import m_step, regression_statistics, start
from pplseq.models.arhmm.parameters import ARHMMParameters
from pplseq.models.base import Sizes, one_chain
from pplseq.models.regimes import RegimeQueries


class ARHMM(RegimeQueries, ARHMMParameters):
    """States z_t move as a Markov chain, and vectors follow the autoregression of their state, exactly:

        x_t ~ N(constants[z_t] + sum_l lags[z_t, l] x_{t-l} + inputs[z_t] u_t, covariances[z_t])

    The first ``order`` vectors of a row are given, and explained by nothing; with ``order=0`` vectors may be missing (NaN). EM
    is in closed form: a weighted regression for each state. For single numbers with coefficients that states share, or
    Hamilton's deviations from switching means, there is :class:`~pplseq.models.switching.program.SwitchingRegression`.

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
    _of_states = RegimeQueries.regimes  # pyright: ignore[reportAssignmentType]

    def __init__(
        self, num_states: int, num_features: int, *, order: int = 1, num_inputs: int = 0, duration: str | None = None,
        max_duration: int | None = None, num_phases: int | None = None, state_names: Sequence[str] | None = None,
        dtype: str = "float64",
    ):  # fmt: skip
        durations = dict(duration=duration, max_duration=max_duration, num_phases=num_phases)
        super().__init__(num_states, num_features, order, num_inputs, durations, state_names, dtype)

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
            x: (B, T, D) vectors, of which the first ``order`` are given; None to generate, from the mean of the data fitted.
            lengths: (B,) valid steps, or None for all.
            start: the belief that the previous segment ended with; without lags only.
            inputs: (B, T, U).
            states: (B, T) known states, negative where unknown.
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

    def _state_axes(self) -> Mapping[str, Sequence[int]]:
        moves = {f"moves.{name}": axes for name, axes in self.moves.state_axes().items()}
        return moves | {"weights": (0,), "scale": (0,)}

    # ---------------------------------------------------------------- what EM asks for (see pplseq.infer.fit.em)
    def initialize(self, batch: Batch, how: str = "") -> None:
        """Regressions of stretches of the data that are dealt out to the states at random."""
        start(self, batch)

    def expected_statistics(self, chain: Chain, batch: Batch) -> Statistics:
        counts = chain.expected_counts()
        found = regression_statistics(self, self.regimes(counts.marginals.probs), batch)
        return found | {"initial": counts.start.double(), "transition": counts.transition.double()}

    def maximize(self, statistics: Statistics) -> list[str]:
        return m_step(self, statistics)
