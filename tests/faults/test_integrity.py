"""Every file of a run's folder has a checksum: what was changed is named, and never read as if it had been written so."""

import json
import shutil
import subprocess
import warnings

import pytest
from click.testing import CliRunner
from support.small_runs import write_data
from support.stored import rewrite, rewrite_tensors

import pplseq
from pplseq.cli import main
from pplseq.data.text import load_corpus
from pplseq.folder import FolderError, sealed, unsealed
from pplseq.models.vlhmm.fit import cached_clusters
from pplseq.recipes.run_folder import read_record
from pplseq.recipes.settings import read_sealed_toml, seal_toml
from pplseq.runs.metrics_log import MetricsLog, metrics_of, read_metrics
from pplseq.runs.status import run_status, say_status


def call(*arguments, code=0, text=None):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=text, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    pplseq.train("lstm", data["text.txt"], folder=folder, hidden_size=4, num_layers=1, min_count=1, epochs=1, batch_size=4)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def flips(raw):
    """A file with a bit of each of its bytes flipped in turn."""
    for place in range(len(raw)):
        yield raw[:place] + bytes([raw[place] ^ 1 << place % 8]) + raw[place + 1 :]


# ---------------------------------------------------------------- one bit
def test_any_bit_of_settings(tmp_path):
    path, text = tmp_path / "config.toml", '# The settings\nmodel = "hmm"\nstates = 12\nlower = false\n'
    path.write_text(seal_toml(text))
    expected, raw, same = read_sealed_toml(path), path.read_bytes(), 0
    assert expected == {"model": "hmm", "states": 12, "lower": False}
    for broken in flips(raw):
        path.write_bytes(broken)
        try:
            assert read_sealed_toml(path) == expected  # in the mark of the checksum's line, or in what is said of it
            same += 1
        except ValueError:
            pass
    assert same < raw.index(b"\n")
    path.write_text(text.replace("12", "13"))  # as somebody writes who means it
    assert read_sealed_toml(path)["states"] == 13


def test_any_bit_of_a_status(tmp_path):
    say_status(tmp_path, "stopped", "signal", 7, 1.5, 3)
    path, expected = tmp_path / "status.json", run_status(tmp_path)
    for broken in flips(path.read_bytes()):
        path.write_bytes(broken)
        assert run_status(tmp_path) in (expected, {"status": "damaged"})
    path.write_bytes(b"")
    assert run_status(tmp_path) == {"status": "damaged"}
    path.unlink()
    assert run_status(tmp_path) == {"status": "absent"}


def test_any_bit_of_metrics(tmp_path):
    log, path = MetricsLog(tmp_path / "metrics.jsonl"), tmp_path / "metrics.jsonl"
    for step in (1, 2):
        log.write({"step": step, "kind": "train", "nats_per_token": step / 3, "word": "né"})
    log.close()
    say_status(tmp_path, "finished", num_records=2)
    expected = read_metrics(path)
    assert metrics_of(path) == (log.records, None)
    for broken in flips(path.read_bytes()):
        path.write_bytes(broken)
        records, damage = metrics_of(path)
        assert records == expected or (damage is not None and all(record in expected for record in records))


def test_lines_of_metrics_that_moved_or_went(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(1, 5):
        log.write({"step": step, "kind": "train"})
    log.close()
    say_status(tmp_path, "finished", num_records=4)
    lines = path.read_text().splitlines(keepends=True)
    told = {
        "".join(lines): None,
        "".join(lines)[:-1]: None,
        "".join([*lines, '{"step": 5, "ki']): None,  # as a killed process leaves it
        "".join(lines[:3]): "1 of 4 lines missing",
        "".join([lines[1], lines[0], *lines[2:]]): "lines not in their order",
        "".join([*lines[:2], "\n", *lines[2:]]): "line 3 damaged",
        "".join(line.replace("4", "5") for line in lines if '"step": 1' not in line): "line 3 damaged; 1 of 4 lines missing",
        '{"step": 1, "kind": "train"}\n' * 4: None,  # of earlier versions
    }
    for text, damage in told.items():
        path.write_text(text)
        assert metrics_of(path).damage == damage, text


# ---------------------------------------------------------------- who says so
def test_damaged_settings_are_named_by_whoever_reads_them(run, data):
    path = run / "config.toml"
    path.write_text(path.read_text().replace("min_count = 1", "min_count = 2"))
    uses = [("evaluate", run, data["text.txt"]), ("info", run), ("report", run), ("train", "--resume", run)]
    for arguments in uses:
        assert "config.toml: damaged: its checksum is not that of its content" in call(*arguments, code=2).stderr
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("# sha256 ")))
    assert read_record(run).settings.min_count == 2


