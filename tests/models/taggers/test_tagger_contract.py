"""What every tagger keeps: one list of taggers, one set of tests."""

import itertools
import json
import random

import numpy as np
import pytest

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers import TAGGERS
from pplseq.models.taggers.tagger import GenerativeTagger, ProbabilisticTagger, load_tagger


def _tagger(name, preset=None, **options):
    """Makes a tagger of the table; skips where its package is not installed."""

    def make():
        try:
            cls = TAGGERS[name]
            return (cls if preset is None else getattr(cls, preset))(**options)
        except ImportError as error:
            if "pplseq[" not in str(error):
                raise
            return pytest.skip(str(error))

    make.name = name
    return make


# a description -> what makes it; new taggers are added here
MAKERS = {
    "hmm, bigrams": _tagger("hmm-tagger", "bigram"),
    "hmm, tnt": _tagger("hmm-tagger", "tnt"),
    "hmm, enhanced": _tagger("hmm-tagger", "enhanced"),
    "hmm, plain": _tagger("hmm-tagger", "plain"),
    "crf": _tagger("crf-tagger"),
    "memm": _tagger("memm-tagger"),
    "latent": _tagger("latent-tagger", num_substates=2, num_iterations=5),
    "semi-supervised": _tagger("dictionary-tagger", "semi_supervised"),
    "dictionary": _tagger("dictionary-tagger", "from_dictionary", max_iterations=5),
    "most frequent tag": _tagger("most-frequent"),
    "n-grams of NLTK": _tagger("nltk-ngram"),
    "TnT of NLTK": _tagger("nltk-tnt"),
    "perceptron of NLTK": _tagger("nltk-perceptron"),
    "Brill's rules of NLTK": _tagger("nltk-brill", max_rules=5),
    "crfsuite": _tagger("crfsuite"),
    "maximum entropy": _tagger("maxent"),
}
ANSWERS = dict(the="D", a="D", dog="N", cat="N", Rex="P", barks="V", sleeps="V", big="A") | {"42": "A", ".": "."}
FORMS = [
    "the dog barks .", "a big cat sleeps", "Rex sleeps .", "the 42 barks", "Rex barks", "the big big dog sleeps .", "a cat",
]  # fmt: skip


def sentence(text):
    """"barks" is a noun behind a determiner or a number, so that one word has two tags."""
    words = tuple(text.split())
    nouns = {i for i, word in enumerate(words) if word == "barks" and i and words[i - 1] in ("the", "a", "42")}
    return TaggedSentence(words, tuple("N" if i in nouns else ANSWERS[word] for i, word in enumerate(words)))


TRAIN = [sentence(random.Random(i).choice(FORMS)) for i in range(60)] + [TaggedSentence((), ())]
UNICODE = ("Ünïcode", "犬", "😀", "e\u0301tude", "\u202e\u200d")
NEW = [("the", "zebras", "bark"), UNICODE, ("",), ("http://a.b/c",), ("BIG",), ("-",)]
FITTED = {}


@pytest.fixture(params=MAKERS)
def tagger(request):
    """Trained once for all tests, which do not change it."""
    if request.param not in FITTED:
        tagger = MAKERS[request.param]()
        assert tagger.fit(TRAIN, TRAIN[:10]) is tagger
        FITTED[request.param] = tagger
    return FITTED[request.param]


@pytest.fixture
def probabilistic(tagger):
    if not isinstance(tagger, ProbabilisticTagger):
        pytest.skip("gives no probabilities")
    return tagger


@pytest.fixture
def generative(tagger):
    if not isinstance(tagger, GenerativeTagger):
        pytest.skip("gives words no probabilities")
    return tagger


# ---------------------------------------------------------------- every tagger
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_before_and_without_training(make):
    tagger = make()
    with pytest.raises(RuntimeError, match="fit"):
        tagger.tag([("a",)])
    with pytest.raises(RuntimeError, match="fit"):
        tagger.save("nowhere")
    for nothing in ([], [TaggedSentence((), ())]):
        with pytest.raises(ValueError, match="sentences"):
            tagger.fit(nothing)
    with pytest.raises(ValueError, match="number 1 has 2 words but 1 tags"):
        tagger.fit([TRAIN[0], TaggedSentence(("a", "dog"), ("D",))])


def test_it_learns(tagger):
    assert set(tagger.tags) == set("DNPVA.") and len(set(tagger.tags)) == len(tagger.tags)
    assert set(tagger.known_words) == {word for s in TRAIN for word in s.words}
    pairs = zip(tagger.tag([s.words for s in TRAIN]), TRAIN, strict=True)
    right = [x == y for tags, gold in pairs for x, y in zip(tags, gold.tags, strict=True)]
    assert np.mean(right) > 0.9


def test_empty_sentences(tagger):
    assert tagger.tag([]) == []
    assert tagger.tag([()]) == [()]
    assert [len(tags) for tags in tagger.tag([(), ("a", "dog"), (), ("Rex",), ()])] == [0, 2, 0, 1, 0]


def test_unknown_words_and_unicode(tagger):
    found = tagger.tag(NEW)
    assert [len(tags) for tags in found] == [len(words) for words in NEW]
    assert all(isinstance(tags, tuple) and set(tags) <= set(tagger.tags) for tags in found)


def test_a_long_sentence(tagger):
    words = tuple(itertools.islice(itertools.cycle([word for s in TRAIN for word in s.words] + ["zebras"]), 5000))
    (tags,) = tagger.tag([words])
    assert len(tags) == 5000 and set(tags) <= set(tagger.tags)


def test_sentences_do_not_depend_on_each_other(tagger):
    words = [s.words for s in TRAIN[:12]] + NEW
    assert tagger.tag(words) == [tagger.tag([each])[0] for each in words]


