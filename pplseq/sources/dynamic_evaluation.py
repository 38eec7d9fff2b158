"""A network that goes on learning on the stream: dynamic evaluation as a source."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.baselines.neural import NeuralLanguageModel
from pplseq.models.props.source import PutBack, put_back
from pplseq.sources.torch_model import TorchLanguageModelSource
from pplseq.sources.weights import WeightedSource

# chosen on the tweets before 15 July 2014, of an LSTM of WikiText-2
STEP, DECAY, EVERY = 0.3, 1e-3, 10
PRECISE = (torch.float32, torch.float64)


class DynamicEvaluation:
    """A network whose weights follow the stream by gradient steps, and are drawn back to where they began.

        w <- w - step g / max(1, |g| / clip) + decay (w_0 - w),     g = mean over the last words of grad -log p(x_t | past)

    The network itself stays as it is: the weights that follow are the source's own, so that any number of users share one
    network and none hears of another. Weights with ``requires_grad=False`` are left alone, and cost no memory.

    Args:
        model: a :class:`~pplseq.baselines.NeuralLanguageModel` (RNN, LSTM, FeedForward), or a
            :class:`~pplseq.sources.TorchLanguageModelSource` or :class:`~pplseq.sources.HuggingFaceSource` over any module of
            torch, which itself is not moved either.
        step: of the gradient, per update. decay: how much of the way back to w_0 each update goes.
        every: words between two updates, through which gradients flow. clip: largest length of a gradient.

    What is learned from is what was predicted: of a Hugging Face model the probability of whole words, and its unknown word,
    which has what all words leave, teaches nothing. To networks of the library the end of a line is a word; others begin a
    line afresh.

    Raises:
        TypeError: a model that is no torch module behind one of these sources.
        ValueError: one without weights that may move, or with weights in half precision, which would lose the steps.

    Cost: of ``every`` words one step of training, O(V D every). Memory a user: from the first update on its own copy of the
    weights that may move, two while an update lasts. A Hugging Face model's context is read anew after each update.

    Source: Krause, Kahembwe, Murray and Renals, Dynamic evaluation of neural sequence models (2018), sections 3 and 4.1
        (with one step size for all weights, as statistics of the training set may not be at hand).
    """

    def __init__(
        self,
        model: NeuralLanguageModel | WeightedSource,
        *,
        step: float = STEP,
        decay: float = DECAY,
        every: int = EVERY,
        clip: float = 1.0,
    ):
        source: Any = TorchLanguageModelSource(model) if isinstance(model, NeuralLanguageModel) else model
        if isinstance(source, type) or not isinstance(source, WeightedSource):
            raise TypeError(
                "model: dynamic evaluation takes a network of the library (RNN, LSTM, FeedForward), a TorchLanguageModelSource "
                f"or a HuggingFaceSource, got {type(source).__name__}, whose weights it cannot move; wrap a module of torch in "
                "TorchLanguageModelSource"
            )
        if step == math.inf:
            raise ValueError("step must be finite, got inf; give a number below one")
        self.step, self.clip = checks.positive("step", step), checks.positive("clip", clip)
        self.every = checks.count("every", every)
        self.decay = checks.share("decay", decay, "[0, 1)")
        self.source: Any = source.apart()
        self.model, self.num_words = source.model, source.num_words
        self.name = f"dynamic {source.name}"
        self._start = {name: value.detach() for name, value in self.model.named_parameters() if value.requires_grad}
        if not self._start:
            raise ValueError(
                f"model: {source.name} has no weights that may move; let some have requires_grad=True, or take the source alone"
            )
        if low := {str(value.dtype) for value in self._start.values() if value.dtype not in PRECISE}:
            raise ValueError(
                f"model: {source.name} has weights in {', '.join(sorted(low))}, too coarse for steps; give model.float()"
            )
        self.weights = self.source.weights = dict(self._start)
        self._last = self.source.line_end
        self._begin()

    def _begin(self) -> None:
        """Nothing was read since the last update: parts of the stream, each a place and the words behind it."""
        self._parts: list[tuple[dict[str, Any], list[int]]] = [(self.source.state_dict(), [])]

    def predict(self) -> np.ndarray:
        """(V,) probabilities."""
        return self.source.predict()

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        return self.source.log_prob_of(y)

    def hidden_state(self) -> np.ndarray:
        """(D,) what the network has of the words so far."""
        return self.source.hidden_state()

    def observe(self, y: int) -> None:
        """The network reads the word, and learns where ``every`` of them have come."""
        y = int(y)
        self.source.observe(y)
        place, words = self._parts[-1]
        # new lists: a mark holds the old ones
        self._parts, self._last = [*self._parts[:-1], (place, [*words, y])], y
        if sum(len(words) for _, words in self._parts) >= self.every:
            self._update()

    def _update(self) -> None:
        leaves = {name: value.detach().requires_grad_() for name, value in self.weights.items()}
        self.source.weights = leaves
        try:
            with torch.enable_grad():
                nats = torch.cat([self.source.nats(place, words) for place, words in self._parts if words])
                found = torch.autograd.grad(nats.mean(), list(leaves.values()), allow_unused=True) if len(nats) else ()
        finally:
            self.source.weights = self.weights
        if len(nats):
            self._step(dict(zip(leaves, found, strict=True)))
        self._begin()

    @torch.no_grad()
    def _step(self, gradients: dict[str, Tensor | None]) -> None:
        """The step along a gradient, None where a weight was not read."""
        length = float(torch.stack([g.square().sum() for g in gradients.values() if g is not None]).sum().sqrt())
        if not math.isfinite(length):
            raise ValueError(
                f"model: the gradient of {self.source.name} has length {length}; give a smaller step (now {self.step:g}), or "
                "look for words to which the network gives probability zero"
            )
        step, moved = self.step / max(1.0, length / self.clip), {}
        for name, value in self.weights.items():  # new tensors: a mark holds the old ones
            gradient = gradients[name]
            back = self.decay * (self._start[name] - value)
            moved[name] = value + back if gradient is None else value - step * gradient + back
        self.weights = self.source.weights = moved

    def reset(self) -> None:
        """Another line begins: a library's network reads its end, as in training; what was learned stays."""
        if self.source.line_end is None:
            self.source.reset()
            self._parts = [*(part for part in self._parts if part[1]), (self.source.state_dict(), [])]
        elif self._last != self.source.line_end:
            self.observe(self.source.line_end)

    def mark(self) -> PutBack:
        """Weights and state."""
        own, place = put_back(self, "weights", "_parts", "_last"), self.source.mark()

        def back() -> None:
            own()
            if self.source.weights is not self.weights:
                self.source.weights = self.weights
            place()

        return back

    def state_dict(self) -> dict[str, Any]:
        """The weights, the words since the last update, and the places before them and behind them."""
        weights = {name: value.cpu().numpy() for name, value in self.weights.items()}
        parts = [{"place": place, "words": list(words)} for place, words in self._parts]
        return {"weights": weights, "parts": parts, "last": self._last, "source": self.source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same network."""
        found = {name: tuple(np.shape(value)) for name, value in state["weights"].items()}
        if found != (own := {name: tuple(value.shape) for name, value in self._start.items()}):
            raise ValueError(
                f"model: the state has the weights {found}, not {own}; give the network that it was saved of"
            )
        self.weights = self.source.weights = {
            name: torch.as_tensor(np.asarray(state["weights"][name]), device=value.device).to(value.dtype)
            for name, value in self._start.items()
        }
        self.source.load_state_dict(state["source"])
        self._parts = [(part["place"], [int(y) for y in part["words"]]) for part in state["parts"]]
        self._last = state["last"]
