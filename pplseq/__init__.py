"""Probabilistic sequence models as Pyro programs, with exact and fast inference at very large state spaces."""

from pplseq._lazy import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        # models
        "VLHMM": "models",
        "HMM": "models",
        "LDS": "models",
        "ConstrainedLDS": "models",
        "TextLDS": "models",
        "IOHMM": "models",
        "SemiMarkovHMM": "models",
        "ARHMM": "models",
        "ApproximateSwitchingLDS": "models",
        "SwitchingRegression": "models",
        "StructuralModel": "models",
        "PROPS": "models",
        "PROPSLearner": "models",
        "StreamingHMM": "models",
        "HMMTagger": "models",
        "LatentTagger": "models",
        "DictionaryTagger": "models",
        "CRFTagger": "models",
        "MEMMTagger": "models",
        "AutomatonLearner": "models",
        "Constraint": "models",
        # from text to a run and back
        "load_corpus": "data",
        "sequences_by": "@pplseq.models.forms",
        "Vocabulary": "data",
        "train": "recipes",
        "evaluate": "recipes",
        "warm_up": "recipes",
        "explain": "@pplseq.models.explain",
        "load": "baselines",
        "NotFittedError": "checks",
        # programs of one's own
        "markov": "infer",
        "BlockedEnum": "infer",
        "TraceBlockedEnum_ELBO": "infer",
        "KalmanCollapse": "infer",
        "TraceKalman_ELBO": "infer",
        "infer_states": "infer",
        "check_vectorizable": "infer",
        "BlockHMM": "distributions",
        "DenseTransition": "distributions",
        "CategoricalEmission": "distributions",
        "LinearGaussian": "distributions",
        "Belief": "distributions",
        "MISSING": "distributions",
    },
)
