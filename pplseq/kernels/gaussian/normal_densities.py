"""Densities of many vectors under a few diagonal Gaussians, with their gradients in one pass over the vectors.

Differences of every vector from every mean are many numbers: torch writes and reads them some ten times, forward and back.
Compiled loops keep to one vector at a time. :func:`readable` is the twin, and what gradients of gradients go by.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pplseq.kernels import compiled, twice
from pplseq.kernels.compiled import array

LOOPS, WORK = "kernels.gaussian.density_loops", 20  # multiplications' time that torch takes for a difference, both ways
WORTH_LOOPS = 1 << 12  # differences from which the loops are faster


def applies(x: Tensor, loc: Tensor, scale: Tensor) -> bool:
    """Whether there are loops for vectors x (..., D), means (K, D) and deviations (K, D) here, and many of them."""
    alike = x.dtype == loc.dtype == scale.dtype and x.dtype in (torch.float64, torch.float32)
    at_hand = x.device.type == "cpu" and loc.dim() == 2 and loc.shape == scale.shape and forward_ad._current_level < 0
    size = x.numel() * len(loc)
    return alike and at_hand and size >= WORTH_LOOPS and compiled.pays(f"{LOOPS}.densities", 40, WORK * size)


def log_densities(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """log Normal(x; loc[k], diag(scale[k]^2)), nats.

    Args:
        x: (N, D) without NaN. loc, scale: (K, D), of the same type.

    Returns:
        (N, K), differentiable in all three, also twice. Cost: N K D, in no memory beyond the result.
    """
    return twice.apply(_Densities, readable, x, loc, scale)


def readable(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """The same in torch."""
    units = (x.unsqueeze(-2) - loc) / scale
    return (-(units * units) / 2 - scale.log() - math.log(2 * math.pi) / 2).sum(-1)


class _Densities(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, loc, scale):
        from pplseq.kernels.gaussian import density_loops as loops

        ctx.save_for_backward(x, loc, scale)
        constant = -(scale.log() + math.log(2 * math.pi) / 2).sum(-1)
        out = x.new_empty(len(x), len(loc))
        loops.densities(array(x), array(loc.T), array(scale.reciprocal().T), array(constant), array(out))
        return out

    @staticmethod
    def backward(ctx, *grads):
        from pplseq.kernels.gaussian import density_loops as loops

        x, loc, scale = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            return twice.gradients(readable, (x, loc, scale), grad)
        by_x = by_loc = by_scale = None
        if ctx.needs_input_grad[0]:
            by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
            loops.gradients_of_vectors(array(x), array(loc.T), array(scale.reciprocal().T), array(grad), array(by_x))
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            from pplseq.kernels.chain.table_loops import moments

            # sums over many vectors are in double precision
            by_loc, by_log_scale = loc.new_zeros(2, *loc.shape, dtype=torch.float64)
            visits = by_loc.new_zeros(len(loc))
            moments(
                array(x), array(grad), array(loc), array(scale.log()), True, array(by_loc), array(by_log_scale), array(visits)
            )
            by_loc, by_scale = by_loc.to(loc.dtype), (by_log_scale / scale).to(loc.dtype)
        return by_x, by_loc, by_scale
