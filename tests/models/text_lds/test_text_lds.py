"""The linear dynamical system for text against one dense Gaussian over all states of a sentence."""

import numpy as np
import pyro
import pytest
import torch
from support.lag_texts import hmm_tables, hmm_text
from support.text_lds_truth import (
    LENGTHS,
    NUM_STATES,
    NUM_WORDS,
    SENTENCES,
    X,
    close,
    log_gain,
    make,
    rebased,
    smoothed,
)

from pplseq.data.lag_counts import LagCounts
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary, WordForms
from pplseq.infer.programs.blocked_enum import no_guide
from pplseq.models.text_lds.lag_covariances import LagCovariances
from pplseq.models.text_lds.next_word import best_weight, score_next_words, token_probs, tune_mixture_weight, word_probs
from pplseq.models.text_lds.program import TextLDS
from pplseq.models.text_lds.rnn_export import rnn_weights
from pplseq.models.text_lds.state_words import singular_pairs


@pytest.fixture(params=["stationary", "steady"])
def model(request):
    return make(initial=request.param).eval()


# ---------------------------------------------------------------- parameters
def test_parameters_are_kept_in_the_basis_they_were_given_in():
    model = make()
    again = TextLDS(NUM_STATES, num_words=NUM_WORDS, probs=model.probs, dtype=torch.float64)
    again.set_parameters(model.transition, model.emission, model.state_noise, model.reduction)
    for name in ("transition", "emission", "state_noise", "reduction", "second_moment"):
        close(getattr(again, name), getattr(model, name))
    prior = model.stationary_covariance
    close(model.transition @ prior @ model.transition.T + model.state_noise, prior)


def test_any_weights_give_a_proper_model():
    model = make()
    with torch.no_grad():
        for _ in range(5):
            for parameter in model.parameters():
                parameter.normal_(std=5.0)
            assert torch.linalg.eigvals(model.transition).abs().max() < 1
            torch.linalg.cholesky(model.state_noise)
            assert torch.linalg.eigvals(model.word_emission().gram @ model.reduction).real.max() < 1


def test_parameters_that_describe_no_model():
    model = make()
    identity = torch.eye(NUM_STATES).double()
    with pytest.raises(ValueError, match="spectral radius is 1.1"):
        model.set_parameters(1.1 * identity)
    with pytest.raises(ValueError, match="state_noise must be positive definite"):
        model.set_parameters(state_noise=-identity)
    with pytest.raises(ValueError, match="not positive definite: the largest eigenvalue"):
        model.set_parameters(reduction=1e4 * identity)
    with pytest.raises(ValueError, match=r"emission must have shape \(7, 3\), got \(6, 3\)"):
        model.set_parameters(emission=torch.zeros(6, 3))
    with pytest.raises(ValueError, match="transition must be finite"):
        model.set_parameters(identity * float("nan"))
    with pytest.raises(ValueError, match="probs must be positive: word 0"):
        model.set_parameters(probs=torch.zeros(7))
    with pytest.raises(ValueError, match="num_states must be in 1..num_words - 1"):
        TextLDS(4, num_words=4)
    with pytest.raises(ValueError, match="initial must be one of stationary, steady"):
        TextLDS(2, num_words=4, initial="zero")
    with pytest.raises(TypeError, match="num_words must be a whole number"):
        TextLDS(2, num_words=4.0)
    close(model.transition, make().transition)  # nothing was half set


# ---------------------------------------------------------------- the chain
def test_log_prob(model):
    expected = torch.stack([log_gain(model, words) for words in SENTENCES])
    close(model.log_prob(X, LENGTHS), expected)
    chain = model.posterior(X, LENGTHS)
    close(chain.token_log_probs().sum(1), expected)


@pytest.mark.parametrize("num_words, num_states", [(2, 1), (5, 1), (6, 5)])
def test_odd_sizes(num_words, num_states):
    model = make(num_words, num_states).eval()
    words = X % num_words
    expected = [log_gain(model, row[:n].tolist()) for row, n in zip(words, LENGTHS, strict=True)]
    close(model.log_prob(words, LENGTHS), torch.stack(expected))


def test_gradients(model):
    model.train()
    names = ["transition_weight", "noise_weight", "emission", "precision_factor"]
    parameters = [getattr(model, name) for name in names]
    model(X, LENGTHS)
    fast = torch.autograd.grad(model.chain.log_prob().sum(), parameters)
    slow = torch.autograd.grad(sum(log_gain(model, words) for words in SENTENCES), parameters)
    for name, one, two in zip(names, fast, slow, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}")


