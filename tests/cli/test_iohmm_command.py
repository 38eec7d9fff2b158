"""`pplseq train iohmm` on tables and strings, and the questions to its runs."""

import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.command_tables import lines, two_states, write
from support.commands import pplseq
from support.slow_streams import slowly

from pplseq.data.tomita import GRAMMARS
from pplseq.models import IOHMM
from pplseq.models.automata.automaton import Automaton
from pplseq.models.iohmm.restarts.training import RestartTraining
from pplseq.recipes.runs import query
from pplseq.runs.status import run_status


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("iohmm")


@pytest.fixture(scope="module")
def table(folder):
    rows = two_states(0, 12, 30)
    rows[5] = (*rows[5][:3], "", rows[5][4])  # an output that is missing
    return write(folder / "train.csv", rows)


@pytest.fixture(scope="module")
def held_out(folder):
    return write(folder / "test.csv", two_states(1, 5, 20))


TABLE = ["--sequence-id", "name", "--inputs", "a,b", "--outputs", "y", "--mealy", "--num-restarts", "3"]


@pytest.fixture(scope="module")
def run(folder, table):
    pplseq("train", "iohmm", table, *TABLE, "--num-states", "1-3", "--out", folder / "run")
    return folder / "run"


def test_sizes_are_chosen_and_states_found(run, held_out):
    record = json.loads((run / "best" / "iohmm.json").read_text())
    assert record["summary"]["states"] == 2 and len(record["summary"]["sizes"]) == 3
    assert record["restarts"]["chosen"] < 3 == len(record["restarts"]["log_likelihoods"])
    found = json.loads(pplseq("evaluate", run, held_out).stdout)
    assert found["sequences"] == 5 and found["targets"] == sum(20 - n % 3 for n in range(5))
    assert found["nats_per_target"] < 1.5
    errors = {name: found[name]["root_mean_squared_error"]["y"] for name in ("prediction", "production")}
    assert errors["prediction"] <= errors["production"] < 9
    paths = lines(pplseq("query", run, "decode", held_out))
    truth = [[row[4] == "hot" for row in two_states(1, 5, 20) if row[0] == answer["id"]] for answer in paths]
    right = np.concatenate([np.array(answer["path"]) == hot for answer, hot in zip(paths, truth, strict=True)])
    assert max(right.mean(), 1 - right.mean()) > 0.97


def test_all_questions(run, folder, held_out):
    total = 0.0
    for question, key, inner in (
        ("filter", "states", 2),
        ("smooth", "states", 2),
        ("sample", "paths", None),
        ("predict", "outputs", None),
    ):
        answers = lines(pplseq("query", run, question, held_out))
        assert [answer["id"] for answer in answers] == [f"s{n}" for n in range(5)]
        rows = answers[1][key]
        assert len(rows[0] if question == "sample" else rows) == 19
        if inner:
            np.testing.assert_allclose(np.sum(rows, -1), 1)
    scores = [answer["log_prob"] for answer in lines(pplseq("query", run, "score", held_out))]
    total = sum(scores)
    assert total == pytest.approx(json.loads(pplseq("evaluate", run, held_out).stdout)["log_likelihood"])
    produced = lines(pplseq("query", run, "produce", held_out))[0]
    assert set(produced["outputs"][0]) == set(produced["deviations"][0]) == {"y"} and len(produced["deviations"]) == 20
    future = write(folder / "future.csv", [(f"s{n}", 3.0, 0.0) for n in range(5) for _ in range(n + 1)], "name,a,b")
    ahead = lines(pplseq("query", run, "forecast", held_out, "--future", future))
    assert [len(answer["outputs"]) for answer in ahead] == [1, 2, 3, 4, 5]
    only_inputs = write(folder / "inputs.csv", [row[:3] for row in two_states(1, 5, 20)], "name,a,b")
    assert lines(pplseq("query", run, "produce", only_inputs))[0] == produced
    some = lines(pplseq("query", run, "classify", held_out))
    assert some[0]["output"]["y"] == pytest.approx(produced["outputs"][-1]["y"])


def test_a_run_lists_the_questions_that_it_answers(run, automaton_run):
    told = [json.loads(pplseq("info", folder, "--json").stdout)["questions"] for folder in (run, automaton_run)]
    of_tables, of_strings = told
    assert "automaton" not in of_tables and {"smooth", "forecast", "effects"} <= set(of_tables)
    assert of_strings == ["filter", "produce", "classify", "effects", "automaton"]
    shown = pplseq("query", automaton_run, "--help").stdout
    assert "classify" in shown and "smooth" not in shown


