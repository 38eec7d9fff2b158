"""What surrounds the compiled loops over chains: numbers that are none, threads, pieces."""

import math

import pytest
import torch
from support.chain_recursions import ByScans, Factors, chain, derivatives
from support.dense_chains import ragged, random_chain

from pplseq.kernels import compiled, path_scan, scan
from pplseq.kernels.chain import call, piece_call

pytestmark = pytest.mark.skipif(not compiled.available(), reason="numba is not installed")
close = torch.testing.assert_close


def answers(factors):
    return ByScans().answers(factors) | derivatives(ByScans().log_prob, factors)


def test_impossible_rows_and_nan():
    init, pair, emit = random_chain("shared", 12, (3,), 3)
    emit[5, 0] = -math.inf
    emit[7, 1, 2] = math.nan
    found = answers(Factors(init, pair, emit))
    assert torch.isneginf(found["log_prob"][0]) and found["log_prob"][1].isnan() and torch.isfinite(found["log_prob"][2])
    assert torch.isneginf(found["best"][0]) and (found["states"][:, 0] == 0).all()
    assert found["d emit"][:, 1].isnan().any() and not found["d emit"][:, 2].isnan().any()


def test_rows_in_threads(monkeypatch):
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 1)
    factors = chain("shared by some rows", 40, (5,), 4, 100.0, shortest=0)
    alone, before = answers(factors), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        together = answers(factors)
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
