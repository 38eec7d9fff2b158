"""Neural language models as sources: the library's own, which carry a state, and any torch module over token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.baselines.neural import Carried, NeuralLanguageModel
from pplseq.models.props.source import PutBack, check_token, put_back
from pplseq.sources.weights import Weights, call_with, stretches
from pplseq.threads import evaluating


class TorchLanguageModelSource:
    """A language model in torch.

    Args:
        model: a :class:`~pplseq.baselines.neural.NeuralLanguageModel` (RNN, LSTM, FeedForward), whose state is carried from
            token to token; or any module that takes ids (1, t) and returns logits (1, t, V), or an object with ``.logits``
            of that shape; log-probabilities are logits. A pair (logits, hidden) has hidden states (1, t, D) too, which a
            :class:`~pplseq.sources.ContinuousCache` needs; of an object, the last of ``.hidden_states`` is taken. Such a module
            reads the last ``max_context`` tokens anew for each prediction; row t depends on tokens 1..t alone.
        num_words: V, of a module that is not the library's.
        start: id that stands before the first token, for a module; a library's model has its own `<eos>`.
        max_context: tokens a module reads at most.

    The model is put in evaluation mode, read in it even where its owner trains it in between, and never trained. To the
    library's models a text is one sequence with `<eos>` between its lines, so ``reset`` makes them read `<eos>`, if they did
    not just now, and the state goes on.

    Raises:
        ValueError: logits of another shape, ids that the module cannot read, tokens outside of 0..V-1.
    """

    def __init__(
        self, model: nn.Module, num_words: int | None = None, *, start: int | None = None, max_context: int = 256
    ):
        self.model: Any = model.eval()
        self.own = isinstance(model, NeuralLanguageModel)
        if isinstance(model, NeuralLanguageModel):
            num_words, start = model.num_words, model.vocabulary.eos_id
        if num_words is None or start is None:
            raise ValueError(
                "num_words, start: say how many words the module knows, and which id stands before the first"
            )
        checks.count("max_context", max_context)
        self.num_words, self.first, self.max_context = num_words, start, max_context
        self.line_end = start if self.own else None
        self.name = getattr(model, "name", type(model).__name__)
        parameter = next(model.parameters(), None)
        self.device = torch.device("cpu") if parameter is None else parameter.device
        self._weights: Weights | None = None
        self._begin()

    @property
    def weights(self) -> Weights | None:
        """Weights that the model is read with in the place of its own, by their names; None: its own."""
        return self._weights

    @weights.setter
    def weights(self, weights: Weights | None) -> None:
        self._weights, self._log_probs = weights, None

    def apart(self) -> TorchLanguageModelSource:
        """The same source at its beginning, with weights and a context of its own; the model is shared."""
        return TorchLanguageModelSource(self.model, self.num_words, start=self.first, max_context=self.max_context)

    def _begin(self) -> None:
        self._tokens = [self.first]  # what a module reads
        self._state = self.model.initial_state(1) if self.own else ()
        self._log_probs: Tensor | None = None  # of the next token, once somebody asked
        self._features: Tensor | None = None  # (D,) behind them
        self._next_state: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def _ask(self) -> Tensor:
        if self._log_probs is None:
            logits, features, self._next_state = self._call(self._tokens, self._state)
            self._features = None if features is None else features[-1]
            self._log_probs = torch.log_softmax(logits[-1].double(), -1)
        return self._log_probs

    def _call(self, tokens: list[int], state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """(t, V) logits behind each token, (t, D) hidden states where the model says them, and a library's model's state."""
        ids = torch.tensor([tokens], device=self.device)
        if self.own:
            with evaluating(self.model, alone=self._weights is not None):  # which all users share, as not its wrapper
                logits, features, after = call_with(_Logits(self.model), _inside(self._weights), ids, state)
            return logits, features, after
        try:
            result, hidden = call_with(self.model, self._weights, ids), None
        except IndexError as error:
            raise ValueError(
                f"start, num_words: {self.name} cannot read ids from {min(tokens)} to {max(tokens)} ({error}); start is "
                f"{self.first}, num_words {self.num_words}"
            ) from error
        if isinstance(result, tuple) and not hasattr(result, "logits"):
            if len(result) != 2 or not isinstance(result[1], Tensor) or result[1].shape[:2] != ids.shape:
                raise TypeError(
                    f"model: of {self.name} logits were expected, or a pair (logits, hidden) with hidden states "
                    f"(1, {len(tokens)}, D), one a token; got {_described(result)}"
                )
            result, hidden = result[0], result[1][0]
        elif isinstance(layers := getattr(result, "hidden_states", None), tuple):
            hidden = layers[-1][0]
        logits: Any = getattr(result, "logits", result)
        if logits.shape != (1, len(tokens), self.num_words):
            raise ValueError(
                f"model: logits of {self.name} must have shape (1, {len(tokens)}, {self.num_words}), a row a token and "
                f"a column a word; got {tuple(logits.shape)}"
            )
        return logits[0], hidden, ()

    def hidden_state(self) -> np.ndarray:
        """(D,) what the model has of the tokens so far; of a library's model that in which its softmax is linear.

        Raises:
            TypeError: a module that gives logits alone.
        """
        self._ask()
        if self._features is None:
            raise TypeError(
                f"model: {self.name} gives logits alone, so its hidden state is not known; let it return a pair "
                "(logits, hidden) with hidden states (1, t, D)"
            )
        return self._features.double().cpu().numpy()

    def nats(self, state: dict[str, Any], words: list[int]) -> Tensor:
        """(T,) -log p of words behind a state of ``state_dict``, with gradients for ``weights``."""
        tokens, carried = self._place(state)
        if self.own:
            logits, *_ = self._call([*tokens, *words[:-1]], carried)
            return nn.functional.cross_entropy(logits, torch.tensor(words, device=self.device), reduction="none")
        values = []
        for context, part in stretches(tokens, words, lambda y: [y], self._after):
            logits, *_ = self._call([*context, *part[:-1]], ())
            wanted = torch.tensor(part, device=self.device)
            values.append(nn.functional.cross_entropy(logits[len(context) - 1 :], wanted, reduction="none"))
        return torch.cat(values)

    def _after(self, tokens: list[int], y: int) -> list[int]:
        return [int(y)] if self.own else [*tokens, int(y)][-self.max_context :]

    def predict(self) -> np.ndarray:
        """(V,) probabilities."""
        return self._ask().exp().cpu().numpy()

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        check_token(y, self.num_words, self.name)
        return float(self._ask()[y])

    def observe(self, y: int) -> None:
        """The model reads the token."""
        check_token(y, self.num_words, self.name)
        self._ask()  # which takes the state past the token before
        self._state, self._log_probs = self._next_state, None
        self._tokens = self._after(self._tokens, y)

    def reset(self) -> None:
        """A new sequence: a module's context is empty; to a library's model another line begins."""
        if not self.own:
            self._begin()
        elif self._tokens != [self.first]:
            self.observe(self.first)

    def mark(self) -> PutBack:
        """The tokens and the carried state."""
        return put_back(self, "_tokens", "_state", "_log_probs", "_features", "_next_state")

    def log_probs(self, tokens: np.ndarray) -> np.ndarray:
        """(T,) nats of a stream from where the source stands, which stays there; a library's model takes it at once."""
        if not self.own or self._weights is not None or not len(tokens):
            return _one_by_one(self, tokens)
        x = torch.as_tensor(np.asarray(tokens, dtype=np.int64), device=self.device)
        carried, values = Carried(torch.tensor(self._tokens, device=self.device), *self._state), []
        with evaluating(self.model):
            for part in x.split(512):
                reading = self.model.posterior(part[None], start=carried)
                carried = reading.filtered()
                values.append(reading.token_log_probs()[0].double())
        return torch.cat(values).cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """The tokens it still reads, and the carried state."""
        return {"tokens": list(self._tokens), "state": [_array(part) for part in self._state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        self._begin()
        self._tokens, self._state = self._place(state)

    def _place(self, state: dict[str, Any]) -> tuple[list[int], tuple[Tensor, ...]]:
        """The tokens and the carried state of a ``state_dict``."""
        like = self.model.initial_state(1) if self.own else ()
        carried = tuple(
            torch.as_tensor(np.asarray(part), device=self.device).to(old.dtype)
            for part, old in zip(state["state"], like, strict=True)
        )
        return [int(y) for y in state["tokens"]], carried


class _Logits(nn.Module):
    """A network with its softmax, so that both are called with the same weights."""

    def __init__(self, model: NeuralLanguageModel):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        features, after = self.model(ids, state)
        return self.model.logits(features[0]), features[0], after


def _inside(weights: Weights | None) -> Weights | None:
    return None if weights is None else {f"model.{name}": value for name, value in weights.items()}


def _array(part: Tensor) -> np.ndarray:
    """Its numbers; of bfloat16, which numpy has not, in single precision, which holds them."""
    return (part.float() if part.dtype == torch.bfloat16 else part).cpu().numpy()


def _described(result: tuple) -> str:
    return f"a tuple of {', '.join(str(tuple(p.shape)) if isinstance(p, Tensor) else type(p).__name__ for p in result)}"


def _one_by_one(source: TorchLanguageModelSource, tokens: np.ndarray) -> np.ndarray:
    before, values = source.state_dict(), []
    for y in np.asarray(tokens).tolist():
        values.append(source.log_prob_of(y))
        source.observe(y)
    source.load_state_dict(before)
    return np.array(values)
