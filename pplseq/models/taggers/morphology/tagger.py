"""A tagger of several columns: part of speech, features and lemma of every word from one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.data.tag_formats import BETWEEN_COLUMNS, NO_TAG
from pplseq.models.taggers.latent import LatentTagger, LatentTaggerSettings
from pplseq.models.taggers.morphology.lemmas import LemmaGuesser
from pplseq.models.taggers.tagger import Tagger, Words, check_sentences

LEMMA = "lemma"
COLUMNS = ("upos", "xpos", "feats", LEMMA)
DEFAULTS = {"num_substates": 4}


class MorphologyTagger(Tagger):
    """All columns but the lemma are one tag, "NOUN, NN, Number=Sing", of a latent tagger, so that they agree with each other;
    the lemma is the most probable one given word and tag.

        tag_1..T ~ LatentTagger,    lemma_t = argmax p(lemma | word_t, tag_t)

    Tags are what the columns hold with tabs between, in training and in answers, as ``read_tagged(path, column="upos,xpos,
    feats,lemma")`` reads and ``write_tagged`` writes them.

    Args:
        columns: their names, in the order of the tags' parts; "lemma", if it is one, is the last.
        settings, **options: of :class:`~pplseq.models.taggers.latent.LatentTagger`; num_substates is 4 unless given.

    Attributes:
        tagger: of the joint tags. lemmas: the guesser, or None. tags: the joint tags, without lemmas.

    Example::

        text = read_tagged("train.conllu", column="upos,xpos,feats,lemma")
        MorphologyTagger().fit(text).tag([["dogs", "bark"]])     # (("NOUN\\tNNS\\tNumber=Plur\\tdog", ...),)

    Source: Mueller, Cotterell, Fraser and Schuetze (2015), Joint lemmatization and morphological tagging with Lemming (lemmas
        given tags, as classes of edit scripts).
    """

    name = "morphology-tagger"

    def __init__(self, columns: Sequence[str] | str = COLUMNS, settings: LatentTaggerSettings | None = None, **options: Any):
        self.columns = tuple(columns.split(",")) if isinstance(columns, str) else tuple(columns)
        if not self.columns or LEMMA in self.columns[:-1] or self.columns == (LEMMA,):
            raise ValueError(
                f"columns: expected names such as {', '.join(COLUMNS)}, lemma as the last of several; got "
                f"{checks.shown(columns)}"
            )
        self.settings = settings or LatentTaggerSettings(**{**DEFAULTS, **options})
        if self.settings.lexicon is not None:
            raise ValueError(
                "lexicon: not for tags of several columns; expected None: give it to a tagger of one column, such as the "
                "system latent with --column upos"
            )
        self.tagger = LatentTagger(self.settings)
        self.lemmas: LemmaGuesser | None = None

    @property
    def file_column(self) -> str:
        """The columns as files are asked for them."""
        return ",".join(self.columns)

    def fit(
        self, x: Sequence[TaggedSentence], validation: Sequence[TaggedSentence] | None = None, *, progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
    ) -> MorphologyTagger:  # fmt: skip
        check_sentences(x)
        for i, sentence in enumerate(x):
            for tag in sentence.tags:
                if str(tag).count(BETWEEN_COLUMNS) != len(self.columns) - 1:
                    raise ValueError(
                        f"x: number {i} has the tag {tag!r}, expected {len(self.columns)} columns with tabs between "
                        f"({', '.join(self.columns)}); read the text with column={self.file_column!r}"
                    )
        self.lemmas = None
        if self.columns[-1] == LEMMA:
            parted = [(words, [str(tag).rpartition(BETWEEN_COLUMNS)[::2] for tag in tags]) for words, tags in x]
            tokens = ((str(w), tag, lemma) for words, parts in parted for w, (tag, lemma) in zip(words, parts, strict=True))
            self.lemmas = LemmaGuesser(token for token in tokens if token[2] != NO_TAG or token[0] == NO_TAG)
            x = [TaggedSentence(words, tuple(tag for tag, _ in parts)) for words, parts in parted]
        self.tagger = LatentTagger(self.settings).fit(x, progress=progress, on_record=on_record)
        return self._take()

    def _take(self) -> MorphologyTagger:
        self.tags, self.known_words = self.tagger.tags, self.tagger.known_words
        return self

    def tag(self, x: Sequence[Words]) -> list[tuple[str, ...]]:
        """The columns of every word, with tabs between."""
        self._check_fitted()
        found, lemmas = self.tagger.tag(x), self.lemmas
        if lemmas is None:
            return found
        return [
            tuple(BETWEEN_COLUMNS.join((tag, lemmas(word, tag))) for word, tag in zip(words, tags, strict=True))
            for words, tags in zip(x, found, strict=True)
        ]

    # ---------------------------------------------------------------- on disk
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config, tensors = self.tagger.state()
        lemmas = None if self.lemmas is None else self.lemmas.state()
        return {"columns": list(self.columns), "settings": asdict(self.settings), "tagger": config, "lemmas": lemmas}, tensors

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> MorphologyTagger:
        found = cls(config["columns"], LatentTaggerSettings.from_saved(config["settings"]))
        found.tagger = LatentTagger.from_state(config["tagger"], tensors)
        found.lemmas = None if config["lemmas"] is None else LemmaGuesser.from_state(config["lemmas"])
        return found._take()
