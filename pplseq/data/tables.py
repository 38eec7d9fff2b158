"""Tables of sequences, a row a step: CSV, TSV and Parquet, with named columns of inputs and outputs."""

from __future__ import annotations

import contextlib
import csv
import datetime
import difflib
import io
import itertools
import math
import re
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pplseq import checks
from pplseq.data.sources import existing_path, listing, opened

EMPTY = {"", "na", "nan", "n/a", "#n/a", "#n/a n/a", "#na", "<na>", "-nan"}  # with those below, what pandas takes for missing
MONTH = re.compile(r"\d{4}-\d{2}")
LARGEST = 1e100  # of numbers, whose squares are added up
EMPTY_NUMBERS = EMPTY | {"null", "none", "-1.#ind", "1.#ind", "-1.#qnan", "1.#qnan"}  # which may well be the name of a symbol


class MissingColumn(ValueError):
    """A table lacks a column that was asked for."""


class NotANumber(ValueError):
    """A cell holds a word where a number should stand."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


@dataclass(frozen=True, eq=False)
class SequenceTable:
    """Sequences of steps, each with inputs and outputs.

    Attributes:
        ids: of the sequences, in the file's order. lengths: steps of each.
        inputs: of each sequence (T, U) numbers, or (T,) codes of the only column, of symbols. Beside other columns one of
            symbols is a number 0 or 1 for each of its symbols but the first, which is where all of them are 0.
        outputs: of each sequence (T, D) numbers, NaN where missing, or (T,) codes, -1 where missing, of the only column, of
            symbols. Beside other columns one of symbols holds their numbers.
        input_names, output_names: columns; "weather=rain" is 1 where the symbol of the column weather is rain.
        input_levels, output_levels: the symbols, in the order of their codes; None for numbers.
        input_symbols, output_symbols: of each column of symbols beside other inputs, or outputs, its symbols.
        coded: the columns of symbols that stay one number, that of the symbol.
        times: of each sequence those of its rows, in order, where a column says them: numbers or dates; None otherwise.
        errors: id -> why a sequence could not be read, where `read_table` was to leave such ones out.
        all_ids: with theirs, in the file's order.
    """

    ids: tuple[str, ...]
    lengths: list[int]
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    input_levels: tuple[str, ...] | None
    output_levels: tuple[str, ...] | None
    errors: Mapping[str, str] = field(default_factory=dict)
    all_ids: tuple[str, ...] = ()
    input_symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    output_symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coded: tuple[str, ...] = ()
    times: Mapping[str, Sequence[Any]] | None = None

    def check_sizes(self, name: str) -> None:
        """Raises ValueError, with the name of the table, for numbers whose squares are too large to be added up."""
        for columns, parts in ((self.input_names, self.inputs), (self.output_names, self.outputs)):
            rows = np.concatenate(parts)
            large = np.abs(rows) > LARGEST
            if rows.ndim == 2 and large.any():
                row, place = np.argwhere(large)[0]
                raise ValueError(
                    f"{name}: column {columns[place]!r} holds {rows[row, place]:g}; expected numbers of size {LARGEST:g} at "
                    "most, give it in other units"
                )

    def describe(self) -> dict[str, Any]:
        """Sizes, as JSON-able values; of symbols also which there are."""
        cells = np.concatenate(self.outputs)
        missing = cells < 0 if self.output_levels is not None else np.isnan(cells)
        about: dict[str, Any] = {
            "sequences": len(self.ids), "steps": sum(self.lengths), "longest": max(self.lengths),
            "inputs": list(self.input_names), "outputs": list(self.output_names),
            "missing_outputs": int(missing.sum()),
        }  # fmt: skip
        for name, levels in (("input_symbols", self.input_levels), ("output_symbols", self.output_levels)):
            about |= {} if levels is None else {name: list(levels)}
        if self.input_symbols:
            about["input_symbols"] = {name: list(levels) for name, levels in self.input_symbols.items()}
        if self.output_symbols:
            about["output_symbols"] = {name: list(levels) for name, levels in self.output_symbols.items()}
        return about


def read_table(
    path: str | Path,
    *,
    sequence_id: str | None,
    order_by: str | None = None,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    symbols: Sequence[str] = (),
    input_levels: Sequence[str] | None = None,
    output_levels: Sequence[str] | None = None,
    input_symbols: Mapping[str, Sequence[str]] | None = None,
    output_symbols: Mapping[str, Sequence[str]] | None = None,
    allow_missing_outputs: bool = True,
    leave_out: bool = False,
    most_indicators: int | None = None,
) -> SequenceTable:
    """Read a table whose first row names its columns.

    Args:
        path: .csv, .tsv (both plain, .gz or .xz) or .parquet; "-" reads CSV from standard input. Where the first row has the
            columns only when it is cut at semicolons (or tabs), cells stand between these, and numbers may have decimal commas.
        sequence_id: column that says which sequence a row is of; its rows need not stand together. None: all are one.
        order_by: column of numbers or dates by which the rows of a sequence are sorted. None: as they stand.
        inputs, outputs: columns. An empty output (or NA, NaN) is a missing one; an input must be there.
        symbols: those of them that hold names instead of numbers.
        input_levels, output_levels, input_symbols, output_symbols: the symbols of another table, to give the same codes;
            default: those that occur, sorted.
        allow_missing_outputs: take an empty output for a missing one, instead of an error.
        most_indicators: a column of symbols among the inputs that would take more numbers than so many is told by the number of
            the symbol, also where it is the only one.
        leave_out: leave a sequence out whose cells cannot be read, and note why, where the table has several.

    Raises:
        FileNotFoundError: no such file. ImportError: Parquet without pyarrow.
        ValueError: an empty or damaged file, a missing column, a row that does not say its sequence, is too short or too long,
            an empty or non-finite input, text where a number should stand, a symbol that is not among the levels, a time
            that is neither a number nor a date; with row and column.
        TypeError: a string instead of a list of columns.
    """
    for name, value in (("inputs", inputs), ("outputs", outputs), ("symbols", symbols)):
        if isinstance(value, str):
            raise TypeError(
                f"{name} must be names of columns, such as [{checks.shown(value)}]; got the string {checks.shown(value)}"
            )
    reader = _Reader(
        path, sequence_id, order_by, tuple(inputs), tuple(outputs), frozenset(symbols), allow_missing=allow_missing_outputs,
        leave_out=leave_out, most_indicators=most_indicators,
    )  # fmt: skip
    return reader.read(input_levels, output_levels, dict(input_symbols or {}), dict(output_symbols or {}))


class _Reader:
    def __init__(
        self, path, sequence_id, order_by, inputs, outputs, symbols, *, allow_missing, leave_out, most_indicators
    ) -> None:
        self.most, self._numbers = most_indicators, _Decimals()
        self.name = "<stdin>" if str(path) == "-" else str(path)
        self.path, self.sequence_id, self.order_by, self.symbols = path, sequence_id, order_by, symbols
        self.inputs, self.outputs, self.allow_missing = inputs, outputs, allow_missing
        self.errors: dict[str, str] | None = {} if leave_out and sequence_id is not None else None
        for what, names in (("inputs", inputs), ("outputs", outputs)):
            if len(set(names)) < len(names):
                raise ValueError(f"{what}: a column is named twice in {', '.join(names)}")

    def read(self, input_levels, output_levels, input_symbols, output_symbols) -> SequenceTable:
        rows = _parquet_rows(self.path) if self.name.lower().endswith(".parquet") else self._text_rows()
        with contextlib.closing(rows):  # and the file with it, whatever comes
            try:
                header = next(rows)
            except StopIteration:
                raise ValueError(f"{self.name}: empty; expected a first row with the names of columns") from None
            places = {name: self._place(header, name) for name in (*self.inputs, *self.outputs, *self._named_columns())}
            ids: list[str] = []
            place_of: dict[str, int] = {}
            cells: list[tuple[list[list[Any]], list[list[Any]]]] = []  # of each sequence, columns joined row by row
            numbers: list[list[int]] = []
            times: list[list[Any]] = []
            for number, row in enumerate(rows, 2):
                if not row:
                    continue  # a blank line
                place = 0 if self.sequence_id is None else places[self.sequence_id]
                short = None
                if len(row) != len(header):
                    short = f"{self.name}, row {number}: {len(row)} cells, but the first row names {len(header)} columns"
                    if self.errors is None or place >= len(row):
                        raise ValueError(short)
                name = "1" if self.sequence_id is None else self._id(row[place], number)
                if name not in place_of:
                    place_of[name] = len(ids)
                    ids.append(name)
                    cells.append(([], []))
                    numbers.append([])
                    times.append([])
                own = place_of[name]
                if short is not None and self.errors is not None:
                    self.errors.setdefault(name, short)
                    continue
                if self.order_by is not None:
                    try:
                        times[own].append(self._time(row[places[self.order_by]], number))
                    except ValueError as error:
                        if self.errors is None:
                            raise
                        self.errors.setdefault(name, str(error))
                        continue
                cells[own][0].append([row[places[column]] for column in self.inputs])
                cells[own][1].append([row[places[column]] for column in self.outputs])
                numbers[own].append(number)
        if not ids:
            raise ValueError(f"{self.name}: it has names of columns, but no rows")
        if self.order_by is not None:
            cells, numbers, times = self._in_order(cells, numbers, times)
        both_sides = ((self.inputs, input_symbols), (self.outputs, output_symbols))
        mixed = [self.symbols.intersection(names) if len(names) > 1 else frozenset() for names, _ in both_sides]
        if self.most is not None:
            mixed[0] = self.symbols.intersection(self.inputs)
        named, named_outputs = (
            {
                name: self._levels((name,), [[[row[n]] for row in part[k]] for part in cells], given.get(name)) or ()
                for n, name in enumerate(names)
                if name in mixed[k]
            }
            for k, (names, given) in enumerate(both_sides)
        )
        levels = [
            None if mixed[k] else self._levels(names, [part[k] for part in cells], given)
            for k, (names, given) in enumerate(((self.inputs, input_levels), (self.outputs, output_levels)))
        ]
        self.coded = coded_columns(named, self.most)
        kept: list[str] = []
        coded: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        for name, part, rows in zip(ids, cells, numbers, strict=True):
            if self.errors is not None and name in self.errors:
                continue
            try:
                both = [
                    self._encode(names, part[k], rows, levels[k], missing=k == 1 and self.allow_missing)
                    for k, names in enumerate((self.inputs, self.outputs))
                    if not (named_outputs if k else named)
                ]
                if named:
                    both.insert(0, self._encode_mixed(part[0], rows, named))
                if named_outputs:
                    both.append(self._encode_outputs(part[1], rows, named_outputs))
            except ValueError as error:
                if self.errors is None:
                    raise
                self.errors[name] = str(error)
                continue
            kept.append(name)
            for side, codes in zip(coded, both, strict=True):
                side.append(codes)
        return SequenceTable(
            tuple(kept), list(map(len, coded[1])), *coded, expanded_names(self.inputs, named, self.coded), self.outputs,
            levels[0], levels[1], self.errors or {}, tuple(ids), named, named_outputs, self.coded,
            None if self.order_by is None else dict(zip(ids, times, strict=True)),
        )  # fmt: skip

    def _named_columns(self) -> list[str]:
        return [name for name in (self.sequence_id, self.order_by) if name is not None]

    def _in_order(self, cells, numbers, times) -> tuple[list[Any], list[list[int]], list[list[Any]]]:
        """The rows of each sequence by their times, and those of one time as they stand; and the times."""
        sorted_cells, sorted_numbers, sorted_times = [], [], []
        for (inputs, outputs), rows, own in zip(cells, numbers, times, strict=True):
            try:
                order = sorted(range(len(own)), key=own.__getitem__)
            except TypeError:
                raise ValueError(
                    f"{self.name}: column {self.order_by!r} holds times that cannot be compared; expected numbers alone, or "
                    "dates alone, all or none of them with a time zone"
                ) from None
            cells, rows = ([inputs[n] for n in order], [outputs[n] for n in order]), [rows[n] for n in order]
            fill = self.allow_missing and not self.inputs
            own = [own[n] for n in order]
            places = places_of(own, f"{self.name}: column {self.order_by!r}", fill=fill)
            if places is not None:
                own_cells, steps = dict(zip(places.tolist(), cells[1], strict=True)), range(int(places[-1]) + 1)
                cells = [[]] * len(steps), [own_cells.get(step, [None] * len(self.outputs)) for step in steps]
                rows = [rows[int(np.searchsorted(places, step, side="right")) - 1] for step in steps]
            sorted_cells.append(cells)
            sorted_numbers.append(rows)
            sorted_times.append(own)
        return sorted_cells, sorted_numbers, sorted_times

    def _time(self, cell: Any, row: int) -> Any:
        """A number or a date."""
        where = f"{self.name}, row {row}, column {self.order_by!r}"
        if _missing(cell):
            raise ValueError(f"{where}: empty; every row must say when it was, or leave it out")
        if isinstance(cell, datetime.date):
            return cell if isinstance(cell, datetime.datetime) else datetime.datetime.combine(cell, datetime.time())
        with contextlib.suppress(TypeError, ValueError):
            return self._numbers.read(cell)
        try:
            return datetime.datetime.fromisoformat(str(cell))
        except ValueError:
            raise ValueError(f"{where}: expected a number, or a date like 2024-01-31 18:00, got {checks.shown(cell)}") from None

    def _id(self, cell: Any, row: int) -> str:
        if _missing(cell):
            raise ValueError(
                f"{self.name}, row {row}, column {self.sequence_id!r}: empty; every row must say which sequence it is of"
            )
        return str(cell)

    def _place(self, header: list[Any], name: str) -> int:
        if header.count(name) == 1:
            return header.index(name)
        if name in header:
            raise ValueError(f"{self.name}: two columns are named {name!r}")
        close = difflib.get_close_matches(name, map(str, header), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {listing([str(column) for column in header])}"
        raise MissingColumn(f"{self.name}: no column {name!r}; {hint}")

    def _levels(self, names, parts, given) -> tuple[str, ...] | None:
        """The symbols of a side that holds some."""
        if not any(name in self.symbols for name in names):
            return None  # also where the column of the given levels is not read, as in inputs that are to come
        if given is not None:
            return tuple(map(str, given))
        seen = {_text(row[0]) for part in parts for row in part if not _missing(row[0])}
        if not seen:
            raise ValueError(f"{self.name}: column {names[0]!r} is empty")
        return tuple(sorted(seen, key=_order))

    def _encode(self, names, part, rows, levels, *, missing: bool) -> np.ndarray:
        if levels is not None:
            code = {level: n for n, level in enumerate(levels)}
            return np.array(
                [self._code(names[0], row[0], n, code, missing) for row, n in zip(part, rows, strict=True)],
                dtype=np.int64,
            )
        values = [
            [self._number(name, cell, n, missing) for name, cell in zip(names, row, strict=True)]
            for row, n in zip(part, rows, strict=True)
        ]
        return np.array(values, dtype=np.float64).reshape(len(rows), len(names))

    def _encode_mixed(self, part, rows, named: Mapping[str, tuple[str, ...]]) -> np.ndarray:
        """(T, U) numbers of inputs some of which are symbols."""
        columns: list[np.ndarray] = []
        for place, name in enumerate(self.inputs):
            cells, levels = [[row[place]] for row in part], named.get(name)
            found = self._encode((name,), cells, rows, levels, missing=False)
            if levels is not None:
                found = found[:, None] if name in self.coded else np.eye(len(levels))[found][:, 1:]
            columns.append(found)
        return np.concatenate(columns, 1)

    def _encode_outputs(self, part, rows, named: Mapping[str, tuple[str, ...]]) -> np.ndarray:
        """(T, D) numbers of outputs some of which are symbols, which are told by their places."""
        columns: list[np.ndarray] = []
        for place, name in enumerate(self.outputs):
            cells = [[row[place]] for row in part]
            found = self._encode((name,), cells, rows, named.get(name), missing=self.allow_missing)
            columns.append(found.reshape(-1, 1) if name not in named else np.where(found < 0, np.nan, found)[:, None])
        return np.concatenate(columns, 1)

    def _code(self, column: str, cell: Any, row: int, code: dict[str, int], missing: bool) -> int:
        if _missing(cell):
            if missing:
                return -1
            raise ValueError(
                f"{self.name}, row {row}, column {column!r}: {self._side(column)} is empty; fill it in, or leave the row out"
            )
        if _text(cell) not in code:
            raise ValueError(
                f"{self.name}, row {row}, column {column!r}: unknown symbol {_text(cell)!r}; known: {listing(list(code))}"
            )
        return code[_text(cell)]

    def _side(self, column: str) -> str:
        return "an input" if column in self.inputs else "an output"

    def _number(self, column: str, cell: Any, row: int, missing: bool) -> float:
        where = f"{self.name}, row {row}, column {column!r}"
        if _missing(cell, EMPTY_NUMBERS):
            if missing:
                return math.nan
            raise ValueError(f"{where}: {self._side(column)} is empty or NaN; fill it in, or leave the row out")
        try:
            value = self._numbers.read(cell)
        except (TypeError, ValueError) as error:
            beside = f" {error}" if str(error).startswith("beside") else ""
            raise NotANumber(f"{where}: expected a number, got {checks.shown(cell)}{beside}; make one of it", column) from None
        if not math.isfinite(value):
            raise ValueError(f"{where}: expected a finite number, got {checks.shown(cell)}")
        return value

    def _text_rows(self) -> Generator[list[Any], None, None]:
        try:
            with opened(self.path, "a .csv, .tsv or .parquet file") as (_, stream):
                text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
                try:
                    first = text.readline()
                    delimiter = self._delimiter(first)
                    self._numbers.has_commas = delimiter == ";"
                    for row in csv.reader(itertools.chain([first], text) if first else [], delimiter=delimiter, strict=True):
                        yield [cell.strip() for cell in row]
                finally:
                    text.detach()  # which would close standard input with itself
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.name}: byte 0x{error.object[error.start]:02x} is not UTF-8 text; convert the file to UTF-8"
            ) from None
        except csv.Error as error:
            raise ValueError(f"{self.name}: not a table that can be read ({error})") from None

    def _delimiter(self, header: str) -> str:
        """What stands between cells: the usual one, unless with another the first row has all columns that are asked for."""
        usual = "\t" if ".tsv" in Path(self.name).suffixes else ","
        asked = {*self.inputs, *self.outputs, *self._named_columns()}
        for delimiter in (usual, ";", "\t", ","):
            with contextlib.suppress(csv.Error, StopIteration):  # a name may go on in the next line
                if asked <= {cell.strip() for cell in next(csv.reader([header], delimiter=delimiter, strict=True))}:
                    return delimiter
        return usual


class _Decimals:
    """How a table writes numbers: cells are between semicolons where numbers may have commas for points, all of them or none.

    Attributes:
        has_commas: whether they may. seen: a number of the first kind that was met, and its mark.
    """

    def __init__(self) -> None:
        self.has_commas, self.seen = False, ("", "")

    def read(self, cell: Any) -> float:
        """ValueError for what is no number."""
        if not isinstance(cell, str):
            return float(cell)
        if "_" in cell:
            raise ValueError  # Python's 1_000 is no number elsewhere
        if not self.has_commas:
            return float(cell)
        mark = next((each for each in ",." if each in cell), "")
        if mark and self.seen[1] not in ("", mark):
            raise ValueError(f"beside {self.seen[0]!r}, so that its mark could be of thousands")
        value = float(cell.replace(",", "."))
        self.seen = (cell, mark) if mark else self.seen
        return value


def _parquet_rows(path: str | Path) -> Generator[list[Any], None, None]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ImportError('Parquet files need pyarrow: pip install "pplseq[tables]"') from error
    path = existing_path(path)
    try:
        file = parquet.ParquetFile(path)
        yield list(file.schema_arrow.names)
        for batch in file.iter_batches():
            yield from map(list, zip(*(column.to_pylist() for column in batch.columns), strict=True))
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a whole Parquet file ({error})") from error


def coded_columns(symbols: Mapping[str, Sequence[str]], most_indicators: int | None) -> tuple[str, ...]:
    """The columns whose symbols are told by one number, as they would take more than so many of 0 and 1."""
    return tuple(name for name, own in symbols.items() if most_indicators is not None and len(own) > most_indicators + 1)


def expanded_names(
    names: Sequence[str], symbols: Mapping[str, Sequence[str]], coded: Sequence[str] = ()
) -> tuple[str, ...]:
    """The names of inputs' numbers: of a column of symbols one for each but the first, or its own where it is told by one."""
    return tuple(
        part
        for name in names
        for part in ([f"{name}={level}" for level in symbols[name][1:]] if name in symbols and name not in coded else [name])
    )


