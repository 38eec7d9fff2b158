"""Scans that are parallel in time against the loop over steps: values, gradients of two orders, zeros."""

import math

import pytest
import torch
from support.dense_chains import ragged, random_chain
from support.grids import grid

from pplseq.kernels import path_scan, scan
from pplseq.kernels.parallel import time_scan
from pplseq.models import HMM, VLHMM

F64, F32 = torch.float64, torch.float32
close = torch.testing.assert_close
LINKS = {True: "shared", False: "a matrix a step"}


def compare(init, log, emit, valid, shared, tolerance=1e-9):
    leaves = [[v.clone().requires_grad_() for v in (init, log, emit)] for _ in range(2)]
    found = time_scan.forward_pass(*leaves[0], valid, shared)
    log_prob, filtered, steps = scan.forward_twin(*leaves[1], valid, shared, None, None)
    weight = torch.linspace(-1.0, 2.0, log_prob.numel()).to(log_prob).reshape(log_prob.shape)
    possible = ~torch.isneginf(log_prob)
    gradients = [
        torch.autograd.grad((value.where(possible, 0.0) * weight).sum(), given, allow_unused=True)
        for value, given in ((found.log_prob, leaves[0]), (log_prob, leaves[1]))
    ]
    exact = dict(rtol=tolerance, atol=tolerance)
    close(found.log_prob, log_prob, **exact)
    close(found.steps[:, possible], steps[:, possible], **exact)
    close(found.filtered[:, possible].exp(), filtered[:, possible].exp(), **exact)
    for got, wanted in zip(*gradients, strict=True):
        if wanted is not None:  # a single step has no matrix
            close(got, wanted, **exact)
    path, best = time_scan.viterbi_pass(init, log, emit, valid, shared)
    wanted = path_scan.viterbi_in_torch(init, scan.StepMatrices(log, shared), emit, valid)
    close(best, wanted[1], **exact)
    close(path[:, possible], wanted[0][:, possible])


@grid({
    "num_steps, rows, num_states": [(1, (2,), 3), (2, (1,), 2), (7, (1,), 1), (13, (2, 2), 5)],
    "shared": [True, False],
})
def test_shapes(shared, num_steps, rows, num_states):
    for valid in (None, ragged(num_steps, rows, 1)):
        compare(*random_chain(LINKS[shared], num_steps, rows, num_states), valid, shared)


@grid({"scale, holes": [(1.0, 0.5), (40.0, 0.3), (400.0, 0.0), (400.0, 0.3)], "shared": [True, False]})
def test_zeros_and_numbers_of_every_size(shared, scale, holes):
    compare(*random_chain(LINKS[shared], 21, (3,), 3, scale, holes), ragged(21, (3,), 1), shared, 1e-8)


def test_a_state_of_1e_300_that_decides_in_the_end():
    init = torch.tensor([[0.0, math.log(1e-300)]], dtype=F64)
    log = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], dtype=F64)
    emit = torch.zeros(100, 1, 2, dtype=F64)
    emit[20:70, 0, 1] = -10.0  # 1e-217 on top of it
    emit[-1, 0, 0] = -math.inf
    found = time_scan.forward_pass(init, log, emit, None, True)
    close(found.log_prob, torch.tensor([math.log(1e-300) - 500.0], dtype=F64))
    assert (time_scan.viterbi_pass(init, log, emit, None, True)[0] == 1).all()


def test_an_impossible_row_and_numbers_of_four_bytes():
    init, log, emit = random_chain(LINKS[True], 12, (2,), 3, dtype=F32)
    emit[5, 0] = -math.inf
    found = time_scan.forward_pass(init, log, emit, None, True)
    assert torch.isneginf(found.log_prob[0]) and torch.isneginf(found.steps[5, 0]) and found.log_prob.dtype == F32
    close(found.log_prob[1], scan.forward_twin(init, log, emit, None, True, None, None)[0][1], rtol=1e-5, atol=1e-5)


def test_second_derivatives():
    init, log, emit = random_chain(LINKS[True], 6, (1,), 2)

    def hessian(log_prob):
        return torch.autograd.functional.hessian(lambda e: log_prob(e).sum(), emit)

    wanted = hessian(lambda e: scan.forward_twin(init, log, e, None, True, None, None)[0])
    close(hessian(lambda e: time_scan.forward_pass(init, log, e, None, True).log_prob), wanted)


def test_a_model_asked_in_parallel():
    model = HMM(3, 5)
    model.load_state_dict(model.state_dict())  # its random numbers are meant
    x = [[3, 1, 4, 1, -1, 2], [2, 0, 1]]
    with time_scan.parallel_in_time():
        chain = model.posterior(x)
        found = model.score(x), *model.predict(x), *model.predict_proba(x), *model.filter(x).probs
        assert chain.in_parallel
    wanted = model.score(x), *model.predict(x), *model.predict_proba(x), *model.filter(x).probs
    for got, value in zip(found, wanted, strict=True):
        close(torch.as_tensor(got), torch.as_tensor(value))


def test_short_rows_are_asked_in_parallel_too(monkeypatch):
    model, x = HMM(3, 5), torch.tensor([[3, 1, 4, 1], [2, 0, 1, 2]])
    model.load_state_dict(model.state_dict())
    wanted, short = model.score(x), model._chain_of_rows(model._as_batch(x))
    assert short is not None and not short.in_parallel
    calls, forward_pass = [], time_scan.forward_pass
    monkeypatch.setattr(time_scan, "forward_pass", lambda *args: calls.append(1) or forward_pass(*args))
    with time_scan.parallel_in_time():
        close(torch.as_tensor(model.score(x)), torch.as_tensor(wanted))
    assert calls == [1]


def test_other_chains_are_refused():
    with time_scan.parallel_in_time(), pytest.raises(TypeError, match="parallel_in_time: .*EmbeddingTransition"):
        VLHMM(4, num_words=6, blocks=[0, 0, 0, 1, 1, 1], hidden_size=4)(torch.tensor([[1, 2]]))
