"""Files of tagged sentences, read whole and written again with other tags; broken sentences may be skipped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

from pplseq import checks
from pplseq.data.columns import TaggedSentence, blocks_of, decoded, read_raw_lines
from pplseq.data.sources import OPENERS
from pplseq.data.tag_formats import (
    FORMATS,
    STDIN,
    ColumnsFormat,
    ConlluFormat,
    ConlluPlusFormat,
    LineError,
    TabsFormat,
    TagFormat,
    UntaggedError,
    WordsFormat,
    WordTagFormat,
    guess_format,
)
from pplseq.files import new_file, printable

SAMPLE_LINES = 200  # that tell the format
_BLANK_LINES: dict[bool, list[str]] = {True: [], False: [""]}  # after a sentence, by TagFormat.line_is_sentence


class SkippedSentence(NamedTuple):
    """A sentence that could not be read: its first and last line in the file, the line at fault and what is wrong."""

    first_line: int
    last_line: int
    line: int
    message: str


class SentenceBlock(NamedTuple):
    """A sentence as it stands in a file: its lines, the number of the first, and where in them its words stand."""

    first_line: int
    lines: tuple[str, ...]
    places: tuple[int, ...]


class TaggedFile(Sequence[TaggedSentence]):
    """The sentences of a file, and what it takes to write the file again with other tags.

    Sentences without words (an empty line of `word_TAG`, a CoNLL-U sentence of comments alone) are not among the
    sentences, but stand in their place when the file is written.

    Attributes:
        name: the file's path. tag_format: how it is written.
        blocks: every sentence as it stands in the file, also those without words.
        skipped: sentences that could not be read (`on_error="skip"`).
    """

    def __init__(
        self,
        name: str,
        tag_format: TagFormat,
        sentences: Sequence[TaggedSentence],
        blocks: Sequence[SentenceBlock],
        skipped: Sequence[SkippedSentence] = (),
    ) -> None:
        self.name, self.tag_format = name, tag_format
        self.blocks, self.skipped = tuple(blocks), tuple(skipped)
        self._sentences = tuple(sentences)
        self._with_words = tuple(i for i, block in enumerate(self.blocks) if block.places)

    def __len__(self) -> int:
        return len(self._sentences)

    @overload
    def __getitem__(self, index: int) -> TaggedSentence: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[TaggedSentence, ...]: ...

    def __getitem__(self, index):
        return self._sentences[index]

    @property
    def format(self) -> str:
        """The format's name."""
        return self.tag_format.name

    @property
    def num_tokens(self) -> int:
        """Words of all sentences."""
        return sum(len(sentence.words) for sentence in self._sentences)

    def written_as(self, tag_format: TagFormat) -> TaggedFile:
        """The same sentences and lines, to be written in another format of the same shape."""
        return TaggedFile(self.name, tag_format, self._sentences, self.blocks, self.skipped)

    def line_of(self, index: int, position: int = 0) -> int:
        """The line of the file on which a word of a sentence stands."""
        block = self.blocks[self._with_words[index]]
        return block.first_line + (0 if self.tag_format.line_is_sentence else block.places[position])


