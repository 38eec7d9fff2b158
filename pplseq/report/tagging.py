"""Tagged sentences as an HTML page: words coloured by tag, fainter where the tagger is unsure, errors marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pplseq.data.columns import PTB_TO_UNIVERSAL, UNIVERSAL_TAGS
from pplseq.models.taggers.scores import Share, TagScores
from pplseq.models.taggers.spans.scores import SpanScores
from pplseq.report.markup import escape, folded, page, percent, table, wide, word
from pplseq.report.tag_tables import named_shares

MAX_MATRIX_TAGS = 60
SURE, MAX_UNSURE = 0.95, 2000  # alternatives of surer words are not listed
# tags of Universal Dependencies among the twelve universal ones, so that both get the same colour
_UD_CLASSES = {
    "CCONJ": "CONJ",
    "SCONJ": "CONJ",
    "AUX": "VERB",
    "PROPN": "NOUN",
    "PART": "PRT",
    "PUNCT": ".",
    "SYM": ".",
}
TAGGING_STYLE = """
:root { --tint: .42 } @media (prefers-color-scheme: dark) { :root { --tint: .26 } }
.tagged { line-height: 1.2; margin: 1rem 0 1.5rem; max-width: none; hyphens: none }
.tagged .n { color: var(--muted); font-size: .78rem; margin-inline-end: .6rem }
.tagged > span { display: inline-block; margin: 0 .12rem .35rem; padding: .1rem .3rem .15rem; border-radius: 3px;
  text-align: center; background: hsl(var(--h) 55% calc(42% + 20% * var(--k)) / calc(.06 + var(--tint) * var(--c)));
  border-bottom: 2px solid transparent }
.tagged > span small { display: block; color: var(--ink); font: .68rem/1.25 system-ui, "Helvetica Neue", Arial, sans-serif }
.tagged > span.wrong { border-bottom-color: rgb(var(--hot)) }
.tagged s { text-decoration-color: rgb(var(--hot)); text-decoration-thickness: 2px }
.legend { display: flex; flex-wrap: wrap; gap: .3rem .5rem; font: .8rem system-ui, Arial, sans-serif }
.legend span { padding: .05rem .4rem; border-radius: 3px;
  background: hsl(var(--h) 55% calc(42% + 20% * var(--k)) / var(--tint)) }
