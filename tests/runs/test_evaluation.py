"""Perplexity under both protocols against the forward algorithm, written out."""

import math

import numpy as np
import pytest
import torch

from pplseq import HMM
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.runs.evaluation import score_carried, score_sentences, score_text

INITIAL = np.array([0.7, 0.3])
TRANSITION = np.array([[0.8, 0.2], [0.35, 0.65]])


@pytest.fixture(scope="module")
def text():
    rng = np.random.default_rng(0)
    lines = [[("a", "b", "zebra")[k] for k in rng.integers(0, 3, size=n)] for n in (3, 1, 7, 2, 5, 4)]
    return Text.from_lines(lines, Vocabulary(("<eos>", "<unk>", "a", "b")))


@pytest.fixture(scope="module")
def emission(text):
    rng = np.random.default_rng(1)
    return rng.dirichlet(np.ones(len(text.vocabulary)), size=2)


@pytest.fixture(scope="module")
def model(text, emission):
    model = HMM(2, num_words=len(text.vocabulary)).double()
    tables = {"initial": INITIAL, "transition": TRANSITION, "emission": emission}
    model.set_parameters(**{name: torch.tensor(table) for name, table in tables.items()})
    return model


def by_hand(tokens, emission):
    """log p(x_t | x_1..x_{t-1}) of one sequence."""
    prior, values = INITIAL, []
    for token in tokens:
        joint = prior * emission[:, token]
        values.append(math.log(joint.sum()))
        prior = joint / joint.sum() @ TRANSITION
    return values


@pytest.mark.parametrize("segment_length", [1, 4, 100])
def test_carried_in_one_stream_is_the_text_as_one_sequence(model, text, emission, segment_length):
    score = score_carried(model, text, num_streams=1, segment_length=segment_length)
    expected = by_hand(text.tokens, emission)
    np.testing.assert_allclose(score.token_log_probs, expected, rtol=1e-12)
    assert score.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-12)
    assert (score.num_tokens, score.num_streams, score.protocol) == (text.num_tokens, 1, "carried")


@pytest.mark.parametrize("segment_length", [2, 5, 100])
def test_carried_in_streams_starts_each_anew(model, text, emission, segment_length):
    """3 streams of 28 tokens: the first has one more, and every token counts once."""
    score = score_carried(model, text, num_streams=3, segment_length=segment_length)
    sizes = [10, 9, 9]
    assert sum(sizes) == text.num_tokens
    parts = np.split(text.tokens, np.cumsum(sizes)[:-1])
    np.testing.assert_allclose(score.token_log_probs, np.concatenate([by_hand(part, emission) for part in parts]), rtol=1e-12)


@pytest.mark.parametrize("batch_tokens", [1, 9, 1000])
def test_sentences_each_from_the_start(model, text, emission, batch_tokens):
    score = score_sentences(model, text, batch_tokens=batch_tokens)
    lines = np.split(text.tokens, text.line_starts[1:-1])
    assert len(lines) == text.num_lines == 6
    expected = np.concatenate([by_hand(line, emission) for line in lines])
    np.testing.assert_allclose(score.token_log_probs, expected, rtol=1e-12)  # in the order of the text
    assert score.nats_per_token == pytest.approx(-expected.mean(), rel=1e-12)


def test_unknown_words_and_ends_of_lines_count(model, text):
    score = score_text(model, text, "sentence")
    summary = score.summary()
    assert summary["num_tokens"] == 22 + 6
    assert summary["num_unknown"] == int((text.tokens == text.vocabulary.unknown_id).sum()) > 0
    known = text.tokens != text.vocabulary.unknown_id
    assert summary["known_perplexity"] == pytest.approx(math.exp(-score.token_log_probs[known].mean()), rel=1e-12)
    assert summary["perplexity"] == math.exp(summary["nats_per_token"])
    assert summary["log_prob"] == pytest.approx(-summary["nats_per_token"] * 28)


def test_the_protocols_differ(model, text):
    carried, sentence = score_text(model, text, "carried", num_streams=1), score_text(model, text, "sentence")
    assert carried.perplexity != pytest.approx(sentence.perplexity, rel=1e-3)
    with pytest.raises(ValueError, match="protocol must be .*carried.*sentence"):
        score_text(model, text, "both")


def test_an_impossible_word_and_nan_are_errors(text, emission):
    model = HMM(2, num_words=len(text.vocabulary)).double()
    impossible = emission.copy()
    impossible[:, text.tokens[0]] = 0
    impossible /= impossible.sum(1, keepdims=True)
    tables = dict(initial=INITIAL, transition=TRANSITION, emission=impossible)
    model.set_parameters(**{name: torch.tensor(table) for name, table in tables.items()})
    for score in (score_carried, score_sentences):
        with pytest.raises(ValueError, match="observation 1 is impossible"):
            score(model, text)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="tokens have no log-probability"):
        score_sentences(model, text)


def test_a_text_with_other_words(model):
    with pytest.raises(ValueError, match="encoded with a vocabulary of .* words, the model has"):
        score_sentences(model, Text.from_lines([["v", "x", "y", "z"]] * 2))


def test_streams_are_as_many_as_the_text_has_tokens_for(model):
    """Of a short text's many short streams the score would be of starts: best checkpoints would be chosen by those."""
    words = ["a", "b"] * 700
    for num_tokens, streams in ((5, 1), (127, 1), (300, 2), (1400, 10)):
        text = Text.from_lines([words[: num_tokens - 1]], Vocabulary(("<eos>", "<unk>", "a", "b")))
        assert score_carried(model, text).num_streams == streams
    long = Text.from_lines([words * 4], Vocabulary(("<eos>", "<unk>", "a", "b")))
    assert score_carried(model, long).num_streams == 16
    assert score_carried(model, text, num_streams=16).num_streams == 16
