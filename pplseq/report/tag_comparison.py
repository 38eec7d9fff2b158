"""Taggers compared on one text, as an HTML page: all systems, each tag's F1 in each, the best one's errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pplseq.models.taggers.comparison import SystemResult
from pplseq.models.taggers.scores import TagScores, mcnemar
from pplseq.report.markup import escape, page, table
from pplseq.report.tag_tables import p_value, ratio, share_of
from pplseq.report.tagging import TAGGING_STYLE, score_sections


def render_comparison_page(results: Sequence[SystemResult], *, title: str, baseline: str = "most-frequent") -> str:
    """The page. It needs no other file and runs no script.

    Args:
        results: of the systems. title: of the page.
        baseline: the system that is marked as what every tagger should beat, where it is among them.
    """
    ranked = sorted(((r, r.scores) for r in results if r.scores is not None), key=lambda pair: -pair[1].accuracy)
    failed = [result for result in results if result.scores is None]
    sections = [("Systems", _systems(ranked, baseline))] if ranked else []
    if ranked:
        sections.append(("F1 of every tag", _f1(ranked)))
        best, scores = ranked[0]
        sections += [(f"{name}, {escape(best.name)}", content) for name, content in score_sections(scores)]
    if failed:
        rows = [(escape(result.name), escape(result.error)) for result in failed]
        sections.append(("Not trained", table(("System", "Why"), rows, "kl")))
    return page(title, f"<h1>{escape(title)}</h1>", sections, "Written by <code>pplseq tag compare</code>", TAGGING_STYLE)


def _systems(ranked: Sequence[tuple[SystemResult, TagScores]], baseline: str) -> str:
    rows = []
    for result, scores in ranked:
        p = "" if result is ranked[0][0] else escape(p_value(mcnemar(ranked[0][1], scores).p_value))
        shares = (scores.all_words, scores.known_words, scores.unknown_words, scores.ambiguous_words, scores.sentences)
        name = escape(result.name) + (" <small>baseline</small>" if result.name == baseline else "")
        times = (f"{result.train_seconds:,.1f}", f"{result.tokens_per_second:,.0f}")
        rows.append((name, *map(share_of, shares), ratio(scores.macro_f1), p, *times))
    head = ("System", "All", "Known", "Unknown", "Ambiguous", "Sentences", "Macro F1", "p", "Train s", "Tokens/s")
    caption = (
        f"<b>Accuracy</b> on {ranked[0][1].num_tokens:,} words, best first: all words, those that the training text has and "
        "has not, those with several tags there, whole sentences. p is McNemar’s test against the best."
    )
    return table(head, rows, "k" + "r" * 9, caption)


def _f1(ranked: Sequence[tuple[SystemResult, TagScores]]) -> str:
    best = ranked[0][1].per_tag()
    found = [{score.tag: score.f1 for score in scores.per_tag()} for _, scores in ranked]
    rows = [
        (escape(score.tag), f"{score.num_gold:,}", *(ratio(f1.get(score.tag, math.nan)) for f1 in found)) for score in best
    ]
    caption = "<b>F1 of every tag,</b> the most frequent first: the harmonic mean of precision and recall."
    head = ("Tag", "Gold", *(escape(result.name) for result, _ in ranked))
    return table(head, rows, "k" + "r" * (1 + len(ranked)), caption)
