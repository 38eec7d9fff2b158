"""Answers as tables of pandas: a row a step, sequences one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pplseq import checks


def framed(
    row: int | None, tables: Sequence[Mapping[str, Any]], times: Sequence[Any] | None,
    sequences: tuple[str, Sequence[Any]] | None,
) -> Any:  # fmt: skip
    """One sequence's columns as a frame, or those of all, with a first column that says which where they are several.

    Args:
        row: of the frame, None for all. tables: of each sequence its columns. times: of each its index, or None.
        sequences: what that first column is called, and of each sequence what it says; None for "sequence", 0, 1, ...

    Raises:
        ImportError: without pandas. ValueError: for a row that is not there.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError('frame: a table needs pandas: pip install "pplseq[tables]"') from error
    rows = len(tables)
    if row is not None and (isinstance(row, bool) or not isinstance(row, int) or not -rows <= row < rows):
        raise ValueError(f"row: which of the {rows} sequences, 0 to {rows - 1}, got {checks.shown(row)}; shares go to level=")
    which = range(rows) if row is None else [row]
    parts = [pandas.DataFrame(tables[one], index=None if times is None else times[one]) for one in which]
    if len(parts) == 1:
        return parts[0]
    whole, (name, ids) = pandas.concat(parts), sequences or ("sequence", range(rows))
    while name in whole:  # a column of the answers themselves
        name = f"{name} id"
    whole.insert(0, name, [each for each, part in zip(ids, parts, strict=True) for _ in range(len(part))])
    return whole
