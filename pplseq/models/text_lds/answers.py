"""Questions to a linear dynamical system for text, with the names and answers of :mod:`pplseq.models.answers`.

Its states are vectors, so there is no decoding and no state to list; its posterior means are embeddings
(:mod:`pplseq.models.text_lds.embeddings`). Probabilities of words are those of the next-word mixture
(:mod:`pplseq.models.text_lds.next_word`): the model itself has densities of whitened one-hot vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.models.answers import Words, observe, top_words, without_unknown
from pplseq.models.batch import seeded
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


def next_word(
    model: Any, vocabulary: Vocabulary, words: Words, *, top: int = 5, allow_unknown: bool = True
) -> dict[str, Any]:
    """p(x_{T+1} | x_1..x_T): the `top` most probable words. No words at all: the first word of a sentence."""
    probs, _, answer = _predict(model, vocabulary, words)
    log_probs = without_unknown(probs.log(), vocabulary, allow_unknown)
    return answer | {"next": top_words(vocabulary, log_probs[0], top)}


def continue_text(
    model: Any,
    vocabulary: Vocabulary,
    words: Words,
    *,
    length: int = 20,
    num_samples: int = 1,
    temperature: float = 1.0,
    seed: int = 0,
    allow_unknown: bool = True,
) -> dict[str, Any]:
    """Sentences that go on from a prefix, drawn word by word from the next-word mixture; `<eos>` ends one.

    Args:
        length: words to draw, at most.
        num_samples: sentences.
        temperature: 1 draws from the mixture, below 1 from its more probable words.
        allow_unknown: False never draws the unknown word.
    """
    checks.positive("temperature", temperature)
    probs, belief, answer = _predict(model, vocabulary, words)
    continuations = []
    with seeded(seed):
        for _ in range(num_samples):
            log_probs, state, drawn, total = probs.log(), belief, [], 0.0
            while len(drawn) < length and (not drawn or drawn[-1] != vocabulary.eos_id):
                sharp = torch.softmax(without_unknown(log_probs, vocabulary, allow_unknown) / temperature, -1)
                ids = torch.multinomial(sharp, 1)
                total += float(log_probs[0, ids[0, 0]])
                drawn.append(int(ids))
                state = model.posterior(ids, start=state).filtered()
                log_probs = _next(model, state).log()
            continuations.append({"words": vocabulary.decode(drawn), "log_prob": total})
    return answer | {"continuations": continuations}


def _predict(model: Any, vocabulary: Vocabulary, words: Words) -> tuple[Tensor, GaussianBelief | None, dict[str, Any]]:
    """(p(next word) (1, V), belief to go on from or None at a sentence's start, beginning of the answer)."""
    if not words:
        return model.unigram.unsqueeze(0), None, {"words": [], "unknown": []}
    x, answer = observe(model, vocabulary, _forms(model, words))
    belief = model.posterior(x).filtered()
    return _next(model, belief), belief, answer


def _next(model: Any, belief: GaussianBelief) -> Tensor:
    return word_probs(model, belief.mean @ model.transition.T)


def _forms(model: Any, words: Words) -> list[str | None]:
    return [None if word is None else model.forms(word) for word in words]
