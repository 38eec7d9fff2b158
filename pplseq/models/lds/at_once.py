"""Questions about whole rows that one compiled loop answers, for a system as it is: nothing constrained, drawn or overridden.

Of small systems the operations around a chain cost more than its numbers, so that nothing but the loop is between parameters
and answers. The readable twin is the way of all other data, over the chain: :func:`~pplseq.models.lds.fit.chain_of` and
:func:`~pplseq.models.lds.fit.e_step`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.fit.em import Batch, Statistics
from pplseq.kernels import compiled, twice
from pplseq.kernels.gaussian import whole
from pplseq.kernels.gaussian.whole import Numbers, WholeSystem, double
from pplseq.kernels.parallel import time_scan
from pplseq.models.lds import vector_em
from pplseq.models.lds.fit import chain_of
from pplseq.models.lds.parameters import Parameters, covariance_of, emission_covariance
from pplseq.models.lds.queries import LDSQueries

RAW = (
    "transition", "transition_offset", "state_scale", "emission", "emission_offset", "emission_scale", "initial_mean",
    "initial_scale",
)  # fmt: skip
REALS = (torch.float32, torch.float64)
NOTHING = torch.Size([0])
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# what leads from parameters and observations to answers; an LDS that has its own way of any of it takes the long way
DISTRIBUTIONS = ("specs", "observed", "given", "state_noise", "emission_noise", "_emission_noise", "initial_belief")
WAYS = frozenset(
    DISTRIBUTIONS
    + ("values", "direct_chain", "posterior", "_posterior", "_point", "as_batch", "check_observations", "log_prior")
)


def fits(x: Tensor, h: int, forward_only: bool = False) -> bool:
    """Whether the loop does for observations (B, T, n); numbers that are missing it finds itself."""
    if time_scan.ACTIVE.get() or x.dim() != 3 or x.device.type != "cpu" or x.dtype not in REALS:
        return False
    if twice.transformed() or torch._C._get_tracing_state() is not None:
        return False
    return 0 not in x.shape and whole.applies(x.shape, h, forward_only)  # pyright: ignore[reportArgumentType]


def tolerance(dtype: torch.dtype) -> float:
    """That of a chain of this type; see :class:`~pplseq.infer.gaussian.chain.GaussianChain`."""
    return 4 * torch.finfo(dtype).eps


def form_of(parts: list[Tensor | None]) -> tuple[int, int, int] | None:
    """h, n and the form of :class:`Numbers` of parameters, those of :data:`RAW` in that order; None for shapes that are no
    system's, and numbers that are not on the CPU."""
    transition, offset, state, emission, shift, seen, first, start = parts
    if transition is None or state is None or emission is None or seen is None or first is None or start is None:
        return None
    n, h = emission.shape
    square, full_state, full_seen = (h, h), state.dim() == 2, seen.dim() == 2
    if transition.shape != square or start.shape != square or first.shape != (h,):
        return None
    if state.shape != (square if full_state else (h,)) or seen.shape != ((n, n) if full_seen else (n,)):
        return None
    if offset is not None and offset.shape != (h,) or shift is not None and shift.shape != (n,):
        return None
    if not all([part is None or part.is_cpu and part.dtype in REALS for part in parts]):
        return None
    form = whole.FULL_NOISE * full_state + whole.FULL_COVARIANCE * full_seen
    return h, n, form + whole.OFFSET * (offset is not None) + whole.SHIFT * (shift is not None)


class View(NamedTuple):
    """A parameter's numbers where they stand. Every tensor operation costs as much as ten of arrays."""

    part: Tensor
    address: int
    shape: torch.Size
    numbers: np.ndarray

    @classmethod
    def of(cls, part: Tensor) -> View:
        return cls(part, part.data_ptr(), part.shape, part.detach().numpy().ravel())

    def shows(self, part: Tensor | None) -> bool:
        """Whether this is a view, and still the one, of a parameter."""
        if part is None or part is not self.part or part.data_ptr() != self.address:
            return False
        if part.shape != self.shape or not part.is_contiguous():
            return False
        return self.numbers.dtype is (DOUBLE if part.dtype is torch.float64 else SINGLE)


