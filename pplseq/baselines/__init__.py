"""What a user would pick instead of the library's models.

Every baseline has the same small face, on texts of `pplseq.data`:
    fit(text) -> self                 learn from a training text
    log_prob(text) -> (N,)            nats of every token, lines taken one by one
    perplexity(text) -> float         exp of minus their mean
    next_word(context) -> (V,)        nats of every word after the words of a line so far
"""

from importlib import import_module

_HOME = {"KneserNey": "kneser_ney"}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted([*globals(), *_HOME])
