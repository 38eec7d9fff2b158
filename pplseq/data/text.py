"""Encoded text: corpora split into training, validation and test text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from pplseq.data import builtin
from pplseq.data.coding import CodedLines
from pplseq.data.sources import datasets_lines, existing_path, find_splits, read_lines
from pplseq.data.vocabulary import UNKNOWN, Vocabulary, split_line, units_of


@dataclass(frozen=True, eq=False)
class Text:
    """Encoded lines.

    Args:
        tokens: (N,) int32 word ids; where the vocabulary has `eos`, every line ends in it, blank lines too.
        line_starts: (num_lines + 1,) int64; line i is tokens[line_starts[i] : line_starts[i + 1]].
        article_starts: (num_articles + 1,) int64; article a is lines article_starts[a] : article_starts[a + 1].
        vocabulary: what the ids mean.
        name: for messages and reports.
    """

    tokens: np.ndarray
    line_starts: np.ndarray
    article_starts: np.ndarray
    vocabulary: Vocabulary
    name: str = "text"

    @classmethod
    def from_lines(
        cls,
        lines: Iterable[Sequence[str]],
        vocabulary: Vocabulary | None = None,
        *,
        name: str = "text",
        article_starts: Sequence[int] | None = None,
    ) -> Text:
        """Encode lines of words held in memory.

        Args:
            lines: lists of words, without `<eos>`.
            vocabulary: default: all words of `lines` and `<eos>`.
            name: for messages and reports.
            article_starts: (num_articles + 1,) line numbers; default: found by WikiText's headings (blank line,
                `= Title =`, blank line); without headings every line is an article.

        Raises:
            ValueError: no words, `<eos>` in the lines, or an unknown word where the vocabulary has no `<unk>`.
        """
        units = units_of(None, vocabulary)
        coded = CodedLines(lines, name, article_starts, units)
        return cls.from_coded(coded, coded.vocabulary() if vocabulary is None else vocabulary, name)

    @classmethod
    def from_coded(cls, coded: CodedLines, vocabulary: Vocabulary, name: str, *, with_unknown: bool = False) -> Text:
        """Lines that were read before; see :meth:`~pplseq.data.coding.CodedLines.encode`."""
        tokens, line_starts = coded.encode(vocabulary, with_unknown=with_unknown)
        return cls(tokens, line_starts, coded.article_starts, vocabulary, name)

    @property
    def num_tokens(self) -> int:
        """N, `<eos>` counted."""
        return len(self.tokens)

    @property
    def num_lines(self) -> int:
        return len(self.line_starts) - 1

    @property
    def num_articles(self) -> int:
        return len(self.article_starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(num_lines,) tokens of each line, `<eos>` counted."""
        return np.diff(self.line_starts)

    @property
    def num_unknown(self) -> int:
        """Tokens that are the unknown word."""
        unknown_id = self.vocabulary.unknown_id
        return 0 if unknown_id is None else int(np.count_nonzero(self.tokens == unknown_id))

    def lines(self) -> Iterator[np.ndarray]:
        """The ids of each line, views into `tokens`."""
        for start, stop in zip(self.line_starts[:-1], self.line_starts[1:], strict=True):
            yield self.tokens[start:stop]

    def __repr__(self) -> str:
        return f"Text({self.name!r}, num_tokens={self.num_tokens}, num_lines={self.num_lines})"


@dataclass(frozen=True, eq=False)
class Corpus:
    """A vocabulary and the texts it encodes; `valid` and `test` are None where the source has none."""

    name: str
    vocabulary: Vocabulary
    train: Text
    valid: Text | None = None
    test: Text | None = None


