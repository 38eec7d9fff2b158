"""Loops over time, compiled by numba: whether there are any, how they are made, and rows in threads.

A loop that is compiled stands in a module of its own (``*_loops.py``) and is imported on first use, since numba takes a fifth
of a second to import. Compiling one takes seconds, so that its readable twin in torch does the work until so much was asked for
that compiling pays; the machine code is then kept on disk (:mod:`pplseq.kernels.machine_code`), and a loop that is found there
is used at once. Without numba (a Python that it does not know yet) the twins do all the work.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

# all of "fast" but what takes NaN and infinities for impossible
REORDERED = {"contract", "reassoc", "nsz", "arcp"}
FEW_THREADS = 2
WORTH_A_THREAD = 1 << 20  # multiplications, a millisecond or less

WORTH = 2.0  # seconds of a twin's work for which its loop is compiled, which takes about as long
OPERATION, MULTIPLICATION = 5e-6, 1e-9  # seconds of one operation on tensors, roughly, and of one of its multiplications

Choice = Literal["auto", "always", "never"]

_choice: Choice | None = None  # None: the environment's
_used: set[str] = set()  # loops that this process compiles, or found on disk
_worked: dict[str, float] = {}  # seconds that the twins of others took, roughly
_told: ContextVar[dict[str, str] | None] = ContextVar("_told", default=None)


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


def choice() -> Choice:
    """When loops are used: "auto", once compiling pays; "always"; or "never". Unless set, ``PPLSEQ_LOOPS`` says."""
    found = (os.environ.get("PPLSEQ_LOOPS") or "auto") if _choice is None else _choice
    if found not in get_args(Choice):
        raise ValueError(f"PPLSEQ_LOOPS: expected 'auto', 'always' or 'never', got {found!r}")
    return cast(Choice, found)


@contextmanager
def _chosen(value: Choice) -> Iterator[None]:
    global _choice
    before, _choice = _choice, value
    try:
        yield
    finally:
        _choice = before


def always():
    """Inside, every loop is compiled at its first call: the same digits in every run, and full speed after it."""
    return _chosen("always")


def twins_only():
    """Inside, everything runs in torch: to compare the two, or to look for a fault."""
    return _chosen("never")


def available() -> bool:
    """Whether there may be compiled loops; whether one does the work, :func:`pays` says."""
    return choice() != "never" and _installed()


@functools.cache
def _installed() -> bool:
    return find_spec("numba") is not None


def pays(loop: str, operations: float = 0.0, multiplications: float = 0.0, *, worth: float = WORTH) -> bool:
    """Whether a loop does this call's work, or its twin.

    By the work of this process so far, so that equal programs decide alike; a loop whose code lies on disk is used at once.

    Args:
        loop: its module below ``pplseq`` and its name: ``"kernels.chain.loops.viterbi"``.
        operations, multiplications: the work of this call, in the twin's operations on tensors and what they multiply, roughly;
            a twin that only knows afterwards says so to :func:`worked`.
        worth: seconds of the twin's work for which the loop is compiled.
    """
    found = choice()
    if found == "never" or not _installed():
        return False
    if found == "always":
        reason = "loops are always used"
    elif loop in _used or _is_kept(loop):
        reason = "compiled before"
    else:
        worked = _worked.get(loop, 0.0) + OPERATION * operations + MULTIPLICATION * multiplications
        if worked < worth:
            _worked[loop] = worked
            return _tell(loop, f"twin in torch: {worked:.3g} of {worth:g} s of such work were asked for", False)
        reason = f"compiled now: more than {worth:g} s of such work were asked for"
    if not _importable():
        return False
    _used.add(loop)
    return _tell(loop, reason, True)


def worked(loop: str, operations: float, multiplications: float = 0.0) -> None:
    """Counts what a twin has done."""
    _worked[loop] = _worked.get(loop, 0.0) + OPERATION * operations + MULTIPLICATION * multiplications


def _tell(loop: str, reason: str, answer: bool) -> bool:
    notes = _told.get()
    if notes is not None:
        notes[loop] = ("loop: " if answer else "") + reason
    return answer


def declined(loop: str, reason: str) -> None:
    """Says that a loop that pays did not do the work after all."""
    _tell(loop, f"twin in torch: {reason}", False)


def is_told() -> bool:
    """Whether somebody listens, to whom what was remembered would say nothing."""
    return _told.get() is not None


@contextmanager
def told() -> Iterator[dict[str, str]]:
    """Inside, which loops were asked for, and what was decided, in words."""
    token = _told.set({})
    try:
        yield cast("dict[str, str]", _told.get())
    finally:
        _told.reset(token)


def folders() -> list[Path]:
    """Where code may lie, in the order in which it is looked for: NUMBA_CACHE_DIR, or the installation and the user's own."""
    if own := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(own) / "pplseq"]
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Path(__file__).parent / "__pycache__", Path(base) / "pplseq"]


@functools.cache
def _is_kept(loop: str) -> bool:
    """Whether there is code of this loop, of the versions and the processor at hand, for some kind of arguments."""
    module, _, function = loop.rpartition(".")
    name = f"{module.rpartition('.')[2]}.{function}"
    if not any(next(folder.glob(f"{name}-*.code"), None) for folder in folders()) or not _importable():
        return False
    return getattr(import_module(f"pplseq.{module}"), function)._cache.is_there()


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

    from pplseq.kernels.machine_code import Linked, keep

    return keep(njit(**options)(function), options, folders) if entry else njit(**options, pipeline_class=Linked)(function)


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
