"""Lexicons of taggers: words that training lacks have the tags that are listed, in every system that takes a lexicon."""

import itertools

import numpy as np
import pytest
import torch
from support.grids import grid
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence
from pplseq.models import CRFTagger, HMMTagger, LatentTagger, MEMMTagger
from pplseq.models.taggers.lexicon import ListedTags, TagDictionary
from pplseq.models.taggers.morphology.tagger import MorphologyTagger
from pplseq.models.taggers.tagger import load_tagger
from pplseq.recipes.taggers.systems import LEXICON_SYSTEMS, make_tagger, train_tagger

# words in -ing are verbs here, unless the lexicon says something else
TEXT = [TaggedSentence(("the", "dog", f"{stem}ing"), ("D", "N", "V")) for stem in "walk run bark jump sing read".split()]
TEXT += [TaggedSentence(("the", f"{stem}er", "sees", "dogs"), ("D", "N", "V", "N")) for stem in "walk sing read teach".split()]
TEXT += [TaggedSentence(("a", "dog", "sees"), ("D", "N", "V"))] * 4
MISLEADING = "herring"
LEXICON = {MISLEADING: ["N"], "dog": ["N"], "reading": ["N"], "walker": ["N"], "the": ["D"], "a": ["D"], "singing": ["V"]}
SMALL = {"num_substates": 2, "max_iterations": 3}
SYSTEMS = {
    "hmm": {},
    "enhanced": {},
    "tnt": {},
    "trigram": {},
    "plain": {},
    "latent": SMALL,
    "latent-product": {"num_models": 2, **SMALL},
    "product": {"members": ["hmm", "crf l2=0.1 max_iterations=30"]},
    "crf": {"l2": 0.1, "max_iterations": 30},
    "memm": {"l2": 0.1, "max_iterations": 30},
    "semi-supervised": SMALL,
    "partly-tagged": {"num_folds": 0},
    "dictionary": {},
}
ASKED = [(MISLEADING,), ("walking", MISLEADING), ("the", MISLEADING, "sees")]


def test_systems_with_a_lexicon_are_these():
    assert set(SYSTEMS) == set(LEXICON_SYSTEMS)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_word_of_the_lexicon_alone_gets_a_listed_tag(system, tmp_path):
    """Its form alone would mislead."""
    options = SYSTEMS[system]
    if system not in ("dictionary", "plain"):
        assert make_tagger(system, **options).fit(TEXT).tag([("dog", MISLEADING)])[0][1] == "V"
    tagger = make_tagger(system, lexicon=LEXICON, **options).fit(TEXT)
    again = load_tagger(tagger.save(tmp_path / "model"))
    for each in (tagger, again):
        assert [tags[words.index(MISLEADING)] for words, tags in zip(ASKED, each.tag(ASKED), strict=True)] == ["N"] * 3
        noun = list(each.tags).index("N")
        for words, probs in zip(ASKED, each.smooth(ASKED), strict=True):
            assert probs[words.index(MISLEADING), noun] > 0.99
    for mine, other in zip(tagger.smooth(ASKED), again.smooth(ASKED), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-12)


@pytest.mark.parametrize("system", ["hmm", "enhanced", "plain", "latent", "latent-product", "semi-supervised"])
def test_with_a_strength_other_tags_stay_possible(system):
    options = SYSTEMS[system]
    words = [(MISLEADING,)]
    (without,), (weak,), (strong,) = (
        make_tagger(system, **options, **more).fit(TEXT).smooth(words)[0]
        for more in ({}, *({"lexicon": LEXICON, "lexicon_strength": strength} for strength in (0.5, 50.0)))
    )
    noun, verb = 1, 2
    assert 0 < without[noun] < weak[noun] < strong[noun] < 1 and 0 < strong[verb] < weak[verb]


def test_limits_of_a_crf_need_no_features():
    """A lexicon says nothing of words in training here, so that features of it have no weights."""
    for kind in (CRFTagger, MEMMTagger):
        lexicon = {MISLEADING: ["N"]}
        assert kind(l2=0.1, lexicon=lexicon).fit(TEXT).tag([("the", "dog", MISLEADING)]) == [("D", "N", "N")]
        free = kind(l2=0.1, lexicon=lexicon, lexicon_limits=False).fit(TEXT)
        assert free.tag([("the", "dog", MISLEADING)]) == [("D", "N", "V")]


