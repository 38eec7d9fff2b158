"""What the commands about streams ask of a model, word by word: of a source alone, and of one made personal by PROPS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pplseq.cli.streams.options import open_all
from pplseq.data.vocabulary import Vocabulary
from pplseq.sources.opening import check_same_words, needs_words
from pplseq.sources.stream_state import has_state, load_state


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

    def new_line(self) -> None:
        """The next word begins a sequence of its own."""


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

    def _log_prob_of(self, word: int) -> float:
        self.log_prob = float(self.source.log_prob_of(word))
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

    def save(self, folder: Path) -> None:
        """Write the statistics and what the sources remember."""
        self.learner.save(folder / "props")


def make_personal(sources: Sequence[Any], num_words: int, settings: Mapping[str, Any]) -> PersonalModel:
    """A model that has read nothing yet; the settings are those of `PROPSLearner`."""
    from pplseq.models import PROPSLearner

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
        from pplseq.sources import CheckedSource

        self.source = CheckedSource(source, name=name)

    def step(self, word: int, *, learn: bool) -> ScoredToken:
        """Predict, then observe: a source remembers whether or not parameters are learned."""
        log_prob = self.source.log_prob_of(word)
        self.source.observe(word)
        return ScoredToken(log_prob, (log_prob,))

    def new_line(self) -> None:
        """The next word begins a sequence of its own."""
        self.source.reset()


def open_pair(specs: Sequence[str], options: Mapping[str, Any]) -> tuple[list[StreamModel], list[str], Vocabulary]:
    """Two models to compare, their names and their words.

    Args:
        specs: sources, or state folders of `pplseq personalize`. options: of the command.

    Raises:
        ValueError: different vocabularies, or as where sources are opened.
    """
    opened: dict[int, tuple[StreamModel, str, Vocabulary]] = {}
    vocabulary: Vocabulary | None = None
    for place in sorted(range(len(specs)), key=lambda i: needs_words(specs[i])):
        opened[place] = _open_model(specs[place], options, vocabulary)
        words = opened[place][2]
        if vocabulary is not None:
            check_same_words(specs[place], words, specs[1 - place], vocabulary)
        vocabulary = words
    models, names = [opened[place][0] for place in (0, 1)], [opened[place][1] for place in (0, 1)]
    if names[0] == names[1]:
        names = [f"{name} ({letter})" for name, letter in zip(names, "ab", strict=True)]
    return models, names, vocabulary


def _open_model(
    spec: str, options: Mapping[str, Any], vocabulary: Vocabulary | None
) -> tuple[StreamModel, str, Vocabulary]:
    folder = Path(spec)
    if not (folder.is_dir() and has_state(folder)):
        opened = open_all([spec], options, vocabulary)[0]
        if opened.source is None:
            raise ValueError(
                f"{spec} has words only, nothing that predicts them; personalize it first, or give a source"
            )
        return SourceModel(opened.source, opened.name), opened.name, opened.vocabulary
    record, inner = load_state(folder)
    texts = {**options, **record["options"]}
    opened = open_all([source["spec"] for source in record["sources"]], texts, Vocabulary.load(inner / "vocab.txt"))
    for source, saved in zip(opened, record["sources"], strict=True):
        if source.fingerprint != saved["fingerprint"]:
            raise ValueError(
                f"{spec}: its source {source.spec} has changed since the state was learned; put the model or the text back"
            )
    words = Vocabulary.load(inner / "vocab.txt")
    for source in opened:
        check_same_words(f"the source {source.spec}", source.vocabulary, spec, words)
    name = f"{personal_name(opened)}, {folder.resolve().name}"
    return load_personal(inner, [source.source for source in opened]), name, words


def personal_name(sources: Sequence[Any]) -> str:
    """What a model with these sources is called."""
    return "PROPS" if sources else "streaming HMM"
