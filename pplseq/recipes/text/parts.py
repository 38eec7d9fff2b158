"""A text larger than a machine, scored in parts by the workers of a cluster, every line from the start distribution."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pplseq.data.text_parts import PART_BYTES, TextPart, files_of, parts_of, read_part
from pplseq.runs.cluster import Cluster
from pplseq.runs.evaluation import TextScore, score_sentences


class PartScore(NamedTuple):
    """Sums over a part: lines, tokens, unknown ones, nats of all tokens, nats of the known ones."""

    num_lines: int
    num_tokens: int = 0
    num_unknown: int = 0
    log_prob: float = 0.0
    known_log_prob: float = 0.0


def score_part(model: Any, part: TextPart, lower: bool = False, batch_tokens: int | None = None) -> PartScore:
    """:func:`~pplseq.runs.evaluation.score_sentences` of a part, as sums."""
    text = read_part(part, model.vocabulary, lower)
    if not text.num_tokens:
        return PartScore(text.num_lines)
    score = score_sentences(model, text, batch_tokens=batch_tokens)
    assert score.known_log_prob is not None
    return PartScore(text.num_lines, score.num_tokens, score.num_unknown, score.log_prob, score.known_log_prob)


def score_on(
    cluster: Cluster,
    model: Any,
    source: str | Path,
    *,
    lower: bool = False,
    batch_tokens: int | None = None,
    part_bytes: int = PART_BYTES,
    done: Callable[[int, int], None] | None = None,
) -> TextScore:
    """:func:`~pplseq.runs.evaluation.score_sentences` of files on a cluster: the same sums, without the single tokens.

    Args:
        cluster: see :func:`pplseq.runs.cluster.connected`.
        model: of words, with its vocabulary, on the CPU; it is sent to the workers once.
        source: see :func:`~pplseq.data.text_parts.files_of`. part_bytes: see :func:`~pplseq.data.text_parts.parts_of`.
        lower: lower-case the text. batch_tokens: as of ``score_sentences``.
        done: is told how many parts of how many are scored.

    Raises:
        PartFailed: when the other parts are scored; names those that could not be.
        ValueError, FileNotFoundError: no such file, or no words in any.
    """
    parts = parts_of(files_of(source), part_bytes=part_bytes)
    [kept] = cluster.keep([model])
    scores = cluster.each(score_part, [(kept, part, lower, batch_tokens) for part in parts], list(map(str, parts)), done=done)
    lines, tokens, unknown, log_prob, known = (sum(column) for column in zip(*scores, strict=True))
    if not tokens:
        raise ValueError(f"{source}: the text is empty (no words)")
    return TextScore("sentence", int(lines), int(tokens), int(unknown), log_prob, np.empty(0), known)
