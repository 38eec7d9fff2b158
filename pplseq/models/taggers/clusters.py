"""Clusters, numbered by nobody, beside tags: where an HMM may start from them; many-to-one accuracy and V-measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain as chained
from typing import NamedTuple

import numpy as np

from pplseq.data.clustering import brown_clusters
from pplseq.data.columns import TaggedSentence

CLUSTER_NOISE = 0.1  # a state's words that are at first of any cluster
CLUSTER_PSEUDO_COUNT = 0.5  # of transitions


class ClusterScores(NamedTuple):
    """many_to_one: accuracy when each cluster is called by its most frequent tag. v_measure: harmonic mean of homogeneity, how
    far a cluster holds one tag, and completeness, how far a tag is in one cluster. num_tokens: with a gold tag."""

    many_to_one: float
    v_measure: float
    homogeneity: float
    completeness: float
    num_tokens: int


def score_clusters(gold: Sequence[TaggedSentence], clusters: Sequence[Sequence[Hashable]]) -> ClusterScores:
    """Scores clusters of words against their tags; words without a tag are left out.

    Raises:
        ValueError: another number of words, or no gold tag. ImportError: scikit-learn is not there.

    Source: Rosenberg and Hirschberg, V-measure (2007); Christodoulopoulos, Goldwater and Steedman, Two decades of unsupervised
        POS induction (2010), for both.
    """
    try:
        from sklearn.metrics import homogeneity_completeness_v_measure
    except ImportError as error:
        raise ImportError('V-measure is scikit-learn\'s; install it with pip install "pplseq[tagging]"') from error
    pairs = list(_pairs(gold, clusters))
    if not pairs:
        raise ValueError("gold: expected at least one word with a tag, got none to score against")
    best = names_of_clusters(gold, clusters)
    right = sum(best[cluster] == tag for tag, cluster in pairs)
    number: dict[Hashable, int] = {}
    found = [number.setdefault(cluster, len(number)) for _, cluster in pairs]
    homogeneity, completeness, v_measure = homogeneity_completeness_v_measure([tag for tag, _ in pairs], found)
    return ClusterScores(right / len(pairs), float(v_measure), float(homogeneity), float(completeness), len(pairs))


def tables_of_clusters(lines: Sequence[np.ndarray], num_words: int, num_states: int) -> dict[str, np.ndarray]:
    """Probabilities of an HMM whose states are Brown clusters with some noise, so that EM can move words between them.

    Args:
        lines: word ids of each sentence, none empty. num_words: V.
        num_states: Z, and clusters; states for which there are no words start with the words of all.

    Returns:
        initial (Z,), transition (Z, Z) and emission (Z, V), nowhere 0.
    """
    ids, starts = np.concatenate(lines), np.cumsum([0, *map(len, lines)])
    block = brown_clusters(ids, num_words, min(num_states, num_words), line_starts=starts).block_of_word
    counts = np.bincount(ids, minlength=num_words) + 1e-3  # words of other texts
    emission = np.zeros((num_states, num_words))
    emission[block, np.arange(num_words)] = counts
    emission *= (1 - CLUSTER_NOISE) / np.maximum(emission.sum(1, keepdims=True), 1e-300)
    emission += CLUSTER_NOISE * counts / counts.sum()
    inside = np.ones(len(ids) - 1, dtype=bool)
    inside[starts[1:-1] - 1] = False  # the last word of a sentence and the first of the next
    transition = np.full((num_states, num_states), CLUSTER_PSEUDO_COUNT)
    np.add.at(transition, (block[ids[:-1]][inside], block[ids[1:]][inside]), 1.0)
    initial = np.full(num_states, CLUSTER_PSEUDO_COUNT)
    np.add.at(initial, block[ids[starts[:-1]]], 1.0)
    return {
        "initial": initial / initial.sum(),
        "transition": transition / transition.sum(1, keepdims=True),
        "emission": emission / emission.sum(1, keepdims=True),
    }


def names_of_clusters(gold: Iterable[TaggedSentence], clusters: Iterable[Sequence[Hashable]]) -> dict[Hashable, str]:
    """Each cluster's most frequent tag; of equals the first in the alphabet."""
    counts: dict[Hashable, Counter] = {}
    for tag, cluster in _pairs(gold, clusters):
        counts.setdefault(cluster, Counter())[tag] += 1
    return {cluster: min(found, key=lambda tag: (-found[tag], tag)) for cluster, found in counts.items()}


def _pairs(gold, clusters):
    gold, clusters = list(gold), list(clusters)
    if [len(sentence.words) for sentence in gold] != [len(row) for row in clusters]:
        raise ValueError("clusters: expected a cluster a word of every sentence of gold")
    tags = chained.from_iterable(sentence.tags for sentence in gold)
    return (pair for pair in zip(tags, chained.from_iterable(clusters), strict=True) if pair[0] is not None)
