"""Outputs that are generalised linear models: a family of single numbers, a link, and what a column's predictors make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.columns import ColumnEmission, Columns
from pplseq.models.hmm.families import FAMILIES, WHOLE

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


@dataclass(frozen=True)
class Response:
    """A family of single numbers with mean mu = mean(eta), and a dispersion of each state where it has one.

    Args:
        links: those it may have, the usual one first.
        distribution: link, eta, dispersion, trials -> the distribution.
        variance: mu, dispersion, trials -> that of one number.
        dispersion: what the dispersion is called, or None.
        holds: whether a number lies in the support, and what it takes. fill: a number of the support.
    """

    links: tuple[str, ...]
    distribution: Callable[[Link, Tensor, Tensor, int], TorchDistribution]
    variance: Callable[[Tensor, Tensor, int], Tensor]
    dispersion: str | None = None
    holds: tuple[Callable[[Tensor], Tensor], str] | None = None
    fill: float = 0.0


POSITIVE_LINKS, SHARE_LINKS = ("log", "sqrt"), ("logit", "probit", "cloglog")
RESPONSES: dict[str, Response] = {
    "normal": Response(
        ("identity", "log"), lambda link, eta, scale, _: FAMILIES["normal"].make(loc=link.mean(eta), scale=scale),
        lambda mu, scale, _: scale.square().expand_as(mu), "scale",
    ),
    "poisson": Response(
        POSITIVE_LINKS, lambda link, eta, *_: FAMILIES["poisson"].make(rate=link.mean(eta)), lambda mu, *_: mu, None, WHOLE
    ),
    "negative_binomial": Response(
        POSITIVE_LINKS, lambda link, eta, size, _: FAMILIES["negative_binomial"].make(mean=positive(link.mean(eta)), size=size),
        lambda mu, size, _: mu + mu.square() / size, "size", WHOLE,
    ),
    "gamma": Response(
        ("log",), lambda link, eta, shape, _: dist.Gamma(shape, shape / positive(link.mean(eta)), validate_args=False),
        lambda mu, shape, _: mu.square() / shape, "shape", (lambda x: x > 0, "positive numbers"), 1.0,
    ),
    "exponential": Response(
        ("log",), lambda link, eta, *_: FAMILIES["exponential"].make(rate=1 / positive(link.mean(eta))),
        lambda mu, *_: mu.square(), None, FAMILIES["exponential"].holds,
    ),
    "bernoulli": Response(
        SHARE_LINKS, lambda link, eta, *_: dist.Bernoulli(logits=link.logits(eta), validate_args=False),
        lambda mu, *_: mu * (1 - mu), None, FAMILIES["bernoulli"].holds,
    ),
    "binomial": Response(
        SHARE_LINKS, lambda link, eta, _, trials: dist.Binomial(trials, logits=link.logits(eta), validate_args=False),
        lambda mu, _, trials: mu * (1 - mu / trials), None, WHOLE,
    ),
    "categorical": Response(
        ("logit",), lambda link, eta, *_: dist.Categorical(logits=eta, validate_args=False), lambda mu, *_: mu * (1 - mu), None,
        WHOLE,
    ),
}  # fmt: skip


def positive(mean: Tensor) -> Tensor:
    """A mean that was rounded to 0, above it."""
    return mean.clamp_min(torch.finfo(mean.dtype).tiny)


@dataclass(frozen=True)
class Column:
    """One column of the outputs.

    Args:
        family, link: names. size: V of "categorical", else 1. trials: of "binomial".
        number: which column. first: where its linear predictors begin. place: where its dispersion stands, or None.
    """

    family: str
    link: str
    size: int
    trials: int
    number: int
    first: int
    place: int | None

    @property
    def response(self) -> Response:
        return RESPONSES[self.family]

    @property
    def predictors(self) -> slice:
        """Which linear predictors are its own."""
        return slice(self.first, self.first + self.size)

    def distribution(self, eta: Tensor, dispersion: Tensor) -> TorchDistribution:
        """Of predictors (...), or (..., V) of classes."""
        return self.response.distribution(LINKS[self.link], eta, dispersion, self.trials)

    def mean(self, eta: Tensor) -> Tensor:
        """(...) means of predictors (...); (..., V) probabilities of classes."""
        if self.family == "categorical":
            return torch.softmax(eta, -1)
        return self.trials * LINKS[self.link].mean(eta)

    def slope(self, eta: Tensor) -> Tensor:
        return self.trials * LINKS[self.link].slope(eta)

    def variance(self, mean: Tensor, dispersion: Tensor) -> Tensor:
        return self.response.variance(mean, dispersion, self.trials)

    def predictor(self, mean: Tensor) -> Tensor:
        """The predictors of means inside the range."""
        return LINKS[self.link].predictor(mean / self.trials)

    def check(self, x: Tensor) -> tuple[Tensor, str]:
        """Which numbers of the column (B, T) are none of the family's, and what those are."""
        bad, what = x.isinf(), "finite numbers"
        if self.response.holds is not None:
            holds, what = self.response.holds
            bad = bad | ~holds(x)
        largest = self.size - 1 if self.family == "categorical" else self.trials
        if self.family in ("categorical", "binomial"):
            bad, what = bad | (x > largest), f"whole numbers 0..{largest}"
        return bad & ~x.isnan(), f"{what} ({self.family}), or NaN for none"


