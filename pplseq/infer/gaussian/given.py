"""What a Gaussian chain is given, checked and brought into one shape: (T, R, ...), R rows of a flattened batch."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.gaussian_types import Evidence, GaussianBelief, LinearEvidence
from pplseq.infer.gaussian.numbers import Numbers, fewer_numbers, masked_loadings, masked_noise
from pplseq.kernels.kalman import DOUBLE


class Dynamics(NamedTuple):
    """x_t = A x_{t-1} + offset + q, q ~ N(0, Q).

    matrix: A, (h, h), or one a step, (T-1, h, h) or (T-1, *B, h, h). noise: Q, the same. offset: None, (h,) or (T-1, *B, h).
    """

    matrix: Tensor
    noise: Tensor
    offset: Tensor | None = None


class FlatChain(NamedTuple):
    """The numbers of a chain. used: (T, R) steps with evidence, None for all; valid: (T, R), None for all.

    mean: (R, h). covariance: (1 | R, h, h). matrix, noise: (1 | T-1, 1 | R, h, h). offset: None, (h,) or (T-1, R, h).
    evidence: with vector (T, R, h) and constant (T, R), zero where unused, and matrix (1 | T, 1 | R, h, h); or numbers.
    """

    batch_shape: torch.Size
    mean: Tensor
    covariance: Tensor
    matrix: Tensor
    noise: Tensor
    offset: Tensor | None
    evidence: Evidence | Numbers
    valid: Tensor | None
    used: Tensor | None
    num_steps: int


def without_gradients(
    start: GaussianBelief, dynamics: Dynamics, evidence: Evidence | LinearEvidence
) -> tuple[GaussianBelief, Dynamics, Evidence | LinearEvidence]:
    """The same numbers, of which nothing is differentiated."""

    first: list[Any] = [part.detach() for part in start]
    moves: list[Any] = [None if part is None else part.detach() for part in dynamics]
    if not isinstance(evidence, LinearEvidence):
        return GaussianBelief(*first), Dynamics(*moves), Evidence(*[part.detach() for part in evidence])
    parts: list[Any] = [getattr(evidence, field.name) for field in fields(evidence)]
    parts = [None if part is None else part.detach() for part in parts]
    return GaussianBelief(*first), Dynamics(*moves), LinearEvidence(*parts)


def flatten(
    start: GaussianBelief,
    dynamics: Dynamics,
    evidence: Evidence | LinearEvidence,
    valid: Tensor | None,
    seen: Tensor | None,
    check: bool,
) -> FlatChain:
    """Raises ValueError or TypeError for what does not fit; arguments as for GaussianChain."""
    linear = isinstance(evidence, LinearEvidence)
    name, numbers = ("residual", evidence.residual) if linear else ("vector", evidence.vector)
    if numbers.dim() < 2:
        raise ValueError(f"evidence.{name} must be (T, *B, {'n' if linear else 'h'}), got {tuple(numbers.shape)}")
    num_steps, h = numbers.shape[0], evidence.loadings.shape[-1] if linear else numbers.shape[-1]
    if num_steps == 0:
        raise ValueError(f"evidence.{name}: a chain needs at least one step, got T = 0")
    _check_types(start, dynamics, evidence)
    batch = _batch_shape(start, evidence, h)
    rows = math.prod(batch)
    valid = _mask(valid, "valid", num_steps, batch)
    if valid is not None:
        checks.padding(valid)
    seen = _mask(seen, "seen", num_steps, batch)
    used = seen if valid is None else valid if seen is None else seen & valid
    shaped = (used, num_steps, batch, h)
    flat = FlatChain(
        batch,
        start.mean.expand(*batch, h).reshape(rows, h),
        _covariance(start.covariance, batch, h),
        by_step(dynamics.matrix, "dynamics.matrix", num_steps - 1, batch, h),
        by_step(dynamics.noise, "dynamics.noise", num_steps - 1, batch, h, zero=True),
        step_offset(dynamics.offset, num_steps - 1, batch, h),
        _flat_linear(evidence, *shaped) if isinstance(evidence, LinearEvidence) else _flat_evidence(evidence, *shaped),
        valid,
        used,
        num_steps,
    )
    if check:
        check_numbers(flat)
    return flat


def _flat_evidence(evidence: Evidence, used: Tensor | None, num_steps: int, batch: torch.Size, h: int) -> Evidence:
    vector = over_rows(evidence.vector, num_steps, batch, (h,))
    matrix = by_step(evidence.matrix, "evidence.matrix", num_steps, batch, h, zero=True, count="T")
    constant = over_rows(evidence.constant, num_steps, batch)
    if used is not None:  # whatever stands at unused steps, NaN included, must not reach the gradient
        vector, constant = torch.where(used.unsqueeze(-1), vector, 0.0), torch.where(used, constant, 0.0)
        if matrix.shape[1] > 1:
            matrix = torch.where(used[..., None, None], matrix, 0.0)
    return Evidence(vector, matrix, constant)


def _flat_linear(
    evidence: LinearEvidence, used: Tensor | None, num_steps: int, batch: torch.Size, h: int
) -> Evidence | Numbers:
    loadings, noise, observed = evidence.loadings, evidence.noise, evidence.observed
    loadings = loadings if loadings.dim() == 3 else loadings.unsqueeze(0)
    alone = noise.dim() == 1
    noise = torch.diag(noise) if alone else noise
    noise = noise if noise.dim() == 3 else noise.unsqueeze(0)
    n, kinds = evidence.residual.shape[-1], {len(p) for p in (loadings, noise, observed) if p is not None} - {1}
    shapes = loadings.shape[1:], noise.shape[1:], (n,) if observed is None else observed.shape[1:]
    if shapes != ((n, h), (n, n), (n,)) or len(kinds) > 1 or (kinds and evidence.which is None):
        raise ValueError(
            f"evidence: loadings must be (n, h) or (P, n, h), noise (n,), (n, n) or (P, n, n), and observed (P, n) with n = "
            f"{n}, as in residual, and which must be given where P > 1; got {tuple(evidence.loadings.shape)}, "
            f"{tuple(evidence.noise.shape)} and {None if observed is None else tuple(observed.shape)}"
        )
    residual = over_rows(evidence.residual, num_steps, batch, (n,))
    constant = None if evidence.extra is None else over_rows(evidence.extra, num_steps, batch)
    which = None
    if kinds:
        assert evidence.which is not None
        which = over_rows(evidence.which.expand(evidence.residual.shape[:-1]), num_steps, batch)
        which = which[:, :1] if bool((which == which[:, :1]).all()) else which
    seen = None
    if observed is not None:
        seen = observed[0] if which is None else observed[which.expand(residual.shape[:-1])]
    if used is not None:  # whatever stands at unused steps, NaN included, must not reach the gradient
        seen = used.unsqueeze(-1) if seen is None else seen & used.unsqueeze(-1)
        constant = None if constant is None else torch.where(used, constant, 0.0)
    if seen is not None:
        residual = torch.where(seen, residual, 0.0)
    mask = None if observed is None else observed.to(residual)
    numbers = Numbers(residual, loadings, noise, mask, which, constant)
    found = numbers if n <= h else fewer_numbers(numbers, used, alone)
    return found._replace(residual=found.residual.to(loadings)) if isinstance(found, Numbers) else found


def _check_types(start: GaussianBelief, dynamics: Dynamics, evidence: Evidence | LinearEvidence) -> None:
    linear = isinstance(evidence, LinearEvidence)
    parts = ("residual", "loadings", "noise") if linear else ("vector", "matrix", "constant")
    named = {
        "start.mean": start.mean,
        "start.covariance": start.covariance,
        "dynamics.matrix": dynamics.matrix,
        "dynamics.noise": dynamics.noise,
        **{f"evidence.{part}": getattr(evidence, part) for part in parts[1:]},
    }
    if dynamics.offset is not None:
        named["dynamics.offset"] = dynamics.offset
    first, dtype = f"evidence.{parts[0]}", getattr(evidence, parts[0]).dtype
    if linear and dtype == torch.float64:  # the difference of an observation and its offset may keep more digits
        first, dtype = ("start.mean", start.mean.dtype) if start.mean.dtype == torch.float32 else (first, dtype)
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{first} must be float32 or float64, got {dtype}; convert it")
    for name, value in named.items():
        if value.dtype != dtype:
            raise TypeError(f"{name} is {value.dtype}, but {first} is {dtype}; convert one of them")


def _batch_shape(start: GaussianBelief, evidence: Evidence | LinearEvidence, h: int) -> torch.Size:
    if start.mean.dim() < 1 or start.mean.shape[-1] != h:
        raise ValueError(f"start.mean must be (*B, {h}) as the evidence has h = {h}, got {tuple(start.mean.shape)}")
    if isinstance(evidence, LinearEvidence):
        try:
            return torch.broadcast_shapes(start.mean.shape[:-1], evidence.residual.shape[1:-1])
        except RuntimeError:
            raise ValueError(
                f"start.mean {tuple(start.mean.shape)} and evidence.residual {tuple(evidence.residual.shape)} must agree in "
                "*B: (*B, h) and (T, *B, n)"
            ) from None
    num_steps = evidence.vector.shape[0]
    if evidence.constant.dim() < 1 or evidence.constant.shape[0] not in (1, num_steps):
        raise ValueError(
            f"evidence.constant must be (T, *B) with T = {num_steps}, got {tuple(evidence.constant.shape)}"
        )
    try:
        return torch.broadcast_shapes(start.mean.shape[:-1], evidence.vector.shape[1:-1], evidence.constant.shape[1:])
    except RuntimeError:
        raise ValueError(
            f"start.mean {tuple(start.mean.shape)}, evidence.vector {tuple(evidence.vector.shape)} and evidence.constant "
            f"{tuple(evidence.constant.shape)} must agree in *B: (*B, h), (T, *B, h), (T, *B)"
        ) from None


def over_rows(value: Tensor, steps: int, batch: torch.Size, event: tuple[int, ...] = ()) -> Tensor:
    """(T, R, *event) from (T, *b, *event), where *b may have fewer dimensions than *B: none of them is time."""
    own = value.shape[1 : value.dim() - len(event)]
    value = value.reshape(len(value), *(1,) * (len(batch) - len(own)), *own, *event)
    return value.expand(steps, *batch, *event).reshape(steps, math.prod(batch), *event)


def _mask(mask: Tensor | None, name: str, num_steps: int, batch: torch.Size) -> Tensor | None:
    """(T, R), or None for a mask that says nothing."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be bool (T, *B), got {mask.dtype}")
    if (
        mask.dim() != 1 + len(batch)
        or mask.shape[0] != num_steps
        or any(m not in (1, b) for m, b in zip(mask.shape[1:], batch, strict=True))
    ):
        raise ValueError(f"{name} must be (T, *B) = {(num_steps, *batch)}, got {tuple(mask.shape)}")
    return None if bool(mask.all()) else mask.expand(num_steps, *batch).reshape(num_steps, math.prod(batch))


