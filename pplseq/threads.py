"""What the threads of a process share: values made once, and the one lock under which Pyro's programs are run.

Pyro keeps its handlers, its parameters and whether it checks for the whole process, not for a thread. Questions to models do
without it; what has to run a program does so :func:`alone`.
"""

from __future__ import annotations

import contextvars
import functools
import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload
from weakref import WeakKeyDictionary

from pplseq import checks

if TYPE_CHECKING:
    from torch import nn

Value = TypeVar("Value")
Given = ParamSpec("Given")


class _Once(Generic[Value]):
    """A property that is computed when it is first asked for, and kept.

    ``functools.cached_property`` of Python 3.11 holds one lock for all instances of a class while it computes: threads wait for
    each other, and a process that was forked meanwhile waits for ever. Here threads that ask at once may compute the same
    value, of which one is kept.
    """

    def __init__(self, function: Callable[[Any], Value]):
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> Value: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self.name, self.function(instance))


if TYPE_CHECKING:  # whose types checkers know
    from functools import cached_property as once
else:
    once = _Once


# ------------------------------------------------------------------------------------------------ what is put back
class _OfThread:
    """How torch stood for this thread: gradients, modes that change its functions, and types of less precision."""

    def __init__(self) -> None:
        import torch
        from torch.overrides import _get_current_function_mode_stack

        self.grad, self.modes = torch.is_grad_enabled(), _get_current_function_mode_stack()
        self.autocast, self.depth = torch.is_autocast_enabled("cpu"), _depth_of_autocast()
        self.is_within = LOCK._is_owned()  # pyright: ignore[reportAttributeAccessIssue]

    def put_back(self) -> None:
        import torch
        from torch import overrides

        if torch.is_grad_enabled() != self.grad:
            torch.set_grad_enabled(self.grad)
        if (now := overrides._get_current_function_mode_stack()) != self.modes:
            for _ in now:
                overrides._pop_mode()
            for mode in self.modes:
                overrides._push_mode(mode)
        if torch.is_autocast_enabled("cpu") != self.autocast:
            torch.set_autocast_enabled("cpu", self.autocast)
        for _ in range(_depth_of_autocast() - self.depth):
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
        if precisions and not self.is_within and LOCK.acquire(blocking=False):  # else they are another thread's
            try:
                _put_precisions_back()
            finally:
                LOCK.release()


def _put_precisions_back() -> None:
    for backend, before in list(precisions.items()):
        backend.fp32_precision = before
    precisions.clear()


def _depth_of_autocast() -> int:
    import torch

    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


class _OfProcess:
    """How Pyro and torch stood for all threads: handlers, checks, the default type and, where asked for, parameters."""

    def __init__(self, own_store: bool) -> None:
        import pyro
        import torch

        self.stacks, self.dtype, self.checks = [list(each) for each in _stacks()], torch.get_default_dtype(), _validations()
        self.is_back = False
        self.store = pyro.get_param_store().get_state() if own_store else None

    def put_back(self) -> None:
        import pyro
        import torch

        if self.is_back:
            return
        for stack, was in zip(_stacks(), self.stacks, strict=True):
            stack[:] = was
        if _validations() != self.checks:
            for part, was in zip(_checking(), self.checks, strict=True):
                part.enable_validation(was)
        if torch.get_default_dtype() != self.dtype:
            torch.set_default_dtype(self.dtype)
        if self.store is not None:
            pyro.get_param_store().clear()
            pyro.get_param_store().set_state(self.store)
        self.is_back = True


def _stacks() -> tuple[list[Any], ...]:
    """Handlers, and the dimensions that plates take."""
    from pyro.poutine.runtime import _DIM_ALLOCATOR, _PYRO_STACK

    return _PYRO_STACK, _DIM_ALLOCATOR._stack


def _checking() -> tuple[Any, ...]:
    """What of Pyro can be told not to look."""
    from pyro import distributions, infer, poutine

    return distributions, infer, poutine


def _validations() -> list[bool]:
    return [part.is_validation_enabled() for part in _checking()]


def undisturbed(function: Callable[Given, Value]) -> Callable[Given, Value]:
    """A function that leaves torch, for its thread, and context variables as they were, wherever Ctrl-C or an error ends it."""

    @functools.wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Value:
        before = _OfThread()
        try:
            try:
                return contextvars.copy_context().run(function, *args, **kwargs)
            finally:
                before.put_back()
        finally:
            before.put_back()  # Ctrl-C may end the first one

    return inside


# ------------------------------------------------------------------------------------------------ one at a time
LOCK = threading.RLock()
_outermost: tuple[int, _OfProcess] | None = None  # the thread that holds the lock, and how things were before
precisions: dict[Any, str] = {}  # of products of torch's backends, before the thread that holds the lock set others


