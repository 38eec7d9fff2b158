"""Lag counts as folders: counts.json, counts.npz, vocab.txt. Nothing is pickled."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pplseq.data.lag_counting import csr_counts
from pplseq.data.streams import TextStream
from pplseq.data.vocabulary import Vocabulary
from pplseq.data.word_forms import WordForms

if TYPE_CHECKING:
    from pplseq.data.lag_counts import LagCounts

FORMAT, VERSION = "pplseq-lag-counts", 1


def save_counts(counts: LagCounts, folder: str | Path, settings: dict | None = None) -> Path:
    """`LagCounts.save`: the folder is written beside its place, then swapped in."""
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and ((folder / "counts.json").exists() or not any(folder.iterdir()))):
        raise ValueError(f"{folder}: there is something else than lag counts, which is not replaced; choose another folder")
    vocabulary = counts.vocabulary
    header = {
        "format": FORMAT,
        "version": VERSION,
        "num_words": counts.num_words,
        "num_tokens": counts.num_tokens,
        "max_lag": counts.max_lag,
        "num_pairs": counts.num_pairs.tolist(),
        "num_entries": [int(matrix.nnz) for matrix in counts.lags],
        "unit": counts.unit,
        "lower": counts.forms.lower,
        "digits": counts.forms.digits,
        "unknown": vocabulary.unknown,
        "eos": vocabulary.eos,
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
    new, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        with open(new / "counts.npz", "wb") as file:
            np.savez(file, **arrays)
            _flush(file)
        vocabulary.save(new / "vocab.txt")
        with open(new / "counts.json", "w", encoding="utf-8") as file:
            file.write(json.dumps(header, indent=1) + "\n")
            _flush(file)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(folder, old)
        os.replace(new, folder)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        _put_back(folder)
        raise OSError(
            f"could not save the counts at {folder}: {error}; nothing there was changed. Free space or choose another "
            "folder, and count again"
        ) from error
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        _put_back(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return folder


def load_counts(folder: str | Path) -> LagCounts:
    """`LagCounts.load`."""
    from pplseq.data.lag_counts import LagCounts, Part

    folder = Path(folder)
    header = read_header(folder)
    names = "num_words num_tokens max_lag num_pairs unit lower digits unknown eos vocabulary parts".split()
    missing = [name for name in names if name not in header]
    if missing:
        raise ValueError(f"{folder / 'counts.json'}: no entry {missing[0]!r}; the file is damaged, count again")
    path = folder / "counts.npz"
    try:
        # numpy leaves a file open that it opened itself and could not read
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            counts = file["counts"]
            lags = [
                csr_counts(*(file[f"{name}_{lag}"] for name in ("values", "columns", "indptr")), header["num_words"])
                for lag in range(1, header["max_lag"] + 1)
            ]
        for matrix in lags:
            matrix.check_format(full_check=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: missing; the folder is incomplete, count again") from None
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # a damaged file makes zipfile and numpy raise nearly anything
        raise ValueError(f"{path}: cut short, damaged or not the arrays of lag counts ({error}); count again") from error
    vocabulary = Vocabulary.load(folder / "vocab.txt", unknown=header["unknown"], eos=header["eos"])
    if vocabulary.fingerprint() != header["vocabulary"]:
        raise ValueError(f"{folder / 'vocab.txt'}: not the vocabulary that was counted; it was cut short or changed")
    forms = WordForms(header["lower"], header["digits"])
    try:
        result = LagCounts(
            vocabulary, counts, tuple(lags), header["unit"], tuple(Part(**part) for part in header["parts"]), forms
        )
        sums = (result.num_tokens, result.num_pairs.tolist())
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / 'counts.json'}: does not describe these counts ({error})") from error
    if sums != (header["num_tokens"], header["num_pairs"]):
        raise ValueError(f"{path}: its sums are not those in counts.json; the two files are of different counts")
    return result


def read_header(folder: str | Path) -> dict:
    """counts.json of a folder of counts, its format and version checked.

    Raises:
        FileNotFoundError, ValueError: as `LagCounts.load`.
    """
    folder = Path(folder)
    _put_back(folder)
    path = folder / "counts.json"
    if not path.is_file():
        raise FileNotFoundError(f"no lag counts at {folder}: expected a folder that `pplseq count` wrote")
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not readable as JSON ({error}); the file is damaged, count again") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f'{path}: expected "format": "{FORMAT}"; this folder does not hold lag counts')
    if header.get("version") != VERSION:
        raise ValueError(
            f"{path}: format version {header.get('version')}, but this pplseq reads version {VERSION}; count again"
        )
    return header


def is_counted(folder: str | Path, source: str | Path, shard: tuple[int, int], settings: dict) -> bool:
    """Whether a folder holds just the counts that are wanted.

    Args:
        folder: may not exist.
        source: as `streams.TextStream` takes it.
        shard: (i, n). settings: what `save` was given.

    Raises:
        ValueError: it holds other counts, or ones of a stream that cannot be compared before it is read.
    """
    folder = Path(folder)
    _put_back(folder)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    header = read_header(folder)
    stream = TextStream(source)
    advice = "choose another folder, or replace them with --force"
    if stream.fingerprint is None:
        raise ValueError(
            f"{folder} holds counts already, and only reading {stream.name} would tell whether they are of it; keep "
            "them, choose another folder, or count again with --force"
        )
    wanted = [{"fingerprint": stream.fingerprint, "shard": shard[0], "num_shards": shard[1]}]
    if [{name: part.get(name) for name in wanted[0]} for part in header["parts"]] != wanted:
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
    header = read_header(path)
    vocabulary = Vocabulary.load(path / "vocab.txt", unknown=header["unknown"], eos=header["eos"])
    return vocabulary, WordForms(header["lower"], header["digits"])


def _put_back(folder: Path) -> None:
    """Undo a replacement that was cut off between its two renames."""
    old = folder.with_name(f".{folder.name}.old")
    if old.exists() and not folder.exists():
        os.replace(old, folder)


def _flush(file) -> None:
    """Onto the disk: else a power cut after the rename can leave an empty file behind a new name."""
    file.flush()
    os.fsync(file.fileno())
