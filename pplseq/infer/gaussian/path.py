"""The covariances of a Gaussian chain: they depend on what was observed when, and not on what it was.

Few of them are distinct. All rows share those of the transient; once a step changes nothing any more the covariance is the
steady one and stands for all steps to come; what follows a missing observation depends only on how long it has been missing.
So covariances are nodes of a table, a step leads from node to node, and each step and row keeps the number of its node.
They are computed in double precision whatever the means are computed in: there are few, and they decide when to stop.
"""

from __future__ import annotations

import bisect
import math
import warnings
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.gaussian.convergence import DOUBLE, Convergence, size_of
from pplseq.kernels import kalman
from pplseq.kernels.matrix_equations import symmetric

LOST = 1e-5  # rounding errors above this, relative, are worth a warning
CAREFUL = 1e-9  # and above this, a dearer formula, where there is one


class PathInput(NamedTuple):
    """What covariances depend on, in double precision, with a time and a row dimension (of size 1: the same for all).

    start: (1 | R, h, h). matrix, noise: (1 | T-1, 1 | R, h, h). information: (1 | T, 1 | R, h, h).
    loadings: (n, h) U of white observed numbers, where information is U' U, or None.
    seen: (T, R) bool on the CPU, or None where nothing is missing. tol: relative change taken for none; 0 never.
    """

    start: Tensor
    matrix: Tensor
    noise: Tensor
    information: Tensor
    loadings: Tensor | None
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


