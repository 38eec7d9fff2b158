"""`pplseq report`: from runs of any kind to a page and a picture, and what it says where it cannot."""

import json
import shutil
import subprocess
import sys

import pytest
from support.commands import pplseq


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    nouns, verbs = "cat dog bird <b>fish</b>".split(), "sees likes finds".split()
    lines = [f"the {nouns[i % 4]} {verbs[(i * i) % 3]} a {nouns[(i // 3) % 4]}" + " here" * (i % 2) for i in range(120)]
    lines[::17] = ["a rare <unk> word"] * len(lines[::17])
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = "--num-states 32 --num-blocks 8 --hidden-size 8 --batch-size 4 --segment-length 12 --epochs 1 --device cpu"
    pplseq("train", "vlhmm", text, *options.split(), "--lr", "0.02", "--log-interval", 4, "--out", folder)
    return folder


@pytest.fixture
def copy(run, tmp_path):
    """The run, to be damaged."""
    return shutil.copytree(run, tmp_path / "copy")


def test_a_run(copy):
    result = pplseq("report", copy, "--sentence", "the cat sees a <b>fish</b>", "--sentence", "a dog")
    page = copy / "report.html"
    assert result.stdout.splitlines() == [str(page)] and result.stderr == ""
    content = page.read_text(encoding="utf-8")
    assert "&lt;b&gt;fish&lt;/b&gt;" in content and "<b>fish" not in content
    records = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    best = min(record["nats_per_token"] for record in records if record["kind"] == "validation")
    assert f"{best:.4f}" in content and "recorded, best" in content
    assert content.count('class="strip"') == 2 and "8 blocks of 4" in content


def test_the_page_agrees_with_evaluate(copy):
    pplseq("report", copy)
    content = (copy / "report.html").read_text(encoding="utf-8")
    for line in pplseq("evaluate", copy, "--split", "valid").stdout.splitlines():
        assert f"{json.loads(line)['nats_per_token']:.4f}" in content


def test_where_the_files_go(run, tmp_path):
    pplseq("report", run, "--out", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").exists()
    pplseq("report", run, "--out", tmp_path / "folder")
    (tmp_path / "there.d").mkdir()
    pplseq("report", run, "--out", tmp_path / "there.d")
    assert (tmp_path / "folder" / "report.html").exists() and (tmp_path / "there.d" / "report.html").exists()
    result = pplseq("report", run, "--out", tmp_path / "page.pdf", code=2)
    assert "--out must be FILE.html or a folder" in result.stderr


def test_the_other_checkpoint(copy):
    shutil.rmtree(copy / "best")
    assert "try --checkpoint last" in pplseq("report", copy, code=2).stderr
    pplseq("report", copy, "--checkpoint", "last")


def test_no_run(tmp_path, text):
    assert "no such run or model folder" in pplseq("report", tmp_path / "nowhere", code=2).stderr
    assert "no model at" in pplseq("report", tmp_path, code=2).stderr
    assert "no model at" in pplseq("report", text.parent, code=2).stderr
    assert pplseq("report", text, code=2).stderr.startswith("Error: ")
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_model(copy):
    path = copy / "best" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    assert "model.safetensors: cut short" in pplseq("report", copy, code=2).stderr


@pytest.mark.parametrize("damage", ["absent", "empty", "binary", "cut short"])
def test_without_metrics(copy, damage):
    path = copy / "metrics.jsonl"
    lines = path.read_bytes()
    path.unlink()
    if damage != "absent":
        path.write_bytes({"empty": b"", "binary": b"\xff\xfe\x00", "cut short": lines[: len(lines) - 20]}[damage])
    pplseq("report", copy)
    content = (copy / "report.html").read_text(encoding="utf-8")
    assert ("No course of training was recorded" in content) == (damage != "cut short")
    assert "Perplexity of tokens" in content


def test_a_corpus_that_is_gone(copy, text):
    config = copy / "config.toml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("# sha256")]  # changed by hand
    config.write_text("\n".join(lines).replace(text.name, "moved.txt") + "\n")
    result = pplseq("report", copy)
    assert "the run's corpus could not be read" in result.stderr.lower() and "moved.txt" in result.stderr
    assert "the model wrote itself" in (copy / "report.html").read_text(encoding="utf-8")
    assert pplseq("report", copy, "--data", text).stderr == ""
    assert "tokens of text.txt" in (copy / "report.html").read_text(encoding="utf-8")
    assert "nowhere.txt" in pplseq("report", copy, "--data", "nowhere.txt", code=2).stderr


def test_a_model_without_its_run(copy, text):
    result = pplseq("report", copy / "best", "--data", text, "--out", copy / "alone")
    assert result.stderr == ""
    content = (copy / "alone" / "report.html").read_text(encoding="utf-8")
    assert "No course of training was recorded" in content and "<h1>vlhmm</h1>" in content
    assert "saved model without its run" in pplseq("report", copy / "best", "--out", copy).stderr


def test_other_data(run, tmp_path):
    result = pplseq("report", run, "--data", "-", "--out", tmp_path, input="the cat sees a dog\n")
    assert result.stderr == ""
    assert "6 tokens of" in (tmp_path / "report.html").read_text(encoding="utf-8")
    pplseq("report", run, "--data", "builtin:generated", "--tokens", 30, "--out", tmp_path)
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "tokens of builtin:generated valid" in content and "in whole lines" in content


def test_sentences_that_cannot_be_shown(run, copy):
    shutil.rmtree(copy / "best")
    for sentence in ("", "   "):
        result = pplseq("report", copy, "--sentence", sentence, code=2)
        assert "sentence: expected words" in result.stderr  # said before anything is loaded
    assert "at most 200 words" in pplseq("report", run, "--sentence", "cat " * 300, code=2).stderr


def test_unknown_words(run, tmp_path):
    result = pplseq("report", run, "--sentence", "the zebra sees a <i>gnu</i>", "--out", tmp_path)
    assert "unknown to the model: <i>gnu</i>, zebra" in result.stderr
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert content.count('class="word unknown"') == 2 and "<i>gnu" not in content


def test_unknown_words_where_the_vocabulary_has_none_for_them(tmp_path):
    from pplseq.data.vocabulary import Vocabulary
    from pplseq.models import VLHMM

    model = VLHMM(4, num_words=4, hidden_size=4, reset_id=0)
    model.vocabulary = Vocabulary(("<eos>", "a", "b", "c"))
    model.save(tmp_path / "model")
    assert (
        "'zebra' is not in the vocabulary" in pplseq("report", tmp_path / "model", "--sentence", "zebra", code=2).stderr
    )
    assert not (tmp_path / "model" / "report.html").exists()


def test_a_dense_model(text, tmp_path):
    folder = tmp_path / "hmm"
    pplseq("train", "hmm", text, "--num-states", 4, "--epochs", 2, "--device", "cpu", "--out", folder)
    pplseq("report", folder, "--sentence", "the cat sees a dog")
    content = (folder / "report.html").read_text(encoding="utf-8")
    assert "Transitions between states" in content and "hmm on text.txt" in content


def test_help_imports_nothing_heavy(run):
    script = (
        "import sys; from pplseq.cli import main\n"
        f"try: main(['report', {str(run)!r}, '--help'])\n"
        "finally: print([name for name in ('torch', 'numpy', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "--sentence TEXT" in result.stdout and result.stdout.endswith("[]\n")
