"""``markov``: the loop over time, run step by step or, under ``BlockedEnum``, once for all steps."""

from __future__ import annotations

import operator

import pyro
import torch
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

_COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


class TimeIndex:
    """Stands for t = start, ..., stop - 1 all at once; time goes to the left of every plate dimension.

    It works as an index (``x[:, t]``), in comparisons with tensors (``t < lengths``), with integers added or subtracted
    (``x[:, t - 1]``) and in names (``f"z_{t}"``). Anything else raises TypeError.
    """

    __slots__ = ("start", "stop")

    def __init__(self, start: int, stop: int):
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __format__(self, spec: str) -> str:
        return f"{self.start}:{self.stop}"

    def __repr__(self) -> str:
        return f"TimeIndex({self.start}, {self.stop})"

    def __str__(self) -> str:
        return format(self)

    def __add__(self, other: int) -> TimeIndex:
        if not isinstance(other, int):
            raise TypeError(f"a TimeIndex takes integers only, got {type(other).__name__}; write pplseq.markov(..., "
                            "vectorize=False) for other arithmetic on t")  # fmt: skip
        return TimeIndex(self.start + other, self.stop + other)

    __radd__ = __add__

    def __sub__(self, other: int) -> TimeIndex:
        return self + (-other)

    def steps(self, dims: int, device=None) -> Tensor:
        """(T, 1, ..., 1) the step numbers, left of ``dims`` dimensions."""
        return torch.arange(self.start, self.stop, device=device).reshape((-1,) + (1,) * dims)

    def _compare(self, name: str, other):
        if isinstance(other, Tensor):
            dims = max(other.dim(), _plate_depth())
            return mark_time_first(_COMPARISONS[name](self.steps(dims, other.device), other))
        raise TypeError(
            f"a TimeIndex stands for many steps and cannot be compared with {other!r} in Python; compare with a tensor, "
            "use torch.where, or write pplseq.markov(..., vectorize=False)"
        )

    def __bool__(self):
        raise TypeError("a TimeIndex stands for many steps and has no truth value; use pplseq.markov(..., vectorize=False)")

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", str(func))
        if func is Tensor.__getitem__:
            return _index(*args)
        operation = name.strip("_")
        if operation in _COMPARISONS and len(args) == 2 and isinstance(args[1], TimeIndex):
            return args[1]._compare(_MIRRORED[operation], args[0])
        raise TypeError(
            f"{name} on a vectorised time index is not supported: only x[:, t], t < lengths, t + 1 and f'z_{{t}}' are; "
            "write pplseq.markov(..., vectorize=False) to run the loop step by step"
        )


for _name in _COMPARISONS:
    setattr(TimeIndex, f"__{_name}__", lambda self, other, _name=_name: self._compare(_name, other))


def _plate_depth() -> int:
    """How many dimensions the plates around this point take."""
    plates = (m for m in _PYRO_STACK if isinstance(m, IndepMessenger) and m.dim is not None)
    return max((-plate.dim for plate in plates), default=0)


def mark_time_first(value: Tensor) -> Tensor:
    """Notes on a tensor that its first dimension is time: one that all rows share has no dimension for them."""
    value.time_first = True
    return value


def _index(tensor: Tensor, index) -> Tensor:
    """tensor[..., t, ...] with the time axis moved to the front."""
    index = index if isinstance(index, tuple) else (index,)
    times = [i for i in index if isinstance(i, TimeIndex)]
    others = [i for i in index if not isinstance(i, (TimeIndex, slice, int)) and i is not Ellipsis]
    if len(times) > 1 or len(others) > 1 or any(not _picks_rows(i) for i in others):
        raise TypeError(
            "only slices, integers and one tensor of row numbers may stand beside a vectorised time index, as in x[:, t]"
        )
    position = next(k for k, i in enumerate(index) if isinstance(i, TimeIndex))
    time, rest = index[position], index[:position] + index[position + 1 :]
    if any(i is Ellipsis for i in index[:position]):
        position = tensor.dim() - len(index) + position
    if not 0 <= time.start <= time.stop <= tensor.shape[position]:
        raise IndexError(
            f"time {time.start}:{time.stop} is out of range for dimension {position} of a tensor of shape "
            f"{tuple(tensor.shape)}"
        )
    return mark_time_first(tensor.movedim(position, 0)[(slice(time.start, time.stop), *rest)])


def _picks_rows(index) -> bool:
    return isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.int64


def markov(iterable, history: int = 1, *, vectorize: bool = True):
    """A drop-in for ``pyro.markov`` that ``BlockedEnum`` and ``KalmanCollapse`` may run once for all steps.

    Under such a handler the body runs twice: for the first step, and for a :class:`TimeIndex` that stands
    for all others. The body may then carry nothing but the hidden state from step to step; ``check_vectorizable`` finds
    out. Everywhere else, and in several plates, it runs step by step, as ``pyro.markov`` does.

    Args:
        iterable: usually ``range(T)``.
        history: steps back a step may depend on; vectorised for 1 only.
        vectorize: False to always run step by step.
    """
    from pplseq.infer.programs.recording import ChainMessenger

    handlers = [m for m in _PYRO_STACK if isinstance(m, ChainMessenger)]
    simple = isinstance(iterable, range) and iterable.step == 1 and len(iterable) > 1 and history == 1
    if not handlers or not all(h.vectorize for h in handlers) or not vectorize or not simple:
        yield from pyro.markov(iterable, history=history)
        return
    yield iterable[0]
    if any(handler.num_plates > 1 for handler in handlers):
        # in two plates a tensor of the inner one alone, indexed by time, looks like one of the outer plate
        yield from iterable[1:]
        return
    index = TimeIndex(iterable[1], iterable[-1] + 1)
    for handler in handlers:
        handler.time_index = index
    try:
        yield index
    finally:
        for handler in handlers:
            handler.time_index = None
