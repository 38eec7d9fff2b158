"""Compiled loops over chains against their twins in torch: all shapes, all ways to underflow, and what surrounds the loops."""

import math

import pytest
import torch
from support.dense_chains import ragged, random_chain
from support.grids import grid

from pplseq.kernels import compiled, path_scan, scan
from pplseq.kernels.chain import call, piece_call

pytestmark = pytest.mark.skipif(not compiled.available(), reason="numba is not installed")
F64, F32 = torch.float64, torch.float32
close = torch.testing.assert_close
LINKS = ["shared", "shared by some rows", "a matrix a step"]


def answers(init, pair, emit, valid, shared):
    """Everything that a chain tells, and the gradients of its likelihood."""
    leaves = [v.clone().requires_grad_() for v in (init, pair, emit)]
    result = scan.chain_log_prob(*leaves, valid, shared)
    weight = torch.linspace(-1.0, 2.0, result.log_prob.numel()).to(emit).reshape(result.log_prob.shape)
    possible = ~torch.isneginf(result.log_prob)
    found = torch.autograd.grad((result.log_prob.where(possible, 0.0) * weight).sum(), leaves, allow_unused=True)
    gradients = [torch.zeros_like(v) if g is None else g for v, g in zip(leaves, found, strict=True)]
    matrices = scan.StepMatrices(pair, shared)
    states, pairs = scan.smooth(matrices, emit, result, valid, weight)
    return {
        "log_prob": result.log_prob.detach(), "steps": result.step_log_prob, "filtered": result.filtered.exp(),
        "last": result.last.exp(), "states": states, "pairs": pairs,
        "best": path_scan.viterbi_pass(init, matrices, emit, valid)[1],
        **dict(zip(("d init", "d pair", "d emit"), gradients, strict=True)),
    }  # fmt: skip


def compare(init, pair, emit, valid, shared, tolerance=1e-9):
    found = answers(init, pair, emit, valid, shared)
    with compiled.twins_only():
        wanted = answers(init, pair, emit, valid, shared)
    some = slice(None) if valid is None else valid[0]  # rows without steps keep what stood there
    for name, value in wanted.items():
        got = found[name]
        if name in ("filtered", "last"):
            got, value = (v[some] if name == "last" else v[:, some] for v in (got, value))
        close(got, value, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")
    return found


@grid({
    "num_steps, rows, num_states": [
        (1, (2,), 3), (7, (1,), 1), (70, (2, 3), 5), (130, (2,), 2), (66, (3,), 8), (66, (1,), 9), (23, (3,), 17),
    ],
    "links": LINKS,
})  # fmt: skip
def test_shapes(links, num_steps, rows, num_states):
    factors = random_chain(links, num_steps, rows, num_states)
    for valid in (None, ragged(num_steps, rows)):
        compare(*factors, valid, links != "a matrix a step")


@grid({"scale, holes": [(1.0, 0.5), (40.0, 0.3), (400.0, 0.0), (400.0, 0.3)], "links": LINKS})
def test_zeros_and_numbers_of_every_size(links, scale, holes, monkeypatch):
    monkeypatch.setattr(piece_call, "CELLS", 64)  # pieces of 32 steps: some in logs, some not
    for _ in range(3):
        compare(*random_chain(links, 80, (3,), 4, scale, holes), ragged(80, (3,)), links != "a matrix a step")


def test_a_state_of_1e_300_that_decides_in_the_end():
    init = torch.tensor([[0.0, math.log(1e-300)]], dtype=F64)
    pair = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], dtype=F64)
    emit = torch.zeros(200, 1, 2, dtype=F64)
    emit[50:100, 0, 1] = -10.0  # 1e-217 on top of it
    emit[-1, 0, 0] = -math.inf
    found = compare(init, pair, emit, None, True)
    close(found["log_prob"], torch.tensor([math.log(1e-300) - 500.0], dtype=F64))
    close(found["states"][0, 0], torch.tensor([0.0, 1.0], dtype=F64))


@pytest.mark.parametrize("links", LINKS)
def test_messages_that_grow(links):
    """Without bounds, messages under matrices of ones would be 3^3000."""
    init, pair, emit = random_chain(links, 3000, (2,), 3)
    compare(init, pair * 0.0, emit * 0.01, None, links != "a matrix a step", tolerance=1e-8)


def test_numbers_of_four_bytes():
    init, pair, emit = random_chain("shared", 300, (4,), 6, 3.0, dtype=F32)
    found = compare(init, pair, emit, ragged(300, (4,)), True, tolerance=2e-3)
    assert all(value.dtype == F32 for value in found.values())


def test_impossible_rows_and_nan():
    init, pair, emit = random_chain("shared", 12, (3,), 3)
    emit[5, 0] = -math.inf
    emit[7, 1, 2] = math.nan
    found = answers(init, pair, emit, None, True)
    assert torch.isneginf(found["log_prob"][0]) and found["log_prob"][1].isnan() and torch.isfinite(found["log_prob"][2])
    assert torch.isneginf(found["best"][0]) and (found["states"][:, 0] == 0).all()
    assert found["d emit"][:, 1].isnan().any() and not found["d emit"][:, 2].isnan().any()


def test_rows_in_threads(monkeypatch):
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 1)
    factors, valid = random_chain("shared by some rows", 40, (5,), 4, 100.0), ragged(40, (5,))
    alone, before = answers(*factors, valid, True), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        together = answers(*factors, valid, True)
    finally:
        torch.set_num_threads(before)
    for name, value in alone.items():
        close(together[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_states", [2, 5])
@pytest.mark.parametrize("step", [0, 4])
def test_no_best_path_of_what_is_no_number(num_states, step):
    init, pair, emit = random_chain("shared", 9, (2,), num_states)
    before = piece_call.viterbi_pass(init, pair, True, emit, None)[1]
    emit[step, 1, num_states - 1] = math.nan
    found = piece_call.viterbi_pass(init, pair, True, emit, None)[1]
    assert found[0] == before[0] and math.isnan(found[1])


@pytest.mark.parametrize("num_states", [1, 3, 5])
def test_best_paths_by_pieces(monkeypatch, num_states):
    init, pair, emit = random_chain("shared", 100, (3,), num_states)
    valid = ragged(100, (3,))
    whole = piece_call.viterbi_pass(init, pair, True, emit, valid)
    monkeypatch.setattr(call, "KEPT", 1)
    pieces = piece_call.viterbi_pass(init, pair, True, emit, valid)
    with compiled.twins_only():
        twin = path_scan.viterbi_pass(init, scan.StepMatrices(pair, True), emit, valid)
    for other in (pieces, twin):
        assert torch.equal(whole[0], other[0])
        close(whole[1], other[1])


def test_nothing_of_the_size_of_the_messages_is_kept():
    init, pair, emit = random_chain("shared", 2000, (1,), 16)
    kept = scan.chain_log_prob(init, pair, emit.requires_grad_(), None, True).kept
    assert kept.carry.size < emit.numel() / 100
