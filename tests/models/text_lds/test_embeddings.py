"""Embeddings of words in context, by the linear dynamical system for text."""

import numpy as np
import pytest
import torch
from support.grids import grid
from support.text_lds_truth import LENGTHS, NUM_STATES, NUM_WORDS, SENTENCES, X, make, rebased, smoothed

from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.models.text_lds.embeddings import TokenEmbedder
from pplseq.models.text_lds.next_word import token_probs
from pplseq.models.text_lds.program import TextLDS


@pytest.fixture(params=["stationary", "steady"])
def model(request):
    return make(initial=request.param).eval()


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-9), ("float32", 1e-4)])
def test_embeddings_are_the_posterior_means(model, dtype, tolerance):
    means = model.embed_tokens(SENTENCES, normalize=False, dtype=dtype)
    for words, found in zip(SENTENCES, means, strict=True):
        expected = smoothed(model, words)[0].detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
    found = model.embed_tokens(SENTENCES, kind="filtered", normalize=False, dtype=dtype)
    for row, words in zip(found, SENTENCES, strict=True):
        for t in range(len(words)):
            expected = smoothed(model, words[: t + 1])[0][-1].detach().numpy()
            np.testing.assert_allclose(row[t], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", ["smoothed", "filtered"])
def test_embeddings_with_missing_words(model, kind):
    sentences = [[0, -1, 4], [3, 2], [-1], [1, 1, 1, -1, 2]]
    found = model.embed_tokens(sentences, kind=kind, normalize=False, dtype="float64")
    for words, row in zip(sentences, found, strict=True):
        if kind == "smoothed":
            expected = smoothed(model, words)[0]
        else:
            expected = torch.stack([smoothed(model, words[: t + 1])[0][-1] for t in range(len(words))])
        np.testing.assert_allclose(row, expected.detach().numpy(), rtol=0, atol=1e-9)


def test_embeddings_lie_on_the_sphere_and_need_no_basis():
    model = make()
    basis = torch.randn(NUM_STATES, NUM_STATES, dtype=torch.float64)
    one, two = (np.concatenate(m.embed_tokens(SENTENCES, dtype="float64")) for m in (model, rebased(model, basis)))
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(one @ one.T, two @ two.T, rtol=0, atol=1e-8)  # equal up to a rotation
    types = [m.type_embeddings() for m in (model, rebased(model, basis))]
    np.testing.assert_allclose(types[0] @ types[0].T, types[1] @ types[1].T, rtol=0, atol=1e-5)
    np.testing.assert_allclose(one @ types[0].T, two @ types[1].T, rtol=0, atol=1e-5)


def test_tokens_of_one_type_differ_by_context():
    first, second = make().embed_tokens([[0, 3, 4], [6, 3, 1]])
    assert np.abs(first[1] - second[1]).max() > 0.01
    alone = make().embed_tokens([[3, 3, 3]])[0]
    assert np.abs(alone[0] - alone[1]).max() > 1e-4


def test_moments_of_a_text_whiten_its_means():
    model = make()
    generator = np.random.default_rng(0)
    text = [generator.integers(0, NUM_WORDS, 20).tolist() for _ in range(30)]
    model.estimate_moments(text)
    for kind in ("smoothed", "filtered"):
        embedder = TokenEmbedder(model, kind=kind, dtype="float64")
        means = np.concatenate(model.embed_tokens(text, kind=kind, normalize=False, dtype="float64"))
        white = means @ embedder._basis.numpy().T
        np.testing.assert_allclose(white.T @ white / len(white), np.eye(NUM_STATES), atol=1e-8)


@grid({"kind": ["smoothed", "filtered"], "gap": [None, 2]})
def test_embeddings_that_keep_a_share_of_the_pseudo_counts(kind, gap):
    """Each word's evidence is multiplied by (n + kappa) / (n + r kappa), which no probability sees."""
    counts, kappa, share, T = torch.tensor([0.0, 1, 2, 5, 10, 40, 100], dtype=torch.float64), 20.0, 0.1, 4
    generator = np.random.default_rng(0)
    sentences = generator.integers(0, NUM_WORDS, (80, T))
    model = make()
    model.set_parameters(probs=(counts + kappa) / (counts + kappa).sum())
    model.set_unigram((counts + 1e-9) / (counts + 1e-9).sum(), float(counts.sum() / (counts + kappa).sum()))
    table = model.eval().word_emission().table().detach().numpy()

    def means():
        rows = [[-1 if t == gap else int(w) for t, w in enumerate(row)] for row in sentences]
        return np.stack(model.embed_tokens(rows, kind=kind, normalize=False, dtype="float64")).reshape(len(rows), -1)

    # means are linear in the evidence of the words: the matrix comes from the model as it is
    matrix, *_ = np.linalg.lstsq(table[sentences].reshape(80, -1), means(), rcond=None)
    likelihood, text = model.log_prob(X, LENGTHS), (sentences.reshape(-1), np.arange(len(sentences) + 1) * sentences.shape[1])
    next_words = token_probs(model, *text)
    model.set_embedding_share(share, sentences.tolist())
    factor = ((counts + kappa) / (counts + share * kappa)).numpy()
    expected = (table * factor[:, None])[sentences].reshape(80, -1) @ matrix
    np.testing.assert_allclose(means(), expected, rtol=0, atol=1e-9)
    assert np.abs(expected).max() > 0.1
    torch.testing.assert_close(model.log_prob(X, LENGTHS), likelihood)
    np.testing.assert_allclose(token_probs(model, *text), next_words)
    white = np.concatenate(model.embed_tokens(sentences.tolist(), kind=kind, normalize=False, dtype="float64"))
    white = white @ TokenEmbedder(model, kind=kind, dtype="float64")._basis.numpy().T
    np.testing.assert_allclose(white.T @ white / len(white), np.eye(NUM_STATES), atol=1e-8)
    assert TextLDS.from_config(model.config, model.state_dict()).embedding_share == share
    with pytest.raises(ValueError, match="embedding_share must lie in"):
        model.set_embedding_share(0.0, sentences.tolist())


def test_embeddings_of_a_text():
    model = make()
    vocabulary = Vocabulary(tuple("abcdef") + ("<eos>",), unknown=None)
    text = Text.from_lines([["a", "c"], [], ["b"]], vocabulary)
    found = model.embed_tokens(text)
    assert found.shape == (6, NUM_STATES) and found.dtype == np.float32
    rows = model.embed_tokens([[0, 2, 6], [6], [1, 6]])
    np.testing.assert_allclose(found, np.concatenate(rows), atol=1e-6)
    padded = model.embed_tokens(X, LENGTHS)
    for one, two in zip(padded, model.embed_tokens(SENTENCES), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)
    assert [len(row) for row in model.embed_tokens([[], [3], []])] == [0, 1, 0]


@pytest.mark.parametrize("kind", ["smoothed", "filtered"])
def test_long_lines_in_pieces(kind):
    generator = np.random.default_rng(0)
    sizes = [900, 3, 1400, 299]
    tokens, starts = generator.integers(0, NUM_WORDS, sum(sizes)), np.cumsum([0, *sizes])
    results = []
    for window in (10**6, 100, 150, 449):
        embedder = TokenEmbedder(make(), kind=kind, normalize=False, dtype="float64")
        embedder._window = window
        results.append(embedder.embed(tokens, starts))
        np.testing.assert_allclose(results[-1], results[0], rtol=0, atol=1e-12)


def test_embedding_errors():
    model = make()
    with pytest.raises(ValueError, match=r"tokens must be ids 0..6.*got 0..9"):
        model.embed_tokens([[0, 9]])
    with pytest.raises(ValueError, match="kind must be one of"):
        model.embed_tokens([[0]], kind="both")
    with pytest.raises(ValueError, match="dtype must be one of"):
        model.embed_tokens([[0]], dtype="int8")
    with pytest.raises(TypeError, match="got columns in a dict"):
        model.embed_tokens({"x": [0, 1]})
    assert len(model.embed_tokens([0, 1])) == 1  # one sequence
