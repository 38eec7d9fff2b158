"""Folders that are whole or absent: how everything that is kept on disk is written and read.

A folder is written beside its final place, flushed to the disk and then swapped in, so a crash, a signal or a full disk
leaves the one before as it was. A header, in JSON, says what the folder holds (`format`, `version`) and has the size and the
SHA-256 of every other file, and of itself: a flipped bit, a file cut short or one of another model is named, not computed
with. Tensors are in safetensors, arrays in npz without objects: a folder from a stranger can be wrong, but cannot run code.

Who reads never changes anything on the disk. Who writes holds a lock beside the folder (`.NAME.lck`, with the number of
the process), and first finishes what an interrupted writer left.

This file is on the ground: it knows no room.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

from pplseq.checks import is_path, shown
from pplseq.files import beside, check_name, check_text, flush, flush_all, locked, new_file, unsteered, write_text
from pplseq.threads import parsing

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

T = TypeVar("T")
Fill = Callable[[Path], object]
TRIES = 100  # of a reader whose folder is replaced again and again
TEXT_BYTES = 1 << 26  # of a header, a status or a record of settings: a text of more is none of them


class FolderError(ValueError):
    """A stored folder that cannot be used: damaged, cut short, of another program, of another version or of another model."""


class SaveError(OSError):
    """A folder that could not be written (full disk, no permission); the one before is untouched."""


class Stored(NamedTuple):
    """What was read.

    Attributes:
        header: without `format`, `version` and checksums. tensors: name -> tensor on the CPU. arrays: name -> numpy array.
        more: what the reader's own function returned.
    """

    header: dict[str, Any]
    tensors: dict[str, Tensor]
    arrays: dict[str, np.ndarray]
    more: Any


@dataclass(frozen=True)
class FolderKind:
    """What one kind of stored thing looks like.

    Args:
        format: by which the folder is recognised.
        version: of the format; other versions are not read.
        header: name of the JSON file.
        what: is stored, for messages: "model".
        again: what to do if it cannot be read: "train again".
        tensors, arrays: names of the safetensors file and of the npz file; None where the kind has none.
        schema: what the header says beside that, as :func:`check_content` takes it.
        within: pattern of folders of this kind that may stand in one, whole by themselves: their headers alone are summed up.
    """

    format: str
    version: int
    header: str
    what: str
    again: str
    tensors: str | None = None
    arrays: str | None = None
    schema: Any = None
    within: str | None = None

    def write(
        self,
        folder: str | Path,
        header: Mapping[str, Any],
        *,
        tensors: Mapping[str, Tensor] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
        more: Fill | None = None,
        durable: bool = True,
    ) -> Path:
        """Write a folder, whole or not at all.

        Args:
            folder: an existing one of this kind is replaced. header: JSON-able; floats survive bit for bit.
            tensors: on any device. arrays: numpy arrays without objects.
            more: writes further files into the folder it is given; they get checksums, too.
            durable: wait until the disk has it; else what a power cut spoils fails its checksums, and is made again.

        Raises:
            ValueError: it is the current folder, or holds something else, which are not replaced, or its name is too long or no
                UTF-8 text.
            SaveError: the disk did not take it; what was there before is whole.
        """
        folder = Path(folder)
        check_name(folder)
        if folder.is_dir() and folder.samefile(os.curdir):
            raise ValueError(f"{folder}: it is the current folder, which is not replaced from within; choose one in it")
        if folder.exists() and not (folder.is_dir() and ((folder / self.header).exists() or not any(folder.iterdir()))):
            raise ValueError(
                f"{folder}: there is something else than {self.what}, which is not replaced; choose another folder"
            )

        fill = partial(self.fill, header=header, tensors=tensors, arrays=arrays, more=more)
        replace_folder(folder, fill, durable)
        return folder

    def fill(
        self,
        new: Path,
        header: Mapping[str, Any],
        *,
        tensors: Mapping[str, Tensor] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
        more: Fill | None = None,
    ) -> None:
        """Write into a new folder that somebody else puts into its place; arguments as of :meth:`write`."""
        if more is not None:
            more(new)
        if self.tensors is not None:
            _save_tensors(new / self.tensors, tensors or {})
        if self.arrays is not None:
            import numpy as np

            with open(new / self.arrays, "wb") as file:
                np.savez(file, **(arrays or {}))  # pyright: ignore[reportArgumentType]
        seal(new / self.header, {"format": self.format, "version": self.version, **header}, self.within)

    def read(self, folder: str | Path, more: Callable[[Path, dict[str, Any]], Any] | None = None) -> Stored:
        """Read a folder, after every file was compared with its checksum; a writer may be at work.

        Args:
            more: reads further files, from the folder and the header that it is given.

        Raises:
            FileNotFoundError: there is none, or a file of it is missing.
            FolderError: naming the file, and what is wrong with it.
        """

        def attempt(place: Path) -> Stored:
            header = self._checked(place)
            self._compare(place, header["files"])
            tensors = {} if self.tensors is None else _load_tensors(place / self.tensors)
            arrays = {} if self.arrays is None else self._load_arrays(place / self.arrays)
            with sound(f"{place}: its files do not fit {self.header}", self.again):
                return Stored(_own(header), tensors, arrays, None if more is None else more(place, header))

        return self._while_unchanged(folder, attempt)

    def read_header(self, folder: str | Path) -> dict[str, Any]:
        """The header alone, format and version checked; raises as :meth:`read`."""
        return self._while_unchanged(folder, lambda place: _own(self._checked(place)))

    def is_at(self, folder: str | Path) -> bool:
        """Whether there is a folder with this kind's header, sound or not."""
        return (whole_folder(folder) / self.header).is_file()

    def _while_unchanged(self, folder: str | Path, attempt: Callable[[Path], T]) -> T:
        """Reading counts only if nobody replaced the folder meanwhile: the header, with its checksums, is still the same."""
        for tries in range(TRIES):
            place = whole_folder(folder)
            before = _bytes(place / self.header)
            last = tries == TRIES - 1
            try:
                result = attempt(place)
            except (OSError, ValueError):
                now = whole_folder(folder)  # elsewhere, while a writer has moved the old folder aside
                if last or (now == place and _bytes(now / self.header) == before):
                    raise
            else:
                if last or _bytes(whole_folder(folder) / self.header) == before:
                    return result
        raise AssertionError

    def _checked(self, place: Path) -> dict[str, Any]:
        path = place / self.header
        if not path.is_file():
            why = f"it has no {self.header}" if place.exists() else "there is no such folder"
            raise FileNotFoundError(f"no {self.what} at {place}: {why}; check the path")
        header = _json_of(path, self.again)
        if not isinstance(header, dict) or header.get("format") != self.format:
            raise FolderError(
                f'{path}: expected "format": "{self.format}"; this folder was not written by pplseq, or holds no {self.what}; '
                "check the path"
            )
        if header.get("version") != self.version:
            raise FolderError(
                f"{path}: format version {header.get('version')}, but this pplseq reads version {self.version}; use the pplseq "
                f"that wrote it, or {self.again}"
            )
        if header.pop("sha256", None) != _digest(header):
            raise FolderError(f"{path}: damaged: its checksum is not that of its content; {self.again}")
        check_content(header, {"files": {...: [int, str]}}, path, self.again)
        check_content(header, self.schema, path, self.again)
        files = header["files"]
        if strange := [name for name in files if not _is_inside(name)]:
            raise FolderError(f"{path}: files names {strange[0]!r}, which is not in the folder; {self.again}")
        if absent := [name for name in (self.tensors, self.arrays) if name is not None and name not in files]:
            raise FolderError(f"{path}: files does not name {absent[0]}; {self.again}")
        return header

    def _compare(self, place: Path, files: Mapping[str, Any]) -> None:
        for name, (size, sha256) in files.items():
            path = place / name
            if not path.is_file():
                raise FileNotFoundError(f"{path}: missing; the folder is incomplete, {self.again}")
            if path.stat().st_size != size:
                raise FolderError(
                    f"{path}: cut short or changed: expected {size:,} bytes, found {path.stat().st_size:,}; {self.again}"
                )
            if _sha256(path) != sha256:
                raise FolderError(f"{path}: damaged: its checksum is not the one in {self.header}; {self.again}")

    def _load_arrays(self, path: Path) -> dict[str, np.ndarray]:
        with sound(f"{path}: not the arrays of {self.what}", self.again):  # zipfile and numpy raise nearly anything
            return _arrays_in(path)


