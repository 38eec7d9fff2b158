"""Next-word probabilities from a linear dynamical system for text.

The model's mean of the next one-hot vector given the past is mu + W^-1 C z_{t|t-1}: it sums to one over the vocabulary, but
may be negative in places. Pseudo-counts make the model one of text in which a share 1 - alpha of the words is drawn
uniformly; undone, the mean is that of the text's own words, n / T + W^-1 C z_{t|t-1} / alpha. It is clipped at zero, divided
by its sum, and mixed with the unigram n / T, whose share is tuned on held-out text: a proper, if weak, language model.

Source: D. Belanger and S. Kakade (2015), A Linear Dynamical System Model for Text, ICML: sections 4 and 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.data.text import Text
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.models.batch import in_ids, without_empty_rows
from pplseq.models.lds.queries import next_states
from pplseq.models.text_lds.embeddings import TokenEmbedder
from pplseq.models.text_lds.parameters import rewritten
from pplseq.runs.evaluation import TextScore, check_vocabulary

if TYPE_CHECKING:
    from pplseq.models.text_lds.program import TextLDS


class NextWords(NamedTuple):
    """What comes behind a text: word_log_probs (B[, K], V), nats, and the moments of the states, (B[, K], h) and (.., h, h)."""

    word_log_probs: Tensor
    state_means: Tensor
    state_covariances: Tensor


CELLS = 1 << 18  # numbers in one block of scores, which stays in the cache


def word_probs(model: Any, predicted: Tensor, weight: float | Tensor | None = None) -> Tensor:
    """p(w_t | past) from means of the state given the past.

    Args:
        model: a :class:`~pplseq.models.text_lds.program.TextLDS`.
        predicted: (*B, h) E[z_t | w_1..w_{t-1}].
        weight: share of the model in the mixture with the unigram; None: its ``mixture_weight``.

    Returns:
        (*B, V) probabilities.
    """
    share: Any = model.mixture_weight if weight is None else weight
    emission, unigram = model.word_emission(predicted.dtype), model.unigram.to(predicted.dtype)
    change = emission.unit * (predicted @ emission.matrix.T) / model.shrinkage
    scores = (unigram + change).clamp_min(0)
    return share * scores / scores.sum(-1, keepdim=True) + (1 - share) * unigram


def forecast_words(model: TextLDS, x, num_steps: int, lengths=None) -> NextWords:
    """See :meth:`TextLDS.forecast <pplseq.models.text_lds.program.TextLDS.forecast>`."""
    x, lengths, empty = without_empty_rows(in_ids(rewritten(x, model.forms, model.vocabulary), model.vocabulary), lengths)
    last = model._posterior(x, lengths)[1].filtered()
    first = GaussianBelief(torch.zeros_like(last.mean[0]), model.start_covariance)
    states = next_states(model.transition, model.state_noise, None, last, num_steps, (empty, first))
    return NextWords(word_probs(model, states.mean).log(), *states)


def sample_words(model: TextLDS, num_steps: int, num_sequences: int, **known) -> tuple[Tensor, Tensor]:
    """(B, T) words, each drawn given those before it, and the filtered means (B, T, h) of the states behind them."""
    words, means, state, probs = [], [], None, model.unigram.expand(num_sequences, -1)
    for _ in range(num_steps):
        words.append(torch.multinomial(probs, 1))
        state = model.posterior(words[-1], start=state, **known).filtered()
        means.append(state.mean)
        probs = word_probs(model, state.mean @ model.transition.T)
    return torch.cat(words, 1), torch.stack(means, 1)


@torch.no_grad()
def token_probs(model: Any, tokens: np.ndarray, line_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The model's own (clipped, renormalised) and the unigram probability of every token, each line from its start.

    Args:
        model: a :class:`~pplseq.models.text_lds.program.TextLDS`.
        tokens: (N,) word ids, -1 for a missing word. line_starts: (num_lines + 1,).

    Returns:
        Two arrays (N,), 1 where a word is missing.

    Cost: V h multiplications a token, in blocks of bounded memory.
    """
    tokens, line_starts = np.asarray(tokens), np.asarray(line_starts)
    filtered = TokenEmbedder(model, kind="filtered", normalize=False, dtype="float64", share=1.0).embed(tokens, line_starts)
    predicted = np.zeros_like(filtered)
    predicted[1:] = filtered[:-1] @ model.transition.double().cpu().numpy().T
    predicted[line_starts[:-1][np.diff(line_starts) > 0]] = 0  # the first word of a line has no past
    unigram = model.unigram.double().cpu().numpy()
    own = np.ones(len(tokens))
    emission = model.word_emission(torch.float64)
    base = emission.probs.new_tensor(unigram)
    table = (emission.matrix * (emission.unit / model.shrinkage).unsqueeze(1)).T.contiguous()
    step = max(1, CELLS // len(unigram))
    for first in range(0, len(tokens), step):
        block = slice(first, first + step)
        means = torch.from_numpy(predicted[block]).to(table)
        scores = torch.addmm(base, means, table).clamp_min_(0)  # as in word_probs
        ids = torch.from_numpy(tokens[block].astype(np.int64)).clamp_min(0).to(scores.device)
        own[block] = (scores.gather(1, ids.unsqueeze(1))[:, 0] / scores.sum(1)).cpu().numpy()
    seen = tokens >= 0
    own[~seen] = 1.0
    return own, np.where(seen, unigram[tokens], 1.0)


def best_weight(own: np.ndarray, unigram: np.ndarray) -> float:
    """The share w in [0, 1] that maximises the mean of log(w own + (1 - w) unigram), which is concave in w.

    Args:
        own, unigram: (N,) probabilities of the held-out tokens, unigram positive.
    """
    change = own - unigram
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        rising = float((change / (unigram + middle * change)).sum()) > 0
        low, high = (middle, high) if rising else (low, middle)
    return low


def score_next_words(model: Any, text: Text, weight: float | None = None) -> TextScore:
    """log p of every token of a text, each line from its start, under the mixture.

    Args:
        model: a :class:`~pplseq.models.text_lds.program.TextLDS`.
        text: encoded with the model's vocabulary.
        weight: the model's share; None: the model's own ``mixture_weight``.

    Raises:
        ValueError: for another vocabulary, or a weight outside 0..1.
    """
    check_vocabulary(model, text)
    weight = float(model.mixture_weight) if weight is None else weight
    if not 0 <= weight <= 1:
        raise ValueError(f"weight must be in 0..1, got {weight}")
    own, unigram = token_probs(model, text.tokens, text.line_starts)
    with np.errstate(divide="ignore"):  # a weight of 1 may give a word the probability zero
        log_probs = np.log(weight * own + (1 - weight) * unigram)
    return TextScore("sentence", text.num_lines, text.num_tokens, text.num_unknown, float(log_probs.sum()), log_probs)


def tune_mixture_weight(model: Any, text: Text) -> float:
    """Sets the model's ``mixture_weight`` to what suits held-out text best, and returns it."""
    check_vocabulary(model, text)
    weight = best_weight(*token_probs(model, text.tokens, text.line_starts))
    model.mixture_weight.fill_(weight)
    return weight
