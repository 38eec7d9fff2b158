"""Whether there are Triton kernels, and how one is started.

Triton comes with torch's builds for GPUs; nothing here needs it to be imported. On a CPU the kernels run in Triton's
interpreter, inside :func:`interpreted` alone: slowly, so that tests see their numbers without a GPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

REALS = (torch.float32, torch.float64)


class State:
    """What holds now. interpreted: kernels run on the CPU. enabled: they run at all."""

    interpreted, enabled = False, True


@functools.cache
def available() -> bool:
    """Whether Triton can be imported."""
    return find_spec("triton") is not None


def kernel(function: Callable) -> Any:
    """``triton.jit``, where there is Triton; the function itself elsewhere, which nothing calls."""
    if not available():
        return function
    from triton import jit

    return jit(function)


if TYPE_CHECKING or available():
    import triton.language as tl
else:
    tl = None  # and nothing calls a kernel


def launch(function: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Starts a kernel on the arguments' device, or interprets it."""
    if not State.interpreted:
        where = next(value.device for value in args if isinstance(value, Tensor))
        with torch.cuda.device(where):  # a kernel starts on the current device, wherever its tensors are
            return function[grid](*args, **options)
    from triton.runtime.interpreter import InterpretedFunction

    options = {name: value for name, value in options.items() if name not in ("num_warps", "num_stages")}
    InterpretedFunction(function.fn)[grid](*args, **options)


def serve(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors: of a GPU (or interpreted) and of a type that they know."""
    if not State.enabled or not available():
        return False
    if not all(value.is_cuda or State.interpreted for value in tensors):
        return False
    return all(value.dtype in REALS or value.dtype == torch.bfloat16 for value in tensors)


@contextmanager
def interpreted() -> Iterator[None]:
    """Inside, kernels run on tensors of the CPU, in Triton's interpreter."""
    if not available():
        raise ModuleNotFoundError("kernels are interpreted by Triton, which is not installed: pip install triton")
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    # the language's own functions (max, sum, ...) were made for the compiler when Triton was imported
    names = [(room, name, value) for room in (tl, tl.standard) for name, value in vars(room).items()]
    compiled = [(room, name, value) for room, name, value in names if isinstance(value, JITFunction)]
    before, State.interpreted = State.interpreted, True
    known = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    for room, name, value in compiled:
        setattr(room, name, InterpretedFunction(value.fn))
    try:
        yield
    finally:
        State.interpreted = before
        for room, name, value in compiled:
            setattr(room, name, value)
        os.environ.pop("TRITON_INTERPRET") if known is None else os.environ.update(TRITON_INTERPRET=known)


@contextmanager
def twins_only() -> Iterator[None]:
    """Inside, torch operations do the work on a GPU too: to compare the two, or to look for a fault."""
    before, State.enabled = State.enabled, False
    try:
        yield
    finally:
        State.enabled = before


def power_of_two(size: int, least: int = 1) -> int:
    """The next power of two: what a tile of `size` numbers takes."""
    return max(least, 1 << (size - 1).bit_length())


def dot_precision(dtype: torch.dtype, exact: str = "ieee") -> str:
    """How kernels multiply: float32 numbers as "tf32" where torch's own products may be, else as ``exact`` says.

    Args:
        exact: "ieee", without tensor cores, or "tf32x3", three of their products, which round no more than sums of float32 do.
    """
    if dtype != torch.float32:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else exact
