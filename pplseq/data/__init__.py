"""Corpora, vocabularies, batches and word clusters. Names are imported on first use."""

from importlib import import_module

_HOME = {
    "Vocabulary": "vocabulary",
    "Corpus": "text",
    "Text": "text",
    "load_corpus": "text",
    "read_text": "text",
    "SegmentBatch": "batches",
    "SentenceBatch": "batches",
    "SentenceBatches": "batches",
    "StreamBatches": "batches",
    "generated_language": "builtin",
    "python_reference_text": "builtin",
    "Clusters": "clustering",
    "average_mutual_information": "clustering",
    "brown_clusters": "clustering",
    "read_paths": "clustering",
    "uniform_clusters": "clustering",
    "write_paths": "clustering",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted([*globals(), *_HOME])
