"""The table of languages, with few of them; the languages and their strings are what they say."""

import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def languages(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(SCRIPTS / "reproduce"), str(SCRIPTS / "bench"), *sys.path])
    import languages
    import record

    for module in (languages, record):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    return languages


def test_rows_of_languages(languages, monkeypatch, tmp_path, capsys):
    few = {name: languages.DEVELOPMENT[name] for name in ("even a, odd b", "abc within")}
    monkeypatch.setitem(languages.SETS, "development", few)
    monkeypatch.setattr(languages, "RANDOM", ((5, 300),))
    for part in ("development", "random"):
        monkeypatch.setattr(sys, "argv", ["script", "--part", part, "--methods", "EDSM", "learner", "--draws", "2"])
        languages.main()
    results = json.loads((tmp_path / "results" / "languages.json").read_text())["results"]
    rows = results["development, 200 strings"]
    assert rows["languages"]["even a, odd b"]["learner"] == ["+4", "+4"] and rows["summary"]["learner"]["of"] == 4
    assert results["random"]["summary"]["learner"]["accuracy"] == [1.0, 1.0]
    assert "(4, 200 strings) EDSM: +4 learner: +4" in capsys.readouterr().out


def test_languages_and_strings(languages):
    for names in languages.SETS.values():
        assert len(names) == 28
    assert not set(map(str, languages.DEVELOPMENT.values())) & set(map(str, languages.HELD_OUT.values()))
    six = languages.automaton_of(*languages.HELD_OUT["binary by 6"]).minimise()
    assert [six.accepts(f"{n:b}") for n in range(1, 30)] == [n % 6 == 0 for n in range(1, 30)]
    xor = languages.automaton_of(*languages.HELD_OUT["b by 3 xor ends in a"])
    strings, labels = languages.draw_strings(xor, 50, seed=1)
    assert len(set(strings)) == 50 and sum(labels) == 25 and max(map(len, strings)) <= languages.MAX_LENGTH
    assert labels == [(s.count("b") % 3 == 0) != s.endswith("a") for s in strings]
