"""Hidden Markov taggers from counts: bigrams or trigrams of tags, guesses for words that were never seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import Transition
from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.models.taggers.counts import (
    SMOOTHING,
    ContextProbs,
    SparseCounts,
    TagCounts,
    context_probs,
    count_tags,
    count_tags_on,
    transition_probs,
)
from pplseq.models.taggers.few_sentences import WordRows, applies, best_states
from pplseq.models.taggers.lexicon import ListedTags, lexicon_entries
from pplseq.models.taggers.sentences import SentenceTagger
from pplseq.models.taggers.suffixes import SpellingModel, SuffixGuesser
from pplseq.models.taggers.tagger import Words, check_sentences
from pplseq.runs.cluster import connected

# chosen on the development part of UD English EWT
ENHANCED = {"smoothing": "witten_bell", "unknown": "suffix+shape", "lower_case": True, "suffix_theta": 0.6}
UNKNOWN = ("none", "suffix", "suffix+shape")


@dataclass(frozen=True)
class HMMTaggerSettings(checks.NamedArguments):
    """How an :class:`HMMTagger` turns counts into probabilities.

    Attributes:
        order: tags that the next one depends on, 1 or 2.
        smoothing: of transitions; see :func:`~pplseq.models.taggers.counts.transition_probs`. add: lambda of "add".
        unknown: words never seen say nothing about tags ("none"), or have the tags of rare words with the same ending
            ("suffix"), and the same look ("suffix+shape").
        lower_case: an unknown word that is known in lower case has that word's tags.
        max_count: words up to this frequent are rare. max_suffix: letters of an ending.
        suffix_theta: weight of shorter endings; see :class:`~pplseq.models.taggers.suffixes.SuffixGuesser`.
        lexicon: tags of words: a mapping, or a file (see :meth:`~pplseq.models.taggers.lexicon.TagDictionary.read`). With
            `lower_case` a new word that is not listed has the entry of the word in lower case.
        lexicon_strength: None: other tags of listed words are impossible, unless training has them. A number: sightings that a
            listing is worth; see :class:`~pplseq.models.taggers.lexicon.ListedTags`.
    """

    order: int = 2
    smoothing: str = "deleted_interpolation"
    add: float = 1.0
    unknown: str = "suffix"
    lower_case: bool = False
    max_count: int = 10
    max_suffix: int = 10
    suffix_theta: float | None = None
    lexicon: Mapping[str, Any] | str | Path | None = None
    lexicon_strength: float | None = None

    def __post_init__(self):
        if self.order not in (1, 2):
            raise ValueError(f"order must be 1 (bigrams) or 2 (trigrams), got {self.order!r}")
        checks.choice("smoothing", self.smoothing, SMOOTHING)
        checks.choice("unknown", self.unknown, UNKNOWN)
        object.__setattr__(self, "lexicon", lexicon_entries(self.lexicon, self.lexicon_strength))  # as settings are frozen


class HMMTagger(SentenceTagger):
    """A hidden Markov model whose states are tags (order 1) or pairs of tags (order 2), estimated by counting.

    Trigrams of many tags are a chain over the pairs that occur in the training text, and the last tag behind all others, where
    transitions back off to it: the same model, in memory and time that follow these pairs.

        tag_t ~ p(tag | one or two tags before),  word_t ~ p(word | tag_t),  up to a boundary behind the last word

    With e the probability that a word is new, (number of words seen once + 1/2) / (number of tokens + 1), a known word has
    p(word | tag) = (1 - e) count(word, tag) / count(tag). A new one is any other string of Unicode, with e p(spelling)
    P(tag | ending) / P(tag): Bayes' rule as in TnT, so that new words have probability e over all tags (each tag by itself as
    far as the new words' tags are distributed like all others). Neither e nor the spelling moves a tag; they make
    probabilities of sentences and of words (:meth:`token_log_probs`) comparable.

    Example::

        tagger = HMMTagger.tnt().fit(sentences)
        tagger.tag([["the", "dog", "barks"]])

    Source: T. Brants (2000), TnT: a statistical part-of-speech tagger; L. Rabiner (1989), A tutorial on hidden Markov models.
    """

    name = "hmm-tagger"

    def __init__(self, settings: HMMTaggerSettings | None = None, **options):
        self.settings = settings or HMMTaggerSettings(**options)
        self.counts: TagCounts  # after fit

    @classmethod
    def tnt(cls) -> HMMTagger:
        """As the tagger TnT: trigrams, deleted interpolation, suffix tries."""
        return cls()

    @classmethod
    def enhanced(cls) -> HMMTagger:
        """The best of this class: trigrams, Witten-Bell, suffix tries by the word's shape, lower-case back-off."""
        return cls(order=2, **ENHANCED)

    @classmethod
    def bigram(cls) -> HMMTagger:
        """As :meth:`enhanced`, with the last tag only: several times as fast."""
        return cls(order=1, **ENHANCED)

    @classmethod
    def plain(cls) -> HMMTagger:
        """Bigrams by relative frequency; unknown words say nothing."""
        return cls(order=1, smoothing="mle", unknown="none")

    # ---------------------------------------------------------------- learning
    def fit(
        self,
        x: Sequence[TaggedSentence] | str | Path,
        validation: Sequence[TaggedSentence] | None = None,
        *,
        progress: bool = False,
        on_record: Callable[[dict[str, Any]], None] | None = None,
        cluster: Any = None,
    ) -> HMMTagger:
        """As :meth:`~pplseq.models.taggers.tagger.Tagger.fit`.

        Args:
            cluster: an address as of :func:`pplseq.runs.cluster.connected`: its workers count, with the same numbers, and x may
                be a pattern of files that they read, such as ``"treebank/*.conllu"``.
        """
        if isinstance(x, (str, Path)):
            if cluster is None:
                raise ValueError(
                    f"x: expected tagged sentences, got the path {checks.shown(str(x))}; read it, "
                    "fit(pplseq.data.read_tagged(path)), or "
                    "give cluster, whose workers read files"
                )
        else:
            check_sentences(x)
            if cluster is None:
                return self.set_counts(count_tags(x, self.settings.order))
        with connected(cluster) as there:
            return self.set_counts(count_tags_on(there, x, self.settings.order))

    def set_counts(self, counts: TagCounts) -> HMMTagger:
        """Takes counts for the training text; counts of parts of a text may be added up before."""
        settings = self.settings
        self.counts, self.tags, self.known_words = counts, counts.tags, frozenset(counts.words)
        self.words = tuple(counts.words)
        self._word_number = {word: i for i, word in enumerate(counts.words)}
        entries: Any = settings.lexicon or {}
        self._listed = ListedTags(entries, counts.tags, settings.lexicon_strength)
        self._word_tags = counts.word_tags + self._listed.sightings(counts.words) if entries else counts.word_tags
        totals = counts.word_tags.sum(1)
        self._tag_probs = counts.word_tags.sum(0) / totals.sum()
        new = ((totals == 1).sum() + 0.5) / (totals.sum() + 1)
        with np.errstate(divide="ignore"):
            self._known_log_probs = np.log(self._word_tags / self._word_tags.sum(0)) + math.log1p(-new)
        self._log_new = math.log(new)
        rare = np.flatnonzero(totals <= max(settings.max_count, totals.min()))
        self._spelling = SpellingModel(counts.words[i] for i in rare)
        self._guesser = None
        if settings.unknown != "none":
            classes = "shape" if settings.unknown == "suffix+shape" else "capitals"
            self._guesser = SuffixGuesser(
                counts.words, counts.word_tags, max_count=settings.max_count, max_length=settings.max_suffix,
                theta=settings.suffix_theta, classes=classes,
            )  # fmt: skip
        self.symbol, self.order = None, settings.order
        self._word_rows = WordRows()
        if isinstance(counts.ngrams, SparseCounts):
            self._take_contexts(context_probs(counts.ngrams, settings.smoothing, settings.add))
        else:
            probs = transition_probs(counts.ngrams, settings.order, settings.smoothing, settings.add)
            self.transition = self._make_transition(torch.from_numpy(np.ascontiguousarray(probs)).log())
        return self

    def _take_contexts(self, contexts: ContextProbs) -> None:
        """A chain over the pairs that occur, and each tag behind any other one."""
        (num_states, size), pairs = contexts.probs.shape, torch.from_numpy(contexts.pairs)
        table, boundary = torch.from_numpy(contexts.probs).log(), size - 1
        of_pair = torch.arange(num_states - size, num_states).repeat(size, 1)  # (M, M) the context that two tags are
        of_pair[pairs[:, 0], pairs[:, 1]] = torch.arange(len(pairs))
        self.symbol, self.order = torch.cat([pairs[:, 1], torch.arange(size)]), 1
        initial = table.new_full((num_states,), -torch.inf)
        initial[of_pair[boundary]] = _without_boundary(table[of_pair[boundary, boundary]])
        self.transition = VariableOrderTransition(initial, table, of_pair[self.symbol], self.symbol)

    def _make_transition(self, table: Tensor) -> Transition:
        """The spec of a table of log-probabilities, (M, M) or (M, M, M); sentences begin behind the boundary."""
        size, boundary = len(table), len(table) - 1
        if table.dim() == 2:
            return DenseTransition(_without_boundary(table[boundary]), table)
        initial = table.new_full((size, size), -torch.inf)
        initial[boundary] = _without_boundary(table[boundary, boundary])
        return SecondOrderTransition(initial.flatten(), table)

    # ---------------------------------------------------------------- words
    def _word_log_prob(self, word: str) -> np.ndarray:
        """(N,) log p(word | tag)."""
        number = self._word_number.get(word)
        if number is not None:
            return self._known_log_probs[number]
        with np.errstate(divide="ignore"):
            likeness = np.log(self._tags_of_new(word) / self._tag_probs)
        return self._log_new + self._spelling.log_prob(word) + likeness

    def _tags_of_new(self, word: str) -> np.ndarray:
        """(N,) P(tag | word) of a word that training lacks."""
        lower = word.lower() if self.settings.lower_case else word
        number = self._word_number.get(lower)
        if number is not None:
            probs = self._word_tags[number] / self._word_tags[number].sum()
        else:
            probs = self._tag_probs if self._guesser is None else self._guesser.tag_given_word(word)
        entry = word if word in self._listed or number is not None else lower
        return self._listed.tag_probs([entry], probs[None])[0] if entry in self._listed else probs

    def word_log_probs(self, types: Sequence[str]) -> Tensor:
        table = np.full((len(types), len(self.tags) + 1), -np.inf)
        for i, word in enumerate(types):
            table[i, :-1] = self._word_log_prob(word)
        return torch.from_numpy(table)

    def tag_few(self, sentences: Sequence[Words], decoder: str) -> list[list[int]] | None:
        loop = "chain.loops.viterbi" if type(self.transition) is DenseTransition else "contexts.loops.k_best"
        if decoder != "viterbi" or not applies(self, HMMTagger, f"kernels.{loop}"):
            return None
        return best_states(self.transition, [self._word_rows.of(words, self._rows_of) for words in sentences])

    def _rows_of(self, words: Sequence[str]) -> list[np.ndarray]:
        return [self._word_log_prob(word) for word in words]

    def tag_of_state(self) -> Tensor:
        tags = torch.arange(len(self.tags) + 1)
        tags[-1] = -1
        if self.symbol is not None:
            return tags[self.symbol]
        return tags if self.settings.order == 1 else tags.repeat(len(tags))

    # ---------------------------------------------------------------- on disk
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        counts = self.counts
        where = np.nonzero(counts.word_tags)
        tensors = {
            "word_tags_at": torch.from_numpy(np.stack(where)),
            "word_tags": torch.from_numpy(counts.word_tags[where]),
        }
        if isinstance(counts.ngrams, SparseCounts):
            tensors["ngrams_at"] = torch.from_numpy(counts.ngrams.at)
            tensors["ngrams"] = torch.from_numpy(counts.ngrams.counts)
        else:
            tensors["ngrams"] = torch.from_numpy(counts.ngrams)
        return {"settings": asdict(self.settings), "tags": counts.tags, "words": counts.words}, tensors

    @classmethod
    def from_state(cls, config, tensors):
        words, tags = tuple(config["words"]), tuple(config["tags"])
        word_tags = np.zeros((len(words), len(tags)))
        word_tags[tuple(tensors["word_tags_at"].numpy())] = tensors["word_tags"].numpy()
        tagger = cls(HMMTaggerSettings(**config["settings"]))
        ngrams, size = tensors["ngrams"].numpy(), len(tags) + 1
        if "ngrams_at" in tensors:
            ngrams = SparseCounts(tensors["ngrams_at"].numpy(), ngrams, size)
            fits = tagger.settings.order == 2 and ngrams.at.shape == (len(ngrams.counts), 3) and bool((ngrams.at < size).all())
        else:
            fits = ngrams.shape == (size,) * (tagger.settings.order + 1)
        if not fits or not word_tags.sum(1).all():
            raise ValueError(
                "config.json: its settings, words and tags do not fit the counts in model.safetensors; the folder is damaged"
            )
        return tagger.set_counts(TagCounts(tags, words, ngrams, word_tags))


def _without_boundary(row: Tensor) -> Tensor:
    """log-probabilities of the first tag: a sentence has one."""
    row = row.clone()
    row[-1] = -torch.inf
    return row.log_softmax(-1)
