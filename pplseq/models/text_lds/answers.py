"""Questions to a linear dynamical system for text, with the names and answers of :mod:`pplseq.models.answers`.

Its states are vectors, so there is no decoding and no state to list; its posterior means are embeddings
(:mod:`pplseq.models.text_lds.embeddings`). Probabilities of words are those of the next-word mixture
(:mod:`pplseq.models.text_lds.next_word`): the model itself has densities of whitened one-hot vectors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.models import answers
from pplseq.models.answers import Words, observe
from pplseq.models.text_lds.next_word import token_probs, word_probs
from pplseq.runs.settings import perplexity


def score(model: Any, vocabulary: Vocabulary, words: Words) -> dict[str, Any]:
    """log p of the words by the next-word mixture, and of each given those before it (0 at a gap).

    "gain" is the model's own log-density of the sentence over that of words without context, nats.
    """
    x, answer = observe(model, vocabulary, _forms(model, words))
    own, unigram = token_probs(model, x[0].cpu().numpy(), np.array([0, x.shape[1]]))
    weight = float(model.mixture_weight)
    tokens = np.log(weight * own + (1 - weight) * unigram)
    num_seen = int((x >= 0).sum())
    log_prob = float(tokens.sum())
    gain = float(model.log_prob(x)[0] - model.word_emission().iid_log_prob(x)[0].sum())
    return answer | {
        "log_prob": log_prob,
        "perplexity": perplexity(-log_prob / num_seen) if num_seen else None,
        "token_log_probs": tokens.tolist(),
        "gain": gain,
    }


def _begin(model: Any, vocabulary: Vocabulary, words: Words, rows: int) -> tuple[Tensor, Any, dict[str, Any]]:
    if not words:
        return model.unigram.log().expand(rows, -1), None, {"words": [], "unknown": []}
    x, answer = observe(model, vocabulary, _forms(model, words))
    return *_go_on(model, x.expand(rows, -1), None), answer


def _go_on(model: Any, ids: Tensor, belief: GaussianBelief | None) -> tuple[Tensor, GaussianBelief]:
    now = model.posterior(ids, start=belief).filtered()
    return word_probs(model, now.mean @ model.transition.T).log(), now


MIXTURE = answers.Reading(_begin, _go_on)
next_word = partial(answers.next_word, how=MIXTURE)
continue_text = partial(answers.continue_text, how=MIXTURE)


def _forms(model: Any, words: Words) -> list[str | None]:
    return [None if word is None else model.forms(word) for word in words]
