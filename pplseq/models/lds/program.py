"""The linear dynamical system over vectors: Gaussian states that move linearly and are observed linearly."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Unpack

import pyro
import torch
from torch import Tensor, nn

from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.distributions.linear_gaussian import LinearGaussian
from pplseq.distributions.partly_observed import PartlyObserved
from pplseq.infer.programs.kalman_collapse import KalmanCollapse
from pplseq.infer.programs.markov import markov
from pplseq.models.given import Given, Sizes
from pplseq.models.hmm.program import DTYPES
from pplseq.models.lds.fit import LDSFitting
from pplseq.models.lds.parameters import check_stable, covariance_of, scale_of, stationary_belief
from pplseq.models.lds.queries import LDSQueries
from pplseq.models.lds.statistics import RegressionPrior

NOISE = ("full", "diagonal")
PLACES = ("both", "transition", "emission", "none")
INITIAL = ("learned", "stationary")


class LDS(LDSQueries, LDSFitting):
    """A chain of h-dimensional Gaussian states, observed through a linear map with noise.

        z_1 ~ N(initial_mean, initial_covariance)
        z_t ~ N(transition z_{t-1} + transition_offset + transition_inputs u_t, state_noise)
        x_t ~ N(emission z_t + emission_offset + emission_inputs u_t, emission_noise)

    x_1 is seen before the first move; u_1 moves no state. Covariances are kept as triangular factors (standard deviations
    where they are diagonal), so that gradients may go where they like; ``state_noise`` and ``initial_covariance`` may be
    singular. Attributes of these names are differentiable; :meth:`set_parameters` sets them.

    Args:
        num_states: h. num_features: n, of an observation. num_inputs: U, of what drives the system, or 0.
        inputs_to, offsets: where inputs enter and where offsets are: "both", "transition", "emission" or "none".
        state_noise, emission_noise: "full" or "diagonal".
        initial: "learned", or "stationary": the distribution that the states tend to without inputs, which needs a stable
            transition: EM keeps it so; gradients may need a smaller learning rate.
        state_prior, emission_prior: a :class:`~pplseq.models.lds.statistics.RegressionPrior` of weights and noise (or a mapping
            of its arguments), for maximum a posteriori; None: maximum likelihood.
        noise_floor: smallest variance that EM may give a noise, or the first state, in any direction.
        dtype: "float64" (what EM wants) or "float32".

    Raises:
        ValueError: for sizes or options that do not fit together.

    Example::

        model = LDS(2, 5).fit(sequences)
        means = model.transform(sequences)
        future = model.forecast(sequences, 10)

    Source: R. E. Kalman (1960), A new approach to linear filtering and prediction problems.
    """

    name = "lds"
    messenger = KalmanCollapse
    num_words = None

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
        noise_floor: float = 1e-6,
        dtype: str = "float64",
    ):
        super().__init__()
        for name, value, least in (
            ("num_states", num_states, 1), ("num_features", num_features, 1), ("num_inputs", num_inputs, 0),
        ):  # fmt: skip
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        for name, value, choices in (
            ("inputs_to", inputs_to, PLACES), ("offsets", offsets, PLACES), ("state_noise", state_noise, NOISE),
            ("emission_noise", emission_noise, NOISE), ("initial", initial, INITIAL), ("dtype", dtype, tuple(DTYPES)),
        ):  # fmt: skip
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
        if num_inputs and inputs_to == "none":
            raise ValueError(f"inputs_to: {num_inputs} inputs must enter somewhere, got 'none'")
        if not noise_floor > 0:
            raise ValueError(f"noise_floor must be positive, got {noise_floor}")
        self.num_states, self.num_features, self.num_inputs = int(num_states), int(num_features), int(num_inputs)
        self.initial, self.noise_floor = initial, float(noise_floor)
        self.state_prior = _prior("state_prior", state_prior)
        self.emission_prior = _prior("emission_prior", emission_prior)
        self._config = dict(
            num_states=self.num_states, num_features=self.num_features, num_inputs=self.num_inputs, inputs_to=inputs_to,
            offsets=offsets, state_noise=state_noise, emission_noise=emission_noise, initial=initial,
            noise_floor=self.noise_floor,
        )  # fmt: skip
        real = DTYPES[dtype]
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
        self.__dict__["history"] = None  # the FitHistory of the last fit

    @property
    def config(self):
        dtype = next(name for name, value in DTYPES.items() if value == self.reference.dtype)
        priors = {name: getattr(self, name)._asdict() for name in ("state_prior", "emission_prior")}
        return self._config | priors | {"dtype": dtype}

    @classmethod
    def from_config(cls, config: dict, tensors: dict[str, Tensor]) -> LDS:
        """The model of a saved folder, before its parameters are loaded."""
        return cls(**config)

    @property
    def reference(self) -> Tensor:
        """An empty tensor of the model's type and device."""
        return next(self.parameters()).detach().new_empty(0)

    # ---------------------------------------------------------------- parameters
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
        # (n,) variances, or (n, n); logarithms on the diagonal keep it invertible
        scale = self.emission_scale
        if scale.dim() == 1:
            return (2 * scale).exp()
        return covariance_of(scale.tril(-1) + torch.diag(scale.diagonal().exp()))

    @property
    def initial_belief(self) -> GaussianBelief:
        """Mean (h,) and covariance (h, h) of z_1, before x_1 is seen."""
        if self.initial == "learned":
            return GaussianBelief(self.initial_mean, covariance_of(self.initial_scale))
        return stationary_belief(self.transition, self.transition_offset, self.state_noise)

    @property
    def num_free_parameters(self) -> int:
        total = 0
        for name, value in self.named_parameters():
            triangle = name.endswith("scale") and value.dim() == 2
            total += value.shape[0] * (value.shape[0] + 1) // 2 if triangle else value.numel()
        return total

    @torch.no_grad()
    def set_parameters(
        self, *, transition=None, state_noise=None, emission=None, emission_noise=None, transition_offset=None,
        transition_inputs=None, emission_offset=None, emission_inputs=None, initial_mean=None, initial_covariance=None,
    ) -> LDS:  # fmt: skip
        """Sets parameters; what is None stays.

        Args:
            transition: (h, h). state_noise: (h, h), or (h,) variances; may be singular.
            emission: (n, h). emission_noise: (n, n), or (n,) variances.
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
                    raise ValueError(f"{name}: this model has none, its start is stationary")
                scales[attribute] = self._scale(name, value, target)
        if self.initial == "stationary" and "transition" in checked:
            check_stable("transition", checked["transition"])
        for name, value in (checked | scales).items():
            getattr(self, name).copy_(value)
        return self

    def _finite(self, name: str, value, shape) -> Tensor:
        value = torch.as_tensor(value).to(self.reference)
        if value.shape != shape:
            raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(value.shape)}")
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} must be finite, but holds NaN or infinity")
        return value

    def _scale(self, name: str, value, target: Tensor) -> Tensor:
        """What ``target`` must hold for this covariance."""
        value, size, exact = torch.as_tensor(value).to(self.reference), len(target), name == "emission_noise"
        value = self._finite(name, torch.diag(value) if value.dim() == 1 else value, (size, size))
        scale = scale_of(name, value, diagonal=target.dim() == 1, definite=exact)
        if not exact:
            return scale
        return scale.log() if scale.dim() == 1 else scale.tril(-1) + torch.diag(scale.diagonal().log())

    # ---------------------------------------------------------------- the program
    def model(
        self,
        x: Tensor | None = None,
        lengths: Tensor | None = None,
        start: GaussianBelief | None = None,
        inputs: Tensor | None = None,
        *,
        transitions: Tensor | None = None,
        emissions: Tensor | None = None,
        **sizes: Unpack[Sizes],
    ):
        """The generative program.

        Args:
            x: (B, T, n) observations, NaN where missing (whole vectors or some of their coordinates); None to generate.
            lengths: (B,) valid steps, or None for all.
            start: the belief that the previous segment ended with.
            inputs: (B, T, U).
            transitions: (B, T, h, h) or (T, h, h) matrices of the moves into each step, in the place of ``transition``;
                the first is used after ``start`` only.
            emissions: (B, T, n, h) or (T, n, h) matrices in the place of ``emission``: a design that changes in time.
            **sizes: how much to generate, or what a mini-batch stands for: :class:`~pplseq.models.given.Sizes`.
        """
        given = self.given(x, lengths, start, **sizes)
        given.inputs = self.check_inputs(inputs, given.shape, lengths)
        transition, emission = self.specs(given, start, transitions, emissions)
        z = start
        with given.plate:
            for t in markov(given.steps):
                with given.valid(t):
                    z = pyro.sample(f"z_{t}", transition(z, t))
                    with given.seen(t):
                        pyro.sample(f"x_{t}", emission(z, t), obs=given.value(t))
        return x

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        observed = ~x.isnan()
        return x.nan_to_num(0.0), observed

    def specs(self, given: Given, start: GaussianBelief | None, transitions: Tensor | None, emissions: Tensor | None):
        """Functions of (state, step): the distributions of the next state, and of what is observed of a state."""
        moves = self._matrices("transitions", transitions, (self.num_states, self.num_states), given.shape)
        designs = self._matrices("emissions", emissions, (self.num_features, self.num_states), given.shape)
        matrix, offset, weights = self._coefficients("transition")
        loadings, emission_offset, emission_weights = self._coefficients("emission")
        state_noise, noise = self.state_noise, self._emission_noise
        first = None
        if start is None:
            first = self.initial_belief if torch.is_grad_enabled() else self.initial_belief.detach()

        def transition(z, t) -> LinearGaussian:
            if z is None:
                return LinearGaussian(None, matrix, first.covariance, first.mean)
            driven = None if weights is None else (weights, given.input(t))
            return LinearGaussian(z, matrix if moves is None else moves[:, t], state_noise, offset, driven)

        def emission(z, t) -> LinearGaussian | PartlyObserved:
            driven = None if emission_weights is None else (emission_weights, given.input(t))
            about = (z, loadings if designs is None else designs[:, t], noise, emission_offset, driven)
            observed = given.coordinates(t)
            return LinearGaussian(*about) if observed is None else PartlyObserved(*about, observed=observed)

        return transition, emission

    def _coefficients(self, kind: str) -> list[Tensor | None]:
        """Matrix, offset and weights of inputs, as they stand: without their gradients where none are wanted."""
        values = [getattr(self, name) for name in (kind, f"{kind}_offset", f"{kind}_inputs")]
        return values if torch.is_grad_enabled() else [None if v is None else v.detach() for v in values]

    def posterior(self, x, lengths=None, start=None, inputs=None, **options):
        """The :class:`~pplseq.infer.gaussian.chain.GaussianChain` of observations; arguments as for :meth:`model`."""
        with self._at_point():
            return super().posterior(x, lengths, start, inputs=inputs, **options)

    def log_prob(self, x, lengths=None, start=None, inputs=None, **options) -> Tensor:
        """(B,) log p(x) of each row, nats; arguments as for :meth:`model`."""
        return self.posterior(x, lengths, start, inputs, **options).log_prob()


def _prior(name: str, prior) -> RegressionPrior:
    if prior is None:
        return RegressionPrior()
    try:
        prior = RegressionPrior(**prior) if isinstance(prior, Mapping) else RegressionPrior(*prior)
    except TypeError:
        raise TypeError(
            f"{name} must be a RegressionPrior, or a mapping of its {', '.join(RegressionPrior._fields)}; got {prior!r}"
        ) from None
    return prior.check(name)
