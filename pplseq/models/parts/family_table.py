"""Emissions of an HMM from families of distributions, one for all columns or one a column, and mixtures of Gaussians."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import constraints

from pplseq import checks
from pplseq.distributions.columns import ColumnEmission, Columns, MixtureEmission, SharedEmission
from pplseq.distributions.conditional import ConditionalEmission
from pplseq.distributions.state import Emission
from pplseq.infer.fit.closed_forms import dirichlet_mode
from pplseq.infer.fit.em import NOTHING, Statistics
from pplseq.infer.fit.held import Ends, Slot, is_bound, kept
from pplseq.models.parts.compositions import JOINT, JointFamily, joint_family
from pplseq.models.parts.emissions import (
    GaussianTable,
    Table,
    check_vectors,
    dirichlet_log_density,
    like,
    mixture_moments,
    safe_log,
)
from pplseq.models.parts.ends import least_scales, shape_ends, without_zeros
from pplseq.models.parts.families import (
    Family,
    Parameter,
    Probabilities,
    categorical,
    histogram,
    name_of,
    no_maximum,
    refuse,
)
from pplseq.models.parts.family_start import clusters, fit_family
from pplseq.models.parts.named_families import family_of, is_known, spelled
from pplseq.models.parts.partly_seen import filled_at_random
from pplseq.models.parts.priors import Priors

SPREAD = 0.5  # of the first parameters, before any data
FEW = 4  # numbers that fit no family
CLOSE = 1 + 1e-6  # to an end of what a parameter may be


class FamilyTable(Table):
    """p(x | state) over (D,) vectors of independent columns, each from a family of distributions.

    Parameters: for every parameter of every family that occurs, unconstrained numbers (Z, d) of its d columns, named as the
    family's, with the family's name in front where there are several.

    Args:
        families: a family (or its name), for all columns, or one a column. num_levels: of "categorical" columns, of all of them
            or one a column (None at others). trials: of "binomial" columns, where they are the same at every step; without such
            columns the total of "multinomial" ones.
    """

    def __init__(
        self, num_states: int, num_features: int, families: Any, dtype: torch.dtype, num_levels: Any = None,
        trials: int | None = None,
    ):  # fmt: skip
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
        levels = levels_of(each, num_levels)
        self.parts: list[tuple[str, Family, list[int]]] = []  # prefix of names, family, its columns
        for family in dict.fromkeys(each):
            columns = [column for column, own in enumerate(each) if own == family]
            prefix = "" if len(set(each)) == 1 else (family if isinstance(family, str) else f"family{columns[0]}") + "_"
            if spelled(family) in JOINT:
                self.parts.append((prefix, joint_family(spelled(family), len(columns)), columns))
                continue
            if columns[0] not in levels:
                self.parts.append((prefix, family_of(family), columns))
                continue
            for column in columns:  # each is a table of its own
                prefix = "" if len(each) == 1 else f"categorical{column}_"
                self.parts.append((prefix, categorical(levels[column]), [column]))
        self.declared: dict[str, Parameter] = {}
        for prefix, family, columns in self.parts:
            for name, parameter in family.parameters.items():
                self.declared[f"{prefix}{name}"] = parameter
                start = SPREAD * torch.randn(parameter.shape(num_states, len(columns)), dtype=dtype)
                setattr(self, f"raw_{prefix}{name}", nn.Parameter(start))
        self.trials = None if trials is None else checks.count("trials", trials)
        if trials is not None and not self.sized("trials"):
            raise ValueError(f"trials: they are of 'binomial' and 'multinomial' emissions, and there are none; got {trials}")
        self.has_em = all(family.has_em for _, family, _ in self.parts)

    @property
    def levels(self) -> dict[int, int]:
        return {columns[0]: family.num_levels for _, family, columns in self.parts if family.num_levels is not None}

    @property
    def needs_trials(self) -> bool:
        return any(family.sized == "trials" and not isinstance(family, JointFamily) for _, family, _ in self.parts)

    def sized(self, name: str) -> list[int]:
        """Columns whose families take "trials" or "exposure" beside their parameters."""
        return [column for _, family, columns in self.parts if family.sized == name for column in columns]

    def with_own_totals(self, sizes: Tensor) -> Tensor:
        """Sizes (*B, D) of which nobody told the totals of multinomial columns: that of all rows, or NaN, where each has its
        own."""
        found = sizes.clone()
        for _, family, columns in self.parts:
            if isinstance(family, JointFamily) and family.sized == "trials":
                found[..., columns] = self._all_trials(family, sizes).to(sizes)
        return found

    def _check_held(self, method: str) -> None:
        """Raises ValueError where a method cannot hold what is held, or would have to learn what it cannot."""
        for prefix, family, _ in self.parts:
            whole = [name for name in family.parameters if not self.raw(f"{prefix}{name}").requires_grad]
            if free := [f"{prefix}{name}" for name in family.moving if name not in whole]:
                raise ValueError(
                    f"emission: the support of {name_of(family)} ends at its {' and '.join(free)}, of which there is no "
                    f"gradient: set them, set_parameters({free[0]}=...), and hold them, fit(..., fixed={free})"
                )
            bound = any(is_bound(self.raw(f"{prefix}{name}")) for name in family.parameters)
            partly = len(whole) < len(family.parameters) and bound
            if method == "em" and partly and not is_known(family):
                raise ValueError("fixed, bounds: the M-step of a Family of your own knows of none; use method 'lbfgs' or 'sgd'")

    def check(self, x: Tensor) -> None:
        check_vectors(x, self.num_features, "NaN marks what is missing")
        for _, family, columns in self.parts:
            own = x[..., columns]
            if family.holds is not None:
                holds, what = family.holds
                refuse(x, columns, ~(holds(own) | own.isnan()), f"{what} ({name_of(family)})")
            if isinstance(family, JointFamily):
                family.check_rows(own, columns)
            if family.unusual is not None and bool(family.unusual[0](own).any()):
                largest = float(own.nan_to_num(0.0).abs().max())
                warnings.warn(f"x: {family.unusual[1]}; got {largest:g}", UserWarning, stacklevel=2)
            if family.histogram:
                self._largest = max(self._largest, int(own.nan_to_num(0.0).max()))
        if self.trials is not None:
            self.check_trials(x, self.with_own_totals(torch.full_like(x, float(self.trials))))

    def check_trials(self, x: Tensor | None, trials: Tensor) -> None:
        """Raises ValueError where a column of x (B, T, D), or None, counts more than there were trials, of that shape, or where
        columns of one total do not have that, which is NaN where it was not told."""
        for _, family, columns in self.parts:
            if isinstance(family, JointFamily) and family.sized == "trials":
                own, count = trials[..., columns], None if x is None else x[..., columns]
                bad = ~(own == own[..., :1]).all(-1)
                bad = bad if count is None else (bad | (count.sum(-1) != own[..., 0])) & ~count.isnan().any(-1)
                bad = bad & ~own.isnan().all(-1)
                if bool(bad.any()):
                    row, step = bad.nonzero()[0].tolist()
                    held = "" if count is None else f", and x sums to {float(count[row, step].sum()):g}"
                    raise ValueError(
                        f"trials: columns {columns} (multinomial) have one total, their sum; row {row}, step {step} is told "
                        f"{own[row, step].tolist()[:8]}{held}; leave trials out, or beside 'binomial' columns give those of "
                        "each column, (B, T, D)"
                    )
        if x is None:
            return
        bad = x[..., self.sized("trials")] > trials[..., self.sized("trials")]
        if bool(bad.any()):
            row, step, place = bad.nonzero()[0].tolist()
            column = self.sized("trials")[place]
            raise ValueError(
                f"x: column {column} counts successes, at most as many as there are trials; row {row}, step {step} holds "
                f"{float(x[row, step, column]):g} of {float(trials[row, step, column]):g}"
            )

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x with NaN only where the rest of the vector was seen, and which steps (B, T) were seen at all."""
        seen = ~x.isnan().all(-1)
        fill = torch.zeros(self.num_features)
        for _, family, columns in self.parts:
            fill[columns] = family.fill
        return torch.where(seen.unsqueeze(-1), x, fill.to(x)).to(like(self).dtype), seen

    # ---------------------------------------------------------------- parameters
    def units(self) -> dict[str, Tensor]:
        """By raw name how much a location varies."""
        values, found = self.values(), {}
        for prefix, family, _ in self.parts:
            if "scale" in family.parameters:
                scale = values[f"{prefix}scale"].detach()
                real = [name for name, own in family.parameters.items() if own.constraint is constraints.real and own.prior]
                found |= {f"raw_{prefix}{name}": scale for name in real}
        return found

    def ends(self, rows: Tensor) -> Ends:
        found: Ends = {}
        for prefix, family, columns in self.parts:
            own = without_zeros(family, rows[:, columns].double())
            if {"loc", "scale"} <= family.parameters.keys():
                low = family.parameters["scale"].unconstrained(least_scales(family, own))
                found[f"raw_{prefix}scale"] = low, low.new_tensor(torch.inf)
                continue
            size = own.abs().nanmean(0).nan_to_num(0.0)
            near = None
            if "concentration1" in family.parameters:
                near = torch.stack([-(-side).nan_to_num(-1.0).amax(0) for side in (own, 1 - own)])
            for name, (low, high) in shape_ends(family, torch.where(size > 0, size, 1.0), near).items():
                raws = (family.parameters[name].unconstrained(end) for end in (low, high))
                found[f"raw_{prefix}{name}"] = next(raws), next(raws)
        return found

    def _make(self, values: Mapping[str, Tensor]) -> Columns:
        sizes, parts = values.get("sizes"), []
        for prefix, family, columns in self.parts:
            own = {name: values[f"{prefix}{name}"] for name in family.parameters}
            if family.sized is not None and sizes is not None:
                own[family.sized] = sizes[..., columns]
            elif family.sized == "trials":
                own["trials"] = self._all_trials(family, like(self))
            parts.append((columns, family.make(**own), family.fill))
        return Columns(parts)

    def _all_trials(self, family: Family, reference: Tensor) -> Tensor:
        """Of every step; NaN where each step has its own, which a model asks for before it comes here, or a row tells."""
        others = isinstance(family, JointFamily) and self.needs_trials  # whose number of trials it is
        return reference.new_tensor(math.nan if self.trials is None or others else float(self.trials))

    def spec(self, known: Tensor | None = None) -> ColumnEmission:
        """The emission; known: (*B, D) numbers of trials and exposures of its steps, 1 of other columns, or None."""
        return self._with(self.values(), known)

    def _with(self, values: Mapping[str, Tensor], known: Tensor | None) -> ColumnEmission:
        if known is None:
            return ColumnEmission(self._make, values)
        sizes = known.unsqueeze(-2).expand(*known.shape[:-1], self.num_states, -1)
        return ColumnEmission(self._make, {**values, "sizes": sizes})

    def conditional(self, emission: Emission) -> ConditionalEmission:
        """An emission of this table given (*B, D) numbers of trials and exposures."""
        rows = emission.rows if isinstance(emission, SharedEmission) else None
        base: Any = emission.base if isinstance(emission, SharedEmission) else emission

        def build(sizes: Tensor) -> Emission:
            own = self._with(base.parameters, sizes)
            return own if rows is None else SharedEmission(own, rows)

        return ConditionalEmission(
            build, emission.num_states, event_shape=base.event_shape, batch_shape=tuple(base.batch_shape)
        )

    def drawn_spec(self, priors: Priors) -> ColumnEmission:
        priors_ = {name: priors.of_parameter(name, own) for name, own in self.declared.items()}
        return ColumnEmission(self._make, {
            name: pyro.sample(name, own.distribution(tuple(self.raw(name).shape), like(self))) for name, own in priors_.items()
        })  # fmt: skip

    def log_prior(self, priors: Priors) -> Tensor:
        """Of the parameters whose priors were given; the others' are flat, but for "svi" and "nuts"."""
        total = like(self).new_zeros(())
        for name, value in self.values().items():
            if name in (priors.parameters or {}):
                prior = priors.of_parameter(name, self.declared[name])
                total = total + prior.distribution(tuple(value.shape), value).log_prob(value)
        return total

    def moments(self, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(*B, Z, K) means and (*B, Z, K, K) covariances of what the states emit at steps of which sizes (*B, D) are known, or
        at any; a level of a column of levels is a number 0 or 1 there, and behind those of the column before.

        Raises:
            ValueError: for a distribution that does not tell them.
        """
        values = {name: value.detach() for name, value in self.values().items()}
        try:
            emission = self._with(values, known)
            return self._make(emission.parameters).moments()
        except NotImplementedError:
            raise ValueError(
                "emission: forecasts are made of means and variances, which a distribution of this model does not tell; ask "
                "filter for the states, or draw what comes by sample"
            ) from None

    def _why_no_number(self, x: Tensor, seen: Tensor) -> str:
        """Of which column a density, or its gradient, is no number at the parameters as they are, in words; "" of none."""
        for prefix, family, columns in self.parts:
            if family.num_levels is not None or family.sized == "trials" or isinstance(family, JointFamily):
                continue  # any probability is a number, and any share inside of its range
            for place, column in enumerate(columns):
                own = x[..., column][seen]
                own = own[~own.isnan()].unsqueeze(-1)
                with torch.enable_grad():  # with parameters of each number's own, so that it is known which one it is
                    raws = [self.raw(f"{prefix}{name}").detach()[:, place] for name in family.parameters]
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

    def statistics(self, obs: Tensor, weight: Tensor, known: Tensor | None = None) -> Statistics:
        """Expected statistics of vectors obs (N, D), in part NaN, seen in states with weight (N, Z); known: (N, D), see
        :meth:`spec`."""
        result, values = {}, {name: value.detach() for name, value in self.values().items()}
        for prefix, family, columns in self.parts:
            own = obs[:, columns].double()
            seen = ~own.isnan() & (weight > 0).any(-1, keepdim=True)  # padded steps hold anything
            weights = weight.double().unsqueeze(-1) * seen.unsqueeze(1)
            parameters = self._own(prefix, family, columns, values)
            if family.sized is not None and known is not None:
                parameters[family.sized] = known[:, columns].unsqueeze(1).double()
            elif family.sized == "trials":
                parameters["trials"] = self._all_trials(family, weights)
            fill = torch.nan if isinstance(family, JointFamily) else family.fill
            own = torch.where(seen, own - parameters.get("origin", 0.0), fill)
            if family.histogram and "exposure" not in parameters:
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
            weight = own["histogram"].sum(-1) if "histogram" in own else own["weight"]
            empty = weight < NOTHING
            within: Any = {
                f"within {name}": partial(self._within, f"{prefix}{name}", parameter, before)
                for name, parameter in family.parameters.items() if is_bound(self.raw(f"{prefix}{name}"))
            }  # fmt: skip
            after = family.update(own, before | within)
            for name, value in after.items():
                value = torch.where(empty, before[name].to(value), value)
                value = value + before["origin"] if name == "loc" and family.about_origin else value
                raw = self.raw(f"{prefix}{name}")
                raw.copy_(kept(raw, family.parameters[name].unconstrained(value)))
            if bool(empty.any()):
                states = empty.any(-1).nonzero().flatten().tolist()
                remarks.append(f"states {states} are empty and keep their parameters")
            first, mass = (own.get(f"own {name}", own.get(name, torch.zeros(()))).sum(0) for name in ("first", "weight"))
            size = first / mass.clamp_min(NOTHING)
            for name, (low, high) in shape_ends(family, torch.where(size > 0, size, 1.0)).items():
                at = (after[name] <= low * CLOSE) | (after[name] >= high / CLOSE)
                if bool((at & ~empty).any()):
                    states = (at & ~empty).any(-1).nonzero().flatten().tolist()
                    remarks.append(
                        f"states {states} collapsed to the {'largest' if bool(high.isfinite().all()) else 'smallest'} {name} "
                        "allowed, as of a state that sees one number again and again; give priors or fewer states"
                    )
        return remarks

    def _within(self, name: str, parameter: Parameter, before: Mapping[str, Tensor], new: Tensor) -> Tensor:
        """New values, seen from the origin where there is one, where they may lie."""
        origin = before.get("origin", torch.zeros(())) if name.endswith("loc") else torch.zeros(())
        origin = origin.to(new)
        return parameter.value(kept(self.raw(name), parameter.unconstrained(new + origin))) - origin

    @torch.no_grad()
    def initialize(
        self, x: Tensor, seen: Tensor, which: list[int] | None = None, *, over_time: bool = False, known: Tensor | None = None
    ) -> None:
        """Parameters around the data, spread over their quantiles, or those of clusters, of values or ``over_time`` of what
        they are like over a few steps; of some states, or of all for None. known: (B, T, D), see :meth:`spec`."""
        rows, states = x[seen].double(), list(range(self.num_states)) if which is None else which
        if which is None and len(rows) < self.num_states:
            raise ValueError(f"x: {self.num_states} states need at least as many observations, got {len(rows)}")
        cluster = None
        for prefix, family, columns in self.parts:
            if isinstance(family, JointFamily):
                self._start_together(prefix, family, rows[:, columns], columns, which)
                continue
            for place, column in enumerate(columns):
                own = rows[:, column]
                if family.sized == "exposure" and known is not None:  # rates, of which a few are as good as counts
                    own = own / known[seen][:, column]
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
                    values = family.start(own, len(states))
                    if {"loc", "scale"} <= set(family.parameters):
                        self._put(f"{prefix}loc", states, place, values["loc"])
                        loc = self.raw(f"{prefix}loc")
                        beyond = (loc - kept(loc, loc))[states, place].double()
                        if bool(beyond.any()):  # states at one bound differ by how far what they stand for is from it
                            within = (own.unsqueeze(-1) - values["loc"]).abs().amin(-1).square().mean().sqrt()
                            values["scale"] = torch.hypot(within.clamp_min(0.1 * values["scale"].min()), beyond)
                    for name, value in values.items():
                        self._put(f"{prefix}{name}", states, place, value)
                    continue
                if cluster is None:
                    there = filled_at_random(rows[:, ~rows.isnan().all(0)])
                    cluster = clusters(there.unbind(-1), len(states), seen if over_time else None)
                for state, number in zip(states, range(len(states)), strict=True):
                    part = rows[cluster == number, column]
                    part = part[~part.isnan()]
                    for name, value in fit_family(family, part if len(part) > FEW else own).items():
                        self._put(f"{prefix}{name}", [state], place, value)

    def _start_together(
        self, prefix: str, family: JointFamily, rows: Tensor, columns: list[int], which: list[int] | None
    ) -> None:  # fmt: skip
        """Parameters of columns that go together around their rows (N, d), of some states, or of all for None."""
        rows = rows[~rows.isnan().all(-1)]
        if not len(rows) and which is not None:
            return
        if len(gone := rows.isnan().all(0).nonzero().flatten().tolist()):
            raise ValueError(f"x: column {columns[gone[0]]} is missing everywhere; fill it in, or join it with another")
        shares = rows / rows.sum(-1, keepdim=True)
        if which is None and len(rows) > 1 and "concentration" in family.parameters and bool((shares == shares[0]).all()):
            warnings.warn(
                f"x: columns {columns} hold the same shares everywhere: nothing there tells states apart, and parameters of "
                f"{name_of(family)} end at a bound, with a density that means nothing; leave them out",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
        states = list(range(self.num_states)) if which is None else which
        assert family.start is not None, "has one"
        for name, value in family.start(rows, len(states)).items():
            raw = self.raw(f"{prefix}{name}")
            raw[states] = family.parameters[name].unconstrained(value).to(raw)

    def _put(self, name: str, states: list[int], column: int, value: Tensor) -> None:
        """Sets a parameter of one column, of some states."""
        raw, own = self.raw(name), self.declared[name]
        where = (states,) if isinstance(own, Probabilities) else (states, column)
        raw[where] = own.unconstrained(value).to(raw)


class MixtureTable(Table):
    """p(x | state) = sum_m weight[state, m] Normal(loc[state, m], covariance[state, m]).

    Its Gaussians are a :class:`~pplseq.models.parts.emissions.GaussianTable` of Z * M states, those of a state behind each
    other, with all kinds of covariances.
    """

    def __init__(
        self, num_states: int, num_features: int, num_components: int, covariance: str, floor: float | None,
        dtype: torch.dtype,
    ):  # fmt: skip
        super().__init__()
        self.num_states, self.num_components = num_states, num_components
        self.gaussians = GaussianTable(num_states * num_components, num_features, covariance, floor, dtype)
        self.weight_logits = nn.Parameter(torch.zeros(num_states, num_components, dtype=dtype))
        self.declared = {"weights": Probabilities(num_levels=num_components)}

    def raw(self, name: str) -> nn.Parameter:
        return self.weight_logits

    @property
    def settable(self) -> list[str]:
        return [*super().settable, *self.gaussians.settable]

    @property
    def slots(self) -> dict[str, Slot]:
        # of which a state has several
        return super().slots | {name: slot._replace(of_states=False) for name, slot in self.gaussians.slots.items()}

    def check(self, x: Tensor) -> None:
        self.gaussians.check(x)

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.gaussians.observed(x)

    @property
    def log_weights(self) -> Tensor:
        return torch.log_softmax(self.weight_logits, -1)

    def units(self) -> dict[str, Tensor]:
        return {f"gaussians.{name}": unit for name, unit in self.gaussians.units().items()}

    def ends(self, rows: Tensor) -> Ends:
        return {f"gaussians.{name}": both for name, both in self.gaussians.ends(rows).items()}

    def spec(self, known: Tensor | None = None) -> MixtureEmission:
        return MixtureEmission(self.log_weights, self.gaussians.spec())

    def drawn_spec(self, priors: Priors) -> MixtureEmission:
        flat = torch.full((self.num_states, self.num_components), float(priors.weights)).to(like(self))
        weights = pyro.sample("weights", dist.Dirichlet(flat).to_event(1))
        return MixtureEmission(safe_log(weights), self.gaussians.drawn_spec(priors))

    def values(self) -> dict[str, Tensor]:
        return super().values() | self.gaussians.values()

    def sites(self) -> dict[str, Tensor]:
        return super().sites() | self.gaussians.sites()

    def from_sites(self, weights: Tensor, **rest: Tensor) -> dict[str, Tensor]:
        return {"weights": weights, **self.gaussians.from_sites(**rest)}

    @torch.no_grad()
    def set_values(self, weights: Tensor | None = None, **rest: Tensor) -> None:
        if weights is not None:
            super().set_values(weights=weights)
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

    def statistics(self, obs: Tensor, weight: Tensor, known: Tensor | None = None) -> Statistics:
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
    num_components: int | None, num_levels: Any = None, trials: int | None = None,
) -> GaussianTable | FamilyTable | MixtureTable:  # fmt: skip
    """The emissions of vectors that a name, a family, or one for each column asks for."""
    for name, given in (("num_levels", num_levels), ("trials", trials)):
        if given is not None and spelled(emission) in ("mixture", "gaussian"):
            raise ValueError(f"{name}: emission={checks.shown(emission)} has none; leave it out")
    if spelled(emission) == "mixture":
        return MixtureTable(num_states, num_features, num_components or 2, covariance, floor, dtype)
    if spelled(emission) == "gaussian":
        return GaussianTable(num_states, num_features, covariance, floor, dtype)
    return FamilyTable(num_states, num_features, emission, dtype, num_levels, trials)


def levels_of(families: Sequence[Any], num_levels: Any) -> dict[int, int]:
    """Column -> number of its levels, of those that are "categorical"; raises ValueError for what does not fit together."""
    own = [column for column, family in enumerate(families) if spelled(family) == "categorical"]
    listed = isinstance(num_levels, (list, tuple))
    each = list(num_levels) if listed else [num_levels if column in own else None for column in range(len(families))]
    if len(each) != len(families):
        raise ValueError(f"num_levels: one for each of the {len(families)} columns, None at others, got {len(each)}")
    if num_levels is not None and not own:
        raise ValueError(f"num_levels: it is of 'categorical' columns, and there are none; got {checks.shown(num_levels)}")
    for column, number in enumerate(each):
        if (number is not None) != (column in own):
            says = "is 'categorical': say how many levels it has" if column in own else "is not 'categorical': None there"
            raise ValueError(f"num_levels: column {column} {says}; got {checks.shown(number)}")
    return {column: checks.count("num_levels", each[column], 2) for column in own}


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


def is_list(given: Any) -> bool:
    return isinstance(given, (list, tuple))


def as_list(given: Any, value: list) -> list:
    """The list, or what was given if that is equal to it: scikit-learn's ``clone`` wants to see its own argument again."""
    return given if isinstance(given, list) and given == value else value
