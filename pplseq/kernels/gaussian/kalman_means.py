"""Means of Kalman filter and smoother from observed numbers, step by step in pieces that stay in the cache; no gradients.

The filter is that of innovations: v = y - M (A x + a), then x = A x + a + K v and log p by |L^-1 v|^2. Of many rows each
step is two products; of one long sequence all steps with one gain go through the blocks of
:mod:`~pplseq.kernels.linear_recursion`. Nothing of the size of all steps is stored but the results.

Source: B. D. O. Anderson and J. B. Moore (1979), Optimal Filtering, chapter 5; the smoother of A. E. Bryson and M. Frazier
(1963).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.kernels import linear_recursion
from pplseq.kernels.kalman import Runs

PIECE = 2**17  # numbers of a piece: a quarter or half of a core's cache


class Observed(NamedTuple):
    """residual: (T, R, n). loadings: (n, h) M. matrix: (h, h) A. offset: None, (h,) or (T-1, R, h)."""

    residual: Tensor
    loadings: Tensor
    matrix: Tensor
    offset: Tensor | None

    def offset_of(self, start: int, stop: int, rows: slice) -> Tensor | None:
        """(h,) or (steps, rows, h) of the steps into start..stop-1."""
        if self.offset is None or self.offset.dim() == 1:
            return self.offset
        return self.offset[start - 1 : stop - 1, rows]


def filter_means(
    observed: Observed, first: Tensor, runs: Runs, gains: Tensor | dict[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """Filtered means (T, R, h), and the squared length (T, R) of white innovations.

    Args:
        first: (R, h) the predicted mean of the first step. runs: the node of each step.
        gains: by node, (n, h + n) the transposes of K and L^-1 side by side, for innovations as they are.
    """
    residual = observed.residual
    num_steps, num_rows, n = residual.shape
    h = first.shape[-1]
    means, squares = residual.new_empty(num_steps, num_rows, h), residual.new_empty(num_steps, num_rows)
    # (h, h + n): a mean's prediction, and what its observation lacks then
    ahead = torch.cat([observed.matrix.T, -(observed.loadings @ observed.matrix).T], 1).contiguous()
    piece = max(linear_recursion.FEW_ROWS, PIECE // (h + n))
    for begin in range(0, num_rows, piece):
        rows = slice(begin, min(begin + piece, num_rows))
        width = rows.stop - begin
        before, after = residual.new_empty(width, h + n), residual.new_empty(width, h + n)
        for start, stop, node in runs:
            table = gains[node]
            t = start
            if start == 0:
                torch.sub(residual[0, rows], first[rows] @ observed.loadings.T, out=before[:, h:])
                torch.mm(before[:, h:], table, out=after)
                torch.add(first[rows], after[:, :h], out=means[0, rows])
                torch.linalg.vecdot(after[:, h:], after[:, h:], out=squares[0, rows])
                t = 1
            if num_rows < linear_recursion.FEW_ROWS and stop - t >= linear_recursion.SHORT:
                _filter_by_one_gain(observed, table, means, squares, t, stop)
                continue
            driven = None if observed.offset is None else _driven(observed, t, stop, rows)
            for s in range(t, stop):
                torch.mm(means[s - 1, rows], ahead, out=before)
                if driven is not None:
                    before += driven[min(s - t, len(driven) - 1)]
                before[:, h:] += residual[s, rows]
                torch.mm(before[:, h:], table, out=after)
                torch.add(before[:, :h], after[:, :h], out=means[s, rows])
                torch.linalg.vecdot(after[:, h:], after[:, h:], out=squares[s, rows])
    return means, squares


def _driven(observed: Observed, start: int, stop: int, rows: slice) -> Tensor:
    """(1 | steps, 1 | rows, h + n) what offsets add to a step's mean, and take from what its observation lacks."""
    shift = observed.offset_of(start, stop, rows)
    assert shift is not None
    shift = shift[None, None] if shift.dim() == 1 else shift
    return torch.cat([shift, -(shift @ observed.loadings.T)], -1)