def read_text(
    path: str | Path, vocabulary: Vocabulary | None = None, *, name: str | None = None, lower: bool = False
) -> Text:
    """Read and encode one text file, for example to evaluate on it.

    Args:
        path: UTF-8 text, a sentence or paragraph a line, split in the vocabulary's units; "-" reads standard input.
        vocabulary: the training vocabulary; default: all words of the file.
        name: default: the file's name.
        lower: lower-case the text.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an empty or binary file, or an unknown word where the vocabulary has no `<unk>`.
    """
    units = units_of(None, vocabulary)
    coded = CodedLines(read_lines(path, lower=lower, units=units), "<stdin>" if str(path) == "-" else str(path), units=units)
    vocabulary = coded.vocabulary() if vocabulary is None else vocabulary
    return Text.from_coded(coded, vocabulary, name or Path(coded.source).name)


def check_no_table(source: str | Path) -> None:
    """Raises ValueError for a table of columns, which would be read as lines of words; says what reads it."""
    name = Path(source).name
    kind = Path(name.lower().removesuffix(".gz").removesuffix(".xz")).suffix
    if kind in (".csv", ".tsv", ".parquet"):
        read = f"pandas.read_{'parquet' if kind == '.parquet' else 'csv'}({name!r}{', sep=chr(9)' if kind == '.tsv' else ''})"
        raise ValueError(
            f"{name} is a table, expected text, a sentence a line. States behind numbers of its columns: HMM(2, "
            f"num_features=...).fit({read}[columns]), or pplseq train iohmm {name} --outputs COLUMN --num-states 2; forecasts: "
            "LDS, or pplseq train lds; of a column of sentences give the column to fit, or write it to a file of lines"
        )


def load_corpus(
    source: str | Path,
    *,
    vocabulary: Vocabulary | None = None,
    min_count: int | None = None,
    max_vocabulary: int | None = None,
    lower: bool = False,
    unknown_word: str = UNKNOWN,
    units: str | None = None,
    valid_fraction: float = 0.05,
    test_fraction: float = 0.05,
    seed: int = 0,
) -> Corpus:
    """Load a corpus; its vocabulary comes from the training text only.

    Args:
        source: one of
            "builtin:python": CPython's reference text, on every machine that has Python (here min_count is at least 2);
            "builtin:generated": sentences of a small hidden Markov model whose parameters are known;
            "hf:NAME", "hf:NAME/CONFIG", "hf:OWNER/NAME/CONFIG": a Hugging Face dataset (extra `datasets`);
            a folder with files named *train*, and *valid* (or dev, val) and *test* where it has them;
            one text file, split by `valid_fraction` and `test_fraction`; "-" reads it from standard input.
        vocabulary: use this one instead of building it.
        min_count: training words seen less often become `unknown_word`; default: 2 where held-out text has words that training
            never saw and the text has no `unknown_word` of its own, else 1. From 2 on the vocabulary has `unknown_word`; where
            no training word is so rare, the last occurrence of the rarest becomes it, so that it has a probability.
        max_vocabulary: keep at most this many words, `<eos>` and `unknown_word` included.
        lower: lower-case the text.
        unknown_word: the word for unknown words.
        units: what is a word: "words" between white space, "characters" or "bytes", as of a text without spaces; see
            :class:`~pplseq.data.vocabulary.Vocabulary`. Default: the vocabulary's, else words.
        valid_fraction, test_fraction: shares of the tokens where the source is not split already. Whole articles, or
            lines where the text has no headings, are drawn by `seed` and stay in their order.
        seed: of that draw, and of the generated language.

    Returns:
        The corpus. Blank lines are kept as a lone `<eos>`.

    Raises:
        FileNotFoundError: no such path.
        ImportError: "hf:" without the package `datasets`.
        ValueError: nothing to train on, a table (.csv, .tsv, .parquet), binary file, folder without a training file, or an
            unknown word where the vocabulary has no `<unk>`.
    """
    units = units_of(units, vocabulary)
    name, parts, whole = str(source), {}, None
    if name == "builtin:python":
        min_count = max(min_count or 2, 2)
        topics = builtin.python_reference_topics(lower=lower)
        starts = [0, *accumulate(len(lines) for lines in topics.values())]
        whole = CodedLines(_in_units(chain.from_iterable(topics.values()), units), name, starts, units)
    elif name == "builtin:generated":
        lines, truth = builtin.generated_language(seed)
        whole = CodedLines(_in_units(lines, units), name, units=units)
        # The numbering of the true emission matrix, so that the two can be compared cell by cell.
        if vocabulary is None and units == "words":
            vocabulary = Vocabulary(tuple(truth["words"].tolist()))
    elif name.startswith("builtin:"):
        raise ValueError(f"source: unknown corpus {name!r}; expected builtin:python or builtin:generated")
    elif name.startswith("hf:"):
        splits = datasets_lines(name.removeprefix("hf:"), lower=lower, units=units)
        parts = {split: CodedLines(lines, f"{name} {split}", units=units) for split, lines in splits.items()}
    elif name != "-" and existing_path(source).is_dir():
        folder = existing_path(source)
        splits = find_splits(folder)
        for path in splits.values():
            check_no_table(path)
        parts = {
            split: CodedLines(read_lines(path, lower=lower, units=units), str(path), units=units)
            for split, path in splits.items()
        }
        name = folder.resolve().name
    else:
        check_no_table(source)
        lines = read_lines(source, lower=lower, units=units)
        whole = CodedLines(lines, "<stdin>" if name == "-" else name, units=units)
        name = Path(whole.source).name
    if whole is not None:
        whole.check_trainable()
        parts = whole.split(valid_fraction, test_fraction, seed)
    parts["train"].check_trainable()
    if vocabulary is None:
        parts["train"].warn()

    built = vocabulary is None

    def encoded(vocabulary: Vocabulary) -> Corpus:
        texts = {
            split: Text.from_coded(coded, vocabulary, f"{name} {split}", with_unknown=built and split == "train")
            for split, coded in parts.items()
        }
        return Corpus(name, vocabulary, **texts)

    if vocabulary is not None:
        return encoded(vocabulary)
    build = partial(parts["train"].vocabulary, max_size=max_vocabulary, unknown=unknown_word)
    try:
        return encoded(build(min_count=1 if min_count is None else min_count))
    except ValueError:
        if min_count is not None:
            raise
        # Either held-out words are unknown, and this cures it, or the text is bad, and this says so again.
        return encoded(build(min_count=2))


