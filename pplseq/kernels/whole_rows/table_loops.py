"""Compiled loops over numbers of words and over counts, of which small data have so few that a tensor operation costs more.

Importing this module imports numba.
"""

from __future__ import annotations

from pplseq.kernels.compiled import jit


@jit(entry=True)
def all_within(index, size):
    """Whether all numbers (B, T) are in 0..size - 1."""
    for n in range(index.shape[0]):
        for k in range(index.shape[1]):
            if not 0 <= index[n, k] < size:
                return False
    return True
