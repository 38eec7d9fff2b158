"""Families by what people call them: those of `FAMILIES`, the same with zeros of their own, and any class of distributions."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from pplseq import checks
from pplseq.distributions.state import inside
from pplseq.models.parts.compositions import JOINT, JointFamily
from pplseq.models.parts.families import FAMILIES, POSITIVE, REAL, SHARE, WHOLE, Driven, Family, Parameter, name_of
from pplseq.models.parts.zeros import KINDS, ZerosFamily, with_zeros

DRIVEN = (*(name for name, family in FAMILIES.items() if family.driven is not None), "categorical")  # of outputs by columns
TRIED = 0.5, 2.0, 5.0  # of positive parameters: whether a density is finite at an end of its support


def spelled(name: Any) -> Any:
    """A name without its capitals, spaces, hyphens and underscores."""
    return name.lower().translate(dict.fromkeys(map(ord, " -_"))) if isinstance(name, str) else name


def driven_family(name: Any, argument: str = "outputs") -> Family:
    """A family whose mean or location inputs can drive; raises ValueError for others."""
    family = family_of(name, argument)
    if family.driven is None:
        raise ValueError(
            f"{argument}: {name_of(family)} has no mean or location that inputs could drive; there are: {', '.join(DRIVEN)}, "
            "these as 'zero_inflated_...', 'hurdle_...' or 'zero_truncated_...', and distributions of pyro.distributions "
            "with a loc"
        )
    return family


def is_known(family: Family) -> bool:
    """Whether the M-step of a family is this library's, and knows what is held."""
    known = family in FAMILIES.values() or family.num_levels is not None or isinstance(family, JointFamily)
    return known or isinstance(family, ZerosFamily) and is_known(family.base)


def family_of(name: Any, argument: str = "emission") -> Family:
    """A family by its name in any spelling, or the family itself, or made of a distribution class by its constraints.

    Raises:
        ValueError, TypeError: for anything else; says what there is.
    """
    if isinstance(name, Family):
        return name
    if isinstance(name, str):
        own = next((known for known in FAMILIES if spelled(known) == spelled(name)), None)
        if own is not None:
            return FAMILIES[own]
        if spelled(name) in JOINT:
            raise ValueError(
                f"{argument}: {spelled(name)!r} is of several columns that go together, of states without inputs: HMM, "
                f"SemiMarkovHMM and MixtureHMM take it, emission={spelled(name)!r}; leave out inputs and zeros of its own"
            )
        for kind in KINDS:
            if spelled(name).startswith(spelled(kind)):
                return with_zeros(kind, family_of(spelled(name).removeprefix(spelled(kind)), argument))
        kind: Any = getattr(dist, name, None)
        if not _is_class(kind):
            classes = {spelled(each): each for each in dir(dist) if _is_class(getattr(dist, each))}
            if spelled(name) not in classes:
                raise ValueError(
                    f"{argument}: no family {name[:40]!r}.{checks.similar(name, [*FAMILIES, *classes.values()])} There are: "
                    f"{', '.join(FAMILIES)}; these as 'zero_inflated_...', 'hurdle_...' or 'zero_truncated_...'; or the name "
                    "of a distribution of pyro.distributions over single numbers, as 'Laplace'; or a Family"
                )
            kind = getattr(dist, classes[spelled(name)])
        return _of_class(kind)
    if _is_class(name):
        given: Any = name
        called = given.__name__
        known = any(getattr(room, called, None) is given for room in (dist, torch.distributions))
        own = spelled(called) in map(spelled, FAMILIES) or spelled(called).startswith("zeroinflated")
        return family_of(called) if known and own else _of_class(given)
    raise TypeError(f"{argument} must be a name, a distribution class or a Family, got {type(name).__name__}")


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Distribution)


@dataclass(frozen=True, eq=False)
class ClassFamily(Family):
    """A family that was made of a class."""

    kind: type = Distribution

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = self.kind.__name__
        return family_of, (name if getattr(dist, name, None) is self.kind else self.kind,)


