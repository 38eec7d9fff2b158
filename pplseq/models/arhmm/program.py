"""The autoregressive HMM: states that are vector autoregressions, of which a Markov chain chooses one at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import pyro
import torch
from torch import Tensor

from pplseq.distributions.state import Belief
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.mixtures import PathMixture, Quantiles, intervals_of, step_of
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.infer.frames import forecast_frame, frame_html
from pplseq.infer.programs.markov import markov
from pplseq.models.arhmm.fit import m_step, regression_statistics, start
from pplseq.models.arhmm.parameters import ARHMMParameters
from pplseq.models.base import Given, Sizes, one_chain
from pplseq.models.lds.arguments import inputs_ahead, one_to_come, to_come
from pplseq.models.regressed import RegressedSteps


class VectorForecast(NamedTuple):
    """What comes after the vectors: p(x_{T+k} | x_1..x_T), k = 1..K, a mixture over paths of states, by its moments.

    means: (B, K, D). covariances: (B, K, D, D). states: (B, K, Z) probabilities. quantiles: what :meth:`intervals` asks.
    column_names: of a frame's columns. times: of each row the times of the steps, of frames that say how theirs go on.
    """

    means: Tensor
    covariances: Tensor
    states: Tensor
    quantiles: Quantiles | None = None
    column_names: tuple[str, ...] | None = None
    times: tuple[Any, ...] | None = None
    sequences: tuple[str, tuple[Any, ...]] | None = None

    def intervals(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends (B, K, D) of intervals that hold each number with this probability: exact quantiles of the
        mixture over paths of states.

        Raises:
            ValueError: for more steps than paths can be gone through; for a level outside of (0, 1).
        """
        return intervals_of(self.quantiles, level)

    _repr_html_ = frame_html

    def frame(self, row: int | None = None, level: float = 0.95) -> Any:
        """The forecast of K steps as a frame of pandas: of each column the mean, and the ends of its interval beside it.

        Args:
            row: one sequence; None for all, with a first column that says which where they are several. level: of intervals.

        Raises:
            ValueError: for a single step (of ``predict_next``): ask forecast.
        """
        return forecast_frame(self.means, lambda: self.intervals(level), row, self.column_names, self.times, self.sequences)


