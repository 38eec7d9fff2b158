"""The CoNLL-2000 table, on a few made-up sentences."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pplseq.data import Vocabulary
from pplseq.models import VLHMM

SCRIPTS = Path(__file__).parents[2] / "scripts"
TEXT = """\
The DT B-NP
dog NN I-NP
barks VBZ B-VP
. . O

Dogs NNS B-NP
see VBP B-VP
2,500 CD B-NP
cats NNS I-NP
. . O

"""


@pytest.fixture
def script(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(SCRIPTS / "reproduce"), str(SCRIPTS / "bench"), *sys.path])
    import conll2000_tagging
    import record

    (tmp_path / "conll2000").mkdir()
    (tmp_path / "conll2000" / "train.txt").write_text(TEXT * 10)
    (tmp_path / "conll2000" / "test.txt").write_text(TEXT + "Mice NNS B-NP\n")
    monkeypatch.setenv("PPLSEQ_DATA", str(tmp_path))
    for module in (conll2000_tagging, record):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    return conll2000_tagging


def test_words_as_in_the_language_modelling_text(script):
    forms = script.LanguageModellingForms(Vocabulary.build([["the", "$", "n't", "N", "<unk>"]]))
    words = ["The", "$", ",", "n't", "2,500", "1990s", "10-K", "3.5", "--", "12:30"]
    assert [forms(word) for word in words] == ["the", "$", None, "n't", "N", "1990s", "10-k", "N", None, "N"]


def test_rows_of_a_table_are_added_to_a_file(script, tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    vocabulary = Vocabulary.build([["the", "dog", "barks", "see", "N", "<unk>"]])
    blocks = torch.arange(len(vocabulary)) % 2
    model = VLHMM(6, num_words=len(vocabulary), blocks=blocks, hidden_size=8, reset_id=vocabulary.eos_id)
    model.vocabulary = vocabulary
    model.save(tmp_path / "vlhmm")
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).normal(size=(len(vocabulary), 3)))
    vocabulary.save(tmp_path / "vocab.txt")
    given = ["--vlhmm", str(tmp_path / "vlhmm"), "--word2vec", str(tmp_path / "vectors.npy")]

    for more in ([], ["--systems", "memm", "memm+vlhmm"]):
        monkeypatch.setattr(sys, "argv", ["conll2000_tagging.py", *given, *more])
        script.main()
    entry = json.loads((tmp_path / "results" / "conll2000_tagging.json").read_text())
    assert list(entry["results"]) == ["crf", "crf+word2vec", "crf+vlhmm", "memm", "memm+vlhmm"]
    for name, row in entry["results"].items():
        assert row["known"] == 100.0 and row["accuracy"] in (100.0, 90.0)
        assert ("p_against_plain" in row) == ("+" in name)
    monkeypatch.setattr(sys, "argv", ["conll2000_tagging.py", "--held-out", "--systems", "hmm order=2"])
    script.main()
    found = json.loads((tmp_path / "results" / "conll2000_tagging_held_out.json").read_text())
    assert found["protocol"].startswith("nine tenths of CoNLL-2000 train to the tenth")
    rows = found["results"]
    assert list(rows) == ["hmm order=2"] and rows["hmm order=2"]["accuracy"] == 100.0
    monkeypatch.setattr(sys, "argv", ["conll2000_tagging.py", "--systems", "crf+lds"])
    with pytest.raises(SystemExit):
        script.main()
    assert "give --lds" in capsys.readouterr().err
