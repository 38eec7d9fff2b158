"""Where the topics of a VLHMM start: at a mixture of unigrams over windows of its text.

Topics that start alike stay alike. Windows are clusters of words' counts by EM, annealed; what a topic lifts of a word is
log p(word | topic) / p(word).

Source: K. Nigam and others (2000), Text classification from labeled and unlabeled documents using EM, Machine Learning 39, of
the mixture; annealing: N. Ueda and R. Nakano (1998), Deterministic annealing EM algorithm, Neural Networks 11.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.data.text import Text

WINDOW = 400  # words
MOST_WINDOWS = 1 << 13  # of a long text, spread over it
ROUNDS, WARMING = 40, 0.02  # iterations of EM, and by how much the k-th one's posteriors are cold
FEWEST, MOST = 3, 0.5  # windows that a word occurs in, and the largest share of them, to tell topics apart
SMOOTHED = 100.0, 2000.0  # words of the whole text's distribution that each topic begins with, in EM and for what it lifts
LARGEST_LIFT = 1.5  # nats


def start_topics(model: Any, text: Text) -> None:
    """Sets what topics lift of words, and how likely they are, to a mixture of unigrams over windows of a text.

    Args:
        model: a :class:`~pplseq.models.vlhmm.program.VLHMM` with words and several topics.
        text: as encoded for the model.

    Cost: 40 passes over 3 million words at most.
    """
    found = window_topics(np.asarray(text.tokens), model.num_words, model.num_topics)
    if found is None:
        return  # too short to tell: the topics that were drawn
    lifts, shares = found
    with torch.no_grad():
        model.topic_words.copy_(lifts)
        model.topic_prior.copy_(shares.log())


def window_topics(tokens: np.ndarray, num_words: int, num_topics: int) -> tuple[Tensor, Tensor] | None:
    """What topics lift of words (V, C), nats, and their shares (C,); None for a text of fewer windows than topics, or without
    words that occur in some windows and not in others. They are of the text alone: the same for models of all seeds."""
    windows = len(tokens) // WINDOW
    if windows < num_topics:
        return None
    taken = np.linspace(0, windows - 1, min(windows, MOST_WINDOWS)).round().astype(np.int64)
    words = torch.from_numpy(tokens[: windows * WINDOW].reshape(windows, WINDOW)[taken].astype(np.int64))
    window = torch.arange(len(words)).repeat_interleave(WINDOW)
    size, places = (len(words), num_words), torch.stack([window, words.flatten()])
    counts = torch.sparse_coo_tensor(places, torch.ones(words.numel()), size, check_invariants=True).coalesce()
    total = torch.bincount(words.flatten(), minlength=num_words) + 1.0
    overall = total / total.sum()
    occurs = torch.bincount(counts.indices()[1], minlength=num_words)
    telling = ((occurs >= FEWEST) & (occurs <= MOST * len(words))).float()
    if telling.sum() < num_topics:
        return None
    noise = torch.randn(len(words), num_topics, generator=torch.Generator().manual_seed(0))
    posterior = torch.softmax(0.1 * noise, -1)
    for step in range(ROUNDS):
        mass = torch.sparse.mm(counts.t(), posterior) + SMOOTHED[0] * overall.unsqueeze(-1)  # (V, C)
        mass = mass * telling.unsqueeze(-1)
        log = (mass / mass.sum(0)).clamp_min(1e-30).log() * telling.unsqueeze(-1)
        score = torch.sparse.mm(counts, log) + posterior.mean(0).log()
        posterior = torch.softmax(score * min(1.0, WARMING * (step + 1)), -1)
    mass = torch.sparse.mm(counts.t(), posterior) + SMOOTHED[1] * overall.unsqueeze(-1)
    lifts = ((mass / mass.sum(0)).log() - overall.log().unsqueeze(-1)).clamp(-LARGEST_LIFT, LARGEST_LIFT)
    shares = posterior.mean(0).clamp_min(1e-3)
    return lifts, shares / shares.sum()
