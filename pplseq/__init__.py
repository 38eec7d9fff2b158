"""Probabilistic sequence models as Pyro programs, with exact and fast inference at very large state spaces."""

from pplseq._lazy import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "BlockedEnum": "@pplseq.infer.programs.blocked_enum",
        "markov": "@pplseq.infer.programs.markov",
        "TraceBlockedEnum_ELBO": "@pplseq.infer.programs.blocked_enum",
        "KalmanCollapse": "@pplseq.infer.programs.kalman_collapse",
        "TraceKalman_ELBO": "@pplseq.infer.programs.kalman_collapse",
        "LinearGaussian": "distributions.linear_gaussian",
        "infer_states": "@pplseq.infer.programs.states",
        "check_vectorizable": "@pplseq.infer.programs.states",
        "Belief": "distributions.state",
        "MISSING": "distributions.state",
        "VLHMM": "@pplseq.models.vlhmm.program",
        "HMM": "@pplseq.models.hmm.program",
        "IOHMM": "@pplseq.models.iohmm.program",
        "LDS": "@pplseq.models.lds.program",
        "TextLDS": "@pplseq.models.text_lds.program",
        "AutomatonLearner": "@pplseq.models.automata.learner",
        "load": "@pplseq.baselines.loading",
        "train": "@pplseq.recipes.runs",
        "evaluate": "@pplseq.recipes.runs",
        "load_corpus": "data.text",
        "Vocabulary": "data.vocabulary",
    },
)
