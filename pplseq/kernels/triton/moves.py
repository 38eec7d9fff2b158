"""Moves of one coordinate of a product transition on a GPU: batches of small matrices between messages in log space.

Messages have rows last, (Z, N), and a coordinate of n values is one of three indices of their states, (head, n, tail), so that
no message is turned round between two moves. Log tables are (head tail, n, n), [from, to]. A tile whose digits were lost by
underflow is done again in log space by the program that finds it: the host is asked nothing. Twins: the methods of the same
names of :class:`pplseq.kernels.product_steps.ProductSteps`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels.triton.chain import real_of
from pplseq.kernels.triton.launch import dot_precision, kernel, launch, power_of_two, serve, tl

LEAST_SIDE = 16  # of a tile that tensor cores multiply


@kernel
def move_states(
    MESSAGE, TABLE, MOVED, num_states, num_behind, num_rows, reach,
    BACK: tl.constexpr, PRECISION: tl.constexpr, REAL: tl.constexpr, BF: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """MOVED_to = log sum_from exp(MESSAGE_from + TABLE[from, to]), BACK: TABLE[to, from]; a tile of one block and some rows."""
    block = tl.program_id(0).to(tl.int64)
    table = TABLE + block * num_states * num_states
    first = (block // num_behind) * num_states * num_behind + block % num_behind  # the state of coordinate 0
    to, row = tl.program_id(1) * BT + tl.arange(0, BT), tl.program_id(2) * BN + tl.arange(0, BN)
    real_to, real_row = to < num_states, row < num_rows
    top = tl.full((BN,), float("-inf"), REAL)
    for start in range(0, num_states, BF):
        i = start + tl.arange(0, BF)
        place = (first + i * num_behind)[:, None] * num_rows + row[None, :]
        score = tl.load(MESSAGE + place, mask=(i < num_states)[:, None] & real_row[None, :], other=float("-inf"))
        top = tl.maximum(top, tl.max(score, 0))
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros((BT, BN), REAL)
    for start in range(0, num_states, BF):
        i = start + tl.arange(0, BF)
        place = (first + i * num_behind)[:, None] * num_rows + row[None, :]
        score = tl.load(MESSAGE + place, mask=(i < num_states)[:, None] & real_row[None, :], other=float("-inf"))
        if BACK:
            cell = to[:, None] * num_states + i[None, :]
        else:
            cell = i[None, :] * num_states + to[:, None]
        log = tl.load(table + cell, mask=real_to[:, None] & (i < num_states)[None, :], other=float("-inf"))
        total += tl.dot(tl.exp(log), tl.exp(score - top[None, :]), input_precision=PRECISION, out_dtype=REAL)
    kept = total >= reach  # not so if it is NaN
    found = tl.log(tl.where(kept, total, 1.0)) + top[None, :]
    lost = (real_to[:, None] & real_row[None, :]) & (kept == 0)
    if tl.max(lost.to(tl.int32)) > 0:
        best = tl.full((BT, BN), float("-inf"), REAL)
        again = tl.zeros((BT, BN), REAL)
        for i in range(0, num_states):
            if BACK:
                cell = to * num_states + i
            else:
                cell = i * num_states + to
            log = tl.load(table + cell, mask=real_to, other=float("-inf"))
            score = tl.load(MESSAGE + (first + i * num_behind) * num_rows + row, mask=real_row, other=float("-inf"))
            pair = log[:, None] + score[None, :]
            new = tl.where(pair > best, pair, best)
            safe = tl.where(new == float("-inf"), 0.0, new)
            again = again * tl.exp(best - safe) + tl.exp(pair - safe)
            best = new
        nothing = again == 0
        rest = tl.log(tl.where(nothing, 1.0, again)) + tl.where(best == float("-inf"), 0.0, best)
        found = tl.where(lost, tl.where(nothing, float("-inf"), rest), found)
    place = (first + to * num_behind)[:, None] * num_rows + row[None, :]
    tl.store(MOVED + place, found, mask=real_to[:, None] & real_row[None, :])


@kernel
def add_moves(
    LEFT, RIGHT, TABLE, WEIGHT, SCALE, COUNTS, num_states, num_behind, num_rows,
    REAL: tl.constexpr, BF: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """COUNTS += sum over rows of SCALE exp(LEFT_from + TABLE[from, to] + RIGHT_to + WEIGHT), a tile of one block."""
    block = tl.program_id(0).to(tl.int64)
    first = (block // num_behind) * num_states * num_behind + block % num_behind
    i, j = tl.program_id(1) * BF + tl.arange(0, BF), tl.program_id(2) * BT + tl.arange(0, BT)
    cell = block * num_states * num_states + i[:, None] * num_states + j[None, :]
    there = (i < num_states)[:, None] & (j < num_states)[None, :]
    table = tl.load(TABLE + cell, mask=there, other=float("-inf"))
    counts = tl.zeros((BF, BT), REAL)
    for start in range(0, num_rows, BN):
        row = start + tl.arange(0, BN)
        real = row < num_rows
        left = tl.load(
            LEFT + (first + i * num_behind)[:, None] * num_rows + row[None, :],
            mask=(i < num_states)[:, None] & real[None, :], other=float("-inf"),
        )  # fmt: skip
        right = tl.load(
            RIGHT + (first + j * num_behind)[:, None] * num_rows + row[None, :],
            mask=(j < num_states)[:, None] & real[None, :], other=float("-inf"),
        )  # fmt: skip
        left += tl.load(WEIGHT + row, mask=real, other=float("-inf"))[None, :]
        pair = tl.exp(left[:, None, :] + table[:, :, None] + right[None, :, :])
        counts += tl.sum(pair * tl.load(SCALE + row, mask=real, other=0.0)[None, None, :], 2)
    tl.store(COUNTS + cell, tl.load(COUNTS + cell, mask=there, other=0.0) + counts, mask=there)


def applies(*tensors: Tensor) -> bool:
    """Whether these kernels do for tables and messages of these kinds."""
    return serve(*tensors) and len({value.dtype for value in tensors}) == 1 and tensors[0].dtype != torch.bfloat16


def move_tile(num_states: int, num_rows: int, size: int) -> dict[str, int]:
    """Coordinates before and behind a move and rows that a program works on, warps; size: bytes of a number."""
    side, rows = power_of_two(num_states, LEAST_SIDE), power_of_two(num_rows, LEAST_SIDE)
    return dict(BF=min(32, side), BT=min(64 if size == 4 else 32, side), BN=min(64 if size == 4 else 32, rows), num_warps=8)


COUNT_TILE = dict(BF=16, BT=16, BN=16, num_warps=8)


def _layout(shape: tuple[int, int, int], message: Tensor) -> tuple[int, int, int, int]:
    """Blocks, and the kernels' num_states, num_behind and num_rows."""
    head, size, tail = shape
    return head * tail, size, tail, message.shape[-1]


def moved(shape: tuple[int, int, int], table: Tensor, message: Tensor, reach: float, back: bool) -> Tensor:
    """(Z, N) behind a move, or before it if back; shape: (head, n, tail). Cost: 2 Z n flops a row."""
    table, message = table.contiguous(), message.contiguous()
    found = torch.empty_like(message)
    blocks, *sizes = _layout(shape, message)
    tile = move_tile(sizes[0], sizes[2], message.element_size())
    grid = (blocks, -(-sizes[0] // tile["BT"]), -(-sizes[2] // tile["BN"]))
    options = dict(BACK=back, PRECISION=dot_precision(message.dtype, "tf32x3"), REAL=real_of(message), **tile)
    launch(move_states, grid, message, table, found, *sizes, reach, **options)
    return found


def add_pairs(
    shape: tuple[int, int, int], table: Tensor, left: Tensor, right: Tensor, log_weight: Tensor, scale: Tensor, counts: Tensor
) -> None:
    """Adds to counts (blocks, n, n) the sums over rows of scale exp(left + table + right + log_weight). Cost: Z n exponentials
    a row."""
    given = (value.contiguous() for value in (left, right, table, log_weight, scale))
    blocks, *sizes = _layout(shape, left)
    side = -(-sizes[0] // COUNT_TILE["BF"])
    launch(add_moves, (blocks, side, side), *given, counts, *sizes, REAL=real_of(left), **COUNT_TILE)
