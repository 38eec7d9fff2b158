"""What a learning stream leaves behind to go on from: a folder that is whole or absent, with a checksum of every file.

Layout of a state folder::

    saved/stream.json   settings, the place in the stream and in the output; checksums
    saved/vocab.txt     the words
    saved/...           what the model and its sources wrote
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pplseq.data.sources import SPECIAL_WORDS, listing
from pplseq.folder import FolderKind, whole_folder

INNER = "saved"  # not "last", which runs of `pplseq train` have
START_ANEW = "start anew with another --state folder, or put back a copy of this one"
STREAM = FolderKind(
    "pplseq-stream", 2, header="stream.json", what="state of `pplseq personalize`", again=START_ANEW,
    schema={"record": {
        "options": {
            "order?": int, "min_count?": int, "max_vocabulary?": int, "lower?": bool, "checkpoint?": str, "decay?": float,
            "eos?": bool, "unknown?": str, "by_line?": bool,
        },
        "settings": dict, "streams": {...: [int, int, int]}, "out?": {"path": str, "num_bytes": int},
        "sources": [{"spec": str, "fingerprint": None}], "totals?": {...: dict}, "special_words?": SPECIAL_WORDS,
        "new_words?": {...: int},
    }},
)  # fmt: skip


def has_state(folder: Path) -> bool:
    """Whether a stream's state was saved in the folder."""
    return whole_folder(folder / INNER).is_dir()


def check_free(folder: Path) -> None:
    """Raise ValueError where a folder without a state holds something else, which had better not be mixed with one."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if names and not has_state(folder):
        raise ValueError(
            f"--state {folder}: it holds no stream's state but other files ({listing(sorted(names), 3)}); name a new folder"
        )


def describe_state(folder: Path) -> dict[str, Any]:
    """What a state is of: its sources, how many lines of each stream were read, and how the model learns."""
    record, _ = load_state(folder)
    options = record["options"] | record["settings"]
    return {
        "sources": [source["spec"] for source in record["sources"]],
        "lines": {name: place[0] for name, place in record["streams"].items()},
        "settings": {name: value for name, value in options.items() if value is not None},
    }


def save_state(folder: Path, record: dict[str, Any], write: Callable[[Path], None]) -> None:
    """Save a state: the old one stays until the new one is on the disk.

    Args:
        folder: the state folder.
        record: JSON-able; floats survive bit for bit.
        write: writes further files into the folder it is given.

    Raises:
        SaveError: the disk did not take it; the state before is whole.
    """
    STREAM.write(folder / INNER, {"record": record}, more=write)


def has_learned(folder: Path, path: str) -> bool:
    """Whether a folder's stream has read a file's beginning: under any name, as far as it was read there."""
    place = Path(path)
    if path == "-" or not place.is_file():
        return False
    for _, num_bytes, crc32 in load_state(folder)[0]["streams"].values():
        found, left = 0, num_bytes
        with open(place, "rb") as file:
            while left and (piece := file.read(min(left, 1 << 16))):
                found, left = zlib.crc32(piece, found), left - len(piece)
        if num_bytes and not left and found == crc32:
            return True
    return False


def load_state(folder: Path) -> tuple[dict[str, Any], Path]:
    """(record, folder with the other files), after every file was compared with its checksum.

    Raises:
        FileNotFoundError: no state there, or a file of it is missing.
        FolderError: one of another program or version, or a file that is cut short or changed.
    """
    header = STREAM.read(folder / INNER).header
    return header["record"], whole_folder(folder / INNER)
