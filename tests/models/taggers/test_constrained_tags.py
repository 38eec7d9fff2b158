"""Taggers under constraints on tags, against all taggings."""

import itertools
import math
import random

import numpy as np
import pytest
from support.grids import grid
from support.tagged_toy import tagged_sentences

from pplseq import Constraint, CRFTagger, HMMTagger, LatentTagger
from pplseq.data.columns import TaggedSentence
from pplseq.models import MEMMTagger

DRAW = random.Random(0)
WORDS, TAGS = "the bank rome fell".split(), ("B-N", "I-N", "O")
SENTENCES = [
    TaggedSentence(tuple(DRAW.choices(WORDS, k=size)), tuple(DRAW.choices(TAGS, k=size)))
    for size in (1, 2, 3, 4) * 12  # any word may have any tag
]
ASKED = [("the", "rome", "fell"), ("bank",)]


def order_one():
    return HMMTagger(order=1)


TAGGERS = {"bigrams": order_one, "trigrams": HMMTagger, "latent": lambda: LatentTagger(), "crf": CRFTagger, "memm": MEMMTagger}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] if name == "latent" else []) for name in TAGGERS]
)
def tagger(request):
    return TAGGERS[request.param]().fit(SENTENCES)


def test_bio_is_what_it_says():
    bio = Constraint.bio(("B-N", "I-N", "O", "B-T", "I-T", "I-X"))
    for text, right in {
        "B-N I-N O": 1, "I-N": 0, "O I-N": 0, "B-N I-T": 0, "B-N B-T I-T I-T B-N": 1, "B-N O I-N": 0, "": 1, "I-X": 0, "Z": 0,
    }.items():  # fmt: skip
        assert bio.accepts(text) == bool(right), text
    assert bio.num_states == 4


@grid({"name": ["bio", "needs"], "words": ASKED})
def test_answers_are_those_of_all_taggings_that_satisfy(tagger, words, name):
    constraint = Constraint.bio(tagger.tags) if name == "bio" else Constraint.containing("B-N") & Constraint.excluding("O I-N")
    every = tagger.n_best(words, len(tagger.tags) ** len(words))
    some = [(tags, log_prob) for tags, log_prob in every if constraint.accepts(tags)]
    total = np.logaddexp.reduce([log_prob for _, log_prob in some])
    under = tagger.under(constraint)
    assert under.constraint_log_prob([words])[0] == pytest.approx(total, abs=1e-4)
    assert tagger.constraint_log_prob([words])[0] == 0.0
    found = dict(under.n_best(words, 27))
    assert found.keys() == {tags for tags, log_prob in some if log_prob > -math.inf}
    for tags, log_prob in some:
        assert found[tags] == pytest.approx(log_prob - total, abs=1e-3)
    probs = np.zeros((len(words), len(tagger.tags)))
    for tags, log_prob in some:
        for t, tag in enumerate(tags):
            probs[t, tagger.tags.index(tag)] += math.exp(log_prob - total)
    np.testing.assert_allclose(under.smooth([words])[0], probs, atol=1e-4)
    if not tagger.has_substates():
        assert under.tag([words], decoder="viterbi")[0] == max(some, key=lambda entry: entry[1])[0]
    right = {tags: probs[range(len(words)), list(map(tagger.tags.index, tags))].sum() for tags, _ in some}
    most_right = max(right, key=lambda tags: right[tags])
    assert under.tag([words], decoder="posterior")[0] == most_right
    for (draw,) in under.sample_states([words], 5, seed=0):
        assert constraint.accepts(draw)
    assert under.confidence([words])[0].shape == (len(words),)


def test_batches_are_as_one_by_one(tagger):
    under = tagger.under(Constraint.bio(tagger.tags))
    assert under.tag([*ASKED, ()]) == [*(under.tag([words])[0] for words in ASKED), ()]
    many = under.tag([sentence.words for sentence in SENTENCES], decoder="viterbi")
    assert all(Constraint.bio(tagger.tags).accepts(tags) for tags in many)
    assert tagger.tag(ASKED) == tagger.tag(ASKED)  # the tagger itself is as before


def test_tags_chosen_word_by_word_satisfy_too():
    tagger = order_one().fit(SENTENCES)
    pairs = Constraint.matching("B-N B-N | I-N O | O O")
    asked = list(itertools.product(WORDS, repeat=2))
    under = tagger.under(pairs)
    assert not all(pairs.accepts([tagger.tags[k] for k in probs.argmax(1)]) for probs in under.smooth(asked))
    assert all(pairs.accepts(tags) for tags in under.tag(asked, decoder="posterior"))


