"""Lag counts in a folder; of a text that is larger than a machine by the workers of a cluster, part by part, and added up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pplseq.data.lag_counting import sparse
from pplseq.data.lag_counts import MOST_LAGS, LagCounts, check_settings
from pplseq.data.lag_counts import Part as CountedPart
from pplseq.data.lag_files import COUNTS, is_counted, load_counts, read_vocabulary, save_counts
from pplseq.data.lag_streaming import count_lags, counted_units, vocabulary_of, word_counts
from pplseq.data.text_parts import TextPart, files_of, parts_of
from pplseq.data.vocabulary import Vocabulary, WordForms
from pplseq.files import check_may_be_folder
from pplseq.folder import FolderError
from pplseq.recipes.count_settings import CountSettings
from pplseq.runs.cluster import Cluster, connected
from pplseq.runs.progress import Watch

PART_BYTES = 1 << 26  # of a file that is not packed; others are a part each


def count(
    source: str, folder: Path, asked: CountSettings, *, watch: Watch | None = None,
    progress: Callable[[int, int | None, int], None] | None = None, done: Callable[[int, int], None] | None = None,
) -> bool:  # fmt: skip
    """Counts of a text in a folder, as `pplseq count` makes them; False where they stand there already.

    Args:
        source: as of ``count_lags``; on a cluster see :func:`files_of`.
        watch: who is told remarks. progress: as of ``count_lags``. done: as of :func:`count_on`.
    """
    words, forms = None, WordForms(bool(asked.lower), asked.digits)
    if asked.vocabulary is not None:
        words, counted = read_vocabulary(asked.vocabulary)
        if counted is not None:  # a folder of counts says how its words were written
            lower = counted.lower if asked.lower is None else asked.lower
            forms = WordForms(lower, counted.digits if asked.digits is None else asked.digits)
    min_count, eos, units = asked.min_count or 1, asked.eos is not False, counted_units(asked.units, words, forms)
    shared: dict[str, Any] = {"unit": asked.unit, "max_vocabulary": asked.max_vocabulary, "min_count": min_count}
    settings = shared | {
        "max_lag": asked.max_lag, "lower": forms.lower, "digits": forms.digits,
        "vocabulary": None if words is None else words.fingerprint(),
        "eos": eos if words is None else words.eos_id is not None,
        "units": None if units == "words" else units,
    }  # fmt: skip
    first, last = map(int, (asked.shard or "1/1").split("/"))
    check_may_be_folder(folder)
    if not asked.force and is_counted(folder, source, (first, last), settings):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    shared |= {"vocabulary": words, "eos": eos, "units": units, "forms": forms, "most_lags": asked.most_lags}
    if asked.cluster is None:
        shard = None if asked.shard is None else (first, last)
        counts = count_lags(source, asked.max_lag, shard=shard, progress=progress, folder=folder.parent, **shared)
        save_counts(counts, folder, settings=settings)
        return True
    kept = folder.with_name(f"{folder.name}.parts")
    with connected(asked.cluster, say=(watch or Watch()).say) as cluster:
        size = asked.part_bytes or PART_BYTES
        counts = count_on(cluster, source, asked.max_lag, kept, part_bytes=size, done=done, **shared)
    save_counts(counts, folder, settings=settings)
    forget_parts(kept)
    return True


def summary(folder: Path, **more: object) -> dict[str, Any]:
    """What a command prints about counts in a folder."""
    header = COUNTS.read_header(folder)
    names = ("num_words", "num_tokens", "max_lag", "num_pairs", "num_entries", "unit")
    shards = [f"{part['shard']}/{part['num_shards']}" for part in header["parts"] if part["num_shards"] > 1]
    return {"counts": str(folder), **{name: header[name] for name in names}, "shards": shards, **more}


def count_on(
    cluster: Cluster,
    source: str | Path,
    max_lag: int,
    folder: str | Path,
    *,
    vocabulary: Vocabulary | None = None,
    min_count: int = 1,
    max_vocabulary: int | None = None,
    eos: bool = True,
    units: str | None = None,
    unit: str = "line",
    forms: WordForms | None = None,
    part_bytes: int = PART_BYTES,
    most_lags: int = MOST_LAGS,
    done: Callable[[int, int], None] | None = None,
) -> LagCounts:
    """:func:`~pplseq.data.lag_streaming.count_lags` on a cluster: the same counts, from any number of workers.

    Args:
        cluster: see :func:`pplseq.runs.cluster.connected`.
        source: see :func:`files_of`. part_bytes: see :func:`parts_of`.
        folder: where finished parts are kept until all are there, and found again after a failure: one that the workers and
            this process share.
        vocabulary, min_count, max_vocabulary, eos, units, unit, forms, most_lags: as of ``count_lags``.
        done: is told how many parts of how many are counted.

    Raises:
        ValueError, FileNotFoundError: as ``count_lags``. PartFailed: names parts that failed; the others are kept.

    Cost:
        the text is read twice, or once with a vocabulary. A worker holds the counts of a part, and in the end of a share of
        the parts that grows with the logarithm of their number.
    """
    check_settings(max_lag, unit, most_lags)
    sparse()
    folder, forms = Path(folder), WordForms() if forms is None else forms
    units = counted_units(units, vocabulary, forms)
    files = files_of(source)
    parts = parts_of(files, unit, part_bytes)
    names = list(map(str, parts))
    if vocabulary is None:
        seen, num_lines = cluster.total(_words_of, [(part, forms, eos, units) for part in parts], _add_words, names)
        vocabulary = vocabulary_of(str(source), seen, num_lines, eos, min_count, max_vocabulary, units)
    settings = {"max_lag": max_lag, "unit": unit, "forms": [forms.lower, forms.digits], "vocabulary": vocabulary.fingerprint()}
    folder.mkdir(parents=True, exist_ok=True)
    [words] = cluster.keep([vocabulary])
    work = [(part, words, max_lag, unit, forms, str(folder / f"part-{n:05d}"), settings) for n, part in enumerate(parts)]
    places = cluster.each(_count_part, work, names, done=done)
    result = cluster.total(load_counts, places, LagCounts.merge, names)
    result = replace(result, parts=tuple(CountedPart(file.name, str(file.fingerprint)) for file in files))
    return result.check_learnable()


def forget_parts(folder: str | Path) -> None:
    """Remove the parts that :func:`count_on` kept, when their sum is written."""
    for place in Path(folder).glob("part-*"):
        shutil.rmtree(place, ignore_errors=True)
    if Path(folder).is_dir() and not any(Path(folder).iterdir()):
        Path(folder).rmdir()


def _words_of(part: TextPart, forms: WordForms, eos: bool, units: str) -> tuple[dict[str, int], int]:
    return word_counts(part.stream(), forms, eos=eos, units=units)


def _add_words(first: tuple[dict[str, int], int], second: tuple[dict[str, int], int]) -> tuple[dict[str, int], int]:
    total = dict(first[0])
    for word, count in second[0].items():
        total[word] = total.get(word, 0) + count
    return total, first[1] + second[1]


def _count_part(
    part: TextPart, vocabulary: Vocabulary, max_lag: int, unit: str, forms: WordForms, place: str, settings: dict[str, Any]
) -> str:
    """Counts of a part in a folder of their own, which is its result; counted already, it is left as it is."""
    stream = part.stream()
    wanted = settings | {"fingerprint": stream.fingerprint}
    try:
        if COUNTS.read_header(place).get("settings") == wanted:
            load_counts(place)
            return place
    except (FolderError, FileNotFoundError):
        pass  # not there, or not whole
    shutil.rmtree(place, ignore_errors=True)
    counts = count_lags(stream, max_lag, vocabulary=vocabulary, unit=unit, forms=forms, most_lags=max_lag)
    save_counts(counts, place, settings=wanted)
    return place
