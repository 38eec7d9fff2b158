"""The script on the consistency of PROPS, with little data."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "reproduce"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "bench"))
    import props_consistency

    yield props_consistency
    sys.modules.pop("props_consistency")


def test_the_divergence_falls_with_the_length_of_the_stream(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "LENGTHS", [50, 800])
    monkeypatch.setattr(sys, "argv", ["x", "--sizes", "12", "--repetitions", "1", "--holdout", "2000", "--no-record"])
    script.main()
    assert "W =   12" in capsys.readouterr().out
    runs = [script.repetition(12, seed, 2000, {"exponent": 0.6, "smoothing": 0.05}) for seed in range(2)]
    for name in script.ESTIMATES:
        assert np.mean([run[800][name]["D"] for run in runs]) < 0.6 * np.mean([run[50][name]["D"] for run in runs])


def test_a_model_does_not_diverge_from_itself(script):
    random = np.random.default_rng(0)
    truth = script.true_model(9, random)
    there, error = script.divergence(truth, truth, script.holdout(truth, 400, random))
    assert there == 0.0 and error == 0.0
    other = script.true_model(9, random)
    there, error = script.divergence(truth, other, script.holdout(truth, 4000, random))
    assert there > 3 * error


def test_words_are_drawn_from_the_model(script):
    random = np.random.default_rng(0)
    truth = script.true_model(4, random)
    truth.set_parameters(transition=np.tile([0.0, 0.5, 0.5], (3, 1)), initial=[0.0, 0.5, 0.5])
    words, source = script.draw(truth, 50, 200, random)
    assert source.shape == (50, 200, 4)
    np.testing.assert_allclose(
        np.bincount(words.ravel(), minlength=4) / words.size, truth.emission.numpy().mean(0), atol=0.02
    )
