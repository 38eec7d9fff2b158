"""Columns of numbers that predictors drive: a family and a link for each, and dispersions of each state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.columns import ColumnEmission, Columns
from pplseq.models.parts.families import WHOLE, Family, name_of, refuse
from pplseq.models.parts.family_start import fit_family
from pplseq.models.parts.links import LINKS, SHARE_LINKS
from pplseq.models.parts.named_families import driven_family


@dataclass(frozen=True)
class Column:
    """One column of the outputs.

    Args:
        kind: its family; None for classes. family, link: names. size: V of "categorical", else 1. trials: of "binomial", the
            same at every step; 1 of others; None: each step has its own.
        number: which column. first: where its linear predictors begin. place: where its dispersions begin, or None.
    """

    kind: Family | None
    family: str
    link: str
    size: int
    trials: int | None
    number: int
    first: int
    place: int | None

    @property
    def predictors(self) -> slice:
        """Which linear predictors are its own."""
        return slice(self.first, self.first + self.size)

    @property
    def unit(self) -> int:
        """What a mean is counted in."""
        return self.trials or 1

    @property
    def fill(self) -> float:
        """A number of the support."""
        return 0.0 if self.kind is None else self.kind.fill

    @property
    def averages(self) -> bool:
        """Whether its mean is what the link makes of a predictor, and the likeliest one that of the numbers."""
        return self.kind is None or self.kind.driven is not None and self.kind.driven.averages

    @property
    def dispersions(self) -> tuple[str, ...]:
        """Names of the parameters that are no predictor's."""
        if self.kind is None or self.kind.driven is None:
            return ()
        return tuple(name for name in self.kind.parameters if name != self.kind.driven.name)

    @property
    def scale_place(self) -> int | None:
        """Where among the dispersions of all columns the scale about its location stands; None of a family without."""
        about = self.kind is not None and self.kind.driven is not None and self.kind.driven.name == "loc"
        return (self.place or 0) + self.dispersions.index("scale") if about and "scale" in self.dispersions else None

    def named(self, values: Tensor, dim: int = -1) -> dict[str, Tensor]:
        """Its dispersions by name, of those of all columns along a dimension, which stays."""
        return {name: values.narrow(dim, (self.place or 0) + number, 1) for number, name in enumerate(self.dispersions)}

    def constrained(self, raw: Tensor, dim: int = -1) -> dict[str, Tensor]:
        """The same of unconstrained numbers."""
        return {} if self.kind is None else {
            name: self.kind.parameters[name].value(value) for name, value in self.named(raw, dim).items()
        }  # fmt: skip

    def distribution(self, eta: Tensor, dispersion: Mapping[str, Tensor]) -> TorchDistribution:
        """Of predictors (...), or (..., V) of classes, and what else there is by name, sizes of the step among it."""
        if self.kind is None:
            return dist.Categorical(logits=eta, validate_args=False)
        sizes = {"trials": torch.full_like(eta, self.unit)} if self.kind.sized == "trials" else {}
        return self.kind.predicted(LINKS[self.link], eta, {**sizes, **dispersion})

    def sizes(self, values: Tensor | None) -> dict[str, Tensor]:
        """Its numbers of trials or exposures (..., 1), by name, of those (..., D) of all columns."""
        name = None if self.kind is None else self.kind.sized
        return {} if name is None or values is None else {name: values[..., self.number : self.number + 1]}

    def mean(self, eta: Tensor) -> Tensor:
        """(...) what the link makes of predictors (...); (..., V) probabilities of classes."""
        if self.kind is None:
            return torch.softmax(eta, -1)
        return self.unit * LINKS[self.link].mean(eta)

    def predictor(self, mean: Tensor) -> Tensor:
        """The predictors of means inside the range."""
        return LINKS[self.link].predictor(mean / self.unit)

    def check(self, x: Tensor) -> tuple[Tensor, str]:
        """Which numbers of the column (B, T) are none of the family's, and what those are."""
        bad, what = x.isinf(), "finite numbers"
        holds = WHOLE if self.kind is None else self.kind.holds
        if holds is not None:
            bad, what = bad | ~holds[0](x), holds[1]
        sized = self.kind is not None and self.kind.sized == "trials"
        largest = self.trials if sized else self.size - 1
        if largest is not None and (self.kind is None or sized):
            bad, what = bad | (x > largest), f"whole numbers 0..{largest}"
        return bad & ~x.isnan(), f"{what} ({self.family}), or NaN for none"


