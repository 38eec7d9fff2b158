"""The stationary distribution of a Markov chain, to the last digit of every probability however slowly the chain moves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pplseq.kernels.log_semiring import in_float32, logsumexp, safe_log

MOST_STATES = 128  # that are eliminated one by one: gradients keep Z^3 / 3 numbers


def stationary_log_probs(matrix: Tensor) -> Tensor:
    """(*b, Z) the logarithms of the only distributions p with p A = p, of log matrices A (*b, Z, Z); differentiable, twice too.

    States are eliminated one by one, without a subtraction: every probability keeps its digits where states are left with
    probability 1e-7 or 1e-70. Of more than :data:`MOST_STATES` one linear system is solved in double precision, in which the
    smallest probabilities of leaving a group of states should be above 1e-10.

    Raises:
        ValueError: where there is more than one, as the states fall into classes that never meet.

    Source: W. K. Grassmann, M. I. Taksar and D. P. Heyman (1985), Regenerative analysis and steady state distributions for
    Markov chains, Operations Research 33(5). Cost: Z^3.
    """
    matrix = in_float32(matrix)
    recurrent = _recurrent(matrix.detach())
    if matrix.shape[-1] > MOST_STATES:
        return _solved(matrix, recurrent)
    # the state that is left last must be one that all others come to
    first = recurrent.to(torch.int64).argmax(-1, keepdim=True)
    order = torch.arange(matrix.shape[-1], device=matrix.device).expand(recurrent.shape)
    order = torch.where(order == 0, first, torch.where(order == first, 0, order))
    swapped = matrix.take_along_dim(order.unsqueeze(-1), -2).take_along_dim(order.unsqueeze(-2), -1)
    return _eliminated(swapped).take_along_dim(order, -1)


def _recurrent(matrix: Tensor) -> Tensor:
    """(*b, Z) which states a chain comes back to for ever."""
    size = matrix.shape[-1]
    if bool(matrix.isfinite().all()):
        return torch.ones_like(matrix[..., 0], dtype=torch.bool)
    reached = (matrix > -math.inf) | torch.eye(size, dtype=torch.bool, device=matrix.device)
    for _ in range(size.bit_length()):
        reached = reached.float() @ reached.float() > 0
    recurrent = (~reached | reached.mT).all(-1)
    if bool((recurrent.unsqueeze(-1) & recurrent.unsqueeze(-2) & ~reached).any()):
        raise ValueError(
            "matrix: its states fall into classes that never meet: there is more than one stationary distribution; give initial"
        )
    return recurrent


def _eliminated(left: Tensor) -> Tensor:
    """Of matrices whose first state is recurrent."""
    columns = []
    for last in range(left.shape[-1] - 1, 0, -1):
        row = left[..., last, :last]
        columns.append(left[..., :last, last] - logsumexp(row, -1).unsqueeze(-1))
        around = columns[-1].unsqueeze(-1) + row.unsqueeze(-2)
        left = logsumexp(torch.stack([left[..., :last, :last], around]), 0)
    found = [torch.zeros_like(left[..., 0, 0])]
    for column in reversed(columns):
        found.append(logsumexp(torch.stack(found, -1) + column, -1))
    return torch.stack(found, -1).log_softmax(-1)


def _solved(matrix: Tensor, recurrent: Tensor) -> Tensor:
    moves = matrix.double().exp() * (1 - torch.eye(matrix.shape[-1], device=matrix.device))
    system = torch.diag_embed(moves.sum(-1)) - moves.mT
    # columns sum to zero, so that one equation says nothing: the sum of probabilities takes its place
    system = torch.cat([torch.ones_like(system[..., :1, :]), system[..., 1:, :]], -2)
    right = torch.zeros_like(system[..., :1]).index_fill(-2, torch.zeros(1, dtype=torch.long, device=matrix.device), 1.0)
    found = torch.linalg.solve(system, right).squeeze(-1).clamp_min(0)
    return safe_log(torch.where(recurrent, found, 0.0)).log_softmax(-1).to(matrix)
