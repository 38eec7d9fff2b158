"""Matrix products where sum is log-sum-exp or max and product is plus."""

from __future__ import annotations

import math

import torch
from torch import Tensor

REPAIR_CELLS = 1 << 22
MAX_CELLS = 1 << 26


def logsumexp(score: Tensor, dim: int) -> Tensor:
    """torch.logsumexp with gradient zero instead of NaN where everything is -inf."""
    possible = score.detach().amax(dim, keepdim=True) > -math.inf
    total = torch.logsumexp(torch.where(possible, score, 0.0), dim)
    return torch.where(possible.squeeze(dim), total, -math.inf)


def log_matmul(a: Tensor, b: Tensor) -> Tensor:
    """log sum_n exp(a_pn + b_nq): (..., P, N) x (..., N, Q) -> (..., P, Q), differentiable.

    One product of scaled probabilities; the entries that come out too small to be trusted are redone in log space.
    """
    floor = torch.finfo(a.dtype).min
    reach = math.exp(-500.0 if a.dtype == torch.float64 else -60.0)
    a_top = a.detach().amax(-1, keepdim=True).clamp_min(floor)
    b_top = b.detach().amax(-2, keepdim=True).clamp_min(floor)
    product = (a - a_top).exp() @ (b - b_top).exp()
    result = product.clamp_min(reach).log() + a_top + b_top
    small = product.detach() < reach
    if not bool(small.any()):
        return result
    where = small.nonzero(as_tuple=True)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:]).transpose(-1, -2)
    step = max(1, REPAIR_CELLS // a.shape[-1])
    exact = [
        logsumexp(a[(*lead, p)] + b[(*lead, q)], -1)
        for *lead, p, q in zip(*(index.split(step) for index in where), strict=True)
    ]
    return result.index_put(where, torch.cat(exact))


def max_matmul(a: Tensor, b: Tensor) -> Tensor:
    """max_n (a_pn + b_nq): (P, N) x (N, Q) -> (P, Q), by tiles."""
    tile = max(1, MAX_CELLS // max(1, a.numel()))
    return torch.cat([(a.unsqueeze(-1) + part).amax(-2) for part in b.split(tile, -1)], -1)
