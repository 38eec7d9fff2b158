"""Forecasts as tables: of each column the mean, and beside it the ends of its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


def forecast_frame(
    means: Tensor | None,
    ends: Callable[[], tuple[Tensor, Tensor]],
    row: int,
    column_names: Sequence[str] | None = None,
    index: Sequence[Any] | None = None,
) -> Any:
    """One row's forecast of K steps as a frame of pandas.

    Args:
        means: (B, K, D). ends: gives the lower and upper ones, (B, K, D) each. row: which of the B. column_names: of the D
            columns, by default x0, x1, ... index: of each row the times of its K steps, or None where they are not known.

    Raises:
        ImportError: without pandas. ValueError: for what has no means of several steps, and a row that is not there.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError('frame: a table needs pandas: pip install "pplseq[frames]"') from error
    if means is None or means.dim() != 3:
        raise ValueError("frame: is of forecasts of vectors, (B, K, D); words have probabilities, and one step no rows")
    if isinstance(row, bool) or not isinstance(row, int) or not -len(means) <= row < len(means):
        raise ValueError(f"row: which of the {len(means)} sequences, 0 to {len(means) - 1}, got {row!r}; shares go to level=")
    (low, high), values, size = ends(), {}, means.shape[-1]
    names = column_names if column_names is not None and len(column_names) == size else [f"x{k}" for k in range(size)]
    for k, name in enumerate(names):
        for what, part in (("", means), (" low", low), (" high", high)):
            values[f"{name}{what}"] = part[row, :, k].tolist()
    return pandas.DataFrame(values, index=None if index is None else index[row])
