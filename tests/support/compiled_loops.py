"""What many tests need, compiled once: processes share the work instead of each doing all of it.

On a fresh clone compiling takes longer than anything else in a run of all tests; what one process has compiled the others find
on the disk.
"""

from __future__ import annotations

import warnings

from pplseq.kernels import compiled
from pplseq.recipes.compiling import calls


def compile_a_share(number: int, num_processes: int) -> None:
    """Has the part of process number (from 0) of the loops compiled, or read from the disk."""
    if not compiled.available():
        return
    with warnings.catch_warnings(action="ignore"):
        for call in list(calls().values())[number::num_processes]:
            call()
