"""Scans over distinct pairs of blocks against the scans over a matrix a step, values and gradients."""

import math

import pytest
import torch
from support.grids import grid

from pplseq.kernels import scan
from pplseq.kernels.pair_scan import (
    pair_chain_log_prob,
    pair_gates,
    pair_gates_reference,
    pair_matrices_reference,
    plan_pairs,
)

F64 = torch.float64
M, K, D, T, B = 5, 3, 4, 7, 6
LENGTHS = torch.tensor([7, 7, 5, 3, 1, 2])
close = torch.testing.assert_close


def factors(steps=T, blocks=M, width=K, dtype=F64):
    """(out, into, gate, init, emit) and the pairs of a batch."""
    out, into = (torch.randn(blocks, width, D, dtype=dtype) for _ in range(2))
    gate = torch.randn(steps - 1, B, width, dtype=dtype)
    emit = torch.randn(steps, B, width, dtype=dtype)
    given = [out, into, gate, torch.randn(B, width, dtype=dtype), emit]
    block = torch.randint(blocks, (steps, B))
    keys, pair_of = (block[:-1] * blocks + block[1:]).unique(return_inverse=True)
    return given, keys // blocks, keys % blocks, pair_of


def both_ways(given, left, entered, pair_of, valid=None, restart=None, restart_to=None, filled=None):
    """The fast scan, and the one over a matrix a step."""
    out, into, gate, init, emit = given
    used = None
    for there in (valid, None if restart is None else ~restart):
        used = used if there is None else there[1:] if used is None else used & there[1:]
    plan = plan_pairs(left, entered, pair_of, used)
    got = pair_chain_log_prob(*given, plan, filled=filled, valid=valid, restart=restart, restart_to=restart_to)
    matrices = pair_matrices_reference(out, into, gate, plan, filled)
    if restart is not None:
        matrices = torch.where(restart[1:, :, None, None], restart_to[1:].unsqueeze(-2), matrices)
    return got, scan.chain_log_prob(init, matrices, emit, valid)


def same(got, wanted, leaves):
    for name in ("log_prob", "step_log_prob", "filtered"):
        close(getattr(got, name), getattr(wanted, name))
    weight = torch.randn(B, dtype=F64)
    both = (torch.autograd.grad((x.log_prob * weight).sum(), leaves, allow_unused=True) for x in (got, wanted))
    for a, b, leaf in zip(*both, leaves, strict=True):
        zero = torch.zeros_like(leaf)
        close(zero if a is None else a, zero if b is None else b)


@grid({
    "steps, blocks, width": [(T, M, K), (T, M, 1), (T, 1, K), (T, 1, 1), (40, 2, 2), (2, M, K)],
    "restarted": [False, True],
    "ragged": [False, True],
}, times=2)
def test_the_scan(ragged, restarted, steps, blocks, width):
    given, *pairs = factors(steps, blocks, width)
    if width > 1:
        given[-1][0, 0, 1] = -math.inf  # a forbidden state
    valid = torch.arange(steps).unsqueeze(-1) < LENGTHS.clamp_max(steps) if ragged else None
    restart = torch.rand(steps, B) < 0.3 if restarted else None
    restart_to = torch.randn(steps, B, width, dtype=F64, requires_grad=True) if restarted else None
    leaves = [value.requires_grad_() for value in given]
    got, wanted = both_ways(leaves, *pairs, valid, restart, restart_to)
    same(got, wanted, [*leaves, *([restart_to] if restarted else [])])


def topic_matrices(matrices, restart, restart_to, mix):
    """(T-1, B, C K, C K) log p(c_t, z_t | c_{t-1}, z_{t-1}), [from, to], of (T-1, B, C, K, K) matrices of each topic."""
    count, width = matrices.shape[-3:-1]
    same = torch.eye(count, dtype=torch.bool)[:, None, :, None]
    wide = torch.where(same, matrices.unsqueeze(-2).expand(*matrices.shape[:-1], count, width), -math.inf)  # (..., C, K, C, K)
    if restart is not None:
        afresh = restart_to[1:, :, None, None, None, :] + mix[:, None, :, None]
        wide = torch.where(restart[1:, :, None, None, None, None], afresh, wide)
    return wide.flatten(-2).flatten(-3, -2)


