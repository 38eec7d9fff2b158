"""The posterior of a sentence, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pplseq import checks
from pplseq.data.text import Text
from pplseq.data.vocabulary import split_words
from pplseq.runs.training import model_device

MAX_WORDS = 200
ENTROPY_CELLS = 1 << 26  # cells of pair marginals that the entropy of paths may take


@dataclass(frozen=True)
class TokenPosterior:
    """One token.

    Attributes:
        word: as it was given. known: False if the model reads it as its unknown word.
        surprisal: -log p(word | words before), nats.
        entropy: H(state | all words), nats.
        states: (state, probability) given all words, most probable first.
        path_state: its state on the most probable path.
        expected: (word, probability) that the model expected here, from the words before.
    """

    word: str
    known: bool
    surprisal: float
    entropy: float
    states: list[tuple[int, float]]
    path_state: int
    expected: list[tuple[str, float]]

    @property
    def bits(self) -> float:
        """The surprisal in bits."""
        return self.surprisal / math.log(2)

    @property
    def perplexity(self) -> float:
        """exp of the surprisal: among how many equally probable words it would be this surprising."""
        return math.exp(min(self.surprisal, 700.0))


@dataclass(frozen=True)
class SentencePosterior:
    """A sentence. path_entropy: H(all states | all words), nats; None where it would take too much memory."""

    tokens: list[TokenPosterior]
    path_entropy: float | None

    @property
    def log_prob(self) -> float:
        """log p(words), nats."""
        return -sum(token.surprisal for token in self.tokens)

    @property
    def nats_per_token(self) -> float:
        return -self.log_prob / len(self.tokens)

    @property
    def perplexity(self) -> float:
        """exp of the nats per token."""
        return math.exp(min(self.nats_per_token, 700.0))


def split_sentence(sentence: str, split: Callable[[str], list[str]] = split_words) -> list[str]:
    """Words of a sentence, as a vocabulary splits it.

    Raises:
        ValueError: no words, or more than a strip can show.
    """
    words = split(sentence)
    if not words:
        raise ValueError(f"sentence: expected words separated by spaces, got {checks.shown(sentence)}; write at least one word")
    if len(words) > MAX_WORDS:
        raise ValueError(
            f"sentence: expected at most {MAX_WORDS} words, got {len(words)}; ask `pplseq query` about longer texts"
        )
    return words


@torch.no_grad()
def sentence_posterior(model: Any, vocabulary: Any, words: Sequence[str], *, top: int = 3) -> SentencePosterior:
    """States, surprisals and expectations of a sentence; `<eos>` is added where the vocabulary has it.

    Raises:
        ValueError: a word is unknown and the vocabulary has no word for unknown words.
    """
    words = list(words)
    if vocabulary.eos_id is not None and words[-1] != vocabulary.eos:
        words.append(vocabulary.eos)
    x = torch.from_numpy(vocabulary.encode(words)).unsqueeze(0).to(model_device(model))
    chain = model.posterior(x)
    surprisal = -chain.token_log_probs()[0].double().cpu()
    marginals = chain.marginals()
    probs = marginals.probs[0].double().cpu()
    values, slots = probs.topk(min(top, probs.shape[-1]))
    states = slots if marginals.ids is None else marginals.ids[0].cpu().gather(-1, slots)
    path = chain.viterbi()[0][0].tolist()
    affordable = len(words) * probs.shape[-1] ** 2 <= ENTROPY_CELLS
    expected = _expectations(model, vocabulary, x, chain, top)
    tokens = [
        TokenPosterior(
            word,
            word in vocabulary,
            float(surprisal[t]),
            float(torch.special.entr(probs[t]).sum()),
            [(state, prob) for state, prob in zip(states[t].tolist(), values[t].tolist(), strict=True) if prob > 0],
            path[t],
            expected[t],
        )
        for t, word in enumerate(words)
    ]
    return SentencePosterior(tokens, float(chain.entropy()[0]) if affordable else None)


def _expectations(model: Any, vocabulary: Any, x: torch.Tensor, chain: Any, top: int) -> list[list[tuple[str, float]]]:
    """(word, p(word | words before)) of the `top` words at each step, by filtering forward; `chain` gives the start."""
    log_probs = chain.next_after(None).word_log_probs[0]
    belief, expected = None, []
    for t in range(x.shape[1]):
        values, ids = log_probs.topk(min(top, len(log_probs)))
        expected.append(list(zip(vocabulary.decode(ids.tolist()), values.exp().tolist(), strict=True)))
        if t + 1 < x.shape[1]:
            step = model.posterior(x[:, t : t + 1], start=belief)
            belief, log_probs = step.filtered(), step.next().word_log_probs[0]
    return expected


def typical_lines(text: Text, token_log_probs: np.ndarray, count: int = 2) -> list[list[str]]:
    """Lines of ordinary length whose perplexity is nearest to the text's, without unknown words where possible.

    Args:
        text: N tokens.
        token_log_probs: (N,) nats.
        count: lines, at most.
    """
    vocabulary, sums = text.vocabulary, np.concatenate([[0.0], np.cumsum(token_log_probs)])
    starts, lengths = text.line_starts, text.lengths
    distance = np.full(text.num_lines, np.inf)
    some = lengths > (1 if vocabulary.eos_id is not None else 0)
    means = np.diff(sums[starts])[some] / lengths[some]
    distance[some] = np.abs(means - token_log_probs.mean())
    distance += 100.0 * ((lengths < 8) | (lengths > 22))  # too short to tell much, too long to look at
    if vocabulary.unknown_id is not None:
        unknown = np.concatenate([[0], np.cumsum(text.tokens == vocabulary.unknown_id)])
        distance += 10.0 * (np.diff(unknown[starts]) > 0)
    chosen: list[list[str]] = []
    for line in np.argsort(distance, kind="stable"):
        if len(chosen) == count or not np.isfinite(distance[line]) or lengths[line] > MAX_WORDS:
            break
        words = vocabulary.decode(text.tokens[starts[line] : starts[line + 1]])
        if words not in chosen:
            chosen.append(words)
    return chosen
