"""The words a program is written in. Names are imported on first use."""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "MISSING": "state",
        "Belief": "state",
        "StateVar": "state",
        "StateCategorical": "state",
        "StateEmission": "state",
        "Transition": "state",
        "Emission": "state",
        "ConditionalEmission": "conditional",
        "BernoulliEmission": "conditional",
        "CoordinateEmission": "conditional",
        "DenseTransition": "dense",
        "StepTransition": "dense",
        "SecondOrderTransition": "second_order",
        "CategoricalEmission": "dense",
        "GaussianEmission": "dense",
        "BlockLayout": "blocks",
        "WordGroups": "blocks",
        "BlockTransition": "block",
        "EmbeddingTransition": "block",
        "TableTransition": "block",
        "BlockEmission": "block",
        "BlockHMM": "@pplseq.infer.programs.block_hmm",
        "LinearChain": "@pplseq.infer.programs.linear_chain",
        "LinearGaussian": "linear_gaussian",
        "GaussianBelief": "gaussian_types",
        "Evidence": "gaussian_types",
        "LinearEvidence": "gaussian_types",
        "DiagonalMinusLowRank": "noise",
        "WordEmission": "word_gaussian",
        "WordGaussian": "word_gaussian",
    },
)
