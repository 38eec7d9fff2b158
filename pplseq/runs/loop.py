"""The loop under all trainings: signals, the schedule, the record, checkpoints, resumption, the time that is allowed.

A family plugs in with a :class:`Training`: an object whose numbers are consistent between two calls of `step`. Everything
that has to do with the disk and the clock is here, so that every training stops, resumes and reports alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq import checks
from pplseq.folder import replace_folder, sound, whole_folder
from pplseq.runs import processes
from pplseq.runs.checkpoint import TRAINING, check_numbers, is_held_here, only_one_run
from pplseq.runs.metrics_log import MetricsLog, metrics_of
from pplseq.runs.settings import History, NonFiniteLoss, Progress
from pplseq.runs.signals import Stopped, StopSignals, TimeOver
from pplseq.runs.status import say_status

GRACE = 1.0  # seconds that a validation may take beyond `max_time`
SLOWER = 1.5  # times what the last one took: without a last validation, what was learned since the one before is lost
HASH = "sha256:"
ASIDE = 0.2  # share of `max_time` that is kept for a validation as long as none was timed


class Step(NamedTuple):
    """What a step leaves for the loop to do.

    records: lines of `metrics.jsonl`. validate: measure on held-out data now. best: the model that `save_best` would write
    has changed; it is saved with the next checkpoint. save: write a checkpoint now.
    """

    records: Sequence[dict[str, Any]] = ()
    validate: bool = False
    best: bool = False
    save: bool = False


class Training:
    """A training, as the loop sees it. Subclasses give at least `step`, `ended`, `state`, `restore` and `save_model`.

    The loop calls, in this order: `restore` (if it resumes), `begin`, `first`, then `ended`, `step`, `ended`, `step`, ...
    until there is a reason to end, and `finish`. Between two calls it may write checkpoints and measure held-out data.

    Attributes:
        progress: counters, which a subclass moves (`step`, `epoch`, `position`) and the loop keeps (`best`, `seconds`, ...).
        records: set by the loop: what was written so far. clock: likewise: seconds of the run, over all resumptions.
        says_best: whether the steps say what is best (:attr:`Step.best`), instead of validations.
        drops: whether it goes on where parts of it become NaN, as restarts do that are dropped in the end.
        about: what a resumed run must be given alike (data, settings), by the names of arguments; JSON-able.
    """

    progress: Progress
    records: list[dict[str, Any]]
    clock: Callable[[], float]
    says_best = False
    drops = False
    about: Mapping[str, Any] = {}  # noqa: RUF012  (replaced, not changed)

    def begin(self) -> None:
        """What comes before the first step. A signal, or the end of the time, may cut it short anywhere."""

    def first(self, resumed: bool) -> Step:
        """Called behind `begin`: what is known of the start, or again of the checkpoint that was restored."""
        return Step()

    def ended(self) -> str:
        """Why there is nothing more to do, in a word ("epochs", "converged"); "" to go on."""
        raise NotImplementedError

    def step(self) -> Step:
        """Learn a little."""
        raise NotImplementedError

    def flush(self) -> None:
        """Called before numbers are saved or measured: finish what is under way on the device."""

    def evaluate(self) -> Mapping[str, Any] | None:
        """At least `nats_per_token` of held-out data; None where there is none. Changes nothing: it may be cut short."""
        return None

    def judged(self, metrics: Mapping[str, Any], improved: bool, scheduled: bool) -> dict[str, Any] | None:
        """Called with what `evaluate` gave ({} for None): steer the learning rate. Returns the record, None for none."""
        return {"kind": "validation", **metrics, "best": improved, "scheduled": scheduled} if metrics else None

    def place(self) -> dict[str, Any]:
        """Where the training stands, for every record: epoch, learning rate."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, and what JSON holds: all that `restore` needs, beside `progress`, to go on to the same numbers."""
        raise NotImplementedError

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Inverse of `state`; `progress` has been restored before.

        Raises:
            ValueError: the checkpoint is of another model, text or settings.
        """
        raise NotImplementedError

    def restore_best(self, folder: Path) -> None:
        """Called after `restore` with the folder of the best model, for trainings that say what is best."""

    def save_model(self, folder: Path) -> Any:
        """Write the model as it is into a folder, which is there and empty."""
        raise NotImplementedError

    def save_best(self, folder: Path) -> Any:
        """Write the best model; the current one, unless a subclass keeps another."""
        return self.save_model(folder)

    def finish(self) -> None:
        """Called at the end, also after a signal, with the last checkpoint on the disk."""


def run_training(
    training: Training,
    *,
    folder: str | Path | None,
    resume: bool = False,
    max_time: float | None = None,
    early_stop: int | None = None,
    checkpoint_interval: float = 600.0,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    began: float | None = None,
) -> History:
    """Run a training until it ends, is stopped or is out of time.

    A resumed run takes the same steps on the same numbers as one that was never stopped. SIGINT, SIGTERM and SIGHUP finish
    the step, save `last`, and then act as they always do (KeyboardInterrupt, SystemExit 143 and 129).

    Args:
        training: see :class:`Training`.
        folder: gets `last/`, `best/`, `metrics.jsonl` and `status.json`; None keeps the records in memory.
        resume: continue from `folder/last`; otherwise the folder must not hold a run.
        max_time: seconds over all resumptions, with what came before the loop (see `began`) and the last validation, for
            which time is set aside; exceeded by a step or a second at most: the first step is taken in any case. A validation
            that takes longer is cut short: it is due again when the run is resumed, and where there was none before, `best` is
            the model as it is. None has no limit.
        early_stop: stop after so many validations in a row without a new best.
        checkpoint_interval: seconds after which `last` is saved even if no validation came.
        on_record: called with every record.
        began: `time.monotonic()` when the command began; None is now.

    Raises:
        NonFiniteLoss: naming the step; no checkpoint holds the bad weights.
        ValueError: another process trains in the folder, it already holds a run, or its checkpoint is of another model, other
            data or settings.
        SaveError: a save failed; the previous checkpoint is whole.
        FileNotFoundError, FolderError: `folder/last` cannot be resumed from.
    """
    place = None if folder is None else Path(folder)
    if place is None and resume:
        raise ValueError("resume: there is no folder to resume from; give folder")
    loop = _Loop(training, place, max_time, early_stop, checkpoint_interval, on_record, began)
    with nullcontext() if place is None or not processes.current().writes else only_one_run(place, within=True):
        return loop.run(resume)


def check_same_run(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ValueError where a run began with other data or settings (:attr:`Training.about`) than it is resumed with."""
    now = json.loads(json.dumps(now))
    for name in dict.fromkeys([*before, *now]) if before and now else ():
        both = before.get(name), now.get(name)
        if both[0] == both[1]:
            continue
        was, is_now = both
        if isinstance(was, dict) and isinstance(is_now, dict):
            keys = [key for key in was | is_now if was.get(key) != is_now.get(key)]
            what = ", ".join(f"{key} was {checks.shown(was.get(key))}, is {checks.shown(is_now.get(key))}" for key in keys)
        else:
            hashed = any(str(one).startswith(HASH) for one in both)
            what = "" if hashed else f"it was {checks.shown(both[0])}, is {checks.shown(both[1])}"
        raise ValueError(
            f"{name}: the run in {folder} is of another {name}{f' ({what})' if what else ''}; resume it with the same, or fit "
            "in another folder"
        )


