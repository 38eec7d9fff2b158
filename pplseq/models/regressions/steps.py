"""States whose steps are regressed on inputs and on the steps before: data, the two specs, draws and forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.conditional import ConditionalEmission
from pplseq.distributions.dense import DenseTransition, GaussianEmission
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.mixtures import PathMixture
from pplseq.infer.fit.em import Batch
from pplseq.infer.forecasts import Forecast
from pplseq.models.base import Given
from pplseq.models.hmm.tables import DTYPES
from pplseq.models.lds.arguments import check_inputs, inputs_ahead, inputs_to_draw, one_to_come, to_come, with_inputs
from pplseq.models.online.reader import Filter
from pplseq.models.online.regressions import Regressions
from pplseq.models.parts.durations import moves_config
from pplseq.models.regimes import RegimeQueries


class RegressedSteps(RegimeQueries):
    """The first ``order`` observations x (B, T, D) of a row are given, and explained by nothing.

    Subclasses give ``coefficients``, ``origin``, ``level`` and ``steps_are``, what messages call the observations.
    """

    num_features: int  # pyright: ignore[reportIncompatibleVariableOverride]
    num_words = None
    steps_are: str
    input_lags = 0  # of how many steps before inputs are regressors as well
    _config: dict[str, Any]

    def _take_sizes(
        self, name: str, num_regimes: int, order: int, num_inputs: int, durations: Mapping[str, Any], dtype: str
    ) -> tuple[torch.dtype, dict[str, Any]]:
        """What the constructors have in common: the type of numbers, and of durations what :func:`moves_config` says. name: of
        the number of regimes in this one."""
        self.num_regimes = checks.count(name, num_regimes)
        self.order, self.num_inputs = checks.count("order", order, 0), checks.count("num_inputs", num_inputs, 0)
        told, real = moves_config(**durations), DTYPES[checks.choice("dtype", dtype, DTYPES)]
        self._config = {name: self.num_regimes, "order": self.order, "num_inputs": self.num_inputs} | told
        return real, told

    # ---------------------------------------------------------------- the two conditional distributions
    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Weights (N, D, K) of the regressors in each state of the chain, and (N, D, D) factors of the covariances they
        leave."""
        raise NotImplementedError

    @property
    def origin(self) -> Tensor:
        """(D,) what observations are counted from where they are regressed."""
        raise NotImplementedError

    def level(self) -> Tensor:
        """(D,) what stands for the observations before the first one where they are drawn."""
        raise NotImplementedError

    def regressors(self, past: Tensor, inputs: Tensor | None) -> Tensor:
        """(B, T, 1 + p D + U [+ p U]): one, the p observations before each step, its inputs, those of the p steps before.

        Args:
            past: (B, p + T, D) the observations, from p steps before the first. inputs: (B, T, U) or None.
        """
        order, steps, past = self.order, past.shape[1] - self.order, past - self.origin
        parts = [past.new_ones(len(past), steps, 1)]
        parts += [past[:, order - lag : order - lag + steps] for lag in range(1, order + 1)]
        if inputs is not None:
            before = torch.cat([inputs[:, :1].expand(-1, self.input_lags, -1), inputs], 1)
            parts += [before[:, self.input_lags - lag :][:, :steps] for lag in range(self.input_lags + 1)]
        return torch.cat(parts, -1)

    def chain_moves(self) -> tuple[Tensor, Tensor]:
        """log p (N,) of the first state of the chain and (N, N) of the next, [from, to]."""
        return self.moves.initial_logits, torch.log_softmax(self.moves.transition_logits, -1)

    def specs(self) -> tuple[DenseTransition, ConditionalEmission]:
        """Transition of states, and emission given regressors (B, K)."""
        (weights, factor), origin = self.coefficients(), self.origin
        flat, size = weights.flatten(0, 1).mT, self.num_features

        def build(regressors: Tensor) -> GaussianEmission:
            loc = (regressors @ flat).unflatten(-1, (-1, size)) + origin
            if size == 1:
                return GaussianEmission(loc, scale=factor[..., 0].expand(loc.shape))
            return GaussianEmission(loc, scale_tril=factor.expand(*loc.shape, size))

        of = self.regime_of if self.num_states > self.num_regimes else None
        emission = ConditionalEmission(build, self.num_states, event_shape=(size,))
        return DenseTransition(*self.chain_moves(), of), emission

    def _regressions_ahead(self, about: Tensor, before: Tensor | None, num_steps: int) -> tuple[list[Tensor], Tensor]:
        """Of each step to come (B, N, D, 1 + p D) what is expected of x - about, of 1 and the p vectors x - about before; and
        (N, D, D) covariances of what is left. before: (B, p + K, U) inputs of the last p steps and of those to come."""
        (weights, factor), order, origin = self.coefficients(), self.order, self.origin
        own = self.num_features * order
        constants, lags, inputs = weights.split([1, own, weights.shape[-1] - 1 - own], -1)
        summed = lags.unflatten(-1, (order, -1)).sum(-2) if order else lags.new_zeros(*lags.shape[:-1], self.num_features)
        level = constants.squeeze(-1) + origin + (summed @ (about - origin)[:, None, :, None]).squeeze(-1)
        found = []
        for step in range(num_steps):
            constant = level - about.unsqueeze(1)
            if before is not None:
                known = torch.cat([before[:, order + step - lag] for lag in range(self.input_lags + 1)], -1)
                constant = constant + (inputs @ known[:, None, :, None]).squeeze(-1)
            found.append(torch.cat([constant.unsqueeze(-1), lags.expand(len(about), -1, -1, -1)], -1))
        return found, factor @ factor.mT

    @property
    def config(self) -> dict[str, Any]:
        return self._config | {"dtype": next(name for name, value in DTYPES.items() if value == self.reference.dtype)}

    def _values_given(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """All parameters but those of moves by name, those that are given, not None, in the place of their own; moves are set.

        Raises:
            ValueError: for other names and shapes, what is not finite, and rows that are no probabilities.
        """
        given = {name: value for name, value in given.items() if value is not None}
        known, of_moves = self.estimates(), self.moves.values()
        for name in given:
            if name not in known:
                raise ValueError(f"{name}: this model has none.{checks.nearest(name, known)}")
        self.moves.set_values(**{name: value for name, value in given.items() if name in of_moves})
        values = {name: value.detach().clone() for name, value in known.items() if name not in of_moves}
        for name, value in given.items():
            if name in of_moves:
                continue
            value = checks.shape(name, checks.numbers(name, value).double().to(self.reference), values[name].shape)
            values[name] = checks.finite(name, value)
        return values

    _entry_axes: ClassVar[dict[str, Sequence[str]]] = {}  # of each parameter what its axes behind that of states are of

    def _entry_name(self, name: str, place: Sequence[int], shape: Sequence[int]) -> str:
        of = ("states", "states") if name in ("initial", "transition") else ("states", *self._entry_axes.get(name, ()))
        names = {"states": self.state_names, "columns": self.column_names, "inputs": self.input_column_names}
        told: list[Any] = []
        for kind, k, size in zip(of, place, shape, strict=False):
            known = names.get(kind)
            told.append(k if known is None or len(known) != size else known[k])  # what is shared has one number
        return name + "".join(f"[{each}]" for each in told)

    # ---------------------------------------------------------------- data
    def _as_batch(self, x, lengths=None, *, states=None, inputs=None) -> Batch:
        """x, its lengths, known states and inputs as tensors; see the class of all estimators."""
        batch = super()._as_batch(x, lengths, states=states)
        if inputs is not None:
            inputs = self._inputs_in_form(inputs, lengths, size=self.num_inputs, beside=x)
            x, _ = self._in_form(x, lengths)
        return with_inputs(batch, inputs, x, self.num_inputs)

    def _check_observations(self, x: Tensor) -> None:
        size, what = self.num_features, self.steps_are
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() != 3 or x.shape[-1] != size:
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"x must be a floating-point tensor (B, T, {size}), got {got}")
        if bool(x.isinf().any()):
            raise ValueError("x must be finite (NaN marks what is missing), got infinite values")
        if self.order and x.shape[1] <= self.order:
            raise ValueError(
                f"x: the first {self.order} {what} are given, not explained; rows must be longer, got {x.shape[1]}"
            )
        missing = x.isnan()
        if self.order and bool(missing.any()):
            raise ValueError(
                "x: a number is missing (NaN), and those after it are regressed on it; fill it, split the row there, or use LDS"
            )
        if bool((missing.any(-1) != missing.all(-1)).any()):
            raise ValueError("x: a vector is missing in part; ARHMM takes whole vectors or none, HMM and LDS take parts")

    def _check_start(self, start, num_rows: int) -> None:
        super()._check_start(start, num_rows)
        if start is not None and self.order:
            raise ValueError(f"start: a row that goes on needs the {self.steps_are} before it; give the whole row")

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x without gaps, and which steps are explained: those that have all their lags."""
        seen = ~x.isnan().any(-1)
        seen[:, : self.order] = False
        return x.to(self.reference.dtype).nan_to_num(0.0), seen

    def _explained(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """:meth:`observed`, without the steps behind the ends of rows."""
        x, seen = self.observed(batch.x)
        seen = seen & batch.valid
        return x, seen

    # ---------------------------------------------------------------- the chain without the program
    def _told(self, x, lengths, start, inputs, known) -> tuple[Given, SeenBefore, tuple[Any, Any]]:
        """What the program was called with, what its steps are regressed on, and the two specs."""
        given = self.given(x, lengths, start, **known)
        see = SeenBefore(self, given, check_inputs(inputs, given.shape, self.num_inputs, lengths))
        return given, see, self.specs()

    def _direct_chain(self, x, lengths=None, start=None, *, inputs=None, **known) -> Chain | None:
        if not self._is_one_chain:
            return None
        given, see, specs = self._told(x, lengths, start, inputs, known)
        return given.chain(*specs, start, emission_inputs=see.values)  # pyright: ignore[reportCallIssue]

    def _direct_draw(self, *, start=None, inputs=None, **known) -> tuple[Tensor, Tensor] | None:
        if not self._is_one_chain:
            return None
        given, see, (transition, emission) = self._told(None, None, start, inputs, known)

        def emit(z, t, x):
            see.last = x
            return emission(z, inputs=see(t))

        return given.draw(lambda z, t, x: transition(z), emit, start)

    def _inputs_to_draw(self, inputs: Any, num_sequences: int, num_steps: int | None) -> tuple[Any, Any]:
        return inputs_to_draw(self, inputs, num_sequences, num_steps)

    # ---------------------------------------------------------------- what comes next
    def predict_next(self, x, lengths=None, *, inputs=None, next_inputs=None) -> Forecast:  # pyright: ignore
        """:meth:`forecast` of one step; next_inputs: (B, U), or (U,) for all rows."""
        return self.forecast(x, 1, lengths, inputs=inputs, future_inputs=one_to_come(self, next_inputs)).step(0)

    @torch.no_grad()
    def forecast(self, x, num_steps: int | None = None, lengths=None, *, inputs=None, future_inputs=None) -> Forecast:  # pyright: ignore
        """Means and covariances of the next K = num_steps steps, exactly: moments of the lags travel with every state.

        Args:
            x, lengths, inputs: the past. future_inputs: (B, K, U), or (K, U) for all rows; num_steps may then be left out.

        Source: O. L. V. Costa, M. D. Fragoso and R. P. Marques (2005), Discrete-time Markov jump linear systems, section 3.2.
        Cost: Z (1 + p D)^3 a step and row.
        """
        ahead, num_steps = inputs_ahead(self, x, num_steps, future_inputs, lengths)
        batch, chain = self._posterior(x, lengths, inputs=inputs)
        rows, order, device = len(batch.x), self.order, batch.x.device
        future = to_come(ahead, rows, num_steps, self.num_inputs, self.reference)
        ends = torch.full((rows,), batch.x.shape[1], device=device) if batch.lengths is None else batch.lengths.to(device)
        if bool((ends < max(order, 1)).any()):
            raise ValueError(
                f"x: a forecast goes on from the last {max(order, 1)} {self.steps_are}; the shortest row has {int(ends.min())}"
            )
        each, back = torch.arange(rows, device=device).unsqueeze(-1), torch.arange(order, device=device)
        steps = ends.unsqueeze(-1) - 1 - back
        recent = self.observed(batch.x)[0][each, steps]  # (B, p, D), the last one first
        before = None
        if future is not None and batch.inputs is not None:
            before = torch.cat([batch.inputs[each, steps.flip(-1)], future], 1)
        now = chain.filtered().log_probs.exp().reshape(rows, -1)
        return self._labelled(self.steps_ahead(now, recent, before, num_steps), x, lengths, num_steps, ahead=future_inputs)

    def steps_ahead(self, now: Tensor, recent: Tensor, before: Tensor | None, num_steps: int) -> Forecast:
        """The K steps behind states (B, N) distributed as given; recent: (B, p, D) the observations before, the last one first.
        before: (B, p + K, U) inputs of the last p steps and of those to come."""
        rows, order, size = len(recent), self.order, self.num_features
        about = recent[:, 0] if order else self.level().expand(rows, -1)  # moments about it do not cancel
        vector = torch.cat([recent.new_ones(rows, 1), (recent - about.unsqueeze(1)).flatten(1)], -1)
        expected, noise = self._regressions_ahead(about, before, num_steps)
        transition: DenseTransition = self.specs()[0]
        matrix, last = transition.matrix.exp(), 1 + order * size
        states = now
        second = states[..., None, None] * (vector.unsqueeze(-1) * vector.unsqueeze(-2)).unsqueeze(1)
        one, kept = torch.eye(last).to(vector)[:1], torch.eye(last).to(vector)[1 : last - size]  # the oldest is dropped
        moves, found = [], []
        for row in expected:
            move = torch.cat([part.expand(*row.shape[:2], -1, -1) for part in (one, row, kept)], -2)
            moves.append(move)
            states, second = states @ matrix, torch.einsum("ij,biuv->bjuv", matrix, second)
            second = move @ second @ move.mT
            second[..., 1 : 1 + size, 1 : 1 + size] += states[..., None, None] * noise
            mean = second[..., 0, 1 : 1 + size].sum(1)
            spread = second[..., 1 : 1 + size, 1 : 1 + size].sum(1) - mean.unsqueeze(-1) * mean.unsqueeze(-2)
            found.append((self.regimes(states).log(), mean + about, spread))
            second = second[..., :last, :last]
        log_probs, means, covariances = (torch.stack(parts, 1) for parts in zip(*found, strict=True))
        return Forecast(log_probs, None, means, covariances, PathMixture(now, matrix, vector, moves, noise, about))

    def _reader(self) -> Filter:
        return Regressions(self) if self._is_one_chain else super()._reader()


class SeenBefore:
    """What a step is regressed on, of observations that are there or are being drawn.

    ``values``: (B, T, K) of all steps, or None where they are yet to be drawn; ``last``: then the one that was drawn last.
    """

    def __init__(self, model: RegressedSteps, given: Given, inputs: Tensor | None):
        self.model, self.inputs, self.values = model, inputs, None
        self.drawn: list[Tensor] = []
        self.last: Tensor | None = None
        (rows, steps), level = given.shape, model.level().detach()
        self.first = level.expand(rows, model.order, -1)
        if not (given.generates and model.order):
            past = level.expand(rows, steps, -1) if given.x is None else model.observed(given.x)[0]
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
