"""Products and recursions where each step and row takes its matrix from a table.

A Gaussian chain has few distinct matrices: those of the transient, those behind a missing observation, and the one of the
steady state, which nearly all steps share. No matrix is stored per step here, not for the backward pass either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels import linear_recursion
from pplseq.kernels.kalman import runs_of
from pplseq.threads import once

GATHERED = 2**22  # numbers of gathered matrices at a time
LONG = 8  # steps with one matrix that are worth a product of their own


class MatrixIndex:
    """Which matrix of a table each step and row takes.

    Args:
        index: (T,) where rows agree, or (T, R).
        table_size: number of matrices.
    """

    def __init__(self, index: Tensor, table_size: int):
        if index.dim() == 2 and index.shape[1] == 1:
            index = index[:, 0]
        self.index, self.table_size = index, table_size

    @property
    def shared(self) -> bool:
        """All rows agree."""
        return self.index.dim() == 1

    @once
    def runs(self) -> list[tuple[int, int, int | None]]:
        """(start, stop, matrix) of steps that agree; the matrix is None where rows differ."""
        index = self.index
        if not self.shared:
            same = (index == index[:, :1]).all(1)
            index = torch.where(same, index[:, 0], torch.full_like(index[:, 0], -1))
        return [(start, stop, None if node < 0 else node) for start, stop, node in runs_of(index)]

    @once
    def main(self) -> int:
        """The matrix most often taken."""
        return int(torch.bincount(self.index.reshape(-1), minlength=1).argmax())

    @once
    def others(self) -> Tensor:
        """Flat positions that do not take the main matrix, by matrix."""
        flat = self.index.reshape(-1)
        other = (flat != self.main).nonzero().squeeze(-1)
        return other[flat[other].argsort(stable=True)]

    @once
    def short_steps(self) -> Tensor:
        """Steps, where rows agree, outside of long runs."""
        keep = torch.ones(len(self.index), dtype=torch.bool)
        for start, stop, _ in self.long_runs:
            keep[start:stop] = False
        return keep.nonzero().squeeze(-1).to(self.index.device)

    @once
    def long_runs(self) -> list[tuple[int, int, int | None]]:
        return [run for run in self.runs if run[1] - run[0] >= LONG]

    def chunks(self, positions: Tensor, h: int) -> tuple[Tensor, ...]:
        """The positions in pieces whose matrices fit into memory."""
        return positions.split(max(1, GATHERED // (h * h)))


def apply_matrices(table: Tensor, which: MatrixIndex, vectors: Tensor) -> Tensor:
    """table[index] @ vectors: (N, m, h) and (T, R, h) give (T, R, m); differentiable in table and vectors."""
    return _Apply.apply(table, vectors, which)


def recursion(
    table: Tensor, links: MatrixIndex, inputs: Tensor, *, reverse: bool = False, overwrite: bool = False
) -> Tensor:
    """x_t = M_t x_{t-1} + g_t with x_1 = g_1; in reverse x_t = M_{t+1} x_{t+1} + g_t with x_T = g_T.

    Args:
        table: (N, h, h). links: (T-1,) or (T-1, R), the matrix between a step and the next one. inputs: (T, R, h).
        overwrite: the inputs may become the states, which saves a copy.
    """
    return _Recursion.apply(table, inputs, links, reverse, overwrite)


# ---------------------------------------------------------------- plain tensors
def _apply(table: Tensor, which: MatrixIndex, vectors: Tensor) -> Tensor:
    h = vectors.shape[-1]
    if which.shared:
        if len(which.runs) == 1:
            return vectors @ table[which.runs[0][2]].T
        out = vectors.new_empty(*vectors.shape[:-1], table.shape[1])
        for start, stop, node in which.long_runs:
            torch.matmul(vectors[start:stop], table[node].T, out=out[start:stop])
        for steps in which.chunks(which.short_steps, h):
            out[steps] = torch.bmm(vectors[steps], table[which.index[steps]].mT)
        return out
    flat, index, m = vectors.reshape(-1, h), which.index.reshape(-1), table.shape[1]
    out = vectors.new_empty(*vectors.shape[:-1], m)
    torch.mm(flat, table[which.main].T, out=out.view(-1, m))
    for part in which.chunks(which.others, max(h, m)):
        out.view(-1, m)[part] = torch.bmm(table[index[part]], flat[part].unsqueeze(-1)).squeeze(-1)
    return out


def _outer(left: Tensor, right: Tensor, which: MatrixIndex) -> Tensor:
    """(N, m, h) sum of left right' over the steps and rows of each matrix."""
    m, h = left.shape[-1], right.shape[-1]
    total = left.new_zeros(which.table_size, m, h)
    if which.shared:
        for start, stop, node in which.long_runs:
            total[node] += left[start:stop].reshape(-1, m).T @ right[start:stop].reshape(-1, h)
        for steps in which.chunks(which.short_steps, h):
            total.index_add_(0, which.index[steps], torch.bmm(left[steps].mT, right[steps]))
        return total
    left, right, index = left.reshape(-1, m), right.reshape(-1, h), which.index.reshape(-1)
    here = index == which.main
    total[which.main] = left[here].T @ right[here]
    for part in which.chunks(which.others, max(m, h)):
        total.index_add_(0, index[part], left[part].unsqueeze(-1) * right[part].unsqueeze(-2))
    return total


