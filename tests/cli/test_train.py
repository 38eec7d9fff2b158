"""`pplseq train` with the real model: settings, exact resumption, interruptions, failures."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import termios
import time
import tomllib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from support.commands import pplseq

from pplseq.cli import main
from pplseq.runs import loop, training
from pplseq.runs.metrics_log import read_metrics

SMALL = "--num-states 48 --num-blocks 12 --hidden-size 8 --batch-size 4 --segment-length 12 --epochs 1 --log-interval 5"
SMALL = [*SMALL.split(), "--max-vocabulary", "100", "--threads", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A few hundred lines with structure, as a single file."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    nouns, verbs, ends = "cat dog bird fish".split(), "sees likes finds".split(), "here now today".split()
    lines = []
    for i in range(160):
        words = ["the", nouns[i % 4], verbs[(i * i) % 3], "a", nouns[(i // 3) % 4]]
        lines.append(" ".join(words + ([ends[i % 3]] if i % 2 else [])))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    pplseq("train", "vlhmm", text, *SMALL, "--out", run)
    return run


def numbers(run):
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "tokens_per_second")}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def test_a_run_has_everything(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "best", "last", "clusters.paths", "clusters.paths.sha256", "config.toml", "data.json", "metrics.jsonl", "status.json",
    }  # fmt: skip
    config = tomllib.loads((finished / "config.toml").read_text())
    assert (config["num_states"], config["init_scale"], config["clip"]) == (48, 0.1, 5.0)
    kinds = [record["kind"] for record in numbers(finished)]
    assert kinds.count("validation") == 4 and kinds.count("train") >= 3
    assert not list(finished.rglob("*.pt")) and not list(finished.rglob("*.pkl"))


def test_summary_is_one_json_line(text, tmp_path):
    result = pplseq("train", "vlhmm", text, *SMALL, "--out", tmp_path / "run")
    summary = json.loads(result.stdout)
    assert summary["stop_reason"] == "epochs" and summary["protocol"] == "carried"
    assert summary["perplexity"] == pytest.approx(torch.tensor(summary["nats_per_token"]).exp().item(), rel=1e-5)


def test_same_settings_same_numbers(text, finished, tmp_path):
    pplseq("train", "--config", finished / "config.toml", "--out", tmp_path / "again")
    assert numbers(tmp_path / "again") == numbers(finished)


@pytest.mark.parametrize("number,code,stop_at", [(signal.SIGINT, 130, 3), (signal.SIGTERM, 143, 10)])
def test_resume_is_exact_to_the_bit(text, finished, tmp_path, monkeypatch, number, code, stop_at):
    run = tmp_path / "run"
    step = training.GradientTraining._learn

    def interrupted(self, batch):
        step(self, batch)
        if self.progress.step == stop_at:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(training.GradientTraining, "_learn", interrupted)
        result = pplseq("train", "vlhmm", text, *SMALL, "--out", run, code=code)
    assert f"--resume {run}" in result.stderr
    pplseq("train", "--resume", run)
    assert numbers(run) == numbers(finished)
    for name in ("best/model.safetensors", "last/model.safetensors", "last/training.safetensors"):
        one, two = load_file(run / name), load_file(finished / name)
        assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one), name


# a process that says at its end which models and baselines it needed
TOLD = """
import atexit, sys
from pplseq.cli import main
parts = lambda: [name.split(".") for name in sys.modules]
models = lambda: {part[2] for part in parts() if part[:2] == ["pplseq", "models"] and len(part) == 4}
baselines = lambda: {".".join(part) for part in parts() if part[:2] == ["pplseq", "baselines"]}
atexit.register(lambda: print(*models(), *baselines()))
main()
"""


def test_sigterm_to_the_real_process_on_a_terminal(text, tmp_path):
    """The first thing there is the bar, before torch is imported; then what is prepared, with its seconds, and a word at the
    end. The other families stay unread."""
    import pty

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    run = tmp_path / "run"
    command = [sys.executable, "-c", TOLD, "train", "vlhmm", str(text), *SMALL]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command += ["--epochs", "500", "--out", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True)
    os.close(theirs)
    seen, sent = b"", False
    with contextlib.suppress(OSError):  # which is how a terminal ends
        while piece := os.read(ours, 4096):
            seen += piece
            if not sent and len(read_metrics(run / "metrics.jsonl")) >= 2:
                process.send_signal(signal.SIGTERM)
                sent = True
    needed = set(process.communicate()[0].split())
    assert process.returncode == 143, seen.decode()
    # columns of saved taggers are told by what opens any folder
    assert "vlhmm" in needed <= {"vlhmm", "online", "parts", "diagnostics", "taggers"}
    assert b"Traceback" not in seen
    state = json.loads((run / "last" / "training.json").read_text())["state"]
    assert state["progress"]["step"] >= 2
    places = [seen.index(word) for word in (b"starting", b"reading", b"clustering", b"building", b"epoch 1")]
    assert places == sorted(places) and b"starting [00:0" in seen and seen.rindex(b"step") > places[3]


def test_flags_win_over_the_file_and_the_file_over_defaults(text, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(f'model = "vlhmm"\ndata = "{text}"\nlr = 0.5\nhidden_size = 6\nmax-time = "90s"\nclip = "none"\n')
    run = tmp_path / "run"
    pplseq("train", "--config", config, *SMALL, "--lr", "0.01", "--out", run)
    saved = tomllib.loads((run / "config.toml").read_text())
    assert (saved["lr"], saved["max_time"], saved["clip"], saved["hidden_size"]) == (0.01, 90.0, "none", 8)
    assert saved["weight_decay"] == 0.0 and saved["num_states"] == 48


@pytest.mark.parametrize(
    "line,message",
    [
        ("num_staets = 48", "unknown setting 'num_staets'. Did you mean 'num_states'?"),
        ("state_drop_out = 0.5", "Did you mean 'state_dropout'?"),
        ("num_states = 48.5", "num_states must be a whole number, got 48.5"),
        ("num_states = true", "num_states must be a whole number, got True"),
        ('lr = "fast"', "lr must be a number or none, got 'fast'"),
        ("tied = 1", "tied must be true or false, got 1"),
        ("[model]\nstates = 1", "model must be a string"),
        ('parameterization = "scalr"', "parameterization must be one of independent, factored, scalar"),
        ("state_dropout = 1.0", "state_dropout must lie in [0, 1)"),
        ("states 48", "is not TOML"),
        ('max_time = "soon"', "like 90s, 10m, 2h; got 'soon'"),
    ],
)
def test_config_errors(text, tmp_path, line, message):
    config = tmp_path / "config.toml"
    config.write_text(line + "\n")
    result = pplseq("train", "vlhmm", text, "--config", config, "--out", tmp_path / "run", code=2)
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--num-states", "50"], "--num-states 50 is not divisible by --num-blocks 12: the nearest sizes are 48 and 60"),
        (["--num-blocks", "1"], "--num-blocks 1, and <eos> has a block of its own"),
        (["--num-blocks", "80", "--num-states", "80"], "--num-blocks 80 is more than the"),
        (["--blocks", "bronw"], "blocks must be brown, uniform, none or an existing paths file, got 'bronw'"),
        (["--hidden-size", "0"], "hidden_size must be at least 1, got 0"),
        (["--clip", "lots"], "clip must be a number or none, got 'lots'"),
        (["--device", "tpu"], "device must be auto, cpu, cuda"),
        (["--lr", "-1"], "lr must be positive"),
    ],
)
def test_bad_sizes(text, tmp_path, arguments, message):
    result = pplseq("train", "vlhmm", text, *SMALL, *arguments, "--out", tmp_path / "run", code=2)
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_unknown_model(text, tmp_path):
    result = pplseq("train", "vlhm", text, "--out", tmp_path / "run", code=2)
    assert "unknown model 'vlhm'. Did you mean 'vlhmm'?" in result.stderr


@pytest.mark.parametrize(
    "content,message",
    [
        (b"", "empty"),
        (b"\n\n\n", "empty"),
        (b"word\n", "one word"),
        (b"a b c\nd \xff\xfe e\n", "byte 8"),
        (b"a b\x00c\n", "NUL"),
    ],
)
def test_bad_text(tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    result = pplseq("train", "vlhmm", path, *SMALL, "--out", tmp_path / "run", code=2)
    assert result.stderr.splitlines()[-1].startswith("Error: ") and message in result.stderr
    assert not (tmp_path / "run").exists()


def test_missing_text(tmp_path):
    result = pplseq("train", "vlhmm", tmp_path / "nowhere.txt", *SMALL, "--out", tmp_path / "run", code=2)
    assert "no such file" in result.stderr


def test_blocks_from_a_file_that_does_not_cover_the_vocabulary(text, tmp_path):
    paths = tmp_path / "some.paths"
    paths.write_text("0\tthe\t10\n1\tcat\t3\n")
    result = pplseq("train", "vlhmm", text, *SMALL, "--blocks", paths, "--out", tmp_path / "run", code=2)
    assert "words of the vocabulary are not in the file" in result.stderr


def test_blocks_from_a_cluster_file(text, tmp_path):
    pplseq("cluster", text, "--num-clusters", "6", "--out", tmp_path / "c.paths")
    pplseq("train", "vlhmm", text, *SMALL, "--blocks", tmp_path / "c.paths", "--out", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "best" / "config.json").read_text())
    assert config["config"]["num_states"] == 48
    assert (tmp_path / "run" / "clusters.paths").read_text() == (tmp_path / "c.paths").read_text()


@pytest.mark.parametrize(
    "options",
    [
        ["--blocks", "uniform"],
        ["--blocks", "none"],
        ["--parameterization", "factored"],
        ["--parameterization", "scalar"],
        ["--untied", "--no-reset", "--no-eos-block", "--initialization", "xavier", "--state-dropout", "0"],
        ["--protocol", "sentence", "--batch-tokens", "64"],
    ],
    ids=" ".join,
)
def test_every_ablation_is_a_flag(text, tmp_path, options):
    result = pplseq("train", "vlhmm", text, *SMALL, *options, "--out", tmp_path / "run")
    assert json.loads(result.stdout)["perplexity"] < 30


def test_nan_loss_keeps_the_last_good_checkpoint(text, tmp_path, monkeypatch):
    step = training.GradientTraining._learn

    def poisoned(self, batch):
        if self.progress.step == 9:
            with torch.no_grad():
                next(self.model.parameters()).fill_(float("nan"))
        step(self, batch)

    monkeypatch.setattr(training.GradientTraining, "_learn", poisoned)
    result = pplseq("train", "vlhmm", text, *SMALL, "--out", tmp_path / "run", code=1)
    assert "the loss is nan at step 10" in result.stderr
    weights = load_file(tmp_path / "run" / "last" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values() if value.is_floating_point())


def test_full_disk(text, tmp_path, monkeypatch):
    """The kernel refuses to write more than a few kilobytes to a file: the second checkpoint does not fit."""
    resource = pytest.importorskip("resource")
    run, save, most = tmp_path / "run", loop._Loop.save, resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(self, name):
        if self.progress.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most[1]))
        try:
            save(self, name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, most)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Loop, "save", limited)
        result = pplseq("train", "vlhmm", text, *SMALL, "--out", run, code=1)
    assert "could not save" in result.stderr and "Traceback" not in result.stderr
    assert json.loads((run / "last" / "training.json").read_text())["state"]["progress"]["step"] == 0
    pplseq("train", "--resume", run)


def test_resume_refuses_other_settings(finished):
    result = pplseq("train", "--resume", finished, "--lr", "0.1", code=2)
    assert "--lr cannot change" in result.stderr and "--epochs, --feature-dropout, --max-time" in result.stderr


def test_resume_of_nothing(tmp_path):
    assert "not a run" in pplseq("train", "--resume", tmp_path, code=2).stderr


def test_resume_with_other_data(text, tmp_path):
    data = tmp_path / "text.txt"
    data.write_text(text.read_text())
    pplseq("train", "vlhmm", data, *SMALL, "--out", tmp_path / "run")
    data.write_text(text.read_text().replace("bird", "bear"))
    result = pplseq("train", "--resume", tmp_path / "run", "--epochs", "2", code=2)
    assert "the vocabulary of text.txt is no longer the one" in result.stderr


def test_a_run_is_not_overwritten(text, finished):
    before = numbers(finished)
    result = pplseq("train", "vlhmm", text, *SMALL, "--out", finished, code=2)
    assert "already holds a run" in result.stderr
    assert numbers(finished) == before


@pytest.mark.parametrize("damage", ["truncated", "foreign"])
def test_resume_from_a_bad_checkpoint(text, finished, tmp_path, damage):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    path = run / "last" / "training.safetensors"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    else:
        (run / "last" / "training.json").write_text('{"format": "another"}')
    result = pplseq("train", "--resume", run, "--epochs", "2", code=2)
    assert {"truncated": "cut short", "foreign": "was not written by pplseq"}[damage] in result.stderr


def test_max_time(text, tmp_path):
    result = pplseq("train", "vlhmm", text, *SMALL, "--epochs", "10000", "--max-time", "0.3s", "--out", tmp_path / "run")
    summary, last = json.loads(result.stdout), read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert summary["stop_reason"] == "max_time" and summary["seconds"] < 20
    assert (last["kind"], last["step"]) == ("validation", summary["steps"])


def test_tensorboard_is_an_extra(text, tmp_path):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        result = pplseq("train", "vlhmm", text, *SMALL, "--tensorboard", "--out", tmp_path / "run", code=2)
        assert 'pip install "pplseq[tensorboard]"' in result.stderr
    else:
        pplseq("train", "vlhmm", text, *SMALL, "--tensorboard", "--out", tmp_path / "run")
        assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_a_word_too_rare_to_know_becomes_unknown(tmp_path):
    """Held-out words that training never saw make <unk>, without asking for it."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"the w{i} is w{i + 1}\n" for i in range(200)))
    pplseq("train", "vlhmm", path, *SMALL, "--num-blocks", "3", "--out", tmp_path / "run")
    assert "<unk>" in Path(tmp_path / "run" / "best" / "vocab.txt").read_text().split()


