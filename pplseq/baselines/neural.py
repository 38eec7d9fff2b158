"""What all neural language models share: a network over the words so far, a softmax over the vocabulary, use and folders.

A model says how words and a state give features (`forward`) and from which state a text starts (`initial_state`). Two
ways of training are beside it: plain gradient descent in the text's own order (`fit`), and the loop that trains the
library's own models (`pplseq train`), to which a network looks like a model whose posterior carries a state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pplseq import checks
from pplseq.baselines.sgd import SGDSettings, SGDTraining, State
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.drawing import seeded
from pplseq.folder import sound
from pplseq.kernels.precision import exact_products
from pplseq.runs.loop import run_training
from pplseq.runs.progress import recorder
from pplseq.runs.settings import perplexity
from pplseq.threads import evaluating, undisturbed


class Carried(NamedTuple):
    """What a network carries from one segment to the next.

    last_word: (B,) ids. hidden: (B, ...) its state; for a window model, the words before. cell: (B, ...) of an LSTM.
    """

    last_word: Tensor
    hidden: Tensor
    cell: Tensor | None = None

    @property
    def state(self) -> State:
        return tuple(part for part in self[1:] if part is not None)

    def detach(self) -> Carried:
        """The same without its history of gradients."""
        return Carried(self.last_word.detach(), self.hidden.detach(), None if self.cell is None else self.cell.detach())


class Reading:
    """A batch of segments as a network read them, with the questions of a chain that make sense for it.

    Args:
        log_probs: (B, T) nats of each token given those before it, 0 at padded steps; None where only the state is wanted.
        carried: the state at each row's end.
    """

    def __init__(self, log_probs: Any, carried: Carried) -> None:
        self._log_probs, self._carried = log_probs, carried

    def token_log_probs(self) -> Tensor:
        """(B, T) log p(x_t | x_<t), nats; 0 at padded steps."""
        return self._log_probs

    def log_prob(self) -> Tensor:
        """(B,) nats."""
        return self._log_probs.sum(-1)

    def filtered(self) -> Carried:
        """What the next segment starts from; gradients do not flow into it."""
        return self._carried.detach()


TRAINED_BYTES = 16  # a weight in training: it, its gradient and two moments in float32


class NeuralLanguageModel(checks.NamedArguments, nn.Module):
    """Next-word probabilities softmax(C f_t + c), where f_t is computed from the words before t.

    A text is one sequence: its lines stand one after the other, each ended by `<eos>`, which also stands before the
    first word; the state is carried on from line to line.

    Args:
        vocabulary: of the texts; it has to hold `<eos>`.

    Raises:
        ValueError: a vocabulary without `<eos>`.
    """

    name: ClassVar[str]
    clusters: ClassVar[None] = None  # which a model of states may have
    carry: ClassVar[type] = Carried  # what a checkpoint's belief is read back as
    precision: str = "full"  # of the softmax's products in training: see `SGDSettings`
    sparse_gradients: bool = False  # of the table of input words, where training can use them
    is_fitted: bool = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        if vocabulary.eos_id is None:
            raise ValueError(
                f"vocabulary: it has no {checks.shown(vocabulary.eos)}, which stands before the first word; add it"
            )
        self.vocabulary, self.eos_id = vocabulary, vocabulary.eos_id
        self.history: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={value!r}" for name, value in {"num_words": self.num_words, **self.config}.items())
        weights = sum(parameter.numel() for parameter in self.parameters())
        return f"{type(self).__name__}({sizes}): {weights:,} weights, {'' if self.is_fitted else 'not '}fitted"

    def forward(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """Features after each word.

        Args:
            words: (B, T) int64 ids.
            state: what a previous call returned, or `initial_state`.
            lengths: (B,) words of each row, at least 1; None for T. Features behind a row's end mean nothing.

        Returns:
            (B, T, D) features for the prediction of the word after each, and the state at each row's end.
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

    @undisturbed
    def fit(
        self,
        text: Text,
        validation: Text | None = None,
        *,
        settings: SGDSettings | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
    ) -> NeuralLanguageModel:
        """Minimise the nats per token of a text by truncated back-propagation; keep the weights best on `validation`.

        It is a run as :func:`~pplseq.runs.loop.run_training` describes them. `history` holds a record an epoch: epoch, lr,
        seconds, train_perplexity, perplexity (of `validation`); epoch 0 is before training.

        Args:
            text: to learn from, in its own order.
            validation: held-out text that steers the learning rate; without it the rate stays and all epochs are run.
            settings: the schedule.
            folder: for checkpoints (`last`), the best model (`best`) and `metrics.jsonl`; None keeps all in memory.
            resume: continue from `folder/last`.
            progress: show a bar. on_record: called with every record.

        Returns:
            The model itself.

        Raises:
            ValueError: another vocabulary, too few tokens, or a folder that already holds a run.
            NonFiniteLoss: naming the step; no checkpoint holds the bad weights.
        """
        for name, part in (("text", text), ("validation", validation)):
            if part is not None:
                self._check(part, name)
        settings = settings or SGDSettings()
        with recorder(progress, on_record) as record:
            run_training(
                SGDTraining(self, text, validation, settings), folder=folder, resume=resume, on_record=record,
                checkpoint_interval=settings.checkpoint_interval,
            )  # fmt: skip
        self.is_fitted = True
        return self

    def loss(self, x: Tensor, lengths: Tensor | None = None, start: Carried | None = None) -> Tensor:
        """Summed -log p of a batch of segments, nats; `chain.filtered()` is afterwards what the next ones start from.

        Args:
            x: (B, T) int64 ids.
            lengths: (B,) words of each row, or None.
            start: what the previous segments left, or None at the beginning of a text.
        """
        features, carried = self._read(x, lengths, start)
        self.__dict__["chain"] = Reading(None, carried)
        if lengths is None:
            return self.nats(features.flatten(0, 1), x.flatten(), self.precision)
        valid = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(-1)
        return self.nats(features[valid], x[valid], self.precision)

    # ---- use

    @torch.no_grad()
    def posterior(self, x: Tensor, lengths: Tensor | None = None, start: Carried | None = None) -> Reading:
        """Log-probabilities of the tokens of a batch of segments, without dropout; arguments as for `loss`."""
        with evaluating(self), exact_products():
            features, carried = self._read(x, lengths, start)
            # a row at a time: (B, T, V) at once would be the largest tensor of all
            log_probs = torch.stack(
                [
                    -functional.cross_entropy(self.logits(row), targets, reduction="none")
                    for row, targets in zip(features, x, strict=True)
                ]
            )
        if lengths is not None:
            log_probs = log_probs * (torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(-1))
        return Reading(log_probs, carried)

    def _read(self, x: Tensor, lengths: Tensor | None, start: Carried | None) -> tuple[Tensor, Carried]:
        if start is None:
            eos = x.new_full((len(x),), self.eos_id)
            start = Carried(eos, *self.initial_state(len(x)))
        words = torch.cat([start.last_word.unsqueeze(1), x[:, :-1]], 1)
        if lengths is None:
            features, state = self(words, start.state)
            return features, Carried(x[:, -1], *state)
        features, state = self(words, start.state, lengths.clamp(min=1))
        last = Carried(x.gather(1, (lengths - 1).clamp(min=0).unsqueeze(1)).squeeze(1), *state)
        empty = lengths == 0
        kept = [
            torch.where(empty.reshape(-1, *[1] * (new.dim() - 1)), old, new)
            for old, new in zip((start.last_word, *start.state), (last.last_word, *last.state), strict=True)
        ]
        return features, Carried(*kept)

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
        before = torch.cat([tokens.new_full((1,), self.eos_id), tokens[:-1]])
        state, scores = self.initial_state(1), []
        with torch.no_grad(), evaluating(self):
            for words, targets in zip(before.split(at_once), tokens.split(at_once), strict=True):
                features, state = self(words[None], state)
                scores.append(-functional.cross_entropy(self.logits(features[0]), targets, reduction="none").double())
        return torch.cat(scores).cpu().numpy()

    def perplexity(self, text: Text) -> float:
        """exp(-mean log-probability) over all tokens, `<eos>` and `<unk>` counted, the state carried over the text."""
        return perplexity(-float(self.log_prob(text).mean()))

    def next_word(self, context: Sequence[str] | Sequence[int] = ()) -> np.ndarray:
        """Log-probabilities of the word after a text's first words, (V,) nats.

        Args:
            context: words or ids from the start of a text, `<eos>` between lines; () for the first word.
        """
        words = isinstance(context, str) or any(isinstance(word, str) for word in context)
        ids = np.array([self.eos_id, *(self.vocabulary.encode(context) if words else context)], dtype=np.int64)  # type: ignore
        if not 0 <= ids.min() <= ids.max() < len(self.vocabulary):
            raise ValueError(f"context: expected ids from 0 to {len(self.vocabulary) - 1}, got {ids[1:].tolist()}")
        with torch.no_grad(), evaluating(self):
            words = torch.from_numpy(ids)[None].to(next(self.parameters()).device)
            features, _ = self(words, self.initial_state(1))
            return torch.log_softmax(self.logits(features[0, -1]).double(), -1).cpu().numpy()

    @property
    def num_words(self) -> int:
        """V."""
        return len(self.vocabulary)

    def save(self, folder: str | Path) -> Path:
        """Write config.json, model.safetensors and vocab.txt, whole or not at all."""
        from pplseq.models.storage import save_model

        return save_model(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> NeuralLanguageModel:
        """Read what `save` wrote; called on `NeuralLanguageModel` itself, a network of any kind.

        Raises:
            FileNotFoundError: no model there.
            ValueError: a model of another kind, or damaged files.
        """
        from pplseq.baselines import NETWORKS
        from pplseq.models.declared import within
        from pplseq.models.storage import MODEL, check_finite, read_words

        header, tensors, _, words = MODEL.read(folder, more=read_words)
        kind = str(header.get("model"))
        if kind not in NETWORKS or not issubclass(NETWORKS[kind], cls):
            expected = getattr(cls, "name", None) or " or ".join(NETWORKS)
            raise ValueError(f"{folder}: expected a model of kind {checks.shown(expected)}, got {checks.shown(kind)}")
        check_finite(tensors, folder)
        with sound(f"{folder}: config.json does not describe these parameters", MODEL.again):
            with within(tensors):
                model = NETWORKS[kind](words.vocabulary, **header["config"])
            model.load_state_dict(tensors)
        model.is_fitted = True
        return model.eval()

    def _check(self, text: Text, name: str) -> None:
        if text.vocabulary is not self.vocabulary and text.vocabulary.words != self.vocabulary.words:
            raise ValueError(
                f"{name}: {text.name!r} is encoded with another vocabulary ({len(text.vocabulary)} words, the model has "
                f"{len(self.vocabulary)}); encode it with the model's: read_text(path, vocabulary=model.vocabulary)"
            )
        if text.num_tokens == 0:
            raise ValueError(f"{name}: {text.name!r} has no tokens")


def check_weights(number: int) -> None:
    """Raises ValueError for so many weights that they, their gradient and its two moments do not fit into memory."""
    checks.fits("hidden_size", number * TRAINED_BYTES, "choose fewer units or layers")


class TiedNetwork(NeuralLanguageModel):
    """A network with dropout and one (V, D) table of words, `embedding`, for input and output.

    Args:
        vocabulary: with `<eos>`. hidden_size: D. dropout, seed: as of the subclasses.
        **sizes: whole numbers of at least 1, kept as attributes and in `config`.
    """

    def __init__(self, vocabulary: Vocabulary, hidden_size: int, dropout: float, seed: int, **sizes: int) -> None:
        super().__init__(vocabulary)
        self.hidden_size, self.sizes = checks.count("hidden_size", hidden_size), sizes
        for name, size in sizes.items():
            setattr(self, name, checks.count(name, size))
        dropout = checks.share("dropout", dropout, "[0, 1)")
        self._check_memory(dropout)
        with seeded(seed):
            self.embedding = nn.Parameter(torch.randn(len(vocabulary), hidden_size) / hidden_size**0.5)
            self.make_layers(dropout)
        self.output_bias = nn.Parameter(torch.zeros(len(vocabulary)))
        self.dropout = nn.Dropout(dropout)

    def _check_memory(self, dropout: float) -> None:
        """Refuse, before anything is allocated, what cannot be trained here."""
        for size in self.sizes.values():  # of which each takes some weights, and time even where none is allocated
            check_weights(size * self.hidden_size)
        with torch.device("meta"):
            self.make_layers(dropout)
        check_weights(len(self.vocabulary) * self.hidden_size + sum(weight.numel() for weight in self.parameters()))

    def make_layers(self, dropout: float) -> None:
        """Sets the modules between the two tables, with weights drawn from torch's generator."""
        raise NotImplementedError

    @property
    def config(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size, **self.sizes, "dropout": self.dropout.p}

    @property
    def softmax_weights(self) -> tuple[Tensor, Tensor]:
        return self.embedding, self.output_bias


ROWS_AT_ONCE = 1024  # of the (N, V) table that a softmax needs


class _SoftmaxNats(torch.autograd.Function):
    """-sum log softmax(C f + c)[target], with the gradients taken on the way forward, so that no (N, V) table is kept."""

    @staticmethod
    def forward(ctx, features, weights, bias, targets, dtype):
        low_weights = weights.to(dtype)
        nats, by_features = bias.new_zeros(()), []
        by_weights, by_bias = torch.zeros_like(weights), torch.zeros_like(bias)
        for part, wanted in zip(features.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True):
            low = part.to(dtype)
            probs = torch.softmax((low @ low_weights.T).to(bias.dtype).add_(bias), 1)
            rows = torch.arange(len(wanted), device=wanted.device)
            nats -= probs[rows, wanted].clamp_min(torch.finfo(probs.dtype).tiny).log().sum()
            probs[rows, wanted] -= 1
            low_probs = probs.to(dtype)
            by_features.append((low_probs @ low_weights).to(features.dtype))
            by_weights += low_probs.T @ low
            by_bias += probs.sum(0)
        ctx.save_for_backward(
            torch.cat(by_features) if by_features else torch.zeros_like(features), by_weights, by_bias
        )
        return nats

    @staticmethod
    def backward(ctx, by_nats):  # pyright: ignore[reportIncompatibleMethodOverride]
        by_features, by_weights, by_bias = ctx.saved_tensors
        return by_nats * by_features, by_nats * by_weights, by_nats * by_bias, None, None


class MaximumLikelihood(nn.Module):
    """A network's loss in the place of an ELBO: what `pplseq.runs.training.train` takes as its `elbo`."""

    def __init__(self, model: NeuralLanguageModel, guide: Any = None) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor | None = None, start: Carried | None = None) -> Tensor:
        return self.model.loss(x, lengths, start)
