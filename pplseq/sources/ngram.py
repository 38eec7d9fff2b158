"""A Kneser-Ney model as a source."""

from __future__ import annotations

from typing import Any

import numpy as np

from pplseq.baselines.kneser_ney import KneserNey
from pplseq.models.props.source import PutBack, put_back


class NGramSource:
    """A fitted :class:`~pplseq.baselines.KneserNey` model; each `<eos>` in the stream ends its context.

    Args:
        model: fitted.
    """

    def __init__(self, model: KneserNey):
        if model.vocabulary is None:
            raise ValueError("model: expected a fitted KneserNey; call fit(text) first")
        self.model, self.num_words = model, len(model.vocabulary)
        self.name = f"{model.order}-gram"
        self.context: list[int] = []

    def predict(self) -> np.ndarray:
        """(V,) probabilities."""
        return np.exp(self.model.next_word(self.context))

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats, at a cost independent of V."""
        return self.model.log_prob_of(y, self.context)

    def observe(self, y: int) -> None:
        """The context moves on."""
        if self.model.vocabulary is not None and y == self.model.vocabulary.eos_id:
            self.context = []
            return
        # one more than it looks back, so that the start of the line is known to be far
        self.context = [*self.context, int(y)][-max(self.model.order, 1) :]

    def reset(self) -> None:
        """A line begins."""
        self.context = []

    def mark(self) -> PutBack:
        """The context."""
        return put_back(self, "context")

    def log_probs(self, tokens: np.ndarray) -> np.ndarray:
        """(T,) nats of a stream from where the source stands, which stays there."""
        context, values = list(self.context), np.empty(len(tokens))
        for t, y in enumerate(np.asarray(tokens).tolist()):
            values[t] = self.log_prob_of(y)
            self.observe(y)
        self.context = context
        return values

    def state_dict(self) -> dict[str, Any]:
        """The context."""
        return {"context": list(self.context)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a context."""
        self.context = [int(y) for y in state["context"]]
