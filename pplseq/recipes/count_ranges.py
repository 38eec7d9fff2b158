"""Counts of many parts of a text, added up range by range of words, so that nobody holds the sum whole.

A range is of later words, rows of the matrices of pairs, which stand one after the other in the file of a part: who adds up a
range reads what is of it from every part, and nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pplseq.data.lag_counting import add_to, csr_counts, sum_of
from pplseq.data.lag_streaming import Spool, count_numbered, number_words
from pplseq.data.streams import TextStream
from pplseq.data.vocabulary import Vocabulary
from pplseq.folder import FolderError, FolderKind
from pplseq.threads import parsing

_load = parsing(np.load)

RANGE_BYTES = 1 << 28  # of a range's sum, at most; while it is made and written, a few times that
ENTRY_BYTES = 12  # of a pair that occurs: a count and a column
BLOCK = 1 << 16  # entries of a part that have a checksum of their own

NUMBERED = FolderKind(
    "pplseq-numbered-text", 1, header="text.json", what="a numbered text", again="count again",
    schema={"settings": dict, "num_lines": int},
)  # fmt: skip
PART = FolderKind(
    "pplseq-lag-counts-of-a-part", 1, header="part.json", what="counts of a part", again="count again",
    schema={"settings": dict, "num_pairs": int},
)  # fmt: skip


def is_whole(kind: FolderKind, folder: Path, settings: dict[str, Any]) -> bool:
    """Whether a part stands there, every file as it was written, and of these settings."""
    try:
        return kind.read_header(folder)["settings"] == settings and kind.read(folder) is not None
    except (FolderError, FileNotFoundError):
        return False


# ------------------------------------------------------------------------------------------------ a part's words
def save_numbered(stream: TextStream, folder: Path, settings: dict[str, Any], **how: Any) -> None:
    """Read a part of a text once: its words by numbers of its own; how: as of ``number_words``."""

    with_lines: dict[str, Any] = {"settings": settings}

    def fill(new: Path) -> None:
        with open(new / "tokens", "wb") as file:
            seen, with_lines["num_lines"] = number_words(stream, Spool(file, folder), **how)
        (new / "words").write_bytes("\0".join(seen).encode())  # which no text holds
        np.save(new / "counts.npy", np.fromiter(seen.values(), np.int64, len(seen)))

    NUMBERED.write(folder, with_lines, more=fill, durable=False)


def words_of(folder: Path) -> tuple[dict[str, int], int]:
    """How often each word stands in a part, in the order of its numbers, and the number of lines."""
    words, counts = (folder / "words").read_bytes().decode(), _load(folder / "counts.npy")
    return dict(zip(words.split("\0"), counts.tolist(), strict=False)), NUMBERED.read_header(folder)["num_lines"]


def count_part(folder: Path, vocabulary: Vocabulary, max_lag: int, *, eos: bool) -> tuple[np.ndarray, tuple]:
    """Counts of a part that :func:`save_numbered` wrote, as of ``count_numbered``."""
    with open(folder / "tokens", "rb") as file:
        return count_numbered(Spool(file, folder), words_of(folder)[0], vocabulary, max_lag, eos=eos)


# ------------------------------------------------------------------------------------------------ a part's counts
def save_part(counts: np.ndarray, lags: Sequence, folder: Path, settings: dict[str, Any]) -> None:
    """Counts of a part, to be read by ranges.

    Args:
        counts: (V,) of words. lags: L matrices (V, V) of pairs.
    """

    def fill(new: Path) -> None:
        np.save(new / "counts.npy", counts)
        for lag, matrix in enumerate(lags, 1):
            values = matrix.data
            if matrix.nnz and values.max() < 2**32:
                values = values.astype(np.uint32)
            for name, array in (("values", values), ("columns", matrix.indices)):
                np.save(new / f"{name}_{lag}.npy", array)
                np.save(new / f"{name}_{lag}_sums.npy", _sums(array))
            np.save(new / f"indptr_{lag}.npy", matrix.indptr)

    PART.write(folder, {"settings": settings, "num_pairs": int(lags[0].data.sum())}, more=fill, durable=False)


def sizes_of(folder: Path, max_lag: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Of a part: how often each word stands there (V,), how many different pairs it ends (V,), and pairs one place apart."""
    pairs = sum(np.diff(_load(folder / f"indptr_{lag}.npy")).astype(np.int64) for lag in range(1, max_lag + 1))
    return _load(folder / "counts.npy"), np.asarray(pairs), PART.read_header(folder)["num_pairs"]


def ranges_of(pairs: np.ndarray, range_bytes: int = RANGE_BYTES) -> list[tuple[int, int]]:
    """Ranges of words whose sums have so many bytes at most, or are of one word.

    Args:
        pairs: (V,) how many different pairs a word ends, at most.
    """
    room, ends = range_bytes // ENTRY_BYTES, np.concatenate([[0], np.cumsum(pairs)])
    edges = [0]
    while edges[-1] < len(pairs):
        most = int(np.searchsorted(ends, ends[edges[-1]] + room, side="right")) - 1
        edges.append(max(most, edges[-1] + 1))
    return list(zip(edges[:-1], edges[1:], strict=True))


def add_range(folders: Sequence[Path], words: tuple[int, int], max_lag: int) -> tuple:
    """The sum over parts of the pairs whose later word is in a range, read part by part.

    Args:
        words: (i, j), words i to j - 1.

    Returns:
        L matrices (V, V); rows of other words are empty.

    Raises:
        FolderError: a part that is not as it was written.
    """
    first, last = words
    lags = []
    for lag in range(1, max_lag + 1):
        runs, num_words = [], 0
        for folder in folders:
            indptr = _load(folder / f"indptr_{lag}.npy", mmap_mode="r")
            num_words, mine = len(indptr) - 1, indptr[first : last + 1]
            values, columns = (_entries(folder, f"{name}_{lag}", mine[0], mine[-1]) for name in ("values", "columns"))
            add_to(runs, csr_counts(values, columns, mine - mine[0], num_words))
        added = sum_of(runs)
        indptr = np.concatenate([np.zeros(first), added.indptr, np.full(num_words - last, added.nnz)])
        lags.append(csr_counts(added.data, added.indices, indptr, num_words))
    return tuple(lags)


def _entries(folder: Path, name: str, first: int, last: int) -> np.ndarray:
    """Entries of a part's array, whose blocks are as they were written."""
    begin, end = int(first) // BLOCK, -(-int(last) // BLOCK)
    blocks = _load(folder / f"{name}.npy", mmap_mode="r")[begin * BLOCK : end * BLOCK]
    if not np.array_equal(_sums(blocks), _load(folder / f"{name}_sums.npy", mmap_mode="r")[begin:end]):
        raise FolderError(f"{folder / name}.npy: damaged: its checksums are not those of its content; remove it, count again")
    return blocks[first - begin * BLOCK : last - begin * BLOCK]


def _sums(array: np.ndarray) -> np.ndarray:
    return np.array([zlib.crc32(array[n : n + BLOCK].data) for n in range(0, len(array), BLOCK)], dtype=np.int64)
