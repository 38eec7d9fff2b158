"""Pictures of how well taggers do: the confusion matrix and learning curves, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pplseq.models.taggers.comparison import CurvePoint
from pplseq.models.taggers.scores import TagScores
from pplseq.report.canvas import INK, MUTED, RULE, colour_map, new_figure, plain, save_figure

LINES = ("#1d5a7a", "#c85224", "#7a5c1d", "#4d7a1d", "#6b3d8f", "#1d1c1a", "#b03060", "#a39d92")
MARKERS = ("o", "s", "^", "x")  # for more lines than colours
MAX_TAGS = 60  # rows of the matrix
MAX_COUNTED = 30  # tags up to which counts are written into the cells


def draw_confusion(scores: TagScores, path: str | Path, *, title: str = "", dots_per_inch: int = 160) -> Path:
    """Draw the confusion matrix: rows are gold tags, the most frequent first, coloured by p(predicted | gold).

    Args:
        scores: of a text.
        path: the picture; its folder is made.

    Raises:
        ImportError: without matplotlib, an extra.
    """
    ranked = [scores.tags.index(score.tag) for score in scores.per_tag()][:MAX_TAGS]
    counts = scores.confusion[np.ix_(ranked, ranked)]
    totals = scores.confusion[ranked].sum(1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    names = [plain(scores.tags[k]) for k in ranked]
    size = min(max(0.3 * len(names) + 1.8, 4.5), 16)
    figure = new_figure(size, size)
    axes = figure.add_axes((0.14, 0.05, 0.83, 0.83))
    from matplotlib.colors import PowerNorm

    axes.imshow(shares, cmap=colour_map(), norm=PowerNorm(0.4, 0, 1), interpolation="nearest")
    letters = min(8.0, 0.6 * size * 72 * 0.83 / len(names))
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=letters, parse_math=False)
    axes.set_yticks(range(len(names)), names, fontsize=letters, parse_math=False)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("predicted", fontsize=9, color=MUTED)
    axes.set_ylabel("gold", fontsize=9, color=MUTED)
    _bare(axes, bottom=False)
    if len(names) <= MAX_COUNTED:
        for i, k in zip(*np.nonzero(counts), strict=True):
            colour = "white" if shares[i, k] > 0.12 else INK
            axes.text(k, i, str(counts[i, k]), ha="center", va="center", fontsize=letters * 0.75, color=colour)
    figure.text(0.02, 0.97, plain(title or f"accuracy {scores.accuracy:.4f}"), fontsize=11, color=INK, parse_math=False)
    return save_figure(figure, path, dots_per_inch)


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
        _bare(axes, bottom=True)
    if ranked:
        axes.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return save_figure(figure, path, dots_per_inch)


def _bare(axes: Any, *, bottom: bool) -> None:
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(bottom and side == "bottom")
    axes.tick_params(colors=MUTED, labelcolor=INK, length=0)
