"""Vectors with regressions of their own in every state: parameters, EM in closed form, and where a fit starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.infer.fit.em import NOTHING, Batch, Statistics, least_variances
from pplseq.infer.fit.held import Ends, Slot, held, restored
from pplseq.models.lds.parameters import RegressionPrior, scale_of
from pplseq.models.lds.statistics import Regression, regression_mode
from pplseq.models.parts.durations import moves_of
from pplseq.models.parts.emissions import smallest_variances
from pplseq.models.regressions.fit import FLOOR
from pplseq.models.regressions.steps import RegressedSteps

SEGMENTS = 4  # stretches a state that a start gives to it


class VectorRegressions(RegressedSteps):
    """What an autoregressive HMM learns; see the class that has the program.

    Weights are those of x - centre, the mean of the data fitted, so that digits are kept where data lie far from zero;
    ``estimates`` and ``set_parameters`` speak of x.
    """

    centre: Tensor
    regime_of: Tensor
    steps_are = "vectors"

    def __init__(
        self, num_states: int, num_features: int, order: int, num_inputs: int, durations: Mapping[str, Any],
        state_names: Sequence[str] | None, dtype: str,
    ):  # fmt: skip
        super().__init__()
        real, told = self._take_sizes("num_states", num_states, order, num_inputs, durations, dtype)
        self.num_features, size = checks.count("num_features", num_features), 1 + order * num_features + num_inputs
        checks.fits("order", float(num_states * size**2), "choose a smaller order, or fewer states")
        self.moves = moves_of(num_states, told, "learned", real, "num_states")
        self.num_states = self.moves.num_states
        self.register_buffer("regime_of", self.moves.regime_of.clone(), persistent=False)
        self.weights = nn.Parameter(0.1 * torch.randn(num_states, num_features, size, dtype=real))  # of (1, lags, inputs)
        self.scale = nn.Parameter(torch.zeros(num_states, num_features, num_features, dtype=real))  # logs on the diagonal
        self.register_buffer("centre", torch.zeros(num_features, dtype=real))  # of the data fitted
        self._config |= {"num_features": self.num_features}
        self._name_states(state_names)
        self.drawn()

    # ---------------------------------------------------------------- values
    @property
    def scale_tril(self) -> Tensor:
        """(Z, D, D) factors of the covariances."""
        return self.scale.tril(-1) + torch.diag_embed(self.scale.diagonal(dim1=-2, dim2=-1).exp())

    @property
    def covariances(self) -> Tensor:
        """(Z, D, D) of what the regressions leave."""
        factor = self.scale_tril
        return factor @ factor.mT

    def estimates(self) -> dict[str, Tensor]:
        """Parameters by name, differentiable: transition (Z, Z), initial (Z,), constants (Z, D), lags (Z, p, D, D), of which
        [z, l - 1, i, j] is the weight of x_j l steps before in x_i, inputs (Z, D, U), covariances (Z, D, D)."""
        return self.moves.values() | self.by_name(self.weights) | {"covariances": self.covariances}

    def by_name(self, weights: Tensor) -> dict[str, Tensor]:
        """Weights (Z, D, K) of all regressors as constants, lags and inputs."""
        order, size, centre = self.order, self.num_features, self.centre.to(weights)
        constants, lags, inputs = weights.split([1, order * size, self.num_inputs], -1)
        found = {"constants": constants.squeeze(-1) + centre}
        if order:
            found["lags"] = lags.unflatten(-1, (order, size)).transpose(1, 2)
            found["constants"] = found["constants"] - found["lags"].sum(1) @ centre
        return found | ({"inputs": inputs} if self.num_inputs else {})

    @torch.no_grad()
    def set_parameters(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, transition=None, initial=None, duration=None, constants=None, lags=None, inputs=None, covariances=None
    ) -> Self:  # fmt: skip
        """Sets parameters in the shapes that :meth:`estimates` has; those that are not given stay.

        Raises:
            ValueError: for what this model has not, other shapes, rows that are no probabilities, and matrices that are no
                covariances.
        """
        given = dict(transition=transition, initial=initial, duration=duration, constants=constants, lags=lags, inputs=inputs)
        given["covariances"] = covariances
        values = self._values_given(given)
        factors = [scale_of(f"covariances[{z}]", value) for z, value in enumerate(values["covariances"])]
        if not all(bool((factor.diagonal() > 0).all()) for factor in factors):
            raise ValueError("covariances must be positive definite, got a singular one")
        constants = values["constants"] - self.centre
        if self.order:
            constants = constants + values["lags"].sum(1) @ self.centre
        parts = [constants.unsqueeze(-1)] + ([values["lags"].transpose(1, 2).flatten(2)] if self.order else [])
        self.weights.copy_(torch.cat(parts + ([values["inputs"]] if self.num_inputs else []), -1))
        factor = torch.stack(factors)
        self.scale.copy_(factor.tril(-1) + torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1).log()))
        return self

    def _parameter_units(self) -> dict[str, Tensor]:
        """How much the numbers of each parameter vary, by name: what L-BFGS measures its steps in."""
        deviations = self.covariances.detach().diagonal(dim1=-2, dim2=-1).sqrt()  # (Z, D)
        lags = (1 / deviations).repeat(1, self.order)
        rows = torch.cat([torch.ones_like(deviations[:, :1]), lags, deviations.new_ones(len(lags), self.num_inputs)], -1)
        scale = deviations.unsqueeze(-1).expand_as(self.scale).clone()
        scale.diagonal(dim1=-2, dim2=-1).fill_(1.0)  # logarithms
        return {"weights": deviations.unsqueeze(-1) * rows.unsqueeze(-2), "scale": scale}

    @property
    def _slots(self) -> dict[str, Slot]:
        """``weights`` are those of all regressors: the constant, lags and inputs, (Z, D, 1 + p D + U)."""
        return self.moves.slots | {
            "weights": Slot(self.weights, raw_of=Tensor.clone, clips=False, value_of=Tensor.clone, of_states=True),
            "covariances": Slot(self.scale, triangle=True),
        }  # fmt: skip

    def _check_held(self, method: str) -> None:
        super()._check_held(method)
        mask = held(self.weights)
        if method == "em" and mask is not None and not bool((mask == mask[:, :1]).all()):
            raise ValueError("fixed: 'em' holds weights of all columns of a regressor alike; use method 'lbfgs'")

    # ---------------------------------------------------------------- data
    @torch.no_grad()
    def _check_data(self, batch: Batch) -> None:
        """Refuses data of which nothing can be learned, and goes over to their mean: parameters stay what they are."""
        x, seen = self._explained(batch)
        rows = x[seen]
        if len(rows) <= self.weights.shape[-1]:
            raise ValueError(f"x: {self.weights.shape[-1]} weights of every number need more than {len(rows)} vectors")
        flat = (rows == rows[0]).all(0).nonzero().flatten().tolist()
        if flat:
            raise ValueError(f"x: columns {flat} (from 0) hold one value only, so nothing can be learned of them")
        values = self.by_name(self.weights)
        self.centre.copy_(rows.mean(0))
        about = values["lags"].sum(1) @ self.centre if self.order else 0.0
        self.weights[..., 0] = values["constants"] - self.centre + about

    def _ends(self, batches: Sequence[Batch]) -> Ends:
        """The smallest logarithms of the scales of what regressions leave; see
        :func:`~pplseq.infer.fit.gradients.ends_of`."""
        rows = torch.cat([x[seen] for x, seen in map(self._explained, batches)])
        ends = smallest_variances(rows, FLOOR).log() / 2
        low = torch.full_like(self.scale[0].double(), -torch.inf).diagonal_scatter(ends)
        return {"scale": (low, low.new_tensor(torch.inf))}

    _entry_axes: ClassVar[dict[str, Sequence[str]]] = {
        "constants": ("columns",), "lags": ("", "columns", "columns"), "inputs": ("columns", "inputs"),
        "covariances": ("columns", "columns"),
    }  # fmt: skip

    # ---------------------------------------------------------------- distributions
    @property
    def origin(self) -> Tensor:
        return self.centre

    def level(self) -> Tensor:
        return self.centre

    def coefficients(self) -> tuple[Tensor, Tensor]:
        if self.num_states == self.num_regimes:
            return self.weights, self.scale_tril
        return self.weights[self.regime_of], self.scale_tril[self.regime_of]


# ---------------------------------------------------------------- EM: a regression for each state
def regression_statistics(model: VectorRegressions, probs: Tensor, batch: Batch) -> Statistics:
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
def m_step(model: VectorRegressions, statistics: Statistics) -> list[str]:
    """The most likely parameters given the statistics; says which states are empty or collapsed."""
    model.moves.maximize(statistics["initial"], statistics["transition"])
    return regress(model, statistics)


@torch.no_grad()
def regress(model: VectorRegressions, statistics: Statistics) -> list[str]:
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
def start(model: VectorRegressions, batch: Batch) -> None:
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
