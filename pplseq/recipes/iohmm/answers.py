"""Evaluating runs of input-output HMMs, and asking them."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from pplseq import checks
from pplseq.data.labelled_strings import LabelledStrings, read_labelled_strings
from pplseq.data.sources import available_lines, existing_path, listing
from pplseq.data.tables import MissingColumn
from pplseq.data.vocabulary import split_words
from pplseq.distributions.drawing import seeded
from pplseq.files import write_text
from pplseq.models import IOHMM
from pplseq.recipes.forecasts import answer_sequences, check_ahead, rows_ahead
from pplseq.recipes.iohmm.formula_tables import FormulaColumns, saved_model
from pplseq.recipes.iohmm.settings import AUTOMATON, check_automaton
from pplseq.recipes.iohmm.tables import Columns, Run, is_run, read_run
from pplseq.runs.progress import Watch
from pplseq.sources.lines import why


def read_strings(run: Run, data: str) -> Iterator[list[tuple[str, ...] | dict[str, Any]]]:
    """Strings to ask about, one a line, with or without a label; of a line that cannot be read {"line", "error"}.

    As many at a time as are there: of a pipe that pauses each line before the next one comes.
    """
    if data == "-":
        yield from _strings_of(sys.stdin.buffer, "<stdin>", run.record["symbols"])
        return
    path = existing_path(data)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a file of strings, one a line")
    with path.open("rb") as stream:
        yield from _strings_of(stream, data, run.record["symbols"])


def _strings_of(stream: BinaryIO, name: str, symbols: list[str]) -> Iterator[list[tuple[str, ...] | dict[str, Any]]]:
    words, number = any(len(symbol) > 1 for symbol in symbols), 0
    for lines in available_lines(stream):
        if number == 0:
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        lines = [part for line in lines for part in line.removesuffix(b"\r").split(b"\r")]  # all ends that there are
        yield _parsed(lines, number + 1, name, symbols, words)
        number += len(lines)


def _parsed(
    lines: Sequence[bytes], first: int, name: str, symbols: list[str], words: bool
) -> list[tuple[str, ...] | dict[str, Any]]:
    """The strings of lines, the first of which has this number."""
    strings: list[tuple[str, ...] | dict[str, Any]] = []
    for number, raw in enumerate(lines, first):
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            strings.append({"line": number, "error": f"{name}: not UTF-8 text: byte {error.start + 1} of the line"})
            continue
        if line.startswith("#") and "#" not in symbols:
            continue
        line = line.split("\t")[0].strip()
        if line[:1] in ("+", "-") and line[:1] not in symbols:
            line = line[1:].strip()
        string = tuple(split_words(line) if words or " " in line else line)
        if strange := [symbol for symbol in string if symbol not in symbols]:
            found = f"{name}, line {number}: unknown symbol {strange[0]!r}; known: {listing(symbols)}"
            strings.append({"line": number, "error": found})
            continue
        strings.append(string)
    return strings


def _codes(run: Run, strings: Sequence[Sequence[str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, T) symbols, padded, and (N,) lengths."""
    number = {symbol: n for n, symbol in enumerate(run.record["symbols"])}
    lengths = torch.tensor([len(string) for string in strings])
    codes = torch.zeros(len(strings), max(1, int(lengths.max())), dtype=torch.long)
    for row, string in zip(codes, strings, strict=True):
        row[: len(string)] = torch.tensor([number[symbol] for symbol in string], dtype=torch.long)
    return codes, lengths


# ---------------------------------------------------------------- evaluation
def load(folder: Path, settings: Any) -> IOHMM:
    """The model of a run."""
    return read_run(folder).model


def evaluate(folder: Path, data: str, settings: Any, watch: Watch) -> Iterator[dict[str, Any]]:
    """Nats per target; of classes the accuracy and the balanced accuracy, of numbers the root mean squared error, of
    predictions (closed loop) and of production (open loop); of strings also the automaton's."""
    if not is_run(folder):
        model, columns = _saved(folder)
    else:
        run = read_run(folder)
        if run.of_strings:
            read = read_labelled_strings(data, symbols=run.record["symbols"])
            yield {"run": str(folder), "data": data, **_evaluate_strings(run, read)}
            return
        model, columns = run.model, run.columns
    table: Any = columns.read(data)
    x, inputs = columns.data(table)
    inputs = None if inputs is None else _together(inputs)
    targets = np.concatenate(table.outputs)
    seen = targets >= 0 if columns.output_levels else ~np.isnan(targets).all(-1)
    if not seen.any():
        raise ValueError(
            f"{data}: no output is given in {', '.join(columns.outputs)}; there is nothing to compare with"
        )
    log_likelihood = float(model.score(x, inputs=inputs))
    result = {
        "run": str(folder), "data": data, "sequences": len(table.ids), "targets": int(seen.sum()),
        "log_likelihood": log_likelihood, "nats_per_target": -log_likelihood / int(seen.sum()),
    }  # fmt: skip
    found = {"prediction": model.one_step(x, inputs=inputs)}
    if inputs is not None:
        found["production"] = model.open_loop(inputs)
    for name, answer in found.items():
        expected = np.concatenate([np.asarray(rows) for rows in answer.outputs])[seen]
        result[name] = _errors(columns, expected, targets[seen])
    yield result


