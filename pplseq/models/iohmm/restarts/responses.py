"""Outputs that are generalised linear models, with R parameter sets at once: a family and a link for each column.

Weights are {"emission": those of the predictors' network, "noise": log_dispersion (Z, P, R)}.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pplseq.models.hmm.families import LARGEST, maximize_each
from pplseq.models.iohmm.networks import ConstantNetwork, LinearNetwork, TableNetwork
from pplseq.models.iohmm.responses import LINKS, Column, ResponseColumns
from pplseq.models.iohmm.restarts.networks import Penalty, RestartNetwork, in_units_of
from pplseq.models.iohmm.restarts.outputs import CategoricalOutputs, NoisyOutputs, Parameters, Seen
from pplseq.models.iohmm.restarts.regressions import HALVINGS, Solution, factor


class ResponseOutputs(NoisyOutputs):
    """Columns x_d ~ family_d(mean of predictors of state and input, dispersion of the state), independent given both.

    Args:
        network: of the predictors. columns: what they are predictors of.
        floor: (D,) smallest variances of "normal" columns.
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
            value = self._column_density(column, eta[:, column.predictors], x, parameters["noise"])
            total = total + (value if bool(there.all()) else value.masked_fill(~there.unsqueeze(-1), 0.0))
        return total

    def _column(self, column: Column, seen: Seen) -> tuple[Tensor, Tensor]:
        """(M,) where a column was seen, and its numbers, with one of the support where it was not."""
        there = seen.known if seen.present is None else seen.known & seen.present[:, column.number]
        return there, torch.where(there, seen.x[:, column.number], column.response.fill)

    def _column_density(self, column: Column, eta: Tensor, x: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """(Z, M, R) of predictors (Z, k, M, R)."""
        eta = eta.movedim(1, -1) if column.family == "categorical" else eta[:, 0]
        return column.distribution(eta, self._dispersion(column, noise).unsqueeze(1)).log_prob(x.unsqueeze(-1))

    @staticmethod
    def _dispersion(column: Column, noise: dict[str, Tensor]) -> Tensor:
        """(Z, R)."""
        value = noise["log_dispersion"]
        return value.new_ones(len(value), value.shape[-1]) if column.place is None else value[:, column.place].exp()

    # ---------------------------------------------------------------- maximiser
    def maximize(self, parameters, seen, visits, penalty, gradient):
        if gradient or penalty.precision or not self.network.exact:
            return self.climb(parameters, seen, visits, penalty), None
        emission = {name: value.clone() for name, value in parameters["emission"].items()}
        noise = {"log_dispersion": parameters["noise"]["log_dispersion"].clone()}
        floored = torch.zeros(visits.shape[-1], dtype=torch.bool, device=visits.device)
        for column in self.columns.columns:
            there, x = self._column(column, seen)
            own = {name: value[..., column.predictors, :].clone() for name, value in emission.items()}
            part = Seen(seen.rows, seen.entry[there], x[there], there[there], None)
            if column.family == "categorical":
                found = self._classes(column, own, part, visits[:, there], penalty)
            else:
                found = self._fit(column, own, part, visits[:, there], noise)
            for name, value in found.items():
                emission[name][..., column.predictors, :] = value
            if column.place is not None:
                new, low = self._fit_dispersion(column, found, part, visits[:, there], noise)
                noise["log_dispersion"][:, column.place] = new.log()
                floored |= low
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
        if self.network.kind == "linear":
            mass = visits.transpose(1, 2).flatten(0, 1)  # (Z R, M)
            weight = own["weight"][:, :, 0].transpose(1, 2).flatten(0, 1)  # (Z R, F)
            spread = self._dispersion(column, noise).flatten()
            found = generalised_regression(column, seen.rows.features[seen.entry], seen.x, mass, weight, spread).weights
            return {"weight": found.unflatten(0, (self.num_states, -1)).permute(0, 2, 3, 1)}
        # the mean of a family of exponential dispersion is that of its numbers, whatever the link is
        network = self._alone(column)
        before = network.values(own, seen.rows)  # (Z, 1, L, R)
        sums, total = (torch.zeros_like(before[:, 0]) for _ in range(2))
        sums = sums.index_add_(1, seen.entry, visits * seen.x.unsqueeze(-1))
        total = total.index_add_(1, seen.entry, visits)
        mean = sums / total
        if column.link in ("logit", "probit", "cloglog"):
            limit = torch.finfo(mean.dtype).eps ** 0.8 * column.trials
            mean = mean.clamp(limit, column.trials - limit)
        elif column.link != "identity":
            mean = mean.clamp_min(torch.finfo(mean.dtype).tiny ** 0.25)
        table = torch.where((total > 0).unsqueeze(1), column.predictor(mean).unsqueeze(1), before)
        return {"logits": table.movedim(2, 0).reshape(own["logits"].shape)}

    def _fit_dispersion(self, column: Column, own: dict[str, Tensor], seen: Seen, visits: Tensor, noise: dict[str, Tensor]):
        """(Z, R) the dispersions given the regression, and (R,) where one met its floor."""
        eta = self._alone(column).values(own, seen.rows)[:, 0, seen.entry]  # (Z, M, R)
        total, before, x = visits.sum(1), self._dispersion(column, noise), seen.x.unsqueeze(-1)
        if column.family == "normal":
            floor = self.floor.to(eta)[column.number]
            variance = (visits * (x - column.mean(eta)).square()).sum(1) / total
            low = (variance < floor) & (total > 0)
            return torch.where(total > 0, variance.maximum(floor).sqrt(), before), low.any(0)

        def objective(dispersion: Tensor) -> Tensor:
            density = column.distribution(eta, dispersion.unsqueeze(1)).log_prob(x)
            return (visits * density).sum(1) / total.clamp_min(1e-300)

        new = maximize_each(before, objective)
        worse = ~(objective(new) >= objective(before.clamp(1 / LARGEST, LARGEST))) | (total <= 0)
        return torch.where(worse, before, new), torch.zeros_like(total[0], dtype=torch.bool)

    def inside(self, weights):
        value = weights["noise.log_dispersion"]
        lowest = torch.full_like(value, -math.log(LARGEST))
        for column in self.columns.normal:
            lowest[:, column.place] = float(self.floor[column.number].log()) / 2
        free = torch.ones_like(value, dtype=torch.bool)
        for column in self.columns.normal:
            free[:, column.place] = False
        return weights | {"noise.log_dispersion": torch.where(free, value.clamp_max(math.log(LARGEST)), value).maximum(lowest)}

    def start(self, seen: Seen, scale: float, count: int, emission: dict[str, Tensor]) -> Parameters:
        """Where ``count`` restarts begin: predictors around rows that were seen, slopes no steeper than inputs vary."""
        rows = seen.x[seen.known]
        if not len(rows):
            raise ValueError("x must hold at least one target to start from, got none")
        if seen.present is not None:
            rows = torch.where(seen.present[seen.known], rows, torch.nan)
        eta = self.columns.start(rows, (self.num_states, count)).movedim(-1, 1)  # (Z, K, R)
        dispersion = self.columns.first_dispersions(rows, self.floor.to(rows)).log()
        if self.network.kind in ("constant", "table"):
            emission = {"logits": eta.expand(emission["logits"].shape).clone()}
        elif self.network.kind == "linear":
            weight = scale * torch.randn_like(emission["weight"])
            for column in self.columns.normal:
                if column.link == "identity":
                    weight[:, :, column.first] *= dispersion[column.place].exp()
            weight[:, -1] = eta
            in_units_of(seen.rows.features[..., :-1], weight)
            emission = {"weight": weight}
        elif (linear := self.network.network.linear_weight) is not None:
            emission[linear][:, -1] = eta
        noise = dispersion[:, None].expand(self.num_states, -1, count).clone()
        return {"emission": emission, "noise": {"log_dispersion": noise}}


def generalised_regression(
    column: Column, features: Tensor, targets: Tensor, mass: Tensor, weights: Tensor, dispersion: Tensor,
    max_iterations: int = 25, tolerance: float = 1e-9,
) -> Solution:  # fmt: skip
    """P weighted generalised linear models at once: climbs sum_m mass_m log p(y_m | x_m w) from ``weights``, never down.

    Iteratively reweighted least squares with halved steps: X' W X step = X' d log p / d eta. W are minus the second derivatives
    (Newton's method), or where the density is not concave their expectations slope^2 / variance (Fisher's scoring).

    Args:
        features: (M, F). targets: (M,). mass: (P, M). weights: (P, F). dispersion: (P,).
        tolerance: stop where a step promises less than this share of the mass, nats.

    Source: P. McCullagh and J. A. Nelder (1989), Generalized linear models, section 2.5.
    """

    def objective(weights: Tensor) -> Tensor:
        density = column.distribution(weights @ features.T, dispersion.unsqueeze(-1)).log_prob(targets)
        return torch.where(mass > 0, mass * density, 0.0).sum(-1)

    size, value = mass.sum(-1), objective(weights)
    converged, iteration = size <= 0, 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007
        slope, curve = _derivatives(column, weights @ features.T, targets, dispersion.unsqueeze(-1))
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


def _derivatives(column: Column, eta: Tensor, targets: Tensor, dispersion: Tensor) -> tuple[Tensor, Tensor]:
    """Of log p(y | eta), (P, M): the first, and minus the second unless it is negative, else what is expected of it."""
    with torch.enable_grad():
        at = eta.detach().requires_grad_()
        slope = torch.autograd.grad(column.distribution(at, dispersion).log_prob(targets).sum(), at, create_graph=True)[0]
        bend = -torch.autograd.grad(slope.sum(), at)[0] if slope.requires_grad else torch.zeros_like(at)
    eta = eta.clamp(*LINKS[column.link].range)
    mean = column.mean(eta)
    spread = column.variance(mean, dispersion).clamp_min(torch.finfo(mean.dtype).tiny ** 0.5)
    expected = column.slope(eta).square() / spread
    return slope.detach().nan_to_num(0.0), torch.where(bend >= 0, bend, expected).nan_to_num(0.0)
