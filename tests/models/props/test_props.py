"""PROPS: its program, queries, what streams give back."""

import numpy as np
import pytest
import torch
from support.oracles.discrete import generic_log_prob

from pplseq.models import PROPS, StreamingHMM
from pplseq.models.props.online_em import start_stream
from pplseq.models.props.queries import fixed_lag_smooth, membership

close = torch.testing.assert_close
LENGTHS = torch.tensor([6, 1, 4])


def whole(num_sources=2, seed=0):
    """A model, words (B, T) with gaps, and what sources gave to all words."""
    torch.manual_seed(seed)
    model = PROPS(5, num_sources=num_sources, num_perturbations=2, seed=1)
    model.set_parameters(transition=torch.rand(num_sources + 2, num_sources + 2).double().log_softmax(-1).exp())
    x = torch.randint(5, (3, 6))
    x[0, 2] = -1
    tables = torch.rand(3, 6, num_sources, 5).double().log_softmax(-1)
    seen = tables.gather(-1, x.clamp_min(0)[..., None, None].expand(3, 6, num_sources, 1))[..., 0]
    return model, x, tables, seen


# ---------------------------------------------------------------- the program
def test_probabilities_at_the_observed_words_are_enough():
    model, x, tables, seen = whole()
    seen[0, 2] = float("nan")  # not read where nothing was seen
    few = model.posterior(x, LENGTHS, source_log_probs=seen)
    many = model.posterior(x, LENGTHS, source_log_probs=tables)
    close(few.token_log_probs(), many.token_log_probs())
    close(few.marginals().probs, many.marginals().probs)
    assert torch.equal(few.viterbi()[0], many.viterbi()[0])
    close(few.next(emission_inputs=tables[:, 0]).word_log_probs, many.next(emission_inputs=tables[:, 0]).word_log_probs)
    close(many.missing_words().log_probs.exp().sum(-1), torch.ones(1).double())
    with pytest.raises(ValueError, match="log-probabilities of all words"):
        few.missing_words()
    with pytest.raises(ValueError, match="source_log_probs must have shape"):
        model.model(num_sequences=3, num_steps=6, source_log_probs=seen)


def test_pyro_itself_agrees():
    model, x, _, seen = whole(1)
    close(generic_log_prob(model, x, LENGTHS, source_log_probs=seen), model.log_prob(x, LENGTHS, source_log_probs=seen).sum())


def test_a_stream_with_fixed_parameters_is_the_chain():
    model, _, tables, _ = whole()
    x = torch.tensor([[3, 1, 4, 1, 0, 2]])
    seen = tables[:1].gather(-1, x[..., None, None].expand(1, 6, 2, 1))[..., 0]
    chain = model.posterior(x, source_log_probs=seen)
    stream = model.start()
    infos = [stream.step(int(x[0, t]), seen[0, t].tolist(), learn=False) for t in range(6)]
    close(torch.tensor([info.log_prob for info in infos]).double(), chain.token_log_probs()[0])
    close(torch.tensor(infos[-1].filter), chain.filtered().log_probs[0].exp())
    found = membership(chain, 2)
    for name in ("perturbation", "log_odds", "anomaly", "source_anomaly", "perturbation_anomaly"):
        close(torch.tensor([getattr(info, name) for info in infos]).double(), getattr(found, name)[0])
    smoothed = membership(chain, 2, smoothed=True)
    close(smoothed.perturbation, chain.marginals().probs[..., 2:].sum(-1))


def test_fixed_lag_smoothing_is_the_posterior_of_a_longer_prefix():
    model, x, _, seen = whole()
    chain = model.posterior(x, LENGTHS, source_log_probs=seen)
    for lag in (0, 1, 3, 5, 9):
        found = fixed_lag_smooth(chain, lag)
        for row, length in enumerate(LENGTHS.tolist()):
            for t in range(length):
                stop = min(t + lag + 1, length)
                prefix = model.posterior(x[row : row + 1, :stop], source_log_probs=seen[row : row + 1, :stop])
                close(found[row, t], prefix.marginals().probs[0, t])
            assert (found[row, length:] == 0).all()
    with pytest.raises(ValueError, match="lag"):
        fixed_lag_smooth(chain, -1)


def test_learned_parameters_come_back_into_the_program():
    stream = PROPS(7, num_sources=1, seed=0).start()
    for y in np.random.default_rng(0).integers(7, size=300):
        stream.step(y, [-2.0])
    model = PROPS(7, num_sources=1, num_perturbations=2)._set_stream(stream)
    close(model.transition, torch.tensor(stream.transition))
    close(model.emission, torch.tensor(stream.emission()))
    vectors = StreamingHMM(2, num_features=2, covariance="full", seed=0)
    stream = vectors.start(warm_up=10)
    random = np.random.default_rng(0)
    for _ in range(50):
        stream.step(random.normal(size=2))
    vectors._set_stream(stream)
    close(vectors.loc, torch.tensor(stream.loc))
    close(vectors.covariances, torch.tensor(stream.covariances))


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "exactly one"),
        ({"num_words": 3, "num_features": 2}, "exactly one"),
        ({"num_words": 0}, "num_words"),
        ({"num_words": 3, "num_sources": -1}, "num_sources"),
        ({"num_words": 3, "num_perturbations": 0}, "num_perturbations"),
        ({"num_features": 3, "covariance": "tied"}, "covariance"),
        ({"num_words": 3, "initial": [0.5, 0.5]}, "initial must have shape"),
        ({"num_words": 3, "transition": np.ones((3, 3))}, "transition: every row"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        PROPS(**options)
    with pytest.raises(ValueError, match="has none"):
        StreamingHMM(3, 4, num_sources=1)


def test_a_batch_of_users_of_a_model():
    model = PROPS(7, num_sources=1, seed=0)
    batch, alone = model.start(num_users=3), model.start()
    for y in np.random.default_rng(0).integers(7, size=60):
        batch, info = model.step(batch, [y, 0, -1], np.full((3, 1), -2.0))
        alone, expected = model.step(alone, y, [-2.0])
        np.testing.assert_allclose(float(info.log_prob[0]), expected.log_prob, rtol=1e-9)
        assert float(info.anomaly[0]) == -float(info.log_prob[0])
    with pytest.raises(ValueError, match="words only"):
        PROPS(num_features=2).start(num_users=2)


def test_the_stream_of_a_model_is_start_stream():
    model = PROPS(7, num_sources=1, seed=0)
    direct = start_stream(initial=model.initial.numpy(), transition=model.transition.numpy(), emission=model.emission.numpy())
    assert direct.step(3, [-1.0]).log_prob == model.start().step(3, [-1.0]).log_prob


def test_what_comes_behind_sources_is_not_asked_of_the_program():
    """Nobody knows what sources will say; without any it is a Markov chain, which refuses what it does not know."""
    x, said = [[0, 1, 2]], torch.zeros(1, 3, 1)
    for ask in (PROPS(3, seed=0).predict_next, lambda x, **known: PROPS(3, seed=0).forecast(x, 2, **known)):
        with pytest.raises(NotImplementedError, match="what comes depends on what the sources will say; a PROPSLearner"):
            ask(x, source_log_probs=said)
    alone = StreamingHMM(2, num_words=3, seed=0)
    np.testing.assert_allclose(alone.predict_next(x).word_log_probs.exp().sum(), 1.0)
    with pytest.raises((TypeError, ValueError), match="source_log_probs"):
        alone.forecast(x, 2, source_log_probs=said)
