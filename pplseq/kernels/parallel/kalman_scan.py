"""Kalman filter and smoother parallel in time: associative scans of covariances, of means and of their adjoints.

A step of the filter, its observation included, is an element that two neighbours combine into one, so that all prefixes come
from 2 log2 T rounds of batched operations of (h, h) matrices. That is for devices with many cores; one core is faster step by
step. All is in torch operations, differentiable to any order. The twin is the way over
:class:`~pplseq.infer.gaussian.path.CovariancePath`.

Source: S. Särkkä and Á. F. García-Fernández (2021), Temporal parallelization of Bayesian smoothers, IEEE Transactions on
Automatic Control 66(1), section IV.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.kernels.kalman import symmetric
from pplseq.kernels.matrix_table import MatrixIndex
from pplseq.kernels.parallel.time_scan import prefixes

Parts = tuple[Tensor, ...]


def predicted_covariances(start: Tensor, matrix: Tensor, noise: Tensor, information: Tensor) -> Tensor:
    """(T, C, h, h) of the state before each step's observation.

    Args:
        start: (1 | C, h, h) of the first state. matrix, noise: (1 | T-1, 1 | C, h, h) A and Q of the moves.
        information: (T, C, h, h) what each step's observation says.
    """
    num_steps, shape = len(information), information.shape[1:]
    start = start.expand(shape)
    if num_steps == 1:
        return start.unsqueeze(0)
    moves, noises = (part.expand(num_steps - 1, *shape) for part in (matrix, noise))
    identity = torch.eye(shape[-1], dtype=start.dtype, device=start.device)
    # the first state is one that moves from nowhere
    spread, step = torch.cat([start.unsqueeze(0), noises]), torch.cat([torch.zeros_like(start).unsqueeze(0), moves])
    weight = torch.linalg.solve(identity + spread @ information, torch.cat([step, spread], -1))
    carry, covariance = weight[..., : shape[-1]], weight[..., shape[-1] :]
    elements = carry, symmetric(covariance), symmetric(step.mT @ information @ carry)
    filtered = prefixes(_combined, elements)[1][:-1]
    return torch.cat([start.unsqueeze(0), symmetric(moves @ filtered @ moves.mT) + noises])


def _combined(earlier: Parts, later: Parts) -> Parts:
    """Two stretches as one: the matrix by which a state goes through, its covariance behind, and what is said of it before."""
    (a, c, j), (next_a, next_c, next_j) = earlier, later
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    through = torch.linalg.solve(identity + c @ next_j, torch.cat([a, c], -1))
    passed, kept = through[..., : a.shape[-1]], through[..., a.shape[-1] :]
    return next_a @ passed, symmetric(next_a @ kept @ next_a.mT) + next_c, symmetric(a.mT @ next_j @ passed) + j


def adjoint_information(information: Tensor, closed_loops: Tensor) -> Tensor:
    """(T, U, h, h) N_t = Lam W + L' N_{t+1} L of all steps, L the closed loop out of step t; see :func:`kalman.adjoint`."""

    def combined(earlier: Parts, later: Parts) -> Parts:
        (loop, known), (next_loop, next_known) = earlier, later
        return next_loop @ loop, symmetric(next_loop @ known @ next_loop.mT) + next_known

    return prefixes(combined, (closed_loops.mT.flip(0), information.flip(0)))[1].flip(0)


def recursion(
    table: Tensor, links: MatrixIndex, inputs: Tensor, *, reverse: bool = False, overwrite: bool = False
) -> Tensor:
    """:func:`pplseq.kernels.matrix_table.recursion`, parallel in time; nothing is overwritten."""
    if len(inputs) == 1:
        return inputs
    steps = table[links.index]
    steps = steps.unsqueeze(1) if links.shared else steps
    inputs, steps = (inputs.flip(0), steps.flip(0)) if reverse else (inputs, steps)

    def combined(earlier: Parts, later: Parts) -> Parts:
        (step, state), (next_step, next_state) = earlier, later
        return next_step @ step, (next_step @ state.unsqueeze(-1)).squeeze(-1) + next_state

    states = prefixes(combined, (torch.cat([torch.zeros_like(steps[:1]), steps]), inputs))[1]
    return states.flip(0) if reverse else states
