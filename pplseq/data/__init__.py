"""Corpora, vocabularies, batches and word clusters. Names are imported on first use."""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Vocabulary": "vocabulary",
        "Corpus": "text",
        "Text": "text",
        "load_corpus": "text",
        "read_text": "text",
        "SegmentBatch": "batches",
        "SentenceBatch": "batches",
        "SentenceBatches": "batches",
        "StreamBatches": "batches",
        "LagCounts": "lag_counts",
        "count_lags": "lag_streaming",
        "WordForms": "word_forms",
        "generated_language": "builtin",
        "python_reference_text": "builtin",
        "Clusters": "clustering",
        "average_mutual_information": "clustering",
        "brown_clusters": "clustering",
        "read_paths": "clustering",
        "uniform_clusters": "clustering",
        "write_paths": "clustering",
        "TaggedSentence": "columns",
        "read_columns": "columns",
        "read_conllu": "columns",
        "TaggedFile": "tagged",
        "read_tagged": "tagged",
        "write_tagged": "tagged",
        "PTB_TO_UNIVERSAL": "universal_tags",
        "UNIVERSAL_TAGS": "universal_tags",
        "to_universal": "universal_tags",
    },
)
