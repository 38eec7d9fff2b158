"""Hidden Markov taggers: the program, known and unknown words, TnT beside NLTK's."""

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from support.stored import rewrite
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.models.constraints.constraint import Constraint
from pplseq.models.taggers import counts
from pplseq.models.taggers.hmm import HMMTagger, HMMTaggerSettings

TRAIN, TEST = tagged_sentences(), tagged_sentences(15, seed=1)
WORDS = [sentence.words for sentence in TEST]


@pytest.fixture(params=["bigram", "tnt"])
def tagger(request):
    return getattr(HMMTagger, request.param)().fit(TRAIN)


def test_the_program_is_the_chain(tagger):
    types, x, lengths = tagger.encode(WORDS)
    with BlockedEnum() as posterior:
        tagger.model(x, lengths, tagger.emission(types))
    chain = tagger.chain(WORDS)
    torch.testing.assert_close(posterior.chains["z_0"].log_prob(), chain.log_prob())
    torch.testing.assert_close(posterior.chains["z_0"].viterbi()[0], chain.viterbi()[0])


def test_the_joint_probability_by_hand(tagger):
    """log p(words, tags) of the best path is what the program's sites add up to."""
    words = WORDS[0]
    (tags, log_posterior), *_ = tagger.n_best(words, 1)
    numbers = [tagger.tags.index(tag) for tag in tags] + [len(tagger.tags)]
    size, before = len(tagger.tags) + 1, [len(tagger.tags), *numbers]
    states = numbers if tagger.settings.order == 1 else [a * size + b for a, b in zip(before, numbers, strict=False)]
    types, x, lengths = tagger.encode([words])
    values = {f"z_{t}": torch.tensor([state]) for t, state in enumerate(states)}
    with pyro.validation_enabled(False):
        conditioned = poutine.condition(tagger.model, data=values)
        joint = poutine.trace(conditioned).get_trace(x, lengths, tagger.emission(types)).log_prob_sum()
    np.testing.assert_allclose(float(joint), log_posterior + tagger.log_prob([words])[0], rtol=1e-9)


def test_known_words_keep_to_their_tags(tagger):
    probs = tagger.smooth([("the", "dog", ".")])[0]
    assert probs[1, tagger.tags.index("VERB")] == 0


def test_unknown_words():
    ignorant, guessing = HMMTagger.plain().fit(TRAIN), HMMTagger.enhanced().fit(TRAIN)
    verb, noun = guessing.tags.index("VERB"), guessing.tags.index("NOUN")
    guess = guessing._word_log_prob("climbed"), guessing._word_log_prob("ration")
    assert guess[0][verb] > guess[0][noun] and guess[1][verb] < guess[1][noun]
    assert len(set(ignorant._word_log_prob("climbed"))) == 1
    # a word known in lower case has its tags, with the probability of a new word
    noun_only = [tag == "NOUN" for tag in guessing.tags]
    assert (np.isfinite(guessing._word_log_prob("DOG")) == noun_only).all()
    assert np.isfinite(HMMTagger.tnt().fit(TRAIN)._word_log_prob("DOG")).sum() > 1
    assert guessing._word_log_prob("DOG")[noun] < guessing._word_log_prob("dog")[noun] - 10


def test_probabilities_of_words():
    """Known words and all strings together have probability one, given a tag and over all tags."""
    tagger = HMMTagger.plain().fit(TRAIN)
    known = np.exp([tagger._word_log_prob(word) for word in tagger.counts.words]).sum(0)
    new = np.exp(tagger._word_log_prob("climbed") - tagger._spelling.log_prob("climbed"))
    np.testing.assert_allclose(known + new, 1)
    for tagger in (HMMTagger.tnt().fit(TRAIN), HMMTagger.enhanced().fit(TRAIN)):
        shares = tagger.counts.word_tags.sum(0) / tagger.counts.word_tags.sum()
        for word in ("climbed", "Rations", "DOG", "9"):
            over_tags = (np.exp(tagger._word_log_prob(word)) * shares).sum()
            np.testing.assert_allclose(np.log(over_tags), tagger._log_new + tagger._spelling.log_prob(word))
    assert tagger.token_log_probs([("the", "careful", "climbed", "walk")])[0].argmin() == 2


