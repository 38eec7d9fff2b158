"""A picture of an automaton as a file: states on a circle, the start on the left, arrows with their symbols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pplseq.models.automata.automaton import LABELS, Automaton
from pplseq.report.canvas import INK, new_figure, plain, save_figure
from pplseq.report.graph import MAX_STATES, draw_graph, half_width


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
