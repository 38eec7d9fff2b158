"""`pplseq train lds` on a table, and the questions to its runs: answers are those of the model, in the table's units."""

import csv
import json
import re
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import pplseq
from pplseq.cli import main
from pplseq.models import LDS


def call(*arguments, code=0, text=None):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=text, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def answers(*arguments, **options):
    return [json.loads(line) for line in call(*arguments, **options).stdout.splitlines()]


def rows_of(seed, sequences=6, steps=60):
    """A damped oscillation pushed by an input, seen in two columns of very different units."""
    rng = np.random.default_rng(seed)
    turn = 0.97 * np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    rows = []
    for name in range(sequences):
        z = rng.normal(size=2)
        for _ in range(steps):
            u = rng.normal()
            z = turn @ z + np.array([0.5, 0.0]) * u + 0.1 * rng.normal(size=2)
            rows.append((f"s{name}", u, 1000 + 200 * (z[0] + 0.05 * rng.normal()), 0.01 * (z[1] + 0.05 * rng.normal())))
    return rows


def write(path, rows, header=("name", "u", "heat", "flow")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


TABLE = ["--sequence-id", "name", "--inputs", "u", "--outputs", "heat,flow", "--num-states", 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lds")
    rows = rows_of(0)
    rows[7] = (*rows[7][:2], "", rows[7][3])  # a value that is missing
    write(folder / "train.csv", rows)
    write(folder / "test.csv", rows_of(1, 3))
    return folder


@pytest.fixture(scope="module")
def run(folder):
    trained = call("train", "lds", folder / "train.csv", *TABLE, "--max-iterations", 30, "--out", folder / "run")
    summary = json.loads(trained.stdout)
    assert summary["steps"] <= 30 and summary["stop_reason"] in ("epochs", "converged")
    return folder / "run"


def test_predictions_beat_the_mean(run, folder):
    (found,) = answers("evaluate", run, folder / "test.csv")
    assert found["sequences"] == 3 and found["steps"] == 180
    errors, naive = (found[name]["root_mean_squared_error"] for name in ("prediction", "mean"))
    assert errors["heat"] < 0.3 * naive["heat"] and errors["flow"] < 0.3 * naive["flow"]
    scores = [answer["log_prob"] for answer in answers("query", run, "score", folder / "test.csv")]
    assert sum(scores) == pytest.approx(found["log_likelihood"]) == pytest.approx(-found["nats_per_step"] * 180)


def test_likelihoods_are_in_the_units_of_the_table(run, folder):
    """A model of raw columns with the same parameters, brought to units by hand, gives the same density."""
    columns = json.loads((run / "columns.json").read_text())
    model = LDS.load(run / "last")
    rows = rows_of(1, 1)
    x = np.array([row[2:] for row in rows])
    scale, mean = np.array(columns["scale"]), np.array(columns["mean"])
    u = (np.array([[row[1]] for row in rows]) - columns["input_mean"]) / columns["input_scale"]
    expected = model.score([(x - mean) / scale], inputs=[u]) - len(x) * np.log(scale).sum()
    write(folder / "one.csv", rows)
    assert answers("query", run, "score", folder / "one.csv")[0]["log_prob"] == pytest.approx(expected)


def test_forecasts_as_json_and_csv(run, folder):
    future = write(folder / "future.csv", [(f"s{n}", 0.5) for n in range(3) for _ in range(4)], ("name", "u"))
    found = answers(
        "query", run, "forecast", folder / "test.csv", "--future", future, "--csv", folder / "ahead.csv",
        "--png", folder / "ahead.png",
    )  # fmt: skip
    assert (folder / "ahead.png").read_bytes().startswith(b"\x89PNG")
    assert [answer["id"] for answer in found] == ["s0", "s1", "s2"] and len(found[0]["outputs"]) == 4
    with (folder / "ahead.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 and list(rows[0]) == ["name", "step", "heat", "flow", "heat_deviation", "flow_deviation"]
    assert float(rows[5]["heat"]) == found[1]["outputs"][1]["heat"]
    assert float(rows[5]["flow_deviation"]) == found[1]["deviations"][1]["flow"]
    # what comes is as uncertain as the model says: most of the truth lies within three deviations of one step ahead
    past = [row for n in range(3) for row in rows_of(1, 3)[60 * n : 60 * n + 50]]
    first = {name: rows_of(1, 3)[60 * n + 50] for n, name in enumerate(("s0", "s1", "s2"))}
    write(folder / "past.csv", past)
    write(folder / "next.csv", [(name, row[1]) for name, row in first.items()], ("name", "u"))
    for answer in answers("query", run, "forecast", folder / "past.csv", "--future", folder / "next.csv"):
        for place, column in enumerate(("heat", "flow"), 2):
            error = abs(answer["outputs"][0][column] - first[answer["id"]][place])
            assert error < 4 * answer["deviations"][0][column]
    for place, bad in enumerate([("s1", 0.5), ("s2", "x"), ("s3", 0.1)]):
        write(folder / f"bad{place}.csv", [("s0", 0.5), bad, ("s9", 0.1)], ("name", "u"))
        given = ("--future", folder / f"bad{place}.csv", "--csv", folder / "some.csv")
        told = [sorted(answer) for answer in answers("query", run, "forecast", folder / "test.csv", *given, code=1)]
        right, wrong = ["deviations", "id", "outputs"], ["error", "id"]
        assert told == [right, right if place == 0 else wrong, wrong]
        assert len((folder / "some.csv").read_text().splitlines()) == 1 + told.count(right)
    assert "needs" not in answers("query", run, "filter", folder / "test.csv")[0]
    assert "give those that are to come" in call("query", run, "forecast", folder / "test.csv", code=2).stderr


def test_the_summary_is_in_the_units_of_the_table(folder, tmp_path):
    command = ["train", "lds", folder / "test.csv", *TABLE, "--max-iterations", 40, "--tolerance", 0]
    (summary,) = answers(*command, "--validation", folder / "test.csv", "--out", tmp_path / "run")
    (found,) = answers("evaluate", tmp_path / "run", folder / "test.csv")
    assert summary["validation_nats_per_step"] == pytest.approx(found["nats_per_step"])
    assert summary["nats_per_step"] == pytest.approx(found["nats_per_step"], abs=0.05)


def test_states_and_gaps(run, folder):
    rows = rows_of(1, 1)
    truth = rows[20][2]
    rows[20] = (*rows[20][:2], "", rows[20][3])
    write(folder / "gap.csv", rows)
    (filled,) = answers("query", run, "reconstruct", folder / "gap.csv")
    assert abs(filled["outputs"][20]["heat"] - truth) < 150  # of a spread of about 300
    (filtered,) = answers("query", run, "filter", folder / "gap.csv")
    (smoothed,) = answers("query", run, "smooth", folder / "gap.csv")
    assert np.shape(filtered["states"]) == np.shape(smoothed["deviations"]) == (60, 2)
    assert np.mean(smoothed["deviations"]) < np.mean(filtered["deviations"])


def test_resumed_as_if_never_stopped(folder, tmp_path):
    options = {"sequence_id": "name", "inputs": ["u"], "outputs": ["heat", "flow"], "num_states": 2, "tolerance": 0.0}
    data = folder / "train.csv"
    pplseq.train("lds", data, folder=tmp_path / "part", max_iterations=3, **options)
    pplseq.train(folder=tmp_path / "part", resume=True, max_iterations=6)
    pplseq.train("lds", data, folder=tmp_path / "whole", max_iterations=6, **options)
    part, whole = (LDS.load(tmp_path / name / "last").state_dict() for name in ("part", "whole"))
    for name, value in whole.items():
        np.testing.assert_array_equal(part[name].numpy(), value.numpy(), err_msg=name)


def test_rows_in_any_order(folder, tmp_path):
    rows = [(name, place, *more) for place, (name, *more) in enumerate(rows_of(0, 3, 20))]
    header = ("name", "when", "u", "heat", "flow")
    mixed = [rows[place] for place in np.random.default_rng(1).permutation(len(rows))]
    data = [write(tmp_path / "sorted.csv", rows, header), write(tmp_path / "mixed.csv", mixed, header)]
    options = [*TABLE, "--order-by", "when", "--max-iterations", 2, "--out"]
    found = []
    for name, table in zip("ab", data, strict=True):
        call("train", "lds", table, *options, tmp_path / name)
        found.append({each["id"]: each["log_prob"] for each in answers("query", tmp_path / name, "score", data[1])})
    assert found[0] == pytest.approx(found[1], rel=1e-4) and len(found[0]) == 3
    # what is to come goes on where a sequence ends: s0 at 19, s1 at 39, s2 at 59
    coming = write(tmp_path / "coming.csv", [("s0", 20, 0.5), ("s1", 41, 0.5), ("s2", 58, 0.5)], header[:3])
    told = answers("query", tmp_path / "a", "forecast", data[1], "--future", coming, code=1)
    errors = {each["id"]: each.get("error", "") for each in told}
    assert errors["s0"] == "" and "begin at 41.0, and its data end at 39.0" in errors["s1"] and "58.0" in errors["s2"]


def test_bad_uses(folder, tmp_path, run):
    data = folder / "train.csv"
    assert "name the columns" in call("train", "lds", data, "--out", tmp_path / "a", code=2).stderr
    for more, message in ((["--outputs", "heat,u", "--inputs", "u"], "is an input, too"), (["--outputs", "hat"], "hat")):
        assert message in call("train", "lds", data, *more, "--out", tmp_path / "a", code=2).stderr
    assert not (tmp_path / "a").exists()
    (run.parent / "broken").mkdir()
    assert "no" in call("evaluate", run.parent / "broken", data, code=2).stderr


@pytest.mark.parametrize(
    ("rows", "message"),
    [(["1,2"], "table.csv: x must hold more than --num-states 2 observed vectors"),
     (["1,2"] * 60, "table.csv: x must vary to fit the model"), (["1,", "2,", "4,"], r"columns \[1\] .* are never observed")],
)  # fmt: skip
def test_tables_of_which_nothing_can_be_learned(tmp_path, rows, message):
    (tmp_path / "table.csv").write_text("\n".join(["a,b", *rows]))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of no numbers
        result = call("train", "lds", tmp_path / "table.csv", "--outputs", "a,b", "--out", tmp_path / "run", code=2)
    assert re.search(message, result.output)


@pytest.mark.filterwarnings("ignore:emission_noise met its floor")
def test_a_column_that_stands_still_beside_another(tmp_path):
    x = np.stack([np.zeros(60), np.sin(np.arange(60))], 1)
    LDS(2, 2).initialize(LDS(2, 2)._as_batch(0 * x[None]))  # a start is found of nothing, too
    assert np.isfinite(LDS(2, 2).fit(x, max_iterations=1, seed=0, tolerance=1e9).score(x))


def test_what_a_question_cannot_do_is_said(run, folder, tmp_path):
    rows = [(name, u) for name, u, *_ in rows_of(2, 3, 4)]
    future = write(tmp_path / "future.csv", rows, ("name", "u"))
    ask = ["query", run, "forecast", folder / "test.csv", "--future", future]
    assert [len(answer["outputs"]) for answer in answers(*ask, "--steps", 3)] == [3, 3, 3]
    told = answers(*ask, "--steps", 5, code=1)
    assert ["has 4 steps of sequence 's0'" in answer["error"] for answer in told] == [True, False, False]
    assert "is used on the CPU" in call("evaluate", run, folder / "test.csv", "--device", "cuda", code=2).stderr


def test_impossible_numbers_are_null(run, folder, monkeypatch):
    monkeypatch.setattr(LDS, "score", lambda *arguments, **known: -np.inf)
    found = call("query", run, "score", folder / "test.csv").stdout
    assert [json.loads(line)["log_prob"] for line in found.splitlines()] == [None] * 3 and "Infinity" not in found
    assert '"log_likelihood": null' in call("evaluate", run, folder / "test.csv").stdout


def test_names_of_columns_stay(run, folder):
    """With the model, whose numbers are in its own units; and in the error about a table that lacks one."""
    with pytest.warns(UserWarning, match="standardized columns"):
        model = pplseq.load(run)
    assert model.column_names == ("heat", "flow") and model.input_column_names == ("u",)
    rows = [(name, u, flow) for name, u, _, flow in rows_of(1, 1)]
    bare = write(folder / "bare.csv", rows, ("name", "u", "flow"))
    for command in (("query", run, "predict", bare), ("query", run, "smooth", bare)):
        said = call(*command, code=2).output
        assert "no column 'heat'" in said and f"{command[2]} reads the columns of the training: outputs heat, flow" in said
        assert "and inputs u; an output that is not known may be empty" in said


def test_without_data_a_run_is_evaluated_on_what_was_held_out(run, folder):
    said = call("evaluate", run, code=2).output
    assert "give DATA: a table with the columns of the training table" in said and "this one has none" in said
    held = folder / "held"
    options = ("--max-iterations", 2, "--validation", folder / "test.csv")
    call("train", "lds", folder / "train.csv", *TABLE, *options, "--out", held)
    result = call("evaluate", held)
    assert "on test.csv, the held-out data by which the training chose" in result.stderr
    assert json.loads(result.stdout) == json.loads(call("evaluate", held, folder / "test.csv").stdout)
    (folder / "test.csv").rename(folder / "gone.csv")
    try:
        assert "give DATA" in call("evaluate", held, code=2).output
    finally:
        (folder / "gone.csv").rename(folder / "test.csv")


def test_a_run_may_be_called_as_its_model_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.csv", rows_of(0, 1, 30))
    call("train", "lds", "x.csv", *TABLE, "--max-iterations", 2, "--out", "lds")
    assert call("report", "lds").stdout.split() == ["lds/report.html"]
    assert call("info", "lds").output == call("info", "./lds").output.replace("./lds", "lds")
    assert "would" not in call("info", "lds", "x.csv", *TABLE).output  # what a training would cost


def test_a_model_without_commands_says_where_it_is_asked(tmp_path):
    model = pplseq.StructuralModel()
    model.set_parameters(level=1.0, noise=1.0).save(tmp_path / "m")
    assert "holds a structural, which has no commands: ask it from Python" in call("report", tmp_path / "m", code=2).output
