"""Training by gradients: one torch optimizer on a Pyro ELBO, on the schedule of :mod:`pplseq.runs.loop`.

It knows nothing of any model but `model.chain` (the chain of the last call), whose filtered belief is carried over from
one segment to the next; and `direct_chain`, which comes to it without running the program.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from pplseq import checks
from pplseq.data.batches import SentenceBatches, StreamBatches
from pplseq.distributions.drawing import undrawn
from pplseq.distributions.state import Belief
from pplseq.infer.fit import optimizers
from pplseq.infer.fit.held import entries_of, settle
from pplseq.kernels.precision import exact_products, matmul_precision
from pplseq.runs import checkpoint, processes
from pplseq.runs.captured import CapturedStep
from pplseq.runs.loop import Step, Training, run_training
from pplseq.runs.memory import release_freed_memory
from pplseq.runs.settings import History, NonFiniteLoss, Progress, TrainSettings, perplexity
from pplseq.threads import alone

CAPTURED = {"cuda"}  # devices whose steps are captured


def train(
    model: torch.nn.Module,
    batches: Any,
    *,
    evaluate: Callable[[], Mapping[str, Any]] | None,
    settings: TrainSettings,
    folder: str | Path | None,
    save: Callable[[Path], Any] | None = None,
    resume: bool = False,
    guide: Callable[..., Any] | None = None,
    elbo: Any = None,
    on_step: Callable[[Progress, int], None] | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    began: float | None = None,
    about: Mapping[str, Any] | None = None,
) -> History:
    """Minimise the loss of `TraceBlockedEnum_ELBO` in nats per token, one step a batch.

    Args:
        model: a `SequenceModel`; called as `model(x, lengths, start)`.
        batches: `StreamBatches` or `SentenceBatches`.
        evaluate: returns at least `nats_per_token` on held-out text; None trains without validation, and `best` is then
            the latest.
        settings: the schedule.
        folder: the run's folder, with `last/`, `best/` and `metrics.jsonl`; None keeps the records in memory.
        save: writes the model into a folder; `model.save` if None.
        guide: a Pyro guide for latent variables other than the states; none if None.
        elbo: another Pyro ELBO than `TraceBlockedEnum_ELBO()`, or anything else that makes a loss module of (model, guide).
        on_step: called after every step with (progress, tokens of the batch).
        resume, on_record, began: see :func:`~pplseq.runs.loop.run_training`, also for what is raised.
        about: see :class:`~pplseq.runs.loop.Training`.

    Returns:
        The history; its records are those of `metrics.jsonl`.
    """
    training = GradientTraining(model, batches, evaluate, settings, save, guide, elbo, on_step)
    training.about = about or {}
    # Pyro's validation would meet a NaN first, with a message that names no step; and on a GPU it waits for the device at
    # every site.
    with checks.trusted():
        return run_training(
            training, folder=folder, resume=resume, max_time=settings.max_time, early_stop=settings.early_stop,
            checkpoint_interval=settings.checkpoint_interval, on_record=on_record, began=began,
        )  # fmt: skip


class GradientTraining(Training):
    """One step a batch; arguments as for `train`."""

    def __init__(self, model, batches, evaluate, settings, save=None, guide=None, elbo=None, on_step=None) -> None:
        self.model, self.batches, self.measure, self.settings = model, batches, evaluate, settings
        self.save_model = save or model.save
        self.on_step = on_step or (lambda progress, num_tokens: None)
        # where the states are all that is latent the loss is that of the chain, which a model may have a shorter way to
        # (without priors: the parameters' own density is in the program alone)
        alone = guide is None and elbo is None and getattr(model, "priors", None) is None
        self._direct_chain = getattr(model, "_direct_chain", None) if alone else None
        if elbo is None:
            from pplseq.infer import TraceBlockedEnum_ELBO

            elbo = TraceBlockedEnum_ELBO()
        # the program, unvalidated, does not look at its data; batches of an encoded text need no look
        of_text = type(batches) in (StreamBatches, SentenceBatches)
        self.of_text = of_text
        self._check_observations = None if of_text else getattr(model, "_check_observations", None)
        self.device = model_device(model)
        self.elbo = elbo(model, guide or (lambda *args, **kwargs: None))  # pyright: ignore[reportArgumentType]
        if guide is not None:
            # An autoguide makes its parameters at its first call; the optimizer has to see them.
            batch, before = next(iter(batches)), checkpoint.random_states(self.device)
            with torch.no_grad():
                _by_program(self.elbo, batch.x.to(self.device), _to(batch.lengths, self.device), None)
            checkpoint.restore_random_states(before, self.device)
        self.parameters = list(self.elbo.parameters())
        self.held = [own for own in self.parameters if entries_of(own) is not None]  # in part, or with bounds
        self.together = processes.current()
        self.loss: torch.nn.Module = _Loss(self.elbo, model, self._direct_chain)
        if self.together.several:
            self._check_shares()
            devices = [self.device] if self.device.type == "cuda" else None
            # without resets how a text starts is asked in the first step of a stream only
            options = {"device_ids": devices, "find_unused_parameters": getattr(model, "reset_id", None) is None}
            self.loss = torch.nn.parallel.DistributedDataParallel(self.loss, **options)
        fused = self.device.type in ("cpu", "cuda")
        # parameters that decay by themselves, whatever the settings say of the others
        decays = getattr(model, "decays", {})
        own = {parameter: decays[name] for name, parameter in model.named_parameters() if name in decays}
        groups = [{"params": [parameter for parameter in self.parameters if parameter not in own]}]
        groups += [{"params": [parameter], "weight_decay": decay} for parameter, decay in own.items()]
        self.optimizer = optimizers.AdamW(groups, lr=settings.lr, weight_decay=settings.weight_decay, fused=fused)
        self._follow(settings.chosen_schedule)
        # texts of a model whose steps ask the device nothing
        whole = self.of_text and self._direct_chain is not None and not self.together.several and not self.held
        can = whole and self.device.type in CAPTURED
        self.captured = CapturedStep(self._gradients, self.parameters, self.device) if can else None
        self.first_dropout = getattr(model, "state_dropout", 0.0)
        self.progress = Progress()
        self.belief = None
        self.unread: list[tuple[Tensor, Tensor, int]] = []
        self.epoch: Iterator[Any] | None = None  # the batches that are left of this epoch
        self.num_steps = 0  # of an epoch
        self.window_began = time.monotonic()

    def _follow(self, schedule: str) -> None:
        settings, self.schedule, self.plateau = self.settings, schedule, None
        if schedule == "plateau" and settings.patience is not None:
            self.plateau = ReduceLROnPlateau(self.optimizer, factor=settings.factor, patience=settings.patience)

    def ended(self) -> str:
        p = self.progress
        while self.epoch is None or p.position >= self.num_steps:
            if self.epoch is not None:
                p.epoch, p.position, self.epoch = p.epoch + 1, 0, None
            if p.epoch >= self.settings.epochs:
                return "epochs"
            self.batches.load_state_dict({"epoch": p.epoch, "position": p.position})
            self.num_steps, self.epoch = len(self.batches), iter(self.batches)
            self.model.train()
        return ""

    def step(self) -> Step:
        p, settings = self.progress, self.settings
        assert self.epoch is not None
        batch = next(self.epoch)
        # what a model with a chain of its own leaves out of a step it draws in blocks of their own
        quiet = nullcontext() if self._direct_chain is None else undrawn(self.model)
        with matmul_precision(settings.matmul_precision), quiet:
            self._learn(batch)
        records = [self._window()] if p.step % settings.log_interval == 0 else []
        times = settings.validate_per_epoch
        due = [math.ceil(self.num_steps * k / times) for k in range(1, times + 1)]
        return Step(records, validate=p.position in due)

    def _learn(self, batch: Any) -> None:
        p = self.progress
        if self._check_observations is not None:
            self._check_observations(batch.x)
        num_tokens = batch.x.numel() if batch.lengths is None else int(batch.lengths.sum())
        own = self.together.share(len(batch.x)) if self.together.several else slice(None)  # rows of this process
        x, lengths = batch.x[own].to(self.device, non_blocking=True), _to(batch.lengths, self.device)
        start = None if getattr(batch, "is_first", True) else self.belief
        self.optimizer.zero_grad(set_to_none=True)
        if self.settings.final_dropout is not None:
            # in sixteen steps, as a captured step is of one rate
            left, end = round(16 * self._left(p.step)) / 16, self.settings.final_dropout
            self.model.state_dropout = end + left * (self.first_dropout - end)
        known = checks.WHOLE.set(self.of_text)  # every word is there: it is not asked of the device
        try:
            if self.together.several:
                with processes.one_lost():
                    chain, loss = self._sum_gradients(x, lengths, start, num_tokens)
                self.belief = chain.filtered()  # which no gradient flows into
            elif self.captured is not None and lengths is None and start is not None:
                self.belief, loss = self.captured(x, start, getattr(self.model, "state_dropout", 0.0))
            else:
                self.belief, loss = self._gradients(x, start, lengths)
        finally:
            checks.WHOLE.reset(known)
        clip = math.inf if self.settings.clip is None else self.settings.clip
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, clip)
        self.unread.append((loss.detach(), norm, num_tokens))
        p.step, p.position = p.step + 1, p.position + 1
        # Reading the loss waits for the device: every step on a CPU, where it is free; at records and saves on a GPU.
        if self.device.type == "cpu" and not self.together.several:
            self.flush()
        if self.schedule != "plateau":
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.lr * self._left(p.step - 1)
        self.optimizer.step()
        if self.held:
            settle(self.held)
        self.on_step(p, num_tokens)

    def _gradients(self, x: Tensor, start: Any, lengths: Tensor | None = None) -> tuple[Any, Tensor]:
        """What a batch leaves to the next one, and its loss, with the gradients of its nats per token."""
        chain, loss = self.loss(x, lengths, start)
        (loss / (x.numel() if lengths is None else lengths.sum())).backward()
        return chain.filtered(), loss.detach()

    def _sum_gradients(self, x: Tensor, lengths: Tensor | None, start: Any, num_tokens: int) -> tuple[Any, Tensor]:
        """The chain of this process's rows, its loss, and the gradient of all processes' loss, which is that of one process."""
        chain, loss = self.loss(x, lengths, start)
        (loss * (self.together.count / num_tokens)).backward()  # the average over processes is made of sums over their rows
        return chain, loss

    def _check_shares(self) -> None:
        """Several processes take equal rows of the same streams, and their gradients are those of one."""
        if type(self.batches) is not StreamBatches:
            raise ValueError("protocol: several processes train on streams (carried); train on sentences in one process")
        size, count = self.batches.batch_size, self.together.count
        if size % count:
            near = f"{max(1, size // count) * count} or {-(-size // count) * count}"
            raise ValueError(f"batch_size: {size} streams cannot be shared by {count} processes; choose {near}")

    def _left(self, steps: int) -> float:
        """The share of the learning rate that is left of its fall, behind so many steps."""
        settings = self.settings
        if self.schedule == "linear":
            left = 1 - steps / (settings.epochs * len(self.batches))
        else:
            assert settings.max_time is not None
            clock = self.together.said_first(self.clock()) if self.together.several else self.clock()
            left = (1 - clock / settings.max_time) / settings.decay
        return min(1.0, max(left, 0.0))

    def flush(self) -> None:
        """Add the losses since the last reading to the window; stop at one that is not finite."""
        if not self.unread:
            return
        p = self.progress
        losses, norms, sizes = zip(*self.unread, strict=True)
        first = p.step - len(sizes) + 1
        self.unread.clear()
        losses = self.together.total(torch.stack(losses)) if self.together.several else torch.stack(losses)
        values = zip(losses.tolist(), torch.stack(norms).tolist(), sizes, strict=True)
        for step, (loss, norm, num_tokens) in enumerate(values, first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = "loss" if not math.isfinite(loss) else "gradient norm"
                raise NonFiniteLoss(
                    f"the {what} is {loss if what == 'loss' else norm} at step {step} (epoch {p.epoch + 1}, lr "
                    f"{self.place()['lr']:g}); the checkpoints are from before it. Train again with a smaller --lr or "
                    "--init-scale"
                )
            p.window_nats += loss
            p.window_tokens += num_tokens
            self.last_norm = norm

    def _window(self) -> dict[str, Any]:
        """The record of the steps since the last one."""
        p = self.progress
        self.flush()
        nats, now = p.window_nats / p.window_tokens, time.monotonic()
        seconds = max(p.window_seconds + now - self.window_began, 1e-9)
        record = {
            "kind": "train",
            "nats_per_token": nats,
            "perplexity": perplexity(nats),
            "gradient_norm": self.last_norm,
            "progress": p.epoch + p.position / self.num_steps,
            "tokens_per_second": round(p.window_tokens / seconds, 1),
        }
        p.window_nats, p.window_tokens, p.window_seconds, self.window_began = 0.0, 0, 0.0, now
        return record

    def place(self) -> dict[str, Any]:
        return {"epoch": self.progress.epoch + 1, "lr": self.optimizer.param_groups[0]["lr"]}

    # ---- held-out text

    def evaluate(self) -> Mapping[str, Any] | None:
        if self.measure is None:
            return None
        before = time.monotonic()
        try:
            with exact_products():
                metrics = dict(self.measure())
            return metrics if "nats_per_token" in metrics else {**metrics, "nats_per_token": math.nan}
        finally:
            release_freed_memory()
            self.window_began += time.monotonic() - before  # the speed is that of learning
            self.model.train()

    def judged(self, metrics: Mapping[str, Any], improved: bool, scheduled: bool) -> dict[str, Any] | None:
        if scheduled and self.plateau is not None and metrics:
            self.plateau.step(metrics["nats_per_token"])
        return super().judged(metrics, improved, scheduled)

    # ---- checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        now = time.monotonic()
        self.progress.window_seconds += now - self.window_began
        self.window_began = now
        tensors, groups = checkpoint.flatten_optimizer(self.optimizer)
        tensors |= {f"weights.{name}": tensor for name, tensor in checkpoint.named_weights(self.elbo).items()}
        tensors |= checkpoint.random_states(self.device)
        if self.belief is not None:
            rows = {name: value for name, value in self.belief._asdict().items() if value is not None}
            tensors |= {f"belief.{name}": self.together.rows(value) for name, value in rows.items()}
        plateau = None if self.plateau is None else self.plateau.state_dict()
        return tensors, {"optimizer_groups": groups, "plateau": plateau, "schedule": self.schedule}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        checkpoint.restore_weights(self.elbo, tensors)
        checkpoint.restore_optimizer(self.optimizer, tensors, state["optimizer_groups"])
        self.optimizer.param_groups[0]["weight_decay"] = self.settings.weight_decay  # which a resumed run may be given anew
        before = state.get("schedule", self.schedule if state["plateau"] is None else "plateau")
        if self.settings.schedule is None and before != self.schedule:  # that of the run, whatever time is given now
            if before == "time":
                raise ValueError("max_time: the learning rate of this run falls towards its end; give max_time, or a schedule")
            self._follow(before)
        if self.plateau is not None and state["plateau"] is not None:
            self.plateau.load_state_dict(state["plateau"])
        elif self.schedule == "plateau" != before:  # what has fallen would stay there
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.lr
        belief = {name[7:]: tensor for name, tensor in tensors.items() if name.startswith("belief.")}
        belief = {name: rows[self.together.share(len(rows))].to(self.device) for name, rows in belief.items()}
        if belief:
            kind = getattr(self.model, "carry", Belief)
            self.belief = kind(**{**dict.fromkeys(kind._fields), **belief})
        checkpoint.restore_random_states(tensors, self.device)


class _Loss(torch.nn.Module):
    """The loss of a batch as a module, with the chain it is of: what can be shared among processes."""

    def __init__(self, elbo: torch.nn.Module, model: Any, direct_chain: Callable[..., Any] | None) -> None:
        super().__init__()
        self.elbo, self.chain_of, self.known = elbo, (lambda: model.chain, direct_chain), False

    def forward(self, x: Tensor, lengths: Tensor | None, start: Any) -> tuple[Any, Tensor]:
        last, direct = self.chain_of
        if direct is not None:
            before = None if self.known else checkpoint.random_states(x.device)
            if before is None:
                chain, has_sites = direct(x, lengths, start), False
            else:
                chain, has_sites = alone(lambda: _with_sites(direct, x, lengths, start))
            self.known = True
            if has_sites and before is not None:  # the program is run from now on, with the numbers that it would have drawn
                self.chain_of = last, None
                checkpoint.restore_random_states(before, x.device)
            elif chain is not None:
                return chain, -chain.log_prob().sum()
        return alone(lambda: (_by_program(self.elbo, x, lengths, start), last())[::-1])  # pyright: ignore[reportReturnType]


def _by_program(elbo: torch.nn.Module, *batch: Any) -> Tensor:
    """The loss of a batch by running programs."""

    def run() -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Encountered NaN")
            return elbo(*batch)

    return alone(run)


def _with_sites(chain_of: Callable[..., Any], *batch: Any) -> tuple[Any, bool]:
    """The chain of a batch, and whether parameters were drawn for it."""
    with _Sites() as sites:
        return chain_of(*batch), sites.found


class _Sites(Messenger):
    """Notes whether parameters are drawn, or a factor stands beside the chain: its likelihood is not all of the density."""

    found = False

    def _pyro_sample(self, msg) -> None:
        self.found = True


def _to(lengths: Tensor | None, device: torch.device) -> Tensor | None:
    return None if lengths is None else lengths.to(device, non_blocking=True)


def model_device(model: torch.nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next(model.parameters()).device
