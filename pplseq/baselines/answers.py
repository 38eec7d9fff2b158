"""Questions to a neural language model, with the names and answers of :mod:`pplseq.models.answers`."""

from __future__ import annotations

from typing import Any

import torch

from pplseq.data.vocabulary import Vocabulary
from pplseq.models import answers as queries
from pplseq.models.answers import Words


def score(model: Any, vocabulary: Vocabulary, words: Words) -> dict[str, Any]:
    """log p(words), and of each word given those before it."""
    _without_gaps(words)
    return queries.score(model, vocabulary, words)


def next_word(
    model: Any, vocabulary: Vocabulary, words: Words, *, top: int = 5, allow_unknown: bool = True
) -> dict[str, Any]:
    """p(x_{T+1} | x_1..x_T): the `top` most probable words. No words at all: the first word of a text."""
    _without_gaps(words)
    answer = queries.observe(model, vocabulary, words)[1] if words else {"words": [], "unknown": []}
    log_probs = torch.from_numpy(model.next_word(answer["words"]))
    log_probs = queries.without_unknown(log_probs.unsqueeze(0), vocabulary, allow_unknown)[0]
    return answer | {"next": queries.top_words(vocabulary, log_probs, top)}


def _without_gaps(words: Words) -> None:
    if None in words:
        raise ValueError("words: a network cannot read over a missing word; fill the gap, or ask a model with states")