# ---------------------------------------------------------------- what is listed, in numbers
def test_listed_tags():
    guesses = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    entries = TagDictionary({"a": {"X": 3.0, "Y": 1.0}, "b": ["Z"]}).entries
    hard, soft = (ListedTags(entries, ("X", "Y", "Z"), strength) for strength in (None, 2.0))
    np.testing.assert_allclose(
        hard.tag_probs(("a", "b"), guesses), [[0.5 * 0.75 / 0.45, 0.3 * 0.25 / 0.45, 0.0], [0.0, 0.0, 1.0]]
    )
    np.testing.assert_allclose(soft.tag_probs(("a", "b"), guesses), [[2 / 3, 0.8 / 3, 0.2 / 3], [0.0, 1 / 3, 2 / 3]])
    np.testing.assert_allclose(hard.sightings(("b", "c")), [[0, 0, 0.5], [0, 0, 0]])
    np.testing.assert_allclose(soft.sightings(("a", "c")), [[1.5, 0.5, 0], [0, 0, 0]])
    assert "a" in hard and "c" not in hard and hard.limits and not soft.limits
    assert TagDictionary({"a": ["X", "Y"], "b": ["Z"]}).of_tags(["Y"]).entries == {"a": {"Y": 1.0}}


@pytest.mark.parametrize("strength", [None, 3.0])
def test_probabilities_of_words_given_tags_by_counting(strength):
    """Bayes' rule for new words, and sightings for known ones; over the words of training, tags have p = 1 - p(new)."""
    lexicon = {MISLEADING: {"N": 3.0, "V": 1.0}, "dog": ["V"]}
    tagger = HMMTagger(lexicon=lexicon, lexicon_strength=strength).fit(TEXT)
    plain = HMMTagger().fit(TEXT)
    new, known = (t.word_log_probs([MISLEADING, "dog"])[:, :-1].exp().numpy() for t in (tagger, plain))
    share = plain.counts.word_tags.sum(0) / plain.counts.word_tags.sum()
    guess = known[0] * share / (known[0] * share).sum()
    weights = np.array([0, 0.75, 0.25])
    expected = (
        guess * weights / (guess * weights).sum() if strength is None else (guess + strength * weights) / (1 + strength)
    )
    np.testing.assert_allclose(new[0] * share / (new[0] * share).sum(), expected, atol=1e-12)
    np.testing.assert_allclose((new[0] * share).sum(), (known[0] * share).sum())
    total = tagger.word_log_probs(tagger.words).exp().sum(0)[:-1].numpy()
    np.testing.assert_allclose(total, total[0])
    sightings = 0.5 if strength is None else strength
    verbs = plain.counts.word_tags[:, 2].sum()
    np.testing.assert_allclose(new[1, 2], sightings / (verbs + sightings) * total[0])


def test_a_lexicon_is_looked_up_in_lower_case_where_words_are():
    lexicon = {"herring": ["N"], "Reading": ["N"]}
    tagger = HMMTagger.enhanced().set_params(lexicon=lexicon).fit(TEXT)
    assert tagger.tag([("dog", "Herring"), ("dog", "Reading")]) == [("N", "N")] * 2
    latent = LatentTagger(lexicon=lexicon, **SMALL).fit(TEXT)
    assert latent.tag([("Herring",), ("Reading",)]) == [("N",)] * 2, "as the first word"


@grid({"form_count": [0.0, 1.0], "strength": [None, 3.0]})
def test_words_of_substates(strength, form_count):
    """Of a new word the tags' shares are those of the formula, and substates keep their shares of a tag; a known word keeps the
    tags it was seen with, and gets those that are listed."""
    train = tagged_sentences(30)
    lexicon = {"qq": {"VERB": 3.0, "NOUN": 1.0}, "dog": ["VERB"]}
    options = {"num_substates": 4, "max_iterations": 3, "min_count": 0, "form_count": form_count}
    without = LatentTagger(**options).fit(train)
    tagger = LatentTagger(lexicon=lexicon, lexicon_strength=strength, **options).fit(train)
    words, states = ["qq", "dog"], without.tag_of_state()
    old, new = ((t.word_log_probs(words) + t._substate_words.log_norm).exp()[:, :-1] for t in (without, tagger))
    by_tag = [torch.stack([table[:, states[:-1] == k].sum(1) for k in range(len(without.tags))], 1) for table in (old, new)]
    listed = ListedTags(TagDictionary(lexicon).entries, tagger.tags, strength)
    expected = listed.tag_probs(["qq"], (by_tag[0][:1] / by_tag[0][:1].sum()).numpy())
    np.testing.assert_allclose(by_tag[1][:1] / by_tag[0][:1].sum(), expected, atol=1e-9)
    verb, noun = (tagger.tags.index(tag) for tag in ("VERB", "NOUN"))
    own = states[:-1] == verb
    np.testing.assert_allclose(new[0, own] / new[0, own].sum(), old[0, own] / old[0, own].sum(), rtol=1e-9)
    forms = form_count * without.forms.log_probs(["dog"]).exp()[0]
    gained = by_tag[1][1] - by_tag[0][1]
    possible = {verb, noun} if strength is None else set(range(len(tagger.tags)))
    for k in range(len(tagger.tags)):
        more = (0.5 if strength is None else strength) * (k == verb)
        np.testing.assert_allclose(gained[k], more if k in possible else -float(forms[k]), atol=1e-9)
    # the words of training, and the new ones like those seen once, have probability one given any state
    once = [word for word in tagger.words if sum(s.words.count(word) for s in train) == 1]
    total = tagger.word_log_probs(tagger.words).exp().sum(0)
    if form_count:
        shares = form_count * tagger._substate_words.by_form(once).sum(0) / tagger._substate_words.log_norm.exp()
        np.testing.assert_allclose((total + shares)[:-1], 1.0, rtol=1e-9)