class LastSystem:
    """The last system whose whole rows were asked about, and where its parameters stand."""

    def __init__(self):
        self.system: WholeSystem | None = None
        # in one piece, as threads may ask at once
        self._seen: tuple[list[View | None], tuple[int, int, int]] | None = None

    def numbers_of(self, parts: list[Tensor | None]) -> Numbers | None:
        """Parameters, those of :data:`RAW` in that order, as the loop takes them; None as of :func:`form_of`."""
        seen = self._seen
        if seen is not None:
            pairs = zip(parts, seen[0], strict=True)
            if not all([part is None if view is None else view.shows(part) for part, view in pairs]):
                seen = None
        if seen is None:
            sizes = form_of(parts)
            if sizes is None:
                return None
            views = [None if part is None else View.of(part) for part in parts]
            # a copy, of parts that have gaps, does not follow them
            is_view = all([part is None or part.is_contiguous() for part in parts])
            seen = views, sizes
            self._seen = seen if is_view else None
        flat = np.concatenate([view.numbers for view in seen[0] if view is not None])
        return Numbers(flat.astype(np.float64, copy=False), *seen[1])

    def of(self, numbers: Numbers, num_steps: int, tol: float) -> WholeSystem:
        """That of these parameters; of many numbers none is kept."""
        last = self.system
        if last is not None and last.is_of(numbers, num_steps, tol):
            return last
        self.system = None
        return WholeSystem(numbers, num_steps, tol)

    def __reduce__(self):
        return LastSystem, ()  # a copy has yet to be asked


class AtOnce(LDSQueries):
    """A linear dynamical system that answers at once where it can."""

    is_plain = False  # set by the class whose distributions these are, and not inherited

    @property
    def _is_as_it_is(self) -> bool:
        """Whether nothing of it is its own: no subclass, no replaced method, no parameter that is constrained or drawn."""
        own = vars(self)
        if "is_plain" not in vars(type(self)) or self.initial != "learned" or self.num_inputs or not WAYS.isdisjoint(own):
            return False
        return self.is_one_chain and not (own["_modules"] or self._pyro_params or self._pyro_samples)

    @property
    def _last(self) -> LastSystem:
        own = vars(self)
        return own["_last_system"] if "_last_system" in own else own.setdefault("_last_system", LastSystem())

    def _numbers(self, x: Tensor, forward_only: bool = False) -> Numbers | None:
        """The parameters, where the loop answers questions about x."""
        if not self._is_as_it_is or not fits(x, self.num_states, forward_only):
            return None
        parts: list[Tensor | None] = [self._parameters[name] for name in RAW]
        found = self._last.numbers_of(parts)
        if found is None or parts[0] is None or parts[0].dtype != x.dtype:
            return None
        return found if found.n == x.shape[2] == self.num_features and found.h == self.num_states else None

    def _system(self, x: Tensor, forward_only: bool = False) -> WholeSystem | None:
        """The system, of which covariances are kept from question to question."""
        if x.dtype != torch.float64 or x.dim() != 3:  # float32 keeps the digits that all questions give it
            return None
        if not whole.is_worth_keeping(x.shape[1], self.num_states, x.shape[2]):
            return None
        numbers = self._numbers(x, forward_only)
        if numbers is None:
            return None
        return self._last.of(numbers, x.shape[1], tolerance(x.dtype))

    def _keep(self, system: WholeSystem) -> None:
        if system.is_small:
            self._last.system = system

    def score(self, x, lengths=None, *, per_token: bool = False, **known) -> float:
        """log p(x), nats, summed over sequences, or the mean over tokens; see the class of all estimators."""
        if type(x) is Tensor and lengths is None and not known and (system := self._system(x, True)) is not None:
            self.check_fitted()
            value = system.log_prob(double(x))
            if value is not None:
                self._keep(system)
                return value / (x.shape[0] * x.shape[1] if per_token else 1)
        with torch.no_grad():
            return super().score(x, lengths, per_token=per_token, **known)

    def decode(self, x, lengths=None, **known):
        if type(x) is Tensor and lengths is None and not known and (system := self._system(x)) is not None:
            self.check_fitted()
            value = system.smoothed_means(double(x))
            if value is not None:
                self._keep(system)
                return torch.from_numpy(value)
        return super().decode(x, lengths, **known)

    def log_joint(self, x: Tensor, lengths: Tensor | None = None, *, share: float = 1.0, **known) -> Tensor:
        value = self._log_prob_at_once(x) if type(x) is Tensor and lengths is None and not known else None
        if value is None:
            return super().log_joint(x, lengths, share=share, **known)
        return value + share * self.log_prior() if self.has_priors else value

    def _log_prob_at_once(self, x: Tensor) -> Tensor | None:
        """() log p(x) of whole rows, differentiable in parameters."""
        if x.requires_grad or twice.derivatives_wanted():
            return None  # in other ways than backwards, or in observations
        parts = [self._parameters.get(name) for name in RAW]
        is_plain = not torch.is_grad_enabled() or not any([part is not None and part.requires_grad for part in parts])
        numbers = self._numbers(x, is_plain)
        if numbers is None:
            return None
        system = WholeSystem(numbers, x.shape[1], tolerance(x.dtype))
        if is_plain:
            value = system.log_prob(double(x))
            return None if value is None else x.new_tensor(value)
        found = system.gradients(double(x))
        return None if found is None else _LogProb.apply(found, x, *parts)

    def fit_at_once(self, x: Tensor, options: dict[str, Any]) -> bool:
        """EM from the parameters as they are, on whole rows; False where it is left to the fit that all models have."""
        own, numbers = vars(self), None
        if options.keys() <= vector_em.OPTIONS and vector_em.WAYS.isdisjoint(own) and x.dtype == torch.float64:
            numbers = None if self.has_priors else self._numbers(x)
        if numbers is None:
            return False
        found = vector_em.fit_plainly(numbers, double(x), tolerance(x.dtype), self.noise_floor, options)
        if found is None:
            return False
        own["history"], own["is_fitted"] = found[0], True
        at = 0
        with torch.no_grad():
            for part in [part for name in RAW if (part := self._parameters[name]) is not None]:
                shape = part.shape
                size = shape.numel()
                part.copy_(torch.from_numpy(found[1][at : at + size].reshape(shape)))
                at += size
        if own["training"]:
            self.eval()
        return True

    def expectation_at_once(self, batch: Batch) -> tuple[Statistics, float] | None:
        """The E-step, see :func:`~pplseq.models.lds.fit.e_step`, and the log-likelihood; None where the loop is not for such
        data."""
        if not all(part is None for part in batch[1:]) or (numbers := self._numbers(batch.x)) is None:
            return None
        compiled.worked(vector_em.LOOP, vector_em.TWIN_OPERATIONS)
        x = double(batch.x)
        found = WholeSystem(numbers, x.shape[1], tolerance(batch.x.dtype)).moments(x)
        return None if found is None else (_statistics(numbers.form, found[1], x, batch.x.dtype), found[0])


