"""Counts of tags, their smoothing and the guesses for unknown words, against loops over the text."""

from collections import Counter

import numpy as np
import pytest
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers import counts as counting
from pplseq.models.taggers import suffixes
from pplseq.models.taggers.counts import SMOOTHING, add_tag_counts, count_tags, interpolation_weights, transition_probs
from pplseq.models.taggers.hmm import HMMTagger
from pplseq.models.taggers.suffixes import SpellingModel, SuffixGuesser, TagSpellings, shape_class

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


class SlowSpellings:
    """p(letter | tag, letters before) by a dictionary of counts, string by string."""

    def __init__(self, words, word_tags, max_count, power, order):
        totals = word_tags.sum(1)
        self.order, self.counts, num_tags = order, {}, word_tags.shape[1]
        rare = [i for i in range(len(words)) if 0 < totals[i] <= max_count] or list(np.flatnonzero(totals))
        weights = {i: word_tags[i] * totals[i] ** (power - 1) for i in rare}
        self.letters = {letter for i in rare for letter in words[i]}
        for i, weight in weights.items():
            text = [*["begin"] * (order - 1), *words[i], "end"]
            for j, letter in enumerate(text[order - 1 :], order - 1):
                for n in range(order):
                    behind = self.counts.setdefault(tuple(text[j - n : j]), {})
                    behind[letter] = behind.get(letter, np.zeros(num_tags)) + weight
        total = sum(weights.values()) + 0.5
        self.prior = total / total.sum()

    def prob(self, letter, before):
        """(N,) given each tag."""
        prob = np.full(len(self.prior), 1 / (len(self.letters) + 2))
        for n in range(self.order):
            behind = self.counts.get(tuple(before[len(before) - n :]), {})
            if behind:
                kinds = sum((counts > 0).astype(float) for counts in behind.values())
                total, counts = sum(behind.values()), behind.get(letter, np.zeros(len(prob)))
                share, escape = counts.sum() / total.sum(), len(behind) / (total.sum() + len(behind))
                own = np.where(kinds > 0, (counts + kinds * share) / np.maximum(total + kinds, 1e-9), share)
                prob = (1 - escape) * own + escape * prob
        return prob

    def probs(self, word):
        text = [*["begin"] * (self.order - 1), *word, "end"]
        each = [self.prob(text[j], text[:j]) for j in range(self.order - 1, len(text))]
        joint = self.prior * np.prod(each, axis=0)
        return joint / joint.sum()


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("max_count", [3, 0.5])
@pytest.mark.parametrize("cells", [1 << 21, 1])
def test_spellings_of_tags_are_those_of_the_slow_ones(order, max_count, cells, monkeypatch):
    """Of words that share letters, have several tags, are empty, or have letters that are new."""
    monkeypatch.setattr(suffixes, "CELLS", cells)
    rng = np.random.default_rng(order)
    words = sorted({"".join(rng.choice(list("abcé"), rng.integers(0, 6))) for _ in range(40)})
    word_tags = rng.integers(0, 3, (len(words), 3)) * rng.integers(0, 2, (len(words), 3)).astype(float)
    word_tags[:, 2] *= np.arange(len(words)) < 4  # a tag of few words
    fast = TagSpellings(words, word_tags, max_count=max_count, order=order)
    slow = SlowSpellings(words, word_tags, max_count, 0.5, order)
    asked = [*words[:10], "cab", "abcabcabc", "xa", "ax", "日本", "", "é"]
    found = fast.log_probs(asked)
    np.testing.assert_allclose(np.exp(found), [slow.probs(word) for word in asked], rtol=1e-9)
    assert fast.log_probs([]).shape == (0, 3)
    before = ["begin"] * (order - 1) + ["a", "b"]
    total = sum(slow.prob(letter, before) for letter in (*slow.letters, "end", "one that is new"))
    np.testing.assert_allclose(total, 1.0)


@pytest.mark.parametrize("word", ["xylyf", "qeqeqe", "Ωμέγα", "zzzzzzzzzzzzzzzz", ""])
def test_odd_letters_are_not_those_of_a_tag_without_rare_words(word):
    """Such a tag spells as all do together, and is as improbable as before; nor are they those of a tag with one rare word."""
    rng = np.random.default_rng(0)
    words = sorted({"".join(rng.choice(list("abcdefgqxz"), 6, p=[0.136] * 7 + [0.016] * 3)) for _ in range(200)})
    word_tags = np.eye(4)[rng.integers(0, 2, len(words))]
    word_tags[words.index("cagbbc")] = [0, 0, 1, 0]
    spellings = TagSpellings([*words, "the"], np.concatenate([word_tags, [[0, 0, 0, 50.0]]]))
    few, none = np.exp(spellings.log_probs([word])[0, 2:] - spellings.log_prior[2:])
    assert none < 2 and few < 2  # 1: letters say nothing
    slow = SlowSpellings([*words, "the"], np.concatenate([word_tags, [[0, 0, 0, 50.0]]]), 10, 0.5, 6)
    np.testing.assert_allclose(np.exp(spellings.log_probs([word])[0]), slow.probs(word), rtol=1e-9)


def test_letters_of_a_tag_tell():
    words = ("zix", "zax", "zox", "mom", "mum", "mam")
    spellings = TagSpellings(words, np.repeat([[1.0, 0], [0, 1]], 3, 0))
    assert spellings.log_probs(["zux", "mim", "qqq"]).argmax(1).tolist()[:2] == [0, 1]
    with pytest.raises(ValueError, match="order"):
        TagSpellings(words, np.ones((6, 2)), order=0)


def test_sentences_without_tags_are_no_data():
    with pytest.raises(TypeError, match="x: expected tagged sentences"):
        HMMTagger.tnt().fit(["the dog"])
