"""Neural language models as sources: the library's own, which carry a state, and any torch module over token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pplseq import checks
from pplseq.baselines.neural import Carried, NeuralLanguageModel
from pplseq.models.props.source import PutBack, put_back


class TorchLanguageModelSource:
    """A language model in torch.

    Args:
        model: a :class:`~pplseq.baselines.neural.NeuralLanguageModel` (RNN, LSTM, FeedForward), whose state is carried from
            token to token; or any module that takes ids (1, t) and returns logits (1, t, V), or an object with ``.logits``
            of that shape. Such a module reads the last ``max_context`` tokens anew for each prediction.
        num_words: V, of a module that is not the library's.
        start: id that stands before the first token, for a module; a library's model has its own `<eos>`.
        max_context: tokens a module reads at most.

    The model is put in evaluation mode and never trained. To the library's models a text is one sequence with `<eos>` between
    its lines, so ``reset`` makes them read `<eos>`, if they did not just now, and the state goes on.
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
        self.name = getattr(model, "name", type(model).__name__)
        parameter = next(model.parameters(), None)
        self.device = torch.device("cpu") if parameter is None else parameter.device
        self._begin()

    def _begin(self) -> None:
        self._tokens = [self.first]  # what a module reads
        self._state = self.model.initial_state(1) if self.own else ()
        self._log_probs: Tensor | None = None  # of the next token, once somebody asked
        self._features: Tensor | None = None  # (D,) behind them, of a library's model
        self._next_state: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def _ask(self) -> Tensor:
        if self._log_probs is None:
            ids = torch.tensor([self._tokens], device=self.device)
            if self.own:
                features, self._next_state = self.model(ids, self._state)
                self._features = features[0, -1]
                logits = self.model.logits(self._features)
            else:
                result = self.model(ids)
                logits = getattr(result, "logits", result)[0, -1]
            self._log_probs = torch.log_softmax(logits.double(), -1)
        return self._log_probs

    def hidden_state(self) -> np.ndarray:
        """(D,) what a library's model has of the tokens so far: its softmax is linear in it.

        Raises:
            TypeError: another module, whose hidden state nobody knows.
        """
        self._ask()
        if self._features is None:
            raise TypeError(f"model: {self.name} is no network of the library; its hidden state is not known")
        return self._features.double().cpu().numpy()

    def predict(self) -> np.ndarray:
        """(V,) probabilities."""
        return self._ask().exp().cpu().numpy()

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        return float(self._ask()[y])

    def observe(self, y: int) -> None:
        """The model reads the token."""
        self._ask()  # which takes the state past the token before
        self._state, self._log_probs = self._next_state, None
        self._tokens = [int(y)] if self.own else [*self._tokens, int(y)][-self.max_context :]

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
        if not self.own or not len(tokens):
            return _one_by_one(self, tokens)
        x = torch.as_tensor(np.asarray(tokens, dtype=np.int64), device=self.device)
        carried, values = Carried(torch.tensor(self._tokens, device=self.device), *self._state), []
        for part in x.split(512):
            reading = self.model.posterior(part[None], start=carried)
            carried = reading.filtered()
            values.append(reading.token_log_probs()[0].double())
        return torch.cat(values).cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """The tokens it still reads, and the carried state."""
        return {"tokens": list(self._tokens), "state": [part.cpu().numpy() for part in self._state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        self._begin()
        self._tokens = [int(y) for y in state["tokens"]]
        self._state = tuple(
            torch.as_tensor(np.asarray(part), device=self.device).to(old.dtype)
            for part, old in zip(state["state"], self._state, strict=True)
        )


def _one_by_one(source: TorchLanguageModelSource, tokens: np.ndarray) -> np.ndarray:
    before, values = source.state_dict(), []
    for y in np.asarray(tokens).tolist():
        values.append(source.log_prob_of(y))
        source.observe(y)
    source.load_state_dict(before)
    return np.array(values)
