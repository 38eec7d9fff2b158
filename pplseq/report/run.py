"""The page about a run of any kind: what it is, how its training went, its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pplseq.report.drawing import curve_figure
from pplseq.report.learning import read_learning
from pplseq.report.markup import escape, figure, page, table

MOST_ROWS = 24


def render_run_page(title: str, facts: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """The page.

    Args:
        title: of the window and the page.
        facts: name -> value; a mapping becomes a section of its own, the others stand in the first one.
        records: those of `metrics.jsonl`, in their order.
    """
    own = {name: value for name, value in facts.items() if not isinstance(value, Mapping)}
    sections = [("The run", _facts(own)), ("Learning", _learning(records))]
    sections += [(_title(name), _facts(value)) for name, value in facts.items() if isinstance(value, Mapping) and value]
    head = f"<h1>{escape(title)}</h1>"
    return page(title, head, sections, "Written by <code>pplseq report</code>")


def _title(name: str) -> str:
    return escape(name.replace("_", " ").capitalize())


def _facts(facts: Mapping[str, Any]) -> str:
    rows = [(f"<b>{_title(name)}</b>", _shown(value)) for name, value in facts.items() if value is not None]
    return table((), rows, "kl")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return escape(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value)


def _learning(records: Sequence[Mapping[str, Any]]) -> str:
    """Perplexities as curves where there are some, and the numbers of the records."""
    if not records:
        return '<p class="facts">No course of training was recorded: there is no metrics.jsonl with numbers in it.</p>'
    learning = read_learning(records)
    parts = (
        [] if learning is None else [figure(curve_figure(learning), "<b>Perplexity against steps,</b> logarithmic.")]
    )
    for kind, group in _kinds(records):
        names = [n for n, value in group[-1].items() if isinstance(value, (int, float)) and not isinstance(value, bool)]
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
