"""`--units characters | bytes`: a text without spaces is learned from, and every question answered in the model's units."""

import json

import pytest
from support.commands import pplseq
from support.grids import grid

from pplseq.data.vocabulary import split_line
from pplseq.recipes.text.readable import readable

LINES = [f"今日は天気が{word}ですね明日も{word}" for word in ("いい", "悪い", "寒い") * 6]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def answer(result):
    return json.loads(result.stdout.splitlines()[-1])


@grid({"kind": ["hmm", "ff", "text-lds"], "units": ["characters", "bytes"]})
def test_a_text_without_spaces(kind, units, text, tmp_path):
    run, counts, data, size = tmp_path / "run", tmp_path / "counts", text, len(split_line(LINES[0], units)) + 1
    if kind == "text-lds":
        data, options = counts, ["--num-states", 1, "--max-iterations", 1]
        found = pplseq("count", text, "--max-lag", 4, "--units", units, "--out", counts)
        assert answer(found)["num_tokens"] == size * len(LINES)
        other = "--vocabulary", counts, "--units", "words", "--out", tmp_path / "other"
        error = pplseq("count", text, "--max-lag", 4, *other, code=2)
        assert f"the vocabulary is of {units}" in error.output
    else:
        options = ["--epochs", 1, "--units", units, *(["--num-states", 2] if kind == "hmm" else ["--hidden-size", 2])]
    pplseq("train", kind, data, *options, "--out", run)
    assert answer(pplseq("evaluate", run, text))["num_tokens"] == size * len(LINES)
    found = answer(pplseq("query", run, "next-word", "-", input="今日は\n"))
    assert found["words"] == split_line("今日は", units) and found["unknown"] == [] and found["units"] == units
    assert readable(found).splitlines()[0] == "今日は"
    if kind == "hmm":
        assert answer(pplseq("query", run, "infill", "-", input='{"text": "今_は"}\n'))["gaps"][0]["position"] == len(
            split_line("今", units)
        )
        line = "continue", "-", "--length", "4-30", "--containing", "天"
        [drawn] = answer(pplseq("query", run, *line, input="今日は\n"))["continuations"]
        assert "天" in readable({"words": drawn["words"], "unknown": [], "units": units})
        found = answer(pplseq("personalize", run, "--stream", "-", input="今日は\n"))
        assert found["words"][:-1] == split_line("今日は", units)
        pplseq("report", run, "--sentence", "今日は")


def test_sources_and_clusters(text, tmp_path):
    found = answer(pplseq("personalize", f"ngram:{text}", "--units", "characters", "--stream", "-", input="今日は\n"))
    assert found["words"] == ["今", "日", "は", "<eos>"] and found["unknown"] == []
    pplseq("cluster", text, "--units", "characters", "--num-clusters", 3, "--out", tmp_path / "paths")
    assert "\t今\t" in (tmp_path / "paths").read_text(encoding="utf-8")
    assert "tagger does not read it" in pplseq("train", "tagger", text, "--units", "bytes", "--out", tmp_path, code=2).output
