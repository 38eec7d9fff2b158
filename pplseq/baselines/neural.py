"""What all neural language models share: truncated back-propagation through a text, the learning rate's schedule, resumption.

A model says how words and a state give features (`forward`) and from which state a text starts (`initial_state`); the
softmax over the vocabulary, training, scoring and folders on disk are here.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pplseq.data.batches import StreamBatches
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.infer import checkpoint
from pplseq.infer.interruption import Stopped, StopSignals
from pplseq.infer.metrics import MetricsLog
from pplseq.infer.settings import NonFiniteLoss

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


class NeuralLanguageModel(nn.Module):
    """Next-word probabilities softmax(C f_t + c), where f_t is computed from the words before t.

    A text is one sequence: its lines stand one after the other, each ended by `<eos>`, which also stands before the
    first word; the state is carried on from line to line.

    Args:
        vocabulary: of the texts; it has to hold `<eos>`.

    Raises:
        ValueError: a vocabulary without `<eos>`.
    """

    name: ClassVar[str]

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        if vocabulary.eos_id is None:
            raise ValueError(f"vocabulary: it has no {vocabulary.eos!r}, which stands before the first word; add it")
        self.vocabulary = vocabulary
        self.history: list[dict[str, Any]] = []

    def forward(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Features after each word.

        Args:
            words: (B, T) int64 ids.
            state: what a previous call returned, or `initial_state`.

        Returns:
            (B, T, D) features for the prediction of the word after each, and the state at the end.
        """
        raise NotImplementedError

    def initial_state(self, batch_size: int) -> State:
        """The state before the first word, tensors whose first dimension is B."""
        raise NotImplementedError

    @property
    def softmax_weights(self) -> tuple[Tensor, Tensor]:
        """(V, D) C and (V,) c."""
        raise NotImplementedError

    def logits(self, features: Tensor) -> Tensor:
        """(..., D) features to (..., V) unnormalised log-probabilities."""
        return functional.linear(features, *self.softmax_weights)

    def nats(self, features: Tensor, targets: Tensor, precision: str = "full") -> Tensor:
        """Summed -log p of (N,) targets at (N, D) features; `precision` as in `SGDSettings`."""
        dtype = torch.bfloat16 if precision == "bfloat16" else features.dtype
        return _SoftmaxNats.apply(features, *self.softmax_weights, targets, dtype)

    @property
    def config(self) -> dict[str, Any]:
        """Arguments beside the vocabulary that rebuild the model, JSON-able."""
        raise NotImplementedError

    # ---- learning

    def fit(
        self,
        text: Text,
        valid: Text | None = None,
        *,
        settings: SGDSettings | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
    ) -> NeuralLanguageModel:
        """Minimise the nats per token of a text by truncated back-propagation; keep the weights best on `valid`.

        A resumed run takes the same steps on the same numbers as one that was never stopped; SIGINT and SIGTERM finish
        the step and save. `history` holds a record an epoch: epoch, lr, seconds, train_perplexity, perplexity (of
        `valid`); epoch 0 is before training.

        Args:
            text: to learn from, in its own order.
            valid: held-out text that steers the learning rate; without it the rate stays and all epochs are run.
            settings: the schedule.
            folder: for checkpoints (`last`), the best model (`best`) and `metrics.jsonl`; None keeps all in memory.
            resume: continue from `folder/last`.
            on_record: called with every record.

        Returns:
            The model itself.

        Raises:
            ValueError: another vocabulary, too few tokens, or a folder that already holds a run.
            NonFiniteLoss: naming the step; no checkpoint holds the bad weights.
        """
        for name, part in (("text", text), ("valid", valid)):
            if part is not None:
                self._check(part, name)
        _Training(self, text, valid, settings or SGDSettings(), folder, on_record).run(resume)
        return self

    # ---- use

    def log_prob(self, text: Text, *, at_once: int = 512) -> np.ndarray:
        """Log-probability of every token given all before it in the text.

        Args:
            text: encoded with the model's vocabulary.
            at_once: tokens taken at once; it changes memory, not the result.

        Returns:
            (N,) nats, in the order of `text.tokens`.
        """
        self._check(text, "text")
        device = next(self.parameters()).device
        tokens = torch.from_numpy(text.tokens.astype(np.int64)).to(device)
        before = torch.cat([tokens.new_full((1,), self.vocabulary.eos_id), tokens[:-1]])
        state, scores = self.initial_state(1), []
        with torch.no_grad():
            for words, targets in zip(before.split(at_once), tokens.split(at_once), strict=True):
                features, state = self(words[None], state)
                scores.append(-functional.cross_entropy(self.logits(features[0]), targets, reduction="none").double())
        return torch.cat(scores).cpu().numpy()

    def perplexity(self, text: Text) -> float:
        """exp(-mean log-probability) over all tokens, `<eos>` and `<unk>` counted, the state carried over the text."""
        return _exp(-float(self.log_prob(text).mean()))

    def next_word(self, context: Sequence[str] | Sequence[int] = ()) -> np.ndarray:
        """Log-probabilities of the word after a text's first words, (V,) nats.

        Args:
            context: words or ids from the start of a text, `<eos>` between lines; () for the first word.
        """
        if isinstance(context, str) or any(isinstance(word, str) for word in context):
            context = self.vocabulary.encode(context)
        ids = np.array([self.vocabulary.eos_id, *context], dtype=np.int64)
        if not 0 <= ids.min() <= ids.max() < len(self.vocabulary):
            raise ValueError(f"context: expected ids from 0 to {len(self.vocabulary) - 1}, got {ids[1:].tolist()}")
        with torch.no_grad():
            words = torch.from_numpy(ids)[None].to(next(self.parameters()).device)
            features, _ = self(words, self.initial_state(1))
            return torch.log_softmax(self.logits(features[0, -1]).double(), -1).cpu().numpy()

    def save(self, folder: str | Path) -> Path:
        """Write config.json, model.safetensors and vocab.txt, whole or not at all."""
        from pplseq.models.storage import save_model

        return save_model(self, folder, vocabulary=self.vocabulary)

    @classmethod
    def load(cls, folder: str | Path) -> NeuralLanguageModel:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: no model there.
            ValueError: a model of another kind, or damaged files.
        """
        from pplseq.models.storage import read_tensors

        path = Path(folder) / "config.json"
        if not path.is_file():
            raise FileNotFoundError(f"no model at {folder}: expected a folder with config.json and model.safetensors")
        header = json.loads(path.read_text(encoding="utf-8"))
        if header.get("model") != cls.name:
            raise ValueError(f"{path}: expected a model of kind {cls.name!r}, got {header.get('model')!r}")
        model = cls(Vocabulary.load(path.with_name("vocab.txt")), **header["config"])
        tensors = read_tensors(path.with_name("model.safetensors"))
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(f"{path}: its config does not describe these parameters ({error})") from error
        return model

    def _check(self, text: Text, name: str) -> None:
        if text.vocabulary is not self.vocabulary and text.vocabulary.words != self.vocabulary.words:
            raise ValueError(
                f"{name}: {text.name!r} is encoded with another vocabulary ({len(text.vocabulary)} words, the model has "
                f"{len(self.vocabulary)}); encode it with the model's: read_text(path, vocabulary=model.vocabulary)"
            )
        if text.num_tokens == 0:
            raise ValueError(f"{name}: {text.name!r} has no tokens")


class _SoftmaxNats(torch.autograd.Function):
    """-sum log softmax(C f + c)[target], with the gradients taken on the way forward, so that no (N, V) table is kept."""

    @staticmethod
    def forward(ctx, features, weights, bias, targets, dtype):
        low_features, low_weights = features.to(dtype), weights.to(dtype)
        probs = torch.softmax((low_features @ low_weights.T).to(bias.dtype).add_(bias), 1)
        rows = torch.arange(len(targets), device=targets.device)
        nats = -probs[rows, targets].clamp_min(torch.finfo(probs.dtype).tiny).log().sum()
        probs[rows, targets] -= 1
        low_probs = probs.to(dtype)
        by_features, by_weights = low_probs @ low_weights, low_probs.T @ low_features
        ctx.save_for_backward(by_features.to(features.dtype), by_weights.to(weights.dtype), probs.sum(0))
        return nats

    @staticmethod
    def backward(ctx, by_nats):
        by_features, by_weights, by_bias = ctx.saved_tensors
        return by_nats * by_features, by_nats * by_weights, by_nats * by_bias, None, None


class _Training:
    def __init__(self, model, text, valid, settings, folder, on_record) -> None:
        self.model, self.valid, self.settings = model, valid, settings
        self.folder = None if folder is None else Path(folder)
        self.on_record = on_record or (lambda record: None)
        self.batches = StreamBatches(text, settings.batch_size, settings.segment_length)
        self.device = next(model.parameters()).device
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
            checkpoint.replace_folder(self.folder / name, self._write)

    def _write(self, folder: Path) -> None:
        tensors = {f"weights.{name}": weight for name, weight in _weights(self.model).items()} | self.best
        tensors |= {f"state.{i}": part.detach() for i, part in enumerate(self.state)}
        if self.previous is not None:
            tensors["previous"] = self.previous
        checkpoint.save_training(
            folder, tensors, {"progress": asdict(self.progress), "settings": asdict(self.settings)}
        )

    def _load(self) -> None:
        if self.folder is None:
            raise ValueError("resume: there is no folder to resume from; give folder")
        tensors, state = checkpoint.load_training(self.folder / "last")
        if (then := state["settings"] | {"epochs": 0}) != (now := asdict(self.settings) | {"epochs": 0}):
            changed = ", ".join(f"{key} {then.get(key)} -> {now[key]}" for key in now if then.get(key) != now[key])
            raise ValueError(f"settings: {changed}; resume with those of the run in {self.folder}")
        checkpoint.restore_weights(self.model, tensors)
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
