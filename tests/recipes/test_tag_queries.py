"""Questions to a tagger, against what can be counted by hand."""

import json
import math

import numpy as np
import pytest
from support.toy_tagger import PlainTagger, ToyTagger

from pplseq.data.columns import TaggedSentence
from pplseq.recipes.taggers import answers as tag_queries
from pplseq.recipes.taggers.answers import answer, answer_each, answer_on, check_answerable, unseen_tags
from pplseq.recipes.taggers.settings import TagQuestions

TRAIN = [TaggedSentence(("the", "dog", "barks"), ("D", "N", "V")), TaggedSentence(("dog", "barks"), ("N", "N"))]
SENTENCES = [("the", "barks"), (), ("new",)]
EVERYTHING = TagQuestions(
    probabilities=True, top=2, num_paths=3, num_samples=4, entropy=True, log_prob=True, surprising=True, seed=5
)


@pytest.fixture
def tagger():
    return ToyTagger().fit(TRAIN)


def test_answers(tagger):
    found = answer(tagger, SENTENCES, EVERYTHING)
    json.dumps(found, allow_nan=False)
    first, empty, unknown = found
    assert (first["words"], first["tags"]) == (["the", "barks"], ["D", "N"])
    assert first["probabilities"] == [0.6, 1.5 / 3.5]
    assert first["alternatives"][0] == [{"tag": "D", "prob": 0.6}, {"tag": "N", "prob": 0.2}]
    assert first["log_prob"] == pytest.approx(-math.log(4 * 6)) and first["surprisals"] == pytest.approx(np.log([4, 6]))
    assert [(row["position"], row["word"]) for row in first["most_surprising"]] == [(2, "barks"), (1, "the")]
    assert first["n_best"][0]["tags"] == ["D", "N"] and first["n_best"][0]["prob"] == pytest.approx(0.6 * 1.5 / 3.5)
    probs = [path["prob"] for path in first["n_best"]]
    assert probs == sorted(probs, reverse=True) and np.log(probs) == pytest.approx(
        [p["log_prob"] for p in first["n_best"]]
    )
    assert first["entropy"] == pytest.approx(-sum(p * math.log(p) for p in (0.6, 0.2, 0.2, 3 / 7, 3 / 7, 1 / 7)))
    assert len(first["samples"]) == 4 and all(len(path) == 2 for path in first["samples"])
    assert empty == {
        "words": [], "tags": [], "probabilities": [], "alternatives": [], "entropy": 0.0, "log_prob": 0.0,
        "n_best": [{"tags": [], "log_prob": 0.0, "prob": 1.0}], "samples": [[]] * 4, "surprisals": [],
        "most_surprising": [],
    }  # fmt: skip
    assert unknown["entropy"] == pytest.approx(math.log(3))


def test_probabilities_are_none_above_one_or_zero(tagger):
    tagger.smooth = lambda sentences: [
        np.array([[1.0000000000000002, 0.0, -0.0]] * len(words)) for words in sentences
    ]
    (found,) = answer(tagger, [("the",)], TagQuestions(probabilities=True, top=3))
    assert found["probabilities"] == [1.0] and found["alternatives"] == [[{"tag": "D", "prob": 1.0}]]


def test_only_what_is_asked(tagger):
    assert answer(tagger, SENTENCES[:1], TagQuestions()) == [{"words": ["the", "barks"], "tags": ["D", "N"]}]
    assert not TagQuestions(probabilities=True, decoder="posterior").beyond_tags
    assert TagQuestions(entropy=True).beyond_tags and TagQuestions(top=1).beyond_tags


def test_parts_are_the_whole(tagger, monkeypatch):
    whole = answer(tagger, SENTENCES * 3, EVERYTHING)
    monkeypatch.setattr(tag_queries, "BATCH_SENTENCES", 2)
    assert answer(tagger, SENTENCES * 3, EVERYTHING) == whole
    drawn = [found["samples"] for found in answer(tagger, [("new",) * 9] * 2, TagQuestions(num_samples=2))]
    assert drawn[0] != drawn[1]  # a seed a sentence


@pytest.mark.filterwarnings("default")  # Dask's own
def test_a_cluster_answers_as_one_process(here, tagger, monkeypatch):
    expected = answer_each(tagger, SENTENCES * 3, EVERYTHING)
    monkeypatch.setattr(tag_queries, "PART_SENTENCES", 2)
    assert answer_on(here, tagger, SENTENCES * 3, EVERYTHING) == expected
    assert answer_on(here, tagger, [], EVERYTHING) == []
    with pytest.raises(ValueError, match="cluster: expected 'local:N'"):
        answer_on("somewhere", tagger, SENTENCES, EVERYTHING)


def test_questions_without_an_answer():
    tagger = PlainTagger().fit(TRAIN)
    assert answer(tagger, SENTENCES, TagQuestions())[0]["tags"] == ["D", "N"]
    for question, value in (
        ("probabilities", True), ("top", 1), ("num_paths", 2), ("num_samples", 1), ("entropy", True), ("log_prob", True),
        ("surprising", True), ("decoder", "posterior"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{question}: the system 'toy-plain'"):
            answer(tagger, SENTENCES, TagQuestions(**{question: value}))
    check_answerable(ToyTagger().fit(TRAIN), EVERYTHING)


def test_unseen_tags():
    text = [TaggedSentence(("a", "b", "c", "d"), ("D", "N", "X", None))]
    assert unseen_tags(("D", "N"), text) == {"X": 1}
    assert unseen_tags(("D", "N", "X"), text) == {}
    assert unseen_tags(("D",), [TaggedSentence(("a",), (None,))]) == {}
    with pytest.raises(
        ValueError, match="another tag set: it knows the tags of only 33% of the words. .* D E; .* D N X. Ch"
    ):
        unseen_tags(("D", "E"), text)
