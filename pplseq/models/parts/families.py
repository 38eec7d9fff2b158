"""Families by name: distributions of single numbers, how EM learns them, their priors, and how predictors drive them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pplseq.distributions.columns import CircularNormal
from pplseq.infer.fit.closed_forms import dirichlet_mode
from pplseq.infer.fit.em import Statistics, least_variances
from pplseq.models.parts.links import POSITIVE_LINKS, SHARE_LINKS, Link, positive

Parameters = Mapping[str, Tensor]  # (Z, D) each
TINY = 1e-10
NEWTON_STEPS = 60
LARGEST = 1e6  # of a parameter that has no finite maximum: a negative binomial's size at Poisson data


def inside_simplex(probs: Tensor) -> Tensor:
    """The same rows without zeros."""
    probs = probs.clamp_min(1e-6)
    return probs / probs.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a family: where it lives and what it is like before data.

    Args:
        constraint: of its values. prior: a mean and a standard deviation, of the value where it is real, of its logarithm
            where it is positive, of its log odds between 0 and 1; None for a uniform prior on the circle.
    """

    constraint: constraints.Constraint = constraints.real
    prior: tuple[float, float] | None = (0.0, 10.0)

    @property
    def support(self) -> tuple[float, float]:
        """The ends of what values may be."""
        ends = (getattr(self.constraint, f"{end}_bound", None) for end in ("lower", "upper"))
        low, high = (free if end is None else float(end) for end, free in zip(ends, (-math.inf, math.inf), strict=True))
        return low, high

    def shape(self, num_states: int, num_columns: int) -> tuple[int, ...]:
        """Of a table."""
        return num_states, num_columns

    def inside(self, value: Tensor) -> Tensor:
        """A value at none of the ends of what it may be."""
        return value

    def check(self, name: str, value: Tensor) -> None:
        """Raises ValueError for values that it may not have."""
        if not bool(self.constraint.check(value).all()):
            raise ValueError(f"{name}: outside of {self.constraint}; got {value.flatten()[:3].tolist()}, ...")

    def unconstrained(self, value: Tensor) -> Tensor:
        return torch.distributions.biject_to(self.constraint).inv(value)

    def value(self, raw: Tensor) -> Tensor:
        return torch.distributions.biject_to(self.constraint)(raw)

    def distribution(self, shape: tuple[int, ...], like: Tensor) -> TorchDistribution:
        """The prior of a table."""
        if self.prior is None:
            turns: Any = dist.Uniform(like.new_tensor(-math.pi), like.new_tensor(math.pi)).expand(shape)
            return turns.to_event(len(shape))
        loc, scale = map(like.new_tensor, self.prior)
        base: Any = dist.Normal(loc, scale).expand(shape)
        transform = torch.distributions.biject_to(self.constraint)
        if self.constraint is constraints.real:
            return base.to_event(len(shape))
        found: Any = _Within(base, [transform])
        found.constraint = self.constraint
        return found.to_event(len(shape))


class _Within(dist.TransformedDistribution):
    """Where a parameter may lie, which transforms of several parts do not tell."""

    constraint: constraints.Constraint

    @property
    def support(self) -> constraints.Constraint:  # pyright: ignore[reportIncompatibleVariableOverride,reportIncompatibleMethodOverride]
        return self.constraint


@dataclass(frozen=True)
class Probabilities(Parameter):
    """Rows of probabilities of a number of levels, learned as logits; the prior is Dirichlet(1), or as it is given."""

    constraint: constraints.Constraint = constraints.simplex
    prior: tuple[float, ...] | None = (1.0,)  # pyright: ignore[reportIncompatibleVariableOverride]
    num_levels: int = 2

    def shape(self, num_states: int, num_columns: int) -> tuple[int, ...]:
        return num_states, self.num_levels

    def inside(self, value: Tensor) -> Tensor:
        return inside_simplex(value)

    def check(self, name: str, value: Tensor) -> None:
        if not bool(((value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-4)).all()):
            raise ValueError(f"{name}: every row must hold probabilities that sum to 1")

    def unconstrained(self, value: Tensor) -> Tensor:
        return value.log()

    def value(self, raw: Tensor) -> Tensor:
        return torch.softmax(raw, -1)

    def distribution(self, shape: tuple[int, ...], like: Tensor) -> TorchDistribution:
        concentration = like.new_tensor(self.prior or (1.0,)).expand(shape)
        made: Any = dist.Dirichlet(concentration)
        return made.to_event(len(shape) - 1)


