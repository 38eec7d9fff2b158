"""``markov``, the loop over time, run step by step or once for all steps, and how messengers record what a program says in it.

What ``BlockedEnum`` and ``KalmanCollapse`` share: plates and scale around the factor, masks and values of all steps.
"""

from __future__ import annotations

import functools
import operator
import re
import sys
from typing import Any, ClassVar

import pyro
import torch
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pplseq.distributions.state import broadcast_shapes
from pplseq.distributions.timed import Timed, at_steps
from pplseq.infer.programs.loop_body import Body, first_value, hash_to_store, values_of
from pplseq.kernels import twice

_ADVICE = "write pplseq.markov(..., vectorize=False) to run the loop step by step"
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
            raise TypeError(f"a vectorised time index has no format {spec!r} in names; write f'z_{{t}}', or {_ADVICE}")
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
            raise TypeError(f"a TimeIndex of step 0 and others has no truth value; {_ADVICE}")
        return True

    def _no_number(self):
        raise TypeError(f"a vectorised time index stands for many steps and is no single number; {_ADVICE}")

    __int__ = __float__ = __index__ = __complex__ = __round__ = _no_number

    def __hash__(self):
        return hash_to_store(object.__hash__(self), "a vectorised time index", _ADVICE)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", str(func))
        if func is Tensor.__getitem__:
            return _index(*args)
        if name.strip("_") in _IN_TENSORS:
            return func(*_as_numbers(args), **_as_numbers(kwargs or {}))
        raise TypeError(
            f"{name} on a vectorised time index is not supported: only x[:, t], comparisons, arithmetic and f'z_{{t}}' are; "
            f"{_ADVICE}"
        )


class _InNames(str):
    """``str(t)``: a part of a site's name, such as ``"z_" + str(t)``. Whoever reads it asks for a number that it is not."""

    __slots__ = ()

    def __hash__(self):
        return hash_to_store(str.__hash__(self), "the text of a vectorised time index", _ADVICE)


def _refuse(self, *args, **kwargs):
    raise TypeError(f"the text of a vectorised time index stands for many steps: it goes into names alone; {_ADVICE}")


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
        raise TypeError(f"one vectorised time index at a time, as in x[:, t]; {_ADVICE}")
    time = times[0]
    found = at_steps(tensor, index, lambda i: isinstance(i, TimeIndex), slice(time.start, time.stop))
    if not 0 <= time.start <= time.stop <= found[1]:
        raise IndexError(
            f"time {time.start}:{time.stop} is out of range for a dimension of size {found[1]} of a tensor of shape "
            f"{tuple(tensor.shape)}"
        )
    return found[0]


