"""Scans with one matrix for all steps and rows on a GPU: a tile of rows a program, one product of matrices a step.

Messages are probabilities, normalised at every step, as in :mod:`pplseq.kernels.shared_matrix`. Rows whose digits were lost are
found on the device and done again there in log space, by :mod:`pplseq.kernels.triton.chain`: the host is asked nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels.triton.chain import filter_rows, look_back_rows, real_of, tile_of
from pplseq.kernels.triton.launch import kernel, launch, tl

# a smaller entry of a message may have lost digits, or be what is left of several that underflowed
LOWEST = {torch.float64: 1e-280, torch.float32: 1e-30}
TILE = dict(BR=16, BI=32, BJ=64, num_warps=8, num_stages=1)
LEAST_ROWS, LEAST_STATES = 16, 32  # below, a program a row is as fast


@kernel
def multiply_rows(
    START, MATRIX, WEIGHT, FLAGS, MESSAGES, TOTALS, num_steps, num_rows, num_states,
    REAL: tl.constexpr, BR: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """MESSAGES_t = WEIGHT_t (MESSAGES_{t-1} MATRIX), normalised to sum 1, TOTALS_t the sum; a tile of rows.

    FLAGS: 1 at real steps (others repeat the message before), 2 more where START stands for the product.
    """
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    real_row = row < num_rows
    row = row.to(tl.int64)
    for t in range(0, num_steps):
        at = t * num_rows + row
        flag = tl.load(FLAGS + at, mask=real_row, other=0)[:, None]
        total = tl.zeros((BR,), REAL)
        for to in range(0, num_states, BJ):
            j = to + tl.arange(0, BJ)
            there = real_row[:, None] & (j[None, :] < num_states)
            new = tl.zeros((BR, BJ), REAL)
            if t > 0:
                for start in range(0, num_states, BI):
                    i = start + tl.arange(0, BI)
                    before = tl.load(
                        MESSAGES + (at - num_rows)[:, None] * num_states + i[None, :],
                        mask=real_row[:, None] & (i[None, :] < num_states), other=0.0,
                    )  # fmt: skip
                    part = tl.load(
                        MATRIX + i[:, None] * num_states + j[None, :],
                        mask=(i[:, None] < num_states) & (j[None, :] < num_states), other=0.0,
                    )  # fmt: skip
                    new += tl.dot(before, part, input_precision="ieee", out_dtype=REAL)
            first = tl.load(START + row[:, None] * num_states + j[None, :], mask=there, other=0.0)
            new = tl.where((flag & 2) > 0, first, new)
            new *= tl.load(WEIGHT + at[:, None] * num_states + j[None, :], mask=there, other=0.0)
            tl.store(MESSAGES + at[:, None] * num_states + j[None, :], new, mask=there)
            total += tl.sum(new, 1)
        tl.store(TOTALS + at, total, mask=real_row)
        total = tl.where(total == 0, 1.0, total)
        tl.debug_barrier()
        for to in range(0, num_states, BJ):
            j = to + tl.arange(0, BJ)
            there = real_row[:, None] & (j[None, :] < num_states)
            new = tl.load(MESSAGES + at[:, None] * num_states + j[None, :], mask=there, other=0.0) / total[:, None]
            if t > 0:
                before = tl.load(MESSAGES + (at - num_rows)[:, None] * num_states + j[None, :], mask=there, other=0.0)
                new = tl.where((flag & 1) > 0, new, before)
            tl.store(MESSAGES + at[:, None] * num_states + j[None, :], new, mask=there)
        tl.debug_barrier()


def pays(table: Tensor, emit: Tensor) -> bool:
    """Whether products of matrices are the faster way for a chain with these log matrices (M, K, K)."""
    return len(table) == 1 and emit.shape[1] >= LEAST_ROWS and emit.shape[2] >= LEAST_STATES


def _relative(log: Tensor, dims) -> tuple[Tensor, Tensor]:
    top = log.amax(dims, keepdim=True).clamp_min(torch.finfo(log.dtype).min)
    return (log - top).exp(), top


def _multiply(start: Tensor, matrix: Tensor, weight: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
    num_steps, num_rows, num_states = weight.shape
    messages, totals = torch.empty_like(weight), weight.new_empty(num_steps, num_rows)
    launch(
        multiply_rows, (-(-num_rows // TILE["BR"]),), start.contiguous(), matrix.contiguous(), weight.contiguous(),
        flags.contiguous(), messages, totals, num_steps, num_rows, num_states, REAL=real_of(weight), **TILE,
    )  # fmt: skip
    return messages, totals


def _lost(messages: Tensor, start: Tensor, log_matrix: Tensor, emit: Tensor, flags: Tensor) -> Tensor:
    """(N,) int32, 1 for rows with an entry that is too small to be trusted and no true zero."""
    dtype = messages.dtype
    led_to = torch.cat([start.unsqueeze(0) > 0, (messages[:-1] > 0).to(dtype) @ (log_matrix > -torch.inf).to(dtype) > 0])
    led_to = torch.where((flags & 2).unsqueeze(-1) > 0, start > 0, led_to)
    possible = led_to & (emit > -torch.inf) & (flags & 1).unsqueeze(-1).bool()
    return (possible & ~(messages >= LOWEST[dtype])).flatten(2).any(-1).any(0).to(torch.int32)


@torch.library.custom_op("pplseq::shared_filter", mutates_args=())
def filtered(init: Tensor, log_matrix: Tensor, emit: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
    """log p(z_t | x_<=t) (T, N, K) and log p(x_t | x_<t) (T, N), 0 at padded steps, with one matrix (K, K).

    Cost: 2 T N K^2 flops, the matrix read once a step for 16 rows.
    """
    num_steps, num_rows, num_states = emit.shape
    matrix, matrix_top = _relative(log_matrix, (0, 1))
    weight, emit_top = _relative(emit, -1)
    start, start_top = _relative(init, -1)
    ways = flags.clone()
    ways[0] |= 2
    messages, totals = _multiply(start, matrix, weight, ways)
    only = _lost(messages, start, log_matrix, emit, ways)
    # underflow of the first factor is of the same kind
    only |= ((start < LOWEST[emit.dtype]) & (init > -torch.inf)).any(-1).to(torch.int32)
    steps = totals.log() + emit_top.squeeze(-1)
    steps[1:] += matrix_top.squeeze()
    steps[0] += start_top.squeeze(-1)
    steps = torch.where((flags & 1) > 0, steps, 0.0)
    messages = messages.log()
    number = torch.zeros(num_steps, num_rows, dtype=torch.int64, device=emit.device)
    emit = emit.contiguous()
    launch(
        filter_rows, (num_rows,), init.contiguous(), log_matrix.contiguous(), number, emit, emit, flags.contiguous(), emit,
        only, messages, steps, num_steps, num_rows, num_states, torch.finfo(emit.dtype).min, HAS_GATE=False, HAS_BEGIN=False,
        HAS_ONLY=True, REAL=real_of(emit), **tile_of(num_states, emit.dtype),
    )  # fmt: skip
    return messages, steps


@filtered.register_fake
def _(init, log_matrix, emit, flags):
    return torch.empty_like(emit, memory_format=torch.contiguous_format), emit.new_empty(emit.shape[:2])


@torch.library.custom_op("pplseq::shared_look_back", mutates_args=())
def look_back(log_matrix: Tensor, emit: Tensor, flags: Tensor) -> Tensor:
    """log p(x_>t | z_t) (T, N, K) up to a constant a step, with one matrix (K, K); cost as of :func:`filtered`."""
    num_steps, num_rows, num_states = emit.shape
    matrix, _ = _relative(log_matrix, (0, 1))
    weight, _ = _relative(emit, -1)
    # in reversed time weights times what lies ahead go through the transposed matrix; a row begins at its own last step
    ways = flags & 1
    ends = torch.cat([ways[:-1] & (1 - ways[1:]), ways[-1:]])
    start = torch.ones_like(weight[0])
    turned = torch.where(ways > 0, 1, 0) + 2 * ends
    turned = torch.where((turned.flip(0).cumsum(0) > 0), turned.flip(0), 3)  # nothing stands behind a row's end
    backward, _ = _multiply(start, matrix.T, weight.flip(0), turned.to(torch.int32))
    only = _lost(backward, start, log_matrix.T, emit.flip(0), turned)
    ahead = torch.ones_like(weight)
    ahead[:-1] = backward.flip(0)[1:] @ matrix.T
    inside = torch.cat([ways[1:], torch.zeros_like(ways[:1])]) > 0
    low = ~(ahead >= LOWEST[emit.dtype]) & inside.unsqueeze(-1)
    reached = torch.ones_like(low)
    reached[:-1] = (backward.flip(0)[1:] > 0).to(emit.dtype) @ (log_matrix.T > -torch.inf).to(emit.dtype) > 0
    only |= (low & reached).any(-1).any(0).to(torch.int32)
    ahead = torch.where(inside.unsqueeze(-1), ahead, 1.0).log()
    number = torch.zeros(num_steps, num_rows, dtype=torch.int64, device=emit.device)
    emit = emit.contiguous()
    launch(
        look_back_rows, (num_rows,), log_matrix.contiguous(), number, emit, emit, flags.contiguous(), only, ahead,
        num_steps, num_rows, num_states, HAS_GATE=False, HAS_ONLY=True, REAL=real_of(emit),
        **tile_of(num_states, emit.dtype, 8192),
    )  # fmt: skip
    return ahead


@look_back.register_fake
def _(log_matrix, emit, flags):
    return torch.empty_like(emit, memory_format=torch.contiguous_format)