def test_damaged_metrics_are_named_by_whoever_reads_them(run, tmp_path):
    path = run / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"epoch": 1', '"epoch": 2', 1))
    assert "metrics.jsonl: line 1 damaged" in call("info", run).stdout
    call("report", run, "--out", tmp_path / "page.html")
    assert "line 1 damaged" in (tmp_path / "page.html").read_text()
    with pytest.warns(RuntimeWarning, match="metrics.jsonl: line 1 damaged; the run goes on with the records that are whole"):
        pplseq.train(folder=run, resume=True, epochs=2)
    assert metrics_of(path).damage is None and len(read_metrics(path)) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pplseq.train(folder=run, resume=True, epochs=3)


@pytest.mark.slow
def test_damaged_metrics_are_named_on_the_page_of_a_model_of_words(data, tmp_path):
    pplseq.train("hmm", data["text.txt"], folder=tmp_path / "run", num_states=3, min_count=1, epochs=2)
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[2:])
    told = call("report", tmp_path / "run", "--out", tmp_path / "page.html").stderr
    assert "Note: metrics.jsonl: line 1 damaged" in told and "line 1 damaged" in (tmp_path / "page.html").read_text()


def test_damaged_clusters_are_named(data, tmp_path):
    text = load_corpus(str(data["text.txt"]), min_count=1).train
    made = cached_clusters(tmp_path, text, "brown", 4)
    assert cached_clusters(tmp_path, text, "brown", 4).paths == made.paths
    path, sums = (tmp_path / name for name in ("clusters.paths", "clusters.paths.sha256"))
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "-c", "--quiet", sums.name], cwd=tmp_path, check=True)
    lines = path.read_text().splitlines(keepends=True)
    bits, rest = lines[0].split("\t", 1)
    other, behind = lines[-1].split("\t", 1)
    path.write_text("".join([f"{other}\t{rest}", *lines[1:-1], f"{bits}\t{behind}"]))
    with pytest.raises(FolderError, match="clusters.paths: damaged: its checksum is not the one in clusters.paths.sha256"):
        cached_clusters(tmp_path, text, "brown", 4)
    sums.unlink()
    assert cached_clusters(tmp_path, text, "brown", 4).paths != made.paths


def test_a_damaged_automaton_is_named_and_written_again(data, tmp_path):
    options = dict(num_states="2", num_restarts=5, picture=False, max_iterations=5)
    summary = pplseq.train("iohmm", data["strings.txt"], folder=tmp_path / "run", **options)
    path = tmp_path / "run" / "automaton.json"
    text = path.read_text()
    for broken in (text.replace('"start": 0', '"start": 1'), "{"):
        assert broken != text
        path.write_text(broken)
        for arguments in (("info", tmp_path / "run"), ("query", tmp_path / "run", "automaton")):
            assert "automaton.json: " in call(*arguments, code=2).stderr
        again = pplseq.train("iohmm", data["strings.txt"], folder=tmp_path / "run", **options)
        assert path.read_text() == text and again == summary


def test_a_run_from_strings_is_finished_when_its_automaton_stands(data, tmp_path, monkeypatch):
    from pplseq.recipes.iohmm import strings

    seen = {}

    def write(job, automaton):
        seen["status"] = run_status(job.folder)
        raise OSError("no space")

    options = dict(num_states="2", num_restarts=5, picture=False, max_iterations=5)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space"):
        patched.setattr(strings, "_write_automaton", write)
        pplseq.train("iohmm", data["strings.txt"], folder=tmp_path / "run", **options)
    assert seen["status"]["status"] == "running" and run_status(tmp_path / "run")["status"] == "failed"
    assert "failed" in call("query", tmp_path / "run", "classify", text="01\n").stderr
    pplseq.train("iohmm", data["strings.txt"], folder=tmp_path / "run", **options)
    found = run_status(tmp_path / "run")
    assert found["status"] == "finished" and found["reason"] == "finished" and (tmp_path / "run" / "automaton.json").exists()


# ---------------------------------------------------------------- checkpoints
def test_moments_and_counters_that_are_no_numbers(trained, tmp_path):
    last = trained / "last"
    names = [name for name in json.loads((last / "training.json").read_text())["state"]["progress"] if name != "best"]
    assert "window_nats" in names and "seconds" in names

    def resumed(spoil):
        run = shutil.copytree(trained, tmp_path / "run", dirs_exist_ok=True)
        spoil(run / "last")
        with pytest.raises(FolderError) as error:
            pplseq.train(folder=run, resume=True, epochs=2)
        return str(error.value)

    def moments(value):
        return lambda last: rewrite_tensors(
            last,
            lambda tensors: tensors | {"optimizer.0.exp_avg_sq": tensors["optimizer.0.exp_avg_sq"] * 0 + value},
            "training.json",
            "training.safetensors",
        )

    def counter(name, value):
        def spoil(last):
            header = unsealed(last / "training.json", "")
            header["state"]["progress"][name] = value
            (last / "training.json").write_text(sealed(header))
            rewrite(last, "training.json")

        return spoil

    for value in (float("nan"), float("inf"), -float("inf")):
        assert "optimizer.0.exp_avg_sq holds values that are not finite" in resumed(moments(value))
    assert "progress.best is not a number" in resumed(counter("best", float("nan")))
    assert "progress.seconds is inf" in resumed(counter("seconds", float("inf")))
