"""Pyro programs whose states are marked for enumeration, on another device: the loss, its gradients and states are there."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from support.elsewhere import DEVICE, Elsewhere, other_device

from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.infer.programs.states import infer_states

ROWS, STEPS, STATES, TONES = 3, 4, 2, 5


@pytest.fixture(autouse=True)
def device(monkeypatch):
    with other_device(monkeypatch):
        yield


def tables(chains):
    torch.manual_seed(0)
    transition = torch.rand(*[STATES] * (chains + 1), dtype=torch.float64) + 0.1
    emission = torch.rand(*[STATES] * chains, TONES, dtype=torch.float64) * 0.8 + 0.1
    return transition / transition.sum(-1, keepdim=True), emission


def hmm(x, lengths, transition, emission):
    """Pyro's first example: tones in an inner plate, lengths by masks."""
    tones = pyro.plate("tones", TONES, dim=-1)
    with pyro.plate("rows", len(x), dim=-2) as rows:
        z = torch.zeros((), dtype=torch.long, device=x.device)
        for t in pyro.markov(range(STEPS)):
            with poutine.mask(mask=(t < lengths[rows]).unsqueeze(-1)):
                z = pyro.sample(f"z_{t}", dist.Categorical(transition[z]), infer={"enumerate": "parallel"})
                with tones as tone:
                    pyro.sample(f"x_{t}", dist.Bernoulli(emission[z, tone]), obs=x[rows, t])


def factorial(x, lengths, transition, emission):
    """Two chains that make one observation, as in Pyro's third example."""
    tones = pyro.plate("tones", TONES, dim=-1)
    with pyro.plate("rows", len(x), dim=-2) as rows:
        w = y = torch.zeros((), dtype=torch.long, device=x.device)
        for t in pyro.markov(range(STEPS)):
            with poutine.mask(mask=(t < lengths[rows]).unsqueeze(-1)):
                w = pyro.sample(f"w_{t}", dist.Categorical(transition[w, 0]), infer={"enumerate": "parallel"})
                y = pyro.sample(f"y_{t}", dist.Categorical(transition[y, 1]), infer={"enumerate": "parallel"})
                with tones as tone:
                    pyro.sample(f"x_{t}", dist.Bernoulli(emission[w, y, tone]), obs=x[rows, t])


def loss(program, x, lengths, transition, emission):
    transition, emission = (value.requires_grad_() for value in (transition, emission))
    value = TraceBlockedEnum_ELBO(max_plate_nesting=2).differentiable_loss(program, no_guide, x, lengths, transition, emission)
    value.backward()
    return value, transition.grad, emission.grad


@pytest.mark.parametrize("program, chains", [(hmm, 1), (factorial, 2)])
def test_marked_states(program, chains):
    x = torch.rand(ROWS, STEPS, TONES, dtype=torch.float64).round()
    lengths = torch.tensor([4, 1, 3])
    there = [Elsewhere.of(value) for value in (x, lengths, *tables(chains))]
    for found, expected in zip(loss(program, *there), loss(program, x, lengths, *tables(chains)), strict=True):
        assert found.device == DEVICE
        torch.testing.assert_close(found.detach().held, expected.detach())
    for mode in ("viterbi", "sample"):
        trace = poutine.trace(infer_states(program, mode)).get_trace(*there)
        states = [site["value"] for name, site in trace.nodes.items() if name[0] in "zwy" and site["type"] == "sample"]
        assert len(states) == STEPS * chains and all(value.device == DEVICE for value in states)
