"""The taggers of other libraries, and the simplest ones, behind one interface."""

import builtins
import importlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

import pplseq.baselines  # noqa: F401 - which registers its taggers
from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers import TAGGERS

TEXT = """
the_DET dog_NOUN barks_VERB ._PUNCT
a_DET cat_NOUN sees_VERB the_DET dog_NOUN ._PUNCT
dogs_NOUN bark_VERB ._PUNCT
the_DET bark_NOUN of_ADP the_DET tree_NOUN ._PUNCT
they_PRON can_AUX can_VERB the_DET can_NOUN ._PUNCT
Mary_PROPN sees_VERB a_DET saw_NOUN ._PUNCT
Mary_PROPN saw_VERB the_DET tree_NOUN ._PUNCT
the_DET small_ADJ cat_NOUN can_AUX bark_VERB
yes_INTJ
"""
SENTENCES = [
    TaggedSentence(*zip(*(token.split("_") for token in line.split()), strict=True))
    for line in TEXT.strip().splitlines()
]
SYSTEMS = {
    "most-frequent": ({}, None),
    "rules": ({}, None),
    "nltk-ngram": ({"n": 2}, "nltk"),
    "nltk-brill": ({"max_rules": 5, "min_score": 1}, "nltk"),
    "nltk-tnt": ({}, "nltk"),
    "nltk-perceptron": ({"num_passes": 3}, "nltk"),
    "crfsuite": ({}, "pycrfsuite"),
    "maxent": ({}, "sklearn"),
}


def new_tagger(name, **options):
    given, package = SYSTEMS[name]
    if package is not None:
        pytest.importorskip(package)
    return TAGGERS[name](**{**given, **options})


# ---------------------------------------------------------------- beside the contract of all taggers
@pytest.mark.parametrize("name", SYSTEMS)
def test_text_without_tags_is_refused(name):
    with pytest.raises(ValueError, match="^x: "):
        new_tagger(name).fit([TaggedSentence(("a",), (None,))])


@pytest.mark.parametrize("name", [name for name, (_, package) in SYSTEMS.items() if package])
def test_a_missing_package_is_named(name, monkeypatch):
    tagger = new_tagger(name)
    whole = builtins.__import__

    def without(module, *args, **kwargs):
        if module.partition(".")[0] in ("nltk", "pycrfsuite", "sklearn", "scipy"):
            raise ImportError(module)
        return whole(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(importlib, "import_module", lambda module: without(module))
    with pytest.raises(ImportError, match=r"pip install \"pplseq\[tagging\]\""):
        tagger.fit(SENTENCES)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name not in ("most-frequent", "rules")])
def test_one_tag_and_one_word(name):
    tagger = new_tagger(name).fit([TaggedSentence(("a",), ("X",))])
    assert tagger.tags == ("X",) and tagger.tag([("a",), ("b", "a")]) == [("X",), ("X", "X")]


# ---------------------------------------------------------------- the most frequent tag
def test_most_frequent_tags_are_those_of_a_count():
    from pplseq.baselines.taggers import MostFrequentTagger

    counts = Counter((word, tag) for sentence in SENTENCES for word, tag in zip(*sentence, strict=True))
    tagger = MostFrequentTagger().fit(SENTENCES)
    for word in tagger.known_words:
        best = max(count for (w, _), count in counts.items() if w == word)
        assert tagger.tag_of[word] == min(tag for (w, tag), count in counts.items() if w == word and count == best)
    assert tagger.tag([("unheard",)]) == [("NOUN",)]


def test_most_frequent_tag_of_unknown_words():
    from pplseq.baselines.taggers import MostFrequentTagger

    text = [
        TaggedSentence(("a", "a", "a", "x", "y", "a"), ("N", "N", "N", "V", "V", None)),
        TaggedSentence(("z",), (None,)),
    ]
    assert MostFrequentTagger().fit(text).tag([("q", "z")]) == [("N", "N")]
    rare = MostFrequentTagger("rare", lower=True).fit(text)
    assert rare.tag([("q", "X", "A")]) == [("V", "V", "N")]
    assert "z" in rare.known_words
    with pytest.raises(ValueError, match="unknown must be one of"):
        MostFrequentTagger("none")


# ---------------------------------------------------------------- rules
def test_the_first_rule_that_fits_decides():
    from pplseq.baselines.taggers import RuleTagger

    tagger = RuleTagger([(r"[a-z]+ing", "V"), (r"[a-z]+g", "G"), (r"[0-9]+", "NUM")])
    tagger.fit([TaggedSentence(("dog", "cat", "hat", "do"), ("N", "N", "N", "V"))])
    assert tagger.tag([("sing", "dog", "12", "12a", "going!")]) == [("V", "G", "NUM", "N", "N")]
    assert tagger.tags == ("G", "N", "NUM", "V")
    assert RuleTagger([("a", "A")], default="Z").fit(SENTENCES).tag([("a", "b")]) == [("A", "Z")]
    for rules, message in (
        ([("(", "X")], "no regular expression"),
        (["ab"], "expected a pattern and a tag"),
        ([1], "number 0"),
    ):
        with pytest.raises(ValueError, match=message):
            RuleTagger(rules)


