"""The k best paths of contexts, and what surrounds the loops over them: numbers that are none, threads, small ones."""

import math

import pytest
import torch

from pplseq.kernels import compiled, scan
from pplseq.kernels.contexts import call, reference
from pplseq.kernels.contexts.reference import ContextSteps

close = torch.testing.assert_close
F64 = torch.float64
SIZE, ROWS, STEPS = 4, 5, 7


def layout(kind, size):
    """Successors and last symbols of contexts: all pairs, or some of them and (*, symbol) for others."""
    if kind == "pairs":
        symbol = torch.arange(size).repeat(size)
        return symbol.unsqueeze(-1) * size + torch.arange(size), symbol
    own = [(a, b) for a in range(size) for b in range(size) if (a + 2 * b) % 3 == 0]
    of_pair = (torch.arange(size) + len(own)).repeat(size, 1)
    for number, pair in enumerate(own):
        of_pair[pair] = number
    symbol = torch.tensor([b for _, b in own] + list(range(size)))
    return of_pair[symbol], symbol


def problem(kind, data, size=SIZE, dtype=F64):
    """Start, steps, emissions and which steps are there."""
    torch.manual_seed(0)
    successor, symbol = layout(kind, size)
    log, init = torch.randn(len(symbol), size), torch.randn(len(symbol)).expand(ROWS, -1)
    emit = torch.randn(STEPS, ROWS, len(symbol))
    if "zeros" in data:
        log[:, 1:] = log[:, 1:].masked_fill(torch.rand_like(log[:, 1:]) < 0.4, -math.inf)
    if "words" in data:
        few = torch.rand(STEPS, ROWS, size) < 0.5
        few[..., 0] = False
        emit = emit.masked_fill(few[..., symbol], -math.inf)
    if "far" in data:
        emit = emit * 900
    if "peaked" in data:
        log = log * 300
    valid = torch.arange(STEPS).unsqueeze(-1) < torch.tensor([STEPS, 1, 0, 3, STEPS - 1]) if "ragged" in data else None
    if valid is not None:
        emit = emit.masked_fill(~valid.unsqueeze(-1), 0.0)
    init, log, emit = (value.to(dtype) for value in (init.log_softmax(-1), log.log_softmax(-1), emit))
    return init, ContextSteps(log, successor, symbol, kind == "pairs"), emit, valid


DATA = [("", 1), ("", 4), ("ragged", 4), ("zeros words", 4), ("zeros words ragged", 5), ("far", 4), ("peaked", 3)]
CASES = [
    pytest.param(kind, data, size, id=f"{kind}-{data or 'plain'}-{size}")
    for kind in ("pairs", "contexts")
    for data, size in DATA
]


@pytest.mark.parametrize(("kind", "data", "size"), CASES)
def test_paths(kind, data, size):
    init, steps, emit, valid = problem(kind, data, size)
    log = steps.at(1)
    used = torch.ones(STEPS, ROWS, dtype=torch.bool) if valid is None else valid
    found, scores = reference.k_best_pass(init, steps, emit, valid, 6)
    for k in (1, 2, 6):
        paths, log_prob = call.k_best_pass(init, steps, emit, valid, k)
        close(log_prob, scores[:k])
        for j, row in (scores[:k] > -math.inf).nonzero().tolist():
            assert torch.equal(paths[j, used[:, row], row], found[j, used[:, row], row])
    best = init + emit[0]
    for t in range(1, STEPS):
        new = (best.unsqueeze(-1) + log).amax(1) + emit[t]
        best = torch.where(used[t].unsqueeze(-1), new, best)
    there = used[0]  # a row without steps has one path
    close(scores[0, there], best.amax(-1)[there])
    assert (scores.diff(dim=0) <= 0)[:, there].logical_or(scores[1:, there].isneginf()).all()
    for k, row in ((scores > -math.inf) & there).nonzero().tolist():
        states = found[k, : int(used[:, row].sum()), row].tolist()
        score = init[row, states[0]] + sum(emit[t, row, z] for t, z in enumerate(states))
        moves = [log[a, b] for a, b in zip(states, states[1:], strict=False)]
        close(score + sum(moves, torch.zeros((), dtype=F64)), scores[k, row])
        assert states not in [found[j, : len(states), row].tolist() for j in range(k)]


def test_gradients_by_transforms():
    init, steps, emit, valid = problem("contexts", "zeros words ragged", 3)

    def log_prob(emit):
        return call.log_prob(init, steps, emit, valid).log_prob

    jacobian, (expected,) = torch.func.jacrev(log_prob)(emit), torch.autograd.grad(log_prob(emit.requires_grad_()).sum(), emit)
    close(jacobian.sum(0), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [(0, 1, 2), (4, 1, 2), (1, 1, 8)])
def test_what_is_no_number_is_not_hidden(bad, where):
    """The loops leave it to the twin, whose rows show it; and other rows are as they were."""
    init, steps, emit, _ = problem("pairs", "", 3)
    if where[0] == 1:  # where no path leads
        init = init.masked_fill(torch.arange(9) > 0, -math.inf)
    emit[where] = bad
    found = call.forward_pass(init, steps, emit, None)
    assert found.log_prob[1].isnan() or found.log_prob[1] == math.inf
    assert found.log_prob[[0, 2, 3, 4]].isfinite().all()
    for loops in (True, False):
        with compiled.always() if loops else compiled.twins_only():
            best = call.k_best_pass(init, steps, emit, None, 1)[1][0]
        assert not best[1].isfinite() and best[[0, 2, 3, 4]].isfinite().all()


def test_what_becomes_too_small_may_be_all_that_is_left():
    """A symbol that nothing leads to but itself seems impossible, and then explains what follows; the twin finds it."""
    init, steps, emit, _ = problem("pairs", "")
    into = (steps.symbol != 1).unsqueeze(-1) & (torch.arange(SIZE) == 1)
    steps = ContextSteps(steps.log.masked_fill(into, -math.inf).log_softmax(-1), steps.successor, steps.symbol, True)
    level = torch.tensor([0.0, -400, -400, 500, 500, 0, 0], dtype=F64).view(-1, 1, 1)
    emit = torch.where(steps.symbol == 1, level, 0.0).expand(emit.shape).contiguous()
    matrices = scan.StepMatrices(steps.at(1), True)
    found, expected = call.forward_pass(init, steps, emit, None), scan.forward_in_log_space(init, matrices, emit, None)
    close(found.log_prob, expected.log_prob)
    posterior = scan.state_posterior(expected.filtered, scan.backward_in_log_space(matrices, emit, None), None)
    close(call.smooth(found, steps, emit, None).posterior, posterior)
    assert posterior[0, 0, steps.symbol == 1].sum() > 0.99


def test_rows_in_threads(monkeypatch):
    given = problem("contexts", "zeros words ragged")
    once = call.smooth(call.forward_pass(*given), *given[1:], counts=True, entropy=True)
    monkeypatch.setattr(compiled, "num_parts", lambda num_rows, work: 2)
    again = call.smooth(call.forward_pass(*given), *given[1:], counts=True, entropy=True)
    close(tuple(again), tuple(once))


def test_small_probabilities_of_a_table_are_left_to_the_twin():
    init, steps, emit, _ = problem("pairs", "")
    log = torch.log_softmax(torch.where(torch.arange(steps.num_symbols) == 1, -80.0, steps.log), -1)
    steps = ContextSteps(log, steps.successor, steps.symbol, steps.in_order)
    assert steps.probs is None and call.forward_pass(init, steps, emit, None).in_logs
    assert call.k_best_pass(init, steps, emit, None, 1)[1][0].isfinite().all()
