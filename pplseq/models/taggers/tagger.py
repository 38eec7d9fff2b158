"""What every tagger offers, and what the probabilistic ones answer through their chain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pplseq.data.columns import TaggedSentence
from pplseq.models.storage import MODEL
from pplseq.models.taggers import TAGGERS

Words = Sequence[str]
BATCH_CELLS = 1 << 21  # steps x rows x states of one batch
DECODERS = ("viterbi", "posterior")


class Tagger(ABC):
    """Gives each word of a sentence a tag, after it has seen tagged sentences.

    Attributes:
        name: under which the tagger is saved.
        tags: the tags it can give; their order is their number.
        known_words: the words of its training text.
    """

    name: ClassVar[str]
    tags: tuple[str, ...] = ()
    known_words: frozenset[str] = frozenset()

    @abstractmethod
    def fit(
        self,
        sentences: Sequence[TaggedSentence],
        dev: Sequence[TaggedSentence] | None = None,
        *,
        progress: bool = False,
    ) -> Tagger:
        """Learns from tagged sentences; the tagger itself is returned.

        Args:
            sentences: words and their tags; the tag None is an unknown one, for taggers that can learn from such words.
            dev: held-out sentences, for taggers that choose something by them.
            progress: show a bar.

        Raises:
            ValueError: nothing to learn from.
        """

    @abstractmethod
    def tag(self, sentences: Sequence[Words]) -> list[tuple[str, ...]]:
        """The tags of each sentence's words; an empty sentence has none."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What JSON can hold, and tensors: all that :meth:`from_state` needs."""

    @classmethod
    @abstractmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> Tagger:
        """The tagger that :meth:`state` describes."""

    def save(self, folder: str | Path, training: dict[str, Any] | None = None) -> Path:
        """Writes config.json and model.safetensors, whole or not at all.

        Args:
            training: JSON-able notes on how it was trained, kept in config.json.
        """
        self.check_fitted()
        config, tensors = self.state()
        header = {"model": "tagger", "tagger": self.name, "config": config, "training": training}
        return MODEL.write(folder, header, tensors=tensors)

    @classmethod
    def load(cls, folder: str | Path) -> Tagger:
        """The tagger of a folder.

        Raises:
            FileNotFoundError: there is none. ValueError: it is damaged, or another class's.
        """
        tagger = load_tagger(folder)
        if not isinstance(tagger, cls):
            raise ValueError(f"{folder}: holds a {type(tagger).__name__}, not a {cls.__name__}")
        return tagger

    def check_fitted(self) -> None:
        if not self.tags:
            raise RuntimeError(f"{type(self).__name__} has seen no tagged sentences yet; call fit first, or load one")


def load_tagger(folder: str | Path) -> Tagger:
    """Reads any tagger that was saved.

    Raises:
        FileNotFoundError: there is none. ValueError: the folder is damaged, of another version, or no tagger's.
    """
    header, tensors, *_ = MODEL.read(folder)
    if header.get("model") != "tagger" or str(header.get("tagger")) not in TAGGERS:
        raise ValueError(
            f"{folder}: holds the model {header.get('tagger', header.get('model'))!r}, no tagger; taggers are made by "
            "`pplseq tag train`"
        )
    try:
        return TAGGERS[header["tagger"]].from_state(header["config"], tensors)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"{folder}: config.json does not describe a {header['tagger']} ({error!r})") from error


def check_sentences(sentences: Sequence[TaggedSentence], *, need_tags: bool = True) -> None:
    """Raises unless there is something to learn from.

    Raises:
        ValueError: no words, not as many tags as words, or (if they are needed) a word without a tag; by the sentence's number.
    """
    if isinstance(sentences, str) or not any(len(sentence.words) for sentence in sentences):
        raise ValueError("sentences: expected tagged sentences with at least one word among them, got none")
    for i, (words, tags) in enumerate(sentences):
        if len(words) != len(tags):
            raise ValueError(f"sentences: number {i} has {len(words)} words but {len(tags)} tags")
        if need_tags and any(tag is None for tag in tags):
            raise ValueError(
                f"sentences: number {i} has a word without a tag ({words[tags.index(None)]!r}); this tagger needs all tags; "
                "partly tagged text is for the unsupervised and dictionary taggers"
            )


def tag_names(sentences: Sequence[TaggedSentence]) -> tuple[str, ...]:
    """All tags of sentences, sorted."""
    return tuple(sorted({tag for sentence in sentences for tag in sentence.tags if tag is not None}))


