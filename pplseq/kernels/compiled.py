"""Loops over time, compiled by numba: whether there are any, how they are made, and rows, or pieces of work, in threads.

A loop that is compiled stands in a module of its own (``*_loops.py``) and is imported on first use, since numba takes a fifth
of a second to import. The machine code is kept on disk, beside the module or, where that folder is not writable, in the user's
cache folder. Without numba (a Python that it does not know yet) the readable twins in torch do the work.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import twice

# all of "fast" but what takes NaN and infinities for impossible
REORDERED = {"contract", "reassoc", "nsz", "arcp"}
FEW_THREADS = 2
WORTH_A_THREAD = 1 << 20  # multiplications, a millisecond or less
MOST_AT_ONCE = 8  # pieces of work, each thread of which may keep sums of its own

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


@functools.cache
def _torch_pool(num_threads: int) -> ThreadPoolExecutor:
    """Threads in each of which torch uses no further ones; made by the one whose number of threads others are to begin with."""
    before, all_here = torch.get_num_threads(), threading.Barrier(num_threads)

    def begin(_: int) -> None:
        all_here.wait()  # one call in each thread
        torch.set_num_threads(1)
        torch.get_num_threads()  # here the thread takes the number over, for good

    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="pplseq-pieces")
    try:
        list(pool.map(begin, range(num_threads)))
    except BaseException:  # a thread could not be started: the others must not wait for it
        all_here.abort()
        raise
    finally:
        torch.set_num_threads(before)
    return pool


# a forked child has none of its parent's threads
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
    os.register_at_fork(after_in_child=_torch_pool.cache_clear)


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


def num_workers(pieces: Sequence[Any], device: torch.device) -> int:
    """How many threads :func:`by_pieces` uses."""
    if device.type != "cpu" or twice.transformed() or torch._C._len_torch_dispatch_stack() > 0:
        return 1  # a stream, a transform or a mode is that of the calling thread
    return max(1, min(torch.get_num_threads(), len(pieces), MOST_AT_ONCE))


def by_pieces(run: Callable[[int, Any], None], pieces: Sequence[Any], threads: int) -> None:
    """Calls ``run(thread, piece)`` for pieces of work that are torch operations without gradients, one core each.

    Each thread has every so manieth piece, in every call the same, so that sums by thread are the same, too.

    Args:
        threads: :func:`num_workers`.
    """
    in_inference = torch.is_inference_mode_enabled()

    def work(number: int) -> None:
        with torch.inference_mode(in_inference), torch.no_grad():  # a thread begins without what is set around it
            for piece in pieces[number::threads]:
                run(number, piece)

    if threads == 1:
        return work(0)
    jobs = [_torch_pool(threads).submit(work, number) for number in range(threads)]
    wait(jobs)  # none goes on behind an error
    for job in jobs:
        job.result()


def few_threads() -> bool:
    """Whether one core's loops outrun a library's products of matrices, which are divided among torch's threads."""
    return torch.get_num_threads() <= FEW_THREADS


def num_parts(num_rows: int, work: int) -> int:
    """How many threads :func:`by_rows` uses."""
    return max(1, min(torch.get_num_threads(), num_rows, work // WORTH_A_THREAD))
