"""A maximum entropy classifier of single words in their contexts, by scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain as chained
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.baselines.taggers import check_words
from pplseq.models.taggers.features import ABSENT, DEFAULT_TEMPLATES, TagFeatures
from pplseq.models.taggers.tagger import Tagger, check_sentences, tag_names


class MaxEntTagger(Tagger):
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
        if not l2 > 0:
            raise ValueError(f"l2 must be positive, got {l2}")
        self.options = {
            "templates": list(templates),
            "l2": float(l2),
            "max_iterations": max_iterations,
            "tolerance": tolerance,
            "min_count": min_count,
        }
        self.features = TagFeatures(templates, min_count)

    def fit(self, sentences, dev=None, *, progress=False):
        linear_model = _sklearn()
        check_sentences(sentences)
        words = [sentence.words for sentence in sentences]
        self.tags = tag_names(sentences)
        number = {tag: i for i, tag in enumerate(self.tags)}
        gold = np.array([number[tag] for sentence in sentences for tag in sentence.tags])
        matrix = self._matrix(self.features.fit(words).encode(words))
        self.known_words = frozenset(chained.from_iterable(words))
        if len(self.tags) == 1:  # scikit-learn wants two classes
            self.weights, self.bias = np.zeros((matrix.shape[1], 1)), np.zeros(1)
            return self
        classifier = linear_model.LogisticRegression(
            C=1.0 / self.options["l2"], max_iter=self.options["max_iterations"], tol=self.options["tolerance"]
        )
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="lbfgs failed to converge"
            )  # max_iterations is what was asked for
            classifier.fit(matrix, gold)
        weights, bias = classifier.coef_, classifier.intercept_
        if len(self.tags) == 2:  # one row, log odds of the second
            weights, bias = np.concatenate([0 * weights, weights]), np.concatenate([0 * bias, bias])
        self.weights, self.bias = np.ascontiguousarray(weights.T, dtype=np.float32), bias.astype(np.float32)
        return self

    def _matrix(self, numbers: np.ndarray):
        """(N, features) one-hot rows of feature numbers (N, templates)."""
        from scipy.sparse import csr_array

        some = numbers != ABSENT
        ends = np.concatenate([[0], some.sum(1).cumsum()])
        shape = (len(numbers), self.features.num_features)
        return csr_array((np.ones(ends[-1]), numbers[some], ends), shape=shape)

    def _scores(self, sentences) -> np.ndarray:
        return self._matrix(self.features.encode(sentences)) @ self.weights + self.bias

    def tag(self, sentences):
        self.check_fitted()
        check_words(sentences)
        _sklearn()
        if not any(map(len, sentences)):
            return [()] * len(sentences)
        best = iter(self._scores(sentences).argmax(1).tolist())
        return [tuple(self.tags[next(best)] for _ in words) for words in sentences]

    def marginals(self, sentences) -> list[np.ndarray]:
        """Of each sentence the (T, tags) probabilities of its words' tags."""
        self.check_fitted()
        check_words(sentences)
        _sklearn()
        if not any(map(len, sentences)):
            return [np.zeros((0, len(self.tags))) for _ in sentences]
        probs = torch.from_numpy(self._scores(sentences)).softmax(-1).numpy()
        return np.split(probs, np.cumsum([len(words) for words in sentences])[:-1])

    def state(self):
        header, arrays = self.features.state()
        arrays = {**arrays, "weights": self.weights, "bias": self.bias}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
        fitted = {"tags": self.tags, "words": sorted(self.known_words)}
        return {"options": self.options, "fitted": fitted, "features": header}, tensors

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]):
        tagger = cls(**config["options"])
        arrays = {name: value.numpy() for name, value in tensors.items()}
        tagger.weights, tagger.bias = arrays.pop("weights"), arrays.pop("bias")
        tagger.features = TagFeatures.from_state(config["features"], arrays)
        tagger.tags, tagger.known_words = tuple(config["fitted"]["tags"]), frozenset(config["fitted"]["words"])
        return tagger


def _sklearn():
    try:
        import scipy.sparse  # noqa: F401
        from sklearn import linear_model
    except ImportError as error:
        raise ImportError('this tagger is scikit-learn\'s; install it with pip install "pplseq[tagging]"') from error
    return linear_model
