"""Text that does not fit into memory: read in pieces, cut into lines or articles, dealt out to shards."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pplseq.data.locations import Location, located
from pplseq.data.sources import datasets_lines
from pplseq.data.vocabulary import split_words

PIECE_BYTES = 1 << 22
END_BYTES = 1 << 16  # of the head and the tail of a file in its fingerprint
PATIENCE = 1 << 26  # characters to look through for the first heading


class Piece(NamedTuple):
    """Whole lines, each with its line feed; the last one may be cut at white space and go on in the next piece.

    Args:
        text: the lines.
        begins: lines of `text`, from 0, at which a unit begins; None: at each that is not the rest of a cut one.
        continues: whether the first line is the rest of the one that the previous piece cut.
        first_line: number of its first line in the source, from 1; None where lines were left out.
    """

    text: str
    begins: np.ndarray | None
    continues: bool
    first_line: int | None


class TextStream:
    """The bytes of a text, once through.

    Args:
        source: a UTF-8 file, plain or packed as .gz or .xz, or its URL; a folder with a file named *train*; "x.jsonl#column" or
            "x.parquet#column"; "builtin:..." and "hf:..." as `load_corpus` knows them, their training text; "-", standard
            input. Unlike `load_corpus`, a single file is taken whole.
        span: (i, j) of a file that is not packed: only the lines that begin at bytes i..j-1. All spans together are the text.
        is_part: whether other parts are counted elsewhere, so that this one may have no words; a span always is.

    Attributes:
        name: for messages.
        file: the file that is read, None for other sources.
        num_bytes: its size as it is stored, None for other sources.
        fingerprint: of a file, its size and a hash of its two ends, known at once; of other sources a hash of what was
            read, known at the end and None before. A span has its own.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a folder without a training file; while reading: a binary file, bytes that are not UTF-8, a damaged
            packed file.
    """

    def __init__(self, source: str | Path, span: tuple[int, int] | None = None, *, is_part: bool = False):
        self.name, self.file, self.num_bytes, self.fingerprint = str(source), None, None, None
        self._open, self.span, self.is_part = None, span, is_part or span is not None
        if self.name == "-":
            self.name = "<stdin>"
        elif not self.name.startswith(("builtin:", "hf:")):
            self.file = located(source)
            self.name, self.num_bytes = self.file.name, self.file.num_bytes
            self.fingerprint = file_fingerprint(self.file)
        if span is not None:
            self._take_span(*span)

    def _take_span(self, first: int, last: int) -> None:
        if self.file is None or not self.can_be_cut:
            raise ValueError(f"{self.name}: a span is of a text file that is not packed, got {self.span}")
        if not 0 <= first < last:
            raise ValueError(f"span: expected (i, j) with 0 <= i < j, got ({first}, {last})")
        self.name = f"{self.name}, bytes {first:,} to {last:,}"
        self.num_bytes = last - first
        self.fingerprint = hashlib.sha256(f"{self.fingerprint} {first} {last}".encode()).hexdigest()

    @property
    def can_be_cut(self) -> bool:
        """Whether parts of it can be read as spans."""
        return self.file is not None and not (self.file.packed or self.file.kind == ".parquet")

    @property
    def position(self) -> int:
        """Bytes of the file, or the span, that are read so far."""
        return 0 if self._open is None else self._open.tell() - (self.span or (0, 0))[0]

    def blocks(self) -> Iterator[bytes]:
        """Bytes that end with a line, or at white space where a line is longer than a block."""
        if self.file is not None:
            try:
                with self.file.open() as self._open:
                    yield from whole_lines(self._parts(self.file, self._open), self.name)
            except (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
                raise ValueError(
                    f"{self.file.address}: damaged or not a {self.file.packed} file ({error}); unpack or fetch it again"
                ) from error
            finally:
                self._open = None
            return
        if self.name == "<stdin>":
            parts = iter(lambda: sys.stdin.buffer.read(PIECE_BYTES), b"")
        else:
            parts = join_lines(training_lines(self.name))
        content = hashlib.sha256()
        for block in whole_lines(parts, self.name):
            content.update(block)
            yield block
        self.fingerprint = content.hexdigest()

    def _parts(self, file: Location, opened: Any) -> Iterator[bytes]:
        if file.column:
            lines = file.content(opened) if self.span is None else _lines_of(opened, *self.span)
            texts = file.texts(lines)
            while chosen := b"".join(islice(texts, 8192)):
                yield chosen
        elif self.span is None:
            content = file.content(opened)
            yield from iter(lambda: content.read(PIECE_BYTES), b"")
        else:
            yield from _bytes_of(opened, *self.span)


def _bytes_of(opened: Any, first: int, last: int) -> Iterator[bytes]:
    """The lines that begin at bytes first..last-1, in pieces."""
    opened.seek(max(0, first - 1))
    if first:
        opened.readline()  # the rest of a line that began before, or the line feed just before `first`
    while (left := last - opened.tell()) > 0 and (part := opened.read(min(PIECE_BYTES, left))):
        yield part
        if left <= PIECE_BYTES and not part.endswith(b"\n"):
            yield opened.readline()


def _lines_of(opened: Any, first: int, last: int) -> Any:
    return b"".join(_bytes_of(opened, first, last)).splitlines(keepends=True)


def training_lines(source: str) -> Iterator[Sequence[str]]:
    """Lines of words of a builtin: or hf: source."""
    if source.startswith("hf:"):
        yield from datasets_lines(source.removeprefix("hf:"))["train"]
        return
    from pplseq.data.text import load_corpus

    text = load_corpus(source).train
    eos = text.vocabulary.eos_id
    for line in text.lines():
        yield text.vocabulary.decode(line[:-1] if eos is not None else line)


def file_fingerprint(where: Location) -> str:
    """A hash of the size, the head and the tail of a file: as quick for a terabyte as for a line."""
    size = where.num_bytes
    content = hashlib.sha256(f"{size} ".encode())
    with where.open() as file:
        content.update(file.read(END_BYTES))
        file.seek(max(END_BYTES, size - END_BYTES))
        content.update(file.read(END_BYTES))
    return content.hexdigest()


def join_lines(lines: Iterator[Sequence[str]]) -> Iterator[bytes]:
    while chosen := list(islice(lines, 8192)):
        yield "".join(" ".join(words) + "\n" for words in chosen).encode()


def whole_lines(parts: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Cut a stream of bytes at line feeds, or at white space in a line longer than a part; the last line is closed.

    Raises:
        ValueError: a NUL byte.
    """
    rest, offset, closed = b"", 0, True
    for part in parts:
        if b"\0" in part:
            raise ValueError(
                f"{name}: byte {offset + part.index(0)} is NUL, so this is not a UTF-8 text file; convert it to plain "
                "UTF-8 text"
            )
        offset += len(part)
        part = rest + part
        cut = part.rfind(b"\n") + 1
        closed = cut > 0
        cut = cut or max(part.rfind(b" "), part.rfind(b"\t")) + 1
        rest = part[cut:]
        if cut:
            yield part[:cut]
    if rest or not closed:
        yield rest + b"\n"


