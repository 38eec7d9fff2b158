"""Conjugate priors of an HMM's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pplseq.infer.fit.closed_forms import NormalWishart

Concentration = float | list


def bartlett(squares: Tensor, lower: Tensor) -> Tensor:
    """The Cholesky factor (..., D, D) with squared diagonal ``squares`` (..., D) and entries ``lower`` below it, by rows."""
    size = squares.shape[-1]
    row, column = torch.tril_indices(size, size, -1)
    factor = torch.diag_embed(squares.sqrt())
    factor[..., row, column] = lower
    return factor


def inverse_tril(factor: Tensor) -> Tensor:
    """Cholesky factor of the inverse of factor factor'."""
    return torch.linalg.cholesky(torch.cholesky_inverse(factor))


@dataclass(frozen=True)
class PriorOptions:
    """What dataclasses of priors share: they come from mappings, and go into a model's config as such."""

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Priors from themselves, a mapping of their arguments, True (all defaults), or None / False."""
        if value is None or value is False:
            return None
        if value is True or isinstance(value, cls):
            return cls() if value is True else value
        if not isinstance(value, Mapping):
            raise TypeError(
                f"priors must be {cls.__name__}, a mapping of their arguments, True or None, got {type(value).__name__}"
            )
        known = [field.name for field in fields(cls)]
        unknown = [name for name in value if name not in known]
        if unknown:
            raise ValueError(f"priors: unknown {', '.join(map(repr, unknown))}; known: {', '.join(known)}")
        return cls(**value)

    def as_config(self) -> dict:
        """The arguments, JSON-able."""
        return asdict(self)


@dataclass(frozen=True)
class Priors(PriorOptions):
    """Priors of an HMM: sites "initial", "transition" and "emission" (words) or "precision" and "loc" (Gaussians; matrices of
    precision have the sites "precision_diag" and "precision_lower", see :func:`bartlett`).

    Concentrations are numbers or nested lists of the table's shape; 1 is flat, below 1 favours zeros (then EM has no
    maximum; use SVI or NUTS). Precisions are Gamma(shape, rate) per state and dimension for covariance "diag" and
    "spherical", Wishart(2 shape + D - 1, I / (2 rate)) for "full" and "tied". Means are N(loc, 1 / (strength precision)).

    Args:
        initial: concentration of the start distribution.
        transition: concentration of every row of the transition matrix, or of every table of a product of moves.
        sticky: added to the concentration of staying in a state, or at a coordinate of it.
        emission: concentration of every state's words; by default such that no word becomes impossible in "em".
        loc: expected mean of a Gaussian, a number or a list (D,).
        loc_strength: how many observations that mean is worth.
        precision_shape, precision_rate: rate / shape is about the expected variance.
        weights: concentration of the weights of a mixture.
        parameters: of emissions by families: name of a parameter -> mean and standard deviation of its prior; see
            :class:`~pplseq.models.parts.families.Parameter`. Those that are not named have wide priors under "svi" and "nuts",
            and flat ones elsewhere; "em" takes none.

    Raises:
        ValueError: for a value that is not positive (sticky: negative).
    """

    initial: Concentration = 1.0
    transition: Concentration = 1.0
    sticky: float = 0.0
    emission: Concentration = 1.1
    loc: float | list = 0.0
    loc_strength: float = 0.01
    precision_shape: float = 2.0
    precision_rate: float = 1.0
    weights: float = 1.0
    parameters: Mapping[str, Any] | None = None

    def __post_init__(self):
        for name in ("initial", "transition", "emission", "loc_strength", "precision_shape", "precision_rate", "weights"):
            value = torch.as_tensor(getattr(self, name), dtype=torch.float64)
            if not bool((value > 0).all()):
                raise ValueError(f"priors: {name} must be positive, got {getattr(self, name)}")
        if not self.sticky >= 0:
            raise ValueError(f"priors: sticky must not be negative, got {self.sticky}")

    def of_parameter(self, name: str, parameter: Any) -> Any:
        """A family's parameter with the prior that is given for it, if one is."""
        if not self.parameters or name not in self.parameters:
            return parameter
        return replace(parameter, prior=tuple(float(value) for value in self.parameters[name]))

    @staticmethod
    def _table(name: str, value: Concentration, shape: tuple[int, ...], like: Tensor) -> Tensor:
        table = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        try:
            return table.expand(shape)
        except RuntimeError:
            raise ValueError(f"priors: {name} must be a number or of shape {shape}, got {tuple(table.shape)}") from None

    def check_mode(
        self, num_states: int, num_words: int | None, like: Tensor, moves: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        """Raises where the posterior density has no maximum, which EM would look for."""
        for name, value in self.concentrations(num_states, num_words, like, moves).items():
            if bool((value < 1).any()):
                raise ValueError(
                    f"priors: with a concentration below 1 ({name}) the posterior density has no maximum, so method='em' "
                    "cannot find one; use 'svi' or 'nuts', or a concentration of at least 1"
                )

    def concentrations(
        self, num_states: int, num_words: int | None, like: Tensor, moves: Mapping[str, tuple[int, ...]] | None = None
    ) -> dict[str, Tensor]:
        """Dirichlet concentrations of the tables: "initial" (Z,), "transition" (Z, Z) or those of moves by their names, and, of
        words, "emission" (Z, V)."""
        tables = {"initial": self._table("initial", self.initial, (num_states,), like)}
        for name, shape in (moves or {"transition": (num_states, num_states)}).items():
            tables[name] = self._table("transition", self.transition, shape, like)
            if self.sticky:
                tables[name] = tables[name] + self.sticky * torch.eye(shape[-1]).to(like)
        if num_words is not None:
            tables["emission"] = self._table("emission", self.emission, (num_states, num_words), like)
        return tables

    def normal_wishart(self, size: int, like: Tensor) -> NormalWishart:
        loc = self._table("loc", self.loc, (size,), like)
        return NormalWishart(loc, self.loc_strength, self.precision_shape, self.precision_rate)

    def draw_precision(self, covariance: str, num_states: int, size: int, like: Tensor) -> Tensor:
        """Draws precisions (Z, D), (Z, 1), or for "full" and "tied" their Cholesky factors (Z, D, D) or (D, D)."""
        shape, rate = (like.new_tensor(value) for value in (self.precision_shape, self.precision_rate))
        if covariance in ("diag", "spherical"):
            width = size if covariance == "diag" else 1
            return pyro.sample("precision", dist.Independent(dist.Gamma(shape, rate).expand([num_states, width]), 2))
        # Bartlett's decomposition: unlike the matrix itself, its parts have constraints that guides and NUTS can handle
        batch = [] if covariance == "tied" else [num_states]
        shapes = shape + torch.arange(size - 1, -1, -1).to(like) / 2
        squares = dist.Gamma(shapes, rate).expand([*batch, size])
        lower = dist.Normal(0 * rate, (2 * rate).rsqrt()).expand([*batch, size * (size - 1) // 2])
        dims = len(batch) + 1
        return bartlett(
            pyro.sample("precision_diag", dist.Independent(squares, dims)),
            pyro.sample("precision_lower", dist.Independent(lower, dims)),
        )

    def draw_loc(self, covariance: str, precision: Tensor, num_states: int, size: int) -> Tensor:
        """Draws means (Z, D) given what :meth:`draw_precision` returned."""
        return pyro.sample("loc", self._loc_distribution(covariance, precision, num_states, size))

    def _loc_distribution(self, covariance: str, precision: Tensor, num_states: int, size: int):
        loc = self._table("loc", self.loc, (size,), precision)
        if covariance in ("diag", "spherical"):
            scale = (self.loc_strength * precision).rsqrt()
            return dist.Independent(dist.Normal(loc, scale.expand(num_states, size)), 2)
        tril = inverse_tril(precision) * self.loc_strength**-0.5
        return dist.MultivariateNormal(loc, scale_tril=tril.expand(num_states, size, size)).to_event(1)

    def gaussian_log_density(self, covariance: str, loc: Tensor, precision: Tensor) -> Tensor:
        """log density of means (Z, D) and precisions (matrices for "full" and "tied")."""
        shape, rate = (loc.new_tensor(value) for value in (self.precision_shape, self.precision_rate))
        size = loc.shape[-1]
        if covariance in ("diag", "spherical"):
            density, factor = dist.Gamma(shape, rate).log_prob(precision).sum(), precision
        else:
            scale = torch.eye(size).to(loc) / (2 * rate)
            density = dist.Wishart(2 * shape + size - 1, covariance_matrix=scale).log_prob(precision).sum()
            factor = torch.linalg.cholesky(precision)
        return density + self._loc_distribution(covariance, factor, *loc.shape).log_prob(loc)