def test_max_time_holds_before_the_first_step(text, tmp_path, monkeypatch):
    """Clustering that would take a minute is cut off; the run can be gone on with, from its beginning."""
    from pplseq.models.vlhmm import fit

    def slow(*arguments, **options):
        time.sleep(60)

    run = tmp_path / "run"
    began = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(fit, "make_clusters", slow)
        result = pplseq("train", "vlhmm", text, *SMALL, "--max-time", "1s", "--out", run, code=1)
    assert time.monotonic() - began < 5
    summary = json.loads(result.stdout)
    assert (summary["stop_reason"], summary["steps"]) == ("max_time", 0)
    assert "the time was up while clustering" in result.stderr
    assert {path.name for path in run.iterdir()} == {"config.toml", "data.json", "status.json"}
    assert json.loads(pplseq("train", "--resume", run, "--max-time", "1h").stdout)["stop_reason"] == "epochs"


def test_other_settings_drop_the_clusters_of_an_unfinished_run(text, finished, tmp_path, monkeypatch):
    from pplseq.models.vlhmm import fit

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(fit, "lay_out", lambda *_, **options: 1 / 0)
        for _ in range(2):
            result = CliRunner().invoke(main, ["train", "vlhmm", str(text), *SMALL, "--out", str(run)])
            assert result.exit_code == 1 and (run / "clusters.paths").exists()
    pplseq("train", "vlhmm", text, *SMALL, "--num-blocks", "6", "--out", run)
    blocks = {line.split("\t")[0] for line in (run / "clusters.paths").read_text().splitlines()}
    assert len(blocks) == 6