@dataclass(frozen=True)
class Driven:
    """How linear predictors drive a family; its other parameters are then those of each state, its dispersions.

    Args:
        name: the parameter in whose place the mean or location stands that a link makes of a predictor.
        links: those it may have, the usual one first.
        start: mean and variance () of a column -> first values of the other parameters; None: they are fitted to the column.
        make: mean or location, others by name -> the distribution; None: the family's own. of_logits: the same of log odds.
        averages: whether the likeliest mean of numbers that share one, and exposures, is theirs, whatever else is learned.
    """

    name: str
    links: tuple[str, ...] = ("identity",)
    start: Callable[[Tensor, Tensor], dict[str, Tensor]] | None = None
    make: Callable[..., TorchDistribution] | None = None
    of_logits: Callable[..., TorchDistribution] | None = None
    averages: bool = False


@dataclass(frozen=True, eq=False)
class Family:
    """A distribution of single numbers with parameters of each state.

    Args:
        make: parameters by name, of any shape -> the distribution.
        parameters: what they are.
        statistics: observations (N, D), weights (N, Z, D), parameters -> sums over N, (Z, D, ...); None: EM cannot learn it.
        update: statistics, parameters -> parameters that raise the expected log-likelihood, in closed form or by Newton's
            method on one of them.
        start: one column (N,) of data -> parameters of states around it; None: each state is fitted to a cluster of the data,
            see :mod:`~pplseq.models.parts.family_start`.
        holds: whether a column of data (N,) lies in the support, and how to say what it takes.
        unusual: where a column (N,) hints at another unit than the family takes, and what to say of it.
        fill: a number of the support, inside of it. histogram: whether the statistics are those of :func:`histogram`, but where
            exposures are told.
        about_origin: whether statistics and update take numbers, and "loc", as seen from a point near the data, so that moments
            lose no digits; the point is then among the parameters of both, "origin" (D,).
        moving: names of parameters that the support depends on. called: what messages call it.
        driven: how linear predictors drive it; None: they cannot.
        sized: "trials" or "exposure", what it takes beside its parameters, of each step or of all; None: nothing.
        num_levels: of a :func:`categorical` column; None: its numbers are numbers.
    """

    make: Callable[..., TorchDistribution]
    parameters: Mapping[str, Parameter]
    statistics: Callable[[Tensor, Tensor, Parameters], Statistics] | None = None
    update: Callable[[Statistics, Parameters], dict[str, Tensor]] | None = None
    start: Callable[[Tensor, int], dict[str, Tensor]] | None = None
    holds: tuple[Callable[[Tensor], Tensor], str] | None = None
    fill: float = 0.0
    histogram: bool = False
    unusual: tuple[Callable[[Tensor], Tensor], str] | None = None
    about_origin: bool = False
    moving: tuple[str, ...] = ()
    called: str = "its family"
    driven: Driven | None = None
    sized: str | None = None
    num_levels: int | None = None

    def predicted(self, link: Link, eta: Tensor, others: Mapping[str, Tensor]) -> TorchDistribution:
        """The distribution with predictors in the place of a parameter."""
        assert self.driven is not None, "refused before"
        if self.driven.of_logits is not None:
            return self.driven.of_logits(link.logits(eta), **others)
        mean = link.mean(eta)
        return self.make(**{self.driven.name: mean}, **others) if self.driven.make is None else self.driven.make(mean, **others)

    @property
    def has_em(self) -> bool:
        return self.update is not None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy of one of :data:`FAMILIES` is that one."""
        if self.num_levels is not None:
            return categorical, (self.num_levels,)
        name = next((name for name, own in FAMILIES.items() if own is self), None)
        return super().__reduce_ex__(protocol) if name is None else (known_family, (name,))


def maximize_each(value: Tensor, objective: Callable[[Tensor], Tensor]) -> Tensor:
    """Positive numbers near ``value`` that maximise a function of each alone, by Newton's method on their logarithms.

    Args:
        value: (...) where to start. objective: positive numbers (...) -> values (...), each of its own number.

    Cost: an evaluation, with second derivatives, a step; stops where no number moves. Never ends below where it started.
    """
    raw, trust = value.clamp(1 / LARGEST, LARGEST).log(), torch.ones_like(value)
    with torch.enable_grad():
        for _ in range(NEWTON_STEPS):
            at = raw.detach().requires_grad_()
            now = objective(at.exp())
            slope = torch.autograd.grad(now.sum(), at, create_graph=True)[0]
            bend = torch.autograd.grad(slope.sum(), at)[0]
            slope, now = slope.detach(), now.detach()
            step = torch.where(bend < 0, -slope / bend.clamp_max(-TINY), slope.sign() * trust)
            step = step.clamp(-trust, trust).nan_to_num(0.0)
            step = (at.detach() + step).clamp(-math.log(LARGEST), math.log(LARGEST)) - at.detach()
            after = objective((at + step).exp()).detach()
            better = after >= now  # NaN is not
            raw = torch.where(better, at.detach() + step, at.detach())
            trust = torch.where(better, (2 * trust).clamp_max(2.0), trust / 4)
            if not bool((step.abs() > 1e-9).any()):
                break
    return raw.exp()


def _weighted(obs: Tensor, weight: Tensor) -> Statistics:
    return {"weight": weight.sum(0), "first": torch.einsum("nzd,nd->zd", weight, obs)}


def _mean(statistics: Statistics, smallest: float) -> Tensor:
    return (statistics["first"] / statistics["weight"].clamp_min(TINY)).clamp_min(smallest)


# ------------------------------------------------------------------------------------------------ normal, Student t
def _normal_statistics(obs: Tensor, weight: Tensor, _: Parameters) -> Statistics:
    return _weighted(obs, weight) | {"second": torch.einsum("nzd,nd->zd", weight, obs**2)}


def _kept(name: str, new: Tensor, p: Parameters) -> Tensor:
    """A new parameter where it may lie; those that depend on it are set after it."""
    within: Any = p.get(f"within {name}")
    return new if within is None else within(new)


def _about(loc: Tensor, mass: Tensor, s: Statistics) -> Tensor:
    """Mean squares about a location."""
    mean = s["first"] / mass
    return s["second"] / mass - mean**2 + (loc - mean).square()


def _normal_update(s: Statistics, p: Parameters) -> dict[str, Tensor]:
    mass = s["weight"].clamp_min(TINY)
    loc = _kept("loc", s["first"] / mass, p)
    return {"loc": loc, "scale": _about(loc, mass, s).maximum(_lowest(s, mass, p)).sqrt()}


def _lowest(s: Statistics, mass: Tensor, p: Parameters) -> Tensor:
    """(D,) smallest variances that a state may have: a thousandth of the data's own."""
    return least_variances(mass.sum(0), s["first"].sum(0), s["second"].sum(0), 1e-3, p["origin"])


