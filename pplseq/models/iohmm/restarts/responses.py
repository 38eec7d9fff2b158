"""Outputs that are generalised linear models, with R parameter sets at once: a family and a link for each column.

Weights are {"emission": those of the predictors' network, "noise": raw (Z, P, R)}.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor
from torch.distributions import constraints

from pplseq.models.iohmm.networks import ConstantNetwork, LinearNetwork, TableNetwork
from pplseq.models.iohmm.restarts.networks import Penalty, RestartNetwork, in_units_of
from pplseq.models.iohmm.restarts.outputs import CategoricalOutputs, NoisyOutputs, Parameters, Seen
from pplseq.models.iohmm.restarts.regressions import HALVINGS, Solution, factor
from pplseq.models.parts.families import LARGEST, Family, maximize_each
from pplseq.models.parts.links import LINKS, SHARE_LINKS
from pplseq.models.parts.responses import Column, ResponseColumns

SHARPEST = 1e6  # of a parabola, over the square of the slope: near a target it has no end


class ResponseOutputs(NoisyOutputs):
    """Columns x_d ~ family_d(mean of predictors of state and input, dispersion of the state), independent given both.

    Args:
        network: of the predictors. columns: what they are predictors of.
        floor: (D,) smallest squares of scales, of columns that have one.
    """

    def __init__(self, network: RestartNetwork, columns: ResponseColumns, floor: Tensor, num_climbs: int = 10):
        super().__init__(network, num_climbs)
        self.columns, self.floor = columns, floor

    # ---------------------------------------------------------------- likelihood
    def _density(self, parameters, seen, num_restarts):
        eta = self.network.values(parameters["emission"], seen.rows)[:, :, seen.entry]  # (Z, K, M, R)
        total = eta.new_zeros(())
        for column in self.columns.columns:
            there, x = self._column(column, seen)
            others = column.constrained(parameters["noise"]["raw"], 1) | column.sizes(seen.sizes)
            own = eta[:, column.predictors]
            own = own.movedim(1, -1) if column.kind is None else own[:, 0]
            value = column.distribution(own, others).log_prob(x.unsqueeze(-1))
            total = total + (value if bool(there.all()) else value.masked_fill(~there.unsqueeze(-1), 0.0))
        return total

    def _column(self, column: Column, seen: Seen) -> tuple[Tensor, Tensor]:
        """(M,) where a column was seen, and its numbers, with one of the support where it was not."""
        there = seen.known if seen.present is None else seen.known & seen.present[:, column.number]
        return there, torch.where(there, seen.x[:, column.number], column.fill)

    # ---------------------------------------------------------------- maximiser
    def maximize(self, parameters, seen, visits, penalty, gradient):
        if gradient or penalty.precision or not self.network.exact:
            return self.climb(parameters, seen, visits, penalty), None
        emission = {name: value.clone() for name, value in parameters["emission"].items()}
        noise = {"raw": parameters["noise"]["raw"].clone()}
        floored = torch.zeros(visits.shape[-1], dtype=torch.bool, device=visits.device)
        for column in self.columns.columns:
            there, x = self._column(column, seen)
            own = {name: value[..., column.predictors, :].clone() for name, value in emission.items()}
            sizes = None if seen.sizes is None else seen.sizes[there]
            part = Seen(seen.rows, seen.entry[there], x[there], there[there], None, None, sizes)
            if column.kind is None:
                found = self._classes(column, own, part, visits[:, there], penalty)
            else:
                found = self._fit(column, own, part, visits[:, there], noise)
            for name, value in found.items():
                emission[name][..., column.predictors, :] = value
            if column.place is not None:
                floored |= self._fit_dispersions(column, found, part, visits[:, there], noise["raw"])
        return {"emission": emission, "noise": noise}, floored

    def _alone(self, column: Column) -> RestartNetwork:
        """A network of one column's predictors."""
        shape, network = (self.num_states, column.size), self.network.network
        dtype = next(network.parameters()).dtype
        if self.network.kind == "linear":
            return RestartNetwork(LinearNetwork(network.num_inputs, shape, dtype))
        if self.network.kind == "table":
            return RestartNetwork(TableNetwork(network.num_symbols, shape, dtype))
        return RestartNetwork(ConstantNetwork(shape, dtype))

    def _classes(self, column: Column, own: dict[str, Tensor], seen: Seen, visits: Tensor, penalty: Penalty):
        """The regression of a column of classes."""
        outputs = CategoricalOutputs(self._alone(column))
        seen = seen._replace(x=seen.x.long())
        return outputs.maximize({"emission": own}, seen, visits, penalty._replace(concentration=None), False)[0]["emission"]

    def _fit(self, column: Column, own: dict[str, Tensor], seen: Seen, visits: Tensor, noise: dict[str, Tensor]):
        """The regression of a column of numbers under visits (Z, M, R)."""
        linear, network = self.network.kind == "linear", self._alone(column)
        uneven = bool(column.dispersions) and bool(column.sizes(seen.sizes))  # so that the mean is not that of all numbers
        if linear or uneven or not column.averages:
            # of a table, or a constant, the regression on which entry a number is beside
            features = seen.rows.features[seen.entry] if linear else torch.eye(seen.rows.size).to(visits)[seen.entry]
            mass = visits.transpose(1, 2).flatten(0, 1)  # (Z R, M)
            weight = own["weight"][:, :, 0] if linear else network.values(own, seen.rows)[:, 0]  # (Z, F, R)
            spread = {name: value.flatten().unsqueeze(-1) for name, value in column.constrained(noise["raw"], 1).items()}
            spread |= {name: value.squeeze(-1) for name, value in column.sizes(seen.sizes).items()}
            weight = weight.transpose(1, 2).flatten(0, 1)
            found = generalised_regression(column, features, seen.x, mass, weight, spread).weights
            found = found.unflatten(0, (self.num_states, -1)).permute(0, 2, 3, 1)  # (Z, F, 1, R)
            return {"weight": found} if linear else {"logits": found.movedim(1, 0).reshape(own["logits"].shape)}
        before = network.values(own, seen.rows)  # (Z, 1, L, R)
        sums, total = (torch.zeros_like(before[:, 0]) for _ in range(2))
        sums = sums.index_add_(1, seen.entry, visits * seen.x.unsqueeze(-1))
        size = next(iter(column.sizes(seen.sizes).values()), torch.full_like(seen.x, column.unit).unsqueeze(-1))
        total = total.index_add_(1, seen.entry, visits * size)  # of what numbers are counted in
        mean = column.unit * sums / total
        if column.link in SHARE_LINKS:
            limit = torch.finfo(mean.dtype).eps ** 0.8 * column.unit
            mean = mean.clamp(limit, column.unit - limit)
        elif column.link != "identity":
            mean = mean.clamp_min(torch.finfo(mean.dtype).tiny ** 0.25)
        table = torch.where((total > 0).unsqueeze(1), column.predictor(mean).unsqueeze(1), before)
        return {"logits": table.movedim(2, 0).reshape(own["logits"].shape)}

    def _fit_dispersions(self, column: Column, own: dict[str, Tensor], seen: Seen, visits: Tensor, raw: Tensor) -> Tensor:
        """Sets the dispersions given the regression, one after the other; (R,) where one met its floor."""
        eta = self._alone(column).values(own, seen.rows)[:, 0, seen.entry]  # (Z, M, R)
        total, x, floored = visits.sum(1), seen.x.unsqueeze(-1), torch.zeros_like(visits[0, 0], dtype=torch.bool)
        for number, name in enumerate(column.dispersions):
            place, parameter = (column.place or 0) + number, cast(Family, column.kind).parameters[name]
            others = column.constrained(raw, 1) | column.sizes(seen.sizes)
            before, low = others[name][:, 0], torch.zeros_like(total, dtype=torch.bool)
            if column.family == "normal":
                new = (visits * (x - column.mean(eta)).square()).sum(1) / total
            else:
                new = self._climbed(column, eta, x, visits, others, name)
            if place == column.scale_place:
                new = new if column.family == "normal" else new.square()
                floor = self.floor.to(eta)[column.number]
                low = (new < floor) & (total > 0)
                new = new.maximum(floor).sqrt()
            raw[:, place] = parameter.unconstrained(torch.where(total > 0, new, before))
            floored |= low.any(0)
        return floored

    @staticmethod
    def _climbed(column: Column, eta: Tensor, x: Tensor, visits: Tensor, others: dict[str, Tensor], name: str) -> Tensor:
        """(Z, R) one dispersion at its likeliest value given the others; of a share its odds are looked for."""
        before, total = others[name][:, 0], visits.sum(1).clamp_min(1e-300)
        share = cast(Family, column.kind).parameters[name].constraint is constraints.unit_interval

        def objective(value: Tensor) -> Tensor:
            value = value / (1 + value) if share else value
            density = column.distribution(eta, others | {name: value.unsqueeze(1)}).log_prob(x)
            return (visits * density).sum(1) / total

        start = before / (1 - before) if share else before
        unit = start if name == "scale" else torch.ones_like(start)  # which is as large as the numbers are
        new = unit * maximize_each(start / unit, lambda value: objective(unit * value))
        new = torch.where(objective(new) >= objective(unit * (start / unit).clamp(1 / LARGEST, LARGEST)), new, start)
        return new / (1 + new) if share else new

    def inside(self, weights):
        raw = weights["noise.raw"]
        lowest, largest = torch.full_like(raw, -math.log(LARGEST)), torch.full_like(raw, math.log(LARGEST))
        for column in self.columns.scaled:
            lowest[:, column.scale_place] = float(self.floor[column.number].log()) / 2
            largest[:, column.scale_place] = torch.inf
        return weights | {"noise.raw": raw.minimum(largest).maximum(lowest)}

    def start(self, seen: Seen, scale: float, count: int, emission: dict[str, Tensor]) -> Parameters:
        """Where ``count`` restarts begin: predictors around rows that were seen, slopes no steeper than inputs vary."""
        rows = seen.x[seen.known]
        if not len(rows):
            raise ValueError("x must hold at least one target to start from, got none")
        if seen.present is not None:
            rows = torch.where(seen.present[seen.known], rows, torch.nan)
        rows = self.columns.rates(rows, None if seen.sizes is None else seen.sizes[seen.known])
        eta = self.columns.start(rows, (self.num_states, count)).movedim(-1, 1)  # (Z, K, R)
        dispersion = self.columns.first_dispersions(rows, self.floor.to(rows))
        if self.network.kind in ("constant", "table"):
            emission = {"logits": eta.expand(emission["logits"].shape).clone()}
        elif self.network.kind == "linear":
            weight = scale * torch.randn_like(emission["weight"])
            for column in self.columns.scaled:
                if column.link == "identity":
                    weight[:, :, column.first] *= dispersion[column.scale_place].exp()
            weight[:, -1] = eta
            in_units_of(seen.rows.features[..., :-1], weight)
            for column in self.columns.columns:
                if column.link == "sqrt":  # no count beside 0 can be passed where a predictor changes its sign
                    self._above_zero(seen.rows.features, weight[:, :, column.first], eta[:, column.first])
            emission = {"weight": weight}
        elif (linear := self.network.network.linear_weight) is not None:
            emission[linear][:, -1] = eta
        noise = dispersion[:, None].expand(self.num_states, -1, count).clone()
        return {"emission": emission, "noise": {"raw": noise}}

    @staticmethod
    def _above_zero(features: Tensor, weight: Tensor, middle: Tensor) -> None:
        """Flattens slopes of weights (Z, F, R) whose predictors are `middle` (Z, R) at the mean inputs, where they reach 0."""
        below = (middle - torch.einsum("nf,zfr->znr", features, weight).amin(1)) / middle
        share = (0.9 / below.clamp_min(0.9)).unsqueeze(1)
        weight *= share
        weight[:, -1] += (1 - share[:, 0]) * middle


