"""Numbers with regressions of which regimes share parts: regimes, their histories, and what each history expects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.infer.fit.em import Batch
from pplseq.infer.fit.held import Ends, Slot
from pplseq.models.parts.durations import moves_of
from pplseq.models.parts.moves import persistent
from pplseq.models.regressions.fit import FLOOR
from pplseq.models.regressions.start import num_drawn, race, regressions_of_segments
from pplseq.models.regressions.steps import RegressedSteps

PARTS = ("mean", "inputs", "lags", "variance")
MAX_HISTORIES = 4096


class NumberRegressions(RegressedSteps):
    """What a switching regression learns; see the class that has the program.

    Parameters are those of (x - centre) / unit and inputs / input_units, which a fit takes from its data: so a fit, EM's sums
    and second derivatives do not depend on the units that the data come in. ``estimates`` and the queries are in those.
    """

    steps_are = "numbers"
    regime_of: Tensor
    lags_weights: nn.Parameter
    unit: Tensor
    log_scale: nn.Parameter
    histories: Tensor
    centre: Tensor
    input_units: Tensor
    inputs_weights: nn.Parameter
    raw_mean: nn.Parameter

    def __init__(
        self, num_regimes: int, order: int, num_inputs: int, lags_of: str, switching: Sequence[str] | str, initial: str,
        durations: Mapping[str, Any], state_names: Sequence[str] | None, dtype: str,
    ):  # fmt: skip
        super().__init__()
        self.lags_of = checks.choice("lags_of", lags_of, ("values", "deviations"))
        checks.choice("initial", initial, ("stationary", "learned"))
        real, told = self._take_sizes("num_regimes", num_regimes, order, num_inputs, durations, dtype)
        parts = [switching] if isinstance(switching, str) else list(switching)
        self.switching = tuple(checks.choice("switching", part, PARTS) for part in parts)
        depth = 1 + (self.order if lags_of == "deviations" else 0)
        if self.num_regimes**depth > MAX_HISTORIES:
            raise ValueError(
                f"order: deviations from the mean of each lag's own regime need {self.num_regimes}^{depth} states, more than "
                f"{MAX_HISTORIES}; use a smaller order, or lags_of='values'"
            )
        if told and depth > 1:
            raise ValueError("duration: deviations from the mean of each lag's own regime have none; use lags_of='values'")
        self.moves = moves_of(self.num_regimes, told, initial, real)
        histories = self.moves.regime_of.unsqueeze(-1)
        if depth > 1:
            histories = torch.tensor(list(itertools.product(range(self.num_regimes), repeat=depth)))
        self.register_buffer("histories", histories, persistent=False)  # (N, depth): the regime of the step, and those before
        self.register_buffer("regime_of", histories[:, 0].clone(), persistent=False)
        self.num_states = len(histories)
        self.num_features, self.input_lags = 1, depth - 1
        rows = {part: self.num_regimes if part in self.switching else 1 for part in PARTS}
        shapes = {"mean": (), "inputs": (self.num_inputs,), "lags": (self.order,), "variance": ()}
        for part, shape in shapes.items():
            name = "log_scale" if part == "variance" else f"{part}_weights" if shape else f"raw_{part}"
            if shape != (0,):
                setattr(self, name, nn.Parameter(0.1 * torch.randn(rows[part], *shape, dtype=real)))
        for name, value in {"centre": 0.0, "unit": 1.0}.items():
            self.register_buffer(name, torch.tensor(value, dtype=real))
        self.register_buffer("input_units", torch.ones(self.num_inputs, dtype=real))
        # what one mean of all regimes stands for would depend on the regime, were it that of centred numbers
        self.can_centre = lags_of == "deviations" or not self.order or rows["mean"] == self.num_regimes or rows["lags"] == 1
        self._config |= {"lags_of": lags_of, "switching": switching if isinstance(switching, list) else list(self.switching)}
        self._config |= {"initial": initial}
        self._name_states(state_names)
        self.drawn()

    # ---------------------------------------------------------------- values
    @property
    def transition(self) -> Tensor:
        """(R, R) p(regime | regime before), [from, to]; with durations, p(next regime | regime that ends)."""
        return self.moves.values()["transition"].detach()

    @property
    def mean(self) -> Tensor:
        """(R,) or (1,) means, or constants where lags are of values."""
        raw = self.unit * self.raw_mean
        if not self.can_centre:
            return raw
        if self.order and self.lags_of == "values":
            return raw + self.centre * (1 - self.lags_weights.sum(-1))
        return raw + self.centre

    def estimates(self) -> dict[str, Tensor]:
        """Parameters by name, differentiable; (R, ...) where they switch, (1, ...) where not."""
        moves = self.moves.values()
        initial = {name: moves.pop(name) for name in ("initial",) if name in moves}
        slots: dict[str, Any] = self._slots
        found = {name: slots[name].value_of(slots[name].raw) for name in PARTS[1:] if name in slots}
        return moves | {"mean": self.mean} | found | initial

    @torch.no_grad()
    def set_parameters(
        self, *, transition=None, initial=None, duration=None, mean=None, inputs=None, lags=None, variance=None
    ):
        """Sets parameters, of the shapes that ``estimates`` has; returns the model."""
        given = dict(
            transition=transition, initial=initial, duration=duration, mean=mean, inputs=inputs, lags=lags, variance=variance
        )
        values = self._values_given(given)
        if not bool((values["variance"] > 0).all()):
            raise ValueError(f"variance must be positive, got {checks.shown(values['variance'].tolist())}")
        self._write(values)
        return self

    def _write(self, values: dict[str, Tensor]) -> None:
        """Sets what has a unit, given in the units of the data."""
        slots: dict[str, Any] = self._slots
        for name in PARTS[1:]:
            if name in slots:
                slots[name].raw.copy_(slots[name].raw_of(values[name]))
        self.raw_mean.zero_()
        self.raw_mean.copy_((values["mean"] - self.mean) / self.unit)

    @property
    def _slots(self) -> dict[str, Slot]:
        found = {"mean": Slot(self.raw_mean)}
        if not (self.order and self.lags_of == "values" and self.can_centre):  # else a constant depends on lags
            centre = self.centre if self.can_centre else 0.0
            found["mean"] = Slot(
                self.raw_mean, raw_of=lambda mean: (mean - centre) / self.unit, value_of=lambda raw: self.unit * raw + centre
            )
        if self.num_inputs:
            found["inputs"] = Slot(
                self.inputs_weights, raw_of=lambda inputs: inputs * self.input_units / self.unit,
                value_of=lambda raw: raw * self.unit / self.input_units,
            )  # fmt: skip
        if self.order:
            found["lags"] = Slot(self.lags_weights, raw_of=Tensor.clone, value_of=Tensor.clone)
        found["variance"] = Slot(
            self.log_scale, raw_of=lambda variance: variance.log() / 2 - self.unit.log(), support=(0.0, math.inf),
            value_of=lambda raw: (self.unit * raw.exp()).square(),
        )  # fmt: skip
        found = {name: slot._replace(clips=False, of_states=name in self.switching) for name, slot in found.items()}
        return found | self.moves.slots

    _entry_axes: ClassVar[dict[str, Sequence[str]]] = {"mean": (), "inputs": ("inputs",), "lags": ("",), "variance": ()}

    # ---------------------------------------------------------------- data
    @torch.no_grad()
    def _check_data(self, batch: Batch) -> None:
        """Refuses data that do not vary, and goes over to their units: the parameters stay what they are."""
        x, seen = self._explained(batch)
        target = x[..., 0][seen].double()
        spread = target.std(correction=0) if len(target) else target.new_zeros(())
        if len(target) > 1 and not spread > 1e-12 * target.abs().max():
            raise ValueError("x must vary to fit the model, but every number is the same")
        values = {name: value.detach().clone() for name, value in self.estimates().items()}
        before = [value.clone() for value in (self.unit, self.centre, self.input_units)]
        if spread > 0:
            self.unit.copy_(spread)
            self.centre.copy_(target.mean() if self.can_centre else target.new_zeros(()))
        if batch.inputs is not None:
            size = batch.inputs[seen].square().mean(0).sqrt()
            self.input_units.copy_(size.where(size > 0, 1.0))
        if not all(map(torch.equal, before, (self.unit, self.centre, self.input_units))):
            self._write(values)  # else they would be what they are but for rounding

    @torch.no_grad()
    def _take_units(self, batch: Batch, warm: bool, holds: Mapping[str, Any]) -> None:
        """Of constants that are held, numbers as they are: those of centred ones depend on lags, which a fit moves."""
        held = "mean" in holds or not self.raw_mean.requires_grad
        if held and self.order and self.lags_of == "values" and self.can_centre:
            values = {name: value.detach().clone() for name, value in self.estimates().items()}
            self.centre.zero_()
            self._write(values)

    def _ends(self, batches: Sequence[Batch]) -> Ends:
        """The smallest logarithm of a scale, in the units of the data; see :func:`~pplseq.infer.fit.gradients.ends_of`."""
        low = torch.full_like(self.log_scale, math.log(FLOOR) / 2)
        return {"log_scale": (low, low.new_tensor(math.inf))}

    def in_units(self, x: Tensor, inputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Numbers and inputs as the parameters see them."""
        return (x - self.centre) / self.unit, None if inputs is None else inputs / self.input_units

    def level(self) -> Tensor:
        level, lags = self.mean.detach().mean(), self.lags_weights.detach().sum(-1).mean() if self.order else 0.0
        return (level if self.lags_of == "deviations" else level / (1 - min(float(lags), 0.95))).reshape(1)

    # ---------------------------------------------------------------- distributions
    @property
    def origin(self) -> Tensor:
        return self.centre.new_zeros(1)

    def coefficients(self) -> tuple[Tensor, Tensor]:
        weights, scale = self.by_history()
        return weights.unsqueeze(1), scale.reshape(-1, 1, 1)

    def by_history(self, *, raw: bool = False) -> tuple[Tensor, Tensor]:
        """Weights (N, K) of the regressors under each history of regimes, and the scale (N,) of what they leave.

        Args:
            raw: of numbers ``in_units``.
        """
        now, regimes = self.histories[:, 0], self.num_regimes
        mean, scale = (self.raw_mean if raw else self.mean).expand(regimes), self.log_scale.exp().expand(regimes)[now]
        scale = scale if raw else scale * self.unit
        lags = self.lags_weights.expand(regimes, -1)[now] if self.order else mean.new_zeros(self.num_states, 0)
        inputs = None
        if self.num_inputs:
            inputs = (self.inputs_weights if raw else self.estimates()["inputs"]).expand(regimes, -1)
        constant, parts = mean[now], [lags]
        if inputs is not None:
            parts.append(inputs[now])
        if self.lags_of == "deviations":
            for lag in range(self.order):
                then = self.histories[:, lag + 1]
                constant = constant - lags[:, lag] * mean[then]
                if inputs is not None:
                    parts.append(-lags[:, lag, None] * inputs[then])
        return torch.cat([constant.unsqueeze(-1), *parts], -1), scale

    def places(self) -> Tensor:
        """(R, K) where each regime's coefficient of the K regressors stands in one vector of all that are learned; those that
        regimes share stand in one place. Of lags of values."""
        columns, total = [], 0
        for table, count in self._tables():
            for _ in range(count):
                columns.append(total + torch.arange(len(table), device=table.device).expand(self.num_regimes))
                total += len(table)
        return torch.stack(columns, -1)

    @torch.no_grad()
    def put(self, weights: Tensor, scale: Tensor) -> None:
        """Sets coefficients (R, K), and scales (R,), of numbers ``in_units``; of lags of values."""
        first = 0
        for table, count in self._tables():
            table.copy_(weights[: len(table), first : first + count].reshape(table.shape))
            first += count
        self.log_scale.copy_(scale[: len(self.log_scale)].log())

    def _tables(self) -> list[tuple[nn.Parameter, int]]:
        """Tables of coefficients in the order of regressors, and how many regressors each is about."""
        tables = [(self.raw_mean, 1)]
        tables += [(self.lags_weights, self.order)] if self.order else []
        return tables + ([(self.inputs_weights, self.num_inputs)] if self.num_inputs else [])

    def chain_moves(self) -> tuple[Tensor, Tensor]:
        (first, matrix), past = super().chain_moves(), self.histories
        depth = past.shape[1]
        if depth == 1:
            return first, matrix
        # no number is explained by regimes before the first step: they are taken to be its own, so that paths are of regimes
        initial = first[past[:, 0]].masked_fill((past != past[:, :1]).any(-1), -torch.inf)
        follows = (past[:, None, :-1] == past[None, :, 1:]).all(-1)
        return initial, matrix[past[:, 0]][:, past[:, 0]].masked_fill(~follows, -torch.inf)

    # ---------------------------------------------------------------- a start
    @torch.no_grad()
    def initialize(self, batch: Batch, how: str = "residuals") -> None:
        """Regimes that last, and of "residuals" a regression of all the data, whose residuals are split among regimes; of
        "segments" regressions of segments of the data, see :mod:`~pplseq.models.regressions.start`. Where lags are of values,
        the best of a few such starts after some EM; regimes that are known of some steps start from these."""
        x, seen = self._explained(batch)
        x, inputs = self.in_units(x[..., 0], batch.inputs)
        past = torch.cat([x.new_zeros(len(x), self.order), x], 1)
        rows = self.regressors(past.unsqueeze(-1), inputs)[..., : 1 + self.order + self.num_inputs]
        given, target = rows[seen], x[seen]
        if len(target) <= rows.shape[-1]:
            raise ValueError(f"x: {rows.shape[-1]} coefficients need more than {len(target)} numbers")
        labels = None if batch.states is None else batch.states[seen]
        drawn = []
        for _ in range(num_drawn(seen) if self.lags_of == "values" and labels is None else 1):
            if labels is None and how != "segments":
                self._split_residuals(given, target)
            else:
                self._split_segments(given, target, labels)
            moves = persistent(self.num_regimes, 0.5, x.dtype).to(x)
            self.moves.initialize(moves)
            if self.lags_of == "values":
                each = len(self.histories) // self.num_regimes  # states of a regime, which have its coefficients
                drawn.append((*(part[::each] for part in self.by_history(raw=True)), torch.log_softmax(moves, -1)))
        if len(drawn) > 1:
            lengths = torch.full((len(x),), x.shape[1]).to(seen.device) if batch.lengths is None else batch.lengths
            found = race(drawn, rows, x, seen, lengths, self.places(), shared=len(self.log_scale) == 1)
            self.put(*found[:2])
            self.moves.initialize(found[2])

    def _split_residuals(self, rows: Tensor, target: Tensor) -> None:
        scale = rows.square().mean(0).sqrt().clamp_min(1e-12)
        ridge = 1e-8 * len(rows) * torch.eye(rows.shape[1]).to(rows)
        gram = (rows / scale).T @ (rows / scale) + ridge
        weights = torch.linalg.solve(gram, (rows / scale).T @ target) / scale
        spread = (target - rows @ weights).std().clamp_min(1e-6 * target.abs().mean() + 1e-12)
        level, lags, inputs = weights[0], weights[1 : 1 + self.order], weights[1 + self.order :]
        if self.lags_of == "deviations":
            level = level / (1 - lags.sum()) if abs(float(1 - lags.sum())) > 0.05 else target.mean()
        self.raw_mean.copy_(level + spread * torch.randn(self.raw_mean.shape).to(target))
        if self.order:
            self.lags_weights.copy_(lags + 0.2 * torch.randn(self.lags_weights.shape).to(target) * (len(self.lags_weights) > 1))
        if self.num_inputs:
            noise = spread / scale[1 + self.order :] * torch.randn(self.inputs_weights.shape).to(target)
            self.inputs_weights.copy_(inputs + 0.5 * noise * (len(self.inputs_weights) > 1))
        noise = torch.randn(self.log_scale.shape).to(target) * (len(self.log_scale) > 1)
        self.log_scale.copy_(spread.log() - 0.3 + 0.5 * noise)

    def _split_segments(self, rows: Tensor, target: Tensor, labels: Tensor | None) -> None:
        each, whole, squares = regressions_of_segments(rows, target, self.num_regimes, labels)
        levels, lags, weights = each[:, 0], each[:, 1 : 1 + self.order], each[:, 1 + self.order :]
        if self.lags_of == "deviations":  # the level that a constant and lags tend to
            left = 1 - (lags if len(self.lags_weights) > 1 else whole[1 : 1 + self.order].expand_as(lags)).sum(-1)
            levels = torch.where(left.abs() > 0.05, levels / left, target.mean())
        for name, value in {"raw_mean": levels, "lags_weights": lags, "inputs_weights": weights}.items():
            if hasattr(self, name):
                parameter = getattr(self, name)
                parameter.copy_(value if len(parameter) > 1 else value.mean(0, keepdim=True))
        least = 1e-6 * target.abs().mean() + 1e-12
        spread = squares if len(self.log_scale) > 1 else squares.mean(0, keepdim=True)
        self.log_scale.copy_(spread.sqrt().clamp_min(least).log())

    def _parameter_units(self) -> dict[str, Tensor]:
        """How much a logit of a move may vary: the rarer the move, the more, as counts of it tell less."""
        return {f"moves.{name}": unit for name, unit in self.moves.units().items()}