def test_posterior(model):
    chain = model.posterior(X, LENGTHS)
    states = chain.smoothed_states()
    covariances = states.covariances.dense()
    for row, words in enumerate(SENTENCES):
        means, covariance = smoothed(model, words)
        close(states.means[row, : len(words)], means)
        for t in range(len(words)):
            block = slice(t * NUM_STATES, (t + 1) * NUM_STATES)
            close(covariances[row, t], covariance[block, block])


def test_missing_words(model):
    words = [0, -1, 4, -1, -1, 6]
    chain = model.posterior(torch.tensor([words, [1, 2, 3, 4, 5, 6]]))
    close(chain.log_prob()[0], log_gain(model, words))
    close(chain.log_prob()[1], log_gain(model, [1, 2, 3, 4, 5, 6]))
    close(chain.smoothed_states().means[0], smoothed(model, words)[0])
    assert (chain.token_log_probs()[0, [1, 3, 4]] == 0).all()


@pytest.mark.parametrize("measure", ["whitened", "original"])
def test_measures_differ_by_the_baseline(measure):
    model, other = make(), make(measure=measure)
    baseline = other.word_emission().iid_log_prob(X)
    valid = torch.arange(X.shape[1]) < LENGTHS.unsqueeze(1)
    close(other.log_prob(X, LENGTHS), model.log_prob(X, LENGTHS) + (baseline * valid).sum(1).detach())


def test_the_difference_of_the_head():
    model = make()
    difference = model.head_difference(X.repeat(1, 8))
    assert difference.filtered[0] > 1e-3 > difference.filtered[-1]
    rates = difference.filtered[1:30] / difference.filtered[:29]
    # in the long run a step shrinks it by the filter's spectral radius
    assert abs(np.exp(np.log(rates).mean()) - difference.decay) < 0.1
    assert 0 < difference.decay < 1
    steady = model.posterior(X, LENGTHS, initial="steady").log_prob().sum()
    expected = (model.log_prob(X, LENGTHS).sum() - steady) / LENGTHS.sum()
    assert difference.log_prob != 0
    close(model.head_difference(X, LENGTHS).log_prob, float(expected))


def test_it_generates():
    model = make()
    trace = pyro.poutine.trace(model.model).get_trace(num_sequences=4, num_steps=3)
    vectors = torch.stack([trace.nodes[f"x_{t}"]["value"] for t in range(3)])
    assert vectors.shape == (3, 4, NUM_WORDS)
    assert (vectors @ model.probs.sqrt()).abs().max() < 1e-10


def test_svi_moves_every_parameter():
    from pplseq.infer.programs.kalman_collapse import TraceKalman_ELBO

    model = make().train()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    start = model.log_prob(X, LENGTHS).sum()
    svi = pyro.infer.SVI(model, no_guide, pyro.optim.Adam({"lr": 0.02}), loss=TraceKalman_ELBO())
    losses = [svi.step(X, LENGTHS) for _ in range(25)]
    assert losses[-1] < losses[0] - 1
    for name, value in model.named_parameters():
        assert (value - before[name]).abs().max() > 1e-3, name
    assert model.log_prob(X, LENGTHS).sum() > start + 1


def test_bad_observations():
    model = make()
    with pytest.raises(ValueError, match="ids 0..6"):
        model.log_prob(torch.tensor([[7]]))
    with pytest.raises(TypeError, match="integer tensor"):
        model.log_prob(torch.zeros(1, 2))
    with pytest.raises(TypeError, match="start must be a GaussianBelief"):
        model.posterior(X, start=torch.zeros(3))
    with pytest.raises(ValueError, match="initial must be one of"):
        model.posterior(X, initial="zero")


# ---------------------------------------------------------------- folders
def test_there_and_back(tmp_path):
    model = make(measure="whitened", initial="steady")
    model.mixture_weight.fill_(0.3)
    vocabulary = Vocabulary(tuple("abcdefg"))
    model.vocabulary = vocabulary
    loaded = TextLDS.load(model.save(tmp_path / "model"))
    assert type(loaded) is TextLDS and loaded.config == model.config and loaded.vocabulary == vocabulary
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert torch.equal(loaded.log_prob(X, LENGTHS), model.eval().log_prob(X, LENGTHS))


