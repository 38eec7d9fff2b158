"""What a loop's body does in its first step that it cannot do for all other steps at once; see ``pplseq.markov``."""

from __future__ import annotations

import dis
import functools
import operator
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from inspect import CO_COROUTINE, CO_GENERATOR
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pplseq.distributions.affine import GaussianVar
from pplseq.distributions.state import StateVar
from pplseq.infer.programs.factors.lookups import StateValue


def values_of(handler) -> Mapping[str, Any]:
    """The values by site name that a handler of Pyro's brings."""
    found: Any = None
    if isinstance(handler, ReplayMessenger):
        found = handler.trace
    elif isinstance(handler, ConditionMessenger | DoMessenger):
        found = handler.data
    return {} if found is None else getattr(found, "nodes", found)


def first_value(values: Mapping[str, Any], parts: list[str], steps: range) -> str | None:
    """The name of the first step for which there is a value, None without any.

    Args:
        values: by site name.
        parts: of a site's name, between which the number of the step stands; one part alone is the name at every step.

    Cost: O(number of values) at most, not of steps: a loop may have a million.
    """
    if not values:
        return None
    if len(parts) == 1:
        return parts[0] if parts[0] in values else None
    first, second, *rest = map(re.escape, parts)
    pattern = re.compile(rf"{first}(-?\d+){second}" + "".join(rf"\1{part}" for part in rest))
    found = [(int(match[1]), name) for name in values if (match := pattern.fullmatch(name))]
    return min(((t, name) for t, name in found if t in steps and name == str(t).join(parts)), default=(0, None))[1]


def hash_to_store(value: int, what: str, advice: str) -> int:
    """A hash for who stores something under a key, ``states[t] = z``; who looks for one step's key would find nothing."""
    asking = sys._getframe(2)
    if _name_at(asking.f_code, asking.f_lasti) == "STORE_SUBSCR":
        return value
    raise TypeError(f"{what} stands for many steps and is no key of a set or dictionary; {advice}")


@functools.lru_cache(maxsize=256)
def _name_at(code, position: int) -> str:
    """Of the instruction at a position of a code."""
    return next((i.opname for i in dis.get_instructions(code) if i.offset == position), "")


class Body:
    """What a loop's body did in its first step, that it cannot do for all others at once."""

    def __init__(self, frame, handlers: list, first_step: int):
        self.frame, self.handlers, self.first_step = frame, handlers, first_step
        self.loop = _loop_at(frame.f_code, frame.f_lasti)
        self.before = {name: (value, _contents(value)) for name, value in frame.f_locals.items()}
        for handler in handlers:
            handler.hidden.clear()
            handler.others.clear()
            handler.first_step = first_step

    def carries(self) -> bool:
        """Whether the next step may read anything but hidden states of what the first one left.

        That is a variable from before the loop that is another one now, one that the first step made and the next reads before
        it makes it, what stands in a container or an iterator from before, and what the body sets in objects and modules.
        """
        loop, now = self.loop, self.frame.f_locals
        step = None if loop is None else now.get(loop.variable)
        if loop is None or loop.sets_elsewhere or type(step) is not int or step != self.first_step:
            return True  # the loop's next value is not the step alone: zip, enumerate, a loop in another function
        if any(name not in self.before and not isinstance(now.get(name), _SYMBOLS) for name in loop.read_first & now.keys()):
            return True
        for name, (value, contents) in self.before.items():
            if name == loop.variable or name not in now:
                continue
            new = now[name]
            if new is not value and not isinstance(new, _SYMBOLS) and not _is_same(new, value):
                return True
            if new is value and contents is not None and _contents(new) != contents:
                if loop.measures or not _only_symbols_more(contents, new):
                    return True
            if new is value and isinstance(new, Iterator) and contents is None and not _is_this_loop(new):
                return True  # nobody can tell whether it is where it was
        return False

    def other_sites(self) -> list[str]:
        """Sites that no handler eliminated."""
        hidden = {name for handler in self.handlers for name in handler.hidden}
        return [name for handler in self.handlers for name in handler.others if name not in hidden]

    def values_ahead(self, steps: range) -> bool:
        """Whether a handler of Pyro's has a value for a later step's site."""
        number = re.compile(rf"(?<!\d){steps[0]}(?!\d)")
        hidden = [number.split(name) for handler in self.handlers for name in handler.hidden]
        given = [values for handler in _PYRO_STACK if (values := values_of(handler))]
        return any(first_value(values, parts, steps[1:]) is not None for values in given for parts in hidden)


