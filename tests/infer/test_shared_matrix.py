"""Scans on probabilities for chains that share one matrix, against the scans in log space, in float64."""

import math

import pytest
import torch

from pplseq.infer.kernels import path_scan, scan, shared_matrix

F32, F64 = torch.float32, torch.float64
close = torch.testing.assert_close


def factors(dtype, spread, *, states=5, steps=20, rows=4, zeros=False, ragged=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    init, matrix, emit = (
        torch.randn(shape, generator=generator, dtype=F64) * size
        for shape, size in zip(((rows, states), (states, states), (steps, rows, states)), spread, strict=True)
    )
    if zeros:
        matrix = matrix.masked_fill(torch.rand(matrix.shape, generator=generator) < 0.3, -math.inf)
        emit = emit.masked_fill(torch.rand(emit.shape, generator=generator) < 0.2, -math.inf)
        matrix[..., 0] = 0.0
        emit[..., 0] = 0.0
        init[..., 0] = 0.0
    valid = None
    if ragged:
        valid = torch.arange(steps).unsqueeze(-1) < torch.tensor([steps, 0, 1, steps // 2])[:rows]
    return init.to(dtype), matrix.to(dtype), emit.to(dtype), valid


def exact(init, matrix, emit, valid):
    """Everything in log space and float64."""
    init, emit, matrices = init.double(), emit.double(), scan.StepMatrices(matrix.double(), True)
    forward = scan.forward_in_log_space(init, matrices, emit, valid)
    beta = scan.backward_in_log_space(matrices, emit, valid)
    single = scan.state_posterior(forward.filtered, beta, valid)
    return forward, single, scan.pair_posterior(matrices, emit, forward, beta, valid, None)


SPREADS = [(0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (5.0, 20.0, 1.0), (1.0, 60.0, 5.0), (5.0, 1.0, 100.0), (300.0, 200.0, 400.0)]


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_filtering_and_smoothing(dtype, spread, zeros, ragged):
    init, matrix, emit, valid = factors(dtype, spread, zeros=zeros, ragged=ragged)
    expected, single, pair = exact(init, matrix, emit, valid)
    matrices = scan.StepMatrices(matrix.clone(), True)
    assert scan.is_shared(matrices, emit)
    forward = scan.forward_pass(init, matrices, emit, valid)
    got_single, got_pair = scan.smooth(matrices, emit, forward, valid)
    tight = dict(rtol=1e-9, atol=1e-9) if dtype == F64 else dict(rtol=2e-5, atol=1e-3)
    rows = torch.ones(4, dtype=torch.bool) if valid is None else valid[0]
    close(forward.log_prob.double(), expected.log_prob.where(rows, 0.0), **tight)
    close(forward.step_log_prob.double(), expected.step_log_prob, **tight)
    # in log space, so that states of tiny probability count as well
    close(forward.filtered[:, rows].double(), expected.filtered[:, rows], **tight)
    loose = dict(rtol=1e-7, atol=1e-9) if dtype == F64 else dict(rtol=1e-3, atol=2e-3)
    close(got_single.double(), single, **loose)
    close(got_pair.double(), pair, **loose)
    beta = scan.backward_pass(matrices, emit, valid)
    close(scan.state_posterior(forward.filtered, beta, valid)[:, rows].double(), single[:, rows], **loose)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_ordinary_numbers_need_no_second_pass(dtype):
    init, matrix, emit, valid = factors(dtype, (1.0, 1.0, 1.0), ragged=True)
    filtered, steps, redo = shared_matrix.forward_pass(init, matrix, emit, valid)
    assert not redo.any()
    assert not shared_matrix.backward_pass(matrix, emit, valid)[1].any()
    assert not shared_matrix.smooth(filtered, steps, matrix, emit, valid)[2][valid[0]].any()


@pytest.mark.parametrize("dtype", [F32, F64])
def test_structural_zeros_need_no_second_pass(dtype):
    init, matrix, emit, valid = factors(dtype, (1.0, 1.0, 1.0), zeros=True)
    filtered, steps, redo = shared_matrix.forward_pass(init, matrix, emit, valid)
    assert not redo.any()
    assert not shared_matrix.smooth(filtered, steps, matrix, emit, valid)[2].any()


def test_rows_that_underflow_are_handed_back():
    init, matrix, emit, _ = factors(F32, (1.0, 1.0, 1.0))
    emit[3, 1] = torch.tensor([0.0, -200.0, -200.0, -200.0, -200.0])
    emit[4, 1] = torch.tensor([-math.inf, 0.0, 0.0, 0.0, 0.0])
    matrix[0, 1:] = -300.0  # the way on from state 0 is that improbable
    assert shared_matrix.forward_pass(init, matrix, emit, None)[2][1]


@pytest.mark.parametrize("shape", [dict(states=1), dict(steps=2), dict(rows=1), dict(states=40, steps=3)])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_odd_sizes(dtype, shape):
    init, matrix, emit, valid = factors(dtype, (1.0, 2.0, 2.0), **shape)
    expected, single, pair = exact(init, matrix, emit, valid)
    matrices = scan.StepMatrices(matrix.clone(), True)
    forward = scan.forward_pass(init, matrices, emit, valid)
    got_single, got_pair = scan.smooth(matrices, emit, forward, valid)
    loose = dict(rtol=1e-4, atol=1e-4)
    close(forward.log_prob.double(), expected.log_prob, **loose)
    close(got_single.double(), single, **loose)
    close(got_pair.double(), pair, **loose)


def test_long_chains():
    init, matrix, emit, _ = factors(F32, (1.0, 3.0, 3.0), steps=3000, rows=2)
    expected, single, pair = exact(init, matrix, emit, None)
    matrices = scan.StepMatrices(matrix.clone(), True)
    forward = scan.forward_pass(init, matrices, emit, None)
    got_single, got_pair = scan.smooth(matrices, emit, forward, None)
    close(forward.log_prob.double(), expected.log_prob, rtol=1e-6, atol=1e-2)
    close(got_single.double(), single, rtol=1e-3, atol=1e-3)
    close(got_pair.double(), pair, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("max_cells", [shared_matrix.MAX_CELLS, 60])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("steps", [2, 20, 200])
def test_best_paths(steps, zeros, ragged, max_cells, monkeypatch):
    monkeypatch.setattr(shared_matrix, "MAX_CELLS", max_cells)
    init, matrix, emit, valid = factors(F64, (1.0, 2.0, 2.0), steps=steps, zeros=zeros, ragged=ragged)
    each = matrix.expand(steps - 1, 4, *matrix.shape)
    expected, best = path_scan.viterbi_pass(init, scan.StepMatrices(each.clone(), False), emit, valid)
    got, log_prob = path_scan.viterbi_pass(init, scan.StepMatrices(matrix.clone(), True), emit, valid)
    close(log_prob, best)
    valid = torch.ones_like(got, dtype=torch.bool) if valid is None else valid
    assert torch.equal(got[valid], expected[valid])
