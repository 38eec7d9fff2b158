"""Lag counts as folders: counts.json, counts.npz, vocab.txt. Nothing is pickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pplseq.data.lag_counting import csr_counts
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
    },
)  # fmt: skip


def save_counts(counts: LagCounts, folder: str | Path, *, settings: dict | None = None) -> Path:
    """Write counts as a folder, whole or not at all: counts.json, counts.npz and vocab.txt, nothing pickled.

    Args:
        counts: what is written.
        folder: where to; counts that are there are replaced.
        settings: JSON-able, written beside the counts: by them, work that is done is recognised.

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
    }
    arrays = {"counts": counts.counts}
    for lag, matrix in enumerate(counts.lags, 1):
        matrix.sum_duplicates()
        # Counts above 2^32 are rare; the file is a third smaller without room for them.
        narrow = matrix.data.astype(np.uint32) if matrix.nnz and matrix.data.max() < 2**32 else matrix.data
        arrays |= {f"values_{lag}": narrow, f"columns_{lag}": matrix.indices, f"indptr_{lag}": matrix.indptr}
    return COUNTS.write(folder, header, arrays=arrays, more=lambda new: vocabulary.save(new / "vocab.txt"))


def load_counts(folder: str | Path) -> LagCounts:
    """Read what :func:`save_counts` wrote.

    Raises:
        FileNotFoundError: no counts there, or a file of them is missing.
        FolderError: a file that is cut short, damaged, of another program or of another version; names it.
    """

    def read_vocab(place: Path, header: dict) -> Vocabulary:
        return _vocabulary(place, header)

    header, _, arrays, vocabulary = COUNTS.read(folder, more=read_vocab)
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
