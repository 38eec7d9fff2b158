"""Starts of which next to nothing is known: smoothed covariances keep their digits, and so do their gradients."""

import pytest
import torch

from pplseq.distributions.gaussian_types import GaussianBelief, LinearEvidence
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain

F64 = torch.float64
T, H = 12, 3
A = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, -0.9]], dtype=F64)
C = torch.tensor([[1.0, 0.0, 1.0]], dtype=F64)


def by_chain(noise, width):
    """(T, h, h) of all steps, and (T - 1, h, h) with the steps before."""
    start = GaussianBelief(torch.zeros(1, H, dtype=F64), width * torch.eye(H, dtype=F64))
    evidence = LinearEvidence(torch.zeros(T, 1, 1, dtype=F64), C, torch.tensor([0.3], dtype=F64))
    chain = GaussianChain(start, Dynamics(A, torch.diag(noise)), evidence)
    return chain.smoothed_states().covariances.dense()[0], chain.lag_one_covariances().dense()[0]


def by_one_gaussian(noise, width):
    spread, blocks = width * torch.eye(H, dtype=F64), [[torch.empty(0)] * T for _ in range(T)]
    for s in range(T):
        pair = spread
        for t in range(s, T):
            blocks[t][s], blocks[s][t], pair = pair, pair.T, A @ pair
        spread = A @ spread @ A.T + torch.diag(noise)
    prior, seen = torch.cat([torch.cat(row, 1) for row in blocks]), torch.block_diag(*[C] * T)
    total = seen @ prior @ seen.T + 0.3 * torch.eye(T, dtype=F64)
    found = (prior - prior @ seen.T @ torch.linalg.solve(total, seen @ prior)).view(T, H, T, H)
    return torch.stack([found[t, :, t] for t in range(T)]), torch.stack([found[t + 1, :, t] for t in range(T - 1)])


@pytest.mark.parametrize("width", [1e2, 1e4, 1e6, 1e7])
def test_smoothed_covariances_and_their_gradients(width):
    """One Gaussian over all states loses digits as the start gets wider, so what is asked of these is little."""
    noise = torch.tensor([0.1, 0.02, 0.05], dtype=F64, requires_grad=True)
    weights = torch.linspace(0, 1, T * H * H, dtype=F64).view(T, H, H)
    slack, grads = 1e-15 * max(width, 1e6), []
    for one, two in zip(*(way(noise, width) for way in (by_chain, by_one_gaussian)), strict=True):
        torch.testing.assert_close(one, two, rtol=100 * slack, atol=100 * slack)
    for way in (by_chain, by_one_gaussian):
        smoothed, lag_one = way(noise, width)
        grads.append(torch.autograd.grad((smoothed * weights).sum() + lag_one.sum(), noise)[0])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        plain = by_chain(noise, width)[0]
    assert float(torch.linalg.eigvalsh(plain).min()) > 0


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("width", [1e6, 1e8, 1e10])
def test_first_steps_that_nobody_saw(width, changing):
    """Against the inverse of the precision of all states, which is well conditioned: later steps determine the first ones."""
    noise = torch.tensor([0.1, 0.02, 0.05], dtype=F64)
    seen = torch.arange(T) >= 2
    moves = A.expand(T - 1, H, H) * torch.linspace(0.9, 1.1, T - 1, dtype=F64)[:, None, None] if changing else A
    start = GaussianBelief(torch.zeros(1, H, dtype=F64), width * torch.eye(H, dtype=F64))
    evidence = LinearEvidence(torch.zeros(T, 1, 1, dtype=F64), C, torch.tensor([0.3], dtype=F64))
    chain = GaussianChain(start, Dynamics(moves, torch.diag(noise)), evidence, seen=seen[:, None])
    precision = torch.block_diag(*(C.T @ C / 0.3 * s for s in seen))
    precision[:H, :H] += torch.eye(H, dtype=F64) / width
    for t, move in enumerate(moves.expand(T - 1, H, H)):
        step = torch.cat([-move, torch.eye(H, dtype=F64)], 1)
        precision[t * H : (t + 2) * H, t * H : (t + 2) * H] += step.T @ torch.diag(1 / noise) @ step
    wanted = torch.linalg.inv(precision).view(T, H, T, H)
    found = chain.smoothed_states().covariances.dense()[0], chain.lag_one_covariances().dense()[0]
    slack = 1e-15 * max(width, 1e6)
    torch.testing.assert_close(found[0], torch.stack([wanted[t, :, t] for t in range(T)]), rtol=slack, atol=10 * slack)
    lag_one = torch.stack([wanted[t + 1, :, t] for t in range(T - 1)])
    torch.testing.assert_close(found[1], lag_one, rtol=slack, atol=10 * slack)
