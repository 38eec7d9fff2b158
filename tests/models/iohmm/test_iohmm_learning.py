"""Learning the weights of an input-output HMM: priors as sites, gradients, variational inference, NUTS."""

import copy

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam
from support.iohmm_models import LENGTHS, data, make
from support.iohmm_truth import Truth

from pplseq.infer.fit.gradients import fit_variationally, maximize_by_gradient, sample_parameters
from pplseq.infer.programs.blocked_enum import BlockedEnum, no_guide
from pplseq.models import IOHMM

close = torch.testing.assert_close


def gradients(model, value):
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]


def test_gradients_are_those_of_the_expected_complete_data_likelihood():
    """Fisher's identity: what makes a gradient step a step of generalised EM."""
    model = make("hidden layers")
    x, inputs = data(model, missing=True)
    direct = gradients(model, model.log_joint(x, LENGTHS, inputs=inputs))
    expected = 0.0
    for row, length in enumerate(LENGTHS.tolist()):
        truth = Truth(model, x, inputs, row, length)
        alpha, beta = truth.forward(), truth.backward()
        ends = [truth.density(t).detach() for t in range(length)]
        states = [(a * b / f / truth.likelihood()).detach() for a, b, f in zip(alpha, beta, ends, strict=True)]
        expected = expected + (states[0] * truth.first.log()).sum()
        expected = expected + sum((s * truth.density(t).log()).sum() for t, s in enumerate(states))
        if length > 1:
            expected = expected + (truth.transitions().detach() * torch.stack(truth.phi[1:]).log()).sum()
    for got, wanted in zip(direct, gradients(model, expected), strict=True):
        close(got, wanted)


def test_priors_are_sites():
    model = make("vectors", priors={"transition": 0.7})
    x, inputs = data(model)
    sites = model.sites()
    trace = poutine.trace(poutine.condition(BlockedEnum()(model.model), sites)).get_trace(x, LENGTHS, inputs=inputs)
    close(trace.log_prob_sum(), model.log_joint(x, LENGTHS, inputs=inputs))
    expected = sum(
        torch.distributions.Normal(0.0, 0.7 if "transition" in name else 1.0).log_prob(value).sum()
        for name, value in sites.items()
    )
    close(model.log_prior(), expected)
    assert set(sites) == {name for name, site in trace.nodes.items() if name in dict(model.named_parameters())}
    assert make("vectors").log_prior() == 0
    with pytest.raises(ValueError, match="priors: transition must be a positive standard deviation, got 0"):
        make("vectors", priors={"transition": 0})
    with pytest.raises(ValueError, match="priors: unknown 'start'"):
        make("vectors", priors={"start": 1.0})
    with pytest.raises(TypeError, match="priors must be WeightPriors"):
        make("vectors", priors=3)


def learnable():
    """A switch that inputs turn: outputs follow it."""
    torch.manual_seed(0)
    u = torch.randn(12, 10, 1).double()
    state = (u.cumsum(1) > 0).long()
    return (2.0 * state - 1 + 0.2 * torch.randn(12, 10, 1).double()), u


def test_gradients_variational_inference_and_nuts():
    x, u = learnable()
    torch.manual_seed(1)
    model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1, initial="inputs", priors=True)
    model.initialize(model._as_batch(x, inputs=u))
    batch = model._as_batch(x, inputs=u)
    before = float(model.log_joint(x, inputs=u).detach())
    maximize_by_gradient(model, [batch], num_steps=60)
    mode = float(model.log_joint(x, inputs=u).detach())
    assert mode > before + 50
    torch.manual_seed(2)
    halves = [model._as_batch(part, inputs=v) for part, v in zip(x.split(6), u.split(6), strict=True)]
    fitted = copy.deepcopy(model)
    history = fit_variationally(fitted, halves, initial=model.sites(), num_steps=30, guide="delta")
    assert np.mean(history.losses[-6:]) < np.mean(history.losses[:6]) + 0.01
    fitted.set_parameters(**{name: value.detach() for name, value in history.guide.median().items()})
    assert float(fitted.log_joint(x, inputs=u).detach()) > mode - 5
    history = fit_variationally(model, [batch], initial=model.sites(), num_steps=5)
    assert set(history.guide.median()) == set(model.sites())
    draws = sample_parameters(model, batch, initial=model.sites(), num_samples=4, warmup_steps=3, max_tree_depth=2)
    values = []
    for index in range(4):
        model.set_parameters(**{name: value[index] for name, value in draws.samples.items()})
        values.append(float(model.log_joint(x, inputs=u).detach()))
    assert all(np.isfinite(values)) and max(values) > before + 50


def test_svi_trains_weights_without_priors():
    x, u = learnable()
    with pyro.get_param_store().scope():
        torch.manual_seed(1)
        model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1, hidden=(3,))
        before = [value.clone() for value in model.parameters()]
        svi = SVI(model, no_guide, Adam({"lr": 0.05}), Trace_ELBO())
        losses = [svi.step(x, None, None, inputs=u) for _ in range(30)]
        assert losses[-1] < losses[0] - 20
        assert all(bool((new != old).any()) for new, old in zip(model.parameters(), before, strict=True))
