"""A series and what a model expects of it, as inline SVG."""

from __future__ import annotations

import numpy as np

from pplseq.report.drawing import linear_between, svg_figure
from pplseq.report.markup import escape

MOST_STEPS = 160


def series_figure(
    observed: np.ndarray, expected: np.ndarray, deviations: np.ndarray | None = None, name: str = "", width: float = 816
) -> str:
    """The last steps of a series as dots, what was expected of each as a line, and a band of two deviations around it.

    Args:
        observed: (T,), NaN where missing. expected: (T,). deviations: (T,), None for no band. name: of the column.
    """
    shown, expected = (np.asarray(values, float)[-MOST_STEPS:] for values in (observed, expected))
    first = len(observed) - len(shown) + 1
    height, left, right, top, bottom = 220.0, 64.0, 12.0, 18.0, 34.0
    band = np.zeros_like(expected) if deviations is None else 2 * np.asarray(deviations, float)[-MOST_STEPS:]
    values = np.concatenate([shown, expected - band, expected + band])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    high = high if high > low else low + 1.0
    steps = max(len(shown) - 1, 1)

    def x_of(t: float) -> float:
        return left + t / steps * (width - left - right)

    def y_of(value: float) -> float:
        return height - bottom - (value - low) / (high - low) * (height - top - bottom)

    def path(values: np.ndarray) -> list[str]:
        return [f"{x_of(t):.1f},{y_of(float(v)):.1f}" for t, v in enumerate(values) if np.isfinite(v)]

    parts = []
    for tick in linear_between(low, high):
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 3.5:.1f}" text-anchor="end">{tick:,.6g}</text>')
    if deviations is not None:
        outline = " ".join(path(expected + band) + path(expected - band)[::-1])
        parts.append(f'<polygon class="heat" fill-opacity=".18" points="{outline}"/>')
    parts.append(f'<polyline class="valid0" points="{" ".join(path(expected))}"/>')
    parts += [
        f'<circle class="name" cx="{x_of(t):.1f}" cy="{y_of(float(v)):.1f}" r="1.7"/>'
        for t, v in enumerate(shown)
        if np.isfinite(v)
    ]
    for t in (0, len(shown) - 1):
        anchor = "start" if t == 0 else "end"
        parts.append(f'<text class="tick" x="{x_of(t):.1f}" y="{height - 14}" text-anchor="{anchor}">step {t + first}</text>')
    parts.append(f'<text class="label" x="{left - 8}" y="{top - 6}" text-anchor="end">{escape(name)}</text>')
    return svg_figure(width, height, f"Series {name} and its predictions", parts)
