"""Gaussian chains with small states on a CPU through compiled loops: see :mod:`pplseq.kernels.gaussian.covariance_loops` and
:mod:`pplseq.kernels.gaussian.mean_loops`. Loops compute in double precision, whatever the precision of what they are given."""

from __future__ import annotations

import copy
import functools
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled
from pplseq.kernels.compiled import array

MOST_STATES, MOST_BY_FEW_THREADS = 64, 256  # dimensions of a state up to which loops over covariances are the faster way
MOST_ALONE = 32  # and of means
MOST_NUMBERS = 64
WORTH_TILES = 16  # states from which products go by tiles, which take half as long again to compile
FIRST_ROOM, FIRST_NUMBERS = 256, 1 << 22  # nodes that there is room for at first, or numbers
NONE, NOTHING, NO_MEANS, NO_SQUARES = np.empty(0, np.int64), np.empty(0), np.empty((0, 0, 0)), np.empty((0, 0))
WALK, WALK_BACK = (f"kernels.gaussian.covariance_loops.{name}" for name in ("walk", "walk_back"))
WORTH = 4.0  # seconds of twins for which the walk is compiled, which takes as long
MEANS = "kernels.gaussian.mean_loops.filter_rows"
NODE_OPERATIONS, MEAN_OPERATIONS = 10, 60  # of twins: a node, all means


def most_states() -> int:
    """Dimensions of a state up to which there are loops."""
    return MOST_BY_FEW_THREADS if compiled.few_threads() else MOST_STATES


def applies(dtype: torch.dtype, device: torch.device, h: int, n: int) -> bool:
    """Whether there are loops for such a chain here."""
    fits = h <= most_states() and n <= MOST_NUMBERS and dtype in (torch.float64, torch.float32)
    return fits and device.type == "cpu" and compiled.available()


def walk_pays() -> bool:
    """Whether covariances are found by loops, or by their twin, which says what it did by :func:`twin_walked`."""
    return compiled.pays(WALK, worth=WORTH)


def twin_walked(num_nodes: int) -> None:
    compiled.worked(WALK, NODE_OPERATIONS * num_nodes)


def walk_back_pays() -> bool:
    """As :func:`walk_pays`, of the way back."""
    return compiled.pays(WALK_BACK)


def twin_walked_back(num_nodes: int) -> None:
    compiled.worked(WALK_BACK, NODE_OPERATIONS * num_nodes)


def tiles_for(h: int) -> tuple[bool] | None:
    """What products of compiled loops are told, see :mod:`~pplseq.kernels.product_loops`."""
    return (True,) if h >= WORTH_TILES else None


def pays(residual: Tensor, first: Tensor) -> bool:
    """Whether means (R, h) of numbers (T, R, n) run faster in loops than as products of matrices."""
    (num_steps, num_rows, n), h = residual.shape, first.shape[-1]
    if h > MOST_ALONE or not residual.numel():
        return False
    return compiled.pays(MEANS, MEAN_OPERATIONS, num_steps * num_rows * h * (2 * h + 4 * n))


class Walked(NamedTuple):
    """The nodes of a covariance path; see :class:`~pplseq.infer.gaussian.path.CovariancePath`.

    index: (T, R). Of filtered nodes: parent and later, predicted nodes before and behind (-1 behind the last step); kind; step
    and row where it was made; what observations make of it, and moved (N, h, h) A Sigma. fixed: predicted nodes that stand.
    """

    index: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]
    parent: np.ndarray
    later: np.ndarray
    kind: np.ndarray
    step: np.ndarray
    row: np.ndarray
    predicted: Tensor
    filtered: Tensor
    gain: Tensor
    whitener: Tensor
    half_log_det: Tensor
    moved: Tensor
    fixed: list[int]
    steady_step: int | None


def _store(many: int, h: int, n: int, old: Any = None) -> tuple[np.ndarray, ...]:
    """Room for so many nodes, see :data:`pplseq.kernels.gaussian.covariance_loops.Store`; the first are the old ones."""
    integers = np.empty((8, many), np.int64)
    new = np.empty((3, many, h, h)), np.empty((many, h, n)), np.empty((many, n, n)), np.empty((4, many)), integers
    for before, after in zip(old or (), new, strict=False):
        if after.shape[0] == many:
            after[: len(before)] = before
        else:
            after[:, : before.shape[1]] = before
    return new