@parsing
def _arrays_in(path: Path) -> dict[str, np.ndarray]:
    import numpy as np

    # numpy leaves a file open that it opened itself and could not read
    with opened(path) as stream, np.load(stream, allow_pickle=False) as file:
        if sum(part.file_size for part in file.zip.infolist()) > path.stat().st_size:
            raise ValueError("it is packed, which pplseq does not do, and unpacks to more")
        try:
            return dict(file)
        except MemoryError as error:  # of the size that an array says it has
            raise ValueError(str(error)) from None


def seal(path: Path, header: Mapping[str, Any], within: str | None = None) -> None:
    """Write a header beside files that are complete: with their sizes and checksums, and its own.

    Args:
        within: pattern of folders in it of which only the headers, of the same name, are looked at.
    """
    folder = path.parent
    whole = set() if within is None else set(folder.glob(within))
    files = {
        file.relative_to(folder).as_posix(): [file.stat().st_size, _sha256(file)]
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != path and (file.name == path.name or whole.isdisjoint(file.parents))
    }
    path.write_text(sealed({**header, "files": files}), encoding="utf-8", newline="\n")


def sealed(content: Mapping[str, Any]) -> str:
    """JSON with the SHA-256 of what it says, as "sha256"."""
    content = json.loads(json.dumps(content))  # as it will be read: lists for tuples, text for keys
    return unsteered(json.dumps({**content, "sha256": _digest(content)}, ensure_ascii=False, indent=1)) + "\n"