def test_strings_are_no_sentences(tagger):
    for wrong in ("the dog", ["the dog"]):
        with pytest.raises(TypeError, match="split"):
            tagger.tag(wrong)


def test_words_are_strings(probabilistic):
    with pytest.raises(TypeError, match="number 1 holds 3"):
        probabilistic.tag([("a",), ("a", 3)])


def test_save_and_load(tagger, tmp_path):
    folder = tagger.save(tmp_path / "tagger")
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["tagger"] == tagger.name
    loaded = load_tagger(folder)
    assert type(loaded) is type(tagger) and type(tagger).load(folder).tags == tagger.tags
    assert tuple(loaded.tags) == tuple(tagger.tags) and set(loaded.known_words) == set(tagger.known_words)
    words = [s.words for s in TRAIN[:12]] + NEW
    assert loaded.tag(words) == tagger.tag(words)
    loaded.save(folder)  # over itself
    if isinstance(tagger, ProbabilisticTagger):
        for got, expected in zip(loaded.marginals(words), tagger.marginals(words), strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-12)
        tensors = folder / "model.safetensors"
        tensors.write_bytes(tensors.read_bytes()[:-1])
        with pytest.raises(ValueError, match="model.safetensors"):
            load_tagger(folder)


def test_training_again_forgets(tagger, request):
    again = MAKERS[request.node.callspec.params["tagger"]]()
    again.fit([TaggedSentence(("x", "y"), ("X", "Y"))] * 30)
    again.fit(TRAIN, TRAIN[:10])
    assert again.tags == tagger.tags and again.tag(NEW) == tagger.tag(NEW)


# ---------------------------------------------------------------- probabilistic ones
def test_probabilities_sum_to_one(probabilistic):
    words = [s.words for s in TRAIN[:5]] + [()] + NEW
    for each, probs in zip(words, probabilistic.marginals(words), strict=True):
        assert probs.shape == (len(each), len(probabilistic.tags)) and (probs >= 0).all()
        np.testing.assert_allclose(probs.sum(-1), 1.0, atol=1e-9)


def test_confidence_and_posterior_decoding(probabilistic):
    words = [("the", "zebras", "bark"), (), ("a", "big", "barks")]
    probs = probabilistic.marginals(words)
    best = [tuple(probabilistic.tags[k] for k in rows.argmax(-1)) for rows in probs]
    assert probabilistic.tag(words, decode="posterior") == best
    for rows, found in zip(probs, probabilistic.confidence(words, decode="posterior"), strict=True):
        np.testing.assert_allclose(found, rows.max(-1) if len(rows) else rows.sum(-1), atol=1e-12)
    with pytest.raises(ValueError, match="decode must be one of"):
        probabilistic.tag(words, decode="best")


def test_all_paths_of_a_sentence(probabilistic):
    """The n best, for n as many as there are, are the posterior: they sum to one, and have its marginals and entropy."""
    words = ("zebras", "barks")
    states = int((probabilistic.tag_of_state() >= 0).sum())
    paths = probabilistic.n_best(words, states**2 + 1)
    log_probs = np.array([log_prob for _, log_prob in paths])
    assert (np.diff(log_probs) <= 1e-12).all()
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, atol=1e-6)
    assert probabilistic.tag([words], decode="viterbi")[0] == paths[0][0]
    (marginals,) = probabilistic.marginals([words])
    expected = np.zeros_like(marginals)
    for tags, log_prob in paths:
        for t, tag in enumerate(tags):
            expected[t, probabilistic.tags.index(tag)] += np.exp(log_prob)
    np.testing.assert_allclose(marginals, expected, atol=1e-6)
    np.testing.assert_allclose(probabilistic.entropy([words, ()]), [-(np.exp(log_probs) * log_probs).sum(), 0], atol=1e-5)
    assert probabilistic.n_best((), 3) == [((), 0.0)]
    with pytest.raises(ValueError, match="n must be at least 1"):
        probabilistic.n_best(words, 0)


def test_draws(probabilistic):
    words = ("zebras", "barks", "here")
    draws = probabilistic.sample(words, 2000, seed=3)
    assert draws == probabilistic.sample(words, 2000, seed=3)
    frequency = np.array([[np.mean([tags[t] == tag for tags in draws]) for tag in probabilistic.tags] for t in range(3)])
    np.testing.assert_allclose(frequency, probabilistic.marginals([words])[0], atol=0.05)
    assert probabilistic.sample((), 2) == [(), ()]


def test_answers_about_a_long_sentence(probabilistic):
    words = ("the", "big", "zebras", "bark", ".") * 200
    (probs,) = probabilistic.marginals([words])
    np.testing.assert_allclose(probs.sum(-1), 1.0, atol=1e-6)


# ---------------------------------------------------------------- generative ones
def test_probabilities_of_words(generative):
    words = [s.words for s in TRAIN[:3]] + NEW
    log_probs = generative.log_prob([*words, ()])
    assert np.isfinite(log_probs).all() and log_probs[-1] == 0
    for each, log_prob in zip(words, log_probs, strict=False):
        nats = generative.surprising(each)
        assert nats.shape == (len(each),)
        assert log_prob <= -nats.sum() + 1e-9  # what is missing is the end's
    assert generative.surprising(()).shape == (0,)
    assert generative.surprising(("the", "qxzzjk", "barks")).argmax() == 1


def test_generated_sentences(generative):
    drawn = generative.generate(5, seed=1, max_length=8)
    assert drawn == generative.generate(5, seed=1, max_length=8) and len(drawn) == 5
    for words, tags in drawn:
        assert 1 <= len(words) == len(tags) <= 8
        assert set(tags) <= set(generative.tags)
