"""Generative taggers over sentences that end: program, chain and draws that bigrams, trigrams and substates share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.distributions.dense import CategoricalEmission
from pplseq.distributions.state import Emission, Transition, gather_last, take_rows
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.programs.markov import markov
from pplseq.models.taggers.probabilistic import GenerativeTagger
from pplseq.models.taggers.tagger import Words


class SentenceTagger(GenerativeTagger):
    """z_t ~ p(z_t | z_{t-1}),  word_t ~ p(word_t | z_t),  up to a boundary behind the last word, which is the last state's.

    Subclasses set `transition` and give the table of words.

    Attributes:
        transition: of states. words: those of the training text, which draws are made of.
    """

    transition: Transition
    words: tuple[str, ...] = ()
    order = 1  # 2: states are pairs of tags, and words depend on the second
    symbol: Tensor | None = None  # (Z,) of states that are contexts the tag that words depend on; order is 1 then

    @abstractmethod
    def word_log_probs(self, types: Sequence[str]) -> Tensor:
        """(words, M) log p(word | state) of given words, under tags or substates 0..M-1, the last being the boundary."""

    def emission(self, types: Sequence[str]) -> WordTable:
        """p(word | state) of given words; the boundary's is number len(types)."""
        table = self.word_log_probs(types)
        boundary = torch.full_like(table[:1] if len(table) else table.new_empty(1, table.shape[1]), -torch.inf)
        boundary[0, -1] = 0.0
        return WordTable(torch.cat([table, boundary]), self.order, self.symbol)

    def encode(self, sentences: Sequence[Words]) -> tuple[list[str], Tensor, Tensor]:
        """The different words of sentences; ids (B, T + 1), ended by the boundary; lengths with it."""
        types: dict[str, int] = {}
        rows = [[types.setdefault(word, len(types)) for word in words] for words in sentences]
        lengths = torch.tensor([len(row) + 1 for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), len(types))
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        return list(types), ids, lengths

    def model(self, x: Tensor, lengths: Tensor, emission: Emission, transition: Transition | None = None) -> None:
        """The generative program of words encoded by :meth:`encode`: run it under ``BlockedEnum``."""
        transition, z = transition or self.transition, None
        t: Any  # a step, or all at once
        with pyro.plate("sentences", len(x), dim=-1):
            for t in markov(range(x.shape[1])):
                with poutine.mask(mask=t < lengths):
                    z = pyro.sample(f"z_{t}", transition(z))
                    pyro.sample(f"x_{t}", emission(z), obs=x[:, t])

    def chain(self, sentences: Sequence[Words]) -> Chain:
        """The chain of :meth:`model`, built directly."""
        types, x, lengths = self.encode(sentences)
        valid = torch.arange(x.shape[1])[:, None] < lengths
        return build_chain(self.transition, self.emission(types), x.T, valid=valid)

    def sample(self, num_steps: int = 100, num_sequences: int = 1, *, seed: int | None = None) -> list[TaggedSentence]:
        """Sentences of known words with their tags, drawn up to their boundary, or to `num_steps` words."""
        self.check_unconstrained("sample")
        checks.count("num_steps", num_steps)
        checks.count("num_sequences", num_sequences, least=0)
        rng, of_state = np.random.default_rng(seed if seed is None else checks.seed("seed", seed)), self.tag_of_state().tolist()
        table = self.word_log_probs(self.words).exp().numpy() if num_sequences else np.zeros((0, 1))
        moves: dict[int | None, np.ndarray] = {}
        spoken: dict[int, np.ndarray] = {}

        def draw(known: dict, key: int | None, probs) -> int:
            """From probabilities that are worked out once."""
            if key not in known:
                known[key] = np.cumsum(probs())
            cumulative = known[key]
            place = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
            return min(int(place), len(cumulative) - 1)

        drawn = []
        for _ in range(num_sequences):
            z: int | None = None
            words, tags = [], []
            while len(words) < num_steps:
                before = None if z is None else torch.tensor(z)
                z = draw(moves, z, lambda before=before: self.transition.rows(before).exp().numpy())
                if of_state[z] < 0:
                    break
                column = z % table.shape[1] if self.symbol is None else int(self.symbol[z])
                words.append(self.words[draw(spoken, column, lambda column=column: table[:, column])])
                tags.append(self.tags[of_state[z]])
            drawn.append(TaggedSentence(tuple(words), tuple(tags)))
        return drawn


class WordTable(CategoricalEmission):
    """log p(word | tag) of the words of a batch, where tags are states or the second of a pair; columns need not sum to one,
    as these are not all the words there are.

    Args:
        table: (words, M). order: 1, states are tags; 2, states are pairs a M + b. symbol: (Z,) the tag of each state instead.
    """

    def __init__(self, table: Tensor, order: int = 1, symbol: Tensor | None = None):
        self.table, self.order, self.symbol = table, order, symbol
        self.num_words, size = table.shape
        self.num_states = size**order if symbol is None else len(symbol)
        self.batch_shape = torch.Size()

    @property
    def log_probs(self) -> Tensor:
        """(Z, words)."""
        if self.symbol is not None:
            return self.table.T[self.symbol]
        return self.table.T.repeat(self.num_states // self.table.shape[1], 1)

    def log_likelihood(self, obs):
        emit = self.table[obs]
        if self.symbol is not None:
            return emit[..., self.symbol]
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
