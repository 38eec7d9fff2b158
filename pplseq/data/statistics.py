"""What is in a corpus, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pplseq.data.text import Corpus, Text


def describe_corpus(corpus: Corpus, *, top: int = 10) -> dict[str, Any]:
    """Sizes, line lengths and unknown rates of every split, as JSON-able values.

    Args:
        top: most frequent words of the training text to list.

    Returns:
        "name", "num_words", "splits" (split -> numbers, `<eos>` counted), "most_frequent" [[word, share of tokens]].
    """
    splits = {name: getattr(corpus, name) for name in ("train", "valid", "test")}
    counts = np.bincount(corpus.train.tokens, minlength=len(corpus.vocabulary))
    order = np.argsort(-counts, kind="stable")[:top]
    return {
        "name": corpus.name,
        "num_words": len(corpus.vocabulary),
        "splits": {name: describe_text(text) for name, text in splits.items() if text is not None},
        "most_frequent": [[corpus.vocabulary.words[i], float(counts[i] / corpus.train.num_tokens)] for i in order],
    }


def describe_text(text: Text) -> dict[str, Any]:
    """The numbers of one split."""
    lengths = text.lengths
    return {
        "num_tokens": text.num_tokens,
        "num_lines": text.num_lines,
        "num_articles": text.num_articles,
        "num_types": len(np.unique(text.tokens)),
        "unknown_rate": text.num_unknown / text.num_tokens,
        "shortest_line": int(lengths.min()),
        "median_line": float(np.median(lengths)),
        "mean_line": float(lengths.mean()),
        "longest_line": int(lengths.max()),
    }
