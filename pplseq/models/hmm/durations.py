"""Hidden semi-Markov models: regimes that last as long as a distribution of durations says, as chains of more states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pplseq import checks
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.infer.fit.held import Slot
from pplseq.infer.forecasts import Forecast
from pplseq.models.hmm.program import HMM
from pplseq.models.parts.durations import DurationMoves, duration_size, moves_config
from pplseq.models.regimes import RegimeQueries


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
        regimes = checks.count("num_states", num_states, 2)
        size = duration_size(duration, max_duration, num_phases)
        for option in ("priors", "graph", "start_states", "ties", "transition"):
            if options.get(option) is not None:
                raise ValueError(f"{option}: a semi-Markov model has none; use HMM, or leave it out")
        # the parameters are made by the constructors above
        vars(self)["_sizes"], vars(self)["num_regimes"] = (regimes, *size.values(), duration), regimes
        regime_of = torch.arange(regimes).repeat_interleave(*size.values())
        super().__init__(len(regime_of), num_words, ties=regime_of.tolist(), **options)
        self._config = {"num_states": regimes} | {n: v for n, v in self._config.items() if n not in ("num_states", "ties")}
        self._config |= moves_config(duration, max_duration, num_phases)

    def _make_tables(self, num_states: int, dtype: torch.dtype) -> None:
        regimes, size, duration = self._sizes
        self.moves = DurationMoves(regimes, duration, size, dtype)

    # ---------------------------------------------------------------- values
    @property
    def regime_of(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(N,) the regime of each state of the chain."""
        return self.moves.regime_of

    @property
    def initial_logits(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(N,) log p of the first state."""
        return self.moves.initial_logits

    @property
    def transition_logits(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(N, N) log p of the next state, [from, to]."""
        return self.moves.transition_logits

    def estimates(self) -> dict[str, Tensor]:
        return self.moves.values() | self.emissions.values()

    @property
    def _own_values(self) -> list[str]:
        return [*self.moves.values()]

    @torch.no_grad()
    def set_parameters(self, *, initial=None, transition=None, duration=None, **parameters):
        """Sets p(first regime) (R,), p(next regime) (R, R) with a diagonal of zeros, duration (R, M), of "poisson" ones the
        rate (R,), or of others the probability (R,) of staying in a phase, and emissions; returns the model."""
        self.moves.set_values(initial=initial, transition=transition, duration=duration)
        return super().set_parameters(**parameters)

    @property
    def _slots(self) -> dict[str, Slot]:
        return self.moves.slots | self.emissions.slots

    def _state_axes(self) -> Mapping[str, Sequence[int]]:
        return {f"moves.{name}": axes for name, axes in self.moves.state_axes().items()} | self._emission_axes()

    def _observations_of(self, states: Tensor, emission, known: Tensor | None = None) -> Forecast:
        found = super()._observations_of(states, emission, known)
        return found._replace(state_log_probs=self.regimes(states.exp()).log())

    # ---------------------------------------------------------------- fit
    @torch.no_grad()
    def initialize(self, batch: Batch, how: str = "") -> None:
        """Emissions around what the data hold, nearly even moves and durations."""
        cast(DurationMoves, self.moves).initialize()
        self._initialize_emissions(batch, how)

    @torch.no_grad()
    def maximize(self, statistics: Statistics) -> list[str]:
        self.moves.maximize(statistics["initial"], statistics["transition"])
        return self.emissions.maximize(statistics, None)
