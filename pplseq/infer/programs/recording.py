"""What the messengers that record chains share: plates and scale around the factor, masks and values of all steps."""

from __future__ import annotations

import functools

import pyro
import torch
from pyro.nn import PyroModule
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pplseq.distributions.state import broadcast_shapes


class ChainMessenger(Messenger):
    """A handler that records the sites of chains and eliminates them on exit.

    Attributes:
        vectorize: whether ``pplseq.markov`` may run a loop's body once for all steps.
        time_index: the vectorised index while such a body runs, else None.
    """

    vectorize: bool = True
    time_index = None

    _recordings: list

    @property
    def num_plates(self) -> int:
        """The plates around the chains that were recorded so far."""
        return max((len(recording.frames) for recording in self._recordings), default=0)

    def check_conditioned(self, msg: dict) -> None:
        """Raises where ``pyro.condition``, ``pyro.do`` or a replayed trace has a value for a site that is eliminated here.

        Handlers outside of this one come too late, and no handler knows the name of many steps at once.
        """
        if msg["is_observed"]:
            return
        for handler in _PYRO_STACK:
            values = handler.trace if isinstance(handler, ReplayMessenger) else None
            if isinstance(handler, ConditionMessenger | DoMessenger):
                values = handler.data
            if not values:
                continue
            name = next((name for name in self._step_names(msg["name"]) if name in values), None)
            if name is not None:
                raise ValueError(
                    f"site {name!r} has a value in {type(handler).__name__}, which {type(self).__name__} would pass over: give "
                    "observed values as obs=..., or condition the program inside of this handler with "
                    "markov(..., vectorize=False)"
                )

    def _step_names(self, name: str) -> list[str]:
        index = self.time_index
        if index is None or f"{index}" not in name:
            return [name]
        return [name.replace(f"{index}", str(t)) for t in range(index.start, index.stop)]

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


def check_place(msg: dict, recording) -> None:
    """Raises unless a site has the plates and the scale of its chain."""
    if sum(frame.vectorized for frame in msg["cond_indep_stack"]) != len(recording.frames):
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
    return torch.as_tensor(True if mask is None else mask, device=device)


def stack_steps(steps: list, batch: torch.Size, part, event=(), like: Tensor | None = None) -> Tensor:
    """(T, *B, *event) from what each recorded step says; steps that say nothing get zeros (or ``like``'s fill)."""
    event = torch.Size(event)
    values = []
    for step in steps:
        value = part(step)
        if value is None:
            fill = like if like.dim() == 0 else torch.zeros((), dtype=like.dtype, device=like.device)
            value = fill.expand(batch + event)
        has_time = step.span is not None and (
            getattr(value, "time_first", False) or value.dim() > len(batch) + len(event)
        )
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
