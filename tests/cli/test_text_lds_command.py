"""`pplseq train text-lds` and questions to its runs, on a language that is generated on the spot."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from support.commands import pplseq

from pplseq.cli import main
from pplseq.data.lag_counts import LagCounts
from pplseq.data.lag_files import load_counts, save_counts
from pplseq.data.text import Text, load_corpus
from pplseq.models import HMM
from pplseq.models.text_lds import fit as text_fitting
from pplseq.models.text_lds.program import TextLDS
from pplseq.runs.metrics_log import read_metrics

pytest.importorskip("scipy")


def records(run):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_metrics(run / "metrics.jsonl")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Counts of the training and validation text."""
    folder = tmp_path_factory.mktemp("lds")
    corpus = load_corpus("builtin:generated")
    save_counts(LagCounts.from_text(corpus.train, 7), folder / "train")
    save_counts(LagCounts.from_text(corpus.valid, 7), folder / "valid")
    return folder


FIT = ["--num-states", 6, "--pseudo-counts", 20, "--max-iterations", 6, "--restricted-iterations", 30]


@pytest.fixture(scope="module")
def run(folder):
    pplseq("train", "text-lds", folder / "train", *FIT, "--validation", folder / "valid", "--out", folder / "run")
    return folder / "run"


def texts(*names):
    corpus = load_corpus("builtin:generated")
    return [getattr(corpus, name) for name in names]


def test_report(run, tmp_path):
    """Gains, which are no perplexities, stand in tables."""
    assert pplseq("report", run, "--out", tmp_path).stdout == f"{tmp_path / 'report.html'}\n"
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    last = records(run)[-1]
    assert "text-lds on " in content and f"{last['gain_per_token']:,.6g}" in content and "gain per token" in content


# ---------------------------------------------------------------- fit
def test_fit(run, folder):
    found = records(run)
    assert [record["step"] for record in found] == list(range(7))
    gains = [record["gain_per_token"] for record in found]
    assert np.all(np.diff(gains) > -1e-6) and gains[0] > 0.01
    assert found[-1]["held_out_gain_per_token"] > 0.01
    model = TextLDS.load(run / "best")
    vocabulary = model.vocabulary
    assert type(model) is TextLDS and model.num_states == 6 and vocabulary == texts("train")[0].vocabulary
    # what EM says of its statistics is what the model says of the text, but for pseudo-counts and line ends
    (text,) = texts("train")
    evaluated = json.loads(pplseq("evaluate", run, "builtin:generated", "--split", "train").stdout)
    assert abs(evaluated["gain_per_token"] - gains[-1]) < 0.3 * gains[-1]
    assert evaluated["num_tokens"] == text.num_tokens


@pytest.mark.parametrize("start", ["restricted", "line_search", "paper", "consistent"])
def test_starts(folder, tmp_path, start):
    options = [*FIT, "--start", start, "--max-iterations", 2]
    summary = json.loads(pplseq("train", "text-lds", folder / "train", *options, "--out", tmp_path / "run").stdout)
    assert summary["stop_reason"] == "iterations" and summary["steps"] == 2
    assert "start by" in records(tmp_path / "run")[0]["remarks"][0]


@pytest.mark.parametrize("stop_at", [0, 3])
def test_an_interrupted_fit_resumes_exactly(run, folder, tmp_path, monkeypatch, stop_at):
    evaluate = text_fitting._CountTraining.measure

    def interrupted(self):
        found = evaluate(self)
        if self.progress.step == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    options = [*FIT, "--validation", folder / "valid"]
    with monkeypatch.context() as patch:
        patch.setattr(text_fitting._CountTraining, "measure", interrupted)
        result = pplseq("train", "text-lds", folder / "train", *options, "--out", tmp_path / "run", code=130)
    assert "stopped and saved; continue with" in result.stderr
    assert len(records(tmp_path / "run")) == stop_at + 1
    pplseq("train", "text-lds", "--resume", tmp_path / "run")
    assert records(tmp_path / "run") == records(run)
    for name in ("last", "best"):
        one, two = (load_file(path / name / "model.safetensors") for path in (tmp_path / "run", run))
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_more_iterations_continue_a_finished_fit(folder, tmp_path):
    pplseq("train", "text-lds", folder / "train", *FIT, "--max-iterations", 2, "--out", tmp_path / "run")
    pplseq("train", "text-lds", "--resume", tmp_path / "run", "--max-iterations", 4)
    pplseq("train", "text-lds", folder / "train", *FIT, "--max-iterations", 4, "--out", tmp_path / "whole")
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    again = json.loads(pplseq("train", "text-lds", "--resume", tmp_path / "run", "--max-iterations", 4).stdout)
    assert again["steps"] == 4 and len(records(tmp_path / "run")) == 5


