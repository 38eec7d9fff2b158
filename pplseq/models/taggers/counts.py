"""Counts of tagged text, and probabilities of tags and words from them.

The tag "boundary" stands before and behind every sentence; it is the last one, number N. M = N + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pplseq import checks
from pplseq.data.columns import TaggedSentence
from pplseq.data.locations import matching
from pplseq.data.tagged import read_tagged
from pplseq.models.taggers.tagger import tag_names
from pplseq.runs.cluster import Cluster

SMOOTHING = ("mle", "add", "witten_bell", "deleted_interpolation")
MAX_TRIGRAM_TAGS = 400  # the boundary too: 64 million trigrams
PART_SENTENCES = 10_000  # of a part that a worker of a cluster counts
FLOOR = 1e-12  # of unsmoothed probabilities, so that no sentence is impossible


class TagCounts(NamedTuple):
    """What a supervised hidden Markov model of tags knows of its training text.

    Attributes:
        tags: N names. words: V words, sorted.
        ngrams: (M, M, M) how often tag c followed a, b, or (M, M) how often it followed b; sentences stand between two
            boundaries and one.
        word_tags: (V, N) how often a word had a tag.
    """

    tags: tuple[str, ...]
    words: tuple[str, ...]
    ngrams: np.ndarray
    word_tags: np.ndarray


def count_tags(sentences: Sequence[TaggedSentence], order: int = 2) -> TagCounts:
    """Counts of tagged sentences, of trigrams (order 2) or bigrams (1); empty sentences count for nothing.

    Raises:
        ValueError: too many tags for trigrams.
    """
    tags = tag_names(sentences)
    words = sorted({word for sentence in sentences for word in sentence.words})
    tag_number, word_number = ({name: i for i, name in enumerate(names)} for names in (tags, words))
    boundary, size = len(tags), len(tags) + 1
    _check_trigrams(len(tags), order)
    track, spoken, said = [], [], []
    for sentence in sentences:
        if sentence.words:
            numbers = [tag_number[tag] for tag in sentence.tags if tag is not None]
            track += [boundary, boundary, *numbers]
            said += numbers
            spoken += [word_number[word] for word in sentence.words]
    track.append(boundary)
    track = np.array(track, dtype=np.int64)
    code = track[1:-1] * size + track[2:]
    if order == 2:
        code += track[:-2] * size**2
    # windows that run over the two boundaries between sentences predict nothing
    real = ~((track[1:-1] == boundary) & (track[2:] == boundary))
    ngrams = np.bincount(code[real], minlength=size ** (order + 1)).reshape((size,) * (order + 1))
    pairs = np.array(spoken, dtype=np.int64) * max(boundary, 1) + np.array(said, dtype=np.int64)
    word_tags = np.bincount(pairs, minlength=len(words) * boundary).reshape(len(words), boundary)
    return TagCounts(tuple(tags), tuple(words), ngrams.astype(np.float64), word_tags.astype(np.float64))


def add_tag_counts(first: TagCounts, second: TagCounts) -> TagCounts:
    """Counts of two texts together, whose tags and words may differ."""
    tags, words = (tuple(sorted({*ours, *theirs})) for ours, theirs in zip(first[:2], second[:2], strict=True))
    _check_trigrams(len(tags), first.ngrams.ndim - 1)
    tag_number, word_number = ({name: i for i, name in enumerate(names)} for names in (tags, words))
    ngrams = np.zeros((len(tags) + 1,) * first.ngrams.ndim)
    word_tags = np.zeros((len(words), len(tags)))
    for part in (first, second):
        here = [tag_number[tag] for tag in part.tags]
        ngrams[np.ix_(*[[*here, len(tags)]] * ngrams.ndim)] += part.ngrams
        word_tags[np.ix_([word_number[word] for word in part.words], here)] += part.word_tags
    return TagCounts(tags, words, ngrams, word_tags)


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


def _check_trigrams(num_tags: int, order: int) -> None:
    if order == 2 and num_tags >= MAX_TRIGRAM_TAGS:
        raise ValueError(
            f"x: {num_tags:,} different tags are too many for trigrams of them (at most {MAX_TRIGRAM_TAGS - 1}); use "
            "order=1, bigrams, or a column with fewer tags"
        )


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
        raise ValueError(f"order must be 1 (bigrams) or 2 (trigrams), got {order!r}")
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
