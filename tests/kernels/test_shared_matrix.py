"""Scans on probabilities against those in log space: long chains, true zeros, and every way to underflow."""

import math

import pytest
import torch
from support.grids import grid

from pplseq.kernels import compiled, path_scan, scan, shared_matrix, step_ops

F64, F32 = torch.float64, torch.float32
close = torch.testing.assert_close
K, N = 4, 3


@pytest.fixture(autouse=True, params=["loops", "numpy", "torch"])
def operations(request, monkeypatch):
    """Every test with compiled loops, with the steps of small chains, and with those of large ones and of other devices."""
    if request.param == "loops":
        yield
        return
    if request.param == "torch":
        monkeypatch.setattr(step_ops, "SMALL", 0)
    with compiled.twins_only():
        yield


def random_chain(num_steps=40, scale=1.0, dtype=F64, lengths=None):
    init = torch.randn(N, K, dtype=dtype).log_softmax(-1)
    log = (torch.randn(K, K, dtype=dtype) * scale).log_softmax(-1)
    emit = torch.randn(num_steps, N, K, dtype=dtype) * scale - 3
    valid = None if lengths is None else torch.arange(num_steps).unsqueeze(-1) < torch.tensor(lengths)
    return init, log, emit, valid


def left_to_right(**options):
    init, log, emit, valid = random_chain(**options)
    log = log.masked_fill(torch.ones(K, K).tril(-1) > 0, -math.inf).log_softmax(-1)
    init = torch.tensor([0.0] + [-math.inf] * (K - 1), dtype=init.dtype).expand(N, K)
    return init, log, emit, valid


def forbidden_emissions(**options):
    init, log, emit, valid = random_chain(**options)
    open_state = torch.randint(K, emit.shape[:-1])
    closed = (torch.rand_like(emit) < 0.4) & (torch.arange(K) != open_state.unsqueeze(-1))
    return init, log, emit.masked_fill(closed, -math.inf), valid


def sticky(depth, num_steps=61, dtype=F64):
    """Two states that never change: what comes late, and from both ends what lies in the middle, decides between them."""
    init = torch.full((N, 2), math.log(0.5), dtype=dtype)
    log = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], dtype=dtype)
    emit = torch.zeros(num_steps, N, 2, dtype=dtype)
    third = num_steps // 3
    emit[:third, :, 1] = -depth / third
    emit[third : 2 * third, :, 0] = -3 * depth / third
    emit[2 * third :, :, 1] = -depth / (num_steps - 2 * third)
    return init, log, emit, None


def check(init, log, emit, valid, redone=None):
    """Every result against log space; ``redone``: whether rows are expected to need it."""
    matrices = scan.StepMatrices(log, shared=True)
    wanted = scan.forward_in_log_space(init, matrices, emit, valid)
    redo = shared_matrix.forward_pass(init, log, emit, valid)[2]
    tolerance = {} if emit.dtype == F64 else dict(rtol=1e-4, atol=1e-4)
    got = scan.forward_pass(init, matrices, emit, valid)
    for name in ("log_prob", "step_log_prob"):
        close(getattr(got, name), getattr(wanted, name), **tolerance)
    close(got.filtered.exp(), wanted.filtered.exp(), **tolerance)
    beta = scan.backward_in_log_space(matrices, emit, valid)
    weight = torch.tensor([0.5, 1.0, -2.0]).to(emit)
    single = scan.state_posterior(wanted.filtered, beta, valid)
    pair = scan.pair_posterior(matrices, emit, wanted, beta, valid, weight)
    found = scan.smooth(matrices, emit, got, valid, weight)
    close(found[0], single, **tolerance)
    close(found[1], pair, **tolerance)
    assert scan.smooth(matrices, emit, got, valid, pairs=False)[1] is None
    smoothed = scan.state_posterior(got.filtered, scan.backward_pass(matrices, emit, valid), valid)
    close(smoothed, single, **tolerance)
    if redone is not None:
        assert bool(redo.any()) == redone
    return got


CHAINS = {"dense": random_chain, "left to right": left_to_right, "forbidden emissions": forbidden_emissions}


@grid({"kind": CHAINS, "lengths": [None, (40, 1, 17)], "dtype": [F64, F32]})
def test_long_chains(kind, lengths, dtype):
    check(*CHAINS[kind](dtype=dtype, lengths=lengths), redone=None if dtype == F32 else False)


@grid({"kind": CHAINS, "lengths": [None, (40, 1, 17)]})
def test_numbers_of_every_size(kind, lengths):
    for scale in (30.0, 300.0):
        check(*CHAINS[kind](scale=scale, lengths=lengths))


@pytest.mark.parametrize("depth", [100.0, 1000.0, 5000.0])
def test_evidence_that_comes_back_from_beyond_the_range(depth):
    result = check(*sticky(depth), redone=depth > 600)
    close(result.log_prob, torch.full((N,), math.log(0.5) - 2 * depth, dtype=F64))


def test_only_the_rows_that_need_it_are_redone():
    init, log, emit, _ = random_chain()
    emit[5:15, 1, :2] -= 1000.0
    redo = shared_matrix.forward_pass(init, log, emit, None)[2]
    assert redo.tolist() == [False, True, False]
    check(init, log, emit, None)


def test_impossible_rows_are_minus_infinity_and_spoil_no_others():
    init, log, emit, _ = forbidden_emissions()
    emit[7, 1] = -math.inf
    result = check(init, log, emit, None)
    assert torch.isneginf(result.log_prob).tolist() == [False, True, False]
    assert not any(value.isnan().any() for value in scan.smooth(scan.StepMatrices(log, True), emit, result, None))


def test_unnormalised_factors():
    init, log, emit, valid = random_chain(lengths=(40, 3, 25))
    check(init + 40.0, log + torch.randn(K, 1, dtype=F64) * 20, emit + 200.0, valid)


def test_float32_keeps_its_digits_over_ten_thousand_steps():
    init, log, emit, _ = random_chain(10_000, dtype=F32)
    wanted = scan.forward_pass(init.double(), scan.StepMatrices(log.double(), True), emit.double(), None)
    got = scan.forward_pass(init, scan.StepMatrices(log, True), emit, None)
    close(got.log_prob.double(), wanted.log_prob, rtol=2e-6, atol=0)
    path, log_prob = path_scan.viterbi_pass(init, scan.StepMatrices(log, True), emit, None)
    row = torch.arange(N)
    score = init.double()[row, path[0]] + emit.double().gather(-1, path.unsqueeze(-1)).sum((0, 2))
    score = score + log.double()[path[:-1], path[1:]].sum(0)
    close(log_prob.double(), score, rtol=2e-6, atol=0)


@grid({"kind": CHAINS, "lengths": [None, (80, 1, 37)], "max_cells": [1 << 16, 40, 1]}, times=2)
def test_best_paths(kind, lengths, max_cells, monkeypatch):
    monkeypatch.setattr(shared_matrix, "MAX_CELLS", max_cells)
    init, log, emit, valid = CHAINS[kind](num_steps=80, lengths=lengths)
    path, log_prob = shared_matrix.viterbi_pass(init, log, emit, valid)
    matrices = scan.StepMatrices(log, shared=True)
    wanted, wanted_log_prob = path_scan.k_best_pass(init, matrices, emit, valid, 1)
    close(log_prob, wanted_log_prob[0])
    seen = torch.ones_like(path, dtype=torch.bool) if valid is None else valid
    assert torch.equal(path[seen], wanted[0][seen])