class ResponseColumns:
    """The columns of outputs, a family each.

    Args:
        families: for each column one of :data:`~pplseq.models.parts.named_families.DRIVEN`, or what else has a location.
        sizes: numbers of classes of "categorical", 1 of others.
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
            kind = None if family == "categorical" else driven_family(family)
            name = "categorical" if kind is None else name_of(kind)
            size = checks.count("num_outputs", 1 if size is None else size)
            if kind is None and size < 2:
                raise ValueError(
                    f"num_outputs: column {number} is categorical; say how many classes it has, as num_outputs="
                    f"[{', '.join('3' if f == 'categorical' else '1' for f in families)}]; got {size}"
                )
            if kind is not None and size != 1:
                raise ValueError(f"num_outputs: column {number} is {name}, a single number: 1 there; got {size}")
            counted = kind is not None and kind.sized == "trials"
            able = ("logit",) if kind is None or kind.driven is None else kind.driven.links
            if link is not None and link not in able:
                raise ValueError(
                    f"links: column {number}, {name}, has {' or '.join(able)}, whose means lie in its range "
                    f"whatever the inputs are; got {checks.shown(link)}"
                )
            own = (None if trials is None else checks.count("trials", trials)) if counted else 1
            column = Column(kind, name, link or able[0], size, own, number, width, places)
            if not column.dispersions:
                column = replace(column, place=None)
            self.columns.append(column)
            width, places = width + size, places + len(column.dispersions)
        if trials is not None and not any(column.kind is not None and column.kind.sized == "trials" for column in self.columns):
            raise ValueError(f"trials: they are of 'binomial' outputs, and there are none; got {trials}")
        self.width, self.num_dispersions = width, places

    def sized(self, name: str) -> list[int]:
        """Columns that take "trials" or "exposure" of each step."""
        return [column.number for column in self.columns if column.kind is not None and column.kind.sized == name]

    def rates(self, x: Tensor, sizes: Tensor | None) -> Tensor:
        """Numbers (..., D) by unit of exposure."""
        if sizes is None:
            return x
        places = torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
        places[self.sized("exposure")] = True
        return torch.where(places, x / sizes, x)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def scaled(self) -> list[Column]:
        """Those with a scale in units of their numbers, whose square has a floor."""
        return [column for column in self.columns if column.scale_place is not None]

    def check(self, x: Tensor) -> None:
        """Raises ValueError where a column of x (B, T, D) holds what is none of its family's."""
        for column in self.columns:
            bad, what = column.check(x[..., column.number])
            refuse(x, [column.number], bad.unsqueeze(-1), what)

    def free(self, num_states: int) -> Tensor:
        """(Z, K) bool, which predictors count: of V classes one less."""
        mask = torch.ones(num_states, self.width, dtype=torch.bool)
        for column in self.columns:
            if column.family == "categorical":
                mask[:, column.first] = False
        return mask

    def emission(self, eta: Tensor, raw: Tensor, sizes: Tensor | None = None) -> ResponseEmission:
        """Of predictors (*b, Z, K), unconstrained dispersions (Z, P), and numbers of trials and exposures (*b, D) or None."""
        found = [value for column in self.columns for value in column.constrained(raw).values()]
        dispersion = torch.cat(found, -1) if found else raw
        if sizes is not None:
            sizes = sizes.unsqueeze(-2).expand(*sizes.shape[:-1], eta.shape[-2], -1)
        return ResponseEmission(self, eta, dispersion.expand(*eta.shape[:-1], self.num_dispersions), sizes)

    def start(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """(*shape, K) predictors around some of the rows x (N, D) that were seen, NaN where a column was not."""
        picked = x[torch.randint(len(x), shape, device=x.device)]
        parts = []
        for column in self.columns:
            own, mean = picked[..., column.number], x[:, column.number].nanmean().nan_to_num(column.fill)
            if column.family == "categorical":
                parts.append(torch.randn(*shape, column.size, dtype=x.dtype, device=x.device))
                continue
            if column.link in SHARE_LINKS:
                own = column.unit * (0.1 + 0.8 * torch.rand(shape, dtype=x.dtype, device=x.device))
            elif column.link != "identity":
                own = (torch.where(own.isnan(), mean, own) + mean) / 2  # a count of 0 begins no state that knows no other
                counts = column.kind is not None and column.kind.holds is WHOLE
                least = torch.where(mean == 0, 1e-3 if counts else 1e-30, 0.1 * mean.abs())  # in any unit of exposure
                own = torch.maximum(own, least)
            parts.append(column.predictor(torch.where(own.isnan(), mean, own)).unsqueeze(-1))
        return torch.cat(parts, -1)

    def first_dispersions(self, x: Tensor, floor: Tensor) -> Tensor:
        """(P,) unconstrained, of the rows (N, D) that were seen; floor: (D,) smallest variances."""
        found = []
        for column in self.columns:
            if column.kind is None or column.kind.driven is None or column.place is None:
                continue
            own = x[:, column.number]
            own = own[~own.isnan()]
            mean, variance = (own.mean(), own.var(correction=0)) if len(own) else (x.new_ones(()), x.new_ones(()))
            if column in self.scaled:
                variance = (variance + floor[column.number]).clamp_min(1e-300)
            start = column.kind.driven.start
            first = fit_family(column.kind, own) if start is None else start(mean, variance)
            found += [column.kind.parameters[name].unconstrained(first[name]) for name in column.dispersions]
        return torch.stack(found).to(x) if found else x.new_zeros(0)


class ResponseEmission(ColumnEmission):
    """p(x | z) of columns that are independent given the state, each with a family and predictors of its own.

    Args:
        columns: what they are. eta: (*b, Z, K) predictors. dispersion: (*b, Z, P). sizes: (*b, Z, D) trials and exposures.
    """

    def __init__(self, columns: ResponseColumns, eta: Tensor, dispersion: Tensor, sizes: Tensor | None = None):
        self.columns = columns
        super().__init__(self._make, {"eta": eta, "dispersion": dispersion} | ({} if sizes is None else {"sizes": sizes}))

    def _make(self, values: Mapping[str, Tensor]) -> Columns:
        parts = []
        for column in self.columns.columns:
            eta = values["eta"][..., column.predictors]
            eta = eta.unsqueeze(-2) if column.kind is None else eta  # a last axis of one column
            others = column.named(values["dispersion"]) | column.sizes(values.get("sizes"))
            parts.append(([column.number], column.distribution(eta, others), column.fill))
        return Columns(parts)

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """(*b, Z, K) expected numbers, probabilities of classes among them, and their covariances (*b, Z, K, K)."""
        return self.make(self.parameters).moments()


class Dispersions(nn.Module):
    """Dispersions of outputs: of "normal" columns standard deviations, sizes of "negative_binomial", gates, and the like.

    Parameters: raw (Z, P), unconstrained, of the columns' dispersions behind each other.
    """

    def __init__(self, num_states: int, columns: ResponseColumns, dtype: torch.dtype):
        super().__init__()
        self.num_states, self.columns = num_states, columns
        self.raw = nn.Parameter(torch.zeros(num_states, columns.num_dispersions, dtype=dtype))

    @property
    def num_free(self) -> int:
        return self.raw.numel()

    def values(self) -> list[tuple[Column, str, Tensor]]:
        """(Z,) each, with its column and name."""
        return [(c, name, value[..., 0]) for c in self.columns.columns for name, value in c.constrained(self.raw).items()]

    def emission(
        self, eta: Tensor, weights: Mapping[str, Tensor] | None = None, sizes: Tensor | None = None
    ) -> ResponseEmission:
        """The emission with predictors (*b, Z, K), under weights given by name or its own; sizes: (*b, D) of steps."""
        return self.columns.emission(eta, self.raw if weights is None else weights["raw"], sizes)
