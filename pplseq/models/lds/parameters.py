"""Parameters of a linear dynamical system: as they are usually written, and as they are kept, set and read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.infer.fit.held import Slot
from pplseq.kernels.kalman import symmetric
from pplseq.kernels.matrix_equations import check_stable, stationary_covariance
from pplseq.models.gaussian import GaussianEstimator
from pplseq.models.hmm.program import DTYPES
from pplseq.models.remembered import Remembered, plain_parameters

REGRESSIONS = ("transition", "emission")
NOISE = ("full", "diagonal")
PLACES = ("both", "transition", "emission", "none")
INITIAL = ("learned", "stationary", "diffuse")
CLEAR = 1e-4  # pivots of a covariance, of its deviations, of which Cholesky's loses no digits
FEW_STATES = 16  # up to which directions are counted one by one
SCALES = {"state_noise": "state_scale", "emission_noise": "emission_scale", "initial_covariance": "initial_scale"}


class Parameters(NamedTuple):
    """What a system is, as it is usually written; None for what a model has not.

    Both moves and observations are regressions, y = W (z, 1, u) + noise, whose weights W (size, k) stand side by side in
    ``transition`` or ``emission`` (size, h), ``_offset`` (size,) and ``_inputs`` (size, U).

    state_noise: (h, h). emission_noise: (n, n), or (n,) variances. initial_mean: (h,). initial_covariance: (h, h).
    """

    transition: Tensor
    transition_offset: Tensor | None
    transition_inputs: Tensor | None
    state_noise: Tensor
    emission: Tensor
    emission_offset: Tensor | None
    emission_inputs: Tensor | None
    emission_noise: Tensor
    initial_mean: Tensor | None  # None where the start is stationary
    initial_covariance: Tensor | None  # infinite where it is diffuse

    def copy(self) -> Parameters:
        """The same without gradients, in memory of its own."""
        parts: Any = [None if value is None else value.detach().clone() for value in self]
        return Parameters(*parts)

    def columns(self, kind: str) -> dict[str, Tensor]:
        """The parts (size, columns) of a regression's weights, by name."""
        parts = {name: getattr(self, name) for name in (kind, f"{kind}_offset", f"{kind}_inputs")}
        return {name: v.unsqueeze(-1) if v.dim() == 1 else v for name, v in parts.items() if v is not None}

    def weights(self, kind: str) -> Tensor:
        """(size, k) W of a regression."""
        return torch.cat([*self.columns(kind).values()], -1)

    def with_weights(self, kind: str, weights: Tensor) -> Parameters:
        """The same with another W."""
        columns = self.columns(kind)
        parts = weights.split([part.shape[-1] for part in columns.values()], -1)
        named = zip(columns, parts, strict=True)
        return self._replace(**{name: part.squeeze(-1) if name.endswith("_offset") else part for name, part in named})

    def extras(self, kind: str, x: Tensor, inputs: Tensor | None) -> Tensor:
        """(B, T, k - h) what beside the state x (B, T, n) is regressed on: ones for the offset, inputs."""
        parts = [x.new_ones(*x.shape[:2], 1 if getattr(self, f"{kind}_offset") is not None else 0)]
        if getattr(self, f"{kind}_inputs") is not None and inputs is not None:
            parts.append(inputs)
        return torch.cat(parts, -1)

    def shift(self, kind: str, inputs: Tensor | None) -> Tensor | None:
        """Offset and inputs (*b, U) of a regression: (*b, size), (size,), or None for neither."""
        offset, weights = getattr(self, f"{kind}_offset"), getattr(self, f"{kind}_inputs")
        if weights is None or inputs is None:
            return offset
        driven = inputs @ weights.T
        return driven if offset is None else offset + driven


