"""The pieces of the personalisation experiment: words, lines that begin afresh, mixtures and frozen counts."""

import numpy as np
import pytest
from support.scripts import load_script

from pplseq.models.props.source import stream_log_probs
from pplseq.sources import CallableSource, MixtureSource, OnlineNGram, UnigramCache


@pytest.fixture(scope="module")
def script():
    return load_script("reproduce/personal_streams.py")


@pytest.fixture(scope="module")
def lines():
    rng = np.random.default_rng(0)
    return [rng.choice(5, size=rng.integers(1, 9), p=[0.5, 0.2, 0.1, 0.1, 0.1]) for _ in range(40)]


def test_words(script):
    assert script.words_of("It’s 1,200 <unk> @-@ like! See https://t.co/x #MAGA &amp; don't") == [
        "it", "'s", "1,200", "<unk>", "like", "see", "don", "'t",
    ]  # fmt: skip
    assert script.words_of("#only https://t.co/abc !!") == []


def test_tweets_in_time_order_without_those_of_others(script, tmp_path, monkeypatch):
    (tmp_path / "trump_tweets").mkdir()
    rows = [
        ("3", "2014-08-01 10:00:00", "third words"),
        ("1", "2014-01-01 10:00:00", "first words"),
        ("2", "2014-07-15 00:00:00", '"@someone: quoted words"'),
        ("4", "2014-07-15 01:00:00", "second words"),
    ]
    head = "status_id\tcreated_at\tscreen_name\ttext"
    text = "\n".join([head, *("\t".join((n, when, "x", '"' + t.replace('"', '""') + '"')) for n, when, t in rows)])
    (tmp_path / "trump_tweets" / "t.tsv").write_text(text + "\n")
    monkeypatch.setattr(script, "data_folder", lambda: tmp_path)
    assert script.tweets() == ([["first", "words"]], [["second", "words"], ["third", "words"]])


def test_counts_freeze_and_contexts_go_on(script, lines):
    tokens = np.concatenate(lines)
    free = script.log_probs(lambda: UnigramCache(5), lines)
    np.testing.assert_allclose(free, stream_log_probs(UnigramCache(5), tokens))
    frozen = script.log_probs(lambda: UnigramCache(5), lines, freeze=60)
    np.testing.assert_array_equal(frozen[:60], free[:60])
    counts = np.bincount(tokens[:60], minlength=5) + 0.2
    np.testing.assert_allclose(frozen[60:], np.log(counts / 61)[tokens[60:]])
    bigrams = script.log_probs(lambda: OnlineNGram(5, 2), lines, freeze=60)
    source, position, expected = OnlineNGram(5, 2), 0, []
    for line in lines:  # counts of the first 60 words only, the context always that of the line
        source.reset()
        for y in line.tolist():
            expected.append(source.log_prob_of(y))
            if position < 60:
                source.observe(y)
            else:
                source._context.append(y)
            position += 1
    np.testing.assert_allclose(bigrams, expected)


def test_mixtures_are_those_of_the_library(script, lines, monkeypatch):
    monkeypatch.setattr(script, "LEARN", 50)
    tokens = np.concatenate(lines)
    probs = [np.array([0.5, 0.2, 0.1, 0.1, 0.1]), np.full(5, 0.2)]
    streams = [np.log(p)[tokens] for p in probs]
    sources = [CallableSource(lambda prefix, p=p: p, 5) for p in probs]
    expected = stream_log_probs(MixtureSource(sources, learn=True), tokens)
    np.testing.assert_allclose(script.mixture(streams), expected)
    np.testing.assert_allclose(
        script.mixture(streams, [0.3, 0.7]), np.log(0.3 * np.exp(streams[0]) + 0.7 * np.exp(streams[1]))
    )
    frozen = script.mixture(streams, frozen=True)
    np.testing.assert_allclose(frozen[:51], expected[:51])
    weights = np.linalg.lstsq(np.exp(np.stack(streams, 1))[50:], np.exp(frozen[50:]), rcond=None)[0]
    assert weights.sum() == pytest.approx(1) and weights[0] > 0.5


def test_props_goes_by_lines_and_freezes(script, lines, monkeypatch):
    monkeypatch.setattr(script, "LEARN", 60)
    monkeypatch.setattr(script, "SCORE", 60)
    monkeypatch.setattr(script, "WINDOW", 50)
    streams = [np.log(np.full(5, 0.2))[np.concatenate(lines)]]
    options = dict(num_perturbations=2, num_words=5, seed=0, exponent=0.8)
    free, frozen = (script.props(streams, lines, frozen=f, guard=0, **options) for f in (False, True))
    np.testing.assert_array_equal(free[:61], frozen[:61])
    assert np.abs(free[61:] - frozen[61:]).max() > 1e-3
    found = script.figures(np.stack([free, free]), streams[0])
    assert found["spread"] == 0 and 1 < found["perplexity"] < 5 and 0.2 < found["mean_probability"] < 1
    assert script.figures(free, free)["perplexity"] < script.figures(streams[0], free)["perplexity"] == 5.0
    gains = np.cumsum(free - streams[0])
    assert found["gain_of_first_20"] == round(float(gains[19]), 2)
    assert found["worst_window"] == round(min((free - streams[0])[t : t + 50].sum() for t in range(len(free) - 49)), 2)
    alone = script.props([], lines, num_perturbations=3, num_words=5, seed=0)
    assert np.isfinite(alone).all() and len(alone) == sum(map(len, lines))


def test_props_stand_under_the_librarys_guard(script, lines):
    """As a learner of the library says them, line by line."""
    from pplseq.models import PROPSLearner

    probs = np.array([0.5, 0.2, 0.1, 0.1, 0.1])
    learner, expected = PROPSLearner([lambda prefix: probs], 5, seed=0), []
    for line in lines:
        learner.new_sequence()
        expected += [learner.learn_one(y).log_prob for y in line.tolist()]
    streams = [np.log(probs)[np.concatenate(lines)]]
    np.testing.assert_allclose(script.props(streams, lines, num_perturbations=2, num_words=5, seed=0), expected, rtol=1e-9)
