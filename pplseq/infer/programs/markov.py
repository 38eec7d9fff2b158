"""``markov``, the loop over time, run step by step or once for all steps, and how messengers record what a program says in it.

What ``BlockedEnum`` and ``KalmanCollapse`` share: plates and scale around the factor, masks and values of all steps.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any, ClassVar

import pyro
import torch
from pyro.infer.inspect import TrackProvenance
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pplseq.distributions.state import broadcast_shapes
from pplseq.distributions.timed import Timed
from pplseq.infer.programs.loop_body import Body, asks_for_loop, first_value, values_of
from pplseq.infer.programs.time_index import ADVICE, TimeIndex
from pplseq.kernels import twice


# ------------------------------------------------------------------------------------------------ what messengers share
class ChainMessenger(Messenger):
    """A handler that records the sites of chains and eliminates them on exit.

    Attributes:
        vectorize: whether ``pplseq.markov`` may run a loop's body once for all steps.
        time_index: the vectorised index while such a body runs, else None. first_step: the number of a loop's first step.
        shows_all: whether it lets everything by.
        ran_vectorized: whether some loop's body was run for all steps. left: whether one was left in such a run, by an error.
        hidden, others: names of the sites that were eliminated, and of those that came by (which may be hidden ones).
        chains: name of each chain's first site -> the chain, after the program has run. state_names: its sites.
        how_chains_start: for who asks for a chain that there is not.
    """

    vectorize: bool = True
    time_index: TimeIndex | None = None
    first_step: int | None = None
    shows_all: bool = False
    ran_vectorized: bool = False
    left: bool = False
    how_chains_start: ClassVar[str]

    def __enter__(self):
        twice.refuse_jit()
        # pyro.render_model asks what depends on what: all sites are shown to it, and nothing is eliminated
        self.shows_all = any(isinstance(handler, TrackProvenance) for handler in _PYRO_STACK)
        self._recordings: list = []
        self.chains, self.time_index = Chains(self.how_chains_start), None
        self.state_names: dict[str, list[str]] = {}
        self.hidden, self.others = [], []
        self.ran_vectorized = self.left = False
        return super().__enter__()

    def _process_message(self, msg):
        if not self.shows_all:
            super()._process_message(msg)

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
            elif self.left and exc.args and isinstance(exc.args[0], str) and "vectorize=False" not in exc.args[0]:
                why = f"this was in a loop whose body stands for all steps at once; {ADVICE}"
                exc.args = (f"{exc.args[0]}\n{why}", *exc.args[1:])
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
        """Called after a body was run for all other steps; before, now: local variables around that run, now those that are
        read again."""

    def _check_start(self, msg: dict) -> None:
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
def markov(fn=None, history: int = 1, keep: bool = False, *, vectorize: bool = True) -> Any:
    """A drop-in for ``pyro.markov`` that ``BlockedEnum`` and ``KalmanCollapse`` may run once for all steps.

    Under such a handler the body runs twice: for the first step, and for a :class:`TimeIndex` that stands for all others.
    Where that might not be right the loop goes on step by step behind its first one: where the body has other sites than
    states and their observations; where it changes a variable from before the loop or a global one, or what stands in it
    (containers, arrays of up to 4 MB, attributes, an iterator's place), to anything but hidden states, reads what the step
    before it made, sets attributes, or draws random numbers; where the loop is not over the steps alone (``zip``,
    ``enumerate``); where ``poutine.condition`` or ``poutine.do`` has a value for one of the steps. What functions that a body
    calls keep to themselves cannot be seen, nor objects of other libraries; ``check_vectorizable`` compares. Everywhere
    else the loop is ``pyro.markov``'s.

    Args:
        fn: usually ``range(T)``; a function to decorate, or None for a context manager, are ``pyro.markov``'s, step by step.
        history: steps back a step may depend on; vectorised for 1 only.
        keep: whether branches may depend on each other, as in ``pyro.markov``; then step by step.
        vectorize: False to always run step by step.
    """
    if fn is None or callable(fn) or keep:
        return pyro.markov(fn, history=history, keep=keep)
    return _Loop(fn, history, vectorize)


class _Loop:
    """What ``markov`` returns; whoever asks for its iterator says whether that is the loop, or something like ``zip`` in it."""

    def __init__(self, iterable, history: int, vectorize: bool):
        self.arguments = iterable, history, vectorize

    def __iter__(self):
        return _steps(*self.arguments, asks_for_loop(sys._getframe(1)))


def _steps(iterable, history: int, vectorize: bool, is_direct: bool):
    handlers = [m for m in _PYRO_STACK if isinstance(m, ChainMessenger)]
    simple = isinstance(iterable, range) and iterable.step == 1 and len(iterable) > 1 and history == 1
    loop = pyro.markov(iterable, history=history)
    if not handlers or not all(h.vectorize and not h.shows_all for h in handlers) or not vectorize or not simple:
        yield from loop
        return
    body = Body(sys._getframe(1), handlers, iterable[0], is_direct)
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
        handler.time_index, handler.ran_vectorized, handler.left = index, True, True
    try:
        yield index
        for handler in handlers:
            handler.left = False
    finally:
        for handler in handlers:
            handler.time_index = None
        loop.close()
    for handler in handlers:
        handler.loop_ends(iterable[1:], index, before, body.left())
    others = body.other_sites()
    if others:
        raise ValueError(
            f"site {others[0]!r} in a vectorised loop is neither a hidden state nor an observation of one, and was not in the "
            "loop's first step; write pplseq.markov(..., vectorize=False)"
        )
