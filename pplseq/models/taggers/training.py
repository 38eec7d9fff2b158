"""Taggers that learn by iterations, on the loop that all trainings share: stopped at any time, resumed to the same numbers."""

from __future__ import annotations

import hashlib
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from torch import Tensor

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.tagger import Tagger, check_tagged
from pplseq.runs.loop import Step, Training, digest, run_training
from pplseq.runs.progress import TrainingBar, Watch
from pplseq.runs.settings import History, Progress
from pplseq.threads import undisturbed

SAVED_EVERY = 60.0  # seconds between two checkpoints, beside those of a stop and of the end


class TaggerTraining(Training):
    """A tagger's training, an iteration a step.

    A subclass gives :meth:`iterate`, :meth:`ended`, :meth:`publish`, and its own part of what a checkpoint holds.

    Args:
        tagger: that learns. x: its sentences. num_steps: iterations at most.
    """

    says_best = True
    settings: Any = None  # beside the tagger's parameters, what a checkpoint must agree with

    def __init__(self, tagger: Tagger, x: Sequence[TaggedSentence], num_steps: int):
        self.tagger, self.num_steps, self.progress = tagger, num_steps, Progress()
        self.num_words = sum(len(sentence.words) for sentence in x)
        self.digest = hashlib.sha256(repr([tuple(map(tuple, sentence)) for sentence in x]).encode()).hexdigest()
        self.published = -1
        self.ready = False
        self.save_model = self.save
        self.about = {"settings": {name: _plain(value) for name, value in tagger.get_params().items() if name != "device"}}

    @abstractmethod
    def iterate(self) -> float:
        """An iteration; the loss before it, nats."""

    @abstractmethod
    def publish(self) -> None:
        """Give the tagger what was learned so far."""

    @abstractmethod
    def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, and what JSON holds: all that :meth:`relearn` needs to go on."""

    @abstractmethod
    def relearn(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Inverse of :meth:`learned`."""

    def save(self, folder: Path) -> Any:
        """Write the tagger as it is; what a run keeps beside it is written by who replaces `save_model`."""
        return self.tagger.save(folder)

    # ---------------------------------------------------------------- as the loop asks
    def first(self, resumed: bool) -> Step:
        self.ready = True
        return Step()

    def step(self) -> Step:
        loss = self.iterate()
        self.progress.step += 1
        return Step([{"kind": "train", "nats_per_token": loss / self.num_words}])

    def flush(self) -> None:
        if self.ready and self.published != self.progress.step:
            self.publish()
            self.published = self.progress.step

    def finish(self) -> None:
        self.flush()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = self.learned()
        return tensors, {**state, "text": self.digest}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if state.pop("text") != self.digest:
            raise ValueError(
                "the checkpoint is of other sentences; train on those it was made with, or in another folder"
            )
        self.relearn(tensors, state)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else digest(repr(value))


Learning = TypeVar("Learning", bound=TaggerTraining)


class IterativeTagger(Tagger, Generic[Learning]):
    """A tagger that learns by iterations: its training may be limited in time, and kept in a folder to be resumed."""

    @abstractmethod
    def training(self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None) -> Learning:
        """What :func:`run_tagger_training` runs; arguments as of :meth:`fit`."""

    @undisturbed
    def fit(
        self,
        x: Sequence[TaggedSentence],
        validation: Sequence[TaggedSentence] | None = None,
        *,
        progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        max_time: float | None = None,
    ) -> Self:
        """As :meth:`~pplseq.models.taggers.tagger.Tagger.fit`.

        Args:
            folder, resume, max_time: see :func:`~pplseq.runs.loop.run_training`, also for what is raised. The same numbers come
                out whether and however often it was stopped and resumed.
        """
        began = time.monotonic()
        watch = TrainingBar() if progress else Watch()
        try:
            check_tagged(x)
            watch.stage(f"preparing {len(x):,} sentences")
            run = self.training(x, validation)
            how = {"folder": folder, "resume": resume, "max_time": max_time, "on_record": on_record}
            run_tagger_training(run, **how, watch=watch, began=began)
        finally:
            watch.close()
        self._check_fitted()
        return self


def run_tagger_training(
    training: TaggerTraining,
    *,
    folder: str | Path | None,
    resume: bool = False,
    max_time: float | None = None,
    watch: Watch | None = None,
    began: float | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> History:
    """Run a training to its end, telling `watch`; other arguments as of :func:`~pplseq.runs.loop.run_training`."""
    watch = watch or Watch()
    watch.begin(training.num_steps if max_time is None else None)

    def record(found: dict[str, Any]) -> None:
        watch.record(found)
        if on_record is not None:
            on_record(found)

    return run_training(
        training, folder=folder, resume=resume, max_time=max_time, checkpoint_interval=SAVED_EVERY, on_record=record,
        began=began,
    )  # fmt: skip
