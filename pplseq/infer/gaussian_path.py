"""The covariances of a Gaussian chain: they depend on what was observed when, and not on what it was.

Few of them are distinct. All rows share those of the transient; once a step changes nothing any more the covariance is the
steady one and stands for all steps to come; what follows a missing observation depends only on how long it has been missing.
So covariances are nodes of a table, a step leads from node to node, and each step and row keeps the number of its node.
They are computed in double precision whatever the means are computed in: there are few, and they decide when to stop.
"""

from __future__ import annotations

import math
import warnings
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.kernels import kalman

DOUBLE = torch.float64
ROUNDING = 1e4 * torch.finfo(DOUBLE).eps  # changes below this that stopped falling are rounding errors
LOST = 1e-5  # rounding errors above this, relative, are worth a warning
PATIENCE = 16  # steps without a smaller change


class PathInput(NamedTuple):
    """What covariances depend on, in double precision, with a time and a row dimension (of size 1: the same for all).

    start: (1 | R, h, h). matrix, noise: (1 | T-1, 1 | R, h, h). information: (1 | T, 1 | R, h, h).
    seen: (T, R) bool on the CPU, or None where nothing is missing. tol: relative change taken for none; 0 never.
    """

    start: Tensor
    matrix: Tensor
    noise: Tensor
    information: Tensor
    seen: np.ndarray | None
    num_steps: int
    num_rows: int
    tol: float
    wait_for_rounding: bool

    @property
    def changes(self) -> bool:
        """Matrices differ from step to step."""
        return any(len(m) > 1 for m in (self.matrix, self.noise, self.information))

    @property
    def by_row(self) -> bool:
        """Matrices differ from row to row."""
        return any(m.shape[1] > 1 for m in (self.matrix, self.noise, self.information))

    @property
    def wants_gradient(self) -> bool:
        inputs = (self.start, self.matrix, self.noise, self.information)
        return torch.is_grad_enabled() and any(m.requires_grad for m in inputs)


def pick(matrix: Tensor, steps, rows) -> Tensor:
    """(k, h, h) the matrices of k steps and rows; or (1, h, h) where there is one for all."""
    if len(matrix) == 1 and matrix.shape[1] == 1:
        return matrix[0]
    steps = torch.as_tensor(steps, device=matrix.device).clamp(max=len(matrix) - 1)
    rows = torch.as_tensor(rows, device=matrix.device).clamp(max=matrix.shape[1] - 1)
    return matrix[steps, rows]


def _size(matrix: Tensor) -> Tensor:
    return matrix.detach().abs().flatten(-2).amax(-1)


class Record(NamedTuple):
    """Relative changes on the way to a node: the smallest one, the number of steps since then, the last one."""

    least: float = float("inf")
    age: int = 0
    last: float = 0.0


class _Convergence:
    """Decides when a recursion of covariances stands still: in value and, where gradients are wanted, in them as well.

    A change of an early covariance changes a later one by X dP X' with X the product of closed loops in between; unless X has
    died out, too, a start that happens to be the steady covariance would hide the gradient of everything behind it.
    """

    def __init__(self, tol: float, wait_for_rounding: bool, wants_gradient: bool, h: int):
        self.tol, self.wait_for_rounding, self.wants_gradient = tol, wait_for_rounding, wants_gradient
        self.sensitivity: dict[int, Tensor] = {}  # node -> X
        self.records: dict[int, Record] = {}
        self.rounding = ROUNDING
        self.identity = torch.eye(h, dtype=DOUBLE)

    @property
    def agree(self) -> float:
        """Relative difference within which two covariances that stand still are one: well above rounding."""
        return max(self.tol, 100 * self.rounding) if self.wait_for_rounding else self.tol

    def memory(self, parent: int, loop: Tensor, fresh: bool = False) -> tuple[Tensor | None, Tensor | None]:
        """X of a node, and of the one behind it by a step with this closed loop; None where it does not count.

        fresh: the parent stands still; what departs from it starts anew.
        """
        if not self.wants_gradient:
            return None, None
        before = self.identity if fresh else self.sensitivity.get(parent, self.identity)
        return before, loop.detach().to(self.identity.device) @ before

    def forgotten(self, product: Tensor | None) -> bool:
        """Whether the start no longer matters: X is negligible."""
        return product is None or float(product.norm()) ** 2 <= self.tol * max(1.0, float(len(product)) ** 0.5)

    def still(self, parent: int, change: float, fresh: bool = False) -> tuple[bool, Record]:
        """Whether a relative change is none, and the record to keep for the new node; fresh: as above."""
        before = Record() if fresh else self.records.get(parent, Record())
        least, age = before.least, before.age + 1
        if change < least or change > 100 * self.rounding:  # what is far above rounding is a new transient, behind a gap
            least, age = change, 0
        rounding = self.wait_for_rounding and max(least, change) <= self.rounding and age >= PATIENCE
        ahead = change
        if self.wait_for_rounding and self.tol > ROUNDING and before.last > 0:
            # single precision: small changes of a slow chain add up, as a geometric series, to what is not small
            rate = change / before.last
            ahead = max(change, change * rate / (1 - rate)) if rate < 1 else float("inf")
        return ahead <= self.tol or rounding, Record(least, age, change)


