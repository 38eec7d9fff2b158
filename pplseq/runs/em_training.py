"""EM as a run: a record, a validation and a checkpoint after every iteration; stops and resumes as `train` does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyro

from pplseq.folder import replace_folder, whole_folder
from pplseq.infer.fit.em import Batch, FitHistory, expectation_maximization
from pplseq.runs import checkpoint
from pplseq.runs.metrics_log import MetricsLog
from pplseq.runs.settings import History, NonFiniteLoss, Progress, TrainSettings
from pplseq.runs.signals import Stopped, StopSignals


def train_em(
    model: Any,
    batches: Sequence[Batch],
    *,
    evaluate: Callable[[], Mapping[str, Any]] | None,
    settings: TrainSettings,
    folder: str | Path,
    save: Callable[[Path], None] | None = None,
    resume: bool = False,
    tolerance: float = 1e-4,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> History:
    """Fit a model by batch EM in a run's folder.

    Args:
        model: an :class:`~pplseq.infer.fit.em.ExpectationModel` and module.
        batches: the whole text, in pieces that bound the memory of an E-step.
        evaluate, folder, save, resume, on_record: as for :func:`~pplseq.runs.training.train`.
        settings: `epochs` (iterations at most), `max_time` and `early_stop` are used.
        tolerance: stop when an iteration gains less, in nats per token.

    Returns:
        The history; an epoch and a step are an iteration. A training record is about the parameters before its M-step.

    Raises:
        NonFiniteLoss: naming the iteration; no checkpoint holds the bad weights.
        SaveError, FolderError: as for `train`.
    """
    run = _EMRun(model, evaluate, settings, Path(folder), save or model.save, tolerance, on_record)
    if resume:
        run.load()
    elif whole_folder(Path(folder) / "last").exists():
        raise ValueError(f"{folder} already holds a run; resume it, or choose another folder")
    return run.run(batches)


class _Enough(Exception):
    """A reason to end before EM's own."""


class _EMRun:
    def __init__(self, model, evaluate, settings, folder, save, tolerance, on_record) -> None:
        self.model, self.evaluate, self.settings, self.folder = model, evaluate, settings, folder
        self.save_model, self.tolerance, self.on_record = save, tolerance, on_record or (lambda record: None)
        self.progress, self.before, self.resumed_at = Progress(), math.inf, None
        self.signals = StopSignals()

    def run(self, batches: Sequence[Batch]) -> History:
        p = self.progress
        self.log = MetricsLog(self.folder / "metrics.jsonl", self.resumed_at)
        self.started, self.seconds_before, self.current = time.monotonic(), p.seconds, p.epoch + 1
        if self.resumed_at is None:
            self.save("last")
        reason = "epochs"
        try:
            with self.signals, pyro.validation_enabled(False):
                if p.epoch < self.settings.epochs:
                    history = expectation_maximization(
                        self.model,
                        batches,
                        max_iterations=self.settings.epochs - p.epoch,
                        tolerance=0.0,  # the check below also knows what was before a resumption
                        on_iteration=self.iteration,
                    )
                    reason = "converged" if history.converged else "epochs"
        except _Enough as enough:
            reason = str(enough)
        except Stopped:
            pass
        except ArithmeticError as error:
            raise NonFiniteLoss(
                f"EM failed in iteration {self.current}: {error}; the checkpoints in {self.folder} are from before it"
            ) from error
        finally:
            self.log.close()
        self.signals.reraise()
        return History(self.log.records, p, reason)

    def iteration(self, history: FitHistory) -> None:
        """After every M-step."""
        p = self.progress
        p.epoch, p.step = p.epoch + 1, p.step + 1
        nats = -history.log_posteriors[-1] / history.num_tokens
        data_nats = -history.log_likelihoods[-1] / history.num_tokens
        self.write({"kind": "train", "nats_per_token": data_nats, "perplexity": math.exp(min(data_nats, 700.0))})
        gain, self.before = self.before - nats, nats
        improved = True
        if self.evaluate is not None:
            metrics = dict(self.evaluate())
            improved = metrics["nats_per_token"] < p.best
            p.checks_since_best = 0 if improved else p.checks_since_best + 1
            if improved:
                p.best, p.best_step = metrics["nats_per_token"], p.step
            self.write({"kind": "validation", **metrics, "best": improved, "scheduled": True})
        if improved:
            self.save("best")
        self.save("last")
        self.signals.check()
        if gain < self.tolerance:
            raise _Enough("converged")
        if self.settings.early_stop is not None and p.checks_since_best >= self.settings.early_stop:
            raise _Enough("early_stop")
        if self.settings.max_time is not None and self.clock() >= self.settings.max_time:
            raise _Enough("max_time")
        self.current += 1

    def write(self, record: dict[str, Any]) -> None:
        p = self.progress
        self.log.write({**record, "step": p.step, "epoch": p.epoch, "seconds": round(self.clock(), 3)})
        self.on_record(self.log.records[-1])

    def clock(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def save(self, name: str) -> None:
        self.progress.seconds = self.clock()
        if name == "last":
            tensors = {f"weights.{key}": value for key, value in checkpoint.named_weights(self.model).items()}
            state = {"progress": asdict(self.progress), "before": self.before}
            checkpoint.TRAINING.write(self.folder / name, {"state": state}, tensors=tensors, more=self.save_model)
        else:
            replace_folder(self.folder / name, self.save_model)

    def load(self) -> None:
        header, tensors, *_ = checkpoint.TRAINING.read(self.folder / "last")
        state = header["state"]
        checkpoint.restore_weights(self.model, tensors)
        self.progress, self.before = Progress(**state["progress"]), state["before"]
        self.resumed_at = self.progress.step
