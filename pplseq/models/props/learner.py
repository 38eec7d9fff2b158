"""PROPS for people with a stream: sources that predict and observe, and a model that learns between the two."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pplseq import checks
from pplseq.folder import FolderError, check_content, sound
from pplseq.models.forms import unmasked
from pplseq.models.props.drift import NEVER, SurpriseDetector, detector_from, detector_of
from pplseq.models.props.guard import SourceGuard, guard_of
from pplseq.models.props.program import PROPS, SOURCE_SHARE
from pplseq.models.props.queries import sharpened
from pplseq.models.props.settings import StepInfo
from pplseq.models.props.source import (
    CallableSource,
    PutBack,
    all_or_none,
    check_probs,
    mark_of,
    put_back,
    source_state,
)
from pplseq.models.props.storage import as_tensors, check_kind, pack_stream, unpack_checked
from pplseq.models.props.word_statistics import word_id
from pplseq.models.storage import MODEL

KIND = "props learner"


class PROPSLearner(checks.NamedArguments):
    """Learns one token at a time how a stream departs from what sources predict.

    For every token the learner asks each source for its prediction, takes the token in, and only then lets the sources
    observe it. A source is any object with

        predict() -> (V,) probabilities of the next token given what was observed,
        observe(y), reset() (a sequence ends; it may do nothing),

    and, if it can, ``log_prob_of(y)`` (faster than ``predict``; the only way for vectors, unless ``predict`` gives a
    distribution with ``log_prob``), ``state_dict()`` / ``load_state_dict()``, and ``mark()``, by which it is put back where a
    source beside it fails (without it, a copy of its state is kept before every token). A function of the list of tokens so far
    is a source too.

    Args:
        sources: each pinned to one state, in this order; none for a streaming HMM.
        num_words: V. num_features: D, of vectors; one of the two.
        num_perturbations: K_p states with emissions of their own.
        unknown_id: the word that stands for tokens outside of 0..V-1; None refuses them.
        initial, transition, source_share, covariance, covariance_floor, seed: of :class:`~pplseq.models.props.program.PROPS`.
        drift: True: where a stream has become another one the step size goes back, so that it is learned anew, see
            :class:`~pplseq.models.props.drift.SurpriseDetector`; or a detector of your own with river's interface, which hears
            the surprise of every token, less that of the first source where there is one (not where that says never).
        guard: least weight of the first source, as it is, in a mixture with all that is learned, which bounds what any stretch
            of the stream can lose to it, see :class:`~pplseq.models.props.guard.SourceGuard`; .02 unless told, 0 for
            none, as in the paper. Log-probabilities and predictions are the mixture's, filters and parameters the model's.
        **options: of :class:`~pplseq.models.props.settings.OnlineEM`: exponent (.6 with several sources, .8 else), step_size,
            smoothing, averaging, ...

    Example::

        learner = PROPSLearner([lambda prefix: probabilities], num_words=10_000, exponent=0.8)
        for y in stream:
            info = learner.learn_one(y)
    """

    def __init__(
        self,
        sources: Sequence = (),
        num_words: int | None = None,
        *,
        num_features: int | None = None,
        num_perturbations: int = 2,
        unknown_id: int | None = None,
        initial=None,
        transition=None,
        source_share: float = SOURCE_SHARE,
        covariance: str = "diag",
        covariance_floor: float = 1e-3,
        seed: int | None = None,
        drift: Any = None,
        guard: float | None = None,
        **options,
    ):
        sources, detector = _as_list(sources), detector_of(drift, options)
        options.setdefault("exponent", default_exponent(len(sources)))
        model = PROPS(
            num_words, num_features=num_features, num_sources=len(sources), num_perturbations=num_perturbations,
            initial=initial, transition=transition, source_share=source_share, covariance=covariance,
            covariance_floor=covariance_floor, seed=seed,
        )  # fmt: skip
        self._begin(sources, model.start(**options), num_words, unknown_id)
        self.detector = detector
        self.guard = guard_of(guard, initial, len(sources))

    def _begin(self, sources: Sequence[Any], state, num_words, unknown_id: Any) -> None:
        plain = [callable(source) and not hasattr(source, "predict") for source in sources]
        if any(plain) and num_words is None:
            raise TypeError(
                f"sources: source {plain.index(True)} is a function, which can only be one of words; for vectors give an "
                "object with predict, observe and reset"
            )
        self.sources = [
            CallableSource(s, num_words) if is_plain else s for s, is_plain in zip(sources, plain, strict=True)
        ]
        self.state, self.num_words, self.unknown_id = state, num_words, unknown_id
        if unknown_id is not None and num_words is None:
            raise ValueError(
                f"unknown_id is for words, and vectors have no unknown one; leave it out, got {checks.shown(unknown_id)}"
            )
        integer = isinstance(unknown_id, Integral) and not isinstance(unknown_id, bool)
        if unknown_id is not None and not (integer and 0 <= int(unknown_id) < num_words):
            raise ValueError(f"unknown_id must be a word id in 0..{num_words - 1}, or None; got {checks.shown(unknown_id)}")
        for k, source in enumerate(self.sources):
            if missing := [name for name in ("observe", "reset") if not callable(getattr(source, name, None))]:
                raise TypeError(
                    f"sources: {self._called(k)} has no {missing[0]}(); a source has predict, observe and reset"
                )
            if not hasattr(source, "predict") and not hasattr(source, "log_prob_of"):
                raise TypeError(f"sources: {self._called(k)} has no predict(); a source has predict, observe and reset")
            if any(source is other for other in self.sources[:k]):
                raise ValueError(
                    f"sources: {self._called(k)} is there twice, and would observe every token twice; give a copy of it"
                )
            own = getattr(source, "num_words", num_words)
            if own != num_words:
                raise ValueError(
                    f"sources: {self._called(k)} has {own} words, but num_words is {num_words}; they must agree"
                )
        self._predictions: list = [None] * len(self.sources)
        self.detector: Any = None
        self.guard: SourceGuard | None = None

    def _called(self, k: int) -> str:
        name = getattr(self.sources[k], "name", None) or type(self.sources[k]).__name__
        return f"source {k} ({name})"

    @property
    def num_sources(self) -> int:
        """K_s."""
        return len(self.sources)

    @property
    def num_steps(self) -> int:
        """Tokens learned so far."""
        return self.state.num_steps

    # ---------------------------------------------------------------- what sources say
    def _prediction(self, k: int):
        """What source k says of the next token, asked once."""
        if self._predictions[k] is None:
            given = self.sources[k].predict()
            if self.num_words is not None:
                given = check_probs(given, self.num_words, self._called(k))
            self._predictions[k] = given
        return self._predictions[k]

    def _source_log_probs(self, y) -> list[float]:
        return [self._source_log_prob(k, y) for k in range(len(self.sources))]

    def _source_log_prob(self, k: int, y) -> float:
        source: Any = self.sources[k]
        if self._predictions[k] is None and hasattr(source, "log_prob_of"):
            value = float(source.log_prob_of(y))
        elif self.num_words is None:
            value = float(self._prediction(k).log_prob(torch.as_tensor(y)))
        else:
            prob = float(self._prediction(k)[y])
            value = math.log(prob) if prob > 0 else -math.inf
        if not value <= (1e-6 if self.num_words is not None else math.inf):
            raise ValueError(
                f"{self._called(k)}: gives token {y} the log-probability {value}; expected a number up to 0"
            )
        return min(value, 0.0) if self.num_words is not None else value

    def _encoded(self, y):
        """The token's id, or the vector; the unknown word's id for what is outside of the vocabulary."""
        y = unmasked(y)
        if self.unknown_id is None:
            return self.state.emissions.check(y)
        word = word_id(y)
        return word if -1 <= word < self.num_words else self.unknown_id

    # ---------------------------------------------------------------- one token
    def learn_one(self, y) -> StepInfo:
        """Learns from one token, then lets the sources observe it.

        Args:
            y: a word id, -1 for a missing token (which sources do not observe), or a vector.

        Returns:
            What was known of the token before and after; see :class:`~pplseq.models.props.settings.StepInfo`.

        Raises:
            ValueError: for a token outside the vocabulary without ``unknown_id``, a source whose prediction is NaN, negative,
                not normalised or of another size, an impossible token. Nothing has then changed, as after any error of a
                source, unless the message names sources that cannot be put back.
        """
        return self._take(y, True)

    def follow_one(self, y) -> StepInfo:
        """The same without learning: filter and sources move on, parameters (their means, if averaging) stay."""
        return self._take(y, False)

    def _take(self, y, learn: bool) -> StepInfo:
        y = self._encoded(y)
        missing = self.state.emissions.is_missing(y)
        log_probs = [] if missing else self._source_log_probs(y)

        def observe() -> None:
            with all_or_none(self.sources, self._called):
                for source in self.sources:
                    source.observe(y)

        info = self.state.step(y, log_probs, learn, first=None if missing else observe)
        self._predictions = [None] * len(self.sources)
        source = log_probs[0] if log_probs else 0.0
        # what is hard in every text, the source finds hard too; where it says never, nothing can be compared
        lowest = NEVER + float(info.log_prob) if self.num_words is not None else -math.inf
        if learn and self.detector is not None and not missing and source > lowest:
            self.detector.update(source - float(info.log_prob))
            if self.detector.drift_detected:
                self.state.forget()
        if self.guard is not None and not missing:
            info = info._replace(log_prob=self.guard.take(log_probs[0], info.log_prob))
        return info

    def learn_many(self, ys: Iterable) -> list[StepInfo]:
        """Learns from tokens in turn."""
        return [self.learn_one(y) for y in ys]

    def fit(self, x: Iterable[Iterable]) -> PROPSLearner:
        """Learns from sequences in turn, token by token, each begun anew; returns the learner."""
        for ys in x:
            self.new_sequence()
            self.learn_many(ys)
        return self

    def score(self, x: Iterable[Iterable], *, per_token: bool = False) -> float:
        """log p(x) of sequences begun anew, nats, by the parameters as they are; or the mean over tokens that are not missing.

        The learner and its sources stay as they were.

        Raises:
            TypeError: a source that has no ``state_dict``, and could not be put back.
        """
        kept, predictions, guard = self.state.copy(), list(self._predictions), copy.copy(self.guard)
        states = [source_state(source, self._called(k)) for k, source in enumerate(self.sources)]
        total, num_tokens = 0.0, 0
        try:
            for ys in x:
                self.new_sequence()
                for y in ys:
                    num_tokens += not self.state.emissions.is_missing(self._encoded(y))
                    total += float(self.follow_one(y).log_prob)
        finally:
            self.state, self._predictions, self.guard = kept, predictions, guard
            for source, state in zip(self.sources, states, strict=True):
                source.load_state_dict(state)
        return total / max(num_tokens, 1) if per_token else total

    def __repr__(self) -> str:
        what = f"num_words={self.num_words}" if self.num_words is not None else "vectors"
        own = self.state.num_states - len(self.sources)
        named = ", ".join(self._called(k) for k in range(len(self.sources))) or "no sources"
        return f"{type(self).__name__}({named}, {what}, num_perturbations={own}): {self.num_steps:,} tokens learned"

    def new_sequence(self) -> None:
        """A boundary: state and sources begin anew, what was learned stays."""
        with all_or_none(self.sources, self._called):
            for source in self.sources:
                source.reset()
        self.state.new_sequence()
        self._predictions = [None] * len(self.sources)

    def mark(self, *, learn: bool = True) -> PutBack | None:
        """A function that puts learner and sources back where they stand now; None where a source cannot be.

        Args:
            learn: False, which is quicker, where tokens will only be followed.
        """
        backs, predictions = [mark_of(source) for source in self.sources], list(self._predictions)
        state, kept = self.state, self.state.copy() if learn else None
        filtered = put_back(state, "filter", "fresh", "detached")
        detector, guard = copy.deepcopy(self.detector) if learn else self.detector, copy.copy(self.guard)

        def back() -> None:
            filtered()
            self.detector, self.guard = detector, guard
            self.state, self._predictions = state if kept is None else kept, predictions
            for source_back in backs:
                assert source_back is not None
                source_back()

        return None if None in backs else back

    # ---------------------------------------------------------------- prediction
    def predict_proba_one(self, sharpness: float = 1.0) -> np.ndarray:
        """(V,) p(next token | past), or what :func:`~pplseq.models.props.queries.sharpened` makes of it; costs O(V K)."""
        if self.num_words is None:
            raise TypeError(
                "predict_proba_one: vectors have a density, not probabilities; use score_one or predict_one"
            )
        said = [self._prediction(k) for k in range(len(self.sources))]
        probs = self.state.word_probs(said, averaged=False)
        if self.guard is not None:
            probs = self.guard.weight * said[0] + (1 - self.guard.weight) * probs
        return probs if sharpness == 1 else sharpened(probs, sharpness)

    def predict_one(self):
        """The most probable next word; of vectors the mean, for which sources must predict distributions."""
        if self.num_words is not None:
            return int(self.predict_proba_one().argmax())
        prior = self.state.predicted_states(averaged=False)
        result = prior[self.num_sources :] @ self.state.parameters(False).loc
        for k in range(self.num_sources):
            result = result + prior[k] * np.asarray(self._prediction(k).mean)
        if self.guard is not None:
            weight = self.guard.weight
            result = weight * np.asarray(self._prediction(0).mean) + (1 - weight) * result
        return result

    def score_one(self, y) -> float:
        """log p(y | past), nats, of a token that might come next; changes nothing."""
        y = self._encoded(y)
        if self.state.emissions.is_missing(y):
            return self.state.score(y)
        log_probs = self._source_log_probs(y)
        value = self.state.score(y, log_probs)
        return value if self.guard is None else self.guard.mixed(log_probs[0], value)

    # ---------------------------------------------------------------- folders
    def save(self, folder) -> Path:
        """Writes state and sources' states as a folder, whole or not at all: statistics, no text.

        But a function's prefix, which it needs, is text. Sources without ``state_dict`` are left out, with a warning, and
        must come back as they are now.
        """
        header, arrays = pack_stream(self.state)
        sources = []
        for k, source in enumerate(self.sources):
            state = source.state_dict() if hasattr(source, "state_dict") else None
            if state is None:
                warnings.warn(
                    f"{self._called(k)} has no state_dict() and is not saved: give it to load() as it is now",
                    stacklevel=2,
                )
            sources.append(_take_arrays(state, f"source.{k}", arrays))
        header |= {"unknown_id": self.unknown_id, "sources": sources, "learner_words": self.num_words, "drift": None}
        header["guard"] = None if self.guard is None else self.guard.state_dict()
        if self.detector is not None:
            if not isinstance(self.detector, SurpriseDetector):
                warnings.warn("drift: a detector of your own is not saved; give it to the learner that is loaded", stacklevel=2)
            else:
                header["drift"] = {**self.detector.state_dict(), "beyond_source": bool(self.sources)}
        return MODEL.write(folder, {"model": KIND, **header}, tensors=as_tensors(arrays))

    @classmethod
    def load(cls, folder, sources: Sequence = ()) -> PROPSLearner:
        """Reads a learner; its next answers are what they would have been.

        Args:
            sources: as many as there were, made anew; they get back their states.

        Raises:
            FileNotFoundError: if there is none. ValueError: if it is damaged, or for other sources.
        """
        header, tensors, *_ = MODEL.read(folder)
        check_kind(header, KIND, folder)
        arrays = {name: value.numpy() for name, value in tensors.items()}
        state = unpack_checked(header, arrays, folder)
        sources = _as_list(sources)
        if len(sources) != state.num_sources:
            raise ValueError(f"sources: the learner at {folder} has {state.num_sources} sources, got {len(sources)}")
        learner = cls.__new__(cls)
        missing = [name for name in ("learner_words", "unknown_id", "sources") if name not in header]
        if missing or not isinstance(header["sources"], list) or len(header["sources"]) != len(sources):
            raise FolderError(f"{folder}: {', '.join(missing) or 'sources'} missing in config.json; the file is damaged")
        own = {"learner_words": (int, None), "unknown_id": (int, None), "drift?": {...: (float, bool)}, "guard?": dict}
        check_content(header, own, folder, "the file is damaged")
        learner._begin(sources, state, header["learner_words"], header["unknown_id"])
        with sound(f"{folder}: config.json does not describe this learner"):
            if header.get("drift") is not None:
                learner.detector = detector_from(header["drift"], bool(sources))
            if header.get("guard") is not None:
                learner.guard = SourceGuard.from_state(header["guard"])
        for k, (source, saved) in enumerate(zip(learner.sources, header["sources"], strict=True)):
            if saved is None:
                continue
            if not hasattr(source, "load_state_dict"):
                raise TypeError(
                    f"sources: {learner._called(k)} has no load_state_dict(), but a state of it was saved; give the sources in "
                    "the order of before"
                )
            again = "give the sources in the order of before, or the file is damaged"
            with sound(f"sources: {learner._called(k)} does not know the state that was saved", again):
                source.load_state_dict(_give_arrays(saved, f"source.{k}", arrays))
        return learner


def default_exponent(num_sources: int) -> float:
    """Of the step size: words of a single source's user are learned slowly; beside sources that remember the stream (a cache,
    n-grams) the learned states are left with what is new. Chosen on tweets."""
    return 0.6 if num_sources > 1 else 0.8


def _as_list(sources) -> list:
    try:
        return list(sources)
    except TypeError:
        raise TypeError(f"sources must be a list, got {type(sources).__name__}; write [source] for one") from None


def _take_arrays(value, name: str, arrays: dict):
    """The JSON-able part of a nested state; its arrays go under their names into ``arrays``."""
    if isinstance(value, dict):
        return {str(key): _take_arrays(part, f"{name}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_take_arrays(part, f"{name}.{k}", arrays) for k, part in enumerate(value)]
    if isinstance(value, torch.Tensor):
        arrays[name] = value.detach().cpu().numpy()
        return {"$tensor": name}
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"$array": name}
    return value.item() if isinstance(value, np.generic) else value


def _give_arrays(value, name: str, arrays: dict):
    if isinstance(value, dict):
        if set(value) == {"$tensor"}:
            return torch.from_numpy(np.array(arrays[value["$tensor"]]))
        if set(value) == {"$array"}:
            return np.array(arrays[value["$array"]])
        return {key: _give_arrays(part, f"{name}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [_give_arrays(part, f"{name}.{k}", arrays) for k, part in enumerate(value)]
    return value
