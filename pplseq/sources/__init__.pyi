from pplseq.models.props.source import ArraySource as ArraySource
from pplseq.models.props.source import CallableSource as CallableSource
from pplseq.models.props.source import Source as Source

from .continuous_cache import ContinuousCache as ContinuousCache
from .counts import OnlineNGram as OnlineNGram
from .counts import UniformSource as UniformSource
from .counts import UnigramCache as UnigramCache
from .dynamic_evaluation import DynamicEvaluation as DynamicEvaluation
from .huggingface import HuggingFaceSource as HuggingFaceSource
from .mixture import MixtureSource as MixtureSource
from .model import ModelSource as ModelSource
from .ngram import NGramSource as NGramSource
from .settings import StreamOptions as StreamOptions
from .steering import ConstraintProcessor as ConstraintProcessor
from .steering import Particles as Particles
from .stream import PersonalStream as PersonalStream
from .torch_model import TorchLanguageModelSource as TorchLanguageModelSource
