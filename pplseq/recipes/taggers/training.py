"""Training taggers, scoring and asking them, in a run's folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pplseq.data.tag_formats import UntaggedError
from pplseq.data.tagged import SAMPLE_LINES
from pplseq.files import write_text
from pplseq.folder import sealed, unsealed
from pplseq.models.taggers.training import IterativeTagger, run_tagger_training
from pplseq.recipes.recipe import Job, Lines
from pplseq.recipes.taggers.answers import answer, check_answerable
from pplseq.recipes.taggers.settings import MODEL, RECORD, TagQuestions
from pplseq.recipes.taggers.stream import first_lines
from pplseq.recipes.taggers.systems import (
    SYSTEMS,
    load_tagger,
    make_tagger,
    parse_settings,
    save_tagger,
    summary_of,
    train_tagger,
    trained,
)
from pplseq.recipes.taggers.tagging import columns_of_tags, describe, read, score, scores_json
from pplseq.recipes.text.answers import opened
from pplseq.runs.progress import Watch
from pplseq.runs.signals import TimeOver
from pplseq.sources.lines import answer_lines

info = describe


def train(job: Job) -> dict[str, Any]:
    """The whole text at once, which takes seconds to minutes; those of the library that iterate stop and resume anywhere."""
    settings, record, folder = job.settings, job.folder / RECORD, job.folder / MODEL
    if job.resume and record.is_file():
        before = unsealed(record, "remove it, and the run ends anew", {"stop_reason": str})
        if before["stop_reason"] == "finished":
            return before
    named = {name: getattr(settings, name) for name in ("embeddings", "states", "clusters", "lexicon")}
    chosen = {name: value for name, value in named.items() if value is not None} | parse_settings(settings.set)
    if "seed" in make_tagger(settings.system).get_params():
        chosen = {"seed": settings.seed, **chosen}
    tagger = make_tagger(settings.system, **chosen)  # before the text is read: it may be refused
    if hasattr(tagger, "file_column"):  # one of several columns, which are its own unless others are asked for
        if settings.column is not None:
            chosen = {"columns": settings.column, **chosen}
            tagger = make_tagger(settings.system, **chosen)
        settings = replace(settings, column=tagger.file_column)
    partial = settings.partial or SYSTEMS[settings.system].untagged
    with job.preparing(f"reading {Path(job.data).name}"):
        columns = getattr(tagger, "word_columns", ())
        tags = "optional" if partial else "required"
        try:
            sentences = read(job.data, settings, job.watch.say, tags=tags, word_columns=columns)
        except UntaggedError as error:
            learn = ", ".join(name for name, system in SYSTEMS.items() if system.untagged)
            raise ValueError(
                f"{error}; the system {settings.system} needs all tags: text that lacks some is for --system {learn}, and "
                "--on-error skip leaves such sentences out"
            ) from None
        validation = None if settings.validation is None else read(
            settings.validation, settings, job.watch.say, word_columns=columns
        )
    what = f"training {settings.system} on {len(sentences):,} sentences"
    if not isinstance(tagger, IterativeTagger):
        with job.preparing(what):
            _, summary = train_tagger(settings.system, sentences, validation, folder=folder, **chosen)
        summary = {"stop_reason": "finished", "steps": 1, **summary}
    else:
        with job.preparing(what):
            training = tagger.training(list(sentences), None if validation is None else list(validation))
        saved = trained(tagger, settings.system, sentences)
        training.save_model = lambda place: save_tagger(saved, place)
        history = run_tagger_training(
            training, folder=job.folder, resume=job.resume, max_time=settings.max_time, watch=job.watch, began=job.started
        )
        if not folder.exists():
            raise TimeOver
        p = history.progress
        reason = "max_time" if history.stop_reason == "max_time" else "finished"
        summary = {"stop_reason": reason, "steps": p.step, **summary_of(saved, sentences, validation, p.seconds)}
    write_text(record, sealed(summary))
    return summary


def load(folder: Path, settings: Any) -> Any:
    """The tagger of a run, or a saved one."""
    return load_tagger(folder).tagger


def evaluate(folder: Path, data: str, settings: Any, watch: Watch) -> Iterator[dict[str, Any]]:
    """Accuracy of all, known, unknown and ambiguous words and whole sentences; of every tag precision, recall and F1."""
    saved = load_tagger(folder)
    sentences = read(data, settings, watch.say, saved, tags="optional")
    result = score(saved, sentences, settings.decoder, settings.clusters)
    yield scores_json(str(folder), data, result, None, None)


def query(folder: Path, question: str, lines: Lines, settings: Any) -> Iterator[dict[str, Any]]:
    """Answers about the words of every line."""
    saved = load_tagger(folder)
    tagger = saved.tagger
    asked = {
        "tag": {"probabilities": hasattr(tagger, "smooth")},
        "alternatives": {"top": settings.top},
        "n-best": {"num_paths": settings.num_paths},
        "sample": {"num_samples": settings.num_samples, "seed": settings.seed},
        "entropy": {"entropy": True},
        "score": {"log_prob": True, "surprising": True},
    }[question]
    questions = TagQuestions(decoder=settings.decoder, **asked)
    check_answerable(tagger, questions)
    numbers = itertools.count()

    def ask(words: list[str | None]) -> dict[str, Any]:
        if None in words:
            raise ValueError("a sentence has no gaps to a tagger: null is no word")
        drawn = replace(questions, seed=settings.seed + next(numbers))
        return answer(tagger, [[word for word in words if word is not None]], drawn)[0]

    with opened(lines) as source:
        first = list(source)[:SAMPLE_LINES] if isinstance(source, (list, tuple)) else first_lines(source)
        texts = [line.decode("utf-8", "replace") if isinstance(line, bytes) else line for line in first]
        texts = [text.strip(" \r\n") for text in texts if text.strip() and not text.lstrip().startswith("{")]
        if columns_of_tags(saved, texts) is not None:
            raise ValueError(
                "lines: expected sentences, words between spaces or JSON, got lines that look like columns, a word and its "
                "tags a line; `pplseq tag run MODEL FILE --format columns` tags such files"
            )
        yield from answer_lines(source, ask)
