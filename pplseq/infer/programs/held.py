"""Which tensors the code of a running program still holds, in its local variables and in what these hold."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

LIBRARIES = ("pyro.", "torch.", "pplseq.infer.")  # whose own variables are not the program's
PLAIN = (str, bytes, int, float, complex, type, ModuleType)  # which hold nothing of a program's
DEEP = 3  # containers and objects within each other
MANY = 4096  # values of one container that are looked at, its last


def stack_depth() -> int:
    """How many frames there are where this is called."""
    frame, depth = sys._getframe(1), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def held_tensors(depth: int) -> Iterator[Tensor]:
    """The tensors that frames hold from the one at ``depth`` on, those of libraries left out."""
    frame: Any = sys._getframe(1)
    seen: dict[int, int] = {}  # how deep what was met was looked into
    with torch._C.DisableTorchFunctionSubclass():
        for _ in range(stack_depth() - depth):
            if frame is None:
                return
            if not frame.f_globals.get("__name__", "").startswith(LIBRARIES):
                yield from _tensors(frame.f_locals, DEEP, seen)
            frame = frame.f_back


def _tensors(value: Any, deep: int, seen: dict[int, int]) -> Iterator[Tensor]:
    kind = type(value)  # of a proxy its own: what it stands for may be gone
    if issubclass(kind, Tensor):
        yield value
        return
    if value is None or issubclass(kind, PLAIN) or seen.get(id(value), -1) >= deep:
        return
    seen[id(value)] = deep
    if issubclass(kind, dict):
        inside: Any = value.values()
    elif issubclass(kind, (list, tuple, set, frozenset, deque)):
        inside = value
    elif kind is FunctionType:
        cells = (cell.cell_contents for cell in value.__closure__ or () if cell != CellType())
        inside = (*cells, *(value.__defaults__ or ()))
    elif issubclass(kind, partial):
        inside = (value.func, *value.args, *value.keywords.values())
    elif kind is MethodType:
        inside = (value.__self__,)
    else:
        inside = _attributes(value)
    for one in list(inside)[-MANY:]:
        yield from _tensors(one, deep - 1, seen)


def _attributes(value: Any) -> list[Any]:
    """What an object keeps, without asking code of its own."""
    try:
        found = list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        found = []
    for kind in type(value).__mro__:
        for slot in vars(kind).get("__slots__", ()):
            member = vars(kind).get(slot)
            if type(member) is MemberDescriptorType:
                with contextlib.suppress(AttributeError):  # nothing is there yet
                    found.append(member.__get__(value))
    return found
