"""Lag counts in a folder; of a text that is larger than a machine by the workers of a cluster, part by part, and added up."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pplseq.data.lag_counting import sparse
from pplseq.data.lag_counts import MOST_LAGS, LagCounts, check_pairs, check_settings
from pplseq.data.lag_counts import Part as CountedPart
from pplseq.data.lag_files import COUNTS, is_counted, join_ranges, range_name, read_vocabulary, save_counts
from pplseq.data.lag_streaming import count_lags, counted_units, vocabulary_of
from pplseq.data.text_parts import TextPart, files_of, parts_of
from pplseq.data.vocabulary import Vocabulary, WordForms
from pplseq.files import check_may_be_folder
from pplseq.recipes.count_ranges import (
    NUMBERED,
    PART,
    RANGE_BYTES,
    add_range,
    count_part,
    is_whole,
    ranges_of,
    save_numbered,
    save_part,
    sizes_of,
    words_of,
)
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
    with connected(asked.cluster, say=(watch or Watch()).say) as cluster:
        size = asked.part_bytes or PART_BYTES
        count_on(cluster, source, asked.max_lag, folder, part_bytes=size, done=done, settings=settings, **shared)
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
    range_bytes: int = RANGE_BYTES,
    most_lags: int = MOST_LAGS,
    settings: dict[str, Any] | None = None,
    done: Callable[[int, int], None] | None = None,
) -> Path:
    """:func:`~pplseq.data.lag_streaming.count_lags` on a cluster: a folder of the same counts, from any number of workers.

    Args:
        cluster: see :func:`pplseq.runs.cluster.connected`.
        source: see :func:`files_of`. part_bytes: see :func:`parts_of`.
        folder: where the counts are written, on a disk that the workers and this process share. What is finished stands in
            FOLDER.parts until all is, and is found again after a failure.
        vocabulary, min_count, max_vocabulary, eos, units, unit, forms, most_lags: as of ``count_lags``.
        range_bytes: a sum that may be larger is added up, and written, in ranges of this size at most.
        settings: written beside the counts, as of ``save_counts``. done: is told how many parts of how many are counted.

    Raises:
        ValueError, FileNotFoundError: as ``count_lags``. PartFailed: names parts that failed; the others are kept.

    Cost:
        the text is read once; where its vocabulary is made, its words are kept until the end, 4 bytes a token. A worker holds
        the counts of a part, or of a range; nobody holds the sum.
    """
    check_settings(max_lag, unit, most_lags)
    sparse()
    folder, forms = Path(folder).absolute(), WordForms() if forms is None else forms
    kept = folder.with_name(f"{folder.name}.parts")
    units = counted_units(units, vocabulary, forms)
    files = files_of(source)
    parts = parts_of(files, unit, part_bytes)
    names = list(map(str, parts))
    kept.mkdir(parents=True, exist_ok=True)
    how = {"forms": forms, "eos": eos, "units": units, "unit": unit}
    places = [kept / f"part-{n:05d}" for n in range(len(parts))]
    numbered = vocabulary is None
    if vocabulary is None:
        work = [(part, place, how) for part, place in zip(parts, places, strict=True)]
        seen, num_lines = cluster.total(_number_part, work, _add_words, names)
        vocabulary = vocabulary_of(str(source), seen, num_lines, eos, min_count, max_vocabulary, units)
    [words] = cluster.keep([vocabulary])
    work = [(part, place, how, words, max_lag, numbered) for part, place in zip(parts, places, strict=True)]
    places = cluster.each(_count_part, work, names, done=done)
    counts, pairs, num_pairs = cluster.total(sizes_of, [(place, max_lag) for place in places], _add_sizes, names)
    counted = tuple(sorted(CountedPart(file.name, str(file.fingerprint)) for file in files))
    check_pairs(counted, unit, int(counts.sum()), num_pairs)
    ranges = ranges_of(pairs, range_bytes)
    alone = len(ranges) == 1
    shared = cluster.keep([places, counts, (vocabulary, unit, counted, forms), settings])
    targets = [folder if alone else kept / range_name(number, len(ranges)) for number in range(1, len(ranges) + 1)]
    work = [(*shared, max_lag, mine, target, alone) for mine, target in zip(ranges, targets, strict=True)]
    cluster.each(_add_range, work, [f"words {first:,} to {last:,}" for first, last in ranges])
    if not alone:
        join_ranges(targets, folder)
    shutil.rmtree(kept, ignore_errors=True)
    return folder


def _as_json(how: dict[str, Any], **more: object) -> dict[str, Any]:
    """What a part is recognised by."""
    return how | more | {"forms": [how["forms"].lower, how["forms"].digits]}


def _number_part(part: TextPart, place: Path, how: dict[str, Any]) -> tuple[dict[str, int], int]:
    """The words of a part, which are kept in a folder by numbers of their own."""
    stream, place = part.stream(), place.with_suffix(".text")
    wanted = _as_json(how, fingerprint=stream.fingerprint)
    if not is_whole(NUMBERED, place, wanted):
        save_numbered(stream, place, wanted, **how)
    return words_of(place)


def _add_words(first: tuple[dict[str, int], int], second: tuple[dict[str, int], int]) -> tuple[dict[str, int], int]:
    total = dict(first[0])
    for word, count in second[0].items():
        total[word] = total.get(word, 0) + count
    return total, first[1] + second[1]


def _count_part(
    part: TextPart, place: Path, how: dict[str, Any], vocabulary: Vocabulary, max_lag: int, numbered: bool
) -> Path:
    """Counts of a part in a folder of their own, which is its result; counted already, it is left as it is."""
    stream, text, place = part.stream(), place.with_suffix(".text"), place.with_suffix(".counts")
    wanted = _as_json(how, fingerprint=stream.fingerprint, max_lag=max_lag, vocabulary=vocabulary.fingerprint())
    if is_whole(PART, place, wanted):
        return place
    if numbered:
        counts, lags = count_part(text, vocabulary, max_lag, eos=how["eos"])
    else:
        found = count_lags(
            stream, max_lag, vocabulary=vocabulary, unit=how["unit"], forms=how["forms"], most_lags=max_lag
        )
        counts, lags = found.counts, found.lags
    save_part(counts, lags, place, wanted)
    return place


def _add_sizes(first: tuple, second: tuple) -> tuple:
    return tuple(one + other for one, other in zip(first, second, strict=True))


def _add_range(
    places: Sequence[Path], counts: np.ndarray, about: tuple, settings: dict[str, Any] | None, max_lag: int,
    words: tuple[int, int], target: Path, alone: bool,
) -> None:  # fmt: skip
    """The sum of a range of words over the parts, in a folder of its own."""
    vocabulary, unit, parts, forms = about
    own = np.zeros_like(counts)
    own[slice(*words)] = counts[slice(*words)]
    added = LagCounts(vocabulary, own, add_range(places, words, max_lag), unit, parts, forms)
    save_counts(added, target, settings=settings, words=None if alone else words)
