"""What every model with Gaussian states keeps: one list of models, one set of tests."""

import json

import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from support.gaussian_models import GAUSSIAN_MODELS

from pplseq.infer.gaussian.chain import GaussianChain
from pplseq.infer.programs.elbo import no_guide
from pplseq.infer.programs.states import check_vectorizable
from pplseq.models import SequenceModel

close = torch.testing.assert_close
LENGTHS = torch.tensor([6, 1, 4, 6])


@pytest.fixture(params=GAUSSIAN_MODELS)
def model(request):
    torch.manual_seed(1)
    return GAUSSIAN_MODELS[request.param]().double()


def observations(model, batch=4, steps=6):
    """Sequences with a pattern that can be learned."""
    phase = (torch.arange(batch).unsqueeze(-1) + torch.arange(steps)) % 3
    if model.num_words is None:
        return phase.unsqueeze(-1) * torch.tensor([1.0, -2.0]).double() + 0.1 * torch.randn(batch, steps, 2).double()
    return 2 * phase + torch.randint(2, (batch, steps))


def missing(x):
    return float("nan") if x.is_floating_point() else -1


def test_it_samples(model):
    model.eval()
    trace = poutine.trace(model.model).get_trace(num_sequences=5, num_steps=4)
    drawn = torch.stack([trace.nodes[f"x_{t}"]["value"] for t in range(4)], 1)
    states = torch.stack([trace.nodes[f"z_{t}"]["value"] for t in range(4)], 1)
    assert drawn.shape[:2] == (5, 4) and states.shape == (5, 4, model.num_states)
    assert torch.isfinite(drawn).all()
    if model.num_words is None:
        assert torch.isfinite(model.log_prob(drawn)).all()


def test_it_learns(model):
    x = observations(model)
    elbo = Trace_ELBO()(model, no_guide)
    elbo(x, LENGTHS)  # parameters are found now
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.02)
    before = model.log_prob(x, LENGTHS).sum()
    for _ in range(15):
        optimizer.zero_grad()
        loss = elbo(x, LENGTHS)
        loss.backward()
        assert torch.isfinite(loss)
        optimizer.step()
    assert model.log_prob(x, LENGTHS).sum() > before + 0.2


def test_it_tells_its_states(model):
    x = observations(model)
    chain = model.posterior(x, LENGTHS)
    assert isinstance(chain, GaussianChain)
    smoothed, filtered = chain.smoothed_states(), chain.filtered_states()
    h = model.num_states
    assert smoothed.means.shape == (4, 6, h) and smoothed.covariances.dense().shape == (4, 6, h, h)
    for row, length in enumerate(LENGTHS.tolist()):  # at the end of a row nothing is left to be smoothed
        close(smoothed.means[row, length - 1], filtered.means[row, length - 1])
        close(chain.filtered().mean[row], filtered.means[row, length - 1])
        eigenvalues = torch.linalg.eigvalsh(smoothed.covariances.at(0).expand(4, h, h)[row])
        assert (eigenvalues > 0).all()
    assert chain.sample(3).shape == (3, 4, 6, h)


def test_it_saves_and_loads(model, tmp_path):
    x = observations(model)
    json.dumps(model.config)
    loaded = SequenceModel.load(model.save(tmp_path / "model"))
    assert type(loaded) is type(model) and loaded.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].to(value), value), name
    close(loaded.double().log_prob(x, LENGTHS), model.log_prob(x, LENGTHS), rtol=0, atol=1e-12)


def test_padded_is_unpadded(model):
    x = observations(model)
    together = model.posterior(x, LENGTHS)
    noise = x.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        noise[row, length:] = x[0, 0]
        alone = model.posterior(x[row : row + 1, :length])
        close(together.log_prob()[row], alone.log_prob()[0])
        close(together.smoothed_states().means[row, :length], alone.smoothed_states().means[0])
        close(together.token_log_probs()[row, :length], alone.token_log_probs()[0])
    close(model.log_prob(noise, LENGTHS), together.log_prob())
    close(model.log_prob(x, LENGTHS.new_full((4,), 6)), model.log_prob(x))


def test_segments_are_one_sequence(model):
    x = observations(model)
    whole = model.posterior(x)
    first = model.posterior(x[:, :2])
    second = model.posterior(x[:, 2:], start=first.filtered())
    close(first.log_prob() + second.log_prob(), whole.log_prob())
    close(second.filtered().mean, whole.filtered().mean)


def test_missing_observations(model):
    x = observations(model)
    gaps = x.clone()
    gaps[0, 2:4] = missing(x)
    gaps[1, 0] = missing(x)
    gaps[2, 3:] = missing(x)
    chain = model.posterior(gaps)
    close(chain.token_log_probs()[0, 2:4], torch.zeros(2).double())
    close(chain.log_prob()[3:], model.log_prob(x)[3:])
    close(chain.log_prob()[2], model.log_prob(x[2:3, :3])[0])
    assert torch.isfinite(chain.smoothed_states().means).all()


def test_the_program_may_be_vectorised(model):
    x = observations(model)
    x[0, 2] = missing(x)
    check_vectorizable(model, x, LENGTHS)


def test_posteriors_leave_no_trace_and_no_gradient(model):
    x = observations(model)
    with poutine.trace() as trace:
        chain = model.posterior(x)
    assert not trace.trace.nodes and not chain.log_prob().requires_grad and model.training


def test_ragged_lengths_are_checked(model):
    with pytest.raises(ValueError, match="lengths must lie in 0..6"):
        model.log_prob(observations(model), torch.tensor([7, 1, 1, 1]))
