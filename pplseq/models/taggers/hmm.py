"""Hidden Markov taggers from counts: bigrams or trigrams of tags, guesses for words that were never seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

from pplseq.data.columns import TaggedSentence
from pplseq.distributions.dense import CategoricalEmission, DenseTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import Transition, gather_last, take_rows
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.programs.markov import markov
from pplseq.models.taggers.counts import SMOOTHING, TagCounts, count_tags, transition_probs
from pplseq.models.taggers.suffixes import SpellingModel, SuffixGuesser
from pplseq.models.taggers.tagger import GenerativeTagger, Words, check_sentences

# chosen on the development part of UD English EWT
ENHANCED = {"smoothing": "witten_bell", "unknown": "suffix+shape", "lower_case": True, "suffix_theta": 0.6}
UNKNOWN = ("none", "suffix", "suffix+shape")


@dataclass(frozen=True)
class HMMTaggerSettings:
    """How an :class:`HMMTagger` turns counts into probabilities.

    Attributes:
        order: tags that the next one depends on, 1 or 2.
        smoothing: of transitions; see :func:`~pplseq.models.taggers.counts.transition_probs`. add: lambda of "add".
        unknown: words never seen say nothing about tags ("none"), or have the tags of rare words with the same ending
            ("suffix"), and the same look ("suffix+shape").
        lower_case: an unknown word that is known in lower case has that word's tags.
        max_count: words up to this frequent are rare. max_suffix: letters of an ending.
        suffix_theta: weight of shorter endings; see :class:`~pplseq.models.taggers.suffixes.SuffixGuesser`.
    """

    order: int = 2
    smoothing: str = "deleted_interpolation"
    add: float = 1.0
    unknown: str = "suffix"
    lower_case: bool = False
    max_count: int = 10
    max_suffix: int = 10
    suffix_theta: float | None = None

    def __post_init__(self):
        if self.order not in (1, 2):
            raise ValueError(f"order must be 1 (bigrams) or 2 (trigrams), got {self.order!r}")
        for name, value, choices in (("smoothing", self.smoothing, SMOOTHING), ("unknown", self.unknown, UNKNOWN)):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


class HMMTagger(GenerativeTagger):
    """A hidden Markov model whose states are tags (order 1) or pairs of tags (order 2), estimated by counting.

        tag_t ~ p(tag | one or two tags before),  word_t ~ p(word | tag_t),  up to a boundary behind the last word

    With e the probability that a word is new, (number of words seen once + 1/2) / (number of tokens + 1), a known word has
    p(word | tag) = (1 - e) count(word, tag) / count(tag). A new one is any other string of Unicode, with e p(spelling)
    P(tag | ending) / P(tag): Bayes' rule as in TnT, so that new words have probability e over all tags (each tag by itself as
    far as the new words' tags are distributed like all others). Neither e nor the spelling moves a tag; they make
    probabilities of sentences and :meth:`surprising` words comparable.

    Example::

        tagger = HMMTagger.tnt().fit(sentences)
        tagger.tag([["the", "dog", "barks"]])

    Source: T. Brants (2000), TnT: a statistical part-of-speech tagger; L. Rabiner (1989), A tutorial on hidden Markov models.
    """

    name = "hmm-tagger"

    def __init__(self, settings: HMMTaggerSettings | None = None, **options):
        self.settings = settings or HMMTaggerSettings(**options)
        self.counts: TagCounts | None = None

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
    def fit(self, sentences: Sequence[TaggedSentence], dev=None, *, progress: bool = False) -> HMMTagger:
        check_sentences(sentences)
        return self.set_counts(count_tags(sentences, self.settings.order))

    def set_counts(self, counts: TagCounts) -> HMMTagger:
        """Takes counts for the training text; counts of parts of a text may be added up before."""
        settings = self.settings
        self.counts, self.tags, self.known_words = counts, counts.tags, frozenset(counts.words)
        self._word_number = {word: i for i, word in enumerate(counts.words)}
        self._num_tags = counts.word_tags.sum(0)
        totals = counts.word_tags.sum(1)
        new = ((totals == 1).sum() + 0.5) / (totals.sum() + 1)
        with np.errstate(divide="ignore"):
            self._known_log_probs = np.log(counts.word_tags / self._num_tags) + math.log1p(-new)
            self._log_likeness = np.log(counts.word_tags / totals[:, None]) - np.log(self._num_tags / totals.sum())
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
        probs = transition_probs(counts.ngrams, settings.order, settings.smoothing, settings.add)
        self._transition = self._make_transition(torch.from_numpy(np.ascontiguousarray(probs)).log())
        return self

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
        likeness = np.zeros(len(self.tags))  # log P(tag | word) / P(tag)
        number = self._word_number.get(word.lower()) if self.settings.lower_case else None
        if number is not None:
            likeness = self._log_likeness[number]
        elif self._guesser is not None:
            with np.errstate(divide="ignore"):
                likeness = np.log(self._guesser.tag_given_word(word) / self._guesser.tag_probs)
        return self._log_new + self._spelling.log_prob(word) + likeness

    def emission(self, types: Sequence[str]) -> CategoricalEmission:
        """p(word | state) of given words; the boundary's is number len(types)."""
        size, num_types = len(self.tags) + 1, len(types)
        table = np.full((num_types + 1, size), -np.inf)
        for i, word in enumerate(types):
            table[i, :-1] = self._word_log_prob(word)
        table[num_types, -1] = 0.0
        return WordTable(torch.from_numpy(table), self.settings.order)

    def encode(self, sentences: Sequence[Words]) -> tuple[list[str], Tensor, Tensor]:
        """The different words of sentences; ids (B, T + 1), ended by the boundary; lengths with it."""
        types: dict[str, int] = {}
        rows = [[types.setdefault(word, len(types)) for word in words] for words in sentences]
        lengths = torch.tensor([len(row) + 1 for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), len(types))
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        return list(types), ids, lengths

    # ---------------------------------------------------------------- the chain
    def model(self, x: Tensor, lengths: Tensor, emission) -> None:
        """The generative program, for words encoded by :meth:`encode`: run it under ``BlockedEnum``."""
        state = None
        with pyro.plate("sentences", len(x), dim=-1):
            for t in markov(range(x.shape[1])):
                with poutine.mask(mask=t < lengths):
                    state = pyro.sample(f"tag_{t}", self._transition(state))
                    pyro.sample(f"word_{t}", emission(state), obs=x[:, t])

    def chain(self, sentences: Sequence[Words]) -> Chain:
        """The chain of :meth:`model`, built directly."""
        types, x, lengths = self.encode(sentences)
        valid = torch.arange(x.shape[1])[:, None] < lengths
        return build_chain(self._transition, self.emission(types), x.T, valid=valid)

    def tag_of_state(self) -> Tensor:
        tags = torch.arange(len(self.tags) + 1)
        tags[-1] = -1
        return tags if self.settings.order == 1 else tags.repeat(len(tags))

    def generate(self, num_sentences: int, *, seed: int | None = None, max_length: int = 100) -> list[TaggedSentence]:
        """Tagged sentences drawn from the model, of known words, up to their boundary or `max_length` words."""
        self.check_fitted()
        if num_sentences < 0 or max_length < 1:
            raise ValueError(f"num_sentences and max_length must be positive, got {num_sentences} and {max_length}")
        rng = np.random.default_rng(seed)
        of_tag = self.tag_of_state().numpy()
        words = np.exp(self._known_log_probs)
        drawn = []
        for _ in range(num_sentences):
            state, tags = None, []
            while len(tags) < max_length:
                rows = self._transition.rows(None if state is None else torch.tensor(state)).exp().numpy()
                state = int(rng.choice(len(rows), p=rows / rows.sum()))
                tag = int(of_tag[state])
                if tag < 0:
                    break
                tags.append(tag)
            spoken = [self.counts.words[int(rng.choice(len(words), p=words[:, k] / words[:, k].sum()))] for k in tags]
            drawn.append(TaggedSentence(tuple(spoken), tuple(self.tags[k] for k in tags)))
        return drawn

    # ---------------------------------------------------------------- on disk
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        counts = self.counts
        where = np.nonzero(counts.word_tags)
        tensors = {
            "ngrams": torch.from_numpy(counts.ngrams),
            "word_tags_at": torch.from_numpy(np.stack(where)),
            "word_tags": torch.from_numpy(counts.word_tags[where]),
        }
        return {"settings": asdict(self.settings), "tags": counts.tags, "words": counts.words}, tensors

    @classmethod
    def from_state(cls, config, tensors):
        words, tags = tuple(config["words"]), tuple(config["tags"])
        word_tags = np.zeros((len(words), len(tags)))
        word_tags[tuple(tensors["word_tags_at"].numpy())] = tensors["word_tags"].numpy()
        tagger = cls(HMMTaggerSettings(**config["settings"]))
        ngrams = tensors["ngrams"].numpy()
        if ngrams.shape != (len(tags) + 1,) * (tagger.settings.order + 1) or not word_tags.sum(1).all():
            raise ValueError(
                "config.json: its settings, words and tags do not fit the counts in model.safetensors; the folder is damaged"
            )
        return tagger.set_counts(TagCounts(tags, words, tensors["ngrams"].numpy(), word_tags))