def _in_units(lines: Iterable[Sequence[str]], units: str) -> Iterable[Sequence[str]]:
    """Lines of words, in other units."""
    return lines if units == "words" else (split_line(" ".join(words), units) for words in lines)


def describe_corpus(corpus: Corpus, *, top: int = 10) -> dict[str, Any]:
    """Sizes, line lengths and unknown rates of every split, as JSON-able values.

    Args:
        top: most frequent words of the training text to list.

    Returns:
        "name", "num_words", "splits" (split -> numbers, `<eos>` counted), "most_frequent" [[word, share of tokens]].
    """
    splits = {name: getattr(corpus, name) for name in ("train", "valid", "test")}
    counts = np.bincount(corpus.train.tokens, minlength=len(corpus.vocabulary))
    order = np.argsort(-counts, kind="stable")[:top]
    return {
        "name": corpus.name,
        "num_words": len(corpus.vocabulary),
        "splits": {name: describe_text(text) for name, text in splits.items() if text is not None},
        "most_frequent": [[corpus.vocabulary.words[i], float(counts[i] / corpus.train.num_tokens)] for i in order],
    }


def describe_text(text: Text) -> dict[str, Any]:
    """The numbers of one split."""
    lengths = text.lengths
    return {
        "num_tokens": text.num_tokens,
        "num_lines": text.num_lines,
        "num_articles": text.num_articles,
        "num_types": len(np.unique(text.tokens)),
        "unknown_rate": text.num_unknown / text.num_tokens,
        "shortest_line": int(lengths.min()),
        "median_line": float(np.median(lengths)),
        "mean_line": float(lengths.mean()),
        "longest_line": int(lengths.max()),
    }