def _of_class(kind: type) -> Family:
    """A distribution class with its own parameters; of probs and logits it takes the logits."""
    wanted: Any = getattr(kind, "arg_constraints", None)
    if not isinstance(wanted, dict) or not wanted:
        raise ValueError(f"emission: {kind.__name__} does not say what its parameters are; write a Family")
    taken = inspect.signature(kind).parameters
    twice = {"probs": "logits", "rate": "scale"} | {name: name.removesuffix("_logits") for name in wanted if "_logits" in name}
    parameters: dict[str, Parameter] = {}
    for name, constraint in wanted.items():
        if twice.get(name) in wanted and (twice[name] in taken or name not in taken):
            continue
        if constraint is constraints.real:
            parameters[name] = REAL
        elif constraint is constraints.unit_interval:
            parameters[name] = SHARE
        elif isinstance(constraint, type(constraints.greater_than(0))) or constraint is constraints.nonnegative:
            parameters[name] = POSITIVE
        else:
            raise ValueError(f"emission: the parameter {name!r} of {kind.__name__} is no single number; write a Family")

    maker = CORRECTED.get(kind, kind)

    def make(**values: Tensor) -> Any:
        return maker(**values, validate_args=False)

    places = {REAL: (0.0,), SHARE: (0.3,), POSITIVE: TRIED}
    tried = [
        {own: torch.tensor(value).double() for own, value in zip(parameters, each, strict=True)}
        for each in itertools.product(*(places[parameter] for parameter in parameters.values()))
    ]
    try:
        made = [make(**values) for values in tried]
        if made[0].event_shape or made[0].batch_shape or made[0].log_prob(inside(made[0].support)).shape:
            raise ValueError("it is no distribution of single numbers")
    except Exception as error:  # whatever a class says to what it does not take
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"emission: a family cannot be made of {kind.__name__} ({why}); write a Family") from None
    supports = [str(each.support) for each in made]
    if len(set(supports)) > 1:
        return ClassFamily(
            lambda **values: _Inside(make(**values)),  # pyright: ignore[reportArgumentType]
            parameters, fill=float(inside(made[0].support)), called=kind.__name__,
            kind=kind, moving=tuple(
                name for name in parameters
                if any(
                    one != other and all(a[n] == b[n] for n in parameters if n != name)
                    for (a, one), (b, other) in itertools.combinations(zip(tried, supports, strict=True), 2)
                )
            ) or tuple(parameters),
        )  # fmt: skip
    fill, others = float(inside(made[0].support)), [own for name, own in parameters.items() if name != "loc"]
    driven = Driven("loc") if parameters.get("loc") is REAL and all(own in (POSITIVE, SHARE) for own in others) else None
    return ClassFamily(make, parameters, fill=fill, holds=_holds(made), called=kind.__name__, kind=kind, driven=driven)


class _SoftAsymmetricLaplace(dist.SoftAsymmetricLaplace):
    """Pyro's, whose density is 0, and its gradient no number, where the complementary error function is too small a number."""

    def log_prob(self, value: Tensor) -> Tensor:
        x = (value - self.loc) / self.scale
        sides = self._log_side(self.asymmetry, x), self._log_side(self.asymmetry.reciprocal(), -x)
        total = (self.asymmetry + self.asymmetry.reciprocal()).log() + self.scale.log()
        return math.log(0.5) + torch.logaddexp(*sides) - total

    def _log_side(self, width: Tensor, x: Tensor) -> Tensor:
        """log of e^((S^2 / 2 + w x) / w^2) erfc(u), u = (S^2 + w x) / (sqrt(2) w S), which is e^(-x^2 / 2 S^2) erfcx(u)."""
        soft = self.softness
        at = (soft**2 + width * x) / (width * soft * math.sqrt(2))
        beyond = at > 0
        near = (soft**2 / 2 + width * x) / width**2 + torch.erfc(at.where(~beyond, 0.0)).log()
        return torch.where(beyond, torch.special.erfcx(at.where(beyond, 0.0)).log() - (x / soft).square() / 2, near)


class _Kumaraswamy(dist.Kumaraswamy):
    """Torch's, whose density is no number, or its gradient, near both ends: there differences lose all digits."""

    def log_prob(self, value: Tensor) -> Tensor:
        a, b, log = self.concentration1, self.concentration0, value.log()
        power = a * log
        near = power > -math.log(2)  # 1 - x^a, where it is small and where it is nearly 1
        left = torch.where(
            near, (-torch.expm1(power.where(near, -1.0))).log(), torch.log1p(-power.where(~near, -1.0).exp())
        )
        return a.log() + b.log() + (a - 1) * log + (b - 1) * left


CORRECTED: dict[type, type] = {dist.SoftAsymmetricLaplace: _SoftAsymmetricLaplace, dist.Kumaraswamy: _Kumaraswamy}


def _holds(made: Iterable[Any]) -> tuple[Callable[[Tensor], Tensor], str] | None:
    """Whether numbers lie where densities are finite, and what these are called; None where they are all numbers."""
    support = next(iter(made)).support
    if support is constraints.boolean:
        return lambda column: support.check(column), "0 and 1"
    if support.is_discrete:
        least = getattr(support, "lower_bound", None)
        return WHOLE if least == 0 else (lambda column: support.check(column), f"whole numbers of the {support}")
    ends = [
        float(end) for end in (getattr(support, "lower_bound", -torch.inf), getattr(support, "upper_bound", torch.inf))
    ]
    if ends == [-torch.inf, torch.inf]:
        return None
    takes = [all(bool(each.log_prob(torch.tensor(end).double()).isfinite()) for each in made) for end in ends]
    low, high = ends

    def holds(column: Tensor) -> Tensor:
        above = column >= low if takes[0] else column > low
        return above & (column <= high if takes[1] else column < high)

    if high == torch.inf:
        bound = f"numbers {'of at least' if takes[0] else 'above'} {low:g}"
        return holds, "positive numbers" if low == 0 and not takes[0] else bound
    ends_too = "both included" if all(takes) else "both excluded"
    return holds, f"numbers between {low:g} and {high:g}, {ends_too}"


class _Inside:
    """A distribution whose support depends on its parameters: its density is 0 outside, where its formula says anything."""

    def __init__(self, base: Any):
        self.base = base

    def __getattr__(self, name: str) -> Any:
        if name == "base":
            raise AttributeError(name)
        return getattr(self.base, name)

    def expand(self, shape: Any, _instance: Any = None) -> _Inside:
        return _Inside(self.base.expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        support = self.base.support
        there = support.check(value)
        return torch.where(there, self.base.log_prob(torch.where(there, value, inside(support).to(value))), -torch.inf)