def _student_statistics(obs: Tensor, weight: Tensor, p: Parameters) -> Statistics:
    """Each number is normal with a precision of its own, which is Gamma(df / 2, df / 2); expectations of that and its log.

    Source: C. Liu and D. B. Rubin (1995), ML estimation of the t distribution using EM and its extensions, section 2.
    """
    df, squared = p["df"].double(), ((obs.unsqueeze(-2) - p["loc"].double()) / p["scale"].double()).square()
    shape, rate = (df + 1) / 2, (df + squared) / 2
    precision, log_precision = shape / rate, torch.digamma(shape) - rate.log()
    scaled = weight * precision
    return {
        "weight": weight.sum(0), "mass": scaled.sum(0), "first": torch.einsum("nzd,nd->zd", scaled, obs),
        "second": torch.einsum("nzd,nd->zd", scaled, obs**2), "log": (weight * log_precision).sum(0),
    }  # fmt: skip


def _student_update(s: Statistics, p: Parameters) -> dict[str, Tensor]:
    mass = s["mass"].clamp_min(TINY)
    loc, weight = _kept("loc", s["first"] / mass, p), s["weight"].clamp_min(TINY)
    scale = (_about(loc, mass, s) * mass / weight).maximum(_lowest(s, mass, p)).sqrt()
    about = (s["log"] - s["mass"]) / weight  # mean of log u - u

    def objective(df: Tensor) -> Tensor:
        half = df / 2
        return half * half.log() - torch.lgamma(half) + half * about

    return {"loc": loc, "scale": scale, "df": maximize_each(p["df"].to(mass), objective)}