def test_other_commands_say_what_the_run_is(run):
    assert "an input-output HMM" in pplseq("personalize", run, code=2).stderr


def test_report(run, tmp_path):
    page = tmp_path / "page.html"
    assert pplseq("report", run, "--out", page).stdout == f"{page}\n"
    content = page.read_text(encoding="utf-8")
    assert "<h1>iohmm on " in content and "Settings" in content and "<script" not in content


def test_effects_are_in_the_units_of_the_table(run, folder):
    pytest.importorskip("matplotlib")
    picture = folder / "effects.png"
    curves = lines(pplseq("query", run, "effects", "--feature", "a", "--values", "-3:9:7", "--png", picture))
    assert picture.stat().st_size > 1000
    assert [row["a"] for row in curves] == pytest.approx([-3, -1, 1, 3, 5, 7, 9])
    matrices = np.array([row["transition"] for row in curves])
    np.testing.assert_allclose(matrices.sum(-1), 1)
    hot = int(matrices[-1, 0, 1] > 0.5)  # a large input leads there from anywhere
    assert (matrices[-1, :, hot] > 0.9).all() and (matrices[0, :, hot] < 0.1).all()
    # at a = 3 the odds are those of the state before, exp(+-2)
    np.testing.assert_allclose(np.log(matrices[3, hot, hot] / matrices[3, hot, 1 - hot]), 2, atol=1.2)


def test_symbols_and_classes(folder, table):
    """Names as inputs and as outputs, with settings from a file."""
    config = folder / "settings.toml"
    config.write_text(
        'inputs = "feeling"\noutputs = ["kind"]\nsymbols = ["feeling"]\nfamily = "categorical"\nsequence-id = "name"\n'
    )
    rows = [(row[0], row[4], ["low", "high"][row[4] == "hot"]) for row in two_states(2, 4, 15)]
    data = write(folder / "names.csv", rows, "name,feeling,kind")
    pplseq("train", "iohmm", data, "--config", config, "--mealy", "--num-restarts", 3, "--out", folder / "names")
    assert IOHMM.load(folder / "names" / "best").outputs == "categorical"
    found = json.loads(pplseq("evaluate", folder / "names", data).stdout)
    assert found["production"]["accuracy"] == 1 and found["production"]["balanced_accuracy"] == 1
    answer = lines(pplseq("query", folder / "names", "produce", data))[0]
    assert set(answer["outputs"][0]) == {"high", "low"}
    curves = lines(pplseq("query", folder / "names", "effects"))
    assert [row["input"] for row in curves] == ["cold", "hot"]
    strange = write(folder / "strange.csv", [("s0", "warm", "low")], "name,feeling,kind")
    assert "warm" in pplseq("evaluate", folder / "names", strange, code=2).stderr
    config.write_text('input = "feeling"\n')
    error = pplseq("train", "iohmm", data, "--config", config, "--out", folder / "more", code=2).stderr
    assert "unknown setting 'input'" in error and "'inputs'" in error
    config.write_text('outputs = "kind"\nstates = [')
    assert "is not TOML" in pplseq("train", "iohmm", data, "--config", config, "--out", folder / "more", code=2).stderr


def test_without_inputs(folder, table):
    pplseq(
        "train", "iohmm", table, "--sequence-id", "name", "--outputs", "y", "--num-restarts", 3, "--out", folder / "none"
    )
    found = json.loads(pplseq("evaluate", folder / "none", table).stdout)
    assert "prediction" in found and "production" not in found
    future = write(folder / "steps.csv", [(f"s{n}",) for n in range(12) for _ in range(n + 1)], "name")
    ahead = lines(pplseq("query", folder / "none", "forecast", table, "--future", future))
    assert [len(answer["outputs"]) for answer in ahead] == list(range(1, 13))
    assert ahead[3]["outputs"][2] == lines(pplseq("query", folder / "none", "forecast", table, "--steps", 3))[3]["outputs"][2]
    free = lines(pplseq("query", folder / "none", "forecast", table))
    assert [len(answer["outputs"]) for answer in free] == [10] * 12 and free[11]["outputs"] == ahead[11]["outputs"][:10]
    short = pplseq("query", folder / "none", "forecast", table, "--future", future, "--steps", 2, code=1).stdout
    assert "steps.csv has 1 steps of sequence 's0', got --steps 2" in short
    other = write(folder / "other.csv", [("nobody",)], "name")
    message = "other.csv: it has no rows of sequence 's0'"
    assert message in pplseq("query", folder / "none", "forecast", table, "--future", other, code=1).stdout
    assert "keeps one model" in pplseq("evaluate", folder / "none", table, "--checkpoint", "last", code=2).stderr
    assert "no inputs, so produce has no answer" in pplseq("query", folder / "none", "produce", table, code=2).stderr
    for more in (["--mealy"], ["--initial", "inputs"], ["--hidden", "3"]):
        arguments = ["train", "iohmm", table, "--outputs", "y", *more, "--out", folder / "no"]
        assert f"{more[0][2:]}: it is about inputs" in pplseq(*arguments, code=2).stderr


