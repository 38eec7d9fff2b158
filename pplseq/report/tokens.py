"""Where a text's nats go: perplexity by frequency of words, and the words that cost most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pplseq.data.text import Text


@dataclass(frozen=True)
class Cost:
    """Tokens of one kind.

    Attributes:
        name: the kind, or the word.
        count: how many tokens. share: of all tokens.
        nats: per token. share_of_nats: of the whole text's.
    """

    name: str
    count: int
    share: float
    nats: float
    share_of_nats: float

    @property
    def perplexity(self) -> float:
        """exp of the nats per token."""
        return math.exp(min(self.nats, 700.0))


@dataclass(frozen=True, eq=False)
class TokenCosts:
    """Costs of a text's tokens.

    Attributes:
        bits: (N,) surprisal of each token.
        kinds: by frequency of the word in training; the end of a line and the unknown word on their own.
        words: the words that cost most in all.
    """

    bits: np.ndarray
    kinds: list[Cost]
    words: list[Cost]


def token_costs(text: Text, token_log_probs: np.ndarray, word_counts: np.ndarray, num_words: int = 12) -> TokenCosts:
    """Split the nats of a text.

    Args:
        text: N tokens.
        token_log_probs: (N,) nats.
        word_counts: (V,) occurrences in training, which rank the words.
        num_words: words listed.
    """
    vocabulary, nats = text.vocabulary, -token_log_probs
    total = max(float(nats.sum()), 1e-300)

    def cost(name: str, chosen: np.ndarray) -> Cost:
        count = int(chosen.sum())
        return Cost(name, count, count / len(nats), float(nats[chosen].mean()), float(nats[chosen].sum()) / total)

    special = np.zeros(len(vocabulary), bool)
    groups = []
    for number in (vocabulary.eos_id, vocabulary.unknown_id):
        if number is not None:
            special[number] = True
            groups.append((vocabulary.words[number], text.tokens == number))
    rank = np.full(len(vocabulary), -1)
    ordinary = np.flatnonzero(~special)
    rank[ordinary[np.argsort(-word_counts[ordinary], kind="stable")]] = np.arange(len(ordinary))
    rank_of_token = rank[text.tokens]
    edges = [0, *(edge for edge in (10, 100, 1000) if edge < len(ordinary)), len(ordinary)]
    for low, high in zip(edges, edges[1:], strict=False):
        name = f"words {low + 1:,} to {high:,} by frequency"
        groups.append((name, (rank_of_token >= low) & (rank_of_token < high)))
    kinds = [cost(name, chosen) for name, chosen in groups if chosen.any()]

    by_word = np.bincount(text.tokens, nats, len(vocabulary))
    costly = [word for word in np.argsort(-by_word, kind="stable")[:num_words] if by_word[word] > 0]
    words = [cost(vocabulary.words[word], text.tokens == word) for word in costly]
    return TokenCosts(nats / math.log(2), kinds, words)
