"""Bad input of `pplseq personalize` and `pplseq compare-streams`: named, and the state before it kept."""

import json
import math
import re
import shutil

import pytest
from support.commands import pplseq


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- bad input


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["cache"], "brings no words of its own"),
        (["hf:some/model"], "brings no words of its own"),
        (["nowhere"], "there is no such folder"),
        (["ngram:nowhere"], "nowhere is not there"),
        (["ngram:"], "nothing behind the colon"),
        ([__file__], "is a file; to make a source of a text write ngram:"),
        (["builtin", "--source", "cache"], "no such folder"),
        (["GENERAL", "--source", "words:builtin:python"], "leave it out"),
        (["GENERAL", "--exponent", "0.7", "--step-size", "0.1"], "give one of them"),
        (["GENERAL", "--exponent", "0.2"], "exponent must lie in (0.5, 1]"),
        (["GENERAL", "--stream", "nowhere"], "no such file"),
    ],
)
def test_bad_arguments(general, arguments, message):
    arguments = [general if argument == "GENERAL" else argument for argument in arguments]
    assert message in pplseq("personalize", *arguments, code=2).stderr


@pytest.mark.parametrize("command", [["personalize"], ["compare-streams", "GENERAL"]])
@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_streams(general, command, text, tmp_path):
    command = [general if part == "GENERAL" else part for part in command]
    state = ["--state", tmp_path / "state"] if len(command) == 1 else []
    assert "it has no words" in pplseq(*command, general, *state, input=text, code=2).stderr


def test_other_words_than_the_state(general, whole, tmp_path, options, general_lines):
    other = tmp_path / "other.txt"
    other.write_text("\n".join(general_lines).replace("dog", "hog"))
    state = ("--state", whole[1])
    assert "vocabulary mismatch" in pplseq("personalize", f"ngram:{other}", *options, *state, code=2).stderr
    assert "vocabulary mismatch" in pplseq("compare-streams", f"ngram:{other}", whole[1], code=2).stderr
    changed = tmp_path / "changed.txt"
    changed.write_text("\n".join([*general_lines, "the dog likes a dog"]))
    message = pplseq("personalize", f"ngram:{changed}", *options, *state, code=2).stderr
    assert "vocabulary mismatch" in message or "not the one it was learned with" in message
    assert "with 2 sources" in pplseq("personalize", general, "--order", 3, *state, code=2).stderr
    for change, told in (
        (["--order", 4], "--order 3, not 4"),
        (["--unknown", "error"], "--unknown None, not 'error'"),
        (["--by-line"], "--by-line = False, not True"),
    ):
        message = pplseq("personalize", general, "--source", "cache", *change, *state, code=2).stderr
        assert f"it was begun with {told}, and would go on to other numbers" in message


def test_other_settings_than_the_state(general, whole, options):
    command = ("personalize", general, *options, "--state", whole[1])
    message = pplseq(*command, "--num-perturbations", 5, "--seed", 0, code=2).stderr
    assert "--num-perturbations 2, not 5" in message and "seed" not in message


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_state(general, personal, whole, tmp_path, damage, options):
    state = tmp_path / "state"
    shutil.copytree(whole[1], state)
    for path in sorted(path for path in state.rglob("*") if path.is_file()):
        data = path.read_bytes()
        half = len(data) // 2
        path.write_bytes(data[:half] if damage == "cut" else data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :])
        command = ("personalize", general, *options, "--state", state, "--stream", personal)
        message = pplseq(*command, code=2).stderr
        assert path.name in message and "Traceback" not in message, path
        path.write_bytes(data)


@pytest.mark.parametrize("bad,message", [(math.nan, "NaN|nan"), (-0.1, "negative|-0.1"), (0.5, "sum|normal")])
@pytest.mark.parametrize("command", ["personalize", "compare-streams"])
def test_sources_that_are_no_distributions(general, monkeypatch, tmp_path, bad, message, command):
    """The line is named, and the state before it stays."""
    from pplseq.sources import UniformSource

    predict = UniformSource.predict

    class Failing(UniformSource):
        count = 0

        def predict(self):
            Failing.count += 1
            probs = predict(self)
            probs[1] = bad if Failing.count > 5 else probs[1]
            return probs

        log_prob_of = property()  # the probabilities themselves have to be asked for

    monkeypatch.setattr("pplseq.sources.UniformSource", Failing)
    state = ("--state", tmp_path / "state", "--save-every", 1, "--source", "uniform")
    arguments = [general, *state] if command == "personalize" else [general, "uniform"]
    result = pplseq(command, *arguments, input="the cat sees\nthe dog\n", code=1)
    assert re.search(message, result.stderr) and "line 2, word 2 ('dog')" in result.stderr
    assert len(lines_of(result)) == 1
    if command == "personalize":
        assert json.loads((tmp_path / "state/saved/stream.json").read_text())["record"]["streams"]["-"][0] == 1


def test_runs_that_are_no_source_are_named_before_their_checkpoints(general, tmp_path):
    text = tmp_path / "tagged.txt"
    text.write_text("the_DET dog_NOUN barks_VERB\na_DET cat_NOUN sleeps_VERB\n" * 5)
    pplseq("train", "tagger", text, "--system", "hmm", "--out", tmp_path / "run")
    for arguments in (["personalize", tmp_path / "run"], ["personalize", general, "--source", tmp_path / "run"]):
        told = pplseq(*arguments, input="the dog\n", code=2).stderr
        assert "holds a tagger, which gives no probabilities of next words" in told and "hmm, vlhmm or lstm" in told
        assert "checkpoint" not in told


def test_a_folder_that_holds_something_else(general, tmp_path):
    (tmp_path / "last").mkdir()
    (tmp_path / "config.toml").write_text("")
    result = pplseq("personalize", general, "--state", tmp_path, input="the cat\n", code=2)
    assert "other files (config.toml, last)" in result.stderr and result.stdout == ""


def test_two_processes_and_one_state(general, whole, options):
    from pplseq.runs.checkpoint import only_one_run

    with only_one_run(whole[1]):
        assert (
            "another process"
            in pplseq("personalize", general, *options, "--state", whole[1], input="x\n", code=2).stderr
        )


def test_a_full_disk(general, tmp_path, monkeypatch):
    def fail(self, folder):
        raise OSError("No space left on device")

    monkeypatch.setattr("pplseq.sources.personal_model.PersonalModel.save", fail)
    result = pplseq("personalize", general, "--state", tmp_path / "state", input="the cat\n", code=1)
    assert "could not save" in result.stderr and result.stdout == ""  # before anything is learned
