"""EM of input-output HMMs, restarts as one batch: against single fits, finite differences and the M-step's own conditions."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pplseq import IOHMM
from pplseq.infer.fit.closed_forms import dirichlet_mode
from pplseq.models.iohmm.networks import ConstantNetwork, LayeredNetwork, LinearNetwork, ModuleNetwork, TableNetwork
from pplseq.models.iohmm.restarts.em import EMRun, RestartPriors
from pplseq.models.iohmm.restarts.gaussian import GaussianOutputs
from pplseq.models.iohmm.restarts.gradient import SGDRun
from pplseq.models.iohmm.restarts.history import RestartBlock
from pplseq.models.iohmm.restarts.networks import RestartNetwork, distinct
from pplseq.models.iohmm.restarts.outputs import BernoulliOutputs, CategoricalOutputs, Outputs
from pplseq.models.iohmm.restarts.problem import RestartProblem, take
from pplseq.models.iohmm.restarts.responses import ResponseOutputs
from pplseq.models.iohmm.restarts.starts import draw_parameters
from pplseq.models.parts.responses import ResponseColumns

B, T, Z, U, L = 9, 7, 3, 2, 3
F64 = torch.float64


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 2), (1, 1), (2, 3)])
@pytest.mark.parametrize("most", [2, 4, 1000])
def test_distinct_rows_are_found(shape, most):
    values = torch.randint(most, shape, generator=torch.Generator().manual_seed(most)).to(F64)
    values[-1:] *= -1.0  # also a negative zero
    rows, index = torch.unique(values, dim=0, return_inverse=True)
    found, entry = distinct(values)
    assert (entry is None) == (2 * len(rows) > len(values))
    assert torch.equal(found, values if entry is None else rows) and (entry is None or torch.equal(entry, index))


def network(kind, shape):
    if kind == "constant":
        return ConstantNetwork(shape, F64)
    if kind == "table":
        return TableNetwork(L, shape, F64)
    if kind == "linear":
        return LinearNetwork(U, shape, F64)
    if kind == "layered":
        return LayeredNetwork(U, shape, (3,), F64)
    size = torch.Size(shape).numel()
    return ModuleNetwork(nn.Sequential(nn.Linear(U, 4, dtype=F64), nn.Tanh(), nn.Linear(4, size, dtype=F64)), shape, 1)


def problem(initial="constant", transition="table", emission="constant", family="categorical", covariance="diag",
            graph=None, states=False, before_first=False, rows=slice(None)):  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, T + 1, (B,), generator=generator)
    lengths[0] = T
    symbols = torch.randint(L, (B, T), generator=generator)
    vectors = torch.randn(B, T, U, dtype=F64, generator=generator)
    known = torch.rand(B, T, generator=generator) > 0.2
    observed = torch.randint(-2, Z, (B, T), generator=generator).clamp_min(-1)
    inputs = {
        name: {"constant": None, "table": symbols[rows]}.get(kind, vectors[rows])
        for name, kind in (("initial", initial), ("transition", transition), ("emission", emission))
    }
    if inputs["initial"] is not None:
        inputs["initial"] = inputs["initial"][:, 0]
    words = torch.randint(4, (B, T), generator=generator)
    if family == "categorical":
        outputs, x = CategoricalOutputs(RestartNetwork(network(emission, (Z, 4)))), words
    elif family == "bernoulli":
        outputs, x = (
            BernoulliOutputs(RestartNetwork(network(emission, (Z, 2)))),
            torch.stack([words % 2, words // 2], -1).double(),
        )
    elif family == "gaussian":
        outputs = GaussianOutputs(RestartNetwork(network(emission, (Z, 2))), covariance, 1e-3)
        x = torch.randn(B, T, 2, dtype=F64, generator=generator) + 3 * (words % 3).unsqueeze(-1)
    elif family == "columns":
        names = ["normal", "poisson", "categorical", "negative_binomial", "gamma", "binomial", "bernoulli"]
        columns = ResponseColumns(names, [1, 1, 3, 1, 1, 1, 1], ["log", "sqrt", None, None, None, "probit", "cloglog"], 4)
        floor = torch.full((7,), 1e-3, dtype=F64)
        outputs = ResponseOutputs(RestartNetwork(network(emission, (Z, columns.width))), columns, floor)
        noise = torch.rand(B, T, dtype=F64, generator=generator)
        x = torch.stack([2 + noise, words, words % 3, 2 * words, 1e-3 + noise, words, words % 2], -1).double()
        x[1, 0, 3] = x[2, :, 0] = torch.nan
    else:
        outputs, x, known = Outputs(Z), words, torch.zeros_like(known)
    return RestartProblem(
        RestartNetwork(network(initial, (Z,))), RestartNetwork(network(transition, (Z, Z)), graph), outputs,
        x=x[rows], known=known[rows], inputs=inputs, lengths=lengths[rows], states=observed[rows] if states else None,
        before_first=before_first,
    )  # fmt: skip


CASES = [
    dict(),
    dict(initial="table", emission="table", family="bernoulli"),
    dict(initial="linear", transition="linear", emission="linear"),
    dict(transition="linear", emission="linear", family="bernoulli", states=True),
    dict(transition="linear", emission="linear", family="gaussian"),
    dict(family="gaussian", covariance="full", before_first=True),
    dict(emission="table", family="gaussian", covariance="tied"),
    dict(emission="linear", family="gaussian", covariance="spherical"),
    dict(family="states", transition="linear", states=True),
    dict(emission="linear", family="columns"),
    dict(emission="table", family="columns", states=True),
    dict(emission="layered", family="columns"),
    dict(transition="layered"),
    dict(transition="module", emission="layered", family="gaussian", covariance="full"),
    dict(emission="layered", family="bernoulli"),
]
GRAPH = torch.tensor([[True, True, False], [False, True, True], [True, False, True]])


@pytest.mark.parametrize("case", CASES)
def test_one_batch_is_a_loop_over_single_fits_and_never_falls(case):
    graph = None if case.get("states") else GRAPH  # random states may not be on it
    many = problem(**case, graph=graph)
    blocks = [RestartBlock(2), RestartBlock(2, concentration=0.5, fixed_start=True, prior=1.5, prior_iterations=3)]
    start = draw_parameters(many, blocks)
    # So few data are separable: weights of linear networks grow without end, a Newton step has a Hessian of size 1e-16 then,
    # and rounding, which depends on the size of the batch, chooses its direction: 1e-16 in the weights after one iteration,
    # 1e-10 after four, 1 after eight.
    few = {"max_iterations": 4, "tolerance": 2e-2}
    together = EMRun(many, start, blocks=blocks, **few).run()
    gains = (together.objectives[1:] - together.objectives[:-1])[:, :2]
    assert float(gains[~gains.isnan()].min()) > -1e-9
    for restart in (1, 2):
        block = blocks[restart // 2].replaced(1)
        alone = EMRun(problem(**case, graph=graph), take(start, torch.tensor([restart])), blocks=[block], **few).run()
        assert alone.num_iterations[0] == together.num_iterations[restart]
        assert_close(alone.log_likelihoods[0], together.log_likelihoods[restart], rtol=1e-8, atol=1e-8)
        own = take(together.parameters, torch.tensor([restart]))
        rows = [many.log_prob(parameters) for parameters in (alone.parameters, own)]
        assert_close(*rows, rtol=1e-7, atol=1e-7)
        if "linear" in case.values():  # where data are separable, or states hardly visited, weights hardly matter
            continue
        for value, expected in zip(many.tables(alone.parameters), many.tables(own), strict=True):
            assert_close(value.exp(), expected.exp(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_gradients_against_finite_differences(case):
    """Fisher's identity, network by network, at random starts: those that labels are fitted to have shapes so large that
    differences are rounding."""
    one = problem(**case)
    parameters = draw_parameters(problem(**case | {"states": False}), [RestartBlock(2)])
    value, gradient = one.gradient(parameters)
    assert_close(value, one.log_prob(parameters).sum(0))
    step = 1e-5
    for part, weights in parameters.items():
        for name, own in weights.items():
            flat = own.reshape(-1, 2)
            for k in {0, len(flat) // 2, len(flat) - 1}:
                change = torch.zeros_like(flat)
                change[k] = step
                up, down = (
                    one.expect({**parameters, part: {**weights, name: own + sign * change.reshape(own.shape)}}).log_prob.sum(0)
                    for sign in (1, -1)
                )
                assert_close(gradient[part][name].reshape(-1, 2)[k], (up - down) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES[:11])
def test_the_exact_maximum_is_one(case):
    """After an M-step no direction improves the expected log-likelihood: its gradient there is zero."""
    one = problem(**case, graph=GRAPH)
    torch.manual_seed(1)  # under which no column of classes is separable
    parameters = draw_parameters(one, [RestartBlock(2)])
    expected = one.expect(parameters)
    small = 1e-2 if case.get("family") == "columns" else 1e-3  # regressions stop where a step promises 1e-9 nats a step
    penalties = RestartPriors([RestartBlock(2)], torch.zeros(2, dtype=torch.long), torch.zeros(1, dtype=F64), {}).at(
        0, torch.arange(2)
    )
    for _ in range(8):  # Newton's method in earnest
        parameters, _ = one.maximize(parameters, expected, penalties)
    leaves = {p: {k: v.clamp_min(-60).requires_grad_() for k, v in w.items()} for p, w in parameters.items()}
    tables = one.tables(leaves)
    objective = sum((c * t.masked_fill(c == 0, 0.0)).sum() for t, c in zip(tables, expected[1:], strict=True))
    flat = [value for weights in leaves.values() for value in weights.values()]
    for gradient, value in zip(torch.autograd.grad(objective, flat, allow_unused=True), flat, strict=True):
        if gradient is not None:
            assert float(gradient.where(value.abs() < 15, 0.0).abs().max()) < small


def test_tables_are_normalised_counts_with_their_prior():
    one = problem(graph=GRAPH)
    block = RestartBlock(2, prior=1.5, prior_iterations=4)
    parameters = draw_parameters(one, [block])
    expected = one.expect(parameters)
    priors = RestartPriors([block], torch.zeros(2, dtype=torch.long), torch.zeros(1, dtype=F64), {})
    found, _ = one.maximize(parameters, expected, priors.at(2, torch.arange(2)))
    concentration = torch.where(GRAPH, 1.25, 1.0)
    for restart in range(2):
        for symbol in range(L):
            rows = dirichlet_mode(expected.pair[:, :, symbol, restart], concentration, torch.zeros(Z, Z, dtype=F64))
            assert_close(found["transition"]["logits"][symbol, ..., restart], rows)
    assert float(priors.at(4, torch.arange(2))["transition"].concentration.max()) == 1.0


def test_a_transition_before_the_first_output():
    """z_0 moves with u_1: the same as summing it out by hand, and as a start that sees symbols."""
    first = problem(before_first=True)
    parameters = draw_parameters(first, [RestartBlock(3)])
    found = first.expect(parameters).log_prob
    by_hand = problem(initial="table")
    start = parameters["initial"]["logits"].softmax(0)
    move = parameters["transition"]["logits"].softmax(2)
    logits = torch.einsum("jr,ljir->lir", start, move).log()
    assert_close(by_hand.expect({**parameters, "initial": {"logits": logits}}).log_prob, found)


def test_a_fixed_start_and_a_graph_stay():
    one = problem(graph=GRAPH)
    block = RestartBlock(3, fixed_start=True, prior=2.0, prior_iterations=0)
    found = EMRun(one, draw_parameters(one, [block]), blocks=[block], max_iterations=5).run()
    assert bool(torch.isneginf(found.parameters["initial"]["logits"][1:]).all())
    log_probs = one.transition.log_probs(found.parameters["transition"], one.rows)
    assert bool((torch.isneginf(log_probs).all(-1).all(-1) == ~GRAPH).all())
    assert not found.dropped


def test_collapsed_restarts_are_dropped_and_the_others_do_not_notice():
    one = problem(family="gaussian")
    start = draw_parameters(one, [RestartBlock(4)])
    start["transition"]["logits"][..., 1] = torch.nan
    start["emission"]["logits"][..., 2] = torch.inf
    found = EMRun(one, start, max_iterations=6, tolerance=0.0).run()
    assert sorted(found.dropped) == [1, 2] and "NaN" in found.dropped[1]
    alone = EMRun(problem(family="gaussian"), take(start, torch.tensor([0, 3])), max_iterations=6, tolerance=0.0).run()
    assert_close(found.log_likelihoods[found.kept], alone.log_likelihoods)


def test_empty_states_are_told():
    one = problem()
    start = draw_parameters(one, [RestartBlock(2)])
    start["transition"]["logits"][:, :, 2, 0] = -torch.inf  # nothing leads to state 2 under restart 0
    start["initial"]["logits"][2, 0] = -torch.inf
    found = EMRun(one, start, max_iterations=3).run()
    assert found.empty == {0: [2]} and not found.dropped


def test_a_variance_floor():
    one = problem(family="gaussian", covariance="diag")
    one.outputs.floor = 50.0
    found = EMRun(one, draw_parameters(one, [RestartBlock(2)]), max_iterations=3).run()
    assert found.floored == [0, 1]
    assert_close(found.parameters["noise"]["log_scale"].exp() ** 2, torch.full((Z, 2, 2), 50.0, dtype=F64))


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[9], CASES[13]])
def test_generalised_em_goes_up_to_about_where_em_goes(case):
    one = problem(**case)
    start = draw_parameters(one, [RestartBlock(2)])
    found = EMRun(one, start, gradient=True, max_iterations=8, tolerance=0.0).run()
    gains = found.trace[1:] - found.trace[:-1]
    assert float(gains[~gains.isnan()].min()) > -1e-9
    exact = EMRun(one, start, max_iterations=3, tolerance=0.0).run()
    assert bool((found.log_likelihoods > found.trace[0] + 0.8 * (exact.log_likelihoods - found.trace[0])).all())


def test_stochastic_gradients_on_mini_batches():
    parts = [problem(transition="linear", rows=slice(first, first + 3)) for first in (0, 3, 6)]
    start = draw_parameters(parts[0], [RestartBlock(3)])
    whole = problem(transition="linear")
    before = whole.log_prob(start).sum(0)
    found = SGDRun(parts, start, num_steps=60, lr=0.1).run()
    assert_close(found.log_likelihoods, whole.log_prob(found.parameters).sum(0))
    assert bool((found.log_likelihoods > before + 1).all())
    torch.manual_seed(3)
    one = SGDRun(parts, take(start, torch.tensor([1])), num_steps=10).run()
    torch.manual_seed(3)
    assert_close(SGDRun(parts, start, num_steps=10).run().log_likelihoods[1:2], one.log_likelihoods, rtol=1e-8, atol=1e-8)


def test_blocks_must_fit():
    one = problem()
    with pytest.raises(ValueError, match="blocks hold 3 restarts, but parameters are of 2"):
        EMRun(one, draw_parameters(one, [RestartBlock(2)]), blocks=[RestartBlock(3)]).run()
    with pytest.raises(ValueError, match="prior must be at least 1"):
        RestartBlock(2, prior=0.5)
    with pytest.raises(ValueError, match="concentration must be positive"):
        RestartBlock(2, concentration=0.0)


def test_a_restart_that_falls_keeps_the_parameters_before():
    one = problem()
    start = draw_parameters(one, [RestartBlock(3)])
    before = EMRun(problem(), start, max_iterations=2, tolerance=0.0).run()
    maximize, calls = one.maximize, []

    def spoilt(*args, **options):
        parameters, floored = maximize(*args, **options)
        calls.append(len(calls))
        if calls[-1] == 2:
            parameters["transition"]["logits"][..., 1] = start["transition"]["logits"][..., 1].flip(0)
        return parameters, floored

    one.maximize = spoilt
    found = EMRun(one, start, max_iterations=5, tolerance=0.0).run()
    assert found.fell == [1] and found.log_likelihoods[1] == before.log_likelihoods[1]
    mine, wanted = (take(run.parameters, torch.tensor([1])) for run in (found, before))
    assert_close(mine, wanted, rtol=0, atol=0)
    assert bool((found.log_likelihoods > before.log_likelihoods)[[0, 2]].all())


@pytest.mark.parametrize("inputs", ["none", "symbols"])
def test_priors_beside_what_is_forbidden(inputs):
    torch.manual_seed(0)
    kinds = {"num_inputs": 1} if inputs == "none" else {"num_symbols": {"transition": 2, "initial": 2}, "initial": "inputs"}
    x, u = [torch.randint(0, 3, (12,))], [torch.randint(0, 2, (12,))]
    known = {"inputs": [u[0].double().unsqueeze(-1)] if inputs == "none" else u}
    for method in ("em", "gem", "sgd"):
        model = IOHMM(3, outputs="categorical", num_outputs=3, graph="left_right", priors=True, **kinds)
        model.fit(x, method=method, **{"num_steps" if method == "sgd" else "max_iterations": 30}, **known)
        assert model.log_prior() > -100 and model.history.log_posteriors[-1] > -100
        rise = np.diff(model.history.log_posteriors)
        assert method == "sgd" or (rise > -1e-9).all()
