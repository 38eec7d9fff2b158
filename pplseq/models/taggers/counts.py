"""Counts of tagged text, and probabilities of tags and words from them.

The tag "boundary" stands before and behind every sentence; it is the last one, number N. M = N + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.data.locations import matching
from pplseq.data.tagged import read_tagged
from pplseq.models.taggers.tagger import tag_names
from pplseq.runs.cluster import Cluster

SMOOTHING = ("mle", "add", "witten_bell", "deleted_interpolation")
MAX_DENSE_TAGS = 100  # the boundary too: a million trigrams; of more tags those are kept that occur
PART_SENTENCES = 10_000  # of a part that a worker of a cluster counts
FLOOR = 1e-12  # of unsmoothed probabilities, so that no sentence is impossible


class SparseCounts(NamedTuple):
    """Counts of the trigrams that occur, sorted. at: (E, 3) tags below M. counts: (E,). size: M."""

    at: np.ndarray
    counts: np.ndarray
    size: int


class TagCounts(NamedTuple):
    """What a supervised hidden Markov model of tags knows of its training text.

    Attributes:
        tags: N names. words: V words, sorted.
        ngrams: (M, M, M) how often tag c followed a, b, or (M, M) how often it followed b; sentences stand between two
            boundaries and one. Trigrams of more than MAX_DENSE_TAGS tags: :class:`SparseCounts`.
        word_tags: (V, N) how often a word had a tag.
    """

    tags: tuple[str, ...]
    words: tuple[str, ...]
    ngrams: np.ndarray | SparseCounts
    word_tags: np.ndarray


def count_tags(sentences: Sequence[TaggedSentence], order: int = 2) -> TagCounts:
    """Counts of tagged sentences, of trigrams (order 2) or bigrams (1); empty sentences count for nothing."""
    tags = tag_names(sentences)
    words = sorted({word for sentence in sentences for word in sentence.words})
    tag_number, word_number = ({name: i for i, name in enumerate(names)} for names in (tags, words))
    boundary, size = len(tags), len(tags) + 1
    track, spoken, said = [], [], []
    for sentence in sentences:
        if sentence.words:
            numbers = [tag_number[tag] for tag in sentence.tags if tag is not None]
            track += [boundary, boundary, *numbers]
            said += numbers
            spoken += [word_number[word] for word in sentence.words]
    track.append(boundary)
    track = np.array(track, dtype=np.int64)
    windows = np.stack([track[:-2], track[1:-1], track[2:]], 1)
    # those that run over the two boundaries between sentences predict nothing
    windows = windows[~(windows[:, 1:] == boundary).all(1)]
    ngrams = _counted(windows[:, 2 - order :], np.ones(len(windows)), size)
    pairs = np.array(spoken, dtype=np.int64) * max(boundary, 1) + np.array(said, dtype=np.int64)
    word_tags = np.bincount(pairs, minlength=len(words) * boundary).reshape(len(words), boundary)
    return TagCounts(tuple(tags), tuple(words), ngrams, word_tags.astype(np.float64))


def add_tag_counts(first: TagCounts, second: TagCounts) -> TagCounts:
    """Counts of two texts together, whose tags and words may differ."""
    tags, words = (tuple(sorted({*ours, *theirs})) for ours, theirs in zip(first[:2], second[:2], strict=True))
    tag_number, word_number = ({name: i for i, name in enumerate(names)} for names in (tags, words))
    at, counts = [], []
    word_tags = np.zeros((len(words), len(tags)))
    for part in (first, second):
        here = [tag_number[tag] for tag in part.tags]
        places, numbers = _entries(part.ngrams)
        at.append(np.array([*here, len(tags)])[places])
        counts.append(numbers)
        word_tags[np.ix_([word_number[word] for word in part.words], here)] += part.word_tags
    return TagCounts(tags, words, _counted(np.concatenate(at), np.concatenate(counts), len(tags) + 1), word_tags)


def _entries(ngrams: np.ndarray | SparseCounts) -> tuple[np.ndarray, np.ndarray]:
    """(E, n) the n-grams that occur, and how often."""
    if isinstance(ngrams, SparseCounts):
        return ngrams.at, ngrams.counts
    at = np.argwhere(ngrams > 0)
    return at, ngrams[tuple(at.T)]


def _counted(at: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray | SparseCounts:
    """n-grams (E, n), which may come again, added up."""
    order = at.shape[1]
    codes, which = np.unique(_codes(at, size), return_inverse=True)
    total = np.bincount(which, counts, len(codes))
    if order < 3 or size <= MAX_DENSE_TAGS:
        table = np.zeros(size**order)
        table[codes] = total
        return table.reshape((size,) * order)
    return SparseCounts(np.stack([codes // size**2, codes // size % size, codes % size], 1), total, size)


def _codes(at: np.ndarray, size: int) -> np.ndarray:
    return at @ size ** np.arange(at.shape[1])[::-1]


def count_tags_on(cluster: Cluster, x: Sequence[TaggedSentence] | str | Path, order: int = 2) -> TagCounts:
    """:func:`count_tags` by the workers of a cluster, added up there.

    Args:
        cluster: see :func:`pplseq.runs.cluster.connected`.
        x: sentences; or files that the workers read, by a pattern with *, a part each: CoNLL-U (universal tags), or words and
            tags in columns.

    Raises:
        PartFailed: names a file that could not be read. FileNotFoundError: no file matches. ValueError: as ``count_tags``.
    """
    if isinstance(x, (str, Path)):
        files = matching(x)
        return cluster.total(_count_file, [(file, order) for file in files], add_tag_counts, files)
    parts = [list(x[first : first + PART_SENTENCES]) for first in range(0, len(x), PART_SENTENCES)]
    return cluster.total(count_tags, [(part, order) for part in parts], add_tag_counts)


def _count_file(path: str, order: int) -> TagCounts:
    return count_tags(read_tagged(path), order)


# ------------------------------------------------------------------------------------------------ transitions
def transition_probs(ngrams: np.ndarray, order: int, smoothing: str, add: float = 1.0) -> np.ndarray:
    """p(tag | one or two tags before): (M, M) or (M, M, M), contexts first; every row sums to one.

    Args:
        ngrams: (M, M, M) counts, or (M, M) for one tag before.
        order: 1 or 2 tags before.
        smoothing: "mle" (unseen: a tiny probability), "add" (add-lambda with lambda = `add`), "witten_bell" (Witten and Bell
            1991, backing off to shorter contexts), "deleted_interpolation" (Brants 2000, section 2.2).

    Raises:
        ValueError: an unknown smoothing or order, or a lambda that is not positive.
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 (bigrams) or 2 (trigrams), got {checks.shown(order)}")
    checks.choice("smoothing", smoothing, SMOOTHING)
    if smoothing == "add" and not add > 0:
        raise ValueError(f"add must be positive, got {add}")
    if ngrams.ndim not in (order + 1, 3):
        raise ValueError(f"ngrams: {order} tags before need counts of {order + 1}-grams, got shape {ngrams.shape}")
    levels = [ngrams]  # counts of unigrams, bigrams, trigrams
    while levels[0].ndim > 1:
        levels.insert(0, levels[0].sum(0))
    levels = levels[: order + 1]
    if smoothing == "witten_bell":
        probs = levels[0] / levels[0].sum()
        for count in levels[1:]:
            new = (count > 0).sum(-1, keepdims=True)  # how many tags came anew behind a context
            total = count.sum(-1, keepdims=True) + new
            probs = np.where(total > 0, (count + new * probs) / np.maximum(total, 1), probs)
        return probs
    probs: Any
    if smoothing == "deleted_interpolation":
        weights = interpolation_weights(levels)
        probs = sum(weight * _ratio(count) for weight, count in zip(weights, levels, strict=True)) + FLOOR
    else:
        probs = levels[-1] + (add if smoothing == "add" else FLOOR)
    return probs / probs.sum(-1, keepdims=True)