def filtered_nodes(
    start: np.ndarray, system: tuple, which: np.ndarray, num_columns: int, waits: bool
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray, np.ndarray]:
    """Nodes of all steps, counts, fixed nodes, index (T, columns); see :func:`pplseq.kernels.gaussian.covariance_loops.walk`.

    Args:
        start: (1 | R, h, h). system: its parts, as the loops take them. which: (T, 1 | R) kinds.
    """
    from pplseq.kernels.gaussian import covariance_loops as loops

    num_steps, (_, n, h), begun = len(which), system[2].shape, len(start)
    index, now = np.empty((num_steps, num_columns), np.int64), np.zeros(num_columns, np.int64)
    if begun > 1:
        now[:] = range(begun)
    t, counts, store = 0, np.array([begun, 0, 0, -1]), None
    many = begun + min(num_steps * num_columns + 1, _first_room(numbers_of_node(h, n)))
    fixed, tiles = np.empty(0, np.int64), tiles_for(h)
    while True:
        store = _store(many, h, n, store)
        fixed = np.concatenate([fixed, np.empty(many - len(fixed), np.int64)]) if len(fixed) else np.empty(many, np.int64)
        t = loops.walk(t, start, *system, which, index, now, *store, counts, fixed, waits, tiles)
        if t == num_steps:
            return store, counts, fixed, index
        many *= 4


def _first_room(size: int) -> int:
    """Nodes of so many numbers that there is room for at first; memory that is not written to costs nothing."""
    return max(FIRST_ROOM, FIRST_NUMBERS // size)


def numbers_of_node(h: int, n: int) -> int:
    return 3 * h * h + h * n + n * n + 12


def covariances(
    start: Tensor, matrix: Tensor, noise: Tensor, observed: tuple[Tensor, Tensor | None, Tensor | None],
    precision: list[float], which: np.ndarray, num_columns: int, nothing: int | None, tol: float, agree: float, waits: bool,
) -> Walked:  # fmt: skip
    """The nodes of all steps.

    Args:
        start: (1 | R, h, h). matrix, noise: (h, h). observed: loadings (P, n, h), the covariance of their noise (P, n, n) and
            the coordinates seen (P, n) or None. precision: of each kind. which: (T, 1 | R) kinds. num_columns: 1 | R.
        nothing: the kind that says nothing. tol: 0 where no steady state is looked for. agree, waits: see
            :class:`~pplseq.kernels.kalman.Convergence`.
    """
    from pplseq.kernels.gaussian import covariance_loops as loops

    loadings, covariance, seen = (None if part is None else array(part) for part in observed)
    assert loadings is not None and covariance is not None
    seen = np.ones(loadings.shape[:2]) if seen is None else seen
    system = (
        array(matrix)[None], array(noise), loadings, covariance, seen, np.array(precision),
        -1 if nothing is None else nothing, tol, agree,
    )  # fmt: skip
    store, counts, fixed, index = filtered_nodes(array(start), system, np.ascontiguousarray(which), num_columns, waits)
    nodes, made, steady = loops.nodes_of(store), int(counts[loops.FILTERED]), int(counts[loops.STEADY])
    of: dict[str, Any] = {name: getattr(nodes, name)[:made] for name in Walked._fields[1:6]}
    of |= {name: torch.from_numpy(getattr(nodes, name)[:made]) for name in Walked._fields[7:12]}
    predicted = torch.from_numpy(nodes.predicted[of["parent"]])
    return Walked(
        index, **of, predicted=predicted, fixed=fixed[: counts[loops.FIXED]].tolist(),
        steady_step=None if steady < 0 else steady,
    )  # fmt: skip


class WalkedBack(NamedTuple):
    """Nodes of the way back: index (T, U); information (M, h, h); of each its filtered node, and the node behind it."""

    index: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]
    information: Tensor
    of: np.ndarray
    later: np.ndarray


def backward_nodes(
    columns: np.ndarray, given: tuple[np.ndarray, ...], steady: np.ndarray, tol: float, agree: float, waits: bool
) -> tuple[tuple[np.ndarray, ...], int, np.ndarray]:
    """Nodes of the way back, how many, and index (T, U): see :func:`pplseq.kernels.gaussian.covariance_loops.walk_back`.

    Args:
        columns, steady: as of :func:`adjoints`. given: matrix (h, h), loadings (P, n, h); kind, gain and whitener of nodes.
    """
    from pplseq.kernels.gaussian import covariance_loops as loops

    (num_steps, num_columns), h, made = columns.shape, given[0].shape[-1], len(steady)
    index, now, counts = np.empty((num_steps, num_columns), np.int64), np.zeros(num_columns, np.int64), np.zeros(1, np.int64)
    information, settled_on = np.empty((2, made, h, h)), np.empty(made, np.int64)
    t, many, store = num_steps - 1, min(columns.size + 2, _first_room(h * h + 8)), None
    while True:
        new = np.empty((many, h, h)), np.empty((2, many)), np.empty((6, many), np.int64)
        if store is not None:
            new[0][: counts[0]], new[1][:, : counts[0]], new[2][:, : counts[0]] = store[0], store[1], store[2]
        store = new
        t = loops.walk_back(
            t, columns, index, now, *given, *information, steady, settled_on, *store, counts, tol, agree, waits, tiles_for(h)
        )
        if t < 0:
            return store, int(counts[0]), index
        many *= 4