class ARHMM(RegressedSteps, ARHMMParameters):
    """States z_t move as a Markov chain, and vectors follow the autoregression of their state, exactly:

        x_t ~ N(constants[z_t] + sum_l lags[z_t, l] x_{t-l} + inputs[z_t] u_t, covariances[z_t])

    The first ``order`` vectors of a row are given, and explained by nothing; with ``order=0`` vectors may be missing (NaN). EM
    is in closed form: a weighted regression for each state. For single numbers with coefficients that states share, or
    Hamilton's deviations from switching means, there is :class:`~pplseq.models.switching.program.SwitchingRegression`.

    Args:
        num_states: Z. num_features: D. order: p, or 0 for regressions on inputs alone. num_inputs: U, of exogenous regressors.
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
        self, num_states: int, num_features: int, *, order: int = 1, num_inputs: int = 0, dtype: str = "float64"
    ):
        super().__init__(num_states, num_features, order, num_inputs, dtype)

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

    def seen_before(self, given: Given, inputs: Tensor | None) -> Lags:
        return Lags(self, given, inputs)

    def _check_start(self, start, num_rows: int) -> None:
        super()._check_start(start, num_rows)
        if start is not None and self.order:
            raise ValueError("start: a row that goes on needs the vectors before it; give the whole row")

    def _state_axes(self) -> Mapping[str, Sequence[int]]:
        return {"initial_logits": (0,), "transition_logits": (0, 1), "weights": (0,), "scale": (0,)}

    # ---------------------------------------------------------------- what EM asks for (see pplseq.infer.fit.em)
    def initialize(self, batch: Batch, how: str = "") -> None:
        """Regressions of stretches of the data that are dealt out to the states at random."""
        start(self, batch)

    def expected_statistics(self, chain: Chain, batch: Batch) -> Statistics:
        counts = chain.expected_counts()
        found = regression_statistics(self, counts.marginals.probs, batch)
        return found | {"initial": counts.start.double(), "transition": counts.transition.double()}

    def maximize(self, statistics: Statistics) -> list[str]:
        return m_step(self, statistics)

    # ---------------------------------------------------------------- what comes next
    def predict_next(self, x, lengths=None, *, inputs=None, next_inputs=None) -> VectorForecast:  # pyright: ignore
        """:meth:`forecast` of one step; next_inputs: (B, U), or (U,) for all rows."""
        return step_of(self.forecast(x, 1, lengths, inputs=inputs, future_inputs=one_to_come(self, next_inputs)), 0)

    @torch.no_grad()
    def forecast(self, x, num_steps: int | None = None, lengths=None, *, inputs=None, future_inputs=None) -> VectorForecast:  # pyright: ignore
        """Means and covariances of the next K = num_steps vectors, exactly: moments of the lags travel with every state.

        Args:
            x, lengths, inputs: the past. future_inputs: (B, K, U), or (K, U) for all rows; num_steps may then be left out.

        Source: O. L. V. Costa, M. D. Fragoso and R. P. Marques (2005), Discrete-time Markov jump linear systems, section 3.2.
        Cost: Z (p D)^3 a step and row.
        """
        ahead, num_steps = inputs_ahead(self, x, num_steps, future_inputs, lengths)
        batch, chain = self._posterior(x, lengths, inputs=inputs)
        rows, order, size = len(batch.x), self.order, self.num_features
        future = to_come(ahead, rows, num_steps, self.num_inputs, self.reference)
        ends = torch.full((rows,), batch.x.shape[1]) if batch.lengths is None else batch.lengths.cpu()
        if bool((ends < order).any()):
            raise ValueError(f"x: a forecast goes on from the last {order} vectors; the shortest row has {int(ends.min())}")
        steps = (ends.unsqueeze(-1) - 1 - torch.arange(order)).to(batch.x.device)
        recent = batch.x[torch.arange(rows, device=batch.x.device).unsqueeze(-1), steps]  # (B, p, D), the last one first
        about = recent[:, 0] if order else self.centre.expand(rows, -1)  # moments about it do not cancel
        vector = torch.cat([recent.new_ones(rows, 1), (recent - about.unsqueeze(1)).flatten(1)], -1)
        states = chain.filtered().log_probs.exp().reshape(rows, -1)
        second = states[..., None, None] * (vector.unsqueeze(-1) * vector.unsqueeze(-2)).unsqueeze(1)
        matrix, last = torch.softmax(self.transition_logits, -1), 1 + order * size
        lags = self.weights[..., 1:last]
        keep = torch.eye(last).to(vector)
        summed = lags.reshape(*lags.shape[:2], order, size).sum(-2)
        level = self.weights[..., 0] + self.centre + (summed @ (about - self.centre)[:, None, :, None]).squeeze(-1)
        found, moves, now_states = [], [], states
        for step in range(num_steps):
            states, second = states @ matrix, torch.einsum("ij,biuv->bjuv", matrix, second)
            constant = level - about.unsqueeze(1)
            if future is not None:
                constant = constant + (self.weights[..., last:] @ future[:, step, None, :, None]).squeeze(-1)
            now = torch.cat([constant.unsqueeze(-1), lags.expand(rows, -1, -1, -1)], -1)
            fixed = [part.expand(rows, self.num_states, -1, -1) for part in (keep[:1], keep[1 : last - size])]
            move = torch.cat([fixed[0], now, fixed[1]], -2)
            moves.append(move)
            second = move @ second @ move.mT
            second[..., 1 : 1 + size, 1 : 1 + size] += states[..., None, None] * self.covariances
            mean = second[..., 0, 1 : 1 + size].sum(1)
            spread = second[..., 1 : 1 + size, 1 : 1 + size].sum(1) - mean.unsqueeze(-1) * mean.unsqueeze(-2)
            found.append((mean + about, spread, states))
            second = second[..., :last, :last]
        paths = PathMixture(now_states, matrix, vector, moves, self.covariances, about)
        means, covariances, states = (torch.stack(parts, 1) for parts in zip(*found, strict=True))
        return self._labelled(VectorForecast(means, covariances, states, paths), x, lengths, num_steps, ahead=future_inputs)


class Lags:
    """What a step is regressed on, of vectors that are there or are being drawn."""

    def __init__(self, model: ARHMM, given: Given, inputs: Tensor | None):
        self.model, self.inputs, self.values = model, inputs, None
        self.drawn: list[Tensor] = []
        self.last: Tensor | None = None  # the vector that was drawn last
        rows, steps = given.shape
        self.first = model.centre.expand(rows, model.order, -1)
        if not (given.generates and model.order):
            past = model.centre.expand(rows, steps, -1) if given.x is None else model.observed(given.x)[0]
            self.values = model.regressors(torch.cat([self.first, past], 1), inputs)

    def __call__(self, t) -> Tensor:
        """(B, K) of step t."""
        if self.values is not None:
            return self.values[:, t]
        if self.last is not None:
            self.drawn.append(self.last)
        past = torch.stack([*self.first.unbind(1), *self.drawn, self.first[:, 0]], 1)  # the last one is not read
        inputs = None if self.inputs is None else self.inputs[:, : t + 1]
        return self.model.regressors(past, inputs)[:, t]
