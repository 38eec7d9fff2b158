"""How files write tagged sentences: CoNLL-U and CoNLL-U Plus, columns (CoNLL-2000), word_TAG, and words without tags.

A format parses the lines of one sentence and renders them again with other tags, everything else as it was.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

from pplseq import checks

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
NEW_DOCUMENT = "-DOCSTART-"  # as CoNLL-2003 writes it, where a word stands elsewhere
NO_TAG = "_"  # as CoNLL-U writes what is not specified
BETWEEN_COLUMNS = "\t"  # in a tag that is read from several columns, which hold none
PROBABILITY_KEY = "TagProb"

_GLOBAL_COLUMNS = re.compile(r"#\s*global\.columns\s*=\s*(.*)")
_ID = re.compile(r"([1-9]\d*)|(\d+)-(\d+)|\d+\.\d+")
_SPACES = re.compile(r"[ \t]+")  # not the white space of Unicode, which may be part of a word (1 000)
_PROBABILITY = re.compile(r"[01]\.\d+")


class Line(NamedTuple):
    """A line of a file and its number, from 1."""

    number: int
    text: str


class LineError(ValueError):
    """What is wrong with a line."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class UntaggedError(ValueError):
    """A word of a text lacks the tag that is required."""


class Word(str):
    """A word with what further columns of its line say of it; equal to the word alone.

    Attributes:
        columns: by their numbers, the word's own left out.
    """

    columns: Mapping[int, str]

    def __new__(cls, word: str, columns: Mapping[int, str]) -> Self:
        made = super().__new__(cls, word)
        made.columns = dict(columns)
        return made

    def __repr__(self) -> str:
        return f"Word({str.__repr__(self)}, {self.columns!r})"

    def __reduce__(self) -> tuple[type[Word], tuple[str, Mapping[int, str]]]:
        return Word, (str(self), self.columns)


def words_with(words: Sequence[str], lines: Sequence[Line], rows: Sequence[Sequence[str]], wanted: Sequence[int]) -> tuple:
    """The words with the columns that are wanted, of the columns of their lines.

    Raises:
        LineError: a line that lacks one.
    """
    if not wanted:
        return tuple(words)
    for line, row in zip(lines, rows, strict=True):
        if len(row) <= max(wanted):
            raise LineError(
                line.number, f"expected a column {max(wanted)} (the first is 0), which the model looks at: {_shown(line.text)}"
            )
    return tuple(Word(word, {i: row[i] for i in wanted}) for word, row in zip(words, rows, strict=True))


class ParsedSentence(NamedTuple):
    """words, tags (None where there is none), and for each word where it stands: the index of its line, or its index in
    the line where a line is a sentence."""

    words: tuple[str, ...]
    tags: tuple[str | None, ...]
    places: tuple[int, ...]


class TagFormat(ABC):
    """How a file writes tagged sentences.

    Attributes:
        name: as `read_tagged` takes it.
        line_is_sentence: whether a line is a whole sentence; otherwise it is a word, and blank lines end sentences.
        word_columns: numbers of further columns that words are read with; see :class:`Word`.
    """

    name: ClassVar[str]
    line_is_sentence: ClassVar[bool] = False
    word_columns: Sequence[int] = ()

    @abstractmethod
    def parse(self, lines: Sequence[Line]) -> ParsedSentence:
        """The words and tags of one sentence; LineError where a line is malformed."""

    @abstractmethod
    def render(
        self,
        words: Sequence[str],
        tags: Sequence[str | None],
        probabilities: Sequence[float] | None = None,
        lines: Sequence[str] | None = None,
        places: Sequence[int] = (),
    ) -> list[str]:
        """The lines of a sentence.

        Args:
            words, tags: (T,). probabilities: (T,), written beside the tags where given.
            lines, places: the sentence as it was read in this format, to keep what is neither tag nor probability.
        """