class ProbabilisticTagger(Tagger):
    """A tagger whose tags are states of a chain, or groups of them: it answers with probabilities.

    Subclasses give the chain. It may have steps behind the last word (an end of the sentence), which are left out of all
    answers except probabilities of whole sentences.

    Attributes:
        decode: how tags are chosen: "viterbi", the most probable path of states, or "posterior", word by word the tag with the
            largest probability, summed over its states.
    """

    decode: str = "viterbi"

    @abstractmethod
    def tag_of_state(self) -> Tensor:
        """(Z,) the number of each state's tag; -1 for states that no word has."""

    @abstractmethod
    def chain(self, sentences: Sequence[Words]):
        """The chain of a batch of sentences, none empty: a :class:`~pplseq.infer.discrete.chain.Chain`, without gradients."""

    # ---------------------------------------------------------------- batches
    def _check(self, sentences: Sequence[Words]) -> None:
        self.check_fitted()
        if isinstance(sentences, str) or any(isinstance(words, str) for words in sentences):
            raise TypeError("sentences: expected sequences of words, got a string; split sentences into words")
        for i, words in enumerate(sentences):
            for word in words:
                if not isinstance(word, str):
                    raise TypeError(f"sentences: number {i} holds {word!r}, expected words (strings)")

    def batches(self, sentences: Sequence[Words]) -> Iterator[list[int]]:
        """Numbers of sentences of like length, shortest first, in batches that bound the memory; empty ones are left out."""
        order = sorted((i for i, words in enumerate(sentences) if len(words)), key=lambda i: len(sentences[i]))
        budget = max(BATCH_CELLS // max(len(self.tag_of_state()), 1), 1)
        batch: list[int] = []
        for i in order:
            if batch and (len(batch) + 1) * (len(sentences[i]) + 1) > budget:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _each(self, sentences: Sequence[Words], answer, empty) -> list:
        """answer(chain, lengths) -> one value a row, for all sentences; `empty()` for empty ones."""
        self._check(sentences)
        found: list = [None] * len(sentences)
        with torch.no_grad():
            for batch in self.batches(sentences):
                rows = [sentences[i] for i in batch]
                for i, value in zip(batch, answer(self.chain(rows), [len(words) for words in rows]), strict=True):
                    found[i] = value
        return [empty() if len(words) == 0 else value for words, value in zip(sentences, found, strict=True)]

    def _names(self, states: Tensor, length: int) -> tuple[str, ...]:
        """Tags of a path of states (T,)."""
        return tuple(self.tags[k] for k in self.tag_of_state().to(states.device)[states[:length]].tolist())

    def _tag_marginals(self, chain) -> Tensor:
        """(B, T, tags) probabilities of tags."""
        states = self.tag_of_state()
        probs = chain.marginals().dense(len(states))
        some = states >= 0
        index = states[some].to(probs.device)
        total = probs.new_zeros(*probs.shape[:-1], len(self.tags))
        return total.index_add_(-1, index, probs[..., some.to(probs.device)])

    # ---------------------------------------------------------------- questions
    def tag(self, sentences: Sequence[Words], *, decode: str | None = None) -> list[tuple[str, ...]]:
        """The tags of each sentence's words; `decode` as in the class."""
        decode = self.decode if decode is None else decode
        if decode not in DECODERS:
            raise ValueError(f"decode must be one of {', '.join(DECODERS)}; got {decode!r}")

        def paths(chain, lengths):
            if decode == "viterbi":
                found = self.tag_of_state()[chain.viterbi()[0].cpu()]  # padded steps are cut off below
            else:
                found = self._tag_marginals(chain).argmax(-1)
            return [tuple(self.tags[k] for k in row[:n]) for row, n in zip(found.tolist(), lengths, strict=True)]

        return self._each(sentences, paths, tuple)

    def marginals(self, sentences: Sequence[Words]) -> list[np.ndarray]:
        """Of each sentence the (T, tags) probabilities of tags given all its words."""

        def rows(chain, lengths):
            probs = self._tag_marginals(chain).cpu().numpy()
            return [row[:n].copy() for row, n in zip(probs, lengths, strict=True)]

        return self._each(sentences, rows, lambda: np.zeros((0, len(self.tags))))

    def confidence(self, sentences: Sequence[Words], *, decode: str | None = None) -> list[np.ndarray]:
        """Of each sentence the (T,) probability that each word's tag, as :meth:`tag` gives it, is right."""
        number = {tag: k for k, tag in enumerate(self.tags)}
        tags = self.tag(sentences, decode=decode)
        return [
            probs[np.arange(len(path)), [number[tag] for tag in path]] if len(path) else np.zeros(0)
            for probs, path in zip(self.marginals(sentences), tags, strict=True)
        ]

    def entropy(self, sentences: Sequence[Words]) -> np.ndarray:
        """(N,) entropy of the path of states given the words, nats; of the taggings where each tag is one state."""
        return np.array(self._each(sentences, lambda chain, _: chain.entropy().tolist(), float), dtype=float)

    def n_best(self, sentence: Words, n: int) -> list[tuple[tuple[str, ...], float]]:
        """The n most probable paths of states as taggings, and log p(path | words), nats, best first; fewer where there are not
        as many."""
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        self._check([sentence])
        if not len(sentence):
            return [((), 0.0)]
        with torch.no_grad():
            chain = self.chain([sentence])
            paths, log_probs = chain.k_best(n)
            total = float(chain.log_prob())
        return [
            (self._names(path[0], len(sentence)), float(log_prob) - total)
            for path, log_prob in zip(paths, log_probs[:, 0], strict=True)
            if bool(log_prob > -torch.inf)
        ]

    def sample(self, sentence: Words, num_samples: int = 1, *, seed: int | None = None) -> list[tuple[str, ...]]:
        """Taggings drawn from the posterior."""
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        self._check([sentence])
        if not len(sentence):
            return [()] * num_samples
        with torch.no_grad(), torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            paths = self.chain([sentence]).sample(num_samples)
        return [self._names(path[0], len(sentence)) for path in paths]


class GenerativeTagger(ProbabilisticTagger):
    """A probabilistic tagger that also gives words probabilities."""

    def log_prob(self, sentences: Sequence[Words]) -> np.ndarray:
        """(N,) log p(words), nats, the end of the sentence included where the model has one; 0 for empty sentences."""
        return np.array(self._each(sentences, lambda chain, _: chain.log_prob().tolist(), float), dtype=float)

    def surprising(self, sentence: Words) -> np.ndarray:
        """(T,) -log p(word | words before), nats: large where a word was not expected."""

        def nats(chain, lengths):
            return [-chain.token_log_probs()[0, : lengths[0]].cpu().numpy()]

        values = self._each([sentence], nats, lambda: np.zeros(0))
        return np.asarray(values[0])

    @abstractmethod
    def generate(self, num_sentences: int, *, seed: int | None = None, max_length: int = 100) -> list[TaggedSentence]:
        """Tagged sentences drawn from the model."""
