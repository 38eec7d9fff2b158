"""``KalmanCollapse``: the messenger that integrates out Gaussian hidden states, one chain at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions import MultivariateNormal
from pyro.infer import Trace_ELBO
from pyro.poutine.indep_messenger import CondIndepStackFrame

from pplseq.distributions.affine import GaussianVar
from pplseq.distributions.gaussian_types import GaussianBelief
from pplseq.distributions.linear_gaussian import LinearEmission, LinearGaussian
from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.infer.programs.gaussian_lowering import Observation, Recording, Step, chain_steps, lower
from pplseq.infer.programs.gaussian_sites import AffineSite, covariance_of, read_site
from pplseq.infer.programs.markov import ChainMessenger, check_place, emit_factor, plates_of
from pplseq.infer.programs.time_index import TimeIndex


class KalmanCollapse(ChainMessenger):
    """Integrates the Gaussian hidden states of a program out exactly: one Kalman filter per chain.

    A chain begins at a hidden site with a :class:`LinearGaussian` whose state is None, a number or a ``GaussianBelief``, or
    at a ``MultivariateNormal`` site marked ``infer={"collapse": True}``. Its site returns a symbol; sites whose mean is affine
    in it (``LinearGaussian(x, A, noise)``, ``dist.MultivariateNormal(x @ A.T, Q)``, ``dist.Normal(x @ C.T, s).to_event(1)``) go
    on with the chain, or observe it. All are hidden from everything outside, and on exit each chain becomes one
    ``pyro.factor`` of its log-likelihood, in the plates and with the scale of its first site. Afterwards ``chains`` maps the
    name of each chain's first site to its :class:`~pplseq.infer.gaussian.chain.GaussianChain`.

    A state may have several observations. One that is masked (``poutine.mask``, ``obs_mask``) or not observed is missing; a
    mask around all sites of a step is padding. ``pyro.deterministic`` of a state is left out: it has no value here.

    Args:
        vectorize: let ``pplseq.markov`` run the loop's body once for all steps.
        tol: error of the log-likelihood, in nats an observed number, for which the filter may be taken to be in its steady
            state. None: when the change is lost in rounding, so that results are exact to the precision of the dtype; 0: never.
        factor: False where only ``chains`` are wanted.

    Example::

        with KalmanCollapse() as posterior:
            model(y)
        posterior.chains["z_0"].smoothed_states().means
    """

    how_chains_start = (
        "A chain starts at an unobserved LinearGaussian whose state is None, or at a MultivariateNormal with "
        "infer={'collapse': True}"
    )

    def __init__(self, vectorize: bool = True, tol: float | None = None, factor: bool = True):
        super().__init__()
        self.vectorize, self.tol, self.factor = vectorize, tol, factor
        self.chains: dict[str, GaussianChain] = {}
        self.state_names = {}

    # ---------------------------------------------------------------- recording
    def _pyro_sample(self, msg):
        fn = msg["fn"]
        if msg["infer"].get("_deterministic") and isinstance(msg["value"], GaussianVar):
            self.hide(msg)  # a note for the trace, of what has no value here
            return
        site = read_site(msg["name"], fn)
        if site is not None or isinstance(fn, LinearGaussian):
            self.check_conditioned(msg)
        if site is not None:
            var, read = site
            if self._is_rest(msg, var):
                msg["value"] = var.chain.zero.new_zeros(fn.batch_shape + fn.event_shape)
            elif msg["is_observed"] or read is None or read.scalar:
                self._record_observation(msg, var, read)
            else:  # a state, or an observation that is missing: what depends on it will tell
                self._record_step(msg, var, read)
        elif not msg["is_observed"] and (isinstance(fn, LinearGaussian) or msg["infer"].get("collapse")):
            self._record_start(msg)
        else:
            return
        self.hide(msg)

    def _is_rest(self, msg, var: GaussianVar) -> bool:
        """Whether a site stands for what ``obs_mask`` hides: Pyro makes two sites of one then, and the other is recorded."""
        name, is_rest = msg["name"].removesuffix("_unobserved"), msg["name"].endswith("_unobserved")
        return is_rest and any(o.name == f"{name}_observed" for o in var.chain.steps[var.step].observations)

    def record(self, name: str, fn: Any, rows: int, value: torch.Tensor | None, mask: torch.Tensor | None) -> Any:
        """Records a site of a loop over rows, as in a plate, that nobody but this handler sees; what its value is."""
        frame = CondIndepStackFrame("rows", -1, rows, 0)
        msg = {
            "name": name, "fn": fn.expand((rows,)), "value": value, "is_observed": value is not None, "infer": {},
            "mask": mask, "scale": 1.0, "cond_indep_stack": (frame,),
        }  # fmt: skip
        site = read_site(name, msg["fn"])
        if site is None:
            self._record_start(msg)
        elif value is None:
            state, read = site
            assert read is not None, "the next state is a function of the one before"
            self._record_step(msg, state, read)
        else:
            self._record_observation(msg, *site)
        return msg["value"]

    def _record_start(self, msg):
        fn = msg["fn"]
        self._check_start(msg)
        if isinstance(fn, LinearGaussian):
            start = fn.belief()
        elif isinstance(fn, MultivariateNormal):
            start = GaussianBelief(fn.loc, covariance_of(fn).covariance)
        else:
            raise TypeError(
                f"site {msg['name']!r}: infer={{'collapse': True}} marks the first state of a chain, which must be a "
                f"MultivariateNormal or a LinearGaussian, got {type(fn).__name__}"
            )
        zero = torch.zeros(fn.event_shape, dtype=start.mean.dtype, device=start.mean.device)
        recording = Recording(msg["name"], start, plates_of(msg), msg["scale"], zero)
        self._recordings.append(recording)
        recording.steps.append(Step(msg["name"], None, fn.batch_shape, None, None, None, msg["mask"], None))
        msg["value"] = _symbol(recording, fn.batch_shape)

    def _record_step(self, msg, var: GaussianVar, read: AffineSite):
        recording, fn = var.chain, msg["fn"]
        check_place(msg, recording)
        _check_dtype(msg["name"], "the matrix of the state", read.matrix, recording)
        step = Step(msg["name"], var.step, fn.batch_shape, read.matrix, read.noise, read.offset, msg["mask"], self.span)
        recording.steps.append(step)
        msg["value"] = _symbol(recording, fn.batch_shape, read.matrix.shape[-2])

    def _record_observation(self, msg, var: GaussianVar, read: AffineSite | None):
        recording, fn = var.chain, msg["fn"]
        step = recording.steps[var.step]
        self.check_same_loop(msg, step)
        check_place(msg, recording)
        value = msg["value"] if msg["is_observed"] else None
        if value is None:
            msg["value"] = recording.zero.new_zeros(fn.batch_shape + fn.event_shape)
        if read is None:
            step.observations.append(Observation(msg["name"], fn, value, msg["mask"], fn.event_shape, fn, None))
            return
        _check_dtype(msg["name"], "the matrix of the state", read.matrix, recording)
        emission = LinearEmission(read.matrix, read.noise)
        if value is not None:
            _check_dtype(msg["name"], "the observation", value, recording)
            value = value.unsqueeze(-1) if read.scalar else value
            value = emission.residual(value, read.offset)
        event = read.matrix.shape[-2:-1]
        step.observations.append(Observation(msg["name"], emission, value, msg["mask"], event, fn, read.offset))

    # ---------------------------------------------------------------- elimination
    def _eliminate(self) -> None:
        for recording in self._recordings:
            steps = chain_steps(recording)
            chain = self.chains[recording.name] = lower(recording, steps, self.tol)
            self.state_names[recording.name] = [step.name for step in steps]
            if self.factor:
                emit_factor(recording.name, recording.frames, recording.scale, chain.log_prob())


def collapsed(given: Any, move: Callable[..., Any], emit: Callable[..., Any], start: Any = None) -> GaussianChain:
    """The chain of a loop that draws z_t from ``move(z, t)`` and x_t from ``emit(z, t)``, without running it as a program.

    Args:
        given: what it is about, a :class:`~pplseq.models.base.Given`.
        move, emit: (state before, or state, step) -> distributions affine in the state; called for the first step and, as by
            :func:`~pplseq.infer.programs.markov.markov`, for all others at once.
        start: what stands for the state before the first one.
    """
    rows, num_steps = given.shape
    recorder, z, steps = KalmanCollapse(), start, [0, TimeIndex(1, num_steps)]
    recorder._recordings = []
    for t in steps[:num_steps]:
        recorder.time_index = t if isinstance(t, TimeIndex) else None
        mask, seen = given.is_step(t), given.is_seen(t)
        z = recorder.record(f"z_{t}", move(z, t), rows, None, mask)
        seen = seen if mask is None else mask if seen is None else mask & seen
        recorder.record(f"x_{t}", emit(z, t), rows, given.value(t), seen)
    (recording,) = recorder._recordings
    chain = lower(recording, chain_steps(recording), recorder.tol)
    recording.steps.clear()  # see ChainMessenger.__exit__
    return chain


def _check_dtype(name: str, what: str, value: torch.Tensor, recording: Recording) -> None:
    if value.dtype != recording.zero.dtype:
        raise TypeError(
            f"site {name!r}: {what} is {value.dtype}, but the chain's first state is {recording.zero.dtype}; make all "
            "parameters and observations of one dtype, with .to(...)"
        )


def _symbol(recording: Recording, batch_shape: torch.Size, size: int | None = None) -> GaussianVar:
    zero = recording.zero if size in (None, len(recording.zero)) else recording.zero.new_zeros(size)
    return GaussianVar.make(zero.expand(*batch_shape, -1), recording, len(recording.steps) - 1)


class TraceKalman_ELBO(Trace_ELBO):
    """``Trace_ELBO`` whose model runs under :class:`KalmanCollapse`; see
    :class:`~pplseq.infer.programs.blocked_enum.TraceBlockedEnum_ELBO`.

    Args:
        vectorize, tol: of the handler.
        **options: those of ``pyro.infer.Trace_ELBO``.
    """

    def __init__(self, *, vectorize: bool = True, tol: float | None = None, **options):
        super().__init__(**options)
        self.vectorize, self.tol = vectorize, tol

    def _get_trace(self, model, guide, args, kwargs):
        return super()._get_trace(KalmanCollapse(self.vectorize, self.tol)(model), guide, args, kwargs)