def test_small_units(folder):
    """The smallest variance is small beside that of the outputs; a warning is a line like the others."""
    rows = [(name, a, f"{y * 1e-4:.9f}") for name, a, b, y, feeling in two_states(3, 6, 30)]
    data = write(folder / "small.csv", rows, "name,a,y")
    arguments = ["train", "iohmm", data, "--sequence-id", "name", "--inputs", "a", "--outputs", "y", "--mealy"]
    result = pplseq(*arguments, "--num-restarts", 6, "--out", folder / "small")
    assert "warning" not in result.stderr and "score (log-likelihood)" in result.stderr
    paths = np.concatenate([row["path"] for row in lines(pplseq("query", folder / "small", "decode", data))])
    right = (paths == [row[4] == "hot" for row in two_states(3, 6, 30)]).mean()
    assert max(right, 1 - right) > 0.95
    result = pplseq(*arguments, "--num-restarts", 6, "--covariance-floor", 1.0, "--out", folder / "floored")
    assert "2 states: warning: a variance met its floor of 1" in result.stderr and ".py" not in result.stderr


def test_interrupted(folder, run, table, strings, monkeypatch):
    """What was finished is kept, and the exit code says so."""
    from pplseq.models import IOHMM
    from pplseq.models.automata.learner import AutomatonLearner

    fit, fit_size = IOHMM.fit, AutomatonLearner.begin_size

    def slow(model, *arguments, **options):
        if model.num_states == 2:
            raise KeyboardInterrupt
        return fit(model, *arguments, **options)

    def slow_size(learner, tree, num_states, *more):
        if num_states == 3:
            raise KeyboardInterrupt
        return fit_size(learner, tree, num_states, *more)

    monkeypatch.setattr(IOHMM, "fit", slow)
    monkeypatch.setattr(AutomatonLearner, "begin_size", slow_size)
    pplseq("train", "iohmm", table, *TABLE, "--num-states", "1-3", "--out", folder / "cut", code=130)
    assert json.loads((folder / "cut" / "best" / "iohmm.json").read_text())["summary"]["states"] == 1
    few = ["--num-restarts", 7, "--no-merging", "--max-iterations", 20]
    pplseq("train", "iohmm", strings, *few, "--out", folder / "cut2", code=130)
    summary = json.loads((folder / "cut2" / "best" / "iohmm.json").read_text())["summary"]
    assert not summary["consistent"] and [size["num_restarts"] for size in summary["sizes"]] == [7]
    assert lines(pplseq("query", folder / "cut2", "classify", input="0\n"))[0]["string"] == "0"
    result = pplseq("train", "iohmm", strings, "--num-states", 3, "--num-restarts", 1, "--out", folder / "cut3", code=130)
    assert "stopped and saved" in result.stderr and not (folder / "cut3" / "best" / "iohmm.json").exists()
    monkeypatch.undo()
    again = json.loads(pplseq("train", "iohmm", "--resume", folder / "cut").stdout)
    assert [size["states"] for size in again["sizes"]] == [1, 2, 3] and again["stop_reason"] == "finished"
    found = json.loads(pplseq("train", "iohmm", "--resume", folder / "cut2").stdout)
    assert found["stop_reason"] == "finished" and found["sizes"][0] == summary["sizes"][0] and len(found["sizes"]) > 1
    assert json.loads((run / "best" / "iohmm.json").read_text())["summary"]["sizes"] == again["sizes"]