def _ratio(count: np.ndarray) -> np.ndarray:
    """Relative frequencies; those of a shorter context, or even ones, where a context was never seen: rows sum to one."""
    total = count.sum(-1, keepdims=True)
    shorter = _ratio(count.sum(0)) if count.ndim > 1 else np.full(count.shape, 1 / len(count))
    return np.where(total > 0, count / np.maximum(total, 1), shorter)


class ContextProbs(NamedTuple):
    """Transitions of a variable-order chain of tags.

    Attributes:
        probs: (P + M, M) p(tag | context): of the P pairs of tags that something followed, and of each last tag behind any
            other pair, which are alike, as all smoothing backs off to what the last tag says.
        pairs: (P, 2), sorted.
    """

    probs: np.ndarray
    pairs: np.ndarray


def context_probs(ngrams: np.ndarray | SparseCounts, smoothing: str, add: float = 1.0) -> ContextProbs:
    """The rows of :func:`transition_probs` of trigrams that differ, from their counts; arguments as there.

    Cost: P M numbers, where the whole table has M^3.
    """
    at, counts = _entries(ngrams)
    size = ngrams.size if isinstance(ngrams, SparseCounts) else len(ngrams)
    codes, which = np.unique(_codes(at[:, :2], size), return_inverse=True)
    checks.fits("x", 24.0 * (len(codes) + size) * size, "use order=1, bigrams, or a column with fewer tags")
    pairs = np.stack([codes // size, codes % size], 1)
    own, bigrams = np.zeros((len(pairs), size)), np.zeros((size, size))
    np.add.at(own, (which, at[:, 2]), counts)
    np.add.at(bigrams, (at[:, 1], at[:, 2]), counts)
    last, total = pairs[:, 1], own.sum(1, keepdims=True)
    if smoothing == "witten_bell":
        lower, new = transition_probs(bigrams, 1, smoothing), (own > 0).sum(1, keepdims=True)
        return ContextProbs(np.concatenate([(own + new * lower[last]) / (total + new), lower]), pairs)
    if smoothing == "deleted_interpolation":
        one, two, three = _weights_of_entries(at, counts, size)
        shorter = _ratio(bigrams)
        lower = one * _ratio(bigrams.sum(0)) + two * shorter + FLOOR
        probs = np.concatenate([lower[last] + three * own / total, lower + three * shorter])
    else:
        probs = np.concatenate([own, np.zeros((size, size))]) + (add if smoothing == "add" else FLOOR)
    return ContextProbs(probs / probs.sum(-1, keepdims=True), pairs)


def _weights_of_entries(at: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
    """:func:`interpolation_weights` from the trigrams that occur."""

    def sums(columns: slice) -> np.ndarray:
        which = np.unique(_codes(at[:, columns], size), return_inverse=True)[1]
        return np.bincount(which, counts)[which]

    ratios = np.zeros((3, len(at)))
    for n in range(3):
        inside, total = sums(slice(2 - n, 3)) - 1, sums(slice(2 - n, 2)) - 1
        np.divide(inside, total, out=ratios[n], where=total > 0)
    winners = ratios == ratios.max(0)
    votes = (winners * counts / winners.sum(0)).sum(1)
    return votes / votes.sum()


def interpolation_weights(levels: Sequence[np.ndarray]) -> np.ndarray:
    """Weights of unigrams, bigrams (and trigrams): each n-gram votes, with its count, for the context that predicts it best
    when one occurrence is left out.

    Source: T. Brants (2000), TnT: a statistical part-of-speech tagger, figure 1.
    """
    longest = levels[-1]
    votes = np.zeros(len(levels))
    ratios = []
    for count in levels:
        total = count.sum(-1, keepdims=True) - 1
        ratio = np.divide(count - 1, total, out=np.zeros_like(count), where=total > 0)
        ratios.append(np.broadcast_to(ratio, longest.shape))
    ratios = np.stack(ratios)
    best = ratios.max(0)
    seen = longest > 0
    # ties are shared, as there is no reason for either
    winners = (ratios == best) & seen
    share = longest / np.maximum(winners.sum(0), 1)
    for i in range(len(levels)):
        votes[i] = share[winners[i]].sum()
    return votes / votes.sum()