def _around(column: Tensor, states: int) -> dict[str, Tensor]:
    """Locations of some of the data, and a scale that is theirs all."""
    scale, size = column.std(correction=0), column.abs().mean()
    scale = scale if float(scale) > 1e-14 * float(size) else 1e-6 * size + TINY  # one value, rounded
    return {"loc": _some(column, states), "scale": scale.expand(states)}


def _some(column: Tensor, states: int) -> Tensor:
    """(Z,) values spread over the distribution of a column, in random order and a little off."""
    share = (torch.arange(states).to(column) + torch.rand(states).to(column)) / states
    return torch.quantile(column[torch.randperm(len(column))[:20_000]], share)[torch.randperm(states)]


# ------------------------------------------------------------------------------------------------ counts
def _whole(column: Tensor) -> Tensor:
    return (column >= 0) & (column == column.floor())


WHOLE = (_whole, "counts 0, 1, 2, ...")


def _rates(column: Tensor, states: int) -> dict[str, Tensor]:
    least = 0.1 * float(column.mean())  # in any unit of exposure
    return {"rate": _some(column, states).clamp_min(least if least > 0 else 1e-3)}


def histogram(obs: Tensor, weight: Tensor, largest: int) -> Statistics:
    """Expected numbers (Z, D, largest + 1) of each count; weight: (N, Z, D)."""
    total = weight.new_zeros(largest + 1, *weight.shape[1:])
    index = obs.long().unsqueeze(1).expand(weight.shape)
    return {"histogram": total.scatter_add_(0, index, weight).movedim(0, -1)}


def _negative_binomial(mean: Tensor, size: Tensor, exposure: Tensor | None = None) -> TorchDistribution:
    mean = mean if exposure is None else mean * exposure
    return dist.NegativeBinomial(size, logits=mean.log() - size.log(), validate_args=False)


def _negative_binomial_statistics(obs: Tensor, weight: Tensor, p: Parameters) -> Statistics:
    """Where exposures differ: each count is Poisson with a rate of its own, which is Gamma(size, size / mean); expectations of
    that and its log. EM takes many steps where sizes are large, as counts then say little of their rates beside the gamma."""
    size, mean = p["size"].double(), p["mean"].double()
    shape, rate = obs.unsqueeze(1) + size, size / mean + p["exposure"]
    parts = {"first": shape / rate, "log": torch.digamma(shape) - rate.log()}
    return {"weight": weight.sum(0)} | {name: (weight * part).sum(0) for name, part in parts.items()}