# ---------------------------------------------------------------- files
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lexicon: .*words.txt lists no words"),
        ("# a comment\n\n", "lexicon: .*words.txt lists no words"),
        ("dog N\n# SYM\n5 SYM\n", "lexicon: .*words.txt, line 2: either a comment, or the word '#' with the tags SYM"),
        ("# #\ndog N\n", "line 1: either a comment"),
        ("# N:3 N\ndog N\n", "line 1: either a comment"),
        ("dog\n", "lexicon: .*words.txt, line 1: the word 'dog' has no tags"),
        ("dog N:-1\n", "lexicon: .*words.txt, line 1: the weight of 'N' must be positive"),
    ],
)
def test_files_that_say_nothing_or_two_things_are_refused(text, message, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        LatentTagger(lexicon=path)


def test_words_and_comments_of_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("#\tSYM\n# SYM is for signs\n# version:0\n# \ndog N\n")
    assert TagDictionary.read(path).entries == {"#": {"SYM": 1.0}, "dog": {"N": 1.0}}
    with pytest.raises(FileNotFoundError, match="lexicon: .*nowhere.txt"):
        LatentTagger(lexicon=tmp_path / "nowhere.txt")
    path.write_bytes(b"caf\xe9 N\n")
    with pytest.raises(ValueError, match="lexicon: .*words.txt is not UTF-8"):
        LatentTagger(lexicon=path)


# ---------------------------------------------------------------- limits of features' taggers
def limited(kind):
    lexicon = {"herring": ["N", "V"], "dog": ["V"], "sees": ["V"], "a": ["D"]}
    tagger = kind(["word[0]", "suffix2[0]"], lexicon=lexicon, l2=0.3, max_iterations=20, dtype="float64").fit(TEXT)
    return tagger, lexicon


def test_a_crf_sums_over_the_taggings_that_a_lexicon_allows():
    """Scores, best tagging, and the gradient of the loss, against an enumeration."""
    tagger, lexicon = limited(CRFTagger)
    words = ("a", "dog", "herring", "sings")
    possible = [("D",), ("N", "V"), ("N", "V"), tagger.tags]  # "dog" is seen as N, and listed as V
    data = tagger.encode([words])
    free = tagger.weights.scores(tagger.encode([words])).clone()
    assert tagger.seen_tags == {"dog": ["N"], "sees": ["V"], "a": ["D"]}
    free[data.blocked] = -np.inf
    transition = tagger.weights.transition
    totals = {}
    for tags in itertools.product(*possible):
        path = [tagger.tags.index(tag) for tag in tags]
        totals[tags] = sum(free[t, k] for t, k in enumerate(path)) + sum(transition[i, k] for i, k in itertools.pairwise(path))
    log_total = torch.stack(list(totals.values())).logsumexp(0)
    best = max(totals, key=totals.__getitem__)
    assert tagger.tag([words]) == [best]
    asked = [TaggedSentence(words, tags) for tags in (best, ("D", "N", "V", "N"), ("N", "N", "N", "N"))]
    expected = [float((totals.get(s.tags, torch.tensor(-torch.inf)) - log_total).detach()) for s in asked]
    np.testing.assert_allclose(tagger.log_prob(asked), expected, rtol=1e-9)
    given = tagger.encode([words], [best])
    loss = tagger.weights.loss(given)
    slow = log_total - totals[best]
    parameters = [p for p in tagger.weights.parameters() if p.numel()]
    for fast, by_enumeration in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(slow, parameters), strict=True):
        torch.testing.assert_close(fast, by_enumeration)
        assert bool(fast.isfinite().all())