class _Field(NamedTuple):
    """A column of CoNLL-U, or the value of a key in one of KEY=VALUE parts."""

    place: int
    key: str | None
    column: str

    @classmethod
    def of(cls, name: str, column: str, layout: Sequence[str]) -> _Field:
        whole = name.strip().lower()  # CoNLL-U Plus has names as parseme:mwe
        first, colon, key = (whole, "", "") if whole in layout else name.strip().partition(":")
        known = [each for each in layout if each not in ("id", "form")]
        if first.lower() not in known:
            raise ValueError(
                f"column: expected one of {', '.join(known)} in this CoNLL-U file, a key as misc:Entity or feats:Number, or "
                f"several with commas between, got {column!r}"
            )
        if colon and (first.lower() not in ("feats", "misc") or not key or any(sign in key for sign in "=|:\t ")):
            raise ValueError(f"column: keys are of feats and misc, as misc:Entity, got {column!r}")
        return cls(layout.index(first.lower()), key if colon else None, first.lower())

    @property
    def name(self) -> str:
        return self.column + ("" if self.key is None else f":{self.key}")

    def read(self, columns: Sequence[str]) -> str:
        """What stands there; `_` for none."""
        text = columns[self.place]
        if self.key is None:
            return text
        return next((part[len(self.key) + 1 :] for part in text.split("|") if part.startswith(f"{self.key}=")), NO_TAG)

    def write(self, columns: list[str], value: str) -> None:
        """Sets it; features stand in the order of their keys, as they must."""
        if self.key is not None:
            if "|" in value:
                raise ValueError(f"tags: {self.name} holds no |, which stands between keys, got {value!r}")
            parts = [part for part in columns[self.place].split("|") if part not in ("", NO_TAG)]
            own = [k for k, part in enumerate(parts) if part.startswith(f"{self.key}=")]
            new = [] if value == NO_TAG else [f"{self.key}={value}"]
            first = own[0] if own else len(parts)
            parts = [*parts[:first], *new, *parts[first + len(own[:1]) :]]
            if self.column == "feats":
                parts.sort(key=lambda part: part.partition("=")[0].lower())
            value = "|".join(parts) or NO_TAG
        columns[self.place] = value