def read_tagged(
    path: str | Path,
    format: str | Callable[[str, Sequence[str]], str] | None = None,
    column: str | int | Mapping[str, str | int | None] | None = None,
    *,
    on_error: str = "raise",
    tags: str = "required",
    separator: str = "_",
    to_tag: bool = False,
    word_columns: Sequence[int] = (),
    word_column: int | Mapping[str, int] = 0,
) -> TaggedFile:
    """Read a file of tagged sentences.

    Args:
        path: a UTF-8 file, plain or packed as .gz or .xz; "-" reads standard input.
        format: "conllu", "conllup" (CoNLL-U Plus), "columns" (CoNLL-2000), "tabs" (the same between tabs alone, so that words
            may hold spaces), "word_tag" (a sentence a line) or "words" (the same without tags). None: by the name (.conllu,
            .conllup) or the first lines, but for "tabs". Or a function from the name and the first lines to one of these.
        column: that holds the tags. CoNLL-U: "upos" (default), "xpos", "feats", ..., "misc:Entity"; columns: a number, the
            word being column 0 (default 1), or "chunk" (2). A dictionary chooses by the file's format.
        on_error: "raise", or "skip" sentences that cannot be read, which are then in `skipped`.
        tags: "required", or "optional": words may lack tags (None; written `_` in columns).
        separator: between word and tag of "word_tag".
        word_columns: numbers of further columns that words are read with, as a :class:`~pplseq.data.tag_formats.Word`.
        word_column: that holds the words, of "columns" and "tabs"; a dictionary as for `column`.
        to_tag: it may be empty, and is taken for words unless it is clearly something else: see `guess_format`.

    Returns:
        The sentences, as a sequence.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a malformed line, by its number; a word without the required tag; a file without words, or of an
            unclear format.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error: expected 'raise' or 'skip', got {checks.shown(on_error)}")
    if tags not in ("required", "optional"):
        raise ValueError(f"tags: expected 'required' or 'optional', got {checks.shown(tags)}")
    name, optional = STDIN if str(path) == "-" else str(path), tags == "optional"
    raw = list(read_raw_lines(path))
    if not isinstance(format, str):
        sample = [line.decode("utf-8", "replace").strip("\ufeff\r\n") for _, line in raw if line.strip()][:SAMPLE_LINES]
        if not sample and not to_tag:
            raise ValueError(f"{name}: no words; the file is empty")
        plain = name.removesuffix(Path(name).suffix) if Path(name).suffix in OPENERS else name
        if format is None:
            format = guess_format(plain, sample, separator=separator, tags_optional=optional or not sample, to_tag=to_tag)
        else:
            format = format(plain, sample)
    chosen = column.get(format) if isinstance(column, Mapping) else column
    of_words = word_column.get(format, 0) if isinstance(word_column, Mapping) else word_column
    tag_format = make_format(format, chosen, separator=separator, tags_optional=optional, word_column=of_words)
    if word_columns and tag_format.line_is_sentence:
        raise ValueError(f"{name}: the format {format!r} has no columns {', '.join(map(str, word_columns))} beside the words, "
                         "which the model looks at; give a file of columns")  # fmt: skip
    tag_format.word_columns = tuple(word_columns)
    sentences, blocks, skipped = [], [], []
    for block in blocks_of(raw, tag_format):
        first, last, untagged = block[0][0], block[-1][0], False
        try:
            lines = decoded(block)
            parsed = tag_format.parse(lines)
            if not optional and None in parsed.tags:
                missing, untagged = parsed.tags.index(None), True
                line = first if tag_format.line_is_sentence else lines[parsed.places[missing]].number
                raise LineError(line, f"no tag of the word {parsed.words[missing]!r}{_where(tag_format)}")
        except LineError as error:
            if on_error == "raise":
                kind = UntaggedError if untagged else ValueError
                raise kind(f"{name}, line {error.number}: {error}") from None
            skipped.append(SkippedSentence(first, last, error.number, str(error)))
            continue
        blocks.append(SentenceBlock(first, tuple(line.text for line in lines), parsed.places))
        if parsed.words:
            sentences.append(TaggedSentence(parsed.words, parsed.tags))
    if not sentences and not (to_tag and not skipped):
        why = f"; the first was skipped because of line {skipped[0].line}: {skipped[0].message}" if skipped else ""
        raise ValueError(f"{name}: no words in any sentence ({tag_format.name}){why}")
    return TaggedFile(name, tag_format, sentences, blocks, skipped)


def _where(tag_format: TagFormat) -> str:
    if isinstance(tag_format, WordsFormat):
        return "; the format 'words' has no tags"
    column = getattr(tag_format, "column", None)
    return "" if column is None else f" in column {column} (counted from 0)"


def make_format(
    format: str, column: str | int | None = None, *, separator: str = "_", tags_optional: bool = False, word_column: int = 0
) -> TagFormat:
    """The format of a name.

    Raises:
        ValueError: no such format or column, a column of a format that has none, or words in a column of one that has its own.
    """
    for kind in (ColumnsFormat, TabsFormat):
        if format == kind.name:
            return kind(column, tags_optional=tags_optional, word_column=word_column)
    if word_column != 0:
        raise ValueError(f"word_column: of the formats 'columns' and 'tabs', got {word_column} of {checks.shown(format)}")
    for kind in (ConlluFormat, ConlluPlusFormat):
        if format == kind.name:
            return kind(column)
    if column is not None and format in (WordTagFormat.name, WordsFormat.name):
        raise ValueError(f"column: the format {format!r} has none, got {checks.shown(column)}; leave it out, or say the format")
    if format == WordTagFormat.name:
        return WordTagFormat(separator, tags_optional=tags_optional)
    if format == WordsFormat.name:
        return WordsFormat(separator)
    raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {checks.shown(format)}")


def write_tagged(
    path: str | Path,
    sentences: Iterable[TaggedSentence],
    format: str | None = None,
    column: str | int | None = None,
    *,
    source: TaggedFile | None = None,
    probabilities: Sequence[Sequence[float]] | None = None,
    separator: str = "_",
    word_column: int = 0,
) -> None:
    """Write tagged sentences to a file, whole or not at all, or to standard output.

    Args:
        path: the file, written at once when all is rendered (so it may be the one that was read), packed if its name
            ends in .gz or .xz; "-" is standard output.
        sentences: what to write. With `source`, its words with other tags.
        format: as of `read_tagged`; None: that of `source`, else "conllu". column: that gets the tags; None: that of
            `source` where the format is the same.
        source: keeps what else stands in the file that was read (comments, multiword tokens, empty nodes, other
            columns, empty sentences), if it is written in the format it was read in. Sentences that were skipped
            are left out.
        probabilities: of the tags, a sequence a sentence: TagProb=0.9731 in the last column of CoNLL-U, a further
            column of columns, a third part of word_TAG.
        word_column: that gets the words, of "columns" and "tabs"; with `source` in its own format they stay where they are.

    Raises:
        ValueError: sentences that are not those of the source; probabilities that do not fit; a tag that holds the
            separator of word_TAG.
    """
    told: Any = {"source": source, "probabilities": probabilities, "separator": separator, "word_column": word_column}
    lines = render_tagged(sentences, format, column, **told)
    text = "".join(line + "\n" for line in lines)
    steered = str(path) == "-" and sys.stdout.isatty()  # a terminal shows what would steer it; files and pipes get the words
    data = (printable(text) if steered else text).encode("utf-8")
    if str(path) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = Path(path).expanduser()
    with new_file(path) as new, OPENERS.get(path.suffix, open)(new, "wb") as stream:
        stream.write(data)


def render_tagged(
    sentences: Iterable[TaggedSentence],
    format: str | None = None,
    column: str | int | None = None,
    *,
    source: TaggedFile | None = None,
    probabilities: Sequence[Sequence[float]] | None = None,
    separator: str = "_",
    word_column: int = 0,
) -> list[str]:
    """The lines that `write_tagged` writes, of all sentences."""
    sentences = list(sentences)
    _check(sentences, source, probabilities)
    same = source if source is not None and format in (None, source.format) else None
    if same is not None and column is None:
        tag_format = same.tag_format
    else:
        name = format or (ConlluFormat.name if same is None else same.format)
        word_column = word_column if same is None else getattr(same.tag_format, "word_column", 0)
        tag_format = make_format(name, column, separator=separator, word_column=word_column)
    found: list[str] = []
    after = _BLANK_LINES[tag_format.line_is_sentence]
    if same is None:
        for i, (words, tags) in enumerate(sentences):
            found += tag_format.render(words, tags, None if probabilities is None else probabilities[i])
            found += after
        return found
    i = 0
    for block in same.blocks:
        if not block.places:
            found += [*block.lines, *after]
            continue
        words, tags = sentences[i]
        probs = None if probabilities is None else probabilities[i]
        found += tag_format.render(words, tags, probs, block.lines, block.places)
        found += after
        i += 1
    return found


def _check(
    sentences: Sequence[TaggedSentence], source: TaggedFile | None, probabilities: Sequence[Sequence[float]] | None
) -> None:
    for i, (words, tags) in enumerate(sentences):
        if len(words) != len(tags):
            raise ValueError(
                f"sentences: expected a tag a word, got {len(words)} words and {len(tags)} tags in number {i}"
            )
    if probabilities is not None:
        if len(probabilities) != len(sentences):
            raise ValueError(f"probabilities: expected {len(sentences)} sentences, got {len(probabilities)}")
        for i, (sentence, probs) in enumerate(zip(sentences, probabilities, strict=True)):
            if len(probs) != len(sentence.words):
                raise ValueError(
                    f"probabilities: expected {len(sentence.words)} numbers in sentence {i}, got {len(probs)}"
                )
    if source is not None:
        if len(source) != len(sentences):
            raise ValueError(f"sentences: expected the {len(source)} of {source.name}, got {len(sentences)}")
        for i, (given, read) in enumerate(zip(sentences, source, strict=True)):
            if tuple(given.words) != read.words:
                raise ValueError(
                    f"sentences: number {i} has other words than {source.name} at line {source.line_of(i)}"
                )
