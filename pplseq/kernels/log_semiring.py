"""Sums in log space: matrix products where sum is log-sum-exp or max and product is plus, and row normalisers in tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.kernels import twice

REPAIR_CELLS = 1 << 22
MAX_CELLS = 1 << 26
KEEP_CELLS = 1 << 23  # up to this many cells the forward's exponentials are kept instead of recomputed
CPU_TILE_CELLS = 1 << 20  # a tile that stays in cache
GPU_TILE_CELLS = 1 << 25
SHORT, MANY_ROWS = 8, 1000  # numbers in a row, and rows, of which softmax goes faster across rows


def in_float32(value: Tensor) -> Tensor:
    """A table of half precision in single precision, with its gradient; any other as it is."""
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def logsumexp(score: Tensor, dim: int) -> Tensor:
    """torch.logsumexp with gradient zero instead of NaN where everything is -inf."""
    possible = score.detach().amax(dim, keepdim=True) > -math.inf
    total = torch.logsumexp(torch.where(possible, score, 0.0), dim)
    return torch.where(possible.squeeze(dim), total, -math.inf)


def log_softmax(logits: Tensor) -> Tensor:
    """log softmax over the last axis; of few numbers in many rows across these, as torch takes them one by one."""
    size = logits.shape[-1]
    if size > SHORT or logits.numel() < MANY_ROWS * size:
        return torch.log_softmax(logits, -1)
    return logits.movedim(-1, 0).contiguous().log_softmax(0).movedim(0, -1)


def safe_log(value: Tensor) -> Tensor:
    """The logarithm, with gradient 0 where it is -inf."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).log(), -math.inf)


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x <= 0, accurate at both ends; -inf at 0."""
    below = x < 0
    x = torch.where(below, x, -1.0)
    small = x > -math.log(2)
    near = torch.log(-torch.expm1(torch.where(small, x, -0.5)))
    far = torch.log1p(-torch.exp(torch.where(small, -1.0, x)))
    return torch.where(below, torch.where(small, near, far), -math.inf)


def log_matmul(a: Tensor, b: Tensor) -> Tensor:
    """log sum_n exp(a_pn + b_nq): (..., P, N) x (..., N, Q) -> (..., P, Q), differentiable.

    One product of scaled probabilities; the entries that come out too small to be trusted are redone in log space.
    """
    kind = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(kind), b.to(kind)
    floor = torch.finfo(a.dtype).min
    reach = math.exp(-500.0 if a.dtype == torch.float64 else -60.0)
    a_top = a.detach().amax(-1, keepdim=True).clamp_min(floor)
    b_top = b.detach().amax(-2, keepdim=True).clamp_min(floor)
    product = (a - a_top).exp() @ (b - b_top).exp()
    result = product.clamp_min(reach).log() + a_top + b_top
    small = product.detach() < reach
    if twice.transformed():  # which entries are small cannot be asked
        return torch.where(small, logsumexp(a.unsqueeze(-1) + b.unsqueeze(-3), -2), result)
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


class ScaledMatrix:
    """A matrix of logarithms (N, Q) whose exponentials are kept: products from both sides, again and again; no gradients.

    :func:`log_matmul` is the slow twin; here, too, entries too small to be trusted are redone in log space.

    Args:
        make: gives the matrix; it is called again where entries have to be redone, so that only the exponentials are kept.
        scaled: exp(matrix - top) (N, Q) and finite top (N,), where these can be had more cheaply than by ``make``.
    """

    def __init__(self, make: Callable[[], Tensor], scaled: tuple[Tensor, Tensor] | None = None):
        self.make = make
        if scaled is None:
            log = make()
            self.top = log.amax(-1).clamp_min(torch.finfo(log.dtype).min)
            self.scaled = (log - self.top.unsqueeze(-1)).exp_()
        else:
            self.scaled, self.top = scaled
        self.reach = math.exp(-500.0 if self.scaled.dtype == torch.float64 else -60.0)

    def forward(self, message: Tensor) -> Tensor:
        """log sum_n exp(message_rn + log_nq): (R, N) -> (R, Q)."""
        return self._product(message, message + self.top, 0.0, _Side(self.scaled, lambda: self.make()))

    def backward(self, message: Tensor) -> Tensor:
        """log sum_q exp(log_nq + message_rq): (R, Q) -> (R, N)."""
        return self._product(message, message, self.top, _Side(self.scaled.T, lambda: self.make().T))

    def _product(self, message: Tensor, score: Tensor, add: Tensor | float, side: _Side) -> Tensor:
        live = (message > -math.inf).any(0)
        factor, few = side.scaled, 4 * int(live.sum()) < len(live)
        if few:  # what is impossible throughout adds nothing
            score, factor = score[:, live], factor[live]
        if not score.shape[-1]:
            return message.new_full((len(message), factor.shape[-1]), -math.inf)
        high = score.amax(-1, keepdim=True).clamp_min(torch.finfo(score.dtype).min)
        product = (score - high).exp_() @ factor
        small = (product < self.reach) & (score > -math.inf).any(-1, keepdim=True)  # an impossible row is zero, exactly
        result = product.log_().add_(high).add_(add)
        if not bool(small.any()):
            return result
        log, possible_in = side.log(), message > -math.inf
        small &= possible_in.to(log.dtype) @ (log > -math.inf).to(log.dtype) > 0
        where = small.nonzero()
        for some in where.split(max(1, REPAIR_CELLS // message.shape[-1])):
            row, column = some.unbind(-1)
            result[row, column] = torch.logsumexp(message[row] + log.T[column], -1)
        return result


class _Side(NamedTuple):
    scaled: Tensor
    log: Callable[[], Tensor]


def max_matmul(a: Tensor, b: Tensor) -> Tensor:
    """max_n (a_pn + b_nq): (P, N) x (N, Q) -> (P, Q), by tiles."""
    tile = max(1, MAX_CELLS // max(1, a.numel()))
    return torch.cat([(a.unsqueeze(-1) + part).amax(-2) for part in b.split(tile, -1)], -1)


# ---------------------------------------------------------------- row normalisers, log sum_j exp(out_i . into_j)


def _row_tiles(rows: int, columns: int, device: torch.device):
    cells = GPU_TILE_CELLS if device.type == "cuda" else CPU_TILE_CELLS
    step = max(1, min(rows, cells // max(1, columns)))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


class _LogNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, into, product_dtype):
        rows, columns = out.shape[0], into.shape[0]
        a, b = out.to(product_dtype), into.to(product_dtype)
        keep = rows * columns <= KEEP_CELLS and any(ctx.needs_input_grad[:2])
        kept = out.new_empty(rows, columns) if keep and product_dtype == out.dtype else None
        log_norm, weight = out.new_empty(rows), out.new_empty(rows)
        for start, stop in _row_tiles(rows, columns, out.device):
            if kept is not None:
                score = torch.mm(a[start:stop], b.T, out=kept[start:stop])
            else:
                score = torch.mm(a[start:stop], b.T).to(out.dtype)
            top = score.amax(-1, keepdim=True)
            total = score.sub_(top).exp_().sum(-1)
            log_norm[start:stop] = total.log() + top.squeeze(-1)
            weight[start:stop] = total.reciprocal_()
        ctx.save_for_backward(out, into, log_norm, weight, kept)
        ctx.product_dtype = product_dtype
        return log_norm

    @staticmethod
    def backward(ctx, *grads):
        (grad,) = grads
        out, into, log_norm, weight, kept = ctx.saved_tensors
        dtype = ctx.product_dtype
        if torch.is_grad_enabled():
            return twice.gradients(log_norm_reference, (out, into, dtype), grad)
        if kept is not None:  # kept_ij * weight_i = p(j | i)
            scale = (grad * weight).unsqueeze(-1)
            return torch.mm(kept, into).mul_(scale), torch.mm(kept.T, out * scale), None
        a, b = out.to(dtype), into.to(dtype)
        shifted, ones = _norm_as_features(log_norm, dtype)
        less, more = torch.cat([a, shifted], -1), torch.cat([b, ones.expand(len(b), -1)], -1)
        grad_out, grad_into, scaled = torch.empty_like(out), torch.zeros_like(into), (out * grad.unsqueeze(-1)).to(dtype)
        for start, stop in _row_tiles(out.shape[0], into.shape[0], out.device):
            prob = torch.mm(less[start:stop], more.T).exp_()  # p(j | i)
            grad_out[start:stop] = torch.mm(prob, b)
            grad_into += torch.mm(prob.T, scaled[start:stop])
        grad_out *= grad.unsqueeze(-1)
        return grad_out, grad_into, None


def _norm_as_features(log_norm: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(R, 8) features of rows, and (8,) of every column, whose product is -log_norm (R,): of a rougher type in three parts.

    A product with them beside the others gives log-probabilities, without a pass over the scores.
    """
    parts, rest = [], -log_norm
    for _ in range(1 if dtype == log_norm.dtype else 3):
        parts.append(rest.to(dtype))
        rest = rest - parts[-1].to(rest.dtype)
    features = torch.stack(parts, -1)
    ones = features.new_ones(len(parts))
    wide = 8 - len(parts)  # as products go by eights
    return torch.nn.functional.pad(features, (0, wide)), torch.nn.functional.pad(ones, (0, wide))


def streamed_log_norm(out: Tensor, into: Tensor, product_dtype: torch.dtype | None = None) -> Tensor:
    """log sum_j exp(out_i . into_j) for every row i, by tiles of rows, recomputed in the backward.

    Args:
        out: (R, D) features of the rows (states left).
        into: (C, D) features of the columns (states entered).
        product_dtype: type of the matrix product; bfloat16 trades exactness for speed. Default: that of ``out``.

    Returns:
        (R,) log normalisers, nats.

    Cost: 2 R C D flops forward, 4 to 6 R C D backward; memory of one tile (about 4 MB on a CPU) beyond the arguments.
        Below 2^23 cells the exponentials are kept (32 MB) and the backward does not recompute them.
    """
    return twice.apply(_LogNorm, log_norm_reference, out, into, product_dtype or out.dtype)


def log_norm_reference(out: Tensor, into: Tensor, product_dtype: torch.dtype | None = None) -> Tensor:
    """The slow twin of :func:`streamed_log_norm`: the whole score matrix at once."""
    dtype = product_dtype or out.dtype
    return torch.logsumexp((out.to(dtype) @ into.to(dtype).T).to(out.dtype), -1)
