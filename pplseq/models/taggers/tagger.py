"""What every tagger offers: learn, tag, save, load, and say what it was made with."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.folder import FolderError, check_content, sound
from pplseq.models.storage import MODEL, check_finite
from pplseq.models.taggers import TAGGERS

Words = Sequence[str]


class Tagger(checks.NamedArguments, ABC):
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
        x: Sequence[TaggedSentence],
        validation: Sequence[TaggedSentence] | None = None,
        *,
        progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
    ) -> Self:
        """Learns from tagged sentences; the tagger itself is returned.

        Args:
            x: words and their tags; the tag None is an unknown one, for taggers that can learn from such words.
            validation: held-out sentences, for taggers that choose something by them.
            progress: show a bar. on_record: called with every record of a training that goes in steps.

        Raises:
            ValueError: nothing to learn from.
        """

    @abstractmethod
    def tag(self, x: Sequence[Words]) -> list[tuple[str, ...]]:
        """The tags of each sentence's words; an empty sentence has none."""

    def decode(self, x: Sequence[Words]) -> list[tuple[str, ...]]:
        """The same as :meth:`tag`, by the name that all models have for their best path."""
        return self.tag(x)

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
        self._check_fitted()
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

    # ---------------------------------------------------------------- what it was made with
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn has them; those of `settings` under their own names."""
        names = [
            name
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if name != "settings" and parameter.kind is not parameter.VAR_KEYWORD
        ]
        settings = getattr(self, "settings", None)
        return {name: getattr(self, name) for name in names} | ({} if settings is None else asdict(settings))

    def set_params(self, **params: Any) -> Self:
        """Takes other arguments of the constructor; what was learned is forgotten, so fit again.

        Raises:
            ValueError: for a name that the constructor has not.
        """
        known = self.get_params()
        for name in params:
            if name not in known:
                raise ValueError(f"{name}: {type(self).__name__} has no such parameter.{checks.nearest(name, known)}")
        self.__init__(**{**known, **params})
        self.tags = ()
        return self

    def __sklearn_clone__(self) -> Self:
        return type(self)(**copy.deepcopy(self.get_params()))

    def __sklearn_tags__(self):
        from sklearn.utils import Tags, TargetTags  # only scikit-learn asks

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __repr__(self) -> str:
        usual = type(self)().get_params()
        given = [f"{name}={_short(value)}" for name, value in self.get_params().items() if value != usual[name]]
        learned = f"{len(self.tags)} tags, {len(self.known_words):,} words" if self.tags else "not fitted"
        return f"{type(self).__name__}({', '.join(given)}): {learned}"

    def _check_fitted(self) -> None:
        if not self.tags:
            raise RuntimeError(f"{type(self).__name__} has seen no tagged sentences yet; call fit first, or load one")


def _short(value: Any, limit: int = 80) -> str:
    """A value as Python writes it, cut where it is long, as whole lists of words are."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."


def load_tagger(folder: str | Path) -> Tagger:
    """Reads any tagger that was saved.

    Raises:
        FileNotFoundError: there is none. ValueError: the folder is damaged, of another version, or no tagger's.
    """
    header, tensors, *_ = MODEL.read(folder)
    if header.get("model") != "tagger" or str(header.get("tagger")) not in TAGGERS:
        raise FolderError(
            f"{folder}: holds the model {header.get('tagger', header.get('model'))!r}, no tagger; taggers are made by "
            "`pplseq train tagger`"
        )
    check_finite(tensors, folder)
    again = "it was saved by another one, or the folder is damaged: train again, as by `pplseq train tagger`"
    with sound(f"{folder}: config.json does not describe a {header['tagger']} of this version", again):
        tagger = TAGGERS[header["tagger"]].from_state(header["config"], tensors)
        check_content([*tagger.tags, *tagger.known_words], [str], folder, again, "tags and words")
        return tagger


def check_tagged(sentences: Sequence[TaggedSentence]) -> None:
    """Raises TypeError for what is no tagged sentences: plain words, a path, a number."""
    wanted = "x: expected tagged sentences, a list of TaggedSentence(words, tags) or what read_tagged reads, got"
    if isinstance(sentences, str | bytes) or not isinstance(sentences, Sized) or not isinstance(sentences, Iterable):
        raise TypeError(f"{wanted} {checks.shown(sentences)}")
    for i, sentence in enumerate(sentences):
        if not hasattr(sentence, "words"):
            raise TypeError(f"{wanted} {checks.shown(sentence)} as number {i}")


def check_sentences(sentences: Sequence[TaggedSentence], *, need_tags: bool = True) -> None:
    """Raises unless there is something to learn from.

    Raises:
        TypeError: for what is no tagged sentences, and words and tags that are no strings.
        ValueError: no words, not as many tags as words, or (if they are needed) a word without a tag; by the sentence's number.
    """
    check_tagged(sentences)
    if not any(len(sentence.words) for sentence in sentences):
        raise ValueError("x: expected tagged sentences with at least one word among them, got none")
    for i, (words, tags) in enumerate(sentences):
        if len(words) != len(tags):
            raise ValueError(f"x: number {i} has {len(words)} words but {len(tags)} tags")
        for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
            if not isinstance(word, str) or not (tag is None or isinstance(tag, str)):
                raise TypeError(
                    f"x: number {i} holds the word {checks.shown(word)} with the tag {checks.shown(tag)} at {place}; expected "
                    "strings, and None for the tag of a word that is not labelled"
                )
        if need_tags and any(tag is None for tag in tags):
            raise ValueError(
                f"x: number {i} has a word without a tag ({words[tags.index(None)]!r}); this tagger needs all tags; "
                "text that lacks some is for the systems semi-supervised, partly-tagged, dictionary and unsupervised"
            )


def check_words(sentences: Sequence[Words]) -> None:
    """TypeError unless the sentences are sequences of words."""
    if isinstance(sentences, str) or any(isinstance(words, str) for words in sentences):
        raise TypeError("x: expected sequences of words, got a string; split sentences into words")
    for i, words in enumerate(sentences):
        for word in words:
            if not isinstance(word, str):
                raise TypeError(f"x: number {i} holds {checks.shown(word)}, expected words (strings)")


def tag_names(sentences: Sequence[TaggedSentence]) -> tuple[str, ...]:
    """All tags of sentences, sorted."""
    return tuple(sorted({tag for sentence in sentences for tag in sentence.tags if tag is not None}))