class ConlluFormat(TagFormat):
    """CoNLL-U: ten columns between tabs. Comments, multiword tokens (3-4) and empty nodes (3.1) are no words, and stay.

    `_` is a word without a tag; in the column of features it is a tag, that of words without features. A tag of several columns
    is what they hold with tabs between; it is none where the first one is.

    Args:
        column: that holds the tag: its name (upos, xpos, feats, deprel, ...) or its index from 0; a key of FEATS or MISC
            ("misc:Entity", of which words without that key have no tag); or names with commas between, "upos,xpos,feats,lemma".

    Source: https://universaldependencies.org/format.html
    """

    name = "conllu"
    layout: Sequence[str] = CONLLU_COLUMNS

    def __init__(self, column: str | int | None = None) -> None:
        self._settle("upos" if column is None else column)

    def _settle(self, column: str | int) -> None:
        """Which columns hold the tag."""
        if isinstance(column, str):
            self.fields = tuple(_Field.of(name, column, self.layout) for name in column.split(","))
            names = [field.name for field in self.fields]
            both = len({field.place for field in self.fields if field.key is None} & {f.place for f in self.fields if f.key})
            if len(set(names)) < len(names) or both:
                raise ValueError(f"column: expected each column once, got {column!r}")
            plain = len(names) == 1 and self.fields[0].key is None
            self.column = self.fields[0].place if plain else ",".join(names)
        else:
            if not 2 <= column < len(self.layout):
                last = len(self.layout) - 1
                raise ValueError(f"column: expected 2 to {last} in a CoNLL-U file (3 is upos, 4 is xpos), got {column}")
            self.column, self.fields = column, (_Field(column, None, self.layout[column]),)

    def _comment(self, line: Line) -> None:
        """A comment, of which nothing here depends."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Of the columns that hold the tag."""
        return tuple(field.name for field in self.fields)

    def parse(self, lines: Sequence[Line]) -> ParsedSentence:
        words, tags, places, rows = [], [], [], []
        for place, (number, text) in enumerate(lines):
            if text.startswith("#"):
                self._comment(lines[place])
                continue
            columns, layout = text.split("\t"), self._known_layout(number)
            if len(columns) != len(layout):
                raise LineError(
                    number, f"expected {len(layout)} columns between tabs (CoNLL-U), got {len(columns)}: {_shown(text)}"
                )
            name = columns[layout.index("id")]
            kind = _ID.fullmatch(name)
            if kind is None or (kind[2] and int(kind[2]) >= int(kind[3])):
                raise LineError(number, f"expected an id such as 3, 3-4 or 3.1, got {_shown(name)}")
            if kind[1] is None:
                continue
            if int(kind[1]) != len(words) + 1:
                raise LineError(
                    number,
                    f"expected the word with id {len(words) + 1}, got {name}; words are numbered from 1 in every "
                    "sentence, and a blank line stands between sentences",
                )
            form = layout.index("form")
            for index in (form, *(field.place for field in self.fields)):
                if not columns[index]:
                    raise LineError(number, f"expected a {layout[index]}, got an empty column; CoNLL-U writes _ for none")
            words.append(columns[form])
            # of features _ is a value: none
            found = [field.read(columns) for field in self.fields]
            untagged = found[0] == NO_TAG and self.fields[0].column != "feats"
            tags.append(None if untagged else BETWEEN_COLUMNS.join(found))
            places.append(place)
            rows.append(columns)
        with_columns = words_with(words, [lines[place] for place in places], rows, self.word_columns)
        return ParsedSentence(with_columns, tuple(tags), tuple(places))

    def _known_layout(self, number: int) -> Sequence[str]:
        """The columns of the line of this number."""
        return self.layout

    def render(self, words, tags, probabilities=None, lines=None, places=()):
        if probabilities is not None and any(field.name == "misc" for field in self.fields):
            raise ValueError("probabilities: they go to MISC, which holds the tags here (--column misc); write another format")
        misc = self.layout.index("misc") if "misc" in self.layout else None
        if probabilities is not None and misc is None:
            raise ValueError("probabilities: they go to MISC, and the file has no such column; write another format")
        if lines is None:
            lines = ["\t".join([str(i), _written(word, "\t"), *["_"] * 8]) for i, word in enumerate(words, start=1)]
            places = range(len(words))
        lines = list(lines)
        for i, place in enumerate(places):
            columns = lines[place].split("\t")
            tag = tags[i]
            parts: list[str | None] = [tag]
            if len(self.fields) > 1:
                parts = [None] * len(self.fields) if tag in (None, NO_TAG) else [*tag.split(BETWEEN_COLUMNS)]
                if len(parts) != len(self.fields):
                    raise ValueError(f"tags: expected the columns {self.column}, with tabs between, got {tag!r}")
            written = [_written(part, "\t") for part in parts]
            # a probability told before is of another tag
            if misc is not None and (probabilities is not None or written != [field.read(columns) for field in self.fields]):
                kept = [part for part in columns[misc].split("|") if not part.startswith(f"{PROBABILITY_KEY}=")]
                if probabilities is not None:
                    kept = [part for part in kept if part not in ("", NO_TAG)]
                    kept.append(f"{PROBABILITY_KEY}={probabilities[i]:.4f}")
                columns[misc] = "|".join(kept) or NO_TAG
            for field, text in zip(self.fields, written, strict=True):
                field.write(columns, text)
            lines[place] = "\t".join(columns)
        return lines


