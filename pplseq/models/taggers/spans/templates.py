"""Templates of features for chunks and entities: further columns of a file, clusters and gazetteers around a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pplseq import checks

CLUSTER_PREFIXES = (4, 6, 10, 20)  # bits; Turian, Ratinov and Bengio (2010), Word representations, section 7.1


def column_templates(columns: Sequence[int]) -> list[str]:
    """A window of two words on both sides, its pairs and triples, and pairs with the word; of every column.

    Source: T. Kudo and Y. Matsumoto (2001), Chunking with support vector machines; the templates of CRF++ for CoNLL-2000.
    """
    found = []
    for number in columns:
        checks.count("word_columns", number, least=1)
        name = f"column{number}"
        window = [f"{name}[{place}]" for place in (-2, -1, 0, 1, 2)]
        found += [*window, *("|".join(window[i : i + 2]) for i in range(4)), *("|".join(window[i : i + 3]) for i in range(3))]
        found += [f"lower[0]|{name}[0]", f"lower[-1]|{name}[0]", f"{name}[0]|lower[1]"]
    return found

LEXICON_TEMPLATES = tuple(f"lexicon[{place}]" for place in (-1, 0, 1))  # Denis and Sagot (2012), see CRFTagger


def list_templates(clusters: Mapping[str, str] | None, gazetteers: Mapping[str, Any]) -> list[str]:
    """Prefixes of clusters of the word and its neighbours; the gazetteers of a window."""
    found = []
    if clusters is not None:
        found += [f"cluster{size}[{place}]" for size in CLUSTER_PREFIXES for place in (-1, 0, 1)]
    if gazetteers:
        found += [*(f"gazetteer[{place}]" for place in (-1, 0, 1)), "gazetteer[0]|capitals[0]"]
    return found
