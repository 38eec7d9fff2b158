"""What the states of an HMM emit: words from a table, or vectors from Gaussians. Parameters, priors, statistics."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.dense import CategoricalEmission, GaussianEmission
from pplseq.distributions.state import MISSING, Emission
from pplseq.infer.fit.closed_forms import dirichlet_mode, gaussian_mode, with_held
from pplseq.infer.fit.em import NOTHING, Statistics, least_variances
from pplseq.infer.fit.held import Ends, Slot, entries_of, held, is_bound, kept, restored
from pplseq.models.base import first_parameter
from pplseq.models.parts import partly_seen
from pplseq.models.parts.families import Parameter, Probabilities
from pplseq.models.parts.known_noise import noisy_moments, with_noise
from pplseq.models.parts.priors import Priors, bartlett, inverse_tril

COVARIANCES = ("diag", "full", "tied", "spherical")
KMEANS_ROWS = 20_000  # no more are needed to place the first means
LARGEST = 1e100  # of numbers, whose squares are added up
FLOOR = 1e-3  # the smallest variance of a state, of that of the data


def safe_log(probs: Tensor) -> Tensor:
    """log of sampled probabilities, which may have underflowed to 0."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def like(module: nn.Module) -> Tensor:
    """An empty tensor of the module's type and device; reading a parameter by name would tell Pyro that it is used."""
    own = first_parameter(module)
    assert own is not None, "such modules have some"
    return own.detach().new_empty(0)