def test_english_rules_have_both_tag_sets():
    from pplseq.baselines.taggers import RuleTagger

    words = ("The", "cats", "were", "slowly", "walking", "to", "Rome", ",", "3.5", "!")
    universal = RuleTagger().fit(SENTENCES)
    assert universal.tag([words]) == [("DET", "NOUN", "AUX", "ADV", "VERB", "PART", "PROPN", "PUNCT", "NUM", "PUNCT")]
    penn = RuleTagger().fit([TaggedSentence(("the", "dog", "barks", "."), ("DT", "NN", "VBZ", "."))])
    assert penn.tag([words]) == [("DT", "NNS", "VBD", "RB", "VBG", "TO", "NNP", ",", "CD", ".")]


# ---------------------------------------------------------------- the libraries' own
def test_ngrams_back_off():
    tagger = new_tagger("nltk-ngram", n=2, suffixes=(2,)).fit(SENTENCES)
    assert tagger.tag([("they", "can")])[0][1] == "AUX", "after a pronoun"
    assert tagger.tag([("the", "can")])[0][1] == "NOUN", "after a determiner"
    assert tagger.tag([("xyz",)]) == [("NOUN",)] and tagger.tag([("gnarks",)]) == [("VERB",)], "-ks of barks"
    alone = new_tagger("nltk-ngram", n=1).fit(SENTENCES)
    assert alone.tag([("they", "can")])[0][1] == alone.tag([("the", "can")])[0][1]
    with pytest.raises(ValueError, match="must be at least 1"):
        new_tagger("nltk-ngram", n=0)


def test_rules_of_brill_can_be_read():
    tagger = new_tagger("nltk-brill").fit(SENTENCES)
    assert tagger.rules and all("->" in rule for rule in tagger.rules)
    assert new_tagger("nltk-brill", max_rules=0).fit(SENTENCES).rules == []
    with pytest.raises(ValueError, match="templates must be one of"):
        new_tagger("nltk-brill", templates="mine")


def test_the_perceptron_leaves_the_common_generator_alone():
    import random

    random.seed(5)
    expected = random.random()
    random.seed(5)
    first = new_tagger("nltk-perceptron", seed=1).fit(SENTENCES)
    assert random.random() == expected
    random.seed(6)
    assert new_tagger("nltk-perceptron", seed=1).fit(SENTENCES).nltk.model.weights == first.nltk.model.weights


def test_crfsuite_gives_a_distribution():
    tagger = new_tagger("crfsuite").fit(SENTENCES)
    words = ("the", "dog")
    log_probs = tagger.log_prob(
        [TaggedSentence(words, tags) for tags in itertools.product(tagger.tags, repeat=2)]
    )
    assert math.isclose(np.exp(log_probs).sum(), 1.0, rel_tol=1e-6)
    best = list(itertools.product(tagger.tags, repeat=2))[int(log_probs.argmax())]
    assert tagger.tag([words]) == [best]
    assert tagger.log_prob([TaggedSentence((), ())]).tolist() == [0.0]
    averaged = new_tagger("crfsuite", algorithm="ap", max_iterations=5).fit(SENTENCES)
    assert averaged.tag([words]) == [("DET", "NOUN")]
    with pytest.raises(ValueError, match="algorithm must be one of"):
        new_tagger("crfsuite", algorithm="newton")


@pytest.mark.parametrize("num_tags", [2, 3])
def test_maxent_meets_its_condition(num_tags):
    """At the maximum, expected features less observed ones are l2 times the weights."""
    tags = [tuple("ABC"[(3 * i + j) % 4 % num_tags] for j in range(len(s.words))) for i, s in enumerate(SENTENCES)]
    text = [TaggedSentence(s.words, t) for s, t in zip(SENTENCES, tags, strict=True)]
    tagger = new_tagger("maxent", l2=0.5, tolerance=1e-8, max_iterations=1000, templates=("word[0]", "lower[-1]")).fit(
        text
    )
    probs = torch.from_numpy(np.concatenate(tagger.smooth([s.words for s in text])))
    assert torch.allclose(probs.sum(1), torch.ones(len(probs), dtype=probs.dtype))
    matrix = tagger._matrix(tagger.features.encode([s.words for s in text])).toarray()
    gold = np.eye(num_tags)[[tagger.tags.index(tag) for s in text for tag in s.tags]]
    weights = tagger.weights - (tagger.weights.mean(1, keepdims=True) if num_tags > 2 else 0)
    if num_tags == 2:  # one vector of weights, that of the second tag
        assert np.allclose((matrix.T @ (gold - probs.numpy()))[:, 1], 0.5 * weights[:, 1], atol=1e-4)
    else:
        assert np.allclose(matrix.T @ (gold - probs.numpy()), 0.5 * weights, atol=1e-4)
    shifted = tagger.smooth([(), ("the",), ()])
    assert [len(rows) for rows in shifted] == [0, 1, 0]


# ---------------------------------------------------------------- real text
@pytest.mark.parametrize("name, least", [("most-frequent", 0.75), ("rules", 0.65)])
def test_on_the_english_web_treebank(name, least, data_folder):
    from pplseq.data.columns import read_conllu

    train = list(itertools.islice(read_conllu(data_folder / "ud_english_ewt" / "en_ewt-ud-dev.conllu"), 1500))
    test = train[1000:]
    tagger = new_tagger(name).fit(train[:1000])
    found = tagger.tag([sentence.words for sentence in test])
    right = [
        a == b for tags, sentence in zip(found, test, strict=True) for a, b in zip(tags, sentence.tags, strict=True)
    ]
    assert np.mean(right) > least