def as_array(value) -> np.ndarray:
    """The same numbers for numpy, whose operations on small matrices cost a fraction of torch's; without gradients."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def as_tensor(value: np.ndarray, like: Tensor) -> Tensor:
    """An array of type and device of a tensor."""
    return torch.from_numpy(np.ascontiguousarray(value)).to(like)


class RegressionPrior(NamedTuple):
    """Pseudo-observations: log p(W, S) = -count/2 log|S| - tr S^-1 (count variance I + strength W W') / 2 + constant.

    Args:
        count: how many steps of residual variance ``variance`` they are worth.
        variance: of the noise, in every direction.
        strength: pulls the weights, but no offset, towards zero (ridge regression).
    """

    count: float = 0.0  # pyright: ignore[reportIncompatibleMethodOverride]
    variance: float = 1.0
    strength: float = 0.0

    def log_prob(self, weights: Tensor, noise: Tensor, shrunk: Tensor) -> Tensor:
        """The log density (up to a constant, nats) at weights (n, k) and a covariance (n, n); shrunk: (k,) bool."""
        if self.count == 0 and self.strength == 0:
            return weights.new_zeros(())
        factor = torch.linalg.cholesky(noise)
        pull = weights * shrunk
        target = self.count * self.variance * torch.eye(len(noise)).to(noise) + self.strength * pull @ pull.T
        return -self.count * factor.diagonal().log().sum() - torch.cholesky_solve(target, factor).trace() / 2


def as_prior(name: str, prior: RegressionPrior | Mapping[str, Any] | None) -> RegressionPrior:
    """A prior from a mapping of its arguments, or None for none; raises for what is none."""
    try:
        prior = RegressionPrior(**prior) if isinstance(prior, Mapping) else RegressionPrior(*(() if prior is None else prior))
        prior = RegressionPrior(*(checks.number(name, value) for value in prior))
    except TypeError:
        raise TypeError(
            f"{name} must be a RegressionPrior, or a mapping of its {', '.join(RegressionPrior._fields)}; got "
            f"{checks.shown(prior)}"
        ) from None
    if not (prior.count >= 0 and prior.variance > 0 and prior.strength >= 0):
        raise ValueError(f"{name}: count and strength must not be negative and variance positive, got {prior}")
    return prior


def stationary_mean(transition: Tensor, offset: Tensor | None) -> Tensor:
    """(h,) m = A m + offset."""
    if offset is None:
        return transition.new_zeros(len(transition))
    return torch.linalg.solve(torch.eye(len(transition)).to(transition) - transition, offset)


def stationary_belief(transition: Tensor, offset: Tensor | None, noise: Tensor) -> GaussianBelief:
    """The distribution that states tend to without inputs.

    Raises:
        ValueError: for an unstable transition.
    """
    return GaussianBelief(stationary_mean(transition, offset), stationary_covariance(transition, noise))


def covariance_of(scale: Tensor) -> Tensor:
    """S S' of a triangular factor (h, h), or of standard deviations (h,); what is above the diagonal does not count."""
    factor = torch.diag(scale) if scale.dim() == 1 else scale.tril()
    return factor @ factor.mT


def emission_covariance(scale: Tensor) -> Tensor:
    """(n,) variances, or (n, n), of a triangular factor with logarithms on its diagonal, which keep it invertible."""
    if scale.dim() == 1:
        return (2 * scale).exp()
    return covariance_of(scale.tril(-1) + torch.diag(scale.diagonal().exp()))


def scale_of(name: str, covariance: Tensor, *, diagonal: bool = False) -> Tensor:
    """The triangular factor (h, h), or the standard deviations (h,), of a covariance (h, h), which may be singular.

    Args:
        name: of the covariance, for messages. diagonal: give standard deviations.

    Raises:
        ValueError: for what is no such covariance.
    """
    value = as_array(covariance)
    if not (abs(value - value.T) <= 1e-8 + 1e-4 * abs(value.T)).all():
        raise ValueError(f"{name} must be symmetric")
    if diagonal and np.count_nonzero(value) > np.count_nonzero(value.diagonal()):
        raise ValueError(f"{name} must be diagonal in this model; make it with {name}='full'")
    return as_tensor(factor_of(name, value, diagonal), covariance)


def factor_of(name: str, value: np.ndarray, diagonal: bool) -> np.ndarray:
    """As :func:`scale_of`, of an array that is known to be symmetric, and diagonal where that is asked for."""
    if not diagonal:
        try:
            factor = np.linalg.cholesky(value)
        except np.linalg.LinAlgError:
            factor = np.zeros_like(value)
        if (factor.diagonal() > CLEAR * np.sqrt(abs(value.diagonal()))).all():
            return factor
    values, vectors = np.linalg.eigh(symmetric(value))
    smallest, tolerance = float(values[0]), 10 * np.finfo(values.dtype).eps * float(abs(values[-1]))
    if smallest < -tolerance:
        raise ValueError(f"{name} must be positive semi-definite, but its smallest eigenvalue is {smallest:.3g}")
    if diagonal:
        return np.sqrt(np.maximum(value.diagonal(), 0.0))
    # Cholesky fails for what is singular, or nearly: R' of the root's QR
    factor = np.linalg.qr((vectors * np.sqrt(np.maximum(values, 0.0))).T)[1].T
    return factor * np.where(factor.diagonal() < 0, -1.0, 1.0)


class LDSTensors(GaussianEstimator):
    """What :class:`~pplseq.models.lds.program.LDS` is made of; its arguments are there."""

    emission_offset: Any
    transition_offset: Any
    num_words = None
    num_features: int
    held: frozenset[str] = frozenset()  # names of the parameters that a fit in progress keeps

    def __init__(
        self,
        num_states: int,
        num_features: int,
        *,
        num_inputs: int = 0,
        inputs_to: str = "both",
        offsets: str = "both",
        state_noise: str = "full",
        emission_noise: str = "full",
        initial: str = "learned",
        state_prior: RegressionPrior | Mapping | None = None,
        emission_prior: RegressionPrior | Mapping | None = None,
        noise_floor: float | None = None,
        dtype: str = "float64",
    ):
        super().__init__()
        for name, value in (("state_noise", state_noise), ("emission_noise", emission_noise)):
            checks.choice(name, value, NOISE)
        real = self._take_options(
            num_states, num_features, num_inputs, inputs_to, offsets, initial, state_prior, emission_prior, noise_floor, dtype
        )
        self._config |= dict(state_noise=state_noise, emission_noise=emission_noise)
        h, n, inputs = self.num_states, self.num_features, self.num_inputs
        turn = torch.linalg.qr(torch.randn(h, h, dtype=real))[0]
        # contiguous: Pyro's store would copy it otherwise, and train the copy
        self.transition = nn.Parameter(((0.5 if initial == "stationary" else 0.9) * turn).contiguous())
        self.emission = nn.Parameter(torch.randn(n, h, dtype=real) / h**0.5)
        for kind, size in (("transition", h), ("emission", n)):
            given = {
                "offset": torch.zeros(size, dtype=real) if offsets in ("both", kind) else None,
                "inputs": torch.zeros(size, inputs, dtype=real) if inputs and inputs_to in ("both", kind) else None,
            }
            for suffix, value in given.items():
                self.register_parameter(f"{kind}_{suffix}", None if value is None else nn.Parameter(value))
        self.state_scale = nn.Parameter(
            torch.eye(h, dtype=real) if state_noise == "full" else torch.ones(h, dtype=real)
        )
        self.emission_scale = nn.Parameter(torch.zeros(*(n,) * (2 if emission_noise == "full" else 1), dtype=real))
        if initial == "learned":
            self.initial_mean = nn.Parameter(torch.zeros(h, dtype=real))
            self.initial_scale = nn.Parameter(torch.eye(h, dtype=real))
        vars(self)["_remembered"] = Remembered(plain_parameters(self)[0])  # no submodule
        self.drawn()

    def _take_options(
        self, num_states: int, num_features: int, num_inputs: int, inputs_to: str, offsets: str, initial: str,
        state_prior: RegressionPrior | Mapping | None, emission_prior: RegressionPrior | Mapping | None,
        noise_floor: float | None, dtype: str,
    ) -> torch.dtype:  # fmt: skip
        """What constructors of all kinds of parameters have in common; the type of numbers."""
        for name, value, choices in (
            ("inputs_to", inputs_to, PLACES), ("offsets", offsets, PLACES), ("initial", initial, INITIAL),
            ("dtype", dtype, tuple(DTYPES)),
        ):  # fmt: skip
            checks.choice(name, value, choices)
        self.num_states, self.num_inputs = checks.count("num_states", num_states), checks.count("num_inputs", num_inputs, 0)
        checks.fits("num_states", 4.0 * num_states**2, "choose fewer states")
        self.num_features = checks.count("num_features", num_features)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.initial, self._lowest = initial, {}
        self.noise_floor = None if noise_floor is None else float(checks.positive("noise_floor", noise_floor))
        self.state_prior, self.emission_prior = as_prior("state_prior", state_prior), as_prior("emission_prior", emission_prior)
        self._config: dict[str, Any] = dict(
            num_states=self.num_states, num_features=self.num_features, num_inputs=self.num_inputs, inputs_to=inputs_to,
            offsets=offsets, initial=initial, noise_floor=self.noise_floor,
        )  # fmt: skip
        return DTYPES[dtype]

    @property
    def config(self):
        dtype = next(name for name, value in DTYPES.items() if value == self.reference.dtype)
        priors = {name: getattr(self, name) for name in ("state_prior", "emission_prior")}
        priors = {name: None if prior == RegressionPrior() else prior._asdict() for name, prior in priors.items()}
        return self._config | priors | {"dtype": dtype}

    @property
    def state_noise(self) -> Tensor:
        """(h, h) covariance of a move."""
        return covariance_of(self.state_scale)

    @property
    def emission_noise(self) -> Tensor:
        """(n, n) covariance of an observation given its state."""
        noise = self._emission_noise
        return torch.diag(noise) if noise.dim() == 1 else noise

    @property
    def _emission_noise(self) -> Tensor:
        return emission_covariance(self.emission_scale)

    @property
    def _initial_belief(self) -> GaussianBelief:
        """Mean (h,) and covariance (h, h) of z_1, before x_1 is seen."""
        if self.initial == "learned":
            return GaussianBelief(self.initial_mean, covariance_of(self.initial_scale))
        if self.initial == "diffuse":
            return self._diffuse_belief
        return stationary_belief(self.transition, self.transition_offset, self.state_noise)

    @property
    def _diffuse_belief(self) -> GaussianBelief:
        zero = self.reference.new_zeros(self.num_states)
        return GaussianBelief(zero, torch.diag(zero + torch.inf))

    @property
    def num_free_parameters(self) -> int:
        """Without those that a choice of the states' coordinates makes up for, and those that a fit was told to keep.

        States M z + c say the same of all observations: for any invertible M; where the noise of states is diagonal, for any
        that leaves it so, (h^2 + h) / 2 numbers; and for any c, where both parts have an offset. So do, where there are
        more states than numbers, the noise of states and the first covariance together: S with C S = 0 may be added to the
        covariance of every step. Of a fit that kept some, and more than 16 states, those that are made up for do count.
        """
        h, total = self.num_states, sum(slot.num_free() for name, slot in self._slots.items() if name not in self._not_free)
        if self.state_prior != RegressionPrior() or self.emission_prior != RegressionPrior():
            return total
        if self._not_free:
            return total - (num_redundant(self) if h <= FEW_STATES else 0)
        total -= h * (h + 1) // 2 if "state_noise" in self._diagonal_noises else h * h
        unseen = max(0, h - len(self.emission))
        if self.initial != "diffuse":
            total -= unseen * (unseen + 1) // 2
        if self.transition_offset is not None:
            total -= h if self.emission_offset is not None else unseen
        return total

    @property
    def _slots(self) -> dict[str, Slot]:
        plain: dict[str, Any] = {"raw_of": Tensor.clone, "clips": False}
        log_scale = {"raw_of": lambda variance: variance.log() / 2, "support": (0.0, math.inf), "clips": False}
        return {
            name: Slot(own, triangle=own.dim() == 2) if name in SCALES and (own.dim() == 2 or name != "emission_noise")
            else Slot(own, **(log_scale if name in SCALES else plain))
            for name, own in self._own.items()
        }  # fmt: skip

    @torch.no_grad()
    def set_parameters(
        self, *, transition=None, state_noise=None, emission=None, emission_noise=None, transition_offset=None,
        transition_inputs=None, emission_offset=None, emission_inputs=None, initial_mean=None, initial_covariance=None,
    ) -> Self:  # fmt: skip
        """Sets parameters; what is None stays.

        Args:
            transition: (h, h). state_noise: (h, h), or (h,) variances; may be singular.
            emission: (n, h). emission_noise: (n, n), or (n,) variances; 0 for what is observed exactly.
            transition_offset: (h,). transition_inputs: (h, U). emission_offset: (n,). emission_inputs: (n, U).
            initial_mean: (h,). initial_covariance: (h, h), or (h,) variances; may be singular.

        Raises:
            ValueError: for wrong shapes, values that are not finite, matrices that are no covariances, parameters that
                this model has not, and an unstable transition where the start is stationary.
        """
        weights = dict(
            transition=transition, emission=emission, transition_offset=transition_offset, initial_mean=initial_mean,
            transition_inputs=transition_inputs, emission_offset=emission_offset, emission_inputs=emission_inputs,
        )  # fmt: skip
        checked = {}
        for name, value in weights.items():
            if value is not None:
                target = getattr(self, name, None)
                if target is None:
                    raise ValueError(f"{name}: this model has none; see its options offsets, inputs_to and initial")
                checked[name] = self._finite(name, value, target.shape)
        scales = {}
        for name, attribute, value in (
            ("state_noise", "state_scale", state_noise), ("emission_noise", "emission_scale", emission_noise),
            ("initial_covariance", "initial_scale", initial_covariance),
        ):  # fmt: skip
            if value is not None:
                target = getattr(self, attribute, None)
                if target is None:
                    raise ValueError(f"{name}: this model has none, its start is {self.initial}")
                value, size = checks.numbers(name, value).double(), len(target)
                value = self._finite(name, value, (size,) if value.dim() == 1 else (size, size))
                scales[attribute] = self._scale(name, value, target)
        if self.initial == "stationary" and "transition" in checked:
            check_stable("transition", checked["transition"])
        for name, value in (checked | scales).items():
            getattr(self, name).copy_(value)
        return self

    def _finite(self, name: str, value, shape) -> Tensor:
        return checks.finite(name, checks.shape(name, checks.numbers(name, value).double().to(self.transition), shape))

    @staticmethod
    def _scale(name: str, value: Tensor, target: Tensor) -> Tensor:
        """What ``target`` must hold for this covariance."""
        value = torch.diag(value) if value.dim() == 1 else value
        scale = scale_of(name, value, diagonal=target.dim() == 1)
        if name != "emission_noise":
            return scale
        return scale.log() if scale.dim() == 1 else scale.tril(-1) + torch.diag(scale.diagonal().log())

    @property
    def values(self) -> Parameters:
        """The parameters as they are usually written, without gradients; a copy."""
        with torch.no_grad():
            return self._written().copy()

    def _written(self) -> Parameters:
        """The parameters as they are usually written."""
        plain: dict[str, Any] = {name: self._parameters.get(name) for name in Parameters._fields[:-1]}
        missing = [name for name, value in plain.items() if value is None and name not in SCALES]
        plain |= {name: getattr(self, name, None) for name in missing}  # constrained, or drawn from a prior
        plain |= {"state_noise": self.state_noise, "emission_noise": self._emission_noise, "initial_covariance": None}
        if self.initial != "stationary":
            plain["initial_mean"], plain["initial_covariance"] = self._initial_belief
        return Parameters(**plain)

    @property
    def _diagonal_noises(self) -> frozenset[str]:
        own = self._own
        return frozenset([name for name in ("state_noise", "emission_noise") if name in own and own[name].dim() == 1])

    @property
    def _own(self) -> dict[str, Any]:
        """What holds the parameters that this model has, by their names as they are usually written."""
        own, places = self._parameters, {name: SCALES.get(name, name) for name in Parameters._fields}
        held = {name: own[at] if at in own else getattr(self, at, None) for name, at in places.items()}
        return {name: value for name, value in held.items() if value is not None}

    @torch.no_grad()
    def _put(self, parameters: Parameters) -> None:
        for name, target in self._own.items():  # which a start that is not learned is none of
            value = getattr(parameters, name)
            if value is not None and name not in self.held:
                target.copy_(self._scale(name, value, target) if name in SCALES else value)


@torch.no_grad()
def num_redundant(model: LDSTensors) -> int:
    """In how many directions parameters may move while no observation's distribution does, and those that are kept stand still:
    X and v of states (1 + X) z + v, and S as of :attr:`LDSTensors.num_free_parameters`."""
    now, h, fixed = model.values, model.num_states, model._not_free
    A, C, Q = now.transition.double(), now.emission.double(), now.state_noise.double()
    unseen = torch.linalg.svd(C).Vh[torch.linalg.matrix_rank(C) :].T
    pairs = [(i, j) for i in range(unseen.shape[1]) for j in range(i + 1) if model.initial != "diffuse"]
    b = torch.zeros(h).to(A) if now.transition_offset is None else now.transition_offset.double()

    def moved(direction: Tensor) -> Tensor:
        X, v, spread = direction[: h * h].reshape(h, h), direction[h * h : h * h + h], torch.zeros(h, h).to(A)
        for (i, j), weight in zip(pairs, direction[h * h + h :], strict=True):
            one = torch.outer(unseen[:, i], unseen[:, j])
            spread = spread + weight * (one + one.T)
        noise = X @ Q + Q @ X.T + spread - A @ spread @ A.T
        changes = {"transition": X @ A - A @ X, "transition_offset": X @ b + v - A @ v, "state_noise": noise}
        changes |= {"emission": -C @ X, "emission_offset": -C @ v}
        if now.transition_inputs is not None:
            changes["transition_inputs"] = X @ now.transition_inputs.double()
        if model.initial == "learned":
            mean, first = (torch.as_tensor(part).double() for part in (now.initial_mean, now.initial_covariance))
            changes |= {"initial_mean": X @ mean + v, "initial_covariance": X @ first + first @ X.T + spread}
        absent = {name for name in ("transition_offset", "emission_offset") if getattr(now, name) is None}
        stay = [value.reshape(-1) for name, value in changes.items() if name in fixed | absent]
        if "state_noise" in model._diagonal_noises:
            stay.append(noise[~torch.eye(h, dtype=torch.bool)])
        return torch.cat(stay)

    number = h * h + h + len(pairs)
    columns = torch.stack([moved(direction) for direction in torch.eye(number).to(A)], -1)
    return number - int(torch.linalg.matrix_rank(columns, rtol=1e-9))
