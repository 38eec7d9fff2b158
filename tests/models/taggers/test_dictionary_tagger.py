"""Taggers by EM: words alone, some tags, and dictionaries of tags."""

import itertools
import math

import numpy as np
import pytest
import torch
from support.grids import grid
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence, read_conllu
from pplseq.infer.fit.em import Batch
from pplseq.kernels import scan
from pplseq.models.taggers.clusters import names_of_clusters, score_clusters, tables_of_clusters
from pplseq.models.taggers.dictionary import DictionaryTagger
from pplseq.models.taggers.lexicon import TagDictionary, WordClasses
from pplseq.models.taggers.tagger import load_tagger


def language(number, seed=0):
    """D A* N V (D A* N)?, words mostly of one tag; `run` and `light` have two."""
    random = np.random.default_rng(seed)
    words = {
        "D": ["the", "a"],
        "A": ["big", "light", "old"],
        "N": ["dog", "run", "light", "tree"],
        "V": ["run", "sees", "eats"],
    }
    text = []
    for _ in range(number):
        tags = ["D", *("A" for _ in range(random.integers(0, 2))), "N", "V"]
        if random.random() < 0.5:
            tags += ["D", "N"]
        text.append(TaggedSentence(tuple(str(random.choice(words[tag])) for tag in tags), tuple(tags)))
    return text


TEXT, MORE = language(60), language(40, seed=1)
LEXICON = TagDictionary.from_sentences(TEXT)


def untagged(sentences):
    return [TaggedSentence(words, (None,) * len(words)) for words, _ in sentences]


def accuracy(tagger, sentences):
    found = tagger.tag([sentence.words for sentence in sentences])
    return np.mean([a == b for tags, s in zip(found, sentences, strict=True) for a, b in zip(tags, s.tags, strict=True)])


def test_words_that_are_written_as_classes_are(tmp_path):
    text = [TaggedSentence(("<x>", "b", "c", "<any>"), ("B", "O", "O", "B")), TaggedSentence(tuple("cdefgh"), tuple("OOOOOO"))]
    tagger = DictionaryTagger("tags").fit(text)
    for one in (tagger, load_tagger(tagger.save(tmp_path / "tagger"))):
        probs = one.smooth([["<x>"], ["new"]])
        assert probs[0][0, 0] > 0.5 > probs[1][0, 0]  # "new" is like the words seen once, which are "O"
        assert one.log_prob([["<x>"]])[0] > -10


# ---------------------------------------------------------------- EM
@pytest.mark.parametrize(
    "tagger",
    [
        DictionaryTagger.unsupervised(4, max_iterations=25, tolerance=0.0),
        DictionaryTagger.unsupervised(3, max_iterations=25, tolerance=0.0, pseudo_count=0.0, start="random", num_restarts=2),
        DictionaryTagger.from_dictionary(max_iterations=25, tolerance=0.0, pseudo_count=0.0),
        DictionaryTagger.from_dictionary(LEXICON, lexicon_strength=2.0, max_iterations=25, tolerance=0.0),
        DictionaryTagger.semi_supervised(max_iterations=25, tolerance=0.0, emission_pseudo_count=0.1),
        DictionaryTagger.semi_supervised({"dog": ["N"]}, max_iterations=25, tolerance=0.0, min_count=3, tagged_weight=5.0),
    ],
)
def test_the_objective_never_falls(tagger):
    text = (
        TEXT[:10]
        + untagged(MORE)
        + [TaggedSentence(("the", "odd", "dog"), ("D", None, "N")), TaggedSentence(("odd",), (None,))]
    )
    tagger.fit(text)
    values = np.array(tagger.history.log_posteriors)
    assert len(values) > 3 and tagger.history.reason != "the objective fell"
    assert (np.diff(values) >= -1e-9 * abs(values[:-1])).all() and values[-1] > values[0]
    if tagger.pseudo_count == 0.0:  # no prior: the likelihood itself
        values = np.array(tagger.history.log_likelihoods)
        assert (np.diff(values) >= -1e-9 * abs(values[:-1])).all()


