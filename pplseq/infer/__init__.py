"""Inference: the chain, the messengers and what they need. Names are imported on first use."""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
