"""Scores of tags against counts by hand, scikit-learn and scipy."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers import scores as tag_scores
from pplseq.models.taggers.scores import bootstrap_interval, difference_interval, mcnemar, score_tags, training_words

GOLD = [
    TaggedSentence(("the", "dog", "barks"), ("DT", "NN", "VB")),
    TaggedSentence((), ()),
    TaggedSentence(("the", "barks", "xyzzy", "?"), ("DT", "NN", "FW", None)),
]
PREDICTED = [("DT", "NN", "VB"), (), ("DT", "VB", "NN", "VB")]
TRAINING = training_words(
    [TaggedSentence(("the", "dog", "barks"), ("DT", "NN", "VB")), TaggedSentence(("barks", "and"), ("NN", None))]
)


@pytest.fixture
def scores():
    return score_tags(GOLD, PREDICTED, TRAINING)


def random_scores(seed=0, num_sentences=30, accuracy=0.7):
    """(gold, predicted) of a random text; the gold tags are the same for every accuracy."""
    random = np.random.default_rng(seed)
    gold, predicted = [], []
    for length in random.integers(0, 9, num_sentences):
        tags = tuple("ABCD"[k] for k in random.choice(4, length, p=[0.5, 0.3, 0.15, 0.05]))
        other = tuple("ABCE"[k] for k in random.integers(0, 4, length))
        keep = random.random(length) < accuracy
        words = tuple(f"w{k}" for k in random.integers(0, 20, length))
        gold.append(TaggedSentence(words, tags))
        predicted.append(tuple(a if k else b for a, b, k in zip(tags, other, keep, strict=True)))
    return gold, predicted


def test_training_words():
    assert TRAINING.known == {"the", "dog", "barks", "and"} and TRAINING.ambiguous == {"barks"}


def test_shares(scores):
    assert scores.all_words == (4, 6) and scores.accuracy == 4 / 6
    assert (scores.known_words, scores.unknown_words, scores.ambiguous_words) == ((4, 5), (0, 1), (1, 2))
    assert scores.sentences == (1, 2)  # the empty one counts neither way
    assert (scores.num_tokens, scores.num_unlabelled) == (6, 1)
    bare = score_tags(GOLD, PREDICTED)
    assert bare.known_words is bare.unknown_words is bare.ambiguous_words is None and bare.accuracy == 4 / 6


def test_tags_one_by_one(scores):
    assert scores.tags == ("DT", "FW", "NN", "VB")
    assert scores.confusion.tolist() == [[2, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]]
    found = {score.tag: score for score in scores.per_tag()}
    assert found["NN"][1:] == (0.5, 0.5, 0.5, 2, 2)
    assert found["VB"][1:] == (0.5, 1.0, 2 / 3, 1, 2)
    assert math.isnan(found["FW"].precision) and found["FW"][2:] == (0.0, 0.0, 1, 0)  # a tag that is never predicted
    assert [score.num_gold for score in scores.per_tag()] == [2, 2, 1, 1]
    assert scores.macro_f1 == pytest.approx((1 + 0.5 + 2 / 3 + 0) / 4)


def test_confusion_pairs(scores):
    assert scores.confusion_pairs() == [("FW", "NN", 1, (("xyzzy", 1),)), ("NN", "VB", 1, (("barks", 1),))]
    gold, predicted = random_scores()
    pairs = Counter(
        (right, tag)
        for sentence, tags in zip(gold, predicted, strict=True)
        for right, tag in zip(sentence.tags, tags, strict=True)
        if right != tag
    )
    found = score_tags(gold, predicted).confusion_pairs(100)
    assert {(pair.gold, pair.predicted): pair.count for pair in found} == pairs
    assert [pair.count for pair in found] == sorted(pairs.values(), reverse=True)
    assert all(len(pair.words) <= 3 and pair.words[0][1] >= pair.words[-1][1] for pair in found)
    assert len(score_tags(gold, predicted).confusion_pairs(2)) == 2


def test_against_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    gold, predicted = random_scores()
    scores = score_tags(gold, predicted)
    right = [tag for sentence in gold for tag in sentence.tags]
    given = [tag for tags in predicted for tag in tags]
    assert scores.accuracy == metrics.accuracy_score(right, given)
    np.testing.assert_array_equal(scores.confusion, metrics.confusion_matrix(right, given, labels=list(scores.tags)))
    table = metrics.precision_recall_fscore_support(right, given, labels=list(scores.tags), zero_division=np.nan)
    for score in scores.per_tag():
        k = scores.tags.index(score.tag)
        np.testing.assert_allclose(score[1:5], [column[k] for column in table])


def test_mcnemar():
    gold, better = random_scores(accuracy=0.8)
    worse = [tuple("A" for _ in tags) for tags in better]
    first, second = score_tags(gold, better), score_tags(gold, worse)
    found = mcnemar(first, second)
    assert sum(found[:4]) == first.num_tokens
    assert found.num_first - found.num_second == first.all_words.num_correct - second.all_words.num_correct
    assert mcnemar(second, first) == (found[0], found[2], found[1], found[3], found[4])
    assert mcnemar(first, first).p_value == 1.0
    assert difference_interval(first, first) == (0.0, 0.0)
    low, high = difference_interval(first, second)
    assert low < first.accuracy - second.accuracy < high
    assert difference_interval(second, first) == pytest.approx((-high, -low))
    for wrong in (score_tags(gold[1:], better[1:]), score_tags([*gold[:-1], GOLD[0]], [*better[:-1], PREDICTED[0]])):
        with pytest.raises(ValueError, match="expected scores of the same text"):
            mcnemar(first, wrong)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (5, 5), (6, 5), (3, 14), (400, 517), (0, 60)])
def test_exact_binomial(first, second):
    num = first + second
    tail = sum(math.comb(num, i) for i in range(min(first, second) + 1))  # of 2^num
    exact = min(1.0, 2 * tail / 2**num)
    assert tag_scores._sign_test(first, second) == pytest.approx(exact, rel=1e-9)
    if num:
        stats = pytest.importorskip("scipy.stats")
        assert exact == pytest.approx(stats.binomtest(first, num).pvalue, rel=1e-9)


def test_bootstrap(monkeypatch):
    values, weights = np.array([3, 1, 4, 0, 5]), np.array([4, 2, 4, 1, 9])
    random = np.random.default_rng(1)
    ratios = []
    for _ in range(4000):  # a readable twin
        drawn = random.integers(0, 5, 5)
        ratios.append(values[drawn].sum() / weights[drawn].sum())
    found = bootstrap_interval(values, weights, level=0.8, num_resamples=4000)
    np.testing.assert_allclose(found, np.quantile(ratios, [0.1, 0.9]), atol=0.02)
    monkeypatch.setattr(tag_scores, "RESAMPLED_CELLS", 7)  # in parts
    np.testing.assert_allclose(bootstrap_interval(values, weights, level=0.8, num_resamples=4000), found, atol=0.02)
    scores = score_tags(*random_scores())
    low, high = scores.interval()
    assert low < scores.accuracy < high and scores.interval() == (low, high)
    with pytest.raises(ValueError, match="level: expected between 0 and 1"):
        scores.interval(95)


def test_summary_is_json(scores):
    summary = json.loads(json.dumps(scores.summary(), allow_nan=False))
    assert summary["known"] == {"accuracy": 0.8, "correct": 4, "num": 5}
    assert summary["tags"]["FW"]["precision"] is None and summary["tags"]["VB"]["recall"] == 1.0
    assert "known" not in score_tags(GOLD, PREDICTED).summary()


def test_refusals():
    with pytest.raises(ValueError, match="predicted: expected 3 sentences as in gold, got 1"):
        score_tags(GOLD, PREDICTED[:1])
    with pytest.raises(ValueError, match="predicted: expected 3 tags in sentence 0, got 2"):
        score_tags(GOLD, [("DT", "NN"), (), PREDICTED[2]])
    with pytest.raises(ValueError, match="gold: expected at least one word with a tag"):
        score_tags([TaggedSentence((), ()), TaggedSentence(("a",), (None,))], [(), ("X",)])
    assert score_tags([TaggedSentence(("a",), ("X",))], [(None,)]).accuracy == 0.0


def test_long_sentence():
    gold = [TaggedSentence(("w",) * 5000, ("A", "B") * 2500)]
    assert score_tags(gold, [("A",) * 5000]).all_words == (2500, 5000)
