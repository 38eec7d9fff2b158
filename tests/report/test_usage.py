"""Expected visits against a sum over lines, one chain each."""

import numpy as np
import pytest
import torch
from support.report_models import WORDS, tiny_model

from pplseq.data.text import Text
from pplseq.report import usage as usage_module
from pplseq.report.usage import first_lines, state_usage, written_text


def by_line(model, text):
    """(N, Z) p(z_t | line), line by line."""
    rows = []
    for line in text.lines():
        chain = model.posterior(torch.from_numpy(line.astype(np.int64))[None])
        rows.append(chain.marginals().dense(model.num_states)[0])
    return torch.cat(rows).numpy()


@pytest.mark.parametrize("name", ["model", "hmm"])
def test_sentences_are_summed(request, text, name):
    model = request.getfixturevalue(name)
    usage = state_usage(model, text, protocol="sentence")
    expected = by_line(model, text)
    np.testing.assert_allclose(usage.visits, expected.sum(0), atol=1e-8)
    np.testing.assert_allclose(usage.best_prob, expected.max(1), atol=1e-8)
    np.testing.assert_array_equal(usage.best_state, expected.argmax(1))
    entropy = -(expected * np.log(np.maximum(expected, 1e-300))).sum(1)
    np.testing.assert_allclose(usage.entropy, entropy, atol=1e-8)
    ends = text.tokens == 0
    if name == "model":  # resets at the end of each line
        np.testing.assert_allclose(usage.restarts, expected[ends][:-1].sum(0), atol=1e-8)
        assert usage.followed[:-1].all()
    else:
        assert usage.restarts.sum() == 0
        np.testing.assert_array_equal(usage.followed, ~ends)
    np.testing.assert_allclose(usage.leaving, expected[~ends].sum(0), atol=1e-8)
    assert not usage.followed[-1]


def test_carried_is_the_whole_text_where_it_is_one_segment(monkeypatch, text):
    model = tiny_model(reset_id=None)
    monkeypatch.setattr(usage_module, "NUM_STREAMS", 1)
    usage = state_usage(model, text)
    chain = model.posterior(torch.from_numpy(text.tokens.astype(np.int64))[None])
    assert usage.protocol == "carried"
    np.testing.assert_allclose(usage.visits, chain.marginals().dense(12)[0].sum(0).numpy(), atol=1e-8)
    assert usage.followed[:-1].all() and not usage.followed[-1]


@pytest.mark.parametrize("protocol", ["sentence", "carried"])
def test_small_batches_change_nothing_that_they_should_not(monkeypatch, model, text, protocol):
    whole = state_usage(model, text, protocol=protocol)
    monkeypatch.setattr(usage_module, "CELLS_AT_ONCE", 1)
    parts = state_usage(model, text, protocol=protocol)
    assert parts.visits.sum() == pytest.approx(text.num_tokens)
    if protocol == "sentence" and parts.protocol == "sentence":
        np.testing.assert_allclose(parts.visits, whole.visits, atol=1e-8)


def test_a_line_too_long_for_one_chain_is_carried(monkeypatch, model, vocabulary):
    monkeypatch.setattr(usage_module, "CELLS_AT_ONCE", 1)
    text = Text.from_lines([["the", "cat"] * 40], vocabulary)
    usage = state_usage(model, text)
    assert usage.protocol == "carried" and usage.visits.sum() == pytest.approx(81)


def test_effective_states():
    shares = np.array([4.0, 4.0, 0.0])
    usage = usage_module.Usage(*[shares] * 3, *[np.zeros(8)] * 4, "sentence")
    assert usage.effective_states == pytest.approx(2.0)


def test_a_model_that_writes_nothing(vocabulary):
    from pplseq.models import HMM

    silent = np.eye(len(WORDS))[[0, 0]]
    model = HMM(2, num_words=len(WORDS)).set_parameters(emission=silent)
    with pytest.raises(ValueError, match="writes nothing but <eos>"):
        written_text(model, vocabulary)


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 50, 10_000])
def test_first_lines(text, num_tokens):
    part = first_lines(text, num_tokens)
    assert part.num_tokens <= max(num_tokens, 1)
    np.testing.assert_array_equal(part.tokens, text.tokens[: part.num_tokens])
    assert part.line_starts[-1] == part.num_tokens and part.article_starts[-1] == part.num_lines
    rest = text.lengths[part.num_lines :]
    assert len(rest) == 0 or part.num_tokens + rest[0] > num_tokens


def test_a_first_line_that_is_too_long_is_cut(vocabulary):
    part = first_lines(Text.from_lines([["cat"] * 9], vocabulary), 4)
    assert part.num_tokens == 4 and part.num_lines == 1


def test_written_text_is_the_models_own(model, vocabulary):
    first, second = (written_text(model, vocabulary, num_lines=5, length=6) for _ in range(2))
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert first.num_lines == 5 and first.lengths.max() <= 7 and first.vocabulary.words == WORDS