def test_a_size_that_was_cut_short_goes_on(table, tmp_path, monkeypatch):
    step, run = RestartTraining.step, tmp_path / "run"

    def interrupted(training):
        if training.progress.step == 3 and training.run.parameters["initial"]["logits"].shape[0] == 2:
            raise KeyboardInterrupt
        return step(training)

    command = ("train", "iohmm", table, *TABLE, "--num-states", "1-3", "--max-iterations", 8)
    monkeypatch.setattr(RestartTraining, "step", interrupted)
    assert "stopped and saved" in pplseq(*command, "--out", run, code=130).stderr
    assert (run / "size_2" / "last").is_dir() and not (run / "size_1").exists()
    monkeypatch.undo()
    found = json.loads(pplseq("train", "iohmm", "--resume", run).stdout)
    assert found["sizes"] == json.loads(pplseq(*command, "--out", tmp_path / "whole").stdout)["sizes"]
    assert not [*run.glob("size_*")]


def test_time_that_is_over_leaves_a_model(table, held_out, tmp_path):
    command = ("train", "iohmm", table, *TABLE, "--method", "sgd", "--max-iterations", 10**6, "--max-time", "0.2s")
    found = json.loads(pplseq(*command, "--out", tmp_path / "run").stdout)
    assert (found["stop_reason"], found["states"], found["sizes"]) == ("max_time", 2, [])
    first = json.loads(pplseq("evaluate", tmp_path / "run", held_out).stdout)["nats_per_target"]
    assert json.loads(pplseq("train", "--resume", tmp_path / "run").stdout)["stop_reason"] == "max_time"
    assert json.loads(pplseq("evaluate", tmp_path / "run", held_out).stdout)["nats_per_target"] != first


@pytest.mark.filterwarnings("ignore")  # a file that was open when the time was over
def test_a_limit_that_was_over_while_reading_is_named_and_raised(table, tmp_path):
    command = ("train", "iohmm", table, *TABLE, "--num-states", 1, "--max-iterations", 2, "--max-time", "0.001")
    pplseq(*command, "--out", tmp_path / "run", code=1)
    told = pplseq("train", "--resume", tmp_path / "run", code=1).stderr
    assert "its own limit of 0.001 s" in told and f"--resume {tmp_path / 'run'} --max-time 1h" in told
    assert json.loads(pplseq("train", "--resume", tmp_path / "run", "--max-time", "1h").stdout)["states"] == 1


# ---------------------------------------------------------------- strings
@pytest.fixture(scope="module")
def strings(folder):
    path = folder / "tomita4.txt"
    pairs = zip(GRAMMARS[4].strings, GRAMMARS[4].labels, strict=True)
    path.write_text("".join(f"{'+' if label else '-'} {string}\n" for string, label in pairs))
    return path


@pytest.fixture(scope="module")
def automaton_run(folder, strings):
    result = pplseq("train", "iohmm", strings, "--num-restarts", 100, "--out", folder / "automaton")
    assert "1 different automaton fits your data" in result.stderr
    return folder / "automaton"


def test_an_automaton_is_learned(automaton_run, strings):
    summary = json.loads((automaton_run / "best" / "iohmm.json").read_text())["summary"]
    assert summary["automaton_states"] == 4 and summary["consistent"] and summary["languages"] == 1
    automaton = Automaton.from_dict(json.loads((automaton_run / "automaton.json").read_text()))
    assert automaton.equals(Automaton.from_regex(GRAMMARS[4].regex))
    assert (automaton_run / "automaton.dot").read_text().startswith("digraph")
    found = json.loads(pplseq("evaluate", automaton_run, strings).stdout)
    assert found["automaton"] == {"accuracy": 1.0, "balanced_accuracy": 1.0} and found["model"]["accuracy"] == 1


def test_a_run_that_lacks_its_automaton_is_taken_over(automaton_run, strings, tmp_path):
    """As where the disk was full when it was written: the same command writes it, and is refused once all is there."""
    run = shutil.copytree(automaton_run, tmp_path / "run")
    begin = ("train", "iohmm", strings, "--num-restarts", 100, "--out", run)
    drawn, step = (run / "automaton.dot").read_text(), run_status(run)["step"]
    assert "already holds a run" in pplseq(*begin, code=2).stderr
    (run / "automaton.dot").unlink()
    assert json.loads(pplseq(*begin).stdout)["automaton_states"] == 4
    assert (run / "automaton.dot").read_text() == drawn and run_status(run)["step"] == step
    assert run_status(run)["status"] == "finished"


