"""Links: how the numbers that a linear predictor gives become means, locations and chances."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SMALL = -30.0  # of a predictor of log(1 - e^-rate), below which that is the predictor to the last digit


@dataclass(frozen=True)
class Link:
    """How a linear predictor eta becomes a mean; links map all numbers into the family's range.

    Args:
        mean: eta -> mu. slope: eta -> d mu / d eta. predictor: mu -> eta.
        logits: eta -> log mu / (1 - mu), of links into (0, 1). range: of eta, where slopes are not lost to rounding.
    """

    mean: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    predictor: Callable[[Tensor], Tensor]
    logits: Any = None
    range: tuple[float, float] = (-math.inf, math.inf)


def _finite(eta: Tensor) -> Tensor:
    """Predictors whose exponential is a number that can be counted with."""
    largest = math.log(torch.finfo(eta.dtype).max) - 5
    return eta.clamp(-largest, largest)


def _log_log_logits(eta: Tensor) -> Tensor:
    rate = _finite(eta).exp()
    # log(1 - e^-rate), which is log rate where that is small
    return torch.where(eta < SMALL, _finite(eta), (-torch.expm1(-rate)).clamp_min(torch.finfo(eta.dtype).tiny).log()) + rate


LINKS = {
    "identity": Link(lambda eta: eta, torch.ones_like, lambda mu: mu),
    "log": Link(lambda eta: _finite(eta).exp(), lambda eta: _finite(eta).exp(), torch.log),
    "sqrt": Link(torch.square, lambda eta: 2 * eta, torch.sqrt),
    "logit": Link(
        torch.sigmoid, lambda eta: torch.sigmoid(eta) * torch.sigmoid(-eta), torch.logit, lambda eta: eta, (-30.0, 30.0)
    ),
    "probit": Link(
        torch.special.ndtr, lambda eta: (-eta.square() / 2).exp() / math.sqrt(2 * math.pi), torch.special.ndtri,
        lambda eta: torch.special.log_ndtr(eta) - torch.special.log_ndtr(-eta), (-6.0, 6.0),
    ),
    "cloglog": Link(
        lambda eta: -torch.expm1(-_finite(eta).exp()), lambda eta: (eta - _finite(eta).exp()).exp(),
        lambda mu: (-torch.log1p(-mu)).log(), _log_log_logits, (-30.0, 3.0),
    ),
}  # fmt: skip
POSITIVE_LINKS, SHARE_LINKS = ("log", "sqrt"), ("logit", "probit", "cloglog")


def positive(mean: Tensor) -> Tensor:
    """A mean that was rounded to 0, above it."""
    return mean.clamp_min(torch.finfo(mean.dtype).tiny)
