"""What a summary of a linear dynamical system tells: its parameters as they are written, and which of them data can tell."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.models.lds.parameters import LDSTensors, RegressionPrior

COVARIANCES = ("state_noise", "emission_noise", "initial_covariance")
APART = 1e-6  # of the largest eigenvalue: closer ones have no derivatives that could be trusted
NOTE = (
    "States M z + c, of any invertible M, make the same observations: what depends on their\ncoordinates is not identified and "
    "has no standard error. ConstrainedLDS fixes coordinates\nby patterns, emission=[[1], [None]] for example."
)


def written_estimates(model: LDSTensors) -> dict[str, Tensor]:
    """Parameters as they are usually written, of covariances the lower triangle; and eigenvalues of the transition, which are
    the same in all coordinates; of a pair of complex ones the modulus, and the angle in radians: 2 pi / steps of a turn."""
    own = {name: getattr(model, name, None) for name in ("transition", "transition_offset", "transition_inputs")}
    eigenvalues = {} if model.num_states == 1 else _eigenvalues(model.transition)
    own |= {name: getattr(model, name, None) for name in ("emission", "emission_offset", "emission_inputs")}
    found = {name: value for name, value in own.items() if value is not None}
    covariances = {"state_noise": model.state_noise, "emission_noise": model.emission_noise}
    if model.initial == "learned":
        found["initial_mean"], covariances["initial_covariance"] = model._initial_belief
    for name in COVARIANCES:
        if name in covariances:
            found |= _triangle(name, covariances[name], diagonal=name in model._diagonal_noises)
    return found | eigenvalues


def coordinate_names(model: LDSTensors) -> frozenset[str]:
    """Which of them another choice of the states' coordinates changes: all that belong to states; none with priors, which know
    their coordinates."""
    if any(prior != RegressionPrior() for prior in (model.state_prior, model.emission_prior)):
        return frozenset()
    fixed = model._not_free
    if _are_coordinates_fixed(model):
        return frozenset({"transition_offset", "emission_offset", "initial_mean"} - fixed if _may_shift(model) else set())
    names = {"transition_offset", "transition_inputs", "emission", "state_noise", "initial_mean", "initial_covariance"}
    names |= {"transition"} if model.num_states > 1 else set()
    # a shift of the states is made up for where both parts have offsets
    return frozenset((names | ({"emission_offset"} if model.transition_offset is not None else set())) - fixed)


@torch.no_grad()
def _are_coordinates_fixed(model: LDSTensors) -> bool:
    """Whether no other states M z have the transition and emission that a fit was told to keep: they are seen in full."""
    if "emission" not in model._not_free:
        return False
    seen: list[Tensor] = [model.emission]
    if "transition" in model._not_free:
        seen += [seen[0] @ torch.linalg.matrix_power(model.transition, k) for k in range(1, model.num_states)]
    return int(torch.linalg.matrix_rank(torch.cat(seen))) == model.num_states


@torch.no_grad()
def _may_shift(model: LDSTensors) -> bool:
    """Whether free offsets make up for states z + c with some c that is not 0."""
    fixed, size = model._not_free, model.num_states
    if model.initial == "learned" and "initial_mean" in fixed:
        return False
    stays = [model.emission.new_zeros(0, size)]  # matrices whose products with c must be 0
    if model.emission_offset is None or "emission_offset" in fixed:
        stays.append(model.emission)
    if model.transition_offset is None or "transition_offset" in fixed:
        stays.append(torch.eye(size).to(model.transition) - model.transition)
    matrix = torch.cat(stays)
    return not len(matrix) or int(torch.linalg.matrix_rank(matrix)) < size


def _triangle(name: str, value: Tensor, *, diagonal: bool) -> dict[str, Tensor]:
    pairs = [(i, j) for i in range(len(value)) for j in range(i + 1) if i == j or not diagonal]
    return {f"{name}[{i}][{j}]": value[i, j] for i, j in pairs}


def _eigenvalues(matrix: Tensor) -> dict[str, Tensor]:
    """Nothing where two are nearly the same."""
    values = torch.linalg.eigvals(matrix)
    values = values[values.detach().abs().argsort(descending=True, stable=True)]
    apart = (values.detach().unsqueeze(-1) - values.detach()).abs().fill_diagonal_(torch.inf)
    if bool((apart <= APART * values.detach().abs().max()).any()):
        return {}
    found: dict[str, Tensor] = {}
    for number, value in enumerate(values[values.detach().imag >= 0]):  # of a pair, one
        real = bool(value.detach().imag == 0)
        found |= {f"eigenvalue[{number}]" if real else f"eigenvalue[{number}] modulus": value.real if real else value.abs()}
        found |= {} if real else {f"eigenvalue[{number}] angle": value.angle()}
    return found
