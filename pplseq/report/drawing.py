"""Figures as inline SVG: learning curve, map of transitions, histogram. Colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from pplseq.report.learning import Learning
from pplseq.report.markup import escape, number, shortened

HEAT_LEVELS = 16
MAX_MAP_GROUPS = 128  # rows of the map: those used most


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two positive ones on a logarithmic axis, four or more."""
    if high < 1.5 * low:
        return linear_between(low, high, 4)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), np.arange(1, 10, 0.5), np.arange(1, 10, 0.1)):
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [float(f"{step * 10.0**e:.6g}") for e in exponents for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 4:
            return ticks
    return ticks


def linear_ticks(high: float, count: int = 6) -> list[float]:
    """Round numbers from 0 to `high`."""
    if not high > 0:
        return [0.0]
    step = _round_step(high / count)
    return [i * step for i in range(int(high / step * 1.0001) + 1)]


def linear_between(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two."""
    step = _round_step((high - low) / count)
    return [float(f"{i * step:.12g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _round_step(rough: float) -> float:
    """The next round number from `rough` on."""
    size = 10.0 ** math.floor(math.log10(rough))
    return next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)


def _polyline(x: Iterable[float], y: Iterable[float], name: str) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<polyline class="{name}" points="{points}"/>'


def svg_figure(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """An SVG element of a fixed size that a screen reader can name."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" style="width:{width:g}px" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def curve_figure(learning: Learning, width: float = 816, height: float = 330, along: str = "step") -> str:
    """Training and validation perplexity (logarithmic) against steps, or along something else."""
    curves = [c for c in (learning.train, *learning.validation) if c is not None]
    left, right, top, bottom = 58.0, 134.0, 16.0, 40.0
    low, high = min(c.perplexity.min() for c in curves), max(c.perplexity.max() for c in curves)
    margin = max((high / low) ** 0.04, 1.02)
    low, high = low / margin, high * margin
    last = max(float(c.steps[-1]) for c in curves) or 1.0

    def x_of(steps):
        return left + np.asarray(steps, float) / last * (width - left - right)

    def y_of(perplexity):
        part = np.log(np.asarray(perplexity, float) / low) / math.log(high / low)
        return height - bottom - part * (height - top - bottom)

    edge, base = width - right, height - bottom
    parts = []
    for tick in log_ticks(low, high):
        y = float(y_of(tick))
        parts.append(f'<line class="grid" x1="{left}" x2="{edge}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 3.5:.1f}" text-anchor="end">{tick:,.6g}</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{edge}" y1="{base}" y2="{base}"/>')
    for tick in linear_ticks(last):
        x = float(x_of(tick))
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 17}" text-anchor="middle">{tick:,.6g}</text>')
    parts.append(f'<text class="label" x="{(left + edge) / 2}" y="{height - 5}" text-anchor="middle">{along}</text>')
    parts.append(f'<text class="label" x="{left - 50}" y="{top - 4}">perplexity</text>')
    for step in learning.rate_drops[:40]:
        x = float(x_of(step))
        parts.append(
            f'<path class="drop" d="M{x:.1f} {base}l-3.5 -7h7z"><title>learning rate lowered at {step}</title></path>'
        )
    ends = []
    if learning.train is not None:
        train = learning.train.thinned()
        xs, ys = x_of(train.steps), y_of(train.perplexity)
        parts.append(_dots(xs, ys, "train-dot", 2.2) if len(xs) == 1 else _polyline(xs, ys, "train"))
        ends.append((float(ys[-1]), "train-text", "training", train.perplexity[-1]))
    for i, curve in enumerate(learning.validation):
        kind = f"valid{min(i, 1)}"
        xs, ys = x_of(curve.steps), y_of(curve.perplexity)
        if len(xs) > 1:
            parts.append(_polyline(xs, ys, kind))
        if len(xs) <= 60:
            parts.append(_dots(xs, ys, f"{kind}-dot", 2.2))
        if along == "step":  # of a mean over more and more, the least value says nothing
            x, y = float(xs[curve.best]), float(ys[curve.best])
            best = number(curve.perplexity[curve.best])
            parts.append(f'<circle class="{kind}-best" cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>')
            at = min(max(x, left + 26), edge - 26)
            parts.append(f'<text class="{kind}-text" x="{at:.1f}" y="{y - 10:.1f}" text-anchor="middle">best {best}</text>')
        name = f"valid., {curve.label}" if along == "step" and curve.label != "validation" else curve.label
        ends.append((float(ys[-1]), f"{kind}-text", name, curve.perplexity[-1]))
    for y, (_, name, label, value) in zip(_apart([e[0] for e in ends], 14.0), ends, strict=True):
        text = f"{escape(label)} {number(value)}"
        parts.append(f'<text class="{name} label" x="{edge + 8}" y="{y + 4:.1f}">{text}</text>')
    return svg_figure(width, height, f"Perplexity along {along}s", parts)


def _dots(xs, ys, name: str, radius: float) -> str:
    return "".join(
        f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in zip(xs, ys, strict=True)
    )


def _apart(places: Sequence[float], distance: float) -> list[float]:
    """The places moved down where needed, so that no two are nearer than `distance`."""
    moved = list(places)
    order = sorted(range(len(moved)), key=lambda i: moved[i])
    for above, below in zip(order, order[1:], strict=False):
        moved[below] = max(moved[below], moved[above] + distance)
    return moved


def map_figure(
    probs: np.ndarray, names: Sequence[str], shares: Sequence[float], titles: Sequence[str], width: float = 816
) -> str:
    """Transitions between groups as a heat map, from (rows) to (columns), with each row's share of the text as a bar.

    Opacity is the root of the probability, so that small ones are seen.

    Args:
        probs: (G, G) p(to | from).
        names: G labels; those of the groups used most are written where there is no room for all.
        shares: G shares of the text.
        titles: G sentences, shown when the pointer is over a row.
    """
    count = len(probs)
    left, top, right = 92.0, 90.0, 74.0
    cell = min((width - left - right) / count, 24.0)
    side = cell * count
    size = min(11.5, max(cell * 0.9, 10.0))  # legible on a phone too, where the map scrolls
    labelled = labelled_rows(np.asarray(shares), max(1, math.ceil(size * 0.98 / cell)))
    levels = np.rint(np.sqrt(np.clip(probs, 0, 1)) * HEAT_LEVELS).astype(int)
    largest = max(max(shares), 1e-300)
    parts = [f'<rect class="field" x="{left:g}" y="{top:g}" width="{side:.1f}" height="{side:.1f}"/>']
    for i in range(count):
        y = top + i * cell
        row = [f"<title>{escape(titles[i])}</title>"]
        row.append(f'<rect class="row" x="0" y="{y:.2f}" width="{left + side + right:.1f}" height="{cell:.2f}"/>')
        row += _heat(levels[i], left + cell * np.arange(count + 1), y, cell)
        bar = shares[i] / largest * (right - 30)
        bar_place = f'x="{left + side + 6:.1f}" y="{y + cell * 0.15:.2f}" width="{bar:.1f}" height="{cell * 0.7:.2f}"'
        row.append(f'<rect class="bar" {bar_place}/>')
        if i in labelled:
            text = f'style="font-size:{size:.1f}px"'
            label, middle = escape(shortened(names[i], 13)), cell / 2 + size * 0.34
            turned = f'transform="translate({left + i * cell + middle:.1f} {top - 5}) rotate(-90)"'
            row.append(
                f'<text class="name" {text} x="{left - 5}" y="{y + middle:.1f}" text-anchor="end">{label}</text>'
            )
            row.append(f'<text class="name" {text} {turned}>{label}</text>')
        parts.append(f"<g>{''.join(row)}</g>")
    parts.append(f'<text class="label" x="{left - 5}" y="{top - 6}" text-anchor="end">from ↓ to →</text>')
    parts.append(f'<text class="label" x="{left + side + 6:.1f}" y="{top - 6}">use ≤ {largest:.1%}</text>')
    parts.append(_heat_legend(left, top + side + 10, 240.0))
    return svg_figure(left + max(side + right, 260.0), top + side + 36, "Transitions between groups of states", parts)


def _heat(levels: np.ndarray, edges: np.ndarray, y: float, height: float) -> list[str]:
    """A row of cells, between edges, by their levels."""
    return [
        '<path class="heat" fill-opacity="{:.3g}" d="{}"/>'.format(level / HEAT_LEVELS, "".join(
            f"M{edges[start]:.2f} {y:.2f}h{edges[stop] - edges[start]:.2f}v{height:.2f}H{edges[start]:.2f}z"
            for start, stop in _runs(levels == level)
        ))
        for level in np.unique(levels[levels > 0])
    ]  # fmt: skip


def topics_figure(probs: np.ndarray, sizes: np.ndarray, names: Sequence[str], titles: Sequence[str]) -> str:
    """Topics (rows) along a text, with each one's share of it as a bar. Opacity is the root of the probability.

    Args:
        probs: (N, C) of the topics of sentences. sizes: (N,) words of each.
        names, titles: C of each; a title is shown when the pointer is over its row.
    """
    left, top, right, height, width = 132.0, 18.0, 84.0, 15.0, 816.0
    side, shares = width - left - right, sizes @ probs / sizes.sum()
    edges = left + side * np.concatenate([[0], np.cumsum(sizes)]) / sizes.sum()
    levels = np.rint(np.sqrt(np.clip(probs.T, 0, 1)) * HEAT_LEVELS).astype(int)
    parts = [f'<rect class="field" x="{left:g}" y="{top:g}" width="{side:.1f}" height="{height * len(names):.1f}"/>']
    for i, (name, title, share) in enumerate(zip(names, titles, shares, strict=True)):
        y = top + i * height
        row = [f"<title>{escape(title)}</title>"]
        row.append(f'<rect class="row" x="0" y="{y:.2f}" width="{width:g}" height="{height:g}"/>')
        row += _heat(levels[i], edges, y, height)
        place = f'x="{left + side + 6:.1f}" y="{y + height * 0.15:.2f}" height="{height * 0.7:.2f}"'
        row.append(f'<rect class="bar" {place} width="{share / max(shares) * (right - 30):.1f}"/>')
        text = f'<text class="name" style="font-size:11px" x="{left - 5}" y="{y + height * 0.75:.1f}" text-anchor="end">'
        parts.append(f"<g>{''.join(row)}{text}{escape(shortened(name, 20))}</text></g>")
    parts.append(f'<text class="label" x="{left:g}" y="{top - 6}">the text, from its start to its end</text>')
    parts.append(f'<text class="label" x="{left + side + 6:.1f}" y="{top - 6}">use ≤ {max(shares):.1%}</text>')
    base = top + height * len(names)
    parts.append(_heat_legend(left, base + 10, 240.0))
    return svg_figure(width, base + 36, "Topics along the text", parts)


def _heat_legend(left: float, top: float, width: float) -> str:
    cell = width / HEAT_LEVELS
    parts = []
    for i in range(HEAT_LEVELS):
        place = f'x="{left + i * cell:.1f}" y="{top:.1f}" width="{cell + 0.2:.1f}" height="8"'
        parts.append(f'<rect class="heat" {place} fill-opacity="{(i + 1) / HEAT_LEVELS:.3g}"/>')
    for value in (0.01, 0.1, 0.25, 0.5, 1.0):
        x = left + math.sqrt(value) * width
        parts.append(f'<text class="tick" x="{x:.1f}" y="{top + 20:.1f}" text-anchor="middle">{value:.0%}</text>')
    return "".join(parts)


def labelled_rows(shares: np.ndarray, distance: int) -> set[int]:
    """Rows of a map that are labelled: by falling share, none nearer than `distance` to one chosen before."""
    chosen: set[int] = set()
    for row in np.argsort(-shares, kind="stable").tolist():
        if not any(other in chosen for other in range(row - distance + 1, row + distance)):
            chosen.add(row)
    return chosen


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """(start, stop) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def histogram_figure(bits: np.ndarray, width: float = 560, height: float = 200) -> str:
    """Tokens by surprisal, with the mean and the median."""
    left, right, top, bottom = 44.0, 12.0, 30.0, 38.0
    high = max(4.0, min(math.ceil(float(bits.max())), 24.0))
    edges = np.arange(0.0, high + 0.5, 0.5)
    counts, _ = np.histogram(np.clip(bits, 0.0, high - 1e-9), edges)
    shares = counts / len(bits)
    base, edge = height - bottom, width - right

    def x_of(value: float) -> float:
        return left + value / high * (edge - left)

    def y_of(share: float) -> float:
        return base - share / max(shares.max(), 1e-300) * (base - top)

    parts = []
    for tick in linear_ticks(float(shares.max()), 3):
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{edge}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick:.3g}</text>')
    for start, share in zip(edges, shares, strict=False):
        heat = min(start / 12, 1.0)
        parts.append(
            f'<rect class="hot" style="--s:{heat:.2f}" x="{x_of(start) + 0.5:.1f}" y="{y_of(share):.1f}" '
            f'width="{x_of(0.5) - left - 1:.1f}" height="{base - y_of(share):.1f}"/>'
        )
    parts.append(f'<line class="axis" x1="{left}" x2="{edge}" y1="{base}" y2="{base}"/>')
    for tick in linear_ticks(high, 8):
        parts.append(f'<text class="tick" x="{x_of(tick):.1f}" y="{base + 15}" text-anchor="middle">{tick:g}</text>')
    ends = ("median", float(np.median(bits)), "end", -4), ("mean", float(bits.mean()), "start", 4)
    if ends[0][1] > ends[1][1]:
        ends = ("mean", ends[1][1], "end", -4), ("median", ends[0][1], "start", 4)
    for name, value, anchor, shift in ends:
        x = x_of(min(value, high))
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 12}" y2="{base}"/>')
        parts.append(
            f'<text class="label" x="{x + shift:.1f}" y="{top - 5}" text-anchor="{anchor}">{name} {value:.2f}</text>'
        )
    parts.append(
        f'<text class="label" x="{(left + edge) / 2}" y="{height - 5}" text-anchor="middle">surprisal, bits</text>'
    )
    parts.append(f'<text class="label" x="2" y="{top - 16}">share of tokens</text>')
    return svg_figure(width, height, "Tokens by surprisal", parts)
