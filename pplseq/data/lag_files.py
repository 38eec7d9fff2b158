"""Lag counts as folders: counts.json, counts.npz, vocab.txt. Nothing is pickled.

Counts that are larger than a machine's memory stand in ranges of words, in folders words-1-of-N to words-N-of-N within.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pplseq import checks
from pplseq.data.lag_counting import add_matrices, csr_counts
from pplseq.data.lag_counts import LagCounts, Part
from pplseq.data.locations import matching
from pplseq.data.streams import TextStream
from pplseq.data.vocabulary import Vocabulary, WordForms
from pplseq.folder import FolderKind, sound, whole_folder

COUNTS = FolderKind(
    "pplseq-lag-counts", 2, header="counts.json", arrays="counts.npz", what="lag counts", again="count again",
    schema={
        "num_words": int, "max_lag": int, "unit": str, "lower": bool, "digits?": str, "unknown?": str, "eos": str,
        "parts": [{"source": str, "fingerprint": str, "shard?": int, "num_shards?": int}], "settings?": dict,
        "ranges?": int, "words?": [int, int],
    },
    within="words-*-of-*",
)  # fmt: skip


def save_counts(
    counts: LagCounts, folder: str | Path, *, settings: dict | None = None, words: tuple[int, int] | None = None
) -> Path:
    """Write counts as a folder, whole or not at all: counts.json, counts.npz and vocab.txt, nothing pickled.

    Args:
        counts: what is written.
        folder: where to; counts that are there are replaced.
        settings: JSON-able, written beside the counts: by them, work that is done is recognised.
        words: (i, j), of counts of words i to j - 1 only, and of pairs that end in them; see :func:`join_ranges`.

    Raises:
        ValueError: the folder holds something else.
        SaveError: the disk does not take it; what was there before is still there.
    """
    vocabulary = counts.vocabulary
    header = {
        "num_words": counts.num_words,
        "num_tokens": counts.num_tokens,
        "max_lag": counts.max_lag,
        "num_pairs": counts.num_pairs.tolist(),
        "num_entries": [int(matrix.nnz) for matrix in counts.lags],
        "unit": counts.unit,
        "lower": counts.forms.lower,
        "digits": counts.forms.digits,
        **vocabulary.special_words,
        "vocabulary": vocabulary.fingerprint(),
        "parts": [part._asdict() for part in counts.parts],
        "settings": settings,
        **({} if words is None else {"words": words}),
    }
    arrays = {"counts": counts.counts}
    for lag, matrix in enumerate(counts.lags, 1):
        matrix.sum_duplicates()
        # Counts above 2^32 are rare; the file is a third smaller without room for them.
        narrow = matrix.data.astype(np.uint32) if matrix.nnz and matrix.data.max() < 2**32 else matrix.data
        arrays |= {f"values_{lag}": narrow, f"columns_{lag}": matrix.indices, f"indptr_{lag}": matrix.indptr}
    return COUNTS.write(folder, header, arrays=arrays, more=lambda new: vocabulary.save(new / "vocab.txt"))


def join_ranges(places: Sequence[Path], folder: str | Path) -> Path:
    """A folder of counts from all its ranges, which are moved there as they are; nobody holds them all.

    Args:
        places: of the ranges, in their order, on the disk of the folder.
    """
    headers = [COUNTS.read_header(place) for place in places]
    sums = ("num_tokens", "num_pairs", "num_entries")
    header = headers[0] | {name: np.sum([each[name] for each in headers], axis=0).tolist() for name in sums}
    del header["words"]

    def move(new: Path) -> None:
        shutil.copyfile(places[0] / "vocab.txt", new / "vocab.txt")
        for number, place in enumerate(places, 1):
            place.rename(new / range_name(number, len(places)))

    return COUNTS.write(folder, {**header, "ranges": len(places)}, more=move)


def range_name(number: int, size: int) -> str:
    """Of the folder of a range, from 1 on."""
    return f"words-{number}-of-{size}"


def load_counts(folder: str | Path, number: int | None = None) -> LagCounts:
    """Read what :func:`save_counts` wrote, or `pplseq count`.

    Args:
        number: of counts in so many ranges of words as the header, counts.json, says under "ranges": this one alone, from 1 on.
            Counts of other words, and of pairs that end in them, are zero there.

    Raises:
        FileNotFoundError: no counts there, or a file of them is missing.
        FolderError: a file that is cut short, damaged, of another program or of another version; names it.
        ValueError: a range that there is not; or the folder of one range, which is not the counts of a text.
    """
    folder = Path(folder)
    size = COUNTS.read_header(folder).get("ranges")
    if number is not None and not 1 <= number <= (size or 0):
        there = f"ranges 1 to {size}" if size else "no ranges"
        raise ValueError(f"number: expected a range of the counts, got {checks.shown(number)}; {folder} has {there}")
    if size is None:
        return _load(folder, whole=True)
    COUNTS.read(folder)  # whose checksums are those of the ranges' headers
    numbers = range(1, size + 1) if number is None else [number]
    found = [_load(folder / range_name(n, size), whole=False) for n in numbers]
    if number is not None:
        return found[0]
    lags = tuple(add_matrices(matrices) for matrices in zip(*(part.lags for part in found), strict=True))
    return replace(found[0], counts=np.sum([part.counts for part in found], axis=0), lags=lags)


def _load(folder: Path, *, whole: bool) -> LagCounts:
    header, _, arrays, vocabulary = COUNTS.read(folder, more=_vocabulary)
    if whole and (words := header.get("words")) is not None:
        raise ValueError(
            f"{folder}: holds pairs that end in words {words[0]:,} to {words[1]:,} only; load the folder that it stands in, or "
            "load_counts(FOLDER, number) of that"
        )
    with sound(f"{folder}: counts.json does not describe these counts", COUNTS.again):
        lags = [
            csr_counts(arrays[f"values_{lag}"], arrays[f"columns_{lag}"], arrays[f"indptr_{lag}"], header["num_words"])
            for lag in range(1, header["max_lag"] + 1)
        ]
        for matrix in lags:
            matrix.check_format(full_check=True)  # a folder from a stranger must not make scipy read beyond its arrays
        forms, parts = WordForms(header["lower"], header["digits"]), tuple(Part(**part) for part in header["parts"])
        return LagCounts(vocabulary, arrays["counts"], tuple(lags), header["unit"], parts, forms)


def is_counted(folder: str | Path, source: str | Path, shard: tuple[int, int], settings: dict) -> bool:
    """Whether a folder holds just the counts that are wanted.

    Args:
        folder: may not exist.
        source: as `streams.TextStream` takes it, or a pattern of files with *.
        shard: (i, n). settings: what `save_counts` was given.

    Raises:
        ValueError: it holds other counts, or ones of a stream that cannot be compared before it is read.
    """
    folder = Path(folder)
    place = whole_folder(folder)
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return False
    if place.is_dir() and not (place / COUNTS.header).exists():
        raise ValueError(f"{folder}: there is something else than lag counts, which is not replaced; choose another folder")
    header = COUNTS.read_header(folder)
    streams = [TextStream(name) for name in matching(source)]
    advice = "choose another folder, or replace them with --force"
    if unknown := [stream.name for stream in streams if stream.fingerprint is None]:
        raise ValueError(
            f"{folder} holds counts already, and only reading {unknown[0]} would tell whether they are of it; keep "
            "them, choose another folder, or count again with --force"
        )
    wanted = sorted((stream.fingerprint, *shard) for stream in streams)
    if sorted((part.get("fingerprint"), part.get("shard"), part.get("num_shards")) for part in header["parts"]) != wanted:
        found = ", ".join(str(part.get("source")) for part in header["parts"][:3])
        raise ValueError(f"{folder} holds counts of another text or shard ({found}); {advice}")
    before = header.get("settings") or {}
    differ = [name for name, value in settings.items() if before.get(name) != value]
    if differ:
        raise ValueError(
            f"{folder} holds counts made with other settings ({differ[0]}: {before.get(differ[0])!r}, now "
            f"{settings[differ[0]]!r}); {advice}"
        )
    return True


def read_vocabulary(path: str | Path) -> tuple[Vocabulary, WordForms | None]:
    """The vocabulary of a file, a word a line, or of a folder of counts, and how the words of these are written."""
    path = Path(path)
    if not path.is_dir():
        return Vocabulary.load(path), None
    header = COUNTS.read_header(path)
    return _vocabulary(whole_folder(path), header), WordForms(header["lower"], header["digits"])


def _vocabulary(place: Path, header: dict) -> Vocabulary:
    units = header.get("units", "words")
    return Vocabulary.load(place / "vocab.txt", unknown=header["unknown"], eos=header["eos"], units=units)
