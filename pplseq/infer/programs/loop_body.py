"""What a loop's body does in its first step that it cannot do for all other steps at once; see ``pplseq.markov``."""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Mapping
from typing import Any

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


class Body:
    """What a loop's body did in its first step, that it cannot do for all others at once."""

    def __init__(self, frame, handlers: list, first_step: int):
        self.frame, self.handlers = frame, handlers
        self.index_names = _stored_next(frame.f_code, frame.f_lasti)
        self.before = {name: (value, _contents(value)) for name, value in frame.f_locals.items()}
        for handler in handlers:
            handler.hidden.clear()
            handler.others.clear()
            handler.first_step = first_step

    def carries(self) -> bool:
        """Whether a variable from before the loop, which the next step may read, is now anything but a hidden state."""
        now = self.frame.f_locals
        for name, (value, contents) in self.before.items():
            if name in self.index_names or name not in now:
                continue
            new = now[name]
            if new is not value and not isinstance(new, _SYMBOLS) and isinstance(new, _CARRIED):
                return True
            if new is value and contents is not None and _contents(new) != contents and not _only_symbols_more(contents, new):
                return True
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
_CARRIED = (Tensor, int, float, complex, list, tuple, dict, set)


def _contents(value):
    """What tells whether a value was changed in place."""
    if isinstance(value, Tensor):
        return None if torch.is_inference(value) else value._version
    if isinstance(value, dict):
        return {key: id(item) for key, item in value.items()}
    return [id(item) for item in value] if isinstance(value, (list, set)) else None


def _only_symbols_more(before, now) -> bool:
    """Whether a list or a dictionary got nothing but hidden states."""
    if isinstance(now, (int, Tensor)):
        return False
    if isinstance(now, dict):
        return all(before.get(key) == id(item) or isinstance(item, _SYMBOLS) for key, item in now.items())
    return all(id(item) in before or isinstance(item, _SYMBOLS) for item in now)


@functools.lru_cache(maxsize=256)
def _stored_next(code, position: int) -> frozenset[str]:
    """The variables that a loop at a position of a code sets to its next value."""
    names: list[str] = []
    ahead = (i for i in dis.get_instructions(code) if i.offset > position)
    for instruction in ahead:
        if instruction.opname.startswith("STORE_"):
            names += instruction.argval if isinstance(instruction.argval, tuple) else [instruction.argval]
        elif not instruction.opname.startswith(("UNPACK", "CACHE", "EXTENDED")):
            break
    return frozenset(names)
