"""The linear dynamical system of which numbers are known or equal: by EM and by gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.kernels.matrix_equations import check_stable
from pplseq.models.estimator import Estimator
from pplseq.models.lds.fit import floors, parameter_units
from pplseq.models.lds.parameters import (
    SCALES,
    Parameters,
    RegressionPrior,
    stationary_belief,
)
from pplseq.models.lds.patterns import CovariancePattern, Pattern
from pplseq.models.lds.program import LDS
from pplseq.models.lds.statistics import Regression, residual_scatter, solve_symmetric


def _part(name: str) -> Any:
    def value(self) -> Tensor | None:
        return self.patterns[name].matrix(getattr(self, f"free_{name}")) if name in self.patterns else None

    return property(value, doc=f"The parameter {name}, with what is known of it; None where the model has none.")


class ConstrainedLDS(LDS):
    """A :class:`~pplseq.models.lds.program.LDS` of whose parameters some numbers are known, and some are equal.

    A pattern says so entry by entry: a number is known, entries of one name are equal, NaN (or None) is free::

        patterns = {
            "transition": [[1, 1], [0, "damping"]],      # known but for one number
            "emission": [[1, 0]],
            "state_noise": [["one", 0], [0, "one"]],      # one variance for two states
            "emission_noise": "scalar",
        }
        model = ConstrainedLDS(2, 1, patterns, offsets="none").fit(x)
        print(model.summary(x))

    Args:
        num_states: h. num_features: n.
        patterns: by the names of :meth:`set_parameters`; parameters without one are free. See
            :class:`~pplseq.models.lds.patterns.Pattern`; words for all of a parameter are "free", "diagonal", "scalar",
            "identity" and "zero". Covariances are made of blocks that are free, diagonal, tied, of one variance and one
            covariance, or known; a known variance may be 0. ``initial_mean`` and ``initial_covariance`` have patterns, too.
        num_inputs, inputs_to, offsets, initial, state_prior, emission_prior, noise_floor, dtype: as of the LDS.

    Fits start from the weights that are there, drawn or set, and from noises of the data's size. EM is in closed form:
    covariances are averages over equal entries, weights are weighted least squares given the noise (so that iterations where
    noises couple constrained rows are those of ECM, and never fall). Weights of a state without noise stay as they are in EM,
    as its statistics say nothing of them; use method="lbfgs", as where they are equal to weights of one with noise. With
    ``initial="stationary"`` there are gradients only.

    Raises:
        ValueError: for patterns of other shapes or of parameters that the model has not, and of covariances that are not closed
            under products.

    Source: E. E. Holmes (2013), Derivation of the EM algorithm for constrained and unconstrained multivariate autoregressive
    state-space (MARSS) models, arXiv:1302.3919; X.-L. Meng and D. B. Rubin (1993), Maximum likelihood estimation via the ECM
    algorithm, Biometrika 80(2). Cost: as the LDS; (free weights)^3 an M-step.
    """

    free_emission_noise: Tensor
    free_emission_offset: Tensor
    free_initial_covariance: Tensor
    name = "constrained_lds"
    starts = ()

    def __init__(
        self,
        num_states: int,
        num_features: int,
        patterns: Mapping[str, Any] | None = None,
        *,
        num_inputs: int = 0,
        inputs_to: str = "both",
        offsets: str = "both",
        initial: str = "learned",
        state_prior: RegressionPrior | Mapping | None = None,
        emission_prior: RegressionPrior | Mapping | None = None,
        noise_floor: float | None = None,
        dtype: str = "float64",
    ):
        Estimator.__init__(self)
        real = self._take_options(
            num_states, num_features, num_inputs, inputs_to, offsets, initial, state_prior, emission_prior, noise_floor, dtype
        )
        h, n, given = self.num_states, self.num_features, dict({} if patterns is None else patterns)
        shapes: dict[str, tuple[int, ...]] = {"transition": (h, h), "emission": (n, h)}
        for kind, size in (("transition", h), ("emission", n)):
            shapes |= {f"{kind}_offset": (size,)} if offsets in ("both", kind) else {}
            shapes |= {f"{kind}_inputs": (size, num_inputs)} if num_inputs and inputs_to in ("both", kind) else {}
        shapes |= {"state_noise": (h, h), "emission_noise": (n, n)}
        shapes |= {"initial_mean": (h,), "initial_covariance": (h, h)} if initial == "learned" else {}
        if unknown := [name for name in given if name not in shapes]:
            raise ValueError(f"patterns: this model has no {unknown[0]!r}.{checks.nearest(unknown[0], shapes)}")
        self.patterns: dict[str, Pattern] = {
            name: CovariancePattern(name, given.get(name, "free"), shape[0]) if name in SCALES
            else Pattern(name, given.get(name, "free"), shape)
            for name, shape in shapes.items()
        }  # fmt: skip
        checks.fits("num_states", 8.0 * max(sum(len(p.names) for p in self.patterns.values()), 1) ** 2, "know more numbers")
        drawn = {"transition": 0.5 * torch.eye(h), "emission": torch.randn(n, h) / h**0.5}
        for name, pattern in self.patterns.items():
            value = torch.eye(shapes[name][0]) if name in SCALES else drawn.get(name, torch.zeros(shapes[name]))
            self.register_parameter(f"free_{name}", nn.Parameter(pattern.raw(value.to(real))))
        told = patterns if _plain(patterns) else {name: self.patterns[name].as_config() for name in given}
        self._config["patterns"] = told
        self.drawn()

    @property
    def num_free_parameters(self) -> int:
        """Free numbers that the last fit was not told to keep; which of them other coordinates of the states would make up
        for depends on the patterns."""
        return sum(own.numel() for name, own in self._own.items() if name not in self._not_free)

    # ---------------------------------------------------------------- what a linear dynamical system is made of
    transition, emission = _part("transition"), _part("emission")
    state_noise: Any = _part("state_noise")
    transition_offset, emission_offset = _part("transition_offset"), _part("emission_offset")
    transition_inputs, emission_inputs = _part("transition_inputs"), _part("emission_inputs")
    initial_mean = _part("initial_mean")

    @property
    def _emission_noise(self) -> Tensor:
        pattern: Any = self.patterns["emission_noise"]
        value = pattern.matrix(self.free_emission_noise)
        return value.diagonal() if pattern.diagonal else value

    @property
    def _initial_belief(self) -> GaussianBelief:
        if self.initial == "learned":
            return GaussianBelief(self.initial_mean, self.patterns["initial_covariance"].matrix(self.free_initial_covariance))
        if self.initial == "diffuse":
            return self._diffuse_belief
        return stationary_belief(self.transition, self.transition_offset, self.state_noise)

    @property
    def _own(self) -> dict[str, Any]:
        return {name: getattr(self, f"free_{name}") for name in self.patterns}

    @property
    def _pinned(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What a pattern says something of, and therefore of the coordinates of states."""
        return frozenset(name for name, pattern in self.patterns.items() if bool((pattern.known != 0).any()))

    def _full(self, name: str, values: Parameters) -> Tensor:
        value = getattr(values, name)
        return torch.diag(value) if name in SCALES and value.dim() == 1 else value

    def _unidentified(self) -> tuple[frozenset[str], str]:
        return frozenset(), ""

    def estimates(self) -> dict[str, Tensor]:
        """The free numbers, "PARAMETER NAME" each, differentiable."""
        found, written = {}, self._written()
        for name, pattern in self.patterns.items():
            free = pattern.average(self._full(name, written))
            found |= {f"{name} {label}": free[k] for k, label in enumerate(pattern.names)}
        return found

    @torch.no_grad()
    def set_parameters(self, **given) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Sets parameters by name, in the shapes that the LDS's have; what is not given stays.

        Raises:
            ValueError: for values that have not their patterns, wrong shapes, matrices that are no covariances, and an unstable
                transition where the start is stationary. TypeError: for parameters that this model has not.
        """
        checks.parameters_of(self, given, self.patterns)
        found = {}
        for name, value in given.items():
            value = torch.as_tensor(value, dtype=torch.float64).to(self.reference)
            value = torch.diag(value) if name in SCALES and value.dim() == 1 else value
            found[name] = self.patterns[name].raw(self.patterns[name].check(value))
            if name == "transition" and self.initial == "stationary":
                check_stable(name, value)
        for name, value in found.items():
            self._own[name].copy_(value)
        return self

    @torch.no_grad()
    def _put(self, parameters: Parameters) -> None:
        for name, target in self._own.items():
            if name not in self.held:
                target.copy_(self.patterns[name].raw(self._full(name, parameters)))

    # ---------------------------------------------------------------- fit
    def fit(self, x, lengths=None, *, fixed: Sequence[str] | str = (), **options) -> Self:  # pyright: ignore
        """See :meth:`~pplseq.models.lds.program.LDS.fit`; ``fixed``: names of parameters that keep their values."""
        if not any(pattern.names for pattern in self.patterns.values()):
            raise ValueError("patterns: every number is known, so there is nothing to fit")
        return super().fit(x, lengths, fixed=fixed, **options)

    def _is_warm(self, held: set[str]) -> bool:
        return False  # patterns say in which coordinates states are, and a start keeps to them

    def _check_method(self, method: str) -> None:
        super()._check_method(method)
        if method == "em" and self.initial == "stationary":
            raise ValueError(
                "method: with initial='stationary' and patterns there is no M-step; use method='lbfgs' or 'sgd', or "
                "initial='learned'"
            )
        for kind, named in (("transition", "state_noise"), ("emission", "emission_noise")) if method == "em" else ():
            noise: Any = self.patterns[named]
            silent = ((noise.index < 0) & (noise.known == 0)).all(-1)
            for name in (kind, f"{kind}_offset", f"{kind}_inputs"):
                index = self.patterns[name].index if name in self.patterns and name not in self.held else silent.new_zeros(0)
                if index.numel() and set(index[silent].flatten().tolist()) & set(index[~silent].flatten().tolist()) - {-1}:
                    raise ValueError(
                        f"method: {name} has a number in a row with noise and in one without, whose M-step is not closed; "
                        "use method='lbfgs' or 'sgd'"
                    )

    @torch.no_grad()
    def initialize(self, batch: Batch, how: str = "") -> None:
        """Weights as they are, offsets of observations at the means, and noises of the data's size."""
        known = ~batch.x.isnan() & batch.valid.unsqueeze(-1)
        count = known.sum((0, 1)).clamp_min(1)
        mean = batch.x.where(known, 0.0).sum((0, 1)) / count
        spread = (batch.x - mean).where(known, 0.0).square().sum((0, 1)) / count
        spread = spread.where(spread > 0, 1.0)
        values = self.values
        loadings = values.emission.square().sum() / values.emission.shape[1]
        size = torch.full_like(values.transition[0], float(spread.mean() / loadings.clamp_min(1e-8)))
        guess = {"state_noise": 0.1 * size, "emission_noise": 0.5 * spread, "initial_covariance": size}
        for name, variances in guess.items():
            if name in self.patterns and name not in self.held:
                pattern: Any = self.patterns[name]
                self._own[name].copy_(pattern.raw(pattern.nearest(torch.diag(variances), 0.0, torch.diag(variances))[0]))
        if "emission_offset" in self.patterns and "emission_offset" not in self.held:
            self.free_emission_offset.copy_(self.patterns["emission_offset"].average(mean))

    @torch.no_grad()
    def maximize(self, statistics: Statistics) -> list[str]:
        now = new = self.values
        lowest, notes = floors(statistics, self.noise_floor), []
        for kind, noise, prior in (
            ("transition", "state_noise", self.state_prior), ("emission", "emission_noise", self.emission_prior),
        ):  # fmt: skip
            part = Regression(*(statistics[f"{kind}_{field}"] for field in Regression._fields))
            weights, columns = now.weights(kind), now.columns(kind)
            shrunk = [not name.endswith("_offset") for name, value in columns.items() for _ in range(value.shape[-1])]
            ridge = prior.strength * torch.tensor(shrunk).to(weights)
            before = self._full(noise, now)
            index = torch.cat([_index(self.patterns[name], name in self.held, k) for k, name in enumerate(columns)], -1)
            step = constrained_step(weights, before, part, index.to(weights.device), ridge)
            new = new.with_weights(kind, weights + step)
            total = float(part.count) + prior.count
            if noise not in self.held and total > 0:
                scatter = residual_scatter(part, step) + ((weights + step) * ridge) @ (weights + step).T
                scatter = scatter + prior.count * prior.variance * torch.eye(len(scatter)).to(scatter)
                pattern: Any = self.patterns[noise]
                covariance, floored = pattern.nearest(scatter / total, lowest[noise], before)
                new = new._replace(**{noise: covariance})
                notes += [f"{noise} met its floor in some direction: know more of it, or give a noise_floor"] if floored else []
        if self.initial == "learned":
            new = self._first_state(now, new, statistics, lowest["initial_covariance"])
        self._put(new)
        self._lowest = lowest
        return notes

    def _first_state(self, now: Parameters, new: Parameters, statistics: Statistics, floor: float | Tensor) -> Parameters:
        assert now.initial_mean is not None and now.initial_covariance is not None, "its start is learned"
        count, first, pattern = statistics["num_sequences"], statistics["first_mean"], self.patterns["initial_covariance"]
        error = (first - count * now.initial_mean).unsqueeze(-1)
        part = Regression(count, count.reshape(1, 1), error, torch.zeros_like(now.transition))
        index = _index(self.patterns["initial_mean"], "initial_mean" in self.held, 0).to(error.device)
        about = now.initial_mean.unsqueeze(-1)
        mean = (about + constrained_step(about, now.initial_covariance, part, index, 0 * count)).squeeze(-1)
        cross = torch.outer(first, mean)
        scatter = statistics["first_second"] - cross - cross.T + count * torch.outer(mean, mean)
        assert isinstance(pattern, CovariancePattern)
        covariance = now.initial_covariance
        if "initial_covariance" not in self.held:
            covariance = pattern.nearest(scatter / count, floor, covariance)[0]
        return new._replace(initial_mean=mean, initial_covariance=covariance)

    # ---------------------------------------------------------------- coordinates
    def _parameter_units(self) -> dict[str, Tensor]:
        units, found = parameter_units(self.values), {}
        for name, pattern in self.patterns.items():
            free = self._own[name]
            own = torch.ones_like(free) if name in SCALES else pattern.average(units[name].to(free))
            found[f"free_{name}"] = own
        return found

    def _em_coordinates(self) -> tuple[Tensor, Tensor]:
        units = self._parameter_units()
        free = self._free
        return torch.cat([self._own[name].detach() for name in free]), torch.cat([units[f"free_{name}"] for name in free])

    @torch.no_grad()
    def _set_em_coordinates(self, coordinates: Tensor) -> None:
        here = self.values
        for name in self._free:
            target = self._own[name]
            target.copy_(coordinates[: len(target)])
            coordinates = coordinates[len(target) :]
        there = self.values
        for name, floor in self._lowest.items():
            pattern = self.patterns.get(name)
            if isinstance(pattern, CovariancePattern) and name not in self.held:
                kept = pattern.nearest(self._full(name, there), floor, self._full(name, here))[0]
                self._own[name].copy_(pattern.raw(kept))


