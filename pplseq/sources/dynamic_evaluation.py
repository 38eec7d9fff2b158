"""A network that goes on learning on the stream: dynamic evaluation as a source."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from pplseq import checks
from pplseq.baselines.neural import NeuralLanguageModel
from pplseq.models.props.source import PutBack, put_back

# chosen on the tweets before 15 July 2014, of an LSTM of WikiText-2
STEP, DECAY, EVERY = 0.3, 1e-3, 10


class DynamicEvaluation:
    """A network of the library whose weights follow the stream by gradient steps, and are drawn back to where they began.

        w <- w - step g / max(1, |g| / clip) + decay (w_0 - w),     g = mean over the last words of grad -log p(x_t | past)

    The network itself stays as it is: the weights that follow are the source's own.

    Args:
        model: a :class:`~pplseq.baselines.NeuralLanguageModel` (RNN, LSTM, FeedForward).
        step: of the gradient, per update. decay: how much of the way back to w_0 each update goes.
        every: words between two updates, through which gradients flow. clip: largest length of a gradient.

    Cost: of ``every`` words one step of training, O(V D every); memory twice the network's.

    Source: Krause, Kahembwe, Murray and Renals, Dynamic evaluation of neural sequence models (2018), sections 3 and 4.1
        (with one step size for all weights, as statistics of the training set may not be at hand).
    """

    def __init__(
        self,
        model: NeuralLanguageModel,
        *,
        step: float = STEP,
        decay: float = DECAY,
        every: int = EVERY,
        clip: float = 1.0,
    ):
        if not isinstance(model, NeuralLanguageModel):
            raise TypeError(
                f"model: dynamic evaluation takes a network of the library (RNN, LSTM, FeedForward), got {type(model).__name__}"
            )
        self.model: NeuralLanguageModel = model.eval()
        self.step, self.clip = checks.positive("step", step), checks.positive("clip", clip)
        self.every = checks.count("every", every)
        self.decay = checks.share("decay", decay, "[0, 1)")
        self.num_words, self.first = model.num_words, model.vocabulary.eos_id
        self.name = f"dynamic {model.name}"
        self.device = next(model.parameters()).device
        self._start = {name: value.detach() for name, value in model.named_parameters()}
        self.weights = dict(self._start)
        self._gradient = grad(self._loss)
        self._words = [self.first]  # those read since the last update, behind the one before
        self._state = self._before = self.model.initial_state(1)  # after all of them but the last; before the first
        self._log_probs: Tensor | None = None
        self._next_state: tuple[Tensor, ...] = ()

    def _call(self, weights: dict[str, Tensor], words: list[int], state: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        """(T, V) logits behind words, and the state after them."""
        ids = torch.tensor([words], device=self.device)
        return functional_call(_Logits(self.model), {f"model.{k}": v for k, v in weights.items()}, (ids, state))

    def _loss(self, weights: dict[str, Tensor], words: list[int], state: tuple[Tensor, ...]) -> Tensor:
        logits, _ = self._call(weights, words[:-1], state)
        return nn.functional.cross_entropy(logits, torch.tensor(words[1:], device=self.device))

    @torch.no_grad()
    def _ask(self) -> Tensor:
        if self._log_probs is None:
            logits, self._next_state = self._call(self.weights, self._words[-1:], self._state)
            self._log_probs = torch.log_softmax(logits[-1].double(), -1)
        return self._log_probs

    def predict(self) -> np.ndarray:
        """(V,) probabilities."""
        return self._ask().exp().cpu().numpy()

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        return float(self._ask()[y])

    def hidden_state(self) -> np.ndarray:
        """(D,) what the network has of the words so far."""
        with torch.no_grad():
            ids = torch.tensor([self._words[-1:]], device=self.device)
            features, _ = functional_call(self.model, self.weights, (ids, self._state))
            return features[0, -1].double().cpu().numpy()

    def observe(self, y: int) -> None:
        """The network reads the word, and learns where ``every`` of them have come."""
        self._ask()
        self._state, self._log_probs = self._next_state, None
        self._words = [*self._words, int(y)]
        if len(self._words) > self.every:
            self._update()

    def _update(self) -> None:
        gradients = self._gradient(self.weights, self._words, self._before)
        with torch.no_grad():
            length = float(torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt())
            step = self.step / max(1.0, length / self.clip)
            # new tensors: a mark holds the old ones
            self.weights = {
                name: value - step * gradients[name] + self.decay * (self._start[name] - value)
                for name, value in self.weights.items()
            }
        self._words, self._before = self._words[-1:], self._state

    def reset(self) -> None:
        """Another line begins: the network reads its end, as in training; what was learned stays."""
        if self._words[-1] != self.first:
            self.observe(self.first)

    def mark(self) -> PutBack:
        """Weights and state."""
        return put_back(self, "weights", "_words", "_state", "_before", "_log_probs", "_next_state")

    def state_dict(self) -> dict[str, Any]:
        """The weights' way from where they began, the words since the last update, and the states around them."""
        moved = {name: (value - self._start[name]).cpu().numpy() for name, value in self.weights.items()}
        states = [[part.cpu().numpy() for part in state] for state in (self._state, self._before)]
        return {"moved": moved, "words": list(self._words), "states": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same network."""
        if set(state["moved"]) != set(self._start):
            raise ValueError(f"model: the state has the weights {sorted(state['moved'])}, not {sorted(self._start)}")

        def tensor(value: Any, like: Tensor) -> Tensor:
            return torch.as_tensor(np.asarray(value), device=self.device).to(like.dtype)

        self.weights = {name: value + tensor(state["moved"][name], value) for name, value in self._start.items()}
        self._words, self._log_probs, like = [int(y) for y in state["words"]], None, self.model.initial_state(1)
        self._state, self._before = (
            tuple(tensor(part, old) for part, old in zip(parts, like, strict=True)) for parts in state["states"]
        )


class _Logits(nn.Module):
    """A network with its softmax, so that both are called with the same weights."""

    def __init__(self, model: NeuralLanguageModel):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        features, after = self.model(ids, state)
        return self.model.logits(features[0]), after
