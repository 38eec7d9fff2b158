"""The structural time series model: the program of a linear dynamical system, its matrices known but for a few variances."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.infer.fit.em import ROUNDING, Batch
from pplseq.infer.fit.held import Slot
from pplseq.infer.gaussian.results import StateMoments
from pplseq.models.batch import as_given
from pplseq.models.estimator import Estimator
from pplseq.models.hmm.tables import DTYPES
from pplseq.models.lds.parameters import Parameters, RegressionPrior
from pplseq.models.lds.program import LDS
from pplseq.models.structural.components import VARIANCES, components_of

STARTS = ("wide", "diffuse")
NEAR = 0.01  # nats between a variance that ended near 0 and one of 0
WIDE = 1e6  # variance of the first state, of the mean square of the data


class StructuralModel(LDS):
    """x_t = level_t [+ seasonal_t] [+ inputs u_t] + noise: components that move on their own, by exact Kalman filtering.

        level_t = level_{t-1} [+ slope_{t-1}] + N(0, level variance)      slope_t = slope_{t-1} + N(0, slope variance)
        seasonal_t = -(seasonal_{t-1} + ... + seasonal_{t-s+1}) + N(0, seasonal variance)

    It has all verbs of :class:`~pplseq.models.lds.program.LDS`: ``forecast``, ``smooth``, ``reconstruct``; missing values are
    NaN.

    Args:
        level: "stochastic", or "fixed" for a level (or trend) without shocks of its own.
        trend: None, "stochastic" (with ``level="fixed"``: a smooth trend) or "fixed": a slope that never changes.
        seasonal: s, the steps of a season, or None.
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

    name = "structural"
    methods = ("lbfgs", "sgd")  # sums over states lose the small variances that EM would find
    starts = ()

    def __init__(
        self, *, level: str = "stochastic", trend: str | None = None, seasonal: int | None = None, num_inputs: int = 0,
        initial: str = "wide", dtype: str = "float64",
    ):  # fmt: skip
        Estimator.__init__(self)
        checks.choice("level", level, ("stochastic", "fixed"))
        if trend is not None:
            checks.choice("trend", trend, ("stochastic", "fixed"))
        if seasonal is not None:
            checks.count("seasonal", seasonal, 2)
        real = DTYPES[checks.choice("dtype", dtype, DTYPES)]
        self.parts = components_of(trend, seasonal, level)
        self.num_features, self.num_inputs = 1, checks.count("num_inputs", num_inputs, 0)
        self.initial = "diffuse" if checks.choice("initial", initial, STARTS) == "diffuse" else "learned"
        self._config: dict[str, Any] = dict(
            level=level, trend=trend, seasonal=seasonal, num_inputs=self.num_inputs, initial=initial
        )
        self.num_states = sum(len(part.emission) for part in self.parts)
        matrix = torch.block_diag(*(part.transition for part in self.parts)).to(real)
        self.register_buffer("matrix", matrix, persistent=False)
        self.register_buffer("loadings", torch.cat([part.emission for part in self.parts]).to(real)[None], persistent=False)
        shocks = torch.tensor([shock for part in self.parts for shock in part.shocks])
        names = [name for number, name in enumerate(VARIANCES) if bool((shocks == number).any())]
        self.variances = tuple(names)
        place = torch.zeros(len(names), self.num_states, dtype=real)
        for row, name in enumerate(names):
            place[row, shocks == VARIANCES.index(name)] = 1.0
        self.register_buffer("places", place, persistent=False)
        self.register_buffer("width", torch.ones((), dtype=real))
        self.log_scales = nn.Parameter(torch.full((len(names),), -1.0, dtype=real))
        self.log_noise = nn.Parameter(torch.zeros(1, dtype=real))
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
    def transition(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.matrix

    @property
    def emission(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.loadings

    @property
    def state_noise(self) -> Tensor:
        """(h, h) covariance of a move; singular, as most states have no shocks."""
        return torch.diag((2 * self.log_scales).exp() @ self.places)

    @property
    def _emission_noise(self) -> Tensor:
        return (2 * self.log_noise).exp()

    @property
    def initial_belief(self) -> GaussianBelief:
        if self.initial == "diffuse":
            return self._diffuse_belief
        return GaussianBelief(self.matrix.new_zeros(self.num_states), self.width * torch.eye(self.num_states).to(self.matrix))

    @property
    def values(self) -> Parameters:
        """The matrices of the linear dynamical system, without gradients."""
        inputs, first = self.emission_inputs, self.initial_belief
        return Parameters(
            self.matrix, None, None, self.state_noise, self.loadings, None, inputs, self._emission_noise, first.mean,
            first.covariance,
        ).copy()  # fmt: skip

    @property
    def num_free_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters()) - self.num_held

    @property
    def slots(self) -> dict[str, Slot]:
        return {name: Slot(own) for name, own in self.named_parameters()}

    @torch.no_grad()
    def criterion_terms(self, batch: Batch, log_prob: float) -> tuple[float, int]:
        """As with an exactly diffuse start, whose states count as parameters, as in statsmodels: so that models with different
        components compare, whatever their own start is."""
        count = self.num_free_parameters + len(batch.x) * self.num_states
        if self.initial == "diffuse":
            return log_prob, count
        options: dict[str, Any] = self.config | {"initial": "diffuse"}
        model = type(self)(**options).to(self.reference.device)
        model.load_state_dict(self.state_dict())
        try:
            return float(model.log_prob(batch.x, batch.lengths, **batch.known).sum()), count
        except ValueError as error:
            raise ValueError(
                f"aic and bic are those of a diffuse start, and {str(error).split(';')[0]}; leave such rows out, or compare "
                "scores of models with the same components"
            ) from None

    def unidentified(self) -> tuple[frozenset[str], str]:
        return frozenset(), ""

    def estimates(self) -> dict[str, Tensor]:
        """Variances by name, and the weights of inputs."""
        scales = (2 * self.log_scales).exp()
        found = {f"variance of {name}": scales[k] for k, name in enumerate(self.variances)}
        found["variance of noise"] = self._emission_noise[0]
        return found | ({"inputs": self.emission_inputs[0]} if self.num_inputs else {})

    @torch.no_grad()
    def at_bounds(self, batch: Batch) -> dict[str, float]:
        """Variances that are 0 but for what the search left of them: without them the likelihood is no smaller."""
        whole = {f"variance of {name}": (self.log_scales, k) for k, name in enumerate(self.variances)}
        whole["variance of noise"] = (self.log_noise, 0)
        now, found = float(self.log_prob(batch.x, batch.lengths, **batch.known).sum()), {}
        for name, (parameter, k) in whole.items():
            kept = float(parameter[k])
            try:
                parameter[k] = -math.inf
                gain = float(self.log_prob(batch.x, batch.lengths, **batch.known).sum()) - now
            except (ValueError, ArithmeticError, torch.linalg.LinAlgError):  # pyright: ignore[reportPrivateImportUsage]
                continue  # without this one nothing would be random
            finally:
                parameter[k] = kept
            if 0 <= gain + ROUNDING[batch.x.dtype] * abs(now) and gain < NEAR:
                found[name] = 0.0
        return found

    @torch.no_grad()
    def set_parameters(self, *, noise=None, inputs=None, width=None, **variances) -> Self:  # pyright: ignore
        """Sets variances, of "level", "slope", "seasonal" and noise, weights (U,) of inputs, and that of a wide first state."""
        if width is not None and self.initial == "diffuse":
            raise ValueError("width: nothing is known of a diffuse start; make the model with initial='wide'")
        for name, value in variances.items():
            if name not in self.variances:
                raise ValueError(f"no variance {name!r} in this model.{checks.nearest(name, [*self.variances, 'noise'])}")
            self.log_scales[self.variances.index(name)] = _half_log(checks.positive(name, value, zero=True))
        if noise is not None:
            self.log_noise.fill_(_half_log(checks.positive("noise", noise)))
        if width is not None:
            self.width.fill_(checks.positive("width", width))
        if inputs is not None:
            weights = checks.finite("inputs", torch.as_tensor(inputs).to(self.matrix))
            self.emission_inputs.copy_(checks.shape("inputs", weights, (self.num_inputs,))[None])
        return self

    # ---------------------------------------------------------------- fit
    def fit(self, x, lengths=None, *, fixed=(), method: str | None = None, **options) -> Self:
        """See :meth:`~pplseq.models.estimator.Estimator.fit`."""
        if fixed:
            raise ValueError("fixed: give the components shocks, or none, by the options level and trend")
        if method in (None, "lbfgs"):
            options = {"num_steps": 500, "tolerance": 1e-9} | options
        return super(LDS, self).fit(x, lengths, method=method, **options)

    @torch.no_grad()
    def initialize(self, batch: Batch, how: str = "") -> None:
        """Shocks of components of a tenth of the spread of a step; a wide first state, of the data's own size."""
        known = ~batch.x.isnan()
        if batch.lengths is not None:  # what stands behind the end of a row is no data
            known &= (torch.arange(batch.x.shape[1], device=batch.x.device) < batch.lengths.unsqueeze(-1)).unsqueeze(-1)
        seen = batch.x[known]
        spread = float(seen.diff().std()) if len(seen) > 2 else float(seen.std())
        spread = spread if spread > 0 else 1.0
        self.width.fill_(WIDE * float(seen.square().mean().clamp_min(1e-300)))
        self.log_scales.copy_(torch.tensor([{"level": 0.3, "slope": 0.03, "seasonal": 0.1}[n] for n in self.variances]).log())
        self.log_scales += torch.tensor(spread).log()
        self.log_noise.fill_(float(torch.tensor(0.5 * spread).log()))
        if self.num_inputs:
            self.emission_inputs.zero_()

    # ---------------------------------------------------------------- queries
    @torch.no_grad()
    def components(self, x, lengths=None, *, inputs=None) -> dict[str, StateMoments]:
        """What each component adds to x, given all of x: by name, means (B, T) and variances (B, T).

        "slope" is that of the trend; "inputs" has no variance.
        """
        batch, chain = self._posterior(x, lengths, inputs=inputs)
        states, found, first = chain.smoothed_states(), {}, 0
        covariances, like = states.covariances.dense(), self.results_like(x)
        for part in self.parts:
            size = len(part.emission)
            some = slice(first, first + size)
            weights = part.emission.to(self.matrix)
            mean = states.means[..., some] @ weights
            variance = torch.einsum("...ij,i,j->...", covariances[..., some, some], weights, weights)
            found[part.name] = StateMoments(as_given(mean, like), as_given(variance, like))
            if part.name == "trend":
                slope = states.means[..., first + 1], covariances[..., first + 1, first + 1]
                found["slope"] = StateMoments(*(as_given(value, like) for value in slope))
            first += size
        if self.num_inputs:
            driven = batch.inputs @ self.emission_inputs[0]
            found["inputs"] = StateMoments(as_given(driven, like), as_given(torch.zeros_like(driven), like))
        return found


def _half_log(variance: float) -> float:
    """The logarithm of a deviation, all digits of it."""
    return 0.5 * math.log(variance) if variance else -math.inf
