"""Forecasts as tables: of each column the mean, and beside it the ends of its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from pplseq import checks


def forecast_frame(
    means: Tensor | None,
    ends: Callable[[], tuple[Tensor, Tensor]],
    row: int | None,
    column_names: Sequence[str] | None = None,
    index: Sequence[Any] | None = None,
    sequences: tuple[str, Sequence[Any]] | None = None,
) -> Any:
    """The forecast of K steps of one of B sequences, or of all, as a frame of pandas.

    Args:
        means: (B, K, D). ends: gives the lower and upper ones, (B, K, D) each. row: which of the B; None for all,
            one behind the other, with a first column that says which where they are several. column_names: of the D
            columns, by default x0, x1, ... index: of each row the times of its K steps, or None where they are not known.
        sequences: what the B are called, and what the column that says so is; by default "sequence", 0, 1, ...

    Raises:
        ImportError: without pandas. ValueError: for what has no means of several steps, and a row that is not there.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError('frame: a table needs pandas: pip install "pplseq[tables]"') from error
    if means is None or means.dim() != 3:
        raise ValueError("frame: the steps of a forecast, (B, K, D), are its rows, and one step no rows: ask forecast")
    if row is None and len(means) > 1:
        low_and_high = ends()
        parts = [forecast_frame(means, lambda: low_and_high, k, column_names, index) for k in range(len(means))]
        whole, (name, ids) = pandas.concat(parts), sequences or ("sequence", range(len(means)))
        while name in whole:  # a column of the forecast itself
            name = f"{name} id"
        whole.insert(0, name, [each for each, part in zip(ids, parts, strict=True) for _ in range(len(part))])
        return whole
    row = 0 if row is None else row
    if isinstance(row, bool) or not isinstance(row, int) or not -len(means) <= row < len(means):
        raise ValueError(
            f"row: which of the {len(means)} sequences, 0 to {len(means) - 1}, got {checks.shown(row)}; shares go to level="
        )
    (low, high), values, size = ends(), {}, means.shape[-1]
    names = column_names if column_names is not None and len(column_names) == size else [f"x{k}" for k in range(size)]
    for k, name in enumerate(names):
        for what, part in (("", means), (" low", low), (" high", high)):
            values[f"{name}{what}"] = part[row, :, k].tolist()
    return pandas.DataFrame(values, index=None if index is None else index[row])


def frame_html(forecast: Any) -> str | None:
    """A forecast as notebooks show it: its frame; None where it has none, as without pandas."""
    try:
        return forecast.frame().to_html(max_rows=20)
    except (ImportError, ValueError):
        return None