class ConlluPlusFormat(ConlluFormat):
    """CoNLL-U Plus: as CoNLL-U, with the columns that the file's first line names, ``# global.columns = ID FORM UPOS NER``.

    Args:
        column: as of :class:`ConlluFormat`, by the names of the file.

    Source: https://universaldependencies.org/ext-format.html
    """

    name = "conllup"

    def __init__(self, column: str | int | None = None) -> None:
        self._asked, self.layout, self.fields = column, (), ()
        self.column = "upos" if column is None else column

    def _comment(self, line: Line) -> None:
        if (found := _GLOBAL_COLUMNS.fullmatch(line.text)) is None:
            return
        layout = tuple(found[1].lower().split())
        if self.layout and layout != self.layout:
            raise LineError(line.number, f"other columns than before, which were {' '.join(self.layout)}: {_shown(line.text)}")
        if not {"id", "form"} <= set(layout) or len(set(layout)) < len(layout):
            raise LineError(line.number, f"expected ID, FORM and further columns, each once, got {_shown(line.text)}")
        before, self.layout = self.layout, layout
        try:
            self._settle(self.column)
        except ValueError as error:
            self.layout = before
            raise LineError(line.number, str(error) + ("; say it by column" if self._asked is None else "")) from None

    def _known_layout(self, number: int) -> Sequence[str]:
        if not self.layout:
            raise LineError(number, "a CoNLL-U Plus file begins with # global.columns = ID FORM ..., which is not there")
        return self.layout

    def render(self, words, tags, probabilities=None, lines=None, places=()):
        if lines is None:
            raise ValueError("format: 'conllup' is written where it was read, which says its columns; write 'conllu'")
        return super().render(words, tags, probabilities, lines, places)


class ColumnsFormat(TagFormat):
    """A word a line, columns between spaces or tabs, blank lines between sentences, as CoNLL-2000 (`word tag chunk`).

    Lines that begin a document (``-DOCSTART-``, as in CoNLL-2003) are no words, and stay.

    Args:
        column: that holds the tag, the word being column 0, or "chunk" (column 2).
        tags_optional: let words stand without tags. word_column: that holds the word.

    Source: Tjong Kim Sang and Buchholz, Introduction to the CoNLL-2000 Shared Task: Chunking (2000).
    """

    name = "columns"
    # The columns of such a file have no names: the first tags are those asked for as upos, xpos or pos.
    NAMES: ClassVar[dict[str, int]] = {"upos": 1, "xpos": 1, "pos": 1, "tag": 1, "chunk": 2}
    between: ClassVar[str] = " \t"  # what stands between columns

    def __init__(self, column: str | int | None = None, *, tags_optional: bool = False, word_column: int = 0) -> None:
        self.word_column = checks.count("word_column", word_column, 0)
        column = 1 if column is None else column
        if isinstance(column, str):
            if column.lower() not in self.NAMES:
                raise ValueError(
                    f"column: expected a number (the word is column 0) or one of {', '.join(self.NAMES)}, got {column!r}"
                )
            column = self.NAMES[column.lower()]
        if column < 0 or column == word_column:
            least = "1 or more" if word_column == 0 else "another number"
            raise ValueError(f"column: expected {least} (the word is column {word_column}), got {column}")
        self.column, self.tags_optional = column, tags_optional
        self.width: int | None = None
        self.words_seen = False  # several in a sentence, which were no numbers from 1 on

    def parse(self, lines: Sequence[Line]) -> ParsedSentence:
        rows, places, width = [], [], self.width
        for place, (number, text) in enumerate(lines):
            columns = self._split(text)
            if columns[0].strip() == NEW_DOCUMENT:
                continue
            least = self.word_column if self.tags_optional else max(self.column, self.word_column)
            if len(columns) <= least:
                raise LineError(
                    number,
                    f"expected at least {least + 1} columns, got {len(columns)}: {_shown(text)}; a token's line is "
                    "its word and its tags, and blank lines stand between sentences",
                )
            width = width or len(columns)
            if len(columns) != width:
                hint = "; words that hold spaces are read as format 'tabs'" if " " in self.between and "\t" in text else ""
                raise LineError(
                    number, f"expected {width} columns as in the lines before, got {len(columns)}: {_shown(text)}{hint}"
                )
            if not columns[self.word_column]:
                raise LineError(number, f"expected a word in column {self.word_column}, got none: {_shown(text)}")
            rows.append(columns)
            places.append(place)
        if self.word_column == 0 and not self.words_seen and _number_words([row[0] for row in rows]):
            raise LineError(
                lines[places[0]].number,
                f"the first column numbers the words, as in CoNLL-U, CoNLL-X and CoNLL-2009: {_shown(lines[places[0]].text)}; "
                "read ten columns between tabs as format 'conllu', or say which column holds the word, as by word_column=1",
            )
        self.width, self.words_seen = width, self.words_seen or len(rows) > 1  # now that the sentence is known to be sound
        tags = (row[self.column] if self.column < len(row) else NO_TAG for row in rows)
        return ParsedSentence(
            words_with([row[self.word_column] for row in rows], [lines[place] for place in places], rows, self.word_columns),
            tuple(None if tag in (NO_TAG, "") else tag for tag in tags),
            tuple(places),
        )

    def _split(self, text: str) -> list[str]:
        return _SPACES.split(text.strip(" \t"))

    def render(self, words, tags, probabilities=None, lines=None, places=()):
        found = [""] * len(words) if lines is None else list(lines)
        for i, place in enumerate(range(len(words)) if lines is None else places):
            columns = [] if lines is None else self._split(found[place])
            columns += [NO_TAG] * (max(self.column, self.word_column) + 1 - len(columns))
            if lines is None:
                columns[self.word_column] = _written(words[i], self.between)
            columns[self.column] = _written(tags[i], self.between)
            if probabilities is not None:
                columns.append(f"{probabilities[i]:.4f}")
            found[place] = ("\t" if "\t" in found[place] else self.between[0]).join(columns)
        return found


