"""Questions of the command line to an IOHMM that was saved from Python: plain formulas read its tables, code is not run."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from pplseq import IOHMM
from pplseq.cli import main

pandas = pytest.importorskip("pandas")
pytest.importorskip("formulaic")
from pplseq.models.iohmm.formulas import Formulas  # noqa: E402


def call(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def answers(*arguments):
    return [json.loads(line) for line in call(*arguments).stdout.splitlines()]


def frame(rows=30):
    random = np.random.default_rng(0)
    table = pandas.DataFrame({"trip": np.repeat(["a", "b"], rows // 2), "speed": random.normal(size=rows)})
    table["load"] = random.normal(size=rows)
    table["power"] = 2 * table["speed"] + random.normal(size=rows)
    table["road"] = np.where(random.normal(size=rows) + table["speed"] > 0, "r", "s")
    return table


def saved(folder, text, transition=None, outputs=("normal",), data=None):
    formulas = Formulas(text, transition=transition, sequence_id="trip")
    formulas.read(frame() if data is None else data)
    model = IOHMM(2, outputs=list(outputs), **formulas.options).fit(frame() if data is None else data, max_iterations=3, seed=0)
    model.save(folder)
    return model


def test_questions_are_those_of_the_model(tmp_path):
    folder, table = tmp_path / "saved", frame()
    model = saved(folder, "power + road ~ speed", "~ load", ("normal", "categorical"))
    table.to_csv(tmp_path / "steps.csv", index=False)
    found = answers("query", folder, "predict", tmp_path / "steps.csv")
    told = model.one_step(table)
    assert [answer["id"] for answer in found] == ["a", "b"] and list(found[0]["outputs"][0]) == ["power", "road=r", "road=s"]
    for answer, rows in zip(found, told.outputs, strict=True):
        np.testing.assert_allclose([list(step.values()) for step in answer["outputs"]], rows, rtol=1e-9)
    paths = [answer["path"] for answer in answers("query", folder, "decode", tmp_path / "steps.csv")]
    assert paths == [path.tolist() for path in model.decode(table)]
    scores = [answer["log_prob"] for answer in answers("query", folder, "score", tmp_path / "steps.csv")]
    assert sum(scores) == pytest.approx(model.score(table))
    future = table.groupby("trip").head(3)
    future.drop(columns=["power", "road"]).to_csv(tmp_path / "future.tsv", sep="\t", index=False)
    ahead = answers("query", folder, "forecast", tmp_path / "steps.csv", "--future", tmp_path / "future.tsv", "--steps", 2)
    means = model.forecast(table, future_inputs=table.groupby("trip").head(2)).means
    np.testing.assert_allclose([[list(s.values()) for s in answer["outputs"]] for answer in ahead], means, rtol=1e-9)
    produced = answers("query", folder, "produce", tmp_path / "future.tsv")
    assert [len(answer["outputs"]) for answer in produced] == [3, 3]
    assert "give those that are to come" in call("query", folder, "forecast", tmp_path / "steps.csv", code=2).output
    table.drop(columns="speed").to_csv(tmp_path / "less.csv", index=False)
    assert "less.csv: formulas: " in call("query", folder, "predict", tmp_path / "less.csv", code=2).output
    assert "effects is about runs of" in call("query", folder, "effects", code=2).output


def test_it_is_evaluated_on_a_table(tmp_path):
    table = frame()
    table.loc[3, "power"] = np.nan
    model = saved(tmp_path / "saved", "power + road ~ speed", "~ load", ("normal", "categorical"), data=table)
    table.to_csv(tmp_path / "steps.csv", index=False)
    found, = answers("evaluate", tmp_path / "saved", tmp_path / "steps.csv")
    assert (found["sequences"], found["targets"]) == (2, 30)
    assert found["log_likelihood"] == pytest.approx(model.score(table))
    assert found["nats_per_target"] == pytest.approx(-model.score(table) / 30)
    inputs = table[["trip", "speed", "load"]]
    for name, told in (("prediction", model.one_step(table)), ("production", model.open_loop(inputs))):
        rows = np.concatenate(told.outputs)
        root = np.sqrt(np.nanmean((rows[:, 0] - table["power"]) ** 2))
        assert found[name]["root_mean_squared_error"] == {"power": pytest.approx(root)}
        assert found[name]["classes"]["road"]["accuracy"] == np.mean((rows[:, 1] < rows[:, 2]) == (table["road"] == "s"))
    saved(tmp_path / "alone", "power ~ 1")
    found, = answers("evaluate", tmp_path / "alone", tmp_path / "steps.csv")
    assert "production" not in found and list(found["prediction"]["root_mean_squared_error"]) == ["power"]
    assert "give DATA" in call("evaluate", tmp_path / "saved", code=2).output


def test_without_inputs_it_looks_ahead_as_far_as_told(tmp_path):
    model = saved(tmp_path / "saved", "power ~ 1")
    frame().to_csv(tmp_path / "steps.csv", index=False)
    ahead = answers("query", tmp_path / "saved", "forecast", tmp_path / "steps.csv", "--steps", 2)
    means = model.forecast(frame(), 2).means
    np.testing.assert_allclose([[list(s.values()) for s in answer["outputs"]] for answer in ahead], means, rtol=1e-9)
    said = call("query", tmp_path / "saved", "produce", tmp_path / "steps.csv", code=2).output
    assert "no inputs, so produce has no answer" in said


def test_what_a_folder_does_not_say_and_what_is_not_run(tmp_path):
    frame().to_csv(tmp_path / "steps.csv", index=False)
    IOHMM(1, num_inputs=0, outputs="gaussian", num_outputs=1).fit(np.arange(9.0) % 4, max_iterations=1).save(tmp_path / "bare")
    said = call("query", tmp_path / "bare", "predict", tmp_path / "steps.csv", code=2).output
    assert "without formulas does not say which columns it reads" in said and "pplseq.load" in said
    said = call("evaluate", tmp_path / "bare", tmp_path / "steps.csv", code=2).output
    assert "without formulas does not say which columns it reads" in said
    saved(tmp_path / "code", "power ~ np.exp(speed)", data=frame())
    for asked in (["query", tmp_path / "code", "predict"], ["evaluate", tmp_path / "code"]):
        said = call(*asked, tmp_path / "steps.csv", code=2).output
        assert "'np.exp(speed)' are Python code, which this command does not run" in said
    assert "no" in call("query", tmp_path / "nothing", "predict", tmp_path / "steps.csv", code=2).output
