"""``BlockedEnum``: the messenger that sums out discrete hidden states, one chain at a time."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field

import pyro
import torch
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pplseq.distributions.state import Belief, StateCategorical, StateEmission, StateVar, broadcast_shapes
from pplseq.infer.chain import Chain, build_chain
from pplseq.infer.eager_chain import EagerChain


@dataclass
class _Step:
    """What the program said about one step (or, vectorised, about all steps but the first)."""

    name: str
    state: StateCategorical
    mask: Tensor | bool | None
    value: Tensor | None  # an observed state
    span: int | None  # the number of steps a vectorised body stands for, None for one step run by itself
    emission: StateEmission | None = None
    obs: Tensor | None = None
    obs_mask: Tensor | bool | None = None


@dataclass
class _Recording:
    """One chain while the program runs."""

    name: str
    start: Belief | None
    frames: tuple
    scale: float | Tensor
    steps: list[_Step] = field(default_factory=list)


class _Frames(Messenger):
    """Puts the plates and the scale in which a chain lived around the factor that is emitted after they were left."""

    def __init__(self, frames: tuple, scale):
        super().__init__()
        self.frames, self.scale = frames, scale

    def _pyro_sample(self, msg):
        msg["cond_indep_stack"] = self.frames + msg["cond_indep_stack"]
        msg["scale"] = msg["scale"] * self.scale


class BlockedEnum(Messenger):
    """Sums out the discrete hidden states of a program exactly, with one kernel per chain.

    State sites (``pyro.sample("z_0", transition())``, ``pyro.sample("z_1", transition(z))``) return symbols; the sites and
    their emissions are hidden from everything outside, and on exit each chain becomes one ``pyro.factor`` of its
    log-likelihood, in the plates and with the scale of its first site. Afterwards ``chains`` maps the name of each chain's
    first site to its :class:`~pplseq.infer.chain.Chain`.

    An observed state site (``obs=z``) fixes the state; negative ids mean unknown, so labels may be partial. An emission
    that is masked (``poutine.mask``, ``obs_mask``) or not observed is a missing observation; a mask around both sites is
    padding. A state site with tensor code (``dist.Categorical(A[z])``) is enumerated over ``infer={"support": ids}``.

    Args:
        vectorize: let ``pplseq.markov`` run the loop's body once for all steps.
        check: raise ValueError for impossible rows.
        factor: False where only ``chains`` are wanted: no factor is emitted, and no scan run until they are asked.

    Example::

        with BlockedEnum() as posterior:
            model(x)
        posterior.chains["z_0"].viterbi()
    """

    def __init__(self, vectorize: bool = True, check: bool = True, factor: bool = True):
        super().__init__()
        self.vectorize, self.check, self.factor = vectorize, check, factor
        self.time_index = None
        self.chains: dict[str, Chain] = {}
        self.state_names: dict[str, list[str]] = {}

    def __enter__(self):
        self._recordings: list[_Recording] = []
        self._eager: EagerChain | None = None
        self.chains, self.state_names, self.time_index = {}, {}, None
        return super().__enter__()

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

    # ---------------------------------------------------------------- recording
    def _pyro_sample(self, msg):
        fn = msg["fn"]
        if isinstance(fn, StateCategorical):
            if isinstance(fn.previous, StateVar) or fn.previous is None or isinstance(fn.previous, Belief):
                self._record_state(msg)
            elif msg["is_observed"]:
                return  # observed state after observed states given as tensors: an ordinary site
            else:
                raise TypeError(
                    f"site {msg['name']!r}: its previous state is a tensor, but under BlockedEnum states are symbols; "
                    "start the chain with transition(None) and pass on what pyro.sample returns"
                )
        elif isinstance(fn, StateEmission) and isinstance(fn.state, StateVar):
            self._record_emission(msg)
        elif "support" in msg["infer"] and not msg["is_observed"]:
            if self.time_index is not None:
                raise ValueError(
                    f"site {msg['name']!r}: states in tensor code need the loop run step by step; write "
                    "pplseq.markov(..., vectorize=False) or pyro.markov"
                )
            if self._eager is None:
                self._eager = EagerChain(msg)
            self._eager.enumerate_state(msg)
        elif self._eager is not None and self._eager.depends(msg):
            self._eager.add_observation(msg)
        else:
            return
        msg["done"] = msg["stop"] = True  # hidden from everything outside

    def _record_state(self, msg):
        fn: StateCategorical = msg["fn"]
        if isinstance(fn.previous, StateVar):
            recording = fn.previous.chain
            _check_place(msg, recording)
            if fn.previous.index != len(recording.steps) - 1:
                raise ValueError(
                    f"site {msg['name']!r} does not follow the last state of its chain; chains must be first-order Markov "
                    "(use pplseq.infer.contraction for other structures)"
                )
        else:
            if self.time_index is not None:
                raise ValueError(
                    f"site {msg['name']!r} starts a new chain at every step of a vectorised loop; pass the previous state on, "
                    "or write pplseq.markov(..., vectorize=False)"
                )
            frames = tuple(frame for frame in msg["cond_indep_stack"] if frame.vectorized)
            recording = _Recording(msg["name"], fn.previous, frames, msg["scale"])
            self._recordings.append(recording)
        span = None if self.time_index is None else len(self.time_index)
        value = msg["value"] if msg["is_observed"] else None
        recording.steps.append(_Step(msg["name"], fn, msg["mask"], value, span))
        msg["value"] = StateVar(recording, len(recording.steps) - 1, fn.batch_shape)

    def _record_emission(self, msg):
        fn: StateEmission = msg["fn"]
        step = fn.state.chain.steps[fn.state.index]
        if step.span is not None and (self.time_index is None or len(self.time_index) != step.span):
            raise ValueError(
                f"site {msg['name']!r} observes a state of a vectorised loop outside of that loop; write "
                "pplseq.markov(..., vectorize=False)"
            )
        _check_place(msg, fn.state.chain)
        if not msg["is_observed"]:  # summed out: its factor is one
            msg["value"] = torch.zeros(fn.batch_shape + fn.event_shape, dtype=torch.long)
            step.emission = step.emission or fn
            return
        if step.obs is not None:
            raise ValueError(
                f"site {msg['name']!r} is a second observation of state {step.name!r}; give one emission that covers both"
            )
        step.emission, step.obs, step.obs_mask = fn, msg["value"], msg["mask"]

    # ---------------------------------------------------------------- elimination
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
            self._recordings, self._eager = [], None

    def _eliminate(self) -> None:
        for recording in self._recordings:
            with _module_context(recording):
                chain = self.chains[recording.name] = self._lower(recording)
                # parameters are read in any case: here, in the program's own context
                result = chain.log_prob() if self.factor else chain.factors
            self.state_names[recording.name] = [step.name for step in recording.steps]
            if self.factor:
                self._emit(recording.name, recording.frames, recording.scale, result)
        if self._eager is not None:
            chain = self.chains[self._eager.name] = self._eager.lower(self.check)
            self.state_names[self._eager.name] = self._eager.state_names
            if self.factor:
                self._emit(self._eager.name, self._eager.frames, self._eager.scale, chain.log_prob())

    def _emit(self, name: str, frames: tuple, scale, log_prob: Tensor) -> None:
        with _Frames(frames, scale):
            pyro.factor(f"{name}__chain", log_prob)

    def _lower(self, recording: _Recording) -> Chain:
        steps = recording.steps
        transition = steps[0].state.transition
        emissions = [step.emission for step in steps if step.emission is not None]
        if not emissions:
            raise ValueError(f"chain {recording.name!r} has no emission site; nothing was observed and nothing depends on it")
        emission = emissions[0].emission
        if any(s.state.transition is not transition for s in steps) or any(e.emission is not emission for e in emissions):
            raise ValueError(
                f"chain {recording.name!r}: its steps use different transition or emission objects; make them once before "
                "the loop and call them in it"
            )
        batch = broadcast_shapes(steps[0].state.batch_shape, emissions[0].batch_shape)
        plates = _plate_shape(recording.frames, batch)
        stack = functools.partial(_stack, steps, plates)
        like = next((step.obs for step in steps if step.obs is not None), None)
        event = emission.event_shape
        obs = stack(lambda s: s.obs, event=event, like=torch.zeros((), dtype=torch.long) if like is None else like)
        seen = None
        if any(step.obs is None for step in steps) or any(_says(step.obs_mask) for step in steps):
            seen = stack(lambda s: _as_mask(s.obs_mask, s.obs is not None, obs.device))
        valid = None
        if any(_says(step.mask) for step in steps):
            valid = stack(lambda s: _as_mask(s.mask, True, obs.device))
        states = None
        if any(step.value is not None for step in steps):
            states = stack(lambda s: s.value, like=torch.tensor(-1, device=obs.device))
        inputs = None
        if any(step.state.inputs is not None for step in steps):
            inputs = self._inputs(recording, plates)
        return build_chain(
            transition, emission, obs, valid=valid, seen=seen, states=states, start=recording.start, inputs=inputs,
            check=self.check,
        )  # fmt: skip

    def _inputs(self, recording: _Recording, batch: torch.Size) -> Tensor:
        steps, dims = recording.steps, recording.steps[0].state.transition.input_dims
        like = next(step.state.inputs for step in steps if step.state.inputs is not None)
        event = like.shape[like.dim() - dims :]
        if any(step.state.inputs is None for step in steps[1:]):
            raise ValueError(f"chain {recording.name!r}: inputs are given at some steps and not at others")
        return _stack(steps, batch, lambda s: s.state.inputs, event=event, like=like)


def _check_place(msg: dict, recording: _Recording) -> None:
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


def _plate_shape(frames: tuple, batch: torch.Size) -> torch.Size:
    """The part of a batch shape that lies in the chain's plates: what observations are expanded to."""
    dims = max((-frame.dim for frame in frames), default=0)
    return batch[len(batch) - dims :] if dims else torch.Size()


def _says(mask) -> bool:
    return mask is not None and mask is not True


def _as_mask(mask, otherwise: bool, device) -> Tensor:
    if not otherwise:
        return torch.tensor(False, device=device)
    return torch.as_tensor(True if mask is None else mask, device=device)


def _stack(steps: list[_Step], batch: torch.Size, part, event=(), like: Tensor | None = None) -> Tensor:
    """(T, *B, *event) from what each recorded step says; steps that say nothing get zeros (or ``like``'s fill)."""
    event = torch.Size(event)
    values = []
    for step in steps:
        value = part(step)
        if value is None:
            fill = like if like.dim() == 0 else torch.zeros((), dtype=like.dtype, device=like.device)
            value = fill.expand(*batch, *event)
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


@contextlib.contextmanager
def _module_context(recording: _Recording):
    """Opens the contexts of specs that are PyroModules, whose parameters are read only now (see ``__call__``)."""
    with contextlib.ExitStack() as stack:
        for step in recording.steps[:1]:
            for spec in (step.state.transition, step.emission.emission if step.emission is not None else None):
                if isinstance(spec, PyroModule):
                    stack.enter_context(spec._pyro_context)
        yield
