"""Loops over time, compiled by numba: whether there are any, how they are made, and rows in threads.

A loop that is compiled stands in a module of its own (``*_loops.py``) and is imported on first use, since numba takes a fifth
of a second to import. The machine code is kept on disk, beside the module or, where that folder is not writable, in the user's
cache folder. Without numba (a Python that it does not know yet) the readable twins in torch do the work.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

# all of "fast" but what takes NaN and infinities for impossible
REORDERED = {"contract", "reassoc", "nsz", "arcp"}
FEW_THREADS = 2
WORTH_A_THREAD = 1 << 20  # multiplications, a millisecond or less

_enabled = True


@functools.cache
def _importable() -> bool:
    if find_spec("numba") is None:
        return False
    try:
        import numba  # noqa: F401
    except ImportError as error:  # it refuses a numpy that is newer than it knows
        warnings.warn(f"numba does not start ({error}); loops over time run in torch, which is slower", stacklevel=3)
        return False
    return True


def available() -> bool:
    """Whether compiled loops can be used."""
    return _enabled and _importable()


@contextmanager
def twins_only() -> Iterator[None]:
    """Inside, everything runs in torch: to compare the two, or to look for a fault."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def jit(
    function: Callable | None = None, *, entry: bool = False, fastmath: set[str] = REORDERED,
    inline: Literal["never", "always"] = "never",
) -> Any:  # fmt: skip
    """Compiles a loop, by numba, when it is first called; other threads run meanwhile.

    Args:
        entry: it is called from Python: its machine code, with that of all it calls, is kept on disk.
    """
    if function is None:
        return functools.partial(jit, entry=entry, fastmath=fastmath, inline=inline)
    from numba import njit

    # what only loops call needs no way in from Python or C: a tenth of the time that compiling takes
    options: dict[str, Any] = {
        "fastmath": fastmath, "inline": inline, "nogil": True, "error_model": "numpy",
        "no_cpython_wrapper": not entry, "no_cfunc_wrapper": True,
    }  # fmt: skip

    def compile_it(cache: bool):
        return njit(cache=cache, **options)(function)

    try:
        return compile_it(entry)
    except RuntimeError:  # no folder for a cache is writable
        return compile_it(False)


@functools.cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="pplseq-rows")


# a forked child has none of its parent's threads
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def array(value: Tensor) -> np.ndarray:
    """The same numbers for a loop, without gradients and without gaps."""
    return value.detach().contiguous().numpy()


def by_rows(run: Callable[[int, int, int], None], num_rows: int, work: int) -> None:
    """Calls ``run(part, first row, row after the last)`` for all rows, in as many threads as torch may use.

    Args:
        work: multiplications in all, roughly; see :func:`num_parts`.
    """
    parts = num_parts(num_rows, work)
    if parts == 1:
        return run(0, 0, num_rows)
    bounds = [part * num_rows // parts for part in range(parts + 1)]
    jobs = [_pool(parts).submit(run, part, bounds[part], bounds[part + 1]) for part in range(parts)]
    for job in jobs:
        job.result()


def few_threads() -> bool:
    """Whether one core's loops outrun a library's products of matrices, which are divided among torch's threads."""
    return torch.get_num_threads() <= FEW_THREADS


def num_parts(num_rows: int, work: int) -> int:
    """How many threads :func:`by_rows` uses."""
    return max(1, min(torch.get_num_threads(), num_rows, work // WORTH_A_THREAD))
