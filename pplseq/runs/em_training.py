"""EM as a run: a record, a validation and a checkpoint after every iteration, on the loop of :mod:`pplseq.runs.loop`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from pplseq import checks
from pplseq.infer.fit.em import Batch, FitHistory, batch_iteration
from pplseq.runs import checkpoint
from pplseq.runs.loop import Step, Training, run_training
from pplseq.runs.settings import History, NonFiniteLoss, Progress, TrainSettings, perplexity


def train_em(
    model: Any,
    batches: Sequence[Batch],
    *,
    evaluate: Callable[[], Mapping[str, Any]] | None,
    settings: TrainSettings,
    folder: str | Path | None,
    save: Callable[[Path], Any] | None = None,
    resume: bool = False,
    tolerance: float = 1e-4,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    began: float | None = None,
) -> History:
    """Fit a model by batch EM in a run's folder.

    Args:
        model: an :class:`~pplseq.infer.fit.em.ExpectationModel` and module.
        batches: the whole text, in pieces that bound the memory of an E-step.
        settings: `epochs` (iterations at most), `max_time` and `early_stop` are used.
        tolerance: stop when an iteration gains less, in nats per token.
        evaluate, folder, save: as for :func:`~pplseq.runs.training.train`.
        resume, on_record, began: see :func:`~pplseq.runs.loop.run_training`, also for what is raised.

    Returns:
        The history; an epoch and a step are an iteration. A training record is about the parameters before its M-step.
    """
    training = EMTraining(model, batches, evaluate, settings, save, tolerance)
    with checks.trusted():
        return run_training(
            training, folder=folder, resume=resume, max_time=settings.max_time, early_stop=settings.early_stop,
            on_record=on_record, began=began,
        )  # fmt: skip


class EMTraining(Training):
    """One iteration of batch EM a step; arguments as for `train_em`.

    Attributes:
        fit: likelihoods and remarks of the iterations since it began or was resumed.
    """

    def __init__(self, model, batches, evaluate, settings, save=None, tolerance=1e-4) -> None:
        if not batches:
            raise ValueError("batches: nothing to fit, got none")
        self.model, self.measure, self.settings, self.tolerance = model, evaluate, settings, tolerance
        self.save_model = save or model.save
        self.progress = Progress()
        self.fit = FitHistory("em", sum(batch.num_tokens for batch in batches))
        self.iterate = batch_iteration(model, batches)
        self.before = math.inf  # nats per token of the iteration before, prior included
        self.gain = math.inf
        self.done = ""

    def ended(self) -> str:
        if self.done:
            return self.done
        if self.gain < self.tolerance:
            return "converged"
        return "epochs" if self.progress.epoch >= self.settings.epochs else ""

    def step(self) -> Step:
        p = self.progress
        try:
            # the tolerance of `ended` also knows what was before a resumption
            stopped = self.iterate(self.fit, 0.0)
        except ArithmeticError as error:
            raise NonFiniteLoss(f"EM failed in iteration {p.epoch + 1}: {error}; the checkpoints are from before it") from error
        if stopped:
            self.done = "converged" if self.fit.converged else "fell"
            return Step()
        p.epoch, p.step = p.epoch + 1, p.step + 1
        nats = -self.fit.log_posteriors[-1] / self.fit.num_tokens
        data_nats = -self.fit.log_likelihoods[-1] / self.fit.num_tokens
        self.gain, self.before = self.before - nats, nats
        return Step([{"kind": "train", "nats_per_token": data_nats, "perplexity": perplexity(data_nats)}], validate=True)

    def evaluate(self) -> Mapping[str, Any] | None:
        return None if self.measure is None else self.measure()

    def place(self) -> dict[str, Any]:
        return {"epoch": self.progress.epoch}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"weights.{key}": value for key, value in checkpoint.named_weights(self.model).items()}
        return tensors, {"before": self.before, "gain": self.gain}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        checkpoint.restore_weights(self.model, tensors)
        self.before, self.gain = state["before"], state["gain"]
