"""Counts of tags, their smoothing and the guesses for unknown words, against loops over the text."""

from collections import Counter

import numpy as np
import pytest
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers import counts as counting
from pplseq.models.taggers.counts import SMOOTHING, add_tag_counts, count_tags, interpolation_weights, transition_probs
from pplseq.models.taggers.hmm import HMMTagger
from pplseq.models.taggers.suffixes import SpellingModel, SuffixGuesser, shape_class

SENTENCES = [
    TaggedSentence(("the", "dog", "barks"), ("D", "N", "V")),
    TaggedSentence(("the", "old", "dog", "sleeps"), ("D", "A", "N", "V")),
    TaggedSentence((), ()),
    TaggedSentence(("dogs", "bark"), ("N", "V")),
    TaggedSentence(("Go",), ("V",)),
]


def trigrams(sentences):
    """(a, b, c) -> count, by a plain loop."""
    counts = Counter()
    for sentence in sentences:
        if sentence.words:
            track = ["$", "$", *sentence.tags, "$"]
            counts.update(zip(track, track[1:], track[2:]))  # noqa: B905
    return counts


def equal(found, expected):
    assert found[:2] == expected[:2]
    for name in ("ngrams", "word_tags"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("order", [1, 2])
def test_counts_of_parts_add_up(order):
    parts = [count_tags(SENTENCES[first : first + 2], order) for first in (0, 2, 4)]  # of different tags and words
    equal(add_tag_counts(add_tag_counts(parts[0], parts[1]), parts[2]), count_tags(SENTENCES, order))
    equal(add_tag_counts(parts[2], add_tag_counts(parts[1], parts[0])), count_tags(SENTENCES, order))


@pytest.mark.filterwarnings("default")  # Dask's own
def test_a_tagger_from_the_counts_of_a_cluster(here, tmp_path, monkeypatch):
    from pplseq.runs.cluster import PartFailed

    monkeypatch.setattr(counting, "PART_SENTENCES", 2)
    alone = HMMTagger.tnt().fit(SENTENCES)
    equal(HMMTagger.tnt().fit(SENTENCES, cluster=here).counts, alone.counts)
    for number, sentence in enumerate(SENTENCES):
        lines = "".join(f"{word} {tag}\n" for word, tag in zip(*sentence, strict=True))
        (tmp_path / f"{number}.txt").write_text(lines) if lines else None
    equal(HMMTagger.tnt().fit(tmp_path / "*.txt", cluster=here).counts, alone.counts)
    (tmp_path / "5.txt").write_text("alone\n")
    with pytest.raises(PartFailed, match=r"5\.txt: ValueError"):
        HMMTagger.tnt().fit(str(tmp_path / "*.txt"), cluster=here)
    with pytest.raises(FileNotFoundError, match="no file matches"):
        HMMTagger.tnt().fit(tmp_path / "*.none", cluster=here)
    with pytest.raises(ValueError, match="expected tagged sentences with at least one word"):
        HMMTagger.tnt().fit([], cluster=here)


def test_counts():
    counts = count_tags(SENTENCES)
    names = [*counts.tags, "$"]
    expected = trigrams(SENTENCES)
    found = {
        (names[a], names[b], names[c]): int(counts.ngrams[a, b, c])
        for a, b, c in zip(*counts.ngrams.nonzero(), strict=True)
    }
    assert found == dict(expected)
    assert counts.word_tags[counts.words.index("dog")].tolist() == [0, 0, 2, 0]
    assert counts.word_tags.sum() == 10


def test_bigrams():
    bigrams, trigrams = count_tags(SENTENCES, order=1).ngrams, count_tags(SENTENCES).ngrams
    np.testing.assert_array_equal(bigrams, trigrams.sum(0))
    for smoothing in SMOOTHING:
        np.testing.assert_allclose(transition_probs(bigrams, 1, smoothing), transition_probs(trigrams, 1, smoothing))


def test_many_tags(monkeypatch):
    sentence = TaggedSentence(("a",) * 1000, tuple(map(str, range(1000))))
    assert len(count_tags([sentence]).ngrams.counts) == 1001  # trigrams that occur
    assert count_tags([sentence], order=1).ngrams.shape == (1001, 1001)
    dense, parts = count_tags(SENTENCES).ngrams, [SENTENCES[:2], SENTENCES[2:]]
    first = count_tags(parts[0])
    monkeypatch.setattr(counting, "MAX_DENSE_TAGS", 2)
    for found in (count_tags(SENTENCES), add_tag_counts(first, count_tags(parts[1]))):
        assert found.ngrams.size == len(dense)
        np.testing.assert_array_equal(found.ngrams.at, np.argwhere(dense))
        np.testing.assert_array_equal(found.ngrams.counts, dense[dense > 0])


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_rows_of_contexts_are_those_of_the_whole_table(smoothing, monkeypatch):
    text = tagged_sentences(30)
    dense = count_tags(text).ngrams
    monkeypatch.setattr(counting, "MAX_DENSE_TAGS", 2)
    probs, pairs = counting.context_probs(count_tags(text).ngrams, smoothing, 0.5)
    expected, size = transition_probs(dense, 2, smoothing, 0.5), len(dense)
    number = {tuple(pair): i for i, pair in enumerate(pairs.tolist())}
    assert 0 < len(pairs) < size**2
    for a in range(size):
        for b in range(size):
            np.testing.assert_allclose(probs[number.get((a, b), len(pairs) + b)], expected[a, b], rtol=1e-12)


@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("order", [1, 2])
def test_rows_are_distributions(smoothing, order):
    probs = transition_probs(count_tags(SENTENCES).ngrams, order, smoothing)
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-12)
    assert (probs >= 0).all() and probs.shape == (5,) * (order + 1)


