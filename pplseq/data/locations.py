"""Where a text lies: a file here, or one that fsspec reads by its URL; columns of text in JSON lines and Parquet files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from pplseq.data.sources import OPENERS, existing_path, find_splits, unpacked

URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
TABLES = (".jsonl", ".ndjson", ".parquet")  # whose texts stand in a column


class Location(NamedTuple):
    """A file that can be opened.

    Args:
        address: path or URL, without the column. name: for messages. num_bytes: its size as it is stored.
        open: its bytes, as they are stored. column: that holds the text, of a table; "" of a text file.
    """

    address: str
    name: str
    num_bytes: int
    open: Callable[[], Any]
    column: str = ""

    @property
    def kind(self) -> str:
        """The suffix of what is inside: ".txt" of a.txt.gz."""
        suffixes = PurePosixPath(self.name).suffixes
        return next((suffix for suffix in reversed(suffixes) if suffix not in OPENERS), "")

    @property
    def packed(self) -> str:
        """".gz", ".xz", or "" where the bytes are the text's."""
        return next((suffix for suffix in OPENERS if self.name.endswith(suffix)), "")

    def content(self, file: Any) -> BinaryIO:
        """Of an open file, the bytes that were packed."""
        return unpacked(OPENERS[self.packed](file, "rb"), self.name, self.num_bytes) if self.packed else file

    def texts(self, stream: BinaryIO) -> Iterator[bytes]:
        """The column's texts, each ended by a line feed.

        Raises:
            ValueError: for a line that is no JSON object, or has no such text; for a Parquet file without the column.
        """
        for value, place in self._parquet(stream) if self.kind == ".parquet" else self._json_lines(stream):
            if not isinstance(value, str):
                raise ValueError(f"{self.name}, {place}: expected text in column {self.column!r}, got {value!r:.60}")
            yield value.removesuffix("\n").encode("utf-8", "surrogatepass") + b"\n"

    def _json_lines(self, stream: BinaryIO) -> Iterator[tuple[Any, str]]:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{self.name}, line {number}: not JSON ({error})") from error
            if not isinstance(record, dict) or self.column not in record:
                there = f"its columns: {', '.join(map(repr, list(record)[:10]))}" if isinstance(record, dict) else "no object"
                raise ValueError(f"{self.name}, line {number}: no column {self.column!r}; {there}")
            yield record[self.column], f"line {number}"

    def _parquet(self, stream: BinaryIO) -> Iterator[tuple[Any, str]]:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise ImportError(f'{self.name}: Parquet files need pyarrow: pip install "pplseq[tables]"') from error
        table = parquet.ParquetFile(stream)
        names = table.schema_arrow.names
        if self.column not in names:
            raise ValueError(f"{self.name}: no column {self.column!r}; its columns: {', '.join(map(repr, names[:10]))}")
        number = 0
        for batch in table.iter_batches(1024, columns=[self.column]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield value, f"row {number}"


def is_url(source: str | Path) -> bool:
    """Whether a source is a URL, such as s3://bucket/text.gz."""
    return URL.match(str(source)) is not None


def located(source: str | Path) -> Location:
    """The file of a source.

    Args:
        source: a path or a URL; of a folder here, its file named *train*. Of a .jsonl or .parquet file the column of the text
            follows a number sign: "reviews.jsonl#text".

    Raises:
        FileNotFoundError: no such file. ImportError: a URL whose file system fsspec has no package for.
        ValueError: a table without the name of a column.
    """
    address, column = str(source), ""
    head, mark, last = address.rpartition("#")
    if mark and Location("", head, 0, bytes).kind in TABLES:
        address, column = head, last
    if is_url(address):
        where = _remote(address)
    else:
        path = existing_path(address)
        path = find_splits(path)["train"] if path.is_dir() else path
        where = Location(str(path), path.name, path.stat().st_size, lambda: open(path, "rb"))
    if where.kind in TABLES and not column:
        raise ValueError(f"{source}: say which column holds the text: {source}#text")
    return where._replace(column=column)


def _remote(address: str) -> Location:
    import fsspec  # torch brings it

    try:
        files, path = fsspec.core.url_to_fs(address)
        size = files.info(path)["size"]
    except FileNotFoundError:
        raise FileNotFoundError(f"{address}: no such file; check the address") from None
    except (ImportError, ValueError) as error:
        raise type(error)(f"{address}: {error}") from error
    return Location(address, PurePosixPath(path).name, size, lambda: files.open(path, "rb"))


def matching(source: str | Path) -> list[str]:
    """The files that a source names: those that match a pattern with *, in order, else the source alone.

    Raises:
        FileNotFoundError: nothing matches.
    """
    text = str(source)
    head, mark, column = text.rpartition("#")
    pattern, column = (head, f"#{column}") if mark and "*" not in column else (text, "")
    if "*" not in pattern:
        return [text]
    import fsspec

    if is_url(pattern):
        files, path = fsspec.core.url_to_fs(pattern)
        found = [files.unstrip_protocol(name) for name in files.glob(path)]
    else:
        found = [str(path) for path in fsspec.filesystem("file").glob(pattern)]
    if not found:
        raise FileNotFoundError(f"{source}: no file matches")
    return [f"{name}{column}" for name in sorted(found)]
