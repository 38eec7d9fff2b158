"""The M-step of a switching regression: weighted regressions, of which some coefficients are shared.

Where lags are of values it is solved, coefficients first and then variances; where they deviate from the means of their own
regimes, means multiply lags, and it climbs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pplseq.infer.fit import optimizers
from pplseq.infer.fit.em import Batch, Statistics
from pplseq.infer.fit.held import any_held, held, settle
from pplseq.models.parts.moves import RARE

if TYPE_CHECKING:
    from pplseq.models.regressions.numbers import NumberRegressions

STEPS = 8  # of L-BFGS an M-step, on sums alone: the data are not read again
ENOUGH = 1e-2  # nats that shares of counts have to gain: they are not the best moves where these say how a row begins
LEVEL = 1e-12  # of the steepest direction: where the expected log-likelihood says nothing of coefficients, they stay
FLOOR = 1e-6  # the smallest variance of a regime, of that of the data


def moments_of(model: NumberRegressions, counts: Any, x: Tensor, seen: Tensor, batch: Batch) -> Statistics:
    """Expected counts of moves, and moments of numbers x (B, T) and their regressors, in the model's
    units, under each history."""
    probs = counts.marginals.probs
    x, inputs = model.in_units(x, batch.inputs)
    past = torch.cat([x.new_zeros(len(x), model.order), x], 1)
    rows = model.regressors(past.unsqueeze(-1), inputs)
    weight = (probs * seen.unsqueeze(-1)).flatten(0, 1).double()
    joint = torch.cat([x.unsqueeze(-1), rows], -1).flatten(0, 1).double()
    size = joint.shape[-1]
    outer = (joint.unsqueeze(-1) * joint.unsqueeze(-2)).flatten(1)
    return {
        "initial": counts.start.double(), "transition": counts.transition.double(), "weight": weight.sum(0),
        "moments": (weight.T @ outer).reshape(-1, size, size),
    }  # fmt: skip


def expected_log_likelihood(model: NumberRegressions, statistics: Statistics) -> Tensor:
    """E[log p(x, regimes)] up to a constant, nats; differentiable."""
    initial, matrix = model.chain_moves()
    total = torch.where(statistics["initial"] > 0, statistics["initial"] * initial, 0.0).sum()
    possible = ~matrix.isinf()
    total = total + (statistics["transition"] * matrix.where(possible, 0.0)).sum()
    weights, scale = model.by_history(raw=True)
    contrast = torch.cat([torch.ones_like(scale).unsqueeze(-1), -weights], -1)
    residual = torch.einsum("ni,nij,nj->n", contrast, statistics["moments"].to(contrast), contrast)
    return total - (statistics["weight"] * scale.log() + residual / (2 * scale**2)).sum()


def m_step(model: NumberRegressions, statistics: Statistics) -> list[str]:
    """Raises the expected log-likelihood, so that EM never falls; says which regimes collapsed."""
    learned: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if model.lags_of == "values" and not any_held(model):
        solve_regressions(model, statistics)
        solve_moves(model, statistics)
    else:
        climb(model, learned, statistics)
    size = statistics["weight"].sum().clamp_min(1.0)
    moments = statistics["moments"].sum(0)
    variance = moments[0, 0] / size - (moments[0, 1] / size).square()
    lowest = 0.5 * (FLOOR * variance.clamp_min(1e-300)).log()
    fixed = held(model.log_scale)
    low = model.log_scale < lowest if fixed is None else (model.log_scale < lowest) & ~fixed
    if not bool(low.any()):
        return []
    with torch.no_grad():
        model.log_scale.copy_(torch.where(low, lowest, model.log_scale))
    return [f"regimes {low.nonzero().flatten().tolist()} collapsed to the smallest variance allowed, {FLOOR:g} of the data's"]


def climb(model: NumberRegressions, parameters: list[Tensor], statistics: Statistics, num_steps: int = STEPS) -> None:
    """Some steps of L-BFGS up the expected log-likelihood; exact in its values, so that it never falls."""
    size = statistics["weight"].sum().clamp_min(1.0)
    optimizer = optimizers.LBFGS(parameters, max_iter=num_steps, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def closure() -> Tensor:
        optimizer.zero_grad()
        settle(parameters)
        loss = -expected_log_likelihood(model, statistics) / size
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    settle(parameters)
    for parameter in model.parameters():
        parameter.grad = None


@torch.no_grad()
def solve_regressions(model: NumberRegressions, statistics: Statistics) -> None:
    """The best coefficients at the variances that are, by one weighted regression, then the best variances at those."""
    each = model.num_states // model.num_regimes  # states of a regime, which have its coefficients
    moments, weight = (statistics[name].double().unflatten(0, (-1, each)).sum(1) for name in ("moments", "weight"))
    before, scale = (value[::each].double() for value in model.by_history(raw=True))
    weights = best_weights(moments, before, scale, model.places())
    variance = left_variances(moments, weight, weights, shared=len(model.log_scale) == 1)
    model.put(weights, torch.where(variance.isnan(), scale, variance.clamp_min(1e-300).sqrt()))


def best_weights(moments: Tensor, before: Tensor, scale: Tensor, places: Tensor) -> Tensor:
    """(*S, R, K) coefficients of the highest expected log-likelihood, at given scales; of S problems at once.

    Args:
        moments: (*S, R, 1 + K, 1 + K) of numbers and their regressors under each regime. before: (*S, R, K), which stay along
            directions of which the moments say nothing. scale: (*S, R). places: (R, K), where a coefficient stands in one
            vector; those that regimes share stand in one place.
    """
    size = int(places.max()) + 1
    pairs = (places.unsqueeze(-1) * size + places.unsqueeze(1)).flatten()
    precision = moments / scale.square()[..., None, None]
    residual = precision[..., 1:, 0] - (precision[..., 1:, 1:] @ before.unsqueeze(-1)).squeeze(-1)
    alike = before.shape[:-2]
    normal = before.new_zeros(*alike, size * size).index_add_(-1, pairs, precision[..., 1:, 1:].flatten(-3))
    right = before.new_zeros(*alike, size).index_add_(-1, places.flatten(), residual.flatten(-2))
    normal = normal.unflatten(-1, (size, size))
    unit = normal.diagonal(dim1=-2, dim2=-1).sqrt()
    unit = torch.where(unit > 0, unit, 1.0)
    inverse = torch.linalg.pinv(normal / unit.unsqueeze(-1) / unit.unsqueeze(-2), rtol=LEVEL, hermitian=True)
    change = (inverse @ (right / unit).unsqueeze(-1)).squeeze(-1) / unit
    return before + change[..., places]


def left_variances(moments: Tensor, weight: Tensor, weights: Tensor, *, shared: bool) -> Tensor:
    """(*S, R) mean squares that coefficients leave; NaN where there are no data.

    Args:
        moments, weights: as of :func:`best_weights`. weight: (*S, R) expected numbers of steps. shared: whether all regimes
            have one variance.
    """
    contrast = torch.cat([torch.ones_like(weights[..., :1]), -weights], -1)
    squares = torch.einsum("...ni,...nij,...nj->...n", contrast, moments, contrast).clamp_min(0.0)
    if shared:
        squares, weight = (value.sum(-1, keepdim=True).expand(weight.shape) for value in (squares, weight))
    return torch.where(weight > RARE, squares / weight.clamp_min(RARE), torch.nan)


def solve_moves(model: NumberRegressions, statistics: Statistics) -> None:
    """Moves of the likeliest counts; where rows begin in the long run, only as long as that gains, then by climbing."""
    moves = model.moves
    with torch.no_grad():
        before = float(expected_log_likelihood(model, statistics))
        old = [raw.detach().clone() for raw in moves.parameters()]
        moves.maximize(statistics["initial"], statistics["transition"])
        if not moves.is_stationary:
            return
        gain = float(expected_log_likelihood(model, statistics)) - before
        if gain > ENOUGH:
            return
        if not gain > 0:
            for raw, value in zip(moves.parameters(), old, strict=True):
                raw.copy_(value)
    climb(model, [*moves.parameters()], statistics)