class ResponseColumns:
    """The columns of outputs, a family each.

    Args:
        families: one of :data:`RESPONSES` for each column. sizes: numbers of classes of "categorical", 1 of others.
        links: one for all columns, one a column (None: the usual one), or None. trials: of "binomial".

    Raises:
        ValueError: for what there is not, or does not fit together.
    """

    def __init__(self, families: Sequence[str], sizes: Sequence[int], links: Any = None, trials: int | None = None):
        each = [links] * len(families) if links is None or isinstance(links, str) else list(links)
        for name, values in (("num_outputs", sizes), ("links", each)):
            if len(values) != len(families):
                raise ValueError(f"{name}: one for each of the {len(families)} columns of outputs, got {len(values)}")
        if not families:
            raise ValueError("outputs must name a family for each column, got none")
        self.columns: list[Column] = []
        width = places = 0
        for number, (family, size, link) in enumerate(zip(families, sizes, each, strict=True)):
            if family == "gaussian":
                raise ValueError("outputs: 'gaussian' is a vector with a covariance; a column of numbers is 'normal'")
            response = RESPONSES[checks.choice("outputs", family, RESPONSES)]
            size = checks.count("num_outputs", 1 if size is None else size)
            if family == "categorical" and size < 2:
                raise ValueError(
                    f"num_outputs: column {number} is categorical; say how many classes it has, as num_outputs="
                    f"[{', '.join('3' if f == 'categorical' else '1' for f in families)}]; got {size}"
                )
            if family != "categorical" and size != 1:
                raise ValueError(f"num_outputs: column {number} is {family}, a single number: 1 there; got {size}")
            if family == "binomial" and trials is None:
                raise ValueError("trials: of 'binomial' outputs say how many trials a number counts successes of; got None")
            if link is not None and link not in response.links:
                raise ValueError(
                    f"links: column {number}, {family}, has {' or '.join(response.links)}, whose means lie in its range "
                    f"whatever the inputs are; got {checks.shown(link)}"
                )
            place = None if response.dispersion is None else places
            own = checks.count("trials", trials) if family == "binomial" and trials is not None else 1
            self.columns.append(Column(family, link or response.links[0], size, own, number, width, place))
            width, places = width + size, places + (place is not None)
        if trials is not None and "binomial" not in families:
            raise ValueError(f"trials: they are of 'binomial' outputs, and there are none; got {trials}")
        self.width, self.num_dispersions = width, places

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def normal(self) -> list[Column]:
        return [column for column in self.columns if column.family == "normal"]

    def check(self, x: Tensor) -> None:
        """Raises ValueError where a column of x (B, T, D) holds what is none of its family's."""
        for column in self.columns:
            bad, what = column.check(x[..., column.number])
            if bool(bad.any()):
                row, step = bad.nonzero()[0].tolist()
                raise ValueError(
                    f"x: column {column.number} must hold {what}; row {row}, step {step} holds "
                    f"{float(x[row, step, column.number]):g}"
                )

    def free(self, num_states: int) -> Tensor:
        """(Z, K) bool, which predictors count: of V classes one less."""
        mask = torch.ones(num_states, self.width, dtype=torch.bool)
        for column in self.columns:
            if column.family == "categorical":
                mask[:, column.first] = False
        return mask

    def emission(self, eta: Tensor, dispersion: Tensor) -> ResponseEmission:
        """Of predictors (*b, Z, K) and dispersions (Z, P)."""
        return ResponseEmission(self, eta, dispersion.expand(*eta.shape[:-1], self.num_dispersions))

    def start(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """(*shape, K) predictors around some of the rows x (N, D) that were seen, NaN where a column was not."""
        picked = x[torch.randint(len(x), shape, device=x.device)]
        parts = []
        for column in self.columns:
            own, mean = picked[..., column.number], x[:, column.number].nanmean().nan_to_num(column.response.fill)
            if column.family == "categorical":
                parts.append(torch.randn(*shape, column.size, dtype=x.dtype, device=x.device))
                continue
            if column.link in SHARE_LINKS:
                own = column.trials * (0.1 + 0.8 * torch.rand(shape, dtype=x.dtype, device=x.device))
            elif column.link != "identity":
                own = (torch.where(own.isnan(), mean, own) + mean) / 2  # a count of 0 begins no state that knows no other
                own = own.clamp_min(0.1 * mean.abs()).clamp_min(1e-3 if column.response.holds is WHOLE else 1e-30)
            parts.append(column.predictor(torch.where(own.isnan(), mean, own)).unsqueeze(-1))
        return torch.cat(parts, -1)

    def first_dispersions(self, x: Tensor, floor: Tensor) -> Tensor:
        """(P,) as wide as the rows (N, D) that were seen; floor: (D,) smallest variances."""
        found = []
        for column in self.columns:
            if column.place is None:
                continue
            own = x[:, column.number]
            own = own[~own.isnan()]
            mean, variance = (own.mean(), own.var(correction=0)) if len(own) else (x.new_ones(()), x.new_ones(()))
            if column.family == "normal":
                found.append((variance + floor[column.number]).clamp_min(1e-300).sqrt())
            else:
                found.append((mean**2 / variance.clamp_min(1e-12)).clamp(0.5, 50.0))
        return torch.stack(found) if found else x.new_zeros(0)


class ResponseEmission(ColumnEmission):
    """p(x | z) of columns that are independent given the state, each with a family and predictors of its own.

    Args:
        columns: what they are. eta: (*b, Z, K) predictors. dispersion: (*b, Z, P).
    """

    def __init__(self, columns: ResponseColumns, eta: Tensor, dispersion: Tensor):
        self.columns = columns
        super().__init__(self._make, {"eta": eta, "dispersion": dispersion})

    def _make(self, values: Mapping[str, Tensor]) -> Columns:
        parts = []
        for column in self.columns.columns:
            eta, dispersion = values["eta"][..., column.predictors], values["dispersion"]
            # a last axis of one column
            eta = eta.unsqueeze(-2) if column.family == "categorical" else eta
            own = eta.new_ones(()) if column.place is None else dispersion[..., column.place : column.place + 1]
            parts.append(([column.number], column.distribution(eta, own), column.response.fill))
        return Columns(parts)

    @property
    def means(self) -> Tensor:
        """(*b, Z, K) expected numbers, and probabilities of classes."""
        eta = self.parameters["eta"]
        each = [(column, eta[..., column.predictors]) for column in self.columns.columns]
        return torch.cat([column.mean(own) for column, own in each], -1)

    @property
    def covariances(self) -> Tensor:
        """(*b, Z, K, K) of numbers, and of classes as vectors of 0 and 1."""
        means = self.means
        result = torch.zeros(*means.shape, means.shape[-1], dtype=means.dtype, device=means.device)
        for column in self.columns.columns:
            own, at = means[..., column.predictors], column.predictors
            if column.family == "categorical":
                result[..., at, at] = torch.diag_embed(own) - own.unsqueeze(-1) * own.unsqueeze(-2)
                continue
            spread = self.parameters["dispersion"]
            spread = own.new_ones(()) if column.place is None else spread[..., column.place : column.place + 1]
            result[..., at, at] = column.variance(own, spread).unsqueeze(-1)
        return result


class Dispersions(nn.Module):
    """Dispersions of outputs: of "normal" columns standard deviations, sizes of "negative_binomial", shapes of "gamma".

    Parameters: log_dispersion (Z, P) of the P columns that have one.
    """

    def __init__(self, num_states: int, columns: ResponseColumns, dtype: torch.dtype):
        super().__init__()
        self.num_states, self.columns = num_states, columns
        self.log_dispersion = nn.Parameter(torch.zeros(num_states, columns.num_dispersions, dtype=dtype))

    @property
    def num_free(self) -> int:
        return self.log_dispersion.numel()

    def emission(self, eta: Tensor, weights: Mapping[str, Tensor] | None = None) -> ResponseEmission:
        """The emission with predictors (*b, Z, K), under weights given by name or its own."""
        value = self.log_dispersion if weights is None else weights["log_dispersion"]
        return self.columns.emission(eta, value.exp())