def test_log_space_and_scaled_forward_backward_are_equal():
    """Likelihood, posterior of states and of pairs, and gradients, on ragged rows and a dictionary's zeros."""
    tagger = DictionaryTagger.from_dictionary(max_iterations=2, seed=3).fit(TEXT)
    rows = [MORE[0].words, ("the",), MORE[1].words + MORE[2].words, ("a", "unheard", "run")]
    chain = tagger.chain(rows)
    factors = chain.factors
    assert factors.shared, "one matrix: the scaled kernel is the one that runs"
    with torch.enable_grad():
        init, pair, emit = (value.detach().clone().requires_grad_() for value in (factors.init, factors.pair, factors.emit))
        scaled = scan.chain_log_prob(init, pair, emit, factors.valid, shared=True)
        scaled = getattr(scaled, "log_prob", scaled)
        fast = torch.autograd.grad(scaled.sum(), (init, pair, emit))
        matrices = scan.StepMatrices(pair, factors.shared)
        forward = scan.forward_in_log_space(init, matrices, emit, factors.valid)
        slow = torch.autograd.grad(forward.log_prob.sum(), (init, pair, emit))
    torch.testing.assert_close(scaled, forward.log_prob, rtol=1e-12, atol=1e-12)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    beta = scan.backward_in_log_space(matrices, emit, factors.valid)
    posterior = scan.state_posterior(forward.filtered, beta, factors.valid)
    torch.testing.assert_close(chain.marginals().probs, posterior.detach().transpose(0, 1), rtol=1e-10, atol=1e-12)


def test_posterior_is_that_of_all_paths():
    tagger = DictionaryTagger.from_dictionary(max_iterations=3, seed=1).fit(TEXT)
    words = ("the", "light", "run")
    ids, hmm = tagger._ids(words), tagger.hmm
    joint = {}
    for path in itertools.product(range(len(tagger.tags)), repeat=3):
        value = hmm.initial[path[0]] * hmm.emission[path[0], ids[0]]
        for a, b, word in zip(path, path[1:], ids[1:], strict=False):
            value = value * hmm.transition[a, b] * hmm.emission[b, word]
        joint[tuple(tagger.tags[k] for k in path)] = float(value)
    total = sum(joint.values())
    assert tagger.log_prob([words])[0] == pytest.approx(math.log(total), rel=1e-10)
    assert tagger.token_log_probs([words])[0].sum() == pytest.approx(math.log(total), rel=1e-10)
    probs = tagger.smooth([words])[0]
    for t, tag in itertools.product(range(3), tagger.tags):
        share = sum(value for path, value in joint.items() if path[t] == tag) / total
        assert probs[t, tagger.tags.index(tag)] == pytest.approx(share, abs=1e-12)
    best = tagger.n_best(words, 3)
    assert [path for path, _ in best] == sorted(joint, key=joint.get, reverse=True)[:3]
    assert best[0][0] == tagger.tag([words])[0]


# ---------------------------------------------------------------- what is known
def test_a_dictionary_is_enough_to_tell_tags_apart():
    one = {"the": "D", "a": "D", "dog": "N", "tree": "N", "big": "A", "old": "A", "sees": "V", "eats": "V"}
    two = {"run": ["N", "V"], "light": ["A", "N"]}
    tagger = DictionaryTagger.from_dictionary({word: [tag] for word, tag in one.items()} | two)
    tagger.fit(untagged(TEXT))
    assert accuracy(tagger, MORE) > 0.97
    assert tagger.tags == ("A", "D", "N", "V")


