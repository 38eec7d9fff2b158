"""The likelihood of whole rows with its gradient, and the statistics of EM, by one compiled loop: for a system as it is.

Of small systems the operations around a chain cost more than its numbers. The readable twin is the way of all other data, over
the chain: :func:`~pplseq.models.lds.fit.chain_of` and :func:`~pplseq.models.lds.fit.e_step`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pplseq.infer.fit.em import Batch, Statistics
from pplseq.kernels import twice
from pplseq.kernels.gaussian import whole
from pplseq.kernels.gaussian.whole import System, WholeRows, double
from pplseq.kernels.parallel import time_scan
from pplseq.models.lds.fit import chain_of
from pplseq.models.lds.parameters import Parameters, covariance_of, emission_covariance

FEW_STATES, MANY_ROWS = 8, 64
RAW = (
    "transition", "transition_offset", "state_scale", "emission", "emission_offset", "emission_scale", "initial_mean",
    "initial_scale",
)  # fmt: skip


def fits(x: Tensor, h: int) -> bool:
    """Whether the loop is there for observations (B, T, n); numbers that are missing it finds itself."""
    if time_scan.ACTIVE.get() or x.dim() != 3 or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return False
    return x.numel() > 0 and whole.applies(x.shape[0], x.shape[1], h, x.shape[2])


def beats_memory(x: Tensor, h: int) -> bool:
    """Whether a likelihood with all its covariances costs less than a chain that keeps them from question to question."""
    if h > FEW_STATES or x.dim() != 3 or x.dtype != torch.float64:  # float32 keeps the digits that all questions give it
        return False
    return x.shape[0] >= MANY_ROWS


def tolerance(dtype: torch.dtype) -> float:
    """That of a chain of this type; see :class:`~pplseq.infer.gaussian.chain.GaussianChain`."""
    return 4 * torch.finfo(dtype).eps


class SystemFactors:
    """The parameters of a model as arrays in double precision, by their names in :data:`RAW`, and what follows from them."""

    def __init__(self, *parts: Tensor | None):
        self.raw: Any = {name: None if part is None else double(part) for name, part in zip(RAW, parts, strict=True)}
        raw = self.raw
        self.state, self.first = (_triangle(raw[name]) for name in ("state_scale", "initial_scale"))
        scale = raw["emission_scale"]
        # exp overflows where a fit ran away: what is not finite goes the long way
        with np.errstate(over="ignore"):
            self.seen = _below(scale, -1) if scale.ndim == 2 else np.zeros((len(scale), len(scale)))
            np.fill_diagonal(self.seen, np.exp(scale.diagonal() if scale.ndim == 2 else scale))

    def system(self) -> System:
        raw, (n, h) = self.raw, self.raw["emission"].shape
        offset, shift = raw["transition_offset"], raw["emission_offset"]
        return System(
            raw["initial_mean"], self.first @ self.first.T, raw["transition"], np.zeros(h) if offset is None else offset,
            self.state @ self.state.T, raw["emission"], np.zeros(n) if shift is None else shift, self.seen @ self.seen.T,
        )  # fmt: skip

    def gradients(self, rows: WholeRows) -> dict[str, np.ndarray]:
        """Of the likelihood, in the parameters."""
        g, raw = whole.gradients(rows), self.raw
        log_scale = 2 * g.covariance @ self.seen
        diagonal = log_scale.diagonal() * self.seen.diagonal()
        if raw["emission_scale"].ndim == 2:
            log_scale = _below(log_scale, -1)
            np.fill_diagonal(log_scale, diagonal)
        else:
            log_scale = diagonal
        return {
            "transition": g.matrix, "transition_offset": g.offset, "emission": g.loadings, "emission_offset": g.shift,
            "initial_mean": g.first, "emission_scale": log_scale,
            "state_scale": _of_triangle(g.noise, self.state, raw["state_scale"].ndim),
            "initial_scale": _of_triangle(g.start, self.first, raw["initial_scale"].ndim),
        }  # fmt: skip


@functools.cache
def _mask(size: int, diagonal: int) -> np.ndarray:
    return np.tri(size, k=diagonal, dtype=np.bool_)


def _below(matrix: np.ndarray, diagonal: int = 0) -> np.ndarray:
    """numpy's ``tril``, which makes its mask anew every time."""
    return np.where(_mask(len(matrix), diagonal), matrix, 0.0)


