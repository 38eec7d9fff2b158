"""A text as a list of its lines says what it says as a corpus: learned from, scored, told apart by criteria."""

import math

import numpy as np
import pytest
import torch
from support.grids import grid

import pplseq
from pplseq import HMM, VLHMM, TextLDS, load_corpus
from pplseq.data import Text, Vocabulary
from pplseq.data.vocabulary import split_line
from pplseq.models import SemiMarkovHMM

LINES = ["the cat sat", "the dog ran", "", "a cat ran", "the cat"] * 6
EM = {"max_iterations": 3, "tolerance": 0.0, "seed": 0}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name in ("train", "valid", "test"):
        (folder / f"{name}.txt").write_text("\n".join(LINES) + "\n")
    return load_corpus(folder)


def hmm(vocabulary, kind=HMM, **options):
    model = kind(2, len(vocabulary), **options)
    model.vocabulary = vocabulary
    return model


MODELS = {
    "hmm": lambda corpus: hmm(corpus.vocabulary).fit(corpus.train, **EM),
    "semi-markov": lambda corpus: hmm(corpus.vocabulary, SemiMarkovHMM, max_duration=2).fit(corpus.train, **EM),
    "vlhmm": lambda corpus: VLHMM(num_states=8, hidden_size=4).fit(corpus, num_blocks=2, epochs=1, seed=0),
    "text lds": lambda corpus: TextLDS(1, num_words=len(corpus.vocabulary)).fit([line for line in LINES if line] * 3,
    max_iterations=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_list_of_lines_is_scored_as_the_corpus(name, corpus):
    model = MODELS[name](corpus)
    lines, text = LINES, corpus.test
    if name == "text lds":
        lines = [line for line in LINES if line]
        text = Text.from_lines([line.split() for line in lines], model.vocabulary)
    words = [line.split() for line in lines]
    wanted = model.score(text, per_token=True)
    assert math.isfinite(wanted)
    for x in (lines, words, [[*line, "<eos>"] for line in words]):
        assert model.score(x, per_token=True) == pytest.approx(wanted, rel=1e-9)
        assert model.score(x) == pytest.approx(wanted * text.num_tokens, rel=1e-9)
        assert model.bic(x) == pytest.approx(model.bic(text), rel=1e-9)
    assert model.score([torch.as_tensor(line).long() for line in text.lines()]) == pytest.approx(model.score(text), rel=1e-9)


def test_a_list_of_lines_is_learned_as_the_corpus(corpus):
    one, two = (hmm(corpus.vocabulary).fit(x, **EM) for x in (corpus.train, LINES))
    assert one.history.log_likelihoods == pytest.approx(two.history.log_likelihoods, rel=1e-12)
    ends = one.sample(20, seed=0).words  # drawn sentences end
    assert all(words[-1] == "<eos>" for words in ends)


def test_what_is_known_of_single_steps_adds_none(corpus):
    model = MODELS["hmm"](corpus)
    sentence, states = [["the", "cat"]], [[0, 1]]
    known = model.score(sentence, states=states)
    assert known == pytest.approx(model.score([model.vocabulary.encode(sentence[0]).tolist()], states=states), rel=1e-12)
    assert [len(path) for path in model.decode(sentence)] == [2]  # questions about states are about the words that are there


@grid({"kind": ["hmm", "vlhmm", "text_lds"], "units": ["characters", "bytes"]})
def test_strings_in_the_units_of_the_vocabulary(kind, units, tmp_path):
    lines = ["今日は天気", "天気は今日 いい", "いい日"] * 3
    vocabulary = Vocabulary.build([split_line(line, units) for line in lines], units=units)
    size, asked = len(vocabulary), ["天気", "今 日"]
    if kind == "hmm":
        model = HMM(2, num_words=size)
        model.vocabulary = vocabulary
        model.fit(lines, seed=0, max_iterations=2)
    elif kind == "vlhmm":
        model = VLHMM(4, num_words=size, hidden_size=4)
        model.vocabulary = vocabulary
    else:
        model = TextLDS(2, num_words=size)
        model.fit(Text.from_lines(map(vocabulary.split, lines), vocabulary), max_iterations=1)
        model.vocabulary = vocabulary
    split = [vocabulary.split(line) for line in asked]
    if kind != "text_lds":
        assert model.score(asked) == model.score(split) < 0
    for ours, theirs, words in zip(model.decode(asked), model.decode(split), split, strict=True):
        assert len(ours) == len(words)
        torch.testing.assert_close(ours, theirs)
    loaded = pplseq.load(model.save(tmp_path / "model"))
    assert loaded.vocabulary == vocabulary


@pytest.mark.parametrize("units", ["characters", "bytes"])
def test_a_space_in_a_list_of_characters_is_one(units, tmp_path):
    texts = ["ab cab ca", "b ac\tb"]
    vocabulary = Vocabulary.build([split_line(text, units) for text in texts], min_count=2, units=units)
    assert vocabulary.unknown_id is not None
    assert vocabulary.encode(list(texts[0])).tolist() == vocabulary.encode(vocabulary.split(texts[0])).tolist()
    model = HMM(2, len(vocabulary))
    model.vocabulary = vocabulary
    model.fit(texts, seed=0, max_iterations=2)
    assert model.score([list(texts[0])]) == model.score(texts[:1])
    assert Text.from_lines([list(texts[0])], vocabulary).num_unknown == 0
    if units == "characters":
        model = VLHMM(num_states=8, hidden_size=4).fit([list(text) for text in texts], epochs=1, num_blocks=2, seed=0)
        assert model.vocabulary.units == units and model.vocabulary.unknown_id is None
        assert model.score([list(texts[0])]) == model.score(texts[:1])


def test_a_new_word_that_is_impossible_is_named():
    vocabulary = Vocabulary.build([["a", "b"], ["b", "c", "b"], ["a"]], min_count=2)
    for priors in (None, True):
        model = HMM(2, len(vocabulary), priors=priors)
        model.vocabulary = vocabulary
        model.fit([["a", "b"], ["b", "a"]], **EM)
        if priors:
            assert math.isfinite(model.score([["a", "zebra"]]))
            continue
        with pytest.warns(RuntimeWarning, match=r"x: the words \['zebra'\] are new, .* '<unk>'.*min_count=2.*priors=True"):
            assert model.score([["a", "zebra"], ["b"]]) == -math.inf


def test_the_vocabulary_of_a_corpus_stays(corpus, tmp_path):
    model = HMM(2, len(corpus.train.vocabulary)).fit(corpus.train, **EM)
    assert model.vocabulary is corpus.train.vocabulary
    assert pplseq.load(model.save(tmp_path / "model")).score(["the cat sat"]) == model.score(["the cat sat"])
    other = Text.from_lines([["x", "y"]], Vocabulary.build([["x", "y"]]))
    with pytest.raises(ValueError, match="is encoded with other words .* than the model's"):
        model.score(other)


def test_whatever_is_missing_among_words_is_a_gap():
    """What pandas lists for a missing text is NaN; as a word it would be unknown."""
    pandas = pytest.importorskip("pandas")
    model = HMM(2, 5, vocabulary=Vocabulary(("<eos>", "<unk>", "the", "cat", "a")))
    model = model.fit(["the cat a", "cat the"], seed=0, max_iterations=2)
    expected = model.log_prob([["the", None, "a"], [None], ["cat"]])
    for none in (math.nan, pandas.NA, pandas.NaT, np.float64("nan")):
        assert torch.equal(model.log_prob([["the", none, "a"], (none,), "cat"]), expected)
    arrays = [pandas.Series(["the", None, "a"]), np.array([None]), np.array(["cat"])]
    assert torch.equal(model.log_prob(arrays), expected)
    assert model.score([""]) == model.score([["<eos>"]]) == pytest.approx(model.score(["cat", ""]) - model.score(["cat"]))
    with pytest.raises(TypeError, match="sentence 1 holds 7, and words are strings"):
        model.score([["the"], ["cat", 7]])
    with pytest.raises(ValueError, match="sentence 1 is missing; leave it out"):
        model.score(["the cat", None])


@pytest.mark.parametrize("word", [None, math.nan, 7, b"cat"])
def test_a_word_is_a_string(word):
    for encode in (Vocabulary(("<unk>", "cat")).encode, lambda words: Text.from_lines([words], Vocabulary(("<unk>", "cat")))):
        with pytest.raises(TypeError, match="words.* strings.* got"):
            encode(["cat", word])
    with pytest.raises(TypeError, match="words are strings, and a text to learn from lacks none; got"):
        Text.from_lines([["cat", word]])
    with pytest.raises(ValueError, match="words: word 2 is"):
        Vocabulary.build([["cat", word]])
    with pytest.raises(TypeError, match="line 1 is a string; expected a list of words"):
        Vocabulary.build(["cat"])