def alone(function: Callable[[], Value], *, own_store: bool = True) -> Value:
    """What a function returns that runs a program of Pyro, while no other thread does; nothing of Pyro's state is left changed.

    Inside of :func:`pplseq.checks.trusted` Pyro checks nothing.

    Args:
        own_store: whether the program has a parameter store of its own, which is empty, as the names of another model's
            parameters may be the same.
    """
    global _outermost
    with LOCK:
        outer, before = _outermost, (_OfThread(), _OfProcess(own_store))
        try:
            try:
                _outermost = outer or (threading.get_ident(), before[1])
                if own_store:
                    _empty_store()
                if checks.TRUSTED.get():
                    for part in _checking():
                        part.enable_validation(False)
                return function()
            finally:
                _put_back(before, outer)
        finally:
            _put_back(before, outer)  # Ctrl-C may end the first one


@contextmanager
def filtering(action: str, category: type[Warning] = Warning) -> Iterator[None]:
    """A block in which warnings of a kind are ignored, or raised. Filters are the process's: one thread at a time sets them."""
    with LOCK, warnings.catch_warnings():
        warnings.simplefilter(action, category)  # pyright: ignore[reportArgumentType]
        yield


def one_at_a_time(function: Callable[Given, Value]) -> Callable[Given, Value]:
    """A function about programs that runs them :func:`alone`, with the parameters of whoever calls."""

    @functools.wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Value:
        return alone(lambda: function(*args, **kwargs), own_store=False)

    return inside


@contextmanager
def from_shared_generator(seed: int) -> Iterator[None]:
    """A block for a library that draws from the generator of the module ``random``: seeded, and put back behind it."""
    with LOCK:
        before = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)


def _empty_store() -> None:
    import pyro

    pyro.get_param_store().clear()


def _put_back(before: tuple[_OfThread, _OfProcess], outer: Any) -> None:
    global _outermost
    for part in before:
        part.put_back()
    _outermost = outer


# ------------------------------------------------------------------------------------------------ what threads disturb
def parsing(function: Callable[Given, Value]) -> Callable[Given, Value]:
    """A function that parses Python, as numpy does the headers of its files, and may do so again.

    CPython 3.11 counts how deep a parsed tree is for all threads together: where another one parses meanwhile, a tree that is
    right ends with a SystemError.
    """

    @functools.wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Value:
        for _ in range(100):
            try:
                return function(*args, **kwargs)
            except SystemError as error:
                if "AST constructor recursion depth" not in str(error):
                    raise
        return function(*args, **kwargs)

    return inside


# ------------------------------------------------------------------------------------------------ networks that are shared
class _Turns:
    """Who reads a module: any number of threads as it is, or one that changes its mode or its weights for that long."""

    def __init__(self) -> None:
        self.gate, self.freed = threading.Lock(), threading.Condition()
        self.readers = 0  # -1: one that changes it, the owner
        self.owner: int | None = None

    def begin(self, is_free: Callable[[], bool]) -> None:
        """Waits for a turn in the order of asking."""
        with self.gate, self.freed:
            self.freed.wait_for(is_free)

    def end(self) -> None:
        """Lets the next ones have theirs."""
        with self.freed:
            self.readers, self.owner = max(self.readers - 1, 0), None
            self.freed.notify_all()


_TURNS: WeakKeyDictionary[nn.Module, _Turns] = WeakKeyDictionary()
_MAKING = threading.Lock()


@contextmanager
def evaluating(model: nn.Module, *, alone: bool = False) -> Iterator[None]:
    """Inside, a module and its parts are in evaluation mode; afterwards each in the mode that its owner left it in.

    Other threads that read the module so meanwhile do it at the same time, unless its mode has to be changed, or `alone`: the
    module is everybody's.
    """
    with _MAKING:
        turns = _TURNS.setdefault(model, _Turns())
    if turns.owner == threading.get_ident():
        yield
        return
    training: list[nn.Module] = []
    held = False

    def is_free() -> bool:
        nonlocal held
        training[:] = [part for part in model.modules() if part.training]
        changes = alone or bool(training)
        free = turns.readers == 0 if changes else turns.readers >= 0
        if free:
            turns.readers, held = -1 if changes else turns.readers + 1, True
            turns.owner = threading.get_ident() if changes else None
        return free

    try:
        turns.begin(is_free)
        for part in training:
            part.training = False
        yield
    finally:
        if held:
            for part in training:
                part.training = True
            turns.end()


def _forked() -> None:
    """In a child, where the threads that held locks, or whose turn it was, are not."""
    global LOCK, _MAKING, _outermost
    _MAKING = threading.Lock()
    _TURNS.clear()
    if not LOCK._is_owned():  # pyright: ignore[reportAttributeAccessIssue]
        LOCK = threading.RLock()
        _put_precisions_back()
        if _outermost is not None:
            _outermost[1].put_back()
            _outermost = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