def test_questions_about_strings(automaton_run, folder):
    answers = lines(pplseq("query", automaton_run, "classify", input="0010\n000\n\n+ 11\n"))
    assert [answer["string"] for answer in answers] == ["0010", "000", "", "11"]
    assert [answer["accepted"] for answer in answers] == [True, False, True, True]
    assert [answer["probability"] > 0.5 for answer in answers] == [True, False, True, True]
    states = lines(pplseq("query", automaton_run, "filter", input="0010\n"))[0]["states"]
    assert len(states) == 4
    np.testing.assert_allclose(np.sum(states, -1), 1)
    whole = lines(pplseq("query", automaton_run, "automaton", "--dot", folder / "a.dot"))[0]
    assert whole["languages"] == 1 and "the smallest automaton that labels all strings right has 4 states" in whole["report"]
    assert (folder / "a.dot").read_text() == (automaton_run / "automaton.dot").read_text()
    assert "unknown symbol '2'" in pplseq("query", automaton_run, "classify", input="012\n01\n", code=1).stdout
    assert "smooth has no answer" in pplseq("query", automaton_run, "smooth", input="0\n", code=2).stderr


@pytest.mark.parametrize("question", ["classify", "filter", "produce"])
def test_a_string_is_answered_before_the_next_one_comes(automaton_run, question, monkeypatch, tmp_path):
    pieces = [b"\xef\xbb\xbf00", b"10\n", b"0\r\n01\r\n1", b"\n", b"2\n", b"11"]
    events = []
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=slowly(pieces, events)))
    for answer in query(automaton_run, question, "-"):
        events.append(answer.get("string", answer.get("line")))
    assert events == [*pieces[:2], "0010", pieces[2], "0", "01", pieces[3], "1", b"2\n", 5, b"11", "11"]
    (tmp_path / "strings").write_bytes(b"".join(pieces))
    asked = [pplseq("query", automaton_run, question, *file, input=text, code=1) for file, text in [
        ([tmp_path / "strings"], None), ([], slowly(pieces)), ([], slowly([b"".join(pieces).replace(b"\r\n", b"\r")])),
    ]]  # fmt: skip
    whole, piecewise, other_ends = ([line.replace("<stdin>", str(tmp_path / "strings")) for line in found.stdout.splitlines()]
                                    for found in asked)  # fmt: skip
    assert whole == piecewise == other_ends and len(whole) == 6


def test_words(folder):
    """Files and lines without a space are read as the words of training."""
    data = folder / "words.txt"
    data.write_text("+ the cat\n- cat the\n+ the the cat\n- cat\n")
    pplseq("train", "iohmm", data, "--num-restarts", 50, "--no-picture", "--out", folder / "words")
    one = folder / "one_word.txt"
    one.write_text("- cat\n- the\n")
    assert json.loads(pplseq("evaluate", folder / "words", one).stdout)["strings"] == 2
    answers = lines(pplseq("query", folder / "words", "classify", input="\ufeff# a comment\r\nthe cat\r\ncat\r\n"))
    assert [answer["string"] for answer in answers] == ["the cat", "cat"]
    data.write_text("+ a b\n- b a\n+ a a b\n- b\n")
    pplseq("train", "iohmm", data, "--num-restarts", 50, "--no-picture", "--out", folder / "letters")
    assert lines(pplseq("query", folder / "letters", "classify", input="a b\n"))[0]["accepted"]
    one.write_text("+ dog\n")
    assert "line 1: unknown symbol 'dog'" in pplseq("evaluate", folder / "words", one, code=2).stderr


