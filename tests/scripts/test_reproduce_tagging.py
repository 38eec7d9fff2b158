"""The parts of the tagging experiment: words split as in the treebank, the classifier, what is tagged directly."""

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def script_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(SCRIPTS / "reproduce"), *sys.path])


@pytest.mark.parametrize(
    "line, sentences",
    [
        ('"Don\'t go," said Mr. Smith.', ["`` Do n't go , '' said Mr. Smith ."]),
        ("Can't you? It's 5 o'clock--late.", ["Ca n't you ?", "It 's 5 o'clock -- late ."]),
        ("“Stop!” he _cried_. (Mary's dog)", ["`` Stop ! ''", "he cried .", "( Mary 's dog )"]),
        ("In the U.S. of A. near-record $1,000.50", ["In the U.S. of A. near-record $ 1,000.50"]),
        ("It was I. You", ["It was I .", "You"]),
        ("", []),
    ],
)
def test_treebank_words(line, sentences):
    from treebank_words import treebank_sentences

    assert [" ".join(words) for words in treebank_sentences(line)] == sentences


def test_quotes_in_turn():
    from treebank_words import alternate_quotes

    assert alternate_quotes(['"', "a", '"', '"', "b"]) == ["``", "a", "''", "``", "b"]


def test_directly_tagged_words():
    from lds_pos import direct_tags

    words = np.array(["the"] * 300 + ["run"] * 400 + ["dog"] * 100 + [","] * 3 + ["--"])
    tags = np.array(["DT"] * 299 + ["NN"] + ["VB"] * 200 + ["NN"] * 200 + ["NN"] * 100 + [",", ",", ":", ":"])
    direct, common = direct_tags(words, tags, 1)
    assert direct == {"the": "DT", ",": ",", "--": ":"} and common == {"the"}
    assert direct_tags(words, tags, 0)[1] == set()
    assert direct_tags(words, tags, 9)[1] == {"the", "dog"}


def test_classifier_learns_what_a_linear_one_cannot():
    from lds_pos import Classifier

    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 3)).astype(np.float32) * [1, 100, 0] + [5, 0, 7]
    x = x.astype(np.float32)
    y = ((x[:, 0] > 5) ^ (x[:, 1] > 0)).astype(np.int64)
    fitted = Classifier(epochs=60).fit(x[:2000], y[:2000], x[2000:2500], y[2000:2500], 2)
    assert (fitted.predict(x[2500:]) == y[2500:]).mean() > 0.93
    np.testing.assert_allclose(fitted.dev_accuracy, (fitted.predict(x[2000:2500]) == y[2000:2500]).mean())


def test_sign_test():
    from lds_pos import sign_test

    one, other = np.array([True] * 10 + [False] * 2), np.array([False] * 8 + [True] * 4)
    np.testing.assert_allclose(sign_test(one, other), 2 * (1 + 10 + 45) / 2**10)
    assert sign_test(one, one) == 1.0


def test_evaluation_of_perfect_and_of_empty_features(tmp_path):
    """Features that hold the tag give it back; features that hold nothing give the directly tagged words and one tag."""
    from lds_pos import evaluate
    from tagging_text import tagged

    from pplseq.data import Vocabulary

    rng = np.random.default_rng(1)
    words = [f"w{i}" for i in range(40)] + [","]
    tags = dict(zip(words, ["NN", "VB", "JJ", "DT"] * 10 + [","], strict=True))
    path = tmp_path / "train.txt"
    lines = [[words[i] for i in rng.integers(len(words), size=6)] for _ in range(200)]
    path.write_text("\n\n".join("\n".join(f"{w} {tags[w]} O" for w in line) for line in lines) + "\n")
    vocabulary = Vocabulary.build([words[:30] + [","]], unknown="<unk>")
    text = tagged(path, Vocabulary((*vocabulary.words, "<unk>")))
    assert text.real.sum() == 1200 and text.first(3).real.sum() == 18
    names = sorted(set(tags.values()))
    numbers = np.array([names.index(tag) if tag else 0 for tag in text.tags])
    options = Namespace(direct=0, epochs=8, seed=0)
    whole = evaluate(lambda part: np.eye(5)[numbers], text, text, "ptb", options)
    assert whole["accuracy"] == whole["out_of_vocabulary_accuracy"] == 100.0
    commas = 100 * (text.words == ",").sum() / 1200
    np.testing.assert_allclose(whole["direct_share"], commas, atol=0.01)
    nothing = evaluate(lambda part: np.zeros((len(numbers), 2)), text, text, "universal", options)
    assert commas < nothing["accuracy"] < 50 and nothing["out_of_vocabulary_accuracy"] < 60
