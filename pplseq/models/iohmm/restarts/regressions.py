"""Weighted regressions, many at once over the same features: the maximisers behind EM with inputs.

P problems share N rows of F features and differ in their weights. Each goes its own way, so that a problem's solution does
not depend on which others are solved with it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.infer.fit.em import floor_eigenvalues
from pplseq.kernels import compiled
from pplseq.kernels.compiled import array
from pplseq.kernels.log_semiring import log_softmax

NEWTON_SIZE = 320  # unknowns of a problem up to which the Hessian is formed
BOUND_STEPS = 4  # steps with a bound of the Hessian that replace one with the Hessian
CELLS = 1 << 22  # numbers in one temporary
HALVINGS = 30
ITERATIONS = 5  # of a climb, usually
COMPILED_SIZE, COMPILED_ROWS = 32, 1000  # unknowns up to which, and rows from which, loops are the faster way


class Solution(NamedTuple):
    """weights (P, F, K); objective (P,), nats; iterations taken at most; converged (P,)."""

    weights: Tensor
    objective: Tensor
    num_iterations: int
    converged: Tensor


def softmax_objective(
    features: Tensor, counts: Tensor, weights: Tensor, forbidden: Tensor | None = None, ridge: Tensor | float = 0.0
) -> Tensor:
    """(P,) sum_nk counts_nk log softmax(features weights)_nk - sum_fk ridge_f weights_fk^2 / 2, nats.

    Args:
        features: (N, F). counts: (P, N, K), not negative. weights: (P, F, K).
        forbidden: (P, K) or (K,) True for classes of probability zero. ridge: precision of a Normal prior, a number or (F,).
    """
    log_probs = _log_probs(features, weights, forbidden)
    return _value(log_probs, counts, weights, _column(ridge, features))


def _column(ridge, features: Tensor) -> Tensor:
    return torch.as_tensor(ridge, dtype=features.dtype, device=features.device).expand(features.shape[1]).unsqueeze(-1)


def _log_probs(features, weights, forbidden) -> Tensor:
    logits = features @ weights
    if forbidden is not None:
        forbidden = forbidden if forbidden.dim() == 1 else forbidden.unsqueeze(-2)
        logits = logits.masked_fill(forbidden, -torch.inf)
    return log_softmax(logits)


def _value(log_probs, counts, weights, ridge) -> Tensor:
    return torch.where(counts > 0, counts * log_probs, 0.0).sum((-1, -2)) - (ridge * weights**2).sum((-1, -2)) / 2


def softmax_regression(
    features: Tensor,
    counts: Tensor,
    weights: Tensor,
    *,
    forbidden: Tensor | None = None,
    ridge: Tensor | float = 0.0,
    max_iterations: int = 20,
    tolerance: float = 1e-9,
    newton_size: int = NEWTON_SIZE,
) -> Solution:
    """Weighted multinomial logistic regressions: climbs :func:`softmax_objective` from ``weights``, never down.

    Newton's method with halved steps where the problem has up to ``newton_size`` unknowns F K; beyond, steps with Böhning's
    bound -(I - 11'/K) x (X' diag(n) X) / 2 of the Hessian, which need a matrix of size F only and always go up.

    Args:
        features, counts, weights, forbidden, ridge: see :func:`softmax_objective`; weights are where to start.
        max_iterations: steps at most (of the bound: 4 times as many).
        tolerance: stop a problem when Newton's decrement (what a step promises), is below this share of its counts, nats.

    Returns:
        Solution; a problem without counts and ridge keeps its weights. Without a ridge, separable data have no maximum:
        weights then grow from call to call, as the likelihood does.

    Source: D. Böhning (1992), Multinomial logistic regression algorithm, Ann. Inst. Statist. Math. 44.
    """
    ridge = _column(ridge, features)
    num_problems, _, num_classes = counts.shape
    total = counts.sum(-1)  # (P, N)
    size = total.sum(-1)
    unpenalised, bound = not bool(ridge.any()), None
    allowed = torch.ones_like(counts[:, 0], dtype=torch.bool)
    if forbidden is not None:
        forbidden = forbidden.expand_as(allowed)
        allowed = ~forbidden
    if features.shape[1] * num_classes > newton_size:
        max_iterations *= BOUND_STEPS
        bound = factor(features.T @ (total.unsqueeze(-1) * features) / 2 + torch.diag(ridge.squeeze(-1)))
    elif _pays_compiled(features, num_classes):
        return _by_loops(features, counts, total, weights, allowed, ridge, max_iterations, tolerance)
    log_probs = _log_probs(features, weights, forbidden)
    value = _value(log_probs, counts, weights, ridge)
    converged, iteration = torch.zeros(num_problems, dtype=torch.bool, device=counts.device), 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007
        going = (~converged).nonzero().squeeze(-1)  # problems at rest cost nothing
        probs, own, old = log_probs[going].exp(), counts[going], weights[going]
        gradient = features.T @ (own - total[going].unsqueeze(-1) * probs) - ridge * old
        if bound is not None:
            step = torch.cholesky_solve(gradient, bound[going])
        else:
            step = _newton_step(features, total[going], probs, gradient, ridge)
        if unpenalised:  # adding the same to all classes changes nothing: rounding must not, either
            own_allowed = allowed[going].unsqueeze(1)
            mean = (step * own_allowed).sum(-1, keepdim=True) / own_allowed.sum(-1, keepdim=True)
            step = (step - mean) * own_allowed
        promise = (gradient * step).sum((-1, -2)) / 2
        done = ~(promise > tolerance * size[going].clamp_min(1.0))  # NaN is done, too
        share = torch.where(done, 0.0, 1.0)
        trial, new, reached, worse = old, log_probs[going], value[going], share > 0
        for halving in range(HALVINGS):
            share = torch.where(worse, share / 2, share) if halving else share
            trial = old + share[:, None, None] * step
            new = _log_probs(features, trial, forbidden if forbidden is None else forbidden[going])
            reached = _value(new, own, trial, ridge)
            worse = ~(reached >= value[going]) & (share > 0)
            if not bool(worse.any()):
                break
        keep = (share > 0) & ~worse
        moved = going[keep]
        weights = weights.index_copy(0, moved, trial[keep])
        log_probs, value = log_probs.index_copy(0, moved, new[keep]), value.index_copy(0, moved, reached[keep])
        converged = converged.index_fill(0, going[~keep], True)
        if bool(converged.all()):
            break
    return Solution(weights, value, iteration, converged)


def _pays_compiled(features: Tensor, num_classes: int) -> bool:
    few = features.shape[1] * num_classes <= COMPILED_SIZE and len(features) >= COMPILED_ROWS
    if not few or features.device.type != "cpu" or features.dtype != torch.float64:
        return False
    size = features.shape[1] * num_classes
    return compiled.pays("models.iohmm.restarts.regression_loops.climb", ITERATIONS * 40, ITERATIONS * len(features) * size**2)


def _by_loops(features, counts, total, weights, allowed, ridge, max_iterations, tolerance) -> Solution:
    """:func:`softmax_regression` by Newton's method, problem after problem, each a compiled loop."""
    from pplseq.models.iohmm.restarts.regression_loops import climb

    rows, pull = array(features.T), array(ridge.squeeze(-1))
    found, values, rest, most = [], [], [], 0
    for own, mass, weight, fair in zip(counts, total, weights, allowed, strict=True):
        result, data = weight.detach().clone(memory_format=torch.contiguous_format), (array(own.T), array(mass))
        value, taken, done = climb(rows, *data, result.numpy(), array(fair), pull, max_iterations, HALVINGS, tolerance)
        most = max(most, taken)
        for kept, one in zip((found, values, rest), (result, value, done), strict=True):
            kept.append(one)
    return Solution(torch.stack(found), weights.new_tensor(values), most, torch.tensor(rest))


