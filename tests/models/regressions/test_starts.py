"""M-steps that are solved against those that climb, and the race of starts against EM one by one."""

import copy
import itertools

import pytest
import torch
from support.grids import grid

from pplseq import SwitchingRegression
from pplseq.models.parts.moves import shares
from pplseq.models.regressions import start
from pplseq.models.regressions.fit import climb, expected_log_likelihood, left_variances, m_step, solve_regressions

close = torch.testing.assert_close
SWITCHING = ["mean", ("mean", "lags"), ("inputs", "variance"), ("mean", "inputs", "lags", "variance")]


def model_and_statistics(switching, initial="stationary", num_regimes=3):
    """Of random numbers in two rows, of which one ends early, with inputs and a lag."""
    torch.manual_seed(0)
    model = SwitchingRegression(num_regimes, order=1, num_inputs=2, switching=switching, initial=initial)
    x, inputs = torch.randn(2, 40, 1).double().cumsum(1), torch.randn(2, 40, 2).double()
    batch = model._as_batch(x, torch.tensor([40, 23]), inputs=inputs)
    model._check_data(batch)
    model.initialize(batch)
    return model, model.expected_statistics(model.chain_of(batch), batch), batch


@pytest.mark.parametrize(("switching", "initial"), [*((each, "stationary") for each in SWITCHING), ("mean", "learned")])
def test_solved_steps_end_where_climbing_ends(switching, initial):
    model, statistics, _ = model_and_statistics(switching, initial)
    other, last = copy.deepcopy(model), -float("inf")
    for _ in range(20):
        m_step(model, statistics)
        value = float(expected_log_likelihood(model, statistics).detach())
        assert value > last - 1e-9
        last = value
    for _ in range(2):
        climb(other, list(other.parameters()), statistics, num_steps=50)
    climbed = float(expected_log_likelihood(other, statistics).detach())
    assert climbed - 1e-6 < last < climbed + 1e-2
    value = expected_log_likelihood(model, statistics)
    for gradient in torch.autograd.grad(value, list(model.parameters())):
        close(gradient, torch.zeros_like(gradient), atol=2e-2, rtol=0)


def test_directions_without_data_stay():
    model, statistics, _ = model_and_statistics(("mean", "inputs", "lags", "variance"))
    statistics = {name: value.clone() for name, value in statistics.items()}
    statistics["moments"][1], statistics["weight"][1] = 0.0, 0.0  # a regime that nobody visits
    statistics["moments"][:, -1], statistics["moments"][:, :, -1] = 0.0, 0.0  # an input that is always zero
    before, scale = (value.detach().clone() for value in model.by_history(raw=True))
    solve_regressions(model, statistics)
    after, now = model.by_history(raw=True)
    close(after[1], before[1])
    close(after[:, -1], before[:, -1])
    close(now[1], scale[1])
    assert not torch.allclose(after[0], before[0])


def test_what_is_held_stays():
    model, statistics, _ = model_and_statistics(("mean", "inputs", "lags", "variance"))
    model.raw_mean.requires_grad_(False)
    before = model.raw_mean.clone()
    m_step(model, statistics)
    close(model.raw_mean, before, rtol=0, atol=0)


