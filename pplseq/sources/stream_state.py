"""What a learning stream leaves behind to go on from: a folder that is whole or absent, with a checksum of every file.

Layout of a state folder::

    saved/stream.json   settings, the place in the stream and in the output; size and CRC-32 of the other files
    saved/vocab.txt     the words
    saved/...           what the model and its sources wrote
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pplseq.data.sources import listing
from pplseq.runs.checkpoint import CheckpointError, recover_folder, replace_folder

FORMAT, VERSION = "pplseq-stream", 1
RECORD, INNER = "stream.json", "saved"  # not "last", which runs of `pplseq train` have
START_ANEW = "start anew with another --state folder, or put back a copy of this one"


def has_state(folder: Path) -> bool:
    """Whether a stream's state was saved in the folder."""
    recover_folder(folder / INNER)
    return (folder / INNER).is_dir()


def check_free(folder: Path) -> None:
    """Raise ValueError where a folder without a state holds something else, which had better not be mixed with one."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if names and not has_state(folder):
        raise ValueError(
            f"--state {folder}: it holds no stream's state but other files ({listing(sorted(names), 3)}); name a new folder"
        )


def save_state(folder: Path, record: dict[str, Any], write: Callable[[Path], None]) -> None:
    """Save a state: the old one stays until the new one is on the disk.

    Args:
        folder: the state folder.
        record: JSON-able; floats survive bit for bit.
        write: writes further files into the folder it is given.

    Raises:
        SaveError: the disk did not take it; the state before is whole.
    """

    def fill(new: Path) -> None:
        write(new)
        files = {}
        for path in sorted(path for path in new.rglob("*") if path.is_file()):
            data = path.read_bytes()
            files[path.relative_to(new).as_posix()] = {"bytes": len(data), "crc32": zlib.crc32(data)}
        header = {"format": FORMAT, "version": VERSION, "crc32": _crc32(record), "files": files, "record": record}
        (new / RECORD).write_text(json.dumps(header, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    replace_folder(folder / INNER, fill)


def load_state(folder: Path) -> tuple[dict[str, Any], Path]:
    """(record, folder with the other files), after every file was compared with its checksum.

    Raises:
        CheckpointError: no state there, one of another program or version, or a file that is missing, cut short or changed.
    """
    if not has_state(folder):
        raise CheckpointError(f"--state {folder}: no state of `pplseq personalize` there; check the path")
    inner = folder / INNER
    path = inner / RECORD
    if not path.is_file():
        raise CheckpointError(
            f"{path}: missing; the folder is not a state of `pplseq personalize`, or is damaged; {START_ANEW}"
        )
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: cut short or not JSON ({error}); {START_ANEW}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CheckpointError(f'{path}: written by another program: expected "format": "{FORMAT}"')
    if header.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: version {header.get('version')}, this pplseq reads version {VERSION}; use the one that wrote it"
        )
    record, files = header.get("record"), header.get("files")
    if not isinstance(record, dict) or not isinstance(files, dict) or header.get("crc32") != _crc32(record):
        raise CheckpointError(f"{path}: damaged: its checksum is not that of its content; {START_ANEW}")
    for name, promised in files.items():
        if not (inner / name).is_file():
            raise CheckpointError(f"{inner / name}: missing; {START_ANEW}")
        data = (inner / name).read_bytes()
        if len(data) != promised["bytes"]:
            raise CheckpointError(
                f"{inner / name}: cut short: expected {promised['bytes']:,} bytes, found {len(data):,}; {START_ANEW}"
            )
        if zlib.crc32(data) != promised["crc32"]:
            raise CheckpointError(f"{inner / name}: damaged: its checksum is not the one in {RECORD}; {START_ANEW}")
    return record, inner


def _crc32(record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())
