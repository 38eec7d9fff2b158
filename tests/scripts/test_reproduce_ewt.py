"""The table of all taggers on EWT, and their benchmark, on a few made-up sentences."""

import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
WORDS = (("The", "DET", "DT"), ("dog", "NOUN", "NN"), ("barks", "VERB", "VBZ"), (".", "PUNCT", "."))


def conllu(words):
    rows = [f"{i}\t{word}\t_\t{upos}\t{xpos}\t_\t0\troot\t_\t_" for i, (word, upos, xpos) in enumerate(words, 1)]
    return "\n".join(rows) + "\n\n"


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(SCRIPTS / "reproduce"), str(SCRIPTS / "bench"), *sys.path])
    import ewt_tagging
    import record
    import tagging

    folder = tmp_path / "ud_english_ewt"
    folder.mkdir()
    for part, copies in (("train", 20), ("dev", 2)):
        (folder / f"en_ewt-ud-{part}.conllu").write_text(conllu(WORDS) * copies)
    (folder / "en_ewt-ud-test.conllu").write_text(conllu(WORDS) + conllu((*WORDS[:1], ("fox", "NOUN", "NN"))))
    monkeypatch.setenv("PPLSEQ_DATA", str(tmp_path))
    for module in (ewt_tagging, record, tagging):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    return ewt_tagging, tagging


def run(monkeypatch, script, *arguments):
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    script.main()


def results(tmp_path, name):
    return json.loads((tmp_path / "results" / f"{name}.json").read_text())["results"]


def test_rows_are_made_once(scripts, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn.metrics")  # for V-measure
    table = scripts[0]
    run(monkeypatch, table, "--systems", "most-frequent", "hmm no_such=1")
    found = results(tmp_path, "ewt_tagging")
    assert set(found) == {"upos", "xpos"}
    for rows in found.values():
        assert rows["most-frequent"]["known"] == 1.0 and rows["most-frequent"]["accuracy"] in (1.0, 5 / 6)
        assert "no such setting" in rows["hmm no_such=1"]["error"], "a system that fails does not lose the others"

    def not_again(system, train, test):
        assert system != "most-frequent"
        return made(system, train, test)

    made = table.run_one
    monkeypatch.setattr(table, "run_one", not_again)
    run(monkeypatch, table, "--systems", "most-frequent", "unsupervised num_states=3", "--columns", "upos")
    again = results(tmp_path, "ewt_tagging")
    assert again["xpos"] == found["xpos"] and again["upos"]["most-frequent"] == found["upos"]["most-frequent"]
    assert 0 <= again["upos"]["unsupervised num_states=3"]["clusters"]["v_measure"] <= 1
    shown = capsys.readouterr().out
    assert "XPOS" in shown and "hmm no_such=1 failed: " in shown


def test_semi_supervised_systems_see_some_tags(scripts):
    from pplseq.data.columns import TaggedSentence

    text = [TaggedSentence(("a",), ("X",))] * 20
    seen = scripts[0].training_text("semi-supervised seed=1", text)
    assert sum(s.tags == ("X",) for s in seen) == 2 and sum(s.tags == (None,) for s in seen) == 18
    assert scripts[0].training_text("hmm", text) is text


def test_speed_of_taggers(scripts, tmp_path, monkeypatch):
    bench = scripts[1]
    monkeypatch.setattr(bench, "LEAST", {"hmm": 0.5})
    run(monkeypatch, bench, "--systems", "hmm", "most-frequent", "--repeat", "1", "--sentences", "2")
    rows = results(tmp_path, "bench/tagging")["upos"]
    assert list(rows) == ["hmm", "most-frequent"] and all(row["tokens_per_second"] > 0 for row in rows.values())


def test_no_speed_of_wrong_taggers(scripts):
    with pytest.raises(SystemExit, match="no speed is reported"):
        scripts[1].check({"latent": 0.5})
    with pytest.raises(SystemExit, match="are one method"):
        scripts[1].check({"tnt": 0.95, "nltk-tnt": 0.94})
    scripts[1].check({"tnt": 0.9400, "nltk-tnt": 0.9405})
