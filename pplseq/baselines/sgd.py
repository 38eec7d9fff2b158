"""Plain stochastic gradient descent for recurrent language models: truncated back-propagation through a text, the learning
rate's schedule, resumption.
"""

from __future__ import annotations

import math
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pplseq.data.batches import StreamBatches
from pplseq.runs import checkpoint
from pplseq.runs.metrics_log import MetricsLog
from pplseq.runs.settings import NonFiniteLoss
from pplseq.runs.signals import Stopped, StopSignals

if TYPE_CHECKING:
    from pplseq.baselines.neural import State


@dataclass(frozen=True)
class SGDSettings:
    """Plain stochastic gradient descent with the schedule of recurrent language models.

    The learning rate stays as it is until an epoch's validation entropy is not below its predecessor's by
    `min_improvement`; from then on it is multiplied by `decay` after every epoch, until that happens a second time. An
    epoch that made things worse is taken back.

    Args:
        lr: of the loss summed over the steps of a segment and averaged over the streams.
        decay: what the learning rate is multiplied by.
        min_improvement: relative, of the entropy in nats per token.
        epochs: passes over the text, at most.
        batch_size: B, parallel streams.
        segment_length: T, tokens of a segment; the gradient is cut at its start, the state is not.
        clip: largest gradient norm; None does not clip.
        precision: "full", or "bfloat16" for the matrix products of the softmax in training (weights, sums and validation
            stay in the model's own type): three to five times as fast on processors that have it.
        checkpoint_interval: seconds between two saves within an epoch.

    Source: Mikolov, Statistical Language Models Based on Neural Networks (2012), section 3.2.
    """

    lr: float = 1.0
    decay: float = 0.5
    min_improvement: float = 0.003
    epochs: int = 50
    batch_size: int = 16
    segment_length: int = 16
    clip: float | None = 5.0
    precision: str = "full"
    checkpoint_interval: float = 120.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "segment_length"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, got {value!r}")
        for name in ("lr", "epochs", "batch_size", "segment_length", "checkpoint_interval"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 < self.decay < 1:
            raise ValueError(f"decay must lie between 0 and 1, got {self.decay}")
        if not 0 <= self.min_improvement < 1:
            raise ValueError(f"min_improvement must lie in [0, 1), got {self.min_improvement}")
        if self.precision not in ("full", "bfloat16"):
            raise ValueError(f"precision must be 'full' or 'bfloat16', got {self.precision!r}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, or None not to clip, got {self.clip}")


@dataclass
class _Progress:
    """Where training stands, as plain numbers."""

    epoch: int = 0
    position: int = 0
    step: int = 0
    seconds: float = 0.0
    lr: float = 0.0
    best: float = math.inf
    best_epoch: int = 0
    decaying: bool = False
    finished: bool = False
    window_nats: float = 0.0
    window_tokens: int = 0


class SGDTraining:
    def __init__(self, model, text, valid, settings, folder, on_record) -> None:
        self.model, self.valid, self.settings = model, valid, settings
        self.folder = None if folder is None else Path(folder)
        self.on_record = on_record or (lambda record: None)
        self.batches = StreamBatches(text, settings.batch_size, settings.segment_length)
        self.text = {"tokens": text.num_tokens, "crc32": zlib.crc32(text.tokens.tobytes())}
        self.device = next(model.parameters()).device
        model.sparse_gradients = True  # a segment touches few rows of the table
        self.parameters = list(model.parameters())
        self.progress = _Progress(lr=settings.lr)
        self.state: State = ()
        self.previous: Tensor | None = None  # (B, 1) the word before each stream's next segment
        self.best: dict[str, Tensor] = {}
        self.signals = StopSignals()

    def run(self, resume: bool) -> None:
        p = self.progress
        if resume:
            self._load()
            p = self.progress
        elif self.folder is not None and (self.folder / "last").exists():
            raise ValueError(f"{self.folder} already holds a run; resume it, or choose another folder")
        self.started, self.before = time.monotonic(), p.seconds
        self.log = None
        if self.folder is not None:
            self.log = MetricsLog(self.folder / "metrics.jsonl", p.step if resume else None)
        self.model.history = [] if self.log is None else self.log.records
        try:
            with self.signals:
                if not resume:
                    self._end_of_epoch()
                while p.epoch < self.settings.epochs and not p.finished:
                    self._epoch()
                self._save("last")
        except Stopped:
            self._save("last")
        finally:
            if self.log is not None:
                self.log.close()
        if self.best:
            checkpoint.restore_weights(self.model, self.best, "best.")
        self.signals.reraise()

    def _epoch(self) -> None:
        p, settings = self.progress, self.settings
        self.model.train()  # a loaded model would learn without dropout
        # Every epoch runs over the text in its own order, so its number is of no account to the batches.
        self.batches.load_state_dict({"epoch": 0, "position": p.position})
        saved = time.monotonic()
        for batch in self.batches:
            self._step(batch)
            p.position, p.step = p.position + 1, p.step + 1
            if self.folder is not None and time.monotonic() - saved > settings.checkpoint_interval:
                self._save("last")
                saved = time.monotonic()
            self.signals.check()
        p.epoch, p.position = p.epoch + 1, 0
        self._end_of_epoch()

    def _step(self, batch) -> None:
        p, x = self.progress, batch.x.to(self.device)
        if batch.is_first:
            self.state = self.model.initial_state(len(x))
            self.previous = x.new_full((len(x), 1), self.model.vocabulary.eos_id)
        words = torch.cat([self.previous, x[:, :-1]], 1)
        features, state = self.model(words, tuple(part.detach() for part in self.state))
        loss = self.model.nats(features.flatten(0, 1), x.flatten(), self.settings.precision) / len(x)
        gradients = torch.autograd.grad(loss, self.parameters)
        # Sparse gradients (of word tables) have one row a token: their norm is taken of what is stored.
        gradients = [g.coalesce() if g.is_sparse else g for g in gradients]
        norm = math.sqrt(sum(float(torch.linalg.vector_norm(g.values() if g.is_sparse else g)) ** 2 for g in gradients))
        nats = loss.item()
        if not (math.isfinite(nats) and math.isfinite(norm)):
            raise NonFiniteLoss(
                f"the {'gradient norm' if math.isfinite(nats) else 'loss'} is not finite at step {p.step + 1} (epoch "
                f"{p.epoch + 1}, lr {p.lr:g}); train again with a smaller lr"
            )
        rate = p.lr * (1.0 if self.settings.clip is None else min(1.0, self.settings.clip / max(norm, 1e-12)))
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=-rate)
        self.state, self.previous = state, x[:, -1:]
        p.window_nats += nats * len(x)
        p.window_tokens += x.numel()

    def _end_of_epoch(self) -> None:
        """Validate, steer the learning rate, record, save."""
        p, settings = self.progress, self.settings
        record = {"kind": "epoch", "epoch": p.epoch, "step": p.step, "lr": p.lr}
        if p.window_tokens:
            record["train_perplexity"] = _exp(p.window_nats / p.window_tokens)
        if self.valid is not None:
            entropy = -float(self.model.log_prob(self.valid).mean())
            if math.isnan(entropy):
                raise NonFiniteLoss(f"the validation entropy is NaN after epoch {p.epoch}; train with a smaller lr")
            record |= {"nats_per_token": entropy, "perplexity": _exp(entropy)}
            too_little = p.epoch > 0 and entropy > p.best * (1 - settings.min_improvement)
            if entropy < p.best:
                p.best, p.best_epoch = entropy, p.epoch
                self.best = {f"best.{name}": w.detach().clone() for name, w in _weights(self.model).items()}
                self._save("best")
            else:
                checkpoint.restore_weights(self.model, self.best, "best.")
            p.finished = too_little and p.decaying
            p.decaying = p.decaying or too_little
            if p.decaying:
                p.lr *= settings.decay
        p.window_nats, p.window_tokens = 0.0, 0
        record["seconds"] = round(self._clock(), 3)
        if self.log is None:
            self.model.history.append(record)
        else:
            self.log.write(record)
        self.on_record(record)
        self._save("last")

    def _clock(self) -> float:
        return self.before + time.monotonic() - self.started

    # ---- checkpoints

    def _save(self, name: str) -> None:
        if self.folder is None:
            return
        self.progress.seconds = self._clock()
        if name == "best" or self.valid is None:
            self.model.save(self.folder / "best")
        if name == "last":
            self._write(self.folder / name)

    def _write(self, folder: Path) -> None:
        tensors = {f"weights.{name}": weight for name, weight in _weights(self.model).items()} | self.best
        tensors |= {f"state.{i}": part.detach() for i, part in enumerate(self.state)}
        if self.previous is not None:
            tensors["previous"] = self.previous
        tensors |= checkpoint.random_states(self.device)  # of dropout
        state = {"progress": asdict(self.progress), "settings": asdict(self.settings), "text": self.text}
        checkpoint.TRAINING.write(folder, {"state": state}, tensors=tensors)

    def _load(self) -> None:
        if self.folder is None:
            raise ValueError("resume: there is no folder to resume from; give folder")
        header, tensors, *_ = checkpoint.TRAINING.read(self.folder / "last")
        state = header["state"]
        if (then := state["settings"] | {"epochs": 0}) != (now := asdict(self.settings) | {"epochs": 0}):
            changed = ", ".join(f"{key} {then.get(key)} -> {now[key]}" for key in now if then.get(key) != now[key])
            raise ValueError(f"settings: {changed}; resume with those of the run in {self.folder}")
        if state.get("text", self.text) != self.text:
            raise ValueError(
                f"text: it has {self.text['tokens']:,} tokens and is not the text of {state['text']['tokens']:,} that the run "
                f"in {self.folder} learns from; resume with that one"
            )
        checkpoint.restore_weights(self.model, tensors)
        checkpoint.restore_random_states(tensors, self.device)
        self.best = {name: tensor.to(self.device) for name, tensor in tensors.items() if name.startswith("best.")}
        self.state = tuple(
            tensors[f"state.{i}"].to(self.device) for i in range(sum(n.startswith("state.") for n in tensors))
        )
        self.previous = tensors["previous"].to(self.device) if "previous" in tensors else None
        self.progress = _Progress(**state["progress"])


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return checkpoint.named_weights(model)


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf
