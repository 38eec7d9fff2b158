"""`pplseq compare-streams`, models of every kind as sources, pages and pictures."""

import json
import math
import re

import numpy as np
import pytest
from support.commands import pplseq

from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- comparing


def test_ratios_of_two_sources(general, personal):
    unigram = general.replace("ngram:", "unigram:")
    *lines, summary = lines_of(pplseq("compare-streams", general, unigram, "--order", 3, "--stream", personal))
    models = {}
    for line in lines:
        assert line["token_ratios"] == pytest.approx(np.subtract(line["a"], line["b"]).tolist(), abs=2e-6)
        assert (
            line["log_likelihood_ratio"] == pytest.approx(sum(line["token_ratios"]), abs=1e-4)
            and "log_odds" not in line
        )
        for name in "ab":
            models.setdefault(name, []).extend(line[name])
    assert summary["num_tokens"] == len(models["a"])
    for name, title in (("a", "3-gram, general.txt"), ("b", "unigram, general.txt")):
        assert summary[name]["name"] == title
        assert summary[name]["perplexity"] == pytest.approx(math.exp(-np.mean(models[name])), rel=1e-5)
        assert summary[name]["mean_prob"] == pytest.approx(np.exp(models[name]).mean(), abs=1e-6)
    assert summary["mean_log_likelihood_ratio"] == pytest.approx(np.mean(models["a"]) - np.mean(models["b"]), abs=1e-5)


def test_a_personal_model_is_compared_as_it_stands(general, personal, whole):
    command = ("compare-streams", whole[1], general, "--order", 3, "--stream", "-")
    text = "my cat sees my fish here\nthe dog likes a bird\n"
    *lines, summary = lines_of(pplseq(*command, input=text))
    assert lines == lines_of(pplseq(*command, input=text))[:-1]  # nothing was kept
    mine, general_line = lines
    assert mine["log_likelihood_ratio"] > 0 > general_line["log_likelihood_ratio"]
    assert len(mine["log_odds"]) == len(mine["words"]) and summary["a"]["name"] == "PROPS, state"
    learning = lines_of(pplseq(*command, "--learn", input=text))
    assert learning[0]["a"][0] == mine["a"][0] and learning[1]["a"] != general_line["a"]


def test_a_model_against_itself(general):
    line, summary = lines_of(pplseq("compare-streams", general, general, input="the cat\n"))
    assert line["token_ratios"] == [0.0] * 3 and summary["a"]["name"].endswith("(a)")


def test_a_source_of_the_stream_takes_the_other_words(general):
    first, _ = lines_of(pplseq("compare-streams", general, "uniform", input="the cat\n"))
    second, _ = lines_of(pplseq("compare-streams", "uniform", general, input="the cat\n"))
    assert second["a"] == first["b"] and second["b"] == first["a"]
    assert "brings no words" in pplseq("compare-streams", "uniform", "cache", code=2).stderr


VOCABULARY = Vocabulary(("<eos>", "<unk>", "my", *"cat dog bird fish sees likes finds here".split()))


@pytest.fixture(params=["vlhmm", "lstm"])
def saved(request, tmp_path):
    """A model's folder, and the model."""
    import torch

    from pplseq.baselines import LSTM
    from pplseq.models import VLHMM

    torch.manual_seed(0)
    if request.param == "vlhmm":
        model = VLHMM(8, num_words=len(VOCABULARY), blocks=torch.arange(len(VOCABULARY)) % 2, hidden_size=4, reset_id=0).eval()
        model.vocabulary = VOCABULARY
    else:
        model = LSTM(VOCABULARY, 5).eval()
    model.save(tmp_path / "model")
    return tmp_path / "model", model


def test_saved_models_are_sources(saved, personal_lines, personal):
    folder, model = saved
    lines = lines_of(pplseq("personalize", folder, "--source", "cache", "--stream", personal))
    text = Text.from_lines([line.split() for line in personal_lines], VOCABULARY)
    if model.name == "lstm":
        expected = model.log_prob(text)
    else:
        import torch

        expected = model.posterior(torch.from_numpy(text.tokens.astype("int64"))[None]).token_log_probs()[0].detach()
    found = [value for line in lines for value in line["sources"][f"{model.name}, model"]]
    assert found == pytest.approx(expected.tolist(), abs=1e-4)


def test_saved_models_go_on_exactly(saved, personal_lines):
    whole = pplseq("personalize", saved[0], input="\n".join(personal_lines)).stdout
    command = ("personalize", saved[0], "--state", saved[0].parent / "state")
    parts = [pplseq(*command, input="\n".join(part)).stdout for part in (personal_lines[:11], personal_lines[11:])]
    assert "".join(parts) == whole


def test_corpora_are_sources():
    line, _ = lines_of(pplseq("compare-streams", "ngram:builtin:generated", "uniform", input="sumo tiru kapu\n"))
    assert line["words"] == ["sumo", "tiru", "kapu", "<eos>"]
    assert line["b"] == pytest.approx([-math.log(61)] * 4, abs=1e-6) and sum(line["a"]) > sum(line["b"])


def test_models_of_hugging_face_read_given_words(general, monkeypatch):
    from pplseq.sources import HuggingFaceSource, UniformSource

    asked = []

    def from_pretrained(name, vocabulary):
        asked.append(name)
        return UniformSource(len(vocabulary))

    monkeypatch.setattr(HuggingFaceSource, "from_pretrained", from_pretrained)
    words = general.replace("ngram:", "words:")
    (line,) = lines_of(pplseq("personalize", words, "--source", "hf:some/model", input="the cat\n"))
    assert list(line["sources"]) == ["some/model"] == asked
    line, _ = lines_of(pplseq("compare-streams", "hf:other", general, input="the cat\n"))
    assert asked[1:] == ["other"] and sum(line["a"]) < sum(line["b"])
    assert "words only" in pplseq("compare-streams", words, general, code=2).stderr


# ---- pages


def test_pages(general, personal, whole, tmp_path, options):
    page = tmp_path / "new" / "page.html"
    show = ("--html", page, "--max-words", 20)
    pplseq("personalize", general, *options, "--stream", personal, *show, "--title", "<mine>")
    text = page.read_text()
    assert "&lt;mine&gt;" in text and "Log-likelihood ratio" in text and "Log-odds" in text
    assert text.count("title=") <= 2 * 20
    numbers = re.findall(r'<p class="stream" dir="auto"><span class="n">(\d+)</span>', text)
    assert numbers == [*"28 29 30".split()] * 2
    page.unlink()
    pplseq("compare-streams", general, whole[1], "--stream", personal, *show)
    assert "PROPS, state" in page.read_text()
