"""Folders that strangers made: whatever is in them, they are refused by name, in time and without memory.

The number of forged headers is an option of the slow test: PPLSEQ_FORGERIES=5000.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import zipfile

import numpy as np
import pytest
import torch
from support.damaged import Forgeries, stored, stored_runs
from support.faulty_disk import warm
from support.grids import grid
from support.model_cases import CASES
from support.small_runs import small_runs, write_data
from support.stored import rewrite

import pplseq
from pplseq.folder import TEXT_BYTES, FolderError, FolderKind, sealed
from pplseq.models import HMM, SemiMarkovHMM, StructuralModel
from pplseq.recipes.count_settings import CountSettings
from pplseq.recipes.counting import count
from pplseq.recipes.run_folder import read_record
from pplseq.recipes.runs import info
from pplseq.recipes.taggers.systems import check_out
from pplseq.runs.metrics_log import read_metrics
from pplseq.runs.status import run_status, say_status

KIND = FolderKind("tests", 3, header="head.json", tensors="t.safetensors", arrays="a.npz", what="toy", again="make it again")


@contextlib.contextmanager
def soon(seconds=20):
    """Fails where a call waits for ever, as one that opens a pipe does."""

    def late(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def forged(folders, number, seed, place):
    found = []
    for name, (folder, ask) in folders.items():
        trials = Forgeries(folder, ask, place / "broken", seed)
        found += [f"{name}, {wrong}" for _ in range(number) if (wrong := trials.damage()) is not None]
    return found


def test_forged_headers_are_refused_by_name(tmp_path):
    assert not forged(stored(tmp_path), 100, int(os.environ.get("PPLSEQ_FUZZ_SEED", "0")), tmp_path)


@pytest.mark.slow
def test_forged_runs_are_refused_by_name(tmp_path):
    data = write_data(tmp_path)
    warm(small_runs(data)["count"](tmp_path))
    folders = stored_runs(tmp_path / "stored", data, small_runs(data, tmp_path / "counts"))
    number = int(os.environ.get("PPLSEQ_FORGERIES", "100"))
    assert not forged(folders, number, int(os.environ.get("PPLSEQ_FUZZ_SEED", "1")), tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("stranger")
    data = write_data(place)
    pplseq.train("hmm", data["text.txt"], folder=place / "run", num_states=2, min_count=1, epochs=1)
    return place / "run"


FILES = ["config.toml", "status.json", "metrics.jsonl", "data.json", ".lock", "best/config.json", "best/model.safetensors",
         "best/vocab.txt", "last/training.json", "last/training.safetensors"]  # fmt: skip


@grid({"name": FILES, "kind": ["pipe", "device", "folder"]})
def test_a_pipe_or_a_device_in_the_place_of_a_file(trained, name, kind, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    elif kind == "device":
        (run / name).symlink_to("/dev/zero")
    else:
        (run / name).mkdir()
    answered = 0
    with soon():
        calls = (pplseq.load, lambda folder: pplseq.train(folder=folder, resume=True, epochs=2), pplseq.evaluate, info)
        for call in calls:
            try:
                call(run)
                answered += 1
            except (FolderError, OSError) as error:
                assert name.rpartition("/")[2] in str(error) or str(run) in str(error)
    assert answered < len(calls) or name in ("status.json", ".lock")


def test_a_status_that_is_a_pipe_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "status.json")
    with soon():
        assert run_status(tmp_path)["status"] == "damaged"
        say_status(tmp_path, "finished")
    assert run_status(tmp_path)["status"] == "finished"


def test_a_lock_does_not_write_through_a_link(trained, tmp_path):
    run, mine = shutil.copytree(trained, tmp_path / "run"), tmp_path / "mine.txt"
    mine.write_text("dear")
    (run / ".lock").symlink_to(mine)
    with pytest.raises(OSError, match=r"\.lock"):
        pplseq.train(folder=run, resume=True, epochs=2)
    assert mine.read_text() == "dear"


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "inner/../../secret", ".."])
def test_names_outside_of_the_folder_are_not_opened(name, tmp_path):
    folder = KIND.write(tmp_path / "toy", {}, tensors={"a": torch.ones(1)}, arrays={})
    (tmp_path / "secret").write_text("mine")
    _resealed(folder, {name: [4, "0" * 64]})
    for read in (KIND.read, KIND.read_header):
        with pytest.raises(FolderError, match=r"head.json: files names .*, which is not in the folder; make it again"):
            read(folder)


def test_files_without_a_checksum_are_not_read(tmp_path):
    folder = KIND.write(tmp_path / "toy", {}, tensors={"a": torch.ones(1)}, arrays={})
    _resealed(folder, {"a.npz": [4, "0" * 64]})
    with pytest.raises(FolderError, match="files does not name t.safetensors"):
        KIND.read(folder)


def _resealed(folder, files):
    content = json.loads((folder / "head.json").read_text())
    (folder / "head.json").write_text(sealed({**{k: v for k, v in content.items() if k != "sha256"}, "files": files}))


def test_texts_that_are_too_long(tmp_path):
    folder = KIND.write(tmp_path / "toy", {}, tensors={}, arrays={})
    for path, read in (
        (folder / "head.json", lambda: KIND.read(folder)),
        (tmp_path / "metrics.jsonl", lambda: read_metrics(tmp_path / "metrics.jsonl")),
    ):
        with path.open("ab") as file:
            file.truncate(4 * TEXT_BYTES + 1)
        with pytest.raises(FolderError, match=f"{path.name}: expected at most .* bytes, found more"):
            read()


def test_arrays_that_unpack_to_more(tmp_path):
    folder = KIND.write(tmp_path / "toy", {}, tensors={}, arrays={"a": np.zeros(10)})
    np.savez_compressed(folder / "a.npz", a=np.zeros(1_000_000))
    rewrite(folder, "head.json")
    with pytest.raises(FolderError, match="a.npz: not the arrays of toy .*unpacks to more"):
        KIND.read(folder)
    with zipfile.ZipFile(folder / "a.npz", "w") as file:  # an array that says it is larger than it is
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000000,), }"
        header = header.ljust(117) + b"\n"
        file.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    rewrite(folder, "head.json")
    with pytest.raises(FolderError, match="a.npz: not the arrays of toy"):
        KIND.read(folder)


def test_a_vocabulary_that_is_missing_is_not_left_out(tmp_path):
    from pplseq.data.vocabulary import Vocabulary

    model = HMM(2, num_words=3)
    model.vocabulary = Vocabulary(("a", "b", "<eos>"))
    model.save(tmp_path / "model")
    (tmp_path / "model" / "vocab.txt").unlink()
    rewrite(tmp_path / "model")
    with pytest.raises(FolderError, match="files does not name vocab.txt"):
        pplseq.load(tmp_path / "model")


# ---- what a training would leave unreadable
NAMES = {"é" * 125 + "x": "251 bytes, expected at most 250", "a" * 256: "256 bytes", os.fsdecode(b"caf\xe9"): "not UTF-8",
         os.fsdecode(b"caf\xe9/run"): "not UTF-8"}  # fmt: skip


@pytest.mark.parametrize(("name", "why"), NAMES.items(), ids=["long", "too long", "bytes", "bytes above"])
def test_names_of_folders_are_refused_before_the_work(name, why, tmp_path):
    (tmp_path / "text.txt").write_text("the cat\n" * 9)
    model = HMM(2, num_words=3)
    for call in (
        lambda folder: pplseq.train("hmm", tmp_path / "text.txt", folder=folder, num_states=2, epochs=1),
        lambda folder: model.fit([[0, 1, 2]], folder=folder, seed=0),
        model.save,
        lambda folder: count(str(tmp_path / "text.txt"), folder, CountSettings(max_lag=1)),
        check_out,
    ):
        with pytest.raises(ValueError, match=why):
            call(tmp_path / name)
    assert os.listdir(tmp_path) == ["text.txt"]


def test_the_longest_name_is_trained_and_read(tmp_path):
    folder = tmp_path / ("a" * 250)
    (tmp_path / "\x7f.txt").write_text("the cat\n" * 9)
    options = dict(num_states=2, min_count=1, epochs=1, tolerance=float("inf"))
    pplseq.train("lds", _table(tmp_path), folder=tmp_path / "lds", outputs=("y\x7f",), tolerance=float("inf"), max_iterations=2)
    pplseq.evaluate(tmp_path / "lds", _table(tmp_path))
    options.pop("tolerance")
    pplseq.train("hmm", tmp_path / "\x7f.txt", folder=folder, **options)
    assert pplseq.load(folder).num_states == 2 and read_record(folder).data == str(tmp_path / "\x7f.txt")


def _table(place):
    (place / "rows.csv").write_text("y\x7f\n" + "".join(f"{k % 3}.5\n" for k in range(30)))
    return place / "rows.csv"


# ---- sizes that a configuration declares
def _sizes(config, place=()):
    """Where the whole numbers of a configuration are; of lists the first."""
    for key, value in config.items() if isinstance(config, dict) else enumerate(config[:1]):
        if isinstance(value, int) and not isinstance(value, bool):
            yield (*place, key)
        elif isinstance(value, (dict, list)):
            yield from _sizes(value, (*place, key))


def _with(config, place, value):
    config = json.loads(json.dumps(config))
    at = config
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return config


@pytest.mark.parametrize("name", CASES)
def test_shapes_are_compared_before_memory_is_taken(name, tmp_path):
    CASES[name].model().save(tmp_path / "model")
    pplseq.load(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())["config"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for place in _sizes(config):
        for size in (10**9,) if name == "constrained_lds" else (10**4, 10**9):  # whose patterns of 10^8 numbers take seconds
            rewrite(tmp_path / "model", config=_with(config, place, size))
            with contextlib.suppress(FolderError):
                pplseq.load(tmp_path / "model")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_a_model_may_need_more_memory_than_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("pplseq.models.declared.ROOM", 1 << 16)
    for model in (SemiMarkovHMM(10, 3, max_duration=50), StructuralModel(seasonal=200, num_inputs=1)):
        pplseq.load(model.save(tmp_path / model.name))
    rewrite(tmp_path / "semi_markov_hmm", config={**SemiMarkovHMM(10, 3, max_duration=50).config, "num_states": 40})
    with pytest.raises(FolderError, match=r"move_logits: none of shape \(40, 40\) is stored"):
        pplseq.load(tmp_path / "semi_markov_hmm")