def decoded(stream: TextStream, lower: bool) -> Iterator[Piece]:
    """Pieces of text, every line a unit."""
    offset, line, continues = 0, 1, False
    for block in stream.blocks():
        try:
            text = block.decode("utf-8")
        except UnicodeDecodeError as error:
            number = line + block.count(b"\n", 0, error.start)
            raise ValueError(
                f"{stream.name}: byte {offset + error.start} (line {number}) is "
                f"0x{block[error.start]:02x}, which is not UTF-8 text; convert the file to UTF-8 (for example with iconv)"
            ) from error
        if offset == 0 and (stream.span is None or stream.span[0] == 0):
            text = text.removeprefix("\ufeff")  # the byte order mark some editors write
        offset += len(block)
        yield Piece(text.lower() if lower else text, None, continues, line)
        line, continues = line + text.count("\n"), not text.endswith("\n")


def is_title(line: str) -> bool:
    """` = Title = ` but not ` = = Section = = `."""
    if not line.lstrip().startswith("="):
        return False
    words = split_words(line)
    return len(words) > 2 and words[0] == words[-1] == "=" and words[1] != "=" and words[-2] != "="


def by_articles(pieces: Iterable[Piece], name: str) -> Iterator[Piece]:
    """Let units begin at WikiText's headings (blank line, `= Title =`, blank line); without headings at every line.

    What stands before the first heading belongs to its article.

    Raises:
        ValueError: the first heading stands so deep in the text that none was expected any more.
    """
    marked: Any = _mark_titles(pieces)  # whose pieces have `begins`
    waiting, size, found = [], 0, False
    for piece in marked:
        waiting.append(piece)
        size += len(piece.text)
        found = len(piece.begins) > 0
        if found or size > PATIENCE:
            break
    if not found:
        yield from (piece._replace(begins=None) for piece in waiting)
        for piece in marked:
            if len(piece.begins):
                raise ValueError(
                    f"{name}, line {piece.first_line + int(piece.begins[0])}: the first heading stands behind "
                    f"{size:,} characters without one; put a heading at the top, or use unit='line'"
                )
            yield piece._replace(begins=None)
        return
    # The first heading moves up to the top of the text.
    waiting[-1] = waiting[-1]._replace(begins=waiting[-1].begins[1:])
    waiting[0] = waiting[0]._replace(begins=np.append(0, waiting[0].begins))
    yield from waiting
    yield from marked