# ---------------------------------------------------------------- next words
def test_next_word_probabilities(model):
    probs = model.predict_next(X, LENGTHS).word_log_probs.exp()
    assert probs.shape == (len(X), NUM_WORDS) and (probs > 0).all()
    close(probs.sum(1), torch.ones(len(X)).double())
    words = SENTENCES[0]
    state = smoothed(model, words)[0][-1]
    vector = model.emission @ (model.transition @ state)
    vector = (model.probs + model.probs.sqrt() * (vector - model.probs.sqrt() * (model.probs.sqrt() @ vector))).clamp_min(0)
    weight = float(model.mixture_weight)
    close(probs[0], (weight * vector / vector.sum() + (1 - weight) * model.probs).detach())


def test_token_probabilities_are_those_of_the_next_word(model):
    starts = np.cumsum([0, *map(len, SENTENCES)])
    own, unigram = token_probs(model, np.concatenate(SENTENCES), starts)
    model.mixture_weight.fill_(1.0)
    for row, words in enumerate(SENTENCES):
        mine = own[starts[row] : starts[row + 1]]
        close(mine[0], float(model.probs[words[0]]))  # no past: the unigram
        for t in range(1, len(words)):
            probs = model.predict_next(torch.tensor([words[:t]])).word_log_probs.exp()
            close(mine[t], float(probs[0, words[t]]))
    close(unigram, model.probs[np.concatenate(SENTENCES)].numpy())
    own, unigram = token_probs(model, np.array([0, -1, 2]), np.array([0, 3]))
    assert own[1] == unigram[1] == 1


def test_forecasts_draws_and_sentences_of_words(model):
    ahead, step = model.forecast(X, 3, LENGTHS), model.predict_next(X, LENGTHS)
    close(ahead.word_log_probs[:, 0], step.word_log_probs)
    a, noise = model.transition.detach(), model.state_noise.detach()
    close(ahead.state_means[:, 2], ahead.state_means[:, 1] @ a.T)
    close(ahead.state_covariances[:, 2], a @ ahead.state_covariances[:, 1] @ a.T + noise)
    close(ahead.word_log_probs[:, 2], word_probs(model, ahead.state_means[:, 2]).log().detach())
    empty = model.predict_next(X, torch.zeros_like(LENGTHS))
    close(empty.word_log_probs, model.unigram.log().expand_as(empty.word_log_probs))
    close(empty.state_covariances[0], model.start_covariance.detach())
    model.vocabulary, model.forms = Vocabulary(tuple("abcdefg"), unknown=None), WordForms(lower=True)
    try:
        close(model.predict_next(["A b g", ""]).word_log_probs[0], model.predict_next([[0, 1, 6]]).word_log_probs[0])
        draw = model.sample(5, 3, seed=1)
        assert draw.x.equal(model.sample(5, 3, seed=1).x) and draw.x.shape == (3, 5)
        end = int(draw.x[0, 1])
        whole, first = model.sample(5, 3, seed=1, end=end), int((draw.x[0] == end).nonzero()[0])
        assert whole.x[0].tolist() == [*draw.x[0, : first + 1].tolist(), *[-1] * (4 - first)]
        assert whole.states[0, : first + 1].equal(draw.states[0, : first + 1]) and not whole.states[0, first + 1 :].any()
        assert draw.words == [["abcdefg"[i] for i in row] for row in draw.x.tolist()]
        close(draw.states, model.filter(draw.x).means)
        frequent = torch.bincount(model.sample(1, 4000, seed=0).x[:, 0], minlength=NUM_WORDS) / 4000
        close(frequent.double(), model.unigram, rtol=0, atol=0.04)
    finally:
        model.vocabulary, model.forms = None, WordForms()


def test_pseudo_counts_are_taken_out_of_next_words():
    # text in which a word is replaced by a uniform one with probability 1 - alpha: its own means come back
    model = make()
    alpha, probs = 0.4, model.probs
    unigram = (probs - (1 - alpha) * probs.min() * 0.9) / (probs - (1 - alpha) * probs.min() * 0.9).sum()
    model.set_unigram(unigram, alpha)
    state = torch.full((NUM_STATES,), 0.01).double()
    change = word_probs(make(), state, 1.0) - probs  # too small to be clipped
    close(word_probs(model, state, 1.0), unigram + change / alpha, rtol=0, atol=1e-12)
    close(word_probs(model, state, 0.0), unigram)
    with pytest.raises(ValueError, match=r"shrinkage in \(0, 1\], got \(7,\) and 0"):
        model.set_unigram(unigram, 0)


