"""Files without --format: read as the text that a run was trained on where they may be so, and never as words in silence."""

import json

import pytest
from support.commands import pplseq
from support.slow_streams import slowly

# chunks in the third column, tags in lower case: nothing about such lines says that they are columns
SENTENCES = [
    [("the", "dt", "b-np"), ("dog", "nn", "i-np"), ("barks", "vbz", "b-vp")],
    [("a", "dt", "b-np"), ("cat", "nn", "i-np")],
] * 3


def columns(sentences=SENTENCES, num=3, between=" "):
    return "".join("".join(between.join(row[:num]) + "\n" for row in sentence) + "\n" for sentence in sentences)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    write = {
        "columns": (columns(), "columns", "--column", 2),
        "tabs": (columns(between="\t").replace("cat", "big cat"), "tabs", "--column", 2),
        "slashes": ("\n".join(" ".join(f"{w}/{c}" for w, _, c in s) for s in SENTENCES) + "\n", "word_tag", "--separator", "/"),
    }
    for name, (text, form, *options) in write.items():
        (folder / f"{name}.txt").write_text(text)
        arguments = ("--system", "hmm", "--format", form, *options, "--out", folder / name)
        pplseq("train", "tagger", folder / f"{name}.txt", *arguments)
    return folder


@pytest.mark.parametrize("name", ["columns", "tabs", "slashes"])
def test_the_training_text_is_read_as_it_was_in_training(folder, name):
    text = (folder / f"{name}.txt").read_text()
    assert pplseq("tag", "run", folder / name, folder / f"{name}.txt").stdout == text
    (scores,) = map(json.loads, pplseq("tag", "eval", folder / name, folder / f"{name}.txt", "--json").stdout.splitlines())
    assert (scores["all"]["correct"], scores["all"]["num"]) == (15, 15)
    (scores,) = map(json.loads, pplseq("evaluate", folder / name, folder / f"{name}.txt").stdout.splitlines())
    assert scores["all"]["num"] == 15


def test_columns_that_lack_the_tags(folder):
    """Two columns of three: many lines of as many columns, for a model of columns."""
    path = folder / "two.txt"
    path.write_text(columns(num=2))
    found = pplseq("tag", "run", folder / "columns", path)
    assert found.stdout == columns() and "read as columns" in found.stderr


@pytest.mark.parametrize("name", ["columns", "slashes"])
def test_sentences_are_words(folder, name):
    path, between = folder / "sentences.txt", "/" if name == "slashes" else "_"
    for text in ("the dog barks\na cat\n", "the dog\n", "dog dt\n", "barks .\nbarks .\n", "the dog\na cat\n"):
        path.write_text(text)
        for found in (pplseq("tag", "run", folder / name, path), pplseq("tag", "run", folder / name, input=text)):
            lines = [[token.rpartition(between)[0] for token in line.split()] for line in found.stdout.splitlines()]
            assert lines == [line.split() for line in text.splitlines()]


def test_standard_input_that_is_columns_is_refused(folder):
    for name, text in (("columns", columns()), ("columns", columns(num=2)), ("tabs", columns(num=2, between="\t"))):
        found = pplseq("tag", "run", folder / name, input=text, code=2)
        assert f"look like columns, a word and its tags a line; say --format {name}, or --format words" in found.stderr
    assert pplseq("tag", "run", folder / "columns", "--format", "columns", input=columns()).stdout == columns()


def test_a_model_of_another_format_refuses_columns(folder):
    path = folder / "columns.txt"
    for text, given in ((path, None), ("-", columns())):
        said = pplseq("tag", "run", folder / "slashes", text, input=given, code=2).stderr
        assert "lines of as many columns each, tags of the model in column 2 (the first is 0)" in said
        assert "trained on the format word_tag; say --format columns and --column N, or --format words" in said
    found = pplseq("tag", "run", folder / "slashes", path, "--format", "columns", "--column", "2").stdout
    assert found == columns()
    assert "Choose the text's column with --column" in pplseq("tag", "eval", folder / "slashes", path, code=2).stderr


def test_questions_are_about_sentences(folder):
    for text, given in (("-", slowly([columns().encode()])), (folder / "columns.txt", None)):
        said = pplseq("query", folder / "columns", "tag", text, code=2, input=given).stderr
        assert "lines: expected sentences" in said and "look like columns" in said
    lines = '{"text": "the dog"}\n' * 6 + "the dog barks\n"
    assert len(pplseq("query", folder / "columns", "tag", "-", input=lines).stdout.splitlines()) == 7
