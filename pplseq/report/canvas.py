"""What pictures share: a figure without a window, its colours, words as they are, and the file it ends in."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from pplseq.files import new_file
from pplseq.notebooks import SPELT_WITH
from pplseq.report.markup import shortened

INK, MUTED, RULE, PAPER, ACCENT = "#1d1c1a", "#6a665e", "#d8d3c7", "#ffffff", "#1d5a7a"


def new_figure(width: float, height: float, **options: Any) -> Any:
    """A matplotlib figure in inches that belongs to neither a window system nor the global state of pyplot.

    Raises:
        ImportError: without matplotlib, an extra.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError('the picture needs matplotlib: pip install "pplseq[plot]"') from None
    figure = Figure(figsize=(width, height), facecolor=PAPER, **options)
    FigureCanvasAgg(figure)
    return figure


def plain(text: str, length: int = 60) -> str:
    """Text of at most `length` printable characters."""
    return shortened("".join(char if char.isprintable() or char in SPELT_WITH else "\ufffd" for char in text), length)


def save_figure(figure: Any, path: str | Path, dots_per_inch: int = 160) -> Path:
    """Write a figure, whole or not at all; its folder is made, its ending says the format, PNG where it has none."""
    path = Path(path)
    kind = path.suffix[1:] or "png"
    with warnings.catch_warnings(), new_file(path) as new:
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of scripts that the font lacks: drawn as boxes
        figure.savefig(new, dpi=dots_per_inch, format=kind, metadata={"Software": "pplseq"} if kind == "png" else None)
    return path
