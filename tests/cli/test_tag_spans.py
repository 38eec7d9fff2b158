"""`pplseq` with chunks and entities: further columns as features, F1 of spans, files as CoNLL-2003's."""

import json

from click.testing import CliRunner
from support.commands import pplseq

from pplseq.cli import main

# word, part of speech, entity in IOB1: two persons side by side are told apart by B alone
SENTENCES = ["Ann/NP/I-PER Bob/NP/B-PER went/VB/O to/TO/O New/NP/I-LOC York/NP/I-LOC", "the/DT/O dog/NN/O barks/VB/O"]
LINES = "\n\n".join("\n".join(token.replace("/", " ") for token in text.split()) for text in SENTENCES * 8) + "\n"


def test_entities_from_training_to_scores(tmp_path):
    text, run = tmp_path / "train.txt", tmp_path / "run"
    text.write_text(LINES)
    options = ["--system", "spans", "--column", 2, "--set", "word_columns=[1]", "--set", "max_iterations=30", "--out", run]
    pplseq("train", "tagger", text, *options)
    shown = pplseq("tag", "eval", run, text).stdout
    assert "all spans" in shown and "PER" in shown
    found = json.loads(pplseq("tag", "eval", run, text, "--json").stdout)["spans"]
    assert found["f1"] == 1.0 and found["num_gold"] == 24 and found["kinds"]["PER"]["num_correct"] == 16
    assert "words are compared in the scheme bio" in shown
    whole = json.loads(pplseq("tag", "eval", run, text, "--json").stdout)
    assert whole["all"]["accuracy"] == whole["sentences"]["accuracy"] == 1.0 and whole["spans"]["scheme"] == "bio"
    assert "the model writes spans in the scheme bio" in pplseq("tag", "run", run, text).stderr
    # the file again, with the tags in the scheme that was learned
    tagged = pplseq("tag", "run", run, text).stdout.splitlines()
    assert tagged[:6] == ["Ann NP B-PER", "Bob NP B-PER", "went VB O", "to TO O", "New NP B-LOC", "York NP I-LOC"]
    # words alone lack what the model looks at
    refused = CliRunner().invoke(main, ["tag", "run", str(run)], input="Ann went\n")
    assert refused.exit_code != 0 and "no columns 1 beside the words" in refused.output + str(refused.exception)
    short = tmp_path / "short.txt"
    short.write_text("Ann\nwent\n")
    refused = pplseq("tag", "run", run, short, "--format", "columns", code=2)
    assert "expected a column 1" in refused.stderr
