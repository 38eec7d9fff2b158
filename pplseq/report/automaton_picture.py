"""A picture of an automaton as a PNG file: states on a circle, the start on the left, arrows with their symbols."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pplseq.models.automata.automaton import LABELS, Automaton
from pplseq.report.canvas import ACCENT, INK, MUTED, PAPER, new_figure, plain, save_figure

MAX_STATES = 40
RADIUS = 0.3  # of a state's circle, inches
POINTS_PER_INCH = 72


def draw_automaton(automaton: Automaton, path: str | Path, *, title: str = "") -> Path:
    """Draw the states and transitions; accepting states have two circles, states of other labels their names.

    Args:
        automaton: of at most 40 states; write larger ones with `to_dot` for Graphviz.
        path: the picture; its folder is made.

    Raises:
        ImportError: without matplotlib, an extra.
        ValueError: too many states.
    """
    if automaton.num_states > MAX_STATES:
        raise ValueError(f"automaton: expected at most {MAX_STATES} states, got {automaton.num_states}; use to_dot()")
    number = automaton.num_states
    circle = 0.0 if number == 1 else max(1.1, 0.62 / np.sin(np.pi / number))
    half = circle + 1.25
    figure = new_figure(2 * half, 2 * half + 0.3 * bool(title))
    axes = figure.add_axes((0, 0, 1, 2 * half / figure.get_figheight()))
    axes.set_xlim(-half, half)
    axes.set_ylim(-half, half)
    axes.set_axis_off()
    # the start is leftmost, the others follow clockwise
    order = (np.arange(number) - automaton.start) % number
    angles = np.pi - 2 * np.pi * order / number
    places = circle * np.column_stack([np.cos(angles), np.sin(angles)])
    edges = automaton.edges()
    for (state, following), symbols in edges.items():
        text = ", ".join(symbols)
        if state == following:
            # the start's arrow comes from the left, so its own loop is above
            _draw_loop(axes, places[state], np.pi / 2 + 0.3 if state == automaton.start else angles[state], text)
        else:
            _draw_arrow(axes, places[state], places[following], text, bent=(following, state) in edges)
    _start_arrow(axes, places[automaton.start])
    from matplotlib.patches import Circle

    for state, place in enumerate(places):
        accepting = automaton.labels == LABELS and automaton.outputs[state]
        axes.add_patch(Circle(place, RADIUS, facecolor=PAPER, edgecolor=INK, linewidth=1.3, zorder=3))
        if accepting:
            axes.add_patch(Circle(place, RADIUS * 0.82, facecolor=PAPER, edgecolor=INK, linewidth=1.0, zorder=3))
        text = str(state)
        if automaton.labels != LABELS:
            text += f"\n{plain(str(automaton.labels[automaton.outputs[state]]), 8)}"
        axes.text(*place, text, ha="center", va="center", fontsize=9, color=INK, zorder=4, parse_math=False)
    if title:
        figure.text(0.03, 0.975, title, fontsize=10, color=INK, va="top", parse_math=False)
    return save_figure(figure, path)


def _draw_arrow(axes, start, end, text: str, *, bent: bool) -> None:
    """From one state to another; two that go both ways bend away from each other."""
    from matplotlib.patches import FancyArrowPatch

    bend = 0.22 if bent else 0.08
    along = (end - start) / np.linalg.norm(end - start)
    aside = np.array([along[1], -along[0]])
    margin = RADIUS * POINTS_PER_INCH
    axes.add_patch(
        FancyArrowPatch(
            start, end, connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>", mutation_scale=11, shrinkA=margin,
            shrinkB=margin, color=MUTED, linewidth=1.0, zorder=2,
        )
    )  # fmt: skip
    middle = (start + end) / 2 + aside * (bend / 2 * np.linalg.norm(end - start) + 0.13)
    _label(axes, middle, text)


def _draw_loop(axes, place, angle: float, text: str) -> None:
    """From a state to itself, on the side away from the others."""
    from matplotlib.patches import FancyArrowPatch

    out = np.array([np.cos(angle), np.sin(angle)])
    aside = np.array([-out[1], out[0]])
    start, end = place + RADIUS * _unit(out + 0.6 * aside), place + RADIUS * _unit(out - 0.6 * aside)
    axes.add_patch(
        FancyArrowPatch(
            start, end, connectionstyle="arc3,rad=-1.6", arrowstyle="-|>", mutation_scale=11, shrinkA=0, shrinkB=0,
            color=MUTED, linewidth=1.0, zorder=2,
        )
    )  # fmt: skip
    _label(axes, place + out * (RADIUS + 0.42), text)


def _start_arrow(axes, place) -> None:
    axes.annotate(
        "", xy=place - (RADIUS, 0), xytext=place - (RADIUS + 0.45, 0),
        arrowprops={"arrowstyle": "-|>", "color": ACCENT, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip


def _label(axes, place, text: str) -> None:
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
    axes.text(
        *place, plain(text, 16), ha="center", va="center", fontsize=8.5, color=ACCENT, bbox=box, zorder=2.5, parse_math=False
    )


def _unit(vector):
    return vector / np.linalg.norm(vector)