def test_fit_stops_in_time_and_by_patience(folder, tmp_path):
    summary = json.loads(
        pplseq("train", "text-lds", folder / "train", *FIT, "--max-time", "1e-6", "--out", tmp_path / "a", code=1).stdout
    )
    assert (summary["stop_reason"], summary["steps"]) == ("max_time", 0)
    # held-out text that is the training text backwards: learning forward text does it no good
    (text,) = texts("train")
    reverse = Text(text.tokens[::-1].copy(), text.line_starts, text.article_starts, text.vocabulary)
    save_counts(LagCounts.from_text(reverse, 7), tmp_path / "reverse")
    options = ["--validation", tmp_path / "reverse", "--patience", 1, "--max-iterations", 50, "--start", "line_search"]
    summary = json.loads(pplseq("train", "text-lds", folder / "train", *FIT, *options, "--out", tmp_path / "b").stdout)
    assert summary["stop_reason"] in ("patience", "iterations")
    found = records(tmp_path / "b")
    assert summary["best_step"] == max(found, key=lambda r: r["held_out_gain_per_token"])["step"]


def test_from_counts_in_python(folder, run):
    counts = load_counts(folder / "train")
    settings = dict(pseudo_counts=20.0, max_iterations=6, restricted_iterations=30)
    model = TextLDS.from_counts(counts, 6, validation=load_counts(folder / "valid"), **settings)
    best = TextLDS.load(run / "best")
    for name, value in best.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    small = TextLDS.from_counts(counts, 6, dtype="float32", **settings)
    assert small.emission.dtype == torch.float32
    assert small.history.records[-1]["gain_per_token"] == pytest.approx(records(run)[-1]["gain_per_token"], rel=1e-3)


def test_fit_errors(folder, tmp_path, run):
    def message(*arguments, code=2):
        return pplseq("train", "text-lds", *arguments, code=code).stderr

    assert "give the new run a folder with --out" in message(folder / "train")
    assert "counts: " in message(tmp_path / "nothing", "--out", tmp_path / "x")
    assert "validation: " in message(folder / "train", "--validation", tmp_path / "no", "--out", tmp_path / "x")
    assert "already holds a run; continue it with --resume" in message(folder / "train", "--out", run)
    assert "is not empty and holds no run" in message(folder / "train", "--out", folder)
    assert "states cannot change" in message("--resume", run, "--num-states", 3)
    assert "not a run of `pplseq train`" in message("--resume", folder / "train")
    (text,) = texts("test")
    other = Text.from_lines([["a", "b", "a"], ["b", "a"]] * 5)
    save_counts(LagCounts.from_text(other, 2), tmp_path / "other")
    assert "its vocabulary (" in message(
        folder / "train", "--validation", tmp_path / "other", "--out", tmp_path / "x", *FIT
    )
    assert "blocks: 2 blocks need lags 1..3" in message(
        tmp_path / "other", *FIT, "--num-states", 1, "--out", tmp_path / "z"
    )
    assert not (tmp_path / "x" / "last").exists()


def test_a_fit_without_a_checkpoint_does_not_block_its_folder(folder, tmp_path, monkeypatch):
    out = tmp_path / "run"
    bad = pplseq("train", "text-lds", folder / "train", *FIT, "--horizon", 9, "--out", out, code=2).stderr
    assert "horizon" in bad

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(text_fitting, "initial_parameters", interrupt)
        stopped = pplseq("train", "text-lds", folder / "train", *FIT, "--out", out, code=130)
    assert "nothing was saved" in stopped.stderr
    pplseq("train", "text-lds", folder / "train", *FIT, "--max-iterations", 1, "--out", out)
    assert [record["step"] for record in read_metrics(out / "metrics.jsonl")] == [0, 1]


def test_missing_shards_are_told(folder, tmp_path):
    (text,) = texts("train")
    save_counts(LagCounts.from_text(text, 7, shard=(1, 2)), tmp_path / "half")
    fit = ["--num-states", 2, "--max-iterations", 0, "--out"]
    assert (
        "Note: counts: not the whole text was counted: without shard 2/2 of"
        in pplseq("train", "text-lds", tmp_path / "half", *fit, tmp_path / "part").stderr
    )
    assert "Note" not in pplseq("train", "text-lds", folder / "train", *fit, tmp_path / "all").stderr


def test_train_takes_counts(tmp_path):
    message = pplseq("train", "text-lds", "builtin:generated", "--out", tmp_path / "x", code=2).stderr
    assert "counts: " in message and not (tmp_path / "x").exists()


