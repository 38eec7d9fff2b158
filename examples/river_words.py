"""A personal model as an estimator of the library river (``pip install river``): its classes are the next words.

    from river_words import RiverWordClassifier  # this folder on the path
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from river import base

from pplseq.data.vocabulary import Vocabulary


class RiverWordClassifier(base.Classifier):
    """``learn_one(x, y)`` and ``predict_proba_one(x)`` of river over a learner: y is the word that came next, x is not read.

    The past is the learner's own memory: features of river pipelines have no part in it. So it works with river's metrics and
    ``evaluate.progressive_val_score``, and beside its classifiers.

    Args:
        learner: a :class:`~pplseq.models.props.learner.PROPSLearner` of words.
        vocabulary: what the words are called; None where they are ids.

    Raises:
        ImportError: river is not installed. TypeError: a learner of vectors.
    """

    def __init__(self, learner: Any, vocabulary: Vocabulary | None = None):
        if getattr(learner, "num_words", None) is None:
            raise TypeError("learner: a classifier predicts words, and this learner has vectors; use PROPSLearner itself")
        self.learner, self.vocabulary = learner, vocabulary

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict, y: Hashable, **_: Any) -> None:
        """Learns the word that came, which every source observes."""
        self.learner.learn_one(y if self.vocabulary is None else int(self.vocabulary.encode([str(y)])[0]))

    def predict_proba_one(self, x: dict, **_: Any) -> dict[Any, float]:
        """The probability of every word; costs O(V K)."""
        probs = self.learner.predict_proba_one().tolist()
        return dict(zip(range(len(probs)) if self.vocabulary is None else self.vocabulary.words, probs, strict=True))

    def new_sequence(self) -> None:
        """A boundary: state and sources begin anew."""
        self.learner.new_sequence()
