"""The M-step of a switching regression: weighted regressions, of which some coefficients are shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pplseq.infer.fit.em import Batch, Statistics

if TYPE_CHECKING:
    from pplseq.models.switching.parameters import SwitchingParameters

STEPS = 8  # of L-BFGS an M-step, on sums alone: the data are not read again
FLOOR = 1e-6  # the smallest variance of a regime, of that of the data


def moments_of(model: SwitchingParameters, counts: Any, x: Tensor, seen: Tensor, batch: Batch) -> Statistics:
    """Expected counts of moves, and moments of numbers x (B, T) and their regressors, in the model's
    units, under each history."""
    probs = counts.marginals.probs
    x, inputs = model.in_units(x, batch.inputs)
    past = torch.cat([x.new_zeros(len(x), model.order), x], 1)
    rows = model.regressors(past, inputs)
    weight = (probs * seen.unsqueeze(-1)).flatten(0, 1).double()
    joint = torch.cat([x.unsqueeze(-1), rows], -1).flatten(0, 1).double()
    size = joint.shape[-1]
    outer = (joint.unsqueeze(-1) * joint.unsqueeze(-2)).flatten(1)
    return {
        "initial": counts.start.double(), "transition": counts.transition.double(), "weight": weight.sum(0),
        "moments": (weight.T @ outer).reshape(-1, size, size),
    }  # fmt: skip


def expected_log_likelihood(model: SwitchingParameters, statistics: Statistics) -> Tensor:
    """E[log p(x, regimes)] up to a constant, nats; differentiable."""
    initial, matrix = model.moves()
    total = torch.where(statistics["initial"] > 0, statistics["initial"] * initial, 0.0).sum()
    possible = ~matrix.isinf()
    total = total + (statistics["transition"] * matrix.where(possible, 0.0)).sum()
    weights, scale = model.coefficients(raw=True)
    contrast = torch.cat([torch.ones_like(scale).unsqueeze(-1), -weights], -1)
    residual = torch.einsum("ni,nij,nj->n", contrast, statistics["moments"].to(contrast), contrast)
    return total - (statistics["weight"] * scale.log() + residual / (2 * scale**2)).sum()


def m_step(model: SwitchingParameters, statistics: Statistics) -> list[str]:
    """Raises the expected log-likelihood by L-BFGS; exact in its values, so that EM never falls."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    size = statistics["weight"].sum().clamp_min(1.0)
    optimizer = torch.optim.LBFGS(parameters, max_iter=STEPS, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -expected_log_likelihood(model, statistics) / size
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    optimizer.zero_grad()
    moments = statistics["moments"].sum(0)
    variance = moments[0, 0] / size - (moments[0, 1] / size).square()
    lowest = 0.5 * (FLOOR * variance.clamp_min(1e-300)).log()
    low = model.log_scale < lowest
    if not bool(low.any()):
        return []
    with torch.no_grad():
        model.log_scale.clamp_(min=float(lowest))
    return [f"regimes {low.nonzero().flatten().tolist()} collapsed to the smallest variance allowed, {FLOOR:g} of the data's"]
