"""The main figures as one PNG."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from pplseq.report.blocks import Groups
from pplseq.report.canvas import (
    ACCENT,
    FAINT,
    HOT,
    INK,
    MUTED,
    RULE,
    SECOND,
    TRAIN,
    colour_map,
    new_figure,
    plain,
    save_figure,
)  # fmt: skip
from pplseq.report.drawing import labelled_rows, log_ticks
from pplseq.report.markup import number
from pplseq.report.page import report_title
from pplseq.report.sentence import SentencePosterior
from pplseq.report.strip import HOT_BITS
from pplseq.report.summary import Report

MAX_STRIP = 22  # tokens of the strip
MAX_ROWS = 128  # of the map


def draw_picture(report: Report, path: str | Path, *, dots_per_inch: int = 160) -> Path:
    """Draws the learning curve, the map of transitions and the posterior of the first sentence.

    Args:
        report: what to draw.
        path: the PNG; its folder is made.
        dots_per_inch: resolution of the 11 x 8.4 inch picture.

    Raises:
        ImportError: without matplotlib, an extra.
    """
    figure = new_figure(11, 8.4)
    figure.text(0.045, 0.955, plain(report_title(report), 80), fontsize=15, color=INK, parse_math=False)
    _draw_curve(figure.add_axes((0.075, 0.475, 0.37, 0.41)), report)
    _draw_map(figure.add_axes((0.56, 0.435, 0.38, 0.45)), figure.add_axes((0.95, 0.56, 0.009, 0.2)), report)
    _draw_strip(figure.add_axes((0.075, 0.1, 0.9, 0.215)), report)
    return save_figure(figure, path, dots_per_inch)


def _bare(axes: Any, title: str, pad: float = 8) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=pad)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)


def _absent(axes: Any, text: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED, fontsize=10)


def _draw_curve(axes: Any, report: Report) -> None:
    from matplotlib.ticker import MaxNLocator

    learning = report.learning
    _bare(axes, "Perplexity against steps")
    if learning is None:
        return _absent(axes, "no course of training was recorded")
    curves = [c for c in (learning.train, *learning.validation) if c is not None]
    low, high = min(c.perplexity.min() for c in curves), max(c.perplexity.max() for c in curves)
    margin = max((high / low) ** 0.05, 1.02)
    low, high = low / margin, high * margin
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    ticks = log_ticks(low, high)
    axes.set_yticks(ticks, [f"{tick:,.6g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("step", fontsize=8.5, color=MUTED)
    if learning.train is not None:
        train = learning.train.thinned()
        marker = {"marker": "o", "markersize": 3} if len(train.steps) == 1 else {}
        label = f"training, last {number(train.perplexity[-1])}"
        axes.plot(train.steps, train.perplexity, color=TRAIN, linewidth=0.9, label=label, **marker)
    for curve, colour in zip(learning.validation, (ACCENT, SECOND), strict=False):
        name = "validation" if curve.label == "validation" else f"validation, {curve.label}"
        best = curve.perplexity[curve.best]
        marker = {"marker": "o", "markersize": 2.6} if len(curve.steps) < 60 else {}
        label = f"{plain(name, 80)}, best {number(best)}"
        axes.plot(curve.steps, curve.perplexity, color=colour, linewidth=1.5, label=label, **marker)
        axes.plot([curve.steps[curve.best]], [best], "o", markersize=6.5, color="white", mec=colour, mew=1.5)
    axes.legend(frameon=False, fontsize=8.5, labelcolor="linecolor", handlelength=1.2, loc="upper right")


def _draw_map(axes: Any, scale: Any, report: Report) -> None:
    from matplotlib.colors import PowerNorm

    blocks = report.groups.kind == "block"
    shares = np.array([group.share for group in report.group_summaries])
    shown = np.sort(np.argsort(-shares, kind="stable")[:MAX_ROWS])
    _bare(axes, f"Transitions between {'blocks' if blocks else 'states'}: p(to, across | from, down)", pad=8)
    probs = report.transitions.probs[np.ix_(shown, shown)]
    image = axes.imshow(probs, cmap=colour_map(), norm=PowerNorm(0.5, 0, 1), interpolation="nearest", aspect="equal")
    row = 0.45 * 8.4 * 72 / len(shown)  # points
    size = min(max(row * 0.86, 4.8), 8.5)
    places = sorted(labelled_rows(shares[shown], max(1, math.ceil(size / row))))
    summaries = [report.group_summaries[shown[place]] for place in places]
    names = [plain(group.name if blocks else f"{group.id} {group.name}", 12) for group in summaries]
    axes.set_yticks(places, names, fontsize=size, color=INK, parse_math=False)
    axes.set_xticks(places, names, fontsize=size, color=INK, rotation=90, parse_math=False)
    axes.tick_params(pad=1.5)
    axes.spines["bottom"].set_visible(False)
    bar = axes.figure.colorbar(image, cax=scale, ticks=[0, 0.05, 0.1, 0.25, 0.5, 1])
    bar.outline.set_visible(False)
    scale.tick_params(labelsize=7, colors=MUTED, length=0, pad=2)


def _draw_strip(axes: Any, report: Report) -> None:
    title = "p(state | all words) of every token, and its surprisal in bits"
    _bare(axes, title)
    if not report.sentences:
        return _absent(axes, "no sentence to show")
    sentence = report.sentences[0]
    count = min(len(sentence.tokens), MAX_STRIP)
    tokens = sentence.tokens[:count]
    for t, token in enumerate(tokens):
        axes.bar(t, 1.0, 0.94, color=FAINT)
        bottom = 0.0
        for state, prob in token.states:
            colour, text = _state_colours(report.groups, state)
            axes.bar(t, prob, 0.94, bottom=bottom, color=colour, edgecolor="white", linewidth=0.8)
            if prob > 0.13:
                axes.text(t, bottom + prob / 2, str(state), ha="center", va="center", fontsize=7, color=text)
            bottom += prob
        heat = min(token.bits / HOT_BITS, 1.0)
        axes.bar(t, 0.17, 0.94, bottom=1.05, color=HOT, alpha=0.1 + 0.7 * heat)
        axes.text(t, 1.135, f"{token.bits:.1f}", ha="center", va="center", fontsize=8, color=INK)
    words = [plain(token.word, 13) + ("" if token.known else " *") for token in tokens]
    # points: a letter takes about 4.9 at this size, the axes are 713 wide
    crowded = max(len(word) for word in words) * 4.9 > 713 / max(count, 8)
    axes.set_xticks(range(count), words, fontsize=9, color=INK, parse_math=False)
    axes.tick_params(axis="x", pad=3)
    if crowded:
        for label in axes.get_xticklabels():
            label.set(rotation=32, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.6, max(count, 8) - 0.4)
    axes.set_ylim(0, 1.24)
    axes.set_yticks([0, 0.5, 1])
    axes.text(1.0, 1.035, _facts(sentence, count), transform=axes.transAxes, ha="right", fontsize=8.5, color=MUTED)


def _facts(sentence: SentencePosterior, count: int) -> str:
    facts = f"perplexity {number(sentence.perplexity)}"
    facts += "" if all(token.known for token in sentence.tokens[:count]) else "; * unknown to the model"
    return facts + ("" if count == len(sentence.tokens) else f"; the first {count} of {len(sentence.tokens)} tokens")


def _state_colours(groups: Groups, state: int) -> tuple[Any, str]:
    """(fill, text on it), as on the page: hue by block, lightness by place in the block."""
    from colorsys import hls_to_rgb

    if groups.kind == "block":
        hue, lightness = groups.of_state[state] / len(groups), 0.4 + 0.24 * groups.slot[state]
    else:
        hue, lightness = state * 137.508 % 360 / 360, 0.5
    red, green, blue = hls_to_rgb(hue, lightness, 0.46)
    light = 0.3 * red + 0.6 * green + 0.1 * blue > 0.58
    return (red, green, blue), INK if light else "white"
