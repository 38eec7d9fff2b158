"""The picture of an automaton: written, of several shapes, and refused where it would be unreadable."""

import sys

import numpy as np
import pytest

from pplseq.models.automata.automaton import Automaton
from pplseq.report.graph import draw_automaton


@pytest.fixture(autouse=True)
def matplotlib():
    pytest.importorskip("matplotlib")


def pixels(path):
    from matplotlib.image import imread

    return imread(path)[..., :3]


@pytest.mark.parametrize("pattern", [".*", "1*", "(0|11)*(1(00|1)*)?"])
def test_picture_is_drawn(pattern, tmp_path):
    path = draw_automaton(Automaton.from_regex(pattern, "01"), tmp_path / "new" / "a.png", title="$a language_")
    image = pixels(path)
    assert (image.min(-1) < 0.5).mean() > 0.002  # ink
    frame = np.concatenate([image[:3].reshape(-1), image[-3:].reshape(-1), image[:, -3:].reshape(-1)])
    assert (frame == 1.0).all()  # nothing is cut off


def test_labels_and_long_symbols(tmp_path):
    moore = Automaton(("a long symbol", "$x_"), [[0, 1], [1, 0]], [0, 2], labels=("one", "two", "quite a long one"))
    assert (pixels(draw_automaton(moore, tmp_path / "a.png")).min(-1) < 0.5).any()


def test_too_many_states(tmp_path):
    line = Automaton(("0",), [[min(k + 1, 40)] for k in range(41)], [0] * 40 + [1])
    with pytest.raises(ValueError, match="automaton: expected at most 40 states, got 41"):
        draw_automaton(line, tmp_path / "a.png")


def test_missing_matplotlib_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pplseq\[plot\]"):
        draw_automaton(Automaton.from_regex("1*"), tmp_path / "a.png")
