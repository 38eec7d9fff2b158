"""Taggers side by side: many systems on one split, and one system on more and more of the training text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.scores import TagScores, score_tags, training_words
from pplseq.models.taggers.spans.schemes import in_scheme


class Trainable(Protocol):
    """What is compared: see :class:`pplseq.models.taggers.tagger.Tagger`."""

    def fit(self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None) -> Any: ...

    def tag(self, x: Sequence[Sequence[str]]) -> list[tuple[str, ...]]: ...


@dataclass(frozen=True)
class SystemResult:
    """A system's scores on the test text, or why there are none.

    Attributes:
        name: of the system. scores: None where it failed.
        train_seconds, tag_seconds: wall-clock time of training, and of tagging the test text.
        error: what went wrong. missing: whether it was a package that is not installed.
    """

    name: str
    scores: TagScores | None = None
    train_seconds: float = 0.0
    tag_seconds: float = 0.0
    error: str | None = None
    missing: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Of tagging."""
        if self.scores is None:
            return 0.0
        return (self.scores.num_tokens + self.scores.num_unlabelled) / max(self.tag_seconds, 1e-9)


def compare_taggers(
    systems: Mapping[str, Callable[[], Trainable]],
    train: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence],
    *,
    validation: Sequence[TaggedSentence] | None = None,
    on_start: Callable[[str], None] | None = None,
    on_result: Callable[[SystemResult], None] | None = None,
) -> list[SystemResult]:
    """Train every system on the same text and score it on the same test text.

    A system that cannot be made, trained or run is reported with its error, and the others go on.

    Args:
        systems: name -> what makes an untrained tagger.
        train, test, validation: sentences; validation is for systems that tune or stop by it.
        on_start, on_result: called before and after each system.

    Returns:
        A result a system, in their order.
    """
    words = training_words(train)
    results = []
    for name, make in systems.items():
        if on_start is not None:
            on_start(name)
        try:
            result = _run(name, make(), train, test, validation, words)
        except ImportError as error:
            result = SystemResult(name, error=str(error), missing=True)
        except Exception as error:  # whatever it is, it must not lose hours of the other systems' training
            result = SystemResult(name, error=f"{type(error).__name__}: {error}")
        results.append(result)
        if on_result is not None:
            on_result(result)
    return results


@dataclass(frozen=True)
class CurvePoint:
    """A point of a learning curve: training text used, and the result on the test text."""

    num_sentences: int
    num_tokens: int
    result: SystemResult


def learning_curve(
    make: Callable[[], Trainable],
    train: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence],
    fractions: Sequence[float] = (0.05, 0.1, 0.2, 0.5, 1.0),
    *,
    validation: Sequence[TaggedSentence] | None = None,
    seed: int = 0,
    on_point: Callable[[CurvePoint], None] | None = None,
) -> list[CurvePoint]:
    """Train a system on parts of the training text, each of which holds the smaller ones, and score each on the test text.

    Known words are those of the part.

    Args:
        make: gives an untrained tagger.
        fractions: of the training sentences, drawn without replacement; at least one sentence each.
        seed: of the order in which sentences are drawn. on_point: called after each training.

    Raises:
        ValueError: fractions that are not in (0, 1].
    """
    check_fractions(fractions)
    order = np.random.default_rng(checks.seed("seed", seed)).permutation(len(train))
    points = []
    for fraction in sorted(fractions):
        # in the text's order, as a system may depend on it
        part = [train[i] for i in np.sort(order[: max(1, round(fraction * len(train)))])]
        tagger = make()
        result = _run(getattr(tagger, "name", type(tagger).__name__), tagger, part, test, validation, training_words(part))
        points.append(CurvePoint(len(part), sum(len(sentence.words) for sentence in part), result))
        if on_point is not None:
            on_point(points[-1])
    return points


def check_fractions(fractions: Sequence[float]) -> list[float]:
    """The fractions; ValueError if there are none or one is not in (0, 1]."""
    if not fractions or not all(0.0 < fraction <= 1.0 for fraction in fractions):
        raise ValueError(f"fractions: expected numbers above 0 and at most 1, got {list(fractions)}")
    return list(fractions)


def _run(name, tagger, train, test, validation, words) -> SystemResult:
    began = time.perf_counter()
    tagger.fit(train, validation)
    trained = time.perf_counter()
    tags = tagger.tag([sentence.words for sentence in test])
    tagged = time.perf_counter()
    return SystemResult(name, score_tags(in_scheme(tagger, test), tags, words), trained - began, tagged - trained)