def test_the_best_mixture():
    generator = np.random.default_rng(0)
    own, unigram = generator.random(500), generator.random(500) + 0.05
    weight = best_weight(own, unigram)
    values = [np.log(w * own + (1 - w) * unigram).mean() for w in (weight - 1e-4, weight, weight + 1e-4)]
    assert 0 < weight < 1 and values[1] >= max(values)
    assert best_weight(unigram / 2, unigram) < 1e-6 and best_weight(unigram * 2, unigram) > 1 - 1e-6


def test_perplexity_of_a_text():
    model = make()
    vocabulary = Vocabulary(tuple("abcdef") + ("<eos>",), unknown=None)
    generator = np.random.default_rng(0)
    text = Text.from_lines([list(np.array(list("abcdef"))[generator.integers(0, 6, 9)]) for _ in range(20)], vocabulary)
    weight = tune_mixture_weight(model, text)
    best = score_next_words(model, text)
    assert float(model.mixture_weight) == weight and best.num_tokens == 200
    for other in (0.0, weight / 2, min(1.0, weight + 0.2)):
        assert score_next_words(model, text, other).log_prob <= best.log_prob + 1e-9
    counts = model.probs.numpy()[text.tokens]
    np.testing.assert_allclose(score_next_words(model, text, 0.0).token_log_probs, np.log(counts))
    with pytest.raises(ValueError, match="weight must be in 0..1"):
        score_next_words(model, text, 1.5)
    with pytest.raises(ValueError, match="vocabulary of 3 words"):
        score_next_words(model, Text.from_lines([["a", "b"]], Vocabulary(("a", "b", "<eos>"), unknown=None)))


# ---------------------------------------------------------------- recurrent networks and singular pairs
@pytest.mark.parametrize("form", ["predictor", "filtered"])
def test_the_recurrent_network_predicts_as_the_model_does(form):
    model = make(initial="steady").eval()
    words = SENTENCES[3]
    weights = rnn_weights(model, form)
    white = model.rnn_weights(form, coordinates="whitened")
    vectors = model.word_emission().whiten(torch.tensor(words)).detach().numpy()
    states = model.posterior(torch.tensor([words])).filtered_states().means[0]
    state, white_state = np.zeros(NUM_STATES), np.zeros(NUM_STATES)
    for t, word in enumerate(words):
        state = weights["recurrent"] @ state + weights["input"][:, word]
        white_state = white["recurrent"] @ white_state + white["input"] @ vectors[t]
        prediction = weights["output"] @ state + weights["bias"]
        np.testing.assert_allclose(state, white_state, atol=1e-10)
        np.testing.assert_allclose(prediction.sum(), 1, atol=1e-10)
        expected = word_probs(model, model.transition @ states[t], 1.0).detach().numpy()
        clipped = np.maximum(prediction, 0)
        np.testing.assert_allclose(clipped / clipped.sum(), expected, atol=1e-10)
        unwhitened = np.sqrt(weights["bias"]) * (white["output"] @ white_state) + weights["bias"]
        np.testing.assert_allclose(prediction, unwhitened, atol=1e-10)
    with pytest.raises(ValueError, match="form must be one of"):
        rnn_weights(model, "lstm")


def test_singular_pairs():
    # a transition that turns the state of words 0, 1 into the state of words 2, 3
    emission = torch.zeros(6, 2).double()
    emission[[0, 1], 0] = torch.tensor([0.5, 0.4], dtype=torch.float64)
    emission[[2, 3], 1] = torch.tensor([0.5, 0.4], dtype=torch.float64)
    model = TextLDS(2, num_words=6, dtype=torch.float64)
    transition = torch.tensor([[0.0, 0.1], [0.9, 0.0]], dtype=torch.float64)
    model.set_parameters(transition, emission, torch.eye(2).double(), 0.5 * torch.eye(2).double())
    for ranking in ("lift", "probability"):
        pairs = singular_pairs(model, 5, 2, ranking=ranking)
        assert len(pairs) == 2 and [round(pair.value, 9) for pair in pairs] == [0.9, 0.1]
        assert pairs[0].right.tolist() == [0, 1] and pairs[0].left.tolist() == [2, 3]
        assert pairs[1].right.tolist() == [2, 3] and pairs[1].left.tolist() == [0, 1]
    other = singular_pairs(rebased(model, torch.tensor([[2.0, 1.0], [0.0, -3.0]]).double()), 1, 2)
    assert other[0].right.tolist() == [0, 1] and other[0].left.tolist() == [2, 3]
    assert len(singular_pairs(model, 1, 9, most_frequent=3)[0].right) == 3
    with pytest.raises(ValueError, match="ranking must be one of"):
        singular_pairs(model, ranking="random")


