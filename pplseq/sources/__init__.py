"""Sources: anything that predicts the next token of a stream, for PROPS and for comparisons.

A source is asked first and told afterwards: ``predict()`` gives the probabilities of the next token, then ``observe(y)``
tells it which one came. What it learns from that is its own business; PROPS never trains it.
"""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
