"""How notebooks show models and results: tables without colours of their own, so that any theme does; all text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_NUMBERS = 24  # of a parameter that are told
MOST_ROWS = 16  # of a table, from its begin and its end
MOST_COLUMNS = 24

# no-break space, soft hyphen, (non-)joiners, marks of direction, word joiner; letters of flags
SPELT_WITH = frozenset(" \xa0\xad\u061c\u200b\u200c\u200d\u200e\u200f\u2009\u202f\u2060\u3000") | frozenset(
    map(chr, range(0xE0020, 0xE0080))  # of flags
)


def escape(value: object) -> str:
    """Text that is safe in HTML and in attributes; what HTML forbids, or what turns the order of text, becomes U+FFFD.

    Joiners, spaces that do not break and soft hyphens stay: Persian words and many pictures are written with them.
    """
    text = "".join(char if char.isprintable() or char in SPELT_WITH else "\ufffd" for char in str(value))
    return html.escape(text, quote=True)


def lines(text: object) -> str:
    """Text whose columns stand below each other."""
    return "<pre>" + "\n".join(map(escape, str(text).split("\n"))) + "</pre>"


def table(caption: str, head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table, numbers with four digits; of many rows the first and the last."""
    rows = list(rows)
    half = MOST_ROWS // 2
    if len(rows) > MOST_ROWS:
        rows = [*rows[:half], ["…"] * len(head), *rows[-half:]]
    told = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    first = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{first}</tr></thead><tbody>{told}</tbody></table>"


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(value)


def parameters(title: str, values: Mapping[str, Any]) -> str:
    """Tensors by name: their numbers, or of many how large they are."""
    rows = []
    for name, value in values.items():
        value = value.detach().cpu()
        told: object = _numbers(value.tolist())
        if value.numel() > MOST_NUMBERS:
            told = f"{float(value.min()):.4g} … {float(value.max()):.4g}"
        rows.append([name, " × ".join(map(str, value.shape)), told])
    return table(title, ["parameter", "shape", "values"], rows)


def _numbers(value: Any) -> str:
    return "[" + ", ".join(map(_numbers, value)) + "]" if isinstance(value, list) else f"{value:.4g}"


def by_steps(caption: str, values: Any, names: Sequence[str] | None = None) -> str | None:
    """Numbers (B, T, K), or a list of (T_i, K), of which the first sequence is told; None where there are too many columns."""
    first = values[0]
    size = first.shape[-1]
    if first.dim() != 2 or size > MOST_COLUMNS:
        return None
    return first_of(caption, len(values), range(size) if names is None else names, first.tolist())


def first_of(caption: str, count: int, names: Iterable[object], rows: Iterable[Sequence[object]]) -> str:
    """The steps of a sequence, a row each: of several the first."""
    if count > 1:
        caption = f"{caption}: the first of {count} sequences"
    return table(caption, ["step", *names], ([t, *row] for t, row in enumerate(rows)))