def check_resumed(folder: Path, about: Mapping[str, Any], optional: Sequence[str] = ()) -> dict[str, Any]:
    """:func:`check_same_run` of what a folder's run was trained with, before a model is changed for it.

    Args:
        optional: names that are compared where both tell them; older runs do not.

    Returns:
        :attr:`Training.about` of the run as it goes on.
    """
    before = TRAINING.read_header(folder / "last").get("about", {})
    told = {name: before[name] for name in optional if name in before}
    now = told | {name: value for name, value in about.items() if name not in optional or name in told}
    check_same_run(folder, before, now)
    return now


def digest(*parts: Tensor | str) -> str:
    """Of what is too long to be written down, for :attr:`Training.about`."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            found.update(f"{part.dtype} {tuple(part.shape)}".encode())
            part = part.detach().cpu().contiguous().view(-1).view(torch.uint8)
            found.update(part.numpy())  # pyright: ignore[reportArgumentType]
        else:
            found.update(part.encode())
    return HASH + found.hexdigest()


class _Loop:
    def __init__(self, training, folder, max_time, early_stop, checkpoint_interval, on_record, began) -> None:
        if max_time is not None:
            checks.number("max_time", max_time)
        if early_stop is not None:
            checks.count("early_stop", early_stop)
        checks.function("on_record", on_record, "a record")
        self.training: Training = training
        training.clock = self._clock
        self.folder: Path | None = folder
        self.max_time, self.early_stop, self.checkpoint_interval = max_time, early_stop, checkpoint_interval
        self.on_record = on_record or (lambda record: None)
        self.started = self.saved_at = time.monotonic()
        self.seconds_before = 0.0 if began is None else self.started - began
        self.signals, self.together = StopSignals(), processes.current()
        self.validated_at: int | None = None
        self.validation_seconds = 0.0
        self.best_due = False
        # around the loop of a command there is more to write; the run is finished when the command is
        self.finished = "finished" if folder is None or not is_held_here(folder) else "running"

    @property
    def progress(self) -> Progress:
        return self.training.progress

    def run(self, resume: bool) -> History:
        if resume:
            self._restore()
        elif self.together.writes and self.folder is not None and whole_folder(self.folder / "last").exists():
            raise ValueError(f"{self.folder} already holds a run; resume it, or choose another folder")
        path = None if self.folder is None or not self.together.writes else self.folder / "metrics.jsonl"
        if resume and path is not None and (damage := metrics_of(path).damage) is not None:
            warnings.warn(f"{path}: {damage}; the run goes on with the records that are whole", RuntimeWarning, stacklevel=3)
        self._say("running")
        self.log = MetricsLog(path, self.progress.step if resume else None, self.progress.validation_due)
        self.training.records = self.log.records
        reason, status = "", "failed"
        try:
            with self.signals:
                try:
                    reason, status = self._learn(resume), self.finished
                except Stopped:
                    reason, status = "signal", "stopped"
                    self._save_what_there_is()
            self.training.finish()
        except BaseException as error:
            if self.best_due and isinstance(error, ArithmeticError | RuntimeError):
                with contextlib.suppress(OSError):
                    self.save("best")
            status = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            reason = reason or f"{type(error).__name__}: {error}"
            raise
        finally:
            self.log.close()
            self._say(status, reason, len(self.log.records))
        self.signals.reraise()
        return History(self.log.records, self.progress, reason)

    def _learn(self, resumed: bool) -> str:
        training, p = self.training, self.progress
        limit = None if type(training).begin is Training.begin else self._left()
        try:
            with self.signals.immediate(limit):
                training.begin()
        except TimeOver:
            p.seconds = self._clock()
            return "max_time"
        first = training.first(resumed)
        self.ready = True
        self._write(first.records)
        self.best_due = first.best
        if not resumed:
            # A folder that cannot be written to is found out now; and there is a checkpoint to fall back on from here.
            self.save("last")
        try:
            reason = self._steps()
        except TimeOver:  # in a validation
            reason = "max_time"
        self.save("last")
        return reason

    def _steps(self) -> str:
        training, p = self.training, self.progress
        if p.validation_due:
            self._validate()
        if not self.together.several:
            self.signals.check()
        while True:
            while not (reason := self._reason()):
                step = training.step()
                self._write(step.records)
                self.best_due = self.best_due or step.best
                due, signal = self._asked(step)
                if step.validate:
                    p.validation_due = True
                    self._validate()
                elif due:
                    self.save("last")
                if (signal if self.together.several else self.signals.received) is not None:
                    raise Stopped
            if reason != "max_time" or self.validated_at == p.step or training.says_best:
                return reason
            # Outside the schedule, so that a longer run resumed from here takes the same steps. The first one may have been
            # quicker than what was set aside for it: then there is time for more steps.
            self._validate(scheduled=False)

    def _asked(self, step: Step) -> tuple[bool, int | None]:
        """Whether a checkpoint is due, and which signal came."""
        due, signal = step.save or time.monotonic() - self.saved_at > self.checkpoint_interval, self.signals.received
        if self.together.several:  # all take part, when the one that writes says so; a signal to one is a signal to all
            due, signal = self.together.highest(int(due and self.together.writes), signal or 0)
            signal = signal or None
            self.signals.received = self.signals.received if signal is None else signal
        return bool(due), signal

    def _reason(self) -> str:
        reason = self._own_reason()
        return self.together.said_first(reason) if self.together.several else reason

    def _own_reason(self) -> str:
        if reason := self.training.ended():
            return reason
        if self.early_stop is not None and self.progress.checks_since_best >= self.early_stop:
            return "early_stop"
        left = self._left()
        if left is None or self.max_time is None or not self.progress.step:
            return ""  # the first step is taken in any case: a model that learned nothing serves nobody
        timed = self.validated_at is not None or self.training.says_best
        return "max_time" if left <= (SLOWER * self.validation_seconds if timed else ASIDE * self.max_time) else ""

    def _validate(self, scheduled: bool = True) -> None:
        training, p = self.training, self.progress
        training.flush()
        before = time.monotonic()
        left = self._left()
        # Validation changes nothing, so a signal may cut it short; the checkpoint then says that it is still due.
        try:
            # of several processes none is cut off while others wait for it
            limit = None if left is None else max(left, 0.0) + GRACE
            with nullcontext() if self.together.several else self.signals.immediate(limit):
                metrics = dict(training.evaluate() or {})
        except TimeOver:
            if self.folder is not None and not whole_folder(self.folder / "best").exists():
                self.save("best")
            raise
        except FloatingPointError:
            metrics = {"nats_per_token": math.nan}
        except Exception:
            self.save("last")  # the weights are sound; what they cost is not lost to a failed evaluation
            raise
        self.validation_seconds, self.validated_at = time.monotonic() - before, p.step
        p.validation_due = False
        value = metrics.get("nats_per_token", -math.inf)
        if math.isnan(value):
            raise NonFiniteLoss(
                f"validation gives {value} nats per token at step {p.step}; the checkpoints"
                f"{'' if self.folder is None else f' in {self.folder}'} are from before it"
            )
        improved = not metrics or value < p.best
        if improved:
            p.best, p.best_step = value if metrics else p.best, p.step
        if scheduled:
            p.checks_since_best = 0 if improved else p.checks_since_best + 1
        if (record := training.judged(metrics, improved, scheduled)) is not None:
            self._write([record])
        if improved:
            self.save("best")
        if scheduled:
            self.save("last")

    def _write(self, records: Sequence[dict[str, Any]]) -> None:
        for record in records:
            where = {"step": self.progress.step, **self.training.place(), "seconds": round(self._clock(), 3)}
            self.log.write({**where, **record})
            self.on_record(self.log.records[-1])

    def _clock(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _left(self) -> float | None:
        return None if self.max_time is None else self.max_time - self._clock()

    # ---- the folder

    ready = False  # whether there is something to save

    def _save_what_there_is(self) -> None:
        if self.ready:
            self.save("last")

    def save(self, name: str) -> None:
        """`best` is a model's folder; `last` is one too, with what it takes to continue."""
        self.training.flush()
        self.progress.seconds = self._clock()
        if name == "last" and self.best_due:
            self.save("best")
        if self.folder is None:
            self.best_due = False
            return
        if name == "last":
            tensors, state = self.training.state()
            header = {"about": self.training.about, "state": {"progress": asdict(self.progress), **state}}
            if self.together.writes:
                TRAINING.write(self.folder / name, header, tensors=tensors, more=self.training.save_model)
            self.saved_at = time.monotonic()
            self._say("running")
        else:
            if self.together.writes:
                replace_folder(self.folder / name, self.training.save_best)
            self.best_due = False

    def _restore(self) -> None:
        assert self.folder is not None
        header, tensors, *_ = TRAINING.read(self.folder / "last")
        state = header["state"]
        check_same_run(self.folder, header.get("about", {}), self.training.about)
        check_numbers(tensors, state, self.folder / "last", dropped=self.training.drops)
        # a ValueError is about what was asked for beside the folder
        with sound(f"{self.folder / 'last'}: the checkpoint does not fit this training", TRAINING.again, ValueError):
            self.training.progress = Progress(**state.pop("progress"))
            self.training.restore(tensors, state)
        if self.training.says_best:
            self.training.restore_best(self.folder / "best")
        self.seconds_before += self.progress.seconds

    def _say(self, status: str, reason: str = "", num_records: int | None = None) -> None:
        if self.folder is None or not self.together.writes:
            return
        say_status(self.folder, status, reason, self.progress.step, self._clock(), num_records)
