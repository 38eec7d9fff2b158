"""Machine code of compiled loops, kept on disk: a file for each loop and kind of arguments.

A file's name holds what the code was made from: the bytecode of the loop, of all loops that it calls, and the constants that
they read; the processor; and the versions of Python and numba. So a change of any of these is another file, and no file is
ever out of date. What is damaged is removed and compiled again.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import logging
import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba import _dynfunc  # pyright: ignore[reportAttributeAccessIssue]
from numba.core.caching import NullCache, _Cache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import cpu_target
from numba.core.serialize import dumps
from numba.core.typed_passes import NativeLowering

from pplseq import files
from pplseq.threads import once

PLAIN = (bool, int, float, str, bytes, type(None))
PATIENCE = 2.0  # seconds of compiling without a word
TURN, LONGEST = 0.05, 120.0  # seconds between looks at what another process makes, and for which it is waited for
MESSAGE = "compiling loops for this machine, once; `pplseq warm-up` compiles all of them beforehand"
DIGEST = 16  # bytes before the code itself, which end a process when they are wrong

# a child has none of its parent's threads: it would wait for ever for the lock of one that compiled while it was forked
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire, after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )  # fmt: skip


@functools.cache
def _writable(folder_list: tuple[Path, ...]) -> Path | None:
    for folder in folder_list:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
    warnings.warn(
        "compiled loops cannot be kept, and are compiled anew by every process: none of "
        f"{', '.join(map(str, folder_list))} can be written to; set NUMBA_CACHE_DIR to a folder that can",
        RuntimeWarning, stacklevel=2,
    )  # fmt: skip
    return None


@functools.cache  # once is enough
def _say_waiting() -> None:
    logging.getLogger("pplseq").info(MESSAGE)


class Kept(_Cache):
    """What numba asks for the code of one function."""

    def __init__(self, function: FunctionType, options: dict[str, Any], folders: Callable[[], list[Path]]):
        self.function, self.options, self.folders, self._is_enabled = function, options, folders, True
        self._timer: threading.Timer | None = None
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    @property
    def cache_path(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
        return str(self.folders()[0])

    def enable(self) -> None:
        self._is_enabled = True

    def disable(self) -> None:
        self._is_enabled = False

    def flush(self) -> None:
        for folder in self.folders():
            for file in folder.glob(f"{self.name}-*.code"):
                file.unlink(missing_ok=True)

    @once
    def prefix(self) -> str:
        """Name of the files of this version of the loop, on this processor."""
        about = sorted((key, sorted(value) if isinstance(value, set) else value) for key, value in self.options.items())
        context: Any = cpu_target.target_context
        processor = context.codegen().magic_tuple()
        return f"{self.name}-{_digest(numba.__version__, sys.version, processor, about, *parts_of(self.function))}"

    def is_there(self) -> bool:
        """Whether there is code, undamaged, for some kind of arguments."""
        return any(_content(file) for folder in self.folders() for file in folder.glob(f"{self.prefix}-*.code"))

    def _file_name(self, signature) -> str:
        return f"{self.prefix}-{_digest(signature)}.code"

    @contextmanager
    def alone(self, sig) -> Iterator[None]:
        """Inside, no other process makes the code for these arguments: what one has begun is waited for, but not for ever."""
        name, folder = self._file_name(sig), _writable(tuple(self.folders())) if self._is_enabled else None
        began = time.monotonic()
        with ExitStack() as held:
            held.callback(self._stop_timer)  # also where nothing comes of it
            while folder is not None and not any((each / name).exists() for each in self.folders()):
                try:
                    held.enter_context(files.locked(folder / f"{name}.lock", "busy"))
                    break
                except OSError:  # it cannot be written to after all
                    break
                except ValueError:
                    if (waited := time.monotonic() - began) > LONGEST:
                        break
                    if waited > PATIENCE:
                        _say_waiting()
                    time.sleep(TURN)
            yield

    def load_overload(self, sig, target_context):  # pyright: ignore[reportIncompatibleMethodOverride]
        """The compiled function, or None."""
        target_context.refresh()
        name = self._file_name(sig)
        for file in [folder / name for folder in self.folders()] if self._is_enabled else []:
            try:
                content = _content(file)
                if content:
                    return CompileResult._rebuild(target_context, *pickle.loads(content))
            except Exception:  # of another build of numba
                pass
            with suppress(OSError):  # damaged, in any way: made again
                file.unlink()
        self._timer = threading.Timer(PATIENCE, _say_waiting)
        self._timer.daemon = True
        self._timer.start()
        return None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def save_overload(self, sig, data) -> None:
        folder = _writable(tuple(self.folders())) if self._is_enabled else None
        if folder is None:
            return
        content = dumps(data._reduce())
        with suppress(OSError), files.new_file(folder / self._file_name(sig)) as file:
            file.write_bytes(hashlib.blake2b(content, digest_size=DIGEST).digest() + content)


def _content(file: Path) -> bytes:
    """What a file holds; nothing where it is not there, or is not what was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return b""
    whole = hashlib.blake2b(content[DIGEST:], digest_size=DIGEST).digest() == content[:DIGEST]
    return content[DIGEST:] if whole else b""


