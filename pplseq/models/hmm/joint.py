"""The HMM whose states are the pairs of states of two HMMs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pplseq.models.parts.product_moves import ProductMoves

if TYPE_CHECKING:
    from pplseq.models.hmm.program import HMM


def check_pair(first: HMM, second: HMM, kind: type) -> None:
    """Raises unless both are HMMs of the same words, with parameters that are no random ones."""
    for name, model in (("self", first), ("other", second)):
        if type(model) is not kind:
            raise TypeError(f"{name}: a product is made of two HMMs, got {type(model).__name__}")
        if model.num_words is None:
            raise ValueError(f"{name}: products are made of HMMs of words, and this one is of vectors")
    if first.num_words != second.num_words:
        raise ValueError(f"other: expected an HMM of {first.num_words} words, got one of {second.num_words}")
    words = first.vocabulary, second.vocabulary
    if words[0] is not None and words[1] is not None and words[0].words != words[1].words:
        raise ValueError("other: both HMMs must have the same vocabulary, in the same order")
    for model in (first, second):
        model._check_fitted()


def joint_moves(first: HMM, second: HMM) -> ProductMoves:
    """Those of pairs of states, of which the second one's move first."""
    sizes = [(model.num_states,) if model._factors is None else model._factors.sizes for model in (first, second)]
    return ProductMoves(*sizes[0], *sizes[1])


def joint_tables(first: HMM, second: HMM) -> dict[str, Tensor]:
    """Logits by the names of parameters, views where they can be: (i, j) moves and starts as i and j do, each on its own.

    Raises:
        ValueError: two states that have no word in common.
    """
    (initial, *moves), (beside, *others) = ([table for _, table, _ in model._logits()] for model in (first, second))
    own = [_batched(table).unsqueeze(0).expand(first.num_states, -1, -1, -1) for table in others]
    own += [_batched(table).unsqueeze(1).expand(-1, second.num_states, -1, -1) for table in moves]
    tables = {f"transition_{number}_logits": table.flatten(0, 1) for number, table in enumerate(own, 1)}
    tables["initial_logits"] = (initial.log_softmax(-1).unsqueeze(1) + beside.log_softmax(-1)).flatten()
    words = [model.emission.log() if model._rows is None else model.emission[model._rows].log() for model in (first, second)]
    emission = (words[0].unsqueeze(1) + words[1]).flatten(0, 1)
    none = torch.isneginf(emission).all(-1).nonzero()
    if len(none):
        pair = divmod(int(none[0]), second.num_states)
        raise ValueError(
            f"other: states {pair[0]} and {pair[1]} have no word in common, so that their pair would have none; fit both with "
            "priors, which give every word a probability"
        )
    tables["emissions.logits"] = emission.log_softmax(-1)
    return tables


def _batched(table: Tensor) -> Tensor:
    """[others, from, to]"""
    return table if table.dim() == 3 else table.unsqueeze(0)
