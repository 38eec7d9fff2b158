"""Taggers as runs: trained from Python, asked line by line, kept where the time is up."""

import itertools
import json
import random

import numpy as np
import pytest

import pplseq
from pplseq.baselines.tagging_systems import compare, make_tagger, train_tagger
from pplseq.data import TaggedSentence, write_tagged
from pplseq.recipes import query

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
        assert [answer["line"] for answer in answers] == [1, 3, 4] and answers[1]["id"] == 7
        assert "null is no word" in answers[2]["error"]
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
    from pplseq.recipes.recipe import Job

    left = itertools.chain([100.0] * 30, itertools.repeat(0.0))
    monkeypatch.setattr(Job, "time_left", property(lambda job: next(left)))
    summary = pplseq.train("tagger", text, folder=tmp_path / "run", system="latent", max_time=100)
    assert summary["stop_reason"] == "max_time"
    tagger = pplseq.load(tmp_path / "run")
    assert 0 < len(tagger.log_probs) < 4 * 20 and tagger.tag([("the", "dog")]) == [("D", "N")]


@pytest.mark.parametrize("system", ["crf", "memm", "semi-supervised", "latent"])
def test_trainings_end_when_they_are_asked_to(system):
    calls = itertools.count()
    saved, summary = train_tagger(system, TRAIN, stop=lambda: next(calls) >= 1)
    assert saved.tagger.tag([("the", "dog")]) == [("D", "N")] and summary["tags"] == 4 and next(calls) <= 4


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
