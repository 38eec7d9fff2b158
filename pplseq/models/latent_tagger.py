"""A hidden Markov tagger whose states are finer than tags: each tag is split into substates that EM finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from torch import Tensor

from pplseq.data.columns import TaggedSentence
from pplseq.distributions.block import BlockEmission, BlockTransition, TableTransition
from pplseq.distributions.blocks import BlockLayout
from pplseq.distributions.dense import DenseTransition, Transition
from pplseq.infer import split_merge
from pplseq.infer.chain import Chain, build_chain
from pplseq.infer.split_merge import SubstateCounts, TaggedTokens
from pplseq.infer.time_index import markov
from pplseq.infer.word_suffixes import SuffixGuesser
from pplseq.models.hmm_tagger import WordTable
from pplseq.models.tagger import GenerativeTagger, Words, check_sentences, tag_names

# chosen on the development part of UD English EWT
SUFFIXES = {"max_count": 10, "max_length": 10, "theta": 0.6, "classes": "shape"}


@dataclass(frozen=True)
class LatentTaggerSettings:
    """How a :class:`LatentTagger` learns.

    Attributes:
        num_substates: of each tag, a power of two; rounds of splitting are its logarithm.
        num_iterations: of EM in each round. noise: by which new substates differ; see
            :func:`~pplseq.infer.split_merge.split`.
        merge: share of each round's splits that is undone where it helps least; then num_substates bounds the number.
        transition_count: pseudo-count of p(substate | tag before), to which transitions back off.
        emission_count: pseudo-count of p(substate | tag) in p(substate | word, tag).
        seed: of the noise.
    """

    num_substates: int = 16
    num_iterations: int = 20
    noise: float = 0.1
    merge: float = 0.0
    transition_count: float = 20.0
    emission_count: float = 5.0
    seed: int = 0

    def __post_init__(self):
        if self.num_substates < 1 or self.num_substates & (self.num_substates - 1):
            raise ValueError(f"num_substates must be a power of two (1, 2, 4, ...), got {self.num_substates}")
        if self.num_iterations < 0 or not 0 <= self.noise < 1 or not 0 <= self.merge < 1:
            raise ValueError(
                "num_iterations must not be negative, noise and merge be in [0, 1); got "
                f"{self.num_iterations}, {self.noise} and {self.merge}"
            )
        if not (self.transition_count >= 0 and self.emission_count > 0):
            raise ValueError(
                "transition_count must not be negative, emission_count be positive; got "
                f"{self.transition_count} and {self.emission_count}"
            )


class LatentTagger(GenerativeTagger):
    """A hidden Markov model with several states a tag.

        z_t ~ p(z_t | z_{t-1}),  word_t ~ p(word_t | z_t),  tag_t = tag of z_t,  up to a boundary behind the last word

    Training counts tags and words, then repeatedly splits every state in two and runs EM on the tagged text, in which
    each word opens the states of its tag only.

    Example::

        tagger = LatentTagger(num_substates=16).fit(sentences)
        tagger.tag([["the", "dog", "barks"]])

    Source: Petrov, Barrett, Thibaux and Klein (2006), Learning accurate, compact, and interpretable tree annotation; Huang,
        Eidelman and Harper (2009), Improving a simple bigram HMM part-of-speech tagger by latent annotation.
    """

    name = "latent-tagger"
    decode = "posterior"

    def __init__(self, settings: LatentTaggerSettings | None = None, **options):
        self.settings = settings or LatentTaggerSettings(**options)
        self.log_probs: list[float] = []

    # ---------------------------------------------------------------- learning
    def fit(self, sentences: Sequence[TaggedSentence], dev=None, *, progress: bool = False) -> LatentTagger:
        """As :meth:`Tagger.fit`; log_probs holds log p(words, tags) before each iteration of EM, nats."""
        check_sentences(sentences)
        tags = tag_names(sentences)
        number = {tag: k for k, tag in enumerate(tags)}
        words = sorted({word for sentence in sentences for word in sentence.words})
        word_number = {word: i for i, word in enumerate(words)}
        symbols: dict[tuple[int, int], int] = {}
        rows = [
            [
                symbols.setdefault((word_number[word], number[tag]), len(symbols))
                for word, tag in zip(words_, tags_, strict=True)
            ]
            for words_, tags_ in sentences
        ]
        of_symbol = torch.tensor([*symbols, (-1, len(tags))])
        counts, sizes = self._learn(TaggedTokens.pack(rows, of_symbol[:, 1]), progress)
        self._set(tags, words, of_symbol, counts.transition.double(), counts.emission.double(), sizes)
        return self

    def _learn(self, tokens: TaggedTokens, progress: bool) -> tuple[SubstateCounts, Tensor]:
        from tqdm import tqdm

        settings = self.settings
        rounds = settings.num_substates.bit_length() - 1
        self.log_probs = []
        model = split_merge.supervised(tokens, torch.float32)
        of_symbol = tokens.tag_of_symbol
        with tqdm(total=rounds * settings.num_iterations, desc="EM", disable=not progress) as bar:

            def each(log_prob: float) -> None:
                self.log_probs.append(log_prob)
                bar.update()

            for k in range(rounds):
                model = split_merge.split(model, of_symbol, noise=settings.noise, seed=settings.seed + k)
                model = split_merge.fit_em(model, tokens, settings.num_iterations, each)
        return split_merge.expected_counts(model, tokens), model.sizes

    def _set(
        self,
        tags: Sequence[str],
        words: Sequence[str],
        of_symbol: Tensor,
        transition: Tensor,
        emission: Tensor,
        sizes: Tensor,
    ) -> None:
        """Probabilities from expected counts, as in :class:`~pplseq.infer.split_merge.SubstateCounts`; of_symbol (S, 2) words
        and tags."""
        self.tags, self.words, self.known_words = tuple(tags), tuple(words), frozenset(words)
        self._word_number = {word: i for i, word in enumerate(words)}
        self._of_symbol, self._counts, self._sizes = of_symbol, SubstateCounts(0.0, transition, emission), sizes
        filled = split_merge.filled_slots(sizes, emission.shape[1])
        self._tag_of_state = filled.nonzero()[:, 0]
        self._transition = self._transition_of(transition, filled)
        self._set_emission(emission, filled)

    def _transition_of(self, counts: Tensor, filled: Tensor) -> DenseTransition:
        """p(z' | z) = (count(z, z') + k p(z' | tag of z)) / (count(z) + k), with p(z' | tag) much the same way from p(z')."""
        num_tags, width = filled.shape
        kept = filled.reshape(-1)
        table = counts.permute(0, 2, 1, 3).reshape(num_tags * width, num_tags * width)[kept][:, kept]
        of_tag = table.new_zeros(num_tags, len(table)).index_add(0, self._tag_of_state, table)
        overall = table.sum(0) / table.sum()
        # a tag pair that was never seen stays possible
        by_tag = (of_tag + overall) / (of_tag.sum(-1, keepdim=True) + 1)
        weight = max(self.settings.transition_count, 1e-6)
        rows = (table + weight * by_tag[self._tag_of_state]) / (table.sum(-1, keepdim=True) + weight)
        initial = rows[-1].clone()
        initial[-1] = 0.0  # a sentence has a word
        return DenseTransition((initial / initial.sum()).log(), rows.log())

    # ---------------------------------------------------------------- words
    def _set_emission(self, counts: Tensor, filled: Tensor) -> None:
        word, tag = self._of_symbol.T
        num_tags, width = filled.shape
        weight = self.settings.emission_count
        visits = counts.new_zeros(num_tags, width).index_add(0, tag, counts)
        self._substate_share = visits / visits.sum(-1, keepdim=True)
        total = counts.sum(-1, keepdim=True)
        # p(word, state) = p(word, tag) p(state | word, tag)
        joint = total * (counts + weight * self._substate_share[tag]) / (total + weight)
        normaliser = joint.new_zeros(num_tags, width).index_add(0, tag, joint)
        self._symbol_log_probs = (joint / normaliser[tag].clamp_min(1e-300)).log()
        slot = filled.reshape(-1).nonzero().squeeze(-1)  # of each state, in the padded table
        number = torch.full((num_tags * width,), -1)
        number[slot] = torch.arange(len(slot))
        self._state_of_slot = number.view(num_tags, width)
        self._symbols_of_word: list[list[int]] = [[] for _ in self.words]
        for symbol, w in enumerate(word[:-1].tolist()):
            self._symbols_of_word[w].append(symbol)
        word_tags = np.zeros((len(self.words), len(self.tags)))
        np.add.at(word_tags, (word[:-1].numpy(), tag[:-1].numpy()), total[:-1, 0].numpy())
        self._guesser = SuffixGuesser(self.words, word_tags, **SUFFIXES)
        self._log_tag_probs = np.log(word_tags.sum(0) / word_tags.sum())
        # substates of a tag where its words are rare
        rare = (word_tags.sum(-1) <= SUFFIXES["max_count"])[word[:-1]]
        rare_visits = counts.new_zeros(num_tags, width).index_add(0, tag[:-1][rare], counts[:-1][rare])
        share = (rare_visits + self._substate_share) / (rare_visits.sum(-1, keepdim=True) + 1)
        self._rare_log_share = (share / self._substate_share.clamp_min(1e-300))[filled].log()
        self._guesses: dict[str, Tensor] = {}

    def _word_log_prob(self, word: str) -> Tensor:
        """(Z,) log p(word | state), of unknown words up to a constant."""
        number = self._word_number.get(word)
        if number is None:
            number = self._word_number.get(word.lower())
        if number is None:
            if word not in self._guesses:
                of_tag = np.log(np.maximum(self._guesser.tag_given_word(word), 1e-300)) - self._log_tag_probs
                row = self._rare_log_share + torch.from_numpy(np.append(of_tag, -np.inf))[self._tag_of_state]
                self._guesses[word] = row
            return self._guesses[word]
        row = torch.full((len(self._tag_of_state),), -torch.inf, dtype=torch.float64)
        for symbol in self._symbols_of_word[number]:
            tag = int(self._of_symbol[symbol, 1])
            size = int(self._sizes[tag])
            row[self._state_of_slot[tag, :size]] = self._symbol_log_probs[symbol, :size]
        return row

    def emission(self, types: Sequence[str]) -> WordTable:
        """p(word | state) of given words; the boundary's is number len(types)."""
        boundary = torch.full((len(self._tag_of_state),), -torch.inf, dtype=torch.float64)
        boundary[-1] = 0.0
        return WordTable(torch.stack([*(self._word_log_prob(word) for word in types), boundary]))

    def encode(self, sentences: Sequence[Words]) -> tuple[list[str], Tensor, Tensor]:
        """The different words of sentences; ids (B, T + 1), ended by the boundary; lengths with it."""
        types: dict[str, int] = {}
        rows = [[types.setdefault(word, len(types)) for word in words] for words in sentences]
        lengths = torch.tensor([len(row) + 1 for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), len(types))
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        return list(types), ids, lengths

    # ---------------------------------------------------------------- the chain
    def model(self, x: Tensor, lengths: Tensor, emission, transition: Transition | None = None) -> None:
        """The generative program, run under ``BlockedEnum``: of words encoded by :meth:`encode`, or of pairs of words and tags
        by :meth:`tagged`."""
        transition, state = transition or self._transition, None
        with pyro.plate("sentences", len(x), dim=-1):
            for t in markov(range(x.shape[1])):
                with poutine.mask(mask=t < lengths):
                    state = pyro.sample(f"state_{t}", transition(state))
                    pyro.sample(f"word_{t}", emission(state), obs=x[:, t])

    def chain(self, sentences: Sequence[Words]) -> Chain:
        """The chain of :meth:`model`, built directly."""
        types, x, lengths = self.encode(sentences)
        valid = torch.arange(x.shape[1])[:, None] < lengths
        return build_chain(self._transition, self.emission(types), x.T, valid=valid)

    def tagged(self, sentences: Sequence[TaggedSentence]) -> tuple[Tensor, Tensor, BlockEmission, BlockTransition]:
        """Arguments of :meth:`model` for tagged sentences: a symbol, a word with its tag, opens the tag's block.

        Its likelihood is p(words, tags), its posterior that of states given both.
        """
        number = {tag: k for k, tag in enumerate(self.tags)}
        types, x, lengths = self.encode([sentence.words for sentence in sentences])
        tags = torch.full_like(x, len(self.tags))
        for i, sentence in enumerate(sentences):
            tags[i, : len(sentence.tags)] = torch.tensor([number[tag] for tag in sentence.tags], dtype=torch.long)
        pairs, symbols = torch.stack([x, tags], -1).flatten(0, 1).unique(dim=0, return_inverse=True)
        layout = BlockLayout.from_sizes(self._sizes)
        table = self.emission(types).table[pairs[:, 0]].gather(-1, layout.state_ids[pairs[:, 1]])
        transition = TableTransition(layout, self._transition.initial, self._transition.matrix)
        return symbols.view_as(x), lengths, BlockEmission(layout, pairs[:, 1], table), transition

    def tag_of_state(self) -> Tensor:
        tags = self._tag_of_state.clone() if self.tags else torch.zeros(0, dtype=torch.long)
        tags[-1:] = -1
        return tags

    def generate(self, num_sentences: int, *, seed: int | None = None, max_length: int = 100) -> list[TaggedSentence]:
        """Tagged sentences drawn from the model, of known words, up to their boundary or `max_length` words."""
        self.check_fitted()
        if num_sentences < 0 or max_length < 1:
            raise ValueError(f"num_sentences and max_length must be positive, got {num_sentences} and {max_length}")
        rng = np.random.default_rng(seed)
        rows = np.concatenate([self._transition.initial[None].exp(), self._transition.matrix.exp()]).cumsum(-1)
        word, tag = self._of_symbol.T.numpy()
        slot = (self._state_of_slot >= 0).nonzero()[:, 1].numpy()
        drawn = []
        for _ in range(num_sentences):
            state, words, tags = -1, [], []
            while len(words) < max_length:
                row = rows[state + 1]
                state = min(int(np.searchsorted(row, rng.random() * row[-1], side="right")), len(row) - 1)
                k = int(self._tag_of_state[state])
                if k == len(self.tags):
                    break
                of_tag = np.flatnonzero(tag == k)
                mass = self._symbol_log_probs[of_tag, slot[state]].exp().numpy()
                words.append(self.words[word[rng.choice(of_tag, p=mass / mass.sum())]])
                tags.append(self.tags[k])
            drawn.append(TaggedSentence(tuple(words), tuple(tags)))
        return drawn

    # ---------------------------------------------------------------- on disk
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = {
            "symbols": self._of_symbol,
            "transition_counts": self._counts.transition,
            "emission_counts": self._counts.emission,
            "sizes": self._sizes,
        }
        return {"settings": asdict(self.settings), "tags": self.tags, "words": self.words}, tensors

    @classmethod
    def from_state(cls, config, tensors):
        tagger = cls(LatentTaggerSettings(**config["settings"]))
        counts = tensors["transition_counts"], tensors["emission_counts"]
        tagger._set(config["tags"], config["words"], tensors["symbols"], *counts, tensors["sizes"])
        return tagger