def _covariance(covariance: Tensor, batch: torch.Size, h: int) -> Tensor:
    if tuple(covariance.shape) == (h, h):
        return covariance.unsqueeze(0)
    if covariance.dim() < 3 or covariance.shape[-2:] != (h, h):
        raise ValueError(f"start.covariance must be (h, h) or (*B, h, h) with h = {h}, got {tuple(covariance.shape)}")
    try:
        return covariance.expand(*batch, h, h).reshape(math.prod(batch), h, h)
    except RuntimeError:
        raise ValueError(
            f"start.covariance must be (h, h) or (*B, h, h) = {(*batch, h, h)}, got {tuple(covariance.shape)}"
        ) from None


def by_step(
    matrix: Tensor, name: str, steps: int, batch: torch.Size, h: int, zero: bool = False, count: str = "T-1"
) -> Tensor:
    """(1 | steps, 1 | R, h, h)."""
    wrong = ValueError(
        f"{name} must be (h, h), ({count}, h, h) or ({count}, *B, h, h) with {count} = {steps}, *B = {tuple(batch)} and "
        f"h = {h}, got {tuple(matrix.shape)}"
    )
    if matrix.dim() < 2 or matrix.shape[-2:] != (h, h):
        raise wrong
    if matrix.dim() == 2:
        return matrix[None, None]
    if matrix.shape[0] != steps:
        raise wrong
    if steps == 0:  # T = 1: nothing is ever stepped over
        return (
            matrix.new_zeros(1, 1, h, h) if zero else torch.eye(h, dtype=matrix.dtype, device=matrix.device)[None, None]
        )
    if matrix.dim() == 3:
        return matrix.unsqueeze(1)
    try:
        return over_rows(matrix, steps, batch, (h, h))
    except RuntimeError:
        raise wrong from None


