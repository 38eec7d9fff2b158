"""The gradient of a Gaussian chain's likelihood from its smoother: one pass back, whatever it is taken in.

With lambda_t and -N_t the first and second derivatives of log p(y_t, y_{t+1}, ... | past) in the predicted mean, and e_t and
E_t what they are of an observation, all derivatives are sums of products over steps; nothing is inverted, so that noise may be
singular. The readable twin is automatic differentiation of the filter in torch.

Source: S. J. Koopman and N. Shephard (1992), Exact score for time series models in state space form, Biometrika 79(4); for
matrices of the observations by the same argument, with Cov(x_t, y_t | all other observations) S^-1 = K - Sigma A' N_{t+1} A K.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pplseq.infer.gaussian.numbers import Numbers
from pplseq.kernels import twice
from pplseq.kernels.kalman import DOUBLE
from pplseq.kernels.matrix_table import MatrixIndex, apply_matrices, recursion


def row_log_probs(chain) -> Tensor | None:
    """(R,) log p(y) of a chain whose gradients come from the smoother; None where it has neither compiled loops nor one
    covariance path for all rows, or noise of each step's own."""
    if twice.transformed() or torch._C._get_tracing_state() is not None or chain.flat.noise.shape[:2] != (1, 1):
        return None
    with torch.no_grad():
        if chain.loops is None and not chain.shares_gains:
            return None
    return _LogProbs.apply(chain, *_inputs(chain))


def _inputs(chain) -> tuple[Tensor | None, ...]:
    flat, numbers = chain.flat, chain.flat.evidence
    about = flat.mean, flat.covariance, flat.matrix, flat.noise, flat.offset
    return *about, numbers.residual, numbers.loadings, numbers.noise, numbers.constant


def _twin(chain, *inputs) -> Tensor:
    """The same by automatic differentiation."""
    other, flat = copy.copy(chain), chain.flat
    mean, covariance, matrix, noise, offset, residual, loadings, spread, constant = inputs
    numbers = flat.evidence._replace(residual=residual, loadings=loadings, noise=spread, constant=constant)
    other.flat = flat._replace(
        mean=mean, covariance=covariance, matrix=matrix, noise=noise, offset=offset, evidence=numbers
    )
    other.forget()
    return other.step_log_probs.sum(0)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, chain, *inputs):
        ctx.chain = chain
        ctx.save_for_backward(*inputs)
        return chain.step_log_probs.sum(0)

    @staticmethod
    def backward(ctx, *grads):
        inputs: Any = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *twice.gradients(lambda *values: _twin(ctx.chain, *values), inputs, grads)
        wanted = ctx.needs_input_grad[1:]
        found = _gradients(ctx.chain, grads[0].to(DOUBLE), Wanted(*wanted))
        return None, *(g.to(v) if w else None for g, v, w in zip(found, inputs, wanted, strict=True))


def _smoothed(chain) -> tuple[Tensor, Tensor, Tensor]:
    """Smoothed means (T, R, h), lambda (T, R, h) and e (T, R, n), all steps of one kind at once where there are no loops."""
    if chain.loops is not None:
        return chain.loops.smooth(with_errors=True)
    path, means, used = chain.path, chain.filtered_means, chain.flat.used
    dtype, every = means.dtype, MatrixIndex(path.index, path.num_nodes)
    white = chain.white_innovations
    white = white if used is None else torch.where(used.unsqueeze(-1), white, 0.0)
    adjoint = apply_matrices(path.surprising.to(dtype), every, white)
    error = apply_matrices(path.whitener.mT.to(dtype), every, white)
    if len(means) == 1:
        return means, adjoint, error
    between = MatrixIndex(path.index[:-1], path.num_nodes)
    adjoint = recursion(path.closed_loop.mT.to(dtype), between, adjoint, reverse=True, overwrite=True)
    ahead = adjoint[1:] @ chain.flat.matrix[0, 0]
    error[:-1] -= apply_matrices(path.kalman_gain.mT.to(dtype), between, ahead)
    if used is not None:
        error = torch.where(used.unsqueeze(-1), error, 0.0)
    states = means.clone()
    states[:-1] += apply_matrices(path.filtered.to(dtype), between, ahead)
    return states, adjoint, error


class Wanted(NamedTuple):
    """Which of :func:`_inputs` a gradient is asked in."""

    mean: bool
    covariance: bool
    matrix: bool
    noise: bool
    offset: bool
    residual: bool
    loadings: bool
    variance: bool
    constant: bool