_SYMBOLS = (StateVar, GaussianVar, StateValue)
_LARGEST = 1 << 16  # bytes of an array that are compared


def _is_same(new, value) -> bool:
    """Whether two objects are one number, text or truth value."""
    return type(new) is type(value) and isinstance(new, (int, float, complex, str, bytes)) and new == value


def _is_this_loop(value) -> bool:
    return isinstance(value, GeneratorType) and value.gi_code.co_name == "markov"


def _contents(value):
    """What tells whether a value was changed in place; None where nothing does."""
    if isinstance(value, Tensor):
        return None if torch.is_inference(value) else value._version
    if isinstance(value, dict):
        return {key: id(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _LARGEST else None
    if isinstance(value, Iterator):
        left = operator.length_hint(value, -1)
        return None if left < 0 else left
    return [id(item) for item in value] if isinstance(value, (list, set, deque)) else None


def _only_symbols_more(before, now) -> bool:
    """Whether a list or a dictionary got nothing but hidden states, and lost nothing."""
    if isinstance(now, dict):
        return before.keys() <= now.keys() and all(
            before.get(key) == id(item) or isinstance(item, _SYMBOLS) for key, item in now.items()
        )
    if not isinstance(now, list | set):
        return False
    found = [id(item) for item in now]
    new = [item for item in now if id(item) not in before]
    kept = found[: len(before)] == before if isinstance(now, list) else set(before) <= set(found)
    return kept and all(isinstance(item, _SYMBOLS) for item in new)


class _Loop(NamedTuple):
    """What the code of a ``for`` loop says.

    variable: what it sets to its next value. read_first: variables that the body reads, in its text, before it sets
    them. sets_elsewhere: whether it sets global variables or attributes. measures: whether it asks for lengths.
    """

    variable: str
    read_first: frozenset[str]
    sets_elsewhere: bool
    measures: bool


@functools.lru_cache(maxsize=256)
def _loop_at(code, position: int) -> _Loop | None:
    """The loop whose next value is asked for at a position of a code; None where that is no ``for`` over these values, or
    its body may be elsewhere."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    at = next((k for k, i in enumerate(instructions) if i.offset == position), None)
    if at is None or instructions[at].opname != "FOR_ITER" or code.co_flags & (CO_GENERATOR | CO_COROUTINE):
        return None
    target = instructions[at + 1]
    if not target.opname.startswith("STORE_") or target.opname in ("STORE_ATTR", "STORE_SUBSCR"):
        return None
    index = target.argval[0] if isinstance(target.argval, tuple) else target.argval
    end = instructions[at].argval
    body = [i for i in instructions[at + 2 :] if i.offset < end]
    if isinstance(target.argval, tuple):  # it sets one variable and reads another, in one instruction
        body.insert(0, target._replace(opname="LOAD_FAST", argval=target.argval[1]))
    first: dict[str, bool] = {}
    for i in body:
        for name, reads in _uses(i):
            first.setdefault(name, reads)
    reads = frozenset(name for name, is_read in first.items() if is_read and name != index)
    elsewhere = any(i.opname in ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL") for i in body)
    return _Loop(index, reads, elsewhere, any(i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and i.argval == "len" for i in body))


def _uses(instruction) -> list[tuple[str, bool]]:
    """The local variables of an instruction, and whether it reads them."""
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    actions = re.findall(r"(LOAD|STORE|DELETE)_(?:FAST|DEREF|NAME|CLOSURE)", instruction.opname)
    return [(name, action != "STORE") for name, action in zip(names, actions, strict=False) if isinstance(name, str)]