def _mark_titles(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Put the lines of headings into `begins`; a heading at the end of a piece waits for the line behind it."""
    held: Any = None
    blank_before = True
    for piece in pieces:
        if held is not None:
            piece = piece._replace(text=held.text + piece.text, continues=held.continues, first_line=held.first_line)
        lines = piece.text.split("\n")
        last = len(lines) - 2  # the last line with a line feed; behind it stands the beginning of the next one or nothing
        held = None
        if last >= piece.continues and is_title(lines[last]):
            text = "\n".join(lines[last:])
            first = piece.first_line + last  # pyright: ignore[reportOptionalOperand]
            held = Piece(text, None, piece.continues and last == 0, first)
            lines = [*lines[:last], ""]
            piece = piece._replace(text="\n".join(lines))
        yield piece._replace(begins=_titles(lines, blank_before, piece.continues))
        if len(lines) > 1:
            blank_before = not lines[-2].strip()
    if held is not None:
        yield held._replace(begins=_titles(held.text.split("\n"), blank_before, False))


def _titles(lines: list[str], blank_before: bool, continues: bool) -> np.ndarray:
    found = [
        number
        for number in range(int(continues), len(lines) - 1)
        if is_title(lines[number])
        and (blank_before if number == 0 else not lines[number - 1].strip())
        and not lines[number + 1].strip()
    ]
    return np.array(found, dtype=np.int64)


def of_shard(pieces: Iterable[Piece], shard: int, num_shards: int) -> Iterator[Piece]:
    """Keep unit j where j mod num_shards + 1 is `shard`, and leave the others out."""
    unit = -1
    kept_last = False
    for piece in pieces:
        lines = piece.text.split("\n")
        opened = bool(lines[-1])  # a line that goes on in the next piece
        lines = lines if opened else lines[:-1]
        begin = np.full(len(lines), piece.begins is None)
        begin[:1] &= not piece.continues
        if piece.begins is not None:
            begin[piece.begins] = True
        units = unit + np.cumsum(begin)
        unit = int(units[-1]) if len(units) else unit
        keep = units % num_shards == shard - 1
        chosen = [line for line, wanted in zip(lines, keep.tolist(), strict=True) if wanted]
        if chosen:
            text = "\n".join(chosen) + ("" if opened and keep[-1] else "\n")
            yield Piece(text, np.flatnonzero(begin[keep]), piece.continues and bool(keep[0]) and kept_last, None)
        if len(keep):
            kept_last = bool(keep[-1])
