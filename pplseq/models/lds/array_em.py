"""EM of a system as it is on arrays: the M-step and the coordinates of an iteration, a handful of small products.

The twins are :func:`~pplseq.models.lds.fit.m_step`, :func:`~pplseq.models.lds.fit.to_coordinates` and its inverse, which know
inputs, other starts and other devices, and cost four to ten times as much of a small system: every tensor operation costs more
than its numbers.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.fit.em import LOST, NOTHING, Statistics
from pplseq.kernels.gaussian.systems import lower
from pplseq.models.lds.fit import FLOOR, EMOptions, floor_note
from pplseq.models.lds.parameters import CLEAR, SCALES, factor_of
from pplseq.models.lds.statistics import Regression, floored_array, mode_of_arrays

REGRESSIONS = (("transition", "state_noise", "state_prior"), ("emission", "emission_noise", "emission_prior"))


@functools.cache
def _below(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.tril_indices(size, -1)


def factors(own: dict[str, Any]) -> dict[str, np.ndarray]:
    """Lower triangles of the covariances of these names, or their diagonals, from the parameters that hold them."""
    found = {}
    for name, at in SCALES.items():
        value = own[at].detach().numpy()
        if value.ndim == 2:
            value = np.where(lower(len(value)), value, 0.0)
        if name == "emission_noise":
            if value.ndim == 1:
                value = np.exp(value)
            else:
                value.flat[:: len(value) + 1] = np.exp(value.diagonal())
        found[name] = value
    return found


def coordinates(own: dict[str, Any], names: list[str]) -> tuple[Tensor, Tensor] | None:
    """The parameters of these names as a vector, and their units; None where a covariance is singular, or nearly."""
    known, parts, units, deviations = factors(own), [], [], {}
    for name, factor in known.items():
        deviations[name] = abs(factor) if factor.ndim == 1 else np.sqrt((factor * factor).sum(1))
        diagonal = factor if factor.ndim == 1 else factor.diagonal()
        # what is not finite is found here too
        if not (abs(diagonal) > CLEAR * deviations[name]).all() or not np.isfinite(deviations[name]).all():
            return None
    for name in names:
        if name not in SCALES:
            value = own[name].detach().numpy()
            parts.append(value.ravel())
            of = "initial_covariance" if name == "initial_mean" else "state_noise" if name[0] == "t" else "emission_noise"
            units.append(deviations[of] if value.ndim == 1 else np.repeat(deviations[of], value.shape[1]))
            continue
        factor = known[name]
        diagonal = factor if factor.ndim == 1 else factor.diagonal()
        parts.append(np.log(abs(diagonal)))
        if factor.ndim == 2:
            parts.append((factor * np.sign(diagonal) / abs(diagonal)[:, None])[_below(len(factor))])
        elif name == "state_noise":  # which is written out
            parts.append(np.zeros(len(factor) * (len(factor) - 1) // 2))
        units.append(np.ones(sum(map(len, parts[-2:])) if factor.ndim == 2 or name == "state_noise" else len(factor)))
    return torch.from_numpy(np.concatenate(parts)), torch.from_numpy(np.concatenate(units))


def at_coordinates(
    own: dict[str, Any], names: list[str], coordinates: np.ndarray, lowest: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Values of what holds the parameters of these names, from what :func:`coordinates` gave, by what holds them; covariances
    nowhere further below these floors than the present ones."""
    found, before, place = {}, factors(own), 0
    for name in names:
        if name not in SCALES:
            shape = own[name].shape
            size = shape.numel()
            found[name], place = coordinates[place : place + size].reshape(shape), place + size
            continue
        factor, size = before[name], len(before[name])
        is_diagonal, new = factor.ndim == 1, np.diag(np.exp(coordinates[place : place + size]))
        place += size
        if not is_diagonal or name == "state_noise":  # which is written out
            rows, columns = _below(size)
            new[rows, columns] = coordinates[place : place + len(rows)] * new[rows, rows]
            place += len(rows)
        held = np.diag(factor * factor) if is_diagonal else factor @ factor.T
        apart = is_diagonal and name != "state_noise"
        covariance, floored = floored_array(new @ new.T, np.asarray(lowest[name]), apart, held)
        new = factor_of(name, covariance, is_diagonal) if floored else new.diagonal().copy() if is_diagonal else new
        found[SCALES[name]] = held_by(name, new)
    return found