class WordTable(CategoricalEmission):
    """log p(word | tag) of the words of a batch, where tags are states or the second of a pair; columns need not sum to one,
    as these are not all the words there are.

    Args:
        table: (words, M). order: 1, states are tags; 2, states are pairs a M + b.
    """

    def __init__(self, table: Tensor, order: int = 1):
        self.table, self.order = table, order
        self.num_words, size = table.shape
        self.num_states = size**order
        self.batch_shape = torch.Size()

    @property
    def log_probs(self) -> Tensor:
        """(Z, words)."""
        return self.table.T.repeat(self.num_states // self.table.shape[1], 1)

    def log_likelihood(self, obs):
        emit = self.table[obs]
        return emit if self.order == 1 else emit.repeat(*[1] * (emit.dim() - 1), emit.shape[-1])

    def distribution(self, state):
        return _TableRows(take_rows(self.log_probs, state))


class _TableRows(dist.Categorical):
    """Scores with the table's numbers as they are; draws from the words in it."""

    def __init__(self, log_probs: Tensor):
        super().__init__(logits=log_probs, validate_args=False)
        self.log_probs = log_probs

    def expand(self, batch_shape, _instance=None):
        return _TableRows(self.log_probs.expand(*batch_shape, -1))

    def log_prob(self, value):
        return gather_last(self.log_probs, value)


def _without_boundary(row: Tensor) -> Tensor:
    """log-probabilities of the first tag: a sentence has one."""
    row = row.clone()
    row[-1] = -torch.inf
    return row.log_softmax(-1)
