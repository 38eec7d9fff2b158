"""One step of the Kalman filter and smoother for covariances, h x h only: observations enter as information.

An observation says log p(y | x) = constant + b'x - x' Lam x / 2 about its state. Nothing here inverts a covariance of the
state, so that known starts (covariance zero) and noise on few coordinates are no special cases.

Source: B. D. O. Anderson and J. B. Moore (1979), Optimal Filtering, chapter 6 (information form); A. E. Bryson and M. Frazier
(1963), Smoothing for linear and nonlinear dynamic systems (the adjoint form of the smoother).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pplseq.kernels import twice

DOUBLE = torch.float64
ROUNDING = 1e4 * torch.finfo(DOUBLE).eps  # changes below this that stopped falling are rounding errors
NEGLIGIBLE = 1e-24  # variances in this share of the largest one are none
PATIENCE = 16  # steps without a smaller change
CERTAIN = 1e11  # standard deviations in this ratio: the smaller one is a rounding error

Runs = list[tuple[int, int, Any]]  # (start, stop, node) of steps that have one node

Matrix = TypeVar("Matrix", bound=Any)


def symmetric(matrix: Matrix) -> Matrix:
    """The symmetric part of square matrices, tensors or arrays."""
    return (matrix + matrix.swapaxes(-1, -2)) / 2


class Updated(NamedTuple):
    """What an observation makes of a predicted covariance P.

    filtered: (N, h, h) (P^-1 + Lam)^-1. carry: (N, h, h) W = (I + P Lam)^-1, by which a predicted mean enters the filtered
    one. half_log_det: (N,) log det(I + Lam P) / 2.
    """

    filtered: Tensor
    carry: Tensor
    half_log_det: Tensor


def update(predicted: Tensor, information: Tensor) -> Updated:
    """Conditions covariances (N, h, h) on observations with information Lam (N, h, h)."""
    h = predicted.shape[-1]
    identity = torch.eye(h, dtype=predicted.dtype, device=predicted.device).expand_as(predicted)
    factors, pivots, _ = torch.linalg.lu_factor_ex(identity + predicted @ information)
    solved = torch.linalg.lu_solve(factors, pivots, torch.cat([predicted, identity], -1))
    carry = solved[..., h:]
    # all eigenvalues of I + P Lam are at least 1
    log_det = factors.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return Updated(symmetric(solved[..., :h]), carry, log_det / 2)


class UpdatedByNumbers(NamedTuple):
    """What n observed numbers y = M x + noise (covariance D) make of a predicted covariance P.

    filtered: (N, h, h). gain: (N, h, n) K = P M' S^-1, S = M P M' + D. whitener: (N, n, n) L^-1, where S = L L', zero in the
    columns of coordinates that are not seen. half_log_det: (N,) log det S / 2.
    """

    filtered: Tensor
    gain: Tensor
    whitener: Tensor
    half_log_det: Tensor


def update_by_numbers(
    predicted: Tensor, loadings: Tensor, noise: Tensor, observed: Tensor | None = None, careful: bool = False
) -> UpdatedByNumbers:
    """Conditions covariances (N, h, h) on numbers with loadings (N | 1, n, h): n h^2 where :func:`update` takes h^3.

    Args:
        noise: (N | 1, n, n) D, which may be singular where S is not. observed: (N | 1, n), 0 for coordinates that are not
            seen, of which loadings are zero and noise is white; None: all are seen.
        careful: (I - K M) P (I - K M)' + K D K', the form of P. Joseph, for very precise observations: it has no differences
            of large numbers, at the price of 2 h^3.

    Where S is not positive definite half_log_det is not finite.
    """
    spread = loadings @ predicted
    total = symmetric(spread @ loadings.mT) + noise
    factor, failed = torch.linalg.cholesky_ex(total)
    identity = torch.eye(spread.shape[-2], dtype=spread.dtype, device=spread.device)
    both = torch.cat([spread, identity.expand_as(factor)], -1)
    solved = torch.linalg.solve_triangular(factor, both, upper=False)
    root, whitener = solved[..., : spread.shape[-1]], solved[..., spread.shape[-1] :]
    gain = root.mT @ whitener
    if careful:
        rest = torch.eye(predicted.shape[-1], dtype=spread.dtype, device=spread.device) - gain @ loadings
        filtered = symmetric(rest @ predicted @ rest.mT + gain @ noise @ gain.mT)
    else:
        filtered = torch.baddbmm(predicted, root.mT, root, alpha=-1)
    half_log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    half_log_det = half_log_det.masked_fill(failed > 0, torch.nan)
    return UpdatedByNumbers(
        filtered, gain, whitener if observed is None else whitener * observed.unsqueeze(-2), half_log_det
    )


class Part(NamedTuple):
    """Filtered nodes that were made together.

    first: the number of the first one. kinds: of what each one observes. moved: (N, h, h) A Sigma.
    """

    first: int
    updated: Any  # Updated, or UpdatedByNumbers
    kinds: list[int]
    moved: Tensor

    def cut(self, count: int) -> Part:
        """Its first nodes."""
        if count == len(self.moved):
            return self
        updated = type(self.updated)(*(value[:count] for value in self.updated))
        return Part(self.first, updated, self.kinds[:count], self.moved[:count])


def predict(filtered: Tensor, matrix: Tensor, noise: Tensor) -> Tensor:
    """A Sigma A' + Q: the covariance one step later."""
    return symmetric(matrix @ filtered @ matrix.mT) + noise


