"""What the page of a linear dynamical system shows: errors beside those of the value before and of the mean, predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pplseq.recipes.lds.tables import evaluate, read_run
from pplseq.recipes.run_folder import record_of
from pplseq.recipes.run_report import measured_data
from pplseq.report.markup import escape, figure
from pplseq.report.run import Measure, RunView
from pplseq.report.series import MOST_STEPS, series_figure
from pplseq.runs.progress import Watch

MOST_COLUMNS = 6  # that are drawn


def view(folder: Path, settings: Any) -> RunView:
    """Measures on held-out rows, and what the model expected of the last of them."""
    data, measured_on = measured_data(settings.data, record_of(folder), "validation")
    if data is None:
        return RunView(curve=False, notes=["The table of the run is not there, so nothing was measured; --data names one."])
    (found,) = evaluate(folder, data, settings, Watch())
    columns, model = read_run(folder, settings)
    table = columns.read(data)
    measures = [Measure("nats a row, in the table's units", found["nats_per_step"])]
    before = value_before(table.outputs)
    constant = "the mean of the training rows" if np.any(columns.mean) else "zero"
    for k, name in enumerate(columns.outputs):
        error = found["prediction"]["root_mean_squared_error"][name]
        what = f"root mean squared error of {name}, a step ahead"
        measures.append(Measure(what, error, float(before[k]), "the value before it"))
        measures.append(Measure(what, error, found["mean"]["root_mean_squared_error"][name], constant))
    x, inputs = columns.rows(table)
    longest = max(range(len(x)), key=lambda k: len(x[k]))
    known = {} if inputs is None else {"inputs": [inputs[longest]]}
    told = model.one_step([x[longest]], **known)
    means, deviations = columns.in_units(told.means[0], told.covariances[0])
    drawn = "".join(
        figure(
            series_figure(table.outputs[longest][:, k], means[:, k], deviations[:, k], name),
            f"<b>{escape(name)}</b>: dots are observed, the line is what the rows before let expect, the band two deviations.",
        )
        for k, name in enumerate(columns.outputs[:MOST_COLUMNS])
    )
    which = f"the longest sequence, {escape(table.ids[longest])}" if len(x) > 1 else "the table"
    intro = f'<p class="caption">The last {min(len(x[longest]), MOST_STEPS)} rows of {which}.</p>'
    return RunView(measured_on, measures, sections=[("A step ahead", intro + drawn)], curve=False)


def value_before(sequences: list[np.ndarray]) -> np.ndarray:
    """(n,) root mean squared errors of predicting each seen value by the last one seen before it; NaN where there is none."""
    squares, counts = np.zeros(sequences[0].shape[-1]), np.zeros(sequences[0].shape[-1])
    for rows in sequences:
        for k, column in enumerate(np.asarray(rows, float).T):
            steps = np.diff(column[~np.isnan(column)])
            squares[k] += (steps**2).sum()
            counts[k] += len(steps)
    return np.sqrt(np.divide(squares, counts, out=np.full_like(squares, np.nan), where=counts > 0))