class CovariancePath:
    """Predicted and filtered covariances of all steps and rows.

    Attributes (N nodes, double precision, differentiable):
        predicted, filtered: (N, h, h). carry, half_log_det: see :class:`~pplseq.infer.kernels.kalman.Updated`.
        forward: (N, h, h) W A, the mean's step into the node. matrix, noise: (N | 1, h, h), those of the step out of it.
        index: (T,) where rows agree, else (T, R): the node of each step. steady: nodes that follow themselves.
        steady_step: the first step at which all rows are in the steady state, or None.
    """

    def __init__(self, given: PathInput):
        self.given = given
        self.device = given.start.device
        self._predicted: list[Tensor] = [*kalman.symmetric(given.start)]
        self._next: dict[int, int] = {}  # filtered node -> predicted node
        self._parts: list[kalman.Updated] = []
        self._observed: list[Tensor] = []  # information of the observations
        self._place: list[tuple[int, int, int]] = []  # of a filtered node: predicted node, step, row
        self._filtered: list[Tensor] = []
        self._carry: list[Tensor] = []
        h = given.start.shape[-1]
        self._convergence = _Convergence(given.tol, given.wait_for_rounding, given.wants_gradient, h)
        self._fixed: list[int] = []  # predicted nodes that follow themselves
        self._warned = False
        self.steady_step: int | None = None
        index = self._walk()
        self.index = torch.from_numpy(index[:, 0] if index.shape[1] == 1 else index).to(self.device)
        self._tabulate()

    # ---------------------------------------------------------------- from node to node
    def _walk(self) -> np.ndarray:
        given = self.given
        rows = given.num_rows if len(given.start) > 1 or given.by_row or given.seen is not None else 1
        seen = np.ones((given.num_steps, 1), dtype=bool) if given.seen is None else given.seen
        seen = np.broadcast_to(seen, (given.num_steps, rows))
        new_pattern = np.flatnonzero((seen[1:] != seen[:-1]).any(1)) + 1
        now = np.arange(rows) if len(given.start) > 1 else np.zeros(rows, dtype=np.int64)
        index = np.empty((given.num_steps, rows), dtype=np.int64)
        known: dict[int, int] = {}
        row_key = 2 * (np.arange(rows) if given.by_row else np.zeros(rows, dtype=np.int64))
        t = 0
        while t < given.num_steps:
            if given.changes or given.by_row:
                known = {}
            key = (now * (rows if given.by_row else 1)) * 2 + row_key + seen[t]
            keys, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            new = [i for i, k in enumerate(keys.tolist()) if k not in known]
            if new:
                self._observe([(int(now[r]), t, int(r), bool(seen[t, r])) for r in first[new]])
                known.update(zip(keys[new].tolist(), range(len(self._place) - len(new), len(self._place)), strict=True))
            nodes = np.array([known[k] for k in keys.tolist()])
            index[t] = nodes[inverse.reshape(-1)]
            if t + 1 < given.num_steps:
                self._step([n for n in nodes.tolist() if n not in self._next])
            t += 1
            if t == given.num_steps:
                break
            later = np.array([self._next[n] for n in nodes.tolist()])[inverse.reshape(-1)]
            if self._fixed and (later == now).all() and not given.changes and not (given.by_row):
                # nothing changes until the pattern does
                position = np.searchsorted(new_pattern, t)
                stop = int(new_pattern[position]) if position < len(new_pattern) else given.num_steps
                index[t:stop] = index[t - 1]
                if self.steady_step is None and seen[t - 1].all():
                    self.steady_step = t - 1
                t = stop
            now = later
        return index

    def _observe(self, new: list[tuple[int, int, int, bool]]) -> None:
        """Adds filtered nodes: (predicted node, step, row, seen)."""
        predicted, steps, rows, seen = zip(*new, strict=True)
        information = pick(self.given.information, steps, rows)
        if not all(seen):
            information = information * torch.tensor(seen, device=self.device, dtype=DOUBLE).view(-1, 1, 1)
        before = torch.stack([self._predicted[p] for p in predicted])
        self._expect_rounding(float((_size(before) * _size(information)).max()))
        part = kalman.update(before, information)
        self._parts.append(part)
        self._observed.append(information.expand_as(part.filtered))
        self._filtered.extend(part.filtered)
        self._carry.extend(part.carry)
        self._place.extend(zip(predicted, steps, rows, strict=True))

    def _expect_rounding(self, precision: float) -> None:
        """Precise observations, a large P Lam, cost digits: changes then stop falling further above the last digit."""
        error = torch.finfo(DOUBLE).eps * precision
        self._convergence.rounding = max(self._convergence.rounding, 64 * error)
        if error > LOST and not self._warned and not self.given.wants_gradient:  # samplers and optimisers pass through
            self._warned = True
            warnings.warn(
                f"observations are 1e{math.log10(precision):.0f} times as precise as what is known of the state before them: "
                f"in double precision results have about {max(-math.log10(error), 0):.0f} digits; give observations more noise",
                RuntimeWarning,
                stacklevel=2,
            )

    def _step(self, nodes: list[int]) -> None:
        """Finds the predicted nodes behind filtered ones."""
        if not nodes:
            return
        given = self.given
        parents, steps, rows = zip(*(self._place[n] for n in nodes), strict=True)
        matrix, noise = pick(given.matrix, steps, rows), pick(given.noise, steps, rows)
        later = kalman.predict(torch.stack([self._filtered[n] for n in nodes]), matrix, noise)
        tries = given.tol > 0 and not given.changes and not given.by_row
        for i, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
            self._next[node] = len(self._predicted)
            record = product = None
            if tries:
                loop = matrix[0] @ self._carry[node]
                fresh = parent in self._fixed
                before, product = self._convergence.memory(parent, loop, fresh)
                scale = float(_size(later[i])) or 1.0
                change = float(_size(later[i] - self._predicted[parent])) / scale
                still, record = self._convergence.still(parent, change, fresh)
                near = None
                if self._convergence.forgotten(product):
                    near = self._nearest(later[i], parent, scale * self._convergence.tol)
                    if near is None and still:
                        near = self._nearest(later[i], parent, scale * self._convergence.agree)
                if near is None and still and self._convergence.forgotten(before):  # the parent stands for all to come
                    near = parent
                    if not fresh:
                        self._fixed.append(parent)
                if near is not None:
                    self._next[node] = near
                    continue
            self._predicted.append(later[i])
            child = len(self._predicted) - 1
            if record is not None:
                self._convergence.records[child] = record
            if product is not None:
                self._convergence.sensitivity[child] = product

    def _nearest(self, matrix: Tensor, parent: int, distance: float) -> int | None:
        """A node that stands still, and not the parent, within a distance."""
        for p in self._fixed:
            if p != parent and float(_size(matrix - self._predicted[p])) <= distance:
                return p
        return None

    # ---------------------------------------------------------------- the table
    def _tabulate(self) -> None:
        given = self.given
        self.filtered, self.carry, self.half_log_det = (torch.cat(part) for part in zip(*self._parts, strict=True))
        parents, steps, rows = (list(part) for part in zip(*self._place, strict=True))
        self.parent = parents
        self.predicted = torch.stack(self._predicted)[parents]
        self.matrix, self.noise = pick(given.matrix, steps, rows), pick(given.noise, steps, rows)
        into = pick(given.matrix, [max(s - 1, 0) for s in steps], rows)
        self.forward = self.carry @ into
        self.steady = frozenset(n for n, later in self._next.items() if later == parents[n] and later in self._fixed)
        del self._parts, self._filtered, self._carry

    @property
    def rounding(self) -> float:
        """Relative changes of covariances that may be rounding errors."""
        return self._convergence.rounding

    @property
    def num_nodes(self) -> int:
        return len(self.filtered)

    # what only smoothing needs
    @cached_property
    def information(self) -> Tensor:
        """(N, h, h) Lam W, what the node's observation says beyond the past."""
        return kalman.symmetric(torch.cat(self._observed) @ self.carry)

    @cached_property
    def closed_loop(self) -> Tensor:
        """(N, h, h) A W, the step of means out of the node."""
        return self.matrix @ self.carry

    @cached_property
    def gain(self) -> Tensor:
        """(N, h, h) Sigma A'."""
        return self.filtered @ self.matrix.mT


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
        self._convergence = _Convergence(given.tol, given.wait_for_rounding, given.wants_gradient, h)
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
        _, product = self._convergence.memory(later, loop.mT)
        forgotten = self._convergence.forgotten(product)
        scale = float(_size(information)) or 1.0
        fixed = self._fixed.get(node)
        still, record = self._convergence.still(later, float(_size(information - self._information[later])) / scale)
        child = len(self._of)
        if forgotten and fixed is not None:
            distance = self._convergence.agree if still else self.path.given.tol
            if float(_size(information - self._information[fixed])) <= distance * scale:
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