def adjoints(
    columns: np.ndarray, path: Walked, matrix: Tensor, loadings: Tensor, steady: np.ndarray, tol: float, agree: float,
    waits: bool,
) -> WalkedBack:  # fmt: skip
    """What observations from each step on say beyond the past.

    Args:
        columns: (T, U) filtered nodes of a path, -1 at padded steps. matrix: (h, h). loadings: (P, n, h).
        steady: (N,) bool nodes that follow themselves.
    """
    from pplseq.kernels.gaussian import covariance_loops as loops

    given = array(matrix), array(loadings), path.kind, array(path.gain), array(path.whitener)
    store, made, index = backward_nodes(np.ascontiguousarray(columns), given, steady, tol, agree, waits)
    back = loops.back_of(*store)
    return WalkedBack(index, torch.from_numpy(back.information[:made]), back.of[:made], back.later[:made])


def alike(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of columns (T, R) the numbers of distinct ones (U,), and for each of the R its place among them."""
    if columns.shape[1] == 1:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    weights = np.random.default_rng(0).integers(-(2**62), 2**62, len(columns))
    _, first, inverse = np.unique((columns * weights[:, None]).sum(0), return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    if (columns == columns[:, first[inverse]]).all():
        return first, inverse
    _, first, inverse = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


class Tables(NamedTuple):
    """What means go by. matrix: (h, h) A. loadings: (P, n, h) of each kind. Of nodes: gain (N, h, n) K, whitener (N, n, n)
    L^-1, filtered (N, h, h) and kind (N,). index: (T,) or (T, R).
    """

    matrix: Tensor
    loadings: Tensor
    gain: Tensor
    whitener: Tensor
    filtered: Tensor
    kind: Tensor
    index: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]


class Means:
    """Filter and smoother of means; see :mod:`pplseq.kernels.gaussian.mean_loops`.

    Args:
        values: (R, T, n), zero where missing. order: rows, columns and lengths, or empty ones, and index (T, U). way: first ...
            half_log_det, as the loops take them. moved: (N, h, h) A Sigma of nodes, of which ``made`` are made.
    """

    def __init__(self, values: np.ndarray, order: tuple, way: tuple, moved: np.ndarray, made: int):
        self.values, self.order, self.way, self.moved, self.made = values, order, way, moved, made
        (self.num_rows, num_steps, self.n), self.h = values.shape, moved.shape[1]
        if len(order[2]):
            self.num_rows = len(order[0])
        self.tiles, self.work = tiles_for(self.h), self.num_rows * num_steps * self.h * (2 * self.h + 4 * self.n)

    def filter(self, filtered: np.ndarray = NO_MEANS, squares: np.ndarray = NO_SQUARES) -> float:
        """The log-likelihood, nats. Room for filtered means (R, T, h), and squared lengths (T, R) of white innovations."""
        loop, found = _mean_loops().filter_rows, {}

        def run(part: int, begin: int, end: int) -> None:
            found[part] = loop(begin, end, *self.order, self.values, *self.way, filtered, squares, NOTHING, self.tiles)

        compiled.by_rows(run, self.num_rows, self.work)
        return sum([found[part] for part in range(len(found))])

    def smooth(
        self, nothing: int, wanted: int, smoothed: np.ndarray = NO_MEANS, adjoints: np.ndarray = NO_MEANS,
        errors: np.ndarray = NO_MEANS,
    ) -> tuple[float, np.ndarray]:  # fmt: skip
        """The log-likelihood, and what is wanted; see :func:`pplseq.kernels.gaussian.mean_loops.smooth_rows`."""
        loops, h, n, num_steps = _mean_loops(), self.h, self.n, len(self.order[3])
        (_, _, _, matrix, loadings, _, kind, gain, whitener, _), made, found = self.way, self.made, []
        tables = (
            np.empty((made, h, h)), np.empty((made, n, n)), np.empty((made, n, h)), np.empty((len(loadings), h, n)),
            np.empty((1, h, h)),
        )  # fmt: skip
        loops.tables_of(made, matrix, loadings, gain, whitener, self.moved, *tables, self.tiles)
        most = loops.rows_kept(num_steps, h + n)

        def run(part: int, begin: int, end: int) -> None:
            total, sums = 0.0, np.zeros(loops.size_of_sums(h, n))
            kept = np.empty(min(most, end - begin) * num_steps * (h + n))
            for first in range(begin, end, most):
                rows = first, min(first + most, end), *self.order
                total += loops.filter_rows(*rows, self.values, *self.way, NO_MEANS, NO_SQUARES, kept, self.tiles)
                loops.smooth_rows(*rows, kind, *tables, nothing, wanted, smoothed, adjoints, errors, kept, sums, self.tiles)
            found.append((part, total, sums))

        compiled.by_rows(run, self.num_rows, 4 * self.work)
        if len(found) == 1:
            return found[0][1:]
        found.sort(key=lambda part: part[0])
        return sum(value for _, value, _ in found), functools.reduce(np.add, [sums for _, _, sums in found])


class MeanLoops:
    """Filter and smoother of the means of one chain.

    Args:
        residual: (T, R, n). first: (R, h) predicted means of the first step. offset: None, (h,) or (T-1, R, h).
        lengths: (R,) or None.
    """

    def __init__(self, residual: Tensor, first: Tensor, offset: Tensor | None, tables: Tables, lengths: Tensor | None):
        self.dtype, (num_steps, num_rows, n) = residual.dtype, residual.shape
        index, h = array(tables.index.reshape(num_steps, -1)), first.shape[-1]
        shift = np.empty((0, 1, h))
        if offset is not None and num_steps > 1:
            shift = array(offset.double().reshape(-1, num_rows if offset.dim() == 3 else 1, h))
        order = column = ends = NONE
        if lengths is not None or index.shape[1] > 1:
            distinct, column = alike(index) if index.shape[1] > 1 else (np.zeros(1, np.int64), np.zeros(num_rows, np.int64))
            index, ends = np.ascontiguousarray(index[:, distinct]), np.full(num_rows, num_steps)
            ends = ends if lengths is None else array(lengths)
            order = np.lexsort((-ends, column))
            order = order[ends[order] > 0]
            column = column[order]
        matrix, loadings, gain, whitener, filtered = (array(part.double()) for part in tables[:5])
        unused = np.zeros(len(loadings)), np.zeros(len(gain))  # likelihoods are those of the chain
        way = (
            array(first.double()), shift, np.zeros(n), matrix[None], loadings, unused[0], array(tables.kind), gain, whitener,
            unused[1],
        )  # fmt: skip
        self.has_ends = lengths is not None
        self.means = Means(_rows_first(residual), (order, column, ends, index), way, matrix @ filtered, len(gain))

    def with_residual(self, residual: Tensor) -> MeanLoops:
        """The same of other numbers (T, R, n)."""
        other = copy.copy(self)
        other.means = copy.copy(self.means)
        other.means.values = _rows_first(residual)
        return other

    def _room(self, size: int, wanted: bool = True) -> np.ndarray:
        """(R, T, size), zero behind a row's end; or empty."""
        shape = (*self.means.values.shape[:2], size) if wanted else (0, 0, 0)
        return np.zeros(shape) if self.has_ends else np.empty(shape)

    def _steps_first(self, value: np.ndarray) -> Tensor:
        return torch.from_numpy(value).to(self.dtype).transpose(0, 1)

    def filter(self) -> tuple[Tensor, Tensor]:
        """Filtered means (T, R, h), and squared lengths (T, R) of white innovations."""
        means, squares = self._room(self.means.h), np.zeros(self.means.values.shape[1::-1])
        self.means.filter(means, squares)
        return self._steps_first(means), torch.from_numpy(squares).to(self.dtype)

    def smooth(self, with_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Smoothed means (T, R, h); and, of size 0 unless wanted, lambda (T, R, h) and e (T, R, n): the gradients of log p(y)
        in predicted means and, but for the sign, in observations."""
        found = self._room(self.means.h), self._room(self.means.h, with_errors), self._room(self.means.n, with_errors)
        self.means.smooth(-1, 0, *found)
        smoothed, adjoints, errors = map(self._steps_first, found)
        return smoothed, adjoints, errors


def _rows_first(residual: Tensor) -> np.ndarray:
    return array(residual.double().transpose(0, 1))


@functools.cache
def _mean_loops() -> ModuleType:
    from pplseq.kernels.gaussian import mean_loops

    return mean_loops
