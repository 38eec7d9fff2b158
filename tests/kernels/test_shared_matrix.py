"""Scans on probabilities: which rows are done again in log space, digits of long chains, best paths by tiles."""

import math

import pytest
import torch
from support.chain_recursions import ByScans, Factors
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


CHAINS = {"dense": random_chain, "forbidden emissions": forbidden_emissions}


@pytest.mark.parametrize("depth", [100.0, 1000.0, 5000.0])
def test_evidence_that_comes_back_from_beyond_the_range(depth):
    init, log, emit, _ = sticky(depth)
    assert bool(shared_matrix.forward_pass(init, log, emit, None)[2].any()) == (depth > 600)
    close(ByScans().compare(Factors(init, log, emit))["log_prob"], torch.full((N,), math.log(0.5) - 2 * depth, dtype=F64))


def test_only_the_rows_that_need_it_are_redone():
    init, log, emit, _ = random_chain()
    emit[5:15, 1, :2] -= 1000.0
    redo = shared_matrix.forward_pass(init, log, emit, None)[2]
    assert redo.tolist() == [False, True, False]
    ByScans().compare(Factors(init, log, emit))


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
