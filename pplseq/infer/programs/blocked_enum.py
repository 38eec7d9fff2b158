"""``BlockedEnum``: the messenger that sums out discrete hidden states, one chain at a time."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field

import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pplseq.distributions.state import Belief, StateCategorical, StateEmission, StateVar, broadcast_shapes
from pplseq.infer.discrete.build import build_chain
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.programs.discrete_hmm import ChainDiscreteHMM
from pplseq.infer.programs.enumerated import EagerChain
from pplseq.infer.programs.factors.chains import emit_components, marked_chains
from pplseq.infer.programs.factors.elimination import eliminate
from pplseq.infer.programs.factors.enumeration import PLATE_DIMS, Enumeration
from pplseq.infer.programs.factors.unrolling import Loop
from pplseq.infer.programs.markov import (
    ChainMessenger,
    as_mask,
    check_place,
    emit_factor,
    plate_shape,
    plates_of,
    says,
    stack_steps,
)


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
    cut: bool = False  # its first state has another value by poutine.do: nothing depends on the chain
    steps: list[_Step] = field(default_factory=list)


class BlockedEnum(ChainMessenger):
    """Sums out the discrete hidden states of a program exactly, with one kernel per chain.

    State sites (``pyro.sample("z_0", transition())``, ``pyro.sample("z_1", transition(z))``) return symbols; the sites and
    their emissions are hidden from everything outside, and on exit each chain becomes one ``pyro.factor`` of its
    log-likelihood, in the plates and with the scale of its first site. Afterwards ``chains`` maps the name of each chain's
    first site to its :class:`~pplseq.infer.discrete.chain.Chain`.

    An observed state site (``obs=z``) fixes the state; negative ids mean unknown, so labels may be partial. An emission
    that is masked (``poutine.mask``, ``obs_mask``) or not observed is a missing observation; a mask around both sites is
    padding. A state site with tensor code (``dist.Categorical(A[z])``) is enumerated over ``infer={"support": ids}``.

    Sites in tensor code marked ``infer={"enumerate": "parallel"}``, as for ``TraceEnum_ELBO``, are enumerated by Pyro's own
    rules, and whatever hangs together is summed out along time in one go: chains, factorial chains, chains of a higher order,
    trees. ``pyro.markov`` must say how far back a step looks. Chains among these are in ``chains`` too, by the name of each
    variable's first site: a :class:`~pplseq.infer.programs.factors.chains.MarkedChain`.

    Args:
        vectorize: let ``pplseq.markov`` run the loop's body once for all steps.
        check: raise ValueError for impossible rows.
        factor: False where only ``chains`` are wanted: no factor is emitted, and no scan run until they are asked.
        max_plate_nesting: how many dimensions plates take, for marked sites; room for 8 if it is not said.

    Example::

        with BlockedEnum() as posterior:
            model(x)
        posterior.chains["z_0"].viterbi()
    """

    how_chains_start = (
        "A chain starts at an unobserved transition(None), or transition(belief); of marked sites that form none, "
        "TraceBlockedEnum_ELBO.compute_marginals tells"
    )

    def __init__(
        self, vectorize: bool = True, check: bool = True, factor: bool = True, max_plate_nesting: int | None = None
    ):
        super().__init__()
        self.vectorize, self.check, self.factor = vectorize, check, factor
        self.max_plate_nesting = PLATE_DIMS if max_plate_nesting is None else max_plate_nesting
        self.enumeration: Enumeration | None = None
        self.guided = False  # whether values may come from a guide, as in an ELBO
        self.chains: dict[str, Chain] = {}
        self.state_names = {}

    def __enter__(self):
        self._eager: EagerChain | None = None
        self._loop: Loop | None = None
        outer = any(isinstance(handler, EnumMessenger) for handler in _PYRO_STACK)  # which takes marked sites itself
        entered = super().__enter__()
        self.enumeration = None if outer or self.shows_all else Enumeration(-1 - self.max_plate_nesting, self.guided)
        if self.enumeration is not None:
            self.enumeration.__enter__()
        return entered

    # ---------------------------------------------------------------- loops with marked sites
    def loop_begins(self) -> None:
        self._loop = None if self.enumeration is None else Loop(self.enumeration)

    def first_step_ends(self, step, frame) -> bool:
        if self._loop is None or not self._loop.first_step_ends(step, frame):
            return self._loop is None
        self.hidden += [site.name for site in self._loop.first]
        return True

    def loop_ends(self, steps, index, before, now) -> None:
        if self._loop is not None:
            self.hidden += self._loop.end(steps[0] - 1, steps, f"{index}", before, now)
            self._loop = None

    # ---------------------------------------------------------------- recording
    def _pyro_sample(self, msg):
        fn = msg["fn"]
        if isinstance(fn, StateCategorical | StateEmission):
            self.check_conditioned(msg)
        if isinstance(fn, StateCategorical):
            if isinstance(fn.previous, Tensor) and msg["is_observed"]:
                return  # observed state after observed states given as tensors: an ordinary site
            if isinstance(fn.previous, Tensor):  # a chain that starts behind a state that is known
                msg["fn"] = StateCategorical(fn.transition, _known(fn.previous, fn), fn.inputs, fn.batch_shape)
            self._record_state(msg)
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
            if type(fn) is dist.DiscreteHMM and msg["is_observed"]:
                msg["fn"] = ChainDiscreteHMM.of(fn)
            return
        self.hide(msg)

    def _record_state(self, msg):
        fn: StateCategorical = msg["fn"]
        if isinstance(fn.previous, StateVar):
            recording = fn.previous.chain
            check_place(msg, recording)
            if fn.previous.index != len(recording.steps) - 1:
                raise ValueError(
                    f"site {msg['name']!r} does not follow the last state of its chain; chains must be first-order Markov "
                    "(use pplseq.infer.programs.contraction for other structures)"
                )
        else:
            self._check_start(msg)
            recording = _Recording(msg["name"], fn.previous, plates_of(msg), msg["scale"])
            recording.cut = msg.get("_intervener_id") is not None
            self._recordings.append(recording)
        value = msg["value"] if msg["is_observed"] else None
        recording.steps.append(_Step(msg["name"], fn, msg["mask"], value, self.span))
        msg["value"] = StateVar(recording, len(recording.steps) - 1, fn.batch_shape)

    def _record_emission(self, msg):
        fn: StateEmission = msg["fn"]
        step = fn.state.chain.steps[fn.state.index]
        self.check_same_loop(msg, step)
        check_place(msg, fn.state.chain)
        if not msg["is_observed"]:  # summed out: its factor is one
            device = step.state.transition.device
            msg["value"] = torch.zeros(fn.batch_shape + fn.event_shape, dtype=torch.long, device=device)
            step.emission = step.emission or fn
            return
        if step.obs is not None:
            raise ValueError(
                f"site {msg['name']!r} is a second observation of state {step.name!r}; give one emission that covers both"
            )
        step.emission, step.obs, step.obs_mask = fn, msg["value"], msg["mask"]

    # ---------------------------------------------------------------- elimination
    def __exit__(self, exc_type, exc, traceback):
        if self.enumeration is not None:
            self.enumeration.__exit__(exc_type, exc, traceback)
        try:
            super().__exit__(exc_type, exc, traceback)
        finally:
            self._eager = None
            if self.enumeration is not None:
                self.enumeration.memo.clear()  # tables refer to it and it to them

    def _eliminate(self) -> None:
        for recording in self._recordings:
            if recording.cut and all(step.emission is None for step in recording.steps):
                continue
            with _module_context(recording):
                chain = self.chains[recording.name] = self._lower(recording)
                chain.prepare()  # parameters are read in any case: here, in the program's own context
                log_prob = chain.log_prob() if self.factor else None
            self.state_names[recording.name] = [step.name for step in recording.steps]
            if log_prob is not None and self.enumeration is not None and log_prob.dim() > self.enumeration.nesting:
                self.enumeration.record_factor(recording.name, log_prob, recording.frames, recording.scale)
            elif log_prob is not None:
                emit_factor(recording.name, recording.frames, recording.scale, log_prob)
        if self._eager is not None:
            chain = self.chains[self._eager.name] = self._eager.lower(self.check)
            self.state_names[self._eager.name] = self._eager.state_names
            if self.factor:
                emit_factor(self._eager.name, self._eager.frames, self._eager.scale, chain.log_prob())
        if self.enumeration is not None and self.enumeration.variables:
            found = eliminate(self.enumeration)
            self.chains.update(marked_chains(found, self.check))
            if self.factor:
                emit_components(found)

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
        masks = [mask for step in steps for mask in (step.mask, step.obs_mask) if isinstance(mask, Tensor)]
        plates = plate_shape(recording.frames, batch)
        wide = [mask.shape for mask in masks if mask.dim() > len(plates)]  # by sites that are enumerated in tensor code
        plates = broadcast_shapes(plates, *wide)
        stack = functools.partial(stack_steps, steps, plates)
        like = next((step.obs for step in steps if step.obs is not None), None)
        event = emission.event_shape
        if like is None:
            like = torch.zeros((), dtype=torch.long, device=transition.device)
        obs = stack(lambda s: s.obs, event=event, like=like)
        seen = None
        if any(step.obs is None for step in steps) or any(says(step.obs_mask) for step in steps):
            seen = stack(lambda s: as_mask(s.obs_mask, s.obs is not None, obs.device))
        valid = None
        if any(says(step.mask) for step in steps):
            valid = stack(lambda s: as_mask(s.mask, True, obs.device))
        states = None
        if any(step.value is not None for step in steps):
            states = stack(lambda s: s.value, like=torch.tensor(-1, device=obs.device))
        inputs = None
        if any(step.state.inputs is not None for step in steps):
            inputs = self._inputs(recording, plates)
        emission_inputs = None
        if getattr(emission, "takes_inputs", False):
            inputs_of = [emission.inputs for emission in emissions]
            event_inputs = inputs_of[0].shape[inputs_of[0].dim() - emission.input_dims :]
            emission_inputs = stack(
                lambda s: None if s.emission is None else s.emission.inputs, event=event_inputs, like=inputs_of[0]
            )
        return build_chain(
            transition, emission, obs, valid=valid, seen=seen, states=states, start=recording.start, inputs=inputs,
            emission_inputs=emission_inputs, check=self.check,
        )  # fmt: skip

    def _inputs(self, recording: _Recording, batch: torch.Size) -> Tensor:
        steps, dims = recording.steps, recording.steps[0].state.transition.input_dims
        like = next(step.state.inputs for step in steps if step.state.inputs is not None)
        event = like.shape[like.dim() - dims :]
        if any(step.state.inputs is None for step in steps[1:]):
            raise ValueError(f"chain {recording.name!r}: inputs are given at some steps and not at others")
        return stack_steps(steps, batch, lambda s: s.state.inputs, event=event, like=like)


def _known(state: Tensor, fn: StateCategorical) -> Belief:
    """A state before ``fn`` that is known, as a belief."""
    ids = state.expand(fn.batch_shape).unsqueeze(-1)
    initial = getattr(fn.transition, "initial", None)
    dtype = initial.dtype if isinstance(initial, Tensor) else torch.get_default_dtype()
    return Belief(ids, torch.zeros(ids.shape, dtype=dtype, device=ids.device))


@contextlib.contextmanager
def _module_context(recording: _Recording):
    """Opens the contexts of specs that are PyroModules, whose parameters are read only now (see ``__call__``)."""
    with contextlib.ExitStack() as stack:
        for step in recording.steps[:1]:
            for spec in (step.state.transition, step.emission.emission if step.emission is not None else None):
                if isinstance(spec, PyroModule):
                    stack.enter_context(spec._pyro_context)
        yield


def no_guide(*args, **kwargs) -> None:
    """The guide of a model whose only latent sites are hidden states."""