def _negative_binomial_update(s: Statistics, p: Parameters) -> dict[str, Tensor]:
    """The mean is that of the data whatever the size is; the size by Newton's method."""
    if "histogram" not in s:
        weight = s["weight"].clamp_min(TINY)
        first, log = s["first"] / weight, s["log"] / weight
        own = _kept("mean", first.clamp_min(TINY), p)

        def expected(size: Tensor) -> Tensor:
            return size * (size / own).log() - torch.lgamma(size) + size * log - size * first / own

        return {"mean": own, "size": maximize_each(p["size"].to(own), expected)}
    histogram = s["histogram"]  # (Z, D, N)
    number = torch.arange(histogram.shape[-1]).to(histogram)
    weight = histogram.sum(-1).clamp_min(TINY)
    seen = ((histogram * number).sum(-1) / weight).clamp_min(TINY)
    mean = _kept("mean", seen, p)

    def objective(size: Tensor) -> Tensor:
        pochhammer = torch.lgamma(number + size.unsqueeze(-1)) - torch.lgamma(size).unsqueeze(-1)
        normaliser = size * (size / (size + mean)).log() + seen * (mean / (size + mean)).log()
        return (histogram * pochhammer).sum(-1) / weight + normaliser

    return {"mean": mean, "size": maximize_each(p["size"].to(mean), objective)}


def _binomial_statistics(obs: Tensor, weight: Tensor, p: Parameters) -> Statistics:
    return _weighted(obs, weight) | {"trials": (weight * p["trials"]).sum(0)}


def _poisson_statistics(obs: Tensor, weight: Tensor, p: Parameters) -> Statistics:
    return _weighted(obs, weight) | {"exposure": (weight * p.get("exposure", weight.new_ones(()))).sum(0)}


def _share_of(successes: Tensor, total: Tensor) -> dict[str, Tensor]:
    return {"probs": (successes / total.clamp_min(TINY)).clamp_min(0.0).clamp(1e-6, 1 - 1e-6)}


def _any_shares(column: Tensor, states: int) -> dict[str, Tensor]:
    return {"probs": 0.05 + 0.9 * torch.rand(states).to(column)}


# ------------------------------------------------------------------------------------------------ positive numbers
def _gamma_statistics(obs: Tensor, weight: Tensor, _: Parameters) -> Statistics:
    return _weighted(obs, weight) | {"log": torch.einsum("nzd,nd->zd", weight, obs.log())}


def _gamma_update(s: Statistics, p: Parameters) -> dict[str, Tensor]:
    """The rate is that which gives the data's mean, unless it is held or bound; the concentration by Newton's method."""
    mean, log = _mean(s, 1e-300), s["log"] / s["weight"].clamp_min(TINY)

    def objective(concentration: Tensor) -> Tensor:
        own = _kept("rate", concentration / mean, p)
        return concentration * own.log() - torch.lgamma(concentration) + concentration * log - own * mean

    concentration = _kept("concentration", maximize_each(p["concentration"].to(mean), objective), p)
    return {"concentration": concentration, "rate": _kept("rate", concentration / mean, p)}


def _gamma_start(column: Tensor, states: int) -> dict[str, Tensor]:
    return {"concentration": column.new_full((states,), 5.0), "rate": 5.0 / _some(column, states)}


def _size(name: str) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """A shape that explains a column's mean and variance, or near it."""
    return lambda mean, variance: {name: (mean**2 / variance.clamp_min(1e-12)).clamp(0.5, 50.0)}


def _exponential_update(s: Statistics, _: Parameters) -> dict[str, Tensor]:
    """A state of zeros has a mean that is a millionth of the data's."""
    size = s["first"].sum(0) / s["weight"].sum(0).clamp_min(TINY)
    return {"rate": 1 / _mean(s, 0.0).maximum(torch.where(size > 0, size, 1.0) / LARGEST)}


# ------------------------------------------------------------------------------------------------ angles
def _circular_update(s: Statistics, p: Parameters) -> dict[str, Tensor]:
    """Source: K. V. Mardia and P. E. Jupp (2000), Directional statistics, section 5.3.1."""
    loc = _kept("loc", torch.atan2(s["sine"], s["cosine"]), p)
    length = (s["cosine"] * loc.cos() + s["sine"] * loc.sin()) / s["weight"].clamp_min(TINY)

    def objective(kappa: Tensor) -> Tensor:
        return kappa * (length - 1) - torch.special.i0e(kappa).log()

    concentration = maximize_each(p["concentration"].to(length), objective)
    return {"loc": loc, "concentration": concentration}


