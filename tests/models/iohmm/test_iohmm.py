"""The input-output HMM: its numbers are the paper's equations, in every option."""

import numpy as np
import pytest
import torch
from pyro import poutine
from support.iohmm_models import LENGTHS, OPTIONS, data, make, outputs_of
from support.iohmm_truth import Truth
from support.oracles.discrete import generic_log_prob
from torch import nn

from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.models import HMM, IOHMM
from pplseq.models.iohmm.networks import GaussianNoise

close = torch.testing.assert_close


@pytest.fixture(params=OPTIONS)
def model(request):
    return make(request.param)


def gradients(model, value):
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]


@pytest.mark.parametrize("missing", ["nothing", "targets", "parts"])
def test_likelihood_and_gradients_are_the_papers(model, missing):
    if missing == "parts" and model.format.discrete:
        pytest.skip("symbols have no parts")
    x, inputs = data(model, missing=missing != "nothing", partly=missing == "parts")
    values = [model.log_joint(x, LENGTHS, inputs=inputs)]
    values.append(sum(Truth(model, x, inputs, row, length).likelihood().log() for row, length in enumerate(LENGTHS.tolist())))
    values.append(generic_log_prob(model, x, LENGTHS, inputs=inputs))
    for vectorize in (True, False):
        trace = poutine.trace(BlockedEnum(vectorize=vectorize)(model.model)).get_trace(x, LENGTHS, inputs=inputs)
        values.append(trace.log_prob_sum())
    for value in values[1:]:
        close(value, values[0])
        if not isinstance(model.noise, GaussianNoise) or value is not values[1]:  # (the truth takes covariances as numbers)
            for got, expected in zip(gradients(model, value), gradients(model, values[0]), strict=True):
                close(got, expected)


def test_posteriors_are_the_papers(model):
    x, inputs = data(model, missing=True, partly=True)
    chain = model.posterior(x, LENGTHS, inputs=inputs)
    pairs, filtered = chain.pair_marginals().probs, chain.filtered_states().probs
    for row, length in enumerate(LENGTHS.tolist()):
        truth = Truth(model, x, inputs, row, length)
        for t, alpha in enumerate(truth.forward()):
            close(filtered[row, t], (alpha / alpha.sum()).detach())
        if length > 1:
            close(pairs[row, : length - 1], truth.transitions().detach())
    close(model.smooth(x, LENGTHS, inputs=inputs).probs, chain.marginals().probs)
    assert torch.equal(model.decode(x, LENGTHS, inputs=inputs), chain.viterbi()[0])


