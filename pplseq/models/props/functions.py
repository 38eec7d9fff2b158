"""Sources out of functions and of tables that were computed beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class CallableSource:
    """Any function of the tokens so far.

    Args:
        function: called with the list of tokens observed since the last reset; returns (V,) probabilities.
        num_words: V.
        max_context: how many tokens are kept for it; None: all, so that memory grows with the stream.
        name: for messages.
    """

    def __init__(
        self,
        function: Callable[[list[int]], np.ndarray],
        num_words: int,
        *,
        max_context: int | None = None,
        name: str | None = None,
    ):
        if not callable(function):
            raise TypeError(f"function: expected a function of the tokens so far, got {type(function).__name__}")
        if max_context is not None and max_context < 0:
            raise ValueError(f"max_context: expected 0 or more tokens, or None for all, got {max_context}")
        self.function, self.num_words, self.max_context = function, num_words, max_context
        self.name = name or getattr(function, "__name__", "function")
        self.prefix: list[int] = []

    def predict(self) -> np.ndarray:
        """(V,) what the function says of the prefix."""
        return np.asarray(self.function(list(self.prefix)))

    def observe(self, y: int) -> None:
        """The prefix is one longer."""
        self.prefix.append(int(y))
        if self.max_context is not None:
            del self.prefix[: len(self.prefix) - self.max_context]

    def reset(self) -> None:
        """The prefix is empty."""
        self.prefix = []

    def state_dict(self) -> dict[str, Any]:
        """The prefix."""
        return {"prefix": list(self.prefix)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a prefix."""
        self.prefix = [int(y) for y in state["prefix"]]


class ArraySource:
    """Predictions that were made beforehand, one row a token; row t must not depend on y_t.

    Args:
        probs: (T, V) probabilities.
    """

    name = "array"

    def __init__(self, probs: Sequence[Sequence[float]] | np.ndarray):
        self.probs = np.asarray(probs)
        if self.probs.ndim != 2:
            raise ValueError(f"probs: expected (T, V) probabilities, got shape {self.probs.shape}")
        self.num_words, self.position = self.probs.shape[1], 0

    def predict(self) -> np.ndarray:
        """(V,) the row of the next token."""
        if self.position >= len(self.probs):
            raise IndexError(f"array: it has predictions for {len(self.probs)} tokens, and the stream goes on")
        return self.probs[self.position]

    def observe(self, y: int) -> None:
        """On to the next row."""
        self.position += 1

    def reset(self) -> None:
        """Nothing: rows belong to places in the stream, not in a sequence."""

    def state_dict(self) -> dict[str, Any]:
        """The place."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a place."""
        self.position = int(state["position"])
