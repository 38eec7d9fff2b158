"""The recursion x_t = H x_{t-1} + g_t with one matrix for all steps: what means of Gaussian chains are in the steady state.
That with matrices of a table, which has gradients, is :func:`pplseq.kernels.matrix_table.recursion`.

Batches go step by step, one product of all rows a step. One long sequence is cut into blocks that run side by side. Where H
forgets within a block, each is warmed up by the last inputs of the one before; else what a block hands over follows by powers
of H. An associative scan would cost h^3 a step, and is never right for a matrix that does not change.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROWS_AT_ONCE = 512  # rows that fill a matrix product; more of them gain nothing
ENOUGH_ROWS = 96  # and these nearly do
FEW_ROWS = 64  # below, steps are too small to be taken one by one
SHORT = 256  # steps below which blocks do not pay


def run_(matrix: Tensor, states: Tensor, *, reverse: bool = False, block: int | None = None) -> None:
    """Turns inputs (T, R, h) into states in place; the first step is one already. In reverse x_t = H x_{t+1} + g_t.

    Args:
        block: steps in a block; None chooses, 0 goes step by step.

    Cost: 2 h^2 flops a step and row, up to twice that in blocks.
    """
    num_steps, num_rows, _ = states.shape
    if num_steps < 2 or num_rows == 0:
        return
    if block is None:
        block = choose_block(matrix, num_steps, num_rows)
    if block < 2 or block >= num_steps:
        _one_by_one_(matrix.T.contiguous(), states, reverse)
        return
    past = memory(matrix, 1e-3)
    if 2 * past <= block:
        _warmed_up_(matrix, states, block, past, reverse)
    elif reverse:
        turned = states.flip(0)
        _in_blocks_(matrix, turned, block)
        states.copy_(turned.flip(0))
    else:
        _in_blocks_(matrix, states, block)


def choose_block(matrix: Tensor, num_steps: int, num_rows: int) -> int:
    """Steps in a block, 0 for step by step: long against the memory of H, short enough for full matrix products."""
    if num_rows >= FEW_ROWS or num_steps < SHORT:
        return 0
    past = memory(matrix, 1e-3)
    shortest = math.ceil(num_steps * num_rows / ROWS_AT_ONCE)
    longest = math.ceil(num_steps * num_rows / ENOUGH_ROWS)
    block = max(min(4 * past, longest), shortest)
    if block < 2 * past:
        block = max(shortest, min(4 * past, math.isqrt(num_steps)), 2)
    return block | 1  # odd: powers of two collide in caches


def memory(matrix: Tensor, share: float = 1.0) -> int:
    """Steps i after which ||H^i|| is negligible, at most an eighth too many; at most 2^20.

    share: of the dtype's precision, what is negligible.
    """
    eps, powers = share * torch.finfo(matrix.dtype).eps, [matrix]
    while True:
        norm = float(powers[-1].norm())
        if norm <= eps:
            break
        if not norm < 1e6 or len(powers) > 20:  # it grows, or there is no end
            return 2**20
        powers.append(powers[-1] @ powers[-1])
    # half of these steps are too few; which quarters, eighths ... are needed, too
    steps, unit = 0, max(0, len(powers) - 5)
    power = None
    for k in reversed(range(unit, len(powers) - 1)):
        further = powers[k] if power is None else power @ powers[k]
        if float(further.norm()) > eps:
            power, steps = further, steps + 2**k
    return steps + 2**unit


def _one_by_one_(transposed: Tensor, states: Tensor, reverse: bool) -> None:
    steps = states.unbind(0)
    if reverse:
        steps = steps[::-1]
    for before, state in zip(steps[:-1], steps[1:], strict=True):
        state.addmm_(before, transposed)


def _warmed_up_(matrix: Tensor, states: Tensor, block: int, past: int, reverse: bool) -> None:
    """Whole blocks side by side, each from a state that the last inputs of the block before make; then the rest."""
    num_steps, num_rows, h = states.shape
    num_blocks = num_steps // block
    rest = num_steps - num_blocks * block
    transposed = matrix.T.contiguous()
    inside = states[rest:] if reverse else states[: num_steps - rest]
    view = inside.view(num_blocks, block, num_rows, h).transpose(0, 1)
    # step j of all blocks is one matrix; one row needs no copy for that
    steps = view.squeeze(2).unbind(0) if num_rows == 1 else view.reshape(block, num_blocks * num_rows, h).unbind(0)
    if reverse:
        steps, others, edge = steps[::-1], slice(num_rows, None), slice(0, -num_rows)
    else:
        others, edge = slice(0, -num_rows), slice(num_rows, None)
    carry = steps[-past][others].clone()
    for step in steps[block - past + 1 :]:
        carry = torch.addmm(step[others], carry, transposed)
    steps[0][edge].addmm_(carry, transposed)
    for before, state in zip(steps[:-1], steps[1:], strict=True):
        state.addmm_(before, transposed)
    if num_rows > 1:
        ordered = steps[::-1] if reverse else steps
        view.copy_(torch.stack(ordered).view(view.shape))
    if rest:
        _one_by_one_(transposed, states[: rest + 1] if reverse else states[num_steps - rest - 1 :], reverse)


def _in_blocks_(matrix: Tensor, states: Tensor, block: int) -> None:
    """Whole blocks side by side from zero, then what they hand over, then the rest."""
    num_steps, num_rows, h = states.shape
    num_blocks = num_steps // block
    whole = num_blocks * block
    transposed = matrix.T.contiguous()
    # (block, n R, h): step j of all blocks is one matrix; one row needs no copy for that
    view = states[:whole].view(num_blocks, block, num_rows, h).transpose(0, 1)
    steps = view.squeeze(2).unbind(0) if num_rows == 1 else view.reshape(block, num_blocks * num_rows, h).unbind(0)
    for before, state in zip(steps[:-1], steps[1:], strict=True):
        state.addmm_(before, transposed)
    # the true last states of the blocks follow the same recursion, with H^block
    ends = steps[-1].reshape(num_blocks, num_rows, h).clone()
    run_(torch.linalg.matrix_power(matrix, block), ends)
    eps, carry, size = torch.finfo(states.dtype).eps, ends[:-1].reshape(-1, h), None
    for j in range(block):
        carry = carry @ transposed
        steps[j][num_rows:] += carry
        if j % 8 == 7:  # asking has a price, too
            size = float(ends.abs().amax()) if size is None else size
            if float(carry.abs().amax()) <= 1e-3 * eps * size:
                break
    if num_rows > 1:
        view.copy_(torch.stack(steps).view(view.shape))
    if whole < num_steps:
        _one_by_one_(transposed, states[whole - 1 :], False)
