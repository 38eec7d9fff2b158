"""Where the topics of a VLHMM start, at a mixture of unigrams over windows of its text; and for how long one is kept.

Topics that start alike stay alike. Windows are clusters of words' counts by EM, annealed; what a topic lifts of a word is
log p(word | topic) / p(word). Of a text whose topics are known in part no window lies in two of its parts.

Training on lines in a new order tells what topics are better than one on lines as they stand, whose neighbours in a batch are
alike, but nothing of how long they last: there a topic is drawn anew in each sentence, and p(kept) is the likeliest for
sentences in their order, given what topics are.

Source: K. Nigam and others (2000), Text classification from labeled and unlabeled documents using EM, Machine Learning 39, of
the mixture; annealing: N. Ueda and R. Nakano (1998), Deterministic annealing EM algorithm, Neural Networks 11.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.text import Text
from pplseq.kernels.scan import chain_log_prob
from pplseq.models.forms import missing

WINDOW = 400  # words
MOST_WINDOWS = 1 << 13  # of a long text, spread over it
ROUNDS, WARMING = 40, 0.02  # iterations of EM, and by how much the k-th one's posteriors are cold
FEWEST, MOST = 3, 0.5  # windows that a word occurs in, and the largest share of them, to tell topics apart
SMOOTHED = 100.0, 2000.0  # words of the whole text's distribution that each topic begins with, in EM and for what it lifts
LARGEST_LIFT = 1.5  # nats
RUNS, MOST_WORDS = 8, 1 << 16  # of sentences in their order, spread over a text, that tell how long topics are kept
KEPT = torch.linspace(-4.0, 8.0, 97, dtype=torch.float64)  # log odds that are tried
NOTHING = 1e-4  # nats that tell no two of them apart
FEWEST_SENTENCES = 64  # of a run, where there are as many
BATCH = 1024  # words whose topics are asked at once


def with_topics(text: Text, labels: Any, num_topics: int) -> tuple[Text, np.ndarray]:
    """The text with the topic beside each word of which it is known, as
    :class:`~pplseq.distributions.topics.TopicEmission` reads them, and where its labelled parts begin and the last ends.

    Args:
        labels: of each line, or each article: numbers from 0, or None, NaN or -1 where it is not known.

    Raises:
        ValueError, TypeError: for labels that do not fit the text or the topics.
    """
    if not isinstance(labels, Iterable):
        raise TypeError(f"topics: expected a list of numbers, one for each line, got {checks.shown(labels)}")
    given: Any = labels.tolist() if isinstance(labels, (np.ndarray, Tensor)) else labels
    values = [-1 if missing(value) else value for value in given]
    for number, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or value % 1 != 0:
            raise TypeError(
                f"topics: expected a whole number from 0 for each line, None where it is not known, got {checks.shown(value)} "
                f"for line {number}; number the names of topics"
            )
        if not -1 <= value < num_topics:
            raise ValueError(f"topics: the model has topics 0..{num_topics - 1}, got {value} for line {number}")
    if len(values) not in (text.num_lines, text.num_articles):
        raise ValueError(
            f"topics: expected one for each of {text.num_lines} lines, or {text.num_articles} articles, got {len(values)}"
        )
    starts = text.line_starts if len(values) == text.num_lines else text.line_starts[text.article_starts]
    topics = np.repeat(np.array(values, np.int64), np.diff(starts))
    return replace(text, tokens=text.tokens + len(text.vocabulary) * (1 + topics)), starts


def start_topics(model: Any, text: Text, starts: np.ndarray | None = None) -> None:
    """Sets what topics lift of words, and how likely they are, to a mixture of unigrams over windows of a text.

    Args:
        model: a :class:`~pplseq.models.vlhmm.program.VLHMM` with words and several topics.
        text, starts: as encoded for the model; where some topics are known from :func:`with_topics`.

    Cost: 40 passes over 3 million words at most.
    """
    found = window_topics(np.asarray(text.tokens), model.num_words, model.num_topics, starts)
    if found is None:
        return  # too short to tell: the topics that were drawn
    lifts, shares = found
    with torch.no_grad():
        model.topic_words.copy_(lifts)
        model.topic_prior.copy_(shares.log())


def window_topics(
    tokens: np.ndarray, num_words: int, num_topics: int, starts: np.ndarray | None = None
) -> tuple[Tensor, Tensor] | None:
    """What topics lift of words (V, C), nats, and their shares (C,); None for a text of fewer windows than topics, or without
    words that occur in some windows and not in others. They are of the text alone: the same for models of all seeds.

    Args:
        tokens: (N,), with their topics where ``starts`` (L + 1,) says which parts have one; windows do not go beyond them.
    """
    parts = np.array([0, len(tokens) // WINDOW * WINDOW]) if starts is None else starts
    begins = [np.arange(begin, end, WINDOW) for begin, end in itertools.pairwise(parts.tolist())]
    ends = np.concatenate([*begins, parts[-1:]])
    windows = len(ends) - 1
    if windows < num_topics:
        return None
    taken = np.linspace(0, windows - 1, min(windows, MOST_WINDOWS)).round().astype(np.int64)
    sizes = np.diff(ends)[taken]
    places = np.repeat(ends[:-1][taken] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) + np.arange(sizes.sum())
    topics, words = (torch.from_numpy(part.astype(np.int64)) for part in np.divmod(tokens[places], num_words))
    window = torch.from_numpy(np.repeat(np.arange(len(taken)), sizes))
    known = torch.zeros(len(taken), dtype=torch.long).index_copy_(0, window, topics)  # one more than the topic
    size, cells = (len(taken), num_words), torch.stack([window, words])
    counts = torch.sparse_coo_tensor(cells, torch.ones(len(words)), size, check_invariants=True).coalesce()
    total = torch.bincount(words, minlength=num_words) + 1.0
    overall = total / total.sum()
    occurs = torch.bincount(counts.indices()[1], minlength=num_words)
    telling = ((occurs >= FEWEST) & (occurs <= MOST * len(taken))).float()
    if telling.sum() < num_topics:
        return None
    noise = torch.randn(len(taken), num_topics, generator=torch.Generator().manual_seed(0))
    told = torch.nn.functional.one_hot((known - 1).clamp_min(0), num_topics).float()
    posterior = torch.where(known.unsqueeze(-1) > 0, told, torch.softmax(0.1 * noise, -1))
    for step in range(ROUNDS):
        mass = torch.sparse.mm(counts.t(), posterior) + SMOOTHED[0] * overall.unsqueeze(-1)  # (V, C)
        mass = mass * telling.unsqueeze(-1)
        log = (mass / mass.sum(0)).clamp_min(1e-30).log() * telling.unsqueeze(-1)
        score = torch.sparse.mm(counts, log) + posterior.mean(0).log()
        found = torch.softmax(score * min(1.0, WARMING * (step + 1)), -1)
        posterior = torch.where(known.unsqueeze(-1) > 0, told, found)
    mass = torch.sparse.mm(counts.t(), posterior) + SMOOTHED[1] * overall.unsqueeze(-1)
    lifts = ((mass / mass.sum(0)).log() - overall.log().unsqueeze(-1)).clamp(-LARGEST_LIFT, LARGEST_LIFT)
    shares = posterior.mean(0).clamp_min(1e-3)
    return lifts, shares / shares.sum()


class KeptTopics:
    """Sets how probable it is that a topic is kept behind a sentence, as the sentences of a text in their order say; where they
    say nothing, to what it was when this was made.

    Args:
        model: a :class:`~pplseq.models.vlhmm.program.VLHMM` with several topics and a word that ends a sentence.
        tokens: (N,) the text.

    Cost: of a call, to score 2^16 words; nothing where the parameters are those of the call before.
    """

    def __init__(self, model: Any, tokens: np.ndarray):
        self.model, self.runs, self.first = model, list[list[np.ndarray]](), float(model.topic_kept.detach())
        self.before: list[Tensor] = []  # whole: fused steps of an optimizer leave no other trace
        sentences = sentences_of(tokens, model)
        share = max(len(sentences) // RUNS, min(len(sentences), FEWEST_SENTENCES))
        for first in range(0, len(sentences) - share + 1, share):
            words = np.cumsum([len(sentence) for sentence in sentences[first : first + share]])
            self.runs.append(sentences[first : first + int((words <= MOST_WORDS // RUNS).sum())])

    @torch.no_grad()
    def __call__(self) -> None:
        model, now = self.model, list(self.model.parameters())
        if self.before and all(map(torch.equal, now, self.before)):
            return
        prior, kept = prior_of(model), KEPT.sigmoid().unsqueeze(-1)
        log_likelihood = torch.zeros_like(KEPT)
        for run in self.runs:
            belief = prior
            for told in topics_of(model, run) / prior:  # p(sentence | topic) but for a factor
                joint = belief * told
                total = joint.sum(-1, keepdim=True)
                log_likelihood = log_likelihood + total.squeeze(-1).log()
                belief = kept * (joint / total) + (1 - kept) * prior
        found = KEPT[log_likelihood >= log_likelihood.amax() - NOTHING]  # none where parameters are no numbers
        told = 0 < len(found) < len(KEPT)
        model.topic_kept.fill_(found[(found - self.first).abs().argmin()] if told else self.first)
        self.before = [parameter.clone() for parameter in now]


def sentences_of(tokens: np.ndarray, model: Any) -> list[np.ndarray]:
    """The sentences of a text, of which the last may have no end."""
    ends = np.flatnonzero(tokens[:-1] % model.num_words == model.reset_id) + 1
    return np.split(tokens, ends)


def prior_of(model: Any) -> Tensor:
    """(C,) p(topic) of one that is drawn, on the CPU; none is zero."""
    return model.topic_prior.detach().double().softmax(-1).clamp_min(1e-300).cpu()


def topics_along(model: Any, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p(topic of a sentence | all of a text), (N, C), and how many words each sentence has, (N,).

    Args:
        model: of several topics, and a word that ends sentences. tokens: of the text.
    """
    sentences, prior, kept = sentences_of(tokens, model), prior_of(model), float(model.topic_kept.detach().sigmoid())
    told = (topics_of(model, sentences) / prior).log().unsqueeze(1).requires_grad_()
    moves = (kept * torch.eye(len(prior), dtype=torch.float64) + (1 - kept) * prior).log()
    with torch.enable_grad():
        total = chain_log_prob(prior.log(), moves.expand(len(told) - 1, 1, -1, -1), told).log_prob.sum()
        (probs,) = torch.autograd.grad(total, told)
    return probs.squeeze(1).numpy(), np.array([len(sentence) for sentence in sentences])


def topics_of(model: Any, sentences: Sequence[np.ndarray]) -> Tensor:
    """p(topic | a sentence alone), (N, C) on the CPU."""
    order = sorted(range(len(sentences)), key=lambda n: len(sentences[n]))
    found, device = torch.empty(len(order), model.num_topics, dtype=torch.float64), model.topic_prior.device
    with torch.no_grad(), checks.trusted(), checks.whole_text():
        while order:
            longest = len(sentences[order[-1]])
            rows, order = order[-max(1, BATCH // longest) :], order[: -max(1, BATCH // longest)]
            lengths = torch.tensor([len(sentences[n]) for n in rows])
            x = torch.zeros(len(rows), longest, dtype=torch.long)
            for row, n in enumerate(rows):
                x[row, : lengths[row]] = torch.from_numpy(sentences[n].astype(np.int64))
            states = model.posterior(x.to(device), lengths=lengths.to(device)).filtered_states().probs
            last = states[torch.arange(len(rows)), lengths - 1]
            found[rows] = last.unflatten(-1, (model.num_topics, -1)).sum(-1, dtype=torch.float64).cpu()
    return found
