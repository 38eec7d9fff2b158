"""What a source is, a guard that checks what it says, and sources out of functions and of tables."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import numpy as np

TOLERANCE = 1e-3  # how far probabilities may be from a sum of one: those of float32 networks are off by about 1e-6


@runtime_checkable
class Source(Protocol):
    """Predicts the next token of a stream, then observes it.

    Beside these four, a source may have ``log_prob_of(y)``, log p of one token without the other V - 1;
    ``log_probs(tokens)``, a whole stream at once from where the source stands; ``state_dict()`` with
    ``load_state_dict(state)``, numbers, lists and arrays from which it goes on exactly; and ``mark()``, which returns a
    function that puts the source back where it stands, once it has observed a token or was reset.
    """

    num_words: int

    def predict(self) -> np.ndarray:
        """(V,) probabilities of the next token given those observed."""
        ...

    def observe(self, y: int) -> None:
        """Takes notice of the token that came."""
        ...

    def reset(self) -> None:
        """A new sequence begins: forget the context, keep what was learned."""
        ...


def check_probs(probs: Any, num_words: int, name: str = "source") -> np.ndarray:
    """(V,) float64 probabilities, or an error that names the source.

    Raises:
        ValueError: another shape, NaN, a negative probability, or a sum that is not one.
    """
    probs = np.asarray(probs, dtype=np.float64)
    if probs.shape != (num_words,):
        raise ValueError(
            f"{name}: predict() must give ({num_words},) probabilities, one a word; got shape {probs.shape}"
        )
    total = float(probs.sum())
    if not math.isfinite(total):
        where = int(np.flatnonzero(~np.isfinite(probs))[0])
        raise ValueError(
            f"{name}: the probability of word {where} is {probs[where]}; look for a division by zero in it"
        )
    if (low := float(probs.min())) < 0:
        raise ValueError(
            f"{name}: the probability of word {int(probs.argmin())} is {low:.4g}; are these log-probabilities?"
        )
    if abs(total - 1) > TOLERANCE:
        raise ValueError(f"{name}: its probabilities sum to {total:.6g} instead of 1; divide them by their sum")
    return probs


def check_token(y: int, num_words: int, name: str) -> None:
    """Refuses what is no word of a source.

    Raises:
        ValueError: a token outside of 0..num_words - 1.
    """
    if not 0 <= y < num_words:
        raise ValueError(
            f"{name}: token {y} is not in 0..{num_words - 1}; encode words with the source's vocabulary, and unknown ones as "
            "its unknown word"
        )


class CheckedSource:
    """A source whose every answer is checked, and which must be asked before it is told.

    Args:
        source: what is guarded.
        name: for messages; default: its own ``name``, or its class.

    Raises:
        ValueError: from ``predict`` and ``log_prob_of``: NaN, negative or unnormalised probabilities, a wrong size.
        RuntimeError: from ``observe``: the source was not asked before. It would have seen a token that it has yet to predict.
    """

    def __init__(self, source: Source, name: str | None = None):
        for method in ("predict", "observe", "reset"):
            if not callable(getattr(source, method, None)):
                raise TypeError(
                    f"source: expected an object with predict(), observe(y) and reset(), got {type(source).__name__} without "
                    f"{method}; wrap a function of the prefix in pplseq.sources.CallableSource"
                )
        self.name = name or getattr(source, "name", None) or type(source).__name__
        if not isinstance(getattr(source, "num_words", None), Integral):
            raise TypeError(
                f"source: {self.name} must say how many words it has as num_words, got {getattr(source, 'num_words', None)!r}"
            )
        self.source: Any = source  # which may have more than the four
        self.num_words = source.num_words
        self._asked = False

    def predict(self) -> np.ndarray:
        """(V,) checked probabilities."""
        probs = check_probs(self.source.predict(), self.num_words, self.name)
        self._asked = True
        return probs

    def log_prob_of(self, y: int) -> float:
        """log p(y), nats: by the source's own short way where it has one."""
        self._check_token(y)
        if not hasattr(self.source, "log_prob_of"):
            with np.errstate(divide="ignore"):
                return float(np.log(self.predict()[y]))
        value = float(self.source.log_prob_of(y))
        if not value <= 1e-6:  # NaN as well
            raise ValueError(f"{self.name}: log p of word {y} is {value}, but no probability is above 1")
        self._asked = True
        return min(value, 0.0)

    def observe(self, y: int) -> None:
        """Tells the source which token came."""
        self._check_token(y)
        if not self._asked:
            raise RuntimeError(
                f"{self.name}: observe({y}) before predict(): a source must be asked for each token before it is told. To "
                "read a context that nobody predicts, use source.source.observe"
            )
        self._asked = False
        self.source.observe(y)

    def reset(self) -> None:
        """A new sequence begins."""
        self._asked = False
        self.source.reset()

    def mark(self) -> PutBack | None:
        """Puts source and guard back where they stand."""
        back, asked = mark_of(self.source), self._asked

        def both() -> None:
            self._asked = asked
            assert back is not None
            back()

        return None if back is None else both

    def state_dict(self) -> dict[str, Any]:
        """The source's own state."""
        return source_state(self.source, self.name)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        self._asked = False
        self.source.load_state_dict(state)

    def _check_token(self, y: int) -> None:
        check_token(y, self.num_words, self.name)


