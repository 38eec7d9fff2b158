"""Memory of steps that take the same tensors again and again."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def release_freed_memory() -> None:
    """Give the system back what is kept: behind work of another kind, whose holes the steps would not fill."""
    if sys.platform.startswith("linux") and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def keep_freed_memory() -> bool:
    """Tell glibc to keep what a step frees for the next step, instead of giving it back to the system. Whether it does.

    A tensor of more than 32 MB is otherwise mapped anew in every step, and each of its pages is cleared by the system at the
    first touch. For a process that trains; the memory is given back at its end.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
