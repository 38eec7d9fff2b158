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


def test_shapes_are_checked(tmp_path):
    with pytest.raises(ValueError, match="curves must be"):
        plot_effects(np.zeros((3, 2, 2)), np.zeros(4), "slope", tmp_path / "no.png")
    with pytest.raises(ValueError, match="curves must be"):
        plot_effects(np.zeros((3, 2, 3)), np.zeros(3), "slope", tmp_path / "no.png")
