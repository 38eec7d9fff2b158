"""What a user would pick instead of the library's models.

Every baseline has the same small face, on texts of `pplseq.data`:
    fit(text) -> self                 learn from a training text
    log_prob(text) -> (N,)            nats of every token; n-grams take lines one by one, networks carry their state on
    perplexity(text) -> float         exp of minus their mean
    next_word(context) -> (V,)        nats of every word after the words so far
"""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "KneserNey": "kneser_ney",
        "RNN": "rnn",
        "NeuralLanguageModel": "neural",
        "SGDSettings": "neural",
    },
)
