"""How a model's transitions move with one of its inputs: a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def plot_effects(curves: np.ndarray, values: np.ndarray, feature: str, path: str | Path) -> Path:
    """Draw transition probabilities as one input varies, a panel for each state to come from.

    Args:
        curves: (N, Z, Z) p(z_t = to | z_{t-1} = from, input), [value, from, to], as `IOHMM.effect_curves` gives.
        values: (N,) of the input. feature: its name.
        path: of the picture; its ending says the format.

    Returns:
        The path.

    Raises:
        ValueError: for shapes that do not fit.
        ImportError: without matplotlib, an extra.
    """
    curves, values = np.asarray(curves), np.asarray(values)
    if curves.ndim != 3 or curves.shape[1] != curves.shape[2] or values.shape != curves.shape[:1]:
        raise ValueError(f"curves must be (N, Z, Z) with (N,) values, got shapes {curves.shape} and {values.shape}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError('the picture needs matplotlib: pip install "pplseq[plot]"') from None
    num_states = curves.shape[1]
    across = min(num_states, 4)
    down = -(-num_states // across)
    figure = Figure(figsize=(2.6 * across + 0.8, 2.2 * down + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for state, axes in enumerate(panels):
        if state >= num_states:
            axes.set_axis_off()
            continue
        for to in range(num_states):
            axes.plot(values, curves[:, state, to], label=f"to {to}", marker="." if len(values) == 1 else None)
        axes.set(title=f"from state {state}", ylim=(-0.03, 1.03), xlabel=feature)
    panels[0].set_ylabel("transition probability")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    return Path(path)
