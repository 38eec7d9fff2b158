"""Posteriors of sentences against the chain's own answers, and the costs of tokens."""

import math

import numpy as np
import pytest
import torch
from support.report_models import WORDS, tiny_model

from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.report import sentence as sentence_module
from pplseq.report.sentence import sentence_posterior, split_sentence, typical_lines
from pplseq.report.summary import token_costs
from pplseq.runs.evaluation import score_text

SENTENCE = ["the", "cat", "a&b", "$x$"]


@pytest.mark.parametrize("name", ["model", "hmm"])
def test_against_the_chain(request, vocabulary, name):
    model = request.getfixturevalue(name)
    posterior = sentence_posterior(model, vocabulary, SENTENCE, top=len(WORDS))
    assert [token.word for token in posterior.tokens] == [*SENTENCE, "<eos>"]
    chain = model.posterior(torch.from_numpy(vocabulary.encode([*SENTENCE, "<eos>"]))[None])
    marginals = chain.marginals().dense(model.num_states)[0]
    path = chain.viterbi()[0][0].tolist()
    for t, token in enumerate(posterior.tokens):
        assert dict(token.states) == pytest.approx({state: float(marginals[t, state]) for state, _ in token.states})
        assert sum(prob for _, prob in token.states) == pytest.approx(1)
        assert token.entropy == pytest.approx(float(torch.special.entr(marginals[t]).sum()))
        # what the model expected is what the surprisal is about
        assert math.log(dict(token.expected)[token.word]) == pytest.approx(-token.surprisal)
        assert sum(dict(token.expected).values()) == pytest.approx(1)
        assert token.path_state == path[t] and token.known
        assert token.bits == pytest.approx(token.surprisal / math.log(2))
    assert posterior.log_prob == pytest.approx(float(chain.log_prob()[0]))
    assert posterior.path_entropy == pytest.approx(float(chain.entropy()[0]))
    assert math.log(posterior.perplexity) == pytest.approx(posterior.nats_per_token)


def test_no_entropy_where_it_would_take_too_much(monkeypatch, model, vocabulary):
    monkeypatch.setattr(sentence_module, "ENTROPY_CELLS", 4)
    assert sentence_posterior(model, vocabulary, SENTENCE).path_entropy is None


def test_unknown_words_are_marked(model, vocabulary):
    posterior = sentence_posterior(model, vocabulary, ["the", "zebra"])
    assert [token.known for token in posterior.tokens] == [True, False, True]
    same = sentence_posterior(model, vocabulary, ["the", "<unk>"])
    assert posterior.log_prob == pytest.approx(same.log_prob)


def test_an_end_that_is_there_is_not_added(model, vocabulary):
    assert len(sentence_posterior(model, vocabulary, ["the", "<eos>"]).tokens) == 2


def test_a_vocabulary_without_special_words():
    model = tiny_model().__class__(3, num_words=3, blocks=[0, 1, 1], hidden_size=2, states_per_block=[1, 2])
    posterior = sentence_posterior(model, Vocabulary(("a", "b", "c")), ["a"])
    assert len(posterior.tokens) == 1 and len(posterior.tokens[0].states) == 1
    with pytest.raises(ValueError, match="'zebra' is not in the vocabulary"):
        sentence_posterior(model, Vocabulary(("a", "b", "c")), ["zebra"])


@pytest.mark.parametrize("sentence", ["", "  ", "\t\n"])
def test_an_empty_sentence(sentence):
    with pytest.raises(ValueError, match="sentence: expected words"):
        split_sentence(sentence)


def test_a_sentence_too_long():
    with pytest.raises(ValueError, match="at most 200 words, got 201"):
        split_sentence("x " * 201)
    assert split_sentence(" a  b ") == ["a", "b"]


def test_typical_lines(vocabulary):
    good, other = ["the", "cat"] * 5, ["cat", "cat"] * 5
    text = Text.from_lines([["the"], ["<unk>"] * 10, other, good, [], ["cat"] * 60, good], vocabulary)
    nats = np.full(text.num_tokens, -2.0)
    start = text.line_starts[2]
    nats[start : start + 11] = -2.5
    assert typical_lines(text, nats, 2) == [[*good, "<eos>"], [*other, "<eos>"]]
    assert typical_lines(Text.from_lines([["the"], []], vocabulary), np.zeros(3)) == [["the", "<eos>"]]
    assert typical_lines(Text.from_lines([["the"] * 300], vocabulary), np.zeros(301)) == []


def test_costs(model, text):
    score = score_text(model, text, "sentence")
    counts = np.arange(len(WORDS))  # "cat" is the most frequent
    costs = token_costs(text, score.token_log_probs, counts, num_words=100)
    for parts in (costs.kinds, costs.words):
        assert sum(cost.count for cost in parts) == text.num_tokens
        assert sum(cost.share_of_nats for cost in parts) == pytest.approx(1)
        assert sum(cost.nats * cost.count for cost in parts) == pytest.approx(-score.log_prob)
    assert [cost.name for cost in costs.kinds] == ["<eos>", "<unk>", "words 1 to 10 by frequency"]
    assert costs.bits.mean() * math.log(2) == pytest.approx(score.nats_per_token)
    some = next(cost for cost in costs.words if cost.name == "cat")
    assert some.nats == pytest.approx(-score.token_log_probs[text.tokens == WORDS.index("cat")].mean())
    totals = [cost.nats * cost.count for cost in costs.words]
    assert totals == sorted(totals, reverse=True)


def test_costs_by_frequency():
    vocabulary = Vocabulary(tuple(f"w{i}" for i in range(150)))
    text = Text.from_lines([[f"w{i}" for i in range(150)]], vocabulary)
    costs = token_costs(text, np.full(150, -1.0), np.arange(150))
    assert [cost.count for cost in costs.kinds] == [10, 90, 50]
    assert [cost.name for cost in costs.kinds][1:] == ["words 11 to 100 by frequency", "words 101 to 150 by frequency"]