def test_a_hard_lexicon_forbids_and_a_soft_one_does_not():
    text = [TaggedSentence(("x", "y"), (None, None))] * 5 + [TaggedSentence(("y", "x"), (None, None))]
    wrong = {"x": ["P"], "y": {"Q": 3.0, "P": 1.0}}
    hard = DictionaryTagger.from_dictionary(wrong).fit(text)
    assert float(hard.smooth([("x", "y", "x")])[0][[0, 2], hard.tags.index("Q")].max()) < 1e-4
    assert hard.tag([("x", "x")]) == [("P", "P")]
    assert float(hard.hmm.emission[hard.tags.index("Q"), hard.words.index("x")]) == 0.0
    soft = DictionaryTagger.from_dictionary(wrong, lexicon_strength=0.5).fit(text)
    assert float(soft.hmm.emission[soft.tags.index("Q"), soft.words.index("x")]) > 0.0
    sighted = DictionaryTagger.semi_supervised({"dog": ["V"]}, lexicon_strength=1.0).fit(TEXT)
    assert sighted.tag([("the", "dog", "sees")]) == [("D", "N", "V")], "what is seen outweighs what is listed"


def test_words_that_are_not_listed_have_the_open_tags():
    text = [TaggedSentence(("the", "zork"), (None, None))] * 4
    tagger = DictionaryTagger.from_dictionary({"the": ["D"], "dog": ["N"], "sees": ["V"]}, open_tags=("N", "V")).fit(text)
    assert tagger.hmm.emission[tagger.tags.index("D"), tagger.words.index("zork")] < 1e-6
    with pytest.raises(ValueError, match="open_tags: 'Q' is no tag"):
        DictionaryTagger.from_dictionary({"the": ["D"]}, open_tags=("Q",)).fit(text)


def test_observed_tags_stay_as_they_are():
    """With all tags observed EM is counting: transitions and emissions are relative frequencies."""
    tagger = DictionaryTagger.semi_supervised(pseudo_count=0.0, max_iterations=3).fit(TEXT)
    counts = np.zeros((4, 4))
    for _, tags in TEXT:
        for a, b in itertools.pairwise(tags):
            counts[tagger.tags.index(a), tagger.tags.index(b)] += 1
    visited = counts.sum(1) > 0
    found = tagger.hmm.transition.numpy()[visited]
    assert np.allclose(found, (counts / counts.sum(1, keepdims=True))[visited], atol=1e-5)


def test_untagged_text_is_learned_from():
    few = TEXT[:3]
    alone = DictionaryTagger.semi_supervised().fit(few)
    both = DictionaryTagger.semi_supervised().fit(few + untagged(TEXT[3:]))
    assert accuracy(both, MORE) > accuracy(alone, MORE)
    partly = [TaggedSentence(w, tuple(t if i == 1 else None for i, t in enumerate(tags))) for w, tags in TEXT]
    assert accuracy(DictionaryTagger.semi_supervised(LEXICON, max_iterations=30).fit(partly), MORE) > 0.97


def test_words_alone():
    tagger = DictionaryTagger.unsupervised(4, start="random", num_restarts=2, seed=2).fit(TEXT)
    assert tagger.tags == ("state0", "state1", "state2", "state3")
    scores = score_clusters(MORE, tagger.tag([s.words for s in MORE]))
    assert scores.many_to_one > 0.7 and 0.4 < scores.v_measure <= 1.0
    tagger.name_states(TEXT)
    assert set(tagger.tags) <= {"D", "A", "N", "V"}
    assert accuracy(tagger, TEXT) == pytest.approx(
        score_clusters(TEXT, tagger.state_paths([s.words for s in TEXT])).many_to_one
    )
    same = DictionaryTagger.unsupervised(4, start="random", num_restarts=2, seed=2).fit(untagged(TEXT))
    assert torch.equal(same.hmm.emission, tagger.hmm.emission), "tags of the text are not looked at"


