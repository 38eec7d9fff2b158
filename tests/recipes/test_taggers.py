"""Taggers as runs: trained from Python, asked line by line, kept where the time is up."""

import itertools
import json
import os
import random
import signal
from functools import partial

import numpy as np
import pytest
import torch
from support.faulty_disk import in_process

import pplseq
from pplseq import CRFTagger, LatentTagger
from pplseq.data import TaggedSentence, write_tagged
from pplseq.models import DictionaryTagger, MEMMTagger
from pplseq.models.taggers.training import TaggerTraining
from pplseq.recipes import query
from pplseq.recipes.taggers.systems import compare, make_tagger
from pplseq.runs.loop import _Loop
from pplseq.runs.status import run_status

ANSWERS = {"the": "D", "a": "D", "dog": "N", "cat": "N", "barks": "V", "sleeps": "V", "big": "A"}
FORMS = ["the dog barks", "a big cat sleeps", "the cat barks", "a dog sleeps"]


def sentence(i):
    words = tuple(random.Random(i).choice(FORMS).split())
    return TaggedSentence(words, tuple(ANSWERS[word] for word in words))


TRAIN = [sentence(i) for i in range(60)]


@pytest.fixture
def text(tmp_path):
    write_tagged(tmp_path / "train.conllu", TRAIN)
    return tmp_path / "train.conllu"


def test_a_run_is_asked(text, tmp_path):
    summary = pplseq.train("tagger", text, folder=tmp_path / "run", system="hmm")
    assert summary["stop_reason"] == "finished" and summary["tags"] == 4
    tagger = pplseq.load(tmp_path / "run")
    lines = ["the big dog sleeps", "", '{"words": ["a", "zebra"], "id": 7}', '{"words": ["a", null]}']
    asked = {name: list(query(tmp_path / "run", name, lines)) for name in ("tag", "alternatives", "n-best", "entropy", "score")}
    for answers in asked.values():
        assert [answer["line"] for answer in answers] == [1, 2, 3, 4] and answers[2]["id"] == 7
        assert "null is no word" in answers[3]["error"]
    assert tuple(asked["tag"][0]["tags"]) == tagger.tag([lines[0].split()])[0] == ("D", "A", "N", "V")
    (probs,) = tagger.smooth([lines[0].split()])
    np.testing.assert_allclose(asked["tag"][0]["probabilities"], probs.max(-1))
    assert asked["score"][0]["log_prob"] == pytest.approx(tagger.log_prob([lines[0].split()])[0])
    assert asked["n-best"][0]["n_best"][0]["tags"] == ["D", "A", "N", "V"]
    (found,) = pplseq.evaluate(tmp_path / "run", text)
    assert found["all"]["accuracy"] == 1.0
    again = pplseq.train(folder=tmp_path / "run", resume=True)
    assert again["seconds"] == summary["seconds"]  # it had finished: nothing was done


