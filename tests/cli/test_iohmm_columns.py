"""`pplseq train iohmm` on columns of different kinds: symbols beside numbers, a family for each output."""

import os
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.command_tables import lines, write
from support.commands import pplseq

from pplseq.models.iohmm.restarts.training import RestartTraining


def test_symbols_and_numbers_are_inputs_together(tmp_path):
    """A switch and a kind move the state, a number is the slope: as the same table with the symbols written as numbers."""
    rng, rows, state = np.random.default_rng(0), [], 0
    for _ in range(300):
        kind, switch, u = rng.choice(["low", "high", "off"]), rng.choice(["stay", "move"]), rng.normal(3, 2)
        state = 1 - state if switch == "move" else state
        y = [2, -2][state] * u + (kind == "high") * 5 + 0.1 * rng.normal()
        rows.append((kind, switch, u, y))
    table = write(tmp_path / "mixed.csv", rows, header="kind,switch,u,y")
    options = ["--outputs", "y", "--mealy", "--num-restarts", 4, "--num-states", 2]
    chosen = ["--inputs", "kind,switch,u", "--symbols", "kind,switch"]
    pplseq("train", "iohmm", table, *chosen, *options, "--out", tmp_path / "run")
    (found,) = lines(pplseq("evaluate", tmp_path / "run", table))
    codes = {"high": (0, 0), "low": (1, 0), "off": (0, 1)}
    numbers = [(*codes[kind], int(switch == "stay"), (u - np.mean([r[2] for r in rows])) / np.std([r[2] for r in rows]), y)
               for kind, switch, u, y in rows]  # fmt: skip
    plain = write(tmp_path / "numbers.csv", numbers, header="low,off,stay,u,y")
    pplseq("train", "iohmm", plain, "--inputs", "low,off,stay,u", "--raw", *options, "--out", tmp_path / "plain")
    (expected,) = lines(pplseq("evaluate", tmp_path / "plain", plain))
    assert found["log_likelihood"] == pytest.approx(expected["log_likelihood"], abs=1e-6)
    assert found["prediction"]["root_mean_squared_error"]["y"] < 2.5
    effects = lines(pplseq("query", tmp_path / "run", "effects", "--feature", "switch"))
    moves = {line["switch"]: np.array(line["transition"]) for line in effects}
    assert moves["stay"].diagonal().min() > 0.9 > 0.1 > moves["move"].diagonal().max()
    ahead = write(tmp_path / "ahead.csv", [("low", "stay", 1.0)], header="kind,switch,u")
    (line,) = lines(pplseq("query", tmp_path / "run", "forecast", table, "--future", ahead))
    assert abs(abs(line["outputs"][0]["y"]) - 2) < 0.5
    kinds = ["effects", "--feature", "kind", "--values", "0:1:2"]
    assert "all of which" in pplseq("query", tmp_path / "run", *kinds, code=2).stderr
    same = write(tmp_path / "same.csv", [("a", 1.0, 2.0), ("a", 2.0, 3.0)], header="k,u,y")
    told = ["--inputs", "k,u", "--symbols", "k", "--outputs", "y", "--out", tmp_path / "same"]
    assert "tells nothing" in pplseq("train", "iohmm", same, *told, code=2).stderr


def test_outputs_of_several_kinds(tmp_path, monkeypatch):
    """A count, a class and a number at once, a family a column; names in what is answered."""
    rng, rows = np.random.default_rng(2), []
    for name in range(3):
        for step in range(25):
            state, a = step // 8 % 2, rng.normal()
            rows.append((name, round(a, 3), rng.poisson([1, 7][state]), "rs"[state] if step else "", 3 * state + rng.normal()))
    data = write(tmp_path / "kinds.csv", rows, "id,a,stops,road,y")
    columns = ["--sequence-id", "id", "--inputs", "a", "--outputs", "stops,road,y", "--symbols", "road"]
    family = ["--family", "poisson,categorical,normal", "--mealy", "--num-restarts", 2, "--max-iterations", 20]
    pplseq("train", "iohmm", data, *columns, *family, "--out", tmp_path / "kinds")
    (answer, *_) = lines(pplseq("query", tmp_path / "kinds", "predict", data))
    assert list(answer["outputs"][0]) == ["stops", "road=r", "road=s", "y"] and len(answer["outputs"]) == 25
    assert answer["outputs"][3]["road=r"] + answer["outputs"][3]["road=s"] == pytest.approx(1)
    (found,) = lines(pplseq("evaluate", tmp_path / "kinds", data))
    assert set(found["prediction"]["root_mean_squared_error"]) == {"stops", "y"}
    assert found["prediction"]["classes"]["road"]["accuracy"] > 0.7
    step = RestartTraining.step

    def interrupted(training):
        if training.progress.step == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return step(training)

    monkeypatch.setattr(RestartTraining, "step", interrupted)
    pplseq("train", "iohmm", data, *columns, *family, "--out", tmp_path / "kinds_cut", code=130)
    monkeypatch.undo()
    assert [*tmp_path.glob("kinds_cut/size_*/last")] and not (tmp_path / "kinds_cut" / "best" / "model.safetensors").exists()
    pplseq("train", "iohmm", "--resume", tmp_path / "kinds_cut")
    whole, again = (load_file(tmp_path / name / "best" / "model.safetensors") for name in ("kinds", "kinds_cut"))
    assert whole.keys() == again.keys() and all(torch.equal(value, again[name]) for name, value in whole.items())
    bad = pplseq("train", "iohmm", data, *columns, "--family", "poisson,normal", "--out", tmp_path / "no", code=2)
    assert "one for each of the 3" in bad.output
    told = ["--family", "poisson", "--out", tmp_path / "no"]
    bad = pplseq("train", "iohmm", data, *columns[:6], "--outputs", "y", *told, code=2)
    assert "column 0 must hold counts" in bad.output and not (tmp_path / "no").exists()