def _twin(x: Tensor, *parts: Tensor | None) -> Tensor:
    """The same over a chain."""
    raw: Any = dict(zip(RAW, parts, strict=True))
    covariances = {name: covariance_of(raw[f"{name}_scale"]) for name in ("state", "initial")}
    parameters = Parameters(
        raw["transition"], raw["transition_offset"], None, covariances["state"], raw["emission"], raw["emission_offset"], None,
        emission_covariance(raw["emission_scale"]), raw["initial_mean"], covariances["initial"],
    )  # fmt: skip
    return chain_of(parameters, Batch(x)).log_prob().sum()


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, found: tuple[float, np.ndarray], x: Tensor, *parts):
        ctx.gradients = found[1]
        ctx.save_for_backward(x, *parts)
        return x.new_tensor(found[0])

    @staticmethod
    def backward(ctx, *grads):
        x, *parts = ctx.saved_tensors  # raises where they were changed in place, as every backward does
        if torch.is_grad_enabled():
            found = twice.gradients(lambda *values: _twin(x, *values), tuple(parts), grads[0])
            return None, None, *found
        at, result, by = 0, [], grads[0]
        is_plain = type(by) is Tensor and by.dtype == torch.float64 and not twice.transformed()
        scaled = ctx.gradients * float(by) if is_plain else torch.from_numpy(ctx.gradients).to(x.dtype) * by
        for part, needed in zip(parts, ctx.needs_input_grad[2:], strict=True):
            shape = NOTHING if part is None else part.shape
            size = shape.numel()
            own = scaled[at : at + size].reshape(shape) if needed else None
            result.append(torch.from_numpy(own) if is_plain and own is not None else own)
            at += size
        return None, None, *result


def _statistics(form: int, m: whole.Moments, x: np.ndarray, dtype: torch.dtype) -> Statistics:
    count, steps = float(len(x)), float(x.shape[0] * x.shape[1])
    moves, seen, flat = form & whole.OFFSET, form & whole.SHIFT, x.reshape(-1, x.shape[2])
    ones = np.ones(len(flat))  # a product adds up faster than a sum along the longer axis
    found = {
        "transition_count": steps - count,
        "transition_moment": _bordered(m.before, m.state_before, steps - count) if moves else m.before,
        "transition_cross": np.column_stack([m.move_state, m.move_sum]) if moves else m.move_state,
        "transition_scatter": m.move, "emission_count": steps,
        "emission_moment": _bordered(m.second, m.state, steps) if seen else m.second,
        "emission_cross": np.column_stack([m.error_state, m.error_sum]) if seen else m.error_state,
        "emission_scatter": m.error, "num_sequences": count, "first_mean": m.first_state, "first_second": m.first,
        "state_count": steps, "state_sum": m.state, "state_square": m.second.diagonal(),
        "data_count": np.full(x.shape[2], steps), "data_sum": ones @ flat, "data_square": ones @ (flat * flat),
    }  # fmt: skip
    return {name: torch.from_numpy(np.array(value)).to(dtype) for name, value in found.items()}


def _bordered(second: np.ndarray, first: np.ndarray, count: float) -> np.ndarray:
    """(h + 1, h + 1) moments of a state and a one."""
    result = np.empty((len(first) + 1, len(first) + 1))
    result[:-1, :-1], result[-1, :-1], result[:-1, -1], result[-1, -1] = second, first, first, count
    return result
