"""crfsuite's linear-chain conditional random field behind the library's interface."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pplseq import checks
from pplseq.baselines.adapters import FeatureAdapter, library_of
from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.features import ABSENT, DEFAULT_TEMPLATES, TagFeatures
from pplseq.models.taggers.tagger import Words

BATCH_SENTENCES = 1000
ALGORITHMS = ("lbfgs", "l2sgd", "ap", "pa", "arow")


class CRFSuiteTagger(FeatureAdapter):
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
        self.algorithm = checks.choice("algorithm", algorithm, ALGORITHMS)
        if l2 < 0 or l1 < 0 or (l1 > 0 and algorithm != "lbfgs"):
            raise ValueError(f"l1 and l2 must not be negative, and l1 goes with algorithm 'lbfgs'; got {l1}, {l2}")
        self.templates, self.l2, self.l1 = list(templates), float(l2), float(l1)
        self.max_iterations, self.min_count = max_iterations, min_count
        self.features = TagFeatures(templates, min_count)

    def _train(self, sentences, tags, progress):
        with library_of("crfsuite's"):
            import pycrfsuite
        self._names = self.features.fit([sentence.words for sentence in sentences]).names()
        trainer = pycrfsuite.Trainer(self.algorithm, self._parameters(), verbose=progress)  # pyright: ignore[reportAttributeAccessIssue]
        for i in range(0, len(sentences), BATCH_SENTENCES):  # all at once, their features would fill the memory
            part = sentences[i : i + BATCH_SENTENCES]
            rows = self._strings([sentence.words for sentence in part])
            for features, sentence in zip(rows, part, strict=True):
                trainer.append(features, sentence.tags)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.crfsuite"
            trainer.train(str(path))
            self._open(path.read_bytes())

    def _parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = {}
        if self.algorithm in ("lbfgs", "l2sgd"):
            # every transition is a feature, also those never seen
            parameters |= {"c2": self.l2, "feature.possible_transitions": 1}
        if self.algorithm == "lbfgs":
            parameters |= {"c1": self.l1, "max_iterations": 100}
        return parameters if self.max_iterations is None else parameters | {"max_iterations": self.max_iterations}

    def _strings(self, sentences: Sequence[Words]) -> list[list[list[str]]]:
        """Every word's features by name, which is how crfsuite takes them; the names are made once."""
        names, rows = self._names, iter(self.features.encode(sentences).tolist())
        return [[[names[i] for i in next(rows) if i != ABSENT] for _ in words] for words in sentences]

    def _open(self, model: bytes) -> None:
        with library_of("crfsuite's"):
            import pycrfsuite
        self._model = model
        self._tagger = pycrfsuite.Tagger()  # pyright: ignore[reportAttributeAccessIssue]
        self._tagger.open_inmemory(model)

    def _tag(self, sentences):
        found: list[Sequence[str]] = []
        for i in range(0, len(sentences), BATCH_SENTENCES):
            found += [self._tagger.tag(features) for features in self._strings(sentences[i : i + BATCH_SENTENCES])]
        return found

    def log_prob(self, x: Sequence[TaggedSentence]) -> np.ndarray:
        """(N,) log p(tags | words) of tagged sentences, nats."""
        self._check_fitted()
        values = []
        for features, (_, tags) in zip(self._strings([s.words for s in x]), x, strict=True):
            if features:
                self._tagger.set(features)
            values.append(np.log(self._tagger.probability(list(tags))) if features else 0.0)
        return np.array(values, dtype=float)

    def _learned(self):
        return {"crfsuite_model": np.frombuffer(self._model, dtype=np.uint8)}

    def _take_learned(self, arrays):
        self._names = self.features.names()
        self._open(arrays["crfsuite_model"].tobytes())
