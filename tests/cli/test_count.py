"""`pplseq count` and `pplseq count-merge`."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support.commands import pplseq

from pplseq.data import Text, load_counts, read_text
from pplseq.data.lag_counts import LagCounts
from pplseq.data.lag_streaming import count_lags
from pplseq.data.vocabulary import WordForms

LINES = [f"a b{i % 3} c 19{i % 4} d{i % 7} b{i % 2}" for i in range(40)]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_counts_are_those_of_the_library(text, tmp_path):
    out = tmp_path / "new" / "counts"
    printed = json.loads(pplseq("count", text, "--max-lag", 3, "--out", out).stdout)
    counts = load_counts(out)
    assert counts == LagCounts.from_text(read_text(text), 3)
    assert printed["num_tokens"] == counts.num_tokens and printed["num_pairs"] == counts.num_pairs.tolist()
    assert printed["num_entries"] == [matrix.nnz for matrix in counts.lags] and printed["counts"] == str(out)


def test_options_reach_the_counts(text, tmp_path):
    out, options = tmp_path / "counts", ["--lower", "--digits", "NUM", "--no-eos", "--unit", "article"]
    pplseq("count", text, "--max-lag", 2, "--out", out, *options, "--max-vocabulary", 4)
    forms = WordForms(lower=True, digits="NUM")
    assert load_counts(out) == count_lags(text, 2, forms=forms, eos=False, unit="article", max_vocabulary=4)
    pplseq("count", text, "--max-lag", 2, "--out", out, "--min-count", 20, "--force")
    assert load_counts(out) == count_lags(text, 2, min_count=20)


def test_the_vocabulary_of_other_counts_brings_its_word_forms(text, tmp_path):
    pplseq("count", text, "--max-lag", 2, "--out", tmp_path / "one", "--digits", "NUM", "--max-vocabulary", 5)
    more = tmp_path / "more.txt"
    more.write_text("a 77 b1 unseen\n")
    pplseq("count", more, "--max-lag", 2, "--out", tmp_path / "two", "--vocabulary", tmp_path / "one")
    one, two = load_counts(tmp_path / "one"), load_counts(tmp_path / "two")
    assert two.vocabulary == one.vocabulary and two.forms == one.forms == WordForms(digits="NUM")
    pplseq("count-merge", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "both")
    assert load_counts(tmp_path / "both").num_tokens == one.num_tokens + two.num_tokens
    # a plain file of words gives the same ids, and keeps the digits
    words = tmp_path / "one" / "vocab.txt"
    pplseq("count", more, "--max-lag", 2, "--out", tmp_path / "three", "--vocabulary", words)
    assert load_counts(tmp_path / "three") == count_lags(more, 2, vocabulary=one.vocabulary)
    result = pplseq("count", more, "--max-lag", 2, "--out", tmp_path / "four", "--vocabulary", words, "--eos", code=2)
    assert "vocabulary and eos exclude each other" in result.stderr


def test_standard_input(text, tmp_path):
    for content in (text.read_text(), gzip.compress(b"")):
        if isinstance(content, str):
            pplseq("count", "-", "--max-lag", 3, "--out", tmp_path / "counts", input=content)
            assert load_counts(tmp_path / "counts") == count_lags(text, 3)
        else:
            result = pplseq("count", "-", "--max-lag", 3, "--out", tmp_path / "other", input=content, code=2)
            assert "<stdin>: byte" in result.stderr
    result = pplseq("count", "-", "--max-lag", 3, "--out", tmp_path / "counts", input="a b\n", code=2)
    assert "holds counts already, and only reading <stdin> would tell" in result.stderr and "--force" in result.stderr


def test_shards_and_their_sum(text, tmp_path):
    parts = [tmp_path / f"part{i}" for i in (1, 2, 3)]
    for i, part in enumerate(parts, 1):
        printed = json.loads(pplseq("count", text, "--max-lag", 3, "--out", part, "--shard", f"{i}/3").stdout)
        assert printed["shards"] == [f"{i}/3"]
    pplseq("count-merge", *reversed(parts), "--out", tmp_path / "all")
    assert load_counts(tmp_path / "all") == count_lags(text, 3)

    result = pplseq("count-merge", parts[0], "--out", tmp_path / "some", code=2)
    assert "2 shards are missing: shard 2/3 of text.txt, shard 3/3 of text.txt" in result.stderr
    assert "--allow-missing" in result.stderr and not (tmp_path / "some").exists()
    printed = json.loads(
        pplseq("count-merge", parts[0], parts[2], "--out", tmp_path / "some", "--allow-missing").stdout
    )
    assert printed["missing"] == ["shard 2/3 of text.txt"]
    # what is missing is remembered, and can come later
    pplseq("count-merge", tmp_path / "some", parts[1], "--out", tmp_path / "late")
    assert load_counts(tmp_path / "late") == load_counts(tmp_path / "all")

    result = pplseq("count-merge", *parts, parts[1], "--out", tmp_path / "twice", code=2)
    assert "shard 2/3 of text.txt is counted twice" in result.stderr
    result = pplseq("count-merge", *parts, "--out", tmp_path / "all", code=2)
    assert "all exists" in result.stderr
    pplseq("count-merge", *parts, "--out", tmp_path / "all", "--force", "--max-vocabulary", 4)
    assert load_counts(tmp_path / "all") == count_lags(text, 3).cut(4)


def test_parts_that_do_not_fit(text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("x y z\n")
    pplseq("count", text, "--max-lag", 3, "--out", tmp_path / "one")
    pplseq("count", other, "--max-lag", 3, "--out", tmp_path / "two")
    result = pplseq("count-merge", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "sum", code=2)
    assert "different vocabularies" in result.stderr and not (tmp_path / "sum").exists()
    (tmp_path / "one" / "counts.npz").write_bytes(b"PK")
    result = pplseq("count-merge", tmp_path / "one", "--out", tmp_path / "sum", code=2)
    assert "one/counts.npz: cut short or changed" in result.stderr


def test_finished_work_is_recognised(text, tmp_path):
    arguments = ["count", text, "--max-lag", 3, "--out", tmp_path / "counts", "--shard", "1/2"]
    pplseq(*arguments)
    written = (tmp_path / "counts" / "counts.npz").stat().st_mtime_ns
    again = pplseq(*arguments)
    assert "counted already" in again.stderr and json.loads(again.stdout)["skipped"] is True
    assert (tmp_path / "counts" / "counts.npz").stat().st_mtime_ns == written
    for change, message in (
        (["--shard", "2/2"], "counts of another text or shard"),
        (["--max-lag", 4], "other settings .max_lag: 3, now 4"),
        (["--digits", "NUM"], "other settings .digits: None, now 'NUM'"),
        (["--max-vocabulary", 6], "other settings .max_vocabulary: None, now 6"),
        (["--unit", "article"], "other settings .unit"),
    ):
        result = pplseq(*arguments, *change, code=2)
        assert message.replace(" .", " (") in result.stderr and "--force" in result.stderr
    text.write_text(text.read_text() + "a c\n")
    assert "counts of another text or shard" in pplseq(*arguments, code=2).stderr
    pplseq(*arguments, "--force")
    assert load_counts(tmp_path / "counts") == count_lags(text, 3, shard=(1, 2))


@pytest.mark.parametrize("shard", ["0/3", "4/3", "2", "a/b", "1/-2", "1/0"])
def test_shards_that_are_none(text, tmp_path, shard):
    result = pplseq("count", text, "--max-lag", 3, "--out", tmp_path / "counts", "--shard", shard, code=2)
    assert "expected i/n" in result.stderr


def test_mistakes_are_one_line(text, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "one.txt").write_text("word\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    for source, options, message in (
        (tmp_path / "empty.txt", [], "the text is empty"),
        (tmp_path / "one.txt", ["--no-eos"], "no two words share a line"),
        (tmp_path / "absent.txt", [], "no such file"),
        (text, ["--vocabulary", words], "text.txt, line 1: the word 'b0' is not in the vocabulary"),
        (text, ["--digits", "0"], "digits: expected a word without digits"),
    ):
        result = pplseq("count", source, "--max-lag", 2, "--out", tmp_path / "counts", *options, code=2)
        assert message in result.stderr and result.stderr.count("\n") == 1
        assert not (tmp_path / "counts").exists()
    result = pplseq("count", text, "--max-lag", 2, "--out", tmp_path / "full", code=2)
    assert "something else than lag counts, which is not replaced; choose another folder" in result.stderr
    result = pplseq("count", text, "--max-lag", 2, "--out", tmp_path / "full", "--force", code=2)
    assert "something else than lag counts" in result.stderr


def test_a_full_disk(text, tmp_path, monkeypatch):
    def fail(*arguments, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    result = pplseq("count", text, "--max-lag", 2, "--out", tmp_path / "counts", code=1)
    assert "could not save" in result.stderr and "No space left" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_ctrl_c_leaves_nothing(tmp_path):
    """Interrupted while it waits for more of its input, with some of it counted."""
    script = "from pplseq.cli import main; main()"
    command = [sys.executable, "-c", script, "count", "-", "--max-lag", "2", "--out", str(tmp_path / "counts")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"a b c\n" * 1_000_000)  # returns when most of it was read
    process.stdin.flush()
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130 and errors.decode().strip() == "Interrupted"
    assert list(tmp_path.iterdir()) == []


def test_counts_of_a_text_in_memory_meet_those_of_a_file(text, tmp_path):
    """The same lines under two names have different origins, and add up."""
    pplseq("count", text, "--max-lag", 2, "--out", tmp_path / "counts")
    counts = load_counts(tmp_path / "counts")
    memory = LagCounts.from_text(Text.from_lines([line.split() for line in LINES], counts.vocabulary), 2)
    assert memory == counts
    assert LagCounts.merge(memory, counts).num_tokens == 2 * counts.num_tokens
