"""Everything a report shows, as numbers: what the page and the picture are drawn from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pplseq.data.text import Text
from pplseq.report.blocks import (
    Groups,
    GroupSummary,
    StateSummary,
    TransitionMap,
    describe_groups,
    describe_states,
    group_states,
    informative_transitions,
    transition_map,
)
from pplseq.report.learning import Learning, read_learning
from pplseq.report.run import RunView
from pplseq.report.sentence import SentencePosterior, sentence_posterior, split_sentence, typical_lines
from pplseq.report.usage import Usage, first_lines, state_usage, written_text
from pplseq.runs.evaluation import PROTOCOLS, TextScore, score_text
from pplseq.runs.training import model_device


@dataclass(frozen=True, eq=False)
class Report:
    """A run in numbers.

    Attributes:
        model_name: as registered. num_states, num_words, num_weights: Z, V, trained numbers.
        settings, model_config: name -> value, of the run and of the model itself.
        learning: the course of training, None where nothing was recorded.
        text_name, num_tokens, num_unknown: the text that states and costs are measured on; `written` if no text was at
            hand and the model wrote it itself, in which case there are no scores and no costs.
        scores: of that text, a protocol each.
        usage, groups, transitions, informative, group_summaries, states: see :mod:`pplseq.report.blocks`.
        costs: where the nats go, under the first protocol of `scores`.
        sentences: the posteriors shown; `chosen` if the reader did not ask for them.
        notes: what is missing, and why.
        view: scores of test text beside a rival's, and sentences that the model wrote; None for neither.
        topics: along the text, of a model that has some.
    """

    model_name: str
    num_states: int
    num_words: int
    num_weights: int
    settings: Mapping[str, Any]
    model_config: Mapping[str, Any]
    learning: Learning | None
    text_name: str
    num_tokens: int
    num_unknown: int
    text_is_cut: bool
    written: bool
    scores: tuple[TextScore, ...]
    usage: Usage
    groups: Groups
    transitions: TransitionMap
    informative: list[tuple[int, int, float, float]]
    group_summaries: list[GroupSummary]
    states: list[StateSummary]
    costs: TokenCosts | None
    sentences: list[SentencePosterior]
    chosen: bool
    notes: list[str] = field(default_factory=list)
    view: RunView | None = None
    topics: Topics | None = None


@dataclass(frozen=True, eq=False)
class Topics:
    """Topics of a model along a text.

    Attributes:
        words: C lists, those that each topic lifts most. probs: (N, C) p(topic of a sentence | the whole text).
        sizes: (N,) words of each sentence. kept: p(a topic is kept behind a sentence).
    """

    words: list[list[str]]
    probs: np.ndarray
    sizes: np.ndarray
    kept: float

    @property
    def shares(self) -> np.ndarray:
        """(C,) of the words."""
        return self.sizes @ self.probs / self.sizes.sum()


def summarise(
    model: Any,
    vocabulary: Any,
    *,
    text: Text | None = None,
    records: Iterable[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    word_counts: np.ndarray | None = None,
    sentences: Sequence[str] = (),
    num_tokens: int = 10_000,
    num_states: int = 24,
    notes: Sequence[str] = (),
    view: RunView | None = None,
) -> Report:
    """Measure a model on a text and on sentences.

    Args:
        model: a trained `SequenceModel` of words.
        vocabulary: its words.
        text: held-out text; None lets the model write some itself.
        records: those of `metrics.jsonl`.
        settings: those of the run; shown, and "protocol" and "data" are read.
        word_counts: (V,) occurrences in the training text; default: in `text`.
        sentences: to show posteriors of; none: typical lines of the text.
        num_tokens: tokens of the text used, from its start, in whole lines.
        num_states: states described.
        notes, view: to hand on to the reader.

    Raises:
        ValueError: a sentence without words, a text or sentence the vocabulary cannot encode, or a model that does not
            emit words.
    """
    if num_tokens < 2:
        raise ValueError(f"num_tokens must be at least 2, got {num_tokens}")
    if getattr(model, "num_words", None) is None:
        raise ValueError("model: a report needs a model of words (with num_words), and this one emits something else")
    if model.num_words != len(vocabulary):
        raise ValueError(f"vocabulary: the model has {model.num_words} words, the vocabulary {len(vocabulary)}")
    split = [split_sentence(sentence, vocabulary.split) for sentence in sentences]
    settings, notes, learning = dict(settings or {}), list(notes), read_learning(records)
    # What validation was recorded under is what the model was trained for, whatever the settings would say.
    recorded = [curve.label for curve in learning.validation] if learning is not None else []
    trained_for = next((label for label in [*recorded, settings.get("protocol")] if label in PROTOCOLS), None)
    with torch.no_grad():
        # The model's specs come with a chain; which word it is about does not matter here.
        chain = model.posterior(torch.zeros(1, 1, dtype=torch.long, device=model_device(model)))
        posteriors = [sentence_posterior(model, vocabulary, words) for words in split]
        written = text is None
        whole = written_text(model, vocabulary) if text is None else text
        text = first_lines(whole, num_tokens)
        scores, costs = (), None
        counts = np.bincount(text.tokens, minlength=len(vocabulary)) if word_counts is None else word_counts
        if not written:
            order = sorted(PROTOCOLS, key=lambda protocol: protocol != trained_for)
            scores = tuple(score_text(model, text, protocol) for protocol in order)
            costs = token_costs(text, scores[0].token_log_probs, counts)
        resets = getattr(model, "reset_id", None) is not None
        usage = state_usage(model, text, protocol=None if resets else trained_for)
        groups = group_states(chain, usage)
        transitions = transition_map(chain, groups, usage, text)
        if not split:
            nats = scores[0].token_log_probs if scores else np.zeros(text.num_tokens)
            posteriors = [sentence_posterior(model, vocabulary, words) for words in typical_lines(text, nats)]
        # The words of unused blocks have no counts in a sample: the vocabulary's order then ranks them.
        group_summaries = describe_groups(chain, groups, transitions, usage, counts, vocabulary)
        states = describe_states(chain, groups, usage, text, vocabulary, num_states)
        topics = None
        if getattr(model, "num_topics", 1) > 1 and resets:
            from pplseq.models.vlhmm.topics import topics_along

            topics = Topics(model.lifted_words(8), *topics_along(model, text.tokens), float(model.topic_kept.sigmoid()))
    return Report(
        model_name=model.name,
        num_states=model.num_states,
        num_words=len(vocabulary),
        num_weights=sum(parameter.numel() for parameter in model.parameters()),
        settings=settings,
        model_config={key: value for key, value in model.config.items() if _is_short(value)},
        learning=learning,
        text_name=text.name,
        num_tokens=text.num_tokens,
        num_unknown=text.num_unknown,
        text_is_cut=text.num_tokens < whole.num_tokens,
        written=written,
        scores=scores,
        usage=usage,
        groups=groups,
        transitions=transitions,
        informative=informative_transitions(transitions),
        group_summaries=group_summaries,
        states=states,
        costs=costs,
        sentences=posteriors,
        chosen=not split,
        notes=notes,
        view=view,
        topics=topics,
    )


def _is_short(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


# ---------------------------------------------------------------- where the nats of a text go
@dataclass(frozen=True)
class Cost:
    """Tokens of one kind.

    Attributes:
        name: the kind, or the word.
        count: how many tokens. share: of all tokens.
        nats: per token. share_of_nats: of the whole text's.
    """

    name: str
    count: int
    share: float
    nats: float
    share_of_nats: float

    @property
    def perplexity(self) -> float:
        """exp of the nats per token."""
        return math.exp(min(self.nats, 700.0))


@dataclass(frozen=True, eq=False)
class TokenCosts:
    """Costs of a text's tokens.

    Attributes:
        bits: (N,) surprisal of each token.
        kinds: by frequency of the word in training; the end of a line and the unknown word on their own.
        words: the words that cost most in all.
    """

    bits: np.ndarray
    kinds: list[Cost]
    words: list[Cost]


def token_costs(text: Text, token_log_probs: np.ndarray, word_counts: np.ndarray, num_words: int = 12) -> TokenCosts:
    """Split the nats of a text.

    Args:
        text: N tokens.
        token_log_probs: (N,) nats.
        word_counts: (V,) occurrences in training, which rank the words.
        num_words: words listed.
    """
    vocabulary, nats = text.vocabulary, -token_log_probs
    total = max(float(nats.sum()), 1e-300)

    def cost(name: str, chosen: np.ndarray) -> Cost:
        count = int(chosen.sum())
        return Cost(name, count, count / len(nats), float(nats[chosen].mean()), float(nats[chosen].sum()) / total)

    special = np.zeros(len(vocabulary), bool)
    groups = []
    for number in (vocabulary.eos_id, vocabulary.unknown_id):
        if number is not None:
            special[number] = True
            groups.append((vocabulary.words[number], text.tokens == number))
    rank = np.full(len(vocabulary), -1)
    ordinary = np.flatnonzero(~special)
    rank[ordinary[np.argsort(-word_counts[ordinary], kind="stable")]] = np.arange(len(ordinary))
    rank_of_token = rank[text.tokens]
    edges = [0, *(edge for edge in (10, 100, 1000) if edge < len(ordinary)), len(ordinary)]
    for low, high in zip(edges, edges[1:], strict=False):
        name = f"words {low + 1:,} to {high:,} by frequency"
        groups.append((name, (rank_of_token >= low) & (rank_of_token < high)))
    kinds = [cost(name, chosen) for name, chosen in groups if chosen.any()]

    by_word = np.bincount(text.tokens, nats, len(vocabulary))
    costly = [word for word in np.argsort(-by_word, kind="stable")[:num_words] if by_word[word] > 0]
    words = [cost(vocabulary.words[word], text.tokens == word) for word in costly]
    return TokenCosts(nats / math.log(2), kinds, words)
