"""Models: one generative program a file. Names are imported on first use."""

from pplseq._lazy import Registry, lazy_names

# names in saved folders and of `pplseq train`; a model of your own: MODELS.register("name", Class)
MODELS = Registry(
    "model",
    __name__,
    {
        "vlhmm": "vlhmm.program:VLHMM",
        "hmm": "hmm.program:HMM",
        "semi_markov_hmm": "hmm.durations:SemiMarkovHMM",
        "mixture_hmm": "hmm.mixture:MixtureHMM",
        "mixture_iohmm": "iohmm.mixture:MixtureIOHMM",
        "lds": "lds.program:LDS",
        "constrained_lds": "lds.constrained:ConstrainedLDS",
        "structural": "structural.program:StructuralModel",
        "text_lds": "text_lds.program:TextLDS",
        "iohmm": "iohmm.program:IOHMM",
        "arhmm": "regressions.program:ARHMM",
        "switching_regression": "regressions.program:SwitchingRegression",
        "props": "props.program:PROPS",
        "streaming_hmm": "props.program:StreamingHMM",
    },
)

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
