"""Sources: anything that predicts the next token of a stream, for PROPS and for comparisons.

A source is asked first and told afterwards: ``predict()`` gives the probabilities of the next token, then ``observe(y)``
tells it which one came. What it learns from that is its own business; PROPS never trains it.
"""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Source": "@pplseq.models.props.source",
        "CheckedSource": "@pplseq.models.props.source",
        "check_probs": "@pplseq.models.props.source",
        "stream_log_probs": "@pplseq.models.props.source",
        "Alignment": "alignment",
        "measure_alignment": "alignment",
        "check_alignment": "alignment",
        "CallableSource": "@pplseq.models.props.source",
        "ArraySource": "@pplseq.models.props.source",
        "UniformSource": "counts",
        "UnigramCache": "counts",
        "ContinuousCache": "continuous_cache",
        "DynamicEvaluation": "dynamic_evaluation",
        "OnlineNGram": "counts",
        "NGramSource": "ngram",
        "TorchLanguageModelSource": "torch_model",
        "ModelSource": "model",
        "HuggingFaceSource": "huggingface",
        "ConstraintProcessor": "steering",
        "MixtureSource": "mixture",
        "RiverWordClassifier": "river_estimator",
        "PersonalStream": "stream",
        "StreamError": "personal_model",
        "StreamOptions": "settings",
        "StreamPair": "comparison",
    },
    {"RiverWordClassifier": "river"},
)
