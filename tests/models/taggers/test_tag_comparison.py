"""Systems side by side, with one that is not installed and one that fails; a learning curve."""

from collections import Counter

import pytest

from pplseq.data.columns import TaggedSentence
from pplseq.models.taggers.comparison import compare_taggers, learning_curve

TRAIN = [TaggedSentence((f"w{i % 7}", f"w{i % 11}"), ("A" if i % 7 < 4 else "B", "B")) for i in range(20)]
TEST = [TaggedSentence(("w1", "w9"), ("A", None)), TaggedSentence((), ()), TaggedSentence(("new", "w5"), ("A", "B"))]


class MostFrequent:
    """Tags all words alike."""

    name = "most-frequent"

    def fit(self, sentences, validation=None):
        self.fitted, self.validation = list(sentences), validation
        self.best = Counter(tag for sentence in sentences for tag in sentence.tags).most_common(1)[0][0]
        return self

    def tag(self, sentences):
        return [(self.best,) * len(words) for words in sentences]


def absent():
    raise ImportError('needs nltk: pip install "pplseq[tagging]"')


class Broken(MostFrequent):
    def tag(self, sentences):
        raise KeyError("x")


def test_a_system_that_fails_does_not_lose_the_others():
    seen = []
    makers = {"absent": absent, "first": MostFrequent, "broken": Broken, "second": MostFrequent}
    results = compare_taggers(makers, TRAIN, TEST, on_start=seen.append, on_result=lambda r: seen.append(r.name))
    assert seen == ["absent", "absent", "first", "first", "broken", "broken", "second", "second"]
    assert [(r.missing, r.scores is None) for r in results] == [(True, True), (False, False), (False, True), (False, False)]
    assert results[0].error == 'needs nltk: pip install "pplseq[tagging]"' and results[2].error == "KeyError: 'x'"
    assert results[0].tokens_per_second == 0.0
    scores = results[1].scores
    assert (scores.all_words, scores.known_words, scores.unknown_words) == ((1, 3), (1, 2), (0, 1))
    assert results[1].tokens_per_second == pytest.approx(4 / results[1].tag_seconds) and results[1].train_seconds > 0


def test_learning_curve():
    made = []

    def make():
        made.append(MostFrequent())
        return made[-1]

    points = learning_curve(make, TRAIN, TEST, (1.0, 0.01, 0.5), validation=TEST, on_point=made.append)
    taggers = made[::2]
    assert made[1::2] == points and all(tagger.validation is TEST for tagger in taggers)
    assert [(p.num_sentences, p.num_tokens) for p in points] == [(1, 2), (10, 20), (20, 40)]
    assert taggers[2].fitted == TRAIN
    parts = [Counter(tagger.fitted) for tagger in taggers]
    assert parts[0] <= parts[1] <= parts[2]
    places = [TRAIN.index(sentence) for sentence in taggers[1].fitted]
    assert places == sorted(places) and places != list(range(10))
    assert points[0].result.scores.known_words.num <= points[2].result.scores.known_words.num == 2
    for wrong in ((), (0.0,), (0.5, 1.5)):
        with pytest.raises(ValueError, match="fractions: expected numbers above 0 and at most 1"):
            learning_curve(make, TRAIN, TEST, wrong)
