"""The very large HMM in use: caches at test, generation, observed states, wrong arguments."""

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from support.oracles.discrete import forward_loop
from support.vlhmm_models import BLOCKS, X, make, tables_by_hand
from torch import nn

from pplseq.distributions import MISSING, Belief
from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.models import VLHMM

close = torch.testing.assert_close


# ------------------------------------------------------------------------------------------------ caches
def test_normalisers_are_computed_once_at_test_and_again_for_new_parameters():
    model = make("reset").eval()
    first = model.posterior(X).transition
    norm = first.log_norm()
    again = model.posterior(X[:1]).transition
    assert again is first and again.log_norm() is norm
    expected = model.log_prob(X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    changes = [
        lambda: (model(X), (-model.chain.log_prob().sum()).backward(), optimizer.step()),
        lambda: nn.init.normal_(model.states["all"].weight),
        lambda: model.load_state_dict(make("reset").state_dict()),
    ]
    for change in changes:
        before = model.posterior(X).transition
        change()
        assert model.posterior(X).transition is not before
    close(model.log_prob(X), expected)
    model.float()
    assert model.log_prob(X).dtype == torch.float32


def test_training_builds_new_tables_every_time():
    model = make()
    model(X)
    first = model.chain.transition
    model(X)
    assert model.chain.transition is not first
    with torch.no_grad():
        model(X)
        again = model.chain.transition
        model(X)
    assert model.chain.transition is not again


def test_a_cheap_normaliser_is_for_training_only():
    exact, rough = make(), make(normalizer_dtype="bfloat16")
    close(rough.log_prob(X), exact.log_prob(X), rtol=0, atol=0)
    for model in (exact, rough):
        model(X)
    assert not torch.equal(rough.chain.log_prob(), exact.chain.log_prob())
    close(rough.chain.log_prob(), exact.chain.log_prob(), rtol=0.05, atol=0.3)


def test_a_cheap_normaliser_holds_for_the_next_block_too():
    """With a single state a block nothing else is left to be normalised."""
    options = dict(hidden_size=16, transition="hierarchical", state_dropout=0.0, init_scale=1.0)
    exact, rough = (VLHMM(
        3, num_words=6, blocks=torch.arange(6) % 3, normalizer_dtype=name, **options
    ) for name in ("float32", "bfloat16"))
    rough.load_state_dict(exact.state_dict())
    for model in (exact, rough):
        model.train()(X)
    assert not torch.equal(rough.chain.log_prob(), exact.chain.log_prob())
    close(rough.chain.log_prob(), exact.chain.log_prob(), rtol=0.05, atol=0.3)


# ------------------------------------------------------------------------------------------------ generation
@pytest.mark.parametrize("option", ["uneven", "reset", "scalar"])
def test_generation(option):
    model = make(option).eval()
    trace = poutine.trace(model.model).get_trace(num_sequences=4000, num_steps=2)
    x = torch.stack([trace.nodes[f"x_{t}"]["value"] for t in range(2)], 1)
    z = torch.stack([trace.nodes[f"z_{t}"]["value"] for t in range(2)], 1)
    _, _, emission = tables_by_hand(model)
    assert torch.isfinite(emission[z, x]).all(), "a state said a word of another block"
    every = torch.cartesian_prod(torch.arange(6), torch.arange(6))
    probs = model.log_prob(every).exp()
    frequency = torch.bincount(x @ torch.tensor([6, 1]), minlength=36) / len(x)
    assert ((frequency - probs).abs() < 5 * (probs * (1 - probs) / len(x)).sqrt() + 1e-3).all()


def test_generation_from_a_belief():
    model = make("reset").eval()
    start = model.posterior(X[:1, :3]).filtered()
    start = Belief(*(None if part is None else part.expand(3000, *part.shape[1:]) for part in start))
    trace = poutine.trace(model.model).get_trace(None, None, start, num_sequences=3000, num_steps=1)
    frequency = torch.bincount(trace.nodes["x_0"]["value"], minlength=6) / 3000
    probs = model.posterior(X[:1, :3]).next().word_log_probs[0].exp()
    assert ((frequency - probs).abs() < 5 * (probs * (1 - probs) / 3000).sqrt() + 1e-3).all()


def test_observed_states():
    model = make("uneven").eval()
    initial, matrix, emission = tables_by_hand(model)
    x, states = torch.tensor([[0, 2, 4]]), torch.tensor([[1, 3, 5]])
    supervised = model.posterior(x, states=states)
    expected = initial[1] + emission[1, 0] + matrix[1, 3] + emission[3, 2] + matrix[3, 5] + emission[5, 4]
    close(supervised.log_prob()[0], expected.detach())
    partly = model.posterior(x, states=torch.tensor([[-1, 3, -1]]))
    emit = emission.T[x[0]].clone()
    emit[1, torch.arange(6) != 3] = -math.inf
    close(partly.log_prob()[0], forward_loop(initial, matrix.expand(2, 6, 6), emit).detach())


# ------------------------------------------------------------------------------------------------ wrong arguments
WRONG = {
    "no words": (dict(num_words=0, blocks=None), "num_words must be at least 1, got 0"),
    "no states": (dict(num_states=0), "num_states must be at least 1, got 0"),
    "blocks that do not cover the vocabulary": (dict(blocks=BLOCKS[:4]), "blocks must cover the vocabulary.*got shape"),
    "negative blocks": (dict(blocks=BLOCKS - 1), "blocks must be numbered from 0, got -1 for word 0"),
    "an empty block": (dict(blocks=BLOCKS * 2, num_states=10), r"no word in block \[1, 3\]"),
    "more blocks than words": (dict(blocks=torch.arange(6) + 1), "more blocks .7. than words"),
    "not divisible": (dict(num_states=7), "multiple of the number of blocks.*got 7; use 6 or 9"),
    "too few states": (dict(num_states=2), "use 3, or"),
    "sizes that do not sum": (dict(states_per_block=[2, 2, 1]), "sum to num_states = 6"),
    "too few sizes": (dict(states_per_block=[3, 3]), "must be 3 positive counts"),
    "an empty size": (dict(states_per_block=[3, 3, 0]), "positive counts"),
    "parameterization": (dict(parameterization="neural"), "parameterization must be one of .*'neural'"),
    "initialization": (dict(initialization="zeros"), "initialization must be one of"),
    "normalizer_dtype": (dict(normalizer_dtype="int8"), "normalizer_dtype must be one of"),
    "dropout": (dict(state_dropout=1.0), "state_dropout must lie in"),
    "negative dropout": (dict(state_dropout=-0.1), "state_dropout must lie in"),
    "feature dropout": (dict(feature_dropout=1.0), "feature_dropout must lie in"),
    "no features": (dict(feature_dropout=0.1, parameterization="scalar"), "scalar tables have no features"),
    "reset": (dict(reset_id=6), "reset_id must be a word id in 0..5"),
    "odd hidden size": (dict(hidden_size=5), "even number"),
    "temperature": (dict(temperature=0.0), "temperature must be positive"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_options(wrong):
    options, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message):
        VLHMM(**{"num_words": 6, "num_states": 6, "blocks": BLOCKS, "hidden_size": 4, **options})


def test_wrong_observations():
    model = make()
    assert torch.equal(model.log_prob([[0, 1]]), model.log_prob(torch.tensor([[0, 1]])))
    for x in (torch.tensor([[0.5]]), torch.tensor([0, 1]), torch.zeros(1, 2, 3, dtype=torch.long)):
        with pytest.raises(TypeError, match="x must be an integer tensor"):
            model.log_prob(x)
    for x in (torch.tensor([[0, 6]]), torch.tensor([[MISSING - 1, 0]])):
        with pytest.raises(ValueError, match=r"x must hold ids 0\.\.5"):
            model.log_prob(x)
    for lengths in (torch.tensor([1]), [5, 4, 1]):
        with pytest.raises(ValueError, match="lengths must be a tensor of shape"):
            model.log_prob(X, lengths)
    for lengths in (torch.tensor([6, 1, 1]), torch.tensor([-1, 1, 1])):
        with pytest.raises(ValueError, match=r"lengths must lie in 0\.\.5"):
            model.log_prob(X, lengths)
    with pytest.raises(ValueError, match="num_steps"):
        model.model()
    with pytest.raises(RuntimeError, match="no chain yet"):
        make().chain  # noqa: B018


@pytest.mark.parametrize("option", ["reset", "factored", "untied", "scalar"])
def test_the_pyro_module_trap(option):
    # parameters reach the trace although the chain is computed when the messenger exits
    model = make(option)
    with poutine.trace(param_only=True) as trace:
        Trace_ELBO().differentiable_loss(model, no_guide, X)
    assert {name.replace("$$$", ".") for name in trace.trace.nodes} >= set(dict(model.named_parameters()))
    svi = pyro.infer.SVI(model, no_guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    before = {name: value.clone() for name, value in model.named_parameters()}
    svi.step(X)
    untouched = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    assert untouched <= {"start_score.bias"}
