"""Lines of a stream, one at a time, with what is needed to go on from a saved place."""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from pplseq.data.sources import OPENERS, existing_path
from pplseq.files import flush_open, goes_through
from pplseq.folder import SaveError
from pplseq.models.answers import max_line_bytes
from pplseq.runs.signals import StopSignals

PIECE_BYTES = 1 << 16


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