def test_symbols_of_many_kinds_are_embedded(tmp_path):
    """Of two columns of symbols the one with many is embedded; unknown symbols are refused as they are without."""
    rng, rows, state = np.random.default_rng(0), [], 0
    strength = rng.permutation(np.linspace(-2, 2, 30))
    for step in range(240):
        state = step // 20 % 2
        site, switch, u = rng.integers(30), rng.choice(["on", "off"]), rng.normal(3, 2)
        y = [3 + strength[site], -strength[site]][state] + 0.5 * (switch == "on") + 0.2 * u + 0.2 * rng.normal()
        rows.append((f"site{site:02}", switch, round(u, 4), round(y, 4)))
    table = write(tmp_path / "sites.csv", rows, header="site,switch,u,y")
    told = ["--inputs", "site,switch,u", "--symbols", "site,switch", "--outputs", "y", "--mealy"]
    options = [*told, "--num-restarts", 1, "--max-iterations", 15]
    pplseq("train", "iohmm", table, *options, "--embed", 1, "--out", tmp_path / "run")
    pplseq("train", "iohmm", table, *options, "--out", tmp_path / "plain")
    (found,) = lines(pplseq("evaluate", tmp_path / "run", table))
    (plain,) = lines(pplseq("evaluate", tmp_path / "plain", table))
    (sizes,) = lines(pplseq("info", "iohmm", table, *told, "--embed", 1, "--json"))
    (plain_sizes,) = lines(pplseq("info", "iohmm", table, *told, "--json"))
    numbers = [each["parameters_by_states"]["2"] for each in (sizes, plain_sizes)]
    assert numbers[0] == numbers[1] - 2 * 28  # two matrices, of 2 times 29 numbers, of rank 1
    assert found["log_likelihood"] > plain["log_likelihood"] - 56
    effects = lines(pplseq("query", tmp_path / "run", "effects", "--feature", "site"))
    assert [line["site"] for line in effects] == [f"site{n:02}" for n in range(30)] and len(effects[0]["transition"]) == 2
    assert len(lines(pplseq("query", tmp_path / "run", "effects", "--feature", "u", "--values", "0:1:3"))) == 3
    ahead = write(tmp_path / "ahead.csv", [("site07", "on", 1.0)], header="site,switch,u")
    (line,) = lines(pplseq("query", tmp_path / "run", "forecast", table, "--future", ahead))
    assert abs(line["outputs"][0]["y"]) < 7
    for name in ("run", "plain"):
        new = write(tmp_path / "new.csv", [("site99", "on", 1.0, 2.0)], header="site,switch,u,y")
        assert "unknown symbol 'site99'" in pplseq("query", tmp_path / name, "decode", new, code=2).stderr
    assert "embed: it is about inputs that hold symbols" in pplseq(
        "train", "iohmm", table, "--inputs", "u", "--outputs", "y", "--embed", 2, "--out", tmp_path / "none", code=2
    ).stderr


def test_the_only_column_may_be_embedded(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"s{n}", [1.0, -1.0][n % 2] + 0.1 * rng.normal()) for n in rng.integers(12, size=200)]
    table = write(tmp_path / "one.csv", rows, header="s,y")
    told = ["--inputs", "s", "--symbols", "s", "--outputs", "y", "--mealy", "--num-states", 1, "--num-restarts", 2]
    pplseq("train", "iohmm", table, *told, "--embed", 1, "--out", tmp_path / "run")
    (found,) = lines(pplseq("evaluate", tmp_path / "run", table))
    assert found["prediction"]["root_mean_squared_error"]["y"] < 0.2
