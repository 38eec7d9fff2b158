"""Files that are whole or absent, locks, and lines of JSON. On the ground: it knows no other part of the library."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """A place beside `path` to write to: at the end of the block it is flushed to the disk and takes the place of `path`.

    After an error there is what was there before, and nothing else.
    """
    path = Path(path)
    new = beside(path, "new")
    try:
        yield new
        flush(new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a small file whole or not at all, replacing one that is there."""
    with new_file(path) as new:
        new.write_text(text, encoding="utf-8")


def json_line(value: Any) -> str:
    """A line of JSON that every reader takes: null where a number is infinite or not one, as JSON knows no such numbers.

    Letters are written as they are; half of a surrogate pair, which UTF-8 cannot write, as its escape.
    """
    try:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        line = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)
    return line.encode("utf-8", "backslashreplace").decode("utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, (list, tuple)) else value


@contextlib.contextmanager
def locked(path: Path, busy: str | None = None) -> Iterator[None]:
    """Hold a lock file while the block runs. Where its process dies the lock goes with it; the file left does no harm.

    Args:
        path: of the file, which gets the number of the process.
        busy: message of the ValueError if another process holds it, `{pid}` being its number; None waits.
    """
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    while True:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
        except BlockingIOError:
            with file:
                file.seek(0)
                raise ValueError((busy or "").format(pid=file.read().strip() or "unknown")) from None
        except OSError:  # a file system without locks
            pass
        # another process may have removed the file between opening and locking it
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()
    with file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_held(path: Path) -> bool:
    """Whether a living process of this machine holds a lock file; False where there are no such locks."""
    try:
        import fcntl

        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False


def beside(path: Path, kind: str) -> Path:
    """A hidden neighbour of a file or folder."""
    return path.with_name(f".{path.name}.{kind}")


def flush_all(folder: Path) -> None:
    """A folder and all within it onto the disk: without it a power cut can leave empty files behind a new name."""
    for path in (*folder.rglob("*"), folder):
        flush(path)


def flush(path: Path) -> None:
    """A file, or the names in a folder, onto the disk."""
    if path.is_dir() and os.name == "nt":
        return  # cannot be opened there
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