class EvenSteps(NamedTuple):
    """Which step each of some times is of, (N,) from 0, where steps are ``size`` units long: "month", "business day", "day",
    "nanosecond", or "" of numbers."""

    steps: np.ndarray
    size: float
    unit: str

    @property
    def is_whole(self) -> bool:
        """Whether there is a time of each step."""
        return int(self.steps[-1]) == len(self.steps) - 1

    def __str__(self) -> str:
        size, unit = self.size, self.unit
        if not unit:
            return f"{size:.6g}"
        if unit == "nanosecond":
            sizes = (("hour", 3600 * 10**9), ("minute", 60 * 10**9), ("second", 10**9), ("millisecond", 10**6))
            unit, parts = next((pair for pair in sizes if size % pair[1] == 0), ("nanosecond", 1))
            size //= parts
        return f"{'an' if unit == 'hour' else 'a'} {unit}" if size == 1 else f"{size} {unit}s"


def even_steps(times: np.ndarray) -> EvenSteps | None:
    """The steps that rising times are of, where it is clear how long one is: times are whole numbers of steps apart, most often
    one, and at least a quarter of all steps are there. None where it is not.

    Args:
        times: (N,) datetime64 of wall clocks, timedelta64, or numbers, in strictly rising order.
    """
    if len(times) < 3:
        return None
    if times.dtype.kind == "f":
        places = np.rint((times - times[0]) / np.diff(times).min())
        size = (times[-1] - times[0]) / places[-1]
        is_near = np.abs(times - times[0] - size * places) <= 1e-6 * size  # 0.1 is no number of a computer
        found = _even(places.astype(np.int64), "") if is_near.all() and places[-1] < 4 * len(times) else None
        return found and found._replace(size=size * found.size)
    if times.dtype.kind == "M":
        days = times.astype("M8[D]")
        if ((times - days) == (times - days)[0]).all():
            found = _even(_months(days), "month")
            weekdays = bool(np.is_busday(days).all())
            found = found or (_even(np.busday_count(days[0], days), "business day") if weekdays else None)
            return found or _even(days.astype(np.int64), "day")
    found = _even(times.astype(np.int64), "nanosecond" if times.dtype.kind in "mM" else "")
    if found is None or not found.unit:
        return found
    return found._replace(size=found.size * int(np.timedelta64(1, np.datetime_data(times.dtype)[0]) / np.timedelta64(1, "ns")))


