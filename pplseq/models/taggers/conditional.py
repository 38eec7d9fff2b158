"""What the CRF and the MEMM share: features in, weights of (feature, tag) pairs, training and folders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain as chained
from typing import Any

import numpy as np
import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor
from tqdm import tqdm

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.columns import ColumnSource
from pplseq.models.taggers.features import DEFAULT_TEMPLATES, TagFeatures
from pplseq.models.taggers.tagger import DECODERS, ProbabilisticTagger, Words, check_sentences, tag_names
from pplseq.models.taggers.weights import CRFSettings, SparseRows, TagData, fit_weights, ranges, sparse_product


class FeatureWeights(PyroModule):
    """scores[n, tag] = sum over features f of word n of weight[f, tag] + columns[n] . column_weights[:, tag].

    Args:
        pairs: (P,) feature * K + tag of the pairs that have a weight, rising; all others stay at 0.
        num_features: F. num_tags: K. num_columns: h, of real-valued features.
        dtype: that scores are worked out in; weights and all that follows are float64.
    """

    def __init__(self, pairs: Tensor, num_features: int, num_tags: int, num_columns: int, dtype: torch.dtype):
        super().__init__()
        self.num_features, self.num_tags, self.dtype = num_features, num_tags, dtype
        self.register_buffer("pairs", pairs)
        self.weights = torch.nn.Parameter(torch.zeros(len(pairs), dtype=torch.float64))
        self.column_weights = torch.nn.Parameter(torch.zeros(num_columns, num_tags, dtype=torch.float64))
        self.transition = torch.nn.Parameter(torch.zeros(num_tags, num_tags, dtype=torch.float64))
        starts = torch.searchsorted(pairs, torch.arange(num_features + 1) * num_tags)
        self.register_buffer("feature_starts", starts, persistent=False)

    def table(self, used: Tensor | None = None) -> Tensor:
        """(F, K) weights, or those of some features."""
        weights, pairs, num_features = self.weights, self.pairs, self.num_features
        if used is not None:
            num_features, sizes = len(used), self.feature_starts.diff()[used]
            taken = ranges(self.feature_starts[used], sizes)
            row = torch.repeat_interleave(torch.arange(num_features), sizes)
            weights, pairs = weights[taken], row * self.num_tags + pairs[taken] % self.num_tags
        table = torch.zeros(num_features * self.num_tags, dtype=self.dtype)
        return table.index_copy(0, pairs, weights.to(self.dtype)).view(num_features, self.num_tags)

    def scores(self, data: TagData) -> Tensor:
        """(N, K) float64."""
        scores = sparse_product(data.features, self.table(data.used))
        if data.columns is not None:
            scores = scores + data.columns.to(self.dtype) @ self.column_weights.to(self.dtype)
        return scores.double()

    def prior(self, l2: float, share: float = 1.0) -> None:
        """The Gaussian prior of all weights, up to its constant, as a factor of the program."""
        squares = sum(parameter.square().sum() for parameter in self.parameters())
        pyro.factor("prior", -l2 * share * squares)

    def model(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> None:
        """The program: tags given words. `share` of the prior goes with these sentences."""
        raise NotImplementedError

    def forward(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> None:
        return self.model(data, l2, share)

    def loss(self, data: TagData, l2: float = 0.0, share: float = 1.0) -> Tensor:
        """-log p(tags | words) - log prior (up to its constant), nats."""
        trace = pyro.poutine.trace(self).get_trace(data, l2, share)
        return -trace.log_prob_sum()


class FeatureTagger(ProbabilisticTagger):
    """A tagger that looks at features of the words around; see :class:`~pplseq.models.taggers.conditional_crf.CRFTagger`."""

    weights_class: type[FeatureWeights]

    def __init__(
        self,
        templates: Sequence[str] = DEFAULT_TEMPLATES,
        *,
        min_count: int = 1,
        columns: ColumnSource | None = None,
        column_scale: float = 1.0,
        pairs: str = "observed",
        settings: CRFSettings | None = None,
        dtype: str = "float32",
        decode: str = "viterbi",
    ):
        if pairs not in ("observed", "all"):
            raise ValueError(f"pairs: expected 'observed' or 'all', got {pairs!r}")
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype: expected 'float32' or 'float64', got {dtype!r}")
        if decode not in DECODERS:
            raise ValueError(f"decode must be one of {', '.join(DECODERS)}; got {decode!r}")
        if not column_scale > 0:
            raise ValueError(f"column_scale: expected a positive number, got {column_scale}")
        self.features = TagFeatures(templates, min_count)
        self.columns, self.pairs, self.dtype, self.decode = columns, pairs, dtype, decode
        self.settings = CRFSettings() if settings is None else settings
        self.column_scale = float(column_scale)
        self.column_moments: Tensor | None = None  # (2, h) mean and standard deviation of dense columns in training
        self.num_sparse_columns = self.num_dense_columns = 0
        self.weights: FeatureWeights | None = None
        self.history: list[float] = []

    # ---------------------------------------------------------------- numbers
    @property
    def num_features(self) -> int:
        """Sparse features: those of words, and columns of which a word has few."""
        return self.features.num_features + self.num_sparse_columns

    def encode(self, sentences: Sequence[Words], tags: Sequence[Sequence[str | None]] | None = None) -> TagData:
        """Sentences, none empty, as features, and their tags where given.

        Raises:
            ValueError: an unknown tag; real-valued columns that are missing or of another number than in training.
        """
        table, values, dense = self.features.encode(sentences), None, None
        if self.num_sparse_columns + self.num_dense_columns:
            if self.columns is None:
                raise ValueError(
                    f"columns: this tagger was trained with {self.num_sparse_columns + self.num_dense_columns} real-valued "
                    "features; set its attribute `columns` to what computes them"
                )
            found = self.columns(sentences)
            if len(found.values) != len(table):
                raise ValueError(f"columns: expected a row for each of {len(table)} words, got {len(found.values)}")
            if found.ids is None:
                dense = self._dense(np.asarray(found.values))
            else:
                ids = np.where((found.ids >= 0) & (found.values != 0), found.ids + self.features.num_features, -1)
                values = np.concatenate([np.ones(table.shape), self.column_scale * found.values], 1).astype(self.dtype)
                table = np.concatenate([table, ids], 1)
        lengths = torch.tensor([len(words) for words in sentences])
        numbers = None if tags is None else self._tag_numbers(tags)
        return TagData(SparseRows.from_table(table, self.num_features, values), lengths, numbers, dense)

    def _dense(self, values: np.ndarray) -> Tensor:
        """Columns of mean 0 and standard deviation `column_scale`, by their moments in training."""
        if values.shape[1] != self.num_dense_columns:
            raise ValueError(f"columns: expected {self.num_dense_columns} numbers a word, got {values.shape[1]}")
        columns = torch.from_numpy(values.astype(np.float64))
        if self.column_moments is None:
            self.column_moments = torch.stack([columns.mean(0), columns.std(0, correction=0).clamp_min(1e-8)])
        mean, deviation = self.column_moments
        return (columns - mean).mul_(self.column_scale / deviation).to(getattr(torch, self.dtype))

    def _tag_numbers(self, tags: Sequence[Sequence[str | None]]) -> Tensor:
        number: dict[str | None, int] = {tag: k for k, tag in enumerate(self.tags)} | {None: -1}
        try:
            return torch.tensor([number[tag] for tag in chained.from_iterable(tags)])
        except KeyError as error:
            raise ValueError(
                f"tags: {error.args[0]!r} was not seen in training; known: {', '.join(self.tags)}"
            ) from None

    # ---------------------------------------------------------------- training
    def fit(self, sentences: Sequence[TaggedSentence], dev=None, *, progress: bool = False) -> FeatureTagger:
        """Learns weights; words without a tag (None) are summed over. Held-out sentences are not needed, and not used.

        Raises:
            ValueError: no words, or not one tag.
        """
        check_sentences(sentences, need_tags=False)
        sentences = [sentence for sentence in sentences if len(sentence.words)]
        tags = tag_names(sentences)
        if not tags:
            raise ValueError("sentences: not one word has a tag")
        words = [sentence.words for sentence in sentences]
        self.tags, self.known_words = tags, frozenset(chained.from_iterable(words))
        self.features.fit(words)
        self.num_sparse_columns = self.num_dense_columns = 0
        self.column_moments = None
        if self.columns is not None:
            number = self.columns.num_columns
            self.num_sparse_columns, self.num_dense_columns = (number, 0) if self.columns.sparse else (0, number)
        data = self.encode(words, [sentence.tags for sentence in sentences])
        self.weights = self._new_weights(self._pairs(data))
        settings = self.settings
        total = settings.max_iterations if settings.method == "lbfgs" else settings.epochs
        with tqdm(total=total, disable=not progress, desc=self.name) as bar:

            def watch(iteration: int, loss: float) -> None:
                bar.update(iteration - bar.n)
                bar.set_postfix(loss=f"{loss:.1f}")

            self.history = fit_weights(
                self.weights.parameters(),
                lambda part, share: self.weights.loss(part, settings.l2, share),
                data,
                settings,
                watch,
            )
        return self

    def _pairs(self, data: TagData) -> Tensor:
        num_tags = len(self.tags)
        if self.pairs == "all":
            return torch.arange(self.num_features * num_tags)
        tags = torch.repeat_interleave(data.tags, data.features.offsets.diff())
        return (data.features.columns * num_tags + tags)[tags >= 0].unique()

    def _new_weights(self, pairs: Tensor) -> FeatureWeights:
        dtype = getattr(torch, self.dtype)
        return self.weights_class(pairs, self.num_features, len(self.tags), self.num_dense_columns, dtype)

    # ---------------------------------------------------------------- questions
    def tag_of_state(self) -> Tensor:
        return torch.arange(len(self.tags))

    @abstractmethod
    def chain(self, sentences: Sequence[Words]): ...

    def tag_log_probs(self, sentences: Sequence[TaggedSentence]) -> np.ndarray:
        """(N,) log p(tags | words) of each sentence, nats; unknown tags are summed over. 0 for empty sentences."""
        self.check_fitted()
        found = np.zeros(len(sentences))
        some = [i for i, sentence in enumerate(sentences) if len(sentence.words)]
        if some:
            data = self.encode([sentences[i].words for i in some], [sentences[i].tags for i in some])
            with torch.no_grad():
                found[some] = self.weights.log_probs(data).numpy()
        return found

    # ---------------------------------------------------------------- folders
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        header, arrays = self.features.state()
        config = {
            "features": header,
            "tags": list(self.tags),
            "known_words": sorted(self.known_words),
            "column_scale": self.column_scale,
            "num_columns": [self.num_sparse_columns, self.num_dense_columns],
            "pairs": self.pairs,
            "dtype": self.dtype,
            "decode": self.decode,
            "settings": asdict(self.settings),
        }
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()} | dict(self.weights.state_dict())
        if self.column_moments is not None:
            tensors["column_moments"] = self.column_moments
        return config, tensors

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureTagger:
        tagger = cls(
            pairs=config["pairs"],
            dtype=config["dtype"],
            decode=config["decode"],
            settings=CRFSettings(**config["settings"]),
        )
        codes = {name: value.numpy() for name, value in tensors.items() if name.startswith("codes_")}
        tagger.features = TagFeatures.from_state(config["features"], codes)
        tagger.tags, tagger.known_words = tuple(config["tags"]), frozenset(config["known_words"])
        tagger.num_sparse_columns, tagger.num_dense_columns = config["num_columns"]
        tagger.column_moments = tensors.get("column_moments")
        tagger.weights = tagger._new_weights(tensors["pairs"])
        names = tagger.weights.state_dict().keys()
        tagger.weights.load_state_dict({name: tensors[name] for name in names})
        return tagger
