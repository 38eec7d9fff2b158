"""What the page of a linear dynamical system for text shows: perplexity beside unigrams', sentences, pairs of directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pplseq.models.text_lds.state_words import singular_pairs
from pplseq.recipes.text.view import written_lines
from pplseq.recipes.text_lds.answers import MIXTURE, evaluation, load, read
from pplseq.report.markup import table, words_of
from pplseq.report.run import Measure, RunView


def view(folder: Path, settings: Any) -> RunView:
    """Measures on a text, where one is given: a run knows the counts of its training text alone."""
    model = load(folder, settings)
    measures, measured_on, notes = [], "", []
    if settings.data is None:
        notes.append("A run on counts has no text to be measured on: give one with --data.")
    else:
        text = read(model, settings.data, None)
        found, unigrams = evaluation(model, text), "words by their frequency in the training text"
        measured_on = f"{text.name}, {text.num_tokens:,} tokens, {text.num_unknown:,} of them unknown words"
        measures = [
            Measure("perplexity of the next word", found["perplexity"], found["unigram_perplexity"], unigrams),
            Measure("gain over words without context, nats a token of log-density", found["gain_per_token"], 0.0, unigrams),
        ]
    names = list(model.vocabulary or ())
    rows = [
        (f"{p.value:.4f}", *(words_of([names[i] for i in ids]) for ids in (p.right, p.left, p.right_opposite, p.left_opposite)))
        for p in singular_pairs(model, 10, 6)
    ]
    caption = (
        "<b>Singular vectors of the transition,</b> where the state's noise has unit covariance: words whose vectors lie most "
        "along the right vector lead to states along the left one; behind them the same for the opposite directions."
    )
    pairs = table(("Value", "From", "To", "From, opposite", "To, opposite"), rows, "kllll", caption)
    sentences, sections = written_lines(model, MIXTURE), [("What turns into what", pairs)]
    return RunView(measured_on, measures, sentences, sections, curve=False, notes=notes)
