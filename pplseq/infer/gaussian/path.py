"""The covariances of a Gaussian chain: they depend on what was observed when, and not on what it was.

Few of them are distinct. All rows share those of the transient; once a step changes nothing any more the covariance is the
steady one and stands for all steps to come; what follows a missing observation depends only on how long it has been missing.
So covariances are nodes of a table, a step leads from node to node, and each step and row keeps the number of its node.
They are computed in double precision whatever the means are computed in: there are few, and they decide when to stop.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.distributions.gaussian_types import LOG_2PI
from pplseq.infer.gaussian.given import PathInput, pick
from pplseq.kernels import kalman
from pplseq.kernels.gaussian import compiled_kalman
from pplseq.kernels.kalman import DOUBLE, Convergence, check_density, precisions, scaled_size, size_of, symmetric
from pplseq.threads import once

LOST = 1e-5  # rounding errors above this, relative, are worth a warning
CAREFUL = 1e-9  # and above this, a dearer formula, where there is one
BLOCK = 16  # steps at a time, before it is asked whether anything still changes

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
        self._begin(given)
        self.fits_loops = self._fits_loops()
        self.is_compiled = self.fits_loops and compiled_kalman.walk_pays()
        index = self._walk_compiled() if self.is_compiled else self._walk()
        if self.fits_loops and not self.is_compiled:
            compiled_kalman.twin_walked(self.num_nodes)
        self.index = torch.from_numpy(index[:, 0] if index.shape[1] == 1 else index).to(self.device)
        self._tabulate()

    def _begin(self, given: PathInput) -> None:
        """Everything before the first step."""
        self.given = given
        self.device = given.start.device
        self._predicted: list[Tensor] = [*symmetric(given.start)]
        self._sizes: list[float] = size_of(given.start).tolist()  # of predicted nodes
        self._next: dict[int, int] = {}  # filtered node -> predicted node
        self._parts: list[kalman.Part] = []
        self._place: list[tuple[int, int, int]] = []  # of a filtered node: predicted node, step, row
        h = given.start.shape[-1]
        self._convergence = Convergence(given.tol, given.wait_for_rounding, given.wants_gradient, h)
        self._fixed: list[int] = []  # predicted nodes that follow themselves
        self._warned = False
        self._by_row, self._changes, self._by_numbers = given.by_row, given.changes, given.observed[1] is not None
        kinds = 1 if given.observed[2] is not None else len(given.observed[0]) - (given.nothing is not None)
        # to find the steady state
        self._tries = given.tol > 0 and not self._by_row and not self._changes and kinds == 1
        self._precision = precisions(*given.observed[:2])
        self.steady_step: int | None = None
        self.fits_loops = self.is_compiled = False
        self.walked: compiled_kalman.Walked | None = None  # what compiled loops found

    # ---------------------------------------------------------------- from node to node
    def _fits_loops(self) -> bool:
        """Whether there are compiled loops for such nodes: of observed numbers, matrices that stay, and no gradient."""
        given = self.given
        if not self._by_numbers or self._changes or self._by_row or given.wants_gradient:
            return False
        return compiled_kalman.applies(DOUBLE, self.device, given.start.shape[-1], given.observed[0].shape[1])

    def _walk_compiled(self) -> np.ndarray:
        """:meth:`_walk` by :func:`pplseq.kernels.gaussian.compiled_kalman.covariances`."""
        given, convergence = self.given, self._convergence
        walked = compiled_kalman.covariances(
            given.start, given.matrix[0, 0], given.noise[0, 0], given.observed, self._precision, given.which, self._columns,
            given.nothing, given.tol if self._tries else 0.0, convergence.agree, convergence.wait_for_rounding,
        )  # fmt: skip
        self.walked = walked
        updated = kalman.UpdatedByNumbers(walked.filtered, walked.gain, walked.whitener, walked.half_log_det)
        self._parts = [kalman.Part(0, updated, walked.kind.tolist(), walked.moved)]
        parents, nexts = walked.parent.tolist(), walked.later.tolist()
        self._place = list(zip(parents, walked.step.tolist(), walked.row.tolist(), strict=True))
        self._next, self._fixed = dict(enumerate(nexts)), walked.fixed
        self.predicted, self.steady_step = walked.predicted, walked.steady_step
        return walked.index

    @property
    def _columns(self) -> int:
        """1 where rows agree, else R."""
        given = self.given
        return given.num_rows if len(given.start) > 1 or self._by_row or given.which.shape[1] > 1 else 1

    def _walk(self) -> np.ndarray:
        given, by_row = self.given, self._by_row
        kinds, which = len(given.observed[0]), given.which
        rows = self._columns
        which = np.broadcast_to(which, (given.num_steps, rows))
        new_pattern = [*(np.flatnonzero((which[1:] != which[:-1]).any(1)) + 1).tolist(), given.num_steps]
        now = np.arange(rows) if len(given.start) > 1 else np.zeros(rows, dtype=np.int64)
        index = np.empty((given.num_steps, rows), dtype=np.int64)
        known: dict[int, int] = {}  # predicted node (and row) and kind of observation -> filtered node
        row_key = kinds * (np.arange(rows) if by_row else np.zeros(rows, dtype=np.int64))
        t = 0
        while t < given.num_steps:
            if self._changes or by_row:
                known = {}
            if not by_row and (now == now[0]).all() and (which[t] == which[t, 0]).all():
                stop = new_pattern[bisect.bisect_right(new_pattern, t)]
                t, later = self._go_together(int(now[0]), t, stop, int(which[t, 0]), known, index)
                now = np.full_like(now, later)
                continue
            key = (now * (rows if by_row else 1)) * kinds + row_key + which[t]
            keys, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            new = [i for i, k in enumerate(keys.tolist()) if k not in known]
            if new:
                known.update(zip(keys[new].tolist(), itertools.count(self.num_nodes)))
                self._go_apart([(int(now[r]), t, int(r)) for r in first[new]], [int(which[t, r]) for r in first[new]])
            nodes = np.array([known[k] for k in keys.tolist()])
            index[t] = nodes[inverse.reshape(-1)]
            t += 1
            if t == given.num_steps:
                break
            later = np.array([self._next[n] for n in nodes.tolist()])[inverse.reshape(-1)]
            if self._fixed and self._tries and (later == now).all():  # nothing changes until the pattern does
                stop = new_pattern[bisect.bisect_left(new_pattern, t)]
                index[t:stop] = index[t - 1]
                if self.steady_step is None and (which[t - 1] != given.nothing).all():
                    self.steady_step = t - 1
                t = stop
            now = later
        return index

    def _go_together(
        self, parent: int, t: int, stop: int, kind: int, known: dict[int, int], index: np.ndarray
    ) -> tuple[int, int]:
        """From t on, all rows from one predicted node with the same pattern until ``stop``; where to, and the node there."""
        kinds = len(self.given.observed[0])
        while t < stop:
            node = known.get(kinds * parent + kind)
            if node is None:
                count = self._extend(parent, t, min(stop - t, BLOCK), kind, known)
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
                if self.steady_step is None and kind != self.given.nothing:
                    self.steady_step = t - 1
                t = stop
            parent = later
        return t, parent

    def _extend(self, parent: int, t: int, count: int, kind: int, known: dict[int, int]) -> int:
        """Adds a line of filtered nodes behind a predicted one, up to where it meets one that is there; how many."""
        given, steps, kinds = self.given, range(t, t + count), len(self.given.observed[0])
        matrix, noise = pick(given.matrix, steps, 0), pick(given.noise, steps, 0)
        precision = self._precision[kind]
        careful = self._is_careful(self._sizes[parent], precision)

        updated, moved, later = kalman.advance(
            self._predicted[parent], matrix, noise, self._observer([kind], careful), count
        )
        self._parts.append(kalman.Part(self.num_nodes, updated, [kind] * count, moved))
        sizes = size_of(later).tolist()
        before = torch.cat([self._predicted[parent][None], later[:-1]])
        changes = self._changes_of(later, before, updated.whitener if self._by_numbers else None, kind)
        for i in range(count):
            size = self._sizes[parent]
            if not self._by_numbers:
                self._expect_rounding(size, precision)
            elif i and self._is_careful(size, precision) != careful:
                count = i  # another formula from here on
                break
            node, child = len(self._place), len(self._predicted)
            known[kinds * parent + kind] = node
            self._place.append((parent, t + i, 0))
            if t + i + 1 == given.num_steps or self._follow(node, parent, later[i], sizes[i], changes[i]) != child:
                count = i + 1
                break
            parent = child
        self._parts[-1] = self._parts[-1].cut(count)
        return count

    def _observer(self, kinds: list[int], careful: bool) -> Callable[[Tensor], Any]:
        """What observations of some kinds, one for all or one each, make of predicted covariances (N, h, h)."""
        loadings: Any
        loadings, noise, observed = (None if part is None else part[kinds] for part in self.given.observed)
        if noise is None:
            return functools.partial(kalman.update, information=loadings)
        return functools.partial(
            kalman.update_by_numbers, loadings=loadings, noise=noise, observed=observed, careful=careful
        )

    def _go_apart(self, new: list[tuple[int, int, int]], kinds: list[int]) -> None:
        """Adds filtered nodes side by side, from (predicted node, step, row), and what follows them."""
        parents, steps, rows = zip(*new, strict=True)
        given, last = self.given, steps[0] + 1 == self.given.num_steps
        matrix, noise = pick(given.matrix, steps, rows), pick(given.noise, steps, rows)
        careful = False
        for parent, kind in zip(parents, kinds, strict=True):
            if self._by_numbers:
                careful |= self._is_careful(self._sizes[parent], self._precision[kind])
            else:
                self._expect_rounding(self._sizes[parent], self._precision[kind])
        before = torch.stack([self._predicted[p] for p in parents])
        updated = self._observer(kinds, careful)(before)
        moved = matrix @ updated.filtered
        self._parts.append(kalman.Part(self.num_nodes, updated, kinds, moved))
        first = self.num_nodes
        self._place.extend(new)
        if last:
            return
        later = symmetric(moved @ matrix.mT) + noise
        changes = self._changes_of(later, before, updated.whitener if self._by_numbers else None, kinds)
        for node, about in enumerate(zip(parents, later, size_of(later).tolist(), changes, strict=True), first):
            self._follow(node, *about)

    def _changes_of(
        self, later: Tensor, before: Tensor, whitener: Tensor | None, kinds: int | list[int]
    ) -> list[float]:
        """Relative changes of predicted covariances (k, h, h): of a coordinate's variance, and of an observation's.

        Precise observations see what is far smaller than the largest entry of a covariance.
        """
        if not self._tries:
            return [0.0] * len(later)
        with torch.no_grad():
            change = later - before
            relative = scaled_size(change, later)
            if whitener is not None:
                seen = whitener @ self.given.observed[0][kinds]
                relative = torch.maximum(relative, size_of(seen @ change @ seen.mT))
        return relative.tolist()

    def _follow(self, node: int, parent: int, later: Tensor, size: float, change: float) -> int:
        """The predicted node behind a filtered one, whose covariance is ``later``: one that is there, or a new one."""
        record = product = None
        child = len(self._predicted)
        if self._tries:
            convergence, fresh = self._convergence, parent in self._fixed
            before = None
            if convergence.wants_gradient:
                loop = pick(self.given.matrix, 0, 0)[0] @ self._carry_of(node)
                before, product = convergence.memory(parent, loop, fresh)
            still, record = convergence.still(parent, change, fresh)
            near = None
            if self._fixed and convergence.forgotten(product):
                near = self._nearest(later, parent, convergence.tol)
                if near is None and still:
                    near = self._nearest(later, parent, convergence.agree)
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
        """A node that stands still, and not the parent, within a relative distance."""
        for p in self._fixed:
            if p != parent and float(scaled_size(matrix - self._predicted[p], matrix)) <= distance:
                return p
        return None

    @staticmethod
    def _is_careful(size: float, precision: float) -> bool:
        return size > 0 and torch.finfo(DOUBLE).eps * size * precision > CAREFUL

    def _expect_rounding(self, size: float, precision: float) -> None:
        """Precise information, a large P Lam, costs digits: changes then stop falling further above the last digit."""
        error = torch.finfo(DOUBLE).eps * size * precision
        self._convergence.rounding = max(self._convergence.rounding, 64 * error)
        if error > LOST and not self._warned and not self.given.wants_gradient:  # samplers and optimisers pass through
            self._warned = True
            warnings.warn(
                f"observations are 1e{math.log10(size * precision):.0f} times as precise as what is known of the state before "
                f"them: in double precision results have about {max(-math.log10(error), 0):.0f} digits; give observations more "
                "noise",
                RuntimeWarning,
                stacklevel=2,
            )

    # ---------------------------------------------------------------- the table
    def _tabulate(self) -> None:
        self.half_log_det = self._all("half_log_det")
        self.parent = [place[0] for place in self._place]
        if (noise := self.given.observed[1]) is not None:
            steps = [place[1] for place in self._place]
            check_density(self.half_log_det, self.kinds, lambda: self._all("whitener"), noise, steps)

    def _out_of(self, matrix: Tensor, behind: int = 0) -> Tensor:
        """(N | 1, h, h) those of the steps out of each node, or into it: one step behind."""
        if len(matrix) == 1 and matrix.shape[1] == 1:
            return matrix[0]
        return pick(matrix, [max(step - behind, 0) for _, step, _ in self._place], [row for _, _, row in self._place])

    @once
    def matrix(self) -> Tensor:
        return self._out_of(self.given.matrix)

    @once
    def noise(self) -> Tensor:
        return self._out_of(self.given.noise)

    @once
    def _into(self) -> Tensor:
        return self._out_of(self.given.matrix, 1)

    @once
    def steady(self) -> frozenset[int]:
        return frozenset(n for n, later in self._next.items() if later == self.parent[n] and later in self._fixed)

    @property
    def rounding(self) -> float:
        """Relative changes of covariances that may be rounding errors."""
        return self._convergence.rounding

    @property
    def num_nodes(self) -> int:
        return len(self._place)

    def _all(self, name: str) -> Tensor:
        """What updates made of all nodes."""
        parts = [getattr(part.updated, name) for part in self._parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _carry_of(self, node: int) -> Tensor:
        """(h, h) W of one node."""
        part, i = self._find(node)
        if not self._by_numbers:
            return part.updated.carry[i]
        return self._identity - part.updated.gain[i] @ self.given.observed[0][part.kinds[i]]

    def _find(self, node: int) -> tuple[kalman.Part, int]:
        """The part a node is in, and where there."""
        part = self._parts[bisect.bisect_right(self._parts, node, key=FIRST) - 1]
        return part, node - part.first

    def steps_of_means(self) -> Tensor:
        """(N, n, h + n) transposes of K and L^-1 side by side: what an innovation does at each node."""
        return torch.cat([self.kalman_gain.mT, self.whitener.mT], 2)

    def steps_back(self) -> Tensor:
        """(N, h, 2 h) A W and A Sigma side by side: what the smoother needs of each node."""
        return torch.cat([self.closed_loop, self.gain.mT], 2)

    # ---------------------------------------------------------------- all nodes at once, made when they are asked for
    @once
    def _identity(self) -> Tensor:
        return torch.eye(self.given.start.shape[-1], dtype=DOUBLE, device=self.device)

    @once
    def kinds(self) -> Tensor:
        """(N,) what each node observes."""
        return torch.tensor([kind for part in self._parts for kind in part.kinds], device=self.device)

    @once
    def observed(self) -> Tensor:
        """Information (N, h, h), or loadings (N, n, h), zero for what is not seen."""
        return self.given.observed[0][self.kinds]

    @once
    def normalizer(self) -> Tensor:
        """(N,) log density of numbers that are as expected."""
        loadings, _, seen = self.given.observed
        size = loadings.shape[1] if seen is None else seen.sum(-1)[self.kinds]
        return -self.half_log_det - size / 2 * LOG_2PI

    @once
    def surprising(self) -> Tensor:
        """(N, h, n) M' L^-T: what white innovations say about the state beyond the past."""
        return (self.whitener @ self.observed).mT

    @once
    def weighted_loadings(self) -> Tensor:
        """(N, n, h) S^-1 M."""
        return (self.surprising @ self.whitener).mT

    @once
    def filtered(self) -> Tensor:
        return self._all("filtered")

    @once
    def predicted(self) -> Tensor:
        return torch.stack([self._predicted[p] for p in self.parent])

    @once
    def kalman_gain(self) -> Tensor:
        """(N, h, n) K."""
        return self._all("gain")

    @once
    def whitener(self) -> Tensor:
        """(N, n, n) L^-1, zero in columns of what is not seen."""
        return self._all("whitener")

    @once
    def carry(self) -> Tensor:
        if not self._by_numbers:
            return self._all("carry")
        return self._identity - self.kalman_gain @ self.observed

    @once
    def forward(self) -> Tensor:
        return self.carry @ self._into

    @once
    def information(self) -> Tensor:
        """(N, h, h) Lam W, what the node's observation says beyond the past."""
        if not self._by_numbers:
            return symmetric(self.observed @ self.carry)
        return self.surprising @ self.surprising.mT

    @once
    def closed_loop(self) -> Tensor:
        """(N, h, h) A W, the step of means out of the node."""
        if not self._by_numbers:
            return self.matrix @ self.carry
        return self.matrix - (self.matrix @ self.kalman_gain) @ self.observed

    @once
    def gain(self) -> Tensor:
        """(N, h, h) Sigma A'."""
        return (self._parts[0].moved if len(self._parts) == 1 else torch.cat([part.moved for part in self._parts])).mT
