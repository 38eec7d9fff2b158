"""Fits as runs: batch EM and gradient descent with records and checkpoints, on the loop of :mod:`pplseq.runs.loop`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from pplseq import checks
from pplseq.folder import whole_folder
from pplseq.infer.fit.em import Batch, FitHistory, accelerated, batch_iteration
from pplseq.infer.fit.gradients import Descent
from pplseq.runs import checkpoint
from pplseq.runs.loop import Step, Training
from pplseq.runs.settings import NonFiniteLoss, Progress, perplexity
from pplseq.runs.training import model_device

RECORDED = ("log_likelihoods", "log_posteriors", "losses", "validations", "notes", "converged", "reason")
LOG_INTERVAL = 20  # steps of a gradient between two records, and two looks at held-out data
IMPOSSIBLE = (
    "validation: the held-out data are impossible under the parameters of every iteration, so that none is best and the last "
    "ones are kept; give priors, more data to learn from, or leave out what is in none of these"
)


class FitTraining(Training):
    """What fits have in common: the model, a history that a checkpoint holds, and the parameters best on held-out data.

    Args:
        evaluate: measures held-out data; None: the best model is the last one.
    """

    history: FitHistory

    def __init__(self, model: Any, evaluate: Callable[[], Mapping[str, Any]] | None = None):
        self.model, self.progress, self.measure = model, Progress(), evaluate
        self.save_model = model.save
        self.best: dict[str, Tensor] = {}  # of those that this process has seen

    def evaluate(self) -> Mapping[str, Any] | None:
        return None if self.measure is None else self.measure()

    def judged(self, metrics: Mapping[str, Any], improved: bool, scheduled: bool) -> dict[str, Any] | None:
        if metrics:
            self.history.validations.append((self.history.num_iterations, float(metrics["nats_per_token"])))
            if improved:
                self.best = {name: value.clone() for name, value in self.model.state_dict().items()}
        return super().judged(metrics, improved, scheduled)

    def take_best(self, folder: Path | None) -> None:
        """Leaves the model at the parameters that were best on held-out data, where there are any: of a run that was resumed
        perhaps those that an earlier process wrote."""
        if self.measure is None:
            return
        if not self.best and folder is not None and whole_folder(folder / "best").exists():
            self.best = type(self.model).load(folder / "best").state_dict()
        if self.best:
            self.model.load_state_dict(self.best)
        if self.history.validations and self.history.best_iteration is None:
            self.history.note([IMPOSSIBLE])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"weights.{name}": value for name, value in checkpoint.named_weights(self.model).items()}
        history = asdict(self.history)
        return tensors, {"history": {name: history[name] for name in RECORDED}}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        checkpoint.restore_weights(self.model, tensors)
        vars(self.history).update(state["history"])
        self.history.validations = [(step, nats) for step, nats in self.history.validations]
        if not self.history.converged:
            self.history.reason = ""  # a longer run goes on where a shorter one had its end


class EMTraining(FitTraining):
    """An iteration of batch EM a step, to the parameters where :func:`~pplseq.infer.fit.em.expectation_maximization` ends.

    Args:
        model, batches, max_iterations, tolerance, acceleration, cluster: as of that function.
        evaluate: see :class:`FitTraining`; after every M-step.
    """

    def __init__(
        self,
        model: Any,
        batches: Sequence[Batch],
        *,
        max_iterations: int = 100,
        tolerance: float = 1e-5,
        step_size: Any = None,
        acceleration: int = 5,
        cluster: Any = None,
        evaluate: Callable[[], Mapping[str, Any]] | None = None,
    ):
        super().__init__(model, evaluate)
        if not batches:
            raise ValueError("batches: nothing to fit, got none")
        if step_size is not None:
            raise ValueError("step_size: a fit with a folder, a limit of time or validation is batch EM; leave step_size out")
        self.most = checks.count("max_iterations", max_iterations)
        self.tolerance = checks.positive("tolerance", tolerance, zero=True)
        self.history = FitHistory("em", sum(batch.num_tokens for batch in batches))
        self.before: dict[str, Tensor] = {}  # the parameters that the last entry of the history is about
        self.acceleration = accelerated(model, acceleration)
        self.iterate = batch_iteration(model, batches, self.before, self.acceleration, cluster)

    def ended(self) -> str:
        history = self.history
        if not history.reason and history.num_iterations >= self.most:
            history.reason = f"max_iterations = {self.most} reached"
        if history.reason and not history.converged:
            return "epochs" if history.num_iterations >= self.most else "fell"
        return "converged" if history.converged else ""

    def step(self) -> Step:
        p, history = self.progress, self.history
        try:
            stopped = self.iterate(history, self.tolerance)
        except ArithmeticError as error:
            raise NonFiniteLoss(f"EM failed in iteration {p.epoch + 1}: {error}; the checkpoints are from before it") from error
        p.epoch, p.step = p.epoch + (not stopped), p.step + 1
        nats = -history.log_likelihoods[-1] / history.num_tokens
        # without an M-step the parameters are those that were measured before
        last = self.measure is None and bool(self.ended())
        validate = last if self.measure is None else not stopped
        record = {"kind": "train", "nats_per_token": nats, "perplexity": perplexity(nats)}
        return Step([record], validate=validate, best=last, save=True)

    def place(self) -> dict[str, Any]:
        return {"epoch": self.progress.epoch}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = super().state()
        memory = {} if self.acceleration is None else self.acceleration.memory
        kept = {"before": self.before, "memory": memory}
        return tensors | {f"{of}.{name}": v for of, values in kept.items() for name, v in values.items()}, state

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        super().restore(tensors, state)
        device = model_device(self.model)
        kept = {"before": self.before} | ({"memory": self.acceleration.memory} if self.acceleration else {})
        for of, values in kept.items():
            names = [name for name in tensors if name.startswith(f"{of}.")]
            values.update({name.removeprefix(f"{of}."): tensors[name].to(device) for name in names})
        history = self.history
        if history.converged and history.log_posteriors[-1] - history.log_posteriors[-2] > self.tolerance * history.num_tokens:
            # a smaller tolerance goes on: the last iteration, which had no M-step, is done again
            del history.log_likelihoods[-1], history.log_posteriors[-1]
            history.converged, history.reason = False, ""


class DescentTraining(FitTraining):
    """A gradient step a step; arguments as of :meth:`pplseq.infer.fit.gradients.Descent.of_model`, and ``evaluate``, every
    ``LOG_INTERVAL`` steps."""

    def __init__(
        self, model: Any, batches: Sequence[Batch], *, evaluate: Callable[[], Mapping[str, Any]] | None = None, **options: Any
    ):
        super().__init__(model, evaluate)
        self.descent = Descent.of_model(model, batches, **options)
        self.history = self.descent.history

    def ended(self) -> str:
        if not self.history.reason and len(self.history.losses) >= self.descent.num_steps:
            self.history.reason = f"num_steps = {self.descent.num_steps} done"
            self.history.note(self.descent.remarks())
        return self.history.reason

    def step(self) -> Step:
        nats = self.descent.step()
        self.progress.step += 1
        last = bool(self.ended())
        due = last or self.progress.step % LOG_INTERVAL == 0
        records = [{"kind": "train", "nats_per_token": nats}] if due else []
        alone = self.measure is None
        return Step(records, validate=last if alone else due, best=last and alone)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = super().state()
        moments, groups = checkpoint.flatten_optimizer(self.descent.optimizer)
        tensors |= moments | checkpoint.random_states(model_device(self.model)) | self._points()
        schedule = {name: value for name, value in self.descent.schedule.state_dict().items() if value is not None}
        return tensors, state | {"groups": groups, "schedule": schedule, "order": self.descent.order}

    def _points(self) -> dict[str, Tensor]:
        """What stands for parameters with bounds, which these do not tell to the last digit."""
        return {f"points.{k}": leaf.data for k, (_, _, leaf) in enumerate(self.descent.points.own)}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        super().restore(tensors, state)
        checkpoint.restore_optimizer(self.descent.optimizer, tensors, state["groups"])
        self.descent.schedule.load_state_dict(state["schedule"])
        self.descent.order = state["order"]
        for name, value in self._points().items():
            value.copy_(tensors[name])
        checkpoint.restore_random_states(tensors, model_device(self.model))
