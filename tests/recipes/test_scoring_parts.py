"""Scores by the workers of a cluster: those of one process, from files of every kind."""

import gzip
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from pplseq import HMM
from pplseq.cli import main
from pplseq.data.text import Text, read_text
from pplseq.data.text_parts import files_of, parts_of, read_part
from pplseq.data.vocabulary import Vocabulary
from pplseq.recipes.text.parts import score_on
from pplseq.runs.cluster import PartFailed
from pplseq.runs.evaluation import score_sentences

pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("default")  # Dask's own

LINES = ["the cat saw a dog", "", "a dog", "unheard words the cat", "", "the"] * 7


@pytest.fixture(params=[True, False], ids=["eos", "no eos"])
def model(request):
    words = ["<unk>", "the", "cat", "saw", "a", "dog"] + ["<eos>"] * request.param
    torch.manual_seed(0)
    model = HMM(3, num_words=len(words)).double()
    model.vocabulary = Vocabulary(tuple(words))
    return model


@pytest.mark.parametrize("part_bytes", [30, 10**6])
def test_the_sums_are_those_of_one_process(here, model, tmp_path, part_bytes):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES))
    expected = score_sentences(model, read_text(path, model.vocabulary))
    found = score_on(here, model, path, part_bytes=part_bytes)
    assert found.log_prob == pytest.approx(expected.log_prob, rel=1e-12)
    assert found.known_log_prob == pytest.approx(expected.known_log_prob, rel=1e-12)
    for name in ("num_tokens", "num_unknown", "num_streams"):
        assert getattr(found, name) == getattr(expected, name)


def test_files_by_a_pattern_and_parts_that_fail(here, model, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(LINES[:9]) + "\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\n".join(LINES[9:]).upper().encode()))
    whole = Text.from_lines([line.split() for line in LINES], model.vocabulary)
    found = score_on(here, model, tmp_path / "*.txt*", lower=True, part_bytes=20)
    assert found.log_prob == pytest.approx(score_sentences(model, whole).log_prob, rel=1e-12)
    (tmp_path / "c.txt").write_bytes(b"the \xff\n")
    with pytest.raises(PartFailed, match=r"1 of 3 parts failed: .*c\.txt.*not UTF-8"):
        score_on(here, model, tmp_path / "*.txt*", lower=True)
    (tmp_path / "empty").write_text("\n")
    if model.vocabulary.eos_id is None:
        with pytest.raises(ValueError, match="the text is empty"):
            score_on(here, model, tmp_path / "empty")
    else:
        assert score_on(here, model, tmp_path / "empty").num_tokens == 1


def test_a_part_is_its_lines(tmp_path):
    path, vocabulary = tmp_path / "text.txt", Vocabulary(("<unk>", "the", "<eos>"))
    path.write_text("\ufeffthe\r\n\nThe the")
    [part] = parts_of(files_of(path))
    text = read_part(part, vocabulary, lower=True)
    assert np.array_equal(text.tokens, read_text(path, vocabulary, lower=True).tokens)
    assert text.num_unknown == 0 and text.num_lines == 3


@pytest.mark.slow
def test_the_command(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES * 20))
    run = str(tmp_path / "run")
    train = ["train", "hmm", str(path), "--num-states", "4", "--epochs", "2", "--out", run]
    assert CliRunner().invoke(main, train).exit_code == 0
    ask = ["evaluate", run, str(path), "--device", "cpu"]
    alone = CliRunner().invoke(main, [*ask, "--protocol", "sentence"])
    shared = CliRunner().invoke(main, [*ask, "--cluster", "local:2", "--part-bytes", "200"])
    assert shared.exit_code == 0, shared.output
    assert "2 workers; dashboard: http://" in shared.stderr
    expected, found = (json.loads(result.stdout) for result in (alone, shared))
    assert found["log_prob"] == pytest.approx(expected["log_prob"], rel=1e-6)
    assert (found["num_tokens"], found["protocol"]) == (expected["num_tokens"], "sentence")
    for more in (["--protocol", "carried"], ["--streams", "4"], ["--per-token", str(tmp_path / "t")], ["--split", "test"]):
        refused = CliRunner().invoke(main, [*ask, "--cluster", "local:2", *more])
        assert refused.exit_code == 2 and "on a cluster every line" in refused.output
    refused = CliRunner().invoke(main, ["evaluate", run, str(tmp_path), "--cluster", "local:1"])
    assert refused.exit_code == 2 and "the workers read files" in refused.output
