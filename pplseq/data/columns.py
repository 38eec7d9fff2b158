"""Tagged sentences, read one by one from files of columns: CoNLL-2000 (`word tag chunk`) and CoNLL-U; the twelve universal
part-of-speech tags, and the Penn Treebank's tags as them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pplseq.data.sources import NUL_BYTE, opened
from pplseq.data.tag_formats import ColumnsFormat, ConlluFormat, Line, LineError, TagFormat


class TaggedSentence(NamedTuple):
    """words, tags: as many of the one as of the other; None stands for the tag of a word that is not labelled."""

    words: tuple[str, ...]
    tags: tuple[str | None, ...]


def read_columns(path: str | Path, *, tag_column: int = 1) -> Iterator[TaggedSentence]:
    """Read a file with a token a line, columns between white space, blank lines between sentences.

    Args:
        path: a UTF-8 file, plain or packed as .gz or .xz, such as CoNLL-2000's (`word tag chunk`).
        tag_column: which column holds the tag, the word being column 0; 2 reads CoNLL-2000's chunks.

    Yields:
        The sentences, in the file's order.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line with too few columns, or with another number than the first line, by its number; a file
            without tokens.

    Source: Tjong Kim Sang and Buchholz, Introduction to the CoNLL-2000 Shared Task: Chunking (2000).
    """
    if tag_column < 1:
        raise ValueError(f"tag_column: expected 1 or more (the word is column 0), got {tag_column}")
    yield from _sentences(path, ColumnsFormat(tag_column))


def read_conllu(path: str | Path, *, tag: str = "upos") -> Iterator[TaggedSentence]:
    """Read words and their tags from a CoNLL-U file.

    Multiword tokens (ids such as 3-4) and empty nodes (3.1) are left out, so that the words are the syntactic ones.

    Args:
        path: a UTF-8 file, plain or packed as .gz or .xz.
        tag: "upos", the universal tag, or "xpos", the language's own (PTB tags in English treebanks).

    Yields:
        The sentences, in the file's order. Words keep the spaces they hold.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line that has not ten columns, or an id that is no number or not the next one; by the line's
            number. A file without tokens.

    Source: https://universaldependencies.org/format.html
    """
    if tag not in ("upos", "xpos"):
        raise ValueError(f"tag: expected 'upos' or 'xpos', got {tag!r}")
    yield from _sentences(path, ConlluFormat(tag))


def _sentences(path: str | Path, tag_format: TagFormat) -> Iterator[TaggedSentence]:
    num_tokens = 0
    for block in blocks_of(read_raw_lines(path), tag_format):
        try:
            words, tags, _ = tag_format.parse(decoded(block))
        except LineError as error:
            raise ValueError(f"{path}, line {error.number}: {error}") from None
        if words:
            num_tokens += len(words)
            yield TaggedSentence(words, tags)
    if not num_tokens:
        raise ValueError(f"{path}: no tokens; expected a token a line, with its tags")


def read_raw_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of every line of a file, plain or packed as .gz or .xz; "-" reads standard input.

    Bytes, so that a line that is no UTF-8 text is an error of its own sentence alone.
    """
    with opened(path, "a file of columns") as (_, stream):
        yield from enumerate(stream, start=1)


def blocks_of(lines: Iterable[tuple[int, bytes]], tag_format: TagFormat) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of each sentence: a line, or those between blank lines."""
    block: list[tuple[int, bytes]] = []
    for number, raw in lines:
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")  # the byte order mark some editors write
        if tag_format.line_is_sentence:
            yield [(number, raw)]
        elif raw.strip():
            block.append((number, raw))
        elif block:
            yield block
            block = []
    if block:
        yield block


def decoded(block: Iterable[tuple[int, bytes]]) -> list[Line]:
    """The lines as text.

    Raises:
        LineError: a line that is no UTF-8 text, or holds what no line of text does.
    """
    lines = []
    for number, raw in block:
        if b"\0" in raw:
            raise LineError(number, NUL_BYTE)
        raw = raw.rstrip(b"\r\n")
        if b"\r" in raw:
            raise LineError(number, "a carriage return within the line; convert the file's line ends to \\n or \\r\\n")
        try:
            lines.append(Line(number, raw.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise LineError(
                number, f"byte 0x{raw[error.start]:02x} is not UTF-8 text; convert the file to UTF-8"
            ) from None
    return lines


# ------------------------------------------------------------------------------------------------ universal tags
UNIVERSAL_TAGS = ("ADJ", "ADP", "ADV", "CONJ", "DET", "NOUN", "NUM", "PRON", "PRT", "VERB", "X", ".")

_PTB_TAGS = {
    "ADJ": "JJ JJR JJS AFX",
    "ADP": "IN",
    "ADV": "RB RBR RBS WRB",
    "CONJ": "CC",
    "DET": "DT EX PDT WDT",
    "NOUN": "NN NNS NNP NNPS",
    "NUM": "CD",
    "PRON": "PRP PRP$ WP WP$",
    "PRT": "POS RP TO",
    "VERB": "MD VB VBD VBG VBN VBP VBZ",
    "X": "ADD FW GW LS SYM UH XX",
    # CoNLL-2000 writes brackets as ( and ), other releases as -LRB- and -RRB-.
    ".": "# $ '' ( ) , -LRB- -RRB- . : `` HYPH NFP",
}
PTB_TO_UNIVERSAL = {tag: universal for universal, tags in _PTB_TAGS.items() for tag in tags.split()}


def to_universal(tags: Iterable[str]) -> list[str]:
    """Penn Treebank tags as the twelve universal ones.

    Args:
        tags: of the 45 tags of the Penn Treebank, or of the newer ones of OntoNotes and the English treebanks of
            Universal Dependencies (ADD, AFX, GW, HYPH, NFP, XX). Of a compound tag (`JJ|NN`), the first counts.

    Raises:
        ValueError: naming the first tag that is none of them.

    Source: Petrov, Das and McDonald, A Universal Part-of-Speech Tagset (2011); its map en-ptb. The newer tags, which it
        does not list, are placed beside their like.
    """
    found = []
    for tag in tags:
        universal = PTB_TO_UNIVERSAL.get(tag) or PTB_TO_UNIVERSAL.get(tag.split("|")[0])
        if universal is None:
            raise ValueError(f"tags: {tag!r} is no Penn Treebank tag; expected one of {' '.join(PTB_TO_UNIVERSAL)}")
        found.append(universal)
    return found