def places_of(dates: Sequence[Any], what: str, *, fill: bool = True) -> np.ndarray | None:
    """(N,) which step each of some dates in order is of, where steps are clear and some are not there, with a warning; None
    where rows are to be taken as they stand.

    Args:
        dates: dates, times of day, durations or numbers; anything else has no steps, nor have numbers that are there twice.
        what: they are of, for errors. fill: whether rows of what is not there can be made.

    Raises:
        ValueError: for a date that is there twice.
    """
    dates = [date.to_timestamp() if hasattr(date, "freqstr") else date for date in dates]  # periods
    if dates and all(isinstance(date, (int, float, np.number)) for date in dates):
        wall = np.array(dates)
        found = even_steps(wall) if (np.diff(wall) > 0).all() else None
        return None if found is None else _places(dates, found, what, fill=fill)  # else numbers say an order alone
    if not dates or not all(isinstance(date, (datetime.date, datetime.timedelta, np.datetime64)) for date in dates):
        return None
    if (twice := next((one for one, other in zip(dates, dates[1:], strict=False) if one == other), None)) is not None:
        raise ValueError(
            f"{what}: {twice} is there more than once in a sequence; leave one of its rows out, or take their mean, or say by "
            "another column which sequence each is of"
        )
    dates, wall = _clock(dates)
    return _places(dates, even_steps(wall), what, fill=fill)


