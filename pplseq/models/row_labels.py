"""Which steps the rows of frames and series of pandas are of, as their indexes say: what belongs together, and what comes next.

Where both sides say it, they must say the same; an index 0, 1, 2, ... is none beside one of another kind.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.data.tables import even_steps, times_of_texts
from pplseq.models.forms import Sequences, is_frame

TIMES = "mMiuf"  # kinds of numbers of dates and durations, and numbers
QUARTER = re.compile(r"\d{4}-?Q[1-4]")
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
DATES = re.compile(  # what else people write dates as
    rf"(\d{{1,4}}[-/. ]+(\d{{1,2}}|{_MONTH})[-/., ]+\d{{2,4}}|{_MONTH}([-/. ]\d{{1,2}})?[-/., ']+\d{{2,4}}|\d{{1,4}}/\d{{1,4}})"
    r"([T ,]+\d{1,2}:.*)?", re.IGNORECASE,
)  # fmt: skip


def indexes_of(x: Any) -> list[Any]:
    """Of each frame or series its index, with all steps from its first to its last, None of what has none; x: one of them, or
    a list."""
    return [_of_all_steps(index)[0] for index in own_indexes(x)]


def own_indexes(x: Any) -> list[Any]:
    """As :func:`indexes_of`, of the rows that are there."""
    if not isinstance(x, (list, tuple)):
        return [_index_of(x)]
    return [None] * len(x) if len(x) and isinstance(x[0], (int, float, str)) else [_index_of(row) for row in x]


def check_rows_together(x: Any, given: Any, name: str = "inputs") -> None:
    """Raises ValueError where what is given beside x is of other steps or sequences than x, or in another order.

    Args:
        x: observations as they came. given: inputs, states, ... as they came, or a mapping to such. name: of that argument.
    """
    if isinstance(given, Mapping):
        for part, value in given.items():
            check_rows_together(x, value, f"{name}[{part!r}]")
        return
    if x is None or given is None:
        return
    if isinstance(x, Sequences) and isinstance(given, Sequences):
        _check_same_ids(x, given, name)
    here, there = indexes_of(x), indexes_of(given)
    for place, (whole, own) in enumerate(zip(here, own_indexes(x), strict=True)):
        if whole is own:
            continue
        several = isinstance(x, (list, tuple))
        if not several and is_of_rows(given):
            continue  # x holds a number a sequence
        row = given[place] if several and isinstance(given, (list, tuple)) and len(given) == len(x) else given
        by_index = _index_of(row) is not None and name.startswith(("inputs", "states"))  # whose rows are put to their steps
        if not by_index and (several and row is given or hasattr(row, "__len__") and len(row) == len(own)):
            raise ValueError(
                f"{name}: the index of x lacks {len(whole) - len(own)} of {len(whole)} steps, which are taken as missing; give "
                f"{name} of all {len(whole)} steps, as a list where x is one, or take the rows there are for equal steps: "
                "x.to_numpy()"
            )
    if len(here) != len(there):
        return
    for place, (one, other) in enumerate(zip(here, there, strict=True)):
        own = f"{name}[{place}]" if isinstance(given, (list, tuple)) else name
        _check_same_labels(one, other, own, f"x[{place}]" if isinstance(x, (list, tuple)) else "x")


def in_steps(x: Any, lengths: Any = None, name: str = "x", *, fill: bool = True) -> tuple[Any, Any]:
    """x and its lengths, where dates lack steps of a clear size (see :func:`~pplseq.data.tables.even_steps`) with rows of
    these, all missing, and a warning. A frame of several sequences then comes as a list of frames.

    Args:
        x: a frame or series, or a list of them; anything else comes back as it is. lengths: of sequences that stand one behind
            the other. fill: False for what must be there at every step, as inputs must.

    Raises:
        ValueError: for dates in no order, or twice, and without ``fill`` for steps that are not there; for an index of several
            levels, and dates written in a way that does not say which. Numbers are times as dates are, but for a range that
            falls: the places of rows in a table that was turned round.
    """
    if isinstance(x, (list, tuple)):
        if not any(index is not None for index in own_indexes(x)):
            return x, lengths
        rows = [in_steps(row, None, f"{name}[{place}]", fill=fill)[0] for place, row in enumerate(x)]
        return (rows if any(row is not own for row, own in zip(rows, x, strict=True)) else x), lengths
    index = _index_of(x)
    if index is None or len(index) < 2 or _is_range(index):
        return x, lengths
    if not _is_of_time(index):
        for part in _parts(index, lengths):
            _check_says_times(part, name)
        if index.nlevels == 1:
            return x, lengths
    parts, rows, first = _parts(index, lengths), [], 0
    for part in parts:
        own = x if len(parts) == 1 else x.iloc[first : first + len(part)]
        first += len(part)
        _check_order(part, name)
        whole, size = _of_all_steps(part)
        if whole is not part:
            lacking = whole.difference(_as_times(part))
            what = f"{name}: {len(lacking)} of {len(whole)} steps of {size} are not there, the first is {lacking[0]}"
            equal = f"{name}.to_numpy(), and alike of what is given beside it, takes the rows there are for equal steps"
            if not fill:
                raise ValueError(f"{what}, and it must be there at each step; fill it in ({equal})")
            warnings.warn(f"{what}: they are taken as missing, and answers have rows of them; {equal}", stacklevel=2)
            own = own.set_axis(_as_times(part)).reindex(whole)
        elif size is None and fill:
            warnings.warn(
                f"{name}: its times are in no even steps ({part[0]}, {part[1]}, {part[2]}, ...), and its rows are taken for "
                f"equal steps; resample or reindex them, give a StructuralModel times='index', or write {name}.to_numpy()",
                stacklevel=2,
            )
        rows.append(own)
    if len(parts) == 1:
        return rows[0], lengths if lengths is None or len(rows[0]) == len(x) else [len(rows[0])]
    if all(len(row) == len(part) for row, part in zip(rows, parts, strict=True)):
        return x, lengths
    return rows, None


def _check_says_times(index: Any, name: str) -> None:
    """Raises ValueError for labels that are times, and do not say which."""
    if len(index) > 1 and index.nlevels > 1:
        names = [level if level is not None else f"level_{place}" for place, level in enumerate(index.names)]
        by = repr(names[0]) if len(names) == 2 else repr(names[:-1])
        raise ValueError(
            f"{name}: its index has {len(names)} levels ({', '.join(map(str, names))}), as of several sequences; write "
            f"sequences_by({name}.reset_index(), {by}, order_by={names[-1]!r}), or {name}.to_numpy() to take the rows for "
            "equal steps of one"
        )
    if index.nlevels == 1 and index.inferred_type == "string" and len(index) and all(map(DATES.fullmatch, index)):
        raise ValueError(
            f"{name}: its index has dates as text, {checks.shown(index[0])}; say how they are meant, {name}.index = "
            f"pandas.to_datetime({name}.index, format=...), write them as 2024-01-31, or give {name}.to_numpy() for equal steps"
        )


def _check_order(index: Any, name: str) -> None:
    """Raises ValueError for times in no order, twice, or missing."""
    if len(index) < 2:
        return
    if index.hasnans:
        raise ValueError(f"{name}: row {int(index.isna().argmax())} has no time; fill it in, or leave the row out")
    if not index.is_monotonic_increasing:
        alike = (
            f"write {name}.sort_index(), and alike for what is given beside it, or {name}.to_numpy() to take the rows as they "
            "stand"
        )
        if index.is_monotonic_decreasing:
            raise ValueError(
                f"{name}: its rows go back in time, from {index[0]} to {index[-1]}, and the first row must be the earliest; "
                + alike
            )
        place = next(place for place in range(1, len(index)) if index[place] < index[place - 1])
        raise ValueError(
            f"{name}: its rows are in no order of time: row {place}, {index[place]}, stands behind {index[place - 1]}; "
            f"{alike}; where several sequences stand one behind the other, give their lengths, or see sequences_by"
        )
    if not index.is_unique:
        place = int(index.duplicated().argmax())
        raise ValueError(
            f"{name}: {index[place]} is there more than once, in rows {index.get_loc(index[place]).start} and {place}; write "
            f"{name}.groupby(level=0).mean(), or {name}[~{name}.index.duplicated()], {name}.to_numpy() to take the rows as "
            "they stand, or sequences_by where they are of several sequences"
        )


def _as_times(index: Any) -> Any:
    """Dates that are kept as objects as numbers of time."""
    import pandas

    is_kept_so = index.dtype.kind == "O" and index.inferred_type in ("date", "datetime")
    return pandas.DatetimeIndex(pandas.to_datetime(index)) if is_kept_so else index


def _of_all_steps(index: Any) -> tuple[Any, Any]:
    """An index of times with all steps from its first to its last, and how long a step is, None where that is not clear; the
    index itself where none is lacking, or it is no such index."""
    if index is None or len(index) < 3 or not _is_of_time(index) or index.hasnans:
        return index, ""
    import pandas

    times = _as_times(index)
    if times.dtype.kind in "iuf":
        return _of_all_numbers(times)
    if not times.is_monotonic_increasing or not times.is_unique:
        return index, ""
    if isinstance(times, pandas.PeriodIndex):
        found = even_steps(times.asi8 // times.freq.n)
        if found is None or found.is_whole or found.size > 1:
            return index, None if found is None else ""
        return pandas.period_range(times[0], times[-1], freq=times.freq, name=index.name), f"one {times.freqstr}"
    if not isinstance(times, (pandas.DatetimeIndex, pandas.TimedeltaIndex)) or times.freq is not None:
        return index, ""
    if (told := type(times)(times, freq="infer").freq) is not None:
        if not isinstance(told, (pandas.offsets.WeekOfMonth, pandas.offsets.LastWeekOfMonth)):
            return index, ""
        whole = pandas.date_range(times[0], times[-1], freq=told, name=index.name)  # some of these are told so, too
        return (index, "") if len(whole) == len(times) else (whole, f"one {told.freqstr}")
    wall: Any = times
    if getattr(times, "tz", None) is not None:  # days and months are those of the place, hours those of the world
        there = wall.tz_localize(None)
        wall = there if (there - there.normalize()).nunique() == 1 else wall.tz_convert(None)
    found = even_steps(wall.to_numpy())
    if found is None or found.is_whole:
        return index, None if found is None else ""
    offsets, size = pandas.offsets, found.size
    if found.unit == "month":
        kinds = [pandas.DateOffset(months=size), offsets.MonthEnd(size), offsets.BMonthEnd(size), offsets.BMonthBegin(size)]
    else:
        kinds = [{"business day": offsets.BDay, "day": offsets.Day, "nanosecond": offsets.Nano}[found.unit](size)]
    for kind in kinds:
        if isinstance(times, pandas.TimedeltaIndex):
            whole = pandas.timedelta_range(times[0], times[-1], freq=kind, name=index.name)
        else:
            whole = pandas.date_range(times[0], times[-1], freq=kind, name=index.name)
        whole = whole.as_unit(times.unit)
        if len(whole) == int(found.steps[-1]) + 1 and (whole[found.steps] == times).all():
            return whole, str(found)
    return index, None


def _of_all_numbers(index: Any) -> tuple[Any, Any]:
    """:func:`_of_all_steps` of numbers."""
    if _is_range(index) or not index.is_monotonic_increasing or not index.is_unique:
        return index, ""
    values = index.to_numpy()
    found = even_steps(values)
    if found is None or found.is_whole:
        return index, None if found is None else ""
    whole = (values[0] + found.size * np.arange(int(found.steps[-1]) + 1)).astype(values.dtype)
    whole[found.steps] = values
    return type(index)(whole, name=index.name), str(found)


def check_rows_ahead(
    x: Any, future: Any, num_steps: int | None, name: str = "future_inputs", lengths: Any = None
) -> None:  # fmt: skip
    """Raises ValueError where the index of what is given of the K steps to come does not go on where that of x ends.

    Args:
        x, lengths: the past as it came. future: of all sequences one frame or series of K rows, or a list of one for each, or
            a mapping to such. num_steps: K, where it is known.
    """
    if isinstance(future, Mapping):
        for part, value in future.items():
            check_rows_ahead(x, value, num_steps, f"{name}[{part!r}]", lengths)
        return
    one = lengths is None or isinstance(x, (list, tuple))
    pasts = indexes_of(x) if one else [_of_all_steps(part)[0] for part in _parts(_index_of(x), lengths)]
    in_steps(future, None, name, fill=False)
    ahead = own_indexes(future)
    if isinstance(future, (list, tuple)) and len(ahead) == len(pasts):
        pairs = [([one], other, f"{name}[{k}]") for k, (one, other) in enumerate(zip(pasts, ahead, strict=True))]
    else:
        pairs = [(pasts, other, name) for other in ahead if not isinstance(future, (list, tuple))]
    for some, index, own in pairs:
        if index is None or num_steps not in (None, len(index)):
            continue
        reasons = [_why_not_behind(past, index) for past in some]
        if reasons and all(reasons):
            raise ValueError(
                f"{own}: {reasons[0]}; give the rows of the steps behind those of x, or {own}.to_numpy() to take them for these"
            )


def index_ahead(x: Any, num_steps: int) -> tuple[Any, ...] | None:
    """Of each frame or series the index of the steps behind it, where one of pandas says how it goes on: by one size of step,
    or a frequency. None for what has no index, or where one of them does not say.

    Args:
        x: a frame or series, or a list of them.
    """
    found = tuple(_ahead(index, num_steps) for index in indexes_of(x))
    return found if found and all(index is not None for index in found) else None


def _ahead(index: Any, num_steps: int) -> Any:
    if index is None or not len(index):
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


def labels_ahead(x: Any, future: Any, num_steps: int, rows: int) -> tuple[Any, ...] | None:
    """Of each of so many sequences the index of the K steps to come: how that of x goes on, or else as what is given of these
    steps says it."""
    if isinstance(future, Mapping):
        future = next(iter(future.values()), None)
    known, came = index_ahead(x, num_steps), own_indexes(future)
    if known is not None and len(known) != rows:  # one frame of several sequences
        known = None
    found = tuple(came if len(came) == rows else came * rows)
    if len(found) != rows or any(index is None or len(index) != num_steps or not _is_labelled(index) for index in found):
        return known
    return known if known is not None and any(map(_is_labelled, indexes_of(x))) else found


def _index_of(row: Any) -> Any:
    index = getattr(row, "index", None) if is_frame(row) else None
    return _told(index) if hasattr(index, "is_monotonic_decreasing") else None


def _told(index: Any) -> Any:
    """An index with the numbers and dates that it tells as text, as objects or categories, or beside levels of one value."""
    if index.nlevels > 1:
        *others, last = map(index.get_level_values, range(index.nlevels))
        return _told(last) if len(index) and all(level.nunique(dropna=False) == 1 for level in others) else index
    if index.dtype.kind != "O" or _is_range(index):
        return index
    import pandas

    if isinstance(index, pandas.CategoricalIndex):
        return _told(pandas.Index(index.to_numpy(), name=index.name))
    if index.inferred_type in ("integer", "floating", "mixed-integer-float"):
        return pandas.Index(index.to_numpy(float if index.inferred_type != "integer" else int), name=index.name)
    if index.inferred_type != "string" or not len(index):
        return index
    texts = [str(text) for text in index]
    if all(map(QUARTER.fullmatch, texts)):
        return pandas.PeriodIndex(texts, freq="Q", name=index.name)
    found = times_of_texts(texts)
    if found is None:
        return index
    if isinstance(found[0], float):
        is_whole = all(value.is_integer() for value in found)  # pyright: ignore[reportAttributeAccessIssue]
        return pandas.Index(found, name=index.name, dtype="int64" if is_whole else "float64")
    return pandas.DatetimeIndex(found, name=index.name)


def is_of_rows(given: Any) -> bool:
    """Whether what is given beside x is of several sequences: a list of them, or padded vectors."""
    return np.ndim(given[0]) > 0 if isinstance(given, (list, tuple)) and len(given) else getattr(given, "ndim", 0) > 2


def _parts(index: Any, lengths: Any) -> list[Any]:
    """An index cut where sequences that stand one behind the other end."""
    if index is None or lengths is None:
        return [index]
    ends = np.cumsum([int(length) for length in lengths])
    return [_told(index[end - int(length) : end]) for end, length in zip(ends, lengths, strict=True)]


def _is_range(index: Any) -> bool:
    return type(index).__name__ == "RangeIndex"


def _is_labelled(index: Any) -> bool:
    """Whether an index says more than places 0, 1, 2, ..."""
    return not (_is_range(index) and index.start == 0 and index.step == 1)


def _is_of_time(index: Any) -> bool:
    """Whether an index holds dates, durations, periods or numbers."""
    kind = getattr(index.dtype, "kind", "O")
    if kind == "O" and index.nlevels == 1:
        return index.inferred_type in ("date", "datetime", "datetime64", "period", "timedelta", "timedelta64")
    return kind in TIMES


def _both_say(here: Any, there: Any) -> bool:
    """Whether both indexes say of which steps their rows are."""
    return _is_labelled(here) and _is_labelled(there) or _is_range(here) and _is_range(there)


def _first_difference(here: Any, there: Any) -> int | None:
    """The first place where two indexes of one length have other labels; numbers may differ in their last digits."""
    if here.equals(there):
        return None
    if here.dtype.kind == there.dtype.kind == "f" and np.allclose(here, there, rtol=1e-9, atol=0.0, equal_nan=True):
        return None
    pairs = enumerate(zip(here, there, strict=True))
    return next((place for place, (one, other) in pairs if one != other and (one == one or other == other)), None)


def _check_same_labels(here: Any, there: Any, name: str, beside: str) -> None:
    if here is None or there is None or len(here) != len(there) or (place := _first_difference(here, there)) is None:
        return
    shown = f"row {place} is {there[place]} beside {here[place]}"
    if here.isin(there).all() and there.isin(here).all():
        raise ValueError(
            f"{name}: rows stand in another order than those of {beside}: {shown}; sort them alike, "
            f"{name}.loc[{beside}.index], or give numbers without an index: {name}.to_numpy()"
        )
    if _both_say(here, there):
        raise ValueError(
            f"{name}: rows are of other steps than those of {beside}: {shown}; to put them to their steps write "
            f"{name}.reindex({beside}.index), or .loc of the labels that both have; to pair them by their places write "
            f"{name}.to_numpy(), or .reset_index(drop=True) on both"
        )


def _check_same_ids(x: Sequences, given: Sequences, name: str) -> None:
    for place, (one, other) in enumerate(zip(x.ids, given.ids, strict=False)):
        if one != other:
            alike = len(x) == len(given) and set(x.ids) == set(given.ids)
            what = "stand in another order than those" if alike else "are others than those"
            raise ValueError(
                f"{name}: sequences {what} of x: sequence {place} is {given.by} {checks.shown(other)} beside {x.by} {one!r}; "
                "take both "
                "from tables whose sequences begin in the same order (sort both by the column of ids), or pair them by their "
                f"places: list({name})"
            )


def _why_not_behind(past: Any, ahead: Any) -> str | None:
    """Why an index is not of the steps behind another; None where it may be."""
    if past is None or not len(past) or not _is_labelled(ahead) or not _both_say(past, ahead):
        return None
    expected = _ahead(past, len(ahead))
    if expected is not None:
        place = _first_difference(expected, ahead)
        return None if place is None else f"row {place} is {ahead[place]}, where x goes on with {expected[place]}"
    times = _is_of_time(past)
    if not times or not past.is_monotonic_increasing:
        return None  # labels without an order
    try:
        behind = [bool(label > past[-1]) for label in ahead]
    except TypeError:  # dates beside numbers
        return f"row 0 is {ahead[0]}, which is no step behind the last one of x, {past[-1]}"
    return None if all(behind) else f"row {behind.index(False)} is {ahead[behind.index(False)]}, and x ends with {past[-1]}"