def test_counts_of_parts_add_up():
    from pplseq.models.taggers.counts import count_tags

    whole, first, second = (count_tags(part) for part in (TRAIN, TRAIN[:50], TRAIN[50:]))
    assert first.tags == second.tags == whole.tags
    np.testing.assert_array_equal(first.ngrams + second.ngrams, whole.ngrams)


@pytest.mark.parametrize("preset", ["tnt", "enhanced"])
def test_contexts_are_the_dense_trigrams(preset, monkeypatch, tmp_path):
    dense = getattr(HMMTagger, preset)().fit(TRAIN)
    monkeypatch.setattr(counts, "MAX_DENSE_TAGS", 2)
    sparse = getattr(HMMTagger, preset)().fit(TRAIN)
    sparse.save(tmp_path / "kept")
    text = [*WORDS, ("the", "climbed", "rations", "."), ("strange",), ()]
    for tagger in (sparse, HMMTagger.load(tmp_path / "kept")):
        assert tagger.symbol is not None and tagger.transition.num_states < dense.transition.num_states
        assert tagger.tag(text) == dense.tag(text)
        np.testing.assert_allclose(tagger.log_prob(text), dense.log_prob(text), rtol=1e-12)
        np.testing.assert_allclose(np.concatenate(tagger.smooth(text)), np.concatenate(dense.smooth(text)), atol=1e-12)
        np.testing.assert_allclose(tagger.entropy(text), dense.entropy(text), atol=1e-10)
        for (tags, value), (others, expected) in zip(tagger.n_best(text[-3], 4), dense.n_best(text[-3], 4), strict=True):
            assert tags == others
            np.testing.assert_allclose(value, expected, rtol=1e-10)
        np.testing.assert_allclose(tagger.predict_next([(), text[0]]).tags, dense.predict_next([(), text[0]]).tags)
        drawn = tagger.sample(20, 5, seed=0)
        assert all(set(tags) <= set(tagger.tags) for _, tags in drawn)
        bio = Constraint.containing("VERB")
        assert tagger.under(bio).tag(text[:1]) == dense.under(bio).tag(text[:1])


def test_a_word_and_a_tag():
    tagger = HMMTagger.tnt().fit([TaggedSentence(("one",), ("X",))])
    assert tagger.tag([("one",), ("two", "three")]) == [("X",), ("X", "X")]


def test_bad_settings():
    for options, message in (({"order": 3}, "order must be"), ({"smoothing": "x"}, "smoothing"), ({"unknown": "x"}, "unknown")):
        with pytest.raises(ValueError, match=message):
            HMMTaggerSettings(**options)
    with pytest.raises(ValueError, match="word without a tag.*semi-supervised, partly-tagged"):
        HMMTagger().fit([TaggedSentence(("a", "b"), ("X", None))])
    with pytest.raises(ValueError, match="2 words but 1 tags"):
        HMMTagger().fit([TaggedSentence(("a", "b"), ("X",))])


@pytest.mark.slow
@pytest.mark.parametrize(("column", "expected"), [("upos", 0.9240), ("xpos", 0.9256)])
def test_tnt_is_as_good_as_nltks(data_folder, column, expected):
    from pplseq.data.columns import read_conllu

    folder = data_folder / "ud_english_ewt"
    train, test = (list(read_conllu(folder / f"en_ewt-ud-{part}.conllu", tag=column)) for part in ("train", "test"))
    found = HMMTagger.tnt().fit(train).tag([sentence.words for sentence in test])
    pairs = [(a, b) for tags, sentence in zip(found, test, strict=True) for a, b in zip(tags, sentence.tags, strict=True)]
    assert abs(np.mean([a == b for a, b in pairs]) - expected) < 0.001


@pytest.mark.parametrize("damage", ["words", "more words", "tags", "order"])
def test_a_folder_whose_parts_do_not_fit(tmp_path, damage):
    import json

    from pplseq.models.taggers.tagger import load_tagger

    path = HMMTagger.tnt().fit(TRAIN).save(tmp_path / "tagger") / "config.json"
    header = json.loads(path.read_text())
    config = header["config"]
    if damage == "words":
        config["words"] = config["words"][:3]
    elif damage == "more words":
        config["words"] = [*config["words"], "another"]
    elif damage == "tags":
        config["tags"] = config["tags"][:-1]
    else:
        config["settings"]["order"] = 1
    rewrite(path.parent, config=config)
    with pytest.raises(ValueError, match="config.json"):
        load_tagger(path.parent)
