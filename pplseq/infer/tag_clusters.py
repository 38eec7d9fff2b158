"""How well clusters, numbered by nobody, agree with tags: many-to-one accuracy and V-measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain as chained
from typing import NamedTuple

from pplseq.data.columns import TaggedSentence


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