def _index(pattern: Pattern, held: bool, number: int) -> Tensor:
    """(size, columns) which free number each entry of a part of weights is, -1 for none; numbers of parts do not meet."""
    index = pattern.index if pattern.index.dim() == 2 else pattern.index.unsqueeze(-1)
    return torch.full_like(index, -1) if held else torch.where(index < 0, -1, index + number * (1 << 32))


def constrained_step(weights: Tensor, noise: Tensor, statistics: Regression, index: Tensor, ridge: Tensor) -> Tensor:
    """The step to the most likely weights (n, k) of a regression, given its noise (n, n), along entries that are equal.

    Args:
        statistics: about ``weights``. index: (n, k) numbers, alike where entries are equal, -1 where they are known.
        ridge: (k,) by which the prior pulls columns to zero.
    """
    step, places = torch.zeros_like(weights), (index >= 0).nonzero()
    if not len(places):
        return step
    rows, columns = places.unbind(-1)
    which, number = torch.unique(index[rows, columns], return_inverse=True)
    precision = torch.linalg.pinv(noise, hermitian=True)
    moment = statistics.moment + torch.diag(ridge.expand(len(statistics.moment)))
    slope = (precision @ (statistics.cross - weights * ridge))[rows, columns]
    bend = precision[rows][:, rows] * moment[columns][:, columns]
    gather = torch.nn.functional.one_hot(number, len(which)).to(weights)
    step[rows, columns] = solve_symmetric(gather.T @ bend @ gather, (gather.T @ slope).unsqueeze(-1)).squeeze(-1)[number]
    return step


def _plain(patterns: Any) -> bool:
    """Whether patterns are what JSON holds, so that they are kept as they were given."""
    if isinstance(patterns, Mapping):
        return type(patterns) is dict and all(_plain(value) for value in patterns.values())
    if isinstance(patterns, list):
        return all(_plain(value) for value in patterns)
    return patterns is None or isinstance(patterns, (str, int)) or isinstance(patterns, float) and patterns == patterns