def _number_words(names: Sequence[str]) -> bool:
    """Whether words are called 1, 2, ... (or 0, 1, ...), multiword tokens (3-4) and empty nodes (3.1) among them."""
    whole = [name for name in names if name.isdecimal()]
    counted = whole in ([str(i + first) for i in range(len(whole))] for first in (0, 1))
    return len(whole) > 1 and counted and all(name.isdecimal() or _ID.fullmatch(name) for name in names)


class TabsFormat(ColumnsFormat):
    """As :class:`ColumnsFormat`, with columns between tabs alone: a word may hold spaces (`New York`), a column be empty.

    Args:
        column, tags_optional, word_column: as of :class:`ColumnsFormat`.
    """

    name = "tabs"
    between = "\t"

    def _split(self, text: str) -> list[str]:
        return text.split("\t")


class WordTagFormat(TagFormat):
    """A sentence a line, each word with its tag: `The_DT dog_NN barks_VBZ`. The last separator counts: `a_b_NN` is `a_b`.

    A third part that is a probability (`dog_NN_0.9812`) is written if asked for, and read over.

    Args:
        separator: between word and tag; "/" reads the Brown corpus.
        tags_optional: let words stand without tags.
    """

    name = "word_tag"
    line_is_sentence = True

    def __init__(self, separator: str = "_", *, tags_optional: bool = False) -> None:
        if not separator or separator.strip() != separator:
            raise ValueError(f"separator: expected such as _ or /, got {checks.shown(separator)}")
        self.separator, self.tags_optional = separator, tags_optional

    def parse(self, lines: Sequence[Line]) -> ParsedSentence:
        words, tags = [], []
        for number, text in lines:
            for token in _tokens(text):
                word, found, tag = token.rpartition(self.separator)
                if _PROBABILITY.fullmatch(tag) and self.separator in word[1:]:
                    word, _, tag = word.rpartition(self.separator)
                if not found and self.tags_optional:
                    word, tag = token, ""
                elif not word or not tag:
                    raise LineError(number, f"expected word{self.separator}TAG, got {_shown(token)}")
                words.append(word)
                tags.append(tag or None)
        return ParsedSentence(tuple(words), tuple(tags), tuple(range(len(words))))

    def render(self, words, tags, probabilities=None, lines=None, places=()):
        found = []
        for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
            parts = [_written(word, " \t")]
            if tag is not None:
                if self.separator in tag:
                    raise ValueError(
                        f"tag {tag!r} holds the separator {self.separator!r}, so it could not be read back; choose another "
                        "separator (--separator /) or format (--to columns)"
                    )
                parts.append(_written(tag, " \t"))
                if probabilities is not None:
                    parts.append(f"{probabilities[i]:.4f}")
            found.append(self.separator.join(parts))
        return [" ".join(found)]


