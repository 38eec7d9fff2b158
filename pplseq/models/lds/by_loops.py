"""Questions that compiled loops answer at once, for a system as it is: nothing constrained, drawn or overridden.

Of small systems the operations around a chain cost more than its numbers, so that nothing but the loop is between parameters
and answers. The readable twin is the way of all other systems, over the chain: :func:`~pplseq.models.lds.fit.chain_of` and
:func:`~pplseq.models.lds.fit.e_step`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.fit.em import Batch, Statistics
from pplseq.kernels import twice
from pplseq.kernels.gaussian import systems
from pplseq.kernels.gaussian.systems import Numbers, Rows, System, double
from pplseq.kernels.parallel import time_scan
from pplseq.models.batch import as_given
from pplseq.models.lds.fit import chain_of
from pplseq.models.lds.parameters import Parameters, covariance_of, emission_covariance
from pplseq.models.lds.queries import LDSQueries

RAW = (
    "transition", "transition_offset", "state_scale", "emission", "emission_offset", "emission_scale", "initial_mean",
    "initial_scale",
)  # fmt: skip
REALS, INTEGERS = (torch.float32, torch.float64), (torch.int32, torch.int64)
NOTHING = torch.Size([0])
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# what leads from parameters and observations to answers; an LDS that has its own way of any of it takes the long way
DISTRIBUTIONS = ("specs", "observed", "given", "state_noise", "emission_noise", "_emission_noise", "_initial_belief")
WAYS = frozenset(
    DISTRIBUTIONS
    + ("values", "_direct_chain", "posterior", "_posterior", "_point", "_as_batch", "_check_observations", "log_prior")
)


def fits(x: Tensor, h: int, forward_only: bool = False) -> bool:
    """Whether the loops do for observations (B, T, n)."""
    if time_scan.ACTIVE.get() or x.dim() != 3 or x.device.type != "cpu" or x.dtype not in REALS:
        return False
    if twice.transformed() or torch._C._get_tracing_state() is not None:
        return False
    return 0 not in x.shape and systems.applies(x.shape, h, forward_only)  # pyright: ignore[reportArgumentType]


def rows_of(x: Tensor, lengths: Tensor | None, h: int) -> Rows | None:
    """Observations as the loops take them; None of lengths that are none, or nothing that is observed."""
    values, ends = double(x), None
    if lengths is not None:
        if type(lengths) is not Tensor or lengths.dtype not in INTEGERS or not lengths.is_cpu or lengths.shape != x.shape[:1]:
            return None
        ends = lengths.numpy().astype(np.int64, copy=False)
        if not (ends.min() >= 1 and ends.max() <= x.shape[1]):
            return None
        if (ends == x.shape[1]).all():
            ends = None
    flat = values.ravel()
    if ends is None and not math.isnan(flat @ flat):
        return systems.seen_rows(values)
    return systems.rows_of(values, ends, h)


@functools.cache
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
    form = systems.FULL_NOISE * full_state + systems.FULL_COVARIANCE * full_seen
    return h, n, form + systems.OFFSET * (offset is not None) + systems.SHIFT * (shift is not None)


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
        self.system: System | None = None
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

    def of(self, numbers: Numbers, rows: Rows, tol: float) -> System:
        """That of these parameters; of many numbers, and of rows with gaps or ends, none is kept."""
        last = self.system
        if rows.at is None and last is not None and last.is_of(numbers, rows.values.shape[1], tol):
            return last
        self.system = None
        return System(numbers, rows.kinds, tol)

    def __reduce__(self):
        return LastSystem, ()  # a copy has yet to be asked


class LoopAnswers(LDSQueries):
    """A linear dynamical system that answers at once where it can."""

    _is_plain = False  # set by the class whose distributions these are, and not inherited

    @property
    def _is_as_it_is(self) -> bool:
        """Whether nothing of it is its own: no subclass, no replaced method, no parameter that is constrained or drawn."""
        own = vars(self)
        if "_is_plain" not in vars(type(self)) or self.initial != "learned" or self.num_inputs or not WAYS.isdisjoint(own):
            return False
        return self._is_one_chain and not (own["_modules"] or self._pyro_params or self._pyro_samples)

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

    def _read(self, x: Any, lengths: Any, known: dict[str, Any]) -> tuple[Tensor, Tensor | None] | None:
        """Data in any form and their lengths, where the loops may be for them."""
        if type(x) is Tensor and not known:
            return x, lengths
        if known or not self._is_as_it_is:
            return None
        self._check_fitted()
        return self._as_batch(x, lengths)[:2]

    def _asked(self, x: Tensor, lengths: Tensor | None, forward_only: bool = False) -> tuple[System, Rows] | None:
        """The system, of which covariances are kept from question to question, and the rows."""
        if x.dtype != torch.float64 or x.dim() != 3:  # float32 keeps the digits that all questions give it
            return None
        numbers = self._numbers(x, forward_only)
        rows = None if numbers is None else rows_of(x, lengths, numbers.h)
        if numbers is None or rows is None:
            return None
        if rows.at is None and not systems.is_worth_keeping(x.shape[1], numbers.h, numbers.n):
            return None
        return self._last.of(numbers, rows, tolerance(x.dtype)), rows

    def _keep(self, system: System, rows: Rows) -> None:
        if rows.at is None and system.is_small:
            self._last.system = system

    def score(self, x, lengths=None, *, per_token: bool = False, **known) -> float:
        """log p(x), nats, summed over sequences, or the mean over tokens; see the class of all estimators."""
        if (read := self._read(x, lengths, known)) is not None:
            x, lengths = read
            if (asked := self._asked(x, lengths, True)) is not None:
                self._check_fitted()
                value = asked[0].log_prob(asked[1])
                if value is not None:
                    self._keep(*asked)
                    return value / (asked[1].num_steps if per_token else 1)
        with torch.no_grad():
            return super().score(x, lengths, per_token=per_token, **known)

    def decode(self, x, lengths=None, **known):
        if (read := self._read(x, lengths, known)) is None:
            return super().decode(x, lengths, **known)
        value = None
        if (asked := self._asked(*read)) is not None:
            self._check_fitted()
            value = asked[0].smoothed_means(asked[1])
        if asked is None or value is None:
            means: Any = super().decode(*read)
            return as_given(means, self._results_like(x))
        self._keep(*asked)
        return as_given(torch.from_numpy(value), self._results_like(x))

    def log_joint(self, x: Tensor, lengths: Tensor | None = None, *, share: float = 1.0, **known) -> Tensor:
        value = self._log_prob_by_loops(x, lengths) if type(x) is Tensor and not known else None
        if value is None:
            return super().log_joint(x, lengths, share=share, **known)
        return value + share * self.log_prior() if self._has_priors else value

    def _log_prob_by_loops(self, x: Tensor, lengths: Tensor | None) -> Tensor | None:
        """() log p(x), differentiable in parameters."""
        if x.requires_grad or twice.derivatives_wanted():
            return None  # in other ways than backwards, or in observations
        parts = [self._parameters.get(name) for name in RAW]
        is_plain = not torch.is_grad_enabled() or not any([part is not None and part.requires_grad for part in parts])
        numbers = self._numbers(x, is_plain)
        rows = None if numbers is None else rows_of(x, lengths, numbers.h)
        if numbers is None or rows is None:
            return None
        system = System(numbers, rows.kinds, tolerance(x.dtype))
        if is_plain:
            value = system.log_prob(rows)
            return None if value is None else x.new_tensor(value)
        found = system.gradients(rows)
        return None if found is None else _LogProb.apply(found, x, lengths, *parts)

    def _expectation_by_loops(self, batch: Batch) -> tuple[Statistics, float] | None:
        """The E-step, see :func:`~pplseq.models.lds.fit.e_step`, and the log-likelihood; None where the loop is not for such
        data."""
        x, lengths = batch[:2]
        if not all([part is None for part in batch[2:]]) or (numbers := self._numbers(x)) is None:
            return None
        rows = rows_of(x, lengths, numbers.h)
        found = None if rows is None else System(numbers, rows.kinds, tolerance(x.dtype)).moments(rows)
        return None if rows is None or found is None else (_statistics(numbers.form, found[1], rows, x.dtype), found[0])


def _twin(x: Tensor, lengths: Tensor | None, *parts: Tensor | None) -> Tensor:
    """The same over a chain."""
    raw: Any = dict(zip(RAW, parts, strict=True))
    covariances = {name: covariance_of(raw[f"{name}_scale"]) for name in ("state", "initial")}
    parameters = Parameters(
        raw["transition"], raw["transition_offset"], None, covariances["state"], raw["emission"], raw["emission_offset"], None,
        emission_covariance(raw["emission_scale"]), raw["initial_mean"], covariances["initial"],
    )  # fmt: skip
    return chain_of(parameters, Batch(x, lengths)).log_prob().sum()


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, found: tuple[float, np.ndarray], x: Tensor, lengths: Tensor | None, *parts):
        ctx.gradients, ctx.lengths = found[1], lengths
        ctx.save_for_backward(x, *parts)
        return x.new_tensor(found[0])

    @staticmethod
    def backward(ctx, *grads):
        x, *parts = ctx.saved_tensors  # raises where they were changed in place, as every backward does
        if torch.is_grad_enabled():
            found = twice.gradients(lambda *values: _twin(x, ctx.lengths, *values), tuple(parts), grads[0])
            return None, None, None, *found
        at, result, by = 0, [], grads[0]
        is_plain = type(by) is Tensor and by.dtype == torch.float64 and not twice.transformed()
        scaled = ctx.gradients * float(by) if is_plain else torch.from_numpy(ctx.gradients).to(x.dtype) * by
        for part, needed in zip(parts, ctx.needs_input_grad[3:], strict=True):
            shape = NOTHING if part is None else part.shape
            size = shape.numel()
            own = scaled[at : at + size].reshape(shape) if needed else None
            result.append(torch.from_numpy(own) if is_plain and own is not None else own)
            at += size
        return None, None, None, *result


def _statistics(form: int, m: systems.Moments, rows: Rows, dtype: torch.dtype) -> Statistics:
    x, steps = rows.values, float(rows.num_steps)
    count, moves, seen, flat = float(len(x)), form & systems.OFFSET, form & systems.SHIFT, x.reshape(-1, x.shape[2])
    ones = np.ones(len(flat))  # a product adds up faster than a sum along the longer axis
    found = {
        "transition_count": steps - count,
        "transition_moment": _bordered(m.before, m.state_before, steps - count) if moves else m.before,
        "transition_cross": np.column_stack([m.move_state, m.move_sum]) if moves else m.move_state,
        "transition_scatter": m.move, "emission_count": m.seen_count,
        "emission_moment": _bordered(m.seen, m.seen_state, m.seen_count) if seen else m.seen,
        "emission_cross": np.column_stack([m.error_state, m.error_sum]) if seen else m.error_state,
        "emission_scatter": m.error, "num_sequences": count, "first_mean": m.first_state, "first_second": m.first,
        "state_count": steps, "state_sum": m.state, "state_square": m.second.diagonal(),
        "data_count": m.counts, "data_sum": ones @ flat, "data_square": ones @ (flat * flat),
    }  # fmt: skip
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in found.items()}
    return tensors if dtype == torch.float64 else {name: value.to(dtype) for name, value in tensors.items()}


def _bordered(second: np.ndarray, first: np.ndarray, count: float) -> np.ndarray:
    """(h + 1, h + 1) moments of a state and a one."""
    result = np.empty((len(first) + 1, len(first) + 1))
    result[:-1, :-1], result[-1, :-1], result[:-1, -1], result[-1, -1] = second, first, first, count
    return result
