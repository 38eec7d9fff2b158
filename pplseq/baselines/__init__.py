"""What a user would pick instead of the library's models.

Every baseline has the same small face, on texts of `pplseq.data`:
    fit(text) -> self                 learn from a training text
    log_prob(text) -> (N,)            nats of every token; n-grams take lines one by one, networks carry their state on
    perplexity(text) -> float         exp of minus their mean
    next_word(context) -> (V,)        nats of every word after the words so far
"""

import importlib

from pplseq._lazy import lazy_names

NETWORKS = {"rnn": ("rnn", "RNN"), "lstm": ("lstm", "LSTM"), "ff": ("feed_forward", "FeedForward")}


def network_class(name: str):
    """The class of a neural language model: rnn, lstm or ff."""
    module, attribute = NETWORKS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "KneserNey": "kneser_ney",
        "RNN": "rnn",
        "LSTM": "lstm",
        "FeedForward": "feed_forward",
        "NeuralLanguageModel": "neural",
        "SGDSettings": "sgd",
    },
)
