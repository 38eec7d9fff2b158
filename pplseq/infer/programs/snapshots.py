"""What tells afterwards whether a variable, or what stands in it, was changed by anything but new hidden states."""

from __future__ import annotations

import operator
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from pyro.distributions import Distribution
from torch import Tensor, nn

from pplseq.distributions.affine import GaussianVar
from pplseq.distributions.state import StateVar
from pplseq.infer.programs.factors.lookups import StateValue

SYMBOLS = (StateVar, GaussianVar, StateValue)
DEEPEST = 4  # containers in containers, and objects
LARGEST = 1 << 22  # bytes of an array that are looked at
# whose objects are not opened
LIBRARIES = ("torch", "pyro", "numpy", "pandas", "polars", "pplseq", "builtins", "functools", "weakref")
CLOSED = (ModuleType, type, FunctionType, MethodType, BuiltinFunctionType, Distribution, *SYMBOLS)
CONTAINERS = (list, tuple, dict, set, deque)
UNKNOWN = "nobody can tell"


def snapshot(value: Any, depth: int = 0) -> Any:
    """For :func:`has_changed`; None of what does not change in place, or is not opened."""
    if isinstance(value, Tensor):
        return None if torch.is_inference(value) else value._version
    if isinstance(value, CONTAINERS):
        return {key: (id(item), None if depth >= DEEPEST else _inside(item, depth)) for key, item in _items(value).items()}
    if isinstance(value, np.ndarray):
        looks = not value.dtype.hasobject and value.nbytes <= LARGEST
        return zlib.crc32(np.ascontiguousarray(value).tobytes()) if looks else None
    if isinstance(value, (bytearray, array)):
        return bytes(value)
    if isinstance(value, Iterator):
        left = operator.length_hint(value, -1)
        return UNKNOWN if left < 0 else left
    return None if depth >= DEEPEST else _inside(value, depth)


def _items(container: Any) -> dict[Any, Any]:
    if isinstance(container, dict):
        return container
    return {id(item): item for item in container} if isinstance(container, set) else dict(enumerate(container))


def _inside(item: Any, depth: int) -> Any:
    """The snapshot of what stands in something else, or in an object."""
    if isinstance(item, (int, float, str, *CLOSED)) or item is None:
        return None
    if isinstance(item, (Tensor, np.ndarray, bytearray, array, Iterator, *CONTAINERS)):
        return snapshot(item, depth + 1)
    own = _attributes(item)
    return None if own is None else snapshot(own, depth + 1)


def _attributes(item: Any) -> dict[str, Any] | None:
    """Those of an object of the program's own; of a module of torch none that it keeps itself."""
    if type(item).__module__.partition(".")[0] in LIBRARIES:
        return None
    own = getattr(item, "__dict__", None)
    if isinstance(item, nn.Module) and own is not None:
        return {name: value for name, value in own.items() if not name.startswith("_") and name != "training"}
    return own if isinstance(own, dict) else None


def has_changed(before: Any, now: Any, counts: bool, depth: int = 0) -> bool:
    """Whether a value was changed in place since its snapshot, other than by hidden states that were put into it.

    Args:
        counts: whether these are a change, too, as somebody asks for lengths.
    """
    if before is None:
        return False
    if isinstance(before, str) and before == UNKNOWN:
        return True  # nobody knows whether it is where it was
    if not isinstance(before, dict):
        return snapshot(now, depth) != before
    items = _items(now if isinstance(now, CONTAINERS) else _attributes(now) or {})
    if not before.keys() <= items.keys() or counts and len(before) != len(items):
        return True
    for key, item in items.items():
        number, inside = before.get(key, (None, None))
        if id(item) == number:
            if has_changed(inside, item, counts, depth + 1):
                return True
        elif not isinstance(item, SYMBOLS):
            return True
    return False
