from pplseq._lazy import Registry

from .automata.automaton import Automaton as Automaton
from .automata.learner import AutomatonLearner as AutomatonLearner
from .automata.mealy import MealyMachine as MealyMachine
from .automata.of_iohmm import extract_automaton as extract_automaton
from .automata.state_merging import merge_states as merge_states
from .base import SequenceModel as SequenceModel
from .constraints.constraint import Constraint as Constraint
from .diagnostics.comparison import compare as compare
from .estimator import Estimator as Estimator
from .hmm.durations import SemiMarkovHMM as SemiMarkovHMM
from .hmm.mixture import MixtureHMM as MixtureHMM
from .hmm.program import HMM as HMM
from .inference_data import to_arviz as to_arviz
from .iohmm.mixture import MixtureIOHMM as MixtureIOHMM
from .iohmm.program import IOHMM as IOHMM
from .lds.constrained import ConstrainedLDS as ConstrainedLDS
from .lds.program import LDS as LDS
from .parts.priors import Priors as Priors
from .parts.product_moves import ProductMoves as ProductMoves
from .props.learner import PROPSLearner as PROPSLearner
from .props.program import PROPS as PROPS
from .props.program import StreamingHMM as StreamingHMM
from .props.storage import load_stream as load_stream
from .props.storage import merge_streams as merge_streams
from .props.storage import save_stream as save_stream
from .regressions.program import ARHMM as ARHMM
from .regressions.program import SwitchingRegression as SwitchingRegression
from .scikit_learn import SequenceClassifier as SequenceClassifier
from .scikit_learn import StatePosteriors as StatePosteriors
from .scikit_learn import TokenEmbeddings as TokenEmbeddings
from .structural.program import StructuralModel as StructuralModel
from .taggers.conditional import CRFTagger as CRFTagger
from .taggers.conditional import MEMMTagger as MEMMTagger
from .taggers.dictionary import DictionaryTagger as DictionaryTagger
from .taggers.hmm import HMMTagger as HMMTagger
from .taggers.latent import LatentTagger as LatentTagger
from .taggers.substates.products import ProductOfTaggers as ProductOfTaggers
from .taggers.tagger import Tagger as Tagger
from .text_lds.program import TextLDS as TextLDS
from .vlhmm.program import VLHMM as VLHMM

MODELS: Registry  # names in saved folders and of `pplseq train` -> classes
