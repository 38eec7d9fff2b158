"""Parameters of a linear dynamical system as a vector in which every number is allowed, with its units.

A covariance is the logarithms of its triangular factor's diagonal and what is left of it in units of the diagonal; weights,
offsets and the first mean stand as they are, their units being the deviations of their noise. EM's acceleration extrapolates
in these coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pplseq.models.lds.parameters import SCALES, Parameters, covariance_of, scale_of

NOISE_OF = {"transition": "state_noise", "emission": "emission_noise", "initial": "initial_covariance"}
TINY = 1e-150  # a deviation that counts as zero


def to_coordinates(parameters: Parameters, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """(P,) of the parameters of these names, and (P,) their units."""
    parts, units = [], []
    for name in names:
        value = getattr(parameters, name)
        if name not in SCALES:
            parts.append(value.flatten())
            units.append(_unit(parameters, name, value).expand_as(value).flatten())
            continue
        scale = value.sqrt() if value.dim() == 1 else scale_of(name, value)
        diagonal = (scale if scale.dim() == 1 else scale.diagonal()).clamp_min(TINY)
        part = diagonal.log()
        if scale.dim() == 2:
            part = torch.cat([part, (scale / diagonal.unsqueeze(-1))[_below(scale)]])
        parts.append(part)
        units.append(torch.ones_like(part))
    return torch.cat(parts), torch.cat(units)


def from_coordinates(parameters: Parameters, names: Sequence[str], coordinates: Tensor) -> Parameters:
    """The same parameters with others of these names: what :func:`to_coordinates` gave the coordinates of."""
    found, place = {}, 0
    for name in names:
        value = getattr(parameters, name)
        below = value.shape[0] * (value.shape[0] - 1) // 2 if value.dim() == 2 else 0
        size = value.shape[0] + below if name in SCALES else value.numel()
        part, place = coordinates[place : place + size], place + size
        if name not in SCALES:
            found[name] = part.reshape(value.shape)
            continue
        diagonal = part[: len(value)].exp()
        if value.dim() == 1:
            found[name] = diagonal.square()
            continue
        scale = torch.eye(len(value)).to(value)
        scale[_below(scale)] = part[len(value) :]
        found[name] = covariance_of(scale * diagonal.unsqueeze(-1))
    return parameters._replace(**found)


def parameter_units(parameters: Parameters) -> dict[str, Tensor]:
    """How much the numbers of each parameter vary, by the names under which a model keeps them and in their shapes.

    Weights and means in the deviations of what they make and, inverted, of what they are of; rows of covariances' factors in
    their own deviations. Where these vanish the unit is 1.
    """
    state, seen = _deviations(parameters.state_noise), _deviations(parameters.emission_noise)
    units = {"transition": torch.outer(state, 1 / state), "emission": torch.outer(seen, 1 / state)}
    for kind, deviations in (("transition", state), ("emission", seen)):
        units[f"{kind}_offset"] = deviations
        if (weights := getattr(parameters, f"{kind}_inputs")) is not None:
            units[f"{kind}_inputs"] = deviations.unsqueeze(-1).expand_as(weights)
    units["state_scale"] = state.unsqueeze(-1).expand(-1, len(state))
    units["emission_scale"] = seen.unsqueeze(-1).expand(-1, len(seen)).clone().fill_diagonal_(1.0)  # logarithms
    if parameters.initial_covariance is not None and bool(parameters.initial_covariance.isfinite().all()):
        first = _deviations(parameters.initial_covariance)
        units |= {"initial_mean": first, "initial_scale": first.unsqueeze(-1).expand(-1, len(first))}
    return units


def _deviations(noise: Tensor) -> Tensor:
    """(n,) standard deviations of a covariance, 1 where there is none."""
    deviations = (noise if noise.dim() == 1 else noise.diagonal()).sqrt()
    return deviations.where((deviations > 0) & deviations.isfinite(), 1.0)


def _unit(parameters: Parameters, name: str, value: Tensor) -> Tensor:
    """Deviations (n,) or (n, 1) of the noise in the directions of the rows of weights."""
    deviations = _deviations(getattr(parameters, NOISE_OF[name.split("_")[0]]))
    return deviations if value.dim() == 1 else deviations.unsqueeze(-1)


def _below(matrix: Tensor) -> tuple[Tensor, ...]:
    """Where a square matrix is below its diagonal."""
    return tuple(torch.tril_indices(len(matrix), len(matrix), -1, device=matrix.device))
