"""What every tagger keeps: one list of taggers, one set of tests."""

import itertools
import json
import random

import numpy as np
import pytest

import pplseq.baselines  # noqa: F401 - which registers its taggers
from pplseq.data.columns import TaggedSentence
from pplseq.models import CRFTagger, HMMTagger
from pplseq.models.taggers import TAGGERS
from pplseq.models.taggers.latent import LatentTaggerSettings
from pplseq.models.taggers.probabilistic import GenerativeTagger, ProbabilisticTagger
from pplseq.models.taggers.tagger import load_tagger


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
    "latent": _tagger("latent-tagger", num_substates=2, max_iterations=5),
    "product": _tagger("product-tagger", num_models=2, num_substates=2, max_iterations=2),
    "product of kinds": _tagger("product-of-taggers", members=(HMMTagger(), CRFTagger(max_iterations=20, l2=1.0))),
    "morphology": _tagger("morphology-tagger", columns=("upos",), num_substates=2, max_iterations=2),
    "self-trained": _tagger("self-trained-tagger", num_substates=2, max_iterations=2),
    "partly tagged": _tagger("dictionary-tagger", "semi_supervised"),
    "partly tagged, checked": _tagger("partly-tagged-tagger"),
    "dictionary": _tagger("dictionary-tagger", "from_dictionary", max_iterations=5),
    "most frequent tag": _tagger("most-frequent"),
    "rules": _tagger("rules", rules=[("the|a", "D"), ("big|42", "A"), ("barks|sleeps", "V"), ("Rex", "P"), (r"\.", ".")]),
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
    for words, tags in ((("a", None), "DN"), ((1, "a"), "DN"), ("ab", ("D", float("nan")))):
        with pytest.raises(TypeError, match="number 1 holds the word .* with the tag .* expected strings"):
            tagger.fit([TRAIN[0], TaggedSentence(tuple(words), tuple(tags))])


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
    words = tuple(itertools.islice(itertools.cycle([word for s in TRAIN for word in s.words] + ["zebras"]), 1500))
    (tags,) = tagger.tag([words])
    assert len(tags) == 1500 and set(tags) <= set(tagger.tags)


def test_sentences_do_not_depend_on_each_other(tagger):
    words = [s.words for s in TRAIN[:12]] + NEW
    assert tagger.tag(words) == [tagger.tag([each])[0] for each in words]


def test_strings_are_no_sentences(tagger):
    for wrong in ("the dog", ["the dog"]):
        with pytest.raises(TypeError, match="split"):
            tagger.tag(wrong)


def test_words_are_strings(tagger):
    with pytest.raises(TypeError, match="number 1 holds 3"):
        tagger.tag([("a",), ("a", 3)])


def test_save_and_load(tagger, tmp_path):
    folder = tagger.save(tmp_path / "tagger")
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["tagger"] == tagger.name
    assert {path.suffix for path in folder.rglob("*.*")} <= {".json", ".safetensors"}
    loaded = load_tagger(folder)
    assert type(loaded) is type(tagger) and type(tagger).load(folder).tags == tagger.tags
    kept, given = loaded.get_params(), tagger.get_params()
    assert kept.keys() == given.keys() and all(kept[name] == given[name] for name in kept if name != "members")
    assert tuple(loaded.tags) == tuple(tagger.tags) and set(loaded.known_words) == set(tagger.known_words)
    words = [s.words for s in TRAIN[:12]] + NEW
    assert loaded.tag(words) == tagger.tag(words)
    loaded.save(folder)  # over itself
    if isinstance(tagger, ProbabilisticTagger):
        for got, expected in zip(loaded.smooth(words), tagger.smooth(words), strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-12)
        tensors = folder / "model.safetensors"
        tensors.write_bytes(tensors.read_bytes()[:-1])
        with pytest.raises(ValueError, match="model.safetensors"):
            load_tagger(folder)


@pytest.mark.parametrize("tagger", ["latent", "product", "morphology", "self-trained"], indirect=True)
def test_folders_of_former_names_load(tagger, tmp_path, monkeypatch):
    """``max_iterations`` of latent taggers was ``num_iterations``."""
    config, tensors = tagger.state()
    former = json.loads(json.dumps(config).replace('"max_iterations"', '"num_iterations"'))
    assert "num_iterations" in former["settings"] and "max_iterations" not in former["settings"]
    monkeypatch.setattr(tagger, "state", lambda: (former, tensors))
    loaded = load_tagger(tagger.save(tmp_path / "tagger"))
    assert loaded.get_params() == tagger.get_params() and loaded.tag(NEW) == tagger.tag(NEW)


