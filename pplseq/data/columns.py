"""Tagged sentences from files of columns: CoNLL-2000 (`word tag chunk`) and the words and tags of CoNLL-U."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pplseq.data.sources import OPENERS, existing_path


class TaggedSentence(NamedTuple):
    """words, tags: as many of the one as of the other."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


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
    width: int | None = None

    def token(line: str, place: str) -> tuple[str, str]:
        nonlocal width
        columns = line.split()
        if len(columns) <= tag_column:
            raise ValueError(
                f"{place}: expected at least {tag_column + 1} columns, got {len(columns)}: {line!r}; a token's line is its "
                "word and its tags, and blank lines stand between sentences"
            )
        width = width or len(columns)
        if len(columns) != width:
            raise ValueError(f"{place}: expected {width} columns as in the lines before, got {len(columns)}: {line!r}")
        return columns[0], columns[tag_column]

    yield from _sentences(Path(path), token)


def read_conllu(path: str | Path, *, tag: str = "upos") -> Iterator[TaggedSentence]:
    """Read words and their tags from a CoNLL-U file.

    Multiword tokens (ids such as 3-4) and empty nodes (3.1) are left out, so that the words are the syntactic ones.

    Args:
        path: a UTF-8 file, plain or packed as .gz or .xz.
        tag: "upos", the universal tag, or "xpos", the language's own (PTB tags in English treebanks).

    Yields:
        The sentences, in the file's order. A form that holds white space has it replaced by `_`, as no word has any.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line that has not ten columns, or an id that is no number; by the line's number. A file without
            tokens.

    Source: https://universaldependencies.org/format.html
    """
    if tag not in ("upos", "xpos"):
        raise ValueError(f"tag: expected 'upos' or 'xpos', got {tag!r}")
    column = {"upos": 3, "xpos": 4}[tag]

    def token(line: str, place: str) -> tuple[str, str] | None:
        if line.startswith("#"):
            return None
        columns = line.split("\t")
        if len(columns) != 10:
            raise ValueError(f"{place}: expected 10 columns between tabs (CoNLL-U), got {len(columns)}: {line!r}")
        if not columns[0].isdecimal():
            if not columns[0].replace("-", "", 1).replace(".", "", 1).isdecimal():
                raise ValueError(f"{place}: expected an id such as 3, 3-4 or 3.1, got {columns[0]!r}")
            return None
        return "_".join(columns[1].split()), columns[column]

    yield from _sentences(Path(path), token)


def _sentences(path: Path, token: Callable[[str, str], tuple[str, str] | None]) -> Iterator[TaggedSentence]:
    """Groups of what `token(line, place)` reads; blank lines end a group."""
    num_tokens = 0
    for group in _groups(_numbered_lines(path)):
        pairs = [pair for number, line in group if (pair := token(line, f"{path}, line {number}")) is not None]
        if pairs:
            num_tokens += len(pairs)
            yield TaggedSentence(*zip(*pairs, strict=True))
    if not num_tokens:
        raise ValueError(f"{path}: no tokens; expected a token a line, with its tags")


def _groups(lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    group: list[tuple[int, str]] = []
    for number, line in lines:
        if line.strip():
            group.append((number, line))
        elif group:
            yield group
            group = []
    if group:
        yield group


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    path = existing_path(path)
    if path.is_dir():
        raise ValueError(f"{path}: expected a file of columns, got a folder; name one of the files in it")
    with OPENERS.get(path.suffix, open)(path, "rb") as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: byte 0x{raw[error.start]:02x} is not UTF-8 text; convert the file to UTF-8"
                ) from error
            yield number, line.rstrip("\r\n")
