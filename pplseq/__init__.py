"""Probabilistic sequence models as Pyro programs, with exact and fast inference at very large state spaces."""

from pplseq._lazy import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
