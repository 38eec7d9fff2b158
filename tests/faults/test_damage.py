"""A stored model that is damaged anywhere says so, or answers as before: never with a traceback, never with another number.

The number of damages is an option of the slow test: PPLSEQ_DAMAGES=5000.
"""

import json
import os
import random
import shutil

import pytest
import torch
from support.report_models import WORDS, tiny_model

import pplseq
from pplseq.data.vocabulary import Vocabulary
from pplseq.folder import FolderError
from pplseq.models.answers import score
from pplseq.runs.loop import TRAINING

LINES = ["the cat", "the the cat"]


def damage(path, draw):
    """Change a file as disks, editors and people do; what was done, in a word."""
    raw = bytearray(path.read_bytes())
    kind = draw.choice(["flip", "cut", "grow", "swap", "empty", "remove", "zero", "edit"])
    place = draw.randrange(max(len(raw), 1))
    lines = bytes(raw).split(b"\n")
    if kind == "remove":
        path.unlink()
        return kind
    if kind == "flip" and raw:
        raw[place] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del raw[place:]
    elif kind == "grow":
        raw += draw.randbytes(draw.randint(1, 64))
    elif kind == "swap" and len(lines) > 2:
        a, b = draw.sample(range(len(lines) - 1), 2)
        lines[a], lines[b] = lines[b], lines[a]
        raw = bytearray(b"\n".join(lines))
    elif kind == "empty":
        raw = bytearray()
    elif kind == "zero":
        raw[place : place + 512] = bytes(len(raw[place : place + 512]))
    else:
        digits = [k for k, byte in enumerate(raw) if 48 <= byte < 58]
        if digits:
            raw[draw.choice(digits)] = draw.choice(b"0123456789")
    path.write_bytes(raw)
    return kind


def stored(tmp_path):
    """name -> (folder, function that answers from it) of a model and of a checkpoint."""
    model = tiny_model()
    model.vocabulary = Vocabulary(WORDS)
    model.save(tmp_path / "model")
    TRAINING.write(tmp_path / "last", {"state": {"best": 1.5, "step": 3}}, tensors={"w": torch.arange(6.0)})

    def answers(folder):
        read = pplseq.load(folder)
        return [score(read, read.vocabulary, line.split()) for line in LINES]

    def state(folder):
        read = TRAINING.read(folder)
        return read.header, {name: value.tolist() for name, value in read.tensors.items()}

    return {"model": (tmp_path / "model", answers), "checkpoint": (tmp_path / "last", state)}


def wrong_answers(tmp_path, number, seed=0):
    draw, wrong = random.Random(seed), []
    for name, (folder, ask) in stored(tmp_path).items():
        expected = ask(folder)
        files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        for trial in range(number // 2):
            broken = tmp_path / "broken"
            shutil.copytree(folder, broken)
            path = draw.choice(files)
            kind = damage(broken / path, draw)
            same = (broken / path).is_file() and (broken / path).read_bytes() == (folder / path).read_bytes()
            try:
                if ask(broken) != expected:
                    wrong.append(f"{name}, {path}, {kind} {trial}: another answer")
            except (FolderError, FileNotFoundError) as error:
                if same or not str(error):
                    wrong.append(f"{name}, {path}, {kind} {trial}: refused though nothing changed: {error}")
            except Exception as error:
                wrong.append(f"{name}, {path}, {kind} {trial}: {type(error).__name__}: {error}")
            shutil.rmtree(broken)
    return wrong


def test_damage_is_named_or_does_no_harm(tmp_path):
    assert not wrong_answers(tmp_path, 60)


@pytest.mark.slow
def test_much_damage_is_named_or_does_no_harm(tmp_path):
    wrong = wrong_answers(tmp_path, int(os.environ.get("PPLSEQ_DAMAGES", "5000")), seed=1)
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("line", ["{", "null", '{"step": null}', "[" * 100_000, '\udc80'.encode("utf-8", "surrogateescape")])
def test_a_damaged_record_does_not_drop_later_ones(line, tmp_path):
    from pplseq.runs.metrics_log import MetricsLog, read_metrics

    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        log.write({"step": step, "kind": "train", "nats_per_token": float("inf"), "other": float("nan")})
    log.close()
    first, second = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    assert "NaN" not in first.decode() and "Infinity" not in first.decode() and json.loads(first)["other"] is None
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([first, line if isinstance(line, bytes) else line.encode(), second]))
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["nats_per_token"] == float("inf")
