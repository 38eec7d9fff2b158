"""crfsuite's linear-chain conditional random field behind the library's interface."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.baselines.taggers import check_words
from pplseq.models.taggers.features import ABSENT, DEFAULT_TEMPLATES, TagFeatures
from pplseq.models.taggers.tagger import Tagger, Words, check_sentences, tag_names

ALGORITHMS = ("lbfgs", "l2sgd", "ap", "pa", "arow")


class CRFSuiteTagger(Tagger):
    """A conditional random field trained by crfsuite, on the features of the library's own.

    Args:
        algorithm: "lbfgs", "l2sgd", "ap" (averaged perceptron), "pa" or "arow".
        templates: of features, see :class:`~pplseq.models.taggers.features.TagFeatures`.
        l2: weight of the squared length of the parameters (crfsuite's c2; "lbfgs" and "l2sgd").
        l1: of their sum of sizes (c1; "lbfgs").
        max_iterations: None leaves it to crfsuite, except for "lbfgs", which stops after 100.
        min_count: how often a feature must occur in training.

    Source: Okazaki, CRFsuite: a fast implementation of conditional random fields (2007).
    """

    name = "crfsuite"

    def __init__(
        self,
        algorithm: str = "lbfgs",
        templates: Sequence[str] = DEFAULT_TEMPLATES,
        *,
        l2: float = 1.0,
        l1: float = 0.0,
        max_iterations: int | None = None,
        min_count: int = 1,
    ):
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}; got {algorithm!r}")
        if l2 < 0 or l1 < 0 or (l1 > 0 and algorithm != "lbfgs"):
            raise ValueError(f"l1 and l2 must not be negative, and l1 goes with algorithm 'lbfgs'; got {l1}, {l2}")
        self.options = {
            "algorithm": algorithm,
            "templates": list(templates),
            "l2": float(l2),
            "l1": float(l1),
            "max_iterations": max_iterations,
            "min_count": min_count,
        }
        self.features = TagFeatures(templates, min_count)

    def fit(self, sentences, dev=None, *, progress=False):
        crfsuite = _crfsuite()
        check_sentences(sentences)
        sentences = [sentence for sentence in sentences if len(sentence.words)]
        self._take(self.features.fit([sentence.words for sentence in sentences]))
        trainer = crfsuite.Trainer(self.options["algorithm"], self._parameters(), verbose=progress)
        for i in range(0, len(sentences), 1000):  # all at once, their features would fill the memory
            part = sentences[i : i + 1000]
            rows = self._strings([sentence.words for sentence in part])
            for features, sentence in zip(rows, part, strict=True):
                trainer.append(features, sentence.tags)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.crfsuite"
            trainer.train(str(path))
            self._open(path.read_bytes())
        self.tags = tag_names(sentences)
        self.known_words = frozenset(word for sentence in sentences for word in sentence.words)
        return self

    def _parameters(self) -> dict[str, Any]:
        algorithm, limit = self.options["algorithm"], self.options["max_iterations"]
        parameters: dict[str, Any] = {}
        if algorithm in ("lbfgs", "l2sgd"):
            # every transition is a feature, also those never seen
            parameters |= {"c2": self.options["l2"], "feature.possible_transitions": 1}
        if algorithm == "lbfgs":
            parameters |= {"c1": self.options["l1"], "max_iterations": 100}
        return parameters if limit is None else parameters | {"max_iterations": limit}

    def _take(self, features: TagFeatures) -> None:
        self.features, self._names = features, features.names()

    def _strings(self, sentences: Sequence[Words]) -> list[list[list[str]]]:
        """Every word's features by name, which is how crfsuite takes them; the names are made once."""
        names, rows = self._names, iter(self.features.encode(sentences).tolist())
        return [[[names[i] for i in next(rows) if i != ABSENT] for _ in words] for words in sentences]

    def _open(self, model: bytes) -> None:
        self._model = model
        self._tagger = _crfsuite().Tagger()
        self._tagger.open_inmemory(model)

    def tag(self, sentences):
        self.check_fitted()
        check_words(sentences)
        found: list[tuple[str, ...]] = []
        for i in range(0, len(sentences), 1000):
            part = self._strings(sentences[i : i + 1000])
            found += [tuple(self._tagger.tag(features)) if features else () for features in part]
        return found

    def log_likelihood(self, sentences) -> np.ndarray:
        """(N,) log p(tags | words) of tagged sentences, nats."""
        self.check_fitted()
        values = []
        for features, (_, tags) in zip(self._strings([s.words for s in sentences]), sentences, strict=True):
            if not features:
                values.append(0.0)
                continue
            self._tagger.set(features)
            values.append(np.log(self._tagger.probability(list(tags))))
        return np.array(values, dtype=float)

    def state(self):
        header, arrays = self.features.state()
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
        tensors["crfsuite_model"] = torch.from_numpy(np.frombuffer(self._model, dtype=np.uint8).copy())
        fitted = {"tags": self.tags, "words": sorted(self.known_words)}
        return {"options": self.options, "fitted": fitted, "features": header}, tensors

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]):
        tagger = cls(**config["options"])
        arrays = {name: value.numpy() for name, value in tensors.items() if name != "crfsuite_model"}
        tagger._take(TagFeatures.from_state(config["features"], arrays))
        tagger._open(tensors["crfsuite_model"].numpy().tobytes())
        tagger.tags, tagger.known_words = tuple(config["fitted"]["tags"]), frozenset(config["fitted"]["words"])
        return tagger


def _crfsuite():
    try:
        import pycrfsuite
    except ImportError as error:
        raise ImportError('this tagger is crfsuite\'s; install it with pip install "pplseq[tagging]"') from error
    return pycrfsuite