def test_words_alone_from_clusters():
    tagger = DictionaryTagger.unsupervised(4, seed=1).fit(untagged(TEXT))
    assert score_clusters(MORE, tagger.tag([s.words for s in MORE])).many_to_one > 0.9
    same = DictionaryTagger.unsupervised(4, seed=2).fit(TEXT)
    assert torch.equal(same.hmm.emission, tagger.hmm.emission), "nothing is random, and tags are not looked at"
    few = [TaggedSentence(("a", "b"), (None, None))]
    assert len(DictionaryTagger.unsupervised(9).fit(few).tag([("b", "a")])[0]) == 2, "more states than words"


def test_tables_of_clusters():
    lines = [np.array(row) for row in ([0, 2, 1], [1, 3, 0], [0, 3, 0], [1, 2, 0], [0], [2])] * 3
    tables = tables_of_clusters(lines, 4, 2)
    assert {name: table.shape for name, table in tables.items()} == {"initial": (2,), "transition": (2, 2), "emission": (2, 4)}
    assert all((table > 0).all() and np.allclose(table.sum(-1), 1) for table in tables.values())
    owner = tables["emission"].argmax(0)
    assert owner[0] == owner[1] != owner[2] == owner[3]
    # 12 bigrams from the one cluster to the other, 12 back: sentences do not run into each other
    assert tables["transition"][owner[0], owner[2]] == pytest.approx(12.5 / 13)
    assert tables["transition"][owner[2], owner[0]] == pytest.approx(12.5 / 13)
    assert tables["initial"][owner[0]] == pytest.approx(15.5 / 19)


# ---------------------------------------------------------------- unknown words, saving, generating
def test_unknown_words_are_of_their_class():
    odd = [TaggedSentence(("the", f"{stem}ing", "runs"), ("D", "V", "N")) for stem in ("zab", "zeb", "zib", "zob", "zub")]
    tagger = DictionaryTagger.semi_supervised().fit(TEXT + odd)
    assert tagger._classes("gnarling") == "<x ing>" and tagger._classes("Q!") == "<any>"
    assert tagger.tag([("the", "gnarling"), ("Q!",), ()])[0] == ("D", "V")
    assert np.allclose(tagger.hmm.emission.sum(1), 1.0)
    assert np.isfinite(tagger.log_prob([("Q!", "unheard-of", "the"), ()])).all()


def test_saved_and_loaded(tmp_path):
    for tagger in (
        DictionaryTagger.from_dictionary({"dog": {"N": 2.0, "V": 1.0}}, lexicon_strength=1.0, open_tags=("N", "V", "A", "D")),
        DictionaryTagger.unsupervised(3, max_iterations=5),
        DictionaryTagger.semi_supervised(min_count=2, decoder="posterior"),
    ):
        tagger.fit(TEXT)
        again = load_tagger(tagger.save(tmp_path / "tagger"))
        words = [s.words for s in MORE] + [(), ("Unheard",)]
        assert again.tags == tagger.tags and again.known_words == tagger.known_words and again.decoder == tagger.decoder
        assert again.tag(words) == tagger.tag(words) and np.allclose(again.log_prob(words), tagger.log_prob(words))
        assert again.sample(20, 3, seed=1) == tagger.sample(20, 3, seed=1)
        assert again.fit(TEXT).tag(words) == tagger.tag(words)


def test_generated_sentences():
    tagger = DictionaryTagger.semi_supervised().fit(TEXT)
    text = tagger.sample(4, 20, seed=0)
    assert len(text) == 20 and {len(s.words) for s in text} <= {3, 4}
    assert all(set(s.tags) <= set(tagger.tags) and set(s.words) <= set(tagger.vocabulary) for s in text)
    assert tagger.sample(4, 20, seed=0) == text and tagger.sample(4, 0) == []
    with pytest.raises(ValueError, match="num_steps"):
        tagger.sample(0)


def test_batches_change_nothing(monkeypatch):
    whole = DictionaryTagger.from_dictionary(max_iterations=3).fit(TEXT)
    monkeypatch.setattr("pplseq.models.taggers.dictionary.EM_CELLS", 60)
    parts = DictionaryTagger.from_dictionary(max_iterations=3).fit(TEXT)
    assert parts.history.log_likelihoods == pytest.approx(whole.history.log_likelihoods, rel=1e-12)
    assert isinstance(parts._batches(TEXT)[0], Batch) and len(parts._batches(TEXT)) > 5