def test_train_and_evaluate_from_python(text, finished, tmp_path):
    """The functions behind the commands give the same numbers."""
    import pplseq as library

    settings = dict(num_states=48, num_blocks=12, hidden_size=8, batch_size=4, segment_length=12, epochs=1, log_interval=5)
    more = dict(max_vocabulary=100, threads=1, device="cpu")
    summary = library.train("vlhmm", text, folder=tmp_path / "run", **settings, **more)
    assert numbers(tmp_path / "run") == numbers(finished) and summary["stop_reason"] == "epochs"
    scores = library.evaluate(tmp_path / "run", split="valid", protocol="carried")
    assert scores[0]["nats_per_token"] == pytest.approx(summary["nats_per_token"], rel=1e-5)
    with pytest.raises(ValueError, match="unknown setting 'num_staets'. Did you mean 'num_states'?"):
        library.train("vlhmm", text, folder=tmp_path / "other", num_staets=3)
    with pytest.raises(ValueError, match="already holds a run"):
        library.train("vlhmm", text, folder=tmp_path / "run")


@pytest.mark.parametrize("model", ["hmm", "vlhmm", "lstm"])
def test_a_table_is_not_read_as_text(tmp_path, model):
    (tmp_path / "returns.csv").write_text("day,return\n1,0.2\n2,-0.1\n")
    table = tmp_path / "returns.csv"
    for command in (["train", model, table, "--out", tmp_path / "run"], ["info", model, table]):
        result = CliRunner().invoke(main, [str(part) for part in command])
        assert result.exit_code == 2 and "returns.csv is a table" in result.output
        assert "pplseq train iohmm returns.csv --outputs COLUMN" in result.output
    assert not (tmp_path / "run").exists()
