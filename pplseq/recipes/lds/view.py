"""What the page of a linear dynamical system shows: errors beside those of the value before and of the mean, predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pplseq.recipes.lds.tables import Columns, evaluate, read_run
from pplseq.recipes.run_folder import record_of
from pplseq.recipes.run_report import measured_data
from pplseq.report.markup import escape, figure
from pplseq.report.run import Measure, RunView
from pplseq.report.series import MOST_STEPS, series_figure
from pplseq.runs.progress import Watch

MOST_COLUMNS = 6  # that are drawn
AHEAD = 24  # steps of a forecast


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
    sections = [("A step ahead", intro + drawn), ("Residuals", _residuals(table.outputs[longest], means, deviations, columns))]
    if inputs is None:  # which a forecast would need to know
        ahead = model.forecast([x[longest]], AHEAD)
        means, deviations = columns.in_units(ahead.means[0], ahead.covariances[0])
        sections.append(("Forecast", _forecasts(table.outputs[longest], means, deviations, columns)))
    smoothed = model.smooth([x[longest]], **known)
    sections.append(("Smoothed states", _states(np.asarray(smoothed.means[0]), np.asarray(smoothed.covariances[0]))))
    return RunView(measured_on, measures, sections=sections, curve=False)


def _residuals(observed: np.ndarray, means: np.ndarray, deviations: np.ndarray, columns: Columns) -> str:
    """What was observed less what was expected, in its deviations: of a model that fits, 95 of 100 dots are in the band."""
    with np.errstate(divide="ignore", invalid="ignore"):  # of what is known for sure
        left = (np.asarray(observed, float) - means) / deviations
    ones = np.ones(len(left))
    return "".join(
        figure(
            series_figure(left[:, k], 0 * ones, ones, name),
            f"<b>{escape(name)}</b>: observed less expected a step ahead, in deviations; "
            f"{_within(left[:, k])} are within two, of a model that fits 95%.",
        )
        for k, name in enumerate(columns.outputs[:MOST_COLUMNS])
    )


def _within(residuals: np.ndarray) -> str:
    seen = residuals[np.isfinite(residuals)]
    return f"{np.mean(np.abs(seen) < 2):.0%}" if len(seen) else "none"


def _forecasts(observed: np.ndarray, means: np.ndarray, deviations: np.ndarray, columns: Columns) -> str:
    seen = np.asarray(observed, float)
    nothing = np.full((len(seen), seen.shape[-1]), np.nan)
    ahead = np.full((len(means), seen.shape[-1]), np.nan)
    dots, line, band = (np.concatenate(parts) for parts in ((seen, ahead), (nothing, means), (nothing, deviations)))
    return "".join(
        figure(
            series_figure(dots[:, k], line[:, k], band[:, k], name),
            f"<b>{escape(name)}</b>: dots are observed; the {len(means)} rows to come, with two deviations.",
        )
        for k, name in enumerate(columns.outputs[:MOST_COLUMNS])
    )


def _states(means: np.ndarray, covariances: np.ndarray) -> str:
    nothing = np.full(len(means), np.nan)
    return "".join(
        figure(
            series_figure(nothing, means[:, k], np.sqrt(covariances[:, k, k]), f"state {k}"),
            f"<b>State {k}</b> given all rows, with two deviations. States have no unit of their own.",
        )
        for k in range(min(means.shape[-1], MOST_COLUMNS))
    )


def value_before(sequences: list[np.ndarray]) -> np.ndarray:
    """(n,) root mean squared errors of predicting each seen value by the last one seen before it; NaN where there is none."""
    squares, counts = np.zeros(sequences[0].shape[-1]), np.zeros(sequences[0].shape[-1])
    for rows in sequences:
        for k, column in enumerate(np.asarray(rows, float).T):
            steps = np.diff(column[~np.isnan(column)])
            squares[k] += (steps**2).sum()
            counts[k] += len(steps)
    return np.sqrt(np.divide(squares, counts, out=np.full_like(squares, np.nan), where=counts > 0))
