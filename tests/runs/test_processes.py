"""Several processes that train one model: the numbers of one process, checkpoints for any number, and one that is killed."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.shared_training import learn

import pplseq
from pplseq.runs.checkpoint import TRAINING
from pplseq.runs.metrics_log import read_metrics
from pplseq.runs.processes import Processes, asked_for, is_first
from pplseq.runs.status import run_status

TESTS = Path(__file__).parents[1]


def together(folder, count, epochs, resume=False, dies_at=0, resets=True):
    """Exit codes and what was said on stderr, of so many processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    common = os.environ | dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count), PYTHONPATH=path)
    how = "resume" if resume else "new" if resets else "without resets"
    script = str(TESTS / "support" / "shared_training.py")
    command = [sys.executable, script, str(folder), str(epochs), how, str(dies_at)]
    own = [common | {"RANK": str(rank)} for rank in range(count)]
    run = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for environment in own]
    said = [process.communicate(timeout=240)[1] for process in run]
    return [process.returncode for process in run], said


def checkpoint(folder):
    return {name: value for name, value in TRAINING.read(folder / "last")[1].items() if not name.startswith("random")}


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    """An epoch of two processes, and another one of one that goes on with it, are two epochs of one process."""
    learn(tmp_path / "one", 2)
    codes, said = together(tmp_path / "two", 2, 1)
    assert codes == [0, 0], said
    learn(tmp_path / "two", 2, resume=True)
    torch.testing.assert_close(checkpoint(tmp_path / "two"), checkpoint(tmp_path / "one"), rtol=1e-7, atol=1e-9)
    one, two = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [record["step"] for record in one] == [record["step"] for record in two]
    for a, b in zip(one, two, strict=True):
        assert a["nats_per_token"] == pytest.approx(b["nats_per_token"], rel=1e-9)
    learn(tmp_path / "three", 1)
    codes, said = together(tmp_path / "three", 2, 2, resume=True)  # and the other way round
    assert codes == [0, 0], said
    torch.testing.assert_close(checkpoint(tmp_path / "three"), checkpoint(tmp_path / "one"), rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_two_processes_learn_topics_without_resets(tmp_path):
    """Steps but the first of a stream ask nothing of how a text starts, and none how long a topic is kept."""
    learn(tmp_path / "one", 2, resets=False)
    codes, said = together(tmp_path / "two", 2, 2, resets=False)
    assert codes == [0, 0], said
    torch.testing.assert_close(checkpoint(tmp_path / "two"), checkpoint(tmp_path / "one"), rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_a_killed_process_ends_the_others(tmp_path):
    codes, said = together(tmp_path / "run", 2, 3, dies_at=12)
    assert codes[0] not in (0, 9) and codes[1] == 9
    assert "another process ended" in said[0] and "--resume" in said[0]
    tensors = checkpoint(tmp_path / "run")  # whole
    assert tensors and all(value.isfinite().all() for value in tensors.values() if value.is_floating_point())
    assert run_status(tmp_path / "run")["status"] == "failed"
    learn(tmp_path / "run", 3, resume=True)
    learn(tmp_path / "one", 3)
    torch.testing.assert_close(checkpoint(tmp_path / "run"), checkpoint(tmp_path / "one"), rtol=1e-7, atol=1e-9)


def started_together(*arguments):
    """What the command prints in each of two processes that torchrun would start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = os.environ | dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", PYTHONPATH=str(TESTS.parent))
    command = [sys.executable, "-m", "pplseq", *map(str, arguments)]
    run = [
        subprocess.Popen(command, env=common | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    return [(*process.communicate(timeout=240), process.returncode) for process in run]


@pytest.mark.slow
def test_two_processes_evaluate_as_one(tmp_path):
    model, _ = learn(tmp_path / "run", 1)
    (tmp_path / "text.txt").write_text("w1 w2 w3\nw4\nw0 w5 w6 w1\n" * 5)
    model.save(tmp_path / "model")
    asked = "evaluate", tmp_path / "model", tmp_path / "text.txt", "--per-token", tmp_path / "tokens.tsv"
    alone = pplseq.evaluate(tmp_path / "model", tmp_path / "text.txt")
    (said, _, code), (nothing, remarks, other) = started_together(*asked)
    assert (code, other, nothing, remarks) == (0, 0, "", "")
    for one, record in zip(alone, map(json.loads, said.splitlines()), strict=True):
        assert record["num_tokens"] == one["num_tokens"]
        assert record["log_prob"] == pytest.approx(one["log_prob"], rel=1e-6)  # float32
    assert len((tmp_path / "tokens.tsv").read_text().splitlines()) == 1 + alone[0]["num_tokens"]


def test_several_processes_do_not_share_standard_input(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    pplseq.VLHMM(2, num_words=3).save(tmp_path / "model")
    with pytest.raises(ValueError, match="DATA: several processes cannot share standard input"):
        pplseq.evaluate(tmp_path / "model", "-")
    pplseq.LDS(2, 1).save(tmp_path / "lds")
    with pytest.raises(ValueError, match="lds is used in one process, without torchrun"):
        pplseq.evaluate(tmp_path / "lds", "table.csv")


def test_shares_are_all_rows_once(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert asked_for() == 1 and is_first() and Processes().share(5) == slice(0, 5)
    for count in (1, 2, 3, 7):
        rows = []
        for rank in range(count):
            one = Processes()
            one.rank, one.count = rank, count
            rows += range(5)[one.share(5)]
        assert rows == list(range(5))