def unsealed(path: Path, again: str, schema: Any = None) -> dict[str, Any]:
    """What `sealed` wrote; FolderError, which says what to do, where it is damaged, or not as :func:`check_content` has it."""
    content = _json_of(path, again)
    if not isinstance(content, dict) or content.pop("sha256", None) != _digest(content):
        raise FolderError(f"{path}: damaged: its checksum is not that of its content; {again}")
    check_content(content, schema, path, again)
    return content


# ------------------------------------------------------------------------------------------------ what a stranger wrote
def opened(path: str | Path) -> BinaryIO:
    """A file of a folder, to read: a pipe, on which a reader waits for ever, or a device without an end is none.

    Raises:
        FileNotFoundError: there is none. FolderError: it is no regular file.
    """
    return open(path, "rb", opener=_regular)


def _regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FolderError(f"{path}: expected a file, got a pipe, a device or a folder; this was not written by pplseq")
    return descriptor


def content_of(path: str | Path, most: int = TEXT_BYTES) -> bytes:
    """The bytes of a small file of a folder; raises as :func:`opened`, and FolderError where there are more than `most`."""
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise FolderError(f"{path}: expected at most {most:,} bytes, found more; this file was not written by pplseq")
    return content


def _json_of(path: Path, again: str) -> Any:
    try:
        return json.loads(content_of(path))
    except FolderError:
        raise
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path}: not readable as JSON ({error}); the file is damaged, {again}") from None


def check_content(content: Any, schema: Any, path: str | Path, again: str, name: str = "") -> None:
    """Raises FolderError for JSON of another form than it was written in, naming the entry.

    Args:
        schema: a type, or a tuple of them (float takes whole numbers, int no truth values); None takes anything. Of a list
            [schema] of all its entries, [schema, schema, ...] of each. Of an object {name: schema}, "name?" where it may be
            absent or null, `...` for the names that are not listed; those may be there without it, too.
    """
    many = isinstance(schema, (list, dict))
    kinds = (type(schema),) if many else schema if isinstance(schema, tuple) else (schema,)
    if schema is None:
        return
    kinds = tuple(type(None) if kind is None else kind for kind in kinds) + ((int,) if float in kinds else ())
    right = isinstance(content, kinds) and (bool in kinds or not isinstance(content, bool))
    if many and right and isinstance(schema, list):
        right = len(schema) in (1, len(content))  # pyright: ignore[reportArgumentType]
    if not right:
        what = f"a list of {len(schema)}" if isinstance(content, list) and many else "/".join(map(_JSON.__getitem__, kinds))
        raise FolderError(f"{path}: {name or 'the file'} must be {what}, got {shown(content)}; it was changed, {again}")
    entries: Any = content
    if isinstance(schema, list):
        for number, part in enumerate(entries):
            check_content(part, schema[number if len(schema) > 1 else 0], path, again, f"{name}[{number}]")
    elif isinstance(schema, dict):
        names = [key.removesuffix("?") for key in schema if key is not ...]
        for key in schema:
            if key is not ... and key not in content and not key.endswith("?"):
                raise FolderError(f"{path}: {f'{name}.{key}'.lstrip('.')} is missing; it was changed, {again}")
        for key, part in entries.items():
            of = schema.get(key) if key in schema else schema.get(f"{key}?") if key in names else schema.get(...)
            if part is not None or f"{key}?" not in schema:
                check_content(part, of, path, again, f"{name}.{key}".lstrip("."))


_JSON = {dict: "an object", list: "a list", str: "text", int: "a whole number", float: "a number", bool: "true or false",
         type(None): "null"}  # fmt: skip


@contextmanager
def sound(what: str, again: str = "the file is damaged", *keeps: type[Exception]) -> Iterator[None]:
    """A block that makes something of what a folder says: whatever it raises becomes a FolderError that begins with `what`.

    Raises:
        FolderError: of what a file says. OSError, ImportError, MemoryError, and what is in `keeps`: as they come.
    """
    try:
        yield
    except (FolderError, OSError, ImportError, MemoryError, *keeps):
        raise
    except Exception as error:
        why = " ".join(str(error).split())  # torch takes several lines
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise FolderError(f"{what} ({kind}{why}); {again}") from error


def _is_inside(name: str) -> bool:
    """Whether a name among those of a folder's files is one of a file within it."""
    return not PurePath(name).anchor and ".." not in PurePath(name).parts