def _clock(dates: list[Any]) -> tuple[list[Any], np.ndarray]:
    """Dates, of several time zones in UTC, and what their clocks say."""
    if len({getattr(date, "utcoffset", lambda: None)() for date in dates}) > 1:  # hours are those of the world
        dates = [date.astimezone(datetime.UTC) for date in dates]
    wall = [date.replace(tzinfo=None) if isinstance(date, datetime.datetime) else date for date in dates]
    return dates, np.array(wall, dtype="m8[us]" if isinstance(wall[0], datetime.timedelta) else "M8[us]")


def goes_on(past: Sequence[Any], ahead: Any) -> bool:
    """Whether a time, a number or a date, may be that of the step behind some in order: it is behind them, by one step where it
    is clear how long one is. A number 0 or 1 may begin a count of its own."""
    numbers = [isinstance(time, (int, float)) for time in (past[-1], ahead)]
    if all(numbers) and ahead in (0, 1):
        return True
    try:
        if any(numbers) and not all(numbers) or not ahead > past[-1]:
            return False
    except TypeError:  # with a time zone, and without
        return False
    wall = np.array([*past, ahead], dtype=float) if all(numbers) else _clock([*past, ahead])[1]
    if len(np.unique(wall)) < len(wall) or even_steps(wall[:-1]) is None:
        return True  # numbers that are there twice say an order alone
    found = even_steps(wall)
    return found is not None and int(found.steps[-1] - found.steps[-2]) == 1


