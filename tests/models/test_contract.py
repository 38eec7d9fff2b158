"""What every model keeps: one list of models, one set of tests."""

import json

import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from support.gaussian_models import GAUSSIAN_MODELS

from pplseq import models
from pplseq.infer.oracles.discrete import generic_log_prob
from pplseq.infer.programs.elbo import TraceBlockedEnum_ELBO, no_guide
from pplseq.infer.programs.states import check_vectorizable, infer_states
from pplseq.models import HMM, IOHMM, PROPS, VLHMM, SequenceModel, StreamingHMM

close = torch.testing.assert_close
BLOCKS = torch.tensor([0, 0, 1, 1, 2, 2])

# name -> a function that makes it; each takes words 0..5 or, where it says so, vectors
MODELS = {
    "vlhmm": lambda: VLHMM(6, 6, BLOCKS, hidden_size=8, init_scale=0.5),
    "vlhmm, uneven, factored": lambda: VLHMM(
        6, 6, BLOCKS, hidden_size=8, states_per_block=[1, 3, 2], parameterization="factored", init_scale=0.5
    ),
    "vlhmm, scalar, untied": lambda: VLHMM(6, 6, BLOCKS, parameterization="scalar", init_scale=0.5),
    "vlhmm, reset": lambda: VLHMM(6, 6, BLOCKS, hidden_size=8, reset_id=1, init_scale=0.5),
    "vlhmm, dropout": lambda: VLHMM(6, 12, BLOCKS, hidden_size=8, state_dropout=0.5, init_scale=0.5),
    "vlhmm, no blocks": lambda: VLHMM(6, 4, hidden_size=8, tied=False, init_scale=0.5),
    "hmm": lambda: HMM(3, 6),
    "hmm, vectors": lambda: HMM(3, num_features=2),
    "iohmm": lambda: IOHMM(3, num_inputs=2, outputs="gaussian", num_outputs=2, mealy=True),
    "iohmm, symbols": lambda: IOHMM(3, num_symbols=3, num_outputs=6, initial="transition", graph="left_right"),
    "iohmm, hidden layers": lambda: IOHMM(
        3, num_inputs=2, outputs="categorical", num_outputs=6, mealy=True, initial="inputs", hidden=(4,)
    ),
    "iohmm, bits": lambda: IOHMM(3, num_symbols={"transition": 3}, outputs="bernoulli", num_outputs=2),
    "props": lambda: PROPS(6, num_sources=2, num_perturbations=2),
    "streaming_hmm": lambda: StreamingHMM(3, 6),
    "streaming_hmm, vectors": lambda: StreamingHMM(3, num_features=2, covariance="full"),
    "iohmm, states": lambda: IOHMM(6, num_inputs=2, outputs="states"),
}
LENGTHS = torch.tensor([6, 1, 4, 6])


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(1)
    return MODELS[request.param]().double()


def observations(model, batch=4, steps=6):
    """Sequences with a pattern that can be learned."""
    phase = (torch.arange(batch).unsqueeze(-1) + torch.arange(steps)) % 3
    if getattr(model, "outputs", None) == "bernoulli":
        return torch.stack([phase == 0, phase == 1], -1).double()
    if getattr(model, "outputs", None) == "gaussian":
        return phase.unsqueeze(-1) * torch.tensor([1.0, -2.0]).double() + 0.1 * torch.randn(batch, steps, 2).double()
    if getattr(model, "num_features", None):
        return phase.unsqueeze(-1) * torch.tensor([1.0, -2.0]).double() + 0.1 * torch.randn(batch, steps, 2).double()
    return 2 * phase + torch.randint(2, (batch, steps))


def given(model, batch=4, steps=6):
    """What the model takes beside its observations: inputs by name, or nothing."""
    if model.name == "props":  # each source predicts one of the words of the pattern
        phase = (torch.arange(batch).unsqueeze(-1) + torch.arange(steps)) % 3
        sure = torch.nn.functional.one_hot(torch.stack([2 * phase, phase], -1), 6) * 0.4 + 0.1
        return {"source_log_probs": sure.double().log()}
    if model.name != "iohmm":
        return {}
    phase = (torch.arange(batch).unsqueeze(-1) + torch.arange(steps)) % 3
    source = model.sources["transition"]
    return {"inputs": phase if source[0] == "symbols" else torch.stack([phase == 1, phase == 2], -1).double()}


def some(options, rows=slice(None), steps=slice(None)):
    """The same for some rows and steps."""
    return {name: value[rows, steps] for name, value in options.items()}


def test_every_registered_model_is_in_the_list():
    assert {make().name for make in (*MODELS.values(), *GAUSSIAN_MODELS.values())} == set(models.MODELS)


def test_it_samples(model):
    model.eval()
    inputs = given(model, 5, 4)
    trace = poutine.trace(model.model).get_trace(num_sequences=5, num_steps=4, **inputs)
    drawn = torch.stack([trace.nodes[f"x_{t}"]["value"] for t in range(4)], 1)
    states = torch.stack([trace.nodes[f"z_{t}"]["value"] for t in range(4)], 1)
    assert drawn.shape[:2] == (5, 4) and states.shape == (5, 4)
    assert 0 <= int(states.min()) and int(states.max()) < model.num_states
    assert torch.isfinite(model.log_prob(drawn, **inputs)).all(), "a sample has probability zero"


