"""Built-in corpora: deterministic, clean, and true to the parameters they come with."""

import numpy as np
import pytest

from pplseq.data import load_corpus
from pplseq.data.builtin import generated_language, python_reference_text, python_reference_topics


def test_python_reference_text_is_natural():
    lines = python_reference_text()
    sizes = [len(line) for line in lines]
    assert 50_000 < sum(sizes) < 200_000
    assert 10 < np.mean(sizes) < 30 and max(sizes) < 300
    assert all(word and not word.isspace() for line in lines for word in line)
    assert lines == python_reference_text()
    lowered = python_reference_text(lower=True)
    assert all(word == word.lower() for line in lowered for word in line)


def test_python_reference_paragraphs_stand_once():
    topics = python_reference_topics()
    sentences = [(topic, tuple(line)) for topic, lines in topics.items() for line in lines if len(line) > 25]
    owner = dict((sentence, topic) for topic, sentence in reversed(sentences))
    elsewhere = sum(owner[sentence] != topic for topic, sentence in sentences)
    assert elsewhere < 0.01 * len(sentences)


def test_python_corpus():
    corpus = load_corpus("builtin:python")
    total = sum(text.num_tokens for text in (corpus.train, corpus.valid, corpus.test))
    for text in (corpus.valid, corpus.test):
        assert 0.04 * total < text.num_tokens < 0.06 * total
        assert text.num_unknown < 0.1 * text.num_tokens
    counts = np.bincount(corpus.train.tokens, minlength=len(corpus.vocabulary))
    assert counts.min() >= 2
    assert corpus.train.num_articles > 10
    again = load_corpus("builtin:python")
    assert np.array_equal(corpus.train.tokens, again.train.tokens)


def test_generated_language_is_an_hmm():
    lines, truth = generated_language(seed=3, num_sentences=4000)
    initial, transition, emission, states = (truth[name] for name in ("initial", "transition", "emission", "states"))
    np.testing.assert_allclose(initial.sum(), 1)
    np.testing.assert_allclose(transition.sum(axis=1), 1)
    np.testing.assert_allclose(emission.sum(axis=1), 1)
    np.testing.assert_array_equal(transition[0], initial)
    assert np.count_nonzero(transition) < 0.5 * transition.size  # sparse
    assert truth["words"][0] == "<eos>" and np.count_nonzero(emission[:, 0]) == 1
    # What was drawn has the frequencies of the parameters.
    number = {word: i for i, word in enumerate(truth["words"].tolist())}
    tokens = np.array([number[word] for line in lines for word in [*line, "<eos>"]])
    assert len(tokens) == len(states)
    for from_, to, expected in ((states[:-1], states[1:], transition), (states, tokens, emission)):
        counts = np.zeros(expected.shape)
        np.add.at(counts, (from_, to), 1)
        assert not counts[expected == 0].any()
        rows = counts.sum(axis=1, keepdims=True)
        deviation = (counts - rows * expected) / np.sqrt(rows * expected * (1 - expected) + 1)
        assert np.abs(deviation).max() < 5


def test_generated_language_is_reproducible():
    first, second, other = (generated_language(seed, num_sentences=50)[0] for seed in (1, 1, 2))
    assert first == second != other
    assert min(map(len, first)) >= 2 and 5 < np.mean([len(line) for line in first]) < 20


@pytest.mark.parametrize("options", [{"num_states": 3, "num_words": 3}, {"num_states": 40, "num_words": 4900}])
def test_generated_language_sizes(options):
    lines, truth = generated_language(num_sentences=20, **options)
    assert truth["emission"].shape == (options["num_states"], options["num_words"] + 1)
    assert len(set(truth["words"])) == options["num_words"] + 1 and len(lines) == 20


@pytest.mark.parametrize("options", [{"num_states": 2}, {"num_words": 5}, {"num_words": 5000}, {"num_sentences": 0}])
def test_generated_language_refuses(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}(: expected| must be)"):
        generated_language(**options)


def test_generated_corpus_keeps_the_true_numbering():
    corpus = load_corpus("builtin:generated", seed=4)
    lines, truth = generated_language(seed=4)
    assert corpus.vocabulary.words == tuple(truth["words"])
    assert corpus.train.num_lines + corpus.valid.num_lines + corpus.test.num_lines == len(lines)