def generalised_regression(
    column: Column, features: Tensor, targets: Tensor, mass: Tensor, weights: Tensor, dispersion: dict[str, Tensor],
    max_iterations: int = 25, tolerance: float = 1e-9,
) -> Solution:  # fmt: skip
    """P weighted generalised linear models at once: climbs sum_m mass_m log p(y_m | x_m w) from ``weights``, never down.

    Iteratively reweighted least squares with halved steps: X' W X step = X' d log p / d eta. W are minus the second derivatives
    (Newton's method), or where the density is not concave what is expected of them (Fisher's scoring).

    Args:
        features: (M, F). targets: (M,). mass: (P, M). weights: (P, F). dispersion: (P, 1) each by name,
            and (M,) trials or exposures.
        tolerance: stop where a step promises less than this share of the mass, nats.

    Source: P. McCullagh and J. A. Nelder (1989), Generalized linear models, section 2.5.
    """

    def objective(weights: Tensor) -> Tensor:
        density = column.distribution(weights @ features.T, dispersion).log_prob(targets)
        return torch.where(mass > 0, mass * density, 0.0).sum(-1)

    size, value = mass.sum(-1), objective(weights)
    converged, iteration = size <= 0, 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007
        slope, curve = _derivatives(column, weights @ features.T, targets, dispersion)
        gradient = torch.where(mass > 0, mass * slope, 0.0) @ features
        curve = (features.T * torch.where(mass > 0, mass * curve, 0.0).unsqueeze(1)) @ features
        step = torch.cholesky_solve(gradient.unsqueeze(-1), factor(curve)).squeeze(-1).nan_to_num(0.0, 0.0, 0.0)
        promise = (gradient * step).sum(-1) / 2
        going = ~converged & (promise > tolerance * size)
        if not bool(going.any()):
            converged = torch.ones_like(converged)
            break
        share, better, trial, reached = torch.ones_like(value), torch.zeros_like(going), weights, value
        for _ in range(HALVINGS):
            trial = weights + share.unsqueeze(-1) * step
            reached = objective(trial)
            better = going & (reached >= value)
            if not bool((going & ~better).any()):
                break
            share = torch.where(better, share, share / 2)
        weights = torch.where(better.unsqueeze(-1), trial, weights)
        value = torch.where(better, reached, value)
        converged = converged | ~better
    return Solution(weights.unsqueeze(-1), value, iteration, converged)


