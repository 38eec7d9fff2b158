"""Times of steps that are no equal ones: from what people hold them in to how long each move takes."""

from __future__ import annotations

from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.tables import times_of_texts
from pplseq.infer.fit.em import Batch
from pplseq.models.forms import is_frame, unmasked
from pplseq.models.row_labels import own_indexes


def times_of(times: Any, x: Any, lengths: Any = None) -> Any:
    """Times as arrays of numbers, dates or durations: of one sequence (1, T), of padded rows (B, T), or a list of (T_i,).

    Args:
        times: numbers, dates (texts like 2024-01-31, too), or a series or index of these, like x: (T,), (B, T), or a list; or
            "index" for those of x.
        x, lengths: the data as they came.

    Raises:
        ValueError, TypeError: for what are no times.
    """
    if isinstance(times, str):
        if times != "index":
            raise ValueError(f"times: expected numbers or dates, or 'index' for the index of x, got {checks.shown(times)}")
        found = own_indexes(x)
        if any(index is None for index in found):
            raise ValueError("times: x has no index that says them; give numbers or dates, one for each row")
        times = found if isinstance(x, (list, tuple)) else found[0]
    several = isinstance(x, (list, tuple)) and not (len(x) and np.ndim(x[0]) == 0)  # of numbers it is one sequence
    if isinstance(times, (list, tuple)) and several:
        rows = [_values(row) for row in times]
        if any(row.ndim != 1 for row in rows):
            raise ValueError(f"times: expected those of each of the {len(x)} sequences of x, got {checks.shown(times)}")
        return rows
    found = _values(times)
    if found.ndim == 1 and lengths is not None and sum(int(length) for length in lengths) == len(found):
        return np.split(found, np.cumsum([int(length) for length in lengths])[:-1])
    return found[None] if found.ndim == 1 else found


def _values(times: Any) -> np.ndarray:
    if isinstance(times, Tensor):
        times = checks.dense("times", times).detach().cpu()
        times = (times.double() if times.is_floating_point() else times).numpy()
    if is_frame(times) and not hasattr(times, "columns") and hasattr(times, "dt"):  # a series of dates, durations or periods
        import pandas

        times = pandas.Index(times)
    if type(getattr(times, "dtype", None)).__name__ == "PeriodDtype":
        times = times.to_timestamp()
    if getattr(times, "tz", None) is not None:
        times = times.tz_convert(None)
    values = np.asarray(unmasked(times))
    if values.size and all(isinstance(time, str) for time in values.flat):
        told = times_of_texts(values.ravel().tolist())
        if told is None:
            raise ValueError(f"times: expected numbers, or dates like 2024-01-31 18:00, got {checks.shown(values.flat[0])}")
        dates = [time.replace(tzinfo=None) - (time.utcoffset() or timedelta()) for time in told if isinstance(time, datetime)]
        return np.array(dates, dtype="M8[us]").reshape(values.shape) if dates else np.array(told).reshape(values.shape)
    if values.dtype.kind == "O":
        if all(hasattr(time, "to_timestamp") for time in values.flat):  # periods, which begin then
            values = np.array([time.to_timestamp() for time in values.flat], dtype=object).reshape(values.shape)
        try:
            values = values.astype("m8[us]" if all(isinstance(time, timedelta) for time in values.flat) else "M8[us]")
        except (TypeError, ValueError):
            raise TypeError(f"times: expected numbers or dates, got {type(values.flat[0]).__name__}") from None
    if values.dtype.kind not in "iufmM":
        raise TypeError(f"times: expected numbers or dates, got {values.dtype}")
    return values


def _between(times: np.ndarray) -> np.ndarray:
    """(T-1,) the time from one to the next, in days of dates and durations."""
    if times.dtype.kind in "iu":  # differences of small and of unsigned integers would wrap round
        times = times.astype(np.int64)
    between = np.diff(times)
    return between / np.timedelta64(1, "D") if between.dtype.kind == "m" else between.astype(float)  # of NaT: NaN


