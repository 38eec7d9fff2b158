"""The latent-annotated tagger: its program, its block-sparse chain of tagged text, what substates are good for."""

import numpy as np
import pytest
import torch
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence
from pplseq.infer.programs.blocked_enum import BlockedEnum
from pplseq.models.taggers.latent import LatentTagger, LatentTaggerSettings
from pplseq.models.taggers.tagger import load_tagger

TRAIN, TEST = tagged_sentences(60), tagged_sentences(15, seed=1)
WORDS = [sentence.words for sentence in TEST]


@pytest.fixture(scope="module")
def tagger() -> LatentTagger:
    return LatentTagger(num_substates=4, max_iterations=5, min_count=0).fit(TRAIN)


def test_the_program_is_the_chain(tagger):
    types, x, lengths = tagger.encode(WORDS)
    with BlockedEnum() as posterior:
        tagger.model(x, lengths, tagger.emission(types))
    chain = tagger.chain(WORDS)
    torch.testing.assert_close(posterior.chains["z_0"].log_prob(), chain.log_prob())
    torch.testing.assert_close(posterior.chains["z_0"].marginals().probs, chain.marginals().probs)


def test_the_program_of_tagged_words(tagger):
    """With tags observed, p(words, tags) is p(words) p(tags | words)."""
    sentences = [TaggedSentence(("the", "walk", "walked"), tags) for tags in [("DET", "NOUN", "VERB"), ("DET", "VERB", "VERB")]]
    symbols, lengths, emission, transition = tagger.tagged(sentences)
    with BlockedEnum() as posterior:
        tagger.model(symbols, lengths, emission, transition)
    joint = posterior.chains["z_0"].log_prob()
    states = tagger.tag_of_state()
    tags = [[tagger.tags.index(tag) for tag in sentence.tags] for sentence in sentences]
    paths = tagger.n_best(sentences[0].words, 5000)
    total = tagger.log_prob([sentences[0].words])[0]
    for i, sentence in enumerate(sentences):
        of_tags = np.logaddexp.reduce([log_prob for found, log_prob in paths if found == sentence.tags])
        np.testing.assert_allclose(float(joint[i]), total + of_tags, atol=1e-6)
    # the marginals of its states lie in the tags' blocks
    probs = posterior.chains["z_0"].marginals().dense(len(states))
    assert all(states[probs[i, t] > 1e-9].unique().tolist() == [tags[i][t]] for i in range(2) for t in range(3))


def test_posterior_decoding_sums_over_substates(tagger):
    assert tagger.decoder == "posterior"
    chain = tagger.chain(WORDS[:3])
    probs, states = chain.marginals().probs, tagger.tag_of_state()
    for i, tags in enumerate(tagger.tag(WORDS[:3])):
        for t, tag in enumerate(tags):
            sums = [float(probs[i, t, states == k].sum()) for k in range(len(tagger.tags))]
            assert tagger.tags[int(np.argmax(sums))] == tag


def test_transitions_and_emissions_are_distributions(tagger):
    torch.testing.assert_close(tagger.transition.matrix.exp().sum(-1), torch.ones(21, dtype=torch.float64))
    table = tagger.emission(tagger.words).table[:-1]
    torch.testing.assert_close(table.exp().sum(0)[:-1], torch.ones(20, dtype=torch.float64))


def hidden_sentences(number: int, seed: int) -> list[TaggedSentence]:
    """The word `x` is A or B, by what was two words before it: no bigram of tags knows."""
    rng = np.random.default_rng(seed)
    sentences = []
    for _ in range(number):
        words, tags = [], []
        for _ in range(3):
            kind = int(rng.integers(2))
            words += [("p", "q")[kind], "m", "x"]
            tags += ["S", "M", "AB"[kind]]
        sentences.append(TaggedSentence(tuple(words), tuple(tags)))
    return sentences


def test_substates_remember_what_tags_forget():
    train, test = hidden_sentences(100, 0), hidden_sentences(20, 1)
    gold = [sentence.tags for sentence in test]
    words = [sentence.words for sentence in test]
    assert LatentTagger(num_substates=1).fit(train).tag(words) != gold
    assert LatentTagger(num_substates=2, max_iterations=60, noise=0.5).fit(train).tag(words) == gold


def test_log_probs_of_training_rise(tagger):
    first, second = np.array(tagger.log_probs).reshape(2, 5)
    assert (np.diff(first) > -1e-3).all() and (np.diff(second) > -1e-3).all()


@pytest.mark.parametrize(
    "options", [{"num_substates": 3}, {"num_substates": 0}, {"noise": 1.0}, {"merge": 1.0}, {"emission_count": -1.0}]
)
def test_bad_settings(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        LatentTaggerSettings(**options)


def test_merging_keeps_fewer_substates():
    whole, merged = (LatentTagger(num_substates=4, max_iterations=4, merge=share).fit(TRAIN) for share in (0.0, 0.6))
    assert len(whole.tag_of_state()) == 21
    # ten splits in the second round, of which six are undone
    assert len(merged.tag_of_state()) == 21 - 6
    gold = [sentence.tags for sentence in TEST]
    found = merged.tag(WORDS)
    assert np.mean([a == b for x, y in zip(gold, found, strict=True) for a, b in zip(x, y, strict=True)]) > 0.9


def test_new_words_by_their_form():
    tagger = LatentTagger(num_substates=2, max_iterations=2, max_count=1000).fit(TRAIN)  # no word of the toy is rare
    table = tagger.emission(["climbed", "ration"]).table
    states, verb, noun = tagger.tag_of_state(), tagger.tags.index("VERB"), tagger.tags.index("NOUN")
    best = table[:, states == verb].logsumexp(-1) - table[:, states == noun].logsumexp(-1)
    assert float(best[0]) > 0.5 and float(best[1]) < -0.5


def test_the_first_word_may_begin_with_a_capital(tagger):
    (first,), (lower,) = tagger.smooth([("Walked", "the", "Walked")]), tagger.smooth([("walked", "the", "Walked")])
    np.testing.assert_array_equal(first, lower)
    (probs,) = tagger.smooth([("walked", "the", "walked")])
    assert abs(probs[2] - lower[2]).max() > 1e-3  # further on a capital says something
    assert tagger.tag([("The",), ()]) == [("DET",), ()]


def test_taggers_saved_with_all_pairs_of_tags_load(tagger, tmp_path):
    """As before only the pairs that occur were kept."""
    config, tensors = tagger.state()
    pairs, counts = tensors.pop("tag_pairs"), tensors["transition_counts"]
    tensors["transition_counts"] = counts.new_zeros(len(tagger.tags) + 1, len(tagger.tags) + 1, *counts.shape[1:])
    tensors["transition_counts"][pairs[:, 0], pairs[:, 1]] = counts
    again = LatentTagger.from_state(config, tensors)
    torch.testing.assert_close(again.transition.matrix, tagger.transition.matrix, atol=0, rtol=0)
    np.testing.assert_array_equal(again.log_prob(WORDS), tagger.log_prob(WORDS))
    again.save(tmp_path / "again")
    np.testing.assert_array_equal(load_tagger(tmp_path / "again").log_prob(WORDS), tagger.log_prob(WORDS))


def test_taggers_of_another_version_say_what_to_do(tagger, tmp_path, monkeypatch):
    config, tensors = tagger.state()
    del config["forms"]
    monkeypatch.setattr(tagger, "state", lambda: (config, tensors))
    tagger.save(tmp_path / "other")
    with pytest.raises(ValueError, match=r"'forms'.*saved by another one.*train again"):
        load_tagger(tmp_path / "other")
