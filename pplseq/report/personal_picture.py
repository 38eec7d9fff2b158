"""Words of a stream coloured by log-likelihood ratio and by log-odds of perturbation states, as a PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pplseq.report.canvas import ACCENT as COLD
from pplseq.report.canvas import HOT, INK, MUTED, PAPER, any_script, colour_map, new_figure, plain, save_figure
from pplseq.report.personal import StreamView, colour_scale, signed

MAX_WORDS = 120  # of each panel
WIDTH, MARGIN, ROW, HEAD = 11.0, 0.45, 0.46, 0.68  # inches; ROW is a row of words, HEAD the title of a panel


def draw_personal_picture(view: StreamView, path: str | Path, *, title: str = "", dots_per_inch: int = 160) -> Path:
    """Draw the first words of a stream, a panel for the ratio of the two models and one for the log-odds.

    Args:
        view: what to draw. path: the picture; its folder is made. title: above it.
        dots_per_inch: resolution of the 11 inch wide picture.

    Raises:
        ImportError: without matplotlib, an extra.

    Source: Wojnowicz and Zhao, PROPS (2018), figures 3 to 5.
    """
    names, panels = list(view.log_probs), []
    if view.ratios is not None:
        panels.append((f"log p(word | words before), {names[0]} against {names[1]}", view.ratios))
    if view.log_odds is not None:
        panels.append(("log-odds of the perturbation states", np.asarray(view.log_odds, float)))
    if not panels:
        panels.append((f"log p(word | words before), {names[0]}", np.asarray(view.log_probs[names[0]], float)))
    count = min(len(view.words), MAX_WORDS)
    words = [plain(text, 22) for text in view.words[:count]]
    figure = new_figure(WIDTH, 4, dpi=dots_per_inch)
    rows = _rows(view, _widths(figure.canvas.get_renderer(), words, dots_per_inch), count)
    height = 0.75 + len(panels) * (HEAD + ROW * (rows[-1][0] + 1)) + 0.1
    figure.set_size_inches(WIDTH, height)
    heading = plain(title, 90) or "Words of a stream"
    heading += f"  ({view.place(count)})"
    figure.text(MARGIN / WIDTH, 1 - 0.45 / height, heading, fontsize=14, color=INK, parse_math=False)
    top = height - 0.75
    for name, values in panels:
        _panel(figure, top, height, name, words, values[:count], rows)
        top -= HEAD + ROW * (rows[-1][0] + 1)
    return save_figure(figure, path, dots_per_inch)


def _widths(renderer: Any, words: Sequence[str], dots_per_inch: int) -> list[float]:
    """Widths of the words' boxes in inches."""
    from matplotlib.font_manager import FontProperties

    font = FontProperties(size=10)
    with any_script():
        sizes = [renderer.get_text_width_height_descent(text, font, False)[0] / dots_per_inch for text in words]
    return [max(size, 0.26) + 0.12 for size in sizes]


def _rows(view: StreamView, widths: Sequence[float], count: int) -> list[tuple[int, float, float]]:
    """(row, left end, width) of every word's box, in inches; a line of the stream begins a row."""
    starts = {places.start for _, places in view.lines()}
    row, x, placed = 0, 0.0, []
    for t in range(count):
        if x > 0 and (t in starts or x + widths[t] > WIDTH - 2 * MARGIN):
            row, x = row + 1, 0.0
        placed.append((row, x, widths[t]))
        x += widths[t] + 0.05
    return placed


def _panel(
    figure: Any,
    top: float,
    height: float,
    name: str,
    words: Sequence[str],
    values: np.ndarray,
    rows: Sequence[tuple[int, float, float]],
) -> None:
    from matplotlib.patches import FancyBboxPatch

    scale = colour_scale(values)
    colours = colour_map((HOT, PAPER, COLD))
    num_rows = rows[-1][0] + 1
    below = top - HEAD - ROW * num_rows
    axes = figure.add_axes((0, below / height, 1, (top - below) / height))
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(below, top)
    axes.text(MARGIN, top - 0.38, plain(name, 100), fontsize=10.5, color=INK, parse_math=False)
    bar = np.linspace(-1, 1, 64)[None]
    left, right = WIDTH - MARGIN - 1.75, WIDTH - MARGIN - 0.45
    axes.imshow(bar, extent=(left, right, top - 0.42, top - 0.29), cmap=colours, vmin=-1.3, vmax=1.3, aspect="auto")
    axes.set_xlim(0, WIDTH)  # the image would shrink the panel to itself
    axes.set_ylim(below, top)
    axes.text(left - 0.06, top - 0.355, signed(-scale, 0), fontsize=8, color=MUTED, ha="right", va="center")
    axes.text(right + 0.06, top - 0.355, f"{signed(scale, 0)} nats", fontsize=8, color=MUTED, va="center")
    for text, value, (row, x, width) in zip(words, values.tolist(), rows, strict=True):
        part = 0.0 if math.isnan(value) else max(min(value / scale, 1.0), -1.0)
        y = top - HEAD - ROW * row
        box = FancyBboxPatch(
            (MARGIN + x, y - 0.16), width, 0.23, boxstyle="round,pad=0,rounding_size=0.04", linewidth=0
        )
        box.set_facecolor(colours(0.5 + part / 2.6))  # short of the full colours, so that the words can be read
        axes.add_patch(box)
        middle = MARGIN + x + width / 2
        ink = PAPER if abs(part) > 0.85 else INK
        axes.text(middle, y - 0.045, text, fontsize=10, color=ink, ha="center", va="center", parse_math=False)
        axes.text(middle, y - 0.235, signed(value), fontsize=6.5, color=MUTED, ha="center", va="center")
