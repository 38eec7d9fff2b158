"""The distribution of missing words, against scoring every way to fill them in."""

import itertools

import pytest
import torch

from pplseq.distributions import CategoricalEmission, DenseTransition
from pplseq.infer.discrete.build import build_chain
from pplseq.models import VLHMM

V = 7
ROWS = [[0, -1, 4, -1, -1], [-1, -1, 2, 5, -1], [-1, -1, -1, -1, -1], [3, -1, -1, 3, 1]]


def fillings(score, row):
    """Every way to fill the gaps of a row, with its probability given the seen words."""
    gaps = [t for t, word in enumerate(row) if word < 0]
    words = torch.tensor(list(itertools.product(range(V), repeat=len(gaps))))
    x = torch.tensor(row).repeat(len(words), 1)
    x[:, gaps] = words
    return gaps, words, score(x).softmax(0)


def expected_marginals(score):
    """{(row, step): (V,)} by brute force."""
    truth = {}
    for b, row in enumerate(ROWS):
        gaps, words, probs = fillings(score, row)
        for k, t in enumerate(gaps):
            truth[b, t] = torch.zeros(V, dtype=torch.float64).index_add(0, words[:, k], probs)
    return truth


@pytest.fixture(params=[None, 3], ids=["no reset", "reset"])
def model(request):
    torch.manual_seed(0)
    blocks = torch.tensor([0, 0, 1, 1, 2, 2, 2])
    return VLHMM(6, num_words=V, blocks=blocks, hidden_size=8, init_scale=1.0, reset_id=request.param).double().eval()


def test_marginals_of_missing_words(model):
    found = model.posterior(torch.tensor(ROWS)).missing_words()
    truth = expected_marginals(model.log_prob)
    assert [tuple(place) for place in found.places.tolist()] == sorted(truth)
    for (b, t), log_probs in zip(found.places.tolist(), found.log_probs, strict=True):
        torch.testing.assert_close(log_probs.exp(), truth[b, t])


def test_joint_draws_of_missing_words(model):
    samples = 20_000
    words = model.posterior(torch.tensor(ROWS)).sample_words(samples)
    assert words.shape == (samples, len(ROWS), 5)
    for b, row in enumerate(ROWS):
        gaps, fills, probs = fillings(model.log_prob, row)
        seen = [t for t in range(5) if t not in gaps]
        assert (words[:, b, seen] == torch.tensor(row)[seen]).all()
        if len(gaps) > 3:
            continue
        number = torch.tensor([V ** (len(gaps) - 1 - k) for k in range(len(gaps))])
        found = torch.bincount((words[:, b, gaps] * number).sum(-1), minlength=len(fills)) / samples
        # five standard deviations of a frequency
        assert ((found - probs).abs() < 5 * (probs * (1 - probs) / samples).sqrt() + 1e-4).all()


def test_padding_is_not_a_missing_word(model):
    found = model.posterior(torch.tensor(ROWS), torch.tensor([3, 2, 1, 2])).missing_words()
    assert found.places.tolist() == [[0, 1], [1, 0], [1, 1], [2, 0], [3, 1]]


def test_dense_chain():
    torch.manual_seed(1)
    transition = DenseTransition(torch.randn(3).double().log_softmax(-1), torch.randn(3, 3).double().log_softmax(-1))
    emission = CategoricalEmission(torch.randn(3, V).double().log_softmax(-1))
    x = torch.tensor(ROWS)
    chain = build_chain(transition, emission, x.clamp_min(0).T, seen=(x >= 0).T)
    found = chain.missing_words()
    truth = expected_marginals(lambda x: build_chain(transition, emission, x.T).log_prob())
    for (b, t), log_probs in zip(found.places.tolist(), found.log_probs, strict=True):
        torch.testing.assert_close(log_probs.exp(), truth[b, t])
    assert chain.sample_words(3).shape == (3, len(ROWS), 5)


def test_nothing_missing(model):
    with pytest.raises(ValueError, match="no observation is missing"):
        model.posterior(torch.tensor([[1, 2]])).missing_words()