class CovariancePath:
    """Predicted and filtered covariances of all steps and rows.

    Attributes (N nodes, double precision, differentiable):
        predicted, filtered: (N, h, h). carry, half_log_det: see :class:`~pplseq.kernels.kalman.Updated`.
        forward: (N, h, h) W A, the mean's step into the node. matrix, noise: (N | 1, h, h), those of the step out of it.
        index: (T,) where rows agree, else (T, R): the node of each step. steady: nodes that follow themselves.
        steady_step: the first step at which all rows are in the steady state, or None.
    """

    def __init__(self, given: PathInput):
        self.given = given
        self.device = given.start.device
        self._predicted: list[Tensor] = [*symmetric(given.start)]
        self._sizes: list[Tensor] = [*size_of(given.start)]  # of predicted nodes
        self._next: dict[int, int] = {}  # filtered node -> predicted node
        self._parts: list[kalman.Updated | kalman.UpdatedByNumbers] = []
        self._observed: list[Tensor] = []  # what observations add: information, or loadings of white numbers
        self._place: list[tuple[int, int, int]] = []  # of a filtered node: predicted node, step, row
        self._begin: list[int] = []  # first node of each part
        self._filtered: list[Tensor] = []
        self._moved: dict[int, Tensor] = {}  # filtered node -> A Sigma
        h = given.start.shape[-1]
        self._convergence = Convergence(given.tol, given.wait_for_rounding, given.wants_gradient, h)
        self._fixed: list[int] = []  # predicted nodes that follow themselves
        self._warned = False
        self._size: Tensor | None = None
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
        information, loadings = pick(self.given.information, steps, rows), self.given.loadings
        before = torch.stack([self._predicted[p] for p in predicted])
        sizes = torch.stack([self._sizes[p] for p in predicted])
        precision = float((sizes * self._information_size(information)).max())
        self._expect_rounding(precision)
        observed = information if loadings is None else loadings.unsqueeze(0)
        if not all(seen):
            observed = observed * torch.tensor(seen, device=self.device, dtype=DOUBLE).view(-1, 1, 1)
        if loadings is None:
            part = kalman.update(before, observed)
        else:
            careful = torch.finfo(DOUBLE).eps * precision > CAREFUL
            part = kalman.update_by_numbers(before, observed, careful)
        self._begin.append(len(self._filtered))
        self._parts.append(part)
        self._observed.append(observed)
        self._filtered.extend(part.filtered)
        self._place.extend(zip(predicted, steps, rows, strict=True))

    def _information_size(self, information: Tensor) -> Tensor:
        if self.given.changes or self.given.by_row:
            return size_of(information)
        if self._size is None:  # always the same
            self._size = size_of(information)
        return self._size

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
        moved = matrix @ torch.stack([self._filtered[n] for n in nodes])
        self._moved.update(zip(nodes, moved, strict=True))
        later = symmetric(moved @ matrix.mT) + noise
        sizes = size_of(later)
        tries = given.tol > 0 and not given.changes and not given.by_row
        for i, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
            self._next[node] = len(self._predicted)
            record = product = None
            if tries:
                fresh = parent in self._fixed
                before, product = self._convergence.memory(parent, lambda n=node: matrix[0] @ self._carry_of(n), fresh)
                scale = float(sizes[i]) or 1.0
                change = float(size_of(later[i] - self._predicted[parent])) / scale
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
            self._sizes.append(sizes[i])
            child = len(self._predicted) - 1
            if record is not None:
                self._convergence.records[child] = record
            if product is not None:
                self._convergence.sensitivity[child] = product

    def _nearest(self, matrix: Tensor, parent: int, distance: float) -> int | None:
        """A node that stands still, and not the parent, within a distance."""
        for p in self._fixed:
            if p != parent and float(size_of(matrix - self._predicted[p])) <= distance:
                return p
        return None

    # ---------------------------------------------------------------- the table
    def _tabulate(self) -> None:
        given = self.given
        self.half_log_det = torch.cat([part.half_log_det for part in self._parts])
        parents, steps, rows = (list(part) for part in zip(*self._place, strict=True))
        self.parent = parents
        self.matrix, self.noise = pick(given.matrix, steps, rows), pick(given.noise, steps, rows)
        self._into = pick(given.matrix, [max(s - 1, 0) for s in steps], rows)
        self.steady = frozenset(n for n, later in self._next.items() if later == parents[n] and later in self._fixed)

    @property
    def rounding(self) -> float:
        """Relative changes of covariances that may be rounding errors."""
        return self._convergence.rounding

    @property
    def num_nodes(self) -> int:
        return len(self._filtered)

    def _carry_of(self, node: int) -> Tensor:
        """(h, h) W of one node."""
        part, i = self._find(node)
        if self.given.loadings is None:
            return self._parts[part].carry[i]
        observed = self._observed[part]
        return self._identity - self._parts[part].gain[i] @ observed[min(i, len(observed) - 1)]

    def _find(self, node: int) -> tuple[int, int]:
        """The part a node is in, and where there."""
        part = bisect.bisect_right(self._begin, node) - 1
        return part, node - self._begin[part]

    def step_of_means(self, node: int, whitener: Tensor) -> Tensor:
        """(n, h + n) transposes of K R and L^-1 R side by side: what an innovation that is not white does at one node."""
        both = torch.cat([self.kalman_gain[node].mT, self.whitener[node].mT], 1)
        return whitener.unsqueeze(-1) * both if whitener.dim() == 1 else whitener.mT @ both

    def step_back(self, node: int) -> Tensor:
        """(h, 2 h) A W and A Sigma side by side: what the smoother needs of one node."""
        matrix = self.matrix[node if len(self.matrix) > 1 else 0]
        part, i = self._find(node)
        observed = self._observed[part]
        loop = matrix - (matrix @ self._parts[part].gain[i]) @ observed[min(i, len(observed) - 1)]
        return torch.cat([loop, self._moved[node]], 1)

    # ---------------------------------------------------------------- all nodes at once, made when they are asked for
    @cached_property
    def _identity(self) -> Tensor:
        return torch.eye(self.given.start.shape[-1], dtype=DOUBLE, device=self.device)

    @cached_property
    def _what_observed(self) -> Tensor:
        """Information (N, h, h), or loadings (N, n, h)."""
        pairs = zip(self._parts, self._observed, strict=True)
        return torch.cat([observed.expand(len(part.filtered), -1, -1) for part, observed in pairs])

    @cached_property
    def filtered(self) -> Tensor:
        return torch.stack(self._filtered)

    @cached_property
    def predicted(self) -> Tensor:
        return torch.stack([self._predicted[p] for p in self.parent])

    @cached_property
    def kalman_gain(self) -> Tensor:
        """(N, h, n) K, of white numbers."""
        return torch.cat([part.gain for part in self._parts])

    @cached_property
    def whitener(self) -> Tensor:
        """(N, n, n) L^-1, of white numbers."""
        return torch.cat([part.whitener for part in self._parts])

    @cached_property
    def carry(self) -> Tensor:
        if self.given.loadings is None:
            return torch.cat([part.carry for part in self._parts])
        return self._identity - self.kalman_gain @ self._what_observed

    @cached_property
    def forward(self) -> Tensor:
        return self.carry @ self._into

    @cached_property
    def information(self) -> Tensor:
        """(N, h, h) Lam W, what the node's observation says beyond the past."""
        if self.given.loadings is None:
            return symmetric(self._what_observed @ self.carry)
        white = self.whitener @ self._what_observed
        return white.mT @ white

    @cached_property
    def closed_loop(self) -> Tensor:
        """(N, h, h) A W, the step of means out of the node."""
        if self.given.loadings is None:
            return self.matrix @ self.carry
        return self.matrix - (self.matrix @ self.kalman_gain) @ self._what_observed

    @cached_property
    def gain(self) -> Tensor:
        """(N, h, h) Sigma A'."""
        several = len(self.matrix) > 1
        moved = [
            self._moved[n] if n in self._moved else self.matrix[n if several else 0] @ self._filtered[n]
            for n in range(self.num_nodes)
        ]
        return torch.stack(moved).mT
