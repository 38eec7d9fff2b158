"""Where EM of a tagger starts: counts of tags that are known, and words that are like others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Counts(NamedTuple):
    """Of an HMM: initial (Z,) first states, transition (Z, Z) moves [from, to], emission (Z, V) words."""

    initial: Tensor
    transition: Tensor
    emission: Tensor


def count_states(
    words: Sequence[Sequence[int]], states: Sequence[Sequence[int]], num_states: int, num_words: int
) -> Counts:
    """Counts of known states; -1 is an unknown one, whose word and moves are left out."""
    counts = Counts(
        *(
            torch.zeros(shape, dtype=torch.float64)
            for shape in ((num_states,), (num_states,) * 2, (num_states, num_words))
        )
    )
    for row, path in zip(words, states, strict=True):
        x, z = torch.tensor(row), torch.tensor(path)
        known = z >= 0
        if bool(known[0]):
            counts.initial[z[0]] += 1
        both = known[1:] & known[:-1]
        one = torch.ones((), dtype=torch.float64)
        counts.transition.index_put_((z[:-1][both], z[1:][both]), one, accumulate=True)
        counts.emission.index_put_((z[known], x[known]), one, accumulate=True)
    return counts


def rare_by_class(sightings: Tensor, class_of: Tensor) -> Tensor:
    """(Z, C) counts of words that were sighted at most twice, which are like those to come, by their classes.

    Args:
        sightings: (Z, V) of words in states. class_of: (V,) the class of each word.
    """
    rare = (sightings.sum(0) > 0) & (sightings.sum(0) <= 2)
    counts = sightings.new_zeros(len(sightings), int(class_of.max()) + 1)
    return counts.index_add_(1, class_of[rare], sightings[:, rare])


def state_given_class(counts: Tensor) -> Tensor:
    """(Z, C) p(state | class) from counts (Z, C), smoothed by those of all classes together, for classes with few words."""
    whole = counts.sum(1, keepdim=True) + 0.1
    counts = counts + whole / whole.sum()
    return counts / counts.sum(0)
