"""Chains of hierarchical transitions on a GPU: the matrices of distinct pairs of blocks, and the gradient of their features.

A pair's matrix is log softmax_j(out_i . into_j): scores and softmax stay in the registers of one program. In the backward the
counts of a matrix, the gradient of its scores and their products with the features stay there too; the sums over the pairs of a
block are those of one program in a fixed order, without atomic operations. Twins: :mod:`pplseq.kernels.pair_scan`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels.triton.chain import real_of
from pplseq.kernels.triton.launch import dot_precision, kernel, launch, power_of_two, tl

MOST_WIDTH = 256  # states of a block: a tile of rows with all its columns stays in registers
PIECE = {2: 64, 4: 32, 8: 16}  # features at once, by bytes of a number


@kernel
def pair_matrices(
    OUT, INTO, LEFT, ENTERED, FILLED, COUNT, LOG, num_states, width,
    HAS_FILLED: tl.constexpr, PRECISION: tl.constexpr, REAL: tl.constexpr, BI: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """LOG_p = log softmax_j(OUT_i . INTO_j), a tile of rows of one of COUNT pairs of blocks; [from, to]."""
    pair = tl.program_id(0).to(tl.int64)
    if pair >= tl.load(COUNT):
        return
    i, j, d = tl.program_id(1) * BI + tl.arange(0, BI), tl.arange(0, BK), tl.arange(0, BD)
    out = OUT + tl.load(LEFT + pair) * num_states * width
    into = INTO + tl.load(ENTERED + pair) * num_states * width
    score = tl.zeros((BI, BK), REAL)
    for start in range(0, width, BD):
        of = start + d
        a = tl.load(out + i[:, None] * width + of[None, :], mask=(i[:, None] < num_states) & (of[None, :] < width), other=0.0)
        b = tl.load(into + j[None, :] * width + of[:, None], mask=(j[None, :] < num_states) & (of[:, None] < width), other=0.0)
        score += tl.dot(a, b, input_precision=PRECISION, out_dtype=REAL)
    inside = j < num_states
    if HAS_FILLED:
        inside = inside & (tl.load(FILLED + pair * num_states + j, mask=inside, other=0) > 0)
    score = tl.where(inside[None, :], score, float("-inf"))
    top = tl.max(score, 1)
    norm = top + tl.log(tl.sum(tl.exp(score - tl.expand_dims(top, 1)), 1))
    score = score - tl.expand_dims(norm, 1)
    place = LOG + (pair * num_states + i[:, None]) * num_states + j[None, :]
    tl.store(place, score, mask=(i[:, None] < num_states) & (j[None, :] < num_states))


@kernel
def feature_gradients(
    LOG, OTHER, WHICH, GROUP, FIRST_PAIR, ORDER, FIRST, LEFT, RIGHT, SHIFT, LEAVING, SCALE, GRAD, num_states, width,
    OF_OUT: tl.constexpr, PRECISION: tl.constexpr, REAL: tl.constexpr, BO: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """GRAD of a tile of the states of one block: sum over its pairs of dS OTHER, dS = counts - softmax x (sums of rows).

    OF_OUT: the block is left, own states are rows of the matrices; else it is entered, and they are columns.
    """
    block = tl.program_id(0).to(tl.int64)
    own, d = tl.program_id(1) * BO + tl.arange(0, BO), tl.arange(0, BD)
    grad = tl.zeros((BO, BD), REAL)
    for place in range(tl.load(FIRST_PAIR + block), tl.load(FIRST_PAIR + block + 1)):
        pair = tl.load(GROUP + place)
        other = OTHER + tl.load(WHICH + pair) * num_states * width
        first, last = tl.load(FIRST + pair), tl.load(FIRST + pair + 1)
        for start in range(0, num_states, BT):
            that = start + tl.arange(0, BT)
            there = (own[:, None] < num_states) & (that[None, :] < num_states)
            if OF_OUT:
                cell = own[:, None] * num_states + that[None, :]
            else:
                cell = that[None, :] * num_states + own[:, None]
            log = tl.load(LOG + pair * num_states * num_states + cell, mask=there, other=float("-inf"))
            chance = tl.exp(log)
            scores = tl.zeros((BO, BT), REAL)
            for k in range(first, last):
                token = tl.load(ORDER + k)
                shift, scale = tl.load(SHIFT + token), tl.load(SCALE + token)
                if OF_OUT:
                    sides = tl.load(LEFT + token * num_states + own, mask=own < num_states, other=float("-inf"))[:, None]
                    sides += tl.load(RIGHT + token * num_states + that, mask=that < num_states, other=float("-inf"))[None, :]
                    mass = tl.load(LEAVING + token * num_states + own, mask=own < num_states, other=0.0)[:, None]
                else:
                    sides = tl.load(LEFT + token * num_states + that, mask=that < num_states, other=float("-inf"))[None, :]
                    sides += tl.load(RIGHT + token * num_states + own, mask=own < num_states, other=float("-inf"))[:, None]
                    mass = tl.load(LEAVING + token * num_states + that, mask=that < num_states, other=0.0)[None, :]
                scores += scale * (tl.exp(sides + (log + shift)) - chance * mass)
            features = tl.load(
                other + that[:, None] * width + d[None, :], mask=(that[:, None] < num_states) & (d[None, :] < width), other=0.0
            )
            grad += tl.dot(scores.to(features.dtype), features, input_precision=PRECISION, out_dtype=REAL)
    tl.store(
        GRAD + (block * num_states + own[:, None]) * width + d[None, :], grad,
        mask=(own[:, None] < num_states) & (d[None, :] < width),
    )  # fmt: skip


def matrix_tile(width: int, size: int) -> dict[str, int]:
    """Rows of a matrix at once, columns with padding, features at once, warps, for blocks of `width` states."""
    wide = power_of_two(width, 16)
    cells = 8192 if size == 4 else 4096
    return dict(BI=max(16, min(64, cells // wide)), BK=wide, BD=PIECE[size], num_warps=8, num_stages=2)


def gradient_tile(features: int, size: int) -> dict[str, int]:
    """Own and other states of a tile, features with padding, warps."""
    own, other = (32, 32) if size < 8 else (16, 16)
    return dict(BO=own, BT=other, BD=power_of_two(features, 16), num_warps=8, num_stages=1)


@torch.library.custom_op("pplseq::pair_matrices", mutates_args=())
def log_matrices(
    out: Tensor, into: Tensor, left: Tensor, entered: Tensor, filled: Tensor | None, count: Tensor
) -> Tensor:
    """(P, K, K) log softmax_j(out_i . into_j), [from, to].

    Args:
        out, into: (L, K, D), (E, K, D) features, of one type. left, entered: (P,) the blocks of each pair.
        filled: (P, K) False at padded slots of the block entered, or None.
        count: () how many pairs there are; what stands behind them is left as it is.

    Cost: 2 P K^2 D flops; writes P K^2 numbers, and nothing else of that size.
    """
    _, states, width = out.shape
    log = torch.empty(len(left), states, states, dtype=torch.promote_types(out.dtype, torch.float32), device=out.device)
    tile = matrix_tile(states, out.element_size())
    launch(
        pair_matrices, (len(left), -(-states // tile["BI"])), out.contiguous(), into.contiguous(), left.contiguous(),
        entered.contiguous(), left if filled is None else filled.to(torch.int8).contiguous(), count, log,
        states, width,
        HAS_FILLED=filled is not None, PRECISION=dot_precision(out.dtype, "tf32x3"), REAL=real_of(out), **tile,
    )  # fmt: skip
    return log


@log_matrices.register_fake
def _(out, into, left, entered, filled, count):
    dtype = torch.promote_types(out.dtype, torch.float32)
    return torch.empty(len(left), out.shape[1], out.shape[1], dtype=dtype, device=out.device)


@torch.library.custom_op("pplseq::feature_gradients", mutates_args=())
def feature_sums(
    log: Tensor, out: Tensor, into: Tensor, left_block: Tensor, entered_block: Tensor, order: Tensor, first: Tensor,
    left: Tensor, right: Tensor, shift: Tensor, leaving: Tensor, scale: Tensor, count: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of out (L, K, D) and into (E, K, D) of a chain whose matrices are those of :func:`log_matrices`.

    Args:
        log, count: (P, K, K), as of :func:`log_matrices`. left_block, entered_block: (P,).
        order, first: (N,), (P + 1,) the tokens of each pair.
        left, right, leaving: (N, K) log sides of p(z_{t-1}, z_t | x), and p(z_{t-1} | x). shift, scale: (N,).

    Cost: 2 N K^2 exponentials and 4 P K^2 D flops.
    """
    states, width, found = log.shape[-1], out.shape[-1], []
    sides = [value.contiguous() for value in (order, first, left, right, shift, leaving, scale)]
    for of_out, own, other, block, which in (
        (True, out, into, left_block, entered_block), (False, into, out, entered_block, left_block)
    ):  # fmt: skip
        there = torch.arange(len(block), device=block.device) < count
        keys, group = torch.where(there, block, len(own)).sort(stable=True)
        first_pair = torch.searchsorted(keys, torch.arange(len(own) + 1, device=keys.device))
        grad = torch.empty(own.shape, dtype=log.dtype, device=own.device)
        tile = gradient_tile(width, out.element_size())
        launch(
            feature_gradients, (len(own), -(-states // tile["BO"])), log, other.contiguous(), which.contiguous(), group,
            first_pair, *sides, grad, states, width, OF_OUT=of_out,
            PRECISION=dot_precision(other.dtype), REAL=real_of(log), **tile,
        )  # fmt: skip
        found.append(grad)
    return found[0], found[1]


@feature_sums.register_fake
def _(log, out, into, left_block, entered_block, order, first, left, right, shift, leaving, scale, count):
    return log.new_empty(out.shape), log.new_empty(into.shape)
