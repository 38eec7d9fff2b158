"""Answers about the sequences of a table, and how far runs on tables look ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pplseq.data.tables import goes_on
from pplseq.sources.lines import why

STEPS = 10  # where nothing says how many


def rows_ahead(settings: Any, future: Mapping[str, Any] | None, name: str) -> tuple[int, Any]:
    """How many steps to look ahead in a sequence, and what is known of them.

    Args:
        settings: with ``steps``, or None for all that ``future`` has, and ``future``, the table's path.
        future: rows of steps to come by sequence; None where the model has no inputs.

    Raises:
        ValueError: for a sequence that the table lacks, or of fewer steps than are asked for.
    """
    if future is None:
        return settings.steps or STEPS, None
    if name not in future:
        raise ValueError(f"{settings.future}: it has no rows of sequence {name!r} that can be read")
    rows = future[name][: settings.steps]
    if settings.steps is not None and len(rows) < settings.steps:
        raise ValueError(
            f"steps: {settings.future} has {len(rows)} steps of sequence {name!r}, got --steps {settings.steps}"
        )
    return len(rows), rows


def check_ahead(path: Any, table: Any, coming: Any, name: str) -> None:
    """Raises ValueError where the rows of a sequence that are to come could not be read, or begin at a time at which its own do
    not go on.

    Args:
        path: of the second table. table, coming: both, :class:`~pplseq.data.tables.SequenceTable`.
    """
    if name in coming.errors:
        raise ValueError(coming.errors[name])
    if table.times is None or coming.times is None or name not in coming.times:
        return
    past, first = table.times[name], coming.times[name][0]
    if not goes_on(past, first):
        raise ValueError(
            f"{path}: the rows of sequence {name!r} begin at {first}, and its data end at {past[-1]}; give those of the "
            "steps behind"
        )


def answer_sequences(table: Any, ask: Callable[[int], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Answer sequence after sequence of a table; one that could not be read or answered gives {"id", "error"}.

    Args:
        table: a :class:`~pplseq.data.tables.SequenceTable`. ask: from the place of a sequence to an answer.
    """
    place = {name: k for k, name in enumerate(table.ids)}
    for name in table.all_ids:
        answer: dict[str, Any] = {"id": name}
        if name in table.errors:
            answer["error"] = table.errors[name]
        else:
            try:
                answer |= ask(place[name])
            except Exception as error:  # whatever it is, the next sequence may be answered
                answer["error"] = why(error)
        yield answer