def _filter_by_one_gain(observed: Observed, table: Tensor, means: Tensor, squares: Tensor, start: int, stop: int) -> None:
    """Steps start..stop-1 of all rows, with one gain: inputs of the recursion x = F x + g, the recursion, innovations."""
    num_rows, h = means.shape[1:]
    n = table.shape[0]
    gain, whitener = table[:, :h].contiguous(), table[:, h:].contiguous()
    expects = (observed.loadings @ observed.matrix).T.contiguous()  # (h, n)
    size, every = max(1, PIECE // (h + n) // num_rows), slice(None)
    for t in range(start, stop, size):
        piece = slice(t, min(t + size, stop))
        torch.mm(observed.residual[piece].reshape(-1, n), gain, out=means[piece].view(-1, h))
        shift = observed.offset_of(piece.start, piece.stop, every)
        if shift is not None:
            means[piece] += shift - (shift @ observed.loadings.T) @ gain
    forward = observed.matrix - (expects @ gain).T
    linear_recursion.run_(forward, means[start - 1 : stop])
    for t in range(start, stop, size):
        piece = slice(t, min(t + size, stop))
        innovation = _plus_product(observed.residual[piece], means[piece.start - 1 : piece.stop - 1], expects, -1)
        shift = observed.offset_of(piece.start, piece.stop, every)
        if shift is not None:
            innovation -= shift @ observed.loadings.T
        white = innovation @ whitener
        torch.linalg.vecdot(white, white, out=squares[piece])


def smooth_means(
    observed: Observed, used: Tensor | None, means: Tensor, runs: Runs, steps: Tensor | dict[int, Tensor],
    weighted: Tensor | dict[int, Tensor],
) -> Tensor:  # fmt: skip
    """Smoothed means (T, R, h): x_t|t + Sigma_t A' lambda_{t+1}, lambda_t = M' S^-1 v_t + (A W_t)' lambda_{t+1}.

    v_t is the innovation, which is as large as it is however precise observations are.

    Args:
        used: (T, R) bool, False where nothing was observed, or None. means: filtered ones. runs: the node of each step.
        steps: by node, (h, 2 h) A W and A Sigma side by side. weighted: by node, (n, h) S^-1 M.
    """
    num_steps, num_rows, h = means.shape
    smoothed = torch.empty_like(means)
    expects = (observed.loadings @ observed.matrix).T.contiguous()  # (h, n)
    shift = None if observed.offset is None else observed.offset @ observed.loadings.T
    piece = max(linear_recursion.FEW_ROWS, PIECE // (2 * h))
    for begin in range(0, num_rows, piece):
        rows = slice(begin, min(begin + piece, num_rows))
        smoothed[-1, rows] = means[-1, rows]
        adjoint = (
            _innovations(observed, expects, used, means, num_steps - 1, num_steps, rows)[0] @ weighted[runs[-1][2]]
        )
        moved = means.new_empty(rows.stop - begin, 2 * h)
        for start, stop, node in reversed(runs):
            table, weight = steps[node], weighted[node]
            stop = min(stop, num_steps - 1)  # the last step is done
            if num_rows < linear_recursion.FEW_ROWS and stop - start >= linear_recursion.SHORT:
                adjoint = _smooth_by_one_node(observed, expects, used, means, smoothed, adjoint, table, weight, start, stop)
                continue
            for t in reversed(range(start, stop)):
                torch.mm(adjoint, table, out=moved)
                torch.add(means[t, rows], moved[:, h:], out=smoothed[t, rows])
                if t == 0:
                    break
                rest = torch.addmm(observed.residual[t, rows], means[t - 1, rows], expects, alpha=-1)
                if shift is not None:
                    rest -= shift if shift.dim() == 1 else shift[t - 1, rows]
                if used is not None:
                    rest.masked_fill_(~used[t, rows, None], 0.0)
                adjoint = torch.addmm(moved[:, :h], rest, weight)
    return smoothed


def _innovations(observed: Observed, expects: Tensor, used: Tensor | None, means: Tensor, start: int, stop: int, rows):
    """(steps, rows, n) y - M (A x + a) of steps start..stop-1, of which none is the first; zero where nothing was observed."""
    rest = _plus_product(observed.residual[start:stop, rows], means[start - 1 : stop - 1, rows], expects, -1)
    shift = observed.offset_of(start, stop, rows)
    rest = rest if shift is None else rest - shift @ observed.loadings.T
    return rest if used is None else rest.masked_fill_(~used[start:stop, rows, None], 0.0)


def _smooth_by_one_node(observed, expects, used, means, smoothed, adjoint, table, weight, start: int, stop: int) -> Tensor:
    """Steps start..stop-1 of all rows, with one node; lambda of stop is given, that of start returned."""
    num_rows, h = means.shape[1:]
    size, every = max(1, PIECE // (2 * h) // num_rows), slice(None)
    loop, gain = table[:, :h].T.contiguous(), table[:, h:].contiguous()
    # lambda of start+1..stop, in the place of the smoothed means of start..stop-1
    behind = smoothed[start:stop]
    for t in range(start + 1, stop, size):
        last = min(t + size, stop)
        behind[t - start - 1 : last - start - 1] = _innovations(observed, expects, used, means, t, last, every) @ weight
    behind[-1] = adjoint
    linear_recursion.run_(loop, behind, reverse=True)
    adjoint = behind[0] @ table[:, :h]
    if start:
        adjoint += _innovations(observed, expects, used, means, start, start + 1, every)[0] @ weight
    for t in range(start, stop, size):
        piece = slice(t, min(t + size, stop))
        smoothed[piece] = _plus_product(means[piece], smoothed[piece], gain)
    return adjoint


def _plus_product(plus: Tensor, vectors: Tensor, matrix: Tensor, scale: int = 1) -> Tensor:
    """plus + scale vectors @ matrix, (T, R, k) + (T, R, h) @ (h, k), as one product."""
    k, h = plus.shape[-1], vectors.shape[-1]
    return torch.addmm(plus.reshape(-1, k), vectors.reshape(-1, h), matrix, alpha=scale).view(plus.shape)
