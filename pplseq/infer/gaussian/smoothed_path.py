"""Covariances of a Gaussian chain given all observations: the way back along its covariance path."""

from __future__ import annotations

import bisect

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.gaussian.path import BLOCK, CAREFUL, CovariancePath
from pplseq.kernels import kalman
from pplseq.kernels.gaussian import compiled_kalman
from pplseq.kernels.kalman import DOUBLE, Convergence, size_of
from pplseq.threads import once


class SmoothedPath:
    """Covariances given all observations of a row; the path back starts at each row's own end.

    Attributes: smoothed, lag_one: (M, h, h) Cov(x_t | all) and Cov(x_{t+1}, x_t | all). index: (T,) or (T, R) nodes, 0 (of
    covariance zero) at padded steps. Of nodes: information (M, h, h), what observations from there on say beyond the past;
    of, the filtered node; later, the node of the step behind.
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
        if path.is_compiled and compiled_kalman.walk_back_pays():
            first, place = compiled_kalman.alike(columns)
            found = self._walk_compiled(columns[:, first])
            index = found if len(first) == 1 else found[:, place]
        else:
            index = self._walk_nodes(columns)
        index = index if back is None else index[:, back.reshape(-1)]
        self.index = torch.from_numpy(index[:, 0] if index.shape[1] == 1 else index).to(path.device)

    def _walk_compiled(self, columns: np.ndarray) -> np.ndarray:
        """:meth:`_walk_nodes` by :func:`pplseq.kernels.gaussian.compiled_kalman.adjoints`."""
        path, given = self.path, self.path.given
        assert path.walked is not None
        steady = np.zeros(path.num_nodes, np.bool_)
        steady[list(path.steady)] = True
        convergence = Convergence(given.tol, given.wait_for_rounding, False, given.start.shape[-1])
        found = compiled_kalman.adjoints(
            columns, path.walked, given.matrix[0, 0], given.observed[0], steady, given.tol, convergence.agree,
            given.wait_for_rounding,
        )  # fmt: skip
        self.information, self.of, self.later = found.information, found.of.tolist(), found.later.tolist()
        return found.index

    def _walk_nodes(self, columns: np.ndarray) -> np.ndarray:
        path, given = self.path, self.path.given
        h = given.start.shape[-1]
        self._information: list[Tensor] = [path.filtered.new_zeros(h, h)]  # N of each node
        self._of: list[int] = [-1]  # the filtered node of each node
        self._later: list[int] = [0]  # and the node of the step behind it
        self._convergence = Convergence(given.tol, given.wait_for_rounding, given.wants_gradient, h)
        self._convergence.rounding = path.rounding
        self._fixed: dict[int, int] = {}  # filtered node -> node that follows itself
        self._known: dict[tuple[int, int], int] = {}  # node of the step behind, filtered node -> node
        index = self._walk(columns)
        self.information, self.of, self.later = torch.stack(self._information), self._of, self._later
        compiled_kalman.twin_walked_back(len(self.of))
        del self._information, self._known
        return index

    def _walk(self, columns: np.ndarray) -> np.ndarray:
        num_steps, rows = columns.shape
        new_pattern = [
            -1,
            *np.flatnonzero((columns[1:] != columns[:-1]).any(1)).tolist(),
        ]  # steps whose next one differs
        index = np.zeros_like(columns)
        now = np.zeros(rows, dtype=np.int64)
        stride = self.path.num_nodes + 1
        t = num_steps - 1
        while t >= 0:
            if rows == 1:
                later, line = int(now[0]), columns[max(t + 1 - BLOCK, 0) : t + 1, 0][::-1].tolist()
                nodes = [self._known[later, line[0]]] if (later, line[0]) in self._known else self._extend(later, line)
                index[t + 1 - len(nodes) : t + 1, 0] = nodes[::-1]
                before, now = (nodes[-2] if len(nodes) > 1 else later), np.array(nodes[-1:])
                t -= len(nodes)
                still = before == nodes[-1]
            else:
                keys, inverse = np.unique(now * stride + columns[t] + 1, return_inverse=True)
                pairs = [(int(k // stride), int(k % stride) - 1) for k in keys]
                self._go_apart([pair for pair in pairs if pair not in self._known])
                index[t] = np.array([self._known[pair] for pair in pairs])[inverse.reshape(-1)]
                still = (index[t] == now).all()
                now = index[t]
                t -= 1
            if still and t >= 0 and (columns[t] == columns[t + 1]).all():  # nothing changes until the pattern does
                stop = new_pattern[bisect.bisect_right(new_pattern, t) - 1]
                index[stop + 1 : t + 1] = now
                t = stop
        return index

    def _extend(self, later: int, line: list[int]) -> list[int]:
        """The nodes of filtered nodes one before the other, up to one that is there already."""
        if line[0] < 0:
            self._known[later, -1] = 0
            return [0]
        behind = self._information[later]
        loops = self.path.closed_loop[line]
        information = kalman.adjoints(self.path.information[line], loops, behind)
        sizes, changes = size_of(information), size_of(information - torch.cat([behind[None], information[:-1]]))
        nodes = []
        for i, (node, size, change) in enumerate(zip(line, sizes.tolist(), changes.tolist(), strict=True)):
            if (later, node) in self._known:
                break
            child = len(self._of)
            nodes.append(self._add(later, node, information[i], size, change, loops[i]))
            if nodes[-1] != child:
                break
            later = child
        return nodes

    def _go_apart(self, pairs: list[tuple[int, int]]) -> None:
        """Adds the nodes of (node of the step behind, filtered node) pairs."""
        self._known.update({pair: 0 for pair in pairs if pair[1] < 0})
        pairs = [pair for pair in pairs if pair[1] >= 0]
        if not pairs:
            return
        behind, nodes = (list(part) for part in zip(*pairs, strict=True))
        later, loops = torch.stack([self._information[n] for n in behind]), self.path.closed_loop[nodes]
        information = kalman.adjoint(self.path.information[nodes], loops, later)
        sizes, changes = size_of(information).tolist(), size_of(information - later).tolist()
        for (later_node, node), *about, size, change in zip(pairs, information, loops, sizes, changes, strict=True):
            self._add(later_node, node, about[0], size, change, about[1])

    def _add(self, later: int, node: int, information: Tensor, size: float, change: float, loop: Tensor) -> int:
        """The node of a pair: one that it is equal to, or a new one."""
        same = self._same_as(later, node, information, size or 1.0, change, loop) if node in self.path.steady else None
        self._known[later, node] = len(self._of) if same is None else same
        if same is None:
            self._information.append(information)
            self._of.append(node)
            self._later.append(later)
        return self._known[later, node]

    def _same_as(
        self, later: int, node: int, information: Tensor, scale: float, change: float, loop: Tensor
    ) -> int | None:
        """The node that this one, of a filtered node that follows itself, is equal to, or None."""
        if self._of[later] != node:
            return None
        convergence, product = self._convergence, None
        if convergence.wants_gradient:
            _, product = convergence.memory(later, loop.mT)
        forgotten = convergence.forgotten(product)
        fixed = self._fixed.get(node)
        still, record = convergence.still(later, change / scale)
        child = len(self._of)
        if forgotten and fixed is not None:
            distance = convergence.agree if still else self.path.given.tol
            if float(size_of(information - self._information[fixed])) <= distance * scale:
                return fixed
        if still and forgotten:
            # from here on, not from the later node on: covariances go by N of the step behind, which there is still another
            self._fixed[node] = child
            self._known[child, node] = child
            return None
        convergence.records[child] = record
        if product is not None:
            convergence.sensitivity[child] = product
        return None

    @property
    def smoothed(self) -> Tensor:
        return self._tables[0]

    @property
    def lag_one(self) -> Tensor:
        return self._tables[1]

    @once
    def _tables(self) -> tuple[Tensor, Tensor]:
        # made when asked for: gradients of the likelihood go without
        path, nodes = self.path, self.of[1:]
        later = self.information[self.later[1:]]
        gain, behind = path.gain[nodes], [max(self.of[n], 0) for n in self.later[1:]]
        zero = torch.zeros_like(self.information[:1])
        smoothed = torch.cat([zero, kalman.smoothed(path.filtered[nodes], gain, later)])
        lag_one = torch.cat([zero, kalman.lag_one(gain, path.predicted[behind], later)])
        with torch.no_grad():  # of states that little was known of: differences of large numbers
            most = [0.0] * len(self.of)  # of N of all steps behind: its rounding errors reach this one
            for node, (after, size) in enumerate(zip(self.later[1:], size_of(later).tolist(), strict=True), 1):
                most[node] = max(size, most[after])
            error = torch.finfo(DOUBLE).eps * size_of(gain).square() * gain.new_tensor(most[1:])
            least = smoothed[1:].diagonal(dim1=-2, dim2=-1).amax(-1)
            lost = (error > CAREFUL * least).nonzero().flatten() + 1
        return self._go_from_states(lost.tolist(), smoothed, lag_one) if len(lost) else (smoothed, lag_one)

    def _go_from_states(self, lost: list[int], of_nodes: Tensor, of_pairs: Tensor) -> tuple[Tensor, Tensor]:
        """The covariances of some nodes anew, from those of the steps behind: sums alone, so that digits are kept.

        Source: H. E. Rauch, F. Tung and C. T. Striebel (1965), Maximum likelihood estimates of linear dynamic systems.
        """
        path, smoothed, lag_one = self.path, [*of_nodes], [*of_pairs]
        for k in lost:  # a node comes after that of the step behind it
            node, after = self.of[k], smoothed[self.later[k]]
            matrix, noise = (part[node if len(part) > 1 else 0] for part in (path.matrix, path.noise))
            gain, spread = kalman.backward(path.filtered[node], matrix, noise)
            smoothed[k] = kalman.symmetric(spread + gain @ after @ gain.mT)
            lag_one[k] = after @ gain.mT
        return torch.stack(smoothed), torch.stack(lag_one)
