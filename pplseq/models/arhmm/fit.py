"""EM of an autoregressive HMM: a regression for each state, in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pplseq.infer.fit.em import NOTHING, Batch, Statistics, least_variances
from pplseq.infer.fit.held import held, restored
from pplseq.models.arhmm.parameters import FLOOR
from pplseq.models.lds.parameters import RegressionPrior
from pplseq.models.lds.statistics import Regression, regression_mode

if TYPE_CHECKING:
    from pplseq.models.arhmm.parameters import ARHMMParameters

SEGMENTS = 4  # stretches a state that a start gives to it


def regression_statistics(model: ARHMMParameters, probs: Tensor, batch: Batch) -> Statistics:
    """Sums over steps of every state's regression, about its current weights, weighted by probs (B, T, Z); and of the data."""
    x, seen = model._explained(batch)
    past = torch.cat([x.new_zeros(len(x), model.order, x.shape[-1]), x], 1)
    rows = model.regressors(past, batch.inputs)[seen].double()
    target, weight = (x[seen] - model.centre).double(), probs[seen].double()
    parts = []
    for state, weights in enumerate(model.weights.detach().double()):
        error, share = target - rows @ weights.T, weight[:, state, None]
        parts.append(((share * rows).T @ rows, (share * error).T @ rows, (share * error).T @ error))
    names = ("moment", "cross", "scatter")
    found = {name: torch.stack(values) for name, values in zip(names, zip(*parts, strict=True), strict=True)}
    size = weight.new_tensor(float(len(target))).expand(target.shape[-1])
    data = {"data_count": size, "data_sum": target.sum(0), "data_square": target.square().sum(0)}
    return found | {"count": weight.sum(0)} | data


@torch.no_grad()
def m_step(model: ARHMMParameters, statistics: Statistics) -> list[str]:
    """The most likely parameters given the statistics; says which states are empty or collapsed."""
    model.moves.maximize(statistics["initial"], statistics["transition"])
    return regress(model, statistics)


@torch.no_grad()
def regress(model: ARHMMParameters, statistics: Statistics) -> list[str]:
    """The most likely regressions."""
    count, total, square = (statistics[f"data_{part}"] for part in ("count", "sum", "square"))
    floor = least_variances(count, total, square, FLOOR)
    every = torch.ones(model.weights.shape[-1], dtype=torch.bool, device=floor.device)
    fixed, noises = held(model.weights), held(model.scale)
    weights, covariances = model.weights.double().clone(), model.covariances.double().clone()
    empty, low = [], []
    for state, count in enumerate(statistics["count"].tolist()):
        if count < NOTHING:
            empty.append(state)
            continue
        free = every if fixed is None else ~fixed[state, 0]
        part = Regression(*(statistics[name][state] for name in Regression._fields))
        weights[state], covariances[state], floored = regression_mode(
            weights[state], covariances[state], part, free=free, shrunk=~every, prior=RegressionPrior(), floor=floor,
            hold_noise=noises is not None,
        )
        low += [state] if floored else []
    with restored(model):
        model.set_parameters(**model.by_name(weights), covariances=covariances)
    notes = [f"states {empty} are empty and keep their parameters"] if empty else []
    return notes + ([f"states {low} collapsed to the smallest variance allowed, {FLOOR:g} of the data's"] if low else [])


@torch.no_grad()
def start(model: ARHMMParameters, batch: Batch) -> None:
    """Regressions of stretches of the data that are dealt out to the states at random, those of known states to theirs."""
    x, seen = model._explained(batch)
    states, steps = model.num_regimes, int(seen.sum())
    length = max(1, steps // (SEGMENTS * states))
    owner = torch.cat([torch.randperm(states) for _ in range(steps // length // states + 1)]).repeat_interleave(length)
    probs = torch.zeros(*seen.shape, states, dtype=torch.float64, device=x.device)
    probs[seen] = 0.9 * torch.nn.functional.one_hot(owner[:steps].to(x.device), states).double() + 0.1 / states
    if batch.states is not None and bool((known := (batch.states >= 0) & seen).any()):
        labelled = batch.states[known].unique()
        others = torch.ones(states, dtype=torch.float64, device=x.device).index_fill_(0, labelled, 0.0)
        # a regression of a few steps is held by the weight of as many as it has coefficients
        probs = probs * others + (model.weights.shape[-1] + 1) / steps * (1 - others) * seen.unsqueeze(-1)
        probs[known] += torch.nn.functional.one_hot(batch.states[known], states) * (1 - others)
    model.weights.zero_()
    model.scale.zero_()
    spread = x[seen].std(0).log()
    model.scale.diagonal(dim1=-2, dim2=-1).copy_(spread.expand(states, -1))
    model.moves.initialize((10 * torch.eye(states, dtype=torch.float64, device=x.device) + 1).log())
    regress(model, regression_statistics(model, probs, batch))