class WordsFormat(TagFormat):
    """A sentence a line, words between spaces, without tags; what is tagged is written as word_TAG."""

    name = "words"
    line_is_sentence = True

    def __init__(self, separator: str = "_") -> None:
        self.written = WordTagFormat(separator)

    def parse(self, lines: Sequence[Line]) -> ParsedSentence:
        words = tuple(token for _, text in lines for token in _tokens(text))
        return ParsedSentence(words, (None,) * len(words), tuple(range(len(words))))

    def render(self, words, tags, probabilities=None, lines=None, places=()):
        return self.written.render(words, tags, probabilities)


STDIN = "<stdin>"
FORMATS = {
    found.name: found for found in (ConlluFormat, ConlluPlusFormat, ColumnsFormat, TabsFormat, WordTagFormat, WordsFormat)
}


def guess_format(
    name: str, lines: Sequence[str], *, separator: str = "_", tags_optional: bool = False, to_tag: bool = False
) -> str:
    """The format of a file, by its name (.conllu) or by its first lines.

    Standard input that is to be tagged is words, unless it has CoNLL-U's ten columns between tabs.

    Args:
        name: of the file, without .gz or .xz.
        lines: some of its first lines that are not blank.
        to_tag: it is likely to be words alone; a guess is made for what is clearly something else.

    Raises:
        ValueError: none fits.
    """
    if name.lower().endswith(".conllup") or (lines and _GLOBAL_COLUMNS.fullmatch(lines[0])):
        return ConlluPlusFormat.name
    if name.lower().endswith((".conllu", ".conll-u")):
        return ConlluFormat.name
    rows = [row for row in map(_tokens, lines) if row[:1] != [NEW_DOCUMENT]]
    wide = (line.split("\t") if to_tag else _tokens(line) for line in lines if not line.startswith("#"))
    if any(len(row) >= 10 and _ID.fullmatch(row[0]) for row in wide):
        return ConlluFormat.name
    if to_tag and name == STDIN:
        return WordsFormat.name
    tokens = [token for row in rows for token in row]
    if tokens and sum(separator in token[1:-1] for token in tokens) > 0.8 * len(tokens):
        return WordTagFormat.name
    if _are_columns(rows, sure=to_tag):
        return ColumnsFormat.name
    if tags_optional:
        a_word_a_line = len(rows) > 1 and sum(len(row) == 1 for row in rows) > 0.8 * len(rows)
        return ColumnsFormat.name if a_word_a_line else WordsFormat.name
    raise ValueError(
        f"{name}: not clear how it is written; say its format: conllu, columns (word and tags a line), or word_tag "
        f"(word{separator}TAG, a sentence a line)"
    )


def _are_columns(rows: Sequence[Sequence[str]], sure: bool) -> bool:
    """Whether lines are words with their tags. sure: they might be sentences as well, of any script."""
    widths = [len(row) for row in rows]
    usual = max(set(widths), key=widths.count, default=0)
    if usual < 2 or widths.count(usual) < (len(widths) if sure else 0.8 * len(widths)):
        return False
    second = [row[1] for row in rows if len(row) == usual]
    # words of a text are lower-case for the most part, and few of them come again and again
    few = len(second) > 10 and len(set(second)) < len(second) / 3
    upper = sum(tag == tag.upper() for tag in second) > 0.8 * len(second)
    if sure:  # there are scripts without cases, and numbers: letters that are capitals count alone
        letters = [tag for tag in second if any(c.isalpha() for c in tag)]
        upper = len(second) > 1 and len(letters) > 0 and all(tag.isascii() and tag.isupper() for tag in letters)
        few = few and usual == 2 and len(second) > 50
    return few or upper


def _tokens(text: str) -> list[str]:
    return [token for token in _SPACES.split(text) if token]


def _written(text: str | None, separators: str) -> str:
    """A word or tag that its separators do not cut."""
    if text is None:
        return NO_TAG
    for char in (*separators, "\n", "\r"):
        text = text.replace(char, "_")
    return text or NO_TAG


def _shown(text: str, length: int = 80) -> str:
    return repr(text if len(text) <= length else text[: length - 1] + "…")