def _triangle(scale: np.ndarray) -> np.ndarray:
    return np.diag(scale) if scale.ndim == 1 else _below(scale)


def _of_triangle(gradient: np.ndarray, factor: np.ndarray, dim: int) -> np.ndarray:
    """The gradient in a factor F, or its diagonal, of that in F F', which is symmetric."""
    found = _below(2 * gradient @ factor)
    return found.diagonal() if dim == 1 else found


def total_log_prob(x: Tensor, *parts: Tensor | None) -> Tensor | None:
    """() log p(x) in nats, summed over rows (B, T, n) and differentiable in parameters: those of :data:`RAW`, in that order.

    None where the loop is not for such data, or numbers are missing or not finite.
    """
    if x.requires_grad or twice.derivatives_wanted() or torch._C._get_tracing_state() is not None:
        return None  # in other ways than backwards, or in observations
    factors = SystemFactors(*parts)
    wanted = torch.is_grad_enabled() and any([part is not None and part.requires_grad for part in parts])
    rows = whole.whole_rows(factors.system(), double(x), tolerance(x.dtype), gradient=wanted)
    if rows is None:
        return None
    if not wanted:
        return x.new_tensor(rows.log_prob)
    return _LogProb.apply(rows, factors, x, *parts)


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
    def forward(ctx, rows: WholeRows, factors: SystemFactors, x: Tensor, *parts):
        ctx.found = rows, factors
        ctx.save_for_backward(x, *parts)
        return x.new_tensor(rows.log_prob)

    @staticmethod
    def backward(ctx, *grads):
        x, *parts = ctx.saved_tensors  # raises where they were changed in place, as every backward does
        if torch.is_grad_enabled():
            found = twice.gradients(lambda *values: _twin(x, *values), tuple(parts), grads[0])
            return None, None, None, *found
        (rows, factors), weight = ctx.found, float(grads[0])
        gradients, dtype, given = factors.gradients(rows), grads[0].dtype, ctx.needs_input_grad[3:]
        wanted = zip(RAW, given, strict=True)
        found = [torch.from_numpy(gradients[name] * weight).to(dtype) if needed else None for name, needed in wanted]
        return None, None, None, *found


def expectation(parameters: Parameters, batch: Batch) -> tuple[Statistics, float] | None:
    """The E-step at parameters without gradients, see :func:`~pplseq.models.lds.fit.e_step`, and the log-likelihood; None where
    the loop is not for such data."""
    if parameters.initial_mean is None or parameters.initial_covariance is None:
        return None
    if not all(part is None for part in batch[1:]) or not fits(batch.x, len(parameters.transition)):
        return None
    offset, shift = parameters.transition_offset, parameters.emission_offset
    noise, x, (n, h) = double(parameters.emission_noise), double(batch.x), parameters.emission.shape
    system = System(
        double(parameters.initial_mean), double(parameters.initial_covariance), double(parameters.transition),
        np.zeros(h) if offset is None else double(offset), double(parameters.state_noise), double(parameters.emission),
        np.zeros(n) if shift is None else double(shift), np.diag(noise) if noise.ndim == 1 else noise,
    )  # fmt: skip
    rows = whole.whole_rows(system, x, tolerance(batch.x.dtype), moments=True)
    if rows is None:
        return None
    m, count, steps = whole.moments(rows), float(rows.num_rows), float(rows.num_rows * rows.num_steps)
    moves, seen, flat = offset is not None, shift is not None, x.reshape(-1, n)
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
        "data_count": np.full(n, steps), "data_sum": ones @ flat, "data_square": ones @ (flat * flat),
    }  # fmt: skip
    dtype = batch.x.dtype
    return {name: torch.tensor(value, dtype=dtype) for name, value in found.items()}, rows.log_prob


def _bordered(second: np.ndarray, first: np.ndarray, count: float) -> np.ndarray:
    """(h + 1, h + 1) moments of a state and a one."""
    result = np.empty((len(first) + 1, len(first) + 1))
    result[:-1, :-1], result[-1, :-1], result[:-1, -1], result[-1, -1] = second, first, first, count
    return result