def test_time_that_is_up_keeps_what_was_learned(text, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        left = itertools.chain([100.0] * 30, itertools.repeat(0.0))
        patch.setattr(_Loop, "_left", lambda loop: next(left))
        summary = pplseq.train("tagger", text, folder=tmp_path / "run", system="latent", max_time=100)
    assert summary["stop_reason"] == "max_time" and 0 < summary["steps"] < 4 * 20
    tagger = pplseq.load(tmp_path / "run")
    assert len(tagger.log_probs) == summary["steps"] and tagger.tag([("the", "dog")]) == [("D", "N")]
    again = pplseq.train(folder=tmp_path / "run", resume=True)
    assert again["stop_reason"] == "finished" and again["steps"] == 4 * 20
    assert same(pplseq.load(tmp_path / "run"), make_tagger("latent", seed=0).fit(TRAIN))


def same(tagger, other):
    mine, theirs = tagger.state(), other.state()
    assert json.dumps(mine[0]) == json.dumps(theirs[0]) and mine[1].keys() == theirs[1].keys()
    return all(torch.equal(value, theirs[1][name]) for name, value in mine[1].items())


SPLIT = {"num_substates": 8, "max_iterations": 4, "merge": 0.5}
WORDS = {"learn_from": "words", "num_states": 3, "start": "random", "tolerance": 0.0, "max_iterations": 8}
ITERATED = {
    "latent": (partial(LatentTagger, **SPLIT), 9),
    "crf": (partial(CRFTagger, max_iterations=12, period=3), 2),
    "sgd": (partial(CRFTagger, method="sgd", epochs=5), 3),
    "memm": (partial(MEMMTagger, max_iterations=12, period=3, dtype="float64"), 2),
    "dictionary": (partial(DictionaryTagger, max_iterations=6, tolerance=0.0), 4),
    "words": (partial(DictionaryTagger, **WORDS, num_restarts=4), 5),
    "words-late": (partial(DictionaryTagger, **WORDS, num_restarts=4), 45),
}


@pytest.mark.filterwarnings("ignore:EM's objective:RuntimeWarning")
@pytest.mark.parametrize("case", ITERATED)
def test_a_training_goes_on_where_it_was_stopped(case, tmp_path, monkeypatch):
    """A signal in the middle leaves a checkpoint, from which another object comes to the same numbers."""
    make, middle = ITERATED[case]
    some = [TaggedSentence(s.words, (None,) * len(s.words)) if i % 3 else s for i, s in enumerate(TRAIN)]
    sentences = some if case == "dictionary" else TRAIN
    whole = make().fit(sentences)
    step, steps = TaggerTraining.step, []

    def interrupted(self):
        steps.append(len(steps))
        if len(steps) == middle:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(TaggerTraining, "step", interrupted)
        make().fit(sentences, folder=tmp_path / "run")
    assert len(steps) == middle and run_status(tmp_path / "run")["status"] == "stopped"
    pplseq.load(tmp_path / "run")  # what it had learned until then
    with pytest.raises(ValueError, match="of other sentences"):
        make().fit(sentences[1:], folder=tmp_path / "run", resume=True)
    resumed = make().fit(sentences, folder=tmp_path / "run", resume=True)
    assert same(resumed, whole)
    loaded = pplseq.load(tmp_path / "run").state()[1]
    for name, value in whole.state()[1].items():
        torch.testing.assert_close(loaded[name], value)  # probabilities become logits and back
    numbers = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > middle


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_killed_command_is_resumed(text, tmp_path, monkeypatch):
    """The process is gone in the middle, without a word."""
    step, taken = TaggerTraining.step, []

    def killed(self):
        if len(taken) > 6:
            os.kill(os.getpid(), signal.SIGKILL)
        taken.append(1)
        return step(self)

    def training():
        monkeypatch.setattr("pplseq.models.taggers.training.SAVED_EVERY", 0.0)
        monkeypatch.setattr(TaggerTraining, "step", killed)
        pplseq.train("tagger", text, folder=tmp_path / "run", system="latent", set=("num_substates=4",))

    assert in_process(training)[0] == 137 and run_status(tmp_path / "run")["status"] == "died"
    summary = pplseq.train(folder=tmp_path / "run", resume=True)
    assert summary["stop_reason"] == "finished" and summary["steps"] == 40
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 40
    assert same(pplseq.load(tmp_path / "run"), LatentTagger(num_substates=4).fit(TRAIN))


def test_systems_from_python(tmp_path):
    tagger = make_tagger("crf", l2=0.25, max_iterations=5)
    assert tagger.settings.l2 == 0.25 and tagger.get_params()["max_iterations"] == 5
    with pytest.raises(ValueError, match="'hnm'"):
        make_tagger("hnm")
    said = []
    found = compare(["hmm", "most-frequent"], TRAIN[:40], TRAIN[40:], fractions=[0.5, 1.0], say=said.append)
    assert [result.scores.accuracy for result in found.results] == [1.0, 1.0] and not found.failed
    assert len(found.curves["hmm"]) == 2 and len(said) == 6
    assert json.loads(json.dumps(found.summary()))["systems"]["hmm"]["all"]["num"] == sum(len(s.words) for s in TRAIN[40:])
