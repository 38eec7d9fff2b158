"""Learning curves of taggers, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pplseq.models.taggers.comparison import CurvePoint
from pplseq.report.canvas import INK, MUTED, RULE, new_figure, plain, save_figure

LINES = ("#1d5a7a", "#c85224", "#7a5c1d", "#4d7a1d", "#6b3d8f", "#1d1c1a", "#b03060", "#a39d92")
MARKERS = ("o", "s", "^", "x")  # for more lines than colours


def draw_learning_curves(
    curves: Mapping[str, Sequence[CurvePoint]], path: str | Path, *, dots_per_inch: int = 160
) -> Path:
    """Draw accuracy against words of training text, of all words and of unknown words side by side, a line a system.

    Args:
        curves: system -> its points (those that failed are left out).
        path: the picture; its folder is made.

    Raises:
        ImportError: without matplotlib, an extra.
    """
    figure = new_figure(11, 4.6)
    worked = {name: [p for p in points if p.result.scores is not None] for name, points in curves.items()}
    scores: dict[str, Any] = {name: points[-1].result.scores for name, points in worked.items() if points}
    last = {name: score.accuracy for name, score in scores.items()}
    ranked = sorted(last, key=lambda name: -last[name])  # in the order in which the lines end
    for left, title, share in ((0.055, "all words", "all_words"), (0.46, "unknown words", "unknown_words")):
        axes = figure.add_axes((left, 0.12, 0.36, 0.78))
        for i, name in enumerate(ranked):
            x = [point.num_tokens for point in worked[name]]
            y = [getattr(point.result.scores, share).accuracy for point in worked[name]]
            style = {"color": LINES[i % len(LINES)], "marker": MARKERS[i // len(LINES) % len(MARKERS)]}
            axes.plot(x, y, markersize=3.5, linewidth=1.2, label=plain(name), **style)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.tick_params(labelsize=8.5)
        axes.set_xlabel("words of training text", fontsize=9, color=MUTED)
        axes.set_title(f"accuracy on {title}", loc="left", fontsize=10, color=INK)
        axes.grid(color=RULE, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(colors=MUTED, labelcolor=INK, length=0)
    if ranked:
        axes.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return save_figure(figure, path, dots_per_inch)
