"""What questions about a constrained text return."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Texts(NamedTuple):
    """Texts and their states: words, states (S, B, N), -1 behind a text's end; lengths (S, B) in words.

    log_prob: (S, B) log p(words, states), of best texts.
    """

    words: Tensor
    states: Tensor
    lengths: Tensor
    log_prob: Tensor | None = None


class TextMarginals(NamedTuple):
    """Posterior of a text of at most N words that satisfies a constraint.

    Where lengths differ, rows of words and states sum to the probability that the text is so long.

    Attributes:
        states: (B, N, Z) p(z_s | constraint). words: (B, N, V) p(x_s | constraint).
        lengths: (B, N+1) p(length | constraint). automaton: (B, N, D) p(automaton's state behind word s | constraint).
    """

    states: Tensor
    words: Tensor
    lengths: Tensor
    automaton: Tensor


class TextSoFar(NamedTuple):
    """Where in a text one is.

    Attributes:
        step: words read. states: (B, Z) log p(z of the next word | words read). automaton: (B,) its state.
    """

    step: int
    states: Tensor
    automaton: Tensor