def test_missing_tags_are_filled_under_the_constraint():
    tagger = LatentTagger(num_substates=1, max_iterations=2).fit(SENTENCES)
    partly = [TaggedSentence(words, (None, "I-N", None)) for words in itertools.product(WORDS, repeat=3)]
    pairs = Constraint.matching("B-N I-N O | O I-N I-N")
    assert all(pairs.accepts(sentence.tags) for sentence in tagger.under(pairs).fill_tags(partly))
    assert not all(pairs.accepts(sentence.tags) for sentence in tagger.fill_tags(partly))


def test_a_constraint_upon_a_constraint_is_both():
    tagger = order_one().fit(SENTENCES)
    first, second = Constraint.containing("B-N"), Constraint.excluding("O")
    twice, at_once = tagger.under(first).under(second), tagger.under(first & second)
    for words in ASKED:
        assert twice.n_best(words, 27) == at_once.n_best(words, 27)
        assert all(first.accepts(tags) and second.accepts(tags) for tags, _ in twice.n_best(words, 27))


def test_what_is_not_asked_under_a_constraint(tagger, tmp_path):
    under, words = tagger.under(Constraint.containing("B-N")), ASKED[0]
    generative = {"filter": [words], "predict_next": [words], "token_log_probs": [words], "sample": 3}
    asked = {"save": tmp_path / "tagger", "log_prob": [TaggedSentence(words, ("O",) * 3)]}
    for name, given in {**asked, **{name: given for name, given in generative.items() if hasattr(under, name)}}.items():
        with pytest.raises(TypeError, match=f"{name}: not for a tagger under a constraint \\(containing 'B-N'\\)"):
            getattr(under, name)(given)
    for name in ("tag", "smooth", "entropy", "sample_states"):
        with pytest.raises(ValueError, match="number [01] has no words, and no tags do not satisfy: containing 'B-N'"):
            getattr(under, name)([words, ()])


def test_what_is_refused():
    tagger = order_one().fit(tagged_sentences())
    with pytest.raises(ValueError, match="'B-Q' of containing 'B-Q' is not in the vocabulary"):
        tagger.under(Constraint.containing("B-Q"))
    with pytest.raises(TypeError, match="expected a Constraint on tags"):
        tagger.under("bio")
    words = tuple(itertools.islice(tagged_sentences()[0].words, 2))
    with pytest.raises(ValueError, match="no path of states that explains its observations is accepted"):
        tagger.under(Constraint.length(7)).tag([words])
    assert tagger.under(Constraint.length(7)).constraint_log_prob([words, ()]).tolist() == [-math.inf, -math.inf]


def test_what_a_tag_lacks_under_a_constraint(tagger):
    under, words = tagger.under(Constraint.bio(TAGS)), ("the", "rome", "fell")
    emits, states = tagger.chain([words]).factors.emit[:, 0].numpy(), tagger.tag_of_state().numpy()
    for position in range(3):
        best = {}
        for tags, log_prob in under.n_best(words, 27):
            best.setdefault(tags[position], (tags, log_prob))
        found = under.explain(words, position, decoder="viterbi")
        assert found[0].tag == under.tag([words], decoder="viterbi")[0][position]
        for each in found:
            marginal = under.smooth([words])[0][position, tagger.tags.index(each.tag)]
            assert np.exp(each.log_prob) == pytest.approx(marginal, abs=1e-12)
            if each.tag not in best:  # I behind nothing
                assert (each.tags, each.lacking, each.context) == (None, math.inf, -math.inf)
            elif not tagger.has_substates():
                assert each.tags == best[each.tag][0]
                assert each.lacking == pytest.approx(best[found[0].tag][1] - best[each.tag][1], abs=1e-9)
        if not tagger.has_substates():  # p(tag | words, constraint) is what the others and it say times exp(score)
            of_tag = {tag: emits[position, states == k][0] for k, tag in enumerate(tagger.tags)}
            scores = np.array([each.context + of_tag[each.tag] for each in found])
            np.testing.assert_allclose(scores - np.logaddexp.reduce(scores), [each.log_prob for each in found], atol=1e-9)
    with pytest.raises(ValueError, match="decoder: by 'posterior' a tagger under a constraint .* weighs whole taggings"):
        under.explain(words, 0, decoder="posterior")