def _places(dates: Sequence[Any], found: EvenSteps | None, what: str, *, fill: bool) -> np.ndarray | None:
    """:func:`places_of` dates whose steps were found."""
    if len(dates) < 3 or found is not None and found.is_whole:
        return None
    if found is None:
        warnings.warn(f"{what}: times are in no even steps, and rows are taken for equal steps", stacklevel=2)
        return None
    number = int(found.steps[-1]) + 1
    done = "they are taken as missing" if fill else "rows are taken for equal steps, as inputs of others are not known"
    lacking = number - len(dates)
    warnings.warn(f"{what}: {lacking} of {number} steps of {found} are not there, behind {dates[0]}; {done}", stacklevel=2)
    return found.steps if fill else None


def times_of_texts(texts: Sequence[str]) -> list[datetime.datetime] | list[float] | None:
    """The dates (of ISO 8601, also 2024-01 for a month; those of several time zones in UTC) or numbers that all of some texts
    are; None where some is neither."""
    with contextlib.suppress(ValueError):
        numbers = [float(text) for text in texts]
        return numbers if all(map(math.isfinite, numbers)) else None
    with contextlib.suppress(ValueError):
        dates = [
            datetime.datetime.fromisoformat(f"{text.strip()}-01" if MONTH.fullmatch(text.strip()) else text.strip())
            for text in texts
        ]
        zones = {date.utcoffset() for date in dates}
        if len(zones) == 1:
            return dates
        return None if None in zones else [date.astimezone(datetime.UTC) for date in dates]
    return None


