"""Exact EM of a linear dynamical system: expected statistics of its three regressions, and their closed-form maxima.

The transition and the emission are both regressions, y = W r + noise with noise ~ N(0, S): of z_t on (z_{t-1}, 1, u_t), and of
x_t on (z_t, 1, u_t). Statistics are kept about the current W, as sums of E[(y - W r) r'] rather than of E[y r']: the maximum is
the same, and nothing cancels where data lie far from zero.

Source: Z. Ghahramani and G. E. Hinton (1996), Parameter estimation for linear dynamical systems; for rows observed in part,
R. H. Shumway and D. S. Stoffer (2017), Time Series Analysis and Its Applications, 4th ed., section 6.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.distributions.gaussian_types import masked_precisions
from pplseq.kernels.kalman import symmetric
from pplseq.kernels.matrix_equations import stationary_covariance
from pplseq.models.lds.parameters import RegressionPrior, as_array, as_tensor

STATIONARY_ROUNDS = 5  # of coordinate ascent in an M-step whose first state depends on the dynamics
HALVINGS = 30
CLEARLY = 1e12  # numbers below which rounding is far less than one

Floor = float | Tensor


class Regression(NamedTuple):
    """Sums over steps of y = W r + noise, about the W that they were gathered with: e = y - W r.

    count: () steps. moment: (k, k) of E[r r']. cross: (n, k) of E[e r']. scatter: (n, n) of E[e e'].
    """

    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    moment: Tensor
    cross: Tensor
    scatter: Tensor


# ------------------------------------------------------------------------------------------------ E-step
def transition_statistics(means, smoothed, lag_one, valid, weights, extras) -> Regression:
    """Statistics of z_t = W (z_{t-1}, extras_t) + noise.

    Args:
        means: (B, T, h) smoothed. smoothed: their covariances, with ``total(mask)``. lag_one: of Cov(z_{t+1}, z_t | x).
        valid: (B, T) bool. weights: (h, k) W. extras: (B, T, k - h) what beside the state z_t is regressed on.
    """
    moves = valid[:, 1:]
    size, edge = weights.shape[0], torch.zeros_like(valid[:, :1])
    # masked means may be anything, padded inputs too: where, not a product
    regressors = torch.cat([means[:, :-1], extras[:, 1:]], -1).where(moves.unsqueeze(-1), 0.0)
    residuals = (means[:, 1:] - regressors @ weights.T).where(moves.unsqueeze(-1), 0.0)
    before, after = (smoothed.total(torch.cat(part, 1)) for part in ([moves, edge], [edge, moves]))
    joint = lag_one.total(moves)
    matrix = weights[:, :size]
    moment, cross = outer_sum(regressors, regressors), outer_sum(residuals, regressors)
    scatter = outer_sum(residuals, residuals)
    moment[:size, :size] += before
    cross[:, :size] += joint - matrix @ before
    scatter += after - matrix @ joint.T - joint @ matrix.T + matrix @ before @ matrix.T
    return Regression(moves.sum().to(means), moment, cross, symmetric(scatter))


def emission_statistics(means, smoothed, x, observed, valid, weights, extras, noise) -> Regression:
    """Statistics of x_t = W (z_t, extras_t) + noise; coordinates that are missing are expected given the others.

    Args:
        means, smoothed: as for :func:`transition_statistics`. x: (B, T, n), finite. observed: (B, T, n) bool.
        valid: (B, T) bool. weights: (n, k) W. extras: (B, T, k - h). noise: (n, n), or (n,) variances.
    """
    size = means.shape[-1]
    seen = valid & observed.any(-1)
    whole = seen & observed.all(-1)
    regressors = torch.cat([means, extras], -1).where(seen.unsqueeze(-1), 0.0)
    residuals = (x - regressors @ weights.T).where(observed & seen.unsqueeze(-1), 0.0)
    matrix = weights[:, :size]
    covariance, moment = smoothed.total(whole), outer_sum(regressors, regressors)
    moment[:size, :size] += covariance
    part = seen & ~whole
    in_part = bool(part.any())
    # both are zero at steps that are not seen
    about, left = (residuals[whole], regressors[whole]) if in_part else (residuals, regressors)
    cross = outer_sum(about, left)
    cross[:, :size] -= matrix @ covariance
    scatter = outer_sum(about, about) + matrix @ covariance @ matrix.T
    if in_part:
        patterns, which = torch.unique(observed[part], dim=0, return_inverse=True)
        full = torch.diag(noise) if noise.dim() == 1 else noise
        # e = gain (observed part of e) + what noise of the missing coordinates is left
        gains = _gains(full, patterns)
        errors = (gains[which] @ residuals[part].unsqueeze(-1)).squeeze(-1)
        spread = means.new_zeros(len(patterns), size, size).index_add_(0, which, smoothed.dense()[part])
        counts = torch.bincount(which, minlength=len(patterns)).to(means)
        moment[:size, :size] += spread.sum(0)
        cross += errors.T @ regressors[part]
        cross[:, :size] -= (gains @ matrix @ spread).sum(0)
        left = full - gains @ full
        scatter += errors.T @ errors + (gains @ matrix @ spread @ matrix.T @ gains.mT).sum(0)
        scatter += torch.einsum("p,pij->ij", counts, left)
    return Regression(seen.sum().to(means), moment, cross, symmetric(scatter))


def _gains(noise: Tensor, patterns: Tensor) -> Tensor:
    """(P, n, n) by which errors of the coordinates seen (P, n) are expected in all of them; noise (n, n) may be singular."""
    if bool((noise.diagonal() > 0).all()):
        return noise @ masked_precisions(noise, patterns)[0]
    seen = patterns.to(noise)
    inverse = torch.linalg.pinv(noise * seen.unsqueeze(-1) * seen.unsqueeze(-2), hermitian=True)
    return torch.diag_embed(seen) + (1 - seen).unsqueeze(-1) * (noise @ inverse)


def outer_sum(left: Tensor, right: Tensor) -> Tensor:
    """Sums of outer products of rows, over all axes but the last."""
    return left.flatten(0, -2).T @ right.flatten(0, -2)


# ------------------------------------------------------------------------------------------------ M-step
def regression_mode(
    weights: Tensor, noise: Tensor, statistics: Regression, *, free: Tensor, shrunk: Tensor, prior: RegressionPrior,
    floor: Floor, diagonal: bool = False, hold_noise: bool = False,
) -> tuple[Tensor, Tensor, bool]:  # fmt: skip
    """The most probable weights and noise of a regression.

    Args:
        weights: (n, k) W that the statistics are about. noise: (n, n) current covariance.
        free: (k,) bool columns of W that may move. shrunk: (k,) bool columns that the prior pulls to zero.
        floor: smallest variance in any direction, see :func:`floored_covariance`; the result is the maximum under it.
        diagonal: of the noise. hold_noise: keep it.

    Returns:
        W (n, k), the covariance (n, n), and whether it met the floor.
    """
    numbers: list[Any] = [as_array(part) for part in statistics]
    found, covariance, floored = mode_of_arrays(
        as_array(weights), as_array(noise), Regression(*numbers), free=as_array(free),
        shrunk=as_array(shrunk), prior=prior, floor=as_array(floor), diagonal=diagonal, hold_noise=hold_noise,
    )  # fmt: skip
    return as_tensor(found, weights), as_tensor(covariance, weights), floored


def mode_of_arrays(
    start: np.ndarray, noise: np.ndarray, about: Any, *, free: np.ndarray, shrunk: np.ndarray, prior: RegressionPrior,
    floor: np.ndarray, diagonal: bool = False, hold_noise: bool = False,
) -> tuple[np.ndarray, np.ndarray, bool]:  # fmt: skip
    """:func:`regression_mode` of arrays."""
    ridge = (prior.strength * shrunk).astype(start.dtype)  # which directions are open depends on the type's digits
    found, step = start.copy(), None
    if free.any():
        # the smallest change that reaches the maximum: directions that the data leave open stay where they are
        if free.all():
            step = _solved(about.moment + np.diag(ridge), (about.cross - start * ridge).T).T
        else:
            step = np.zeros_like(start)
            gradient = (about.cross - start * ridge)[:, free]
            step[:, free] = _solved((about.moment + np.diag(ridge))[free][:, free], gradient.T).T
        found = start + step
    if hold_noise or float(about.count + prior.count) == 0:
        return found, noise, False
    total = about.scatter if step is None else residual_scatter(about, step)
    if prior.count or prior.strength:
        total = total + (found * ridge) @ found.T + prior.count * prior.variance * np.eye(len(found))
    covariance, floored = floored_array(total / (about.count + prior.count), floor, diagonal, noise)
    return found, covariance, floored


def residual_scatter(statistics: Regression, step: Any) -> Any:
    """(n, n) sum of E[(y - W r)(y - W r)'] after W was moved by ``step`` (n, k)."""
    moved = step @ statistics.cross.T
    return symmetric(statistics.scatter - moved - moved.T + step @ statistics.moment @ step.T)


def floored_covariance(covariance: Tensor, floor: Floor, diagonal: bool, before: Tensor) -> tuple[Tensor, bool]:
    """The covariance (n, n), or its diagonal, with no variance below ``floor`` in any direction; and whether one was.

    Args:
        floor: a variance, or (n,) one of each coordinate.
        before: (n, n) what it was; where that is below the floor, the floor is lowered to it: EM never leaves what it stands
            at for something less likely.
    """
    value, floored = floored_array(as_array(covariance), as_array(floor), diagonal, as_array(before))
    return as_tensor(value, covariance), floored


def floored_array(covariance: np.ndarray, floor: np.ndarray, diagonal: bool, before: np.ndarray) -> tuple[np.ndarray, bool]:
    """:func:`floored_covariance` of arrays."""
    variances = np.zeros(len(covariance)) + floor
    if diagonal:
        variances, values = np.minimum(variances, before.diagonal()), covariance.diagonal()
        return np.diag(np.maximum(values, variances)), bool((values < variances).any())
    unit = np.sqrt(variances)
    unit = np.outer(unit, unit)  # in these units the floor is 1
    value = symmetric(covariance / unit)
    if is_above(value):
        return value * unit, False
    share = min(max(np.linalg.eigvalsh(before / unit)[0], 0.0), 1.0)
    values, vectors = np.linalg.eigh(value)
    if floored := bool((values < share).any()):  # as in floor_eigenvalues
        value = symmetric((vectors * np.maximum(values, share)) @ vectors.T)
    return value * unit, floored


def is_above(covariance: np.ndarray) -> bool:
    """Whether a covariance (n, n) is clearly above the floor in every direction, in units in which that is 1."""
    if not abs(covariance).max() < CLEARLY:
        return False
    lowered = covariance.copy()
    lowered.flat[:: len(lowered) + 1] -= 2.0
    try:
        np.linalg.cholesky(lowered)
    except np.linalg.LinAlgError:
        return False
    return True


def solve_symmetric(matrix: Tensor, right: Tensor) -> Tensor:
    """The smallest X of matrix X = right for a positive semi-definite matrix (k, k), which is scaled first."""
    return as_tensor(_solved(as_array(matrix), as_array(right)), right)


def _solved(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    scale = np.sqrt(matrix.diagonal())
    scale = np.where(scale > 0, scale, 1.0)[:, None]
    values, vectors = np.linalg.eigh(symmetric(matrix / scale.T / scale))
    size = abs(values)
    known = size > len(matrix) * np.finfo(values.dtype).eps * size.max()
    turned = vectors.T @ (right / scale)
    turned[known] /= values[known, None]
    turned[~known] = 0.0
    return vectors @ turned / scale


def stationary_mode(
    weights: Tensor, noise: Tensor, statistics: Regression, mean: Tensor, spread: Tensor, num_sequences: Tensor,
    first_mean: Callable[[Tensor], Tensor], *, free: Tensor, shrunk: Tensor, prior: RegressionPrior, floor: Floor,
    diagonal: bool = False, hold_noise: bool = False,
) -> tuple[Tensor, Tensor, bool]:  # fmt: skip
    """As :func:`regression_mode` for a transition on which the first state's distribution depends: P = A P A' + Q.

    There is no closed form: coordinate ascent from the current parameters, each step along the gradient in the metric in
    which, but for the first states, it would lead straight to the maximum; shortened until the objective does not fall.

    Args:
        mean, spread: (h,) average of E[z_1] over sequences, and (h, h) the sum of E[(z_1 - mean)(z_1 - mean)'].
        num_sequences: () how many. first_mean: W -> (h,) the stationary mean.
    """
    size, start = len(weights), weights
    ridge = prior.strength * shrunk.to(weights)
    held_precision = torch.linalg.pinv(noise, hermitian=True) if hold_noise else noise

    def objective(matrix, covariance):
        about = mean - first_mean(matrix)
        stationary = stationary_covariance(matrix[:, :size], covariance)
        scatter = residual_scatter(statistics, matrix - start)
        first = num_sequences * torch.outer(about, about) + spread
        value = prior.log_prob(matrix, covariance, shrunk) + _log_density(num_sequences, stationary, first)
        if hold_noise:  # it may be singular: what it leaves no room for stays as it is
            return value - (held_precision * scatter).sum() / 2
        return value + _log_density(statistics.count, covariance, scatter)

    def ascend(point, direction_of, build):
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            value = objective(*build(point))
            (gradient,) = torch.autograd.grad(value, point)
        step, point = direction_of(gradient), point.detach()
        for _ in range(HALVINGS):
            try:
                other = objective(*build(point + step))
            except (ValueError, torch.linalg.LinAlgError):  # pyright: ignore[reportPrivateImportUsage]  # no longer stable, or no covariance
                other = value.new_tensor(-torch.inf)
            if bool(other >= value):
                return point + step
            step = step / 2
        return point

    moment = statistics.moment + torch.diag(ridge)
    floored = False
    for _ in range(STATIONARY_ROUNDS):
        if bool(free.any()):

            def along(gradient, noise=noise):
                step = torch.zeros_like(gradient)
                step[:, free] = solve_symmetric(moment[free][:, free], (noise @ gradient[:, free]).T).T
                return step

            weights = ascend(weights, along, lambda w, noise=noise: (w, noise))
        if not hold_noise:
            total = float(statistics.count + prior.count)

            def towards(gradient, noise=noise, total=total):
                target = noise + 2 / total * noise @ symmetric(gradient) @ noise
                nonlocal floored
                target, floored = floored_covariance(target, floor, diagonal, noise)
                return target - noise

            noise = ascend(noise, towards, lambda s, weights=weights: (weights, symmetric(s)))
    return weights, noise, floored


def _log_density(count: Tensor, covariance: Tensor, scatter: Tensor) -> Tensor:
    """log N(0, covariance) of so many vectors with this scatter, without its constant."""
    factor = torch.linalg.cholesky(covariance)
    return -count * factor.diagonal().log().sum() - torch.cholesky_solve(scatter, factor).trace() / 2