def test_relative_frequencies_and_added_counts():
    counts = count_tags(SENTENCES)
    d, n, v = (counts.tags.index(tag) for tag in "DNV")
    mle = transition_probs(counts.ngrams, 1, "mle")
    np.testing.assert_allclose(mle[n, v], 1, atol=1e-9)
    np.testing.assert_allclose(mle[d, n], 0.5, atol=1e-9)
    added = transition_probs(counts.ngrams, 1, "add", add=0.5)
    np.testing.assert_allclose(added[d, n], 1.5 / (2 + 2.5))


def test_witten_bell_by_hand():
    counts = count_tags(SENTENCES)
    d, n = (counts.tags.index(tag) for tag in "DN")
    unigram = counts.ngrams.sum((0, 1)) / counts.ngrams.sum()
    # behind D came two different tags, twice in all
    np.testing.assert_allclose(transition_probs(counts.ngrams, 1, "witten_bell")[d, n], (1 + 2 * unigram[n]) / 4)


def test_interpolation_weights_against_the_loop_of_the_article():
    rng = np.random.default_rng(0)
    table = np.floor(rng.gamma(0.3, 4, (5, 5, 5)))
    levels = [table.sum((0, 1)), table.sum(0), table]
    votes = np.zeros(3)
    for a, b, c in zip(*table.nonzero(), strict=True):
        cases = [
            (levels[0][c] - 1, levels[0].sum() - 1),
            (levels[1][b, c] - 1, levels[1][b].sum() - 1),
            (table[a, b, c] - 1, table[a, b].sum() - 1),
        ]
        ratios = [0 if total == 0 else count / total for count, total in cases]
        best = [i for i in range(3) if ratios[i] == max(ratios)]
        votes[best] += table[a, b, c] / len(best)
    np.testing.assert_allclose(interpolation_weights(levels), votes / votes.sum())


def test_suffixes_by_hand():
    words, tags = ("walking", "talking", "king", "red"), np.array([[2.0, 0], [1, 0], [0, 1], [0, 1]])
    guesser = SuffixGuesser(words, tags, max_length=3)
    theta, probs = guesser.theta, tags.sum(0) / 5
    np.testing.assert_allclose(theta, probs.std(ddof=1))
    for suffix in ("", "g", "ng", "ing"):
        seen = tags[[i for i, word in enumerate(words) if word.endswith(suffix)]].sum(0)
        probs = (seen / seen.sum() + theta * probs) / (1 + theta)
    np.testing.assert_allclose(guesser.tag_given_word("xxing"), probs)
    np.testing.assert_allclose(guesser.tag_given_word("xxing").sum(), 1)
    # a class that was never seen, here capitals, has the tags of all words
    np.testing.assert_allclose(guesser.tag_given_word("Xing"), guesser.tag_probs)


def test_shapes():
    words = ["3.5", "B2B", "...", "a@b.c", "A", "USA", "eBay", "Dog", "McDo", "well-known", "dog"]
    shapes = "number digit punctuation address letter upper other capital mixed other-hyphen other".split()
    assert [shape_class(word) for word in words] == shapes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, "mle"), "order must be"),
        ((1, "good"), "smoothing must be one of"),
        ((1, "add", 0.0), "add must be positive"),
        ((2, "mle"), r"need counts of 3-grams, got shape \(5, 5\)"),
    ],
)
def test_bad_options(arguments, message):
    with pytest.raises(ValueError, match=message):
        transition_probs(count_tags(SENTENCES, order=1).ngrams, *arguments)


def test_bad_suffix_options():
    with pytest.raises(ValueError, match="classes must be"):
        SuffixGuesser(("a",), np.ones((1, 1)), classes="look")
    with pytest.raises(ValueError, match="max_count must be at least 1"):
        SuffixGuesser(("a",), np.ones((1, 1)), max_count=0)


def test_spelling_by_hand():
    spelling = SpellingModel(["ab", "a"])
    # ends came twice and letters three times, three different ones; behind an "a" came "b" and the end, once each
    rest = 3 / (0x110000 + 1)
    a, b, end = (np.array([2, 1, 2]) + rest) / (5 + 3)
    np.testing.assert_allclose(spelling.log_prob("a"), np.log((2 + a) / 3 * (1 + 2 * end) / 4))
    np.testing.assert_allclose(spelling.log_prob("b"), np.log(b / 3 * (1 + end) / 2))
    unseen = rest / 8
    np.testing.assert_allclose(a + b + end + (0x110000 - 2) * unseen, 1)
    np.testing.assert_allclose(spelling.log_prob("\U0001f600"), np.log(unseen / 3 * end))


def test_sentences_without_tags_are_no_data():
    with pytest.raises(TypeError, match="x: expected tagged sentences"):
        HMMTagger.tnt().fit(["the dog"])
