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
        "lds": "lds.program:LDS",
        "structural": "structural.program:StructuralModel",
        "text_lds": "text_lds.program:TextLDS",
        "iohmm": "iohmm.program:IOHMM",
        "switching_regression": "switching.program:SwitchingRegression",
        "props": "props.program:PROPS",
        "streaming_hmm": "props.program:StreamingHMM",
    },
)

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "VLHMM": "@pplseq.models.vlhmm.program",
        "HMM": "@pplseq.models.hmm.program",
        "LDS": "@pplseq.models.lds.program",
        "TextLDS": "@pplseq.models.text_lds.program",
        "Tagger": "@pplseq.models.taggers.tagger",
        "ProbabilisticTagger": "@pplseq.models.taggers.probabilistic",
        "GenerativeTagger": "@pplseq.models.taggers.probabilistic",
        "load_tagger": "@pplseq.models.taggers.tagger",
        "HMMTagger": "@pplseq.models.taggers.hmm",
        "HMMTaggerSettings": "@pplseq.models.taggers.hmm",
        "LatentTagger": "@pplseq.models.taggers.latent",
        "DictionaryTagger": "@pplseq.models.taggers.dictionary",
        "CRFTagger": "@pplseq.models.taggers.conditional",
        "MEMMTagger": "@pplseq.models.taggers.conditional",
        "FitSettings": "@pplseq.models.text_lds.fit",
        "Priors": "@pplseq.models.hmm.priors",
        "IOHMM": "@pplseq.models.iohmm.program",
        "StructuralModel": "@pplseq.models.structural.program",
        "SemiMarkovHMM": "@pplseq.models.hmm.durations",
        "SwitchingRegression": "@pplseq.models.switching.program",
        "WeightPriors": "@pplseq.models.iohmm.networks",
        "RestartBlock": "@pplseq.models.iohmm.restarts.history",
        "Automaton": "@pplseq.models.automata.automaton",
        "AutomatonLearner": "@pplseq.models.automata.learner",
        "LearnedAutomaton": "@pplseq.models.automata.learner",
        "merge_states": "@pplseq.models.automata.state_merging",
        "learn_by_asking": "@pplseq.models.automata.asking",
        "extract_automaton": "@pplseq.models.automata.of_iohmm",
        "model_of_tables": "@pplseq.models.automata.of_iohmm",
        "PROPS": "@pplseq.models.props.program",
        "PROPSLearner": "@pplseq.models.props.learner",
        "StreamingHMM": "@pplseq.models.props.program",
        "save_stream": "@pplseq.models.props.storage",
        "load_stream": "@pplseq.models.props.storage",
        "merge_streams": "@pplseq.models.props.storage",
        "SequenceModel": "base",
        "Estimator": "estimator",
    },
)
