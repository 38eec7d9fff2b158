"""Linear dynamical systems of tables: training in a folder, evaluation, forecasts and other answers in the table's units."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.tables import MissingColumn, SequenceTable, read_table
from pplseq.distributions.drawing import seeded
from pplseq.files import new_file, write_text
from pplseq.folder import FolderError, sealed, unsealed
from pplseq.models import LDS
from pplseq.recipes.forecasts import answer_sequences, check_ahead, rows_ahead
from pplseq.recipes.recipe import Job
from pplseq.runs.progress import Watch
from pplseq.runs.signals import TimeOver
from pplseq.threads import once

COLUMNS = "columns.json"  # how a run reads tables
SHOWN = 6  # steps of the past that are drawn for each of the steps to come


@dataclass(frozen=True)
class Columns:
    """How a run's tables are read, and the units its model works in: (value - mean) / scale, column by column."""

    outputs: list[str]
    inputs: list[str]
    sequence_id: str | None
    mean: list[float]
    scale: list[float]
    input_mean: list[float]
    input_scale: list[float]
    order_by: str | None = None

    @classmethod
    def of(cls, table: SequenceTable, sequence_id: str | None, standardize: bool, order_by: str | None = None) -> Columns:
        """Of a training table."""
        found: list[list[float]] = []
        for parts, size in ((table.outputs, len(table.output_names)), (table.inputs, len(table.input_names))):
            mean, scale = np.zeros(size), np.ones(size)
            if standardize and size:
                rows = np.concatenate(parts)
                mean, deviation = np.nanmean(rows, 0), np.nanstd(rows, 0)
                scale = np.where(deviation > 0, deviation, 1.0)
            found += [mean.tolist(), scale.tolist()]
        return cls(list(table.output_names), list(table.input_names), sequence_id, *found, order_by=order_by)

    @classmethod
    def load(cls, folder: Path) -> Columns:
        """Those of a run; FileNotFoundError or FolderError where there are none."""
        path = folder / COLUMNS
        if not path.is_file():
            raise FileNotFoundError(f"{folder} is no run of `pplseq train lds`: it has no {COLUMNS}")
        names = dict.fromkeys(("outputs", "inputs"), [str])
        names |= dict.fromkeys(("mean", "scale", "input_mean", "input_scale"), [float])
        found = cls(**unsealed(path, "train again", {**names, "sequence_id?": str, "order_by?": str}))
        sizes = [len(part) for part in (found.mean, found.scale, found.input_mean, found.input_scale)]
        if sizes != [len(found.outputs)] * 2 + [len(found.inputs)] * 2:
            raise FolderError(f"{path}: it was changed: means and scales are not those of its columns; train again")
        return found

    def save(self, folder: Path) -> None:
        """Beside the checkpoints, whole or not at all."""
        write_text(folder / COLUMNS, sealed(asdict(self)))

    def name(self, model: LDS) -> LDS:
        """The model, which takes the columns of a frame by these names."""
        model.column_names, model.input_column_names = tuple(self.outputs), tuple(self.inputs) or None
        return model

    def read(self, data: str, *, inputs_only: bool = False, leave_out: bool = False) -> SequenceTable:
        """A table with these columns; `leave_out`: without sequences that cannot be read."""
        outputs = [] if inputs_only else self.outputs
        return read_table(
            data, sequence_id=self.sequence_id, order_by=self.order_by, inputs=self.inputs, outputs=outputs, leave_out=leave_out
        )

    def rows(self, table: SequenceTable) -> tuple[list[Tensor], list[Tensor] | None]:
        """(x, inputs) of each sequence in the model's units."""
        x = [torch.as_tensor((rows - np.array(self.mean)) / np.array(self.scale)) for rows in table.outputs]
        return x, self.input_rows(table)

    def input_rows(self, table: SequenceTable) -> list[Tensor] | None:
        """Inputs of each sequence in the model's units."""
        if not self.inputs:
            return None
        mean, scale = np.array(self.input_mean), np.array(self.input_scale)
        return [torch.as_tensor((rows - mean) / scale) for rows in table.inputs]

    def in_units(self, means: Tensor, covariances: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """(T, n) means and deviations of observations in the table's units."""
        deviations = covariances.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().numpy()
        return means.numpy() * np.array(self.scale) + np.array(self.mean), deviations * np.array(self.scale)

    @once
    def log_scale(self) -> np.ndarray:
        """(n,) by which a density changes with the units."""
        return np.log(np.array(self.scale))

    def log_prob(self, log_prob: float, x: Tensor) -> float:
        """log p of a sequence in the table's units, of that in the model's."""
        return log_prob - float((~torch.isnan(x)).sum(0).numpy() @ self.log_scale)

    def units(self, x: list[Tensor]) -> float:
        """Nats a step by which the table's units differ from the model's, in which metrics.jsonl is."""
        return -sum(self.log_prob(0.0, rows) for rows in x) / sum(map(len, x))


# ---------------------------------------------------------------- training
def _check_columns(settings: Any) -> None:
    if not settings.outputs:
        raise ValueError("outputs: name the columns of the observations with --outputs, like a,b")
    if twice := [name for name in settings.outputs if name in settings.inputs]:
        raise ValueError(f"outputs: column {twice[0]!r} is an input, too; leave one out")


def _read(data: str, settings: Any) -> tuple[Columns, SequenceTable]:
    named = {name: getattr(settings, name) for name in ("sequence_id", "order_by", "inputs", "outputs")}
    table = read_table(data, **named)
    table.check_sizes(data)
    return Columns.of(table, settings.sequence_id, settings.standardize, settings.order_by), table


def _model(columns: Columns, settings: Any) -> LDS:
    names = ("inputs_to", "offsets", "state_noise", "emission_noise", "initial")
    options = {name: getattr(settings, name) for name in names if columns.inputs or name != "inputs_to"}
    return LDS(settings.num_states, len(columns.outputs), num_inputs=len(columns.inputs), **options)


def info(data: str, settings: Any) -> dict[str, Any]:
    """Sizes of a table, and of the model that these settings make."""
    _check_columns(settings)
    columns, table = _read(data, settings)
    return table.describe() | {"parameters": _model(columns, settings).num_free_parameters}


def train(job: Job) -> dict[str, Any]:
    """EM in the run's folder, from a subspace start; the summary."""
    settings = job.settings
    _check_columns(settings)
    with job.preparing(f"reading {Path(job.data).name}"):
        columns, table = _read(job.data, settings)
        x, inputs = columns.rows(table)
        held_out = None if settings.validation is None else columns.rows(columns.read(settings.validation))
    model = _model(columns, settings).to(checks.device(settings.device))
    columns.name(model)
    known: dict[str, Any] = {"inputs": inputs} if columns.inputs else {}
    batch = model._as_batch(x, **known)
    try:
        model._check_data(batch)
    except ValueError as error:
        raise ValueError(f"{job.data}: {error}") from None
    job.watch.say(
        f"{len(table.ids):,} sequences, {sum(table.lengths):,} steps; outputs {', '.join(columns.outputs)}, inputs "
        f"{', '.join(columns.inputs) or 'none'}; {settings.num_states} states"
    )
    if not job.resume:
        with job.preparing("finding a start"), seeded(settings.seed):
            model.initialize(batch)
    columns.save(job.folder)
    if job.time_left is not None and job.time_left <= 0:
        raise TimeOver("finding a start")
    job.watch.begin(settings.max_iterations if settings.max_time is None else None)
    model.fit(
        x, **known, method="em", warm_start=True, batch_size=settings.batch_size,
        validation=None if held_out is None else dict(zip(("x", *known), held_out, strict=False)),
        max_iterations=settings.max_iterations, tolerance=settings.tolerance, early_stop=settings.early_stop,
        folder=job.folder, resume=job.resume, max_time=settings.max_time, began=job.started, on_record=job.watch.record,
    )  # fmt: skip
    history = model.history.run
    progress = history.progress
    trained = [record for record in history.records if record.get("kind") == "train"]
    summary = {"stop_reason": history.stop_reason, "steps": progress.step, "seconds": round(progress.seconds, 1)}
    if trained:
        summary["nats_per_step"] = trained[-1]["nats_per_token"] + columns.units(x)
    if math.isfinite(progress.best):
        value = progress.best + columns.units(held_out[0] if held_out is not None else x)
        summary |= {"best_step": progress.best_step, "validation_nats_per_step": value}
    return summary


def read_run(folder: Path, settings: Any) -> tuple[Columns, LDS]:
    """How a run reads tables, and its model."""
    columns = Columns.load(folder)
    checkpoint = folder / settings.checkpoint
    if not checkpoint.exists():
        checkpoint = folder / "last"  # without a validation there is no best
    return columns, columns.name(LDS.load(checkpoint))


def load(folder: Path, settings: Any) -> LDS:
    """The model of a run."""
    return read_run(folder, settings)[1]


# ---------------------------------------------------------------- evaluation
def evaluate(folder: Path, data: str, settings: Any, watch: Watch) -> Iterator[dict[str, Any]]:
    """Likelihood of a table, nats a row, and root mean squared errors of predictions one step ahead beside those of the mean,
    in its units."""
    columns, model = read_run(folder, settings)
    table = columns.read(data)
    x, inputs = columns.rows(table)
    total, squares, naive, counts = 0.0, 0.0, 0.0, 0
    for k, rows in enumerate(x):
        known: dict[str, Any] = {} if inputs is None else {"inputs": [inputs[k]]}
        total += columns.log_prob(model.score([rows], **known), rows)
        predicted = model.one_step([rows], **known)
        means, _ = columns.in_units(predicted.means[0], predicted.covariances[0])
        seen = ~np.isnan(table.outputs[k])
        squares = squares + (np.where(seen, means - table.outputs[k], 0.0) ** 2).sum(0)
        naive = naive + (np.where(seen, np.array(columns.mean) - table.outputs[k], 0.0) ** 2).sum(0)
        counts = counts + seen.sum(0)
    if not np.any(counts):
        raise ValueError(
            f"{data}: no output is given in {', '.join(columns.outputs)}; there is nothing to compare with"
        )

    def root(sums: Any) -> dict[str, float]:
        return dict(zip(columns.outputs, np.sqrt(sums / np.maximum(counts, 1)).tolist(), strict=True))

    steps = sum(table.lengths)
    yield {
        "run": str(folder), "data": data, "sequences": len(table.ids), "steps": steps, "log_likelihood": total,
        "nats_per_step": -total / steps,
        "prediction": {"root_mean_squared_error": root(squares)}, "mean": {"root_mean_squared_error": root(naive)},
    }  # fmt: skip


# ---------------------------------------------------------------- questions
def query(folder: Path, question: str, data: str | Path, settings: Any) -> Iterator[dict[str, Any]]:
    """An answer for each sequence; with `csv` also as a table, without those that have none."""
    columns, model = read_run(folder, settings)
    try:
        table = columns.read(str(data), leave_out=True)
    except MissingColumn as error:
        reads = f"outputs {', '.join(columns.outputs)}" + f" and inputs {', '.join(columns.inputs)}" * bool(columns.inputs)
        raise ValueError(
            f"{error}. {question} reads the columns of the training: {reads}; an output that is not known may be empty"
        ) from None
    x, inputs = columns.rows(table)
    coming = _future(columns, settings) if question == "forecast" else None
    future = {} if coming is None else dict(zip(coming.ids, columns.input_rows(coming) or (), strict=True))

    def ask(k: int) -> dict[str, Any]:
        rows = x[k]
        known: dict[str, Any] = {} if inputs is None else {"inputs": [inputs[k]]}
        if question == "score":
            return {"log_prob": columns.log_prob(model.score([rows], **known), rows)}
        if question in ("filter", "smooth"):
            states = getattr(model, question)([rows], **known)
            deviations = states.covariances[0].diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
            return {"states": states.means[0].tolist(), "deviations": deviations.tolist()}
        if question == "forecast":
            if coming is not None:
                check_ahead(settings.future, table, coming, table.ids[k])
            num_steps, ahead = rows_ahead(settings, future if columns.inputs else None, table.ids[k])
            told = model.forecast([rows], num_steps, **known, **({} if ahead is None else {"future_inputs": ahead}))
        else:
            told = (model.one_step if question == "predict" else model.reconstruct)([rows], **known)
        means, deviations = columns.in_units(told.means[0], told.covariances[0])
        named = [[dict(zip(columns.outputs, row, strict=True)) for row in part.tolist()] for part in (means, deviations)]
        return {"outputs": named[0], "deviations": named[1]}

    found = []
    for answer in answer_sequences(table, ask):
        if "error" not in answer:
            found.append(answer)
        yield answer
    if getattr(settings, "csv", None) is not None and question != "score":
        write_csv(settings.csv, columns, found)
    if getattr(settings, "png", None) is not None and found:
        draw_forecast(settings.png, columns, table.outputs[table.ids.index(found[0]["id"])], found[0])


def _future(columns: Columns, settings: Any) -> SequenceTable | None:
    """The table of inputs that are to come."""
    if settings.future is None:
        if columns.inputs:
            raise ValueError("future: this model has inputs; give those that are to come with --future TABLE")
        return None
    if not columns.inputs:
        raise ValueError("future: this model has no inputs; say how many --steps, and leave --future out")
    return columns.read(settings.future, inputs_only=True, leave_out=True)


def draw_forecast(path: Path, columns: Columns, past: np.ndarray, answer: dict[str, Any]) -> None:
    """The last rows of a sequence (T, n), and what is foretold of it with intervals of 90 %, a panel a column.

    Raises:
        ImportError: without matplotlib, an extra.
    """
    from pplseq import plot  # with matplotlib
    from pplseq.report.canvas import new_figure, save_figure

    means, deviations = (np.array([list(row.values()) for row in answer[part]]) for part in ("outputs", "deviations"))
    figure = new_figure(7.0, 2.4 * len(columns.outputs) + 0.4, layout="constrained")
    panels = figure.subplots(len(columns.outputs), 1, sharex=True, squeeze=False).ravel()
    first = max(0, len(past) - SHOWN * len(means))
    spread = np.stack([np.diag(row**2) for row in deviations])
    for k, (axes, name) in enumerate(zip(panels, columns.outputs, strict=True)):
        steps = np.arange(first + 1, len(past) + len(means) + 1)
        plot.forecast(past[first:], means, spread, level=0.9, column=k, index=steps, ax=axes)
        axes.set_ylabel(name, parse_math=False)
    panels[-1].set_xlabel("step")
    save_figure(figure, path, 110)


def write_csv(path: Path, columns: Columns, found: list[dict[str, Any]]) -> None:
    """Answers as a table, whole or not at all: sequence, step (from 1), and means and deviations by column."""
    first = found[0] if found else {}
    if "states" in first:
        names = [f"z{k + 1}" for k in range(len(first["states"][0]))] if first["states"] else []
    else:
        names = columns.outputs
    with new_file(path) as new, new.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([columns.sequence_id or "sequence", "step", *names, *(f"{name}_deviation" for name in names)])
        for answer in found:
            rows = answer.get("states") or [list(row.values()) for row in answer.get("outputs", ())]
            spread = [list(row.values()) if isinstance(row, dict) else row for row in answer["deviations"]]
            for step, (row, deviations) in enumerate(zip(rows, spread, strict=True), 1):
                writer.writerow([answer["id"], step, *row, *deviations])
