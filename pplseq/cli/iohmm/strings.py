"""What `pplseq train iohmm` does with labelled strings."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pplseq.cli.iohmm.runs import Say, new_folder, sizes_of, write_run
from pplseq.data.labelled_strings import LabelledStrings, read_labelled_strings
from pplseq.models import RestartBlock, model_of_tables
from pplseq.models.automata.learner import RECIPE, AutomatonLearner, LearnedAutomaton


def train_strings(data: str, out: Path, settings: dict[str, Any], say: Say) -> dict[str, Any]:
    """Learns the smallest consistent automaton, and writes it with its model."""
    new_folder(out)
    torch.set_num_threads(settings["threads"])
    read = read_labelled_strings(data)
    if read.one_class:
        label = "accepted" if read.labels[0] else "rejected"
        raise ValueError(
            f"{data}: all {len(read.labels)} strings are {label}; any automaton would fit, add some of the others"
        )
    validation = None
    if settings["validation"]:
        held_out = read_labelled_strings(settings["validation"], symbols=read.symbols)
        validation = held_out.strings, held_out.labels
    learner = AutomatonLearner(
        sizes_of(settings["states"], range(2, 9)),
        blocks=_blocks(settings["restarts"] or 1000),
        num_iterations=settings["max_iterations"] or 300,
        seed=settings["seed"],
        repair=settings["repair"],
    )
    say(f"{len(read.strings):,} strings over {' '.join(read.symbols)}, {sum(read.labels):,} of them accepted")
    began = time.monotonic()
    tell = lambda size: say(f"{size.num_states} states: {size.num_consistent} of {size.num_restarts} restarts consistent")  # noqa: E731
    try:
        found = learner.fit(read.strings, read.labels, validation=validation, symbols=read.symbols, each=tell)
    except KeyboardInterrupt:
        if (found := learner.so_far()) is None:
            say("\nstopped; nothing was saved")
        else:
            _write_strings(data, out, settings, say, read, found, began)
            say(f"\nstopped; {out} holds the best of the sizes that were finished")
        raise
    return _write_strings(data, out, settings, say, read, found, began)


def _blocks(restarts: int) -> list[RestartBlock]:
    """The recipe's kinds of restarts, as many of each as can be, so that together they are that many."""
    each, more = divmod(restarts, len(RECIPE))
    sizes = [each + (place < more) for place in range(len(RECIPE))]
    return [replace(block, num_restarts=size) for block, size in zip(RECIPE, sizes, strict=True) if size]


def _write_strings(
    data: str,
    out: Path,
    settings: dict[str, Any],
    say: Say,
    read: LabelledStrings,
    found: LearnedAutomaton,
    began: float,
) -> dict[str, Any]:
    """The folder of what was learned from strings; its summary."""
    say(found.report)
    automaton = found.automaton
    summary = {
        "run": str(out), "automaton_states": automaton.num_states, "consistent": found.consistent,
        "languages": len(found.candidates), "seconds": round(time.monotonic() - began, 2),
        "dropped": sum(size.num_collapsed for size in found.sizes),
        "sizes": [size._asdict() for size in found.sizes],
    }  # fmt: skip
    record = {
        "kind": "strings",
        "data": str(data),
        "symbols": list(read.symbols),
        "summary": summary,
        "report": found.report,
    }
    record["settings"] = {name: value for name, value in settings.items() if value is not None}
    record["automata"] = [
        {"automaton": candidate.automaton.to_dict(), "restarts": candidate.count, "chosen": place == found.chosen}
        for place, candidate in enumerate(found.candidates)
    ]
    write_run(out, record, model_of_tables(found.tables))
    (out / "automaton.json").write_text(json.dumps(automaton.to_dict(), indent=1) + "\n", encoding="utf-8")
    (out / "automaton.dot").write_text(automaton.to_dot(), encoding="utf-8")
    if settings["picture"]:
        try:
            from pplseq.report.automaton_picture import draw_automaton

            draw_automaton(automaton, out / "automaton.png")
        except ImportError as error:
            say(f"No picture: {error}")
    return summary
