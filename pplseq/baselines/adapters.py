"""What taggers that are no chains share, those of other libraries among them: checks, words and folders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain as chained
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.features import TagFeatures
from pplseq.models.taggers.tagger import Tagger, Words, check_sentences, check_words, tag_names


@contextmanager
def library_of(owner: str) -> Iterator[None]:
    """Around imports of a library that is an extra: where it is missing, the error says how to get it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f'this tagger is {owner}; install it with pip install "pplseq[tagging]"') from error


class Adapter(Tagger):
    """A tagger that trains in one go, tags sentence by sentence, and is written as its options and what it learned.

    Subclasses keep the constructor's arguments as attributes of the same names, and give `_train`, `_tag`, `_pack`, `_unpack`.
    """

    needs_tags = True  # of all words

    def fit(
        self,
        x: Sequence[TaggedSentence],
        validation: Sequence[TaggedSentence] | None = None,
        *,
        progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
    ):
        check_sentences(x, need_tags=self.needs_tags)
        tags = tag_names(x)
        if not tags:
            raise ValueError("x: expected some words with tags, got none")
        x = [sentence for sentence in x if len(sentence.words)]
        self.known_words = frozenset(chained.from_iterable(sentence.words for sentence in x))
        self.tags = self._train(x, tags, progress) or tags
        return self

    def tag(self, x: Sequence[Words]) -> list[tuple[str, ...]]:
        self._check_fitted()
        check_words(x)
        some = [list(words) for words in x if len(words)]
        found = iter(self._tag(some) if some else ())
        return [tuple(next(found)) if len(words) else () for words in x]

    @abstractmethod
    def _train(self, sentences: list[TaggedSentence], tags: tuple[str, ...], progress: bool) -> tuple[str, ...] | None:
        """Learns from sentences, none empty; the tags it can give, where they are not those of the text."""

    @abstractmethod
    def _tag(self, sentences: list[list[str]]) -> Sequence[Sequence[str]]:
        """Tags of sentences, none empty."""

    @abstractmethod
    def _pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What was learned: what JSON can hold, and tensors."""

    @abstractmethod
    def _unpack(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Takes what :meth:`_pack` gave; options, tags and known words are there already."""

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config, tensors = self._pack()
        fitted = {"tags": self.tags, "words": sorted(self.known_words)}
        return {"options": self.get_params(), "fitted": fitted, **config}, tensors

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]):
        tagger = cls(**config["options"])
        tagger.tags, tagger.known_words = tuple(config["fitted"]["tags"]), frozenset(config["fitted"]["words"])
        tagger._unpack(config, tensors)
        return tagger


class FeatureAdapter(Adapter):
    """A tagger of another library on the features of the library's own; `features` are those of the training text."""

    features: TagFeatures

    def _pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        header, arrays = self.features.state()
        arrays = {**arrays, **self._learned()}
        tensors = {name: torch.from_numpy(np.array(value, order="C")) for name, value in arrays.items()}
        return {"features": header}, tensors

    def _unpack(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        arrays = {name: value.numpy() for name, value in tensors.items()}
        codes = {name: value for name, value in arrays.items() if name.startswith("codes_")}
        self.features = TagFeatures.from_state(config["features"], codes)
        self._take_learned(arrays)

    @abstractmethod
    def _learned(self) -> dict[str, np.ndarray]:
        """What was learned beside the features."""

    @abstractmethod
    def _take_learned(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes it again."""