def test_it_learns(model):
    x, inputs = observations(model), given(model)
    elbo = TraceBlockedEnum_ELBO()(model, no_guide) if model.name == "vlhmm" else None
    if elbo is None:  # priors are sites: its own objective
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    else:
        optimizer = torch.optim.Adam(elbo.parameters(), lr=0.05)
    before = model.log_prob(x, LENGTHS, **inputs).sum()
    for _ in range(15):
        optimizer.zero_grad()
        loss = -model.log_joint(x, LENGTHS, **inputs) if elbo is None else elbo(x, LENGTHS)
        loss.backward()
        assert torch.isfinite(loss)
        optimizer.step()
    assert model.log_prob(x, LENGTHS, **inputs).sum() > before + 1.0


def test_it_decodes(model):
    x, inputs = observations(model), given(model)
    chain = model.posterior(x, LENGTHS, **inputs)
    paths, log_prob = chain.viterbi()
    valid = torch.arange(6) < LENGTHS.unsqueeze(-1)
    assert ((paths >= 0) == valid).all() and (paths < model.num_states).all()
    assert (log_prob <= chain.log_prob() + 1e-9).all()
    # the path's own log p(path, x), by observing its states
    close(model.posterior(x, LENGTHS, states=paths, **inputs).log_prob(), log_prob)
    marginals = chain.marginals().dense(model.num_states)
    close(marginals.sum(-1), valid.to(marginals))
    assert chain.sample(3).shape == (3, 4, 6) and (chain.entropy() > -1e-9).all()
    trace = poutine.trace(infer_states(model.eval())).get_trace(x, LENGTHS, **inputs)
    if model.name != "hmm":  # (where parameters are drawn, states belong to the draw)
        assert torch.equal(torch.stack([trace.nodes[f"z_{t}"]["value"] for t in range(6)], 1), paths)


def test_it_saves_and_loads(model, tmp_path):
    x, inputs = observations(model), given(model)
    json.dumps(model.config)
    loaded = SequenceModel.load(model.save(tmp_path / "model"))
    assert type(loaded) is type(model) and loaded.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].to(value), value), name
    close(loaded.double().log_prob(x, LENGTHS, **inputs), model.log_prob(x, LENGTHS, **inputs), rtol=0, atol=1e-12)


def test_padded_is_unpadded(model):
    x, inputs = observations(model), given(model)
    together = model.posterior(x, LENGTHS, **inputs)
    noise = x.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        noise[row, length:] = x[0, 0]
        alone = model.posterior(x[row : row + 1, :length], **some(inputs, slice(row, row + 1), slice(length)))
        close(together.log_prob()[row], alone.log_prob()[0])
        close(together.viterbi()[0][row, :length], alone.viterbi()[0][0])
        close(together.token_log_probs()[row, :length], alone.token_log_probs()[0])
    close(model.log_prob(noise, LENGTHS, **inputs), together.log_prob())
    close(model.log_prob(x, LENGTHS.new_full((4,), 6), **inputs), model.log_prob(x, **inputs))


def test_segments_are_one_sequence(model):
    x, inputs = observations(model), given(model)
    whole = model.log_prob(x, **inputs)
    first = model.posterior(x[:, :2], **some(inputs, steps=slice(2)))
    rest = model.log_prob(x[:, 2:], start=first.filtered(), **some(inputs, steps=slice(2, None)))
    close(first.log_prob() + rest, whole)


def test_missing_observations(model):
    x, inputs = observations(model), given(model)
    gaps = x.clone()
    gaps[0, 2:4] = float("nan") if gaps.is_floating_point() else -1
    gaps[1, 0] = gaps[0, 2]
    chain = model.posterior(gaps, **inputs)
    assert torch.isfinite(chain.log_prob()).all()
    close(chain.token_log_probs()[0, 2:4], torch.zeros(2).double())
    close(chain.log_prob()[2:], model.log_prob(x, **inputs)[2:])
    assert (chain.viterbi()[0] >= 0).all()


def test_the_program_may_be_vectorised(model):
    x, inputs = observations(model), given(model)
    model.eval()
    check_vectorizable(model, x, LENGTHS, **inputs)


def test_posteriors_leave_no_trace_and_no_gradient(model):
    x, inputs = observations(model), given(model)
    with poutine.trace() as trace:
        chain = model.posterior(x, **inputs)
    assert not trace.trace.nodes and not chain.log_prob().requires_grad and model.training


def test_the_program_under_pyro(model):
    if model.name == "hmm" or getattr(model, "state_dropout", 0):
        pytest.skip("its program draws something that differs between two runs")
    x, inputs = observations(model), given(model)
    close(generic_log_prob(model, x, LENGTHS, **inputs), model.log_prob(x, LENGTHS, **inputs).sum())
    close(
        -Trace_ELBO().differentiable_loss(model, no_guide, x, LENGTHS, **inputs),
        model.log_prob(x, LENGTHS, **inputs).sum(),
    )


def test_ragged_lengths_are_checked(model):
    x, inputs = observations(model), given(model)
    with pytest.raises(ValueError, match="lengths must lie in 0..6"):
        model.log_prob(x, torch.tensor([7, 1, 1, 1]), **inputs)
