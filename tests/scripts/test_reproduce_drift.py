"""The pieces of the scripts about streams that shift, and about mean probability."""

import numpy as np
import pytest
from support.scripts import load_script

from pplseq.models import PROPSLearner


@pytest.fixture(scope="module")
def script():
    return load_script("reproduce/personalisation_drift.py")


def test_streams_shift_in_the_middle(script):
    ids = np.array([0, 1, 2, 26, 0, 1])
    found = script.exchanged(ids, 3)
    assert (found == 0).tolist() == (ids == 0).tolist() and found[1] == found[5]
    np.testing.assert_array_equal(np.sort(script.exchanged(np.arange(27), 3)), np.arange(27))
    one, other = script.drawn(2000, 0, False), script.drawn(2000, 0, True)
    np.testing.assert_array_equal(one[:2000], other[:2000])
    shares = [np.bincount(part, minlength=30) / 2000 for part in (one[:2000], one[2000:], other[2000:])]
    assert np.abs(shares[0] - shares[1]).max() < 0.05 < 0.2 < np.abs(shares[0] - shares[2]).max()
    lines = [np.arange(3), np.arange(4), np.arange(5)]
    assert [len(line) for line in script._cut(lines, 6)] == [3, 3] and len(script._cut(lines, 7)) == 2


def test_a_source_says_again_what_it_said(script, monkeypatch):
    lines = [np.array([0, 1, 1]), np.array([2, 0])]
    probs, learner = np.array([0.5, 0.3, 0.2]), PROPSLearner([lambda prefix: np.array([0.5, 0.3, 0.2])], 3, seed=0)
    expected = []
    for line in lines:
        learner.new_sequence()
        expected += [learner.learn_one(y).log_prob for y in line.tolist()]
    found, alarms = script.learned(lines, [np.log(probs)[np.concatenate(lines)]], 3, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert alarms == 0
    monkeypatch.setattr(script, "BEHIND", 2)
    row = script.figures([(np.log([0.5, 0.5, 0.25, 0.25, 0.1]), 1), (np.log([0.5, 0.5, 0.5, 0.5, 0.1]), 0)], 2)
    assert row["before"] == [2.0, 0.0] and row["first behind"] == [3.0, round(2**0.5, 2)] and row["later"] == [10.0, 0.0]
    assert row["alarms"] == 0.5


def test_scores_of_words():
    found = load_script("reproduce/personalisation_mean_probability.py").scores(np.log([0.5, 0.125]))
    assert found == {"perplexity": 4.0, "mean_probability": 0.3125, "from_above_.2": 0.8}
