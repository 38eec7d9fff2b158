"""Inference: the chain, the messengers and what they need. Names are imported on first use."""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Chain": "chain",
        "build_chain": "chain",
        "StateMarginals": "chain",
        "PairMarginals": "chain",
        "ExpectedCounts": "chain",
        "NextDistribution": "chain",
        "BlockedEnum": "blocked_enum",
        "markov": "time_index",
        "TimeIndex": "time_index",
        "TraceBlockedEnum_ELBO": "elbo",
        "infer_states": "state_inference",
        "check_vectorizable": "state_inference",
        "generic_log_prob": "oracle",
        "expectation_maximization": "em",
        "StepSize": "em",
        "FitHistory": "em",
        "Contraction": "contraction",
        "contract_states": "contraction",
        "TokenEmbedder": "embeddings",
        "singular_pairs": "state_words",
        "rnn_weights": "rnn_export",
        "score_next_words": "next_word",
        "tune_mixture_weight": "next_word",
    },
)
