"""Where parameters of families end: how narrow a state may be, as likelihoods have no maximum where one number repeats."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq.models.parts.emissions import FLOOR, smallest_variances
from pplseq.models.parts.families import LARGEST, Family, name_of
from pplseq.models.parts.zeros import ZerosFamily

WITH_VARIANCE = ("normal", "LogNormal", "Laplace", "Logistic", "Gumbel")
MEDIAN_DEVIATION = 1.4826  # standard deviations of a normal distribution, in median deviations of it
LARGEST_OF_ALL = 1e100
SHAPES = "concentration", "df"  # how names of parameters begin that tell how narrow a distribution is


def without_zeros(family: Family, rows: Tensor) -> Tensor:
    """Columns of numbers, NaN for those that are the gate's of a family with zeros of their own."""
    return rows.where(rows != 0, torch.nan) if isinstance(family, ZerosFamily) else rows


def least_scales(family: Family, rows: Tensor, share: float = FLOOR) -> Tensor:
    """(D,) the smallest scales about a location of a family, of numbers (N, D), in part NaN; squares are a share of theirs."""
    own = without_zeros(family, rows.double())
    if family.holds is not None and not bool(family.holds[0](own.new_full((1,), -1.0)).all()):
        own = own.log().where(own > 0, torch.nan)  # whose scale is that of logarithms
    least = smallest_variances(own, share).sqrt()
    if name_of(family) not in WITH_VARIANCE:  # of heavy tails a variance says nothing of the scale
        deviation = (own - own.nanmedian(0).values).abs().nanmedian(0).values
        robust = math.sqrt(share) * MEDIAN_DEVIATION * deviation
        least = torch.where(robust > 0, least.minimum(robust), least)
    return least


@functools.cache
def _is_continuous(family: Family) -> bool:
    """Whether densities are what it has, which may be as large as one likes."""
    middle = {constraints.positive: 1.0, constraints.unit_interval: 0.5}
    values = {name: torch.tensor([middle.get(own.constraint, 0.0)]) for name, own in family.parameters.items()}
    try:
        return not getattr(family.make(**values).support, "is_discrete", True)
    except NotImplementedError:  # of a family of one's own, which does not say
        return False


def shape_ends(family: Family, size: Tensor, near: Tensor | None = None) -> dict[str, tuple[Tensor, Tensor]]:
    """By name of a parameter the smallest and the largest it may be, of those whose likelihood would have no maximum where a
    state sees one number again and again; other than scales about a location, whose smallest are told by variances.

    Args:
        size: (D,) what the columns' numbers are like: a mean is at least its millionth, a shape at most a million.
        near: (2, D) how near they come to 0 and to 1, of numbers between these, where shapes of narrow states are larger.
    """
    base: Family = getattr(family, "base", family)
    known = base.num_levels is None and base.sized != "trials" and not {"loc", "scale"} <= base.parameters.keys()
    if not known or base.moving or not _is_continuous(base):
        return {}
    positive_ones = [name for name, own in base.parameters.items() if own.constraint is constraints.positive]
    none, most = size.new_tensor(0.0), size.new_tensor(LARGEST)
    found = {}
    for name in positive_ones:
        if near is not None and name in ("concentration1", "concentration0"):
            found[name] = none, (LARGEST / near[int(name == "concentration1")]).clamp_max(LARGEST_OF_ALL)
            if base.called == "Kumaraswamy" and name == "concentration0":  # which grows as a power of the other
                found[name] = none, most.new_tensor(LARGEST_OF_ALL)
        elif name == "scale":
            found[name] = size / LARGEST, most * torch.inf
        elif name.startswith(SHAPES):
            found[name] = none, most
        elif positive_ones == ["rate"]:
            found[name] = none, LARGEST / size
    if "logits" in base.parameters:
        found["logits"] = -most, most
    return found