def random_rows(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows drawn uniformly from the simplex, (..., N) log-probabilities; the same numbers on every device."""
    return torch.empty(shape, dtype=torch.float64).exponential_().clamp_min(1e-6).log().log_softmax(-1).to(dtype)


def smallest_variances(rows: Tensor, share: float = FLOOR) -> Tensor:
    """(D,) the smallest variances of a state, of those of vectors (N, D), in which coordinates may be missing."""
    rows = rows.double()
    about, count = rows.nanmean(0).nan_to_num(0.0), (~rows.isnan()).sum(0).double()
    rows = (rows - about).nan_to_num(0.0)
    return least_variances(count, rows.sum(0), rows.square().sum(0), share, about)


class Table(PyroModule):
    """Emissions whose parameters are declared once: see :class:`~pplseq.models.parts.protocols.Emissions`.

    Attributes:
        declared: the parameters as users know them; ``raw(name)`` are the unconstrained numbers of each.
    """

    has_em = True
    declared: dict[str, Parameter]

    def raw(self, name: str) -> nn.Parameter:
        return getattr(self, f"raw_{name}")

    def ends(self, rows: Tensor) -> Ends:
        """By raw name the smallest and largest numbers that a fit by gradients to vectors (N, D) may come to: see
        :func:`~pplseq.infer.fit.gradients.ends_of`."""
        return {}

    @property
    def settable(self) -> list[str]:
        """Names that :meth:`set_values` takes."""
        return list(self.declared)

    @property
    def slots(self) -> dict[str, Slot]:
        return {name: self._slot(name, own) for name, own in self.declared.items()}

    def _slot(self, name: str, own: Parameter) -> Slot:
        if isinstance(own, Probabilities):
            return Slot(self.raw(name), True, of_states=True, pools=isinstance(self, CategoricalTable))
        on_circle = own.prior is None  # where what is nearest is another matter
        return Slot(
            self.raw(name), raw_of=own.unconstrained, support=own.support, clips=not on_circle, value_of=own.value,
            of_states=not on_circle,
        )  # fmt: skip

    def values(self) -> dict[str, Tensor]:
        """Name -> value at the module's parameters."""
        return {name: own.value(self.raw(name)) for name, own in self.declared.items()}

    def sites(self) -> dict[str, Tensor]:
        """The same as the values of the program's sites, inside their support."""
        return {name: own.inside(own.value(self.raw(name))) for name, own in self.declared.items()}

    def from_sites(self, *args: Any, **sites: Any) -> dict[str, Tensor]:
        """The values from those of the sites."""
        return sites

    @torch.no_grad()
    def set_values(self, *args: Any, **values: Any) -> None:
        """Sets parameters by their names: in their shapes, (Z,) of one column, or one number, (Z, 1) or (1, d) for all.

        Raises:
            ValueError: for values that the parameter does not take.
        """
        for name, value in values.items():
            raw, own = self.raw(name), self.declared[name]
            value = in_shape(name, torch.as_tensor(value, dtype=torch.float64).to(raw), tuple(raw.shape), spread=True)
            own.check(name, value)
            raw.copy_(own.unconstrained(value).expand(raw.shape))

    def units(self) -> dict[str, Tensor]:
        return {}

    def _check_held(self, method: str) -> None:
        pass

    def set_origin(self, x: Tensor, seen: Tensor) -> None:
        pass

    @property
    def levels(self) -> dict[int, int]:
        return {}

    @property
    def needs_trials(self) -> bool:
        return False

    def sized(self, name: str) -> list[int]:
        return []

    def with_own_totals(self, sizes: Tensor) -> Tensor:
        return sizes

    def conditional(self, emission: Emission) -> Emission:
        raise ValueError("nothing of single steps goes with these emissions")

    def moments(self) -> tuple[Tensor, Tensor]:
        raise ValueError("emission: words have no means")


class CategoricalTable(Table):
    """p(word | state), a (Z, V) table of logits."""

    def __init__(self, num_states: int, num_words: int, dtype: torch.dtype):
        super().__init__()
        self.num_states, self.num_words = num_states, num_words
        self.logits = nn.Parameter(random_rows(num_states, num_words, dtype=dtype))
        self.declared = {"emission": Probabilities(num_levels=num_words)}

    def raw(self, name: str) -> nn.Parameter:
        return self.logits

    def check(self, x: Tensor) -> None:
        checks.words(x, self.num_words)

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x without gaps, and which steps (B, T) were seen."""
        return x.clamp_min(0), x != MISSING

    def spec(self, known: Tensor | None = None) -> CategoricalEmission:
        """The emission with the module's parameters."""
        return CategoricalEmission(torch.log_softmax(self.logits, -1))

    def drawn_spec(self, priors: Priors) -> CategoricalEmission:
        """The emission with its table drawn from its prior."""
        concentration = priors.concentrations(self.num_states, self.num_words, like(self))["emission"]
        return CategoricalEmission(safe_log(pyro.sample("emission", dist.Dirichlet(concentration).to_event(1))))

    def log_prior(self, priors: Priors) -> Tensor:
        concentration = priors.concentrations(self.num_states, self.num_words, self.logits)["emission"]
        return dirichlet_log_density(torch.log_softmax(self.logits, -1), concentration)

    # ---------------------------------------------------------------- EM
    def statistics(self, obs: Tensor, weight: Tensor, known: Tensor | None = None) -> Statistics:
        """Expected counts (Z, V) of words obs (N,) seen in states with weight (N, Z)."""
        counts = weight.new_zeros(self.num_words, self.num_states).index_add_(0, obs, weight)
        return {"emission": counts.T.double()}

    def implied(self, visits: Tensor) -> Statistics:
        return {"emission": visits.unsqueeze(-1) * torch.softmax(self.logits.double(), -1)}

    @torch.no_grad()
    def maximize(self, statistics: Statistics, priors: Priors | None) -> list[str]:
        counts = statistics["emission"]
        concentration = None
        if priors is not None:
            concentration = priors.concentrations(self.num_states, self.num_words, counts)["emission"]
        mass = counts if concentration is None else counts + concentration - 1
        self.logits.copy_(kept(self.logits, dirichlet_mode(counts, concentration, self.logits), mass.sum(-1)))
        return []

    @torch.no_grad()
    def initialize(self, x: Tensor, seen: Tensor, which: list[int] | None = None) -> None:
        """Random tables around the frequencies of the words in x where seen (B, T), of some states, None for all."""
        counts = torch.bincount(x[seen], minlength=self.num_words).to(self.logits) + 0.1
        found = (counts.log() + random_rows(*self.logits.shape).to(counts)).log_softmax(-1)
        states = slice(None) if which is None else which
        self.logits[states] = found[states]


class GaussianTable(Table):
    """p(x | state) = Normal(loc[state], covariance[state]) over (D,) vectors.

    Parameters: loc (Z, D); log_scale (Z, D) for "diag", (Z, 1) for "spherical"; scale_tril (Z, D, D) for "full", (D, D) for
    "tied", lower triangular with the logarithms of its diagonal.
    """

    def __init__(self, num_states: int, num_features: int, covariance: str, floor: float | None, dtype: torch.dtype):
        super().__init__()
        self.num_states, self.num_features, self.covariance, self.floor = num_states, num_features, covariance, floor
        self.loc = nn.Parameter(torch.randn(num_states, num_features, dtype=dtype))
        # (D,) EM's moments are taken about it: about zero they would lose the digits of data that lie far from it
        self.origin = torch.zeros(num_features, dtype=torch.float64)
        if covariance in ("diag", "spherical"):
            width = num_features if covariance == "diag" else 1
            self.log_scale = nn.Parameter(torch.zeros(num_states, width, dtype=dtype))
        else:
            shape = (num_features, num_features)
            shape = shape if covariance == "tied" else (num_states, *shape)
            self.scale_tril = nn.Parameter(torch.zeros(shape, dtype=dtype))

    @property
    def settable(self) -> list[str]:
        return ["loc", "covariance", "precision"]

    @property
    def scale_shape(self) -> torch.Size:
        """Of covariances and of precisions."""
        return (self.log_scale if self.covariance in ("diag", "spherical") else self.scale_tril).shape

    @property
    def slots(self) -> dict[str, Slot]:
        full = self.covariance in ("full", "tied")
        loc = Slot(self.loc, raw_of=Tensor.clone, clips=not full, value_of=Tensor.clone, of_states=True, pools=not full)
        if full:
            return {"loc": loc, "precision": Slot(self.scale_tril, triangle=True)}
        variance = Slot(
            self.log_scale, raw_of=lambda variance: variance.log() / 2, support=(0.0, torch.inf),
            value_of=lambda raw: (2 * raw).exp(), of_states=True, pools=True,
        )  # fmt: skip
        return {"loc": loc, "precision": variance}

    def check(self, x: Tensor) -> None:
        check_vectors(x, self.num_features, "NaN is a missing coordinate, a row of NaN a missing observation")

    def observed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x with NaN at coordinates that are missing beside others, and which steps (B, T) were seen."""
        seen = ~x.isnan().all(-1)
        return torch.where(seen.unsqueeze(-1), x.to(self.loc.dtype), 0.0), seen

    def _tril(self) -> Tensor:
        """Cholesky factors (Z, D, D) of the covariances."""
        raw = self.scale_tril
        tril = raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())
        return tril.expand(self.num_states, *tril.shape[-2:])

    def spec(self, known: Tensor | None = None) -> GaussianEmission:
        if self.covariance in ("diag", "spherical"):
            return GaussianEmission(self.loc, scale=self.log_scale.exp().expand(self.loc.shape))
        return GaussianEmission(self.loc, scale_tril=self._tril())

    def drawn_spec(self, priors: Priors) -> GaussianEmission:
        shape = (self.num_states, self.num_features)
        precision = priors.draw_precision(self.covariance, *shape, like(self))
        loc = priors.draw_loc(self.covariance, precision, *shape)
        if self.covariance in ("diag", "spherical"):
            return GaussianEmission(loc, scale=precision.rsqrt().expand(shape))
        tril = inverse_tril(precision)
        return GaussianEmission(loc, scale_tril=tril.expand(self.num_states, *tril.shape[-2:]))

    def covariances(self) -> Tensor:
        """(Z, D, D) covariance of every state."""
        if self.covariance in ("diag", "spherical"):
            return torch.diag_embed((2 * self.log_scale).exp().expand(self.loc.shape))
        tril = self._tril()
        return tril @ tril.mT

    def conditional(self, emission: Emission) -> Emission:
        return with_noise(emission)

    def units(self) -> dict[str, Tensor]:
        """By raw name how much a location varies."""
        return {"loc": self.covariances().detach().diagonal(dim1=-2, dim2=-1).sqrt()}

    def moments(self) -> tuple[Tensor, Tensor]:
        """(Z, D) means and (Z, D, D) covariances of what the states emit."""
        return self.loc.detach(), self.covariances().detach()

    def values(self) -> dict[str, Tensor]:
        if self.covariance in ("diag", "spherical"):
            return {"loc": self.loc, "precision": (-2 * self.log_scale).exp()}
        precision = torch.cholesky_inverse(self._tril())
        return {"loc": self.loc, "precision": precision[0] if self.covariance == "tied" else precision}

    def sites(self) -> dict[str, Tensor]:
        """The same as the values of the program's sites."""
        values = self.values()
        if self.covariance in ("full", "tied"):
            factor = torch.linalg.cholesky(values.pop("precision"))
            row, column = torch.tril_indices(self.num_features, self.num_features, -1)
            values["precision_diag"] = factor.diagonal(dim1=-2, dim2=-1).square()
            values["precision_lower"] = factor[..., row, column]
        return values

    def from_sites(self, loc: Tensor, precision: Any = None, precision_diag: Any = None, precision_lower: Any = None):
        """Means and precisions from (a batch of) values of the sites."""
        if precision is None:
            factor = bartlett(precision_diag, precision_lower)
            precision = factor @ factor.mT
        return {"loc": loc, "precision": precision}

    @torch.no_grad()
    def set_values(self, loc: Tensor, precision: Tensor | None = None, covariance: Tensor | None = None) -> None:
        """Parameters from means and either precisions or covariances, (Z, D), (Z, 1), (Z, D, D) or (D, D)."""
        given = precision if covariance is None else covariance
        if given is None:
            raise TypeError("covariance, precision: give one of the two")
        loc = checks.finite("loc", in_shape("loc", loc, tuple(self.loc.shape)))
        name = "precision" if covariance is None else "covariance"
        given = in_shape(name, given, tuple(self.scale_shape))
        if self.covariance in ("diag", "spherical") and not bool((given > 0).all()):
            raise ValueError(f"{name}: expected numbers above 0, got {float(given.min()):.6g}; a state without spread has none")
        checks.finite(name, given)
        self.loc.copy_(loc)
        if self.covariance in ("diag", "spherical"):
            self.log_scale.copy_((-given.log() if covariance is None else given.log()) / 2)
            return
        tril = _factor(name, given)
        if covariance is None:
            tril = torch.linalg.cholesky(torch.cholesky_inverse(tril))
        self.scale_tril.copy_(tril.tril(-1) + torch.diag_embed(tril.diagonal(dim1=-2, dim2=-1).log()))

    def log_prior(self, priors: Priors) -> Tensor:
        return priors.gaussian_log_density(self.covariance, **self.values())

    # ---------------------------------------------------------------- EM
    @torch.no_grad()
    def set_origin(self, x: Tensor, seen: Tensor) -> None:
        """Moments are taken about the means of vectors x (B, T, D), at steps (B, T) that were seen, from now on."""
        self.origin = x[seen].double().nanmean(0).nan_to_num(0.0)

    def ends(self, rows: Tensor) -> Ends:
        floor = smallest_variances(rows)
        floor = floor if self.floor is None else torch.full_like(floor, self.floor)
        if self.covariance in ("diag", "spherical"):
            low = (floor if self.covariance == "diag" else floor.mean(0, keepdim=True)).log() / 2
            return {"log_scale": (low, low.new_tensor(torch.inf))}
        off = torch.full((len(floor), len(floor)), -torch.inf, dtype=floor.dtype, device=floor.device)
        return {"scale_tril": (off.diagonal_scatter(floor.log() / 2), -off)}

    def lowest(self, count: Tensor, first: Tensor, second: Tensor, about: Tensor) -> Tensor:
        """(D,) smallest variances, from the number of all vectors, their sum (D,) and that of squares (D,) about a point."""
        if self.floor is not None:
            return torch.full_like(first, self.floor)
        return least_variances(count, first, second, FLOOR, about)

    def statistics(self, obs: Tensor, weight: Tensor, known: Tensor | None = None) -> Statistics:
        """Expected moments, about the origin, of vectors obs (N, D) seen in states with weight (N, Z), without known noises
        (N, D, D) in them."""
        return self._moments(obs.double() - self.origin.to(obs.device), weight.double(), known)

    def _means(self) -> Tensor:
        """(Z, D) as seen from the origin."""
        return self.loc.double() - self.origin.to(self.loc.device)

    def _moments(self, obs: Tensor, weight: Tensor, noises: Tensor | None = None) -> Statistics:
        """:meth:`statistics` of vectors as seen from the origin."""
        if noises is not None:
            with torch.no_grad():
                found = noisy_moments(obs, weight, self._means(), self.covariances().double(), noises.double())
            if self.covariance == "tied":
                return found | {"second": found["second"].sum(0)}
            full = self.covariance == "full"
            return found if full else found | {"second": found["second"].diagonal(dim1=-2, dim2=-1)}
        partly = obs.isnan().any(-1)
        if bool(partly.any()):
            return self._partly_seen(obs[partly], weight[partly], self._moments(obs[~partly], weight[~partly]))
        result = {"weight": weight.sum(0), "first": weight.T @ obs}
        if self.covariance in ("diag", "spherical"):
            return result | {"second": weight.T @ obs**2}
        if self.covariance == "tied":
            return result | {"second": (obs * weight.sum(-1, keepdim=True)).T @ obs}
        size = self.num_features
        outer = (obs.unsqueeze(-1) * obs.unsqueeze(-2)).flatten(-2)
        return result | {"second": (weight.T @ outer).reshape(-1, size, size)}

    @torch.no_grad()
    def _partly_seen(self, obs: Tensor, weight: Tensor, others: Statistics) -> Statistics:
        """Adds the expected moments of vectors with missing coordinates to those of others."""
        loc = self._means()
        if self.covariance in ("diag", "spherical"):
            found = partly_seen.diagonal_moments(obs, weight, loc, (2 * self.log_scale.double()).exp().expand(loc.shape))
        else:
            found = partly_seen.full_moments(obs, weight, loc, self.covariances().double())
            if self.covariance == "tied":
                found["second"] = found["second"].sum(0)
        return {name: value + found[name] for name, value in others.items()}

    def implied(self, visits: Tensor) -> Statistics:
        loc, weight = self._means(), visits.unsqueeze(-1)
        if self.covariance in ("diag", "spherical"):
            second = weight * ((2 * self.log_scale.double()).exp() + loc**2)
        else:
            second = weight.unsqueeze(-1) * (self.covariances().double() + loc.unsqueeze(-1) * loc.unsqueeze(-2))
            second = second.sum(0) if self.covariance == "tied" else second
        return {"weight": visits, "first": weight * loc, "second": second}

    @torch.no_grad()
    def maximize(self, statistics: Statistics, priors: Priors | None) -> list[str]:
        weight = statistics["weight"]
        origin = self.origin.to(weight.device)
        prior = None if priors is None else priors.normal_wishart(self.num_features, weight)
        prior = None if prior is None else prior._replace(loc=prior.loc - origin)
        first, second = statistics["first"], statistics["second"]
        squares = second if self.covariance == "tied" else second.sum(0)
        squares = squares if squares.dim() == 1 else squares.diagonal()
        floor = self.lowest(weight.sum(), first.sum(0), squares, origin)
        moved, fixed = None, held(self.loc)
        if self.covariance in ("diag", "spherical") and is_bound(self.loc):
            known = (weight + (0.0 if prior is None else prior.strength)).unsqueeze(-1) / (2 * self.log_scale.double()).exp()
            moved = lambda means: kept(self.loc, means + origin, known) - origin  # noqa: E731
        elif fixed is not None:
            moved = partial(with_held, fixed=fixed, held=self._means(), covariances=self.covariances().double())
        loc, covariance, floored = gaussian_mode(weight, first, second, self.covariance, prior, floor, moved)
        loc = loc + origin
        empty = weight < NOTHING if prior is None else torch.zeros_like(weight, dtype=torch.bool)
        remarks = []
        if bool(empty.any()):
            remarks.append(f"states {empty.nonzero().flatten().tolist()} are empty and keep their parameters")
            loc = torch.where(empty.unsqueeze(-1), self.loc.to(loc), loc)
            if self.covariance != "tied":
                old = (2 * self.log_scale).exp() if covariance.dim() == 2 else self.covariances()
                covariance[empty] = old.to(covariance)[empty]
                floored = floored & ~empty
        if bool(floored.any()):
            which = "the covariance" if self.covariance == "tied" else f"states {floored.nonzero().flatten().tolist()}"
            allowed = f"{FLOOR:g} of the data's" if self.floor is None else f"{self.floor:g}"
            remarks.append(
                f"{which} collapsed to the smallest variance allowed, {allowed}; give priors or fewer states"
            )
        if self.covariance in ("diag", "spherical"):
            count = weight if prior is None else weight + 1 + 2 * (prior.shape - 1)
            if prior is not None and self.covariance == "spherical":
                count = (weight + 1) * self.num_features + 2 * (prior.shape - 1)
            covariance = (2 * kept(self.log_scale, covariance.log() / 2, count)).exp()
        with restored(self):
            self.set_values(loc, covariance=covariance)
        return remarks

    @torch.no_grad()
    def initialize(self, x: Tensor, seen: Tensor, which: list[int] | None = None) -> None:
        """Means by k-means++ and a few rounds of Lloyd's algorithm, covariances of the whole data; of some states, whose
        covariances stay, or of all for None."""
        rows = x[seen].to(self.loc)
        if which is not None:
            rows = partly_seen.filled_at_random(rows[torch.randperm(len(rows))[:KMEANS_ROWS].to(rows.device)])
            self.loc[which] = kmeans(rows - rows.mean(0), len(which)) + rows.mean(0)
            return
        if len(rows) < self.num_states:
            raise ValueError(f"x: {self.num_states} states need at least as many observations, got {len(rows)}")
        rows = partly_seen.filled_at_random(rows[torch.randperm(len(rows))[:KMEANS_ROWS].to(rows.device)])
        centre = rows.mean(0)
        centred = rows - centre
        loc = kmeans(centred, self.num_states) + centre
        _warn_of_constants(rows)
        floor = self.lowest(centred.new_tensor(len(rows)), centred.sum(0), centred.square().sum(0), centre)
        if self.covariance in ("diag", "spherical"):
            variance, beyond = centred.square().mean(0), (loc - kept(self.loc, loc)).square()
            if bool((beyond > 0).any()):  # states at one bound differ by how far what they stand for is from it
                variance = (rows - loc[torch.cdist(rows, loc).argmin(-1)]).square().mean(0)
            variance = variance.maximum(floor) + beyond
            variance = variance if self.covariance == "diag" else variance.mean(-1, keepdim=True)
            if getattr(entries_of(self.loc), "how", "") == "equal":  # nothing else would tell states apart
                variance = variance * 4 ** torch.linspace(-1, 1, self.num_states).to(variance).unsqueeze(-1)
            return self.set_values(loc, covariance=variance)
        covariance = centred.T @ centred / len(rows) + torch.diag(floor)
        return self.set_values(loc, covariance=covariance.expand(self.scale_tril.shape))


def _warn_of_constants(rows: Tensor) -> None:
    flat = (rows == rows[0]).all(0) if len(rows) > 1 else torch.zeros_like(rows[0], dtype=torch.bool)
    if bool(flat.any()):
        warnings.warn(
            f"x: columns {flat.nonzero().flatten().tolist()} (from 0) hold one value only: nothing there tells states apart, "
            "and their variances end at the smallest allowed, with a density that means nothing; leave them out",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip


def kmeans(rows: Tensor, num_clusters: int, rounds: int = 10, *, assign: bool = False) -> Tensor:
    """(K, D) centres, or with ``assign`` the nearest one (N,) of each row."""
    centres = rows[torch.randint(len(rows), (1,)).to(rows.device)]
    while len(centres) < num_clusters:
        distance = torch.cdist(rows, centres).amin(-1).square()
        # all rows lie on centres: more clusters than different rows
        distance = distance if float(distance.sum()) > 0 else torch.ones_like(distance)
        centres = torch.cat([centres, rows[torch.multinomial(distance, 1)]])
    for _ in range(rounds):
        nearest = torch.cdist(rows, centres).argmin(-1)
        count = torch.bincount(nearest, minlength=num_clusters).to(rows).unsqueeze(-1)
        total = torch.zeros_like(centres).index_add_(0, nearest, rows)
        centres = torch.where(count > 0, total / count, centres)
    return torch.cdist(rows, centres).argmin(-1) if assign else centres


def check_vectors(x: Any, num_features: int, missing: str) -> None:
    """Refuses what is no floating-point tensor (B, T, D) without infinities; `missing` says what NaN means in it."""
    expected = f"a floating-point tensor (B, T, D) with D = {num_features}"
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"x must be {expected}, got {x.dtype if isinstance(x, Tensor) else type(x).__name__}")
    if checks.dense("x", x).dim() != 3 or x.shape[-1] != num_features:
        raise ValueError(f"x must be {expected}, got shape {tuple(x.shape)}")
    if bool((size := x.abs() > min(LARGEST, math.sqrt(torch.finfo(x.dtype).max) / 10)).any()):  # NaN is not
        if bool(x.isinf().any()):
            raise ValueError(f"x must be finite ({missing}), got infinite values")
        raise ValueError(
            f"x: numbers too large to be squared in {str(x.dtype).removeprefix('torch.')}, as {float(x[size][0]):g}; give them "
            "in other units"
        )


def in_shape(name: str, value: Tensor, shape: tuple[int, ...], spread: bool = False) -> Tensor:
    """The value in a shape: as it is, or (Z,) for (Z, 1); with ``spread`` also one number, a row or a column for all.

    Raises:
        ValueError: for other shapes, which might fit by accident.
    """
    if value.dim() == 1 and shape == (len(value), 1):
        return value.unsqueeze(-1)
    ways = {shape, (), (shape[0], 1), (1, *shape[1:])} if spread else {shape}
    if tuple(value.shape) not in ways:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
    return value.expand(shape)


def mixture_moments(probs: Tensor, loc: Tensor, covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Means (..., D) and covariances (..., D, D) of mixtures with weights (..., Z), means (Z, D), covariances (Z, D, D), or
    such of each (..., Z, D)."""
    if not (torch.isfinite(loc).all() and torch.isfinite(covariances).all()):  # heavy tails: 0 times infinity counts nothing
        mean = torch.where(probs.unsqueeze(-1) > 0, probs.unsqueeze(-1) * loc, 0.0).sum(-2)
        apart = loc - mean.unsqueeze(-2)
        each = covariances + apart.unsqueeze(-1) * apart.unsqueeze(-2)
        weight = probs[..., None, None]
        return mean, torch.where(weight > 0, weight * each, 0.0).sum(-3)
    mean = probs @ loc if loc.dim() == 2 else (probs.unsqueeze(-2) @ loc).squeeze(-2)
    apart = loc - mean.unsqueeze(-2)
    within = torch.einsum("...z,...zde->...de", probs, covariances)
    return mean, within + torch.einsum("...z,...zd,...ze->...de", probs, apart, apart)


def restricted(log_probs: Tensor, allowed: Tensor | None) -> Tensor:
    """Rows among what is allowed, (..., N) bool or None for all, normalised again."""
    return log_probs if allowed is None else log_probs.masked_fill(~allowed, -torch.inf).log_softmax(-1)


def dirichlet_log_density(log_probs: Tensor, concentration: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Sum over rows of log Dirichlet(concentration) at exp(log_probs), among what is allowed; a zero under a flat
    concentration costs nothing."""
    if allowed is not None:  # one that is flat and has no mass is as good as none
        rest = concentration.where(allowed, 0.0)
        inner = torch.where(allowed, (concentration - 1) * log_probs.masked_fill(~allowed | (concentration == 1), 0.0), 0.0)
        normaliser = torch.lgamma(rest.sum(-1)).sum() - torch.lgamma(concentration).where(allowed, 0.0).sum()
        return inner.sum() + normaliser
    flat = concentration == 1
    power = torch.where(flat, 0.0, (concentration - 1) * log_probs.masked_fill(flat, 0.0)).sum()
    total = concentration.sum(-1)
    return power + (torch.lgamma(total).sum() - torch.lgamma(concentration).sum())


def _factor(name: str, matrices: Tensor) -> Tensor:
    """Lower triangular factors of symmetric positive definite matrices."""
    factor, failed = torch.linalg.cholesky_ex(matrices)
    if not torch.allclose(matrices, matrices.mT, rtol=1e-5, atol=1e-8):
        raise ValueError(f"{name} must be symmetric, got {checks.shown(matrices.tolist())}")
    if bool(failed.any()):
        smallest = float(torch.linalg.eigvalsh(matrices).min())
        raise ValueError(f"{name} must be positive definite, but its smallest eigenvalue is {smallest:.3g}")
    return factor
