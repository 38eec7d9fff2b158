"""What the page of a tagger shows: accuracies beside those of every word's most frequent tag, F1s, the confusion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pplseq.recipes.run_folder import record_of
from pplseq.recipes.run_report import measured_data
from pplseq.recipes.taggers.settings import TaggedReading
from pplseq.recipes.taggers.systems import load_tagger, train_tagger
from pplseq.recipes.taggers.tagging import read, score
from pplseq.report.run import Measure, RunView
from pplseq.report.tagging import TAGGING_STYLE, score_sections

RIVAL = "every word's most frequent tag in the training text"


def view(folder: Path, settings: Any) -> RunView:
    """Measures on held-out sentences."""
    record, saved = record_of(folder), load_tagger(folder)
    data, measured_on = measured_data(settings.data, record, "validation")
    if data is None:
        note = "The text of the run is not there, so nothing was measured; --data names tagged sentences."
        return RunView(curve=False, notes=[note])
    reading = TaggedReading() if record is None else record.settings
    sentences = read(data, reading, lambda remark: None, saved, tags="optional")
    found, rival = score(saved, sentences, None), None
    if found.clusters is None and record is not None and Path(record.data).is_file():
        learned_from = read(record.data, reading, lambda remark: None, tags="optional")
        rival = score(train_tagger("most-frequent", learned_from)[0], sentences, None)
    measures = []
    for name in ("all_words", "known_words", "unknown_words", "ambiguous_words", "sentences"):
        share = getattr(found.scores, name)
        if share is None or not share.num:
            continue
        what = "whole sentences" if name == "sentences" else name.replace("_", " ")
        beside = None if rival is None else getattr(rival.scores, name)
        baseline = None if beside is None or not beside.num else beside.accuracy
        measures.append(
            Measure(f"accuracy, {what}, {share.num:,}", share.accuracy, baseline, "" if baseline is None else RIVAL)
        )
    if found.spans is not None:
        beside = None if rival is None or rival.spans is None else rival.spans.overall.f1
        name = f"F1 of spans, {found.spans.overall.num_gold:,}"
        measures.insert(0, Measure(name, found.spans.overall.f1, beside, "" if beside is None else RIVAL))
    notes = ["The tags are clusters, called by their most frequent tag in these sentences."] if found.clusters else []
    sections = score_sections(found.scores, found.spans)
    return RunView(measured_on, measures, sections=sections, style=TAGGING_STYLE, curve=False, notes=notes)
