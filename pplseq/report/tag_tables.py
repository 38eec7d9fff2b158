"""Scores of taggers as tables of plain text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pplseq.models.taggers.comparison import CurvePoint, SystemResult
from pplseq.models.taggers.scores import McNemar, Share, TagScores, mcnemar
from pplseq.models.taggers.spans.scores import SpanScore, SpanScores


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: str) -> str:
    """A table with aligned columns.

    Args:
        columns: a letter each: "l" left, "r" right.
    """
    cells = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    sides = {"l": str.ljust, "r": str.rjust}
    lines = [
        "  ".join(sides[side](cell, width) for cell, width, side in zip(row, widths, columns, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def named_shares(scores: TagScores) -> list[tuple[str, Share]]:
    """Accuracies of those kinds of words that there are, and of sentences, by name."""
    shares = [
        ("all words", scores.all_words),
        ("known words", scores.known_words),
        ("unknown words", scores.unknown_words),
        ("ambiguous words", scores.ambiguous_words),
        ("whole sentences", scores.sentences),
    ]
    return [(name, share) for name, share in shares if share is not None]


def scores_table(scores: TagScores, interval: tuple[float, float] | None = None) -> str:
    """Accuracy of all, known, unknown and ambiguous words and of sentences."""
    rows = [[name, share_of(share), f"{share.num_correct:,}", f"{share.num:,}"] for name, share in named_shares(scores)]
    table = plain_table(["", "accuracy", "right", "of"], rows, "lrrr")
    if interval is not None:
        table += f"\n95 % interval of the accuracy, drawing sentences: {interval[0]:.4f} to {interval[1]:.4f}"
    if scores.num_unlabelled:
        table += f"\n{scores.num_unlabelled:,} words without a gold tag are left out"
    return table


def columns_table(columns: Mapping[str, TagScores]) -> str:
    """Accuracy of each of several columns."""
    rows = [
        [name, *("" if s is None else share_of(s) for s in (scores.all_words, scores.known_words, scores.unknown_words))]
        for name, scores in columns.items()
    ]
    return plain_table(["column", "accuracy", "known words", "unknown words"], rows, "lrrr")


def per_tag_table(scores: TagScores) -> str:
    """Precision, recall and F1 of every tag."""
    rows = [
        [s.tag, ratio(s.precision), ratio(s.recall), ratio(s.f1), f"{s.num_gold:,}", f"{s.num_predicted:,}"]
        for s in scores.per_tag()
    ]
    rows.append(["mean of gold tags", "", "", ratio(scores.macro_f1), "", ""])
    return plain_table(["tag", "precision", "recall", "F1", "gold", "predicted"], rows, "lrrrrr")


def systems_by_tag_table(results: Sequence[SystemResult]) -> str:
    """F1 of every tag of the test text, most frequent first, by each system that worked."""
    worked = [result for result in results if result.scores is not None]
    f1: list[dict[str, float]] = [{s.tag: s.f1 for s in r.scores.per_tag()} for r in worked if r.scores is not None]
    gold = {s.tag: s.num_gold for r in worked[:1] if r.scores is not None for s in r.scores.per_tag() if s.num_gold}
    tags = sorted(gold, key=lambda tag: -gold[tag])
    rows = [[tag, f"{gold[tag]:,}", *(ratio(found.get(tag, math.nan)) for found in f1)] for tag in tags]
    return plain_table(["F1 of tag", "gold", *(r.name for r in worked)], rows, "lr" + "r" * len(worked))


def spans_table(scores: SpanScores) -> str:
    """Precision, recall and F1 of whole spans, of all and by kind."""
    return f1_table("span", {"all spans": scores.overall, **scores.by_kind})


def f1_table(what: str, scores: Mapping[str, SpanScore]) -> str:
    """Precision, recall and F1 by name."""
    rows = [
        [name, ratio(s.precision), ratio(s.recall), ratio(s.f1), f"{s.num_gold:,}", f"{s.num_predicted:,}"]
        for name, s in scores.items()
    ]
    return plain_table([what, "precision", "recall", "F1", "gold", "predicted"], rows, "lrrrrr")


def confusion_table(scores: TagScores, top: int = 10) -> str:
    """The most frequent errors, their share of all errors and the words they happen to."""
    num_errors = scores.num_tokens - scores.all_words.num_correct
    pairs = scores.confusion_pairs(top)
    if not pairs:
        return "no errors"
    rows = [
        [p.gold, p.predicted, f"{p.count:,}", f"{p.count / num_errors:.1%}", " ".join(f"{w} {n}" for w, n in p.words)]
        for p in pairs
    ]
    return plain_table(["gold", "predicted", "count", "of errors", "words"], rows, "llrrl")


def comparison_table(results: Sequence[SystemResult]) -> str:
    """All systems, best first; p is McNemar's test against the best one. Those that failed follow, with the reason."""
    ranked = sorted(((r, r.scores) for r in results if r.scores is not None), key=lambda pair: -pair[1].accuracy)
    rows = []
    for result, scores in ranked:
        p = "" if result is ranked[0][0] else p_value(mcnemar(ranked[0][1], scores).p_value)
        rows.append(
            [
                result.name,
                *map(share_of, (scores.all_words, scores.known_words, scores.unknown_words, scores.ambiguous_words)),
                share_of(scores.sentences),
                ratio(scores.macro_f1),
                p,
                f"{result.train_seconds:,.1f}",
                f"{result.tokens_per_second:,.0f}",
            ]
        )
    head = ["system", "all", "known", "unknown", "ambiguous", "sentences", "macro F1", "p", "train s", "tokens/s"]
    table = plain_table(head, rows, "l" + "r" * 9) if rows else ""
    failed = [f"{result.name}: {result.error}" for result in results if result.scores is None]
    return "\n".join([table] * bool(table) + [""] * bool(table and failed) + failed)


def curve_table(points: Sequence[CurvePoint]) -> str:
    """A learning curve."""
    rows = [
        [
            f"{point.num_sentences:,}",
            f"{point.num_tokens:,}",
            *(share_of(getattr(point.result.scores, words)) for words in ("all_words", "known_words", "unknown_words")),
            f"{point.result.train_seconds:,.1f}",
        ]
        for point in points
    ]
    return plain_table(["sentences", "tokens", "all", "known", "unknown", "train s"], rows, "r" * 6)


def mcnemar_text(first: str, second: str, test: McNemar, interval: tuple[float, float]) -> str:
    """McNemar's test between two taggers, in two lines."""
    return (
        f"right in both {test.num_both:,}; only in {first} {test.num_first:,}; only in {second} {test.num_second:,}; "
        f"in neither {test.num_neither:,}\n"
        f"McNemar's test: p = {p_value(test.p_value)}; accuracy of {first} less that of {second}: "
        f"{interval[0]:+.4f} to {interval[1]:+.4f} (95 %, drawing sentences)"
    )


def p_value(p: float) -> str:
    """A p-value with two digits."""
    if p < 1e-99:
        return "< 1e-99"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def share_of(share: Share | None) -> str:
    """An accuracy; nothing where there is none."""
    return "" if share is None else ratio(share.accuracy)


def ratio(value: float) -> str:
    """A number in 0..1 with four digits."""
    return "–" if math.isnan(value) else f"{value:.4f}"