# ------------------------------------------------------------------------------------------------ what messengers share
class ChainMessenger(Messenger):
    """A handler that records the sites of chains and eliminates them on exit.

    Attributes:
        vectorize: whether ``pplseq.markov`` may run a loop's body once for all steps.
        time_index: the vectorised index while such a body runs, else None. first_step: the number of a loop's first step.
        hidden, others: names of the sites that were eliminated, and of those that came by (which may be hidden ones).
        chains: name of each chain's first site -> the chain, after the program has run. state_names: its sites.
        how_chains_start: for who asks for a chain that there is not.
    """

    vectorize: bool = True
    time_index: TimeIndex | None = None
    first_step: int | None = None
    how_chains_start: ClassVar[str]

    def __enter__(self):
        twice.refuse_jit()
        self._recordings: list = []
        self.chains, self.time_index = Chains(self.how_chains_start), None
        self.state_names: dict[str, list[str]] = {}
        self.hidden, self.others = [], []
        return super().__enter__()

    def hide(self, msg: dict) -> None:
        """Keeps a site from everything outside."""
        msg["done"] = msg["stop"] = True
        self.hidden.append(msg["name"])

    def _pyro_post_sample(self, msg):
        if not site_is_subsample(msg):
            self.others.append(msg["name"])  # but for those that are hidden

    def _pyro_post_param(self, msg):
        step = self.first_step if self.time_index is None else self.time_index
        if step is not None and re.search(rf"(?<!\d){step}(?!\d)", msg["name"]):
            self.others.append(msg["name"])  # one of each step, by its name

    def __exit__(self, exc_type, exc, traceback):
        super().__exit__(exc_type, exc, traceback)
        try:
            if exc_type is None:
                self._eliminate()
        finally:
            for recording in self._recordings:
                # states refer to their recording and its steps to states: left as it is, the cycle would keep a whole
                # step's graph alive until the garbage collector comes by
                recording.steps.clear()
            self._recordings = []

    def _eliminate(self) -> None:
        """Makes ``chains`` of what was recorded."""
        raise NotImplementedError

    @property
    def span(self) -> int | None:
        """The number of steps that the loop's body stands for, None for one step run by itself."""
        return None if self.time_index is None else len(self.time_index)

    def loop_begins(self) -> None:
        """Called before the first step of a loop that may run vectorised."""

    def first_step_ends(self, step: int, frame) -> bool:
        """Whether this handler can have all other steps at once."""
        return True

    def loop_ends(self, steps: range, index: TimeIndex, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Called after a body was run for all other steps; before, now: its local variables around that run."""

    def check_start(self, msg: dict) -> None:
        """Raises where a chain would start at every step of a vectorised loop."""
        if self.time_index is not None:
            raise ValueError(
                f"site {msg['name']!r} starts a new chain at every step of a vectorised loop; pass the previous state on, or "
                "write pplseq.markov(..., vectorize=False)"
            )

    def check_same_loop(self, msg: dict, step) -> None:
        """Raises where a state of a vectorised loop is observed outside of that loop."""
        if step.span is not None and self.span != step.span:
            raise ValueError(
                f"site {msg['name']!r} observes a state of a vectorised loop outside of that loop; write "
                "pplseq.markov(..., vectorize=False)"
            )

    @property
    def num_plates(self) -> int:
        """The plates around the chains that were recorded so far."""
        return max((len(recording.frames) for recording in self._recordings), default=0)

    def check_conditioned(self, msg: dict) -> None:
        """Raises where a handler outside of this one, which comes too late, has a value for a site that is eliminated here,
        or a replayed trace anywhere: a hidden state takes no value but an observed one.
        """
        place = _PYRO_STACK.index(self)
        index, parts, steps = self.time_index, [msg["name"]], range(0)
        if index is not None:
            parts, steps = msg["name"].split(f"{index}"), range(index.start, index.stop)
        for k, handler in enumerate(_PYRO_STACK):
            if k > place and (msg["is_observed"] or not isinstance(handler, ReplayMessenger)):
                continue  # it came first, and the site is what it says
            name = first_value(values_of(handler), parts, steps)
            if name is not None:
                raise ValueError(
                    f"site {name!r} has a value in {type(handler).__name__}, which {type(self).__name__} would pass over: give "
                    f"observed values as obs=..., or put the values inside: {type(self).__name__}()(poutine.condition(model, "
                    "data=...)), poutine.do likewise"
                )

    def __call__(self, fn):
        wrapped = super().__call__(fn)
        if not isinstance(fn, PyroModule):
            return wrapped

        # chains are computed when this handler exits, which is after the module's own context has closed; parameters
        # read then would never reach the trace, and SVI would silently never train them
        @functools.wraps(wrapped)
        def inside_module(*args, **kwargs):
            with fn._pyro_context:
                return wrapped(*args, **kwargs)

        return inside_module


class Chains(dict):
    """Name of a chain's first site -> chain. An unknown name is an error that tells those there are, and how chains start."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how

    def __missing__(self, name):
        raise KeyError(f"{name!r} is no chain's first site; found {', '.join(map(repr, self)) or 'none'}. {self.how}")


class _Frames(Messenger):
    """Puts the plates and the scale in which a chain lived around the factor that is emitted after they were left."""

    def __init__(self, frames: tuple, scale):
        super().__init__()
        self.frames, self.scale = frames, scale

    def _pyro_sample(self, msg):
        msg["cond_indep_stack"] = self.frames + msg["cond_indep_stack"]
        msg["scale"] = msg["scale"] * self.scale


def emit_factor(name: str, frames: tuple, scale, log_prob: Tensor) -> None:
    """``pyro.factor`` of a chain's log-likelihood, in its plates and with its scale."""
    with _Frames(frames, scale):
        pyro.factor(f"{name}__chain", log_prob)


def plates_of(msg: dict) -> tuple:
    """The plates in which a site stands."""
    return tuple(frame for frame in msg["cond_indep_stack"] if frame.vectorized)


def check_place(msg: dict, recording) -> None:
    """Raises unless a site has the plates and the scale of its chain."""
    if len(plates_of(msg)) != len(recording.frames):
        raise ValueError(
            f"site {msg['name']!r} must lie in the same plates as the first site of its chain, {recording.name!r}; for "
            "several observations a step, give one emission over a vector of them"
        )
    scale = msg["scale"]
    if scale is not recording.scale and bool(torch.as_tensor(scale != recording.scale).any()):
        raise ValueError(
            f"site {msg['name']!r} must have the scale of its chain, {recording.scale}, got {scale}; put poutine.scale "
            "around the whole loop"
        )


def plate_shape(frames: tuple, batch: torch.Size) -> torch.Size:
    """The part of a batch shape that lies in the chain's plates: what observations are expanded to."""
    dims = max((-frame.dim for frame in frames), default=0)
    return batch[len(batch) - dims :] if dims else torch.Size()


def says(mask) -> bool:
    """Whether a mask masks anything."""
    return mask is not None and mask is not True


def as_mask(mask, otherwise: bool, device) -> Tensor:
    """A mask as a tensor; False where there is nothing to mask."""
    if not otherwise:
        return torch.tensor(False, device=device)
    return mask if isinstance(mask, Tensor) else torch.as_tensor(True if mask is None else mask, device=device)


def stack_steps(steps: list, batch: torch.Size, part, event=(), like: Tensor | None = None) -> Tensor:
    """(T, *B, *event) from what each recorded step says; steps that say nothing get zeros (or ``like``'s fill)."""
    event = torch.Size(event)
    values = []
    for step in steps:
        value = part(step)
        if value is None:
            assert like is not None, "steps that say nothing need something to be filled with"
            fill = torch.zeros((), dtype=like.dtype, device=like.device) if like.dim() or isinstance(like, Timed) else like
            value = fill.expand(batch + event)
        has_time = isinstance(value, Timed)
        if isinstance(value, Timed):
            value = value.steps
        lead = value.shape[: value.dim() - len(event)]
        own = broadcast_shapes(lead[1:] if has_time else lead, batch)
        values.append((value, has_time, own, step.span))
    shape = broadcast_shapes(*(own for _, _, own, _ in values))
    full = []
    for value, has_time, _, span in values:
        if has_time:
            time, *rest = value.shape[: value.dim() - len(event)]
            value = value.reshape(time, *(1,) * (len(shape) - len(rest)), *rest, *event)
        full.append(value.expand(span or 1, *shape, *event))
    return full[0] if len(full) == 1 else torch.cat(full)


# ------------------------------------------------------------------------------------------------ the loop
def markov(iterable, history: int = 1, *, vectorize: bool = True):
    """A drop-in for ``pyro.markov`` that ``BlockedEnum`` and ``KalmanCollapse`` may run once for all steps.

    Under such a handler the body runs twice: for the first step, and for a :class:`TimeIndex` that stands for all others.
    Where that might not be right the loop goes on step by step behind its first one: where the body has other sites than
    states and their observations; where it changes a variable, container or array from before the loop to anything but a hidden
    state, advances an iterator, reads what the step before it made, or sets attributes or global variables; where the loop is
    not over the steps alone (``zip``, ``enumerate``); where ``poutine.condition`` or ``poutine.do`` has a value for one of the
    steps. What functions that a body calls keep to themselves cannot be seen; ``check_vectorizable`` compares. Everywhere
    else the loop is ``pyro.markov``'s.

    Args:
        iterable: usually ``range(T)``.
        history: steps back a step may depend on; vectorised for 1 only.
        vectorize: False to always run step by step.
    """
    handlers = [m for m in _PYRO_STACK if isinstance(m, ChainMessenger)]
    simple = isinstance(iterable, range) and iterable.step == 1 and len(iterable) > 1 and history == 1
    loop = pyro.markov(iterable, history=history)
    if not handlers or not all(h.vectorize for h in handlers) or not vectorize or not simple:
        yield from loop
        return
    body = Body(sys._getframe(1), handlers, iterable[0])
    loop: Any = iter(loop)
    for handler in handlers:
        handler.loop_begins()
    yield next(loop)
    for handler in handlers:
        handler.first_step = None
    alike = [handler.first_step_ends(iterable[0], body.frame) for handler in handlers]
    if not all(alike) or body.carries() or body.other_sites() or body.values_ahead(iterable):
        yield from loop
        return
    next(loop)
    index, before = TimeIndex(iterable[1], iterable[-1] + 1), dict(body.frame.f_locals)
    for handler in handlers:
        handler.time_index = index
    try:
        yield index
    finally:
        for handler in handlers:
            handler.time_index = None
        loop.close()
    for handler in handlers:
        handler.loop_ends(iterable[1:], index, before, body.frame.f_locals)
    others = body.other_sites()
    if others:
        raise ValueError(
            f"site {others[0]!r} in a vectorised loop is neither a hidden state nor an observation of one, and was not in the "
            "loop's first step; write pplseq.markov(..., vectorize=False)"
        )
