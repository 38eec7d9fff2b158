"""Where the fit of a switching regression starts: regressions of segments of the data that are dealt out among the regimes.

Regimes last, so that a regression of a stretch of time is near that of one regime more often than one of coefficients that are
drawn about those of all the data; EM is then fast, and more starts end at the best optimum.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHRINKAGE = 0.1  # what the regression of all data weighs, as a share of a regime's own data


def regressions_of_segments(rows: Tensor, target: Tensor, num_regimes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (R, K) of each regime's segments, drawn towards those of all data (K,); and the mean squares (R,) they leave.

    Args:
        rows: (T, K) regressors. target: (T,). num_regimes: R.

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
