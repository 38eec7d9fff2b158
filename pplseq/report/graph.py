"""States on a circle with arrows between them, on axes of matplotlib: automata and transition matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pplseq.models.automata.automaton import LABELS, Automaton
from pplseq.report.canvas import ACCENT, INK, MUTED, PAPER, new_figure, plain, save_figure

MAX_STATES = 40
RADIUS = 0.3  # of a state's circle, inches
POINTS_PER_INCH = 72


def half_width(number: int) -> float:
    """Half the side, in inches, of the square that so many states need."""
    return (0.0 if number == 1 else max(1.1, 0.62 / np.sin(np.pi / number))) + 1.25


def draw_graph(
    axes: Any, edges: Mapping[tuple[int, int], str], labels: Sequence[str], *, start: int | None = None,
    double: Sequence[bool] = (), widths: Mapping[tuple[int, int], float] | None = None,
) -> None:  # fmt: skip
    """Draws states and the arrows between them.

    Args:
        axes: of matplotlib; squares of :func:`half_width` show it at its true size.
        edges: text of the arrow of each (from, to). labels: of the states. start: the leftmost state, marked by an arrow;
            None marks none and puts state 0 there. double: states with two circles. widths: of arrows, in points.
    """
    number = len(labels)
    half, first = half_width(number), start or 0
    axes.set_xlim(-half, half)
    axes.set_ylim(-half, half)
    axes.set_aspect("equal")
    axes.set_axis_off()
    # the first is leftmost, the others follow clockwise
    angles = np.pi - 2 * np.pi * ((np.arange(number) - first) % number) / number
    places = (half - 1.25) * np.column_stack([np.cos(angles), np.sin(angles)])
    for (state, following), text in edges.items():
        width = 1.0 if widths is None else widths[state, following]
        if state == following:
            # the start's arrow comes from the left, so its own loop is above
            _draw_loop(axes, places[state], np.pi / 2 + 0.3 if state == start else angles[state], text, width)
        else:
            _draw_arrow(axes, places[state], places[following], text, width, bent=(following, state) in edges)
    if start is not None:
        _start_arrow(axes, places[start])
    from matplotlib.patches import Circle

    for state, (place, label) in enumerate(zip(places, labels, strict=True)):
        axes.add_patch(Circle(place, RADIUS, facecolor=PAPER, edgecolor=INK, linewidth=1.3, zorder=3))
        if len(double) and double[state]:
            axes.add_patch(Circle(place, RADIUS * 0.82, facecolor=PAPER, edgecolor=INK, linewidth=1.0, zorder=3))
        axes.text(*place, label, ha="center", va="center", fontsize=9, color=INK, zorder=4, parse_math=False)


def _draw_arrow(axes, start, end, text: str, width: float, *, bent: bool) -> None:
    """From one state to another; two that go both ways bend away from each other."""
    from matplotlib.patches import FancyArrowPatch

    bend = 0.22 if bent else 0.08
    along = (end - start) / np.linalg.norm(end - start)
    aside = np.array([along[1], -along[0]])
    margin = RADIUS * POINTS_PER_INCH
    axes.add_patch(
        FancyArrowPatch(
            start, end, connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>", mutation_scale=11, shrinkA=margin,
            shrinkB=margin, color=MUTED, linewidth=width, zorder=2,
        )
    )  # fmt: skip
    middle = (start + end) / 2 + aside * (bend / 2 * np.linalg.norm(end - start) + 0.13)
    _label(axes, middle, text)


def _draw_loop(axes, place, angle: float, text: str, width: float) -> None:
    """From a state to itself, on the side away from the others."""
    from matplotlib.patches import FancyArrowPatch

    out = np.array([np.cos(angle), np.sin(angle)])
    aside = np.array([-out[1], out[0]])
    start, end = place + RADIUS * _unit(out + 0.6 * aside), place + RADIUS * _unit(out - 0.6 * aside)
    axes.add_patch(
        FancyArrowPatch(
            start, end, connectionstyle="arc3,rad=-1.6", arrowstyle="-|>", mutation_scale=11, shrinkA=0, shrinkB=0,
            color=MUTED, linewidth=width, zorder=2,
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


# ---------------------------------------------------------------- automata
def draw_automaton(automaton: Automaton, path: str | Path, *, title: str = "") -> Path:
    """Draw the states and transitions; accepting ones have two circles; labels other than accept and reject are written.

    Args:
        automaton: of at most 40 states; write larger ones with `to_dot` for Graphviz.
        path: the picture; its folder is made.

    Raises:
        ImportError: without matplotlib, an extra.
        ValueError: too many states.
    """
    side = 2 * half_width(_check_size(automaton))
    figure = new_figure(side, side + 0.3 * bool(title))
    draw_automaton_on(figure.add_axes((0, 0, 1, side / figure.get_figheight())), automaton)
    if title:
        figure.text(0.03, 0.975, title, fontsize=10, color=INK, va="top", parse_math=False)
    return save_figure(figure, path)


def draw_automaton_on(axes: Any, automaton: Automaton) -> None:
    """The same on axes of matplotlib."""
    states = range(_check_size(automaton))
    names = [str(state) for state in states]
    labelled = automaton.labels != LABELS
    if labelled:
        names = [f"{state}\n{plain(str(automaton.labels[automaton.outputs[state]]), 8)}" for state in states]
    accepting = [automaton.labels[automaton.outputs[state]] == automaton.pos_label for state in states]
    edges = {edge: ", ".join(symbols) for edge, symbols in automaton.edges().items()}
    draw_graph(axes, edges, names, start=automaton.start, double=accepting)


def _check_size(automaton: Automaton) -> int:
    if automaton.num_states > MAX_STATES:
        raise ValueError(f"automaton: expected at most {MAX_STATES} states, got {automaton.num_states}; use to_dot()")
    return automaton.num_states
