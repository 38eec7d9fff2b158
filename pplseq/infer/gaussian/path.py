"""The covariances of a Gaussian chain: they depend on what was observed when, and not on what it was.

Few of them are distinct. All rows share those of the transient; once a step changes nothing any more the covariance is the
steady one and stands for all steps to come; what follows a missing observation depends only on how long it has been missing.
So covariances are nodes of a table, a step leads from node to node, and each step and row keeps the number of its node.
They are computed in double precision whatever the means are computed in: there are few, and they decide when to stop.
"""

from __future__ import annotations

import bisect
import itertools
import math
import warnings
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.gaussian.given import PathInput, pick
from pplseq.kernels import kalman
from pplseq.kernels.kalman import DOUBLE, Convergence, size_of, symmetric

LOST = 1e-5  # rounding errors above this, relative, are worth a warning
CAREFUL = 1e-9  # and above this, a dearer formula, where there is one
BLOCK = 16  # steps at a time, before it is asked whether anything still changes


class Part(NamedTuple):
    """Filtered nodes that were made together.

    first: the number of the first one. observed: (N | 1, h, h) information, or (N | 1, n, h) loadings of white numbers, zero
    where nothing was seen. moved: (N, h, h) A Sigma.
    """

    first: int
    updated: Any  # kalman.Updated, or kalman.UpdatedByNumbers
    observed: Tensor
    moved: Tensor

    def cut(self, count: int) -> Part:
        """Its first nodes."""
        if count == len(self.moved):
            return self
        updated = type(self.updated)(*(value[:count] for value in self.updated))
        return Part(self.first, updated, self.observed[:count], self.moved[:count])


