"""Slow, readable truths about constrained texts: the product of a chain and an automaton as one matrix, and every text."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


def product_matrix(matrix: Tensor, emission: Tensor, classes: Tensor, moves: Tensor) -> Tensor:
    """(D Z, D Z) p(d', z' | d, z): a step of the chain to z', a word x of it, and a move of the automaton by x.

    Args:
        matrix: (Z, Z) p(z' | z). emission: (Z, V) p(x | z). classes: (V,). moves: (D, C).
    """
    automaton, states = len(moves), len(matrix)
    rows = []
    for d in range(automaton):
        row = matrix.new_zeros(automaton, states, states)  # d', z, z'
        for word, of_class in enumerate(classes.tolist()):
            by_word = torch.zeros_like(row)
            by_word[int(moves[d, of_class])] = matrix * emission[:, word]
            row = row + by_word
        rows.append(row)
    return torch.stack(rows).permute(0, 2, 1, 3).reshape(automaton * states, automaton * states)


def product_log_prob(
    initial: Tensor,
    matrix: Tensor,
    emission: Tensor,
    classes: Tensor,
    moves: Tensor,
    accepting: Tensor,
    start: int,
    length: int,
) -> Tensor:
    """log p(a text of ``length`` words is accepted), by powers of the product's matrix; differentiable. Cost: (D Z)^2 a word.

    Args:
        initial: (Z,) log p(z_1). matrix: (Z, Z), emission: (Z, V), logs. The rest: an automaton.
    """
    if length == 0:
        return initial.new_tensor(0.0 if bool(accepting[start]) else -math.inf)
    matrix, emission = matrix.exp(), emission.exp()
    # a state before all others, from which the first state is drawn
    first = product_matrix(initial.exp().expand_as(matrix), emission, classes, moves)
    step = product_matrix(matrix, emission, classes, moves)
    states = len(matrix)
    message = first[start * states]
    for _ in range(length - 1):
        message = message @ step
    return message.view(len(moves), states)[accepting].sum().log()


def every_text(
    log_prob, num_words: int, classes: Tensor, moves: Tensor, accepting: Tensor, start: int, lengths
) -> dict[tuple[int, ...], Tensor]:
    """log p of every text of the given lengths that is accepted; log_prob: of a text, a tuple of word ids."""
    found = {}
    for length in lengths:
        for text in itertools.product(range(num_words), repeat=length):
            state = start
            for word in text:
                state = int(moves[state, classes[word]])
            if bool(accepting[state]):
                found[text] = log_prob(text)
    return found
