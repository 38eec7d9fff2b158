"""The forms in which people hold sequences: frames, series, concatenated rows, one row alone. One rule for all models.

| given | read as |
|---|---|
| a list of sequences, (T_i,) words or (T_i, D) vectors, or frames | those sequences |
| an array of objects | numbers, missing where it holds None; or the sequences that it holds |
| a masked array of numpy | what is masked is missing |
| an array or series of strings | sentences, split at spaces, tabs and line ends; with ``lengths``, which sum to N, words |
| an array or tensor (B, T) of words, (B, T, D) of vectors; ``lengths`` (B,) | padded rows |
| an array, frame or series (N,) of words, (N, D) of vectors | one sequence; with ``lengths``, which sum to N, several |
| a `Text` of a corpus | its lines |

Frames and series are those of pandas and polars, and what hands itself over by Arrow's or the dataframe interchange protocol.
With D = 1, vectors may be plain numbers: (N,), or a list of (T_i,). What could be read in two ways is refused, and the error
shows both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.data.tables import places_of, times_of_texts
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary, split_words

Form = tuple[Any, Any]  # x and its lengths: a list of sequences and None, or padded rows and their lengths


def splitting(vocabulary: Vocabulary | None) -> Callable[[str], list[str]]:
    """How strings are split: in the units of a vocabulary, else into words."""
    return split_words if vocabulary is None else vocabulary.split


def in_form(
    x: Any, lengths: Any = None, *, num_features: int | None, name: str = "x", split: Callable[[str], list[str]] = split_words
) -> Form:
    """Data in one of two forms: a list of sequences, or padded rows (B, T[, D]) with their lengths.

    Args:
        x, lengths: as in the table above. num_features: D of vectors, None for words. name: of the argument, for errors.
        split: a string into words.

    Returns:
        The sequences and None, or the rows and their lengths (None: all are full). What is in one of these forms, or is no
        data, comes back as it is: who takes it says what is wrong.

    Raises:
        ValueError: for what is ambiguous, or does not fit.
        TypeError: for columns that hold no numbers.
    """
    if isinstance(x, Text):
        return list(x.lines()), lengths
    if lengths is None and are_arrays(x, num_features):
        return x, None
    if lengths is not None and np.ndim(lengths) == 0:
        raise TypeError(f"lengths: expected the number of steps of each sequence, such as [3, 2], got {checks.shown(lengths)}")
    checks.not_masked("lengths", lengths)
    x = as_frame(given := unmasked(x, words=num_features is None), name)
    of_bytes = isinstance(x, (list, tuple)) and len(x) > 0 and isinstance(x[0], bytes)
    if of_bytes or isinstance(x, np.ndarray) and x.dtype.kind == "S":
        raise TypeError(f"{name}: got bytes; make text of them: [row.decode() for row in {name}]")
    if is_frame(x):
        x = numbers_of(x, num_features, name)
        if num_features is None and np.ndim(x) == 2 and x.shape[1] > 1:
            columns = list(given.columns) if hasattr(given, "columns") else list(range(x.shape[1]))
            raise ValueError(
                f"{name}: words of a frame are one column, got {len(columns)}, {', '.join(map(repr, columns[:3]))}; give one, "
                f"{name}[{columns[-1]!r}], or sequences_by(frame, {columns[0]!r}, {columns[-1]!r}) where the first says which "
                f"sequence a word is of; where each row is a sequence, {name}.to_numpy()"
            )
    elif isinstance(x, np.ndarray) and x.dtype == object:
        x = of_objects(x, num_features, name)
    elif isinstance(x, np.ndarray) and x.dtype.kind == "U":
        x = x.tolist()
    if lengths is not None and isinstance(x, list) and x is not given and num_features is None:  # words
        rows, _ = _rows(np.asarray(x, dtype=object), lengths, name)
        return [row.tolist() for row in rows], None
    if isinstance(x, (list, tuple)):
        if num_features is not None and (text := _first_text(x)) is not None:
            raise TypeError(
                f"{name}: expected numbers, vectors of {num_features} a step, got the text {checks.shown(text)}; make numbers "
                "of "
                "it, or take a model of words"
            )
        told = sentences(x, name) if num_features is None else x
        of_text, x = told is not x, told
        if num_features is None and len(x) > 1 and all(isinstance(row, str) and len(split(row)) == 1 for row in x):
            raise ValueError(
                f"{name}: {len(x)} strings of one word each could be one sentence or {len(x)}: write [list({name})] for the "
                f"first, [[word] for word in {name}] for the second"
            )
        first = next((row for row in x if row is not None), None)
        if first is None or isinstance(first, str) or np.ndim(first) > 0 or is_table(first):
            of_table = num_features is None and isinstance(x, Sequences)  # a column that lacks a word is one of floats
            rows = [
                row if of_text and isinstance(row, (list, tuple))
                else whole(row) if of_table and _floats(row) else _row(row, num_features, name) for row in x
            ]  # fmt: skip
            if num_features == 1 and len(x) > 1 and all(np.shape(row) == (1,) for row in x):
                raise ValueError(
                    f"{name}: {len(x)} lists of one number could be one sequence or {len(x)}: write [{name}] for the first, "
                    f"[[row] for row in {name}] for the second"
                )
            return rows, lengths
        x = np.asarray(x)  # a single sequence of words or numbers
        x = of_objects(x, num_features, name) if x.dtype == object else x
    dims = getattr(x, "ndim", None)
    if dims is None:
        return x, lengths
    if dims == 1:
        row = x if num_features is None else x[:, None]
        if num_features not in (None, 1):
            raise ValueError(f"{name}: one sequence must be (N, D) with D = {num_features}, got shape {tuple(x.shape)}")
        return _rows(row, lengths, name)
    if dims == 2 and num_features is not None:
        if x.shape[1] != num_features:
            hint = f" For rows of single numbers write {name}[..., None]." if num_features == 1 else ""
            raise ValueError(
                f"{name}: one sequence of vectors must be (N, D) with D = {num_features}, and padded rows (B, T, D); got shape "
                f"{tuple(x.shape)}.{hint}"
            )
        return _rows(x, lengths, name)
    if dims == 2 and x.shape[1] == 1 and x.shape[0] > 1:  # words
        return _column(x, lengths, name)
    return x, lengths


def sentences(x: Sequence[Any], name: str = "x") -> Sequence[Any]:
    """Sentences as strings and lists of words, None where one is missing; a list that holds no text as it is.

    Raises:
        ValueError: for a sentence that is missing. TypeError: for a word that is no string.
    """
    rows = list(x)
    if not any(isinstance(row, str) or isinstance(_first(row), str) for row in rows):
        return x
    for place, row in enumerate(rows):
        if isinstance(row, (list, tuple)) or _is_column(row):
            words = rows[place] = [None if missing(word) else word for word in row]
            if other := [word for word in words if not (word is None or isinstance(word, str))]:
                raise TypeError(
                    f"{name}: sentence {place} holds {checks.shown(other[0])}, and words are strings, None where one is "
                    "missing; give words alone, or their numbers alone"
                )
        elif np.ndim(row) == 0 and missing(row):
            raise ValueError(
                f"{name}: sentence {place} is missing; leave it out, or write [{name}] where {name} is one sentence"
            )
    return rows


def _is_column(row: Any) -> bool:
    """Whether a row is an array or a series, which has one dimension."""
    return (isinstance(row, np.ndarray) or is_frame(row)) and len(row.shape) == 1


def _first(row: Any) -> Any:
    """The first word of a row that is there."""
    may_hold = isinstance(row, (list, tuple)) or _is_column(row) and getattr(row.dtype, "kind", "O") in "UO"
    return next((word for word in row if not missing(word)), None) if may_hold else None


def are_arrays(x: Any, num_features: int | None) -> bool:
    """Whether x is a list of arrays of numbers, (T_i,) words or (T_i, D) vectors, in which there is nothing to be read."""
    dims = 1 if num_features is None else 2
    return type(x) is list and len(x) > 0 and all(
        type(row) is np.ndarray and row.ndim == dims and row.dtype.kind in "iuf" for row in x
    )  # fmt: skip


def states_in_form(states: Any, lengths: Any = None, name: str = "states") -> Any:
    """Observed states as :func:`in_form` reads words: a series, or (N,) of one sequence or of several that ``lengths`` tell.

    Raises:
        TypeError: for names of states.
    """
    states = unmasked(states, words=True)
    is_list = isinstance(states, (list, tuple))
    several = any(np.ndim(row) or is_table(row) for row in states) if is_list else np.ndim(states) > 1
    refuse_texts(states, "states", name)
    if not several:
        return in_form(states, lengths, num_features=None, name=name)[0]
    return [_row(row, None, name) for row in states] if is_list else states


def refuse_texts(x: Any, what: str, name: str) -> None:
    """Raises TypeError for names where the numbers of states, or of outputs, are expected."""
    for row in x if isinstance(x, (list, tuple)) else [x]:
        values = row if isinstance(row, (list, tuple)) else [row] if isinstance(row, str) else ()
        if isinstance(row, np.ndarray) or is_table(row):
            values = array.flat if (array := np.asarray(row)).dtype.kind in "OU" else ()
        if (text := next((value for value in values if isinstance(value, str)), None)) is not None:
            raise TypeError(
                f"{name}: expected the numbers 0, 1, ... of {what}, -1 where one is not known, got the text "
                f"{checks.shown(str(text))}; "
                "number them"
            )


def unmasked(x: Any, *, words: bool = False) -> Any:
    """What numpy or torch masks, alone or in lists, as missing: NaN, -1 in words, None among texts; anything else as it is."""
    if isinstance(x, (list, tuple)):
        numbers = set(map(type, x)) <= {int, float}  # most lists in lists: asked at once
        if numbers or not any(isinstance(row, (np.ma.MaskedArray, list, tuple)) or checks.is_masked_tensor(row) for row in x):
            return x
        rows = [unmasked(row, words=words) for row in x]
        return rows if any(row is not own for row, own in zip(rows, x, strict=True)) else x
    if checks.is_masked_tensor(x):
        x = np.ma.array(x.get_data().numpy(force=True), mask=~x.get_mask().numpy(force=True))
    if not isinstance(x, np.ma.MaskedArray):
        return x
    if x is np.ma.masked:
        return None
    hidden, values = np.ma.getmaskarray(x), np.ma.getdata(x)
    if not hidden.any():
        return np.asarray(values)
    if values.dtype.kind not in "biuf":
        objects = values.astype(object)
        objects[hidden] = None
        return objects
    numbers = np.where(hidden, np.nan, values if values.dtype.kind == "f" else values.astype(float))
    return whole(numbers) if words else numbers


def is_frame(x: Any) -> bool:
    """Whether x is a frame or series of pandas or polars, or what offers the same."""
    return hasattr(x, "to_numpy") and hasattr(x, "shape") and not isinstance(x, np.ndarray)


def is_table(x: Any) -> bool:
    """Whether x is a frame or series, or can be made one."""
    return is_frame(x) or hasattr(x, "__arrow_c_stream__") or hasattr(x, "__dataframe__")


def as_frame(x: Any, name: str = "x") -> Any:
    """A table of another library as one of pandas, where it offers Arrow's stream or the interchange protocol; else x itself.

    Raises:
        TypeError: for a mapping, which is no table yet, and for groups of rows. ImportError: where pandas is missing.
    """
    if type(x).__name__.endswith("GroupBy"):
        raise TypeError(
            f"{name}: got the groups of a frame, {type(x).__name__}; name their column instead: "
            "sequences_by(frame, 'column that says which sequence')"
        )
    if isinstance(x, Mapping):
        raise TypeError(f"{name}: got columns in a {type(x).__name__}; make a frame of them: pandas.DataFrame({name})")
    if is_frame(x) or not is_table(x):
        return x
    try:
        import pandas
    except ImportError as error:
        raise ImportError(f'{name}: a {type(x).__name__} is read by pandas: pip install "pplseq[tables]"') from error
    if hasattr(pandas.DataFrame, "from_arrow") and hasattr(x, "__arrow_c_stream__"):
        kind = pandas.DataFrame if hasattr(x, "columns") else pandas.Series
        return kind.from_arrow(x)
    return pandas.api.interchange.from_dataframe(x)


class Sequences(list):
    """The sequences of a table, as :func:`sequences_by` finds them: a list that knows their names.

    Attributes:
        ids: what the column of each sequence said. column_names: of the columns of their vectors; None of words. by: the name
            of the column of ids.
    """

    def __init__(
        self, rows: Iterable[Any], ids: Sequence[Any], column_names: tuple[str, ...] | None, by: str = "sequence"
    ):
        super().__init__(rows)
        self.ids, self.column_names, self.by = list(ids), column_names, by

    def __getitem__(self, place: Any) -> Any:
        """One of them, or, of a slice, some of them with their names."""
        found = super().__getitem__(place)
        return Sequences(found, self.ids[place], self.column_names, self.by) if isinstance(place, slice) else found

    def __reduce__(self) -> Any:
        return Sequences, (list(self), self.ids, self.column_names, self.by)


def column_names(x: Any, name: str = "x") -> tuple[str, ...] | None:
    """Names of the columns of a frame, or of the first of several, or of what :func:`sequences_by` made of one; of a series
    its own. None where there are none, or 0, 1, 2, ..., as of a frame made of an array; other numbers, dates and the names of
    several levels are written as text.

    Raises:
        ValueError: for two columns that are written alike.
    """
    if isinstance(x, Sequences):
        return x.column_names
    first = x[0] if isinstance(x, (list, tuple)) and len(x) and is_table(x[0]) else x
    if not is_table(first):
        return None
    frame = as_frame(first, name)
    if not hasattr(frame, "columns"):
        own = getattr(frame, "name", None)
        return (own,) if isinstance(own, str) and own else None
    return _as_texts(list(frame.columns), name)


def _as_texts(columns: Sequence[Any], name: str) -> tuple[str, ...] | None:
    """What the columns of a frame are called, see :func:`column_names`."""
    if columns == list(range(len(columns))):
        return None
    told = tuple(" ".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in columns)
    if len(set(told)) < len(set(columns)):
        twice = next(each for each in told if told.count(each) > 1)
        alike = " and ".join(repr(each) for each, text in zip(columns, told, strict=True) if text == twice)
        raise ValueError(f"{name}: columns must have names of their own, got {alike}; rename them, or give {name}.to_numpy()")
    return told if all(told) else None


def by_names(x: Any, names: tuple[str, ...] | None, name: str = "x") -> Any:
    """A frame's, or several frames', columns of these names in this order; what has no names, or for None, is as it is.

    A series is one column, whatever its name. Columns 0, 1, 2, ... in another order are put in theirs for None.

    Raises:
        ValueError: for a frame that lacks one.
    """
    if names is None:
        columns, places = list(x.columns) if is_frame(x) and hasattr(x, "columns") else [], []
        if all(type(each) is int for each in columns):
            places = sorted(columns)
        return x[places] if places != columns and places == list(range(len(columns))) else x
    if isinstance(x, Sequences):
        if x.column_names in (None, names):
            return x
        _check_there(names, there := x.column_names, name, f"{name} = [numpy.asarray(row) for row in {name}]")
        places = [there.index(each) for each in names]
        return Sequences([row.reshape(len(row), -1)[:, places] for row in x], x.ids, names, x.by)
    if isinstance(x, (list, tuple)):
        return [by_names(row, names, f"{name}[{place}]") for place, row in enumerate(x)] if any(map(is_table, x)) else x
    there = column_names(x, name)
    if there is None and is_frame(x) and set(names) <= set(numbers := [str(each) for each in getattr(x, "columns", ())]):
        there = tuple(numbers)  # columns 1, 0 of a frame made of an array
    if there is None or there == names or not hasattr(frame := as_frame(x, name), "columns"):
        return x
    _check_there(names, there, name, f"{name}.to_numpy()")
    if len(set(there)) < len(there):
        return x  # who reads it says so
    columns = list(frame.columns)
    return frame[[columns[there.index(each)] for each in names]]


def _check_there(names: tuple[str, ...], there: tuple[str, ...], name: str, without: str) -> None:
    if missing := [each for each in names if each not in there]:
        raise ValueError(
            f"{name}: no column {missing[0]!r}, and the model was fitted to {', '.join(names)}; there are {', '.join(there)}. "
            f"Rename them, or give numbers without names: {without}"
        )


def rows_of(x: Any) -> Any:
    """A series that holds a sequence of numbers in each row as a list of these; anything else as it is."""
    if not is_frame(x) or hasattr(x, "columns") or getattr(getattr(x, "dtype", None), "kind", "O") != "O":
        return x
    rows = list(x)
    return rows if rows and all(np.ndim(row) > 0 for row in rows) else x


def holds_texts(x: Any) -> bool:
    """Whether rows of a frame or series, or of the first of a list of them, hold texts or lists of words."""
    first = x[0] if isinstance(x, (list, tuple)) and len(x) and is_frame(x[0]) else x
    if not is_frame(first) or getattr(getattr(first, "dtype", None), "kind", "O") != "O":
        return False
    columns = list(getattr(first, "columns", ()))
    values = first[columns[0]] if columns else first
    return any(isinstance(value, str) or np.ndim(value) > 0 for value in values)


def numbers_of(frame: Any, num_features: int | None = None, name: str = "x") -> Any:
    """The numbers of a frame (N, D) or series (N,), missing ones NaN, or -1 in words; a series of texts as a list.

    Raises:
        TypeError: for columns that hold no numbers; names the first. ValueError: for columns of the same name.
    """
    columns = list(getattr(frame, "columns", ()))
    if len(set(columns)) < len(columns):  # frame[name] would be another frame
        raise ValueError(f"{name}: columns must have names of their own, got {columns}; rename them, or give frame.to_numpy()")
    found = []
    for column in columns or [None]:
        values = frame if column is None else frame[column]
        where = name if column is None else f"{name}: column {column!r}"
        if isinstance(getattr(values, "dtype", None), np.dtype) and values.dtype.kind in "fiub":
            found.append(np.asarray(values, dtype=float))  # as a whole, where no cell can be anything else
            continue
        texts = [value for value in values if isinstance(value, (str, bytes))]
        if texts and column is None and isinstance(texts[0], str):
            if len(texts) < len(values):
                raise ValueError(f"{name}: some of the texts are missing; leave them out")
            return texts
        if texts:  # digits too: who stored them as text may mean names
            sentences = num_features is None and isinstance(texts[0], str)
            words = f", or give {name}[{column!r}] alone as sentences" if sentences else ""
            raise TypeError(
                f"{where} must hold numbers, got {type(texts[0]).__name__}; leave it out, or make numbers of it{words}"
            )
        try:
            found.append(np.asarray([np.nan if missing(value) else value for value in values], dtype=float))
        except (TypeError, ValueError):
            what = type(next(value for value in values if not isinstance(value, (int, float)))).__name__
            raise TypeError(f"{where} must hold numbers, got {what}; leave it out, or make numbers of it") from None
    numbers = np.stack(found, 1) if columns else found[0]
    if num_features is not None:
        return numbers
    return whole(numbers)


def whole(numbers: np.ndarray) -> np.ndarray:
    """Words, -1 where one is missing; as they are where they are no whole numbers, which who takes them refuses."""
    whole = np.where(np.isnan(numbers), -1, numbers)
    return whole.astype(np.int64) if (np.isfinite(whole) & (whole == whole.round())).all() else numbers


def sequences_by(
    frame: Any, by: str | Sequence[str], columns: Any = None, *, order_by: str | None = None
) -> Sequences:
    """The sequences of a table in which one column says to which each row belongs, in the order of their first rows.

    Args:
        frame: of pandas or polars. by: that column, or several that say it together; equal values need not stand together.
            columns: what to read, a name or several; None for all others. order_by: the column of times (numbers or dates, also
            as text: 2024-01-31) by which rows of a sequence are sorted, those of one number as they stand; None: all as they
            stand. Steps that are not there are missing, with a warning, where it is clear how long a step is.

    Returns:
        A list of (T_i, D) float arrays, or (T_i,) where ``columns`` is one name, missing values NaN; of one column of integers,
        all there, integers; of a column of texts, lists of these, missing ones None. Its ``ids`` say which sequence each is
        (tuples, where several columns do), and its ``column_names`` stay with a model that is fitted to it.

    Raises:
        KeyError: for a column that the frame lacks. TypeError: for what is no frame, and columns that hold no numbers.
        ValueError: for two columns of one of the names, no columns, rows of no sequence, or of no time, and a date that a
            sequence has twice.
    """
    frame = as_frame(frame, "frame")
    if not is_frame(frame) or not hasattr(frame, "columns"):
        raise TypeError(f"frame: expected a table with columns, got {type(frame).__name__}")
    there = list(frame.columns)
    keys = list(by) if isinstance(by, (list, tuple)) and by not in there else [by]
    names = [column for column in there if column not in (*keys, order_by)] if columns is None else columns
    if not isinstance(names, (str, list, tuple)):
        raise TypeError(
            f"columns must be a name or a list of names, got {checks.shown(names)}; for one write [{checks.shown(names)}]"
        )
    asked = [*keys, *([names] if isinstance(names, str) else names)]
    for column in [*asked, *([] if order_by is None else [order_by])]:
        if column not in there:
            raise KeyError(f"no column {column!r}; there are: {', '.join(map(str, there))}")
        if there.count(column) > 1:
            raise ValueError(f"frame: there are {there.count(column)} columns {column!r}; rename them, or leave some out")
    if not keys or len(asked) == len(keys):
        raise ValueError(f"columns: expected at least one beside {checks.shown(by)}, got none")
    places: dict[Any, list[int]] = {}
    for place, parts in enumerate(zip(*(frame[column] for column in keys), strict=True)):
        key = parts if len(keys) > 1 else parts[0]
        if any(map(missing, parts)):
            raise ValueError(f"frame: row {place} has no {checks.shown(by)}, so that it is of no sequence; leave it out")
        places.setdefault(key, []).append(place)
    steps: dict[Any, Any] = {}
    if order_by is not None:
        times = _told(list(frame[order_by]))
        places = {key: _by_time(times, rows, order_by) for key, rows in places.items()}
        steps = {key: places_of([times[row] for row in rows], f"order_by: column {order_by!r}") for key, rows in places.items()}
    chosen = frame[names if isinstance(names, str) else list(names)]
    if isinstance(names, str) and any(isinstance(value, str) for value in chosen):
        words = [None if missing(value) else value for value in chosen]
        told = [_put(np.asarray(words, dtype=object)[rows], steps.get(key), None).tolist() for key, rows in places.items()]
        return Sequences(told, list(places), None, str(by))
    numbers = numbers_of(chosen, num_features=0)
    if isinstance(names, str) and not any(missing(value) or isinstance(value, float) for value in chosen):
        numbers = whole(numbers)  # may be words
    known = _as_texts([names] if isinstance(names, str) else list(names), "frame")
    nothing = -1 if numbers.dtype.kind == "i" else np.nan
    told = [_put(numbers[rows], steps.get(key), nothing) for key, rows in places.items()]
    return Sequences(told, list(places), known, str(by))


def _put(rows: np.ndarray, steps: np.ndarray | None, nothing: Any) -> np.ndarray:
    """Rows at their steps, and what is missing between them."""
    if steps is None:
        return rows
    whole = np.full((int(steps[-1]) + 1, *rows.shape[1:]), nothing, dtype=rows.dtype)
    whole[steps] = rows
    return whole


def _told(times: list[Any]) -> list[Any]:
    """Dates and numbers that texts say; others as they are."""
    texts = [time for time in times if not missing(time)]
    if not texts or not all(isinstance(time, str) for time in texts) or (found := times_of_texts(texts)) is None:
        return times
    told = iter(found)
    return [time if missing(time) else next(told) for time in times]


def _by_time(times: list[Any], rows: list[int], name: str) -> list[int]:
    """Rows by their times, of which a column of this name tells."""
    if untimed := [row for row in rows if missing(times[row])]:
        raise ValueError(f"order_by: row {untimed[0]} has no {name!r}; fill it in, or leave the row out")
    try:
        if any(isinstance(times[row], str) for row in rows):  # "10" would stand before "9"
            raise TypeError("they are text")
        return sorted(rows, key=times.__getitem__)
    except TypeError as error:
        raise TypeError(
            f"order_by: the values of {name!r} have no order of time ({error}); make numbers of them, or dates by "
            "pandas.to_datetime"
        ) from None


def of_objects(x: np.ndarray, num_features: int | None, name: str) -> Any:
    """Numbers, None and NaN missing; or a list of what else the array holds, sequences of their own or texts."""
    values = unmasked([None if value is np.ma.masked else value for value in x.flat], words=num_features is None)
    if x.ndim == 1 and any(isinstance(value, str) or np.ndim(value) for value in values):
        return values
    try:
        numbers = np.asarray([np.nan if missing(value) else value for value in values], dtype=float).reshape(x.shape)
    except (TypeError, ValueError):
        what = type(next(v for v in values if not (missing(v) or isinstance(v, (int, float))))).__name__
        raise TypeError(
            f"{name} must hold numbers, None where one is missing, got {what}; encode words with a Vocabulary"
        ) from None
    return numbers if num_features is not None else whole(numbers)


def missing(value: Any) -> bool:
    """Whether a value says that there is none: None, NaN, and pandas' NA and NaT."""
    return value is None or type(value).__name__ == "NAType" or value != value