def _circular_statistics(obs: Tensor, weight: Tensor, _: Parameters) -> Statistics:
    cosine, sine = (torch.einsum("nzd,nd->zd", weight, part) for part in (obs.cos(), obs.sin()))
    return {"weight": weight.sum(0), "cosine": cosine, "sine": sine}


REAL, POSITIVE = Parameter(), Parameter(constraints.positive, (0.0, 3.0))
SHARE = Parameter(constraints.unit_interval, (0.0, 1.5))
FAMILIES: dict[str, Family] = {
    "normal": Family(
        lambda loc, scale: dist.Normal(loc, scale, validate_args=False), {"loc": REAL, "scale": POSITIVE},
        _normal_statistics, _normal_update, _around, about_origin=True,
        driven=Driven("loc", ("identity", "log"), lambda _, variance: {"scale": variance.sqrt()}, averages=True),
    ),
    "student_t": Family(
        lambda loc, scale, df: dist.StudentT(df, loc, scale, validate_args=False),
        {"loc": REAL, "scale": POSITIVE, "df": Parameter(constraints.positive, (2.0, 1.0))},
        _student_statistics, _student_update,
        lambda column, states: _around(column, states) | {"df": column.new_full((states,), 8.0)}, about_origin=True,
        driven=Driven("loc", start=lambda _, variance: {"scale": variance.sqrt(), "df": 8 * torch.ones_like(variance)}),
    ),
    "poisson": Family(
        lambda rate, exposure=None: dist.Poisson(rate if exposure is None else rate * exposure, validate_args=False),
        {"rate": POSITIVE},
        _poisson_statistics, lambda s, _: {"rate": (s["first"] / s["exposure"].clamp_min(TINY)).clamp_min(TINY)}, _rates, WHOLE,
        driven=Driven("rate", POSITIVE_LINKS, averages=True), sized="exposure",
    ),
    "negative_binomial": Family(
        _negative_binomial, {"mean": POSITIVE, "size": Parameter(constraints.positive, (1.0, 2.0))},
        _negative_binomial_statistics, _negative_binomial_update,
        lambda column, states: {"mean": _rates(column, states)["rate"], "size": column.new_full((states,), 5.0)}, WHOLE,
        histogram=True, driven=Driven(
            "mean", POSITIVE_LINKS, _size("size"), averages=True,
            make=lambda mean, size, exposure=None: _negative_binomial(positive(mean), size, exposure),
        ), sized="exposure",
    ),
    "von_mises": Family(
        lambda loc, concentration: CircularNormal(loc, concentration, validate_args=False),
        {"loc": Parameter(constraints.real, None), "concentration": POSITIVE}, _circular_statistics, _circular_update,
        lambda column, states: {"loc": _some(column, states), "concentration": column.new_full((states,), 2.0)},
        unusual=(
            lambda column: column.abs() > 4 * math.pi,  # a turn more may be meant
            "von_mises takes angles in radians, and some are far beyond 2 pi; make radians of degrees: numpy.deg2rad(x)",
        ),
        driven=Driven("loc", start=lambda mean, _: {"concentration": torch.ones_like(mean)}),
    ),
    "exponential": Family(
        lambda rate: dist.Exponential(rate, validate_args=False), {"rate": POSITIVE},
        lambda obs, weight, _: _weighted(obs, weight), _exponential_update,
        lambda column, states: {"rate": 1 / _some(column, states).clamp_min(0.1 * float(column.mean() or TINY))},
        (lambda column: column >= 0, "numbers of at least 0"), driven=Driven(
            "rate", ("log",), make=lambda mean: dist.Exponential(1 / positive(mean), validate_args=False), averages=True
        ),
    ),
    "gamma": Family(
        lambda concentration, rate: dist.Gamma(concentration, rate, validate_args=False),
        {"concentration": POSITIVE, "rate": POSITIVE}, _gamma_statistics, _gamma_update, _gamma_start,
        (lambda column: column > 0, "positive numbers"), 1.0, driven=Driven(
            "rate", ("log",), _size("concentration"), lambda mean, concentration: dist.Gamma(
                concentration, concentration / positive(mean), validate_args=False
            ), averages=True,
        ),
    ),
    "bernoulli": Family(
        lambda probs: dist.Bernoulli(probs, validate_args=False), {"probs": SHARE},
        lambda obs, weight, _: _weighted(obs, weight), lambda s, _: _share_of(s["first"], s["weight"]),
        _any_shares, (lambda column: (column == 0) | (column == 1), "0 and 1"), driven=Driven(
            "probs", SHARE_LINKS, of_logits=lambda logits: dist.Bernoulli(logits=logits, validate_args=False), averages=True
        ),
    ),
    "binomial": Family(
        lambda probs, trials: dist.Binomial(trials, probs, validate_args=False), {"probs": SHARE}, _binomial_statistics,
        lambda s, _: _share_of(s["first"], s["trials"]), _any_shares, WHOLE, sized="trials", driven=Driven(
            "probs", SHARE_LINKS, averages=True,
            of_logits=lambda logits, trials: dist.Binomial(trials, logits=logits, validate_args=False),
        ),
    ),
}  # fmt: skip


