"""What every tagger keeps: one list, the same questions. Add a tagger to TAGGERS."""

import importlib
import math

import numpy as np
import pytest
from tagged_toy import tagged_sentences

from pplseq.models.tagger import GenerativeTagger, ProbabilisticTagger, Tagger, load_tagger

# name -> (where the class is, how to make one)
TAGGERS = {
    "plain": ("pplseq.models.hmm_tagger:HMMTagger", lambda c: c.plain()),
    "bigram": ("pplseq.models.hmm_tagger:HMMTagger", lambda c: c.bigram()),
    "tnt": ("pplseq.models.hmm_tagger:HMMTagger", lambda c: c.tnt()),
    "enhanced": ("pplseq.models.hmm_tagger:HMMTagger", lambda c: c.enhanced()),
}
TRAIN, TEST = tagged_sentences(), tagged_sentences(20, seed=1)
WORDS = [sentence.words for sentence in TEST]
ODD = [(), ("zebras", "walked", "."), ("日本語", "naïve", "😀", "\u200b"), ("walk",), ("",)]
_fitted: dict[str, Tagger] = {}


@pytest.fixture(params=list(TAGGERS))
def tagger(request) -> Tagger:
    if request.param not in _fitted:
        where, make = TAGGERS[request.param]
        module, _, name = where.partition(":")
        _fitted[request.param] = make(getattr(importlib.import_module(module), name)).fit(TRAIN)
    return _fitted[request.param]


@pytest.fixture
def probabilistic(tagger) -> ProbabilisticTagger:
    if not isinstance(tagger, ProbabilisticTagger):
        pytest.skip("gives no probabilities")
    return tagger


@pytest.fixture
def generative(tagger) -> GenerativeTagger:
    if not isinstance(tagger, GenerativeTagger):
        pytest.skip("gives words no probabilities")
    return tagger


def test_learns(tagger):
    found = [tag for tags in tagger.tag(WORDS) for tag in tags]
    gold = [tag for sentence in TEST for tag in sentence.tags]
    assert np.mean([a == b for a, b in zip(found, gold, strict=True)]) > 0.9
    assert set(tagger.tags) == {"ADJ", "DET", "NOUN", "PUNCT", "VERB"}
    assert "dog" in tagger.known_words and "zebras" not in tagger.known_words


def test_odd_sentences(tagger):
    found = tagger.tag(ODD)
    assert [len(tags) for tags in found] == [len(words) for words in ODD]
    assert {tag for tags in found for tag in tags} <= set(tagger.tags)
    assert tagger.tag([]) == []


def test_a_long_sentence(tagger):
    words = tuple(word for sentence in tagged_sentences(1500, seed=2) for word in sentence.words)[:5000]
    assert len(words) == 5000 and len(tagger.tag([words])[0]) == 5000


def test_batches_change_nothing(tagger):
    assert tagger.tag(WORDS) == [tagger.tag([words])[0] for words in WORDS]


def test_saved_and_loaded(tagger, tmp_path):
    again = load_tagger(tagger.save(tmp_path / "tagger"))
    assert type(again) is type(tagger) and again.tags == tagger.tags and again.known_words == tagger.known_words
    assert again.tag(WORDS + ODD) == tagger.tag(WORDS + ODD)
    again.save(tmp_path / "tagger")  # over itself


def test_a_damaged_folder(tagger, tmp_path):
    folder = tagger.save(tmp_path / "tagger")
    tensors = folder / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    with pytest.raises(ValueError, match="model.safetensors"):
        load_tagger(folder)


def test_bad_sentences(tagger):
    with pytest.raises(ValueError, match="sentences"):
        type(tagger)().fit([])
    with pytest.raises(RuntimeError, match="fit"):
        type(tagger)().tag([["a"]])
    with pytest.raises(TypeError, match="split"):
        tagger.tag(["a sentence"])
    with pytest.raises(TypeError, match="expected words"):
        tagger.tag([["a", 3]])


# ------------------------------------------------------------------------------------------------ probabilities
def test_marginals(probabilistic):
    for words, probs, confidence in zip(
        WORDS + ODD, probabilistic.marginals(WORDS + ODD), probabilistic.confidence(WORDS + ODD), strict=True
    ):
        assert probs.shape == (len(words), len(probabilistic.tags)) and confidence.shape == (len(words),)
        np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-5)
        assert (confidence <= probs.max(-1, initial=0) + 1e-9).all()


def test_posterior_decoding(probabilistic):
    found = probabilistic.tag(WORDS, decode="posterior")
    best = [tuple(probabilistic.tags[k] for k in probs.argmax(-1)) for probs in probabilistic.marginals(WORDS)]
    assert found == best
    with pytest.raises(ValueError, match="decode must be one of"):
        probabilistic.tag(WORDS, decode="best")


def test_all_taggings(probabilistic):
    """n-best of all taggings of a short sentence sums to one, and gives marginals, entropy and draws."""
    words = ("the", "walk", "walk")
    if len(probabilistic.tag_of_state()) not in (6, 36, 5):
        pytest.skip("several states of a tag: paths of states are not taggings")
    paths = probabilistic.n_best(words, 300)
    probs = np.exp([log_prob for _, log_prob in paths])
    np.testing.assert_allclose(probs.sum(), 1, atol=1e-6)
    assert len({tags for tags, _ in paths}) == len(paths) and (np.diff(probs) <= 1e-12).all()
    marginals = np.zeros((3, len(probabilistic.tags)))
    for (tags, _), p in zip(paths, probs, strict=True):
        for t, tag in enumerate(tags):
            marginals[t, probabilistic.tags.index(tag)] += p
    np.testing.assert_allclose(probabilistic.marginals([words])[0], marginals, atol=1e-6)
    entropy = -sum(p * math.log(p) for p in probs if p > 0)
    np.testing.assert_allclose(probabilistic.entropy([words, ()]), [entropy, 0], atol=1e-5)
    draws = probabilistic.sample(words, 4000, seed=0)
    assert draws == probabilistic.sample(words, 4000, seed=0)
    share = sum(tags == paths[0][0] for tags in draws) / 4000
    assert abs(share - probs[0]) < 0.03
    if probabilistic.decode == "viterbi":
        assert probabilistic.tag([words])[0] == paths[0][0]


def test_empty_sentences(probabilistic):
    assert probabilistic.n_best((), 3) == [((), 0.0)]
    assert probabilistic.sample((), 2) == [(), ()]
    for call in (lambda: probabilistic.n_best(("a",), 0), lambda: probabilistic.sample(("a",), 0)):
        with pytest.raises(ValueError, match="at least 1"):
            call()


def test_words_have_probabilities(generative):
    total = generative.log_prob(WORDS + [()])
    assert total[-1] == 0 and (total[:-1] < 0).all()
    for words, log_prob in zip(WORDS[:5], total, strict=False):
        surprise = generative.surprising(words)
        assert surprise.shape == (len(words),)
        assert surprise.sum() <= -log_prob + 1e-6  # the end of the sentence is the rest
    assert generative.surprising(()).shape == (0,)


def test_generated_sentences(generative):
    sentences = generative.generate(30, seed=0)
    assert sentences == generative.generate(30, seed=0)
    words = {word for sentence in sentences for word in sentence.words}
    assert words and words <= generative.known_words
    assert {tag for sentence in sentences for tag in sentence.tags} <= set(generative.tags)
    assert all(len(sentence.words) <= 3 for sentence in generative.generate(5, seed=0, max_length=3))
