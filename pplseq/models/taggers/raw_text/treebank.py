"""Tokens, words and sentences of a CoNLL-U file with the spaces between them: the raw text of a treebank, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pplseq.data.columns import blocks_of, decoded, read_raw_lines
from pplseq.data.tag_formats import NO_TAG, ConlluFormat, LineError
from pplseq.data.vocabulary import split_words

NEW_PARAGRAPH = ("# newpar", "# newdoc")


class Token(NamedTuple):
    """A piece of the text.

    Attributes:
        text: as it stands there. space_after: whether white space follows.
        words: the syntactic words it stands for, itself where it is one: can't is can and n't.
        columns: the columns of each word, behind its form; () where nothing is known of them.
    """

    text: str
    space_after: bool = True
    words: tuple[str, ...] = ()
    columns: tuple[tuple[str, ...], ...] = ()


Sentence = Sequence[Token]


def read_paragraphs(path: str | Path) -> list[list[list[Token]]]:
    """Paragraphs of sentences of tokens. A sentence begins a paragraph where a comment says so (newpar, newdoc).

    Raises:
        FileNotFoundError: no such file. ValueError: no CoNLL-U, by the line's number; no words.
    """
    paragraphs: list[list[list[Token]]] = []
    tag_format = ConlluFormat()
    for block in blocks_of(read_raw_lines(path), tag_format):
        try:
            lines = decoded(block)
            tag_format.parse(lines)
        except LineError as error:
            raise ValueError(f"{path}, line {error.number}: {error}") from None
        tokens = _tokens(line.text for line in lines)
        if not tokens:
            continue
        if not paragraphs or any(line.text.startswith(NEW_PARAGRAPH) for line in lines):
            paragraphs.append([])
        paragraphs[-1].append(tokens)
    if not paragraphs:
        raise ValueError(f"{path}: no words; expected a treebank in CoNLL-U")
    return paragraphs


def _tokens(lines: Iterable[str]) -> list[Token]:
    found: list[Token] = []
    last = 0  # word of the multiword token that is open
    for line in lines:
        columns = line.split("\t")
        if line.startswith("#") or "." in columns[0]:
            continue
        spaced = "SpaceAfter=No" not in columns[9].split("|")
        if "-" in columns[0]:
            last = int(columns[0].partition("-")[2])
            found.append(Token(columns[1], spaced))
        elif int(columns[0]) <= last:
            token = found[-1]
            words, rows = (*token.words, columns[1]), (*token.columns, tuple(columns[2:]))
            found[-1] = token._replace(words=words, columns=rows)
        else:
            found.append(Token(columns[1], spaced, (columns[1],), (tuple(columns[2:]),)))
    return found


def raw_text(sentences: Iterable[Sentence]) -> str:
    """The text of tokens, with one space for white space."""
    return "".join(in_a_line(token.text) + " " * token.space_after for sentence in sentences for token in sentence).rstrip(" ")


def in_a_line(text: str) -> str:
    """A token with one space for its spaces, tabs and ends of lines, so that it can stand in a line of columns."""
    return " ".join(split_words(text))


def conllu_lines(sentence: Sentence) -> list[str]:
    """The lines of a sentence whose words are not tagged yet."""
    lines = [f"# text = {raw_text([sentence])}"]
    number = 1
    for token in sentence:
        misc = NO_TAG if token.space_after else "SpaceAfter=No"
        words = token.words or (token.text,)
        form = in_a_line(token.text)
        if len(words) > 1:
            lines.append("\t".join([f"{number}-{number + len(words) - 1}", form, *[NO_TAG] * 7, misc]))
        rows = [(form, misc)] if len(words) == 1 else [(word, NO_TAG) for word in words]
        for written, note in rows:
            lines.append("\t".join([str(number), written, *[NO_TAG] * 7, note]))
            number += 1
    return lines
