"""Taggers of tags given words, whatever the words are: the conditional random field and the MEMM, over features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain as chained
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.infer.discrete.chain import Chain
from pplseq.models.taggers.columns import ColumnSource
from pplseq.models.taggers.conditional_programs import MEMM, FeatureWeights, LinearChainCRF
from pplseq.models.taggers.features import DEFAULT_TEMPLATES, TagFeatures
from pplseq.models.taggers.few_sentences import applies, best_by_features, has_plain_weights
from pplseq.models.taggers.lexicon import ListedTags, TagDictionary, lexicon_entries
from pplseq.models.taggers.penalty import FeatureTraining
from pplseq.models.taggers.probabilistic import DECODERS, ProbabilisticTagger
from pplseq.models.taggers.spans.schemes import SCHEMES, all_tags, allowed, converted
from pplseq.models.taggers.spans.templates import LEXICON_TEMPLATES, column_templates, list_templates
from pplseq.models.taggers.spans.word_lists import read_clusters, read_gazetteers
from pplseq.models.taggers.tagger import Words, check_sentences, check_tagged, tag_names
from pplseq.models.taggers.training import IterativeTagger
from pplseq.models.taggers.weights import CRFSettings, SparseRows, TagData


class FeatureTagger(IterativeTagger, ProbabilisticTagger):
    """A tagger that looks at features of the words around; see :class:`CRFTagger`."""

    weights_class: type[FeatureWeights]

    def __init__(
        self,
        templates: Sequence[str] = DEFAULT_TEMPLATES,
        *,
        min_count: int = 1,
        columns: ColumnSource | None = None,
        column_scale: float = 1.0,
        pairs: str = "observed",
        spans: str | None = None,
        word_columns: Sequence[int] = (),
        clusters: str | Path | Mapping[str, str] | None = None,
        gazetteers: Sequence[str | Path] | Mapping[str, Sequence[str]] = (),
        lexicon: Mapping[str, Any] | str | Path | None = None,
        lexicon_limits: bool = True,
        settings: CRFSettings | None = None,
        dtype: str = "float32",
        decoder: str = "viterbi",
        **options: Any,
    ):
        self.templates, self.word_columns = tuple(templates), tuple(word_columns)
        self.clusters = clusters if clusters is None or isinstance(clusters, Mapping) else read_clusters(clusters)
        self.gazetteers = gazetteers if isinstance(gazetteers, Mapping) else read_gazetteers(gazetteers)
        self.lexicon, self.lexicon_limits = lexicon_entries(lexicon, None), bool(lexicon_limits)
        if self.lexicon is not None and spans is not None:
            raise ValueError("lexicon: lists tags of words, and not of spans; give names as gazetteers, or spans=None")
        more = [*column_templates(self.word_columns), *list_templates(self.clusters, self.gazetteers)]
        more += () if self.lexicon is None else LEXICON_TEMPLATES
        self.features = TagFeatures(
            dict.fromkeys((*templates, *more)), min_count,
            clusters=self.clusters, gazetteers=self.gazetteers, lexicon=self.lexicon,
        )  # fmt: skip
        self.spans = None if spans is None else checks.choice("spans", spans, SCHEMES)
        if spans is not None and not issubclass(self.weights_class, LinearChainCRF):
            raise ValueError(
                f"spans: a {type(self).__name__} chooses tags one by one; use CRFTagger, got {checks.shown(spans)}"
            )
        self.columns, self.min_count = columns, min_count
        self.pairs = checks.choice("pairs", pairs, ("observed", "all"))
        self.dtype = checks.choice("dtype", dtype, ("float32", "float64"))
        self.decoder = checks.choice("decoder", decoder, DECODERS)
        self.settings = CRFSettings(**options) if settings is None else settings
        checks.positive("column_scale", column_scale)
        self.column_scale = float(column_scale)
        self.column_address: dict[str, str] | None = None  # of columns from disk, after loading
        self.column_moments: Tensor | None = None  # (2, h) mean and standard deviation of dense columns in training
        self.num_sparse_columns = self.num_dense_columns = 0
        self.weights: FeatureWeights  # after fit
        self.l2 = self.settings.l2  # that was chosen, after fit
        self._limits: tuple[dict[str, int], Tensor] | None = None  # rows of listed words in a table of blocked tags
        self.seen_tags: dict[str, list[str]] = {}  # of listed words in training, after fit
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
        rows = SparseRows.from_table(table, self.num_features, values)
        return TagData(rows, lengths, numbers, dense, blocked=self._blocked(sentences))

    def _blocked(self, sentences: Sequence[Words]) -> Tensor | None:
        """(N, K) tags that the lexicon does not list of a word that it lists, and training does not have."""
        if self.lexicon is None or not self.lexicon_limits:
            return None
        if self._limits is None:
            possible = ListedTags(self.lexicon, self.tags).weights(list(self.lexicon)) > 0
            number = {tag: k for k, tag in enumerate(self.tags)}
            rows = {word: i for i, word in enumerate(self.lexicon)}
            for word, tags in self.seen_tags.items():
                possible[rows[word], [number[tag] for tag in tags]] = True
            self._limits = rows, torch.from_numpy(np.concatenate([~possible, np.zeros((1, len(number)), bool)]))
        rows, blocked = self._limits
        return blocked[[rows.get(word, -1) for words in sentences for word in words]]

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
    def training(self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None) -> FeatureTraining:
        """Of weights; words without a tag (None) are summed over. Held-out sentences choose the penalty, unless it is given.

        Raises:
            ValueError: no words, or not one tag.
        """
        check_sentences(x, need_tags=False)
        sentences = [sentence for sentence in x if len(sentence.words)]
        if self.spans is not None:
            sentences = converted(sentences, self.spans)
        tags = tag_names(sentences)
        if not tags:
            raise ValueError("x: not one word has a tag")
        tags = tags if self.spans is None else all_tags(tags, self.spans)
        words = [sentence.words for sentence in sentences]
        self.tags, self.known_words = tags, frozenset(chained.from_iterable(words))
        self._limits, self.seen_tags = None, {}
        if self.lexicon is not None:
            ListedTags(self.lexicon, tags)  # it lists tags that there are
            found = TagDictionary.from_sentences(sentences).entries
            self.seen_tags = {word: sorted(found[word]) for word in self.lexicon if word in found}
        self.features.fit(words)
        self.num_sparse_columns = self.num_dense_columns = 0
        self.column_moments = None
        if self.columns is not None:
            number = self.columns.num_columns
            self.num_sparse_columns, self.num_dense_columns = (number, 0) if self.columns.sparse else (0, number)
        data = self.encode(words, [sentence.tags for sentence in sentences])
        self.weights = self._new_weights(self._pairs(data))
        held_out = [sentence for sentence in validation or () if len(sentence.words)]
        if self.spans is not None:
            held_out = converted(held_out, self.spans)
        return FeatureTraining(self, x, data, sentences, held_out)

    def _pairs(self, data: TagData) -> Tensor:
        num_tags = len(self.tags)
        if self.pairs == "all":
            return torch.arange(self.num_features * num_tags)
        assert data.tags is not None  # as it is training text
        tags = torch.repeat_interleave(data.tags, data.features.offsets.diff())
        return (data.features.columns * num_tags + tags)[tags >= 0].unique()

    def _new_weights(self, pairs: Tensor) -> FeatureWeights:
        dtype = getattr(torch, self.dtype)
        weights = self.weights_class(pairs, self.num_features, len(self.tags), self.num_dense_columns, dtype)
        if self.spans is not None and isinstance(weights, LinearChainCRF):
            first, after, last = map(torch.from_numpy, allowed(self.tags, self.spans))
            weights.allowed = first, after, last
        return weights

    # ---------------------------------------------------------------- questions
    def tag_of_state(self) -> Tensor:
        return torch.arange(len(self.tags))

    def chain(self, sentences: Sequence[Words]) -> Chain:
        data = self.encode(sentences)
        with torch.no_grad():
            return self.weights.sentence_chain(data.bucket(torch.arange(len(sentences))), self.weights.scores(data))

    def log_prob(self, x: Sequence[TaggedSentence]) -> np.ndarray:
        """(N,) log p(tags | words) of each sentence, nats; unknown tags are summed over. 0 for empty sentences."""
        self.check_unconstrained("log_prob")
        check_tagged(x)
        found = np.zeros(len(x))
        some = [i for i, sentence in enumerate(x) if len(sentence.words)]
        if some:
            data = self.encode([x[i].words for i in some], [x[i].tags for i in some])
            with torch.no_grad():
                found[some] = self.weights.log_probs(data).numpy()
        return found

    def score(self, x: Sequence[TaggedSentence], *, per_token: bool = False) -> float:
        """log p(tags | words) of all sentences together, nats; or their mean over words."""
        total = float(self.log_prob(x).sum())
        return total / max(sum(len(sentence.words) for sentence in x), 1) if per_token else total

    def tag_few(self, sentences: Sequence[Words], decoder: str) -> list[list[int]] | None:
        plain = applies(self, CRFTagger) and type(self.features) is TagFeatures and has_plain_weights(self.weights)
        if self.lexicon is not None and self.lexicon_limits:
            return None
        if decoder != "viterbi" or not plain or self.num_sparse_columns + self.num_dense_columns:
            return None
        assert isinstance(self.weights, LinearChainCRF)
        return best_by_features(self.weights, self.features, sentences)

    # ---------------------------------------------------------------- folders
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        header, arrays = self.features.state()
        config = {
            "features": header,
            "tags": list(self.tags),
            "known_words": sorted(self.known_words),
            "column_scale": self.column_scale,
            "column_address": getattr(self.columns, "address", None),
            "num_columns": [self.num_sparse_columns, self.num_dense_columns],
            "pairs": self.pairs,
            "spans": self.spans,
            "word_columns": list(self.word_columns),
            "clusters": self.clusters,
            "gazetteers": self.gazetteers,
            "lexicon": self.lexicon,
            "lexicon_limits": self.lexicon_limits,
            "seen_tags": self.seen_tags,
            "dtype": self.dtype,
            "decode": self.decoder,
            "settings": asdict(self.settings),
            "l2": self.l2,
        }
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()} | dict(self.weights.state_dict())
        if self.column_moments is not None:
            tensors["column_moments"] = self.column_moments
        return config, tensors

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureTagger:
        tagger = cls(
            config["features"]["templates"],
            min_count=config["features"]["min_count"],
            column_scale=config["column_scale"],
            pairs=config["pairs"],
            spans=config["spans"],
            word_columns=config["word_columns"],
            clusters=config["clusters"],
            gazetteers=config["gazetteers"],
            lexicon=config.get("lexicon"),
            lexicon_limits=config.get("lexicon_limits", True),
            dtype=config["dtype"],
            decoder=config["decode"],
            settings=CRFSettings(**config["settings"]),
        )
        tagger.l2, tagger.column_address = config["l2"], config.get("column_address")
        codes = {name: value.numpy() for name, value in tensors.items() if name.startswith("codes_")}
        tagger.features = tagger.features.restored(config["features"], codes)
        tagger.seen_tags = config.get("seen_tags", {})
        tagger.tags, tagger.known_words = tuple(config["tags"]), frozenset(config["known_words"])
        tagger.num_sparse_columns, tagger.num_dense_columns = config["num_columns"]
        tagger.column_moments = tensors.get("column_moments")
        tagger.weights = tagger._new_weights(tensors["pairs"])
        names = tagger.weights.state_dict().keys()
        tagger.weights.load_state_dict({name: tensors[name] for name in names})
        return tagger


class CRFTagger(FeatureTagger):
    """A linear-chain CRF over features of words, trained by maximum likelihood with a Gaussian prior.

        log p(tags | words) = sum_t (sum_f weight[f, tag_t] + transition[tag_{t-1}, tag_t]) - log Z

    The gradient is that of the log-likelihood: observed counts less expected ones, by forward-backward.

    Args:
        templates: of features; see :class:`~pplseq.models.taggers.features.TagFeatures`.
        min_count: how often a feature must occur in training.
        columns: real-valued features beside them (token embeddings, posteriors of states); see
            :mod:`pplseq.models.taggers.columns`. After loading, set the attribute again.
        column_scale: standard deviation that dense columns are brought to, a factor of sparse ones: the smaller, the more the
            penalty holds their weights back.
        pairs: "observed": only pairs of feature and tag seen in training have a weight, as in crfsuite; or "all".
        spans: tags stand for spans (B-NP, I-NP, O) in this scheme: "bio", "bioes" or "iob1". Tags of the training text are
            brought to it from whatever scheme they have, and taggings that break it have no share in Z: neither in training nor
            in any answer. None: tags are tags.
        word_columns: numbers of the columns of a file that are looked at beside the words (a part of speech, say), as
            `read_tagged(..., word_columns=)` or a :class:`~pplseq.data.tag_formats.Word` gives them.
        clusters: the cluster of each word as a string of bits, or a file of `path word` lines; prefixes of it are features.
        gazetteers: lists of names by what they are lists of, or files with a name a line, called by the file's name; a word in
            one of the longest names that are found has it as a feature.
        lexicon: tags of words: a mapping, or a file (see :meth:`~pplseq.models.taggers.lexicon.TagDictionary.read`). All that
            are listed of the word and its neighbours are features.
        lexicon_limits: tags that are neither listed of a listed word nor seen with it have no share in Z, as for `spans`.
        settings: penalty and optimiser; **options: the fields of the settings, instead.
        dtype: in which features are summed up; all else is float64.
        decoder: "viterbi" or "posterior".

    Source: Lafferty, McCallum and Pereira, Conditional random fields (2001); Okazaki, CRFsuite (2007), whose objective this is;
        Denis and Sagot (2012), Coupling an annotated corpus and a lexicon for state-of-the-art POS tagging (features of a
        lexicon).
    """

    name = "crf-tagger"
    weights_class = LinearChainCRF

    @classmethod
    def of_spans(cls, **options: Any) -> CRFTagger:
        """For chunks and entities: spans keep to the scheme "bio", unless told otherwise."""
        return cls(**{"spans": "bio", **options})


class MEMMTagger(FeatureTagger):
    """A maximum-entropy Markov model: a logistic regression of each tag on features of words and the tag before it.

    Trained on gold tags, decoded over all paths. Arguments as for :class:`CRFTagger`.

    Source: McCallum, Freitag and Pereira, Maximum entropy Markov models (2000).
    """

    name = "memm-tagger"
    weights_class = MEMM