@pytest.mark.parametrize("topics", [1, 3])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_topics(topics, ragged, mixed):
    """Against the matrices of all copies of the states; a restart mixes topics."""
    (out, into, *_), left, entered, pair_of = factors()
    gate, emit = torch.randn(T - 1, B, topics, K, dtype=F64), torch.randn(T, B, topics, K, dtype=F64)
    init, restart_to = torch.randn(B, topics, K, dtype=F64), torch.randn(T, B, K, dtype=F64)
    mix = torch.rand(topics, topics, dtype=F64).log_softmax(-1)
    valid = torch.arange(T).unsqueeze(-1) < LENGTHS if ragged else None
    restart = torch.rand(T, B) < 0.4 if mixed else None
    leaves = [value.requires_grad_() for value in (out, into, gate, init, emit, *([restart_to, mix] if mixed else []))]
    used = None if valid is None and restart is None else torch.ones(T - 1, B, dtype=torch.bool)
    for there in (valid, None if restart is None else ~restart):
        used = used if there is None else used & there[1:]
    plan = plan_pairs(left, entered, pair_of, used)
    options = {"restart_to": restart_to} if mixed else {}
    got = pair_chain_log_prob(out, into, gate, init, emit, plan, valid=valid, restart=restart, mix=mix, **options)
    one = pair_matrices_reference(out, into, gate.new_zeros(T - 1, B, K), plan).unsqueeze(2) + gate.unsqueeze(-1)
    matrices = topic_matrices(one, restart, restart_to, mix)
    same(got, scan.chain_log_prob(init.flatten(1), matrices, emit.flatten(2), valid), leaves)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_that_comes_back_from_nothing(restarted):
    """Within a sentence nothing mixes topics: one that is 1e-80 of another may be the only one that explains what follows."""
    torch.manual_seed(1)
    (out, into, *_), left, entered, pair_of = factors(steps=12, dtype=torch.float32)
    gate, emit = torch.randn(11, B, 3, K), torch.randn(12, B, 3, K)
    emit[1:6, :, 0] += 40.0
    emit[6:, :, 1] += 45.0
    emit[3, 0, 2] = -math.inf  # a topic that cannot be
    init, mix = torch.randn(B, 3, K), torch.eye(3).log()
    restart = torch.arange(12)[:, None].expand(12, B) == 9 if restarted else None
    restart_to = torch.randn(12, B, K) if restarted else None
    leaves = [value.requires_grad_() for value in (out, into, gate, init, emit)]
    used = None if restart is None else ~restart[1:]
    plan = plan_pairs(left, entered, pair_of, used)
    got = pair_chain_log_prob(out, into, gate, init, emit, plan, restart=restart, restart_to=restart_to, mix=mix)
    exact = [value.detach().double().requires_grad_() for value in leaves]
    one = pair_matrices_reference(*exact[:2], exact[2].new_zeros(11, B, K), plan).unsqueeze(2) + exact[2].unsqueeze(-1)
    matrices = topic_matrices(one, restart, None if restart is None else restart_to.double(), mix.double())
    wanted = scan.chain_log_prob(exact[3].flatten(1), matrices, exact[4].flatten(2))
    close(got.log_prob, wanted.log_prob.float(), rtol=1e-5, atol=1e-4)
    close(got.filtered.exp(), wanted.filtered.exp().float(), rtol=1e-4, atol=1e-5)
    slopes = (torch.autograd.grad(value.log_prob.sum(), given) for value, given in ((got, leaves), (wanted, exact)))
    for found, slope in zip(*slopes, strict=True):
        close(found, slope.float(), rtol=1e-3, atol=1e-4)


def test_uneven_blocks():
    given, left, entered, pair_of = factors()
    filled = torch.ones(M, K, dtype=torch.bool)
    filled[2, 2] = filled[3, 1] = filled[3, 2] = False
    block = torch.cat([left[pair_of[:1]], entered[pair_of]])
    given[-1].masked_fill_(~filled[block], -math.inf)
    given[-2].masked_fill_(~filled[block[0]], -math.inf)
    leaves = [value.requires_grad_() for value in given]
    same(*both_ways(leaves, left, entered, pair_of, filled=filled[entered]), leaves)


