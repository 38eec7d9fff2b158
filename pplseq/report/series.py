"""Along steps: a series and what a model expects of it; hidden states, their stays and moves, and what is observed there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pplseq.report.drawing import linear_between, svg_figure
from pplseq.report.markup import escape, figure, table

MOST_STEPS = 160
MOST_SHOWN = 30  # states
MOST_DRAWN, LEAST_SHARE = 10, 0.01  # states of a graph, and the least move of one


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


def state_sections(
    paths: Sequence[np.ndarray], names: Sequence[str], observed: Sequence[np.ndarray] = (), columns: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """The sections of a page about most probable paths.

    Args:
        paths: (T,) states of each sequence. names: of the states. observed: (T, n) numbers of each sequence, NaN where missing.
        columns: their n names; none are told without.
    """
    states = range(min(len(names), MOST_SHOWN))
    steps = np.concatenate([np.asarray(path) for path in paths])
    stays = _stays(paths, len(names))
    values = np.concatenate([np.asarray(rows, float) for rows in observed])[:, : len(columns)] if columns else None
    rows = []
    for k in states:
        told = [] if values is None else [_spread(column[steps == k]) for column in values.T]
        mean = f"{np.mean(stays[k]):,.4g}" if stays[k] else "–"
        rows.append([f"<b>{escape(names[k])}</b>", f"{np.mean(steps == k):.1%}", mean, *told])
    head = ["State", "Share of steps", "Mean stay, steps", *(escape(f"{name}: mean (deviation)") for name in columns)]
    caption = f"<b>{len(names)} states,</b> of most probable paths of {len(paths):,} sequences, {len(steps):,} steps. "
    caption += "Stays that an end cuts off count as they are."
    longest = max(paths, key=len)
    drawn = figure(
        _path_figure(np.asarray(longest), [names[k] for k in states]),
        f"<b>States over time:</b> the last {min(len(longest), MOST_STEPS)} steps of the longest sequence.",
    )
    told = table(head, rows, "k" + "r" * (len(head) - 1), caption)
    return [("States", drawn + told), ("Moves", _moves(paths, names, states))]


def _stays(paths: Sequence[np.ndarray], num_states: int) -> list[list[int]]:
    """Lengths of the stretches in each state; those that an end of a sequence cuts off count as they are."""
    found: list[list[int]] = [[] for _ in range(num_states)]
    for path in map(np.asarray, paths):
        for part in np.split(path, np.flatnonzero(np.diff(path)) + 1):
            if len(part):
                found[int(part[0])].append(len(part))
    return found


def _spread(values: np.ndarray) -> str:
    values = values[np.isfinite(values)]
    return f"{values.mean():,.4g} <small>({values.std():,.3g})</small>" if len(values) else "–"


def _moves(paths: Sequence[np.ndarray], names: Sequence[str], states: range) -> str:
    """From each state, the shares of steps that lead to each."""
    counts = np.zeros((len(names), len(names)))
    for path in map(np.asarray, paths):
        np.add.at(counts, (path[:-1], path[1:]), 1)
    totals = counts.sum(1)
    rows = [
        [f"<b>{escape(names[k])}</b>", *(f"{counts[k, j] / totals[k]:.3f}" if totals[k] else "–" for j in states)]
        for k in states
    ]
    caption = "<b>Moves</b> of these paths: the share of the steps in the row's state that go to the column's."
    drawn = ""
    if 1 < len(states) <= MOST_DRAWN:
        shares = (counts / np.maximum(totals, 1)[:, None])[: len(states), : len(states)]
        told = f"<b>Moves between states</b> of at least {LEAST_SHARE:.0%}; in a state, the share of steps that stay."
        drawn = figure(_graph_figure(shares, [names[k] for k in states]), told)
    return drawn + table(["From \\ to", *(escape(names[k]) for k in states)], rows, "k" + "r" * len(states), caption)


def _graph_figure(shares: np.ndarray, names: Sequence[str], width: float = 420) -> str:
    """States on a circle, with an arrow for each move between two, as wide as its share."""
    middle, around, radius = width / 2, width / 2 - 48, 27.0
    turn = 2 * np.pi * np.arange(len(names)) / len(names) - np.pi / 2
    places = middle + around * np.stack([np.cos(turn), np.sin(turn)], -1)
    parts = []
    for i, k in zip(*np.nonzero((shares >= LEAST_SHARE) & ~np.eye(len(names), dtype=bool)), strict=True):
        ahead = (places[k] - places[i]) / np.linalg.norm(places[k] - places[i])
        aside = np.array([-ahead[1], ahead[0]])  # moves there and back run side by side
        begin, end = places[i] + radius * ahead + 6 * aside, places[k] - (radius + 8) * ahead + 6 * aside
        tip = [end + 8 * ahead, end + 4 * aside, end - 4 * aside]
        ink, said = f"opacity:{0.3 + 0.7 * shares[i, k]:.2f}", f"{escape(names[i])} to {escape(names[k])}: {shares[i, k]:.3f}"
        line = f'x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in tip)
        parts.append(
            f'<g style="{ink}"><title>{said}</title>'
            f'<line class="valid0" style="stroke-width:{1 + 4 * shares[i, k]:.1f}" {line}/>'
            f'<polygon class="valid0-dot" points="{points}"/></g>'
        )
    for k, (x, y) in enumerate(places):
        parts.append(f'<circle class="field" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>')
        parts.append(f'<text class="tick name" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(names[k][:8])}</text>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y + 13:.1f}" text-anchor="middle">{shares[k, k]:.2f}</text>')
    return svg_figure(width, width, "Moves between states", parts)


def _path_figure(path: np.ndarray, names: Sequence[str], width: float = 816) -> str:
    """A line a state, filled where the path is in it."""
    shown = path[-MOST_STEPS:]
    left, right, line, bottom = 96.0, 12.0, 22.0, 30.0
    height, step = len(names) * line + bottom, (width - left - right) / len(shown)
    parts = []
    for k, name in enumerate(names):
        parts.append(f'<text class="tick name" x="{left - 8}" y="{k * line + 14}" text-anchor="end">{escape(name[:14])}</text>')
        parts.append(f'<rect class="field" x="{left}" y="{k * line + 2}" width="{width - left - right}" height="{line - 4}"/>')
    starts = np.concatenate([[0], np.flatnonzero(np.diff(shown)) + 1, [len(shown)]])
    for begin, end in zip(starts[:-1], starts[1:], strict=True):
        k = int(shown[begin])
        if k < len(names):
            x, wide = left + begin * step, (end - begin) * step
            parts.append(f'<rect class="heat" x="{x:.1f}" y="{k * line + 2}" width="{wide:.1f}" height="{line - 4}"/>')
    first = len(path) - len(shown) + 1
    for x, anchor, t in ((left, "start", first), (width - right, "end", len(path))):
        parts.append(f'<text class="tick" x="{x}" y="{height - 10}" text-anchor="{anchor}">step {t}</text>')
    return svg_figure(width, height, "States over time", parts)