def test_an_memm_chooses_among_the_tags_that_a_lexicon_allows():
    tagger, _ = limited(MEMMTagger)
    words = ("a", "dog", "herring")
    taggings = list(itertools.product(tagger.tags, repeat=3))
    log_probs = tagger.log_prob([TaggedSentence(words, tags) for tags in taggings])
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0)
    possible = {tags for tags, value in zip(taggings, log_probs, strict=True) if value > -np.inf}
    assert possible == set(itertools.product(("D",), ("N", "V"), ("N", "V")))
    loss = tagger.weights.loss(tagger.encode([words], [("D", "N", "V")]))
    assert all(bool(grad.isfinite().all()) for grad in torch.autograd.grad(loss, tagger.weights.transition))


@pytest.mark.parametrize("method", ["lbfgs", "sgd"])
def test_both_ways_of_learning_keep_to_the_lexicon(method):
    tagger = CRFTagger(lexicon=LEXICON, l2=0.1, method=method, epochs=3, max_iterations=20).fit(TEXT)
    assert np.isfinite(tagger.history).all() and tagger.tag([("dog", MISLEADING)]) == [("N", "N")]


# ---------------------------------------------------------------- from the command line, and what has no meaning
def test_a_lexicon_of_a_file_makes_a_product_whose_members_all_have_it(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(f"{MISLEADING} N\ndog N V\n")
    saved, _ = train_tagger("product", TEXT, folder=tmp_path / "run", lexicon=str(path), num_models=2, **SMALL, l2=0.1)
    assert all(model.get_params()["lexicon"].keys() == {MISLEADING, "dog"} for model in saved.tagger.models)
    assert load_tagger(tmp_path / "run").tag([(MISLEADING,)]) == [("N",)]


def test_semi_supervised_folds_may_lack_tags_of_the_lexicon():
    """A tag of the lexicon that only sentences without all tags have."""
    text = [*TEXT, TaggedSentence(("the", "dog", "quickly"), (None, None, "R"))]
    tagger = make_tagger("semi-supervised", lexicon={"slow": ["R"], MISLEADING: ["N", "R"]}, num_folds=2, **SMALL)
    assert tagger.fit(text).tag([(MISLEADING,)])[0][0] in ("N", "R")


@pytest.mark.parametrize("system", ["hmm", "latent", "crf", "memm", "product", "latent-product", "semi-supervised"])
def test_tags_that_the_text_lacks_are_refused(system):
    tagger = make_tagger(system, lexicon={"blah": ["UNHEARD"]}, **SYSTEMS[system])
    with pytest.raises(ValueError, match="lexicon: 'blah' has the tag 'UNHEARD', which no word of the training text has"):
        tagger.fit(TEXT)


@pytest.mark.parametrize(
    ("system", "options", "message"),
    [
        ("hmm", {"lexicon_strength": 0.0, "lexicon": LEXICON}, "lexicon_strength must be positive"),
        ("latent", {"lexicon_strength": 1.0}, "lexicon_strength: there is no lexicon"),
        ("latent", {"lexicon": {"a": "N"}}, "lexicon: the tags of 'a' are the string"),
        ("spans", {"lexicon": LEXICON}, "lexicon: lists tags of words, and not of spans; give names as gazetteers"),
        ("most-frequent", {"lexicon": LEXICON}, "lexicon: the system 'most-frequent' has no such setting.* one: hmm, "),
        ("crf", {"lexicon": LEXICON, "lexicon_strength": 1.0}, "lexicon_strength: .*lexicon_limits=false"),
        ("latent", {"lexicon": LEXICON, "lexicon_strength": "2"}, "lexicon_strength must be a number, got '2'"),
        ("dictionary", {"lexicon": LEXICON, "lexicon_strength": "2"}, "lexicon_strength must be a number, got '2'"),
        ("hmm", {"lexicon": {"a": {"N": "3"}}}, "lexicon: the weight of 'N' of 'a' must be a number, got '3'"),
    ],
)
def test_what_has_no_meaning_is_refused(system, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_tagger(system, **options)
    with pytest.raises(ValueError, match="lexicon: not for tags of several columns"):
        MorphologyTagger(lexicon=LEXICON)
