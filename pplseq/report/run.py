"""The page about a run of any kind: scores beside a simple rival's, what it writes, how its training went, its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pplseq.report.drawing import curve_figure
from pplseq.report.learning import read_learning
from pplseq.report.markup import escape, figure, folded, page, table, words_of
from pplseq.report.series import MOST_STEPS, series_figure

MOST_ROWS = 24


@dataclass(frozen=True)
class Measure:
    """A figure of merit, and the same of a simple rival.

    Attributes:
        name: with its unit. value: of the model. baseline: of the rival, None where it has none. rival: what it is.
    """

    name: str
    value: float
    baseline: float | None = None
    rival: str = ""


@dataclass(frozen=True)
class RunView:
    """What a page shows of a model, beside the facts and the records of its run.

    Attributes:
        measured_on: the data of the measures, in words, and whether they were held out.
        measures: figures of merit.
        sentences: that the model wrote, a list of words each.
        sections: (heading, HTML) of what is the model's own. style: CSS of them.
        curve: whether the losses in the records are those of words, so that perplexity means something.
        notes: what is missing, and why.
    """

    measured_on: str = ""
    measures: Sequence[Measure] = ()
    sentences: Sequence[Sequence[str]] = ()
    sections: Sequence[tuple[str, str]] = ()
    style: str = ""
    curve: bool = True
    notes: Sequence[str] = ()


def render_run_page(
    title: str, facts: Mapping[str, Any], records: Sequence[Mapping[str, Any]], view: RunView | None = None
) -> str:
    """The page.

    Args:
        title: of the window and the page.
        facts: name -> value; a mapping becomes a section of its own, the others stand in the first one.
        records: those of `metrics.jsonl`, in their order.
        view: of the model.
    """
    view = view or RunView()
    own = {name: value for name, value in facts.items() if not isinstance(value, Mapping)}
    sections = [("The run", _facts(own)), ("Scores", measures_table(view))]
    sections += view.sections
    if view.sentences:
        sections.append(("Sentences that it writes", written(view.sentences)))
    sections.append(("Learning", _learning(records, view.curve)))
    more = [(_title(name), _facts(value)) for name, value in facts.items() if isinstance(value, Mapping) and value]
    sections += [(name, folded(name, content)) for name, content in more]
    notes = "".join(f'<p class="notice">{escape(note)}</p>' for note in view.notes)
    return page(title, f"<h1>{escape(title)}</h1>{notes}", sections, "Written by <code>pplseq report</code>", view.style)


def measures_table(view: RunView) -> str:
    """The measures beside those of the rivals."""
    if not view.measures:
        return '<p class="facts">Nothing was measured: give data with --data.</p>'
    rows = [
        (escape(m.name), _shown(m.value), "–" if m.baseline is None else _shown(m.baseline), escape(m.rival or "–"))
        for m in view.measures
    ]
    caption = f"<b>Measured on</b> {escape(view.measured_on)}."
    return table(("Measure", "This model", "Baseline", "The baseline is"), rows, "lrrl", caption)


def written(sentences: Sequence[Sequence[str]]) -> str:
    """Sentences of a model, a line each."""
    return "".join(f'<p class="written" dir="auto">{words_of(sentence)}</p>' for sentence in sentences)


def _title(name: str) -> str:
    return escape(name.replace("_", " ").capitalize())


def _facts(facts: Mapping[str, Any]) -> str:
    rows = [(f"<b>{_title(name)}</b>", _shown(value)) for name, value in facts.items() if value is not None]
    return table((), rows, "kl")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return escape(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value)


def _learning(records: Sequence[Mapping[str, Any]], curve: bool) -> str:
    """Perplexities as curves where there are some, and the numbers of the records."""
    if not records:
        return '<p class="facts">No course of training was recorded: there is no metrics.jsonl with numbers in it.</p>'
    learning = read_learning(records) if curve else None
    parts = (
        [] if learning is None else [figure(curve_figure(learning), "<b>Perplexity against steps,</b> logarithmic.")]
    )
    losses = None if curve else read_learning(records)  # of numbers, whose densities have no perplexity
    if losses is not None and losses.train is not None and len(losses.train.steps) > 1:
        nats = losses.train.thinned(MOST_STEPS).nats
        drawing = series_figure(np.full(len(nats), np.nan), nats, name="nats")
        parts.append(figure(drawing, f"<b>Nats a step</b> of the data, over {losses.steps:,} steps of training."))
    for kind, group in _kinds(records):
        names = [n for n, value in group[-1].items() if isinstance(value, (int, float)) and not isinstance(value, bool)]
        names = [name for name in names if curve or "perplexity" not in name]
        chosen = sorted(
            {round(k * (len(group) - 1) / max(min(MOST_ROWS, len(group)) - 1, 1)) for k in range(MOST_ROWS)}
        )
        rows = [[_shown(group[place].get(name, "")) for name in names] for place in chosen if place < len(group)]
        caption = f"<b>{_title(kind)}.</b> {len(rows)} of {len(group):,} records."
        parts.append(table([escape(name.replace("_", " ")) for name in names], rows, "r" * len(names), caption))
    return "".join(parts)


def _kinds(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    kinds = list(dict.fromkeys(str(record.get("kind", "records")) for record in records))
    yield from ((kind, [record for record in records if str(record.get("kind", "records")) == kind]) for kind in kinds)
