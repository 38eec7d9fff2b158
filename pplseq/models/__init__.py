"""Models: one generative program a file. Names are imported on first use."""

import importlib

from pplseq._lazy import lazy_names

REGISTRY = {
    "vlhmm": ("vlhmm", "VLHMM"),
    "hmm": ("hmm", "HMM"),
    "lds": ("lds", "LDS"),
    "text_lds": ("text_lds", "TextLDS"),
    "iohmm": ("iohmm", "IOHMM"),
    "props": ("props", "PROPS"),
    "streaming_hmm": ("streaming_hmm", "StreamingHMM"),
}


def model_class(name: str):
    """The class of a registered model.

    Raises:
        ValueError: for an unknown name; lists the known ones.
    """
    if name not in REGISTRY:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(REGISTRY)}")
    module, attribute = REGISTRY[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "VLHMM": "vlhmm",
        "HMM": "hmm",
        "LDS": "lds",
        "TextLDS": "text_lds",
        "Tagger": "tagger",
        "ProbabilisticTagger": "tagger",
        "GenerativeTagger": "tagger",
        "load_tagger": "tagger",
        "HMMTagger": "hmm_tagger",
        "HMMTaggerSettings": "hmm_tagger",
        "LatentTagger": "latent_tagger",
        "DictionaryTagger": "dictionary_tagger",
        "CRFTagger": "crf",
        "MEMMTagger": "memm",
        "FitSettings": "text_fitting",
        "fit_text_lds": "text_fitting",
        "Priors": "hmm_priors",
        "IOHMM": "iohmm",
        "WeightPriors": "iohmm_networks",
        "extract_automaton": "iohmm_automaton",
        "model_of_tables": "iohmm_automaton",
        "PROPS": "props",
        "PROPSLearner": "props_learner",
        "StreamingHMM": "streaming_hmm",
        "save_stream": "props_storage",
        "load_stream": "props_storage",
        "merge_streams": "props_storage",
        "SequenceModel": "base",
        "load_model": "storage",
        "save_model": "storage",
    },
)