def _digest(*made_from) -> str:
    return hashlib.blake2b(repr(made_from).encode(), digest_size=8).hexdigest()


def keep(dispatcher, options: dict[str, Any], folders: Callable[[], list[Path]]):
    """The compiled function, whose code is kept in the first of these folders that can be written to, and looked for in all."""
    assert isinstance(dispatcher._cache, NullCache)
    dispatcher._cache, make = Kept(dispatcher.py_func, options, folders), dispatcher.compile

    @functools.wraps(make)
    def compile(sig):
        # numba's own lock first: a thread that has it may need this loop's code for that of another one
        with global_compiler_lock, dispatcher._cache.alone(sig), _uncollected():
            return make(sig)

    dispatcher.compile = compile
    return dispatcher


@contextmanager
def _uncollected() -> Iterator[None]:
    """Inside, no garbage is looked for: numba's trees of code, which are none, would be walked again and again."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


# ------------------------------------------------------------------------------------------------ what only loops call
class _LinkedLibrary(JITCodeLibrary):
    """Code that is made a part of its callers', where it is optimised and becomes machine code with theirs."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(NativeLowering):
    _name = "linked_lowering"

    def run_pass(self, state) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        changed = super().run_pass(state)
        done, name = state["cr"], state["cr"].fndesc
        function = _dynfunc.make_function(name.lookup_module(), name.qualname, "", 0, done.env, (state.library,))
        state.targetctx.insert_user_function(function, name, [state.library])
        state["cr"] = done._replace(cfunc=function)
        return changed


class Linked(CompilerBase):
    """Numba's compiler for loops that only loops call: a third of the time that compiling takes."""

    def define_pipelines(self) -> list[PassManager]:
        """Numba's own passes but the last."""
        build, manager = DefaultPassBuilder, PassManager("linked")
        for part in (build.define_untyped_pipeline, build.define_typed_pipeline, build.define_nopython_lowering_pipeline):
            manager.passes += part(self.state).passes
        manager.passes = [(_LinkedLowering if each is NativeLowering else each, why) for each, why in manager.passes]
        manager.finalize()
        return [manager]


# ------------------------------------------------------------------------------------------------ what code is made from
def parts_of(function: FunctionType) -> list[tuple]:
    """What a loop's code is made from: of it and all that it calls bytecode, constants, and what it reads of its module."""
    seen: dict[FunctionType, tuple] = {}
    _add_parts(function, seen)
    return list(seen.values())


def _add_parts(function: FunctionType, seen: dict[FunctionType, tuple]) -> None:
    if function in seen:
        return
    codes = list(_codes(function.__code__))
    bytecode = [(code.co_code, code.co_names, code.co_varnames, _described(code.co_consts)) for code in codes]
    names, found = sorted({name for code in codes for name in code.co_names}), []
    seen[function] = function.__module__, function.__name__, bytecode, found
    spaces = [function.__globals__]
    spaces += [vars(spaces[0][name]) for name in names if isinstance(spaces[0].get(name), ModuleType)]
    for space in spaces:
        for name in names:
            value: Any = space.get(name)
            if hasattr(value, "py_func"):
                _add_parts(value.py_func, seen)
            elif value is not None:
                found.append((name, _described(value)))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _described(value: Any) -> Any:
    """What of a constant goes into machine code: numbers and arrays as they are, of tuples with names these too."""
    if isinstance(value, (tuple, frozenset)):
        parts = sorted(value, key=repr) if isinstance(value, frozenset) else value
        return type(value).__name__, *map(_described, parts)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (*PLAIN, np.generic)):
        return type(value).__name__, repr(value)
    if isinstance(value, CodeType):
        return "code"  # which is looked at by itself
    return getattr(value, "__module__", None), getattr(value, "__qualname__", None), getattr(value, "_fields", None)
