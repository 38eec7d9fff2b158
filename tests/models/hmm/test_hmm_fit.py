"""The dense HMM learns: from states that are known, by SVI, gradients, EM and NUTS."""

import copy

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from support.hmm_models import F64, GOOD_SEED, MODELS, V, Z, close, words_model

from pplseq.data.builtin import generated_language
from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO
from pplseq.models import HMM


@pytest.mark.parametrize("kind", ["words", "full"])
def test_supervised_counts(kind):
    model = MODELS[kind]()
    x, states, _ = model.sample(12, 40, seed=5)
    fitted = MODELS[kind]().fit(x, states=states, max_iterations=5)
    counts = torch.zeros(Z, Z, dtype=F64).index_put_((states[:, :-1], states[:, 1:]), torch.ones(1, dtype=F64), True)
    close(fitted.transition, counts / counts.sum(-1, keepdim=True))
    assert fitted.history.converged and fitted.history.num_iterations <= 3
    if kind == "full":
        close(fitted.loc, torch.stack([x[states == z].mean(0) for z in range(Z)]))
        close(fitted.covariances, torch.stack([torch.cov(x[states == z].T, correction=0) for z in range(Z)]))
    partly = states.where(torch.rand(states.shape) < 0.5, -1)
    half = MODELS[kind]().fit(x, states=partly)
    close(half.transition, fitted.transition, atol=0.2, rtol=0)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceBlockedEnum_ELBO])
def test_svi_trains_the_parameters(elbo):
    """Also when the handler comes from outside the module: PyroModule's parameters must reach the trace."""

    class Bare(HMM):
        forward = HMM.model  # no BlockedEnum of its own

    model = (HMM if elbo is Trace_ELBO else Bare)(Z, V)
    x, *_ = words_model().sample(6, 10, seed=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    svi = SVI(model, no_guide, pyro.optim.Adam({"lr": 0.05}), elbo())
    losses = [svi.step(x) for _ in range(30)]
    assert losses[-1] < losses[0] - 1
    for name, value in model.state_dict().items():
        assert not torch.equal(value, before[name]), name
    model.__class__ = HMM
    assert losses[-1] == pytest.approx(-model.score(x), abs=0.5)


def test_elbo_module_with_one_optimizer():
    model = words_model()
    x, *_ = words_model().sample(6, 10, seed=2)
    loss_of = TraceBlockedEnum_ELBO()(model, no_guide)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1 and all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("kind", ["words", "full"])
def test_sgd_meets_em(kind):
    model = MODELS[kind](priors=dict(initial=2.0, transition=2.0, emission=2.0))
    x, *_ = model.sample(15, 20, seed=0)
    em, sgd = (copy.deepcopy(model) for _ in range(2))
    em.fit(x, warm_start=True, max_iterations=500, tolerance=1e-7)
    sgd.fit(x, warm_start=True, method="sgd", num_steps=100)
    objectives = [float(m.log_joint(x).detach()) for m in (em, sgd)]
    assert objectives[1] == pytest.approx(objectives[0], abs=0.05)
    assert em.history.log_posteriors[-1] == pytest.approx(objectives[0], abs=1e-3)


@pytest.mark.parametrize(("kind", "guide"), [("words", "normal"), ("diag", "delta"), ("full", "normal")])
def test_variational_fit(kind, guide):
    model = MODELS[kind](priors=True)
    x, *_ = model.sample(15, 20, seed=0)
    fitted = MODELS[kind](priors=True).fit(x, method="svi", guide=guide, num_steps=24, batch_size=10, seed=0)
    history = fitted.history
    assert np.mean(history.losses[-8:]) < np.mean(history.losses[:8])
    with pyro.get_param_store().scope():
        assert set(history.guide.median()) == set(fitted.sites())
    started = MODELS[kind](priors=True)
    started.initialize(started._as_batch(x))
    assert fitted.score(x) > started.score(x)
    assert not list(pyro.get_param_store().keys())  # nothing that another fit would find


def test_nuts_draws_from_the_posterior():
    priors = dict(transition=2.0, emission=2.0)
    truth = words_model(2, 3).set_parameters(
        initial=[0.5, 0.5], transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]
    )
    x, *_ = truth.sample(40, 6, seed=0)
    model = HMM(2, 3, priors=priors).fit(x, seed=1)
    model.fit(x, method="nuts", warm_start=True, num_samples=12, warmup_steps=6, max_tree_depth=3, seed=0)
    samples = model.history.samples
    assert {k: tuple(v.shape) for k, v in samples.items()} == {
        "initial": (12, 2), "transition": (12, 2, 2), "emission": (12, 2, 3),
    }  # fmt: skip
    mean = samples["emission"].mean(0)
    mean = mean[mean[:, 0].argsort(descending=True)]  # states have no order of their own
    close(mean, truth.emission, atol=0.15, rtol=0)
    assert model.score(x) > truth.score(x) - 10
    assert set(model.history.diagnostics) >= set(samples)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(dict(seed=GOOD_SEED), id="one start"),
        pytest.param(dict(seed=0, num_restarts=8), id="eight starts", marks=pytest.mark.slow),
    ],
)
def test_em_recovers_the_generated_language(options):
    lines, truth = generated_language(num_sentences=1500)
    ids = {word: index for index, word in enumerate(truth["words"])}
    sequences = [[ids[word] for word in line] + [0] for line in lines]
    train, held_out = sequences[:1000], sequences[1000:]
    known = HMM(12, 61).set_parameters(**{name: truth[name] for name in ("initial", "transition", "emission")})
    found = HMM(12, 61, priors=dict(emission=1.05)).fit(train, max_iterations=40, tolerance=1e-4, **options)
    best, got = (model.score(held_out, per_token=True) for model in (known, found))
    assert best - 0.015 < got < best
    assert found.score(train, per_token=True) > known.score(train, per_token=True) - 0.005
