"""The picture of transitions as an input varies."""

import numpy as np
import pytest

from pplseq.report.effects import plot_effects


@pytest.mark.parametrize(("num_values", "num_states"), [(25, 3), (1, 1), (7, 5)])
def test_a_panel_a_state(tmp_path, num_values, num_states):
    pytest.importorskip("matplotlib")
    curves = np.random.default_rng(0).dirichlet(np.ones(num_states), (num_values, num_states))
    path = plot_effects(curves, np.linspace(-1, 1, num_values), "slope", tmp_path / "effects.svg")
    text = path.read_text()
    for state in range(num_states):
        assert f"from state {state}" in text
    assert f"from state {num_states}" not in text


def test_pictures_of_any_name(tmp_path):
    """Folders are made; names of columns are no formulas, and may be in a script that the font lacks."""
    pytest.importorskip("matplotlib")
    curves = np.full((3, 2, 2), 0.5)
    for feature in ("cost in $ and $\\x$", "温度"):
        path = plot_effects(curves, np.arange(3.0), feature, tmp_path / "new" / "effects.png")
        assert path.read_bytes().startswith(b"\x89PNG")
    assert plot_effects(curves, np.arange(3.0), "u", tmp_path / "plain").read_bytes().startswith(b"\x89PNG")


def test_the_order_of_values_does_not_matter(tmp_path):
    pytest.importorskip("matplotlib")
    curves = np.random.default_rng(1).dirichlet(np.ones(2), (4, 2))
    values, order = np.arange(4.0), [2, 0, 3, 1]
    paths = [
        plot_effects(curves, values, "u", tmp_path / "a.png"),
        plot_effects(curves[order], values[order], "u", tmp_path / "b.png"),
        plot_effects(curves[order], values, "u", tmp_path / "c.png"),
    ]
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second != other


@pytest.mark.parametrize(
    ("curves", "values", "message"),
    [
        (np.zeros((0, 2, 2)), np.zeros(0), "expected at least one value"),
        (np.full((2, 2, 2), np.nan), np.zeros(2), "must hold probabilities"),
        (np.full((2, 2, 2), 1.5), np.zeros(2), "must hold probabilities"),
        (np.full((2, 2, 2), 0.5), np.array([0, np.inf]), "finite numbers"),
    ],
)
def test_numbers_are_checked(tmp_path, curves, values, message):
    with pytest.raises(ValueError, match=message):
        plot_effects(curves, values, "u", tmp_path / "no.png")


def test_shapes_are_checked(tmp_path):
    with pytest.raises(ValueError, match="curves must be"):
        plot_effects(np.zeros((3, 2, 2)), np.zeros(4), "slope", tmp_path / "no.png")
    with pytest.raises(ValueError, match="curves must be"):
        plot_effects(np.zeros((3, 2, 3)), np.zeros(3), "slope", tmp_path / "no.png")
