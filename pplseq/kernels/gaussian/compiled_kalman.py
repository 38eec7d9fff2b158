"""Gaussian chains with small states on a CPU through compiled loops: see :mod:`pplseq.kernels.gaussian.kalman_loops` and
:mod:`pplseq.kernels.gaussian.mean_loops`. Loops compute in double precision, whatever the precision of what they are given."""

from __future__ import annotations

import copy
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
FIRST_ROOM = 256  # nodes that there is room for at first
WALK, WALK_BACK = (f"kernels.gaussian.kalman_loops.{name}" for name in ("walk", "walk_back"))
WORTH = 4.0  # seconds of twins for which the walk is compiled, which takes as long
MEANS = "kernels.gaussian.mean_loops.filter_means"
NODE_OPERATIONS, MEAN_OPERATIONS, GRADIENT_OPERATIONS = 10, 60, 100  # of twins: a node, all means, a step with its gradient


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


def twin_differentiated(num_steps: int) -> None:
    """Counts a likelihood whose gradients torch found step by step, as there were no loops yet."""
    compiled.worked(MEANS, GRADIENT_OPERATIONS * num_steps)
    compiled.worked(WALK, GRADIENT_OPERATIONS * num_steps)


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


INTEGERS = frozenset(("age", "first", "kind", "parent", "later", "sibling", "step", "row", "of", "again"))


def _room_for(kind: Any, shapes: dict[str, tuple[int, ...]], many: int, old: Any = None) -> Any:
    """Nodes or Back of ``many`` rows that begin as the old ones; the numbers of the rest are -1.

    Args:
        shapes: of a row of those arrays that are not numbers.
    """
    numbers = [name for name in kind._fields if name not in shapes]
    integers, reals = iter(np.full((len(numbers), many), -1)), iter(np.full((len(numbers), many), -1.0))
    new = kind(
        *(
            np.empty((many, *shapes[name])) if name in shapes else next(integers if name in INTEGERS else reals)
            for name in kind._fields
        )
    )
    for before, after in zip(old or (), new, strict=False):
        after[: len(before)] = before
    return new


