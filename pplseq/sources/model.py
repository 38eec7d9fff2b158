"""The library's own models as sources: a trained VL-HMM, or any model of words whose posterior is a chain of states."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pplseq.distributions.state import Belief
from pplseq.infer.discrete.chain import Chain
from pplseq.models.props.source import PutBack, put_back
from pplseq.runs.training import model_device


class ModelSource:
    """A model of words with discrete states, whose filtered belief is carried from token to token.

    Its probabilities are exact, p(y_t | y_1..y_{t-1}). ``log_prob_of`` opens only the states of the token that came;
    ``predict`` sums over all of them.

    Args:
        model: a trained :class:`~pplseq.models.VLHMM`, or a :class:`~pplseq.models.HMM` of words.
    """

    def __init__(self, model: Any):
        if getattr(model, "num_words", None) is None or not hasattr(model, "posterior"):
            raise TypeError(f"model: expected a model of words with states, got {type(model).__name__}")
        self.model, self.num_words, self.name = model.eval(), model.num_words, model.name
        self.device = model_device(model)
        self.reset()

    def _read(self, y: int) -> Chain:
        """The chain of one more token."""
        if self._step is None or self._step[0] != y:
            x = torch.tensor([[int(y)]], device=self.device)
            self._step = int(y), self.model.posterior(x, start=self._belief)
        return self._step[1]

    def hidden_state(self) -> np.ndarray:
        """(Z,) square roots of the states' probabilities, whose inner products are Bhattacharyya coefficients.

        Raises:
            TypeError: a model whose states lie in blocks, of which every word opens another one.
        """
        belief = self._belief
        if belief is None:
            return np.full(self.model.num_states, self.model.num_states**-0.5)
        if belief.ids is not None:
            raise TypeError(f"model: {self.name} opens another block of states with every word; it has no vector in common")
        return belief.log_probs[0].double().softmax(-1).sqrt().cpu().numpy()

    @torch.no_grad()
    def predict(self) -> np.ndarray:
        """(V,) probabilities."""
        # the specs come with a chain; which word it is about does not matter here
        chain = self._step[1] if self._step else self._read(0)
        probs: Any = chain.next_after(self._belief).word_log_probs
        return probs[0].double().softmax(-1).cpu().numpy()

    @torch.no_grad()
    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        return float(self._read(y).log_prob()[0])

    @torch.no_grad()
    def observe(self, y: int) -> None:
        """The belief moves on."""
        self._belief, self._step = self._read(y).filtered(), None

    def reset(self) -> None:
        """A new sequence starts from the model's start distribution."""
        self._belief: Belief | None = None
        self._step: tuple[int, Chain] | None = None  # the token that was asked for, read

    def mark(self) -> PutBack:
        """The belief."""
        return put_back(self, "_belief", "_step")

    @torch.no_grad()
    def log_probs(self, tokens: np.ndarray) -> np.ndarray:
        """(T,) nats of a stream from where the source stands, which stays there."""
        if not len(tokens):
            return np.zeros(0)
        x, belief, values = torch.as_tensor(np.asarray(tokens, dtype=np.int64), device=self.device), self._belief, []
        for part in x.split(512):
            chain = self.model.posterior(part[None], start=belief)
            belief = chain.filtered()
            values.append(chain.token_log_probs()[0].double())
        return torch.cat(values).cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """The belief."""
        if self._belief is None:
            return {}
        return {name: part.cpu().numpy() for name, part in self._belief._asdict().items() if part is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a belief."""
        self.reset()
        if state:
            parts = {name: torch.as_tensor(np.asarray(part), device=self.device) for name, part in state.items()}
            self._belief = Belief(**{"ids": None, **parts})
