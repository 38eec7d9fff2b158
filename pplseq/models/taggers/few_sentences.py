"""Tags of a few sentences straight from a tagger's tables, by compiled loops.

What a chain does for every question (specs, masks, batches, checks) costs several times the answer for a sentence that comes
by itself. Tags are those of the chain, which is the readable twin and the way of whatever a tagger has of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.distributions.dense import DenseTransition
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.state import Transition
from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.kernels import compiled
from pplseq.kernels.chain import LOWEST, call, piece_call
from pplseq.kernels.contexts import call as contexts
from pplseq.kernels.contexts.reference import ContextSteps
from pplseq.kernels.parallel import time_scan
from pplseq.models.taggers.conditional_programs import LinearChainCRF
from pplseq.models.taggers.features import TagFeatures
from pplseq.models.taggers.tagger import Words

TWIN_OPERATIONS = 600  # of a chain asked about a few sentences
KEPT_NUMBERS = 1 << 20  # in what is remembered of words
PLAIN = DenseTransition, SecondOrderTransition, VariableOrderTransition  # that there are loops for
MOST_STATES = 512  # of which the loop of posteriors keeps tables

# what leads from words to tags: a tagger that has its own way of any of it, as a class or by itself, is asked for its chain
WAYS = frozenset(
    (
        "batches", "chain", "each", "emission", "encode", "most_right", "names_of", "tag_of_state", "word_log_probs",
        "_answering", "_cased", "_of_tags", "_summed", "_word_log_prob",
    )
)  # fmt: skip
WAYS_OF_WEIGHTS = frozenset(("paths", "scores", "sentence_chain", "table"))


def applies(tagger: object, kind: type, loop: str = "kernels.chain.loops.viterbi") -> bool:
    """Whether a tagger is one of this class as it is, and its compiled loop does for a few sentences."""
    as_it_is = type(tagger) is kind and WAYS.isdisjoint(vars(tagger)) and not time_scan.ACTIVE.get()
    return as_it_is and compiled.pays(loop, TWIN_OPERATIONS)


class WordRows:
    """Rows of numbers by word, remembered up to a number of them."""

    def __init__(self):
        self._rows: dict[str, np.ndarray] = {}

    def of(self, words: Words, compute: Callable[[list[str]], Iterable[np.ndarray]]) -> list[np.ndarray]:
        """The rows of words, those that are new by ``compute``, which has to be the same every time."""
        rows = self._rows
        new = [word for word in dict.fromkeys(words) if word not in rows]
        if new:
            if rows and len(rows) * next(iter(rows.values())).size >= KEPT_NUMBERS:
                rows = self._rows = {}  # not emptied, as other threads may read it
                new = list(dict.fromkeys(words))
            rows.update(zip(new, compute(new), strict=True))
        return [rows[word] for word in words]


def _possible(paths: Tensor, log_prob: Tensor, lengths: np.ndarray) -> list[list[int]] | None:
    """Paths (T, S) as lists; None where a row has none, or numbers are missing, of which the chain says where."""
    if not np.isfinite(log_prob.numpy()).all():
        return None
    return [row[:length] for row, length in zip(paths.T.tolist(), lengths.tolist(), strict=True)]


# ---------------------------------------------------------------- weights of features
def has_plain_weights(weights: object) -> bool:
    """Whether these are weights of a conditional random field as they were made: numbers on the CPU."""
    if type(weights) is not LinearChainCRF or not WAYS_OF_WEIGHTS.isdisjoint(vars(weights)):
        return False
    numbers = *map(weights._parameters.get, ("weights", "transition")), *map(weights._buffers.get, ("pairs", "feature_starts"))
    return all(part is not None and part.device.type == "cpu" for part in numbers)


def best_by_features(weights: LinearChainCRF, features: TagFeatures, sentences: Sequence[Words]) -> list[list[int]] | None:
    """The best tags of sentences, none empty; None where the chain has to say what is wrong."""
    from pplseq.kernels import feature_loops

    lengths = np.array([len(words) for words in sentences])
    own: Any = weights._parameters
    begins = np.concatenate([[0], lengths.cumsum()])
    dtype = np.float32 if weights.dtype == torch.float32 else np.float64
    sums = np.zeros((lengths.max(), len(lengths), weights.num_tags), dtype)
    given = (compiled.array(part) for part in (own["weights"], weights.pairs, weights.feature_starts))
    feature_loops.add_weights(features.encode(sentences), begins, *given, weights.num_tags, sums)
    emit, matrix = sums.astype(np.float64), compiled.array(own["transition"])
    if weights.allowed is not None:
        first, after, last = (part.numpy() for part in weights.allowed)
        emit[0, :, ~first] = -np.inf
        emit[(lengths - 1)[:, None], np.arange(len(lengths))[:, None], np.flatnonzero(~last)] = -np.inf
        matrix = np.where(after, matrix, -np.inf)
    init = torch.zeros(len(lengths), weights.num_tags, dtype=torch.float64)
    links = piece_call.Links(matrix[None], np.zeros(len(lengths), np.int64), 0)
    paths, log_prob, _ = piece_call.viterbi_along(init, links, torch.from_numpy(emit), lengths)
    return _possible(paths, log_prob, lengths)


# ---------------------------------------------------------------- tables of words
def best_states(transition: Transition, rows: Sequence[Sequence[np.ndarray]]) -> list[list[int]] | None:
    """The best tags of sentences, none empty, of whose words there are log p(word | tag) (M,); a boundary follows the last word
    and is the last tag. None as of :func:`best_by_features`, and where there is no loop for a transition."""
    if not isinstance(transition, PLAIN) or type(transition) not in PLAIN:
        return None
    if transition.initial.dtype != torch.float64 or transition.initial.device.type != "cpu":
        return None
    lengths = np.array([len(words) + 1 for words in rows])
    size = (transition.matrix if isinstance(transition, DenseTransition) else transition.table).shape[-1]
    emit = np.full((lengths.max(), len(lengths), size), -np.inf)
    for s, words in enumerate(rows):
        emit[: len(words), s, : size - 1] = words
        emit[len(words), s, -1] = 0.0
    init = transition.initial.expand(len(lengths), -1)
    if not isinstance(transition, DenseTransition):
        words = torch.from_numpy(emit.take(compiled.array(transition.symbol), -1))
        valid = torch.from_numpy(np.arange(len(emit))[:, None] < lengths)
        paths, log_prob = contexts.k_best_pass(init, ContextSteps.of(transition), words, valid, 1)
        return _possible(transition.symbol[paths[0]], log_prob[0], lengths - 1)
    links = piece_call.Links(compiled.array(transition.matrix)[None], np.zeros(len(lengths), np.int64), 0)
    paths, log_prob, _ = piece_call.viterbi_along(init, links, torch.from_numpy(emit), lengths)
    return _possible(paths, log_prob, lengths - 1)


class PosteriorTables:
    """A transition's probabilities, made anew when it holds other numbers, which are compared with a copy: see
    :mod:`pplseq.models.remembered`."""

    def __init__(self):
        self._last: tuple[list[Tensor], call.Chain | None] = ([], None)

    def of(self, transition: Transition) -> call.Chain | None:
        """None where there is no loop for it, or digits may be lost."""
        if type(transition) is not DenseTransition or transition.num_states > MOST_STATES:
            return None
        own = transition.initial, transition.matrix
        if any(part.dtype != torch.float64 or part.device.type != "cpu" for part in own):
            return None
        known, chain = self._last
        if not known or not all(map(torch.equal, own, known)):
            chain = call.chain_of(*own)
            self._last = [part.clone() for part in own], chain
        return chain


def state_weights(logs: Tensor) -> np.ndarray:
    """p(word | state) (V, K) over the largest of each word, from logarithms; NaN of words where they lose digits."""
    weights = (logs - logs.amax(-1, keepdim=True)).exp()
    lost = ((weights < LOWEST) & (logs > -torch.inf)).any(-1, keepdim=True)
    return weights.masked_fill(lost, torch.nan).numpy()


def state_probs(chain: call.Chain, rows: Sequence[np.ndarray]) -> np.ndarray | None:
    """(T, K) p(state | words) of a sentence from the :func:`state_weights` of its words, where a boundary follows that is the
    last state; None where digits may be lost."""
    weights = np.zeros((len(rows) + 1, chain.probs[0].shape[1]))
    weights[:-1] = rows
    weights[-1, -1] = 1.0
    index = np.arange(len(weights)).reshape(1, -1)
    found = call.smooth(chain, call.Emissions(weights, np.zeros(len(weights))), call.Rows(index), pairs=False)
    return None if found is None else found.posterior[0, :-1]