@pytest.mark.parametrize("cells, narrow", [(1, K), (6 * K * D, 0)])
def test_the_scan_in_pieces(cells, narrow, monkeypatch):
    monkeypatch.setattr("pplseq.kernels.pair_scan.CACHED_CELLS", cells)  # a group at once, or about two
    monkeypatch.setattr("pplseq.kernels.pair_scan.NARROW", narrow)
    given, *pairs = factors(steps=12)
    valid = torch.arange(12).unsqueeze(-1) < LENGTHS + 3
    restart, restart_to = torch.rand(12, B) < 0.3, torch.randn(12, B, K, dtype=F64, requires_grad=True)
    leaves = [value.requires_grad_() for value in given]
    same(*both_ways(leaves, *pairs, valid, restart, restart_to), [*leaves, restart_to])


@pytest.mark.parametrize("width, names", [(K, M), (1, 1)])
@pytest.mark.parametrize("cells", [1, 1 << 18])
def test_gates(width, names, cells, monkeypatch):
    monkeypatch.setattr("pplseq.kernels.pair_scan.CACHED_CELLS", cells)
    (out, *_), left, entered, pair_of = factors(width=width)
    plan = plan_pairs(left, entered, pair_of)
    out = out[: int(left.max()) + 1]
    given = [out, torch.randn(names, D, dtype=F64), torch.randn(names, dtype=F64)]
    given = [value.requires_grad_() for value in given]
    blocks = entered.clamp_max(names - 1)
    if names == 1:  # each pair of blocks once
        plan = plan_pairs(torch.arange(len(out)), entered[: len(out)], pair_of[:0])
        blocks = blocks[: len(out)]
    weight = torch.randn(len(blocks), width, dtype=F64)
    got, wanted = (f(*given, plan, blocks) for f in (pair_gates, pair_gates_reference))
    close(got, wanted)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), given) for x in (got, wanted)), strict=True):
        close(a, b)


def test_bfloat16_products_are_near():
    given, left, entered, pair_of = factors(dtype=torch.float32)
    leaves = [value.mul(0.3).requires_grad_() for value in given]
    plan = plan_pairs(left, entered, pair_of)
    grads = []
    for dtype in (None, torch.bfloat16):
        log_prob = pair_chain_log_prob(*leaves, plan, product_dtype=dtype).log_prob
        grads.append((log_prob.detach(), *torch.autograd.grad(log_prob.sum(), leaves)))
    for a, b in zip(*grads, strict=True):
        close(a, b, rtol=0.05, atol=0.02)


def test_gates_of_bfloat16_products():
    """The same rounding in both, and near to what is not rounded."""
    (out, *_), left, entered, pair_of = factors(dtype=torch.float32)
    plan = plan_pairs(left, entered, pair_of)
    given = [value.requires_grad_() for value in (3 * out, 3 * torch.randn(M, D), torch.randn(M))]
    weight, results = torch.randn(len(entered), K), []
    for f, dtype in ((pair_gates, torch.bfloat16), (pair_gates_reference, torch.bfloat16), (pair_gates, None)):
        gates = f(*given, plan, entered, dtype)
        results.append((gates.detach(), *torch.autograd.grad((gates * weight).sum(), given)))
    values = [gates for gates, *_ in results]
    fast, slow, exact = (torch.cat([grad.flatten() for grad in grads]) for _, *grads in results)
    close(values[0], values[1], rtol=1e-5, atol=1e-5)
    assert 1e-3 < (values[0] - values[2]).abs().max() < 0.5
    rounding = (slow - exact).norm()
    assert 1e-3 * exact.norm() < rounding < 0.1 * exact.norm()
    assert (fast - slow).norm() < 0.5 * rounding


def test_digits_that_would_be_lost_are_refused():
    """A row whose states are all but impossible has to go through the scans in log space."""
    zero = torch.zeros(1, dtype=torch.long)
    features = torch.tensor([[[30.0, 0.0], [0.0, 30.0]]])  # a state goes on to itself alone
    init = torch.tensor([[0.0, -math.inf]])
    emit = torch.zeros(2, 1, 2)
    emit[1, 0] = torch.tensor([-90.0, 0.0])
    given = features, features, torch.zeros(1, 1, 2), init
    plan = plan_pairs(zero, zero, zero.view(1, 1))
    assert pair_chain_log_prob(*given, emit, plan) is None
    emit[1, 0, 0] = -2.0
    assert pair_chain_log_prob(*given, emit, plan).log_prob.item() == -2.0
