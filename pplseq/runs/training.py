"""The training loop: one torch optimizer on a Pyro ELBO, validated on a schedule, checkpointed, resumable to the bit.

It knows nothing of any model but `model.chain` (the chain of the last call), whose filtered belief is carried over from
one segment to the next.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from pplseq.distributions.state import Belief
from pplseq.folder import replace_folder, whole_folder
from pplseq.runs import checkpoint
from pplseq.runs.metrics_log import MetricsLog
from pplseq.runs.settings import History, NonFiniteLoss, Progress, TrainSettings
from pplseq.runs.signals import Stopped, StopSignals


def train(
    model: torch.nn.Module,
    batches: Any,
    *,
    evaluate: Callable[[], Mapping[str, Any]] | None,
    settings: TrainSettings,
    folder: str | Path,
    save: Callable[[Path], None] | None = None,
    resume: bool = False,
    guide: Callable[..., Any] | None = None,
    elbo: Any = None,
    on_step: Callable[[Progress, int], None] | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> History:
    """Minimise the loss of `TraceBlockedEnum_ELBO` in nats per token, one step a batch.

    A resumed run takes the same steps on the same numbers as one that was never stopped. SIGINT and SIGTERM finish the
    step, save `last`, and then act as they always do (KeyboardInterrupt, SystemExit 143).

    Args:
        model: a `SequenceModel`; called as `model(x, lengths, start)`.
        batches: `StreamBatches` or `SentenceBatches`.
        evaluate: returns at least `nats_per_token` on held-out text; None trains without validation, and `best` is then
            the latest.
        settings: the schedule.
        folder: the run's folder, with `last/`, `best/` and `metrics.jsonl`.
        save: writes the model into a folder; `model.save` if None. Bind a vocabulary with `functools.partial`.
        resume: continue from `folder/last`; otherwise the folder must not hold a run.
        guide: a Pyro guide for latent variables other than the states; none if None.
        elbo: another Pyro ELBO than `TraceBlockedEnum_ELBO()`, or anything else that makes a loss module of (model, guide).
        on_step: called after every step with (progress, tokens of the batch).
        on_record: called with every record that goes into `metrics.jsonl`.

    Raises:
        NonFiniteLoss: naming the step; no checkpoint holds the bad weights.
        SaveError: a save failed; the previous checkpoint is whole.
        FileNotFoundError, FolderError: `folder/last` cannot be resumed from.
    """
    loop = _Loop(model, batches, evaluate, settings, Path(folder), save or model.save, guide, elbo, on_step, on_record)
    if resume:
        loop.load()
    elif whole_folder(Path(folder) / "last").exists():
        raise ValueError(f"{folder} already holds a run; resume it, or choose another folder")
    return loop.run()


class _Loop:
    def __init__(self, model, batches, evaluate, settings, folder, save, guide, elbo, on_step, on_record) -> None:
        self.model, self.batches, self.evaluate, self.settings = model, batches, evaluate, settings
        self.folder, self.save_model = folder, save
        self.on_step = on_step or (lambda progress, num_tokens: None)
        self.on_record = on_record or (lambda record: None)
        if elbo is None:
            from pplseq.infer import TraceBlockedEnum_ELBO

            elbo = TraceBlockedEnum_ELBO()
        self.device = next(model.parameters()).device
        self.elbo = elbo(model, guide or (lambda *args, **kwargs: None))
        if guide is not None:
            # An autoguide makes its parameters at its first call; the optimizer has to see them.
            with torch.random.fork_rng(), torch.no_grad():
                batch = next(iter(batches))
                self.elbo(batch.x.to(self.device), _to(batch.lengths, self.device), None)
        self.parameters = list(self.elbo.parameters())
        fused = self.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.lr, weight_decay=settings.weight_decay, fused=fused
        )
        self.plateau = None
        if settings.patience is not None and settings.schedule == "plateau":
            self.plateau = ReduceLROnPlateau(self.optimizer, factor=settings.factor, patience=settings.patience)
        self.progress = Progress()
        self.belief = None
        self.resumed_at: int | None = None
        self.unread: list[tuple[Tensor, Tensor, int]] = []
        self.signals = StopSignals()

    # ---- the loop

    def run(self) -> History:
        p = self.progress
        self.log = MetricsLog(self.folder / "metrics.jsonl", self.resumed_at)
        self.started = self.saved_at = time.monotonic()
        self.seconds_before = p.seconds
        if self.resumed_at is None:
            # A folder that cannot be written to is found out now; and there is a checkpoint to fall back on from here.
            self.save("last")
        try:
            # Pyro's validation would meet a NaN first, with a message that names no step; and on a GPU it waits for the
            # device at every site.
            with self.signals, pyro.validation_enabled(False), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Encountered NaN")
                try:
                    reason = self._epochs()
                    if reason == "max_time" and self.evaluate is not None:
                        # Outside the schedule, so that a longer run resumed from here takes the same steps.
                        self._validate(scheduled=False)
                    self.save("last")
                except Stopped:
                    self.save("last")
        finally:
            self.log.close()
        self.signals.reraise()
        return History(self.log.records, p, reason)

    def _epochs(self) -> str:
        p, settings = self.progress, self.settings
        if p.validation_due:
            self._validate()
        while p.epoch < settings.epochs:
            self.batches.load_state_dict({"epoch": p.epoch, "position": p.position})
            num_steps = len(self.batches)
            num_checks = settings.validate_per_epoch
            checks = {math.ceil(num_steps * k / num_checks) for k in range(1, num_checks + 1)}
            self.model.train()
            for batch in self.batches:
                if settings.early_stop is not None and p.checks_since_best >= settings.early_stop:
                    return "early_stop"
                if settings.max_time is not None and self._clock() >= settings.max_time:
                    return "max_time"
                self._step(batch)
                if p.step % settings.log_interval == 0:
                    self._write_window(num_steps)
                if p.position in checks:
                    p.validation_due = True
                    self._validate()
                elif time.monotonic() - self.saved_at > settings.checkpoint_interval:
                    self.save("last")
                self.signals.check()
            p.epoch, p.position = p.epoch + 1, 0
        return "epochs"

    def _step(self, batch) -> None:
        p = self.progress
        x, lengths = batch.x.to(self.device, non_blocking=True), _to(batch.lengths, self.device)
        num_tokens = batch.x.numel() if batch.lengths is None else int(batch.lengths.sum())
        start = None if getattr(batch, "is_first", True) else self.belief
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.elbo(x, lengths, start)
        (loss / num_tokens).backward()
        clip = math.inf if self.settings.clip is None else self.settings.clip
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, clip)
        self.unread.append((loss.detach(), norm, num_tokens))
        p.step, p.position = p.step + 1, p.position + 1
        # Reading the loss waits for the device: every step on a CPU, where it is free; at records and saves on a GPU.
        if self.device.type == "cpu":
            self._read()
        if self.settings.schedule == "linear":
            left = 1 - (p.step - 1) / (self.settings.epochs * len(self.batches))
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.lr * max(left, 0.0)
        self.optimizer.step()
        self.belief = self.model.chain.filtered().detach()
        self.on_step(p, num_tokens)

    def _read(self) -> None:
        """Add the losses since the last reading to the window; stop at one that is not finite."""
        if not self.unread:
            return
        p = self.progress
        losses, norms, sizes = zip(*self.unread, strict=True)
        first = p.step - len(sizes) + 1
        self.unread.clear()
        values = zip(torch.stack(losses).tolist(), torch.stack(norms).tolist(), sizes, strict=True)
        for step, (loss, norm, num_tokens) in enumerate(values, first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = "loss" if not math.isfinite(loss) else "gradient norm"
                raise NonFiniteLoss(
                    f"the {what} is {loss if what == 'loss' else norm} at step {step} (epoch {p.epoch + 1}, lr "
                    f"{self.optimizer.param_groups[0]['lr']:g}); the checkpoints in {self.folder} are from before it. "
                    "Train again with a smaller --lr or --init-scale"
                )
            p.window_nats += loss
            p.window_tokens += num_tokens
            self.last_norm = norm

    def _validate(self, scheduled: bool = True) -> None:
        p = self.progress
        self._read()
        before = self._clock()
        # Validation changes nothing, so a signal may cut it short; the checkpoint then says that it is still due.
        try:
            with self.signals.immediate():
                metrics = dict(self.evaluate()) if self.evaluate is not None else {}
        except FloatingPointError:
            metrics = {"nats_per_token": math.nan}
        except Exception:
            self.save("last")  # the weights are sound; what they cost is not lost to a failed evaluation
            raise
        p.validation_due = False
        p.window_seconds += self._clock() - before
        self.model.train()
        value = metrics.get("nats_per_token", -math.inf if self.evaluate is None else math.nan)
        if math.isnan(value):
            raise NonFiniteLoss(
                f"validation gives {value} nats per token at step {p.step}; "
                f"the checkpoints in {self.folder} are from before it"
            )
        improved = self.evaluate is None or value < p.best
        if improved:
            p.best, p.best_step = (value if self.evaluate is not None else p.best), p.step
        if scheduled:
            p.checks_since_best = 0 if improved else p.checks_since_best + 1
            if self.plateau is not None and self.evaluate is not None:
                self.plateau.step(value)
        if metrics:
            self._write({"kind": "validation", **metrics, "best": improved, "scheduled": scheduled})
        if improved:
            self.save("best")
        if scheduled:
            self.save("last")

    def _write_window(self, num_steps: int) -> None:
        p = self.progress
        self._read()
        nats, seconds = p.window_nats / p.window_tokens, self._clock()
        self._write(
            {
                "kind": "train",
                "nats_per_token": nats,
                "perplexity": _exp(nats),
                "gradient_norm": self.last_norm,
                "progress": p.epoch + p.position / num_steps,
                "tokens_per_second": round(p.window_tokens / max(seconds - p.window_seconds, 1e-9), 1),
            }
        )
        p.window_nats, p.window_tokens, p.window_seconds = 0.0, 0, seconds

    def _write(self, record: dict[str, Any]) -> None:
        p = self.progress
        lr = self.optimizer.param_groups[0]["lr"]
        self.log.write({**record, "step": p.step, "epoch": p.epoch + 1, "lr": lr, "seconds": round(self._clock(), 3)})
        self.on_record(self.log.records[-1])

    def _clock(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    # ---- checkpoints

    def save(self, name: str) -> None:
        """`best` is a model folder; `last` is one too, with what it takes to continue."""
        self._read()
        self.progress.seconds = self._clock()
        if name == "last":
            tensors, state = self._state()
            checkpoint.TRAINING.write(self.folder / name, {"state": state}, tensors=tensors, more=self.save_model)
        else:
            replace_folder(self.folder / name, self.save_model)
        self.saved_at = time.monotonic()

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, groups = checkpoint.flatten_optimizer(self.optimizer)
        tensors |= {f"weights.{name}": tensor for name, tensor in checkpoint.named_weights(self.elbo).items()}
        tensors |= checkpoint.random_states(self.device)
        if self.belief is not None:
            tensors |= {f"belief.{name}": value for name, value in self.belief._asdict().items() if value is not None}
        plateau = None if self.plateau is None else self.plateau.state_dict()
        return tensors, {"progress": asdict(self.progress), "optimizer_groups": groups, "plateau": plateau}

    def load(self) -> None:
        """Take everything back from `last`."""
        header, tensors, *_ = checkpoint.TRAINING.read(self.folder / "last")
        state = header["state"]
        checkpoint.restore_weights(self.elbo, tensors)
        checkpoint.restore_optimizer(self.optimizer, tensors, state["optimizer_groups"])
        if self.plateau is not None and state["plateau"] is not None:
            self.plateau.load_state_dict(state["plateau"])
        self.progress = Progress(**state["progress"])
        belief = {name[7:]: tensor.to(self.device) for name, tensor in tensors.items() if name.startswith("belief.")}
        if belief:
            kind = getattr(self.model, "carry", Belief)
            self.belief = kind(**{**dict.fromkeys(kind._fields), **belief})
        checkpoint.restore_random_states(tensors, self.device)
        self.resumed_at = self.progress.step


def _to(lengths: Tensor | None, device: torch.device) -> Tensor | None:
    return None if lengths is None else lengths.to(device, non_blocking=True)


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def model_device(model: torch.nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next(model.parameters()).device