def advance(
    predicted: Tensor, matrix: Tensor, noise: Tensor, observe: Callable[[Tensor], Any], num_steps: int
) -> tuple[Any, Tensor, Tensor]:
    """Several steps in a row from one predicted covariance (h, h).

    Args:
        matrix, noise: (1 | k, h, h) of the steps. observe: what observations make of a covariance (1, h, h).

    Returns:
        What observations make of each step's covariance, A Sigma (k, h, h), and the covariance behind it (k, h, h).
    """
    updates: list[Any] = []
    steps = [[*values.split(1)] * (1 if len(values) > 1 else num_steps) for values in (matrix, noise)]
    # without gradients matrices are made where they are to stand: putting large ones together costs as much as a product
    is_plain = not torch.is_grad_enabled() and type(predicted) is Tensor and not twice.transformed()
    rooms = [predicted.new_empty(num_steps, *predicted.shape) for _ in range(2)] if is_plain else []
    moved: list[Any]
    later: list[Any]
    moved, later = [list(room.split(1)) for room in rooms] or [[None] * num_steps for _ in range(2)]
    here = predicted.unsqueeze(0)
    for k, (a, q) in enumerate(zip(*steps, strict=True)):
        new = observe(here)
        updates.append(new)
        moved[k] = torch.matmul(a, new.filtered, out=moved[k])
        spread = moved[k] @ a.mT
        here = later[k] = torch.add((spread + spread.mT) / 2, q, out=later[k])
    parts = map(torch.cat, zip(*updates, strict=True))
    moves, covariances = rooms or map(torch.cat, (moved, later))
    return type(updates[0])(*parts), moves, covariances


def adjoint(information: Tensor, closed_loop: Tensor, later: Tensor) -> Tensor:
    """N_t = Lam W + (A W)' N_{t+1} (A W): what all observations from t on say beyond the past."""
    return information + symmetric(closed_loop.mT @ later @ closed_loop)


def adjoints(information: Tensor, closed_loops: Tensor, later: Tensor) -> Tensor:
    """(k, h, h) :func:`adjoint` of k steps, each before the one before it; later: (h, h) of the step behind the first."""
    results = []
    for here, loop in zip(information, closed_loops, strict=True):
        later = loop.mT @ later @ loop
        later = here + (later + later.mT) / 2
        results.append(later)
    return torch.stack(results)


def smoothed(filtered: Tensor, gain: Tensor, later: Tensor) -> Tensor:
    """Sigma - Sigma A' N_{t+1} A Sigma, gain = Sigma A': the covariance given all observations."""
    return filtered - symmetric(gain @ later @ gain.mT)