# ---------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        ("name,a,b,y\ns,1,2,3\ns,nan,2,3\n", [], "a"),
        ("name,a,b,y\ns,1,2,3\ns,,2,3\n", [], "a"),
        ("name,a,b,z\ns,1,2,3\n", [], "y"),
        ("", [], "empty"),
        ("name,a,b,y\ns,1,2,3\n", ["--num-states", "0"], "--num-states must be numbers of at least 1"),
        ("name,a,b,y\ns,1,2,3\n", ["--lr", "0.1"], "--lr: of --method sgd, and --method em has none"),
        ("name,a,b,y\ns,1,2,3\n", ["--symbols", "c"], "symbols: 'c' is neither"),
        ("name,a,b,y\ns,1,2,k\ns,1,2,m\n", [], "got 'k'; make one of it, or say that the column holds names: --symbols y"),
        ("name,a,b,y\ns,u,v,1\n", ["--symbols", "a"], "holds names: --symbols a,b"),
        ("name,a,b,y\ns,1,2,k\ns,1,2,k\n", ["--family", "categorical"], "one class only, 'k'"),
        ("name,a,b,y\ns,1,2,3\ns,1,2,0\n", ["--family", "bernoulli"], "outside its family"),
        ("name,a,b,y\ns,1,2,3\ns,1,2,4\n", ["--graph", "GRAPH"], "dead end"),
        ("name,a,b,y\ns,1,2,3\ns,1,2,4\n", ["--graph", "nowhere"], "expected ergodic, left_right or a file"),
        ("name,a,b,y\ns,1,2,3\nt,1,2,4\n,1,2,4\n", [], "every row must say which sequence it is of"),
        ("name,a,b,y\ns,1,2,3\ns,1,2,-1e200\n", [], "column 'y' holds -1e+200; expected numbers of size 1e+100"),
        ("name,a,b,y\ns,1,2,3\ns,1,2,4\n", ["--hidden", "x"], "hidden must be a whole number"),
        ("name,a,b,y\ns,1,2,3\ns,1,2,4\n", ["--outputs", ","], "name the columns of its outputs"),
        ("name,a,b,y\ns,1,2,3\ns,1,2,4\n", ["--outputs", "y,b"], "column 'b' is an input, too"),
        ("name,a,b,y\ns,1,2,k\ns,1,2,m\n", ["--symbols", "y", "--family", "gaussian"], "family is categorical"),
        ("name,a,b,y\ns,1,2,3\ns,1,2,4\n", ["--num-states", "1,2", "--select", "likelihood"], "likelihood grows"),
    ],
)
def test_bad_tables(tmp_path, content, more, message):
    (tmp_path / "data.csv").write_text(content)
    (tmp_path / "graph").write_text("1 1\n0 0\n")
    more = [tmp_path / "graph" if part == "GRAPH" else part for part in more]
    error = pplseq("train", "iohmm", tmp_path / "data.csv", *TABLE, *more, "--out", tmp_path / "run", code=2).stderr
    assert message in error and "Error: " in error
    assert not (tmp_path / "run").exists()


def test_bad_uses(tmp_path, run, table, strings, automaton_run):
    def error(*arguments):
        return pplseq(*arguments, code=2).stderr

    one_class = tmp_path / "one.txt"
    one_class.write_text("+ 01\n+ 0\n")
    assert "all 2 strings are accepted" in error("train", "iohmm", one_class, "--out", tmp_path / "r")
    assert "mealy does not apply" in error("train", "iohmm", strings, "--mealy", "--out", tmp_path / "r")
    assert "name the columns of its outputs" in error("train", "iohmm", table, "--out", tmp_path / "r")
    assert "already holds a run" in error("train", "iohmm", table, *TABLE, "--out", run)
    assert "this model has inputs; give those that are to come" in error("query", run, "forecast", table)
    assert "say which input varies" in error("query", run, "effects")
    assert "values must be LOW:HIGH:NUMBER" in error("query", run, "effects", "--feature", "a", "--values", "3")
    assert "was trained on a table" in error("query", run, "automaton")
    assert "no such run or model folder" in error("query", tmp_path / "nowhere", "predict", table)
    assert "--future is an option of forecast" in error("query", run, "decode", table, "--future", table)
    assert "unexpected extra argument" in error("query", run, "effects", table, "--feature", "a")
    assert "png: it is for inputs that are numbers" in error(
        "query", automaton_run, "effects", "--png", tmp_path / "p.png"
    )
    assert "is a folder; expected a file of strings" in error("query", automaton_run, "classify", tmp_path)
    arguments = ["train", "iohmm", table, *TABLE, "--out", tmp_path / "r"]
    assert "needs held-out data, --validation" in error(*arguments, "--select", "validation")
    assert "counts scores of held-out data" in error(*arguments, "--early-stop", "2")
    for folder, key, value in ((run, "columns", {}), (run, "kind", "other"), (automaton_run, "symbols", ["0"])):
        changed = tmp_path / f"changed_{key}"
        shutil.copytree(folder, changed)
        record = json.loads((changed / "best" / "iohmm.json").read_text())
        (changed / "best" / "iohmm.json").write_text(json.dumps(record | {key: value}))
        assert "damaged: its checksum" in error("query", changed, "score", table)
    shutil.copytree(run, tmp_path / "broken")
    (tmp_path / "broken" / "best" / "iohmm.json").write_text("{")
    assert "the file is damaged" in error("query", tmp_path / "broken", "score", table)
    assert "MODEL comes first" in error("train", "--out", tmp_path / "r", "iohmm", table)