def _newton_step(features, total, probs, gradient, ridge) -> Tensor:
    """(P, F, K) the solution of (-Hessian) step = gradient."""
    num_features, num_classes = features.shape[1], probs.shape[-1]
    outer = (features.unsqueeze(-1) * features.unsqueeze(-2)).flatten(1)  # (N, F F)
    size = num_features * num_classes
    steps = []
    at_once = max(1, CELLS // (len(features) * num_classes**2))
    for part in torch.arange(len(total), device=total.device).split(at_once):
        p = probs[part]
        spread = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)  # (P, N, K, K)
        spread = (total[part][..., None, None] * spread).flatten(-2)
        hessian = (outer.T @ spread).unflatten(-1, (num_classes, -1)).unflatten(1, (num_features, -1))
        hessian = hessian.permute(0, 1, 3, 2, 4).reshape(-1, size, size)
        hessian = hessian + torch.diag(ridge.expand(-1, num_classes).flatten())
        steps.append(torch.cholesky_solve(gradient[part].flatten(1).unsqueeze(-1), factor(hessian, num_classes)).squeeze(-1))
    return torch.cat(steps).unflatten(-1, (num_features, num_classes))


def factor(matrix: Tensor, group: int = 1) -> Tensor:
    """Cholesky factors, with what it takes on the diagonal where a direction is flat (all classes up together, say).

    That is a share of the largest entry of each ``group`` of successive ones, which are of one feature: what is little for one
    may be all there is of another, in other units.
    """
    top = matrix.diagonal(dim1=-2, dim2=-1).unflatten(-1, (-1, group)).amax(-1).repeat_interleave(group, -1)
    slight = torch.finfo(matrix.dtype).eps ** 0.6
    return torch.linalg.cholesky_ex(matrix + torch.diag_embed(slight * top + torch.finfo(matrix.dtype).tiny ** 0.5))[0]


