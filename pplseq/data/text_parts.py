"""Text that is read in parts: of files that are larger than memory, or on several machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pplseq import checks
from pplseq.data.lag_counts import Part as CountedPart
from pplseq.data.lag_counts import check_disjoint
from pplseq.data.locations import matching
from pplseq.data.streams import TextStream, decoded
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary

PART_BYTES = 1 << 22  # a million tokens or less, so that what is done shows, and a lost worker loses little


class TextPart(NamedTuple):
    """What one worker reads at once.

    Args:
        source: as `TextStream` takes it. span: bytes of it, or None for all.
    """

    source: str
    span: tuple[int, int] | None = None

    def __str__(self) -> str:
        return self.source if self.span is None else "{}, bytes {:,} to {:,}".format(self.source, *self.span)

    def stream(self) -> TextStream:
        """Its text, to be read once."""
        return TextStream(self.source, self.span, is_part=True)


def files_of(source: str | Path) -> list[TextStream]:
    """The files that a source names, each once.

    Args:
        source: a file, a URL, a folder with a *train* file, "x.jsonl#column", or a pattern of such with *.

    Raises:
        FileNotFoundError: no such file. ValueError: standard input and sources without a file; a file, or its copy, that
            stands there twice.
    """
    streams = [TextStream(name) for name in matching(source)]
    for stream in streams:
        if stream.file is None:
            raise ValueError(f"{stream.name}: a cluster reads files that its workers can open; put the text in one")
    check_disjoint([CountedPart(stream.name, str(stream.fingerprint)) for stream in streams])
    return streams


def parts_of(files: Sequence[TextStream], unit: str = "line", part_bytes: int = PART_BYTES) -> list[TextPart]:
    """A text in parts that are counted by themselves.

    Args:
        files: see :func:`files_of`; the workers must reach them by the same address. A packed or Parquet file is a part.
        unit: where pairs end; of articles, every file is a part.
        part_bytes: of a part of another file, about.
    """
    checks.count("part_bytes", part_bytes)
    parts: list[TextPart] = []
    for stream in files:
        assert stream.file is not None
        address = f"{stream.file.address}#{stream.file.column}" if stream.file.column else stream.file.address
        size = stream.file.num_bytes
        if stream.can_be_cut and unit == "line" and size > part_bytes:
            edges = [*range(0, size, part_bytes), size]
            parts += [TextPart(address, span) for span in zip(edges[:-1], edges[1:], strict=True)]
        else:
            parts.append(TextPart(address))
    return parts


def read_part(part: TextPart, vocabulary: Vocabulary, lower: bool = False) -> Text:
    """The lines of a part, encoded; a part of blank lines may have no token.

    Raises:
        ValueError: an unknown word where the vocabulary has no ``<unk>``, or bytes that are not UTF-8.
    """
    name, lines, rest = str(part), [], ""
    for piece in decoded(part.stream(), lower):
        *whole, rest = (rest + piece.text).split("\n")
        lines += [vocabulary.split(line) for line in whole]
    if any(lines):
        return Text.from_lines(lines, vocabulary, name=name, article_starts=[0, len(lines)])
    ends = [] if vocabulary.eos_id is None else [vocabulary.eos_id]
    tokens, starts = np.array(ends * len(lines), dtype=np.int32), np.arange(len(lines) + 1) * len(ends)
    return Text(tokens, starts, np.array([0, len(lines)]), vocabulary, name)


class TextFiles:
    """A text in files, of which one part at a time is in memory.

    EM of a model of words learns from it as from the same lines in a list (``HMM(...).fit(TextFiles(...))``), in this process
    or with ``cluster=`` on many.

    Args:
        source: see :func:`files_of`.
        vocabulary: of the words; where it has ``<eos>``, every line ends in it.
        lower: lower-case the text.
        part_bytes: see :func:`parts_of`.

    Raises:
        FileNotFoundError, ValueError: as :func:`files_of`.
    """

    def __init__(
        self, source: str | Path, vocabulary: Vocabulary, *, lower: bool = False, part_bytes: int = PART_BYTES
    ):
        if not isinstance(vocabulary, Vocabulary):
            raise TypeError(f"vocabulary: expected a Vocabulary of the words, got {type(vocabulary).__name__}")
        self.source, self.vocabulary, self.lower = source, vocabulary, lower
        self.parts = parts_of(files_of(source), part_bytes=part_bytes)

    def read(self, number: int) -> Text:
        """The lines of a part, encoded."""
        return read_part(self.parts[number], self.vocabulary, self.lower)

    def __len__(self) -> int:
        """How many parts there are."""
        return len(self.parts)

    def __repr__(self) -> str:
        return f"TextFiles({str(self.source)!r}, {len(self)} parts, {len(self.vocabulary)} words)"
