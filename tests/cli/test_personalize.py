"""`pplseq personalize`: its numbers, and going on exactly after any interruption."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.commands import pplseq

from pplseq.baselines import KneserNey
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary
from pplseq.sources.comparison import comparison_answer
from pplseq.sources.lines import LineWriter
from pplseq.sources.personal_model import Overheard


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- numbers


@pytest.mark.parametrize("by_line", [False, True])
def test_the_lines_are_what_the_learner_says(general, personal, options, personal_lines, by_line):
    from pplseq.models import PROPSLearner
    from pplseq.sources.opening import open_source
    from pplseq.sources.settings import StreamOptions

    settings = StreamOptions(order=3)
    first = open_source(general, settings)
    second = open_source("cache", settings, first.vocabulary)
    vocabulary = first.vocabulary
    learner = PROPSLearner([first.source, second.source], len(vocabulary), seed=0)
    lines = lines_of(pplseq("personalize", general, *options, "--stream", personal, *["--by-line"] * by_line))
    assert [line["line"] for line in lines] == list(range(1, len(personal_lines) + 1))
    for line, text in zip(lines, personal_lines, strict=True):
        assert line["words"] == [*text.split(), "<eos>"]
        assert line["unknown"] == [t for t, word in enumerate(line["words"]) if word not in vocabulary]
        if by_line:
            learner.new_sequence()
        found = {
            name: [] for name in ("log_prob", "perturbation", "log_odds", "source_anomaly", "perturbation_anomaly")
        }
        for word in vocabulary.encode(line["words"]).tolist():
            info = learner.learn_one(word)
            for name, values in found.items():
                values.append(getattr(info, name))
        assert line["log_prob"] == pytest.approx(sum(found["log_prob"]), abs=1e-5)
        assert line["token_log_probs"] == pytest.approx(found.pop("log_prob"), abs=1e-6)
        for name, values in found.items():
            assert line[name] == pytest.approx(values, abs=2e-6)


def test_sources_are_told_beside_the_model(general, personal, whole, general_lines):
    lines = [json.loads(line) for line in whole[0].decode().splitlines()]
    vocabulary = Vocabulary.load(whole[1] / "saved" / "vocab.txt")
    model = KneserNey(3).fit(Text.from_lines([line.split() for line in general_lines], vocabulary))
    expected = model.log_prob(Text.from_lines([line["words"][:-1] for line in lines], vocabulary))
    found = [value for line in lines for value in line["sources"]["3-gram, general.txt"]]
    assert found == pytest.approx(expected.tolist(), abs=1e-6)
    assert set(lines[0]["sources"]) == {"3-gram, general.txt", "cache"}


def test_learning_pays(whole):
    lines = [json.loads(line) for line in whole[0].decode().splitlines()]
    late = lines[15:]
    nats = -sum(line["log_prob"] for line in late)
    assert nats < -sum(value for line in late for value in line["sources"]["3-gram, general.txt"])
    last = lines[-1]  # "my" is hardly a general word
    assert last["log_odds"][last["words"].index("my")] > last["log_odds"][last["words"].index("here")]


@pytest.mark.parametrize(
    "changes", [("--exponent", "0.7"), ("--step-size", "0.02"), ("--by-line",), ("--num-perturbations", 1)]
)
def test_options_reach_the_model(general, personal, whole, options, changes, personal_lines):
    result = pplseq("personalize", general, *options, *changes, "--stream", personal)
    assert result.stdout.encode() != whole[0] and len(lines_of(result)) == len(personal_lines)


def test_the_same_source_twice(general):
    (line,) = lines_of(pplseq("personalize", general, *["--source", "cache"] * 3, input="the cat\n"))
    assert list(line["sources"]) == ["5-gram, general.txt", "cache", "cache #2", "cache #3"]


def test_a_single_source_is_alone_where_it_is_to_be(general):
    (line,) = lines_of(pplseq("personalize", general, input="the cat\n"))
    assert list(line["sources"]) == ["5-gram, general.txt", "online-ngram", "cache"]
    result = pplseq("personalize", general, "--alone", input="the cat\n")
    (line,) = lines_of(result)
    assert list(line["sources"]) == ["5-gram, general.txt"] and "beside" not in result.stderr
    assert "alone" in pplseq("personalize", general, "--alone", "--source", "cache", input="a\n", code=2).stderr


def test_where_a_stream_begins_is_said_by_a_flag(general, tmp_path):
    """Probabilities of every source and learned state, kept with the state."""
    state = ["--state", tmp_path / "state"]
    chosen = [general, "--source", "cache", "--num-perturbations", 1, "--initial", "0.5,0.3,0.2"]
    (line,) = lines_of(pplseq("personalize", *chosen, *state, input="the cat\n"))
    said = [line["sources"][name][0] for name in line["sources"]]
    own = math.exp(line["token_log_probs"][0]) - sum(w * math.exp(p) for w, p in zip((0.5, 0.3), said, strict=True))
    assert 0 < own < 0.2
    assert "initial" in pplseq("personalize", *chosen[:-1], "0.4,0.4,0.2", *state, input="the\n", code=2).stderr
    assert pplseq("personalize", *chosen, *state, input="the\n").stderr
    wrong = pplseq("personalize", *chosen[:-1], "0.5,0.5", input="the\n", code=2).stderr
    assert "initial" in wrong and "3" in wrong
    twice = pplseq("personalize", *chosen[:-2], "--initial", "0.9", "--initial", "0.1", input="the\n", code=2).stderr
    assert "write all its values at once, with commas: --initial 0.9,0.1" in twice


def test_drift_is_watched_for_by_a_flag(general, personal, tmp_path):
    plain = ["personalize", general, "--stream", personal]
    watched = pplseq(*plain, "--drift", "--state", tmp_path / "state")
    assert lines_of(watched)[:5] == lines_of(pplseq(*plain))[:5]
    (header,) = (tmp_path / "state").rglob("props/config.json")
    assert json.loads(header.read_text())["drift"]["count"] > 50
    assert "drift" in pplseq(*plain, "--drift", "--step-size", "0.1", code=2).stderr


def test_a_streaming_hmm_has_no_source(general, personal):
    words = general.replace("ngram:", "words:")
    lines = lines_of(pplseq("personalize", words, "--num-perturbations", 3, "--stream", personal))
    assert all(line["sources"] == {} for line in lines)
    assert all(value is None for line in lines for value in line["log_odds"])  # infinite
    per_word = [line["log_prob"] / len(line["token_log_probs"]) for line in lines]
    assert max(per_word[-5:]) > per_word[0] + 0.2


def test_words_outside_the_vocabulary(general):
    def ask(*options):
        return lines_of(
            pplseq("personalize", general, *options, input="the zebra sees\n", code=int("error" in options))
        )

    (line,) = ask()
    assert line["unknown"] == [1] and None not in line["token_log_probs"]
    (line,) = ask("--unknown", "skip")
    assert [value is None for value in line["token_log_probs"]] == [False, True, False, False]
    (line,) = ask("--unknown", "error")
    assert "'zebra' is not among" in line["error"] and "words" not in line


def test_one_line_in_one_line_out(general):
    text = b"the cat\n\n{broken\n\xff\n" + json.dumps({"text": "my dog", "id": "x"}).encode()
    lines = lines_of(pplseq("personalize", general, input=text, code=1))
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 5]
    assert ["error" in line for line in lines] == [False, False, True, True, False]
    assert lines[1]["words"] == lines[1]["token_log_probs"] == [] and lines[4]["id"] == "x"


# ---- interruptions


def crash_after(monkeypatch, num_lines):
    """The process vanishes when that line has been written, whatever else was to be done."""

    class Vanished(BaseException):
        pass

    write, count = LineWriter.write, [0]

    def counted(self, line):
        write(self, line)
        count[0] += 1
        if count[0] == num_lines:
            raise Vanished

    monkeypatch.setattr(LineWriter, "write", counted)
    return Vanished


@pytest.mark.parametrize("num_lines,save_every", [(7, 3), (12, 100), (30, 1)])
def test_killed_between_lines(general, personal, whole, tmp_path, monkeypatch, num_lines, save_every, options):
    out, state = tmp_path / "out", tmp_path / "state"
    command = ("personalize", general, *options, "--stream", personal, "--out", out, "--state", state)
    command += ("--save-every", save_every)
    with monkeypatch.context() as patched:
        vanished = crash_after(patched, num_lines)
        with pytest.raises(vanished):
            pplseq(*command)
    assert out.read_bytes().count(b"\n") == num_lines
    (saved,) = json.loads((state / "saved" / "stream.json").read_text())["record"]["streams"].values()
    assert saved[0] == (num_lines - 1) // save_every * save_every  # a line is out before it is saved
    pplseq(*command)
    assert out.read_bytes() == whole[0]
    assert "no further words" in pplseq(*command).stderr and out.read_bytes() == whole[0]
    same = [
        (folder / "saved" / "props", sorted(os.listdir(folder / "saved" / "props"))) for folder in (state, whole[1])
    ]
    assert same[0][1] == same[1][1]


SCRIPT = "import sys; from pplseq.cli import main; main(sys.argv[1:])"


@pytest.mark.parametrize("number", [
    pytest.param(signal.SIGTERM, id="term"), pytest.param(signal.SIGKILL, id="kill", marks=pytest.mark.slow),
    pytest.param(signal.SIGINT, id="int", marks=pytest.mark.slow),
])  # fmt: skip
def test_signals_to_a_process(general, whole, tmp_path, number, options, personal_lines):
    """A process that reads from a pipe is ended between two lines; another one takes up the rest."""
    settings = ["personalize", general, *map(str, options), "--state", str(tmp_path / "state"), "--save-every", "1"]
    command, found = [sys.executable, "-c", SCRIPT, *settings], b""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in personal_lines[:11]:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            found += process.stdout.readline()  # it answers before the next line comes
        if number is signal.SIGKILL:  # a line is out before it is saved
            wait_for_line(tmp_path / "state" / "saved" / "stream.json", 11)
        process.send_signal(number)
        errors = process.communicate(timeout=60)[1].decode()
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number], errors
    assert number is signal.SIGKILL or "stopped behind line 11; saved" in errors
    rest = pplseq(*settings, input="".join(f"{line}\n" for line in personal_lines[11:]))
    assert found + rest.stdout.encode() == whole[0]


def wait_for_line(path, number):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if json.loads(path.read_text())["record"]["streams"]["-"][0] == number:
                return
        except (FileNotFoundError, ValueError):
            pass
        time.sleep(0.02)
    raise AssertionError(f"line {number} was not saved")


def test_the_stream_of_a_file_goes_on_when_it_has_grown(general, personal, whole, tmp_path, options):
    stream, state = tmp_path / "stream", tmp_path / "state"
    text = personal.read_text().splitlines(keepends=True)
    found = ""
    for part in (text[:10], text[10:]):
        with stream.open("a") as file:
            file.write("".join(part))
        found += pplseq("personalize", general, *options, "--stream", stream, "--state", state).stdout
    assert found.encode() == whole[0]
    stream.write_text("something else")
    assert "--rewind" in pplseq("personalize", general, *options, "--stream", stream, "--state", state, code=2).stderr
    lines = lines_of(pplseq("personalize", general, *options, "--stream", stream, "--state", state, "--rewind"))
    assert [line["words"][0] for line in lines] == ["something"]


def test_a_state_remembers_how_its_stream_is_read(general, personal, tmp_path):
    """Options that were given once hold on, also for a comparison."""
    begun = ("--order", 2, "--no-eos", "--lower", "--unknown", "skip")
    state = ("--state", tmp_path / "state")
    first = pplseq("personalize", general, *begun, *state, input="The cat\n")
    second = pplseq("personalize", general, *state, input="THE zebra sees\n")
    whole = pplseq("personalize", general, *begun, input="The cat\nTHE zebra sees\n")
    assert first.stdout + second.stdout == whole.stdout
    line, _ = lines_of(pplseq("compare-streams", state[1], general, input="THE zebra\n"))
    assert line["words"] == ["the", "zebra"] and line["a"][1] is None
    assert "2-gram" in pplseq("compare-streams", general, state[1], input="the\n").stderr


def test_every_stream_has_its_place(general, personal, tmp_path):
    other, state = tmp_path / "other", ("--state", tmp_path / "state")
    other.write_text("the dog\n")
    counts = [
        len(lines_of(pplseq("personalize", general, *state, "--stream", stream, input="the cat\n")))
        for stream in (other, "-", personal, other, "-", personal)
    ]
    assert counts == [1, 1, 30, 0, 1, 0]


def test_scoring_without_learning_changes_no_parameters(
    general, personal, whole, tmp_path, options, personal_lines
):
    state = tmp_path / "state"
    shutil.copytree(whole[1], state)
    command = ("personalize", general, *options, "--stream", "-", "--state", state, "--no-learn")
    first, second = (lines_of(pplseq(*command, input="my cat sees my fish here\n"))[0] for _ in range(2))
    assert first["line"] + 1 == second["line"] == 2
    assert first["words"] == second["words"]
    before, after = (load_file(folder / "saved" / "props" / "model.safetensors") for folder in (whole[1], state))
    for name in ("transition", "cold_words", "cold_values"):
        np.testing.assert_array_equal(before[name], after[name])
    assert not np.array_equal(before["filter"], after["filter"])
    learned = lines_of(pplseq(*command[:-1], input="my cat\n"))[0]  # which changes them
    changed = load_file(state / "saved" / "props" / "model.safetensors")
    assert learned["line"] == 3 and not np.array_equal(before["transition"], changed["transition"])
    assert "give --state" in pplseq("personalize", general, "--no-learn", code=2).stderr
    assert "no state of" in pplseq(*command[:-2], tmp_path / "new", "--no-learn", code=2).stderr


# ---- pieces


def test_overheard_sources_say_what_they_gave():
    class Plain:
        name = "plain"

        def predict(self):
            return np.array([0.25, 0.75, 0.0])

        def observe(self, word):
            self.seen = word

    source = Overheard(Plain())
    assert source.name == "plain" and not hasattr(source, "log_prob_of")
    source.predict()
    source.observe(1)
    assert source.log_prob == pytest.approx(math.log(0.75)) and source.source.seen == 1
    source.predict()
    source.observe(2)
    assert source.log_prob == -math.inf
    Plain.log_prob_of = lambda self, word: -2.0
    source.predict()  # of the word that would have come, had not another line begun
    assert source.log_prob_of(1) == -2.0
    source.observe(1)
    assert source.log_prob == -2.0


def test_infinite_ratios_are_null():
    from pplseq.sources.words import Line

    line = Line({"line": 1, "words": ["x"] * 3, "unknown": []}, ["x"] * 3, [0] * 3, [True] * 3)
    never = -math.inf
    answer = comparison_answer(line, [[never, -1.0, never], [-1.0, never, never]], None)
    assert answer["token_ratios"] == [None, None, 0.0] and answer["a"] == [None, -1.0, None]
