"""From data and settings on disk to a trained run and back: what `pplseq train`, `evaluate`, `query`, `report` and `info` do.

Importing this room makes all recipes known, and does not import torch.
"""

from pplseq._lazy import lazy_names
from pplseq.recipes.iohmm import recipe as _iohmm  # noqa: F401  (each registers its recipes)
from pplseq.recipes.lds import recipe as _lds  # noqa: F401
from pplseq.recipes.taggers import recipe as _taggers  # noqa: F401
from pplseq.recipes.text import recipe as _text  # noqa: F401
from pplseq.recipes.text_lds import recipe as _text_lds  # noqa: F401

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
