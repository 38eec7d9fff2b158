"""Curves from records, and the axes they are drawn on."""

import math

import numpy as np
import pytest
from support.report_models import records

from pplseq.report.drawing import curve_figure, histogram_figure, labelled_rows, linear_ticks, log_ticks, map_figure
from pplseq.report.learning import Curve, read_learning


def test_curves():
    learning = read_learning(records())
    assert learning.train.steps.tolist() == [20, 40, 60] and learning.train.nats.tolist() == [3.0, 2.5, 2.0]
    (valid,) = learning.validation
    assert valid.label == "carried" and valid.best == 1 and valid.perplexity[1] == pytest.approx(math.exp(2.25))
    assert (learning.steps, learning.epochs, learning.seconds) == (60, 1, 6.0)
    assert learning.rate_drops == (60,) and learning.tokens_per_second == 1001.0


def test_both_protocols_have_their_own_curve():
    other = [r | {"protocol": "sentence", "nats_per_token": 2.0} for r in records() if r["kind"] == "validation"]
    learning = read_learning([*records(), *other])
    assert [curve.label for curve in learning.validation] == ["carried", "sentence"]
    drawn = curve_figure(learning)
    assert "valid., carried" in drawn and "valid., sentence 7.39" in drawn


@pytest.mark.parametrize("lines", [[], [{}], [{"step": 1}], [3], [{"step": 1, "nats_per_token": math.nan}]])
def test_nothing_to_draw(lines):
    assert read_learning(lines) is None


def test_records_that_cannot_be_drawn_are_left_out():
    odd = [(70, math.inf), (None, 1.0), (80, 800.0), (90, "3"), (100, True)]
    learning = read_learning([*records(), *({"step": step, "nats_per_token": nats} for step, nats in odd)])
    assert learning.steps == 60 and len(learning.train.steps) == 3


def test_few_records():
    learning = read_learning([{"step": 5, "nats_per_token": 2.0}])
    assert learning.validation == () and learning.epochs is None and learning.tokens_per_second is None
    assert "train-dot" in curve_figure(learning)
    only_valid = read_learning([{"step": 0, "nats_per_token": 2.0, "kind": "validation"}])
    assert only_valid.train is None and only_valid.validation[0].label == "validation"
    assert "nan" not in curve_figure(only_valid) and "best 7.39" in curve_figure(only_valid)


def test_a_long_curve_is_thinned():
    curve = Curve("training", np.arange(5000), np.linspace(5, 1, 5000))
    thin = curve.thinned(100)
    assert len(thin.steps) == 100 and thin.nats.mean() == pytest.approx(curve.nats.mean())
    assert curve.thinned(5000) is curve


@pytest.mark.parametrize("low, high", [(1.01, 1.03), (84, 90), (70, 340), (3, 1e6), (99.9, 1000.1)])
def test_ticks_of_a_logarithmic_axis(low, high):
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 14 and all(low <= tick <= high for tick in ticks) and ticks == sorted(set(ticks))


@pytest.mark.parametrize("high", [0.003, 1, 7, 2820, 1e6])
def test_ticks_of_a_linear_axis(high):
    ticks = linear_ticks(high)
    assert ticks[0] == 0 and 3 <= len(ticks) <= 8 and ticks[-1] <= high * 1.001
    assert linear_ticks(0.0) == [0.0]


def test_labels_keep_their_distance():
    shares = np.array([0.1, 0.3, 0.2, 0.05, 0.35])
    assert labelled_rows(shares, 1) == {0, 1, 2, 3, 4}
    assert labelled_rows(shares, 2) == {4, 1}


def test_a_map_draws_each_cell_once():
    probs = np.array([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    drawn = map_figure(probs, ["a", "b", "c"], [0.5, 0.5, 0.0], ["x", "y", "z"])
    assert drawn.count('class="heat" fill-opacity') == 2 and 'fill-opacity="1"' in drawn
    assert "nan" not in map_figure(np.zeros((1, 1)), ["a"], [0.0], ["x"])


@pytest.mark.parametrize("bits", [[0.0], [0.0, 40.0], [1.0] * 5])
def test_a_histogram_takes_any_surprisals(bits):
    drawn = histogram_figure(np.array(bits))
    assert "nan" not in drawn and "median" in drawn
