"""Best paths and posterior samples of a chain on a GPU: a program a row; factors as in :mod:`pplseq.kernels.triton.chain`.

The twins are in :mod:`pplseq.kernels.path_scan`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels.triton.chain import real_of, tile_of
from pplseq.kernels.triton.launch import kernel, launch, power_of_two, tl


@kernel
def best_rows(
    INIT, TABLE, NUMBER, EMIT, FLAGS, BEGIN, SCORES, POINTERS, PATH, LOG_PROB, num_steps, num_rows, num_states, least,
    HAS_BEGIN: tl.constexpr, REAL: tl.constexpr, BI: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """PATH (T, B) is the most probable path of one row, the first of several; LOG_PROB its log-probability with the data."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BK)
    inside = j < num_states
    log_prob = tl.zeros((1,), tl.float64)
    before = tl.load(INIT + row * num_states + j, mask=inside, other=float("-inf"))
    for t in range(0, num_steps):
        at = t * num_rows + row
        flag = tl.load(FLAGS + at)
        best, source = before, j
        if t > 0:
            matrix = TABLE + tl.load(NUMBER + at).to(tl.int64) * num_states * num_states
            best, source = tl.full((BK,), float("-inf"), REAL), tl.zeros((BK,), tl.int32)
            for start in range(0, num_states, BI):
                i = start + tl.arange(0, BI)
                own = SCORES + (((t - 1) % 2) * num_rows + row) * num_states
                left = tl.load(own + i, mask=i < num_states, other=float("-inf"))
                there = (i[:, None] < num_states) & inside[None, :]
                value = tl.load(matrix + i[:, None] * num_states + j[None, :], mask=there, other=float("-inf"))
                if HAS_BEGIN:
                    drawn = tl.load(BEGIN + at * num_states + j, mask=inside, other=float("-inf"))
                    value = tl.where((flag & 2) > 0, drawn[None, :], value)
                value += left[:, None]
                most, where = tl.max(value, 0, return_indices=True)
                source = tl.where(most > best, start + where, source)
                best = tl.maximum(best, most)
        best += tl.load(EMIT + at * num_states + j, mask=inside, other=float("-inf"))
        real = (flag & 1) > 0
        best = tl.where(real, best, tl.where((t > 0) | (j >= num_states), before, 0.0))
        source = tl.where(real, source, j)
        # sums of thousands of logs lose digits in float32: scores are relative to their best
        top = tl.maximum(tl.max(best, 0), least)
        log_prob += top.to(tl.float64)
        before = best - top
        tl.store(SCORES + ((t % 2) * num_rows + row) * num_states + j, before, mask=inside)
        tl.store(POINTERS + at * num_states + j, source, mask=inside)
        tl.debug_barrier()
    most, where = tl.max(before, 0, return_indices=True)
    tl.store(LOG_PROB + row + tl.arange(0, 1), log_prob + most.to(tl.float64))
    for back in range(0, num_steps):
        at = (num_steps - 1 - back) * num_rows + row
        tl.store(PATH + at, where.to(tl.int64))
        where = tl.load(POINTERS + at * num_states + where)


@kernel
def draw_rows(
    TABLE, NUMBER, FILTERED, FLAGS, BEGIN, UNIFORM, PATHS, num_steps, num_rows, num_states,
    HAS_BEGIN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """PATHS (S, T, B) of one row and sample: back from the last step, each state by one uniform number."""
    row, sample = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    j = tl.arange(0, BK)
    inside = j < num_states
    position = tl.zeros((), tl.int32)
    for back in range(0, num_steps):
        t = num_steps - 1 - back
        at = t * num_rows + row
        value = tl.load(FILTERED + at * num_states + j, mask=inside, other=float("-inf"))
        drawn_again = 1
        if back > 0:
            matrix = TABLE + tl.load(NUMBER + at + num_rows).to(tl.int64) * num_states * num_states
            flag = tl.load(FLAGS + at + num_rows)
            column = tl.load(matrix + j * num_states + position, mask=inside, other=float("-inf"))
            if HAS_BEGIN:
                column = tl.where((flag & 2) > 0, 0.0, column)
            value += column
            drawn_again = flag & 1
        top = tl.max(value, 0)
        weight = tl.exp(value - tl.where(top == float("-inf"), 0.0, top))
        below = tl.cumsum(weight, 0)
        target = tl.load(UNIFORM + (sample * num_steps + t) * num_rows + row) * tl.sum(weight, 0)
        # a state of weight zero is never drawn, whatever is rounded
        last = tl.max(tl.where(weight > 0, j, 0), 0)
        new = tl.min(tl.where((below > target) & (weight > 0), j, last), 0)
        position = tl.where(drawn_again > 0, new, position)
        tl.store(PATHS + (sample * num_steps + t) * num_rows + row, position.to(tl.int64))


@torch.library.custom_op("pplseq::best_rows", mutates_args=())
def best_paths(
    init: Tensor, table: Tensor, number: Tensor, emit: Tensor, flags: Tensor, begin: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The most probable paths (T, B) and log p(path, x) (B,). Cost: T K^2 a row; T B K back pointers of four bytes."""
    num_steps, num_rows, num_states = emit.shape
    init, table, number, emit, flags = (value.contiguous() for value in (init, table, number, emit, flags))
    begin = None if begin is None else begin.contiguous()
    path = torch.empty(num_steps, num_rows, dtype=torch.int64, device=emit.device)
    log_prob = torch.empty(num_rows, dtype=torch.float64, device=emit.device)
    pointers = torch.zeros(num_steps, num_rows, num_states, dtype=torch.int32, device=emit.device)
    launch(
        best_rows, (num_rows,), init, table, number, emit, flags, emit if begin is None else begin,
        emit.new_empty(2, num_rows, num_states), pointers, path, log_prob, num_steps, num_rows, num_states,
        torch.finfo(emit.dtype).min, HAS_BEGIN=begin is not None, REAL=real_of(emit), **tile_of(num_states, emit.dtype),
    )  # fmt: skip
    return path, log_prob.to(emit.dtype)


@best_paths.register_fake
def _(init, table, number, emit, flags, begin):
    return emit.new_empty(emit.shape[:2], dtype=torch.int64), emit.new_empty(emit.shape[1])


@torch.library.custom_op("pplseq::draw_rows", mutates_args=())
def drawn_paths(
    table: Tensor, number: Tensor, filtered: Tensor, flags: Tensor, begin: Tensor | None, uniform: Tensor
) -> Tensor:
    """Posterior paths (S, T, B) from log p(z_t | x_<=t) (T, B, K) and uniform numbers (S, T, B) in [0, 1)."""
    num_steps, num_rows, num_states = filtered.shape
    paths = torch.empty(uniform.shape, dtype=torch.int64, device=filtered.device)
    launch(
        draw_rows, (num_rows, len(uniform)), table.contiguous(), number.contiguous(), filtered.contiguous(), flags.contiguous(),
        filtered, uniform.contiguous(), paths, num_steps, num_rows, num_states, HAS_BEGIN=begin is not None,
        BK=power_of_two(num_states), num_warps=4,
    )  # fmt: skip
    return paths


@drawn_paths.register_fake
def _(table, number, filtered, flags, begin, uniform):
    return torch.empty_like(uniform, dtype=torch.int64, memory_format=torch.contiguous_format)
