"""Emissions by classes of words: words of one block that move the automaton alike are one word to it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pplseq.distributions.block import BlockEmission
from pplseq.distributions.state import Emission
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.kernels.log_semiring import log_matmul, safe_log

CELLS = 1 << 24  # numbers in one temporary


def by_group(score: Tensor, group: Tensor, count: int, maximum: bool = False) -> Tensor:
    """log sum exp (or the maximum) of score (..., P, K) over members of each group (P,): (..., count, K), -inf for none."""
    index = group.unsqueeze(-1).expand(score.shape)
    shape = (*score.shape[:-2], count, score.shape[-1])
    top = score.detach().new_full(shape, -math.inf).scatter_reduce(-2, index, score.detach(), "amax")
    if maximum:
        return top
    top = top.clamp_min(torch.finfo(score.dtype).min)
    relative = (score - top.gather(-2, index)).exp()
    total = torch.zeros_like(top).index_add(-2, group, relative)
    return safe_log(total) + top


class ClassEmission:
    """p(class of words | state), of the classes that each block has; an emission without blocks is one block of all states.

    Args:
        emission: of words. moves: of the automaton.
        reset_id: the word behind which the state is drawn afresh, or None; it then has a class of its own.

    Attributes:
        words: (V, K) log p(word | slot of its block). block_of_word: (V,).
        block, word_class: (P,) the pairs of blocks and classes that have words. reset: the pair of the reset word, or None.

    Cost: P K numbers, never more than the emission itself has.
    """

    def __init__(self, emission: Emission, moves: WordMoves, reset_id: int | None = None):
        self.emission, self.moves, self.reset_id = emission, moves, reset_id
        self.num_states, device = emission.num_states, moves.classes.device
        if isinstance(emission, BlockEmission):
            self.layout, self.words, self.block_of_word = (
                emission.layout,
                emission.word_log_probs,
                emission.block_of_word,
            )
            self.num_blocks = emission.layout.num_blocks
        else:
            words = torch.arange(emission.num_words, device=device)
            self.layout, self.words, self.num_blocks = None, emission.log_likelihood(words), 1
            self.block_of_word = torch.zeros_like(words)
        key = self.block_of_word * moves.num_classes + moves.classes
        pairs, self.pair_of_word = key.unique(return_inverse=True)
        self.block, self.word_class = pairs // moves.num_classes, pairs % moves.num_classes
        self.reset = None if reset_id is None else int(self.pair_of_word[reset_id])
        self._best: Tensor | None = None
        self._sum: Tensor | None = None

    def pair_log_probs(self, maximum: bool) -> Tensor:
        """(P, K) log p(class | slot of the block), or of the class's most probable word."""
        kept = self._best if maximum else self._sum
        if kept is None:
            kept = by_group(self.words, self.pair_of_word, len(self.block), maximum)
            if maximum:
                self._best = kept
            else:
                self._sum = kept
        return kept

    def of_blocks(self, values: Tensor) -> Tensor:
        """(..., M, K) by slots, from (..., Z) by states."""
        return values.unsqueeze(-2) if self.layout is None else values[..., self.layout.slots]

    def of_states(self, values: Tensor) -> Tensor:
        """(..., Z) by states, from (..., M, K) by slots."""
        flat = values.flatten(-2)
        return flat if self.layout is None or self.layout.filled is None else flat[..., self.layout.filled.flatten()]

    def into(self, states: Tensor, values: Tensor, row: Tensor, restart: Tensor | None, maximum: bool) -> Tensor:
        """(R, Z) log sum_x p(x | z) exp(what the automaton's next state is worth), for states (R,) of the automaton.

        Args:
            values: (Q, Z) what next states are worth with each chain state. row: (D,) their places in it.
            restart: (Q,) what they are worth behind the reset word.
        """
        next_row = row[self.moves.moves[states][:, self.word_class]]  # (R, P)
        worth, said = self.of_blocks(values), self.pair_log_probs(maximum)
        parts = []
        for some in next_row.split(max(1, CELLS // said.numel())):
            ahead = worth[some, self.block]  # (r, P, K)
            if self.reset is not None:
                assert restart is not None, "of a model that resets"
                at = torch.arange(len(self.block), device=some.device) == self.reset
                ahead = torch.where(at.unsqueeze(-1), restart[some].unsqueeze(-1), ahead)
            parts.append(by_group(ahead + said, self.block, self.num_blocks, maximum))
        return self.of_states(torch.cat(parts))

    def word_rows(self, states: Tensor) -> Tensor:
        """(R, V) log p(word | state) of chain states (R,)."""
        return self.emission.word_rows(states) if isinstance(self.emission, BlockEmission) else self.words.T[states]

    def word_log_prob(self, score: Tensor) -> Tensor:
        """(R, V) log sum_z exp(score_z) p(word | z), from (R, Z)."""
        if isinstance(self.emission, BlockEmission):
            return self.emission.word_log_prob(score)
        return log_matmul(score, self.words.T)