def step_offset(offset: Tensor | None, steps: int, batch: torch.Size, h: int, count: str = "T-1") -> Tensor | None:
    if offset is None or tuple(offset.shape) == (h,):
        return offset
    try:
        if offset.dim() < 2 or offset.shape[0] != steps:
            raise RuntimeError
        return over_rows(offset, steps, batch, (h,))
    except RuntimeError:
        raise ValueError(
            f"dynamics.offset must be None, (h,) or ({count}, *B, h) = {(steps, *batch, h)}, got {tuple(offset.shape)}"
        ) from None


# ---------------------------------------------------------------- numbers
def check_numbers(flat: FlatChain) -> None:
    """Raises for numbers that are none, and covariances and information that are not positive semidefinite."""
    evidence = flat.evidence
    named = {
        "start.mean": flat.mean,
        "start.covariance": flat.covariance,
        "dynamics.matrix": flat.matrix,
        "dynamics.noise": flat.noise,
        "dynamics.offset": flat.offset,
    }
    if isinstance(evidence, Numbers):
        numbers = {"residual": evidence.residual, "constant": evidence.constant}
        named |= {"evidence.loadings": evidence.loadings, "evidence.noise": evidence.noise}
    else:
        numbers = {"vector": evidence.vector, "constant": evidence.constant}
        named["evidence.matrix"] = evidence.matrix
    with torch.no_grad():
        for name, value in named.items():
            if value is not None and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} must be finite, got NaN or infinity; check how it is computed")
        for name, value in numbers.items():
            if value is not None and not bool(
                torch.isfinite(value.sum())
            ):  # one pass without a mask in memory; then the place
                _raise_at(name, value)
        for name in ("start.covariance", "dynamics.noise", "evidence.matrix", "evidence.noise"):
            if name in named:
                check_covariance(name, named[name])


