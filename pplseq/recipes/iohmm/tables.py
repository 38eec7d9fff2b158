"""Input-output HMMs trained on tables; the folders of their runs."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pplseq import checks
from pplseq.data.tables import NotANumber, SequenceTable, coded_columns, expanded_names, read_table
from pplseq.folder import sound, whole_folder
from pplseq.models import IOHMM
from pplseq.models.automata.automaton import Automaton
from pplseq.models.parts.named_families import driven_family
from pplseq.models.storage import MODEL
from pplseq.recipes.iohmm.settings import BEST, RUN, SIZE
from pplseq.recipes.recipe import Job
from pplseq.runs.checkpoint import TRAINING
from pplseq.runs.signals import TimeOver

SCORES = {
    "likelihood": "log-likelihood",
    "bic": "-BIC / 2",
    "validation": "log-likelihood of the validation data",
    "smallest_consistent": "1: every target is right",
}


def sizes_of(states: str | None, default: Sequence[int]) -> list[int]:
    """2,3,4 or 2-8 as a list of numbers of states."""
    if states is None:
        return list(default)
    try:
        low, dash, high = str(states).partition("-")
        sizes = list(range(int(low), int(high) + 1)) if dash else [int(part) for part in str(states).split(",")]
        if sizes and min(sizes) >= 1:
            return sizes
    except ValueError:
        pass
    raise ValueError(f"num_states must be numbers of at least 1, like 3, 2,3,4 or 2-8; got {checks.shown(states)}")


# ---------------------------------------------------------------- folders
class Run(NamedTuple):
    """A run's folder, read."""

    record: dict[str, Any]
    model: IOHMM
    folder: Path

    @property
    def of_strings(self) -> bool:
        """Whether it was trained on labelled strings, not on a table."""
        return self.record["kind"] == "strings"

    @property
    def columns(self) -> Columns:
        """How tables are read, of a run on one."""
        with sound(f"{self.folder / BEST / RUN.header}: its columns", RUN.again):
            found = Columns(**self.record["columns"])
            _ = found.input_names, found.expected_names
            return found

    @property
    def automaton(self) -> Automaton:
        """The chosen one, of a run on strings."""
        with sound(f"{self.folder / BEST / RUN.header}: its automaton", RUN.again):
            return Automaton.from_dict(next(entry["automaton"] for entry in self.record["automata"] if entry["chosen"]))


def write_run(folder: Path, record: dict[str, Any], model: IOHMM) -> None:
    """The best model so far, and with it what the run says of it, whole or not at all."""
    RUN.write(folder / BEST, record, more=model.save)