@grid({"switching": SWITCHING, "num_regimes": [1, 3]})
def test_a_race_is_em_of_each_start(switching, num_regimes, monkeypatch):
    monkeypatch.setattr(start, "ITERATIONS", 4)
    model, _, batch = model_and_statistics(switching, num_regimes=num_regimes)
    batch.x[1, 5] = torch.nan  # explained or not: nothing is said of it
    inputs, drawn, values, found = batch.inputs / model.input_units, [], [], []
    x = model.in_units(batch.x[..., 0].nan_to_num(0.0), None)[0]
    rows = model.regressors(torch.cat([x.new_zeros(2, 1), x], 1).unsqueeze(-1), inputs)
    seen = model._explained(batch)[1]
    for _ in range(3):
        with torch.no_grad():
            model.put(0.5 * torch.randn(num_regimes, 4).double(), 0.5 + torch.rand(num_regimes).double())
            model.moves.transition_logits.copy_(torch.randn(num_regimes, num_regimes))
        drawn.append((*(v.detach().clone() for v in model.by_history(raw=True)), model.chain_moves()[1].detach().clone()))
    shared, scores = "variance" not in switching, []
    given, wanted = rows[seen], x[seen]
    whole = (wanted - given @ torch.linalg.lstsq(given, wanted[:, None]).solution[:, 0]).square().mean()
    prior = 6.0, float(whole) / num_regimes**2
    for weights, scale, moves in drawn:
        model.put(weights, scale)
        model.moves.transition_logits.data.copy_(moves)
        for _ in range(4):
            statistics = paths(model, x, rows, seen, batch.lengths)[1]
            solve_regressions(model, statistics)
            weight = statistics["weight"]
            weights = model.by_history(raw=True)[0].detach()
            left = left_variances(statistics["moments"], weight, weights, shared=shared)
            steps = weight.sum().expand(num_regimes) if shared else weight
            model.put(weights, start.held_variances(left, steps, prior).sqrt())
            model.moves.transition_logits.data.copy_(shares(statistics["transition"], model.moves.transition_logits.detach()))
        values.append(paths(model, x, rows, seen, batch.lengths)[0])
        found.append([v.detach().clone() for v in (*model.by_history(raw=True), model.chain_moves()[1])])
    for value, (_, scale, _) in zip(values, found, strict=True):
        held = prior[0] * (scale.log() + prior[1] / scale.square() / 2)
        scores.append(value - (held[0] if shared else held.sum()))
    raced = start.race(drawn, rows, x, seen, batch.lengths, model.places(), shared=shared)
    for ours, theirs in zip(raced, found[int((torch.stack(scores) >= max(scores) - start.ALIKE).int().argmax())], strict=True):
        close(ours, theirs, atol=1e-8, rtol=1e-8)


def paths(model, x, rows, seen, lengths):
    """log p(x), and EM's statistics, step by step in logarithms."""
    (weights, scale), (first, matrix) = model.by_history(raw=True), model.chain_moves()
    total, joint = 0.0, torch.cat([x.unsqueeze(-1), rows], -1)
    size, num_regimes = joint.shape[-1], len(scale)
    statistics = {
        "weight": torch.zeros(num_regimes), "moments": torch.zeros(num_regimes, size, size),
        "transition": torch.zeros(num_regimes, num_regimes),
    }  # fmt: skip
    statistics = {name: value.double() for name, value in statistics.items()}
    for row, length in enumerate(lengths.tolist()):
        emit = torch.distributions.Normal(rows[row] @ weights.T, scale).log_prob(x[row, :, None])
        emit = torch.where(seen[row, :, None], emit, 0.0)[:length]
        ahead, behind = [first + emit[0]], [torch.zeros_like(first)]
        for t in range(1, length):
            ahead.append((ahead[-1].unsqueeze(-1) + matrix).logsumexp(0) + emit[t])
            behind.append((matrix + emit[length - t] + behind[-1]).logsumexp(-1))
        behind.reverse()
        total = total + ahead[-1].logsumexp(0)
        for t in range(length):
            probs = (ahead[t] + behind[t]).softmax(-1) * seen[row, t]
            statistics["weight"] += probs
            statistics["moments"] += probs[:, None, None] * torch.outer(joint[row, t], joint[row, t])
        for t, after in itertools.pairwise(range(length)):
            pair = ahead[t].unsqueeze(-1) + matrix + emit[after] + behind[after]
            statistics["transition"] += pair.flatten().softmax(0).view_as(pair)
    return total.detach(), {name: value.detach() for name, value in statistics.items()}


def test_variances_without_data_are_not_known():
    moments, weights = torch.eye(3).double().expand(2, 3, 3), torch.zeros(2, 2).double()
    found = left_variances(moments, torch.tensor([2.0, 0.0]).double(), weights, shared=False)
    assert found[0] == 0.5 and found[1].isnan()
    close(left_variances(moments, torch.tensor([2.0, 0.0]).double(), weights, shared=True), torch.ones(2).double())


def test_long_rows_have_one_start():
    assert start.num_drawn(torch.ones(2, 100)) == start.DRAWN
    assert start.num_drawn(torch.ones(1, 10**6)) == 1
