"""Emissions of an HMM from families of distributions, one for all columns or one a column, and mixtures of Gaussians."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import constraints

from pplseq import checks
from pplseq.distributions.columns import ColumnEmission, Columns, MixtureEmission
from pplseq.infer.fit.closed_forms import dirichlet_mode
from pplseq.infer.fit.em import NOTHING, Statistics
from pplseq.infer.fit.held import Slot, is_bound, kept
from pplseq.models.hmm.emissions import (
    GaussianTable,
    check_vectors,
    dirichlet_log_density,
    in_shape,
    inside_simplex,
    like,
    mixture_moments,
    safe_log,
)
from pplseq.models.hmm.families import FAMILIES, Family, Parameter, histogram, name_of, no_maximum
from pplseq.models.hmm.family_start import clusters, fit_family
from pplseq.models.hmm.named_families import family_of, spelled
from pplseq.models.hmm.partly_seen import filled_at_random
from pplseq.models.hmm.priors import Priors

SPREAD = 0.5  # of the first parameters, before any data
FEW = 4  # numbers that fit no family


class FamilyTable(PyroModule):
    """p(x | state) over (D,) vectors of independent columns, each from a family of distributions.

    Parameters: for every parameter of every family that occurs, unconstrained numbers (Z, d) of its d columns, named as the
    family's, with the family's name in front where there are several.

    Args:
        families: a family (or its name), for all columns, or one a column.
    """

    def __init__(self, num_states: int, num_features: int, families: Any, dtype: torch.dtype):
        super().__init__()
        self.num_states, self.num_features, self._largest = num_states, num_features, 0
        self.origin = torch.zeros(num_features, dtype=torch.float64)  # as of a GaussianTable
        if isinstance(families, (Mapping, set)):
            raise TypeError(
                f"emission: expected a family, or a list with one a column in their order, got a {type(families).__name__}; "
                f"write emission={list(families.values() if isinstance(families, Mapping) else families)}"
            )
        each = list(families) if isinstance(families, (list, tuple)) else [families] * num_features
        if len(each) != num_features:
            raise ValueError(f"emission: one family for each of the {num_features} columns, got {len(each)}")
        if (wrong := [family for family in each if not isinstance(family, (str, type, Family))]) != []:
            raise TypeError(f"emission: expected a family by its name, got {checks.shown(wrong[0])}")
        self.parts: list[tuple[str, Family, list[int]]] = []  # prefix of names, family, its columns
        for family in dict.fromkeys(each):
            columns = [column for column, own in enumerate(each) if own == family]
            prefix = "" if len(set(each)) == 1 else (family if isinstance(family, str) else f"family{columns[0]}") + "_"
            self.parts.append((prefix, family_of(family), columns))
        for prefix, family, columns in self.parts:
            for name in family.parameters:
                start = SPREAD * torch.randn(num_states, len(columns), dtype=dtype)
                setattr(self, f"raw_{prefix}{name}", nn.Parameter(start))

    @property
    def has_em(self) -> bool:
        return all(family.has_em for _, family, _ in self.parts)

    @property
    def slots(self) -> dict[str, Slot]:
        return {
            f"{prefix}{name}": Slot(
                getattr(self, f"raw_{prefix}{name}"), raw_of=parameter.unconstrained, support=parameter.support,
                clips=parameter.prior is not None,  # what is nearest on a circle is another matter
            )
            for prefix, family, _ in self.parts for name, parameter in family.parameters.items()
        }  # fmt: skip

    def check_held(self, method: str) -> None:
        """Raises ValueError where a method cannot hold what is held, or would have to learn what it cannot."""
        for prefix, family, _ in self.parts:
            whole = [name for name in family.parameters if not getattr(self, f"raw_{prefix}{name}").requires_grad]
            if free := [f"{prefix}{name}" for name in family.moving if name not in whole]:
                raise ValueError(
                    f"emission: the support of {name_of(family)} ends at its {' and '.join(free)}, of which there is no "
                    f"gradient: set them, set_parameters({free[0]}=...), and hold them, fit(..., fixed={free})"
                )
            bound = any(is_bound(getattr(self, f"raw_{prefix}{name}")) for name in family.parameters)
            partly = len(whole) < len(family.parameters) and bound
            if method == "em" and partly and family not in FAMILIES.values():
                raise ValueError("fixed, bounds: the M-step of a Family of your own knows of none; use method 'lbfgs' or 'sgd'")

    @property
    def num_free(self) -> int:
        return self.num_states * sum(len(family.parameters) * len(columns) for _, family, columns in self.parts)

    def check(self, x: Tensor) -> None:
        check_vectors(x, self.num_features, "NaN marks what is missing")
        for _, family, columns in self.parts:
            own = x[..., columns]
            if family.holds is not None:
                holds, what = family.holds
                bad = ~(holds(own) | own.isnan())
                if bool(bad.any()):
                    row, step, column = bad.nonzero()[0].tolist()
                    raise ValueError(
                        f"x: column {columns[column]} must hold {what} ({name_of(family)}); row {row}, "
                        f"step {step} holds {float(own[row, step, column]):g}"
                    )
            if family.unusual is not None and bool(family.unusual[0](own).any()):
                largest = float(own.nan_to_num(0.0).abs().max())
                warnings.warn(f"x: {family.unusual[1]}; got {largest:g}", UserWarning, stacklevel=2)
            if family.histogram:
                self._largest = max(self._largest, int(own.nan_to_num(0.0).max()))

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x with NaN only where the rest of the vector was seen, and which steps (B, T) were seen at all."""
        seen = ~x.isnan().all(-1)
        fill = torch.zeros(self.num_features)
        for _, family, columns in self.parts:
            fill[columns] = family.fill
        return torch.where(seen.unsqueeze(-1), x, fill.to(x)).to(like(self).dtype), seen

    # ---------------------------------------------------------------- parameters
    def values(self) -> dict[str, Tensor]:
        """Name -> (Z, d) parameters, constrained."""
        return {
            f"{prefix}{name}": parameter.value(getattr(self, f"raw_{prefix}{name}"))
            for prefix, family, _ in self.parts
            for name, parameter in family.parameters.items()
        }

    def units(self) -> dict[str, Tensor]:
        """By raw name how much a location varies."""
        values, found = self.values(), {}
        for prefix, family, _ in self.parts:
            if "scale" in family.parameters:
                scale = values[f"{prefix}scale"].detach()
                real = [name for name, own in family.parameters.items() if own.constraint is constraints.real and own.prior]
                found |= {f"raw_{prefix}{name}": scale for name in real}
        return found

    def sites(self) -> dict[str, Tensor]:
        return self.values()

    def from_sites(self, **values: Tensor) -> dict[str, Tensor]:
        return values

    @torch.no_grad()
    def set_values(self, **values: Tensor) -> None:
        """Sets parameters by their names: (Z, d), (Z,) of one column, or one number, (Z, 1) or (1, d) for all.

        Raises:
            ValueError: for an unknown name, or values that the family does not take.
        """
        known = {f"{prefix}{n}": p for prefix, family, _ in self.parts for n, p in family.parameters.items()}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"no parameter {name!r} of these emissions; there are: {', '.join(known)}")
            raw = getattr(self, f"raw_{name}")
            value = torch.as_tensor(value, dtype=torch.float64).to(raw)
            value = in_shape(name, value, tuple(raw.shape), spread=True)
            if not bool(known[name].constraint.check(value).all()):
                raise ValueError(f"{name}: outside of {known[name].constraint}; got {value.flatten()[:3].tolist()}, ...")
            raw.copy_(known[name].unconstrained(value).expand(raw.shape))

    def _make(self, values: Mapping[str, Tensor]) -> Columns:
        return Columns([
            (columns, family.make(**{n: values[f"{prefix}{n}"] for n in family.parameters}), family.fill)
            for prefix, family, columns in self.parts
        ])  # fmt: skip

    def spec(self) -> ColumnEmission:
        return ColumnEmission(self._make, self.values())

    def drawn_spec(self, priors: Priors) -> ColumnEmission:
        drawn = {}
        for prefix, family, columns in self.parts:
            for name, parameter in family.parameters.items():
                prior = priors.of_parameter(f"{prefix}{name}", parameter)
                shape = (self.num_states, len(columns))
                drawn[f"{prefix}{name}"] = pyro.sample(f"{prefix}{name}", prior.distribution(shape, like(self)))
        return ColumnEmission(self._make, drawn)

    def log_prior(self, priors: Priors) -> Tensor:
        """Of the parameters whose priors were given; the others' are flat, but for "svi" and "nuts"."""
        total, values = like(self).new_zeros(()), self.values()
        for prefix, family, _ in self.parts:
            for name, parameter in family.parameters.items():
                if f"{prefix}{name}" not in (priors.parameters or {}):
                    continue
                value = values[f"{prefix}{name}"]
                prior = priors.of_parameter(f"{prefix}{name}", parameter).distribution(tuple(value.shape), value)
                total = total + prior.log_prob(value)
        return total

    def moments(self) -> tuple[Tensor, Tensor]:
        """(Z, D) means and (Z, D, D) covariances of what the states emit.

        Raises:
            ValueError: for a distribution that does not tell them.
        """
        made = self._make({name: value.detach() for name, value in self.values().items()})
        try:
            return made.mean, torch.diag_embed(made.variance)
        except NotImplementedError:
            raise ValueError(
                "emission: forecasts are made of means and variances, which a distribution of this model does not tell; ask "
                "filter for the states, or draw what comes by sample"
            ) from None

    def why_no_number(self, x: Tensor, seen: Tensor) -> str:
        """Of which column a density, or its gradient, is no number at the parameters as they are, in words; "" of none."""
        for prefix, family, columns in self.parts:
            for place, column in enumerate(columns):
                own = x[..., column][seen]
                own = own[~own.isnan()].unsqueeze(-1)
                with torch.enable_grad():  # with parameters of each number's own, so that it is known which one it is
                    raws = [getattr(self, f"raw_{prefix}{name}").detach()[:, place] for name in family.parameters]
                    raws = [raw.expand(len(own), -1).clone().requires_grad_() for raw in raws]
                    values = {n: p.value(raw) for raw, (n, p) in zip(raws, family.parameters.items(), strict=True)}
                    density = family.make(**values).log_prob(own)
                    slopes = torch.autograd.grad(density.sum(), raws, allow_unused=True)
                wrong = ~torch.stack([density, *(slope for slope in slopes if slope is not None)]).isfinite().all(0).all(-1)
                if bool(wrong.any()):
                    return (
                        f"emission: the density of {name_of(family)}, or its gradient, is no number at {int(wrong.sum())} of "
                        f"the {len(own)} numbers of column {column}, as {float(own[wrong][0])!r}; give the column in other "
                        "units, leave such numbers out, or take another family"
                    )
        return ""

    # ---------------------------------------------------------------- EM
    @torch.no_grad()
    def set_origin(self, x: Tensor, seen: Tensor) -> None:
        self.origin = x[seen].double().nanmean(0).nan_to_num(0.0)

    def _own(self, prefix: str, family: Family, columns: list[int], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameters of a family by their own names, seen from the origin where it wants that."""
        own = {name: values[f"{prefix}{name}"] for name in family.parameters}
        if not family.about_origin:
            return own
        origin = self.origin[columns].to(own["loc"].device)
        return own | {"loc": own["loc"].double() - origin, "origin": origin}

    def statistics(self, obs: Tensor, weight: Tensor) -> Statistics:
        """Expected statistics of vectors obs (N, D), in part NaN, seen in states with weight (N, Z)."""
        result, values = {}, {name: value.detach() for name, value in self.values().items()}
        for prefix, family, columns in self.parts:
            own = obs[:, columns].double()
            seen = ~own.isnan()
            weights = weight.double().unsqueeze(-1) * seen.unsqueeze(1)
            parameters = self._own(prefix, family, columns, values)
            own = torch.where(seen, own - parameters.get("origin", 0.0), family.fill)
            if family.histogram:
                found = histogram(own, weights, self._largest)
            else:
                assert family.statistics is not None, "EM was refused before"
                found = family.statistics(own, weights, parameters)
            result |= {f"{prefix}{name}": value for name, value in found.items()}
        return result

    def implied(self, visits: Tensor) -> Statistics:
        raise ValueError("step_size: stepwise EM is for words and Gaussians; leave it out, or use method='sgd'")

    @torch.no_grad()
    def maximize(self, statistics: Statistics, priors: Priors | None) -> list[str]:
        values, remarks = self.values(), []
        for prefix, family, columns in self.parts:
            assert family.update is not None, "EM was refused before"
            own = {n.removeprefix(prefix): v for n, v in statistics.items() if n.startswith(prefix)}
            before = self._own(prefix, family, columns, values)
            weight = own["histogram"].sum(-1) if family.histogram else own["weight"]
            empty = weight < NOTHING
            within: Any = {
                f"within {name}": partial(self._within, f"{prefix}{name}", parameter, before)
                for name, parameter in family.parameters.items() if is_bound(getattr(self, f"raw_{prefix}{name}"))
            }  # fmt: skip
            after = family.update(own, before | within)
            for name, value in after.items():
                value = torch.where(empty, before[name].to(value), value)
                value = value + before["origin"] if name == "loc" and family.about_origin else value
                raw = getattr(self, f"raw_{prefix}{name}")
                raw.copy_(kept(raw, family.parameters[name].unconstrained(value)))
            if bool(empty.any()):
                states = empty.any(-1).nonzero().flatten().tolist()
                remarks.append(f"states {states} are empty and keep their parameters")
        return remarks

    def _within(self, name: str, parameter: Parameter, before: Mapping[str, Tensor], new: Tensor) -> Tensor:
        """New values, seen from the origin where there is one, where they may lie."""
        origin = before.get("origin", torch.zeros(())) if name.endswith("loc") else torch.zeros(())
        origin = origin.to(new)
        return parameter.value(kept(getattr(self, f"raw_{name}"), parameter.unconstrained(new + origin))) - origin

    @torch.no_grad()
    def initialize(self, x: Tensor, seen: Tensor, which: list[int] | None = None, *, over_time: bool = False) -> None:
        """Parameters around the data, spread over their quantiles, or those of clusters, of values or ``over_time`` of what
        they are like over a few steps; of some states, or of all for None."""
        rows, states = x[seen].double(), list(range(self.num_states)) if which is None else which
        if which is None and len(rows) < self.num_states:
            raise ValueError(f"x: {self.num_states} states need at least as many observations, got {len(rows)}")
        cluster = None
        for prefix, family, columns in self.parts:
            for place, column in enumerate(columns):
                own = rows[:, column]
                own = own[~own.isnan()]
                if not len(own) and which is not None:
                    continue
                if not len(own):
                    raise ValueError(f"x: column {column} is missing everywhere; leave it out")
                if which is None and len(own) > 1 and bool((own == own[0]).all()) and no_maximum(family, float(own[0])):
                    warnings.warn(
                        f"x: column {column} holds {float(own[0]):g} everywhere: nothing there tells states apart, and "
                        f"parameters of {name_of(family)} end at a bound, with a density that means nothing; leave it out",
                        RuntimeWarning, stacklevel=2,
                    )  # fmt: skip
                if family.start is not None:
                    for name, value in family.start(own, len(states)).items():
                        getattr(self, f"raw_{prefix}{name}")[states, place] = family.parameters[name].unconstrained(value)
                    continue
                if cluster is None:
                    there = filled_at_random(rows[:, ~rows.isnan().all(0)])
                    cluster = clusters(there.unbind(-1), len(states), seen if over_time else None)
                for state, number in zip(states, range(len(states)), strict=True):
                    part = rows[cluster == number, column]
                    part = part[~part.isnan()]
                    for name, value in fit_family(family, part if len(part) > FEW else own).items():
                        getattr(self, f"raw_{prefix}{name}")[state, place] = family.parameters[name].unconstrained(value)


class MixtureTable(PyroModule):
    """p(x | state) = sum_m weight[state, m] Normal(loc[state, m], covariance[state, m]).

    Its Gaussians are a :class:`~pplseq.models.hmm.emissions.GaussianTable` of Z * M states, those of a state behind each
    other, with all kinds of covariances.
    """

    has_em = True

    def __init__(
        self, num_states: int, num_features: int, num_components: int, covariance: str, floor: float | None,
        dtype: torch.dtype,
    ):  # fmt: skip
        super().__init__()
        self.num_states, self.num_components = num_states, num_components
        self.gaussians = GaussianTable(num_states * num_components, num_features, covariance, floor, dtype)
        self.weight_logits = nn.Parameter(torch.zeros(num_states, num_components, dtype=dtype))

    @property
    def num_free(self) -> int:
        return self.gaussians.num_free + self.num_states * (self.num_components - 1)

    @property
    def slots(self) -> dict[str, Slot]:
        return {"weights": Slot(self.weight_logits, True), **self.gaussians.slots}

    def check(self, x: Tensor) -> None:
        self.gaussians.check(x)

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.gaussians.observed(x)

    @property
    def log_weights(self) -> Tensor:
        return torch.log_softmax(self.weight_logits, -1)

    def units(self) -> dict[str, Tensor]:
        return {f"gaussians.{name}": unit for name, unit in self.gaussians.units().items()}

    def spec(self) -> MixtureEmission:
        return MixtureEmission(self.log_weights, self.gaussians.spec())

    def drawn_spec(self, priors: Priors) -> MixtureEmission:
        flat = torch.full((self.num_states, self.num_components), float(priors.weights)).to(like(self))
        weights = pyro.sample("weights", dist.Dirichlet(flat).to_event(1))
        return MixtureEmission(safe_log(weights), self.gaussians.drawn_spec(priors))

    def values(self) -> dict[str, Tensor]:
        return {"weights": self.log_weights.exp(), **self.gaussians.values()}

    def sites(self) -> dict[str, Tensor]:
        return {"weights": inside_simplex(self.log_weights.exp()), **self.gaussians.sites()}

    def from_sites(self, weights: Tensor, **rest: Tensor) -> dict[str, Tensor]:
        return {"weights": weights, **self.gaussians.from_sites(**rest)}

    @torch.no_grad()
    def set_values(self, weights: Tensor | None = None, **rest: Tensor) -> None:
        if weights is not None:
            self.weight_logits.copy_(weights.log())
        if rest:
            self.gaussians.set_values(**({"loc": self.gaussians.loc} | rest))

    def log_prior(self, priors: Priors) -> Tensor:
        flat = torch.full((self.num_states, self.num_components), float(priors.weights)).to(like(self))
        return self.gaussians.log_prior(priors) + dirichlet_log_density(self.log_weights, flat)

    def moments(self) -> tuple[Tensor, Tensor]:
        """(Z, D) means and (Z, D, D) covariances of what the states emit."""
        locs, covariances = (
            value.detach().unflatten(0, (self.num_states, -1)) for value in (self.gaussians.loc, self.gaussians.covariances())
        )
        pairs = [mixture_moments(w, m, c) for w, m, c in zip(self.log_weights.detach().exp(), locs, covariances, strict=True)]
        return torch.stack([mean for mean, _ in pairs]), torch.stack([covariance for _, covariance in pairs])

    # ---------------------------------------------------------------- EM
    def set_origin(self, x: Tensor, seen: Tensor) -> None:
        self.gaussians.set_origin(x, seen)

    def statistics(self, obs: Tensor, weight: Tensor) -> Statistics:
        with torch.no_grad():
            shares = weight.unsqueeze(-1) * torch.softmax(self.spec().joint(obs), -1)
        return self.gaussians.statistics(obs, shares.flatten(1)) | {"components": shares.double().sum(0)}

    def implied(self, visits: Tensor) -> Statistics:
        shares = visits.unsqueeze(-1) * self.log_weights.double().exp()
        return self.gaussians.implied(shares.flatten()) | {"components": shares}

    @torch.no_grad()
    def maximize(self, statistics: Statistics, priors: Priors | None) -> list[str]:
        counts = statistics["components"]
        flat = None if priors is None else torch.full_like(counts, float(priors.weights))
        self.weight_logits.copy_(kept(self.weight_logits, dirichlet_mode(counts, flat, self.log_weights)))
        return self.gaussians.maximize(statistics, priors)

    @torch.no_grad()
    def initialize(self, x: Tensor, seen: Tensor, which: list[int] | None = None) -> None:
        """Clusters of the data, by their first column, the neighbours in one state; of some states, or of all for None."""
        parts = None if which is None else [k * self.num_components + m for k in which for m in range(self.num_components)]
        self.gaussians.initialize(x, seen, parts)
        own = self.gaussians.loc if parts is None else self.gaussians.loc[parts]
        self.gaussians.loc[slice(None) if parts is None else parts] = own[own[:, 0].argsort()]
        self.weight_logits[slice(None) if which is None else which] = 0.0


def table_of(
    emission: Any, num_states: int, num_features: int, covariance: str, floor: float | None, dtype: torch.dtype,
    num_components: int | None,
) -> GaussianTable | FamilyTable | MixtureTable:  # fmt: skip
    """The emissions of vectors that a name, a family, or one for each column asks for."""
    if spelled(emission) == "mixture":
        return MixtureTable(num_states, num_features, num_components or 2, covariance, floor, dtype)
    if spelled(emission) == "gaussian":
        return GaussianTable(num_states, num_features, covariance, floor, dtype)
    return FamilyTable(num_states, num_features, emission, dtype)


def as_config(emission: Any) -> Any:
    """A name, or names of columns, as JSON has them; a distribution class by its name.

    Raises:
        ValueError: for a family that has no name.
    """
    if isinstance(emission, Sequence) and not isinstance(emission, str):
        return as_list(emission, [as_config(each) for each in emission])
    if isinstance(emission, type):
        return emission.__name__
    return emission


def as_list(given: Any, value: list) -> list:
    """The list, or what was given if that is equal to it: scikit-learn's ``clone`` wants to see its own argument again."""
    return given if isinstance(given, list) and given == value else value