def without_index(x: Any) -> Any:
    """Frames and series, also in a list, whose rows are in no steps."""
    if isinstance(x, (list, tuple)):
        return [without_index(row) for row in x]
    return x.reset_index(drop=True) if is_frame(x) and hasattr(x, "reset_index") else x


def gaps_of(times: Any, batch: Batch) -> Tensor:
    """(B, T) the time that the move into each step takes, in days where times are dates or durations, 0 at the first one and at
    padded ones.

    Raises:
        ValueError: for times that fall or are missing, or are not those of x.
    """
    sizes = [batch.x.shape[1]] * len(batch.x) if batch.lengths is None else batch.lengths.tolist()
    is_padded, came = isinstance(times, np.ndarray), [len(row) for row in times]
    if len(came) != len(sizes) or (set(came) != {batch.x.shape[1]} if is_padded else came != sizes):
        raise ValueError(f"times: expected one for each step of x, {checks.shown(sizes)}, got {checks.shown(came)}")
    found = batch.x.new_zeros(batch.x.shape[:2])
    for number, (row, size) in enumerate(zip(times, sizes, strict=True)):
        found[number, 1:size] = torch.as_tensor(_rising("times", row[:size], number)).to(found)
    return found


def gaps_ahead(times: Any, future: Any, lengths: Any = None) -> Tensor:
    """(B, K) the times that the moves to the steps to come take.

    Args:
        times: of the past, as :func:`times_of` has them; lengths: of padded ones. future: (K,) of all rows, (B, K), or a list.
    """
    if future is None:
        raise ValueError("future_times: must be given where times are, those of the steps to come")
    if isinstance(times, np.ndarray) and lengths is not None:  # padded
        ends = [int(size) for size in lengths]
    else:
        ends = [len(row) for row in times]
    several = isinstance(future, (list, tuple)) and len(future) > 0 and np.ndim(future[0]) > 0
    ahead: Any = [_values(row) for row in future] if several else _values(future)
    rows = [ahead] * len(ends) if not several and ahead.ndim == 1 else list(ahead)
    if len(rows) != len(ends) or len({len(row) for row in rows}) > 1 or not len(rows[0]):
        raise ValueError(f"future_times: expected (K,) for all rows, or (B, K) with B = {len(ends)}, got {len(rows)} rows")
    if any(_kind(row) != _kind(past) for row, past in zip(rows, times, strict=True)):
        raise TypeError("future_times: dates go on from dates, durations from durations, and numbers from numbers")
    pairs = zip(times, ends, rows, strict=True)
    gaps = [_rising("future_times", np.append(past[end - 1 : end], row), k) for k, (past, end, row) in enumerate(pairs)]
    return torch.as_tensor(np.stack(gaps))


def _kind(times: np.ndarray) -> str:
    """ "M" of dates, "m" of durations, "" of numbers."""
    return times.dtype.kind if times.dtype.kind in "mM" else ""


def labels_of(future: Any, rows: int) -> tuple[Any, ...] | None:
    """Of each sequence the index of the steps to come, where their times are one of pandas, or dates or durations."""
    several = isinstance(future, (list, tuple)) and np.ndim(future[0]) > 0
    found = tuple(future) if several else (future,) * rows
    if all(hasattr(index, "get_loc") for index in found):
        return found
    values = [_values(index) for index in found]
    if values[0].dtype.kind not in "mM" or any(value.ndim != 1 for value in values) or find_spec("pandas") is None:
        return None
    import pandas

    return tuple(map(pandas.Index, values))


def _rising(name: str, times: np.ndarray, number: int) -> np.ndarray:
    between = _between(times)
    if not (between >= 0).all() or not np.isfinite(between).all():
        place = int(np.argmin(between >= 0)) + 1
        raise ValueError(
            f"{name}: those of a sequence must rise, and none may be missing; in sequence {number} {times[place]} stands "
            f"behind {times[place - 1]}; sort the rows by their times"
        )
    return between
