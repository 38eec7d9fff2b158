"""How the index of a frame goes on behind its last row: dates, periods, whole numbers in even steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from pplseq.models.forms import is_frame


def index_ahead(x: Any, num_steps: int) -> tuple[Any, ...] | None:
    """Of each frame or series the index of the steps behind it, where one of pandas says how it goes on: by one size of step,
    or a frequency. None for what has no index, or where one of them does not say.

    Args:
        x: a frame or series, or a list of them.
    """
    found = tuple(_ahead(row, num_steps) for row in (x if isinstance(x, (list, tuple)) else [x]))
    return found if found and all(index is not None for index in found) else None


def _ahead(row: Any, num_steps: int) -> Any:
    index = getattr(row, "index", None)
    if not is_frame(row) or index is None or not len(index):
        return None
    import pandas

    if isinstance(index, pandas.PeriodIndex):
        step: Any = index.freq
        regular = len(index) == 1 or bool((index[1:] == index[:-1] + 1).all())
        return pandas.period_range(index[-1] + 1, periods=num_steps, freq=step, name=index.name) if regular else None
    if isinstance(index, pandas.DatetimeIndex):
        step = index.freq or (pandas.DatetimeIndex(index, freq="infer").freq if len(index) > 2 else None)
        if step is None:
            return None
        return pandas.date_range(index[-1], periods=num_steps + 1, freq=step, name=index.name)[1:]
    if isinstance(index, pandas.TimedeltaIndex):  # all steps are as long; those of dates need not be: months
        step = index.freq or (index[1] - index[0] if len(index) > 1 else None)
        if step is None or not step or not bool((index[1:] - index[:-1] == step).all()):
            return None
        return pandas.TimedeltaIndex([index[-1] + k * step for k in range(1, num_steps + 1)], name=index.name)
    if isinstance(index, pandas.RangeIndex):
        step = index.step
    elif index.dtype.kind in "iu" and len(index) > 1:
        step = int(index[1]) - int(index[0])
        if step == 0 or not bool((np.diff(index.to_numpy()) == step).all()):
            return None
    else:
        return None
    first = int(index[-1]) + step
    return pandas.RangeIndex(first, first + num_steps * step, step, name=index.name)
