"""The words that came in situations like this one: a cache over the hidden states of another source."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.models.props.source import PutBack, Trail, check_token, put_back

# chosen on the tweets before 15 July 2014, of an LSTM and a hidden Markov model of WikiText-2
SHARPNESS = 8.0
SIZE = 2000


class ContinuousCache:
    """Words of the stream so far, those more that came behind a hidden state like the one now.

        p(w) = (1 - a / (n + a)) sum_i 1[x_i = w] exp(theta cos(h_i, h)) / sum_i exp(theta cos(h_i, h)) + a / (n + a) / V

    h is the hidden state from which the other source predicts the next word, h_i the one from which it predicted the past word
    x_i, i over the last n words. The cosine stands where Grave et al. have the inner product, so that theta means the same for
    every network.

    Args:
        source: has ``hidden_state()``, a vector (D,) of what comes next: a network or an HMM of the library as a source, or a
            :class:`DynamicEvaluation`. It is only looked at: whoever holds it lets it observe, after this one was asked.
        sharpness: theta; 0 is a plain cache of the last words.
        size: words kept, n at most.
        smoothing: a, words' worth of the uniform distribution.

    Raises:
        ValueError: settings or hidden states that are not finite, tokens outside of 0..V-1. TypeError: no ``hidden_state``.

    Cost: O(size D) a word; memory size (D + 1) numbers.

    Source: Grave, Joulin and Usunier, Improving neural language models with a continuous cache (2017), equations 3 and 4.
    """

    def __init__(self, source: Any, *, sharpness: float = SHARPNESS, size: int = SIZE, smoothing: float = 1.0):
        if not callable(getattr(source, "hidden_state", None)):
            raise TypeError(
                f"source: a continuous cache needs one with hidden_state(), got {type(source).__name__}; give a network, or a "
                "model with states, or take UnigramCache, which needs none"
            )
        self.sharpness = checks.positive("sharpness", sharpness, zero=True)
        self.size = checks.count("size", size)
        self.smoothing = checks.positive("smoothing", smoothing)
        for name, value in (("sharpness", sharpness), ("smoothing", smoothing)):
            if math.isinf(value):
                raise ValueError(f"{name} must be finite, got {value}; of the nearest words alone a large one is as good")
        self.source, self.num_words = source, source.num_words
        self.name = f"continuous cache of {getattr(source, 'name', type(source).__name__)}"
        self.words = np.full(size, -1, dtype=np.int64)
        self.states: np.ndarray | None = None  # (size, D), of length one
        self.count = 0  # of all words; word t stands in row t modulo size
        self._now: np.ndarray | None = None  # the hidden state of the word to come, once somebody asked
        self._trail = Trail()

    def _weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Words kept, and what they weigh together with the uniform distribution's rest."""
        if self._now is None:
            state = np.asarray(self.source.hidden_state(), dtype=np.float64)
            if not np.isfinite(state).all():
                wrong = state[~np.isfinite(state)][0]
                raise ValueError(f"{self.name}: the hidden state holds {wrong}; look for overflow or a division by zero in it")
            self._now = state / max(float(np.linalg.norm(state)), 1e-30)
            if self.states is None:
                self.states = np.zeros((self.size, len(state)))
        size = min(self.count, self.size)
        assert self.states is not None
        cosines = self.states[:size] @ self._now
        weights = np.exp(self.sharpness * (cosines - cosines.max(initial=-1.0)))  # the nearest one has a weight of 1
        share = size / (size + self.smoothing)
        return self.words[:size], weights * (share / max(float(weights.sum()), 1.0))

    def _rest(self) -> float:
        size = min(self.count, self.size)
        return self.smoothing / (size + self.smoothing) / self.num_words

    def predict(self) -> np.ndarray:
        """(V,) probabilities."""
        words, weights = self._weights()
        probs = np.full(self.num_words, self._rest())
        np.add.at(probs, words, weights)
        return probs

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats."""
        check_token(y, self.num_words, self.name)
        words, weights = self._weights()
        return math.log(float(weights[words == y].sum()) + self._rest())

    def observe(self, y: int) -> None:
        """Keeps the word beside the hidden state that it was predicted from."""
        check_token(y, self.num_words, self.name)
        if self._now is None:
            self._weights()  # which the source must not have left yet
        assert self.states is not None and self._now is not None
        row = self.count % self.size
        kept = self.words, self.states, self.words[row], self.states[row].copy()
        self._trail.add(partial(self._take_back, self.count, *kept))
        self.words[row], self.states[row] = y, self._now
        self.count, self._now = self.count + 1, None

    def reset(self) -> None:
        """The hidden state is another one; what is kept lasts from sequence to sequence."""
        self._now = None

    def _take_back(self, count: int, words: np.ndarray, states: np.ndarray, word: int, state: np.ndarray) -> None:
        row = count % self.size
        self.count, self.words, self.states = count, words, states
        self.words[row], self.states[row] = word, state

    def mark(self) -> PutBack:
        """Takes back the words that are kept from here on."""
        words, now = self._trail.mark(), put_back(self, "_now")

        def back() -> None:
            words()
            now()

        return back

    def state_dict(self) -> dict[str, Any]:
        """The words kept, with their hidden states."""
        size = min(self.count, self.size)
        states = np.zeros((0, 0)) if self.states is None else self.states[:size]
        return {"words": self.words[:size].copy(), "states": states.copy(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what was kept, in a cache of the same size."""
        words, states = np.asarray(state["words"]), np.asarray(state["states"], dtype=np.float64)
        if len(words) != min(int(state["count"]), self.size):
            raise ValueError(f"size: {len(words)} words were kept of {state['count']}, this cache keeps {self.size}")
        self.words = np.full(self.size, -1, dtype=np.int64)
        self.words[: len(words)] = words
        self.states = None if not len(words) else np.zeros((self.size, states.shape[1]))
        if self.states is not None:
            self.states[: len(words)] = states
        self.count, self._now = int(state["count"]), None