.matrix { font: .72rem/1.2 system-ui, Arial, sans-serif } .matrix td, .matrix th { padding: .15rem .3rem; text-align: right }
.matrix td { background: rgb(var(--hot) / calc(var(--wash) * var(--s, 0))) } .matrix td.right { background: var(--faint) }
"""


@dataclass(frozen=True)
class SentenceView:
    """A tagged sentence to show.

    Attributes:
        words, tags: (T,).
        probabilities: (T,) of the tags, where the tagger has them.
        gold: (T,) tags, where known; None where a word has none.
        known: (T,) whether the word stands in the training text.
        alternatives: (T,) of (tag, probability), most probable first, shown when the pointer rests on a word.
        number: of the sentence in its file, from 1.
    """

    words: Sequence[str]
    tags: Sequence[str | None]
    probabilities: Sequence[float] | None = None
    gold: Sequence[str | None] | None = None
    known: Sequence[bool] | None = None
    alternatives: Sequence[Sequence[tuple[str, float]]] | None = None
    number: int | None = None

    @property
    def num_errors(self) -> int:
        """Words whose gold tag is another."""
        return 0 if self.gold is None else sum(map(_differ, self.gold, self.tags))


def render_tagging_page(
    views: Sequence[SentenceView], *, title: str, scores: TagScores | None = None, notes: Sequence[str] = (),
    spans: SpanScores | None = None,
) -> str:  # fmt: skip
    """The page: scores where given, a legend, the sentences. It needs no other file and runs no script.

    Args:
        views: the sentences. title: of the page.
        scores: of the whole text, which may have more sentences than are shown.
        notes: paragraphs of text above the sentences.
        spans: scores of whole spans, where tags stand for some.
    """
    colours = tag_colours(_all_tags(views))
    sections = [] if scores is None else [("Scores", _keys(scores))]
    sections.append(
        (
            "Sentences",
            _notes(notes) + _legend(views, colours) + "".join(_sentence(v, colours) for v in views) + _unsure(views),
        )
    )
    if scores is not None:
        sections += score_sections(scores, spans)
    return page(title, f"<h1>{escape(title)}</h1>", sections, "Written by <code>pplseq tag</code>", TAGGING_STYLE)


def score_sections(scores: TagScores, spans: SpanScores | None = None) -> list[tuple[str, str]]:
    """Sections on the scores of a text: precision, recall and F1 of every kind of span and of every tag; errors and the
    confusion matrix."""
    found = [] if spans is None else [("Spans", _f1_table("span", [("all spans", spans.overall), *spans.by_kind.items()]))]
    tags = [(score.tag, score) for score in scores.per_tag()]
    return [*found, ("Tags", _f1_table("tag", tags)), ("Errors", _pairs(scores) + _matrix(scores))]


def tag_colours(tags: Sequence[str]) -> dict[str, tuple[float, float]]:
    """(hue in degrees, lightness from 0 to 1) of every tag: a hue for all nouns, one for all verbs, and so on.

    Tags that are neither universal nor the Penn Treebank's are each a class of their own; chunk tags (B-NP, I-NP) are one
    by what follows the hyphen.
    """
    classes: dict[str, list[str]] = {}
    for tag in sorted(set(tags)):
        classes.setdefault(_class_of(tag), []).append(tag)
    return {
        tag: (360.0 * i / len(classes), j / max(len(members) - 1, 1))
        for i, members in enumerate(classes.values())
        for j, tag in enumerate(members)
    }


def _class_of(tag: str) -> str:
    if tag in UNIVERSAL_TAGS:
        return tag
    found = _UD_CLASSES.get(tag) or PTB_TO_UNIVERSAL.get(tag)
    return found or (tag[2:] if tag[:2] in ("B-", "I-", "E-", "S-") else tag)


def _all_tags(views: Sequence[SentenceView]) -> list[str]:
    found = [tag for view in views for tag in view.tags if tag is not None]
    return found + [tag for view in views for tag in view.gold or () if tag is not None]


def _differ(gold: str | None, tag: str | None) -> bool:
    return gold is not None and gold != tag


def _colour(colours: dict[str, tuple[float, float]], tag: str | None) -> str:
    hue, lightness = (0.0, 0.5) if tag is None else colours.get(tag, (0.0, 0.5))
    return f"--h:{hue:.0f};--k:{lightness:.2f}"


def _notes(notes: Sequence[str]) -> str:
    return "".join(f"<p>{escape(note)}</p>" for note in notes)


def _legend(views: Sequence[SentenceView], colours: dict[str, tuple[float, float]]) -> str:
    counts = Counter(tag for view in views for tag in view.tags if tag is not None)
    spots = "".join(
        f'<span style="{_colour(colours, tag)}">{escape(tag)} {count:,}</span>' for tag, count in counts.most_common()
    )
    says = ["A word's ground tells its tag" + (", fainter where the tagger is less sure" if _any_sure(views) else "")]
    if any(view.known is not None for view in views):
        says.append("words that the training text does not have are dotted")
    if any(view.gold is not None for view in views):
        says.append("a wrong tag is struck out before the right one")
    return f'<div class="legend">{spots}</div><p class="caption">{"; ".join(says)}.</p>'


def _any_sure(views: Sequence[SentenceView]) -> bool:
    return any(view.probabilities is not None for view in views)


def _sentence(view: SentenceView, colours: dict[str, tuple[float, float]]) -> str:
    number = "" if view.number is None else f'<span class="n" style="--c:0">{view.number}</span>'
    return (
        f'<p class="tagged" dir="auto">{number}{"".join(_token(view, i, colours) for i in range(len(view.words)))}</p>'
    )


def _token(view: SentenceView, i: int, colours: dict[str, tuple[float, float]]) -> str:
    tag = view.tags[i]
    wrong = view.gold is not None and _differ(view.gold[i], tag)
    names = [
        name for name, there in (("wrong", wrong), ("unknown", view.known is not None and not view.known[i])) if there
    ]
    sure = 1.0 if view.probabilities is None else min(max(float(view.probabilities[i]), 0.0), 1.0)
    label = "–" if tag is None else escape(tag)
    if view.probabilities is not None:
        label += f" {percent(sure)}"
    if wrong and view.gold is not None:
        label = f"<s>{label}</s> {escape(str(view.gold[i]))}"
    rest = "" if view.alternatives is None else ", ".join(f"{other} {percent(p)}" for other, p in view.alternatives[i])
    return (
        f'<span class="{" ".join(names)}" style="{_colour(colours, tag)};--c:{sure:.2f}" title="{escape(rest)}">'
        f"{word(view.words[i])}<small>{label}</small></span>"
    )


def _unsure(views: Sequence[SentenceView]) -> str:
    """The alternatives of the words that the tagger is not sure of, as a table: a pointer is not everywhere."""
    rows = [
        (
            "" if v.number is None else f"{v.number}",
            word(text),
            " ".join(f"{escape(other)}&nbsp;<small>{percent(p)}</small>" for other, p in rest),
        )
        for v in views
        for text, rest in zip(v.words, v.alternatives or (), strict=False)
        if rest and rest[0][1] < SURE
    ]
    if not rows:
        return ""
    cut = "" if len(rows) <= MAX_UNSURE else f", the first {MAX_UNSURE:,}"
    table_of = table(("sentence", "word", "tags"), rows[:MAX_UNSURE], "rll")
    return folded(f"Words whose tag has less than {SURE:.0%}, with alternatives: {len(rows):,}{cut}", table_of)


def _keys(scores: TagScores) -> str:
    items = "".join(
        f"<div><dt>{name}, of {share.num:,}</dt><dd>{_share(share)}</dd></div>"
        for name, share in named_shares(scores)
    )
    low, high = scores.interval()
    return (
        f'<dl class="keys">{items}</dl><p class="caption">95 % interval of the accuracy: {low:.4f} to {high:.4f}.</p>'
    )


def _f1_table(what: str, scores: Iterable[tuple[str, Any]]) -> str:
    rows = [
        [escape(name), *map(_ratio, (s.precision, s.recall, s.f1)), f"{s.num_gold:,}", f"{s.num_predicted:,}"]
        for name, s in scores
    ]
    return table([what, "precision", "recall", "F1", "gold", "predicted"], rows, "lrrrrr")


def _pairs(scores: TagScores) -> str:
    pairs = scores.confusion_pairs(20, num_words=5)
    if not pairs:
        return "<p>No errors.</p>"
    rows = [
        [
            escape(p.gold),
            escape(p.predicted),
            f"{p.count:,}",
            " ".join(f"{word(w)}&nbsp;<small>{n}</small>" for w, n in p.words),
        ]
        for p in pairs
    ]
    return table(["gold", "predicted", "count", "words"], rows, "llrl")


def _matrix(scores: TagScores) -> str:
    """The confusion matrix: counts, coloured by the share of the gold tag's tokens."""
    ranked = [scores.tags.index(score.tag) for score in scores.per_tag()][:MAX_MATRIX_TAGS]
    counts = scores.confusion
    head = "<tr><td></td>" + "".join(f"<th>{escape(scores.tags[k])}</th>" for k in ranked) + "</tr>"
    rows = []
    for gold in ranked:
        total = max(int(counts[gold].sum()), 1)
        cells = "".join(f"<td{_heat(gold == k, counts[gold, k] / total)}>{counts[gold, k] or ''}</td>" for k in ranked)
        rows.append(f"<tr><th>{escape(scores.tags[gold])}</th>{cells}</tr>")
    drawn = wide(f'<table class="matrix">{head}{"".join(rows)}</table>')
    return folded("Confusion matrix: gold tags down, predicted tags across", drawn)


def _heat(right: bool, share: float) -> str:
    return ' class="right"' if right else f' style="--s:{min(share * 4, 1):.2f}"' if share else ""


def _share(share: Share) -> str:
    return _ratio(share.accuracy)


def _ratio(value: float) -> str:
    return "–" if value != value else f"{value:.4f}"
