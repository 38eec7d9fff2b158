"""A fit as a run: limited in time, with checkpoints and metrics in a folder, resumed to the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from pplseq import checks
from pplseq.infer.fit.em import Batch, FitHistory, batch_iteration
from pplseq.infer.fit.gradients import Descent
from pplseq.runs import checkpoint
from pplseq.runs.loop import Step, Training, run_training
from pplseq.runs.settings import Progress
from pplseq.runs.training import model_device

RECORDED = ("log_likelihoods", "log_posteriors", "losses", "notes", "converged", "reason")
LOG_INTERVAL = 20  # steps of a gradient between two records


def run_fit(
    model: Any,
    batches: Sequence[Batch],
    method: str,
    options: dict[str, Any],
    *,
    folder: str | Path | None,
    resume: bool = False,
    max_time: float | None = None,
) -> FitHistory:
    """Fits from the parameters as they are, or from where the run in the folder stopped, to the same parameters as in memory.

    Args:
        model, batches, method, options: see :func:`~pplseq.models.fitting.fit_parameters`; method "em" or "sgd".
        folder, resume, max_time: see :func:`~pplseq.runs.loop.run_training`, also for what is raised.

    Raises:
        ValueError: for another method.
    """
    if method not in RUNS:
        raise ValueError(f"folder, max_time: a fit by {method!r} cannot be interrupted; use {' or '.join(RUNS)}")
    if max_time is not None:
        checks.positive("max_time", max_time, zero=True)
    run = RUNS[method](model, batches, **options)
    with checks.trusted():
        ended = run_training(run, folder=folder, resume=resume, max_time=max_time)
    run.history.reason = run.history.reason or ended.stop_reason
    for note in run.history.notes:
        warnings.warn(note, RuntimeWarning, stacklevel=3)
    return run.history


class _Fit(Training):
    """What the two have in common: the model, and a history that a checkpoint holds."""

    history: FitHistory

    def __init__(self, model: Any):
        self.model, self.progress = model, Progress()
        self.save_model = model.save

    def ended(self) -> str:
        return self.history.reason

    def _record(self, nats: float, last: bool) -> Step:
        self.progress.step += 1
        due = last or self.progress.step % LOG_INTERVAL == 0 or self.history.method == "em"
        records = [{"kind": "train", "nats_per_token": nats}] if due else []
        return Step(records, validate=last, best=last, save=self.history.method == "em")

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"weights.{name}": value for name, value in checkpoint.named_weights(self.model).items()}
        history = asdict(self.history)
        return tensors, {"history": {name: history[name] for name in RECORDED}}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        checkpoint.restore_weights(self.model, tensors)
        vars(self.history).update(state["history"])
        if not self.history.converged:
            self.history.reason = ""  # a longer run goes on where a shorter one had its end


class EMFit(_Fit):
    """An iteration of batch EM a step."""

    def __init__(
        self, model: Any, batches: Sequence[Batch], *, max_iterations: int = 100, tolerance: float = 1e-5, step_size=None
    ):
        super().__init__(model)
        if step_size is not None:
            raise ValueError("step_size: a fit with a folder or a limit of time is batch EM; leave step_size out")
        self.most = checks.count("max_iterations", max_iterations)
        self.tolerance = checks.positive("tolerance", tolerance, zero=True)
        self.history = FitHistory("em", sum(batch.num_tokens for batch in batches))
        self.before: dict[str, Tensor] = {}
        self.iterate = batch_iteration(model, batches, self.before)

    def ended(self) -> str:
        if not self.history.reason and self.history.num_iterations >= self.most:
            self.history.reason = f"max_iterations = {self.most} reached"
        return self.history.reason

    def step(self) -> Step:
        self.iterate(self.history, self.tolerance)
        return self._record(-self.history.log_likelihoods[-1] / self.history.num_tokens, bool(self.ended()))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = super().state()
        return tensors | {f"before.{name}": value for name, value in self.before.items()}, state

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        super().restore(tensors, state)
        device = model_device(self.model)
        names = [name for name in tensors if name.startswith("before.")]
        self.before.update({name.removeprefix("before."): tensors[name].to(device) for name in names})


class DescentFit(_Fit):
    """A gradient step a step."""

    def __init__(self, model: Any, batches: Sequence[Batch], **options):
        super().__init__(model)
        self.descent = Descent.of_model(model, batches, **options)
        self.history = self.descent.history

    def ended(self) -> str:
        if not self.history.reason and len(self.history.losses) >= self.descent.num_steps:
            self.history.reason = f"num_steps = {self.descent.num_steps} done"
        return self.history.reason

    def step(self) -> Step:
        return self._record(self.descent.step(), bool(self.ended()))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = super().state()
        moments, groups = checkpoint.flatten_optimizer(self.descent.optimizer)
        tensors |= moments | checkpoint.random_states(model_device(self.model))
        schedule = {name: value for name, value in self.descent.schedule.state_dict().items() if value is not None}
        return tensors, state | {"groups": groups, "schedule": schedule, "order": self.descent.order}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        super().restore(tensors, state)
        checkpoint.restore_optimizer(self.descent.optimizer, tensors, state["groups"])
        self.descent.schedule.load_state_dict(state["schedule"])
        self.descent.order = state["order"]
        checkpoint.restore_random_states(tensors, model_device(self.model))


RUNS = {"em": EMFit, "sgd": DescentFit}
