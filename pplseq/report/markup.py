"""Pieces of HTML that the sections of the page share. Every word that comes from outside is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from pplseq.notebooks import escape
from pplseq.report.blocks import Groups
from pplseq.report.style import STYLE
from pplseq.runs.provenance import code_version, today

# even where a word got past `escape`, nothing would be run, fetched or sent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(title: str, head: str, sections: Sequence[tuple[str, str]], footer: str, style: str = "") -> str:
    """A whole page that needs no other file and runs no script.

    Args:
        title: of the window, as it is. head: HTML above the sections, in the page's header.
        sections: (heading, HTML) each, numbered from 1; the page begins with their list.
        footer: HTML in front of the day and the version. style: CSS beside the common sheet.
    """
    body = "".join(
        f'<section id="s{i}"><h2><span class="n">{i}</span>{name}</h2>{content}</section>'
        for i, (name, content) in enumerate(sections, 1)
    )
    listed = "".join(f'<li><a href="#s{i}">{name}</a></li>' for i, (name, _) in enumerate(sections, 1))
    contents = f'<nav class="contents" aria-label="Contents"><ol>{listed}</ol></nav>' if len(sections) > 1 else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body><header>{head}</header>{contents}<main>{body}</main>"
        f"<footer>{footer} on {today()}, pplseq version {escape(code_version())}.</footer></body></html>\n"
    )


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


def words_of(sentence: Sequence[str]) -> str:
    """The words of a sentence, each isolated."""
    return " ".join(word(text) for text in sentence)


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
        named = [tag if cell else "td" for cell in row]  # a header without text is none
        return "".join(f"<{t} class={k}>{cell}</{t}>" for t, k, cell in zip(named, columns, row, strict=True))

    head_row = f"<thead><tr>{cells('th', head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    drawn = wide(f'<table class="{name}">{head_row}<tbody>{body}</tbody></table>')
    return f"<figure><figcaption>{caption}</figcaption>{drawn}</figure>" if caption else drawn


def wide(content: str) -> str:
    """Content that may be wider than the page: it scrolls in its own box, also by keys."""
    return f'<div class="wide" role="group" aria-label="scrolls sideways" tabindex="0">{content}</div>'


def figure(drawing: str, caption: str) -> str:
    """A drawing with its caption."""
    return f"<figure>{wide(drawing)}<figcaption>{caption}</figcaption></figure>"


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
