"""Standard errors of input-output HMMs, and starts in the stationary distribution of their transitions."""

import re
import warnings
from pathlib import Path

import pyro
import pytest
import torch
from pyro import poutine
from support.oracles.discrete import generic_log_prob
from torch.testing import assert_close

from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.models import IOHMM


def test_errors_of_one_state_are_those_of_its_regressions():
    """X' W X, with W = mu of a Poisson regression and 1 / variance of a normal one."""
    torch.manual_seed(0)
    u = torch.randn(1, 20, 1).double()
    x = torch.cat([torch.poisson((0.5 + 0.3 * u).exp()), 1 + 2 * u + torch.randn_like(u)], -1)
    model = IOHMM(1, num_inputs=1, outputs=["poisson", "normal"], mealy=True).fit(x, inputs=u, tolerance=1e-12, seed=0)
    found = model.summary(x, inputs=u)
    errors = dict(zip(found.names, found.errors.tolist(), strict=True))
    features = torch.cat([u[0], torch.ones(20, 1).double()], -1)
    mean, scale = (features @ model.emission_network.weight[0, :, 0]).exp().detach(), model.noise.raw.exp().item()
    for column, weight in (("x0", mean), ("x1", torch.full_like(mean, scale**-2))):
        expected = torch.linalg.inv(features.T @ (weight.unsqueeze(-1) * features)).diagonal().sqrt().tolist()
        assert [errors[f"emission[0].{column}.{name}"] for name in ("u0", "1")] == pytest.approx(expected, rel=1e-3)
    assert errors["scale.x1[0]"] == pytest.approx(scale / 40**0.5, rel=1e-3)
    assert "emission[0].x0.u0" in str(found) and len(found.names) == model.num_free_parameters + 1  # the start of one state


def test_what_a_softmax_cannot_tell_is_not_told():
    """The same added to all logits changes neither estimates nor errors."""
    torch.manual_seed(1)
    x, u = torch.randint(2, (3, 6)), torch.randn(3, 6, 1).double()
    model = IOHMM(2, num_inputs=1, num_outputs=2, mealy=True).fit(x, inputs=u, max_iterations=3, seed=0)
    with warnings.catch_warnings():  # of so few data some information is none
        warnings.simplefilter("ignore", RuntimeWarning)
        before = model.summary(x, inputs=u)
    with torch.no_grad():
        model.transition_network.weight += torch.randn(2, 2, 1).double()
        model.emission_network.weight += torch.randn(2, 2, 1).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        after = model.summary(x, inputs=u)
    assert before.names == after.names and "transition[0->1].u0" in before.names and "emission[1].x=1.1" in before.names
    assert_close(after.estimates, before.estimates)
    assert_close(after.errors, before.errors, rtol=1e-4, atol=1e-6, equal_nan=True)


def test_weights_of_layers_have_no_summary():
    x, u = torch.randint(2, (2, 5)), torch.randn(2, 5, 1).double()
    model = IOHMM(2, num_inputs=1, num_outputs=2, hidden={"transition": (2,)}).fit(x, inputs=u, max_iterations=1, seed=0)
    with pytest.raises(ValueError, match="transition network has hidden layers.*effect_curves"):
        model.summary(x, inputs=u)


def test_a_stationary_start_is_what_transitions_leave_as_it_is():
    torch.manual_seed(2)
    model = IOHMM(3, num_outputs=2, initial="stationary", num_inputs={"emission": 1}, mealy=True)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_()
    inputs = torch.randn(2, 4, 1).double()
    x = torch.tensor([[0, 1, 1, -1], [1, 0, 0, 0]])
    lengths = torch.tensor([4, 2])
    transition = model.specs()[0]
    start = transition.initial_log_prob().exp()
    assert_close(start @ transition.matrix.exp(), start)
    value = model.log_joint(x, lengths, inputs=inputs)
    slow = generic_log_prob(model, x, lengths, inputs=inputs)
    assert_close(slow, value)
    for got, expected in zip(*(torch.autograd.grad(v, list(model.parameters())) for v in (value, slow)), strict=True):
        assert_close(got, expected)
    model.fit(x, lengths, inputs=inputs, num_restarts=2, seed=0, max_iterations=4)
    trace = model.history.restarts.trace
    assert float((trace[1:] - trace[:-1]).nan_to_num(0.0).min()) > -1e-8
    assert model.score(x, lengths, inputs=inputs) == pytest.approx(model.history.log_likelihoods[-1])
    names = [name for name, site in poutine.trace(model.model).get_trace(x, lengths, inputs=inputs).nodes.items()]
    assert not any("initial" in name for name in names)


def test_a_stationary_start_needs_transitions_without_inputs():
    with pytest.raises(ValueError, match="initial: with inputs that drive transitions.*num_inputs={'emission': 2}"):
        IOHMM(2, num_inputs=1, num_outputs=2, initial="stationary")
    with pytest.raises(ValueError, match="leave start_states, graph"):
        IOHMM(2, num_inputs=0, num_outputs=2, initial="stationary", start_states=[0])
    with pytest.raises(ValueError, match="mealy=True, num_inputs"):
        IOHMM(2, num_inputs=0, num_outputs=2, initial="stationary")


def test_random_effects_of_the_tutorial():
    """A plate of levels around the chain: its density is that of the forward algorithm, vehicle by vehicle."""
    page = (Path(__file__).parents[3] / "docs/tutorials/iohmm.md").read_text(encoding="utf-8")
    code = re.search(r"^def vehicles.*?(?=\n\n\n)", page, re.M | re.S)
    names = {"torch": torch, "pyro": pyro, "dist": pyro.distributions}
    exec(code[0], names)
    torch.manual_seed(3)
    y, u, effect = torch.randn(3, 4), torch.rand(3, 4), torch.tensor([-1.0, 0.5, 2.0])
    base, slope, noise, stay = torch.tensor([0.0, 1.0]), torch.tensor([1.0, -1.0]), torch.tensor(0.7), torch.tensor([0.9, 0.8])
    values = dict(effect=effect, base=base, slope=slope, noise=noise, stay=stay, spread=torch.tensor(2.0))
    fixed = poutine.block(pyro.condition(names["vehicles"], data=values), hide=list(values))
    got = poutine.trace(BlockedEnum(max_plate_nesting=1)(fixed)).get_trace(y, u).log_prob_sum()
    matrix = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    total = 0.0
    for row in range(3):
        alpha = matrix[0]
        for t in range(4):
            density = pyro.distributions.Normal(effect[row] + base + slope * u[row, t], noise).log_prob(y[row, t]).exp()
            alpha = (alpha if t == 0 else alpha @ matrix) * density
        total = total + alpha.sum().log()
    assert_close(got, total)


def test_a_stationary_start_of_states_that_hardly_move():
    torch.manual_seed(0)
    x = [6.0 * (row % 2) + torch.randn(9, 1, dtype=torch.float64) for row in range(6)]
    model = IOHMM(2, num_inputs={"emission": 0}, outputs="gaussian", num_outputs=1, mealy=True, initial="stationary")
    model.fit(x, num_restarts=2, seed=0, max_iterations=60)  # moves become as improbable as numbers can be
    matrix = model.transition_network.logits.detach().softmax(-1)
    assert float(matrix[0, 1] + matrix[1, 0]) < 1e-3
    start = torch.stack([matrix[1, 0], matrix[0, 1]]) / (matrix[0, 1] + matrix[1, 0])
    assert_close(model.specs()[0].initial.detach().exp(), start)