def filtered_nodes(
    system: Any, start: np.ndarray, which: np.ndarray, num_columns: int, waits: bool
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Nodes of all steps, counts, fixed nodes, index (T, num_columns); see :func:`pplseq.kernels.gaussian.kalman_loops.walk`.

    Args:
        system: of the loops. start: (1 | R, h, h). which: (T, 1 | R) kinds.
    """
    from pplseq.kernels.gaussian import kalman_loops as loops

    num_steps, (n, h), begun = len(which), system.loadings.shape[1:], len(start)
    index, which = np.empty((num_steps, num_columns), np.int64), np.ascontiguousarray(which)
    now = np.arange(num_columns) if begun > 1 else np.zeros(num_columns, np.int64)
    shapes = {"predicted": (h, h), "filtered": (h, h), "gain": (h, n), "whitener": (n, n), "moved": (h, h)}
    t, room, counts = 0, begun + min(num_steps * num_columns + 1, FIRST_ROOM), np.array([begun, 0, 0, -1])
    nodes, fixed = None, np.empty(0, np.int64)
    while True:
        nodes = _room_for(loops.Nodes, shapes, room, nodes)
        fixed = np.concatenate([fixed, np.full(room - len(fixed), -1)])
        if t == 0 and not counts[loops.FILTERED]:
            nodes.predicted[:begun] = (start + start.swapaxes(1, 2)) / 2
            nodes.size[:begun] = np.abs(start).reshape(begun, -1).max(1)
            nodes.least[:begun], nodes.age[:begun], nodes.last[:begun] = np.inf, 0, 0.0
        t = loops.walk(t, system, which, index, now, nodes, counts, fixed, waits, tiles_for(h))
        if t == num_steps:
            return nodes, counts, fixed, index
        room *= 4


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
    from pplseq.kernels.gaussian import kalman_loops as loops

    loadings, covariance, seen = (None if part is None else array(part) for part in observed)
    assert loadings is not None and covariance is not None
    seen = np.ones(loadings.shape[:2]) if seen is None else seen
    system = loops.System(
        array(matrix), array(noise), loadings, covariance, seen, np.array(precision),
        -1 if nothing is None else nothing, tol, agree,
    )  # fmt: skip
    nodes, counts, fixed, index = filtered_nodes(system, array(start), which, num_columns, waits)
    made, steady = int(counts[loops.FILTERED]), int(counts[loops.STEADY])
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
    columns: np.ndarray, given: tuple[np.ndarray, np.ndarray], steady: np.ndarray, tol: float, agree: float, waits: bool
) -> tuple[Any, int, np.ndarray]:
    """Nodes of the way back, how many, and index (T, U): see :func:`pplseq.kernels.gaussian.kalman_loops.walk_back`.

    Args:
        columns, steady: as of :func:`adjoints`. given: its information and loops_of.
    """
    from pplseq.kernels.gaussian import kalman_loops as loops

    (num_steps, num_columns), h = columns.shape, given[0].shape[-1]
    index, now, counts = np.empty_like(columns), np.zeros(num_columns, np.int64), np.array([1])
    settled_on = np.full(len(steady), -1)
    t, room, back = num_steps - 1, min(columns.size + 2, FIRST_ROOM), None
    columns = np.ascontiguousarray(columns)
    while True:
        back = _room_for(loops.Back, {"information": (h, h)}, room, back)
        if counts[0] == 1:
            back.information[0], back.later[0], back.least[0], back.age[0], back.last[0] = 0.0, 0, np.inf, 0, 0.0
        t = loops.walk_back(t, columns, index, now, given, steady, settled_on, back, counts, tol, agree, waits, tiles_for(h))
        if t < 0:
            return back, int(counts[0]), index
        room *= 4


def adjoints(
    columns: np.ndarray, information: Tensor, loops_of: Tensor, steady: np.ndarray, tol: float, agree: float, waits: bool
) -> WalkedBack:
    """What observations from each step on say beyond the past.

    Args:
        columns: (T, U) filtered nodes, -1 at padded steps. information, loops_of: (N, h, h) of filtered nodes: what their
            observations say, and A W. steady: (N,) bool nodes that follow themselves.
    """
    back, made, index = backward_nodes(columns, (array(information), array(loops_of)), steady, tol, agree, waits)
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


class MeanLoops:
    """Filter and smoother of the means of one chain.

    Args:
        residual: (T, R, n). first: (R, h) predicted means of the first step. offset: None, (h,) or (T-1, R, h).
        lengths: (R,) or None.
    """

    def __init__(self, residual: Tensor, first: Tensor, offset: Tensor | None, tables: Tables, lengths: Tensor | None):
        from pplseq.kernels.gaussian import mean_loops

        self.dtype, (num_steps, num_rows, n) = residual.dtype, residual.shape
        matrix, loadings, gain, whitener, filtered = (array(part.double()) for part in tables[:5])
        index, h = array(tables.index.reshape(num_steps, -1)), first.shape[-1]
        if offset is None or not num_steps > 1:
            shift = np.empty((0, 1, h))
        else:
            shift = array(offset.double().reshape(-1, num_rows if offset.dim() == 3 else 1, h))
        order, blocks = np.arange(num_rows), [*range(0, num_rows, mean_loops.LANES), num_rows]
        if index.shape[1] > 1:
            inverse = alike(index)[1]
            order = np.argsort(inverse, kind="stable")
            edges = [0, *np.bincount(inverse).cumsum().tolist()]
            bounds = zip(edges[:-1], edges[1:], strict=True)
            blocks = [b for begin, end in bounds for b in range(begin, end, mean_loops.LANES)] + [num_rows]
        ends = np.full(num_rows, num_steps) if lengths is None else array(lengths)
        self.blocks, self.tiles, self.work = np.array(blocks), tiles_for(h), num_steps * num_rows * h * (2 * h + 4 * n)
        turned, transposed = np.broadcast_to(matrix.T, filtered.shape), _transposed(gain)
        self.given = mean_loops.Means(
            array(residual.double()), array(first.double()), shift, loadings,
            np.concatenate([np.broadcast_to(matrix, (len(loadings), h, h)), -(loadings @ matrix)], 1),
            np.concatenate([gain, whitener], 1), np.concatenate([filtered @ turned, turned], 1),
            np.concatenate([_transposed(whitener) @ whitener, -transposed], 2), _transposed(loadings),
            array(tables.kind), index, order, ends,
        )  # fmt: skip

    def with_residual(self, residual: Tensor) -> MeanLoops:
        """The same of other numbers (T, R, n)."""
        other = copy.copy(self)
        other.given = self.given._replace(residual=array(residual.double()))
        return other

    def filter(self) -> tuple[Tensor, Tensor]:
        """Filtered means (T, R, h), and squared lengths (T, R) of white innovations."""
        from pplseq.kernels.gaussian import mean_loops

        num_steps, num_rows, _ = self.given.residual.shape
        out = np.empty((num_steps, num_rows, self.given.first.shape[1])), np.empty((num_steps, num_rows))
        compiled.by_rows(
            lambda _, begin, end: mean_loops.filter_means(begin, end, self.blocks, self.given, *out, self.tiles),
            len(self.blocks) - 1, self.work,
        )  # fmt: skip
        means, squares = (torch.from_numpy(part).to(self.dtype) for part in out)
        return means, squares

    def smooth(self, means: Tensor, with_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Smoothed means (T, R, h) from filtered ones; and, of size 0 unless wanted, lambda (T, R, h) and e (T, R, n):
        the gradients of log p(y) in predicted means and, but for the sign, in observations."""
        from pplseq.kernels.gaussian import mean_loops

        num_steps, num_rows, n = self.given.residual.shape
        steps, h = num_steps if with_errors else 0, means.shape[-1]
        out = tuple(np.empty(shape) for shape in (means.shape, (steps, num_rows, h), (steps, num_rows, n)))
        filtered = array(means.double())
        compiled.by_rows(
            lambda _, begin, end: mean_loops.smooth_means(begin, end, self.blocks, self.given, filtered, *out, self.tiles),
            len(self.blocks) - 1, 2 * self.work,
        )  # fmt: skip
        smoothed, adjoints, errors = (torch.from_numpy(part).to(self.dtype) for part in out)
        return smoothed, adjoints, errors


def _transposed(matrices: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(matrices.swapaxes(-1, -2))