def lag_one(gain: Tensor, predicted_later: Tensor, later: Tensor) -> Tensor:
    """Cov(x_{t+1}, x_t | all) = (I - P_{t+1} N_{t+1}) A Sigma_t."""
    return gain.mT - predicted_later @ (later @ gain.mT)


class BackwardDraw(NamedTuple):
    """p(x_t | x_{t+1}, y_1..y_t) = N(x_t|t + J (x_{t+1} - predicted mean), root root')."""

    gain: Tensor
    root: Tensor


def backward_draw(filtered: Tensor, matrix: Tensor, noise: Tensor) -> BackwardDraw:
    """How a state is drawn given the next one; a singular predicted covariance is allowed."""
    gain, spread = backward(filtered, matrix, noise)
    return BackwardDraw(gain, square_root(spread))


def backward(filtered: Tensor, matrix: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """J and Cov(x_t | x_{t+1}, y_1..y_t), which Joseph's form keeps positive: (I - J A) Sigma (I - J A)' + J Q J'."""
    gain = filtered @ matrix.mT
    predicted = symmetric(matrix @ gain) + noise
    # directions in which the next state is certain say nothing about this one
    least = torch.finfo(predicted.dtype).eps * predicted.shape[-1]
    inverse = torch.linalg.pinv(predicted, rtol=least, hermitian=True)
    moved, identity = gain, torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    gain = moved @ inverse
    # Newton's step from there: gradients of an inverse of large and small numbers have few digits of their own
    gain = gain + ((identity - gain @ matrix) @ moved - gain @ noise) @ inverse
    rest = identity - gain @ matrix
    return gain, symmetric(rest @ filtered @ rest.mT + gain @ noise @ gain.mT)


def square_root(covariance: Tensor) -> Tensor:
    """The symmetric square root of a positive semidefinite matrix."""
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT


# ---------------------------------------------------------------- when nothing changes any more
def size_of(matrix: Tensor) -> Tensor:
    """(...) the largest entry of matrices (..., h, h)."""
    return matrix.detach().abs().flatten(-2).amax(-1)  # faster than aminmax along a dimension, and than a norm


def scaled_size(change: Tensor, covariance: Tensor) -> Tensor:
    """(...) the largest entry of changes (..., h, h) of covariances, in units of their coordinates' standard deviations."""
    change, variances = change.detach(), covariance.detach().diagonal(dim1=-2, dim2=-1)
    least = variances.amax(-1, keepdim=True) * NEGLIGIBLE
    # finite, so that no change of no variance is none
    scale = torch.maximum(variances, least).rsqrt().clamp_max(torch.finfo(change.dtype).max ** 0.5)
    scaled = change.abs().mul_(scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
    return scaled.flatten(-2).amax(-1).nan_to_num(0.0, torch.inf)


class Record(NamedTuple):
    """Relative changes on the way to a node: the smallest one, the number of steps since then, the last one."""

    least: float = float("inf")
    age: int = 0
    last: float = 0.0


class Convergence:
    """Decides when a recursion of covariances stands still: in value and, where gradients are wanted, in them as well.

    A change of an early covariance changes a later one by X dP X' with X the product of closed loops in between; unless X has
    died out, too, a start that happens to be the steady covariance would hide the gradient of everything behind it.
    """

    def __init__(self, tol: float, wait_for_rounding: bool, wants_gradient: bool, h: int):
        self.tol, self.wait_for_rounding, self.wants_gradient = tol, wait_for_rounding, wants_gradient
        self.sensitivity: dict[int, Tensor] = {}  # node -> X
        self.records: dict[int, Record] = {}
        self.rounding = ROUNDING
        self.identity = torch.eye(h, dtype=DOUBLE)

    @property
    def agree(self) -> float:
        """Relative difference within which two covariances that stand still are one: well above rounding."""
        return max(self.tol, 100 * self.rounding) if self.wait_for_rounding else self.tol

    def memory(self, parent: int, loop: Tensor, fresh: bool = False) -> tuple[Tensor, Tensor]:
        """X of a node, and of the one behind it by a step with this closed loop, where gradients are wanted.

        fresh: the parent stands still; what departs from it starts anew.
        """
        before = self.identity if fresh else self.sensitivity.get(parent, self.identity)
        return before, loop.detach().to(self.identity.device) @ before

    def forgotten(self, product: Tensor | None) -> bool:
        """Whether the start no longer matters: X is negligible."""
        return product is None or float(product.norm()) ** 2 <= self.tol * max(1.0, float(len(product)) ** 0.5)

    def still(self, parent: int, change: float, fresh: bool = False) -> tuple[bool, Record]:
        """Whether a relative change is none, and the record to keep for the new node; fresh: as above."""
        before = Record() if fresh else self.records.get(parent, Record())
        least, age = before.least, before.age + 1
        # what is far above rounding is a new transient, behind a gap
        if change < least or change > 100 * self.rounding:
            least, age = change, 0
        rounding = self.wait_for_rounding and max(least, change) <= self.rounding and age >= PATIENCE
        ahead = change
        if self.tol > ROUNDING and change > ROUNDING:
            # small changes of a slow chain add up, as a geometric series, to what is not small
            rate = change / before.last if before.last > 0 else 1.0
            ahead = max(change, change * rate / (1 - rate)) if rate < 1 else float("inf")
        return ahead <= self.tol or rounding, Record(least, age, change)


def runs_of(index: Tensor) -> Runs:
    """(start, stop, node) of the steps that have one node, from an index (T,)."""
    nodes, counts = torch.unique_consecutive(index, return_counts=True)
    stops = [0, *counts.cumsum(0).tolist()]
    return list(zip(stops[:-1], stops[1:], nodes.tolist(), strict=True))


def precisions(observed: Tensor, noise: Tensor | None) -> list[float]:
    """Of each kind of observation, how precise it is: the largest entry of its information.

    Args:
        observed: information (P, h, h), or loadings (P, n, h) beside the covariance of their noise (P, n, n).
    """
    with torch.no_grad():
        if noise is None:
            return size_of(observed).tolist()
        variances = noise.diagonal(dim1=-2, dim2=-1)
        return (observed.square().sum(-1) / variances).nan_to_num(0.0, torch.inf).amax(-1).tolist()


@torch.no_grad()
def check_density(
    half_log_det: Tensor, kinds: Tensor, whitener: Callable[[], Tensor], noise: Tensor, steps: list[int]
) -> None:
    """Raises where an exact observation is determined by earlier ones, so that it has no density.

    Args:
        half_log_det, whitener, kinds, steps: of covariances, and at which steps they were made.
        noise: (P, n, n) of each kind.
    """
    good, exact = half_log_det.isfinite(), noise.diagonal(dim1=-2, dim2=-1) == 0
    if bool(exact.any()):
        # pivots of S in the share of the largest: rounding errors of what is certain
        scale = whitener().diagonal(dim1=-2, dim2=-1).abs()
        least = scale.where(scale > 0, torch.inf).amin(0)
        good &= ~(exact[kinds] & (scale > CERTAIN * least)).any(-1)
    if not bool(good.all()):
        step = steps[int((~good).nonzero()[0])]
        raise ValueError(
            f"step {step}: the covariance of its observation given the past is singular, so it has no density: what is "
            "observed without noise is determined by earlier observations, or twice; give observations or states noise"
        )


def noise_gains(noise: Tensor, seen: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
    """What an error w + v, of which only some numbers are seen, says of w ~ N(0, noise), where v ~ N(0, added) is independent.

    Args:
        noise: (n, n), may be singular. seen: (*B, n) bool. added: (*B, n, n), or None for no v.

    Returns:
        (*B, n, n) G with E[w | error] = G error, zero in columns that are not seen, and the covariance of w that is left.
    """
    share = seen.to(noise)
    total = noise if added is None else noise + added
    total = total * share.unsqueeze(-1) * share.unsqueeze(-2) + torch.diag_embed(1 - share)
    gains = (noise * share.unsqueeze(-2)) @ torch.linalg.pinv(total, hermitian=True)
    return gains, symmetric(noise - gains @ (noise * share.unsqueeze(-1)))
