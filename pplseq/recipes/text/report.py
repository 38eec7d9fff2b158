"""The report on a model of words with states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pplseq.data.text import Corpus, Text, read_text
from pplseq.files import write_text
from pplseq.recipes.run_folder import Record, record_of
from pplseq.recipes.run_report import page_path
from pplseq.recipes.settings import options_of
from pplseq.recipes.text.answers import load, reading_of
from pplseq.recipes.text.corpus import corpus_of_run
from pplseq.recipes.text.view import states_view
from pplseq.report.page import render_page
from pplseq.report.sentence import split_sentence
from pplseq.report.summary import summarise
from pplseq.runs.metrics_log import metrics_of
from pplseq.runs.progress import Watch


def report(folder: Path, settings: Any, watch: Watch) -> Iterator[Path]:
    """Writes the page and yields its path."""
    page = page_path(folder, settings.out)
    for sentence in settings.sentence:
        split_sentence(sentence)  # before anything is loaded: there are no fewer characters or bytes than words
    summary = _summary(folder, load(folder, settings), settings, watch)
    write_text(page, render_page(summary))
    yield page


def _summary(folder: Path, model: Any, settings: Any, watch: Watch) -> Any:
    """The report in numbers, with what can be read of the run: a moved corpus or absent metrics make a note."""
    vocabulary, record = model.vocabulary, record_of(folder)
    text, corpus, notes = _text(folder, record, vocabulary, settings)
    counts = None if corpus is None else np.bincount(corpus.train.tokens, minlength=len(vocabulary))
    if text is None:
        notes.append("States are measured on sentences that the model wrote itself; there is no perplexity of them.")
    try:
        records, damage = metrics_of(folder / "metrics.jsonl")
        notes += [] if damage is None else [f"metrics.jsonl: {damage}"]
    except OSError as error:
        records = []
        notes.append(f"metrics.jsonl could not be read: {error}")
    for note in notes:
        watch.say(f"Note: {note}")
    sentences = settings.sentence
    if reading_of(record)["lower"]:
        sentences = [sentence.lower() for sentence in sentences]
    unknown = sorted({word for sentence in sentences for word in vocabulary.split(sentence) if word not in vocabulary})
    if unknown:
        watch.say(f"Note: unknown to the model: {', '.join(unknown)}")
    return summarise(
        model,
        vocabulary,
        text=text,
        records=records,
        settings={} if record is None else _settings(record),
        word_counts=counts,
        sentences=sentences,
        num_tokens=settings.tokens,
        notes=notes,
        view=states_view(model, corpus, settings.tokens),
    )


def _settings(record: Record) -> dict[str, Any]:
    """What was chosen, and what was left as it is."""
    names = options_of(type(record.settings))
    return {"model": record.recipe.name, "data": record.data, **{n: getattr(record.settings, n) for n in names}}


def _text(folder: Path, record: Record | None, vocabulary: Any, settings: Any) -> tuple[Text | None, Corpus | None, list[str]]:
    """(text on which states are measured, the corpus it is of, notes on what is not there)."""
    how = reading_of(record)
    if settings.data is not None and (settings.data == "-" or Path(settings.data).is_file()):
        return read_text(settings.data, vocabulary, lower=how["lower"]), None, []
    if settings.data is None and record is None:
        note = "This is a saved model without its run: no course of training, and no text unless --data gives one."
        return None, None, [note]
    try:
        corpus = corpus_of_run(folder, settings.data or (record.data if record else ""), vocabulary, **how)
    except (OSError, ValueError, ImportError) as error:
        if settings.data is not None:
            raise
        return None, None, [f"The run's corpus could not be read, so --data may help: {error}"]
    text = next(part for part in (corpus.valid, corpus.test, corpus.train) if part is not None)
    return text, corpus, []
