"""Several processes that train one model: the numbers of one process, checkpoints for any number, and one that is killed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.shared_training import learn

from pplseq.runs.checkpoint import TRAINING
from pplseq.runs.metrics_log import read_metrics
from pplseq.runs.processes import Processes, asked_for, is_first
from pplseq.runs.status import run_status

TESTS = Path(__file__).parents[1]


def together(folder, count, epochs, resume=False, dies_at=0):
    """Exit codes and what was said on stderr, of so many processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    common = os.environ | dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count), PYTHONPATH=path)
    script = str(TESTS / "support" / "shared_training.py")
    command = [sys.executable, script, str(folder), str(epochs), "resume" if resume else "new", str(dies_at)]
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
def test_a_killed_process_ends_the_others(tmp_path):
    codes, said = together(tmp_path / "run", 2, 3, dies_at=12)
    assert codes[0] not in (0, 9) and codes[1] == 9
    assert "another process of this training ended" in said[0] and "--resume" in said[0]
    tensors = checkpoint(tmp_path / "run")  # whole
    assert tensors and all(value.isfinite().all() for value in tensors.values() if value.is_floating_point())
    assert run_status(tmp_path / "run")["status"] == "failed"
    learn(tmp_path / "run", 3, resume=True)
    learn(tmp_path / "one", 3)
    torch.testing.assert_close(checkpoint(tmp_path / "run"), checkpoint(tmp_path / "one"), rtol=1e-7, atol=1e-9)


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
