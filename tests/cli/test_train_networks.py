"""`pplseq train lstm | awd-lstm | ff | rnn | hmm-rnn`, and what the other commands do with the run."""

import json

import pytest
from support.commands import pplseq

from pplseq.baselines import NeuralLanguageModel

SMALL = ["builtin:generated", "--hidden-size", "8", "--epochs", "1", "--validate-per-epoch", "1", "--threads", "1"]


@pytest.fixture(scope="module")
def lstm(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "lstm"
    pplseq("train", "lstm", *SMALL, "--num-layers", 1, "--lr", 0.01, "--epochs", 2, "--out", run)
    return run


@pytest.mark.parametrize("kind", ["ff", "rnn", "awd-lstm", "hmm-rnn"])
def test_trained_and_evaluated(kind, tmp_path):
    more = {"ff": ["--order", 3], "awd-lstm": ["--num-layers", 2, "--width", 12, "--weight-dropout", 0.2]}.get(kind, [])
    summary = json.loads(pplseq("train", kind, *SMALL, *more, "--lr", 0.01, "--out", tmp_path / "run").stdout)
    scores = pplseq("evaluate", tmp_path / "run", "--split", "valid", "--threads", 1).stdout.splitlines()
    carried = json.loads(scores[0])
    assert carried["protocol"] == "carried"
    assert carried["nats_per_token"] == pytest.approx(summary["nats_per_token"], abs=1e-6)
    assert carried["perplexity"] < 55  # of 61 words
    model = NeuralLanguageModel.load(tmp_path / "run" / "best")
    assert model.name == kind and model.hidden_size == 8 and getattr(model, "order", 3) == 3


def test_resumes_and_keeps_its_defaults(lstm, tmp_path):
    pplseq("train", "lstm", *SMALL, "--num-layers", 1, "--lr", 0.01, "--out", tmp_path / "run")
    pplseq("train", "--resume", tmp_path / "run", "--epochs", 2)
    one, two = (NeuralLanguageModel.load(run / "last").state_dict() for run in (lstm, tmp_path / "run"))
    assert all(one[name].equal(two[name]) for name in one)
    assert "dropout = 0.3" in (lstm / "config.toml").read_text()


def test_questions(lstm):
    words = "w1 w2"
    vocabulary = NeuralLanguageModel.load(lstm / "best").vocabulary
    words = " ".join(vocabulary.words[2:4])
    answer = json.loads(pplseq("query", lstm, "score", input=words).stdout)
    assert answer["words"] == [*words.split(), vocabulary.eos] and answer["log_prob"] < 0
    following = json.loads(pplseq("query", lstm, "next-word", "--top", 3, input=words).stdout)["next"]
    assert len(following) == 3 and following[0]["prob"] >= following[1]["prob"]
    gap = json.loads(pplseq("query", lstm, "score", "--gap", "_", input="_ " + words, code=1).stdout)
    assert "cannot read over a missing word" in gap["error"]
    assert "a network has no states" in pplseq("query", lstm, "smooth", input=words, code=2).stderr


def test_report(lstm, tmp_path):
    assert pplseq("report", lstm, "--out", tmp_path).stdout == f"{tmp_path / 'report.html'}\n"
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>lstm on builtin:generated</h1>" in content and "<svg" in content and "<script" not in content
    best = json.loads(pplseq("info", lstm, "--json").stdout)["best"]
    assert f"{best['perplexity']:,.6g}" in content and "<b>Hidden size</b>" in content
    assert "sentence" in pplseq("report", lstm, "--sentence", "a", code=2).stderr.lower()


@pytest.mark.parametrize(
    ("model", "flag", "message"),
    [
        ("lstm", "--num-states", "vlhmm, hmm, text-lds; lstm does not read it, leave it out"),
        ("ff", "--num-layers", "--num-layers is a setting of lstm, awd-lstm; ff does not read it"),
        ("hmm", "--outputs", "iohmm, lds, which learn from tables (iohmm without --inputs is the HMM of numbers)"),
        ("hmm", "--num-blocks", "--num-blocks is a setting of vlhmm; hmm does not read it"),
        ("vlhmm", "--order", "--order is a setting of ff; vlhmm does not read it"),
    ],
)
def test_flags_of_other_models_are_refused(tmp_path, model, flag, message):
    assert message in pplseq("train", model, "builtin:generated", flag, 3, "--out", tmp_path / "run", code=2).stderr
    assert not (tmp_path / "run").exists()
