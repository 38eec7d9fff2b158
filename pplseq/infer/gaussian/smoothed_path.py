"""Covariances of a Gaussian chain given all observations: the way back along its covariance path."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.gaussian.convergence import Convergence, size_of
from pplseq.infer.gaussian.path import CovariancePath
from pplseq.kernels import kalman


class SmoothedPath:
    """Covariances given all observations of a row; the path back starts at each row's own end.

    Attributes: smoothed, lag_one: (M, h, h) Cov(x_t | all) and Cov(x_{t+1}, x_t | all). index: (T,) or (T, R) nodes, 0 (of
    covariance zero) at padded steps.
    """

    def __init__(self, path: CovariancePath, lengths: Tensor | None):
        self.path = path
        given = path.given
        columns = path.index.cpu().numpy().reshape(given.num_steps, -1)
        back = None
        if lengths is not None:
            ends = lengths.cpu().numpy()
            if columns.shape[1] == 1:  # rows of one length agree
                ends, back = np.unique(ends, return_inverse=True)
            columns = np.where(np.arange(given.num_steps)[:, None] < ends, columns, -1)
        h = given.start.shape[-1]
        zero = path.filtered.new_zeros(1, h, h)
        self._information: list[Tensor] = [zero[0]]  # N of each node
        self._covariances: list[Tensor] = [zero]
        self._lag_one: list[Tensor] = [zero]
        self._of: list[int] = [-1]  # the filtered node of each node
        self._convergence = Convergence(given.tol, given.wait_for_rounding, given.wants_gradient, h)
        self._convergence.rounding = path.rounding
        self._fixed: dict[int, int] = {}  # filtered node -> node that follows itself
        index = self._walk(columns)
        index = index if back is None else index[:, back.reshape(-1)]
        self.index = torch.from_numpy(index[:, 0] if index.shape[1] == 1 else index).to(path.device)
        self.smoothed, self.lag_one = torch.cat(self._covariances), torch.cat(self._lag_one)
        del self._information, self._covariances, self._lag_one

    def _walk(self, columns: np.ndarray) -> np.ndarray:
        num_steps, rows = columns.shape
        new_pattern = np.flatnonzero((columns[1:] != columns[:-1]).any(1))  # steps whose next one differs
        index = np.zeros_like(columns)
        now = np.zeros(rows, dtype=np.int64)
        known: dict[tuple[int, int], int] = {}
        stride = self.path.num_nodes + 1
        t = num_steps - 1
        while t >= 0:
            keys, inverse = np.unique(now * stride + columns[t] + 1, return_inverse=True)
            pairs = [(int(k // stride), int(k % stride) - 1) for k in keys]
            self._extend([pair for pair in pairs if pair not in known], known)
            index[t] = np.array([known[pair] for pair in pairs])[inverse.reshape(-1)]
            still = (index[t] == now).all()
            now = index[t]
            t -= 1
            if still and t >= 0:
                position = np.searchsorted(new_pattern, t, side="right") - 1
                stop = int(new_pattern[position]) if position >= 0 else -1
                if (columns[t] == columns[t + 1]).all():
                    index[stop + 1 : t + 1] = now
                    t = stop
        return index

    def _extend(self, pairs: list[tuple[int, int]], known: dict[tuple[int, int], int]) -> None:
        path = self.path
        for pair in [p for p in pairs if p[1] < 0]:
            known[pair] = 0
        pairs = [p for p in pairs if p[1] >= 0]
        if not pairs:
            return
        later_nodes, nodes = (list(part) for part in zip(*pairs, strict=True))
        later = torch.stack([self._information[n] for n in later_nodes])
        gain, loop = path.gain[nodes], path.closed_loop[nodes]
        information = kalman.adjoint(path.information[nodes], loop, later)
        keep = []
        for i, (pair, node) in enumerate(zip(pairs, nodes, strict=True)):
            same = self._same_as(pair, node, information[i], loop[i], known)
            known[pair] = len(self._of) if same is None else same
            if same is None:
                keep.append(i)
                self._information.append(information[i])
                self._of.append(node)
        if keep:
            gain, later, nodes = gain[keep], later[keep], [nodes[i] for i in keep]
            self._covariances.append(kalman.smoothed(path.filtered[nodes], gain, later))
            behind = [max(self._of[later_nodes[i]], 0) for i in keep]
            self._lag_one.append(kalman.lag_one(gain, path.predicted[behind], later))

    def _same_as(self, pair: tuple[int, int], node: int, information: Tensor, loop: Tensor, known: dict) -> int | None:
        """The node that this one is equal to, or None."""
        later = pair[0]
        if node not in self.path.steady or self._of[later] != node:
            return None
        _, product = self._convergence.memory(later, lambda: loop.mT)
        forgotten = self._convergence.forgotten(product)
        scale = float(size_of(information)) or 1.0
        fixed = self._fixed.get(node)
        still, record = self._convergence.still(later, float(size_of(information - self._information[later])) / scale)
        child = len(self._of)
        if forgotten and fixed is not None:
            distance = self._convergence.agree if still else self.path.given.tol
            if float(size_of(information - self._information[fixed])) <= distance * scale:
                return fixed
        if still and forgotten:
            # from here on, not from the later node on: covariances go by N of the step behind, which there is still another
            self._fixed[node] = child
            known[child, node] = child
            return None
        self._convergence.records[child] = record
        if product is not None:
            self._convergence.sensitivity[child] = product
        return None
