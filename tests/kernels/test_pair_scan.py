"""Scans over distinct pairs of blocks against the scans over a matrix a step, values and gradients."""

import math

import pytest
import torch

from pplseq.kernels import scan
from pplseq.kernels.pair_scan import pair_chain_log_prob, pair_softmax, pair_softmax_reference

F64 = torch.float64
M, K, D, T, B = 5, 3, 4, 7, 6
LENGTHS = torch.tensor([7, 7, 5, 3, 1, 2])
close = torch.testing.assert_close


def parameters(width=K, blocks=M):
    shapes = (blocks, width, D), (blocks, width, D), (blocks, D), (blocks,)
    return [torch.randn(*shape, dtype=F64, requires_grad=True) for shape in shapes]


def blocks_and_pairs(steps=T, blocks=M):
    block = torch.randint(blocks, (steps, B))
    keys, pair_of = (block[:-1] * blocks + block[1:]).unique(return_inverse=True)
    return block, keys // blocks, keys % blocks, pair_of


@pytest.mark.parametrize("width, blocks", [(3, 5), (1, 5), (3, 1), (1, 1)])
def test_pairs_of_blocks(width, blocks):
    given = parameters(width, blocks)
    _, left, entered, _ = blocks_and_pairs(blocks=blocks)
    weight = torch.randn(len(left), width, width, dtype=F64)
    got, wanted = (f(*given, left, entered, entered) for f in (pair_softmax, pair_softmax_reference))
    close(got, wanted)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), given) for x in (got, wanted)), strict=True):
        close(a, b)


def test_pairs_of_uneven_blocks():
    given = parameters()
    _, left, entered, _ = blocks_and_pairs()
    filled = torch.ones(M, K, dtype=torch.bool)
    filled[2, 2] = filled[3, 1] = filled[3, 2] = False
    weight = torch.randn(len(left), K, K, dtype=F64)
    got, wanted = (f(*given, left, entered, entered, filled[entered]) for f in (pair_softmax, pair_softmax_reference))
    close(got, wanted)
    assert bool((got.transpose(1, 2)[~filled[entered]] == 0).all())
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), given) for x in (got, wanted)), strict=True):
        close(a, b)


def test_bfloat16_products_are_near():
    given = [p.detach().float().mul(0.3).requires_grad_() for p in parameters()]
    _, left, entered, _ = blocks_and_pairs()
    got = pair_softmax(*given, left, entered, entered, None, torch.bfloat16)
    close(got, pair_softmax_reference(*given, left, entered, entered), rtol=0.05, atol=0.01)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("steps", [T, 1])
def test_the_scan(ragged, restarted, steps):
    given = parameters()
    block, left, entered, pair_of = blocks_and_pairs(steps)
    emit = torch.randn(steps, B, K, dtype=F64)
    emit[0, 0, 1] = -math.inf  # a forbidden state
    emit.requires_grad_()
    init = torch.randn(B, K, dtype=F64, requires_grad=True)
    valid = torch.arange(steps).unsqueeze(-1) < LENGTHS.clamp_max(steps) if ragged else None
    restart = torch.rand(steps, B) < 0.3 if restarted else None
    restart_to = torch.randn(steps, B, K, dtype=F64, requires_grad=True) if restarted else None
    pairs = pair_softmax(*given, left, entered, entered)
    got = pair_chain_log_prob(init, pairs, emit, pair_of, valid, restart, restart_to)
    matrices = pair_softmax_reference(*given, left, entered, entered)[pair_of].log()
    if restarted:
        matrices = torch.where(restart[1:, :, None, None], restart_to[1:].unsqueeze(-2), matrices)
    wanted = scan.chain_log_prob(init, matrices, emit, valid)
    for name in ("log_prob", "step_log_prob", "filtered"):
        close(getattr(got, name), getattr(wanted, name))
    weight = torch.randn(B, dtype=F64)
    leaves = (*given, init, emit, *([restart_to] if restarted else []))
    both = (torch.autograd.grad((x.log_prob * weight).sum(), leaves, allow_unused=True) for x in (got, wanted))
    for a, b, leaf in zip(*both, leaves, strict=True):
        zero = torch.zeros_like(leaf)
        close(zero if a is None else a, zero if b is None else b)


def test_digits_that_would_be_lost_are_refused():
    """A row whose states are all but impossible has to go through the scans in log space."""
    pairs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    init = torch.tensor([[0.0, -math.inf]])
    emit = torch.zeros(2, 1, 2)
    emit[1, 0] = torch.tensor([-90.0, 0.0])
    assert pair_chain_log_prob(init, pairs, emit, torch.zeros(1, 1, dtype=torch.long)) is None
    emit[1, 0, 0] = -2.0
    assert pair_chain_log_prob(init, pairs, emit, torch.zeros(1, 1, dtype=torch.long)).log_prob.item() == -2.0