def test_fit_takes_counts_texts_and_ids():
    pytest.importorskip("scipy")
    ids = hmm_text(*hmm_tables(num_states=3, num_words=12), 3000)
    text = Text(ids.astype(np.int32), np.arange(0, 3001, 30), np.array([0, 100]), Vocabulary(tuple("abcdefghijkl")))
    settings = dict(pseudo_counts=5.0, max_iterations=2, restricted_iterations=5)
    fits = [
        TextLDS(2, num_words=12).fit(x, lengths, validation=x, **settings)
        for x, lengths in (
            (LagCounts.from_text(text, 7), None), (text, None), (list(ids.reshape(100, 30)), None),
            (ids.reshape(100, 30), np.full(100, 30)),
        )
    ]  # fmt: skip
    for model in fits:
        assert [record["step"] for record in model.history.records] == [0, 1, 2]
        assert model.history.best == fits[0].history.best and not model.training
        for name, value in model.state_dict().items():
            assert value.equal(fits[0].state_dict()[name]), name
    with pytest.raises(ValueError, match="num_words=11"):
        TextLDS(2, num_words=11).fit(text, **settings)
    with pytest.raises(ValueError, match="word ids 0..10, got 0..11"):
        TextLDS(2, num_words=11).fit([ids], **settings)


# ---------------------------------------------------------------- short sentences
SHORT = ["the cat sees a dog", "a dog barks", "the dog sees the cat"] * 20


def test_short_sentences_have_as_many_lags_as_their_longest():
    fitted = TextLDS(2, num_words=7).fit(SHORT, max_iterations=2)
    assert "lags 1..5: no line is longer" in fitted.history.records[0]["remarks"]
    asked = TextLDS(2, num_words=7).fit(SHORT, max_iterations=2, blocks=3)
    close(asked.transition, fitted.transition)
    validation = TextLDS(2, num_words=7).fit(SHORT, max_iterations=2, validation=["a dog barks"]).history.records[0]
    assert np.isfinite(validation["held_out_gain_per_token"])
    with pytest.raises(ValueError, match="blocks: 4 need words up to 7 places .* longest line has 6 words; give 3"):
        TextLDS(2, num_words=7).fit(SHORT, blocks=4)
    with pytest.raises(ValueError, match="the longest line has 3 words, .* expected one of 4 words or more"):
        TextLDS(2, num_words=5).fit(["a b", "c d"] * 5)


def test_lags_without_pairs_have_no_covariance_in_held_out_text_alone():
    text = Text.from_lines([line.split() for line in SHORT])
    counts = LagCounts.from_text(text, 5)
    few = LagCounts.from_text(Text.from_lines([["a", "dog"]] * 3, text.vocabulary), 5)
    cov = LagCovariances.from_counts(counts, 1.0)
    x = np.eye(len(text.vocabulary))
    validation = LagCovariances.from_counts(few, probs_from=cov)
    assert not validation.apply(5, x).any() and validation.apply(1, x).any()
    with pytest.raises(ValueError, match="no two words 3 places apart"):
        LagCovariances.from_counts(few, 1.0)
    with pytest.raises(ValueError, match="no two words 3 places apart"):
        LagCovariances.from_counts(few, probs_from=cov, normalize="pairs")


@pytest.mark.parametrize("option", [dict(initial="steady"), dict(measure="whitened")])
def test_a_run_is_resumed_with_the_same_model(tmp_path, option):
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 8, (20, 30)))
    TextLDS(2, num_words=8).fit(x, folder=tmp_path, max_iterations=2)
    (name,) = option
    with pytest.raises(ValueError, match=f"^{name}: the run in .* is of another {name} .*is '{option[name]}'"):
        TextLDS(2, num_words=8, **option).fit(x, folder=tmp_path, max_iterations=4, resume=True)
    model = TextLDS(2, num_words=8).fit(x, folder=tmp_path, max_iterations=4, resume=True)
    assert getattr(model, name) == getattr(TextLDS(2, num_words=8), name)
