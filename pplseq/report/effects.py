"""How a model's transitions move with one of its inputs: a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pplseq.report.canvas import new_figure, save_figure


def plot_effects(curves: np.ndarray, values: np.ndarray, feature: str, path: str | Path) -> Path:
    """Draw transition probabilities as one input varies, a panel for each state to come from.

    Args:
        curves: (N, Z, Z) p(z_t = to | z_{t-1} = from, input), [value, from, to], as `IOHMM.effect_curves` gives.
        values: (N,) of the input. feature: its name.
        path: of the picture; its ending says the format, PNG where it has none. Its folder is made.

    Returns:
        The path.

    Raises:
        ValueError: for shapes that do not fit, no values, or numbers that are no probabilities.
        ImportError: without matplotlib, an extra.
    """
    curves, values = check_curves(curves, values)
    num_states = curves.shape[1]
    across = min(num_states, 4)
    down = -(-num_states // across)
    figure = new_figure(2.6 * across + 0.8, 2.2 * down + 0.4, layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for state, axes in enumerate(panels):
        if state >= num_states:
            axes.set_axis_off()
            continue
        draw_curves(axes, curves, values, feature, state)
    panels[0].set_ylabel("transition probability")
    panels[0].legend(fontsize=8)
    return save_figure(figure, path, 110)


def draw_curves(axes: Any, curves: np.ndarray, values: np.ndarray, feature: str, state: int) -> None:
    """The moves out of one state, a line for each state to go to, on axes of matplotlib."""
    for to in range(curves.shape[1]):
        axes.plot(values, curves[:, state, to], label=f"to {to}", marker="." if len(values) == 1 else None)
    axes.set(title=f"from state {state}", ylim=(-0.03, 1.03))
    axes.set_xlabel(feature, parse_math=False)  # a column may be named with $ or \


def check_curves(curves: Any, values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays in the order of the values; raises ValueError for what cannot be drawn."""
    curves, values = np.asarray(curves), np.asarray(values)
    if curves.ndim != 3 or curves.shape[1] != curves.shape[2] or values.shape != curves.shape[:1]:
        raise ValueError(f"curves must be (N, Z, Z) with (N,) values, got shapes {curves.shape} and {values.shape}")
    if not len(values):
        raise ValueError("values: expected at least one value of the input, got none")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite numbers")
    if not ((curves >= -1e-6) & (curves <= 1 + 1e-6)).all():
        raise ValueError("curves must hold probabilities, 0 to 1, such as IOHMM.effect_curves(part='transition') gives")
    order = np.argsort(values, kind="stable")  # so that a line goes from left to right
    return curves[order], values[order]
