"""Probabilistic sequence models as Pyro programs, with exact and fast inference at very large state spaces."""

from pplseq._lazy import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "BlockedEnum": "infer.blocked_enum",
        "markov": "infer.time_index",
        "TraceBlockedEnum_ELBO": "infer.elbo",
        "KalmanCollapse": "infer.kalman_collapse",
        "TraceKalman_ELBO": "infer.elbo",
        "LinearGaussian": "distributions.linear_gaussian",
        "infer_states": "infer.state_inference",
        "check_vectorizable": "infer.state_inference",
        "Belief": "distributions.state",
        "MISSING": "distributions.state",
        "VLHMM": "models.vlhmm",
        "HMM": "models.hmm",
        "IOHMM": "models.iohmm",
        "LDS": "models.lds",
        "TextLDS": "models.text_lds",
        "load_model": "models.storage",
        "load_corpus": "data.text",
        "Vocabulary": "data.vocabulary",
    },
)
