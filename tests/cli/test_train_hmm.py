"""`pplseq train hmm`: EM and gradient, on a language whose parameters are known."""

import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from support.commands import pplseq

from pplseq.cli import main
from pplseq.data.builtin import generated_language
from pplseq.data.text import load_corpus
from pplseq.models import HMM
from pplseq.runs import fits
from pplseq.runs.evaluation import score_sentences
from pplseq.runs.metrics_log import read_metrics


def records(run):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_metrics(run / "metrics.jsonl")]


EM = ["train", "hmm", "builtin:generated", "--num-states", "12", "--epochs", "8", "--threads", "1"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "em"
    pplseq(*EM, "--out", run)
    return run


def test_em_comes_close_to_the_truth(tmp_path):
    result = pplseq(*EM, "--epochs", 40, "--out", tmp_path / "run")
    _, truth = generated_language()
    text = load_corpus("builtin:generated").valid
    model = HMM(12, 61)
    model.set_parameters(**{name: truth[name] for name in ("initial", "transition", "emission")})
    best_possible = score_sentences(model, text).nats_per_token
    assert best_possible - 0.01 < json.loads(result.stdout)["nats_per_token"] < best_possible + 0.12


def test_the_likelihood_rises(fitted):
    values = [record["nats_per_token"] for record in records(fitted) if record["kind"] == "train"]
    assert len(values) == 8 and np.all(np.diff(values) < 1e-3) and values[-1] < values[0] - 0.3


@pytest.mark.parametrize("stop_at", [1, 5])
def test_em_resumes_exactly(fitted, tmp_path, monkeypatch, stop_at):
    step = fits.EMTraining.step

    def interrupted(self):
        if self.progress.step == stop_at - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(fits.EMTraining, "step", interrupted)
        pplseq(*EM, "--out", tmp_path / "run", code=130)
    pplseq("train", "--resume", tmp_path / "run")
    assert records(tmp_path / "run") == records(fitted)
    one, two = (load_file(run / "last" / "model.safetensors") for run in (tmp_path / "run", fitted))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_em_stops_in_time(tmp_path):
    summary = json.loads(pplseq(*EM, "--max-time", "1e-6", "--out", tmp_path / "run", code=1).stdout)
    assert (summary["stop_reason"], summary["steps"]) == ("max_time", 0)


def test_nan_in_em(tmp_path, monkeypatch):
    def poisoned(self, statistics):
        with torch.no_grad():
            self.initial_logits.fill_(math.nan)
        return []

    monkeypatch.setattr(HMM, "maximize", poisoned)
    result = pplseq(*EM, "--out", tmp_path / "run", code=1)
    assert "validation gives nan nats per token at step 1" in result.stderr
    weights = load_file(tmp_path / "run" / "last" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())


@pytest.mark.parametrize("protocol", ["carried", "sentence"])
def test_gradient(tmp_path, protocol):
    options = ["--method", "sgd", "--lr", "0.1", "--epochs", "1", "--protocol", protocol, "--log-interval", "5"]
    pplseq(*EM[:5], *options, "--out", tmp_path / "run")
    values = [record["nats_per_token"] for record in records(tmp_path / "run") if record["kind"] == "train"]
    assert values[-1] < values[0] - 0.3


def test_evaluate_and_query_a_dense_model(fitted):
    lines = pplseq("evaluate", fitted).stdout.splitlines()
    assert [json.loads(line)["protocol"] for line in lines] == ["carried", "sentence"]
    word = (fitted / "best" / "vocab.txt").read_text().split()[1]
    for question in "score filter smooth decode sample next-word infill continue".split():
        text = f"{word} _\n" if question == "infill" else f"{word} {word}\n"
        result = CliRunner().invoke(main, ["query", str(fitted), question], input=text)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["line"] == 1


def test_a_concentration_below_one_is_refused(tmp_path):
    command = ["train", "hmm", "builtin:generated", "--concentration", "0.5", "--out", str(tmp_path / "r")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2 and "concentration must be at least 1" in result.output