def bernoulli_regression(features: Tensor, ones: Tensor, zeros: Tensor, weights: Tensor, **options) -> Solution:
    """Weighted logistic regressions, log p(1) / p(0) = features weights: climbs from ``weights``.

    Args:
        features: (N, F). ones, zeros: (P, N) weights of the two outcomes. weights: (P, F).
        **options: of :func:`softmax_regression`; ``ridge`` is on these weights.
    """
    # as two classes of logits +-w/2; a ridge of 2 r on each half is one of r on w
    ridge = torch.as_tensor(options.pop("ridge", 0.0)) * 2
    halves = torch.stack([-weights / 2, weights / 2], -1)
    result = softmax_regression(features, torch.stack([zeros, ones], -1), halves, ridge=ridge, **options)
    return result._replace(weights=result.weights[..., 1] - result.weights[..., 0])


def linear_regression(
    features: Tensor, targets: Tensor, weight: Tensor, *, ridge: Tensor | float = 0.0, previous: Tensor | None = None
) -> Tensor:
    """(P, F, D) weighted least squares: argmin_W sum_n weight_n |y_n - x_n W|^2 + sum ridge_f W_f^2.

    Args:
        features: (N, F). targets: (N, D) or (P, N, D). weight: (P, N). ridge: a number or (F,).
        previous: (P, F, D) kept by problems without any weight.
    """
    moment = features.T @ (weight.unsqueeze(-1) * features) + torch.diag(_column(ridge, features).squeeze(-1))
    cross = (weight.unsqueeze(1) * features.T) @ targets
    result = torch.cholesky_solve(cross, factor(moment))
    # what the slight addition to the diagonal took away comes back
    result = result + torch.cholesky_solve(cross - moment @ result, factor(moment))
    return result if previous is None else torch.where((weight.sum(1) > 0)[:, None, None], result, previous)


def residual_covariance(
    residual: Tensor, weight: Tensor, covariance: str, floor: float | Tensor, group: int = 1, extra: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Maximum-likelihood covariances of weighted residuals, no variance below ``floor`` in any direction.

    Args:
        residual: (P, N, D). weight: (P, N).
        covariance: "diag", "full", "spherical" or "tied" (one full matrix for each ``group`` of successive problems).
        floor: smallest variance, or (D,) those of each dimension.
        extra: (P, D, D) scatter beside that of the residuals (of what was not seen), or None.

    Returns:
        (P, D, D), NaN for problems without weight, and a mask (P,) of those that met the floor.
    """
    floor = torch.as_tensor(floor).to(residual).expand(residual.shape[-1])
    if covariance in ("diag", "spherical"):
        floor = floor.mean() if covariance == "spherical" else floor
        scatter = (weight.unsqueeze(-1) * residual**2).sum(1)
        scatter = scatter if extra is None else scatter + extra.diagonal(dim1=-2, dim2=-1)
        variance = scatter / weight.sum(1, keepdim=True)
        if covariance == "spherical":
            variance = variance.mean(-1, keepdim=True).expand_as(variance)
        return torch.diag_embed(variance.maximum(floor)), (variance < floor).any(-1)
    scatter, mass = residual.mT @ (weight.unsqueeze(-1) * residual), weight.sum(1)
    scatter = scatter if extra is None else scatter + extra
    if covariance == "tied":
        scatter, mass = (value.unflatten(0, (-1, group)).sum(1) for value in (scatter, mass))
    result = scatter / mass[:, None, None]
    known = torch.isfinite(result).all(-1).all(-1)  # the eigenvalues of NaN raise
    eye = torch.eye(result.shape[-1], dtype=result.dtype, device=result.device)
    unit = floor.sqrt()
    unit = torch.outer(unit, unit)  # in these units the floor is 1
    value, floored = floor_eigenvalues(torch.where(known[:, None, None], result / unit, eye), 1.0)
    value, floored = torch.where(known[:, None, None], value * unit, torch.nan), floored & known
    if covariance == "tied":
        value, floored = value.repeat_interleave(group, 0), floored.repeat_interleave(group, 0)
    return value, floored
