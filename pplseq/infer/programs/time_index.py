"""The symbol that stands for all steps of a loop but the first, as a number, an index and a part of names."""

from __future__ import annotations

import operator

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.timed import Timed, at_steps
from pplseq.infer.programs.loop_body import hash_to_store

ADVICE = "write pplseq.markov(..., vectorize=False) to run the loop step by step"
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_IN_TENSORS = {*_COMPARISONS, *_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC), "div", "rdiv", "true_divide", "remainder",
               "floor_divide", "where", "maximum", "minimum", "rpow", "rsub"}  # fmt: skip


class TimeIndex:
    """Stands for t = start, ..., stop - 1 all at once.

    It works as an index (``x[:, t]``), with integers added or subtracted (``x[:, t - 1]``), in names (``f"z_{t}"``), in
    comparisons (``t < lengths``) and in arithmetic (``0.1 * t``, ``T - 1 - t``, ``t % 2``). What it cuts out of a tensor, and
    what else comes of it, is a :class:`~pplseq.distributions.timed.Timed`: the number or tensor of one step, at all steps. An
    ``if`` takes conditions that hold at all of its steps or at none. Anything that needs one number raises TypeError.
    """

    __slots__ = ("start", "stop")

    def __init__(self, start: int, stop: int):
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __format__(self, spec: str) -> str:
        if spec:
            raise TypeError(
                f"a vectorised time index has no format {checks.shown(spec)} in names; write f'z_{{t}}', or {ADVICE}"
            )
        return _InNames(f"{self.start}:{self.stop}")

    def __repr__(self) -> str:
        return f"TimeIndex({self.start}, {self.stop})"

    def __str__(self) -> str:
        return format(self)

    def numbers(self, device=None) -> Timed:
        """The steps' numbers: () at a step, integers."""
        return Timed.of(torch.arange(self.start, self.stop, device=device))

    def _arithmetic(self, name: str, other, mirrored: bool):
        if isinstance(other, TimeIndex):
            other = other.numbers()
        if type(other) is int and not mirrored and name in ("add", "sub"):
            shift = other if name == "add" else -other
            return TimeIndex(self.start + shift, self.stop + shift)
        if type(other) is int and mirrored and name == "add":
            return TimeIndex(self.start + other, self.stop + other)
        if not isinstance(other, (int, float, Tensor)):
            return NotImplemented
        numbers = self.numbers(other.device if isinstance(other, Tensor) else None)
        whole = type(other) is int and name != "truediv" and (name != "pow" or not mirrored and other >= 0)
        if not whole and not isinstance(other, Tensor):
            numbers = numbers.double()  # as precise as Python's numbers; beside tensors the type of those counts
        function = getattr(operator, name)
        return function(other, numbers) if mirrored else function(numbers, other)

    def __neg__(self) -> Tensor:
        return -self.numbers()

    def _compare(self, name: str, other):
        if isinstance(other, TimeIndex):
            other = other.numbers()
        if not isinstance(other, (int, float, Tensor)):
            return NotImplemented
        return getattr(operator, name)(self.numbers(other.device if isinstance(other, Tensor) else None), other)

    def __bool__(self):
        if 0 in range(self.start, self.stop):
            raise TypeError(f"a TimeIndex of step 0 and others has no truth value; {ADVICE}")
        return True

    def _no_number(self):
        raise TypeError(f"a vectorised time index stands for many steps and is no single number; {ADVICE}")

    __int__ = __float__ = __index__ = __complex__ = __round__ = _no_number

    def __hash__(self):
        return hash_to_store(object.__hash__(self), "a vectorised time index", ADVICE)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", str(func))
        if func is Tensor.__getitem__:
            return _index(*args)
        if name.strip("_") in _IN_TENSORS:
            return func(*_as_numbers(args), **_as_numbers(kwargs or {}))
        raise TypeError(
            f"{name} on a vectorised time index is not supported: only x[:, t], comparisons, arithmetic and f'z_{{t}}' are; "
            f"{ADVICE}"
        )


class _InNames(str):
    """``str(t)``: a part of a site's name, such as ``"z_" + str(t)``. Whoever reads it asks for a number that it is not."""

    __slots__ = ()

    def __hash__(self):
        return hash_to_store(str.__hash__(self), "the text of a vectorised time index", ADVICE)


def _refuse(self, *args, **kwargs):
    raise TypeError(f"the text of a vectorised time index stands for many steps: it goes into names alone; {ADVICE}")


def _is(self, other):
    start, stop = map(int, str.split(self, ":"))
    if isinstance(other, str) and not isinstance(other, _InNames) and str.isdecimal(other) and start <= int(other) < stop:
        _refuse(self)
    return str.__eq__(self, other)


_InNames.__eq__, _InNames.__ne__ = _is, lambda self, other: not _is(self, other)  # pyright: ignore[reportAttributeAccessIssue]
for _name in ("lt", "le", "gt", "ge", "contains", "getitem", "iter", "len"):
    setattr(_InNames, f"__{_name}__", _refuse)
for _name in ("endswith", "startswith", "find", "index", "count", "split", "isdigit", "isnumeric", "zfill", "rjust"):
    setattr(_InNames, _name, _refuse)


def _as_numbers(value):
    if isinstance(value, TimeIndex):
        return value.numbers()
    if isinstance(value, dict):
        return {key: _as_numbers(item) for key, item in value.items()}
    return tuple(map(_as_numbers, value)) if isinstance(value, tuple) else value


for _name in _COMPARISONS:
    setattr(TimeIndex, f"__{_name}__", lambda self, other, _name=_name: self._compare(_name, other))
for _name in _ARITHMETIC:
    setattr(TimeIndex, f"__{_name}__", lambda self, other, _name=_name: self._arithmetic(_name, other, False))
    setattr(TimeIndex, f"__r{_name}__", lambda self, other, _name=_name: self._arithmetic(_name, other, True))


def _index(tensor: Tensor, index) -> Timed:
    """tensor[..., t, ...] at all steps."""
    if isinstance(tensor, Timed):
        raise TypeError("values at all steps of a vectorised loop are indexed by time again; index the whole tensor once")
    index = index if isinstance(index, tuple) else (index,)
    times = [i for i in index if isinstance(i, TimeIndex)]
    if len(times) != 1:
        raise TypeError(f"one vectorised time index at a time, as in x[:, t]; {ADVICE}")
    time = times[0]
    found = at_steps(tensor, index, lambda i: isinstance(i, TimeIndex), slice(time.start, time.stop))
    if not 0 <= time.start <= time.stop <= found[1]:
        raise IndexError(
            f"time {time.start}:{time.stop} is out of range for a dimension of size {found[1]} of a tensor of shape "
            f"{tuple(tensor.shape)}"
        )
    return found[0]
