"""Columns of embeddings and posteriors, sentence by sentence, against those of whole batches."""

import numpy as np
import pytest
import torch

from pplseq.data import Vocabulary
from pplseq.models import VLHMM
from pplseq.models.taggers.columns import EmbeddingColumns, PosteriorColumns, TypeColumns

LINES = [["a", "dog", "barks"], ["a", "cat"], ["<unk>", "dog", "sees", "a", "cat"]]
SENTENCES = [["A", "dog", "barks", "."], [], ["The", "cat", ",", "a", "dog"], ["."], ["mice"]]


@pytest.fixture
def vocabulary():
    return Vocabulary.build(LINES)


class FakeLDS:
    """Embeddings that tell which token of which sentence they are of."""

    num_states = 3

    def embed_tokens(self, text, kind):
        assert kind == "filtered"
        place = np.concatenate([np.arange(n) for n in text.lengths])
        return np.stack([text.tokens, place, np.ones(len(place))], 1)


def test_embedding_of_each_word_without_ends_of_sentences(vocabulary):
    source = EmbeddingColumns(FakeLDS(), vocabulary, str.lower, kind="filtered")
    columns = source(SENTENCES)
    words = [w.lower() for s in SENTENCES for w in s]
    places = [t for s in SENTENCES for t in range(len(s))]
    assert columns.ids is None and not source.sparse and source.num_columns == 3
    np.testing.assert_array_equal(columns.values, np.stack([vocabulary.encode(words), places, np.ones(len(words))], 1))


def test_vectors_of_types(vocabulary):
    vectors = np.random.default_rng(0).normal(size=(len(vocabulary), 2))
    columns = TypeColumns(vectors, vocabulary, str.lower)(SENTENCES)
    words = [w.lower() for s in SENTENCES for w in s]
    np.testing.assert_allclose(columns.values, vectors[vocabulary.encode(words)], rtol=1e-6)
    with pytest.raises(ValueError, match="vectors: expected one for each of"):
        TypeColumns(vectors[1:], vocabulary)


@pytest.mark.parametrize("least", [1e-6, 0.3])
def test_posteriors_are_those_of_each_sentence_alone_without_words_left_out(vocabulary, least):
    torch.manual_seed(0)
    blocks = torch.arange(len(vocabulary)) % 2
    model = VLHMM(len(vocabulary), 6, blocks, hidden_size=8, reset_id=vocabulary.eos_id, init_scale=1.0)

    def forms(word):
        return word.lower() if word.isalpha() else None

    source = PosteriorColumns(model, vocabulary, forms, least=least, batch_size=2)
    columns = source(SENTENCES)
    assert columns.values.shape == columns.ids.shape and len(columns.values) == sum(map(len, SENTENCES))
    row = 0
    for sentence in SENTENCES:
        kept = [forms(word) for word in sentence if word.isalpha()]
        x = torch.tensor([[*vocabulary.encode(kept), vocabulary.eos_id]])
        probs = iter(model.posterior(x).marginals().dense(6)[0, :-1].numpy())
        for word in sentence:
            expected = next(probs) if word.isalpha() else np.zeros(6)
            got = np.zeros(6)
            used = columns.ids[row] >= 0
            got[columns.ids[row][used]] = columns.values[row][used]
            np.testing.assert_allclose(got, np.where(expected >= least, expected, 0.0), atol=1e-6)
            row += 1
    assert source([[], ["."]]).values.shape[0] == 1
    with pytest.raises(ValueError, match="least: expected a probability"):
        PosteriorColumns(model, vocabulary, least=0)