def _raise_at(name: str, value: Tensor) -> None:
    bad = ~torch.isfinite(value)
    bad = bad if bad.dim() == 2 else bad.any(-1)
    if bool(bad.any()):
        step, row = bad.nonzero()[0].tolist()
        raise ValueError(
            f"evidence.{name}: row {row}, step {step} is NaN or infinite; for a missing observation set seen to False there "
            "(in a program: poutine.mask around its site), behind the end of a row valid (a mask around all sites of the step)"
        )


def check_covariance(name: str, matrix: Tensor) -> None:
    """Raises unless all matrices (..., h, h) are symmetric and positive semidefinite, up to rounding."""
    slack = 1e-5 if matrix.dtype == torch.float32 else 1e-9
    size = matrix.abs().flatten(-2).amax(-1)[..., None, None]
    if bool(((matrix - matrix.mT).abs() > 10 * slack * size).any()):
        raise ValueError(f"{name} must be symmetric; symmetrise it as (M + M.mT) / 2")
    size = size.double()
    relative = matrix.double() / torch.where(size > 0, size, 1.0)  # so that the lift is none of zero, or denormal
    lifted = relative + slack * torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
    if bool((torch.linalg.cholesky_ex(lifted).info > 0).any()):
        least = float(torch.linalg.eigvalsh(matrix.double()).min())
        raise ValueError(
            f"{name} must be positive semidefinite, got an eigenvalue of {least:.3g}; check its sign, or project it by "
            "clipping eigenvalues at zero"
        )


