"""What the page of an input-output HMM shows: errors beside those of the mean or the most frequent class; its automaton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pplseq.data.labelled_strings import read_labelled_strings
from pplseq.recipes.iohmm.answers import evaluate
from pplseq.recipes.iohmm.tables import Columns, Run, read_run
from pplseq.recipes.run_folder import record_of
from pplseq.recipes.run_report import measured_data
from pplseq.report.markup import escape, figure, folded, table, wide
from pplseq.report.run import Measure, RunView
from pplseq.report.series import series_figure, state_sections
from pplseq.runs.progress import Watch

MOST_COLUMNS, MOST_STATES = 6, 60  # that are shown


def view(folder: Path, settings: Any) -> RunView:
    """Measures on held-out data, and predictions or the automaton."""
    run, record = read_run(folder), record_of(folder)
    data, measured_on = measured_data(settings.data, record, "validation")
    strings = run.of_strings
    sections = [("The automaton", _automaton(run))] if strings else []
    if data is None:
        note = "The data of the run are not there, so nothing was measured; --data names some."
        return RunView(sections=sections, curve=False, notes=[note])
    train = record.data if record is not None and Path(record.data).is_file() else data
    (found,) = evaluate(folder, data, settings, Watch())
    if strings:
        return RunView(measured_on, _string_measures(found, run, data, train), sections=sections, curve=False)
    columns = run.columns
    rows, learned_from = columns.read(data), columns.read(train)
    if columns.output_levels:
        measures = _class_measures(found, columns, rows, learned_from)
    else:
        measures = [Measure("nats a row with outputs", found["nats_per_target"])]
        measures += _number_measures(found, columns, rows, learned_from)
        sections.append(("A step ahead", _predictions(run, columns, rows)))
    sections += _states(run, columns, rows)
    return RunView(measured_on, measures, sections=sections, curve=False)


def _string_measures(found: dict[str, Any], run: Run, data: str, train: str) -> list[Measure]:
    symbols = run.record["symbols"]
    accepted = np.mean(read_labelled_strings(train, symbols=symbols).labels) > 0.5
    rival = float(np.mean(np.array(read_labelled_strings(data, symbols=symbols).labels) == accepted))
    name = f"every string {'accepted' if accepted else 'rejected'}, as most are"
    return [
        Measure("accuracy of the automaton", found["automaton"]["accuracy"], rival, name),
        Measure("balanced accuracy of the automaton", found["automaton"]["balanced_accuracy"], 0.5, name),
        Measure("accuracy of the model", found["model"]["accuracy"], rival, name),
        Measure("nats a string, of the model", found["nats_per_target"]),
    ]


def _class_measures(found: dict[str, Any], columns: Columns, rows: Any, learned_from: Any) -> list[Measure]:
    seen, before = (codes[codes >= 0] for codes in (np.concatenate(t.outputs) for t in (rows, learned_from)))
    counts = np.bincount(before, minlength=len(columns.output_levels or ()))
    shares = (counts + 1) / (counts.sum() + len(counts))
    often, result = int(counts.argmax()), []
    name = f"always {columns.output_levels[often]}, the most frequent" if columns.output_levels else ""
    entropy = float(-np.log(shares[seen]).mean())
    result.append(Measure("nats an output", found["nats_per_target"], entropy, "its share of the training outputs"))
    for kind, what in (("prediction", "given the rows before"), ("production", "given the inputs alone")):
        if kind in found:
            accuracy = float((seen == often).mean())
            result.append(Measure(f"accuracy, {what}", found[kind]["accuracy"], accuracy, name))
    return result


def _number_measures(found: dict[str, Any], columns: Columns, rows: Any, learned_from: Any) -> list[Measure]:
    mean, seen, result = np.nanmean(np.concatenate(learned_from.outputs), 0), np.concatenate(rows.outputs), []
    for kind, what in (("prediction", "given the rows before"), ("production", "given the inputs alone")):
        if kind not in found:
            continue
        if "accuracy" in found[kind]:
            often = mean > 0.5
            share = float(np.nanmean(np.where(np.isnan(seen), np.nan, often == seen)))
            result.append(Measure(f"accuracy, {what}", found[kind]["accuracy"], share, "always the more frequent"))
            continue
        rival = np.sqrt(np.nanmean((seen - mean) ** 2, 0))
        result += [
            Measure(
                f"root mean squared error of {name}, {what}", found[kind]["root_mean_squared_error"][name],
                float(rival[k]), "the mean of the training rows",
            )
            for k, name in enumerate(columns.outputs)
            if name in found[kind]["root_mean_squared_error"]
        ]  # fmt: skip
    return result


def _predictions(run: Run, columns: Columns, rows: Any) -> str:
    x, inputs = columns.data(rows)
    longest = max(range(len(x)), key=lambda k: len(x[k]))
    told = run.model.one_step([x[longest]], inputs=None if inputs is None else [inputs[longest]])
    means = np.asarray(told.outputs[0])
    return "".join(
        figure(
            series_figure(rows.outputs[longest][:, k], means[:, columns.expected_names.index(name)], name=name),
            f"<b>{escape(name)}</b>: dots are observed, the line is what the rows before and the inputs let expect.",
        )
        for k, name in enumerate(columns.outputs[:MOST_COLUMNS])
        if name not in (columns.output_symbols or {})
    )


def _states(run: Run, columns: Columns, rows: Any) -> list[tuple[str, str]]:
    x, inputs = columns.data(rows)
    paths = [np.asarray(path) for path in run.model.decode(x, **({} if inputs is None else {"inputs": inputs}))]
    names = run.model.state_names or [f"state {k}" for k in range(run.model.num_states)]
    symbols = columns.output_symbols or {}
    numbers = [k for k, name in enumerate(columns.outputs) if name not in symbols and not columns.output_levels][:MOST_COLUMNS]
    observed = [np.asarray(outputs, float).reshape(len(outputs), -1)[:, numbers] for outputs in rows.outputs]
    return state_sections(paths, names, observed, [columns.outputs[k] for k in numbers])


def _automaton(run: Run) -> str:
    """The chosen automaton as a table of its states."""
    automaton = run.automaton
    moves: dict[int, list[str]] = {}
    for (start, end), symbols in automaton.edges().items():
        moves.setdefault(start, []).append(f"{escape(', '.join(symbols))}&nbsp;→&nbsp;{end}")
    rows = [
        (
            f"{state}{' (start)' if state == automaton.start else ''}",
            escape(str(automaton.labels[automaton.outputs[state]])),
            "; ".join(moves.get(state, ["–"])),
        )
        for state in range(min(automaton.num_states, MOST_STATES))
    ]
    some = "" if len(rows) == automaton.num_states else f" The first {len(rows)} are shown."
    caption = f"<b>{automaton.num_states} states.</b> A string is read symbol by symbol from the start.{some}"
    dot = folded("For Graphviz", wide(f"<pre>{_lines(automaton.to_dot())}</pre>"))
    return table(("State", "A string that ends here is", "Moves"), rows, "kll", caption) + dot


def _lines(text: str) -> str:
    return "\n".join(map(escape, text.splitlines()))
