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


@pytest.fixture
def morphology(scripts, tmp_path, monkeypatch):
    import ewt_morphology

    monkeypatch.setattr(ewt_morphology, "ROOT", tmp_path)
    folder = tmp_path / "ud_english_ewt"
    for name, text in (("train", conllu(WORDS) * 6), ("dev", conllu(WORDS) + conllu((*WORDS[:2], ("barked", "VERB", "VBD"))))):
        lemmas = {word: lemma for word, lemma in zip(("The", "dog", "barks", "."), ("the", "dog", "bark", "."), strict=True)}
        for word, lemma in lemmas.items():
            text = text.replace(f"\t{word}\t_\t", f"\t{word}\t{lemma}\t")
        (folder / f"en_ewt-ud-{name}.conllu").write_text("# newdoc\n" + text)
    return ewt_morphology


def run(monkeypatch, script, *arguments):
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    script.main()


def results(tmp_path, name):
    return json.loads((tmp_path / "results" / f"{name}.json").read_text())["results"]


def test_rows_are_made_once(scripts, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn.metrics")  # for V-measure
    table = scripts[0]
    with pytest.raises(SystemExit, match="no such setting"):
        run(monkeypatch, table, "--systems", "hmm no_such=1")
    assert not (tmp_path / "results" / "ewt_tagging.json").exists()
    with pytest.raises(SystemExit, match="upos hmm no_such=1 failed"):
        run(monkeypatch, table, "--systems", "hmm no_such=1", "most-frequent")
    found = results(tmp_path, "ewt_tagging")
    assert set(found) == {"upos", "xpos"}
    for rows in found.values():
        assert rows["most-frequent"]["known"] == 1.0 and rows["most-frequent"]["accuracy"] in (1.0, 5 / 6)
        assert set(rows) == {"most-frequent"}, "a system that fails does not lose the others"

    def not_again(system, *parts):
        assert system != "most-frequent"
        return made(system, *parts)

    made = table.run_one
    monkeypatch.setattr(table, "run_one", not_again)
    run(monkeypatch, table, "--systems", "most-frequent", "unsupervised num_states=3", "--columns", "upos")
    again = results(tmp_path, "ewt_tagging")
    assert again["xpos"] == found["xpos"] and again["upos"]["most-frequent"] == found["upos"]["most-frequent"]
    assert 0 <= again["upos"]["unsupervised num_states=3"]["clusters"]["v_measure"] <= 1
    shown = capsys.readouterr().out
    assert "XPOS" in shown


def test_kept_taggers_are_not_trained_again(scripts, tmp_path, monkeypatch):
    table = scripts[0]
    arguments = ["--systems", "hmm", "--columns", "upos", "--runs", str(tmp_path / "runs")]
    run(monkeypatch, table, *arguments, "--part", "dev")
    monkeypatch.setattr(table, "make", lambda system: pytest.fail("trained again"))
    run(monkeypatch, table, *arguments)
    rows = [results(tmp_path, name)["upos"]["hmm"] for name in ("ewt_tagging_dev", "ewt_tagging")]
    assert rows[0]["train_seconds"] == rows[1]["train_seconds"] and rows[0]["accuracy"] == 1.0
    product = """product members='["hmm","hmm"]'"""
    run(monkeypatch, table, *arguments[2:], "--systems", product)
    row = results(tmp_path, "ewt_tagging")["upos"][product]
    assert row["train_seconds"] == 2 * rows[1]["train_seconds"] and row["accuracy"] == rows[1]["accuracy"]


def test_morphology_on_gold_tokens_and_on_raw_text(morphology, tmp_path, monkeypatch, capsys):
    run(monkeypatch, morphology, "--systems", "morphology num_substates=1", "--runs", str(tmp_path / "runs"))
    row = results(tmp_path, "ewt_morphology")["dev"]["morphology num_substates=1"]
    gold, raw = row["gold tokens"], row["raw text"]
    assert [gold[name] for name in ("tokens", "sentences", "words", "upos", "lemmas")] == [1, 1, 1, 1, 1]
    assert gold["xpos"] == gold["alltags"] == 6 / 7  # barked is VBD, which training has not
    assert set(raw) == set(morphology.METRICS) and raw["words"] > 0.5 and row["tags"] == 4
    monkeypatch.setattr("pplseq.recipes.taggers.systems.train_tagger", lambda *_, **__: pytest.fail("trained again"))
    run(monkeypatch, morphology, "--part", "test", "--systems", "morphology num_substates=1", "--runs", str(tmp_path / "runs"))
    assert set(results(tmp_path, "ewt_morphology")["test"]) == {"morphology num_substates=1"}
    assert "gold tokens" in capsys.readouterr().out


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