# ---------------------------------------------------------------- covariances
class PathInput(NamedTuple):
    """What covariances depend on, in double precision; time and rows of size 1: the same for all.

    start: (1 | R, h, h). matrix, noise: (1 | T-1, 1 | R, h, h). observed: of each kind of observation, information
    (P, h, h), or loadings (P, n, h) with the covariance of their noise (P, n, n) and the coordinates seen (P, n) or None.
    which: (T, 1 | R) kinds, on the CPU. nothing: the kind that says nothing, or None where something is always seen.
    tol: error of the log-likelihood that counts as none, see the chain; 0 never.
    """

    start: Tensor
    matrix: Tensor
    noise: Tensor
    observed: tuple[Tensor, Tensor | None, Tensor | None]
    which: np.ndarray
    nothing: int | None
    num_rows: int
    tol: float
    wait_for_rounding: bool

    @property
    def num_steps(self) -> int:
        return len(self.which)

    @property
    def changes(self) -> bool:
        """Matrices differ from step to step."""
        return any(len(m) > 1 for m in (self.matrix, self.noise))

    @property
    def by_row(self) -> bool:
        """Matrices differ from row to row."""
        return any(m.shape[1] > 1 for m in (self.matrix, self.noise))

    @property
    def wants_gradient(self) -> bool:
        inputs = (self.start, self.matrix, self.noise, *self.observed)
        return torch.is_grad_enabled() and any([m.requires_grad for m in inputs if m is not None])


def path_input(flat: FlatChain, tol: float, wait_for_rounding: bool) -> PathInput:
    """What the covariances of a chain depend on."""
    evidence, rows = flat.evidence, len(flat.mean)
    if isinstance(evidence, Numbers):
        mask = evidence.observed
        observed = [evidence.loadings, evidence.noise, mask]
        if mask is not None:
            observed[:2] = masked_loadings(evidence.loadings, mask), masked_noise(evidence.noise, mask)
        kinds = max(len(part) for part in observed if part is not None)
        which = torch.zeros(flat.num_steps, 1, dtype=torch.long) if evidence.which is None else evidence.which.cpu()
    else:
        steps, columns = evidence.matrix.shape[:2]
        observed, kinds = [evidence.matrix.flatten(0, 1), None, None], steps * columns
        which = torch.arange(kinds).reshape(steps, columns).expand(flat.num_steps, columns)
    observed: list = [None if part is None else part.to(DOUBLE).expand(kinds, *part.shape[1:]) for part in observed]
    nothing = None
    if flat.used is not None:
        # behind a row's end anything may happen; observations, all of them, lead to the steady state
        seen = flat.used.cpu() if flat.valid is None else (flat.used | ~flat.valid).cpu()
        if flat.valid is not None and observed[2] is not None:
            which = torch.where(flat.valid.cpu(), which, observed[2].sum(-1).argmax().cpu())
        if not bool(seen.all()):
            nothing, which = kinds, torch.where(seen, which, kinds)
            observed = _with_nothing(*observed)
    if which.shape[1] > 1 and bool((which == which[:, :1]).all()):
        which = which[:, :1]
    start, matrix, noise = (m.to(DOUBLE) for m in (flat.covariance, flat.matrix, flat.noise))
    return PathInput(start, matrix, noise, tuple(observed), which.numpy(), nothing, rows, tol, wait_for_rounding)


def _with_nothing(loadings: Tensor, noise: Tensor | None, observed: Tensor | None) -> list[Tensor | None]:
    """What is observed, with one more kind: of nothing."""
    result: list[Tensor | None] = [torch.cat([loadings, torch.zeros_like(loadings[:1])]), None, None]
    if noise is not None:
        observed = torch.ones_like(loadings[:, :, 0]) if observed is None else observed
        result[1] = torch.cat([noise, torch.eye(noise.shape[-1]).to(noise).unsqueeze(0)])
        result[2] = torch.cat([observed, torch.zeros_like(observed[:1])])
    return result


def pick(matrix: Tensor, steps, rows) -> Tensor:
    """(k, h, h) the matrices of k steps and rows; or (1, h, h) where there is one for all."""
    if len(matrix) == 1 and matrix.shape[1] == 1:
        return matrix[0]
    steps = torch.as_tensor([*steps] if isinstance(steps, range) else steps, device=matrix.device).clamp(
        max=len(matrix) - 1
    )
    rows = torch.as_tensor(rows, device=matrix.device).clamp(max=matrix.shape[1] - 1)
    return matrix[steps, rows]