def read_record(folder: Path) -> dict[str, Any]:
    """What a run's folder says of itself; FileNotFoundError or FolderError where it is none."""
    return RUN.read_header(folder / BEST)


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, and not of a model that was saved from Python."""
    return RUN.is_at(folder / BEST) or not MODEL.is_at(folder)


def read_run(folder: Path) -> Run:
    """Raises FileNotFoundError or FolderError where there is no whole run, ValueError for a model saved from Python."""
    if not is_run(folder):
        raise ValueError(
            f"{folder}: a saved model, whose folder does not say how tables are read; ask it in Python, "
            f"pplseq.load({str(folder)!r}), or train by `pplseq train iohmm`, whose runs know their columns"
        )
    record, *_, model = RUN.read(folder / BEST, more=lambda place, header: IOHMM.load(place))
    return Run(record, model, folder)


# ---------------------------------------------------------------- tables
class Columns(NamedTuple):
    """How a run's tables are read: kept in its record, so that other tables are read the same."""

    sequence_id: str | None
    inputs: list[str]
    outputs: list[str]
    symbols: list[str]
    family: str | list[str]  # a list: of generalised linear models, one a column
    input_levels: list[str] | None = None
    output_levels: list[str] | None = None
    mean: list[float] | None = None  # of real inputs, where they are standardized
    scale: list[float] | None = None
    input_symbols: dict[str, list[str]] | None = None  # of columns of symbols beside other inputs
    output_symbols: dict[str, list[str]] | None = None
    order_by: str | None = None
    embed: int | None = None  # dimensions of the vectors of columns of many symbols among the inputs

    @property
    def embeddings(self) -> dict[int, tuple[int, int]] | None:
        """As the model takes them."""
        if self.embed is None:
            return None
        names = self.input_names
        return {names.index(name): (len((self.input_symbols or {})[name]), self.embed) for name in self.coded} or None

    @property
    def coded(self) -> tuple[str, ...]:
        """The columns of symbols that are embedded."""
        return coded_columns(self.input_symbols or {}, self.embed)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Of the numbers that the model is given: of symbols beside other inputs "weather=rain"."""
        return expanded_names(self.inputs, self.input_symbols or {}, self.coded)

    @property
    def expected_names(self) -> list[str]:
        """Of the numbers that the model expects of outputs: of symbols beside other outputs the probability of each."""
        if self.output_levels is not None:
            return self.output_levels
        named = self.output_symbols or {}
        return [part for name in self.outputs for part in ([f"{name}={v}" for v in named[name]] if name in named else [name])]

    def read(self, data: str, *, leave_out: bool = False, outputs: bool = True) -> SequenceTable:
        """A table, its inputs standardized as the training table's were; `leave_out`: without what cannot be read; `outputs`:
        whether it has them."""
        names = self.outputs if outputs else []
        table = read_table(
            data, sequence_id=self.sequence_id, inputs=self.inputs, outputs=names, symbols=self.symbols,
            input_levels=self.input_levels, output_levels=self.output_levels, input_symbols=self.input_symbols,
            output_symbols={n: v for n, v in (self.output_symbols or {}).items() if n in names}, leave_out=leave_out,
            order_by=self.order_by, most_indicators=self.embed,
        )  # fmt: skip
        return self.standardized(table)

    def standardized(self, table: SequenceTable) -> SequenceTable:
        if self.mean is None:
            return table
        return replace(table, inputs=[(rows - np.array(self.mean)) / np.array(self.scale) for rows in table.inputs])

    def data(self, table: SequenceTable) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
        """(x, inputs) as the model takes them."""
        x = [torch.as_tensor(rows) for rows in table.outputs]
        return x, [torch.as_tensor(rows) for rows in table.inputs] if self.inputs else None


def _columns(data: str, settings: Any) -> tuple[Columns, SequenceTable]:
    inputs, outputs, symbols = (list(getattr(settings, name)) for name in ("inputs", "outputs", "symbols"))
    if twice := [name for name in outputs if name in inputs]:
        raise ValueError(f"outputs: column {twice[0]!r} is an input, too; a model would only repeat it, leave one out")
    if settings.embed is not None and not set(symbols) & set(inputs):
        raise ValueError("embed: it is about inputs that hold symbols, and there are none; name their columns with --symbols")
    if stray := [name for name in symbols if name not in [*inputs, *outputs]]:
        raise ValueError(
            f"symbols: {stray[0]!r} is neither among --inputs nor --outputs.{checks.nearest(stray[0], [*inputs, *outputs])}"
        )
    family = _family(settings, outputs, set(symbols) & set(outputs))
    each = family if isinstance(family, list) else [family] * len(outputs)
    if named := [name for name, kind in zip(outputs, each, strict=True) if kind != "categorical" and name in symbols]:
        got = each[outputs.index(named[0])]
        raise ValueError(
            f"family: column {named[0]!r} holds symbols, whose family is categorical, got {got}; leave --family out, or leave "
            f"{named[0]!r} out of --symbols"
        )
    if "categorical" in each:
        symbols = [*symbols, *(n for n, kind in zip(outputs, each, strict=True) if kind == "categorical" and n not in symbols)]
    columns = Columns(settings.sequence_id, inputs, outputs, symbols, family, order_by=settings.order_by, embed=settings.embed)
    try:
        table = columns.read(data)
    except NotANumber as error:
        named = ",".join([*settings.symbols, error.column])
        raise ValueError(f"{error}, or say that the column holds names: --symbols {named}") from None
    levels = table.output_levels
    if levels is not None and len(levels) < 2:
        raise ValueError(
            f"{data}: column {outputs[0]!r} holds one class only, {' '.join(levels)!r}; there is nothing to learn"
        )
    table.check_sizes(data)
    levels = [list(names) if names is not None else None for names in (table.input_levels, table.output_levels)]
    mixed = {name: list(found) for name, found in table.input_symbols.items()}
    if alone := [name for name, found in mixed.items() if len(found) < 2]:
        raise ValueError(f"{data}: column {alone[0]!r} holds {mixed[alone[0]][0]!r} everywhere and tells nothing; leave it out")
    classes = {name: list(found) for name, found in table.output_symbols.items()}
    if alone := [name for name, found in classes.items() if len(found) < 2]:
        raise ValueError(f"{data}: column {alone[0]!r} holds one class only, {classes[alone[0]][0]!r}; leave it out")
    columns = columns._replace(
        input_levels=levels[0], output_levels=levels[1], input_symbols=mixed or None, output_symbols=classes or None
    )
    if inputs and levels[0] is None and settings.standardize:
        rows = np.concatenate(table.inputs)
        mean, scale = rows.mean(0), rows.std(0)
        # what says whether a symbol is there stays 0 or 1, and the number of a symbol as it is
        number = np.array([name in inputs and name not in table.coded for name in table.input_names])
        mean, scale = np.where(number, mean, 0.0), np.where(number & (scale > 0), scale, 1.0)
        columns = columns._replace(mean=mean.tolist(), scale=scale.tolist())
        table = columns.standardized(table)
    return columns, table


def _family(settings: Any, outputs: list[str], named: set[str]) -> str | list[str]:
    """A family of all outputs together, or a list of generalised linear models, one a column."""
    given = list(settings.family)
    if len(given) not in (0, 1, len(outputs)):
        raise ValueError(f"family: one for all columns of outputs, or one for each of the {len(outputs)}; got {given}")
    if len(given) == 1 and given[0] not in ("categorical", "gaussian"):
        driven_family(given[0], "family")
    if not given and named and len(outputs) > 1:
        given = ["categorical" if name in named else "normal" for name in outputs]
    of_all = len(given) < 2 and (given or ["gaussian"])[0] in ("gaussian", "bernoulli", "categorical")
    if of_all and not settings.links and not (given == ["categorical"] and len(outputs) > 1):
        return given[0] if given else "categorical" if named else "gaussian"
    return given if len(given) == len(outputs) else (given or ["normal"]) * len(outputs)


def _graph(option: str | None) -> Any:
    if option in (None, "ergodic"):
        return None
    if option == "left_right":
        return option
    path = Path(option)
    if not path.is_file():
        raise FileNotFoundError(f"graph: expected ergodic, left_right or a file of 0s and 1s, got {checks.shown(option)}")
    try:
        rows = [
            [int(cell) for cell in line.replace(",", " ").split()]
            for line in path.read_text(encoding="utf-8-sig").splitlines()
            if line.strip()
        ]
    except (ValueError, UnicodeDecodeError):
        raise ValueError(f"graph: {path} must hold 0s and 1s, a row for each state to come from") from None
    if any(len(row) != len(rows) for row in rows) or not {cell for row in rows for cell in row} <= {0, 1}:
        raise ValueError(f"graph: {path} must hold as many columns as rows ({len(rows)}) of 0s and 1s")
    return torch.tensor(rows, dtype=torch.bool)


def _check_inputs(settings: Any) -> None:
    """Raises ValueError where something is to see inputs, and there are none."""
    sees = [
        *(["mealy"] if settings.mealy and not settings.feedback else []),
        *(["initial"] if settings.initial == "inputs" else []),
        *(["hidden"] if settings.hidden and not settings.feedback else []),
    ]
    if sees and not settings.inputs:
        raise ValueError(f"{sees[0]}: it is about inputs, and there are none; name their columns with --inputs")


def _selection(settings: Any, num_sizes: int) -> str:
    """What chooses among restarts and sizes."""
    held_out = settings.validation is not None
    select = settings.select or ("validation" if held_out else "likelihood" if num_sizes == 1 else "bic")
    if select == "likelihood" and num_sizes > 1:
        raise ValueError(
            "select: the likelihood grows with the number of states; choose among sizes by bic or validation"
        )
    if select == "validation" and not held_out:
        raise ValueError("select: validation needs held-out data, --validation")
    return select


def _fit_options(settings: Any, select: str, validation: Any) -> dict[str, Any]:
    if settings.lr is not None and settings.method != "sgd":
        raise ValueError(f"lr: of method='sgd', and method={settings.method!r} has none; leave it out")
    fit = dict(method=settings.method, select=select, validation=validation, early_stop=settings.early_stop, seed=settings.seed)
    fit["num_restarts"] = settings.num_restarts or 20
    if settings.max_iterations:
        fit["num_steps" if settings.method == "sgd" else "max_iterations"] = settings.max_iterations
    return fit | {n: getattr(settings, n) for n in ("batch_size", "lr") if getattr(settings, n) is not None}


def _options(columns: Columns, table: SequenceTable, settings: Any) -> dict[str, Any]:
    """What the model is made with, beside the number of its states."""
    return dict(
        num_symbols=None if columns.input_levels is None else len(columns.input_levels),
        num_inputs=len(columns.input_names) if columns.input_levels is None else None,
        outputs=columns.family, num_outputs=_widths(columns), trials=settings.trials,
        links=(settings.links[0] if len(settings.links) == 1 else list(settings.links) or None),
        mealy=settings.mealy, graph=_graph(settings.graph), initial=settings.initial,
        feedback=settings.feedback, covariance=settings.covariance,
        hidden=settings.hidden, covariance_floor=settings.covariance_floor, embeddings=columns.embeddings,
    )  # fmt: skip


def _widths(columns: Columns) -> int | list[int]:
    """Numbers of classes, or of dimensions; of generalised linear models column by column."""
    levels = columns.output_levels
    if not isinstance(columns.family, list):
        return len(columns.outputs) if levels is None else len(levels)
    if levels is not None:
        return [len(levels)]
    return [len((columns.output_symbols or {}).get(name, [""])) for name in columns.outputs]


def info(data: str, settings: Any) -> dict[str, Any]:
    """Sizes of a table, and of the models that these settings make."""
    _check_inputs(settings)
    columns, table = _columns(data, settings)
    sizes, options = sizes_of(settings.num_states, [2]), _options(columns, table, settings)
    parameters = {str(size): IOHMM(size, **options).num_free_parameters for size in sizes}
    return table.describe() | {"family": columns.family, "parameters_by_states": parameters}


def train_table(job: Job) -> dict[str, Any]:
    """Fits models of all sizes asked for, keeps the best, and writes the run's folder after each; the summary."""
    settings, watch = job.settings, job.watch
    sizes = sizes_of(settings.num_states, [2])
    _check_inputs(settings)
    select = _selection(settings, len(sizes))
    with job.preparing(f"reading {Path(job.data).name}"):
        columns, table = _columns(job.data, settings)
        x, inputs = columns.data(table)
        held_out = columns.data(columns.read(settings.validation)) if settings.validation else None
        validation = held_out and dict(zip(("x", "inputs"), held_out, strict=True))
    options = _options(columns, table, settings)
    fit = _fit_options(settings, select, validation)
    watch.say(
        f"{len(table.ids):,} sequences, {sum(table.lengths):,} steps; inputs {', '.join(columns.inputs) or 'none'}, outputs "
        f"{', '.join(columns.outputs)} ({columns.family if isinstance(columns.family, str) else ', '.join(columns.family)})"
    )
    # killed within its first size, a run has no model yet
    record, kept, _ = read_run(job.folder) if job.resume and RUN.is_at(job.folder / BEST) else ({}, None, None)
    tried: list[dict[str, Any]] = record.get("tried", [])
    for entry in tried:  # it may have been killed before its place was cleared
        shutil.rmtree(_place(job, entry["states"]), ignore_errors=True)
    best = record["summary"]["score"] if tried else None
    stop_reason = "finished"
    for size in [size for size in sizes if size not in [entry["states"] for entry in tried]]:
        if select == "smallest_consistent" and best == 1:
            break
        if job.time_left is not None and job.time_left <= 0:
            stop_reason = "max_time"
            break
        watch.stage(f"fitting {size} states, {fit['num_restarts']} restarts")
        model = _fitted(job, IOHMM(size, **options).to(checks.device(settings.device)), x, inputs, fit)
        report = model.history.restarts
        score, log_likelihood = (float(v[report.chosen]) for v in (report.scores, report.log_likelihoods))
        if model.history.reason == "max_time":
            stop_reason = "max_time"
        else:
            tried.append({"states": size, "score": score, "log_likelihood": log_likelihood})
        watch.say(f"{size} states: {report.summary()}; score ({SCORES[select]}) {score:.6g}")
        for restart, why in list(report.dropped.items())[:5]:
            watch.say(f"  restart {restart} was dropped: {why}")
        # a size that was cut short stands for itself until it is finished, and not beside those that are
        if best is None or (score > best and stop_reason == "finished"):
            best, kept = score, model
            record = {"kind": "table", "data": job.data, "columns": columns._asdict(), "summary": {
                "states": size, "select": select, "score": score, "log_likelihood": log_likelihood,
                "num_parameters": model.num_free_parameters, "restarts": fit["num_restarts"],
                "dropped": len(report.dropped),
            }}  # fmt: skip
            record["restarts"] = {
                "log_likelihoods": report.log_likelihoods.tolist(),
                "dropped": {str(restart): why for restart, why in report.dropped.items()},
                "chosen": report.chosen,
            }
        assert kept is not None, "a record is of a model"
        write_run(job.folder, record | {"tried": tried}, kept)
        if stop_reason == "max_time":
            break
        shutil.rmtree(_place(job, size))
    if not record or kept is None:
        raise TimeOver
    summary = record["summary"] | {"sizes": tried, "stop_reason": stop_reason, "steps": max(1, len(tried))}
    summary["seconds"] = round(time.monotonic() - job.started, 2)
    write_run(job.folder, record | {"tried": tried, "summary": summary}, kept)
    return summary


def _place(job: Job, size: int) -> Path:
    return job.folder / f"{SIZE}{size}"


def _fitted(job: Job, model: IOHMM, x: Any, inputs: Any, fit: Mapping[str, Any]) -> IOHMM:
    """A model fitted in a folder of its size's own, where a run that was stopped goes on; one iteration at least."""
    place = _place(job, model.num_states)
    last, spent = place / "last", 0.0
    resume = whole_folder(last).exists()
    if resume:
        spent = TRAINING.read_header(last)["state"]["progress"]["seconds"]  # which the fit's own clock begins with
    limit = None if job.time_left is None else max(job.time_left, 0.0) + spent
    job.watch.begin(None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            warnings.showwarning = lambda message, *_: job.watch.say(f"{model.num_states} states: warning: {message}")
            return model.fit(
                x, inputs=inputs, folder=place, resume=resume, max_time=limit, on_record=job.watch.record, **fit
            )
    except BaseException:
        if not whole_folder(last).exists():
            shutil.rmtree(place, ignore_errors=True)
        raise
