"""The tables of Tomita's languages and of long-range dependency, with few restarts."""

import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(SCRIPTS / "reproduce"), str(SCRIPTS / "bench"), *sys.path])
    import long_range
    import record
    import tomita

    for module in (long_range, record, tomita):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    return tomita, long_range


def run(monkeypatch, script, *arguments):
    monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
    script.main()


def test_rows_of_tomitas_languages(scripts, monkeypatch, tmp_path, capsys):
    pytest.importorskip("aalpy")
    few = ("--draws", 2, "--trials", 6, "--iterations", 60)
    monkeypatch.setattr(scripts[0], "SIZES", range(2, 4))
    run(monkeypatch, scripts[0], "--grammars", 1, 6, "--seeds", 100, *few)
    path = tmp_path / "results" / "tomita.json"
    results = json.loads(path.read_text())["results"]
    assert set(results) == {"paper", "recipe", "repair", "rpni"}
    for part in ("recipe", "repair"):
        row = results[part]["100"]["6"]
        assert row["exact"] == {"20": 1.0, "50": 1.0} and row["n"] == [3, 3] and min(row["right_seeds"]) > 0
    assert results["paper"]["1"]["first"]["best"] == 1.0 and results["paper"]["1"]["repetitions"]["runs"] == 2
    assert results["rpni"]["6"]["exact"] is True
    # rows that are there stay, others are added
    run(monkeypatch, scripts[0], "--grammars", 2, "--parts", "rpni")
    assert set(json.loads(path.read_text())["results"]["rpni"]) == {"1", "2", "6"}
    capsys.readouterr()
    run(monkeypatch, scripts[0], "--table")
    printed = capsys.readouterr().out
    assert "100 restarts as one batch, automata repaired" in printed and "The paper's protocol" in printed
    assert (tmp_path / "results" / "tomita.md").read_text().count("\n| 6 |") == 4


def test_balanced_accuracy(scripts):
    import torch

    truth = torch.tensor([True, False, False, False])
    assert scripts[0].balanced_accuracy(torch.zeros(4, dtype=torch.bool), truth) == 0.5
    assert scripts[0].balanced_accuracy(torch.tensor([True, True, False, False]), truth) == pytest.approx(5 / 6)


def test_rows_of_long_range_dependency(scripts, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(scripts[1], "NUM_TEST", 50)
    run(monkeypatch, scripts[1], "--lengths", 5, 12, "--seeds", 20, "--iterations", 15, "--network-seconds", 0.02)
    results = json.loads((tmp_path / "results" / "long_range.json").read_text())["results"]
    assert results["12"]["latch"]["em"]["share"] == 1.0
    assert results["12"]["latch"]["em"]["exact"] is True and results["12"]["latch"]["em"]["accuracy"] == 1.0
    assert 0.0 <= results["5"]["lstm"]["accuracy"] <= 1.0
    assert "| 12 | latch, em | 1.000 | 1.000 | True |" in capsys.readouterr().out
