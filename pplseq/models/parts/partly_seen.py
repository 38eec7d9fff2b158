"""Vectors of which some coordinates are missing: what EM needs of them, and where it starts.

A missing coordinate is no loss of the others: given a state, what is missing is Gaussian around its regression on what was
seen, and the expected moments of complete vectors take its place. Source: Z. Ghahramani, M. I. Jordan (1994), Supervised
learning from incomplete data via an EM approach, equations (7) to (9).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.infer.fit.em import Statistics


def diagonal_moments(obs: Tensor, weight: Tensor, loc: Tensor, variance: Tensor) -> Statistics:
    """Expected weight (Z,), first and second moments (Z, D) of vectors (N, D), NaN where missing, in states (N, Z).

    Args:
        loc, variance: (Z, D).
    """
    missing = obs.isnan()
    values, gone = obs.masked_fill(missing, 0.0), weight.T @ missing.to(weight)
    return {
        "weight": weight.sum(0),
        "first": weight.T @ values + gone * loc,
        "second": weight.T @ values.square() + gone * (loc.square() + variance),
    }


def full_moments(obs: Tensor, weight: Tensor, loc: Tensor, covariances: Tensor) -> Statistics:
    """The same with second moments (Z, D, D).

    Args:
        loc: (Z, D). covariances: (Z, D, D).

    Cost: a factorisation of each state's covariance for each pattern of missing coordinates that occurs.
    """
    patterns, of_row = obs.isnan().unique(dim=0, return_inverse=True)
    first, second = torch.zeros_like(loc), torch.zeros_like(covariances)
    for number, missing in enumerate(patterns):
        rows = (of_row == number).nonzero().squeeze(-1)
        gone, seen, share = missing.nonzero().squeeze(-1), (~missing).nonzero().squeeze(-1), weight[rows]
        factor = torch.linalg.cholesky(covariances[:, seen.unsqueeze(-1), seen])
        between = covariances[:, seen.unsqueeze(-1), gone]
        gain = torch.cholesky_solve(between, factor).mT  # (Z, gone, seen)
        filled = obs[rows].unsqueeze(0).expand(len(loc), -1, -1).clone()  # (Z, n, D)
        apart = filled[..., seen] - loc[:, None, seen]
        filled[..., gone] = loc[:, None, gone] + apart @ gain.mT
        weighted = share.T.unsqueeze(-1) * filled
        first += weighted.sum(1)
        second += weighted.mT @ filled
        left = covariances[:, gone.unsqueeze(-1), gone] - gain @ between
        second[:, gone.unsqueeze(-1), gone] += share.sum(0)[:, None, None] * left
    return {"weight": weight.sum(0), "first": first, "second": second}


def filled_at_random(rows: Tensor) -> Tensor:
    """Vectors (N, D) whose missing coordinates are drawn from what was seen in their column.

    Raises:
        ValueError: for a column that nobody has seen.
    """
    missing = rows.isnan()
    if not bool(missing.any()):
        return rows
    rows = rows.clone()
    for column in missing.any(0).nonzero().squeeze(-1).tolist():
        known = rows[~missing[:, column], column]
        if not len(known):
            raise ValueError(f"x: column {column} is NaN everywhere; leave it out")
        gone = missing[:, column]
        rows[gone, column] = known[torch.randint(len(known), (int(gone.sum()),)).to(rows.device)]
    return rows
