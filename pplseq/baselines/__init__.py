"""What a user would pick instead of the library's models.

Every baseline has the same small face, on texts of `pplseq.data`:
    fit(text) -> self                 learn from a training text
    log_prob(text) -> (N,)            nats of every token; n-grams take lines one by one, networks carry their state on
    perplexity(text) -> float         exp of minus their mean
    next_word(context) -> (V,)        nats of every word after the words so far
"""

from pplseq._lazy import Registry, lazy_names
from pplseq.models.taggers import TAGGERS

NETWORKS = Registry(
    "network",
    __name__,
    {
        "rnn": "rnn:RNN",
        "lstm": "lstm:LSTM",
        "awd-lstm": "awd_lstm:AWDLSTM",
        "ff": "feed_forward:FeedForward",
        "hmm-rnn": "hmm_rnn:HMMRNN",
    },
)

for _name, _place in {
    "most-frequent": "taggers:MostFrequentTagger",
    "rules": "taggers:RuleTagger",
    "nltk-ngram": "nltk_taggers:NgramTagger",
    "nltk-brill": "nltk_taggers:BrillTagger",
    "nltk-tnt": "nltk_taggers:TnTTagger",
    "nltk-perceptron": "nltk_taggers:PerceptronTagger",
    "crfsuite": "crfsuite_tagger:CRFSuiteTagger",
    "maxent": "maxent_tagger:MaxEntTagger",
}.items():
    TAGGERS.register(_name, f"{__name__}.{_place}")

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