def held_by(name: str, factor: np.ndarray) -> np.ndarray:
    """What holds a covariance of this name, from its factor."""
    if name != "emission_noise":
        return factor
    if factor.ndim == 1:
        return np.log(factor)
    factor = factor.copy()
    factor.flat[:: len(factor) + 1] = np.log(factor.diagonal())
    return factor


def floors(statistics: dict[str, np.ndarray], floor: float | None) -> dict[str, Any]:
    """As :func:`~pplseq.models.lds.fit.floors`."""
    if floor is not None:
        return dict.fromkeys(SCALES, floor)
    least = {}
    for kind in ("state", "data"):
        count, first, second = [statistics[f"{kind}_{part}"] for part in ("count", "sum", "square")]
        count = np.maximum(count, NOTHING)
        square, mean = second / count, first / count
        variance = np.maximum(square - mean * mean, LOST * square)
        least[kind] = FLOOR * np.where(square > 0, variance, 1.0)
    return {"state_noise": least["state"], "emission_noise": least["data"], "initial_covariance": least["state"]}


def maximize(own: dict[str, Any], statistics: Statistics, options: EMOptions) -> tuple[dict[str, np.ndarray], dict, list[str]]:
    """New values of what holds the parameters, by name; the floors; and which noises met theirs, in words."""
    told: dict[str, Any] = {name: value.numpy() for name, value in statistics.items()}
    lowest, known, new, notes = floors(told, options.noise_floor), factors(own), {}, []
    covariances = {name: np.diag(f * f) if f.ndim == 1 else f @ f.T for name, f in known.items()}
    for kind, noise_name, prior in REGRESSIONS:
        offset, weights = own[f"{kind}_offset"], own[kind].detach().numpy()
        h, diagonal = weights.shape[1], known[noise_name].ndim == 1
        free = np.full(h + (offset is not None), kind not in options.held)
        shrunk = np.ones(len(free), dtype=np.bool_)
        if offset is not None:
            weights = np.concatenate([weights, offset.detach().numpy()[:, None]], 1)
            free[h], shrunk[h] = f"{kind}_offset" not in options.held, False
        about = Regression(*[told[f"{kind}_{name}"] for name in Regression._fields])
        weights, covariance, floored = mode_of_arrays(
            weights, covariances[noise_name], about, free=free, shrunk=shrunk, prior=getattr(options, prior),
            floor=np.asarray(lowest[noise_name]), diagonal=diagonal, hold_noise=noise_name in options.held,
        )  # fmt: skip
        new[kind] = weights[:, :h]
        if offset is not None:
            new[f"{kind}_offset"] = weights[:, h]
        new[noise_name] = covariance
        if floored:
            notes.append(floor_note(noise_name, options.noise_floor))
    count, first = told["num_sequences"], told["first_mean"]
    mean = own["initial_mean"].detach().numpy() if "initial_mean" in options.held else first / count
    cross = np.outer(first, mean)
    scatter = told["first_second"] - cross - cross.T + count * np.outer(mean, mean)
    new["initial_mean"] = mean
    new["initial_covariance"] = floored_array(
        scatter / count, np.asarray(lowest["initial_covariance"]), False, covariances["initial_covariance"]
    )[0]
    found = {}
    for name, value in new.items():
        if name in options.held:
            continue
        if name in SCALES:
            value = held_by(name, factor_of(name, value, known[name].ndim == 1))
        found[SCALES.get(name, name)] = value
    return found, lowest, notes
