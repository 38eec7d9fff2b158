from pplseq._lazy import Registry

from .awd_lstm import AWDLSTM as AWDLSTM
from .feed_forward import FeedForward as FeedForward
from .hmm_rnn import HMMRNN as HMMRNN
from .kneser_ney import KneserNey as KneserNey
from .lstm import LSTM as LSTM
from .neural import NeuralLanguageModel as NeuralLanguageModel
from .rnn import RNN as RNN
from .sgd import SGDSettings as SGDSettings

NETWORKS: Registry
