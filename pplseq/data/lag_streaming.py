"""Lag counts of a text of any size, read once."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from pplseq.data.lag_counting import PairCounter, sparse
from pplseq.data.lag_counts import MOST_LAGS, LagCounts, Part, check_settings, check_shard
from pplseq.data.sources import tokens_of
from pplseq.data.streams import Piece, TextStream, by_articles, decoded, of_shard
from pplseq.data.vocabulary import EOS, Vocabulary, WordForms, units_of, without_spaces

# the token of a line's end; no text of words holds a NUL: it would be taken for a binary file
LINE_ENDS = {"words": "\0", "characters": tokens_of("\n", "characters")[0], "bytes": tokens_of("\n", "bytes")[0]}
REMEMBERED = 1 << 22  # spellings outside the vocabulary that are remembered; beyond, a word is looked up in two steps
Progress = Callable[[int, int | None, int], None]


class _Foreign(Exception):
    """A word that must not stand in the text, or that has no number."""


class _KnownWords(dict):
    """Spelling -> number in a vocabulary; the end of a line is -1."""

    def __init__(self, vocabulary: Vocabulary, forms: WordForms):
        self.vocabulary, self.forms, self.units = vocabulary, forms, vocabulary.units
        # lower() is applied to the whole text; digits are looked for in new spellings only
        known = vocabulary.index
        if forms != WordForms():
            known = {word: number for word, number in known.items() if forms(word) == word}
        super().__init__(known)
        self.pop(vocabulary.eos, None)
        self[LINE_ENDS[self.units]] = -1

    def __missing__(self, word: str) -> int:
        form = self.forms(word)
        number = self.vocabulary.index.get(form, self.vocabulary.unknown_id)
        if number is None or (form == self.vocabulary.eos and form in self.vocabulary):
            raise _Foreign(word)
        if len(self) < REMEMBERED + len(self.vocabulary):
            self[word] = number
        return number


class _NewWords(dict):
    """Spelling -> number by first appearance, for a vocabulary that is made later; the end of a line is -1."""

    def __init__(self, forms: WordForms, eos: str | None, units: str):
        self.forms, self.eos, self.units = forms, eos, units
        self.numbers: dict[str, int] = {}
        super().__init__({LINE_ENDS[units]: -1})

    def __missing__(self, word: str) -> int:
        form = self.forms(word)
        if form == self.eos:
            raise _Foreign(word)
        self[word] = number = self.numbers.setdefault(form, len(self.numbers))
        return number


class Spool:
    """Encoded pieces on the disk, 4 bytes a token, until the vocabulary is known.

    Args:
        file: open for what is done with it, in bytes. folder: it stands in, for messages.
    """

    def __init__(self, file: IO[bytes], folder: str | Path):
        self.file, self.folder = file, folder

    def write(self, tokens: np.ndarray, starts: np.ndarray) -> None:
        try:
            for array in (tokens, starts):
                self.file.write(np.int64(len(array)).tobytes())
                self.file.write(array.tobytes())
        except OSError as error:
            raise OSError(
                f"{self.folder}: could not keep the numbered text there ({error}); free space "
                "(4 bytes a token), or give a vocabulary, which makes this needless"
            ) from error

    def read(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.file.seek(0)
        while head := self.file.read(8):
            tokens = np.frombuffer(self.file.read(4 * int.from_bytes(head, "little")), np.int32)
            size = int.from_bytes(self.file.read(8), "little")
            yield tokens, np.frombuffer(self.file.read(8 * size), np.int64)


def count_lags(
    source: str | Path | TextStream,
    max_lag: int,
    *,
    vocabulary: Vocabulary | None = None,
    min_count: int = 1,
    max_vocabulary: int | None = None,
    eos: bool = True,
    units: str | None = None,
    unit: str = "line",
    shard: tuple[int, int] | None = None,
    forms: WordForms | None = None,
    progress: Progress | None = None,
    folder: str | Path | None = None,
    most_lags: int = MOST_LAGS,
) -> LagCounts:
    """Count words and pairs of words of a text in one pass; only the counts are held in memory.

    Args:
        source: as `streams.TextStream` takes it: a file (.gz, .xz), a URL, a folder, "builtin:", "hf:" or "-"; or such
            a stream, which may have no words where it is a part.
        max_lag: L.
        vocabulary: the words to count; others are its unknown word. It decides whether `<eos>` is a token (at the end
            of every line, blank lines too). Default: made of the whole source, whatever the shard.
        min_count, max_vocabulary: for that: rarer words, and those beyond the most frequent, become `<unk>`.
        eos: for that: whether it has `<eos>`.
        units: for that: what is a word: "words", "characters" or "bytes"; see :class:`~pplseq.data.vocabulary.Vocabulary`.
            Default: the vocabulary's, else words.
        unit: "line" or "article" (WikiText's headings; every line where there are none): pairs stay within.
        shard: (i, n): count every n-th unit from unit i - 1 on. A shard is read much quicker where `vocabulary` is given.
        forms: how words are rewritten first; default: not at all.
        progress: called with the bytes of the file read so far, its size (None of other sources) and the tokens read.
        folder: for the numbered text that is kept while a vocabulary is made (4 bytes a token); default: the system's.
        most_lags: a larger L is refused.

    Raises:
        FileNotFoundError, ImportError: no such file; scipy or `datasets` absent.
        ValueError: an empty or binary text, one without pairs, or a word that the vocabulary has no number for.
        OSError: a full disk.
    """
    check_settings(max_lag, unit, most_lags)
    number, num_shards = check_shard(shard)
    sparse()
    forms = WordForms() if forms is None else forms
    units = counted_units(units, vocabulary, forms)
    stream = source if isinstance(source, TextStream) else TextStream(source)
    if stream.is_part and (vocabulary is None or (stream.span is not None and unit != "line")):
        raise ValueError("source: part of a text needs a vocabulary, made of the whole (see word_counts); a span, unit='line'")
    report = progress or (lambda position, num_bytes, num_tokens: None)
    with ExitStack() as stack:
        if vocabulary is None:
            place = tempfile.gettempdir() if folder is None else folder
            spool = Spool(stack.enter_context(tempfile.TemporaryFile(dir=place)), place)
            seen, num_lines = number_words(
                stream, spool, forms, eos=eos, units=units, unit=unit, shard=shard, progress=progress
            )
            vocabulary = vocabulary_of(stream.name, seen, num_lines, eos, min_count, max_vocabulary, units)
            encoded = _renumbered(spool, seen, vocabulary, eos)
        else:
            encoded = _encode_known(stream, unit, (number, num_shards), forms, vocabulary)
        counts, lags = _counted(encoded, vocabulary, max_lag, lambda tokens: report(stream.position, stream.num_bytes, tokens))
    assert stream.fingerprint is not None  # it has been read
    part = Part(stream.name, stream.fingerprint, number, num_shards)
    result = LagCounts(vocabulary, counts, lags, unit, (part,), forms)
    if num_shards > 1 or stream.is_part:
        return result
    num_line_ends = 0 if vocabulary.eos_id is None else int(counts[vocabulary.eos_id])
    if result.num_tokens == num_line_ends:
        raise ValueError(f"{stream.name}: the text is empty ({num_line_ends} lines, no words)")
    return result.check_learnable()


def counted_units(units: str | None, vocabulary: Vocabulary | None, forms: WordForms) -> str:
    """What is counted.

    Raises:
        ValueError: other units than the vocabulary's; digits that are rewritten in anything but words.
    """
    found = units_of(units, vocabulary)
    if found != "words" and forms.digits is not None:
        raise ValueError(f"digits: stands for numbers among words, and not among {found}; leave it out, or units")
    return found


def vocabulary_of(
    name: str, seen: dict[str, int], num_lines: int, eos: bool = True, min_count: int = 1, max_vocabulary: int | None = None,
    units: str = "words",
) -> Vocabulary:  # fmt: skip
    """The vocabulary of a text: what :func:`word_counts` gives; eos: whether ends of lines are words.

    Raises:
        ValueError: with the text's name, where it is empty or leaves no word.
    """
    if not seen:
        raise ValueError(f"{name}: the text is empty ({num_lines} lines, no words)")
    if units == "words" and (note := without_spaces(seen, seen.values(), num_lines)):
        warnings.warn(f"{name}: {note}", UserWarning, stacklevel=3)
    try:
        return Vocabulary.from_counts(
            seen, num_lines=num_lines if eos else None, min_count=min_count, max_size=max_vocabulary, units=units
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def number_words(
    stream: TextStream,
    spool: Spool,
    forms: WordForms,
    *,
    eos: bool = True,
    units: str = "words",
    unit: str = "line",
    shard: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, int], int]:
    """How often each word stands in a text or a span of one, in the order of first appearance, and the number of lines.

    What a vocabulary is made of (:func:`vocabulary_of`): counts of parts, added up in their order, make the same one. With it,
    what is written to the spool is counted (:func:`count_numbered`).

    Args:
        spool: takes the words by their place in that order. Others: as of :func:`count_lags`; words of all shards are counted,
            and those of one written.

    Raises:
        ValueError: as :func:`count_lags`. OSError: a full disk.
    """
    codes = _NewWords(forms, EOS if eos else None, units)
    counts, num_lines, num_tokens, unit_number = np.zeros(1 << 16, dtype=np.int64), 0, 0, -1
    number, num_shards = check_shard(shard)
    for piece in _pieces(stream, unit, forms.lower):
        tokens, starts, counts = _number_new(piece, codes, counts, stream.name)
        num_lines += int((tokens == -1).sum())
        num_tokens += len(tokens)
        if num_shards > 1:
            own = np.zeros(len(tokens) + 1, dtype=np.int64)
            np.add.at(own, starts, 1)
            own = unit_number + np.cumsum(own)
            keep = own[:-1] % num_shards == number - 1
            chosen = own[starts] % num_shards == number - 1
            starts = np.concatenate([[0], np.cumsum(keep)])[starts[chosen]]
            tokens, unit_number = tokens[keep], int(own[-1])
        spool.write(tokens, starts)
        if progress is not None:
            progress(stream.position, stream.num_bytes, num_tokens)
    return dict(zip(codes.numbers, counts.tolist(), strict=False)), num_lines


def count_numbered(
    spool: Spool, words: Iterable[str], vocabulary: Vocabulary, max_lag: int, *, eos: bool = True
) -> tuple[np.ndarray, tuple]:
    """Word counts (V,) and the L matrices of pairs, as of :class:`LagCounts`, of what :func:`number_words` wrote.

    Args:
        words: in the order of first appearance. vocabulary: made of these words, or of more. eos: as it was numbered.
    """
    return _counted(_renumbered(spool, words, vocabulary, eos), vocabulary, max_lag)


def _number_new(piece: Piece, codes: _NewWords, counts: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Provisional numbers of a piece's words, -1 for the end of a line; where units begin; and the counts with these."""
    try:
        tokens, starts = encode_piece(piece, codes, -1)  # every line ends in -1, for now
    except _Foreign as error:
        raise ValueError(_eos_message(_place(piece, error.args[0], name, codes.units), EOS)) from None
    if len(codes.numbers) > len(counts):
        counts = np.concatenate([counts, np.zeros(len(codes.numbers), dtype=np.int64)])
    counts += np.bincount(tokens + 1, minlength=len(counts) + 1)[1:]
    return tokens, starts, counts


def _pieces(stream: TextStream, unit: str, lower: bool) -> Iterator[Piece]:
    pieces = decoded(stream, lower)
    return by_articles(pieces, stream.name) if unit == "article" else pieces


def _encode_known(stream, unit, shard, forms, vocabulary) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    codes = _KnownWords(vocabulary, forms)
    pieces = _pieces(stream, unit, forms.lower)
    if shard[1] > 1:
        pieces = of_shard(pieces, *shard)
    for piece in pieces:
        try:
            yield encode_piece(piece, codes, vocabulary.eos_id)
        except _Foreign as error:
            place = _place(piece, error.args[0], stream.name, codes.units)
            if vocabulary.eos_id is not None and forms(error.args[0]) == vocabulary.eos:
                raise ValueError(_eos_message(place, vocabulary.eos)) from None
            raise ValueError(vocabulary.unknown_word_message(error.args[0], place)) from None


def _renumbered(
    spool: Spool, words: Iterable[str], vocabulary: Vocabulary, eos: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    # the last entry, which -1 finds, is the end of a line
    unknown = vocabulary.unknown_id
    table = [vocabulary.index.get(word, unknown) for word in words]
    table = np.array([*table, vocabulary.eos_id if eos else -1], dtype=np.int32)
    for tokens, starts in spool.read():
        tokens = table[tokens]
        if not eos:
            word = tokens >= 0
            starts = np.concatenate([[0], np.cumsum(word)])[starts]
            tokens = tokens[word]
        yield tokens, starts


def _counted(
    encoded: Iterable[tuple[np.ndarray, np.ndarray]], vocabulary: Vocabulary, max_lag: int,
    report: Callable[[int], None] = lambda num_tokens: None,
) -> tuple[np.ndarray, tuple]:  # fmt: skip
    counter, num_tokens = PairCounter(len(vocabulary), max_lag), 0
    for tokens, starts in encoded:
        counter.add(tokens, starts)
        num_tokens += len(tokens)
        report(num_tokens)
    return counter.result()


def encode_piece(piece: Piece, codes: _KnownWords | _NewWords, eos_id: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of a piece's words.

    Args:
        codes: spelling -> number; that of a line's end -> -1.
        eos_id: what a line ends in; None for nothing.

    Returns:
        tokens (N,) int32; starts (U,) int64, the places in 0..N where units begin.
    """
    text = piece.text
    text = text.replace("\n", f" {LINE_ENDS['words']} ") if codes.units == "words" else text.replace("\r\n", "\n")
    words = tokens_of(text, codes.units)
    tokens = np.fromiter(map(codes.__getitem__, words), dtype=np.int32, count=len(words))
    ends = np.flatnonzero(tokens == -1)
    lines = np.concatenate([[0], ends + 1])  # the last is the line that goes on in the next piece, or the end
    if piece.text.endswith("\n"):
        lines = lines[:-1]
    if eos_id is None:
        tokens = tokens[tokens != -1]
        lines = lines - np.arange(len(lines))
    else:
        tokens[ends] = eos_id
    return tokens, lines[int(piece.continues) :] if piece.begins is None else lines[piece.begins]


def _place(piece: Piece, word: str, name: str, units: str) -> str:
    if piece.first_line is None:
        return name
    lines = piece.text.split("\n")
    return f"{name}, line {piece.first_line + next(i for i, line in enumerate(lines) if word in tokens_of(line, units))}"


def _eos_message(place: str, eos: str) -> str:
    return (
        f"{place}: the text holds the end-of-line word {eos!r} itself; remove it, one is added at the end of every line"
    )