def _run_(table: Tensor, links: MatrixIndex, states: Tensor, reverse: bool) -> None:
    for start, stop, node in reversed(links.runs) if reverse else links.runs:
        if node is not None and stop - start >= linear_recursion.SHORT:
            linear_recursion.run_(table[node], states[start : stop + 1], reverse=reverse)
            continue
        if node is not None:
            transposed = table[node].T
            for t in reversed(range(start, stop)) if reverse else range(start, stop):
                states[t if reverse else t + 1].addmm_(states[t + 1 if reverse else t], transposed)
            continue
        transposed = table[links.main].T
        for t in reversed(range(start, stop)) if reverse else range(start, stop):
            before, state = (states[t + 1], states[t]) if reverse else (states[t], states[t + 1])
            rows = (links.index[t] != links.main).nonzero().squeeze(-1)
            special = torch.bmm(table[links.index[t, rows]], before[rows].unsqueeze(-1)).squeeze(-1) + state[rows]
            state.addmm_(before, transposed)
            state[rows] = special


# ---------------------------------------------------------------- with gradients
class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, vectors, which):
        ctx.save_for_backward(table, vectors)
        ctx.which = which
        return _apply(table, which, vectors)

    @staticmethod
    def backward(ctx, *grads):
        (grad,) = grads
        table, vectors = ctx.saved_tensors
        grad_table = _Outer.apply(grad, vectors, ctx.which) if ctx.needs_input_grad[0] else None
        return grad_table, _Apply.apply(table.mT, grad, ctx.which) if ctx.needs_input_grad[1] else None, None


class _Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, left, right, which):
        ctx.save_for_backward(left, right)
        ctx.which = which
        return _outer(left, right, which)

    @staticmethod
    def backward(ctx, *grads):
        (grad,) = grads
        left, right = ctx.saved_tensors
        return _Apply.apply(grad, right, ctx.which), _Apply.apply(grad.mT, left, ctx.which), None


class _Recursion(torch.autograd.Function):
    """Its backward pass is the recursion of the transposed matrices in the other direction, over the same links."""

    @staticmethod
    def forward(ctx, table, inputs, links, reverse, overwrite):
        if overwrite:
            ctx.mark_dirty(inputs)
        states = inputs if overwrite else inputs.clone(memory_format=torch.contiguous_format)
        _run_(table, links, states, reverse)
        ctx.save_for_backward(table, states)
        ctx.links, ctx.reverse = links, reverse
        return states

    @staticmethod
    def backward(ctx, *grads):
        (grad,) = grads
        table, states = ctx.saved_tensors
        adjoint = _Recursion.apply(table.mT, grad, ctx.links, not ctx.reverse, False)
        grad_table = None
        if ctx.needs_input_grad[0] and len(states) > 1:
            pair = (adjoint[:-1], states[1:]) if ctx.reverse else (adjoint[1:], states[:-1])
            grad_table = _Outer.apply(*pair, ctx.links)
        elif ctx.needs_input_grad[0]:
            grad_table = torch.zeros_like(table)
        return grad_table, adjoint, None, None, None
