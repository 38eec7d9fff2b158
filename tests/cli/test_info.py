"""`pplseq info` of every kind of data and of every kind of run."""

import json
import math

import pytest
import torch
from click.testing import CliRunner

from pplseq import evaluate
from pplseq.cli import main
from pplseq.models import IOHMM, LDS
from pplseq.recipes.recipe import RECIPES, Recipe

TAGGED = "the_DET dog_NOUN barks_VERB\na_DET cat_NOUN sleeps\n"
TABLE = "id,a,y\n1,0.1,1.0\n1,0.3,2.0\n1,0.2,1.5\n2,0.5,0.5\n2,0.1,\n2,0.4,1.0\n"
COLUMNS = ["--sequence-id", "id", "--inputs", "a", "--outputs", "y"]
STRINGS = "+ 01\n- 1\n+ 0101\n- 0\n"


def pplseq(*arguments, code=0, text=None):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=text, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("info")
    for name, content in {"tagged.txt": TAGGED, "table.csv": TABLE, "strings.txt": STRINGS}.items():
        (folder / name).write_text(content)
    return folder


def about(*arguments):
    return json.loads(pplseq("info", *arguments, "--json"))


def test_every_model_has_something_to_say_of_data():
    for recipe in RECIPES.values():
        assert type(recipe).info is not Recipe.info or callable(recipe.training().info)


def test_tables(folder):
    found = about("lds", folder / "table.csv", *COLUMNS, "--num-states", 3)
    assert (found["sequences"], found["steps"], found["longest"], found["missing_outputs"]) == (2, 6, 3, 1)
    assert found["parameters"] == LDS(3, 1, num_inputs=1).num_free_parameters
    found = about("iohmm", folder / "table.csv", *COLUMNS, "--num-states", "2-3")
    assert found["outputs"] == ["y"] and found["parameters_by_states"].keys() == {"2", "3"}
    assert "missing outputs: 1" in pplseq("info", "iohmm", folder / "table.csv", *COLUMNS)
    assert "--outputs" in pplseq("info", "lds", folder / "table.csv", code=2)


def test_strings_and_sentences(folder):
    found = about("iohmm", folder / "strings.txt")
    assert found == {"strings": 4, "accepted": 2, "symbols": ["0", "1"], "longest": 4}
    found = about("tagger", folder / "tagged.txt")
    assert found["tags"] == {"DET": 2, "NOUN": 2, "VERB": 1}
    assert (found["words"], found["distinct_words"], found["untagged_words"]) == (6, 6, 1)


def test_counts(folder):
    pytest.importorskip("scipy")
    (folder / "text.txt").write_text("a b a\nb a\n")
    pplseq("count", folder / "text.txt", "--max-lag", 2, "--out", folder / "counts")
    found = about("text-lds", folder / "counts", "--num-states", 2)
    assert (found["num_words"], found["num_tokens"], found["lags"]) == (3, 7, 2) and found["pairs"] == [5, 3]


def test_runs_without_steps_say_how_they_ended(folder):
    (folder / "whole.txt").write_text(TAGGED.replace("sleeps", "sleeps_VERB"))
    pplseq("train", "tagger", folder / "whole.txt", "--system", "hmm", "--out", folder / "tagger")
    assert about(folder / "tagger")["status"]["status"] == "finished"
    pplseq("train", "iohmm", folder / "table.csv", *COLUMNS, "--num-restarts", 2, "--out", folder / "iohmm")
    found = about(folder / "iohmm")
    assert found["status"]["status"] == "finished" and found["summary"]["restarts"] == 2


def test_a_stream(folder):
    (folder / "words.txt").write_text("a b c\nb c\n")
    pplseq("personalize", f"ngram:{folder / 'words.txt'}", "--source", "cache", "--state", folder / "stream", text="a b\na\n")
    found = about(folder / "stream")
    assert found["model"] == "personalize" and found["lines"] == {"-": 2} and found["sources"][1] == "cache"
    assert "there is no evaluation of personalize" in pplseq("evaluate", folder / "stream", "x", code=2)


def test_strings_that_a_model_holds_impossible_are_counted(folder, monkeypatch):
    pplseq("train", "iohmm", folder / "strings.txt", "--num-states", "2", "--num-restarts", "5", "--out", folder / "language")
    monkeypatch.setattr(IOHMM, "classify", lambda *arguments: torch.tensor([[0.0, 1.0]] * 4).double())
    (found,) = evaluate(folder / "language", folder / "strings.txt")
    assert found["nats_per_target"] == math.inf and found["impossible"] == 2
