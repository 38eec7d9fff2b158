"""How good spans are: precision, recall and F1 of whole spans, as conlleval counts them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.spans.schemes import spans_of


class SpanScore(NamedTuple):
    """num_correct spans among num_predicted and num_gold: right kind, first and last word."""

    num_correct: int
    num_predicted: int
    num_gold: int

    @property
    def precision(self) -> float:
        """NaN where nothing was predicted."""
        return self.num_correct / self.num_predicted if self.num_predicted else math.nan

    @property
    def recall(self) -> float:
        """NaN where there is nothing to find."""
        return self.num_correct / self.num_gold if self.num_gold else math.nan

    @property
    def f1(self) -> float:
        """The harmonic mean of both: 2 correct / (predicted + gold)."""
        both = self.num_predicted + self.num_gold
        return 2 * self.num_correct / both if both else math.nan

    def summary(self) -> dict[str, Any]:
        """JSON-able."""
        shares = {name: getattr(self, name) for name in ("precision", "recall", "f1")}
        return {name: None if math.isnan(value) else value for name, value in shares.items()} | self._asdict()


class SpanScores(NamedTuple):
    """overall: of all spans; by_kind: of each kind, in the order of their names."""

    overall: SpanScore
    by_kind: dict[str, SpanScore]

    def summary(self) -> dict[str, Any]:
        """JSON-able."""
        kinds = {kind: score.summary() for kind, score in self.by_kind.items()}
        return {**self.overall.summary(), "kinds": kinds}


def score_spans(gold: Sequence[TaggedSentence], predicted: Sequence[Sequence[str | None]]) -> SpanScores:
    """Scores of predicted tags; the schemes of both may differ. Sentences with words that have no gold tag are left out; a
    predicted None counts as O.

    Raises:
        ValueError: another number of sentences or tags; tags that are none of spans.
    """
    if len(gold) != len(predicted):
        raise ValueError(f"predicted: expected {len(gold)} sentences as in gold, got {len(predicted)}")
    counts: dict[str, Counter[str]] = {what: Counter() for what in SpanScore._fields}
    for number, (sentence, tags) in enumerate(zip(gold, predicted, strict=True)):
        if len(sentence.words) != len(tags):
            raise ValueError(f"predicted: expected {len(sentence.words)} tags in sentence {number}, got {len(tags)}")
        if None in sentence.tags:
            continue
        right = spans_of([str(tag) for tag in sentence.tags])
        found = spans_of(["O" if tag is None else tag for tag in tags])
        for what, spans in (("num_gold", right), ("num_predicted", found), ("num_correct", set(right) & set(found))):
            counts[what].update(span.kind for span in spans)
    kinds = sorted(set().union(*counts.values()))
    by_kind = {kind: SpanScore(*(counts[what][kind] for what in SpanScore._fields)) for kind in kinds}
    return SpanScores(SpanScore(*(counts[what].total() for what in SpanScore._fields)), by_kind)
