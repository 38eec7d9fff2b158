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

from pplseq import checks, notebooks
from pplseq.infer.fit.em import Batch
from pplseq.infer.frames import framed
from pplseq.models.batch import cut
from pplseq.models.forms import Sequences, as_frame, by_names, is_frame, is_table, rows_of, unmasked
from pplseq.models.row_labels import in_steps

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
    """Places (K, 3) of outliers; means, deviations, scores and p-values of these by name, (K,); and how many numbers were
    looked at. See :meth:`~pplseq.models.lds.queries.LDSQueries.outliers`."""

    def scores(part: Batch) -> tuple[Tensor, Tensor, Tensor]:
        found = model.posterior(part.x, part.lengths, **part.known).left_out()
        return found.errors / found.variances.sqrt(), found.errors, found.variances

    x = batch.x.clone()
    changed = torch.arange(len(x), device=x.device)
    first = score = scores(batch)[0]
    number = max(1, int((~first.isnan()).sum()))
    far = -float(torch.special.ndtri(torch.tensor(level / number / 2, dtype=torch.float64)))
    places = torch.zeros(0, 3, dtype=torch.long, device=x.device)
    while len(changed):  # backward: the largest of each row is missing from now on, as it may be what makes others look far off
        largest, where = score.abs().nan_to_num(0.0).flatten(1).max(1)
        out = largest > far
        changed, where = changed[out], where[out]
        new = torch.stack([changed, where // x.shape[2], where % x.shape[2]], 1)
        x[tuple(new.T)], places = torch.nan, torch.cat([places, new])
        if len(changed):
            score = scores(cut(batch._replace(x=x), changed))[0]
    while True:  # and what was taken out for the sake of another comes back, the most likely of each row first
        found = _put_back(scores, batch, x, places)
        stays = found[0].abs() > far
        if bool(stays.all()):
            break
        for row in places[~stays, 0].unique().tolist():
            candidates = (places[:, 0] == row).nonzero().flatten()
            back = int(candidates[found[0][candidates].abs().argmin()])
            x[tuple(places[back])] = batch.x[tuple(places[back])]
            stays[candidates] = True
            stays[back] = False
        places = places[stays]
    order = torch.tensor(sorted(range(len(places)), key=lambda k: places[k].tolist()), dtype=torch.long, device=x.device)
    places, (score, errors, variances) = places[order], (part[order] for part in found)
    values = batch.x[tuple(places.T)].double()
    p_values = (number * torch.erfc(score.abs() / math.sqrt(2))).clamp_max(1.0)
    told = {"means": values - errors, "deviations": variances.sqrt(), "scores": score, "p_values": p_values}
    return places, {"values": values} | told, number


def _put_back(scores: Any, batch: Batch, x: Tensor, places: Tensor) -> list[Tensor]:
    """Scores, errors and variances (K,) of numbers that are missing from x, each alone beside the numbers that are there."""
    found, size = [x.new_zeros(0, 3).double()], max(1, MOST_STEPS // x.shape[1])
    for some in places.split(size) if len(places) else ():
        rows, steps, columns = some.T
        one, each = torch.arange(len(some), device=x.device), cut(batch._replace(x=x), rows)
        each.x[one, steps, columns] = batch.x[rows, steps, columns]
        found.append(torch.stack([part[one, steps, columns] for part in scores(each)], 1))
    return list(torch.cat(found).unbind(1))


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
        whole = x.double().clone() if isinstance(x, Tensor) else np.array(unmasked(x), dtype=float)
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
