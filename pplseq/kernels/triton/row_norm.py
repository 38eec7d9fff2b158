"""Row normalisers log sum_j exp(out_i . into_j) without the scores: a tile of rows goes over tiles of columns.

The twin is :func:`pplseq.kernels.log_semiring.log_norm_reference`. The backward makes each tile of probabilities again.

Source: T. Dao and others (2022), FlashAttention, algorithms 1 and 4; here without values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels.triton.launch import dot_precision, kernel, launch, power_of_two, serve, tl

MOST_FEATURES = {2: 256, 4: 256, 8: 128}  # by bytes of a number: a tile of rows with all of them stays in registers
# (rows, columns, warps, stages) of a tile, by pass and bytes of a number; a test compiles them
TILES = {
    "forward": {2: (128, 64, 8, 2), 4: (32, 32, 8, 2), 8: (16, 16, 4, 1)},
    "backward": {2: (32, 32, 8, 2), 4: (32, 32, 8, 2), 8: (16, 16, 4, 1)},
}


@kernel
def row_norms(
    OUT, INTO, NORM, num_rows, num_columns, width,
    PRECISION: tl.constexpr, REAL: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """NORM_i = log sum_j exp(OUT_i . INTO_j) of a tile of rows, with a running maximum and sum."""
    i, d = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BD)
    there = (i[:, None] < num_rows) & (d[None, :] < width)
    out = tl.load(OUT + i[:, None].to(tl.int64) * width + d[None, :], mask=there, other=0.0)
    top, total = tl.full((BR,), float("-inf"), REAL), tl.zeros((BR,), REAL)
    for start in range(0, num_columns, BC):
        j = start + tl.arange(0, BC)
        real = (j[None, :] < num_columns) & (d[:, None] < width)
        into = tl.load(INTO + j[None, :].to(tl.int64) * width + d[:, None], mask=real, other=0.0)
        score = tl.dot(out, into, input_precision=PRECISION, out_dtype=REAL)
        score = tl.where(j[None, :] < num_columns, score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(score - new[:, None]), 1)
        top = new
    tl.store(NORM + i, top + tl.log(total), mask=i < num_rows)


@kernel
def weighted_sums(
    OWN, OTHER, NORM, GRAD, SUMS, num_own, num_other, width,
    OF_ROWS: tl.constexpr, PRECISION: tl.constexpr, REAL: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """SUMS_i = sum_j w_ij OTHER_j with w_ij = g exp(OWN_i . OTHER_j - norm), norm and g of the row of the scores.

    OF_ROWS: the own ones are the rows (gradient of ``out``); else the others are (gradient of ``into``).
    """
    i, d = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BD)
    there = (i[:, None] < num_own) & (d[None, :] < width)
    own = tl.load(OWN + i[:, None].to(tl.int64) * width + d[None, :], mask=there, other=0.0)
    sums = tl.zeros((BR, BD), REAL)
    if OF_ROWS:
        norm, grad = tl.load(NORM + i, mask=i < num_own, other=0.0), tl.load(GRAD + i, mask=i < num_own, other=0.0)
    else:
        norm, grad = tl.zeros((BR,), REAL), tl.zeros((BR,), REAL)  # not used
    for start in range(0, num_other, BC):
        j = start + tl.arange(0, BC)
        inside = (j[:, None] < num_other) & (d[None, :] < width)
        other = tl.load(OTHER + j[:, None].to(tl.int64) * width + d[None, :], mask=inside, other=0.0)
        score = tl.dot(own, tl.trans(other), input_precision=PRECISION, out_dtype=REAL)
        if OF_ROWS:
            weight = tl.where(j[None, :] < num_other, tl.exp(score - norm[:, None]), 0.0)
        else:
            inner, slope = tl.load(NORM + j, mask=j < num_other, other=0.0), tl.load(GRAD + j, mask=j < num_other, other=0.0)
            real = (i[:, None] < num_own) & (j[None, :] < num_other)
            weight = tl.where(real, tl.exp(score - inner[None, :]) * slope[None, :], 0.0)
        sums += tl.dot(weight.to(other.dtype), other, input_precision=PRECISION, out_dtype=REAL)
    if OF_ROWS:
        sums = sums * grad[:, None]
    tl.store(SUMS + i[:, None].to(tl.int64) * width + d[None, :], sums, mask=there)


def applies(out: Tensor, into: Tensor) -> bool:
    """Whether these kernels do for such features."""
    return serve(out, into) and 0 < out.shape[1] <= MOST_FEATURES[out.element_size()] and len(out) > 0 and len(into) > 0


def _real(value: Tensor):
    return tl.float64 if value.dtype == torch.float64 else tl.float32


def _tile(name: str, value: Tensor) -> dict[str, int]:
    rows, columns, warps, stages = TILES[name][value.element_size()]
    return dict(BR=rows, BC=columns, num_warps=warps, num_stages=stages, BD=power_of_two(value.shape[1], 16))


@torch.library.custom_op("pplseq::row_norms", mutates_args=())
def log_norm(out: Tensor, into: Tensor) -> Tensor:
    """(R,) log sum_j exp(out_i . into_j), nats, from (R, D) and (C, D), both of one type. Cost: 2 R C D flops."""
    out, into = out.contiguous(), into.contiguous()
    norm = torch.empty(len(out), dtype=torch.promote_types(out.dtype, torch.float32), device=out.device)
    tile = _tile("forward", out)
    launch(
        row_norms, (-(-len(out) // tile["BR"]),), out, into, norm, len(out), len(into), out.shape[1],
        PRECISION=dot_precision(), REAL=_real(out), **tile,
    )  # fmt: skip
    return norm


@log_norm.register_fake
def _(out, into):
    return torch.empty(len(out), dtype=torch.promote_types(out.dtype, torch.float32), device=out.device)


@torch.library.custom_op("pplseq::row_norms_backward", mutates_args=())
def log_norm_backward(out: Tensor, into: Tensor, norm: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients (R, D) and (C, D) of sum_i grad_i norm_i. Cost: 8 R C D flops; nothing of R x C is held."""
    out, into, norm, grad = (value.contiguous() for value in (out, into, norm, grad))
    found = []
    for of_rows, own, other in ((True, out, into), (False, into, out)):
        sums = torch.empty(own.shape, dtype=norm.dtype, device=own.device)
        tile = _tile("backward", own)
        launch(
            weighted_sums, (-(-len(own) // tile["BR"]),), own, other, norm, grad, sums, len(own), len(other), own.shape[1],
            OF_ROWS=of_rows, PRECISION=dot_precision(), REAL=_real(own), **tile,
        )  # fmt: skip
        found.append(sums)
    return found[0], found[1]


@log_norm_backward.register_fake
def _(out, into, norm, grad):
    return norm.new_empty(out.shape), norm.new_empty(into.shape)