def _gradients(chain, weight: Tensor, wanted: Wanted) -> list[Any]:
    """Of (R,) log p(y), weighted by row, in all of :func:`_inputs`; None for those that are none.

    Cost: of h states T h^2, and T h^3 for a gradient in the matrix of states or the loadings.
    """
    flat, path, back = chain.flat, chain.path, chain.smoothed_path
    numbers: Numbers = flat.evidence
    states, adjoint, error = (part.to(DOUBLE) for part in _smoothed(chain))
    (num_steps, num_rows, h), n = states.shape, error.shape[-1]
    by_row = weight.unsqueeze(-1)
    pull, push = adjoint * by_row, error * by_row

    # sums over steps and rows of what covariances give, by node
    index = back.index
    weights = weight.expand(num_steps, -1) if index.dim() == 2 else weight.sum().expand(num_steps)
    counts = weight.new_zeros(len(back.of)).index_add_(0, index.reshape(-1), weights.reshape(-1))[1:, None, None]
    nodes = torch.tensor(back.of[1:])
    later = back.information[torch.tensor(back.later[1:])]
    gain, whitener = path.kalman_gain[nodes], path.whitener[nodes]
    matrix, steps, shared, noise = path.given.matrix[0, 0], pull[1:].reshape(-1, h), None, None
    ahead = matrix.mT @ (later @ (matrix @ gain))  # A' N A K
    spread = (whitener.mT @ whitener + gain.mT @ ahead) * counts
    if wanted.loadings:
        shared = (gain.mT - ahead.mT @ path.filtered[nodes]) * counts
    if wanted.noise:
        spent = (counts.reshape(1, -1) @ later.reshape(len(later), -1)).reshape(h, h)
        noise = ((steps.T @ adjoint[1:].reshape(-1, h) - spent) / 2)[None, None]
    if wanted.matrix:  # sums over nodes as one product; N is symmetric
        moved = (path.gain[nodes].mT * counts).reshape(-1, h)
        matrix = (steps.T @ states[:-1].reshape(-1, h) - later.reshape(-1, h).T @ moved)[None, None]
    first = back.information[index[0]]
    start = (pull[0].unsqueeze(-1) * adjoint[0].unsqueeze(-2) - first * by_row.unsqueeze(-1)) / 2
    start = start if len(flat.covariance) > 1 else start.sum(0, keepdim=True)
    offset = None
    if flat.offset is not None:
        offset = pull[1:].sum((0, 1)) if flat.offset.dim() == 1 else pull[1:]

    # of observations, by kind
    num_kinds = len(path.given.observed[0])
    of_nodes, of_steps = path.kinds[nodes], path.kinds[path.index].reshape(num_steps, -1)
    if num_kinds == 1:
        flat_push = push.reshape(-1, n)
        loadings = (flat_push.T @ states.reshape(-1, h)).unsqueeze(0)
        variance = (flat_push.T @ error.reshape(-1, n)).unsqueeze(0)
    else:
        which = of_steps.expand(num_steps, num_rows).reshape(-1)
        sums = (states.new_zeros(num_kinds, n, k) for k in (h, n))
        loadings, variance = (
            total.index_add_(0, which, (push.unsqueeze(-1) * part.unsqueeze(-2)).reshape(-1, n, part.shape[-1]))
            for total, part in zip(sums, (states, error), strict=True)
        )
    loadings = loadings if shared is None else loadings.index_add(0, of_nodes, -shared)
    variance = variance.index_add(0, of_nodes, -spread) / 2
    if path.given.nothing is not None:
        loadings, variance = loadings[:-1], variance[:-1]
    if numbers.observed is not None:
        seen = numbers.observed.to(DOUBLE)
        loadings = loadings * seen.unsqueeze(-1)
        variance = variance * seen.unsqueeze(-1) * seen.unsqueeze(-2)
    if len(numbers.loadings) == 1:
        loadings = loadings.sum(0, keepdim=True)
    if len(numbers.noise) == 1:
        variance = variance.sum(0, keepdim=True)
    constant = None
    if numbers.constant is not None:
        constant = weight.expand(num_steps, -1) if flat.used is None else weight * flat.used
    return [pull[0], start, matrix, noise, offset, -push, loadings, variance, constant]
