"""Inference: the chain, the messengers and what they need. Names are imported on first use."""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Chain": "@pplseq.infer.discrete.chain",
        "build_chain": "@pplseq.infer.discrete.build",
        "StateMarginals": "@pplseq.infer.discrete.results",
        "PairMarginals": "@pplseq.infer.discrete.results",
        "ExpectedCounts": "@pplseq.infer.discrete.results",
        "NextDistribution": "@pplseq.infer.discrete.results",
        "SecondOrderChain": "@pplseq.infer.discrete.contexts",
        "constrain_states": "@pplseq.infer.discrete.constrained.states",
        "WordMoves": "@pplseq.infer.discrete.constrained.moves",
        "BlockedEnum": "@pplseq.infer.programs.blocked_enum",
        "markov": "@pplseq.infer.programs.markov",
        "TimeIndex": "@pplseq.infer.programs.markov",
        "TraceBlockedEnum_ELBO": "@pplseq.infer.programs.elbo",
        "KalmanCollapse": "@pplseq.infer.programs.kalman_collapse",
        "TraceKalman_ELBO": "@pplseq.infer.programs.kalman_collapse",
        "GaussianChain": "@pplseq.infer.gaussian.chain",
        "Dynamics": "@pplseq.infer.gaussian.chain",
        "linear_recursion": "@pplseq.kernels.linear_recursion",
        "infer_states": "@pplseq.infer.programs.states",
        "check_vectorizable": "@pplseq.infer.programs.states",
        "generic_log_prob": "@pplseq.infer.oracles.discrete",
        "expectation_maximization": "@pplseq.infer.fit.em",
        "StepSize": "@pplseq.infer.fit.em",
        "FitHistory": "@pplseq.infer.fit.em",
        "Contraction": "@pplseq.infer.programs.contraction",
        "contract_states": "@pplseq.infer.programs.contraction",
    },
)