def _saved(folder: Path) -> tuple[IOHMM, FormulaColumns]:
    model = saved_model(folder)
    assert model.formulas is not None, "as saved_model says"
    return model, FormulaColumns.of(model.formulas)


def _together(inputs: Sequence[Any]) -> Any:
    """Inputs of several sequences, as the model takes them: of one part, or by part."""
    return {part: [own[part] for own in inputs] for part in inputs[0]} if isinstance(inputs[0], dict) else list(inputs)


def _errors(columns: Columns, expected: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    if columns.output_levels:
        return _accuracies(expected.argmax(-1), targets)
    if columns.family == "bernoulli":
        return {"accuracy": float(np.nanmean(np.where(np.isnan(targets), np.nan, (expected > 0.5) == targets)))}
    errors, accuracies, names = {}, {}, columns.expected_names
    for place, name in enumerate(columns.outputs):
        own = targets[:, place]
        seen = ~np.isnan(own)
        if name in (columns.output_symbols or {}):
            first = names.index(f"{name}={(columns.output_symbols or {})[name][0]}")
            found = expected[:, first : first + len((columns.output_symbols or {})[name])].argmax(-1)
            accuracies[name] = _accuracies(found[seen], own[seen]) if seen.any() else None
            continue
        square = (expected[seen, names.index(name)] - own[seen]) ** 2
        errors[name] = float(np.sqrt(square.mean())) if len(square) else None
    return {"root_mean_squared_error": errors} | ({"classes": accuracies} if accuracies else {})


def _accuracies(found: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    right = found == targets
    recalls = [right[targets == label].mean() for label in np.unique(targets)]
    return {"accuracy": float(right.mean()), "balanced_accuracy": float(np.mean(recalls))}


def _evaluate_strings(run: Run, read: LabelledStrings) -> dict[str, Any]:
    automaton = run.automaton
    labels = np.array(read.labels)
    probs = run.model.classify(*_codes(run, read.strings)).numpy()
    hard = np.array([automaton.accepts(string) for string in read.strings])
    own = probs[np.arange(len(labels)), labels.astype(int)]
    return {
        "strings": len(labels),
        "nats_per_target": math.inf if (own == 0).any() else float(-np.log(own).mean()) + 0.0,
        "impossible": int((own == 0).sum()),
        "model": _accuracies(probs.argmax(-1), labels),
        "automaton": _accuracies(hard, labels),
    }


# ---------------------------------------------------------------- questions
def query(folder: Path, question: str, data: str | Path, options: Any) -> Iterator[dict[str, Any]]:
    """A dictionary for each sequence."""
    if not is_run(folder):
        if question in ("automaton", "effects"):
            raise ValueError(f"{question} is about runs of `pplseq train iohmm`; of a saved model ask effect_curves in Python")
        yield from _table_answers(folder, *_saved(folder), question, str(data), options)
        return
    run = read_run(folder)
    strings = run.of_strings
    if question == "automaton":
        yield _automaton(run, options)
    elif question == "effects":
        yield from _effects(run, options)
    elif strings:
        yield from _string_answers(run, question, str(data))
    else:
        yield from _table_answers(folder, run.model, run.columns, question, str(data), options)


def _automaton(run: Run, options: Any) -> dict[str, Any]:
    if not run.of_strings:
        raise ValueError(f"{run.folder} was trained on a table; automata are learned from labelled strings")
    if (run.folder / AUTOMATON).exists():
        check_automaton(run.folder)
    automaton = run.automaton
    if options.dot:
        write_text(options.dot, automaton.to_dot())
    if options.png:
        from pplseq.report.graph import draw_automaton

        draw_automaton(automaton, options.png)
    return {"automaton": automaton.to_dict(), "languages": len(run.record["automata"]), "report": run.record["report"]}


def _effects(run: Run, options: Any) -> Iterator[dict[str, Any]]:
    columns = None if run.of_strings else run.columns
    if columns is None or columns.input_levels is not None:
        if unfit := [name for name in ("feature", "values", "png") if getattr(options, name) is not None]:
            raise ValueError(f"{unfit[0]}: it is for inputs that are numbers; of symbols, all are listed: leave it out")
    if columns is None:
        curves = run.model.effect_curves(None, torch.arange(len(run.record["symbols"])))
        for symbol, matrix in zip(run.record["symbols"], curves.tolist(), strict=True):
            yield {"input": symbol, "transition": matrix}
        return
    if not columns.inputs:
        raise ValueError(f"{run.folder}: this model has no inputs to vary")
    if columns.input_levels is not None:
        curves = run.model.effect_curves(None, torch.arange(len(columns.input_levels)))
        for level, matrix in zip(columns.input_levels, curves.tolist(), strict=True):
            yield {"input": level, "transition": matrix}
        return
    feature = options.feature or (columns.inputs[0] if len(columns.inputs) == 1 else None)
    if feature not in columns.inputs:
        raise ValueError(
            f"feature: say which input varies with --feature, one of {', '.join(columns.inputs)}; got {checks.shown(feature)}"
        )
    if columns.input_symbols and feature in columns.input_symbols:
        yield from _symbol_effects(run, columns, feature, options)
        return
    place = columns.input_names.index(feature)
    mean, scale = (columns.mean[place], columns.scale[place]) if columns.mean and columns.scale else (0.0, 1.0)
    values = _values(options.values, mean, scale)
    curves = run.model.effect_curves(place, torch.as_tensor((values - mean) / scale))
    if options.png:
        from pplseq.report.effects import plot_effects

        plot_effects(curves.numpy(), values, feature, options.png)
    for value, matrix in zip(values.tolist(), curves.tolist(), strict=True):
        yield {feature: value, "transition": matrix}


def _symbol_effects(run: Run, columns: Columns, feature: str, options: Any) -> Iterator[dict[str, Any]]:
    """Transitions at every symbol of a column, the other inputs at their means, or first symbols."""
    if unfit := [name for name in ("values", "png") if getattr(options, name) is not None]:
        raise ValueError(f"{unfit[0]}: {checks.shown(feature)} holds symbols, all of which are listed; leave it out")
    assert columns.input_symbols is not None
    for number, level in enumerate(columns.input_symbols[feature]):
        if feature in columns.coded:
            curve = run.model.effect_curves(columns.input_names.index(feature), torch.tensor([float(number)]))
        else:
            place = columns.input_names.index(f"{feature}={level}") if f"{feature}={level}" in columns.input_names else None
            # at 0 the first of them is every column's reference symbol
            curve = run.model.effect_curves(place or 0, torch.tensor([0.0 if place is None else 1.0]))
        yield {feature: level, "transition": curve[0].tolist()}


def _values(option: str | None, mean: float, scale: float) -> np.ndarray:
    if option is None:
        return np.linspace(mean - 2 * scale, mean + 2 * scale, 25)
    try:
        low, high, number = option.split(":")
        values = np.linspace(float(low), float(high), int(number))
        if len(values) and np.isfinite(values).all():
            return values
    except ValueError:
        pass
    raise ValueError(f"values must be LOW:HIGH:NUMBER, like -2:2:25; got {checks.shown(option)}")


def _string_answers(run: Run, question: str, data: str) -> Iterator[dict[str, Any]]:
    if question not in ("classify", "filter", "produce"):
        raise ValueError(
            f"strings have no outputs on their way, so {question} has no answer; ask classify, produce, filter or automaton"
        )
    for strings in read_strings(run, data):
        yield from _answers_about(run, question, strings)


def _answers_about(run: Run, question: str, strings: list[tuple[str, ...] | dict[str, Any]]) -> Iterator[dict[str, Any]]:
    between = "" if all(len(symbol) == 1 for symbol in run.record["symbols"]) else " "
    automaton, probs = None, iter(())
    if question == "classify":
        automaton = run.automaton
        read = [string for string in strings if isinstance(string, tuple)]
        with contextlib.suppress(ValueError, ArithmeticError, RuntimeError, MemoryError):  # each is then asked alone
            probs = iter(run.model.classify(*_codes(run, read))[:, 1].tolist() if read else [])
    for string in strings:
        if isinstance(string, dict):
            yield string
            continue
        answer: dict[str, Any] = {"string": between.join(string)}
        try:
            if automaton is not None:
                prob = next(probs, None)
                prob = float(run.model.classify(*_codes(run, [string]))[0, 1]) if prob is None else prob
                answer |= {"accepted": automaton.accepts(string), "probability": prob}
            else:
                found = run.model.open_loop(*_codes(run, [string]))
                rows = (found.states if question == "filter" else found.outputs)[0][: len(string)]
                answer[{"filter": "states", "produce": "outputs"}[question]] = rows.tolist()
        except Exception as error:  # whatever it is, the next string may be answered
            answer["error"] = why(error)
        yield answer


def _table_answers(
    folder: Path, model: IOHMM, columns: Columns, question: str, data: str, options: Any
) -> Iterator[dict[str, Any]]:
    draws = seeded(options.seed)  # where outputs are fed back, answers are averages of draws
    outputs = question not in ("produce", "classify")  # what the inputs alone say needs none
    try:
        table = columns.read(data, leave_out=True, outputs=outputs)
    except MissingColumn as error:
        raise ValueError(_about_columns(str(error), question, columns if outputs else columns._replace(outputs=[]))) from None
    future, steps_ahead, coming = {}, None, None  # without a table of steps to come, and without inputs, all look ahead as far
    if question == "forecast" and (options.future is not None or columns.inputs):
        if options.future is None:
            raise ValueError("future: this model has inputs; give those that are to come with --future TABLE")
        coming = columns.read(options.future, leave_out=True, outputs=False)
        steps_ahead = dict(zip(coming.ids, map(range, coming.lengths), strict=True))
        future = dict(zip(coming.ids, columns.data(coming)[1] or (), strict=False))
    if not outputs and not columns.inputs:
        raise ValueError(f"{folder}: this model has no inputs, so {question} has no answer; ask predict")
    x, inputs = columns.data(table)

    def ask(n: int) -> dict[str, Any]:
        given = None if inputs is None else _together([inputs[n]])

        def forecast() -> Any:
            if coming is not None:
                check_ahead(options.future, table, coming, table.ids[n])
            steps, _ = rows_ahead(options, steps_ahead, table.ids[n])
            own = future.get(table.ids[n])
            if own is None:
                return model.forecast([x[n]], steps)
            ahead = {part: rows[:steps] for part, rows in own.items()} if isinstance(own, dict) else own[:steps]
            return model.forecast([x[n]], steps, inputs=given, future_inputs=ahead)

        with draws:
            return _answer(model, columns.expected_names, question, [x[n]], given, forecast, options, n)

    yield from answer_sequences(table, ask)


def _about_columns(error: str, question: str, columns: Columns) -> str:
    """An error about a column that a table lacks, and what the question reads."""
    reads = [f"outputs {', '.join(columns.outputs)}"] * bool(columns.outputs)
    reads += [f"inputs {', '.join(columns.inputs)}"] * bool(columns.inputs)
    hint = "; of inputs alone, ask produce" if columns.outputs and columns.inputs else ""
    empty = "; an output that is not known may be empty" if columns.outputs else ""
    return f"{error}. {question} reads the columns of the training: {' and '.join(reads)}{empty}{hint}"


def _answer(
    model: IOHMM, names: Sequence[str], question: str, one: Any, given: Any, forecast: Callable[[], Any], options: Any, n: int
) -> dict[str, Any]:
    """About the n-th sequence, with its inputs. names: of the numbers that the model expects."""
    if question in ("filter", "smooth"):
        return {"states": getattr(model, question)(one, inputs=given).probs[0].tolist()}
    if question == "decode":
        return {"path": model.decode(one, inputs=given)[0].tolist()}
    if question == "sample":
        paths = model.sample_states(one, options.num_samples, inputs=given, seed=options.seed + n)
        return {"paths": [path.reshape(-1).tolist() for path in paths]}
    if question == "score":
        return {"log_prob": float(model.score(one, inputs=given))}
    if question == "classify":
        return {"output": _outputs(names, model.classify(given)[0])}
    if question == "forecast":
        found = forecast()
        outputs = found.word_log_probs.exp() if found.means is None else found.means
    else:
        found = model.one_step(one, inputs=given) if question == "predict" else model.open_loop(given)
        outputs = found.outputs
    answer = {"outputs": [_outputs(names, row) for row in outputs[0]]}
    if found.covariances is not None:
        answer["deviations"] = [_outputs(names, row.diagonal().sqrt()) for row in found.covariances[0]]
    return answer


def _outputs(names: Sequence[str], row: torch.Tensor) -> dict[str, float | None]:
    """Expected outputs by name: of classes their probabilities."""
    values = [value if math.isfinite(value) else None for value in row.tolist()]
    return dict(zip(names, values, strict=True))