def test_it_says_what_it_was_made_with_and_training_again_forgets(tagger, request):
    make = MAKERS[request.node.callspec.params["tagger"]]
    params = tagger.get_params()
    again = type(tagger)(**params)
    assert again.get_params() == params
    again.fit([TaggedSentence(("x", "y"), ("X", "Y"))] * 30).fit(TRAIN, TRAIN[:10])
    assert again.tags == tagger.tags and again.tag(NEW) == tagger.tag(NEW)
    assert "6 tags" in repr(tagger) and "not fitted" in repr(make()) and repr(make()).startswith(type(tagger).__name__)
    assert make().set_params(**params).get_params() == params
    with pytest.raises(ValueError, match="no such parameter"):
        make().set_params(unheard_of=1)
    assert tagger.decode(NEW) == tagger.tag(NEW)


# ---------------------------------------------------------------- probabilistic ones
def test_probabilities_sum_to_one(probabilistic):
    words = [s.words for s in TRAIN[:5]] + [()] + NEW
    for each, probs in zip(words, probabilistic.smooth(words), strict=True):
        assert probs.shape == (len(each), len(probabilistic.tags)) and (probs >= 0).all()
        np.testing.assert_allclose(probs.sum(-1), 1.0, atol=1e-9)


def test_confidence_and_posterior_decoding(probabilistic):
    words = [("the", "zebras", "bark"), (), ("a", "big", "barks")]
    probs = probabilistic.smooth(words)
    best = [tuple(probabilistic.tags[k] for k in rows.argmax(-1)) for rows in probs]
    assert probabilistic.tag(words, decoder="posterior") == best
    for rows, found in zip(probs, probabilistic.confidence(words, decoder="posterior"), strict=True):
        np.testing.assert_allclose(found, rows.max(-1) if len(rows) else rows.sum(-1), atol=1e-12)
    with pytest.raises(ValueError, match="decoder must be one of"):
        probabilistic.tag(words, decoder="best")


def test_all_paths_of_a_sentence(probabilistic):
    """The n best, for n as many as there are, are the posterior: they sum to one, and have its marginals and entropy."""
    words = ("zebras", "barks")
    states = int((probabilistic.tag_of_state() >= 0).sum())
    paths = probabilistic.n_best(words, states**2 + 1)
    log_probs = np.array([log_prob for _, log_prob in paths])
    assert (np.diff(log_probs) <= 1e-12).all()
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, atol=1e-6)
    assert probabilistic.tag([words], decoder="viterbi")[0] == paths[0][0]
    (marginals,) = probabilistic.smooth([words])
    expected = np.zeros_like(marginals)
    for tags, log_prob in paths:
        for t, tag in enumerate(tags):
            expected[t, probabilistic.tags.index(tag)] += np.exp(log_prob)
    np.testing.assert_allclose(marginals, expected, atol=1e-6)
    np.testing.assert_allclose(probabilistic.entropy([words, ()]), [-(np.exp(log_probs) * log_probs).sum(), 0], atol=1e-5)
    assert probabilistic.n_best((), 3) == [((), 0.0)]
    with pytest.raises(ValueError, match="n must be at least 1"):
        probabilistic.n_best(words, 0)


@pytest.mark.parametrize("decoder", ["viterbi", "posterior"])
def test_what_a_tag_lacks(probabilistic, decoder):
    """Against all taggings of a sentence; a word whose scores change by what another tag lacks has that tag."""
    words = ("zebras", "barks")
    (marginals,), (said,) = probabilistic.smooth([words]), probabilistic.tag([words], decoder=decoder)
    paths = probabilistic.n_best(words, int((probabilistic.tag_of_state() >= 0).sum()) ** 2 + 1)
    for position in range(2):
        found = probabilistic.explain(words, position, decoder=decoder)
        assert {each.tag for each in found} == set(probabilistic.tags)
        assert (found[0].tag, found[0].lacking) == (said[position], 0.0)
        best = {}
        for tags, log_prob in paths:
            best.setdefault(tags[position], (tags, log_prob))
        emit = probabilistic.chain([words]).factors.emit[position, 0].numpy()
        states = probabilistic.tag_of_state().numpy()
        for each in found:
            k = probabilistic.tags.index(each.tag)
            assert np.exp(each.log_prob) == pytest.approx(marginals[position, k], abs=1e-12)
            if decoder == "posterior":
                if np.isfinite(each.log_prob):
                    assert each.lacking == pytest.approx(found[0].log_prob - each.log_prob, abs=1e-9)
            elif not probabilistic.has_substates() and each.tag in best:
                assert each.tags == best[each.tag][0] or each.lacking == pytest.approx(0, abs=1e-9)
                assert each.lacking == pytest.approx(paths[0][1] - best[each.tag][1], rel=1e-6)
        if not probabilistic.has_substates():  # p(tag | words) is what the others say times exp(score)
            scores = np.array([emit[states == k][0] for k in range(len(probabilistic.tags))])
            total = np.array([each.context for each in sorted(found, key=lambda e: probabilistic.tags.index(e.tag))]) + scores
            shown = np.exp(total - np.logaddexp.reduce(total))
            np.testing.assert_allclose(shown, marginals[position], atol=1e-9)
    with pytest.raises(ValueError, match=r"position: expected a word of the sentence, 0 to 1, got 2"):
        probabilistic.explain(words, 2)
    with pytest.raises(ValueError, match="position must be at least 0"):
        probabilistic.explain(words, -1)


