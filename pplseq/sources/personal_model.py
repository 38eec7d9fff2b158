"""What the commands about streams ask of a model, word by word: of a source alone, and of one made personal by PROPS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pplseq.models.props.source import PutBack, mark_of, put_back
from pplseq.sources.words import Line


class StreamError(RuntimeError):
    """A stream that could not be gone on with; the state saved before is whole."""


class ScoredToken(NamedTuple):
    """What a model made of a word, before it learned from it.

    Attributes:
        log_prob: log p(y_t | y_1..y_{t-1}), nats. source_log_probs: the same of every source.
        perturbation, log_odds: p(state is a perturbation | y_1..y_t), and its log-odds; None of a source alone.
        source_anomaly, perturbation_anomaly: -log p(y_t | y_1..y_{t-1}, the state is of that kind); None as well.
    """

    log_prob: float
    source_log_probs: tuple[float, ...] = ()
    perturbation: float | None = None
    log_odds: float | None = None
    source_anomaly: float | None = None
    perturbation_anomaly: float | None = None


class StreamModel(Protocol):
    """A model that reads a stream."""

    def step(self, word: int, *, learn: bool) -> ScoredToken:
        """Score a word, then take it in."""
        ...

    def new_line(self) -> None:
        """The next word begins a sequence of its own."""

    def mark(self, *, learn: bool) -> PutBack | None:
        """Puts the model back where it stands before a line, which is learned from or not; None where it cannot be put back."""


class Overheard:
    """A source that tells afterwards what it gave to the word that came.

    Args:
        source: with predict and observe; all its other attributes are handed through.
    """

    def __init__(self, source: Any) -> None:
        self.source, self.log_prob, self._probs = source, math.nan, None

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # of a copy that is being made
            raise AttributeError(name)
        found = getattr(self.source, name)
        return self._log_prob_of if name == "log_prob_of" else found

    def mark(self) -> PutBack | None:
        """Puts the source back where it stands."""
        own, inner = put_back(self, "log_prob", "_probs"), mark_of(self.source)

        def back() -> None:
            own()
            assert inner is not None
            inner()

        return None if inner is None else back

    def _log_prob_of(self, word: int) -> float:
        self.log_prob, self._probs = float(self.source.log_prob_of(word)), None  # what was said before a boundary is of no word
        return self.log_prob

    def predict(self) -> Any:
        """(V,) probabilities of the next word."""
        self._probs = self.source.predict()
        return self._probs

    def observe(self, word: int) -> None:
        """Take in the word that came."""
        if self._probs is not None:
            prob = float(self._probs[word])
            self.log_prob, self._probs = math.log(prob) if prob > 0 else -math.inf, None
        self.source.observe(word)


class PersonalModel:
    """PROPS on a stream.

    Args:
        learner: a `PROPSLearner` whose sources are `Overheard`.
    """

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    def step(self, word: int, *, learn: bool) -> ScoredToken:
        """Score a word, then learn from it, or only follow it with the parameters as they are."""
        info = self.learner.learn_one(word) if learn else self.learner.follow_one(word)
        return ScoredToken(
            float(info.log_prob),
            tuple(source.log_prob for source in self.learner.sources),
            float(info.perturbation),
            float(info.log_odds),
            float(info.source_anomaly),
            float(info.perturbation_anomaly),
        )

    def new_line(self) -> None:
        """The next word begins a sequence of its own."""
        self.learner.new_sequence()

    def mark(self, *, learn: bool) -> PutBack | None:
        """Puts learner and sources back where they stand."""
        return self.learner.mark(learn=learn)

    def save(self, folder: Path) -> None:
        """Write the statistics and what the sources remember."""
        self.learner.save(folder / "props")


def make_personal(sources: Sequence[Any], num_words: int, settings: Mapping[str, Any]) -> PersonalModel:
    """A model that has read nothing yet; the settings are those of `PROPSLearner`."""
    from pplseq.models import PROPSLearner

    # what is left open is chosen by the number of sources
    settings = {name: value for name, value in settings.items() if name not in ("initial", "exponent") or value}
    return PersonalModel(PROPSLearner([Overheard(source) for source in sources], num_words=num_words, **settings))


def load_personal(folder: Path, sources: Sequence[Any]) -> PersonalModel:
    """What `PersonalModel.save` wrote, onto the same sources made anew."""
    from pplseq.models import PROPSLearner

    return PersonalModel(PROPSLearner.load(folder / "props", sources=[Overheard(source) for source in sources]))


class SourceModel:
    """A source by itself; its probabilities are checked.

    Args:
        source: with predict and observe. name: for errors.
    """

    def __init__(self, source: Any, name: str) -> None:
        from pplseq.models.props.source import CheckedSource

        self.source = CheckedSource(source, name=name)

    def step(self, word: int, *, learn: bool) -> ScoredToken:
        """Predict, then observe: a source remembers whether or not parameters are learned."""
        log_prob = self.source.log_prob_of(word)
        self.source.observe(word)
        return ScoredToken(log_prob, (log_prob,))

    def new_line(self) -> None:
        """The next word begins a sequence of its own."""
        self.source.reset()

    def mark(self, *, learn: bool) -> PutBack | None:
        """Puts the source back where it stands."""
        return self.source.mark()


def personal_name(sources: Sequence[Any]) -> str:
    """What a model with these sources is called."""
    return "PROPS" if sources else "streaming HMM"


def score_line(model: StreamModel, line: Line, *, learn: bool, by_line: bool = False) -> list[ScoredToken]:
    """Every token of a line, in order; `by_line`: the line is a sequence of its own.

    Raises:
        StreamError: naming the line and the word.
    """
    tokens: list[ScoredToken] = []
    try:
        if by_line and line.ids:
            model.new_line()
        for word_id in line.ids:
            tokens.append(model.step(word_id, learn=learn))
    except Exception as error:  # a source may be anybody's
        where = f"line {line.answer['line']}, word {len(tokens) + 1} ({line.words[len(tokens)]!r})"
        raise StreamError(f"{where}: {str(error) or type(error).__name__}") from error
    return tokens