def source_state(source: Any, name: str) -> dict[str, Any]:
    """``source.state_dict()``, or a TypeError that says what is missing."""
    if not hasattr(source, "state_dict"):
        raise TypeError(
            f"{name}: it has no state_dict(), so it cannot be saved; add state_dict() and load_state_dict(), or start it anew"
        )
    return source.state_dict()


PutBack = Callable[[], object]


def put_back(thing: Any, *names: str) -> PutBack:
    """A function that gives attributes the values they have now; of what is replaced, not changed in place."""
    values = {name: getattr(thing, name) for name in names}
    return lambda: vars(thing).update(values)


class Trail:
    """What a source changes in place, to be taken back to any of its marks; kept only as far as there are marks."""

    def __init__(self) -> None:
        self._end: list[Any] = [None, None]  # (how it is taken back, what came next): older ones nobody but marks refers to

    def add(self, take_back: PutBack) -> None:
        """A change was made, or is about to be."""
        self._end[1] = [take_back, None]
        self._end = self._end[1]

    def mark(self) -> PutBack:
        """Takes back all changes from here on, the last one first."""
        place = self._end

        def back() -> None:
            changes, entry = [], place[1]
            while entry is not None:
                changes.append(entry[0])
                entry = entry[1]
            for take_back in reversed(changes):
                take_back()
            place[1], self._end = None, place

        return back


def mark_of(source: Any) -> PutBack | None:
    """A function that puts a source back where it stands, by its ``mark`` or a copy of its state; None where it has neither."""
    if hasattr(source, "mark"):
        return source.mark()
    # the state of a network is its weights, which a token does not change and which are too large to be copied for each
    if hasattr(source, "load_state_dict") and hasattr(source, "state_dict") and not hasattr(source, "named_parameters"):
        state = copy.deepcopy(source.state_dict())
        return lambda: source.load_state_dict(state)
    return None


@contextlib.contextmanager
def all_or_none(sources: Sequence[Any], called: Callable[[int], str]) -> Iterator[None]:
    """What sources observe inside is observed by all of them or, where one raises, by none; `called` names them by number.

    Raises:
        RuntimeError: in the place of a source's error, where sources without ``mark`` or ``state_dict`` cannot be put back.
    """
    marks = [mark_of(source) for source in sources]
    try:
        yield
    except BaseException as error:
        for back in marks:
            if back is not None:
                back()
        lost = [called(k) for k, back in enumerate(marks) if back is None]
        if not lost or not isinstance(error, Exception):
            raise
        raise RuntimeError(
            f"{error} ({type(error).__name__}); and {', '.join(lost)} could not be put back to where they stood, having "
            "neither mark() nor state_dict(): begin anew, or from a state that was saved"
        ) from error


def stream_log_probs(source: Source, tokens: Iterable[int]) -> np.ndarray:
    """(T,) log p(y_t | y_1..y_{t-1}) of a stream, nats, by a source that goes on from where it stands.

    Takes the source's ``log_probs`` where it has one, which is faster and leaves the source where it was; otherwise the
    source has observed the tokens afterwards.
    """
    tokens = np.asarray(list(tokens) if not isinstance(tokens, np.ndarray) else tokens)
    whole = getattr(source, "log_probs", None)
    if whole is not None:
        return np.asarray(whole(tokens))
    checked, values = CheckedSource(source), np.empty(len(tokens))
    for t, y in enumerate(tokens.tolist()):
        values[t] = checked.log_prob_of(y)
        checked.observe(y)
    return values


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

    def mark(self) -> PutBack:
        """Cuts the prefix where it ends now."""
        prefix, size = self.prefix, len(self.prefix)
        kept = None if self.max_context is None else list(prefix)

        def back() -> None:
            prefix[:] = prefix[:size] if kept is None else kept
            self.prefix = prefix

        return back

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

    def mark(self) -> PutBack:
        """The place."""
        return put_back(self, "position")

    def state_dict(self) -> dict[str, Any]:
        """The place."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a place."""
        self.position = int(state["position"])