def test_a_model_that_cannot_be_written(folder, table, monkeypatch):
    """A full disk is an error of one line."""
    import safetensors.torch

    def full(*arguments):
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    result = pplseq("train", "iohmm", table, *TABLE, "--out", folder / "full", code=1)
    assert "could not save" in result.stderr and "No space left on device" in result.stderr
    assert not (folder / "full" / "best" / "iohmm.json").exists()


def test_a_sequence_that_fails_has_its_answer(run, folder, held_out, monkeypatch):
    rows = two_states(1, 5, 20)
    for name, place, cell in (("s1", 1, "x"), ("s3", 3, "inf")):
        k = next(k for k, row in enumerate(rows) if row[0] == name)
        rows[k] = (*rows[k][:place], cell, *rows[k][place + 1 :])
    table = write(folder / "bad.csv", rows)
    with table.open("a") as file:
        file.write("s5,1,2\n")  # a row cut short
    for question in ("decode", "score", "predict", "produce"):
        told = lines(pplseq("query", run, question, table, code=1))
        wrong = {"s1", "s5"} if question == "produce" else {"s1", "s3", "s5"}
        assert [answer["id"] for answer in told] == [f"s{n}" for n in range(6)]
        assert {answer["id"] for answer in told if "error" in answer} == wrong
        whole = {answer["id"]: answer for answer in lines(pplseq("query", run, question, held_out))}
        assert all(answer == whole[answer["id"]] for answer in told if "error" not in answer)
    assert "expected a number, got 'x'" in told[1]["error"] and "3 cells, but the first row names 5" in told[5]["error"]
    score = IOHMM.score

    def failing(self, x, **known):
        if len(x[0]) == 18:
            raise RuntimeError("gone")
        return score(self, x, **known)

    monkeypatch.setattr(IOHMM, "score", failing)
    told = lines(pplseq("query", run, "score", held_out, code=1))
    assert [answer.get("error") for answer in told] == [None, None, "RuntimeError: gone", None, None]


def test_rows_of_sequences_in_any_order(tmp_path):
    rows, scores = [(place, *row) for place, row in enumerate(two_states(0, 3, 20))], []
    orders = {"mixed": np.random.default_rng(0).permutation(len(rows)), "sorted": range(len(rows))}
    options = ["--sequence-id", "name", "--order-by", "when", "--inputs", "a,b", "--outputs", "y", "--num-states", 1]
    for name, order in orders.items():
        content = "\n".join(",".join(map(str, rows[place])) for place in order)
        (tmp_path / f"{name}.csv").write_text(f"when,name,a,b,y,state\n{content}\n")
        pplseq("train", "iohmm", tmp_path / f"{name}.csv", *options, "--num-restarts", 1, "--out", tmp_path / name)
        answers = lines(pplseq("query", tmp_path / name, "score", tmp_path / "mixed.csv"))
        scores.append({each["id"]: each["log_prob"] for each in answers})
    assert scores[0] == pytest.approx(scores[1]) and len(scores[0]) == 3
    (tmp_path / "coming.csv").write_text("when,name,a,b\n" + "".join(f"{19 + k},s{k},0,{'x' * k}1\n" for k in range(3)))
    ask = ["query", tmp_path / "mixed", "forecast", tmp_path / "sorted.csv", "--future", tmp_path / "coming.csv"]
    errors = {each["id"]: each["error"] for each in lines(pplseq(*ask, code=1))}
    assert "begin at 19.0, and its data end at 19.0" in errors["s0"] and "row 3, column 'b': expected a number" in errors["s1"]


def test_fewer_rows_than_states_are_refused(tmp_path):
    (tmp_path / "one.csv").write_text("y\n1.5\n")
    told = pplseq("train", "iohmm", tmp_path / "one.csv", "--outputs", "y", "--out", tmp_path / "run", code=2).stderr
    assert "x: 2 states need at least as many observations, got 1" in told
    with pytest.raises(ValueError, match="2 states need at least as many observations, got 1"):
        IOHMM(2, num_inputs=0, outputs="gaussian", num_outputs=1).fit([[[1.5]]])