def _derivatives(column: Column, eta: Tensor, targets: Tensor, dispersion: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Of log p(y | eta), (P, M): the first, and minus the second unless it is negative, else what is expected of it: of means
    slope^2 / variance; of locations that of the parabola that touches the density and is as high on the other side of the
    target, as of Laplace's, which has a corner there; of others the square of the first."""
    with torch.enable_grad():
        at = eta.detach().requires_grad_()
        slope = torch.autograd.grad(column.distribution(at, dispersion).log_prob(targets).sum(), at, create_graph=True)[0]
        bend = -torch.autograd.grad(slope.sum(), at)[0] if slope.requires_grad else torch.zeros_like(at)
    slope = slope.detach().nan_to_num(0.0)
    if not column.averages:
        own = slope.square()
        if column.link == "identity":
            pull = slope / (targets - eta)
            own = torch.where(pull > 0, pull.minimum(SHARPEST * own), own)
        return slope, torch.where(bend > 0, bend, own).nan_to_num(0.0)
    eta = eta.clamp(*LINKS[column.link].range)
    spread = column.distribution(eta, dispersion).variance.clamp_min(torch.finfo(eta.dtype).tiny ** 0.5)
    size = dispersion.get((column.kind and column.kind.sized) or "", column.unit)
    expected = (size * LINKS[column.link].slope(eta)).square() / spread
    return slope, torch.where(bend >= 0, bend, expected).nan_to_num(0.0)