FIRST = attrgetter("first")


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
        self._sizes: list[float] = size_of(given.start).tolist()  # of predicted nodes
        self._next: dict[int, int] = {}  # filtered node -> predicted node
        self._parts: list[Part] = []
        self._place: list[tuple[int, int, int]] = []  # of a filtered node: predicted node, step, row
        h = given.start.shape[-1]
        self._convergence = Convergence(given.tol, given.wait_for_rounding, given.wants_gradient, h)
        self._fixed: list[int] = []  # predicted nodes that follow themselves
        self._warned = False
        self._by_row, self._changes = given.by_row, given.changes
        self._tries = given.tol > 0 and not self._by_row and not self._changes  # to find the steady state
        observed = given.information if given.loadings is None else given.loadings[None, None]
        self._observed, self._precision = observed, size_of(given.information)
        self.steady_step: int | None = None
        index = self._walk()
        self.index = torch.from_numpy(index[:, 0] if index.shape[1] == 1 else index).to(self.device)
        self._tabulate()

    # ---------------------------------------------------------------- from node to node
    def _walk(self) -> np.ndarray:
        given, by_row = self.given, self._by_row
        rows = given.num_rows if len(given.start) > 1 or by_row or given.seen is not None else 1
        seen = np.ones((given.num_steps, 1), dtype=bool) if given.seen is None else given.seen
        seen = np.broadcast_to(seen, (given.num_steps, rows))
        new_pattern = [*(np.flatnonzero((seen[1:] != seen[:-1]).any(1)) + 1).tolist(), given.num_steps]
        now = np.arange(rows) if len(given.start) > 1 else np.zeros(rows, dtype=np.int64)
        index = np.empty((given.num_steps, rows), dtype=np.int64)
        known: dict[int, int] = {}  # predicted node (and row) and whether an observation was seen -> filtered node
        row_key = 2 * (np.arange(rows) if by_row else np.zeros(rows, dtype=np.int64))
        t = 0
        while t < given.num_steps:
            if self._changes or by_row:
                known = {}
            if not by_row and (now == now[0]).all() and (seen[t] == seen[t, 0]).all():
                stop = new_pattern[bisect.bisect_right(new_pattern, t)]
                t, later = self._go_together(int(now[0]), t, stop, bool(seen[t, 0]), known, index)
                now = np.full_like(now, later)
                continue
            key = (now * (rows if by_row else 1)) * 2 + row_key + seen[t]
            keys, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            new = [i for i, k in enumerate(keys.tolist()) if k not in known]
            if new:
                known.update(zip(keys[new].tolist(), itertools.count(self.num_nodes)))
                self._go_apart([(int(now[r]), t, int(r)) for r in first[new]], [bool(seen[t, r]) for r in first[new]])
            nodes = np.array([known[k] for k in keys.tolist()])
            index[t] = nodes[inverse.reshape(-1)]
            t += 1
            if t == given.num_steps:
                break
            later = np.array([self._next[n] for n in nodes.tolist()])[inverse.reshape(-1)]
            if self._fixed and self._tries and (later == now).all():  # nothing changes until the pattern does
                stop = new_pattern[bisect.bisect_left(new_pattern, t)]
                index[t:stop] = index[t - 1]
                if self.steady_step is None and seen[t - 1].all():
                    self.steady_step = t - 1
                t = stop
            now = later
        return index

    def _go_together(
        self, parent: int, t: int, stop: int, seen: bool, known: dict[int, int], index: np.ndarray
    ) -> tuple[int, int]:
        """From t on, all rows from one predicted node with the same pattern until ``stop``; where to, and the node there."""
        while t < stop:
            node = known.get(2 * parent + seen)
            if node is None:
                count = self._extend(parent, t, min(stop - t, BLOCK), seen, known)
                node = self.num_nodes - 1
                index[t : t + count] = np.arange(node + 1 - count, node + 1)[:, None]
                t += count
            else:
                index[t] = node
                t += 1
            if t == self.given.num_steps:
                break
            later = self._next[node]
            if self._tries and later == self._place[node][0]:  # nothing changes until the pattern does
                index[t:stop] = node
                if self.steady_step is None and seen:
                    self.steady_step = t - 1
                t = stop
            parent = later
        return t, parent

    def _extend(self, parent: int, t: int, count: int, seen: bool, known: dict[int, int]) -> int:
        """Adds a line of filtered nodes behind a predicted one, up to where it meets one that is there; how many."""
        given, steps = self.given, range(t, t + count)
        matrix, noise = pick(given.matrix, steps, 0), pick(given.noise, steps, 0)
        observed, precision = pick(self._observed, steps, 0), pick(self._precision, steps, 0).tolist()
        observed = observed if seen else torch.zeros_like(observed)
        careful = self._is_careful(self._sizes[parent] * precision[0])
        updated, moved, later = kalman.advance(
            self._predicted[parent], matrix, noise, observed, count, None if given.loadings is None else careful
        )
        self._parts.append(Part(self.num_nodes, updated, observed, moved))
        sizes = size_of(later).tolist()
        changes = size_of(later - torch.cat([self._predicted[parent][None], later[:-1]])).tolist()
        for i in range(count):
            size = self._sizes[parent] * precision[min(i, len(precision) - 1)]
            if i and given.loadings is not None and self._is_careful(size) != careful:
                count = i  # another formula from here on
                break
            self._expect_rounding(size)
            node, child = len(self._place), len(self._predicted)
            known[2 * parent + seen] = node
            self._place.append((parent, t + i, 0))
            if t + i + 1 == given.num_steps or self._follow(node, parent, later[i], sizes[i], changes[i]) != child:
                count = i + 1
                break
            parent = child
        self._parts[-1] = self._parts[-1].cut(count)
        return count

    def _go_apart(self, new: list[tuple[int, int, int]], seen: list[bool]) -> None:
        """Adds filtered nodes side by side, from (predicted node, step, row), and what follows them."""
        parents, steps, rows = zip(*new, strict=True)
        given, last = self.given, steps[0] + 1 == self.given.num_steps
        matrix, noise = pick(given.matrix, steps, rows), pick(given.noise, steps, rows)
        observed = pick(self._observed, steps, rows)
        if not all(seen):
            observed = observed * torch.tensor(seen, device=self.device, dtype=DOUBLE).view(-1, 1, 1)
        sizes = torch.tensor([self._sizes[p] for p in parents], dtype=DOUBLE, device=self.device)
        precision = float((sizes * pick(self._precision, steps, rows)).max())
        self._expect_rounding(precision)
        before = torch.stack([self._predicted[p] for p in parents])
        if given.loadings is None:
            updated = kalman.update(before, observed)
        else:
            updated = kalman.update_by_numbers(before, observed, self._is_careful(precision))
        moved = matrix @ updated.filtered
        self._parts.append(Part(self.num_nodes, updated, observed, moved))
        first = self.num_nodes
        self._place.extend(new)
        if last:
            return
        later = symmetric(moved @ matrix.mT) + noise
        numbers = zip(parents, later, size_of(later).tolist(), size_of(later - before).tolist(), strict=True)
        for node, (parent, matrix, size, change) in enumerate(numbers, first):
            self._follow(node, parent, matrix, size, change)

    def _follow(self, node: int, parent: int, later: Tensor, size: float, change: float) -> int:
        """The predicted node behind a filtered one, whose covariance is ``later``: one that is there, or a new one."""
        record = product = None
        child = len(self._predicted)
        if self._tries:
            convergence, fresh, scale = self._convergence, parent in self._fixed, size or 1.0
            before = None
            if convergence.wants_gradient:
                loop = pick(self.given.matrix, 0, 0)[0] @ self._carry_of(node)
                before, product = convergence.memory(parent, loop, fresh)
            still, record = convergence.still(parent, change / scale, fresh)
            near = None
            if self._fixed and convergence.forgotten(product):
                near = self._nearest(later, parent, scale * convergence.tol)
                if near is None and still:
                    near = self._nearest(later, parent, scale * convergence.agree)
            if near is None and still and convergence.forgotten(before):  # the parent stands for all to come
                near = parent
                if not fresh:
                    self._fixed.append(parent)
            if near is not None:
                self._next[node] = near
                return near
            convergence.records[child] = record
            if product is not None:
                convergence.sensitivity[child] = product
        self._next[node] = child
        self._predicted.append(later)
        self._sizes.append(size)
        return child

    def _nearest(self, matrix: Tensor, parent: int, distance: float) -> int | None:
        """A node that stands still, and not the parent, within a distance."""
        for p in self._fixed:
            if p != parent and float(size_of(matrix - self._predicted[p])) <= distance:
                return p
        return None

    @staticmethod
    def _is_careful(precision: float) -> bool:
        return torch.finfo(DOUBLE).eps * precision > CAREFUL

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

    # ---------------------------------------------------------------- the table
    def _tabulate(self) -> None:
        given = self.given
        self.half_log_det = self._all("half_log_det")
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
        return len(self._place)

    def _all(self, name: str) -> Tensor:
        """What updates made of all nodes."""
        return torch.cat([getattr(part.updated, name) for part in self._parts])

    def _carry_of(self, node: int) -> Tensor:
        """(h, h) W of one node."""
        part, i = self._find(node)
        if self.given.loadings is None:
            return part.updated.carry[i]
        return self._identity - part.updated.gain[i] @ part.observed[min(i, len(part.observed) - 1)]

    def _find(self, node: int) -> tuple[Part, int]:
        """The part a node is in, and where there."""
        part = self._parts[bisect.bisect_right(self._parts, node, key=FIRST) - 1]
        return part, node - part.first

    def steps_of_means(self, whitener: Tensor) -> Tensor:
        """(N, n, h + n) transposes of K R and L^-1 R side by side: what an innovation that is not white does at each node."""
        both = torch.cat([self.kalman_gain.mT, self.whitener.mT], 2)
        return whitener.unsqueeze(-1) * both if whitener.dim() == 1 else whitener.mT @ both

    def steps_back(self) -> Tensor:
        """(N, h, 2 h) A W and A Sigma side by side: what the smoother needs of each node."""
        return torch.cat([self.closed_loop, self.gain.mT], 2)

    # ---------------------------------------------------------------- all nodes at once, made when they are asked for
    @cached_property
    def _identity(self) -> Tensor:
        return torch.eye(self.given.start.shape[-1], dtype=DOUBLE, device=self.device)

    @cached_property
    def _what_observed(self) -> Tensor:
        """Information (N, h, h), or loadings (N, n, h)."""
        return torch.cat([part.observed.expand(len(part.moved), -1, -1) for part in self._parts])

    @cached_property
    def filtered(self) -> Tensor:
        return self._all("filtered")

    @cached_property
    def predicted(self) -> Tensor:
        return torch.stack([self._predicted[p] for p in self.parent])

    @cached_property
    def kalman_gain(self) -> Tensor:
        """(N, h, n) K, of white numbers."""
        return self._all("gain")

    @cached_property
    def whitener(self) -> Tensor:
        """(N, n, n) L^-1, of white numbers."""
        return self._all("whitener")

    @cached_property
    def carry(self) -> Tensor:
        if self.given.loadings is None:
            return self._all("carry")
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
        return torch.cat([part.moved for part in self._parts]).mT