def test_counts_that_changed_do_not_resume(folder, tmp_path):
    counts = load_counts(folder / "valid")
    save_counts(counts, tmp_path / "counts")
    pplseq("train", "text-lds", tmp_path / "counts", *FIT, "--max-iterations", 1, "--out", tmp_path / "run")
    save_counts(load_counts(folder / "train"), tmp_path / "counts")
    assert "no longer those of the run" in pplseq("train", "text-lds", "--resume", tmp_path / "run", code=2).stderr


# ---------------------------------------------------------------- embed
def test_embed(run, tmp_path):
    (text,) = texts("test")
    words = [text.vocabulary.decode(line)[:-1] for line in list(text.lines())[:5]]
    source = tmp_path / "text.txt"
    source.write_text("\n".join(" ".join(line) for line in words) + "\n")
    found = {}
    for suffix in (".npz", ".tsv", ".jsonl"):
        pplseq("query", run, "embed", source, "--out", tmp_path / f"vectors{suffix}")
        found[suffix] = tmp_path / f"vectors{suffix}"
    with np.load(found[".npz"]) as arrays:
        vectors, starts = arrays["embeddings"], arrays["line_starts"]
        assert arrays["words"].tolist() == [word for line in words for word in line]
    assert starts.tolist() == np.cumsum([0, *map(len, words)]).tolist() and vectors.shape == (starts[-1], 6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    lines = [json.loads(line) for line in found[".jsonl"].read_text().splitlines()]
    assert [line["words"] for line in lines] == words
    np.testing.assert_allclose(np.concatenate([line["embeddings"] for line in lines]), vectors, atol=1e-5)
    rows = [row.split("\t") for row in found[".tsv"].read_text().splitlines()]
    assert sum(row == [""] for row in rows) == 5
    np.testing.assert_allclose([[float(v) for v in row[1:]] for row in rows if len(row) > 1], vectors, atol=1e-5)
    stdin = pplseq("query", run, "embed", "-", input=source.read_text()).stdout
    assert stdin == found[".jsonl"].read_text()
    # the line's end is a word too, and its vector is written on demand
    with_end = json.loads(pplseq("query", run, "embed", source, "--eos").stdout.splitlines()[0])
    assert with_end["words"] == [*words[0], "<eos>"] and with_end["embeddings"][0] == lines[0]["embeddings"][0]
    model = TextLDS.load(run / "best")
    vocabulary = model.vocabulary
    ids = [vocabulary.encode([*line, "<eos>"]) for line in words]
    np.testing.assert_allclose(model.embed_tokens(ids)[2][:-1], vectors[starts[2] : starts[3]], atol=1e-5)
    filtered = json.loads(pplseq("query", run, "embed", source, "--kind", "filtered", "--plain").stdout.splitlines()[0])
    expected = model.embed_tokens(ids[:1], kind="filtered", normalize=False)[0][:-1]
    np.testing.assert_allclose(filtered["embeddings"], expected, atol=1e-5)


def test_embed_types(run, tmp_path):
    pplseq("query", run, "types", "--out", tmp_path / "types.npz")
    with np.load(tmp_path / "types.npz") as arrays:
        assert arrays["words"].tolist() == list(TextLDS.load(run / "best").vocabulary)
        np.testing.assert_allclose(np.linalg.norm(arrays["embeddings"], axis=1), 1, atol=1e-5)


def test_embed_errors(run, tmp_path):
    def message(run, *arguments, input=None):
        return pplseq("query", run, "embed", *arguments, code=2, input=input).stderr

    assert "expected a file ending in .npz, .tsv, .jsonl, got 'x.csv'" in message(run, "-", "--out", "x.csv")
    assert "no such run" in message(tmp_path / "no", "-")
    assert "nonsense" in message(run, "-", input="nonsense words\n")  # a vocabulary without <unk> names the word
    assert "empty" in message(run, "-", input="\n")
    hmm = HMM(2, 5)
    hmm.vocabulary = Text.from_lines([["a", "b", "c", "d"]]).vocabulary
    hmm.save(tmp_path / "hmm")
    assert "hmm does not answer 'embed'" in message(tmp_path / "hmm", "-", input="a\n")


# ---------------------------------------------------------------- the rest
def test_pairs(run):
    table = pplseq("query", run, "pairs", "--text", "--num-pairs", 3, "--num-words", 4).stdout.splitlines()
    assert len(table) == 6 and all(" -> " in line for line in table)
    found = [json.loads(line) for line in pplseq("query", run, "pairs", "--num-pairs", 3).stdout.splitlines()]
    assert len(found) == 3 and found[0]["value"] >= found[1]["value"]
    assert all(
        len(pair["right"]) == 6 and set(pair["right"]) <= set(TextLDS.load(run / "best").vocabulary) for pair in found
    )


def test_evaluate(run, tmp_path):
    found = json.loads(pplseq("evaluate", run, "builtin:generated", "--tune-on", "builtin:generated").stdout)
    assert found["perplexity"] < found["unigram_perplexity"] and 0 < found["mixture_weight"] <= 1
    assert found["gain_per_token"] > 0.01 and 0 < found["filter_decay"] < 1
    assert abs(found["gain_per_token"] - found["steady_gain_per_token"]) > 1e-9
    assert float(TextLDS.load(run / "best").mixture_weight) == 0.5  # nothing was written
    assert "give --tune-on" in pplseq("evaluate", run, "builtin:generated", "--save-weight", code=2).stderr


def test_the_tuned_weight_is_kept(folder, tmp_path):
    run = tmp_path / "run"
    pplseq("train", "text-lds", folder / "train", *FIT, "--max-iterations", 1, "--dtype", "float32", "--out", run)
    options = ["--tune-on", "builtin:generated", "--save-weight", "--checkpoint", "last"]
    found = json.loads(pplseq("evaluate", run, "builtin:generated", *options).stdout)
    assert float(TextLDS.load(run / "last").mixture_weight) == pytest.approx(found["mixture_weight"])
    pplseq("train", "text-lds", "--resume", run, "--max-iterations", 2, "--threads", 2)  # the checkpoint is still whole


@pytest.mark.parametrize("form", ["predictor", "filtered"])
def test_export_rnn(run, tmp_path, form):
    pplseq("query", run, "export-rnn", "--form", form, "--out", tmp_path / "rnn.npz")
    model = TextLDS.load(run / "best")
    vocabulary = model.vocabulary
    with np.load(tmp_path / "rnn.npz") as arrays:
        assert arrays["words"].tolist() == list(vocabulary)
        for name, value in model.rnn_weights(form).items():
            np.testing.assert_array_equal(arrays[name], value)
    assert "ending in .npz" in pplseq("query", run, "export-rnn", "--out", tmp_path / "rnn.pt", code=2).stderr


def test_queries(run):
    word = TextLDS.load(run / "best").vocabulary.words[3]
    (answer,) = [
        json.loads(line) for line in pplseq("query", run, "score", input=f"{word} {word}\n").stdout.splitlines()
    ]
    assert len(answer["token_log_probs"]) == 3 and answer["log_prob"] == pytest.approx(sum(answer["token_log_probs"]))
    answer = json.loads(pplseq("query", run, "next-word", "--top", 100, input=f"{word}\n").stdout)
    assert sum(entry["prob"] for entry in answer["next"]) == pytest.approx(1, abs=1e-6)
    options = ["--num-samples", 3, "--length", 4]
    answer = json.loads(pplseq("query", run, "continue", *options, input=f"{word}\n").stdout)
    assert len(answer["continuations"]) == 3 and all(0 < len(row["words"]) <= 4 for row in answer["continuations"])
    ranged = pplseq("query", run, "continue", "--length", "2-4", input=f"{word}\n", code=1).stdout
    assert "length: of a TextLDS the most words alone" in json.loads(ranged)["error"]
    for question in ("filter", "smooth", "decode", "sample", "infill"):
        message = pplseq("query", run, question, input="a\n", code=2).stderr
        assert f"does not answer '{question}'" in message and "no question" not in message


def test_writing_is_whole_or_not_at_all(run, tmp_path, monkeypatch):
    def broken(*parts):
        raise OSError("disk full")

    from pplseq.recipes.text_lds import answers as text_lds_answers

    (tmp_path / "x.tsv").write_text("before")
    monkeypatch.setattr(text_lds_answers, "pairwise", broken)
    assert "disk full" in pplseq("query", run, "types", "--out", tmp_path / "x.tsv", code=1).stderr
    assert (tmp_path / "x.tsv").read_text() == "before"


def test_settings_from_a_file(tmp_path):
    config = tmp_path / "lds.toml"
    config.write_text("num_states = 7\nmax_iterations = 1\npseudo-counts = 20\nupdate_state_noise = false\n")
    ask = ["train", "text-lds", "nowhere", "--out", str(tmp_path / "run"), "--config", str(config)]
    for extra, message in (([], "nowhere"), (["--num-states", "0"], "'--num-states'")):
        result = CliRunner().invoke(main, [*ask, *extra])
        assert result.exit_code == 2 and message in result.stderr
    config.write_text("num_state = 7\n")
    result = CliRunner().invoke(main, ask)
    assert result.exit_code == 2 and "unknown setting 'num_state'" in result.stderr and "'num_states'" in result.stderr
    config.write_text("num_states = 'many'\n")
    assert "states must be a whole number" in CliRunner().invoke(main, ask).stderr
