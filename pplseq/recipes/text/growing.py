"""A run that begins with fewer states and grows: every size is a training of its own, in a folder of the run's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pplseq.recipes.recipe import Job
from pplseq.recipes.text.settings import GROWN
from pplseq.runs import processes
from pplseq.runs.signals import TimeOver


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
