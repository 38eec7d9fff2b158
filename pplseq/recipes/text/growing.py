"""VLHMMs whose states are near-copies of those of a smaller run, and runs of several sizes that grow from each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pplseq.data.vocabulary import Vocabulary
from pplseq.recipes.recipe import Job
from pplseq.recipes.text.settings import GROWN
from pplseq.runs import processes
from pplseq.runs.signals import TimeOver

OF_WORDS = ("blocks", "num_blocks", "block_sizes", "eos_block", "exchange_passes", "reset")  # which the smaller model has


INHERITED = ("initialization", "init_scale", "normalizer_dtype", "topic_persistence")


def inherited(folder: Path) -> dict[str, Any]:
    """What a run that grew has from the model it grew from, and not from its settings."""
    from pplseq.models.storage import MODEL

    config = MODEL.read_header(folder / "last")["config"]
    return {name: config[name] for name in INHERITED if name in config}


def grow(job: Job, train: Callable[[Job], dict[str, Any]]) -> None:
    """Trains the smaller sizes, and makes the job that of the last one: each has twice the time of the one before.

    Args:
        job: of a run with ``grow``. train: trains one size.
    """
    settings = job.settings
    if processes.current().several:
        raise ValueError("grow: several processes do not grow together; train the sizes one by one, with --grow-from")
    last = replace(settings, grow=(), num_states=settings.grow[-1])  # but for what it grows from
    smaller: Path | None = stage_folder(job.folder, settings.grow[-2])
    if not (job.folder / "last").is_dir():
        # a smaller size learns what it can hold in less time, and a step of it is cheaper
        first = None if settings.max_time is None else settings.max_time / (2 ** len(settings.grow) - 1)
        smaller, seconds = None, 0.0
        for rank, size in enumerate(settings.grow[:-1]):
            folder = stage_folder(job.folder, size)
            folder.mkdir(parents=True, exist_ok=True)
            job.stage = f"training {size:,} states"
            job.watch.say(f"growing: {size:,} states")
            share = None if first is None else 2**rank * first
            stage = replace(_growing(last, smaller), num_states=size, max_time=share)
            started = time.monotonic() if seconds else job.started
            try:
                seconds += train(Job(job.data, folder, stage, (folder / "last").is_dir(), job.watch, started))["seconds"]
                smaller = folder
            except TimeOver:  # before its first step; the sizes to come have time of their own
                seconds += time.monotonic() - started
                job.watch.say(f"no time for {size:,} states: reading and clustering took {seconds:.0f} s")
        job.watch.say(f"growing: {settings.grow[-1]:,} states")
        job.resume, job.started = False, time.monotonic() - seconds
    job.settings = _growing(last, smaller)


def _growing(settings: Any, smaller: Path | None) -> Any:
    """Settings of a size that grows from a smaller one, or begins by itself."""
    return settings if smaller is None else replace(settings, grow_from=smaller, start="random")


def stage_folder(folder: Path, size: int) -> Path:
    """Where the training of a smaller size stands."""
    return folder / GROWN / str(size)


def grown(settings: Any, vocabulary: Vocabulary, draws: AbstractContextManager[Any]) -> Any:
    """The model that a run begins with: near-copies of the states of the one that it grows from.

    Args:
        draws: the block of random numbers in which copies are told apart.

    Raises:
        ValueError: it is no vlhmm, of other words or blocks, or its states are no whole part of these.
    """
    from pplseq.loading import load_text_model  # which knows every family, to say what a folder holds instead

    folder = settings.grow_from
    if settings.start != "random":
        raise ValueError(f"grow_from: the parameters come from {folder}; leave start = {settings.start} out")
    small = load_text_model(folder)
    if getattr(small, "name", None) != "vlhmm" or not (folder / "clusters.paths").is_file():
        raise ValueError(f"grow_from: {folder} is not a run of a vlhmm with blocks of words")
    if small.vocabulary.fingerprint() != vocabulary.fingerprint():
        raise ValueError(f"grow_from: {folder} was trained on other words; grow on the text it knows")
    config = small.config
    names = ("hidden_size", "parameterization", "tied", "shared_layer", "temperature", "num_topics", "feature_dropout")
    names += ("normalizer_dtype", "topic_persistence", "topic_decay")
    there = {name: config[name] for name in names} | {"num_blocks": int(small.block_of_word.max()) + 1}
    there |= {"block_sizes": "even" if config["states_per_block"] is None else "frequency", "reset": small.reset_id is not None}
    for name, value in there.items():
        if (given := getattr(settings, name)) != value:
            raise ValueError(f"grow_from: {folder} has {name} = {value}, and this run {given}; make them equal")
    if there["block_sizes"] != "even":
        raise ValueError(f"grow_from: blocks of {folder} are uneven; grow it in Python, by model.split(factor)")
    states = config["num_states"]
    if settings.num_states % states:
        below = settings.num_states // states * states
        near = " and ".join(str(size) for size in (below, below + states) if size)
        raise ValueError(f"grow_from: {settings.num_states} states are no multiple of the {states} of {folder}; use {near}")
    with draws:
        return small.split(settings.num_states // states, transition=settings.transition, state_dropout=settings.state_dropout)
