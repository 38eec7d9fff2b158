"""Which observed numbers a linear Gaussian model cannot believe, given all the others; and the data without them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import notebooks
from pplseq.infer.fit.em import Batch
from pplseq.infer.frames import framed
from pplseq.models.batch import cut
from pplseq.models.forms import Sequences, as_frame, by_names, is_frame, is_table, rows_of, unmasked
from pplseq.models.row_labels import in_steps

SURELY = 1 - 1e-9  # within the bound: rounding must not send a number to and fro
MOST_STEPS = 1 << 16  # of rows that are looked at together, each of which lacks other numbers


@dataclass(frozen=True, repr=False)
class Outliers:
    """K observed numbers that are unlikely given all that stay; the same as a table: :meth:`frame`.

    rows, steps, columns: (K,) where each is, from 0, in the order of rows and steps. values: (K,) as they were. means,
    deviations: (K,) of p(value | all numbers of its row that are no outliers). scores: (K,) of how many deviations a value is
    off. p_values: (K,) the probability, where there are no outliers, that any of ``num_values`` is as far off (Bonferroni's
    bound). level: what these are below. num_values: how many numbers were looked at.
    """

    rows: Tensor
    steps: Tensor
    columns: Tensor
    values: Tensor
    means: Tensor
    deviations: Tensor
    scores: Tensor
    p_values: Tensor
    level: float
    num_values: int
    num_rows: int
    column_names: tuple[str, ...] | None
    times: tuple[Any, ...] | None
    sequences: tuple[str, tuple[Any, ...]] | None
    _without: Any = field(compare=False)

    def without(self) -> Any:
        """The data in the form in which they came, the outliers missing: ``model.fit(found.without())`` is the gated fit.

        Frames of dates that lacked steps have rows of these. What else was given, ``lengths`` and inputs, is given again.
        """
        return self._without

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<{self._caption}>"

    @property
    def _caption(self) -> str:
        return f"Outliers: {len(self)} of {self.num_values} values at level {self.level:g}"

    def _table(self, row: int) -> dict[str, list[Any]]:
        here = self.rows == row
        columns = self.columns[here].tolist()
        named = columns if self.column_names is None else [self.column_names[k] for k in columns]
        names = {"value": "values", "mean": "means", "deviation": "deviations", "score": "scores", "p": "p_values"}
        return {"column": named} | {name: getattr(self, of)[here].tolist() for name, of in names.items()}

    def _labels(self, row: int) -> Any:
        """Of each outlier of a row when it was: its step, or what the index of a frame says."""
        steps = self.steps[self.rows == row].tolist()
        return steps if self.times is None else self.times[row][steps]

    def frame(self, row: int | None = None) -> Any:
        """A frame of pandas with a row for each outlier: its column, value, what the others say, and the test; its index is
        the step, or that of the frame that was asked about.

        Args:
            row: which of the B sequences; None for all, with a first column that says which where they are several.

        Raises:
            ImportError: without pandas. ValueError: for a row that is not there.
        """
        number = range(self.num_rows)
        return framed(row, [self._table(k) for k in number], [self._labels(k) for k in number], self.sequences)

    def _repr_html_(self) -> str:
        """For notebooks."""
        several, (name, ids) = self.num_rows > 1, self.sequences or ("sequence", range(self.num_rows))
        rows = [
            [*[ids[k]] * several, *cells]
            for k in sorted(set(self.rows.tolist()))
            for cells in zip(self._labels(k), *self._table(k).values(), strict=True)
        ]
        return notebooks.table(self._caption, [*[name] * several, "step", *self._table(0)], rows)


def find_outliers(model: Any, batch: Batch, level: float) -> tuple[Tensor, dict[str, Tensor], int]:
    """Places (K, 3) of outliers; values, means, deviations, scores and p-values of these by name, (K,); and how many numbers
    were looked at. See :meth:`~pplseq.models.lds.queries.LDSQueries.outliers`."""
    search = Search(model, batch, level)
    gone = search.improved(torch.zeros_like(batch.x, dtype=torch.bool))
    other = search.by_the_past(gone.flatten(1).sum(1))
    if bool(other.any()):
        other = search.improved(other)
        better = search.gain(other) > search.gain(gone)
        gone = other.where(better[:, None, None], gone)
    places = gone.nonzero()
    # beside 0 in its place, as errors of a number that is far off have no digits left of what was expected
    search.batch = batch._replace(x=batch.x.masked_fill(gone, 0.0))
    _, errors, variances = search.beside_the_rest(gone, places)
    values = batch.x[gone].double()
    score = (values + errors) / variances.sqrt()
    p_values = (search.number * torch.erfc(score.abs() / math.sqrt(2))).clamp_max(1.0)
    told = {"means": -errors, "deviations": variances.sqrt(), "scores": score, "p_values": p_values}
    return places, {"values": values} | told, search.number


class Search:
    """For a set of outliers in each row that no change of one number makes better.

    A set is as good as the log-likelihood that it gains, by outliers that may have any size, less bound^2 / 2 for each: the
    sum of (z^2 - bound^2) / 2, z being the score of a number beside all that stay and those before it in the set. Sets are
    (B, T, n) bool.
    """

    def __init__(self, model: Any, batch: Batch, level: float):
        self.model, self.batch = model, batch
        self.first = self._left_out(batch)
        self.number = int((~self.first[0].isnan()).sum())
        self.bound = -float(torch.special.ndtri(torch.tensor(level / max(1, self.number) / 2, dtype=torch.float64)))

    def _left_out(self, batch: Batch) -> Tensor:
        """(3, B, T, n) scores, errors and variances."""
        found = self.model.posterior(batch.x, batch.lengths, **batch.known).left_out()
        return torch.stack([found.errors / found.variances.sqrt(), *found])

    def _without(self, gone: Tensor, rows: Tensor) -> Batch:
        return cut(self.batch._replace(x=self.batch.x.masked_fill(gone, torch.nan)), rows)

    def improved(self, gone: Tensor) -> Tensor:
        """The largest number beyond the bound of each row goes, until there is none, as it may be what makes others look far
        off; then the smallest within the bound comes back, and so on: each step is to a better set."""
        gone, rows = gone.clone(), torch.arange(len(gone), device=gone.device)
        score = self._left_out(self._without(gone, rows))[0] if bool(gone.any()) else self.first[0]
        while True:
            while len(rows):
                largest, where = score.abs().nan_to_num(0.0).flatten(1).max(1)
                rows, where = rows[largest > self.bound], where[largest > self.bound]
                gone.flatten(1)[rows, where] = True
                score = self._left_out(self._without(gone, rows))[0] if len(rows) else score
            places = gone.nonzero()
            size = self.beside_the_rest(gone, places)[0].abs()
            rows = places[size < SURELY * self.bound, 0].unique()
            if not len(rows):
                return gone
            for row in rows.tolist():
                gone[tuple(places[size.masked_fill(places[:, 0] != row, torch.inf).argmin()])] = False
            score = self._left_out(self._without(gone, rows))[0]

    def by_the_past(self, most: Tensor) -> Tensor:
        """Another set to begin with: numbers beyond the bound given those before them that are not in it, as one that is far
        off makes later ones look so. Empty in rows where it would have more numbers than ``most`` (B,), or this is below 2."""
        gone = torch.zeros_like(self.batch.x, dtype=torch.bool)
        rows = (most > 1).nonzero().flatten()
        while len(rows):
            score = self.model._residuals(self._without(gone, rows)).abs().nan_to_num(0.0)
            step = (score > self.bound).any(-1).long().argmax(1)
            largest, column = score[torch.arange(len(rows), device=rows.device), step].max(1)
            rows, step, column = (part[largest > self.bound] for part in (rows, step, column))
            gone[rows, step, column] = True
            many = gone[rows].flatten(1).sum(1) > most[rows]
            gone[rows[many]] = False
            rows = rows[~many]
        return gone

    def gain(self, gone: Tensor) -> Tensor:
        """(B,) twice how good sets are."""
        places = gone.nonzero()
        score = self.beside_the_rest(gone, places, places)[0]
        total = score.new_zeros(len(gone))
        return total.index_add(0, places[:, 0], score.square() - self.bound**2)

    def beside_the_rest(self, gone: Tensor, places: Tensor, back: Tensor | None = None) -> Tensor:
        """(3, K) scores, errors and variances of numbers of the sets, each alone beside those that stay, or beside those in
        ``back`` (K, 3), too, up to its own place."""
        found, size = [self.first[:, :0].reshape(3, 0)], max(1, MOST_STEPS // gone.shape[1])
        for begin in range(0, len(places), size):
            rows, steps, columns = places[begin : begin + size].T
            one, part = torch.arange(len(rows), device=rows.device), self._without(gone, rows)
            for k, place in enumerate(range(begin, begin + len(rows))):
                own = places[place : place + 1] if back is None else back[: place + 1]
                own = own[own[:, 0] == rows[k], 1:]
                part.x[k, own[:, 0], own[:, 1]] = self.batch.x[rows[k], own[:, 0], own[:, 1]]
            found.append(self._left_out(part)[:, one, steps, columns])
        return torch.cat(found, 1)


# ---------------------------------------------------------------- the data without some numbers
def without_places(x: Any, lengths: Any, places: Sequence[Sequence[int]], names: tuple[str, ...] | None, fill: bool) -> Any:
    """x with numbers missing, in the form in which it came.

    Args:
        x, lengths: as they came. places: (K, 3) rows, steps and columns. names: of the model's columns. fill: whether frames of
            dates get the steps that they lack, as they were read with.
    """
    x = rows_of(x)
    if fill:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # who read the data said it
            x, lengths = in_steps(x, lengths)
    if isinstance(x, np.ndarray) and x.dtype == object and any(np.ndim(row) for row in x.flat):
        x = list(x)
    by_row: dict[int, list[tuple[int, int]]] = {}
    for row, step, column in places:
        by_row.setdefault(row, []).append((step, column))
    if isinstance(x, (list, tuple)) and any(row is not None and (np.ndim(row) or is_table(row)) for row in x):
        rows = [_blank(row, by_row.get(k, []), names) for k, row in enumerate(x)]
        return Sequences(rows, x.ids, x.column_names, x.by) if isinstance(x, Sequences) else rows
    if getattr(x, "ndim", 0) == 3:
        whole: Any = x
        whole = whole.double().clone() if isinstance(x, Tensor) else np.array(unmasked(x), dtype=float)
        for row, step, column in places:
            whole[row, step, column] = np.nan
        return whole
    first = [0] if lengths is None else [0, *np.cumsum([int(size) for size in lengths]).tolist()]
    return _blank(x, [(first[row] + step, column) for row, step, column in places], names)


def _blank(row: Any, places: Sequence[tuple[int, int]], names: tuple[str, ...] | None) -> Any:
    """A sequence, (T,) or (T, D), or a frame, with numbers missing at (step, column)."""
    row = as_frame(row)
    if is_frame(row):
        return _blank_frame(row, places, names)
    row = row.clone() if isinstance(row, Tensor) else np.array(unmasked(row), dtype=float)
    if isinstance(row, Tensor) and not row.is_floating_point():
        row = row.double()
    for step, column in places:
        row[(step, column)[: row.ndim]] = np.nan
    return row


def _blank_frame(frame: Any, places: Sequence[tuple[int, int]], names: tuple[str, ...] | None) -> Any:
    gone: dict[int, list[int]] = {}
    for step, column in places:
        gone.setdefault(column, []).append(step)
    if not hasattr(frame, "mask"):  # of polars
        frame, own = frame.clone(), by_names(frame, names)
        for column, steps in gone.items():
            frame[steps if not hasattr(frame, "columns") else (steps, own.columns[column])] = None
        return frame
    steps = {column: np.isin(np.arange(len(frame)), some) for column, some in gone.items()}
    if not hasattr(frame, "columns"):
        return frame.mask(steps[0]) if steps else frame.copy()
    frame, labels = frame.copy(), list(by_names(frame, names).columns)
    for column, some in steps.items():
        frame[labels[column]] = frame[labels[column]].mask(some)
    return frame
