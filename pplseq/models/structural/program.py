"""The structural time series model: the program of a linear dynamical system, its matrices known but for a few numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.infer.fit.em import ROUNDING, Batch
from pplseq.infer.fit.gradients import maximize_by_lbfgs
from pplseq.infer.fit.held import Entries, Slot
from pplseq.infer.forecasts import Forecast
from pplseq.infer.gaussian.results import StateMoments
from pplseq.models.batch import as_given
from pplseq.models.estimator import Estimator, Sample
from pplseq.models.fitted import HeldParameters, ends
from pplseq.models.hmm.tables import DTYPES
from pplseq.models.lds.parameters import Parameters, RegressionPrior
from pplseq.models.lds.program import LDS
from pplseq.models.lds.times import gaps_ahead, gaps_of, labels_of, times_of, without_index
from pplseq.models.online.reader import Filter
from pplseq.models.online.timed import TimedChains
from pplseq.models.structural.components import components_of, partial_weights, stationary_weights
from pplseq.threads import filtering

STARTS = ("wide", "diffuse")
NEAR = 0.01  # nats between a variance that ended near 0 and one of 0
FIRST_STEPS = 15
MATRICES = 12  # (h, h), that a step leaves in memory for gradients
FEWER = "make it of waves, few harmonics=... of each season"
STARTS_OF_FITS = ("likely", "still", "shaken", "turning", "random")
# deviations of shocks and noise, of the spread of a step, where fits start: the likelihood may have several maxima
STEPS = {
    "still": {"level": 0.3, "slope": 0.03, "seasonal": 0.1, "cycle": 0.3, "ar": 0.3, "arma": 0.3, "noise": 0.5},
    "shaken": {"level": 1.0, "slope": 0.3, "seasonal": 0.3, "cycle": 0.3, "ar": 0.3, "arma": 0.3, "noise": 0.05},
    "turning": {"level": 0.03, "slope": 1.0, "seasonal": 0.03, "cycle": 1.0, "ar": 1.0, "arma": 1.0, "noise": 0.05},
}
DECAYS = {"cycle": ("raw_damping", "damping"), "ar": ("raw_ar", "ar_weights")}  # on which the share of a variance depends
_NEGATIVE = "a negative weight of ar has no continuous form"
WIDE = 1e6  # variance of the first state, of the mean square of the data


class StructuralModel(LDS):
    """``x_t = level_t [+ seasonal_t] [+ cycle_t] [+ ar_t] [+ inputs u_t] + noise``: components that move on their own, by exact
    Kalman filtering.

        level_t = level_{t-1} [+ slope_{t-1}] + N(0, level variance)      slope_t = slope_{t-1} + N(0, slope variance)
        seasonal_t = -(seasonal_{t-1} + ... + seasonal_{t-s+1}) + N(0, seasonal variance), or waves that turn, each shaken
        cycle_t: a wave that turns by a frequency that is learned, and dies away by ``damping`` a step
        ar_t = ar_1 ar_{t-1} + ... + ar_p ar_{t-p} + N(0, ar variance), or with a moving average of its shocks

    It has all verbs of :class:`~pplseq.models.lds.program.LDS`: ``forecast``, ``smooth``, ``reconstruct``; missing values are
    NaN. Every verb takes ``times=``, numbers or dates (in days) of the steps in the form of x, or "index": the processes in
    continuous time, variances being those of a unit of time (see :mod:`pplseq.models.structural.components`); ``forecast`` then
    takes ``future_times``. A model that was fitted with times is asked with times. What is fitted does not depend on their
    unit; slopes among the states of ``smooth`` and ``filter`` are those over ``time_unit``, the median time between the steps
    of the fit (those of ``components`` over a unit of time). With ``level="fixed", trend="stochastic"`` this is motion of
    constant velocity that is pushed at random, with ``ar=1`` an Ornstein-Uhlenbeck process.

    Args:
        level: "stochastic", or "fixed" for a level (or trend) without shocks of its own; "none" where there is none.
        trend: None, "stochastic" (with ``level="fixed"``: a smooth trend) or "fixed": a slope that never changes.
        seasonal: s, the steps of a season, a list of several, or None. One alone has a state for each step but one, which takes
            12 (T, s, s) numbers: of hundreds of steps give few ``harmonics``.
        harmonics: make seasons of waves, so many of each (a number, or a list): of a year of days, 3 to 10. None: of a list all
            there are. Then steps of a season need not be whole, as 365.25.
        cycle: whether there is one. ar: p, the order of an autoregression, or 0. Both start where they tend to. ma: q, of its
            moving average, or 0: an invertible ARMA(p, q) of the variance "arma". With ``level="none"``,
            ``num_inputs=1``, inputs of ones and no noise (``set_parameters(noise=0).fit(..., fixed=["noise"])``) it is the
            ARIMA(p, 0, q) with a constant of statsmodels.
        num_inputs: U, of regressors.
        initial: "wide": the first state has a variance a million times the mean square of the first data fitted, whose cost, in
            every score, grows with the states: scores of models with different components do not compare, `aic` and `bic`
            do, which are those of a diffuse start. Or
            "diffuse": nothing is known of it, exactly; scores are then those of statsmodels' ``use_exact_diffuse=True``, every
            row must determine its state (h numbers that are not missing will), and there is nothing to generate from but a
            given ``start``.
        dtype: "float64" or "float32".

    Raises:
        ValueError: for options that do not fit together.

    Example::

        model = StructuralModel(trend="stochastic", seasonal=12, level="fixed").fit(sales)
        print(model.summary(sales))
        plot.components(model.components(sales))

    Source: A. C. Harvey (1989), Forecasting, structural time series models and the Kalman filter, chapter 4.
    """

    matrix: Tensor
    places: Tensor
    emission_inputs: Tensor
    time_unit: Tensor
    width: Tensor
    loadings: Tensor
    name = "structural"
    methods = ("lbfgs", "sgd")  # sums over states lose the small variances that EM would find
    starts = _turns = STARTS_OF_FITS

    def __init__(
        self, *, level: str = "stochastic", trend: str | None = None, seasonal: float | Sequence[float] | None = None,
        harmonics: int | Sequence[int] | None = None, cycle: bool = False, ar: int = 0, ma: int = 0, num_inputs: int = 0,
        initial: str = "wide", dtype: str = "float64",
    ):  # fmt: skip
        Estimator.__init__(self)
        checks.choice("level", level, ("stochastic", "fixed", "none"))
        if trend is not None:
            checks.choice("trend", trend, ("stochastic", "fixed"))
        if level == "none" and (trend is not None or not (seasonal or cycle or ar or ma)):
            raise ValueError("level: a trend has one, and without one there must be a season, a cycle, ar= or ma=; got 'none'")
        seasons, waves = _seasons(seasonal, harmonics)
        real = DTYPES[checks.choice("dtype", dtype, DTYPES)]
        size = sum(map(int, seasons)) if waves is None else 2 * sum(waves)
        size += max(checks.count("ar", ar, 0), checks.count("ma", ma, 0) + bool(ma))
        checks.fits("seasonal", 8.0 * size**2, FEWER)
        self.parts = components_of(trend, level, seasons, waves, bool(cycle), ar, ma)
        self.num_features, self.num_inputs = 1, checks.count("num_inputs", num_inputs, 0)
        self.initial = "diffuse" if checks.choice("initial", initial, STARTS) == "diffuse" else "learned"
        self._config: dict[str, Any] = dict(
            level=level, trend=trend, seasonal=seasonal, harmonics=harmonics, cycle=bool(cycle), ar=ar, ma=ma,
            num_inputs=self.num_inputs, initial=initial,
        )
        self.num_states = sum(len(part.emission) for part in self.parts)
        self.register_buffer("loadings", torch.cat([part.emission for part in self.parts]).to(real)[None], persistent=False)
        shocks = [shock for part in self.parts for shock in part.shocks]
        self.variances = tuple(dict.fromkeys(filter(None, shocks)))
        place = torch.tensor([[float(shock == name) for shock in shocks] for name in self.variances], dtype=real)
        self.register_buffer("places", place.reshape(len(self.variances), self.num_states), persistent=False)
        names = self.variances
        self.register_buffer("width", torch.ones((), dtype=real))
        self.register_buffer("time_unit", torch.zeros((), dtype=real))  # what parameters are over; 0 of equal steps
        self.log_scales = nn.Parameter(torch.full((len(names),), -1.0, dtype=real))
        self.log_noise = nn.Parameter(torch.zeros(1, dtype=real))
        if cycle:
            self.raw_frequency = nn.Parameter(torch.full((1,), -1.0, dtype=real))
            self.raw_damping = nn.Parameter(torch.full((1,), 2.0, dtype=real))
        if ar:
            self.raw_ar = nn.Parameter(torch.zeros(ar, dtype=real))
        if ma:
            self.raw_ma = nn.Parameter(torch.zeros(ma, dtype=real))
        weights = nn.Parameter(torch.zeros(1, num_inputs, dtype=real)) if num_inputs else None
        self.register_parameter("emission_inputs", weights)
        self.state_prior = self.emission_prior = RegressionPrior()
        self.drawn()

    @property
    def config(self) -> dict[str, Any]:
        return self._config | {"dtype": next(name for name, value in DTYPES.items() if value == self.reference.dtype)}

    # ---------------------------------------------------------------- what a linear dynamical system is made of
    transition_offset = transition_inputs = emission_offset = None

    @property
    def _unit(self) -> float:
        return float(self.time_unit) or 1.0

    @property
    def learned(self) -> dict[str, Tensor]:
        """What moves take beside variances: "frequency" of a cycle, radians a step or unit of time, its "damping", "ar" (p,)
        and "ma" (q,)."""
        found, unit = self._learned, self._unit
        if unit == 1:
            return found
        over = {"frequency": lambda value: value / unit, "damping": lambda value: value ** (1 / unit)}
        return {name: over.get(name, lambda value: value ** (1 / unit))(value) for name, value in found.items()}

    @property
    def _learned(self) -> dict[str, Tensor]:
        """:attr:`learned` over a step, or over ``time_unit``, as all parameters are held."""
        found = {}
        if self._config["cycle"]:
            found |= {"frequency": math.pi * self.raw_frequency[0].sigmoid(), "damping": self.raw_damping[0].sigmoid()}
        if self._config["ar"]:
            weights = stationary_weights(self.raw_ar.tanh())
            found["ar"] = weights.abs() if self.time_unit > 0 else weights  # over any time only a positive one is a process
        return found | ({"ma": -stationary_weights(self.raw_ma.tanh())} if self._config["ma"] else {})

    @property
    def transition(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        if any(part.learned for part in self.parts):
            learned = self._learned
            return torch.block_diag(*(part.move(learned, self.loadings) for part in self.parts))
        if "matrix" not in self._buffers:  # known; made when it is asked for, by who may have found the model in a folder
            with torch.inference_mode(False):
                matrix = torch.block_diag(*(part.move({}, self.loadings) for part in self.parts))
                self.register_buffer("matrix", matrix, persistent=False)
        return self.matrix

    def _moves_over(self, gaps: Tensor) -> tuple[Tensor, Tensor]:
        learned, variances = self._learned, self._variances
        found = [part.over(gaps / self._unit, learned, self._unit) for part in self.parts]
        size, first = self.num_states, 0
        moves, noises = (gaps.new_zeros(*gaps.shape, size, size) for _ in range(2))
        for move, spreads in found:
            some = slice(first, first + move.shape[-1])
            moves[..., some, some] = move
            for name, spread in spreads.items():
                if name in variances:
                    noises[..., some, some] = noises[..., some, some] + variances[name] * spread
            first = some.stop
        return moves, noises

    @property
    def _is_wide(self) -> bool:
        return True

    @property
    def _variances(self) -> dict[str, Tensor]:
        return dict(zip(self.variances, (2 * self.log_scales).exp(), strict=True))

    def _shares(self) -> dict[str, Any]:
        """Of each variance what a unit of time has of that over ``time_unit``."""
        found: dict[str, Any] = dict.fromkeys(self.variances, 1.0)
        if (unit := self._unit) == 1:
            return found
        time = torch.full_like(self.width, 1 / unit)
        for part in self.parts:
            spreads = part.over(time, self._learned, unit)[1]
            for place, name in enumerate(part.shocks):
                if name:
                    found[name] = spreads[name][..., place, place].reshape(()) / unit ** (2 * part.per_time[place])
        return found

    @property
    def emission(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        if not self._config["ma"]:
            return self.loadings
        learned = self._learned
        return torch.cat([part.seen(learned, self.loadings) for part in self.parts])[None]

    @property
    def state_noise(self) -> Tensor:
        """(h, h) covariance of a move; singular, as most states have no shocks."""
        return torch.diag((2 * self.log_scales).exp() @ self.places)

    @property
    def _emission_noise(self) -> Tensor:
        return (2 * self.log_noise).exp()

    @property
    def _initial_belief(self) -> GaussianBelief:
        wide = torch.full_like(self.width, torch.inf) if self.initial == "diffuse" else self.width
        learned, variances = self._learned, self._variances
        spreads = [part.first(learned, variances) for part in self.parts]
        blocks = [
            torch.diag(wide.expand(len(part.emission))) if spread is None else spread
            for part, spread in zip(self.parts, spreads, strict=True)
        ]
        return GaussianBelief(self.loadings.new_zeros(self.num_states), torch.block_diag(*blocks))

    @property
    def values(self) -> Parameters:
        """The matrices of the linear dynamical system, without gradients."""
        inputs, first = self.emission_inputs, self._initial_belief
        return Parameters(
            self.transition, None, None, self.state_noise, self.emission, None, inputs, self._emission_noise, first.mean,
            first.covariance,
        ).copy()  # fmt: skip

    # nothing makes up for the coordinates of its states
    num_free_parameters = HeldParameters.num_free_parameters  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def _slots(self) -> dict[str, Slot]:
        variances: dict[str, Any] = {"raw_of": lambda variance: variance.log() / 2, "support": (0.0, math.inf)}
        kinds = {"log_scales": variances, "log_noise": variances, "emission_inputs": {"raw_of": Tensor.clone}}
        return {name: Slot(own, **kinds.get(name, {})) for name, own in self.named_parameters()}

    @torch.no_grad()
    def _criterion_terms(self, batch: Batch, log_prob: float) -> tuple[float, int]:
        """As with an exactly diffuse start, whose states count as parameters, as in statsmodels: so that models with different
        components compare, whatever their own start is."""
        wandering = sum(len(part.emission) for part in self.parts if not part.learned)
        count = self.num_free_parameters + len(batch.x) * wandering
        if self.initial == "diffuse":
            return log_prob, count
        try:
            return float(self._copied(initial="diffuse").log_prob(batch.x, batch.lengths, **batch.known).sum()), count
        except ValueError as error:
            raise ValueError(
                f"aic and bic are those of a diffuse start, and {str(error).split(';')[0]}; leave such rows out, or compare "
                "scores of models with the same components"
            ) from None

    def _copied(self, **options: Any) -> Self:
        """A model of the same parameters; options: what is otherwise."""
        model = type(self)(**(self.config | options)).to(self.reference.device)
        model.load_state_dict(self.state_dict())
        return model

    def _unidentified(self) -> tuple[frozenset[str], str]:
        return frozenset(), ""

    def estimates(self) -> dict[str, Tensor]:
        """Variances by name, and the weights of inputs."""
        shares = self._shares()
        found = {f"variance of {name}": value * shares[name] for name, value in self._variances.items()}
        found["variance of noise"] = self._emission_noise[0]
        found |= self.learned
        return found | ({"inputs": self.emission_inputs[0]} if self.num_inputs else {})

    @torch.no_grad()
    def _at_bounds(self, batch: Batch) -> dict[str, float]:
        """Variances that are 0 but for what the search left of them: without them the likelihood is no smaller."""
        other = self._copied()
        whole = {f"variance of {name}": (other.log_scales, k) for k, name in enumerate(self.variances)}
        whole["variance of noise"] = (other.log_noise, 0)
        now, found = float(self.log_prob(batch.x, batch.lengths, **batch.known).sum()), {}
        for name, (parameter, k) in whole.items():
            kept = float(parameter[k])
            try:
                parameter[k] = -math.inf
                gain = float(other.log_prob(batch.x, batch.lengths, **batch.known).sum()) - now
            except (ValueError, ArithmeticError, torch.linalg.LinAlgError):  # pyright: ignore[reportPrivateImportUsage]
                continue  # without this one nothing would be random
            finally:
                parameter[k] = kept
            if 0 <= gain + ROUNDING[batch.x.dtype] * abs(now) and gain < NEAR:
                found[name] = 0.0
        return found

    @torch.no_grad()
    def set_parameters(  # pyright: ignore
        self, *, noise=None, inputs=None, width=None, frequency=None, damping=None, ar_weights=None, ma_weights=None,
        **variances,
    ) -> Self:  # fmt: skip
        """Sets variances, of "level", "slope", "seasonal" ("seasonal_24" of several), "cycle", "ar" ("arma") and noise, weights
        (U,) of inputs, that of a wide first state, the frequency of a cycle (radians a step), its damping, and the weights (p,)
        of an autoregression, which must be stationary, and (q,) of its moving average, which must be invertible."""
        checks.parameters_of(self, variances, [*self._held_as, *(["width"] if self.initial != "diffuse" else [])])
        given = {"frequency": frequency, "damping": damping, "ar_weights": ar_weights, "ma_weights": ma_weights}
        given = {name: value for name, value in given.items() if value is not None}
        for name in given:
            if (own := name.removesuffix("_weights")) not in self.learned:
                raise ValueError(f"{name}: this model has none; make it with {'cycle=True' if own == name else f'{own}=...'}")
        over_time = self._unit != 1
        before = {name: value * self._shares()[name] for name, value in self._variances.items()} if over_time else {}
        self._put_learned({name.removesuffix("_weights"): value for name, value in given.items()})
        if width is not None and self.initial == "diffuse":
            raise ValueError("width: nothing is known of a diffuse start; make the model with initial='wide'")
        for name, value in variances.items():
            checks.positive(name, value, zero=True)
        shares = self._shares()
        for name, value in (before | variances).items():  # shares of a cycle's depend on its damping
            self.log_scales[self.variances.index(name)] = _half_log(float(value) / float(shares[name]))
        if noise is not None:
            checks.positive("noise", noise, zero=True)
            self.log_noise.fill_(_half_log(noise))
        if width is not None:
            self.width.fill_(checks.positive("width", width))
        if inputs is not None:
            weights = checks.finite("inputs", checks.numbers("inputs", inputs).double().to(self.loadings))
            self.emission_inputs.copy_(checks.shape("inputs", weights, (self.num_inputs,))[None])
        return self

    def _put_learned(self, values: Mapping[str, Any]) -> None:
        """Sets some of :attr:`learned`."""
        unit = self._unit
        if (frequency := values.get("frequency")) is not None:
            most = math.pi / unit
            self.raw_frequency.fill_(_logit(checks.share("frequency", frequency, f"(0, {most})") / most))
        if (damping := values.get("damping")) is not None:
            self.raw_damping.fill_(_logit(checks.share("damping", damping, "(0, 1)") ** unit))
        for name, sign in (("ar", 1.0), ("ma", -1.0)):
            if (weights := values.get(name)) is None:
                continue
            raw, told = getattr(self, f"raw_{name}"), f"{name}_weights"
            weights = checks.shape(told, checks.finite(told, checks.numbers(told, weights).double().to(raw)), raw.shape)
            if self.time_unit > 0 and bool((weights < 0).any()):
                raise ValueError(f"{told}: {_NEGATIVE}, got {checks.shown(weights.tolist())}")
            try:
                raw.copy_(partial_weights(sign * weights if unit == 1 else weights**unit).atanh())
            except ValueError as error:
                told = f"{told}: {error}"
                raise ValueError(told if sign > 0 else told.replace("a stationary", "an invertible")) from None

    @property
    def _held_as(self) -> dict[str, tuple[str, int | None]]:
        """Where what ``set_parameters`` sets stands: the name of a parameter, and the place in it of a variance."""
        found: dict[str, tuple[str, int | None]] = {name: ("log_scales", k) for k, name in enumerate(self.variances)}
        others = {
            "noise": "log_noise", "inputs": "emission_inputs", "frequency": "raw_frequency", "damping": "raw_damping",
            "ar_weights": "raw_ar", "ma_weights": "raw_ma",
        }  # fmt: skip
        return found | {name: (raw, None) for name, raw in others.items() if raw in self._slots}

    def _held_by(self, fixed: str | Sequence[str] | Mapping[str, Any]) -> dict[str, Tensor | None]:
        """As of the base class, by the names of :meth:`set_parameters`."""
        given = fixed if isinstance(fixed, Mapping) else dict.fromkeys([fixed] if isinstance(fixed, str) else fixed, True)
        places, found = self._held_as, {}
        scales = torch.zeros_like(self.log_scales, dtype=torch.bool)
        for name, mask in given.items():
            if name not in places:
                raise ValueError(
                    f"fixed: this model has no parameter {str(name)[:40]!r}.{checks.nearest(str(name), places)} Components get "
                    "shocks, or none, by the options level and trend"
                )
            raw, place = places[name]
            if mask is not True and name != "inputs":
                raise ValueError(f"fixed: {name!r} is held whole; give True")
            if place is not None:
                scales[place] = True
            else:
                found[raw] = mask if mask is True else np.asarray(mask)[None]
        return super()._held_by(found | ({"log_scales": scales} if bool(scales.any()) else {}))

    def _bounds_by(self, bounds: Mapping[str, Any], method: str) -> dict[str, Entries]:
        """As of the base class, by the names of :meth:`set_parameters`."""
        if not isinstance(bounds, Mapping):
            return super()._bounds_by(bounds, method)
        places, shares, found = self._held_as, self._shares(), {}
        for name, pair in bounds.items():
            if name not in places:
                raise ValueError(f"bounds: this model has no parameter {str(name)[:40]!r}.{checks.nearest(str(name), places)}")
            if name in DECAYS and self._unit != 1 and self._slots[DECAYS[name][0]].raw.requires_grad:
                raise ValueError(f"bounds: {self._moves_with(name)}; give times in units of {self._unit:g}")
            raw, place = places[name]
            own = self._slots[raw].raw
            between = ends(name, pair, own if place is None else own[place])
            self._slots[raw].check_bounds(name, *between)
            if place is None:
                found[raw] = tuple(end.reshape(own.shape) for end in between)
                continue
            every = found.setdefault(raw, tuple(torch.full_like(own, free).double() for free in (-math.inf, math.inf)))
            for all_ends, end in zip(every, between, strict=True):
                all_ends[place] = end / shares[name]
        return super()._bounds_by(found, method)

    def _of_entries(self, name, value, masks, whole=frozenset()):
        """As of the base class, by what the names of estimates stand for."""
        own = {"ar": "ar_weights", "ma": "ma_weights"}.get(name, name.removeprefix("variance of "))
        raw, place = self._held_as.get(own, (name, None))
        mask = masks.get(raw)
        found = torch.full_like(value, raw in whole, dtype=torch.bool)
        if mask is None:
            return found
        return found | (mask[place] if place is not None else mask.reshape(value.shape))

    # ---------------------------------------------------------------- fit
    @torch.no_grad()
    def _take_units(self, batch: Batch, warm: bool, holds: Mapping[str, Any]) -> None:
        """The median time between steps becomes what parameters are over; those that stay say what they said."""
        if not (warm and self.time_unit > 0):  # a fit without times is refused as a question is
            self._take_unit(batch, warm, holds)
        held = {name for name, slot in self._slots.items() if holds.get(name, slot) is None or not slot.raw.requires_grad}
        scales = holds.get("log_scales")
        for name, (decay, _) in DECAYS.items() if self._unit != 1 else ():
            if name not in self.variances or decay in held:
                continue
            if "log_scales" in held or (scales is not None and bool(scales[self.variances.index(name)])):
                raise ValueError(f"fixed: {self._moves_with(name)}; hold that, too, or give times in units of {self._unit:g}")

    def _moves_with(self, name: str) -> str:
        """Why the variance of a component that decays cannot be held, or have bounds, alone."""
        return f"a variance of {name!r} a unit of time changes with its {DECAYS[name][1]}, which is learned"

    def _take_unit(self, batch: Batch, warm: bool, holds: Mapping[str, Any]) -> None:
        unit = 0.0
        if batch.gaps is not None:
            later = batch.gaps[batch.gaps > 0]
            unit = float(later.median()) if len(later) else 1.0
        slots, shares = self._slots, self._shares()
        stay: dict[str, Any] = {name: value.tolist() for name, value in self.learned.items()}
        stay = {n: v for n, v in stay.items() if warm or f"raw_{n}" in holds or not slots[f"raw_{n}"].raw.requires_grad}
        if unit and min(stay.get("ar", [0.0])) < 0:
            raise ValueError(f"times: {_NEGATIVE}, and that which is kept is {stay['ar'][0]:g}; leave it to the fit")
        if (unit or 1.0) == self._unit:
            if self.time_unit > 0 and "ar" in stay:
                self.raw_ar.abs_()  # as it was taken
            self.time_unit.fill_(unit)
            return
        variances = {name: float(value * shares[name]) for name, value in self._variances.items()}
        self.time_unit.fill_(unit)
        if stay.get("frequency", 0.0) >= math.pi / self._unit:
            raise ValueError(
                f"times: most steps are {unit:g} apart, and the frequency that is kept, {stay['frequency']:g}, turns by more "
                "than half between two of them; leave it to the fit, or set a smaller one"
            )
        self._put_learned(stay)
        shares = self._shares()
        for k, (name, value) in enumerate(variances.items()):
            self.log_scales[k] = _half_log(value / float(shares[name]))

    def _direct_chain(self, x, lengths=None, start=None, **known):
        """As of the base class; every question and fit comes by here.

        Raises:
            ValueError: where times are not given, and parameters are over times.
        """
        self._check_times(known.get("gaps"))
        return super()._direct_chain(x, lengths, start, **known)

    def _reader(self) -> Filter:
        self._check_start_of_steps("wide")
        return TimedChains(self)

    def _check_times(self, times: Any) -> None:
        if self.time_unit > 0 and times is None:
            raise ValueError(
                "times: this model was fitted with times and is asked with times; give those of the steps, or times='index' "
                "for those of the index of x (fit it anew without times for equal steps)"
            )
        if times is not None and not self.time_unit > 0 and "ar" in self.learned and bool((self.learned["ar"] < 0).any()):
            raise ValueError(f"times: {_NEGATIVE}, and this model has {self.learned['ar'].tolist()[0]:g}; fit it to times")

    def fit(self, x, lengths=None, *, fixed=(), method: str | None = None, **options) -> Self:
        """See :meth:`~pplseq.models.estimator.Estimator.fit`; ``initialization``: see :meth:`initialize`. ``fixed``: names of
        :meth:`set_parameters`, or a mapping from "inputs" to a mask (U,) of their weights."""
        _ = self.transition  # a buffer, which a checkpoint of the fit holds from its beginning
        if method in (None, "lbfgs"):
            options = {"num_steps": 500, "tolerance": 1e-9} | options
        return super(LDS, self).fit(x, lengths, method=method, fixed=fixed, **options)

    def _check_data(self, batch: Batch) -> None:
        """Raises ValueError as of the LDS, and for what gradients would need more memory than there is for: some covariances a
        step, which rows share unless something is missing in one alone or their times differ."""
        rows, steps = batch.x.shape[:2]
        known = ~batch.x[..., 0].isnan()
        alike = batch.gaps is None and bool((known == known[:1]).all())
        numbers = MATRICES * steps * (1 if alike else rows) * self.num_states**2
        checks.fits("seasonal", numbers * batch.x.element_size(), FEWER)
        super()._check_data(batch)

    @torch.no_grad()
    def initialize(self, batch: Batch, how: str = "likely") -> None:
        """Shocks of components and noise of the size of the data's steps; a wide first state, of the data's own size.

        Args:
            how: "still": shocks of a tenth of the spread of a step. "shaken": of all of it. "turning": of the slope, the cycle
                and the autoregression. "likely": the one of these that a few steps of L-BFGS take furthest. "random".
        """
        known = ~batch.x.isnan() & batch.valid.unsqueeze(-1)  # what stands behind the end of a row is no data
        seen = batch.x[known]
        spread = float(seen.diff().std()) if len(seen) > 2 else float(seen.std())
        if batch.gaps is not None and bool((batch.gaps > 0).any()):
            spread /= math.sqrt(float(batch.gaps[batch.gaps > 0].mean()) / self._unit)
        spread = spread if spread > 0 else 1.0
        self.width.fill_(WIDE * float(seen.square().mean().clamp_min(1e-300)))
        if self.num_inputs:
            self.emission_inputs.zero_()
            if self._config["level"] == "none":  # nothing else takes the mean up
                driven, numbers = batch.inputs[known[..., 0]].double(), seen.double().unsqueeze(-1)
                self.emission_inputs.copy_(torch.linalg.lstsq(driven.cpu(), numbers.cpu(), driver="gelsd").solution.T)
        if how != "likely":
            self._start_at(how, spread)
            return
        found = []
        for way in STEPS:
            self._start_at(way, spread)
            # what is remarkable is said of the start that goes on
            with contextlib.suppress(ValueError, ArithmeticError), filtering("ignore"), torch.enable_grad():
                maximize_by_lbfgs(self, [batch], num_steps=FIRST_STEPS)
                value = float(self.log_prob(batch.x, batch.lengths, **batch.known).sum())
                found.append((value, {name: part.detach().clone() for name, part in self.named_parameters()}))
        if found:
            self.load_state_dict(max(found, key=lambda one: one[0])[1], strict=False)

    def _start_at(self, way: str, spread: float) -> None:
        shares = STEPS["still" if way == "random" else way]
        names = [*(name.partition("_")[0] for name in self.variances), "noise"]
        logs = torch.tensor([shares[name] * spread for name in names], dtype=torch.float64).log()
        if way == "random":
            logs += 1.5 * torch.randn(len(logs), dtype=torch.float64)
        self.log_scales.copy_(logs[:-1])
        self.log_noise.copy_(logs[-1:])
        if self._config["cycle"]:
            self.raw_frequency.fill_(-1.0)
            self.raw_damping.fill_(2.0)
            if way == "random":
                self.raw_frequency.add_(torch.randn(1).to(self.raw_frequency))
        if self._config["ar"]:
            self.raw_ar.fill_(0.0)
            self.raw_ar[0] = 0.5
        if self._config["ma"]:
            self.raw_ma.fill_(0.0)
            if way == "random":
                self.raw_ma.add_(0.5 * torch.randn_like(self.raw_ma))

    # ---------------------------------------------------------------- queries
    def forecast(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x, num_steps: int | None = None, lengths=None, *, inputs=None, times=None, future_times=None, **known
    ) -> Forecast:
        """See :meth:`~pplseq.models.lds.queries.LDSQueries.forecast`; with ``times`` of the past, ``future_times`` (K,) or
        (B, K) say for when it is."""
        if times is None:
            if future_times is not None:
                raise ValueError("future_times: they go on from times; give those of x, times='index' for those of its index")
            return super().forecast(x, num_steps, lengths, inputs=inputs, **known)
        times = times_of(times, x, lengths)
        gaps = gaps_ahead(times, future_times, lengths)
        if num_steps not in (None, gaps.shape[1]):
            raise ValueError(f"num_steps: future_times are of {gaps.shape[1]} steps, got {num_steps}; leave it out")
        known |= {"times": times, "future_gaps": gaps}
        found = super().forecast(without_index(x), gaps.shape[1], lengths, inputs=inputs, **known)
        return found._replace(times=labels_of(future_times, len(gaps)))

    def sample(
        self, num_steps: int | None = None, num_sequences: int = 1, *, seed: int | None = None, times=None, **known
    ) -> Sample:  # fmt: skip
        """See :meth:`~pplseq.models.estimator.Estimator.sample`; times: (T,) of the steps, of all sequences."""
        self._check_times(times)
        if times is not None:
            steps = checks.count("num_steps", num_steps)
            known["gaps"] = gaps_of(times_of(times, None), Batch(self.reference.new_zeros(1, steps, 1)))
        return super().sample(num_steps, num_sequences, seed=seed, **known)

    @torch.no_grad()
    def components(self, x, lengths=None, *, inputs=None, times=None) -> dict[str, StateMoments]:
        """What each component adds to x, given all of x: by name, means (B, T) and variances (B, T).

        "slope" is that of the trend; "inputs" has no variance.
        """
        batch, chain = self._posterior(x, lengths, inputs=inputs, times=times)
        states, found, first, learned = chain.smoothed_states(), {}, 0, self._learned
        covariances, like = states.covariances.dense(), self._results_like(x)
        for part in self.parts:
            size = len(part.emission)
            some = slice(first, first + size)
            weights = part.seen(learned, self.loadings)
            mean = states.means[..., some] @ weights
            variance = torch.einsum("...ij,i,j->...", covariances[..., some, some], weights, weights)
            found[part.name] = StateMoments(as_given(mean, like), as_given(variance, like))
            if part.name == "trend":
                slope = states.means[..., first + 1] / self._unit, covariances[..., first + 1, first + 1] / self._unit**2
                found["slope"] = StateMoments(*(as_given(value, like) for value in slope))
            first += size
        if self.num_inputs:
            driven = batch.inputs @ self.emission_inputs[0]
            found["inputs"] = StateMoments(as_given(driven, like), as_given(torch.zeros_like(driven), like))
        return found


def _seasons(seasonal: Any, harmonics: Any) -> tuple[list[float], list[int] | None]:
    """Steps of each season, and how many waves it is made of; None for a state a step."""
    if seasonal is None:
        if harmonics is not None:
            raise ValueError("harmonics: they are those of a season; give seasonal=..., or leave them out")
        return [], None
    alone = not isinstance(seasonal, (list, tuple))
    if alone and harmonics is None:
        if checks.number("seasonal", seasonal) % 1:
            raise ValueError(
                f"seasonal must be a whole number of steps, one state each, got {seasonal}; make such a season of waves, "
                "harmonics=3 or another small number"
            )
        return [checks.count("seasonal", int(seasonal), 2)], None
    seasons = [seasonal] if alone else list(seasonal)
    for season in seasons:
        if checks.number("seasonal", season) < 2:
            raise ValueError(f"seasonal must be at least 2 steps, or units of times: give these in smaller ones; got {season}")
    if not seasons or len(set(seasons)) < len(seasons):
        raise ValueError(f"seasonal: expected different numbers of steps, got {checks.shown(seasonal)}")
    several: list[Any] = list(harmonics) if isinstance(harmonics, (list, tuple)) else [harmonics] * len(seasons)
    if len(several) != len(seasons):
        raise ValueError(f"harmonics: expected one number for each of {len(seasons)} seasons, got {checks.shown(harmonics)}")
    found = []
    for season, number in zip(seasons, several, strict=True):
        number = int(season // 2) if number is None else checks.count("harmonics", number)
        if number > season // 2:
            raise ValueError(f"harmonics: a season of {season} steps has at most {int(season // 2)}, got {number}")
        found.append(number)
    return seasons, found


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


def _half_log(variance: float) -> float:
    """The logarithm of a deviation, all digits of it."""
    return 0.5 * math.log(variance) if variance else -math.inf