@pytest.mark.parametrize(
    "options, message",
    [
        ({"learn_from": "air"}, "learn_from must be one of"),
        ({"num_states": 0}, "must be at least 1"),
        ({"start": "here"}, "start must be one of"),
        ({"start": "clusters", "num_restarts": 2}, "is one start"),
        ({"lexicon_strength": 0.0}, "lexicon_strength must be positive, or None"),
        ({"lexicon": {"a": []}}, "positive weights"),
        ({"lexicon": {"a": "N"}}, "expected a list"),
        ({"lexicon": {"a": {"N": -1.0}}}, "positive weights"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        DictionaryTagger(**options)


def test_wrong_text():
    with pytest.raises(ValueError, match="or a lexicon"):
        DictionaryTagger().fit(untagged(TEXT))
    with pytest.raises(ValueError, match="states have no names"):
        DictionaryTagger("words", lexicon={"a": ["N"]}).fit(TEXT)
    with pytest.raises(TypeError, match="a mapping, a path"):
        DictionaryTagger(lexicon=3)


# ---------------------------------------------------------------- dictionaries, classes, scores
def test_dictionaries_of_files(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("# tags\nrun NOUN VERB:3\n\n: PUNCT\na: :\nrun NOUN\n", encoding="utf-8")
    lexicon = TagDictionary.of(path)
    assert lexicon.entries == {"run": {"NOUN": 0.4, "VERB": 0.6}, ":": {"PUNCT": 1.0}, "a:": {":": 1.0}}
    assert lexicon.tags == (":", "NOUN", "PUNCT", "VERB") and "run" in lexicon and len(lexicon) == 3
    joined = lexicon.joined(TagDictionary({"run": ["ADJ"], "b": ["X"]}))
    assert joined.entries["run"] == pytest.approx({"NOUN": 0.2, "VERB": 0.3, "ADJ": 0.5}) and "b" in joined
    table = lexicon.weights(("run", "new"), lexicon.tags, open_tags=("NOUN", ":"))
    assert np.allclose(table, [[0, 0.5], [0.4, 0.5], [0, 0], [0.6, 0]])
    for text, message in (("run\n", "line 1: the word 'run' has no tags"), ("\nrun N:0", "line 2: the weight of 'N'")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            TagDictionary.read(path)
    with pytest.raises(ValueError, match="no word of the training text has .X."):
        lexicon.weights(("run",), ("X",))


def test_classes_of_words():
    classes = WordClasses(["walking", "talking", "going", "Paris", "Rome"], min_words=2)
    assert classes("sting") == "<x ing>" and classes("Xenia") == "<Xx>" and classes("12") == "<any>"
    assert WordClasses.of_names(classes.names)("sting") == "<x ing>"


def test_scores_of_clusters():
    sklearn = pytest.importorskip("sklearn.metrics")
    gold = [TaggedSentence(("a", "b", "c"), ("N", "V", None)), TaggedSentence((), ()), TaggedSentence(("d", "e"), ("N", "D"))]
    clusters = [(7, 2, 2), (), (7, 7)]
    assert names_of_clusters(gold, clusters) == {7: "N", 2: "V"}
    scores = score_clusters(gold, clusters)
    assert scores.many_to_one == 0.75 and scores.num_tokens == 4
    assert scores.v_measure == pytest.approx(sklearn.v_measure_score(["N", "V", "N", "D"], [7, 2, 7, 7]))
    perfect = score_clusters(gold, [("x", "y", "z"), (), ("x", "w")])
    assert perfect.many_to_one == 1.0 and perfect.v_measure == pytest.approx(1.0)
    with pytest.raises(ValueError, match="a cluster a word"):
        score_clusters(gold, [(1,), (), (1, 1)])


def test_weight_of_tagged_words():
    """Tagged words that count four times are the same as four copies of them."""
    few, rest = TEXT[:4], untagged(TEXT[4:20])
    options = dict(pseudo_count=0.0, min_count=1, max_iterations=200, tolerance=0.0)
    weighted = DictionaryTagger.semi_supervised(tagged_weight=4.0, **options).fit(few + rest)
    copied = DictionaryTagger.semi_supervised(tagged_weight=1.0, **options).fit(4 * few + rest)
    for name in ("initial", "transition"):
        torch.testing.assert_close(getattr(weighted.hmm, name), getattr(copied.hmm, name), atol=1e-4, rtol=1e-3)
    assert np.allclose(weighted.smooth([s.words for s in MORE])[0], copied.smooth([s.words for s in MORE])[0], atol=1e-3)
    once = DictionaryTagger.semi_supervised(tagged_weight=1.0, **options).fit(few + rest)
    assert not torch.allclose(once.hmm.transition, copied.hmm.transition, atol=1e-3)


def test_rare_words_without_tags_are_replaced_by_their_class():
    tagged = [TaggedSentence(("the", f"{s}ing"), ("D", "V")) for s in ("zab", "zeb", "zib", "zob", "zub")]
    plain = [TaggedSentence(("the", f"{s}ing"), (None, None)) for s in ("mab", "meb")]
    tagger = DictionaryTagger.semi_supervised(min_count=2).fit(tagged + plain)
    assert "zabing" in tagger.words and "mabing" not in tagger.words and "mabing" in tagger.known_words
    assert tagger.tag([("the", "mabing"), ("the", "lobing")]) == [("D", "V")] * 2


# ---------------------------------------------------------------- real text
@pytest.mark.slow
def test_states_of_the_english_web_treebank_are_like_tags(data_folder):
    pytest.importorskip("sklearn.metrics")
    train = list(read_conllu(data_folder / "ud_english_ewt" / "en_ewt-ud-train.conllu"))
    tagger = DictionaryTagger.unsupervised(50).fit(untagged(train))
    scores = score_clusters(train, tagger.tag([sentence.words for sentence in train]))
    assert scores.many_to_one > 0.66 and scores.v_measure > 0.46
    assert (np.diff(tagger.history.log_posteriors) > 0).all()


def test_a_lexicon_adds_to_the_dictionary_of_the_text():
    sentences = tagged_sentences(60)
    words = [sentence.words for sentence in sentences]
    alone = DictionaryTagger.from_dictionary(max_iterations=2).fit(sentences)
    more = DictionaryTagger.from_dictionary({"the": ["DET"]}, max_iterations=2).fit(sentences)
    assert more.tag(words) == alone.tag(words)


@grid({"strength": [None, 3.0], "learn_from": ["tags", "dictionary"]})
def test_a_lexicon_holds_for_words_that_the_text_lacks(learn_from, strength, tmp_path):
    rows = [(("the", "dog", "barks"), ("D", "N", "V")), (("a", "cat", "sleeps"), ("D", "N", "V"))] * 8
    sentences = [TaggedSentence(*row) for row in rows]
    lexicon = {"quux": ["V"], "zork": {"N": 1.0}, "the": ["D"], "flip": ["N", "V"]}
    tagger = DictionaryTagger(learn_from, lexicon=lexicon, lexicon_strength=strength, max_iterations=5).fit(sentences)
    assert tagger.tag([["the", "zork", "quux"], ["quux"], ["zork"]]) == [("D", "N", "V"), ("V",), ("N",)]
    tagger.save(tmp_path / "model")
    probs = DictionaryTagger.load(tmp_path / "model").smooth([["quux"], ["flip"]])
    number = {tag: k for k, tag in enumerate(tagger.tags)}
    limit = 0.05 if strength else 1e-4
    assert probs[0][0, number["V"]] > 1 - limit and probs[1][0, number["D"]] < limit
    assert "quux" not in tagger.known_words
