"""Lines that are read, of a stream with what is needed to go on from a saved place, and what is answered to each of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pplseq import checks
from pplseq.data.sources import NUL_BYTE, OPENERS, existing_path
from pplseq.data.vocabulary import split_words
from pplseq.files import flush_open, goes_through, json_line
from pplseq.folder import SaveError
from pplseq.runs.signals import StopSignals

PIECE_BYTES = 1 << 16
LINE_BYTES = "PPLSEQ_LINE_BYTES"


class Place(NamedTuple):
    """How far a stream has been read.

    Attributes:
        num_lines: lines handed out. num_bytes: their length, line feeds counted. crc32: CRC-32 of these bytes.
    """

    num_lines: int = 0
    num_bytes: int = 0
    crc32: int = 0


class LineReader:
    """Lines of a file or of standard input, as bytes without their line feed.

    Memory stays bounded: of a line longer than a mebibyte only the length is kept. A signal that comes while the stream has
    nothing to read raises Stopped, and no line is lost by it.

    Args:
        source: a path, or "-" for standard input.
        place: where an earlier reader of the same file stopped. Standard input, and anything else that cannot be sought,
            goes on with what comes next; only the number of lines is taken from `place`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a folder, a packed file, or a file whose beginning is not what the earlier reader read.
    """

    def __init__(self, source: str, place: Place | None = None) -> None:
        self.name = "<stdin>" if source == "-" else source
        self.place = place or Place()
        self._pending, self._ended, self._most = b"", False, max_line_bytes()
        self._file: Any = sys.stdin.buffer if source == "-" else self._open(source)

    def _open(self, source: str) -> Any:
        path = existing_path(source)
        if path.is_dir():
            raise ValueError(f"--stream {path}: expected a text file, got a folder; name one of the files in it")
        if path.suffix in OPENERS:
            raise ValueError(
                f"--stream {path}: a packed file has no places to go on from; unpack it, or pipe it in with --stream -"
            )
        file = path.open("rb")
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            try:
                self._seek(file)
            except BaseException:
                file.close()
                raise
        return file

    def _seek(self, file: Any) -> None:
        """Go to the saved place, after a look at whether the file still begins as it did."""
        crc32, left, last = 0, self.place.num_bytes, b"\n"
        while left and (piece := file.read(min(left, PIECE_BYTES))):
            crc32, left, last = zlib.crc32(piece, crc32), left - len(piece), piece[-1:]
        if left or crc32 != self.place.crc32:
            raise ValueError(
                f"--stream {self.name}: its first {self.place.num_bytes:,} bytes are not those that the state has learned "
                "from; give the same file, or --rewind to read this one from its start"
            )
        if last != b"\n" and file.read(1):
            raise ValueError(
                f"--stream {self.name}: line {self.place.num_lines} had no end when it was read, and has grown since; give the "
                "further text as a file of its own"
            )

    def read_line(self, signals: StopSignals) -> bytes | int | None:
        """The next line, or the length of one that is too long; None at the end.

        Raises:
            Stopped: a signal came before the line.
        """
        signals.check()
        pieces, length, crc32 = [], 0, self.place.crc32
        while True:
            end = self._pending.find(b"\n") + 1
            piece, self._pending = (self._pending[:end], self._pending[end:]) if end else (self._pending, b"")
            length, crc32 = length + len(piece), zlib.crc32(piece, crc32)
            pieces = [*pieces, piece] if length <= self._most else []
            if end or self._ended:
                break
            self._pending = self._more(signals)
            self._ended = not self._pending
        if length == 0:
            return None
        first = self.place.num_bytes == 0
        self.place = Place(self.place.num_lines + 1, self.place.num_bytes + length, crc32)
        if length > self._most:
            return length
        line = b"".join(pieces).removesuffix(b"\n")
        return line.removeprefix(b"\xef\xbb\xbf") if first else line  # the byte order mark some editors write

    def _more(self, signals: StopSignals) -> bytes:
        with signals.immediate():  # waiting takes nothing out of the stream, so it may be cut short anywhere
            try:
                select.select([self._file], [], [])
            except (io.UnsupportedOperation, OSError, ValueError):
                pass  # not a file of the system's, or a system that waits for sockets only
        return self._file.read1(PIECE_BYTES)

    def close(self) -> None:
        """Close a file; standard input stays open."""
        if self._file is not sys.stdin.buffer:
            self._file.close()


class LineWriter:
    """Lines written and flushed one by one, to standard output or a file that can be taken up again.

    Args:
        path: a file, or None for standard output; a device or a pipe is written to.
        num_bytes: how much of the file an earlier writer had written when its state was saved; what stands behind that is
            cut off, as its lines will come again.

    Raises:
        ValueError: the file holds less than that, or is there already though nothing was recorded of it.
    """

    def __init__(self, path: Path | None, num_bytes: int | None = None) -> None:
        self.path, self._file, self.num_bytes = path, None, None
        if path is None:
            return
        if goes_through(path):
            self._file, self.num_bytes = path.open("ab"), None
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        if num_bytes is None and size:
            raise ValueError(f"--out {path} is not empty, and not by this stream; name a new file")
        if size < (num_bytes or 0):
            raise ValueError(
                f"--out {path} has {size:,} bytes, fewer than the {num_bytes:,} that were written when the state was saved; "
                "put the file back, or name a new one"
            )
        self._file = path.open("r+b" if path.exists() else "wb")
        self._file.truncate(num_bytes or 0)
        self.num_bytes = self._file.seek(num_bytes or 0)

    def write(self, line: str) -> None:
        """Write a line, visible to whoever reads along at once."""
        if self._file is None:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            return
        raw = line.encode() + b"\n"
        try:
            self._file.write(raw)
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SaveError(f"could not write --out {self.path}: {error}; free space and go on from there") from error
        self.num_bytes = None if self.num_bytes is None else self.num_bytes + len(raw)

    def sync(self) -> None:
        """Let the file reach the disk, before a state is saved that counts on it."""
        if self.num_bytes is not None and self._file is not None:
            flush_open(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # of what could not be written, which was told: all that was is flushed
            if self._file is not None:
                self._file.close()


# ---------------------------------------------------------------- lines that are asked about
def answer_lines(
    lines: Iterable[str | bytes],
    ask: Callable[[list[str | None]], dict[str, Any]],
    *,
    gap: str | None = None,
    end: str | None = None,
    lower: bool = False,
    split: Callable[[str], list[str]] = split_words,
) -> Iterator[dict[str, Any]]:
    """Answer line after line; a line that cannot be answered gives {"line", "error"} and the next one is taken.

    Args:
        lines: words separated by spaces, or (a line that begins with a brace) a JSON object with "words": a list where
            null is a gap, or "text": a string. An "id" is handed through. A blank line is a sentence without words;
            of a file, a line longer than `max_line_bytes` is an error.
        ask: from words to an answer.
        gap: the word that stands for a gap.
        end: a word to put after the last one if it is not there (`<eos>`: the query is about whole sentences).
        lower: lower-case the words.
        split: a text into words, as the vocabulary has them.
    """
    for number, line in enumerate(_bounded(lines), 1):
        answer: dict[str, Any] = {"line": number}
        try:
            if isinstance(line, int):
                raise ValueError(too_long(line))
            text = line.decode("utf-8-sig") if isinstance(line, bytes) else line
            words, handed_through = _parse(text, lambda text: split(text.lower() if lower else text))
            answer |= handed_through
            if any("\0" in word for word in words if word is not None):
                raise ValueError(NUL_BYTE)
            words = [None if word is None or word == gap else (word.lower() if lower else word) for word in words]
            if end is not None and (not words or words[-1] != end):
                words.append(end)
            answer |= ask(words)
        except UnicodeDecodeError as error:
            answer["error"] = f"not UTF-8 text: byte {error.start + 1} of the line"
        except Exception as error:  # whatever it is, the next line may be answered
            answer["error"] = why(error)
        yield answer


def why(error: Exception) -> str:
    """What to say of an error that ends the answer to a line, and nothing else."""
    if isinstance(error, ValueError | TypeError) and str(error):
        return str(error)
    if isinstance(error, RecursionError):
        return "too many braces or brackets within each other"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def max_line_bytes() -> int:
    """The longest line that is read: a mebibyte, or what PPLSEQ_LINE_BYTES says."""
    return int(min(checks.limit(LINE_BYTES, 1 << 20), 1 << 40))


def too_long(length: int) -> str:
    """What to say of a longer one."""
    most = max_line_bytes()
    return f"the line has {length:,} bytes, more than {most:,}; break it into several, or raise the limit {LINE_BYTES}"


def _bounded(lines: Iterable[str | bytes]) -> Iterator[str | bytes | int]:
    """Lines; of one in a file that is longer than memory may be used for, its length."""
    if not isinstance(lines, io.BufferedIOBase):
        yield from lines
        return
    most = max_line_bytes()
    while line := lines.readline(most + 1):
        if len(line) <= most or line.endswith(b"\n"):
            yield line
            continue
        length = len(line)
        while not line.endswith(b"\n") and (line := lines.readline(most)):
            length += len(line)
        yield length


def _parse(text: str, split: Callable[[str], list[str]]) -> tuple[list[str | None], dict[str, Any]]:
    """(words, {"id"} if there is one) of a line."""
    if not text.lstrip().startswith("{"):
        return list(split(text)), {}
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f'a line that begins with a brace must be a JSON object with "words" or "text": {error}'
        ) from None
    handed_through = {"id": record["id"]} if "id" in record else {}
    json_line(handed_through)  # what cannot be written is this line's error
    words: Any = record.get("words")
    if words is None and isinstance(record.get("text"), str):
        words = split(record["text"])
    if isinstance(words, list) and any(isinstance(word, list) for word in words):
        raise ValueError(
            '"words": a gap takes no list of alternatives; ask for a pattern of the whole text: query RUN continue --whole '
            "--matching 'the (stock | market) fell', or Constraint.matching in Python"
        )
    if not isinstance(words, list) or not all(word is None or isinstance(word, str) for word in words):
        raise ValueError('expected {"words": [strings, null for a gap]} or {"text": "..."}')
    if any(word is not None and not word.strip() for word in words):
        raise ValueError('"words" must not hold empty strings; null is a gap')
    return words, handed_through
