"""Pieces of HTML that the sections of the page share. Every word that comes from outside is escaped here."""

from __future__ import annotations

import html
from collections.abc import Sequence

from pplseq import __version__
from pplseq.report.blocks import Groups
from pplseq.report.style import STYLE

# even where a word got past `escape`, nothing would be run, fetched or sent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(title: str, head: str, sections: Sequence[tuple[str, str]], footer: str, style: str = "") -> str:
    """A whole page that needs no other file and runs no script.

    Args:
        title: of the window, as it is. head: HTML above the sections. sections: (heading, HTML) each, numbered from 1.
        footer: HTML in front of the version. style: CSS beside the common sheet.
    """
    body = "".join(
        f'<section><h2><span class="n">{i}</span>{name}</h2>{content}</section>'
        for i, (name, content) in enumerate(sections, 1)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body>{head}{body}<footer>{footer}, pplseq version {escape(__version__)}.</footer></body></html>\n"
    )


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


def shortened(word: str, length: int) -> str:
    """A word of at most `length` characters."""
    return word if len(word) <= length else word[: length - 1] + "…"


def number(value: float) -> str:
    """A perplexity or count, as short as it reads well."""
    if value == float("inf"):
        return "∞"
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def percent(share: float) -> str:
    """A share with two digits."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def word(text: str, length: int = 40) -> str:
    """A word of the vocabulary; isolated, so that right-to-left words do not reorder the line."""
    return f"<bdi>{escape(shortened(text, length))}</bdi>"


def token(text: str, length: int = 40) -> str:
    """A word on a ground of its own."""
    return f'<bdi class="w">{escape(shortened(text, length))}</bdi>'


def words(shares: Sequence[tuple[str, float]], count: int = 8) -> str:
    """Words with their probabilities, on a ground that shows where a comma is a word."""
    return " ".join(token(text) + f"&nbsp;<small>{percent(share)}</small>" for text, share in shares[:count])


def table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: str, caption: str = "", name: str = "") -> str:
    """A table of cells that are HTML already.

    Args:
        columns: a letter each: "l" text, "r" numbers, "k" kept on one line.
        name: CSS class.
    """

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(f"<{tag} class={kind}>{cell}</{tag}>" for kind, cell in zip(columns, row, strict=True))

    top = f"<caption>{caption}</caption>" if caption else ""
    head_row = f"<thead><tr>{cells('th', head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="{name}">{top}{head_row}<tbody>{body}</tbody></table></div>'


def figure(drawing: str, caption: str) -> str:
    """A drawing with its caption."""
    return f'<figure><div class="wide">{drawing}</div><figcaption>{caption}</figcaption></figure>'


def folded(summary: str, content: str) -> str:
    """Content behind a line to click on."""
    return f"<details><summary>{summary}</summary>{content}</details>"


def state_colour(groups: Groups, state: int) -> str:
    """Hue by block, along the tree, so that blocks of similar words look alike; lightness by place in the block."""
    if groups.kind == "block":
        hue = 360 * groups.of_state[state] / max(len(groups), 1)
        return f"--h:{hue:.0f};--k:{groups.slot[state]:.2f}"
    return f"--h:{state * 137.508 % 360:.0f};--k:.4"


def swatch(groups: Groups, state: int) -> str:
    """A spot in the colour of a state."""
    return f'<span class="swatch state" style="{state_colour(groups, state)}"></span>'