def holds_none(step: Any) -> bool:
    """Whether a step, or one of its numbers, is None."""
    return step is None or isinstance(step, (list, tuple)) and any(value is None for value in step)


def _first_text(x: Sequence[Any]) -> str | None:
    """The first string among sequences, or in one of them; None where there is none."""
    rows = (row if isinstance(row, (list, tuple)) else [row] for row in x)
    return next((value for row in rows for value in row if isinstance(value, str)), None)


def _floats(row: Any) -> bool:
    return isinstance(row, np.ndarray) and row.dtype.kind == "f"


def _row(row: Any, num_features: int | None, name: str) -> Any:
    """One sequence of a list."""
    if is_frame(row := as_frame(row, name)):
        row = numbers_of(row, num_features, name)
    elif isinstance(row, (list, tuple)) and not set(map(type, row)) <= {int, float} and any(map(holds_none, row)):
        row = of_objects(np.asarray(row, dtype=object), num_features, name)
    if num_features == 1 and not isinstance(row, str) and len(row) and np.ndim(row[0]) == 0:
        several: Any = row
        return several[:, None] if hasattr(row, "shape") else [[value] for value in row]
    return row


def _rows(x: Any, lengths: Any, name: str) -> Form:
    """One sequence, or several one behind the other."""
    if lengths is None:
        return x[None], None
    if not all(float(size).is_integer() for size in lengths):
        raise TypeError(f"lengths must be whole numbers, the steps of each sequence; got {str(list(lengths)[:3])[1:-1]}, ...")
    sizes = [int(size) for size in lengths]
    if min(sizes, default=0) < 0:
        raise ValueError(f"lengths must be 0 or more, got {min(sizes)}")
    if sum(sizes) != len(x):
        raise ValueError(
            f"lengths: of sequences one behind the other, they must sum to the {len(x)} rows of {name}, got {sum(sizes)}"
            + ("; if these are targets y, leave them out: models of sequences take none" if len(sizes) == len(x) else "")
        )
    starts = np.cumsum([0, *sizes])
    return [x[start : start + size] for start, size in zip(starts, sizes, strict=False)], None


def _column(x: Any, lengths: Any, name: str) -> Form:
    """(N, 1) words: one sequence of N as hmmlearn has it, or N of one word? Lengths tell, or nobody."""
    number = x.shape[0]
    if lengths is None:
        raise ValueError(
            f"{name}: words of shape {tuple(x.shape)} could be one sequence of {number} or {number} sequences of one word: "
            f"write {name}[:, 0] for the first, list({name}) for the second"
        )
    return (x, lengths) if len(lengths) == number else _rows(x[:, 0], lengths, name)