def test_open_and_closed_loop(model):
    x, inputs = data(model, missing=True, partly=True)
    closed = model.one_step(x, LENGTHS, inputs=inputs)
    for row, length in enumerate(LENGTHS.tolist()):
        truth = Truth(model, x, inputs, row, length)
        for got, expected in zip(closed[:2], truth.closed_loop(), strict=True):
            close(got[row, :length], expected.detach())
            assert not got[row, length:].any()
    if model.feedback:
        return
    produced = model.open_loop(inputs, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        for got, expected in zip(produced[:2], Truth(model, x, inputs, row, length).open_loop(), strict=True):
            close(got[row, :length], expected.detach())
            assert not got[row, length:].any()
    last = model.classify(inputs, LENGTHS)
    close(last, produced.outputs[torch.arange(3), LENGTHS - 1])


def test_missing_targets_are_reconstructed():
    """Against the likelihood of every word in their place."""
    model = make("symbols, mealy")
    x, inputs = data(model, missing=True)
    got = model.reconstruct(x, LENGTHS, inputs=inputs).outputs
    for row, step in ((0, 1), (0, 4), (2, 0)):
        scores = []
        for word in range(2):
            filled = x.clone()
            filled[row, step] = word
            scores.append(model.log_prob(filled, LENGTHS, inputs=inputs)[row])
        close(got[row, step], torch.stack(scores).softmax(0))
    paths = model.sample_states(x, 4000, LENGTHS, inputs=inputs, seed=0)
    shares = nn.functional.one_hot(paths.clamp_min(0), 3).double().mean(0)
    close(shares[0], model.smooth(x, LENGTHS, inputs=inputs).probs[0], rtol=0, atol=0.03)
    assert paths.shape == (4000, 3, 5) and (paths[:, 1, 1:] == -1).all()


def test_gaussian_predictions_have_the_mixtures_covariance():
    model = make("full covariances")
    x, inputs = data(model)
    got = model.one_step(x, inputs=inputs)
    weights, means = got.states[1, 2], model.emission_network.logits.detach()
    second = sum(w * (c + torch.outer(m, m)) for w, m, c in zip(weights, means, model.noise.covariances(), strict=True))
    close(got.covariances[1, 2], second - torch.outer(got.outputs[1, 2], got.outputs[1, 2]))


def test_forecasts_are_predictions_where_nothing_is_seen(model):
    x, inputs = data(model, steps=8)
    past, future = (
        {part: value[:, cut] for part, value in inputs.items()} if isinstance(inputs, dict) else inputs[:, cut]
        for cut in (slice(5), slice(5, 8))
    )
    hidden = x.clone()
    hidden[:, 5:] = model.format.missing(3, 3)
    got = outputs_of(model.forecast(x[:, :5], inputs=past, future_inputs=future))
    if not model.feedback:
        close(got.outputs, model.one_step(hidden, inputs=inputs).outputs[:, 5:])
    assert got.outputs.shape[:2] == (3, 3) and (got.covariances is None) == (model.noise is None)
    ahead = dict(inputs=past, future_inputs=future)
    ragged = outputs_of(model.forecast(x[:, :5], 3, LENGTHS, **ahead))
    again = outputs_of(model.forecast(x[:, :5], lengths=LENGTHS.new_full((3,), 5), **ahead))
    close(again.states[:, 0], got.states[:, 0])
    shorter = {part: v[1:2, :1] for part, v in past.items()} if isinstance(past, dict) else past[1:2, :1]
    later = {part: v[1:2] for part, v in future.items()} if isinstance(future, dict) else future[1:2]
    alone = outputs_of(model.forecast(x[1:2, :1], inputs=shorter, future_inputs=later))
    close(alone.states[0, 0], ragged.states[1, 0])


def test_the_next_output(model):
    """As prediction over one more step, which nobody has seen; of rows of any length, empty ones as well."""
    x, inputs = data(model, steps=6)
    lengths = torch.tensor([5, 0, 2])
    parts = inputs if isinstance(inputs, dict) else {"": inputs}
    later = {part: value[torch.arange(3), lengths] for part, value in parts.items()}
    hidden = x.clone()
    hidden[torch.arange(3), lengths] = model.format.missing(1, 1)[0, 0]
    expected = model.one_step(hidden, lengths + 1, inputs=inputs)
    past = {part: value[:, :5] for part, value in parts.items()}
    if not isinstance(inputs, dict):
        past, later = past[""], later[""]
    first = {part: value[:, 0] for part, value in parts.items()}
    first = outputs_of(model.predict_next([[], [], []], next_inputs=first if isinstance(inputs, dict) else first[""]))
    start = model.one_step(model.format.missing(3, 6), inputs=inputs)
    close(first.outputs, start.outputs[:, 0])
    close(first.states, start.states[:, 0])
    got = outputs_of(model.predict_next(x[:, :5], lengths, inputs=past, next_inputs=later))
    for value, whole in zip(got, expected, strict=True):
        assert (value is None) == (whole is None)
        if value is not None:
            close(value, whole[torch.arange(3), lengths])


def test_feedback_is_summed_out_by_sampling():
    """Against all outputs of two steps."""
    model = make("feedback of words")
    inputs = torch.tensor([[0, 1], [1, 1]])
    expected = torch.zeros(2, 3).double()
    for first in range(3):
        x = torch.tensor([[first, 0], [first, 0]])
        closed = model.one_step(x, inputs=inputs).outputs
        expected += closed[:, :1, first] * closed[:, 1]
    torch.manual_seed(0)
    close(model.open_loop(inputs, num_samples=4000).outputs[:, 1], expected, rtol=0, atol=0.02)
    # and of the step behind one that is given, exactly
    x = torch.tensor([[1], [2]])
    together = model.one_step(torch.cat([x, x], 1), inputs=inputs).outputs[:, 1]
    got = model.forecast(x, lengths=[1, 1], inputs=inputs[:, :1], future_inputs=inputs[:, 1:], num_samples=3)
    close(outputs_of(got).outputs[:, 0], together)


def test_feedback_of_vectors_has_the_whole_variance():
    model = make("feedback of vectors")
    inputs = torch.randn(1, 3, 1).double()
    torch.manual_seed(0)
    got = model.open_loop(inputs, num_samples=3000)
    drawn = torch.cat([model.sample(inputs=inputs.repeat(3000, 1, 1), seed=1)[0]])
    close(got.outputs[0], drawn.mean(0), rtol=0, atol=0.1)
    close(got.covariances[0, 2], torch.cov(drawn[:, 2].T), rtol=0.1, atol=0.1)


def test_samples_have_the_models_distribution():
    model = make("symbols, mealy")
    inputs = torch.tensor([[0, 2, 1]]).expand(20_000, 3)
    x, states, _ = model.sample(inputs=inputs, seed=3)
    expected = model.open_loop(inputs[:1])
    close(torch.nn.functional.one_hot(x, 2).double().mean(0), expected.outputs[0], rtol=0, atol=0.015)
    close(torch.nn.functional.one_hot(states, 3).double().mean(0), expected.states[0], rtol=0, atol=0.015)
    assert torch.equal(model.sample(inputs=inputs, seed=3)[0], x)
    x, states, _ = model.sample(inputs=[[0, 1, 1], [2]], seed=0)
    assert [len(row) for row in x] == [3, 1] == [len(row) for row in states]


def test_lists_are_padded(model):
    x, inputs = data(model)
    lists = [row[:length] for row, length in zip(x, LENGTHS, strict=True)]

    def cut(value):
        return [row[:length].tolist() for row, length in zip(value, LENGTHS, strict=True)]

    ragged = {part: cut(value) for part, value in inputs.items()} if isinstance(inputs, dict) else cut(inputs)
    if model.sources["transition"] == ("vectors", 0):
        ragged = [row[:length] for row, length in zip(inputs, LENGTHS, strict=True)]
    assert model.score(lists, inputs=ragged) == pytest.approx(float(model.log_prob(x, LENGTHS, inputs=inputs).sum()))
    for name in ("filter", "smooth", "decode"):
        whole, parts = getattr(model, name)(x, LENGTHS, inputs=inputs), getattr(model, name)(lists, inputs=ragged)
        if name != "decode":
            whole, parts = whole.probs, parts.probs
        for got, expected, length in zip(parts, whole, LENGTHS.tolist(), strict=True):
            close(got, expected[:length])
    got = model.one_step(lists, inputs=ragged).outputs
    close(got[2], model.one_step(x, LENGTHS, inputs=inputs).outputs[2, :3])
    assert model.bic(lists, inputs=ragged) == pytest.approx(model.bic(x, LENGTHS, inputs=inputs))


def test_an_hmm_is_one_without_inputs():
    model, hmm = make("no inputs"), HMM(3, 3)
    bias = model.transition_network.weight[:, 0, :].softmax(-1)
    start, emission = (net.logits.softmax(-1) for net in (model.initial_network, model.emission_network))
    hmm.set_parameters(initial=start.detach(), transition=bias.detach(), emission=emission.detach())
    x = torch.randint(3, (4, 6))
    close(model.log_prob(x), hmm.log_prob(x))
    assert model.num_free_parameters == hmm.num_free_parameters
    assert model.sample(num_sequences=2, num_steps=4)[0].shape == (2, 4)
    assert model.score(x) == pytest.approx(hmm.score(x))
    for got, expected in zip(model.forecast(x, 2)[:2], hmm.forecast(x, 2)[:2], strict=True):
        close(got, expected)
    for got, expected in zip(model.predict_next(x)[:2], hmm.predict_next(x)[:2], strict=True):
        close(got, expected)


def test_numbers_that_may_not_be_written_to_are_taken():
    """Those of a frame of pandas 3, say."""
    y = np.arange(6.0)
    y.flags.writeable = False
    batch = IOHMM(1, num_inputs=1, outputs="gaussian", num_outputs=1)._as_batch(y, inputs=y)
    assert batch.x.flatten().tolist() == y.tolist()
