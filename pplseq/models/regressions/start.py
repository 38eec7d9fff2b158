"""Where the fit of a switching regression starts: regressions of segments of the data that are dealt out among the regimes.

Likelihoods of regimes have many maxima, so that a start is the best of some that are drawn, after a few iterations of EM of all
of them at once. Regimes last, so that a regression of a stretch of time is near that of one regime more often than one of
coefficients that are drawn about those of all the data; EM is then fast, and more starts end at the best optimum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pplseq.distributions.drawing import undrawn
from pplseq.distributions.stationary import stationary_log_probs
from pplseq.kernels.restart_scan import Lattice, expectation
from pplseq.models.parts.moves import shares
from pplseq.models.regressions.fit import best_weights, left_variances

SHRINKAGE = 0.1  # what the regression of all data weighs, as a share of a regime's own data
DRAWN, ITERATIONS = 16, 20  # starts that race for one place, and iterations of EM that they have
ALIKE = 1e-4  # nats between starts that ended at the same place, perhaps with regimes in another order
STEPS = 1 << 15  # of all of them together: long rows tell their regimes apart from fewer starts


def num_drawn(seen: Tensor) -> int:
    """How many starts race for one place on data of which ``seen`` (B, T) is explained."""
    return max(1, min(DRAWN, STEPS // seen.numel()))


def held_variances(variance: Tensor, weight: Tensor, prior: tuple[float, float]) -> Tensor:
    """(*S, R) variances over expected numbers of steps, with those of a prior: how many, and of which variance. Without it,
    a regime of a few steps that it goes through would win any race."""
    count, value = prior
    return (variance.nan_to_num(0.0) * weight + count * value) / (weight + count)


@undrawn()
def race(
    drawn: Sequence[tuple[Tensor, Tensor, Tensor]], rows: Tensor, target: Tensor, seen: Tensor, lengths: Tensor, places: Tensor,
    *, shared: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The best of S starts after :data:`ITERATIONS` of EM, all at once: its weights, scales and log moves.

    The first regime is taken for one of the long run, moves for the shares of their counts: enough to choose by. Variances have
    a prior, K + 2 steps of that of one regression over R^2. Starts that end alike count as one, the first.

    Args:
        drawn: weights (R, K), scales (R,) and log moves (R, R) of each start. rows: (B, T, K) regressors. target: (B, T).
        seen: (B, T) which steps are explained. lengths: (B,). places, shared: of what regimes share, see
            :func:`~pplseq.models.regressions.fit.best_weights`.
    """
    some = lengths > 0
    lattice = Lattice(lengths[some], pair_index=torch.zeros_like(seen[some], dtype=torch.long))
    joint, seen = (lattice.pack(part[some]) for part in (torch.cat([target.unsqueeze(-1), rows], -1).double(), seen))
    outer = (joint.unsqueeze(-1) * joint.unsqueeze(-2)).flatten(1) * seen.unsqueeze(-1)
    weights, scale, moves = (torch.stack(parts).double() for parts in zip(*drawn, strict=True))
    size = joint.shape[-1]
    alone = outer.sum(0).view(1, size, size)
    columns = torch.arange(size - 1, device=alone.device).unsqueeze(0)
    regression = best_weights(alone, alone.new_zeros(1, size - 1), alone.new_ones(1), columns)
    whole = float(left_variances(alone, seen.sum().to(alone)[None], regression, shared=True))
    prior = size + 1.0, max(whole, 1e-12) / moves.shape[-1] ** 2
    iteration = 0
    while True:
        left = joint[:, 0] - weights @ joint[:, 1:].T  # (S, R, N)
        emit = torch.where(seen, -(left / scale.unsqueeze(-1)).square() / 2 - scale.log().unsqueeze(-1), 0.0)
        first = stationary_log_probs(moves)
        found = expectation(first.T.unsqueeze(1), moves.movedim(0, -1).unsqueeze(2), emit.permute(1, 2, 0), lattice)
        if iteration == ITERATIONS:
            break
        iteration += 1
        each = found.emit.permute(2, 0, 1)  # (S, R, N)
        moments = (each @ outer).unflatten(-1, (size, size))
        weights = best_weights(moments, weights, scale, places)
        weight = each @ seen.to(each)
        variance = left_variances(moments, weight, weights, shared=shared)
        weight = weight.sum(-1, keepdim=True).expand(weight.shape) if shared else weight
        scale = held_variances(variance, weight, prior).sqrt()
        counts = found.pair[:, :, 0].movedim(-1, 0)
        moves = shares(counts, moves).log_softmax(-1)
    own = scale[:, :1] if shared else scale
    values = found.log_prob.sum(0) - prior[0] * (own.log() + prior[1] / own.square() / 2).sum(-1)
    values = values.nan_to_num(-torch.inf)
    best = int((values >= values.max() - ALIKE).int().argmax())  # the first of those that rounding tells apart
    return weights[best], scale[best], moves[best]


def regressions_of_segments(
    rows: Tensor, target: Tensor, num_regimes: int, labels: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (R, K) of each regime's segments, drawn towards those of all data (K,); and the mean squares (R,) they leave.

    Args:
        rows: (T, K) regressors. target: (T,). num_regimes: R. labels: (T,) regimes of steps, negative where unknown: regimes
            that are known of some have these steps, and the others segments of the rest.

    The T steps are cut at random into 2 R to 4 R segments, fewer where data are short, of which every regime gets as many, give
    or take one. Torch's generator draws them.
    """
    scale = rows.square().mean(0).sqrt().clamp_min(1e-12)
    scaled, num_steps = rows / scale, len(target)
    gram = scaled.T @ scaled
    whole = torch.linalg.solve(gram + 1e-8 * num_steps * torch.eye(rows.shape[1]).to(rows), scaled.T @ target)
    number = min(int(torch.randint(2 * num_regimes, 4 * num_regimes + 1, ())), num_steps)
    cuts = 1 + torch.randperm(num_steps - 1)[: number - 1].sort().values
    segment = torch.bucketize(torch.arange(num_steps), cuts, right=True)
    dealt = torch.cat([torch.randperm(num_regimes) for _ in range(-(-number // num_regimes))])
    regime = dealt[segment].to(target.device)
    if labels is not None and bool((labels >= 0).any()):
        others = [k for k in range(num_regimes) if k not in labels.tolist()]
        rest = torch.tensor(others or [-1]).to(regime)[regime % max(len(others), 1)]
        regime = torch.where(labels >= 0, labels, rest)
    share = SHRINKAGE / num_regimes
    ridge = share * gram + 1e-8 * num_steps * torch.eye(rows.shape[1]).to(rows)
    weights, squares = [], []
    for k in range(num_regimes):
        own = regime == k
        mine, seen = scaled[own], target[own]
        found = torch.linalg.solve(mine.T @ mine + ridge, mine.T @ seen + ridge @ whole)
        weights.append(found / scale)
        left = (target - scaled @ found).square()
        squares.append(left[own].mean() if bool(own.any()) else left.mean())
    return torch.stack(weights), whole / scale, torch.stack(squares)
