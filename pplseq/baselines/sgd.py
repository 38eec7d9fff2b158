"""Plain stochastic gradient descent for recurrent language models: truncated back-propagation through a text, the learning
rate's schedule.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.batches import StreamBatches
from pplseq.runs import checkpoint
from pplseq.runs.loop import Step, Training
from pplseq.runs.settings import NonFiniteLoss, Progress, perplexity

State = tuple[Tensor, ...]


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
            checks.count(name, getattr(self, name))
        checks.positive("lr", self.lr)
        checks.positive("checkpoint_interval", self.checkpoint_interval)
        checks.share("decay", self.decay, "(0, 1)")
        checks.share("min_improvement", self.min_improvement, "[0, 1)")
        checks.choice("precision", self.precision, ("full", "bfloat16"))
        if self.clip is not None:
            checks.positive("clip", self.clip)


class SGDTraining(Training):
    """One segment a step, one record an epoch.

    Args:
        model: a :class:`~pplseq.baselines.neural.NeuralLanguageModel`; its `history` gets the records.
        text, valid, settings: as for its `fit`.
    """

    def __init__(self, model, text, valid, settings: SGDSettings) -> None:
        self.model, self.valid, self.settings = model, valid, settings
        self.batches = StreamBatches(text, settings.batch_size, settings.segment_length)
        self.text = {"tokens": text.num_tokens, "crc32": zlib.crc32(text.tokens.tobytes())}
        self.device = next(model.parameters()).device
        model.sparse_gradients = True  # a segment touches few rows of the table
        self.parameters = list(model.parameters())
        self.progress = Progress(validation_due=True)
        self.lr, self.decaying, self.stalled = settings.lr, False, False
        self.lowest = math.inf  # entropy of the epochs before
        self.segments: Iterator[Any] | None = None  # that are left of this epoch
        self.state_now: State = ()
        self.previous: Tensor | None = None  # (B, 1) the word before each stream's next segment
        self.best: dict[str, Tensor] = {}

    def first(self, resumed: bool) -> Step:
        self.model.history = self.records
        return Step()

    def ended(self) -> str:
        if self.stalled:
            return "stalled"
        return "epochs" if self.progress.epoch >= self.settings.epochs else ""

    def step(self) -> Step:
        p = self.progress
        if self.segments is None:
            self.model.train()  # a loaded model would learn without dropout
            # Every epoch runs over the text in its own order, so its number is of no account to the batches.
            self.batches.load_state_dict({"epoch": 0, "position": p.position})
            self.segments = iter(self.batches)
        self._learn(next(self.segments))
        p.position, p.step = p.position + 1, p.step + 1
        if p.position < len(self.batches):
            return Step()
        p.epoch, p.position, self.segments = p.epoch + 1, 0, None
        return Step(validate=True)

    def _learn(self, batch: Any) -> None:
        p, x = self.progress, batch.x.to(self.device)
        previous = self.previous
        if batch.is_first or previous is None:
            self.state_now = self.model.initial_state(len(x))
            previous = x.new_full((len(x), 1), self.model.eos_id)
        words = torch.cat([previous, x[:, :-1]], 1)
        features, state = self.model(words, tuple(part.detach() for part in self.state_now))
        loss = self.model.nats(features.flatten(0, 1), x.flatten(), self.settings.precision) / len(x)
        gradients = torch.autograd.grad(loss, self.parameters)
        # Sparse gradients (of word tables) have one row a token: their norm is taken of what is stored.
        gradients = [g.coalesce() if g.is_sparse else g for g in gradients]
        norm = math.sqrt(sum(float(torch.linalg.vector_norm(g.values() if g.is_sparse else g)) ** 2 for g in gradients))
        nats = loss.item()
        if not (math.isfinite(nats) and math.isfinite(norm)):
            raise NonFiniteLoss(
                f"the {'gradient norm' if math.isfinite(nats) else 'loss'} is not finite at step {p.step + 1} (epoch "
                f"{p.epoch + 1}, lr {self.lr:g}); train again with a smaller lr"
            )
        rate = self.lr * (1.0 if self.settings.clip is None else min(1.0, self.settings.clip / max(norm, 1e-12)))
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=-rate)
        self.state_now, self.previous = state, x[:, -1:]
        p.window_nats += nats * len(x)
        p.window_tokens += x.numel()

    # ---- the end of an epoch

    def evaluate(self) -> Mapping[str, Any] | None:
        if self.valid is None:
            return None
        entropy = -float(self.model.log_prob(self.valid).mean())
        return {"nats_per_token": entropy, "perplexity": perplexity(entropy)}

    def judged(self, metrics: Mapping[str, Any], improved: bool, scheduled: bool) -> dict[str, Any]:
        """Steer the learning rate; take back what made things worse."""
        p = self.progress
        record = {"kind": "epoch", "lr": self.lr}
        if p.window_tokens:
            record["train_perplexity"] = perplexity(p.window_nats / p.window_tokens)
        p.window_nats, p.window_tokens = 0.0, 0
        if metrics:
            entropy = metrics["nats_per_token"]
            too_little = p.epoch > 0 and entropy > self.lowest * (1 - self.settings.min_improvement)
            self.lowest = min(self.lowest, entropy)
            if improved:
                self.best = {f"best.{name}": w.detach().clone() for name, w in checkpoint.named_weights(self.model).items()}
            else:
                checkpoint.restore_weights(self.model, self.best, "best.")
            self.stalled = too_little and self.decaying
            self.decaying = self.decaying or too_little
            if self.decaying:
                self.lr *= self.settings.decay
        return record | dict(metrics)

    def place(self) -> dict[str, Any]:
        return {"epoch": self.progress.epoch, "lr": self.lr}

    def finish(self) -> None:
        if self.best:
            checkpoint.restore_weights(self.model, self.best, "best.")

    # ---- checkpoints

    def save_model(self, folder: Path) -> Any:
        return self.model.save(folder)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"weights.{name}": weight for name, weight in checkpoint.named_weights(self.model).items()} | self.best
        tensors |= {f"state.{i}": part.detach() for i, part in enumerate(self.state_now)}
        if self.previous is not None:
            tensors["previous"] = self.previous
        tensors |= checkpoint.random_states(self.device)  # of dropout
        state = {"lr": self.lr, "decaying": self.decaying, "stalled": self.stalled, "lowest": self.lowest}
        return tensors, {**state, "settings": asdict(self.settings), "text": self.text}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if (then := state["settings"] | {"epochs": 0}) != (now := asdict(self.settings) | {"epochs": 0}):
            changed = ", ".join(f"{key} {then.get(key)} -> {now[key]}" for key in now if then.get(key) != now[key])
            raise ValueError(f"settings: {changed}; resume with those of the run")
        if state["text"] != self.text:
            raise ValueError(
                f"text: it has {self.text['tokens']:,} tokens and is not the text of {state['text']['tokens']:,} that the run "
                "learns from; resume with that one"
            )
        checkpoint.restore_weights(self.model, tensors)
        checkpoint.restore_random_states(tensors, self.device)
        self.lr, self.decaying, self.stalled, self.lowest = (
            state[name] for name in ("lr", "decaying", "stalled", "lowest")
        )
        self.best = {name: tensor.to(self.device) for name, tensor in tensors.items() if name.startswith("best.")}
        count = sum(name.startswith("state.") for name in tensors)
        self.state_now = tuple(tensors[f"state.{i}"].to(self.device) for i in range(count))
        self.previous = tensors["previous"].to(self.device) if "previous" in tensors else None
