"""The scan of a chain on a GPU, in log space: a program a row, a matrix a step, nothing to be asked of the device.

    table    (M, K, K)    log matrices, [from, to]
    number   (T, B)       which of them leads into step t >= 1
    gate     (T-1, B, K)  added to the rows of the matrix that leads into step t + 1, or None
    emit     (T, B, K)    log p(x_t | z_t)
    flags    (T, B)       1 at real steps, 2 more where the state is drawn afresh from ``begin``
    begin    (T, B, K)    log p(z_t) there, or None

One matrix for all (M = 1), one a step and row, and distinct pairs of blocks are all of this form. Sums stay in log space, so
every chain is exact and no row has to be done again. The twin is :func:`pplseq.kernels.scan.forward_twin`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels.triton.launch import kernel, launch, power_of_two, serve, tl

MOST_STATES = 1024  # of a chain: a row's message is held in the registers of one program


@kernel
def filter_rows(
    INIT, TABLE, NUMBER, GATE, EMIT, FLAGS, BEGIN, ONLY, MESSAGES, STEPS, num_steps, num_rows, num_states, least,
    HAS_GATE: tl.constexpr, HAS_BEGIN: tl.constexpr, HAS_ONLY: tl.constexpr, REAL: tl.constexpr,
    BI: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """MESSAGES_t = log p(z_t | x_<=t), STEPS_t = log p(x_t | x_<t) of one row; with ONLY, of the rows named there."""
    row = tl.program_id(0).to(tl.int64)
    if HAS_ONLY:
        if tl.load(ONLY + row) == 0:
            return
    j = tl.arange(0, BK)
    inside = j < num_states
    score = tl.load(INIT + row.to(tl.int64) * num_states + j, mask=inside, other=float("-inf"))
    before = score
    for t in range(0, num_steps):
        at = t * num_rows + row
        flag = tl.load(FLAGS + at)
        if t > 0:
            matrix = TABLE + tl.load(NUMBER + at).to(tl.int64) * num_states * num_states
            top, total = tl.full((BK,), float("-inf"), REAL), tl.zeros((BK,), REAL)
            for start in range(0, num_states, BI):
                i = start + tl.arange(0, BI)
                left = tl.load(MESSAGES + (at - num_rows) * num_states + i, mask=i < num_states, other=float("-inf"))
                if HAS_GATE:
                    left += tl.load(GATE + (at - num_rows) * num_states + i, mask=i < num_states, other=0.0)
                there = (i[:, None] < num_states) & inside[None, :]
                value = left[:, None] + tl.load(matrix + i[:, None] * num_states + j[None, :], mask=there, other=float("-inf"))
                new = tl.maximum(top, tl.max(value, 0))
                safe = tl.where(new == float("-inf"), 0.0, new)
                total = total * tl.exp(top - safe) + tl.sum(tl.exp(value - safe[None, :]), 0)
                top = new
            nothing = total == 0
            score = tl.where(nothing, float("-inf"), tl.log(tl.where(nothing, 1.0, total)) + tl.where(nothing, 0.0, top))
            if HAS_BEGIN:
                drawn = tl.load(BEGIN + at * num_states + j, mask=inside, other=float("-inf"))
                score = tl.where((flag & 2) > 0, drawn, score)
        score += tl.load(EMIT + at * num_states + j, mask=inside, other=float("-inf"))
        peak = tl.max(score, 0)
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        mass = tl.sum(tl.exp(score - peak), 0)
        step = tl.where(mass == 0, float("-inf"), tl.log(tl.where(mass == 0, 1.0, mass)) + peak)
        real = (flag & 1) > 0
        message = score - tl.maximum(step, least)
        if t > 0:
            message = tl.where(real, message, before)
        before = message
        tl.store(MESSAGES + at * num_states + j, message, mask=inside)
        tl.store(STEPS + at, tl.where(real, step, 0.0))
        tl.debug_barrier()


@kernel
def look_back_rows(
    TABLE, NUMBER, GATE, EMIT, FLAGS, ONLY, AHEAD, num_steps, num_rows, num_states,
    HAS_GATE: tl.constexpr, HAS_ONLY: tl.constexpr, REAL: tl.constexpr, BI: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """AHEAD_t = log p(x_>t | z_t) of one row, up to a constant a step."""
    row = tl.program_id(0).to(tl.int64)
    if HAS_ONLY:
        if tl.load(ONLY + row) == 0:
            return
    j = tl.arange(0, BK)
    inside = j < num_states
    ahead = tl.zeros((BK,), REAL)
    at = (num_steps - 1) * num_rows + row
    tl.store(AHEAD + at * num_states + j, ahead, mask=inside)
    tl.debug_barrier()
    for back in range(1, num_steps):
        at = (num_steps - back) * num_rows + row
        to = (at - num_rows) * num_states
        flag = tl.load(FLAGS + at)
        matrix = TABLE + tl.load(NUMBER + at).to(tl.int64) * num_states * num_states
        own = tl.load(AHEAD + at * num_states + j, mask=inside, other=float("-inf"))
        right = own + tl.load(EMIT + at * num_states + j, mask=inside, other=float("-inf"))
        peak = tl.max(right, 0)
        right -= tl.where(peak == float("-inf"), 0.0, peak)
        for start in range(0, num_states, BI):
            i = start + tl.arange(0, BI)
            there = (i[:, None] < num_states) & inside[None, :]
            value = tl.load(matrix + i[:, None] * num_states + j[None, :], mask=there, other=float("-inf")) + right[None, :]
            top = tl.max(value, 1)
            safe = tl.where(top == float("-inf"), 0.0, top)
            total = tl.sum(tl.exp(value - safe[:, None]), 1)
            new = tl.where(total == 0, float("-inf"), tl.log(tl.where(total == 0, 1.0, total)) + safe)
            if HAS_GATE:
                new += tl.load(GATE + to + i, mask=i < num_states, other=0.0)
            new = tl.where((flag & 2) > 0, 0.0, new)
            kept = tl.load(AHEAD + at * num_states + i, mask=i < num_states, other=float("-inf"))
            tl.store(AHEAD + to + i, tl.where((flag & 1) > 0, new, kept), mask=i < num_states)
        tl.debug_barrier()


@kernel
def count_pairs(
    TABLE, ORDER, FIRST, LEFT, RIGHT, SHIFT, SCALE, COUNTS, num_states, num_matrices, num_parts,
    REAL: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """COUNTS_m = sum over the tokens n of matrix m of scale_n exp(left_n + table_m + right_n + shift_n), a tile of it."""
    which, part = tl.program_id(0) // num_parts, tl.program_id(0) % num_parts
    i, j = tl.program_id(1) * BI + tl.arange(0, BI), tl.program_id(2) * BJ + tl.arange(0, BJ)
    there = (i[:, None] < num_states) & (j[None, :] < num_states)
    cell = i[:, None] * num_states + j[None, :]
    table = tl.load(TABLE + which.to(tl.int64) * num_states * num_states + cell, mask=there, other=float("-inf"))
    counts = tl.zeros((BI, BJ), REAL)
    for place in range(tl.load(FIRST + which) + part, tl.load(FIRST + which + 1), num_parts):
        token = tl.load(ORDER + place)
        left = tl.load(LEFT + token * num_states + i, mask=i < num_states, other=float("-inf"))
        right = tl.load(RIGHT + token * num_states + j, mask=j < num_states, other=float("-inf"))
        pair = left[:, None] + tl.load(SHIFT + token) + table + right[None, :]
        counts += tl.load(SCALE + token) * tl.exp(pair)
    out = (part * num_matrices + which).to(tl.int64) * num_states * num_states
    tl.store(COUNTS + out + cell, counts, mask=there)


def applies(table: Tensor, emit: Tensor) -> bool:
    """Whether these kernels do for a chain."""
    same = table.dtype == emit.dtype and emit.dtype != torch.bfloat16
    return same and serve(table, emit) and 0 < emit.shape[-1] <= MOST_STATES and emit.numel() > 0 and table.numel() > 0


def tile_of(num_states: int, dtype: torch.dtype, most_cells: int = 16384) -> dict[str, int]:
    """Rows of a matrix that a program works on at once, states with padding, warps.

    Narrow matrices: many small programs. Wide ones: few, that must have much of their matrix on its way at once.
    """
    wide = power_of_two(num_states)
    cells, warps = (most_cells, 8) if wide >= 256 else (4096, 2)
    cells //= 4 if dtype == torch.float64 else 1
    return dict(BI=max(1, min(wide, cells // wide)), BK=wide, num_warps=warps)


def real_of(value: Tensor):
    return tl.float64 if value.dtype == torch.float64 else tl.float32


@torch.library.custom_op("pplseq::filter_rows", mutates_args=())
def filtered(
    init: Tensor, table: Tensor, number: Tensor, gate: Tensor | None, emit: Tensor, flags: Tensor, begin: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """log p(z_t | x_<=t) (T, B, K) and log p(x_t | x_<t) (T, B), 0 at padded steps; see the module's head.

    Cost: T K^2 exponentials a row, in as many programs as there are rows; reads T K^2 numbers a row.
    """
    num_steps, num_rows, num_states = emit.shape
    init, table, number, emit, flags = (value.contiguous() for value in (init, table, number, emit, flags))
    gate, begin = (None if value is None else value.contiguous() for value in (gate, begin))
    messages, steps = torch.empty_like(emit), emit.new_empty(num_steps, num_rows)
    launch(
        filter_rows, (num_rows,), init, table, number, emit if gate is None else gate, emit, flags,
        emit if begin is None else begin, flags, messages, steps, num_steps, num_rows, num_states,
        torch.finfo(emit.dtype).min, HAS_GATE=gate is not None, HAS_BEGIN=begin is not None, HAS_ONLY=False,
        REAL=real_of(emit), **tile_of(num_states, emit.dtype),
    )  # fmt: skip
    return messages, steps


@filtered.register_fake
def _(init, table, number, gate, emit, flags, begin):
    return torch.empty_like(emit, memory_format=torch.contiguous_format), emit.new_empty(emit.shape[:2])


@torch.library.custom_op("pplseq::look_back_rows", mutates_args=())
def look_back(table: Tensor, number: Tensor, gate: Tensor | None, emit: Tensor, flags: Tensor) -> Tensor:
    """log p(x_>t | z_t) up to a constant a step, (T, B, K); cost as of :func:`filtered`."""
    num_steps, num_rows, num_states = emit.shape
    table, number, emit, flags = (value.contiguous() for value in (table, number, emit, flags))
    gate, ahead = None if gate is None else gate.contiguous(), torch.empty_like(emit)
    launch(
        look_back_rows, (num_rows,), table, number, emit if gate is None else gate, emit, flags, flags, ahead,
        num_steps, num_rows, num_states, HAS_GATE=gate is not None, HAS_ONLY=False, REAL=real_of(emit),
        **tile_of(num_states, emit.dtype, 8192),
    )  # fmt: skip
    return ahead


@look_back.register_fake
def _(table, number, gate, emit, flags):
    return torch.empty_like(emit, memory_format=torch.contiguous_format)


@torch.library.custom_op("pplseq::count_pairs", mutates_args=())
def pair_counts(
    table: Tensor, order: Tensor, first: Tensor, left: Tensor, right: Tensor, shift: Tensor, scale: Tensor
) -> Tensor:
    """(M, K, K) sums of scale exp(left_i + table_ij + right_j + shift) over the tokens of each matrix.

    Args:
        order, first: (N,), (M + 1,): tokens first[m]..first[m + 1] of ``order`` are those of matrix m.
        left, right: (N, K). shift, scale: (N,).
    """
    num_matrices, num_states, _ = table.shape
    table, left, right = table.contiguous(), left.contiguous(), right.contiguous()
    side = power_of_two(min(num_states, 64))
    # few matrices have many tokens each: sums of parts, added up in a fixed order
    num_parts = max(1, min(64, len(left) // 8, 512 // num_matrices))
    counts = table.new_empty(num_parts, *table.shape)
    tiles = -(-num_states // side)
    launch(
        count_pairs, (num_matrices * num_parts, tiles, tiles), table, order, first, left, right, shift.contiguous(),
        scale.contiguous(), counts, num_states, num_matrices, num_parts, REAL=real_of(table), BI=side, BJ=side, num_warps=4,
    )  # fmt: skip
    return counts.sum(0) if num_parts > 1 else counts[0].clone()


@pair_counts.register_fake
def _(table, order, first, left, right, shift, scale):
    return torch.empty_like(table, memory_format=torch.contiguous_format)


def flags_of(valid: Tensor | None, restart: Tensor | None, emit: Tensor) -> Tensor:
    """(T, B) int32: see the module's head."""
    shape, device = emit.shape[:2], emit.device
    flags = torch.ones(shape, dtype=torch.int32, device=device) if valid is None else valid.to(torch.int32)
    return flags if restart is None else flags + 2 * restart.to(torch.int32)


def by_matrix(number: Tensor, used: Tensor, num_matrices: int) -> tuple[Tensor, Tensor]:
    """(N,) tokens in the order of their matrices, (M + 1,) where those of each begin; unused tokens come last."""
    keys = torch.where(used, number, num_matrices).reshape(-1)
    keys, order = keys.sort(stable=True)
    return order, torch.searchsorted(keys, torch.arange(num_matrices + 1, device=keys.device))


def pair_sides(filtered: Tensor, steps: Tensor, gate: Tensor | None, emit: Tensor, ahead: Tensor):
    """Left (T-1, B, K), right (T-1, B, K) and shift (T-1, B) of log p(z_{t-1}, z_t | x) = left + A + right + shift."""
    left, right = filtered[:-1] if gate is None else filtered[:-1] + gate, emit[1:] + ahead[1:]
    total = steps[1:] + torch.logsumexp(filtered[1:] + ahead[1:], -1)
    return left, right, -total.clamp_min(torch.finfo(emit.dtype).min)