@functools.cache
def categorical(num_levels: int) -> Family:
    """The family of one column of levels 0, 1, ..., as one of a model's many; each such column is a table of its own."""

    def make(probs: Tensor) -> TorchDistribution:
        return dist.Categorical(probs=probs.unsqueeze(-2), validate_args=False)  # a last axis of one column

    def statistics(obs: Tensor, weight: Tensor, _: Parameters) -> Statistics:
        seen = torch.nn.functional.one_hot(obs[:, 0].long(), num_levels).to(weight)
        return {"weight": weight.sum(0), "counts": torch.einsum("nz,nv->zv", weight[..., 0], seen)}

    def start(column: Tensor, states: int) -> dict[str, Tensor]:
        counts = torch.bincount(column.long(), minlength=num_levels).to(column) + 0.1
        drawn = torch.empty(states, num_levels, dtype=column.dtype).exponential_().clamp_min(1e-6).to(column)
        return {"probs": counts * drawn / (counts * drawn).sum(-1, keepdim=True)}

    return Family(
        make, {"probs": Probabilities(num_levels=num_levels)}, statistics,
        lambda s, p: {"probs": dirichlet_mode(s["counts"], None, p["probs"].log()).exp()}, start,
        (lambda column: _whole(column) & (column < num_levels), f"levels 0..{num_levels - 1}"), called="categorical",
        num_levels=num_levels,
    )  # fmt: skip


def known_family(name: str) -> Family:
    return FAMILIES[name]


def name_of(family: Family) -> str:
    """What a family is called."""
    return next((name for name, known in FAMILIES.items() if known is family), family.called)


def refuse(x: Tensor, columns: Sequence[int], bad: Tensor, what: str) -> None:
    """Raises ValueError where some of the columns of x (B, T, D) do not hold what they must, bad: (B, T, d)."""
    if bool(bad.any()):
        row, step, place = bad.nonzero()[0].tolist()
        column = columns[place]
        value = float(x[row, step, column])
        raise ValueError(f"x: column {column} must hold {what}; row {row}, step {step} holds {value:g}")


def no_maximum(family: Family, value: float) -> bool:
    """Whether data that are one value everywhere have their largest likelihood at the end of a parameter's range only."""
    if {"scale", "concentration"} & set(family.parameters):
        return True  # narrower without end
    return family.holds is not None and (value == 0 or "probs" in family.parameters)