def write_with_sum(path: Path, write: Fill) -> None:
    """Write a file whole or not at all, and beside it `NAME.sha256`, which `sha256sum -c` reads too.

    Args:
        write: writes the file whose place it is given.
    """
    with new_file(path) as new:
        write(new)
        write_text(_sum_of(path), f"{_sha256(new)}  {path.name}\n")  # first: what has no such file is not looked at


def check_sum(path: Path) -> None:
    """Raises FolderError for a file that is not the one of the `NAME.sha256` beside it, where there is one."""
    if (beside_it := _sum_of(path)).is_file() and content_of(beside_it).decode(errors="replace").split()[:1] != [_sha256(path)]:
        raise FolderError(
            f"{path}: damaged: its checksum is not the one in {beside_it.name}; put back a copy of it, or, where you changed "
            f"it yourself, remove {beside_it.name}"
        )


def _sum_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def check_finite(tensors: Mapping[str, Tensor], folder: str | Path) -> None:
    """Raises FolderError for weights that are no numbers: every answer would be wrong without a word.

    Logits of tables may be -inf, probabilities of zero, and so may logarithms of scales and noises of structural models.
    """
    import torch

    for name, value in tensors.items():
        if not value.is_floating_point():
            continue
        sound = torch.isfinite(value)
        if name.endswith(("logits", "log_scales", "log_noise")):
            sound |= value == -torch.inf
        if not bool(sound.all()):
            raise FolderError(
                f"{folder}: {name} holds values that are not finite; the model was spoilt before it was saved, use an earlier "
                "checkpoint"
            )


def replace_folder(folder: str | Path, fill: Fill, durable: bool = True) -> None:
    """Write a folder beside `folder`, then swap it in.

    Args:
        folder: where it has to end up; an existing one is replaced.
        fill: fills the (new, empty) folder it is given. durable: as of :meth:`FolderKind.write`.

    Raises:
        SaveError: writing failed; `folder` is then what it was before.
    """
    place = Path(folder).resolve()  # a link is not replaced but followed
    new, old = beside(place, "new"), beside(place, "old")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(beside(place, "lck")):
            try:
                _put_back(place)
                shutil.rmtree(new, ignore_errors=True)
                new.mkdir()
                fill(new)
                if durable:
                    flush_all(new)
                if place.exists():
                    os.rename(place, old)
                os.rename(new, place)
                if durable:
                    flush(place.parent)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                _put_back(place)
                raise
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        cause = error.__cause__ if isinstance(error, SaveError) and error.__cause__ else error  # of a folder within
        kept = "the previous one there is whole" if place.exists() else "nothing was left behind there"
        raise SaveError(
            f"could not save {folder}: {cause}; {kept}. Free space (or choose another folder) and go on from there"
        ) from cause


def whole_folder(folder: str | Path) -> Path:
    """The folder itself, or what a replacement that was cut off between its two renames left of it; changes nothing."""
    is_path("a folder", folder)
    folder = Path(folder)
    old = beside(folder.resolve() if folder.is_symlink() else folder, "old")
    return old if os.path.isdir(old) and not folder.exists() else folder  # False, not an error, of a name that is too long


def _own(header: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in header.items() if name not in ("format", "version", "files")}


def tidy(folder: str | Path) -> None:
    """Finish what a writer of the folder that was killed left beside it; a writer at work is waited for."""
    place = Path(folder).resolve()
    if beside(place, "old").exists() or beside(place, "new").exists():
        with locked(beside(place, "lck")):
            _put_back(place)
            shutil.rmtree(beside(place, "new"), ignore_errors=True)


def _put_back(folder: Path) -> None:
    """Finish a replacement that was cut off: only for who holds the lock."""
    old = beside(folder, "old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        os.rename(old, folder)


def _bytes(path: Path) -> bytes | None:
    try:
        return content_of(path)
    except OSError:
        return None


def _digest(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode  # as the user's umask has it; safetensors gives a file to its owner alone
    try:
        save_file(_apart(tensors), path)
    except SafetensorError as error:  # a full disk has no exception of its own there
        raise OSError(str(error)) from error
    path.chmod(mode)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, and copied where they share memory, which safetensors refuses."""
    found, seen = {}, set()
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        memory = value.untyped_storage()
        found[name] = value.clone() if memory.data_ptr() in seen or memory.nbytes() != value.nbytes else value
        seen.add(memory.data_ptr())
    return found


def _load_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_text(path)
    try:
        return load_file(path)
    except RuntimeError as error:  # how torch maps a file; in a folder that is just being replaced there is none any more
        if not path.exists():
            raise FileNotFoundError(f"{path}: missing; it went while the folder was read") from None
        raise OSError(f"{path}: cannot be read ({error})") from error
    except SafetensorError as error:
        raise FolderError(f"{path}: not a whole safetensors file ({error}); it was cut short or is of another format") from None
