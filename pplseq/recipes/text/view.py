"""What the page of a model of words shows beside its states: scores on test text, an n-gram model beside them, sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pplseq.baselines.kneser_ney import KneserNey
from pplseq.data.text import Corpus, Text, load_corpus, read_text
from pplseq.recipes.run_folder import record_of
from pplseq.recipes.text.answers import load, reading_of
from pplseq.recipes.text.questions import NETWORK, STATES, Reading, continue_text
from pplseq.report.run import Measure, RunView
from pplseq.report.usage import first_lines
from pplseq.runs.evaluation import PROTOCOLS, score_text

ORDER = 5  # of the n-gram model
NUM_SENTENCES, LONGEST = 5, 30
LEARNED_FROM = 5_000_000  # tokens of the training text that the n-gram model reads, at most: seconds, a gigabyte
RIVAL = f"{ORDER}-gram (Kneser-Ney) of the training text"


def view(folder: Path, settings: Any) -> RunView:
    """Of a network: perplexities, and sentences that it writes."""
    model = load(folder, settings)
    record, notes = record_of(folder), []
    how = reading_of(record)
    text, train = None, None
    try:
        if settings.data is not None and Path(settings.data).is_file():
            text = read_text(settings.data, model.vocabulary, lower=how["lower"])
        if record is not None:
            corpus = load_corpus(record.data, vocabulary=model.vocabulary, **how)
            train, text = corpus.train, text or test_text(corpus)
    except (OSError, ValueError, ImportError) as error:
        if text is None and settings.data is not None:
            raise
        notes.append(f"The run's corpus could not be read, so --data may help: {error}")
    measures, measured_on = [], ""
    if text is not None:
        text = first_lines(text, settings.tokens)
        measured_on = f"{text.name}, {text.num_tokens:,} tokens, {text.num_unknown:,} of them unknown words"
        measures = perplexities(model, text, train)
    return RunView(measured_on, measures, written_lines(model, NETWORK), notes=notes)


def states_view(model: Any, corpus: Corpus | None, num_tokens: int) -> RunView:
    """Of a model with states: perplexities on the test text of its corpus, and sentences that it writes."""
    sentences = [words for words in written_lines(model, STATES) if words]
    if corpus is None:
        return RunView(sentences=sentences)
    text = first_lines(test_text(corpus), num_tokens)
    measured_on = f"{text.name}, its first {text.num_tokens:,} tokens, {text.num_unknown:,} of them unknown words"
    return RunView(measured_on, perplexities(model, text, corpus.train), sentences)


def test_text(corpus: Corpus) -> Text:
    """The test text of a corpus, or what comes nearest."""
    return next(part for part in (corpus.test, corpus.valid, corpus.train) if part is not None)


def perplexities(model: Any, text: Text, train: Text | None) -> list[Measure]:
    """Perplexity under each protocol, beside that of an n-gram model of the training text, to which lines are apart."""
    rival = None if train is None else ngram_perplexity(train, text)
    return [
        Measure(f"perplexity, {name}", score_text(model, text, name).perplexity, rival, RIVAL if rival else "")
        for name in sorted(PROTOCOLS)
    ]


def ngram_perplexity(train: Text, text: Text) -> float:
    """Of a text, by an n-gram model of the (first words of the) training text."""
    return KneserNey(ORDER).fit(first_lines(train, LEARNED_FROM)).perplexity(text)


def written_lines(model: Any, how: Reading) -> list[list[str]]:
    """Sentences that a model draws, word by word."""
    drawn = continue_text(model, model.vocabulary, [], length=LONGEST, num_samples=NUM_SENTENCES, how=how)
    return [[word for word in row["words"] if word != model.vocabulary.eos] for row in drawn["continuations"]]
