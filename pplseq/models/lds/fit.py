"""How a linear dynamical system is learned: where a fit starts, the two steps of exact EM, coordinates that it extrapolates in.

A vector of coordinates holds the parameters so that every number is allowed. A covariance is the logarithms of its triangular
factor's diagonal and what is left of it in units of the diagonal; weights, offsets and the first mean stand as they are, their
units being the deviations of their noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import GaussianBelief, LinearEvidence, residual_of
from pplseq.distributions.linear_gaussian import LinearEmission
from pplseq.infer.fit.em import Batch, Statistics, least_variances
from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.infer.gaussian.diffuse import gaussian_chain
from pplseq.infer.gaussian.given import Dynamics
from pplseq.infer.gaussian.results import GaussianStates, StepCovariances
from pplseq.models.lds import statistics as regressions
from pplseq.models.lds.by_step import regression_by_step
from pplseq.models.lds.parameters import (
    REGRESSIONS,
    SCALES,
    Parameters,
    RegressionPrior,
    as_array,
    as_tensor,
    covariance_of,
    scale_of,
    stationary_belief,
    stationary_mean,
)  # fmt: skip
from pplseq.models.lds.start import guess_parameters

NOISE_OF = {"transition": "state_noise", "emission": "emission_noise", "initial": "initial_covariance"}
TINY = 1e-150  # a deviation that counts as zero
FLOOR = 1e-6  # the smallest variance of a noise, as a share of that of the data, or of the states


class EMOptions(NamedTuple):
    """state_prior, emission_prior: of the two regressions. noise_floor: smallest variance in any direction, or None: a share of
    the variance of the data, or of the states.

    diagonal: names of the covariances that are. held: names of the parameters that stay as they are.
    """

    state_prior: RegressionPrior
    emission_prior: RegressionPrior
    noise_floor: float | None
    diagonal: frozenset[str]
    held: frozenset[str]


def check_enough(batch: Batch, num_states: int) -> None:
    """Raises ValueError for observations of which nothing can be learned."""
    x, never = batch.x, []
    if batch.lengths is None and (checks.surely_finite(x) or not bool(x.isnan().any())):
        seen, longest, first = x.shape[0] * x.shape[1], x.shape[1], x[:1, :1]
        alike = bool((x[:1] == first).all()) and bool((x == first).all())
    else:
        valid = batch.valid
        observed = ~x.isnan() & valid.unsqueeze(-1)
        seen, longest = int(observed.any(-1).sum()), int(valid.sum(1).max())
        never = (~observed.any(0).any(0)).nonzero().flatten().tolist()
        low, high = x.where(observed, torch.inf).amin((0, 1)), x.where(observed, -torch.inf).amax((0, 1))
        alike = bool((low == high).all())
    if seen <= num_states or longest < 2:
        raise ValueError(
            f"x must hold more than num_states = {num_states} observed vectors, and a sequence of at least two "
            f"steps, to fit the model; got {seen} in sequences of at most {longest} steps"
        )
    if never:
        raise ValueError(
            f"x: columns {never} (from 0) are never observed, so nothing can be learned of them; leave them out"
        )
    if alike:
        raise ValueError("x must vary to fit the model, but every column holds one value only")


def first_parameters(parameters: Parameters, batch: Batch, how: str, diagonal: frozenset[str]) -> Parameters:
    """Parameters guessed from data, by one of :data:`~pplseq.models.lds.start.STARTS`, of the same kind as those given."""
    x, observed = batch.x.nan_to_num(0.0), ~batch.x.isnan()
    moves, seen = (parameters.extras(kind, x, batch.inputs) for kind in REGRESSIONS)
    guess = guess_parameters(x, observed, batch.valid, len(parameters.transition), moves, seen, how)
    new = parameters
    for kind, noise in (("transition", "state_noise"), ("emission", "emission_noise")):
        covariance = getattr(guess, noise)
        new = new.with_weights(kind, getattr(guess, kind))
        new = new._replace(**{noise: covariance.diagonal() if noise in diagonal else covariance})
    if parameters.initial_covariance is None or bool(parameters.initial_covariance.isinf().any()):
        return new
    return new._replace(initial_mean=guess.initial_mean, initial_covariance=guess.initial_covariance)


def chain_of(parameters: Parameters, batch: Batch, emission: LinearEmission | None = None) -> GaussianChain:
    """The posterior's chain, made of the parameters at once: the one that the program gives, without running it.

    Args:
        emission: gives observations for states, which forecasts and innovations ask for.
    """
    x, missing = batch.x.transpose(0, 1), batch.x.isnan().transpose(0, 1)
    some = bool(missing.any())
    x = x.nan_to_num(0.0) if some else x
    inputs = None if batch.inputs is None else batch.inputs.transpose(0, 1)
    shift, seen = parameters.shift("emission", inputs), ~missing.all(-1) if some else None
    residual = x if shift is None else residual_of(x, shift, parameters.emission)
    about = residual, parameters.emission, parameters.emission_noise
    if seen is None or bool((seen.unsqueeze(-1) != missing).all()):  # whole vectors or none
        evidence = LinearEvidence(*about)
    else:
        patterns, which = torch.unique(~missing.flatten(0, 1), dim=0, return_inverse=True)
        evidence = LinearEvidence(*about, which.reshape(seen.shape), patterns)
    offset = parameters.shift("transition", None if inputs is None else inputs[1:])
    if parameters.initial_mean is None or parameters.initial_covariance is None:
        start = stationary_belief(parameters.transition, parameters.transition_offset, parameters.state_noise)
    else:
        start = GaussianBelief(parameters.initial_mean, parameters.initial_covariance)
    return gaussian_chain(
        GaussianBelief(start.mean.expand(x.shape[1], -1), start.covariance),
        Dynamics(parameters.transition, parameters.state_noise, offset),
        evidence, valid=None if batch.lengths is None else batch.valid.T, seen=seen, check=False,
        emission=emission,
    )  # fmt: skip


@torch.no_grad()
def e_step(parameters: Parameters, chain: GaussianChain, batch: Batch) -> Statistics:
    """Sums over steps of the three regressions; see :mod:`pplseq.models.lds.statistics`."""
    smoothed, lag_one = chain.smoothed_states(), chain.lag_one_covariances()
    valid, x = batch.valid, batch.x
    extras = [parameters.extras(kind, x, batch.inputs) for kind in REGRESSIONS]
    weights = [parameters.weights(kind) for kind in REGRESSIONS]
    means, covariances = smoothed.means, smoothed.covariances
    if batch.of_steps:
        moves, seen = _by_step(parameters, smoothed, lag_one, batch, weights, extras)
    else:
        moves = regressions.transition_statistics(means, covariances, lag_one, valid, weights[0], extras[0])
        seen = regressions.emission_statistics(
            means, covariances, x.nan_to_num(0.0), ~x.isnan(), valid, weights[1], extras[1], parameters.emission_noise
        )
    begun = valid[:, 0]
    only_first = torch.zeros_like(valid)
    only_first[:, 0] = begun
    first, states = means[begun, 0], means.where(valid.unsqueeze(-1), 0.0)
    known, observed = x.nan_to_num(0.0).where(valid.unsqueeze(-1), 0.0), ~x.isnan() & valid.unsqueeze(-1)
    return {
        **{f"transition_{name}": value for name, value in zip(moves._fields, moves, strict=True)},
        **{f"emission_{name}": value for name, value in zip(seen._fields, seen, strict=True)},
        "num_sequences": begun.sum().to(means),
        "first_mean": first.sum(0),
        "first_second": first.T @ first + covariances.total(only_first),
        "state_count": valid.sum().to(means), "state_sum": states.sum((0, 1)),
        "state_square": states.square().sum((0, 1)) + covariances.total().diagonal(),
        "data_count": observed.sum((0, 1)).to(x), "data_sum": known.sum((0, 1)), "data_square": known.square().sum((0, 1)),
    }  # fmt: skip


def _by_step(
    parameters: Parameters, smoothed: GaussianStates, lag_one: StepCovariances, batch: Batch, weights, extras
) -> list[regressions.Regression]:
    """Of moves and observations, with what is known of single steps."""
    (means, covariances), valid = (smoothed.means, smoothed.covariances.dense()), batch.valid
    extras = [part.where(valid.unsqueeze(-1), 0.0) for part in extras]
    lags, none = lag_one.dense(), torch.zeros_like(batch.x).unsqueeze(-1)
    moves = [None if part is None else part[:, 1:] for part in (batch.transitions, batch.state_noises)]
    noise, moved, seen = parameters.emission_noise, means[:, 1:], batch.x.nan_to_num(0.0)
    if batch.transition_offsets is not None:
        moved = moved - batch.transition_offsets[:, 1:]
    if batch.emission_offsets is not None:
        seen = seen - batch.emission_offsets
    return [
        regression_by_step(
            moved, covariances[:, 1:], lags, means[:, :-1], covariances[:, :-1], weights[0], extras[0][:, 1:],
            parameters.state_noise, seen=valid[:, 1:, None].expand(-1, -1, means.shape[-1]), matrices=moves[0], added=moves[1],
        ),
        regression_by_step(
            seen, none @ none.mT, none.expand(-1, -1, -1, means.shape[-1]), means, covariances, weights[1],
            extras[1], torch.diag(noise) if noise.dim() == 1 else noise, seen=~batch.x.isnan() & valid.unsqueeze(-1),
            matrices=batch.emissions, added=batch.emission_noises,
        ),
    ]  # fmt: skip


def floors(statistics: Statistics, floor: float | None) -> dict[str, float | Tensor]:
    """The smallest variances of the covariances of these names."""
    of = {"state_noise": "state", "initial_covariance": "state", "emission_noise": "data"}
    if floor is not None:
        return dict.fromkeys(of, floor)

    def least(kind: str) -> Tensor:
        count, first, second = [statistics[f"{kind}_{part}"] for part in ("count", "sum", "square")]
        return least_variances(count, first, second, FLOOR)

    found = {kind: least(kind) for kind in ("state", "data")}
    return {name: found[kind] for name, kind in of.items()}


@torch.no_grad()
def m_step(
    parameters: Parameters, statistics: Statistics, options: EMOptions, lowest: dict[str, float | Tensor]
) -> tuple[Parameters, list[str]]:
    """The most probable parameters given the statistics, and which noises met the floor, in words.

    Args:
        lowest: from :func:`floors`.
    """
    new, notes = parameters, []
    for kind, noise_name, prior in (
        ("transition", "state_noise", options.state_prior), ("emission", "emission_noise", options.emission_prior),
    ):  # fmt: skip
        part = regressions.Regression(*[statistics[f"{kind}_{name}"] for name in regressions.Regression._fields])
        names = [name for name, columns in parameters.columns(kind).items() for _ in range(columns.shape[-1])]
        noise = getattr(parameters, noise_name)
        about: dict[str, Any] = dict(
            free=np.array([name not in options.held for name in names]),
            shrunk=np.array([not name.endswith("_offset") for name in names]),
            prior=prior, floor=lowest[noise_name], diagonal=noise_name in options.diagonal,
            hold_noise=noise_name in options.held,
        )  # fmt: skip
        given = parameters.weights(kind), torch.diag(noise) if noise.dim() == 1 else noise, part
        if kind == "transition" and parameters.initial_mean is None:
            weights, noise, floored = _stationary_mode(parameters, given, statistics, about)
        else:
            weights, noise, floored = regressions.regression_mode(*given, **about)
        new = new.with_weights(kind, weights)._replace(**{noise_name: noise})
        if floored:
            notes.append(floor_note(noise_name, options.noise_floor))
    if parameters.initial_covariance is not None and not bool(parameters.initial_covariance.isinf().any()):
        count = statistics["num_sequences"]
        mean = parameters.initial_mean if "initial_mean" in options.held else statistics["first_mean"] / count
        before = new.initial_covariance
        assert mean is not None and before is not None
        cross = torch.outer(statistics["first_mean"], mean)
        scatter = statistics["first_second"] - cross - cross.T + count * torch.outer(mean, mean)
        covariance = regressions.floored_covariance(scatter / count, lowest["initial_covariance"], False, before)[0]
        new = new._replace(initial_mean=mean, initial_covariance=covariance)
    return new, notes


def floor_note(name: str, floor: float | None) -> str:
    """What a noise that met its floor says to the user."""
    whose = "states'" if name == "state_noise" else "data's"
    words = f"{FLOOR:g} of the {whose} variance" if floor is None else f"{floor:g}"
    return (
        f"{name} met its floor of {words} in some direction: fewer states or diagonal noise, a prior, or a larger noise_floor "
        "may fit better"
    )


def above_floor(parameters: Parameters, held: Parameters, lowest: dict[str, float | Tensor]) -> Parameters:
    """The same with covariances that are nowhere further below the floor than others, which an M-step made."""
    for name, floor in lowest.items():
        pair = getattr(parameters, name), getattr(held, name)
        if pair[0] is None or bool(pair[0].isinf().any()):
            continue
        full, before = [torch.diag(noise) if noise.dim() == 1 else noise for noise in pair]
        kept = regressions.floored_covariance(full, floor, pair[0].dim() == 1, before)[0]
        parameters = parameters._replace(**{name: kept.diagonal() if pair[0].dim() == 1 else kept})
    return parameters


def _stationary_mode(parameters: Parameters, given: tuple[Tensor, Tensor, Any], statistics: Statistics, about: dict):
    h, count = len(parameters.transition), statistics["num_sequences"]
    offset = parameters.transition_offset is not None
    mean = statistics["first_mean"] / count
    spread = statistics["first_second"] - count * torch.outer(mean, mean)

    def first_mean(weights: Tensor) -> Tensor:
        return stationary_mean(weights[:, :h], weights[:, h] if offset else None)

    about |= {name: torch.from_numpy(about[name]).to(count.device) for name in ("free", "shrunk")}
    return regressions.stationary_mode(*given, mean, spread, count, first_mean, **about)


# ------------------------------------------------------------------------------------------------ coordinates
def to_coordinates(parameters: Parameters, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """(P,) of the parameters of these names, and (P,) their units."""
    parts, units = [], []
    for name in names:
        value = getattr(parameters, name)
        if name not in SCALES:
            parts.append(as_array(value).ravel())
            unit = _deviations_of(as_array(getattr(parameters, NOISE_OF[name.split("_")[0]])))
            units.append(unit if value.dim() == 1 else np.repeat(unit, value.shape[1]))
            continue
        scale = np.sqrt(as_array(value)) if value.dim() == 1 else as_array(scale_of(name, value))
        diagonal = np.maximum(scale if scale.ndim == 1 else scale.diagonal(), TINY)
        part = np.log(diagonal)
        if scale.ndim == 2:
            part = np.concatenate([part, (scale / diagonal[:, None])[np.tril_indices(len(scale), -1)]])
        parts.append(part)
        units.append(np.ones_like(part))
    return as_tensor(np.concatenate(parts), parameters.transition), as_tensor(np.concatenate(units), parameters.transition)


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
    return as_tensor(_deviations_of(as_array(noise)), noise)


def _deviations_of(noise: np.ndarray) -> np.ndarray:
    deviations = np.sqrt(noise if noise.ndim == 1 else noise.diagonal())
    return np.where((deviations > 0) & np.isfinite(deviations), deviations, 1.0)


def _below(matrix: Tensor) -> tuple[Tensor, ...]:
    """Where a square matrix is below its diagonal."""
    return tuple(torch.tril_indices(len(matrix), len(matrix), -1, device=matrix.device))
