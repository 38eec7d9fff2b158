"""Which tensors the code of a running program still holds: in its local variables, in globals and functions that its code
names, and in what these hold."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import Context, ContextVar
from functools import partial
from types import CellType, CodeType, FunctionType, GeneratorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

LIBRARIES = ("pyro.", "torch.", "pplseq.infer.")  # whose own variables are not the program's
FOREIGN = (*LIBRARIES, "pyro", "torch", "numpy", "pplseq")  # whose globals no program sets
BUILT_IN = ("builtins", "itertools", "collections", "types", "_thread")
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
                yield from _tensors(dict(frame.f_locals), DEEP, seen)  # since 3.13 it is no dictionary but a view
                for value in _named(frame.f_code, frame.f_globals):
                    yield from _tensors(value, DEEP, seen)
            frame = frame.f_back


def _named(code: CodeType, variables: Mapping[str, Any]) -> Iterator[Any]:
    """The global variables that code names; of modules, and of classes of the code's own module, what it names in them."""
    own, codes = variables.get("__name__"), [code]
    codes += [each for each in code.co_consts if isinstance(each, CodeType)]  # functions inside
    for name in {name for each in codes for name in each.co_names} & variables.keys():
        value = variables[name]
        if isinstance(value, ModuleType):
            inside = vars(value) if not value.__name__.startswith(FOREIGN) else {}
            yield from (inside[other] for each in codes for other in each.co_names if other in inside)
        elif isinstance(value, type):
            yield from vars(value).values() if value.__module__ == own else ()
        else:
            yield value


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
        inside = (*cells, *(value.__defaults__ or ()), *vars(value).values())
        if not str(value.__module__).startswith(FOREIGN):
            inside = (*inside, *_named(value.__code__, value.__globals__))
    elif issubclass(kind, partial):
        inside = (value.func, *value.args, *value.keywords.values())
    elif kind is ContextVar:
        inside = (value.get(None),)
    elif kind is Context:
        inside = value.values()
    elif issubclass(kind, threading.local):
        inside = threading.local.__getattribute__(value, "__dict__").values()
    elif kind is MethodType:
        inside = (value.__self__,)
    elif kind is GeneratorType:
        inside = () if value.gi_frame is None else value.gi_frame.f_locals.values()
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
    if type(value).__module__ in BUILT_IN:  # an iterator, a view, ...
        found += gc.get_referents(value)
    return found
