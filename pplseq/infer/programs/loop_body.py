"""What a loop's body does in its first step that it cannot do for all other steps at once; see ``pplseq.markov``."""

from __future__ import annotations

import dis
import functools
import itertools
import re
import sys
from collections.abc import Mapping
from inspect import CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED
from typing import Any, NamedTuple

from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK

from pplseq.infer.programs.factors.lookups import StateValue
from pplseq.infer.programs.snapshots import CONTAINERS, SYMBOLS, has_changed, snapshot


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


def asks_for_loop(frame) -> bool:
    """Whether a frame is at the point where a ``for`` asks for its iterator."""
    return _name_at(frame.f_code, frame.f_lasti) == "GET_ITER"


@functools.lru_cache(maxsize=256)
def _name_at(code, position: int) -> str:
    """Of the instruction at a position of a code."""
    return next((i.opname for i in dis.get_instructions(code) if i.offset == position), "")


class Body:
    """What a loop's body did in its first step, that it cannot do for all others at once."""

    def __init__(self, frame, handlers: list, first_step: int, is_direct: bool):
        self.frame, self.handlers, self.first_step = frame, handlers, first_step
        self.loop = _loop_at(frame.f_code, frame.f_lasti) if is_direct else None
        self.before = {name: (value, snapshot(value)) for name, value in frame.f_locals.items() if name != ".0"}
        names = set() if self.loop is None else frame.f_globals.keys() & self.loop.globals
        self.outside = {name: (frame.f_globals[name], snapshot(frame.f_globals[name])) for name in names}
        for handler in handlers:
            handler.hidden.clear()
            handler.others.clear()
            handler.first_step = first_step

    def carries(self) -> bool:
        """Whether the next step may read anything but hidden states of what the first one left.

        That is a variable from before the loop that is another one now, one that the first step made and the next reads before
        it makes it, what stands in a container or an iterator from before, and what the body sets in objects and modules.
        """
        loop, now = self.loop, dict(self.frame.f_locals)  # since 3.13 it is no dictionary but a view
        step = None if loop is None else now.get(loop.variable)
        if loop is None or loop.sets_elsewhere or loop.draws or loop.names_by_percent:
            return True
        if type(step) is not int or step != self.first_step:
            return True  # the loop's next value is not the step alone: zip, enumerate, a loop in another function
        if any(name not in self.before and not isinstance(now.get(name), SYMBOLS) for name in loop.read_first & now.keys()):
            return True
        for there, variables in ((now, self.before), (self.frame.f_globals, self.outside)):
            for name, (value, old) in variables.items():
                new = there.get(name)
                if name == loop.variable or name not in there:
                    continue
                if new is value and (has_changed(old, new, loop.measures) or name in loop.looks_into and _has_states(new)):
                    return True
                if new is not value and not isinstance(new, SYMBOLS) and not _is_same(new, value):
                    return True
        return False

    def left(self) -> dict[str, Any]:
        """The local variables that anybody reads before the body sets them again."""
        return {name: value for name, value in self.frame.f_locals.items() if self.loop is None or name in self.loop.read_later}

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


def _has_states(container) -> bool:
    """Whether states of marked sites, whose values a program may ask for, were put into a container."""
    items = container.values() if isinstance(container, dict) else container if isinstance(container, CONTAINERS) else ()
    return any(isinstance(item, StateValue) for item in items)


def _is_same(new, value) -> bool:
    """Whether two objects are one number, text or truth value."""
    return type(new) is type(value) and isinstance(new, (int, float, complex, str, bytes)) and new == value


# what draws random numbers that are no site's
_DRAWS = frozenset((
    "rand", "randn", "randint", "random", "randperm", "rand_like", "randn_like", "randrange", "normal", "uniform", "choice",
    "gauss", "multinomial", "bernoulli", "dropout", "rsample", "standard_normal", "shuffle",
))  # fmt: skip


_OF_KEYS = ("LOAD_", "FORMAT_", "BUILD_STRING", "CONVERT_VALUE", "PUSH_NULL", "PRECALL", "CALL")  # t, str(t), f"{t}"
_NUMBER_IN_TEXT = re.compile(r"%[-+ #0-9.]*[diouxXeEfFgGc]")
_NAMESPACES = frozenset(("locals", "vars", "eval", "exec"))


class _Loop(NamedTuple):
    """What the code of a ``for`` loop says.

    variable: what it sets to its next value. read_first: variables that the body reads, in its text, before it sets
    them. read_later: these, and all that code outside of the body may read. looks_into: variables that are read, by the body or
    by code outside of it, otherwise than as ``states.append(..)``, ``states[..] = x`` and ``states[-1]``. globals: global
    variables that it reads.
    sets_elsewhere: whether it sets global variables or attributes. measures, draws: whether it asks for lengths, and for random
    numbers of its own. names_by_percent: whether it puts numbers into texts, as ``"z_%d" % t``, for which Python takes numbers
    alone.
    """

    variable: str
    read_first: frozenset[str]
    read_later: frozenset[str]
    looks_into: frozenset[str]
    globals: frozenset[str]
    sets_elsewhere: bool
    measures: bool
    draws: bool
    names_by_percent: bool


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
    rest = [i for i in instructions if not instructions[at].offset <= i.offset < end]
    read_outside = {name for i in rest for name, is_read in _uses(i) if is_read}.union(code.co_cellvars, code.co_freevars)
    if not code.co_flags & CO_OPTIMIZED or not _NAMESPACES.isdisjoint(code.co_names):  # by name, as in a notebook's cell
        read_outside.update(first)
    outside = frozenset(i.argval for i in body if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    called = {i.argval for i in body if i.opname.startswith("LOAD_") and i.opname != "LOAD_CONST"}
    texts = [i.argval for i in body if i.opname == "LOAD_CONST" and isinstance(i.argval, str)]
    percent = any(map(_NUMBER_IN_TEXT.search, texts)) and any(i.opname == "BINARY_OP" and "%" in i.argrepr for i in body)
    draws = not called.isdisjoint(_DRAWS)
    own = {name for k, i in enumerate(body[:-1], 1) for name, is_read in _uses(i) if is_read and _looks_into(body[k : k + 8])}
    looks = frozenset(own | read_outside | outside)
    return _Loop(index, reads, reads | read_outside, looks, outside, elsewhere, "len" in outside, draws, percent)


def _looks_into(after: list) -> bool:
    """Whether a container, behind whose variable some instructions stand, is read: not in ``.append``, ``[..] =``, ``[-1]``."""
    if after[0].opname in ("LOAD_METHOD", "LOAD_ATTR"):
        return after[0].argval != "append"
    key = list(itertools.takewhile(lambda i: i.opname.startswith(_OF_KEYS), after))
    then = after[len(key)] if len(key) < len(after) else None
    if then is not None and then.opname == "STORE_SUBSCR":
        return False
    is_item = then is not None and "SUBSCR" in then.opname + then.argrepr
    return not (is_item and [i.argval for i in key] == [-1])


def _uses(instruction) -> list[tuple[str, bool]]:
    """The local variables of an instruction, and whether it reads them."""
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    actions = re.findall(r"(LOAD|STORE|DELETE)_(?:FAST|DEREF|NAME|CLOSURE)", instruction.opname)
    return [(name, action != "STORE") for name, action in zip(names, actions, strict=False) if isinstance(name, str)]
