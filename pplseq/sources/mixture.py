"""Several sources as one: a mixture with fixed or learned weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pplseq.models.props.source import CheckedSource, PutBack, Source, mark_of, put_back, source_state


class MixtureSource:
    """p(y) = sum_i w_i p_i(y), as in a language model beside a cache.

    Args:
        sources: at least one, over the same words.
        weights: (n,) non-negative, scaled to sum to one; default: equal.
        learn: update the weights by online EM after every token, w += (r - w) / (t + 1)^exponent with the sources'
            responsibilities r for the token.
        exponent: of the step size, in (1/2, 1].

    Source: Kuhn and De Mori, A cache-based natural language model (1990), for the mixture; Cappe and Moulines (2009), for
        the online EM.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float] | None = None,
        *,
        learn: bool = False,
        exponent: float = 0.8,
        name: str = "mixture",
    ):
        if not sources:
            raise ValueError("sources: expected at least one")
        self.sources = [CheckedSource(source) for source in sources]
        sizes = {source.num_words for source in self.sources}
        if len(sizes) > 1:
            raise ValueError(f"sources: they must have the same words, got {sorted(sizes)} of them")
        shares = np.ones(len(sources)) if weights is None else np.asarray(weights, dtype=np.float64)
        if shares.shape != (len(sources),) or not (shares >= 0).all() or not 0 < shares.sum() < math.inf:
            raise ValueError(f"weights: expected {len(sources)} non-negative numbers with a positive sum, got {shares}")
        if not 0.5 < exponent <= 1:
            raise ValueError(f"exponent: expected above 1/2 and at most 1, got {exponent}")
        self.num_words, self.name, self.learn, self.exponent = sizes.pop(), name, learn, exponent
        self.weights, self.num_steps = shares / shares.sum(), 0
        self._parts: tuple[Any, Any] = (None, None)  # the token that was asked for, and log p of every source

    def predict(self) -> np.ndarray:
        """(V,) the mixture."""
        return np.sum([w * source.predict() for w, source in zip(self.weights, self.sources, strict=True)], 0)

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        self._parts = int(y), self._log_probs_of(y)
        top, shares = self._shares(self._parts[1])
        return top + math.log(float(shares.sum())) if top > -math.inf else top

    def observe(self, y: int) -> None:
        """All sources observe; the weights move if they are learned."""
        asked, parts = self._parts
        if self.learn:
            top, joint = self._shares(self._log_probs_of(y) if asked != y else parts)
            if top > -math.inf:
                self.num_steps += 1
                step = (self.num_steps + 1) ** -self.exponent
                self.weights = self.weights + step * (joint / joint.sum() - self.weights)
        self._parts = None, None
        for source in self.sources:
            source.source.observe(y)

    def _log_probs_of(self, y: int) -> np.ndarray:
        return np.array([source.log_prob_of(y) for source in self.sources])

    def _shares(self, log_probs: np.ndarray) -> tuple[float, np.ndarray]:
        """The largest log p of a source that counts, and what each adds to p(y) over that one's."""
        top = float(log_probs[self.weights > 0].max())
        return top, self.weights * np.exp(np.minimum(log_probs - top, 0.0)) if top > -math.inf else self.weights * 0.0

    def reset(self) -> None:
        """All sources begin a new sequence."""
        self._parts = None, None
        for source in self.sources:
            source.reset()

    def mark(self) -> PutBack | None:
        """Weights, and the marks of all sources; None where one has none."""
        own, parts = put_back(self, "weights", "num_steps", "_parts"), [mark_of(source) for source in self.sources]

        def back() -> None:
            own()
            for part in parts:
                assert part is not None
                part()

        return None if None in parts else back

    def state_dict(self) -> dict[str, Any]:
        """Weights and the states of all sources."""
        parts = [source_state(source.source, source.name) for source in self.sources]
        return {"weights": self.weights.tolist(), "num_steps": self.num_steps, "sources": parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        self._parts = None, None
        self.weights, self.num_steps = np.asarray(state["weights"], dtype=np.float64), int(state["num_steps"])
        for source, part in zip(self.sources, state["sources"], strict=True):
            source.load_state_dict(part)
