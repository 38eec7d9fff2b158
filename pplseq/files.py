"""Files that are whole or absent, locks, and lines of JSON. On the ground: it knows no other part of the library."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAME_BYTES = 250  # of a folder: what is written beside it (`beside`) has the 255 of nearly every system
FAR = 1 << 30  # the place in a lock file of the byte that Windows locks
TURN = 0.05  # seconds between two looks at a lock there
THROUGH = ("/dev/fd/", "/dev/std", "/proc/")  # names of what is open already: written to even where that is a file


@contextlib.contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """A place to write to: at the end of the block what stands there is on the disk, and takes the place of `path`.

    A link is followed. What is no regular file (a device, a pipe) is written to, never replaced; a regular file is replaced as
    a whole and keeps its permissions. After an error there is what was there before, and nothing else.

    Raises:
        IsADirectoryError: `path` is a folder. OSError: naming `path`, which a full disk does not by itself.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected the name of a file to write, got a folder")
    try:
        if goes_through(path):
            with tempfile.TemporaryDirectory() as folder:
                new = Path(folder) / path.name
                yield new
                with open(path, "ab") as target, open(new, "rb") as made:
                    shutil.copyfileobj(made, target)
            return
        place = path.resolve()
        if place.exists() and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        place.parent.mkdir(parents=True, exist_ok=True)
        new = beside(place, "new")
        try:
            yield new
            if place.exists():
                shutil.copymode(place, new)
            flush(new)
            os.replace(new, place)
            flush(place.parent)
        finally:
            new.unlink(missing_ok=True)
    except BrokenPipeError:  # whose reader has gone: no failure of the disk
        raise
    except OSError as error:
        if error.errno is None or (error.filename is not None and not str(error.filename).endswith(".new")):
            raise  # of another file
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from error


def goes_through(path: Path) -> bool:
    """Whether a name is that of a device, of a pipe or of what is open already, and not of a file that can be replaced."""
    return os.path.abspath(path).startswith(THROUGH) or (path.exists() and not path.is_file() and not path.is_dir())


def check_writable(*paths: Path | None) -> None:
    """Makes the folders of what is to be written and tries them, before the work that would be lost.

    Raises:
        OSError: naming what cannot be written.
    """
    for path in paths:
        if path is not None and path.is_dir():
            raise IsADirectoryError(f"{path}: expected the name of a file to write, got a folder")
        if path is not None and not goes_through(path):
            folder = path.resolve().parent
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass


def write_text(path: str | Path, text: str) -> None:
    """Write a small file whole or not at all, replacing one that is there."""
    with new_file(path) as new:
        new.write_text(text, encoding="utf-8", newline="\n")  # the same bytes on every system


def json_line(value: Any) -> str:
    """A line of JSON that every reader takes: null where a number is infinite or not one, as JSON knows no such numbers.

    Letters are written as they are; half of a surrogate pair, which UTF-8 cannot write, as its escape.
    """
    try:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        line = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)
    return unsteered(line)


def unsteered(text: str) -> str:
    """Text of JSON that UTF-8 can write and that steers no terminal: the same value, by escapes."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# Characters that steer a terminal, or turn the order of the text around them; ends of lines to some readers; halves of a
# surrogate pair. The rest of what steers JSON escapes itself. Joiners, hyphens and marks that words are spelt with stay.
_STEERING = re.compile("[\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
_CONTROL = re.compile(f"[\\x00-\\x08\\x0b-\\x1f]|{_STEERING.pattern}")


def printable(text: str) -> str:
    """Text for a terminal: what would steer it stands as its escape, as \\x1b; tabs and ends of lines stay."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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
    while True:
        # a link that a stranger's folder holds is not followed: what it names would be written over
        file = open(path, "a+", encoding="utf-8", newline="\n", opener=_itself)  # noqa: SIM115
        try:
            _lock(file.fileno(), wait=busy is None)
        except BlockingIOError:
            with file:
                file.seek(0)
                raise ValueError((busy or "").format(pid=file.read().strip() or "unknown")) from None
        except OSError:  # a file system without locks
            pass
        try:  # another process may have removed the file between opening and locking it, and may do so now
            found = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:
            found = False
        if found:
            break
        file.close()
    with file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            with contextlib.suppress(PermissionError):  # Windows removes no file that is open
                path.unlink(missing_ok=True)


def _lock(descriptor: int, *, wait: bool, shared: bool = False) -> None:
    """Lock an open file until it is closed; ``shared``: beside others that do so, but on Windows.

    Raises:
        BlockingIOError: another one holds it, and this one does not wait.
    """
    try:
        import fcntl
    except ImportError:
        import msvcrt
    else:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        return
    while True:
        os.lseek(descriptor, FAR, os.SEEK_SET)  # a byte behind the content: what is locked on Windows, no other one reads
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):
                raise
            if not wait:
                raise BlockingIOError(error.errno, error.strerror) from None
            time.sleep(TURN)


def _itself(path: str, flags: int) -> int:
    # neither is on Windows, where links are rare and pipes have names of their own
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "expected a file, got a pipe or a device", path)


def is_held(path: Path) -> bool:
    """Whether a living process of this machine holds a lock file; False where there are no such locks."""
    try:
        with open(path, "rb", opener=_itself) as file:  # a pipe would be waited for
            _lock(file.fileno(), wait=False, shared=True)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def make_folder(path: Path) -> None:
    """Make a folder, with those it is in, where there is none; a link is followed, wherever it leads.

    Raises:
        NotADirectoryError: something else is there.
    """
    check_may_be_folder(path)
    path.resolve().mkdir(parents=True, exist_ok=True)


def check_name(path: Path) -> None:
    """ValueError for the name of a folder that could be written, and then not be read or replaced."""
    check_text(path)
    if (size := len(os.fsencode(path.name))) > NAME_BYTES:
        raise ValueError(f"...{path.name[-60:]}: its name has {size} bytes, expected at most {NAME_BYTES}; give a shorter one")


def check_text(path: Path) -> None:
    """ValueError for a name that is not UTF-8 text, by which safetensors opens no file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{str(path)!a}: its name is not UTF-8 text; give it, or the folder it is in, another name") from None


def check_may_be_folder(path: Path) -> None:
    """ValueError as of :func:`check_name`; NotADirectoryError for something else than a folder in its place or on the way."""
    check_name(path)
    for place in (path, *path.parents):
        if place.exists():
            if not place.is_dir():
                raise NotADirectoryError(f"{place}: expected a folder, got a file or a device; give the name of a folder")
            return


def beside(path: Path, kind: str) -> Path:
    """A hidden neighbour of a file or folder, which may be the current one, that has no name."""
    named = path.resolve() if path.name in ("", "..") else path
    return named.parent / f".{named.name}.{kind}"


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
        flush_open(descriptor)
    finally:
        os.close(descriptor)


def flush_open(descriptor: int) -> None:
    """An open file onto the disk: on macOS, where fsync leaves it to the disk's own memory, through that."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # pyright: ignore[reportAttributeAccessIssue]
    except (ImportError, AttributeError, OSError):  # another system; or another disk than its own
        os.fsync(descriptor)