def test_draws(probabilistic):
    words = ("zebras", "barks", "here")
    draws = [tags for (tags,) in probabilistic.sample_states([words], 2000, seed=3)]
    assert draws == [tags for (tags,) in probabilistic.sample_states([words], 2000, seed=3)]
    frequency = np.array([[np.mean([tags[t] == tag for tags in draws]) for tag in probabilistic.tags] for t in range(3)])
    np.testing.assert_allclose(frequency, probabilistic.smooth([words])[0], atol=0.05)
    assert probabilistic.sample_states([(), words], 2)[1][0] == ()


def test_answers_about_a_long_sentence(probabilistic):
    words = ("the", "big", "zebras", "bark", ".") * 200
    (probs,) = probabilistic.smooth([words])
    np.testing.assert_allclose(probs.sum(-1), 1.0, atol=1e-6)


# ---------------------------------------------------------------- generative ones
def test_probabilities_of_words(generative):
    words = [s.words for s in TRAIN[:3]] + NEW
    log_probs = generative.log_prob([*words, ()])
    assert np.isfinite(log_probs).all() and log_probs[-1] == 0
    tokens = generative.token_log_probs([*words, ()])
    assert [found.shape for found in tokens] == [(len(each),) for each in words] + [(0,)]
    assert all(p <= found.sum() + 1e-9 for found, p in zip(tokens, log_probs, strict=True))  # the end is not among them
    for each, found in zip(words, tokens, strict=False):
        np.testing.assert_allclose(generative.token_log_probs([each])[0], found, atol=1e-6)
    assert generative.token_log_probs([("the", "qxzzjk", "barks")])[0].argmin() == 1


def test_generated_sentences(generative):
    drawn = generative.sample(8, 5, seed=1)
    assert drawn == generative.sample(8, 5, seed=1) and len(drawn) == 5 and generative.sample(8, 0) == []
    for words, tags in drawn:
        assert 1 <= len(words) == len(tags) <= 8
        assert set(tags) <= set(generative.tags)


def test_filter_and_what_comes_next(generative):
    words = ("the", "zebras", "barks", "the")
    (filtered,), (smoothed,) = generative.filter([words]), generative.smooth([words])
    np.testing.assert_allclose(filtered.sum(-1), 1.0, atol=1e-9)
    for t in range(len(words)):  # the filter is what the smoother says of the words so far, whatever comes behind
        paths = generative.n_best(words[: t + 1], 10_000) if t < 2 else None
        if paths is not None and type(generative).__name__ == "DictionaryTagger":  # no end that weighs on the last tag
            expected = np.zeros(len(generative.tags))
            for tags, log_prob in paths:
                expected[generative.tags.index(tags[-1])] += np.exp(log_prob)
            np.testing.assert_allclose(filtered[t], expected, atol=1e-6)
    assert not np.allclose(filtered[:-1], smoothed[:-1], atol=1e-12)
    following = generative.predict_next([words, (), ("a", "big")])
    assert following.tags.shape == (3, len(generative.tags)) and (following.tags >= 0).all() and (following.end >= 0).all()
    np.testing.assert_allclose(following.tags.sum(1) + following.end, 1.0, atol=1e-9)
    assert generative.tags[following.tags[0].argmax()] in ("N", "A") and following.end[1] < 1e-6
    log_probs = generative.log_prob([words, ("a", "big")])
    assert generative.score([words, ("a", "big")]) == pytest.approx(log_probs.sum())
    assert generative.score([words, ("a", "big")], per_token=True) == pytest.approx(log_probs.sum() / 6)


def test_draws_are_like_the_training_text(generative):
    drawn = generative.sample(30, 400, seed=0)
    counts = {tag: sum(tags.count(tag) for _, tags in drawn) for tag in generative.tags}
    gold = {tag: sum(s.tags.count(tag) for s in TRAIN) for tag in generative.tags}
    for tag in generative.tags:
        assert abs(counts[tag] / sum(counts.values()) - gold[tag] / sum(gold.values())) < 0.06, tag


def test_a_setting_that_is_gone_loads_where_it_said_nothing():
    """``spelling_weight`` of latent taggers, by which letters spoke besides forms."""
    assert LatentTaggerSettings.from_saved({"num_substates": 2, "spelling_weight": 0.0}).num_substates == 2
    with pytest.raises(ValueError, match="spelling_weight: saved as 0.2, which there is no more; train the tagger anew"):
        LatentTaggerSettings.from_saved({"spelling_weight": 0.2})
