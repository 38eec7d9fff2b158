"""The page: complete, well-formed, self-contained, and safe against its own words."""

import copy
import re
from html.parser import HTMLParser

import pytest
import torch
from support.report_models import WORDS, records, tiny_model

from pplseq.data.text import Text
from pplseq.report.markup import escape, number, percent, shortened
from pplseq.report.page import render_page
from pplseq.report.strip import LINE_WIDTH, sentence_strip
from pplseq.report.summary import summarise

VOID = {"meta"}


class Checker(HTMLParser):
    """Balanced tags; collects their names, attributes and the text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], set(), [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def report(model, vocabulary, text):
    return summarise(
        model,
        vocabulary,
        text=text,
        records=records(),
        settings={"data": "/tmp/<b>folder</b>/text.txt", "protocol": "sentence", "lr": 0.003},
        sentences=['the cat <img src="x" onerror="alert(1)"> $x$', "שלום " + " ".join(WORDS)],
    )


def check_page(report):
    page = render_page(report)
    checked = Checker(page)
    assert checked.tags.isdisjoint({"script", "img", "link", "iframe", "object", "b-b", "i-i"})
    names = {name for name, _ in checked.attributes}
    assert names.isdisjoint({"src", "srcset", "data", "xlink:href"})
    assert all(re.fullmatch(r"#s\d+", value) for name, value in checked.attributes if name == "href")  # the contents
    assert not any(name.startswith("on") for name in names)
    assert "http:" not in page and "https:" not in page and "url(" not in page and "@import" not in page
    assert "nan" not in re.sub(r"[a-z-]*nan[a-z]+", "", page.lower())
    return page, checked


def test_the_page_is_whole_safe_and_self_contained(report):
    page, checked = check_page(report)
    visible = "".join(checked.text)
    for heading in ("The run", "Learning", "Sentences", "States", "Blocks", "Perplexity of tokens", "Settings"):
        assert heading in visible
    assert "<script>alert(1)</script>" in visible and "<script" not in page
    assert page.count("</style>") == 1 and page.count("<title>vlhmm on text.txt</title>") == 1
    assert "<i>held-out</i> text" in visible
    assert "best validation perplexity, carried" in visible and "9.49" in visible  # exp(2.25)
    for score in report.scores:
        assert f"{score.perplexity:,.2f}" in visible
    assert 'class="word unknown"' in page and "prefers-color-scheme: dark" in page


def test_the_same_report_gives_the_same_page(report):
    assert render_page(report) == render_page(report)


def test_every_token_of_a_sentence_is_shown_with_its_numbers(report):
    drawn = sentence_strip(report.groups, report.sentences[0])
    for token in report.sentences[0].tokens:
        assert f'<div class="value">{token.bits:.1f}</div>' in drawn and f"{token.surprisal:.3f}" in drawn
        for state, prob in token.states[:2]:
            assert f"{state}" in drawn and f"height:{prob:.1%}" in drawn


def test_a_long_sentence_is_broken_into_lines(model, vocabulary, report):
    from pplseq.report.sentence import sentence_posterior

    posterior = sentence_posterior(model, vocabulary, ["cat"] * 60)
    drawn = sentence_strip(report.groups, posterior)
    lines = drawn.count('<div class="strip">')
    assert lines >= 61 * 61 / LINE_WIDTH and drawn.count('class="stack"') == 61 + lines


def test_without_text_and_records(model, vocabulary):
    report = summarise(model, vocabulary, notes=["the <corpus> is gone"])
    page, checked = check_page(report)
    visible = "".join(checked.text)
    assert report.written and report.scores == () and report.costs is None
    assert "the <corpus> is gone" in visible and "No course of training was recorded" in visible
    assert "No perplexity is known" in visible and "that the model wrote itself" in visible


@pytest.mark.parametrize("lines", [records((20,), validation=False), records((20,))])
def test_with_few_records(model, vocabulary, text, lines):
    page, _ = check_page(summarise(model, vocabulary, text=text, records=lines))
    assert ("No validation was recorded." in page) == (len(lines) == 1)


def test_the_recorded_protocol_comes_before_the_settings(hmm, vocabulary, text):
    sentence = [record | {"protocol": "sentence"} for record in records()]
    for lines, settings, first in (
        (sentence, {"protocol": "carried"}, "sentence"),
        ([], {"protocol": "sentence"}, "sentence"),
        (records(), {"protocol": "sentence"}, "carried"),
        ([], {}, "carried"),
    ):
        report = summarise(hmm, vocabulary, text=text, records=lines, settings=settings)
        assert report.scores[0].protocol == report.usage.protocol == first
        assert f"words before), {first} protocol" in render_page(report)


def test_a_model_without_blocks(hmm, vocabulary, text):
    report = summarise(hmm, vocabulary, text=text, records=records(), sentences=["the cat"])
    page, _ = check_page(report)
    assert "Transitions between states" in page and "Next state" in page and "tree" not in "".join(page.split("<p")[:3])


def test_texts_with_little_in_them(vocabulary):
    for lines in ([["the"]], [[], [], ["cat"]]):
        report = summarise(tiny_model(), vocabulary, text=Text.from_lines(lines, vocabulary))
        check_page(report)


def test_one_state_a_block(vocabulary, text):
    model = tiny_model(states_per_block=[1, 1, 1, 9])
    report = summarise(model, vocabulary, text=text, sentences=["the cat"])
    assert [len(token.states) for token in report.sentences[0].tokens] == [1, 3, 1]
    check_page(report)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["model", "hmm"])
def test_a_model_on_a_gpu(request, vocabulary, text, name):
    model = copy.deepcopy(request.getfixturevalue(name))
    here, there = (
        summarise(model.to(device), vocabulary, text=text, sentences=["the cat"]) for device in ("cpu", "cuda")
    )
    assert there.usage.visits == pytest.approx(here.usage.visits)
    assert there.transitions.model == pytest.approx(here.transitions.model)
    assert there.sentences[0].log_prob == pytest.approx(here.sentences[0].log_prob)
    check_page(there)


def test_models_without_words_are_refused(vocabulary):
    from pplseq.models import HMM

    with pytest.raises(ValueError, match="needs a model of words"):
        summarise(HMM(2, num_features=3), vocabulary)


def test_a_text_of_another_vocabulary(model, vocabulary):
    other = Text.from_lines([["a", "b"]])
    with pytest.raises(ValueError, match="the model has 12 words, the vocabulary 3"):
        summarise(model, other.vocabulary, text=other, sentences=["a"])
    with pytest.raises(ValueError, match="encoded with a vocabulary of 3 words"):
        summarise(model, vocabulary, text=other)


def test_too_few_tokens(model, vocabulary):
    with pytest.raises(ValueError, match="num_tokens must be at least 2, got 1"):
        summarise(model, vocabulary, num_tokens=1)


def test_the_text_is_cut_to_the_tokens_asked_for(model, vocabulary, text):
    report = summarise(model, vocabulary, text=text, num_tokens=40)
    assert report.num_tokens <= 40 and report.text_is_cut and "in whole lines" in render_page(report)


def test_markup():
    assert escape("<a href='x'>&\"\x00\u202e") == "&lt;a href=&#x27;x&#x27;&gt;&amp;&quot;\ufffd\ufffd"
    assert (number(9.876), number(123.45), number(12345.6), number(float("inf"))) == ("9.88", "123.5", "12,346", "∞")
    assert (percent(1.0), percent(0.12), percent(0.012)) == ("100%", "12%", "1.2%")
    assert shortened("abcdef", 4) == "abc…" and shortened("abcd", 4) == "abcd"


def test_topics_have_a_strip_and_their_words(vocabulary, text):
    model = tiny_model(transition="hierarchical", num_topics=3)
    model.vocabulary, model.is_fitted = vocabulary, True
    report = summarise(model, vocabulary, text=text)
    page, _ = check_page(report)
    assert "Topics</h2>" in page and "Topics along the text" in page
    assert report.topics.probs.sum(1) == pytest.approx(1.0) and report.topics.shares.sum() == pytest.approx(1.0)
    assert sum(report.topics.sizes) == text.num_tokens
