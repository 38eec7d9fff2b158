"""Probabilistic sequence models as Pyro programs, with exact and fast inference at very large state spaces."""

import os
import sys

from pplseq._lazy import lazy_names

# OpenMP reads this when torch is imported. Threads that spin while they wait take every core, and where another program uses
# one of them, two rows of a softmax wait eight milliseconds; sleeping threads cost little.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
