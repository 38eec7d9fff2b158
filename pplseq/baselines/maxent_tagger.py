"""A maximum entropy classifier of single words in their contexts, by scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pplseq import checks
from pplseq.baselines.adapters import FeatureAdapter, library_of
from pplseq.models.taggers.features import ABSENT, DEFAULT_TEMPLATES, TagFeatures
from pplseq.models.taggers.tagger import Words, check_words


class MaxEntTagger(FeatureAdapter):
    """p(tag | word and its neighbours) ~ exp(sum of weights of features); every word is tagged by itself.

    Args:
        templates: of features, see :class:`~pplseq.models.taggers.features.TagFeatures`.
        l2: the loss is -log p + l2 |weights|^2 / 2, summed over the training text.
        max_iterations: of L-BFGS. tolerance: largest gradient, per word, at which it stops.
        min_count: how often a feature must occur in training.

    Source: Ratnaparkhi, A maximum entropy model for part-of-speech tagging (1996), without the tags before.
    """

    name = "maxent"

    def __init__(
        self,
        templates: Sequence[str] = DEFAULT_TEMPLATES,
        *,
        l2: float = 1.0,
        max_iterations: int = 100,
        tolerance: float = 1e-4,
        min_count: int = 1,
    ):
        self.templates, self.l2 = list(templates), float(checks.positive("l2", l2))
        self.max_iterations, self.tolerance, self.min_count = max_iterations, tolerance, min_count
        self.features = TagFeatures(templates, min_count)

    def _train(self, sentences, tags, progress):
        with library_of("scikit-learn's"):
            import scipy.sparse  # noqa: F401
            from sklearn.linear_model import LogisticRegression
        words = [sentence.words for sentence in sentences]
        number: dict[str | None, int] = {tag: i for i, tag in enumerate(tags)}
        gold = np.array([number[tag] for sentence in sentences for tag in sentence.tags])
        matrix: Any = self._matrix(self.features.fit(words).encode(words))
        if len(tags) == 1:  # scikit-learn wants two classes
            self.weights, self.bias = np.zeros((matrix.shape[1], 1)), np.zeros(1)
            return
        classifier = LogisticRegression(C=1.0 / self.l2, max_iter=self.max_iterations, tol=self.tolerance)
        with warnings.catch_warnings():  # max_iterations is what was asked for
            warnings.filterwarnings("ignore", message="lbfgs failed to converge")
            classifier.fit(matrix, gold)
        weights, bias = np.asarray(classifier.coef_), np.asarray(classifier.intercept_)
        if len(tags) == 2:  # one row, log odds of the second
            weights, bias = np.concatenate([0 * weights, weights]), np.concatenate([0 * bias, bias])
        self.weights, self.bias = np.ascontiguousarray(weights.T, dtype=np.float32), bias.astype(np.float32)

    def _matrix(self, numbers: np.ndarray):
        """(N, features) one-hot rows of feature numbers (N, templates)."""
        with library_of("scikit-learn's"):
            from scipy.sparse import csr_array
        some = numbers != ABSENT
        ends = np.concatenate([[0], some.sum(1).cumsum()])
        shape = (len(numbers), self.features.num_features)
        return csr_array((np.ones(ends[-1]), numbers[some], ends), shape=shape)

    def _scores(self, sentences: Sequence[Words]) -> np.ndarray:
        """(N, tags) of all words."""
        return self._matrix(self.features.encode(sentences)) @ self.weights + self.bias

    def _tag(self, sentences):
        best = iter(self._scores(sentences).argmax(1).tolist())
        return [[self.tags[next(best)] for _ in words] for words in sentences]

    def smooth(self, x: Sequence[Words]) -> list[np.ndarray]:
        """Of each sentence the (T, tags) probabilities of its words' tags."""
        self._check_fitted()
        check_words(x)
        if not any(map(len, x)):
            return [np.zeros((0, len(self.tags))) for _ in x]
        probs = torch.from_numpy(self._scores(x)).softmax(-1).numpy()
        return np.split(probs, np.cumsum([len(words) for words in x])[:-1])

    def _learned(self):
        return {"weights": self.weights, "bias": self.bias}

    def _take_learned(self, arrays):
        self.weights, self.bias = arrays["weights"], arrays["bias"]