def _even(places: np.ndarray | None, unit: str) -> EvenSteps | None:
    if places is None:
        return None
    between = np.diff(places)
    size = int(np.gcd.reduce(between))
    if size == 0:
        return None
    sizes, counts = np.unique(between, return_counts=True)
    steps = (places - places[0]) // size
    is_clear = sizes[counts.argmax()] == size and counts.max() > 1 and 4 * len(steps) > int(steps[-1])
    return EvenSteps(steps, size, unit) if is_clear else None


def _months(days: np.ndarray) -> np.ndarray | None:
    """Numbers of months, of days that stand alike in theirs: the same day, or the first or last one, also at work."""
    months = days.astype("M8[M]")
    first, behind = months.astype("M8[D]"), (months + 1).astype("M8[D]")
    alike = (
        days - first, behind - days, np.busday_count(first, days), np.busday_count(days, behind)
    )  # fmt: skip
    if (np.diff(months.astype(np.int64)) < 1).any() or not any((each == each[0]).all() for each in alike):
        return None
    return months.astype(np.int64)


def _missing(cell: Any, words: set[str] = EMPTY) -> bool:
    return (
        cell is None
        or (isinstance(cell, str) and cell.strip().lower() in words)
        or (isinstance(cell, float) and math.isnan(cell))
    )


def _text(cell: Any) -> str:
    return str(cell).strip()


def _order(level: str) -> tuple[int, float, str]:
    """Numbers by their size, before words."""
    try:
        return 0, float(level), level
    except ValueError:
        return 1, 0.0, level
