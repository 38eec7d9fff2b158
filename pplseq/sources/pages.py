"""What a stream's page shows: its last words and totals over all of it, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pplseq.files import write_text
from pplseq.report.personal import StreamTotals, StreamView
from pplseq.sources.words import Line


class _ShownLine(NamedTuple):
    number: int
    words: list[str]
    known: list[bool]
    log_probs: dict[str, list[float]]
    log_odds: list[float] | None


class Shown:
    """The last words of a stream, for its page, and totals over all of it; bounded memory.

    Args:
        names: of the models whose log-probabilities come.
        max_words: words kept, in whole lines (the last line is kept even where it is longer).
    """

    def __init__(self, names: Sequence[str], max_words: int) -> None:
        self.names, self.max_words, self.totals = list(names), max_words, StreamTotals()
        self._lines: deque[_ShownLine] = deque()
        self._count = 0

    def add(self, line: Line, log_probs: Sequence[Sequence[float]], log_odds: Sequence[float] | None) -> None:
        """Take in a line: (T,) log-probabilities of every model, and log-odds where there are some."""
        if not line.words:
            return
        scores = {name: list(values) for name, values in zip(self.names, log_probs, strict=True)}
        self.totals.add(scores, line.known)
        if self.max_words == 0:
            return
        odds = None if log_odds is None else list(log_odds)
        self._lines.append(_ShownLine(line.answer["line"], line.words, line.known, scores, odds))
        self._count += len(line.words)
        while self._count > self.max_words and len(self._lines) > 1:
            self._count -= len(self._lines.popleft().words)

    def view(self, *names: str) -> StreamView:
        """What was kept, for the models named (one, or two to compare).

        Raises:
            ValueError: there was no word.
        """
        lines, starts, words = list(self._lines), [], []
        odds: list[float] | None = None if not lines or lines[0].log_odds is None else []
        for line in lines:
            starts.append(len(words))
            words += line.words
            if odds is not None:
                odds += line.log_odds or []
        totals = StreamTotals(
            self.totals.num_tokens,
            {name: self.totals.nats[name] for name in names if name in self.totals.nats},
            {name: self.totals.probs[name] for name in names if name in self.totals.probs},
            self.totals.num_unknown,
            {name: self.totals.known_nats[name] for name in names if name in self.totals.known_nats},
        )
        return StreamView(
            words,
            {name: [value for line in lines for value in line.log_probs[name]] for name in names},
            odds,
            line_starts=starts or None,
            line_numbers=[line.number for line in lines] or None,
            known=[known for line in lines for known in line.known],
            totals=totals,
        )

    def write(self, names: Sequence[str], html: Path | None, title: str, command: str) -> None:
        """Write the page, if one was asked for, whole or not at all, where there was a word to show.

        Args:
            names: of one model, or of two to compare. command: for the page's footer.
        """
        if self.totals.num_tokens and html is not None:
            from pplseq.report.personal import render_personal_page

            write_text(html, render_personal_page(self.view(*names), title=title, command=command))
