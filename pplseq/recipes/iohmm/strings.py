"""Automata, and the input-output HMMs that are their likes, learned from labelled strings."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pplseq.data.labelled_strings import LabelledStrings, read_labelled_strings
from pplseq.files import write_text
from pplseq.folder import sealed
from pplseq.models.automata.automaton import Automaton
from pplseq.models.automata.learner import RECIPE, AutomatonLearner, LearnedAutomaton
from pplseq.models.iohmm.restarts.history import RestartBlock
from pplseq.recipes.iohmm.settings import AUTOMATON, BEST, RUN
from pplseq.recipes.iohmm.tables import read_record, sizes_of, write_run
from pplseq.recipes.recipe import Job
from pplseq.runs.status import run_status


def info(data: str) -> dict[str, Any]:
    """Sizes of labelled strings."""
    read = read_labelled_strings(data)
    longest = max(map(len, read.strings), default=0)
    return {"strings": len(read.strings), "accepted": sum(read.labels), "symbols": list(read.symbols), "longest": longest}


def train_strings(job: Job) -> dict[str, Any]:
    """Learns the smallest consistent automaton, and writes it with its model; the summary.

    A run that was stopped holds the best of the sizes that were finished; resumed, it goes on to the same numbers.
    """
    settings, watch = job.settings, job.watch
    before = read_record(job.folder) if job.resume and RUN.is_at(job.folder / BEST) else {"summary": {}}
    if before["summary"].get("stop_reason") == "finished":
        chosen = next(entry["automaton"] for entry in before["automata"] if entry["chosen"])
        _write_automaton(job, Automaton.from_dict(chosen))  # which it may have been killed before
        return before["summary"]
    with job.preparing(f"reading {Path(job.data).name}"):
        read = read_labelled_strings(job.data)
        if read.one_class:
            label = "accepted" if read.labels[0] else "rejected"
            raise ValueError(
                f"{job.data}: all {len(read.labels)} strings are {label}; any automaton would fit, add some of the others; "
                "of such strings alone examples/string_distributions.py of the repository learns the distribution"
            )
        validation = None
        if settings.validation:
            held_out = read_labelled_strings(settings.validation, symbols=read.symbols)
            validation = held_out.strings, held_out.labels
    learner = AutomatonLearner(
        None if settings.num_states is None else sizes_of(settings.num_states, range(2, 9)),
        blocks=_blocks(settings.num_restarts or 1000),
        max_iterations=settings.max_iterations or 300,
        seed=settings.seed,
        repair=settings.repair,
        merging=settings.merging,
    )
    watch.say(f"{len(read.strings):,} strings over {' '.join(read.symbols)}, {sum(read.labels):,} of them accepted")
    began = time.monotonic()

    def tell(size: Any) -> None:
        watch.say(f"{size.num_states} states: {size.num_consistent} of {size.num_restarts} restarts consistent")

    def save(place: Path) -> None:
        if (found := learner.so_far()) is not None:
            RUN.fill(place, _record(job, read, found, began, None), more=found.model.save)

    vars(learner)["save"] = save
    watch.stage("learning automata")
    watch.begin(None)
    try:
        found = learner.fit(
            read.strings, read.labels, validation=validation, symbols=read.symbols, each=tell, folder=job.folder,
            resume=job.resume, max_time=settings.max_time, began=job.started, on_record=watch.record,
        )  # fmt: skip
    except KeyboardInterrupt:
        if (so_far := learner.so_far()) is not None:
            _write_strings(job, read, so_far, began, None)
            watch.say(f"\n{job.folder} holds the best of the sizes that were finished")
        raise
    return _write_strings(job, read, found, began, run_status(job.folder)["reason"])


def _blocks(restarts: int) -> list[RestartBlock]:
    """The recipe's kinds of restarts, as many of each as can be, so that together they are that many."""
    each, more = divmod(restarts, len(RECIPE))
    sizes = [each + (place < more) for place in range(len(RECIPE))]
    return [replace(block, num_restarts=size) for block, size in zip(RECIPE, sizes, strict=True) if size]


def _record(
    job: Job, read: LabelledStrings, found: LearnedAutomaton, began: float, stop_reason: str | None
) -> dict[str, Any]:
    """What a run's folder says of what was learned; its summary has no ``stop_reason`` until there is one."""
    summary = {
        "steps": len(found.sizes),
        "automaton_states": found.automaton.num_states, "consistent": found.consistent,
        "languages": len(found.candidates), "seconds": round(time.monotonic() - began, 2),
        "dropped": sum(size.num_collapsed for size in found.sizes),
        "sizes": [size._asdict() for size in found.sizes],
    }  # fmt: skip
    automata = [
        {"automaton": candidate.automaton.to_dict(), "restarts": candidate.num_found, "chosen": place == found.chosen}
        for place, candidate in enumerate(found.candidates)
    ]
    return {
        "kind": "strings", "data": job.data, "symbols": list(read.symbols), "report": found.report, "automata": automata,
        "summary": summary | ({} if stop_reason is None else {"stop_reason": stop_reason}),
    }  # fmt: skip


def _write_strings(
    job: Job, read: LabelledStrings, found: LearnedAutomaton, began: float, stop_reason: str | None
) -> dict[str, Any]:
    """The folder of what was learned from strings; its summary."""
    job.watch.say(found.report)
    record = _record(job, read, found, began, stop_reason)
    write_run(job.folder, record, found.model)
    _write_automaton(job, found.automaton)
    return record["summary"]


def _write_automaton(job: Job, automaton: Automaton) -> None:
    """The automaton beside its model, for people and other programs."""
    out = job.folder
    write_text(out / AUTOMATON, sealed(automaton.to_dict()))
    write_text(out / "automaton.dot", automaton.to_dot())
    if job.settings.picture:
        try:
            from pplseq.report.graph import draw_automaton

            draw_automaton(automaton, out / "automaton.png")
        except ImportError as error:
            job.watch.say(f"No picture: {error}")
