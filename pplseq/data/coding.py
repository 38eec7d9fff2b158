"""Lines of words under provisional numbers, read in one pass before any vocabulary is known."""

from __future__ import annotations

import warnings
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from pplseq import checks
from pplseq.data.vocabulary import UNKNOWN, Vocabulary, join_tokens, split_words, without_spaces


class CodedLines:
    """Lines of words, each word under its number by first appearance: compact, whatever the size of the text.

    Args:
        lines: lists of words, without `<eos>`.
        source: where they come from, for messages.
        article_starts: (num_articles + 1,) line numbers; default: found by WikiText's headings (blank line,
            `= Title =`, blank line); without headings every line is an article.
        units: what the words of the lines are; see :class:`~pplseq.data.vocabulary.Vocabulary`.

    Raises:
        TypeError: a line is a string.
        ValueError: no words, or `article_starts` do not fit the lines.
    """

    def __init__(
        self, lines: Iterable[Sequence[str]], source: str, article_starts: Sequence[int] | None = None, units: str = "words"
    ):
        self.source, self.units = source, units
        codes: defaultdict[str, int] = defaultdict()
        codes.default_factory = codes.__len__
        ids, lengths, titles = array("i"), array("q"), []
        for number, words in enumerate(lines):
            if isinstance(words, str):
                raise TypeError(f"{source}: line {number + 1} is a string; expected a list of words (line.split())")
            ids.extend(map(codes.__getitem__, words))
            lengths.append(len(words))
            if units != "words" and "=" in words[:2]:
                words = split_words(join_tokens(words, units))
            # ` = Title = ` but not ` = = Section = = `
            if len(words) > 2 and words[0] == words[-1] == "=" and words[1] != "=" and words[-2] != "=":
                titles.append(number)
        if other := [word for word in codes if not isinstance(word, str)]:
            raise TypeError(f"{source}: words are strings, and a text to learn from lacks none; got {checks.shown(other[0])}")
        if not ids:
            raise ValueError(f"{source}: the text is empty ({len(lengths)} lines, no words)")
        self.words = list(codes)
        self.ids = np.frombuffer(ids, dtype=np.int32)
        self.lengths = np.frombuffer(lengths, dtype=np.int64)
        self.line_numbers = np.arange(1, len(lengths) + 1)
        self.article_starts = self._articles(titles) if article_starts is None else np.asarray(article_starts, np.int64)
        starts = self.article_starts
        if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(lengths) or (np.diff(starts) < 1).any():
            raise ValueError(
                f"article_starts: expected rising line numbers from 0 to {len(lengths)} (the number of lines), got "
                f"{starts.tolist() if len(starts) < 10 else f'{starts[0]} to {starts[-1]}'}"
            )

    def _articles(self, titles: list[int]) -> np.ndarray:
        """A title stands between blank lines; formulas and table legends that look like one do not."""
        blank = np.pad(self.lengths == 0, 1, constant_values=True)  # blank[i] is line i - 1
        starts = [number for number in titles if blank[number] and blank[number + 2]]
        if not starts:
            return np.arange(len(self.lengths) + 1)
        # What stands before the first title, usually a blank line, belongs to its article.
        return np.array([0, *starts[1:], len(self.lengths)], dtype=np.int64)

    def check_trainable(self) -> None:
        """Raise ValueError for a text of a single word: training needs two."""
        if len(self.ids) < 2:
            raise ValueError(
                f"{self.source}: the training text has one word ({self.words[self.ids[0]]!r}); expected at least two"
            )

    def warn(self) -> None:
        """Warn of a text without spaces, whose words are its lines."""
        counts = np.bincount(self.ids, minlength=len(self.words)).tolist()
        note = without_spaces(self.words, counts, int(np.count_nonzero(self.lengths))) if self.units == "words" else ""
        if note:
            warnings.warn(f"{self.source}: {note}", UserWarning, stacklevel=3)

    def vocabulary(self, *, min_count: int = 1, max_size: int | None = None, unknown: str = UNKNOWN) -> Vocabulary:
        """`Vocabulary.build` of these lines."""
        counts = np.bincount(self.ids, minlength=len(self.words)).tolist()
        seen = {word: count for word, count in zip(self.words, counts, strict=True) if count}
        try:
            return Vocabulary.from_counts(
                seen, num_lines=len(self.lengths), min_count=min_count, max_size=max_size, unknown=unknown, units=self.units
            )
        except ValueError as error:
            raise ValueError(f"{self.source}: {error}") from error

    def split(self, valid_fraction: float, test_fraction: float, seed: int) -> dict[str, CodedLines]:
        """Draw whole articles for validation and test, about these shares of the text; the rest is for training.

        Returns:
            "train", and "valid" and "test" where their share is not 0; articles stay in their order.

        Raises:
            ValueError: impossible shares, or too few articles.
        """
        for argument, fraction in (("valid_fraction", valid_fraction), ("test_fraction", test_fraction)):
            if not 0 <= fraction < 1:
                raise ValueError(f"{argument}: expected a number from 0 to below 1, got {fraction}")
        if valid_fraction + test_fraction >= 1:
            total = valid_fraction + test_fraction
            raise ValueError(f"valid_fraction + test_fraction: {total} leaves nothing to train on; make it less than 1")
        shares = {split: share for split, share in (("valid", valid_fraction), ("test", test_fraction)) if share}
        # An article is as large as its words, so that blank lines alone make no validation text.
        word_starts = np.concatenate([[0], np.cumsum(self.lengths)])
        sizes = np.diff(word_starts[self.article_starts])
        few = (
            f"{self.source}: {np.count_nonzero(sizes)} lines or articles do not make {len(shares) + 1} texts{{}}; "
            "give a folder with *train*, *valid* and *test* files, or read one text: load_corpus(..., valid_fraction=0, "
            "test_fraction=0)"
        )
        if np.count_nonzero(sizes) <= len(shares):
            raise ValueError(few.format(""))
        order = np.random.default_rng(checks.seed("seed", seed)).permutation(len(sizes))
        owner = np.full(len(sizes), -1)
        for number, share in enumerate(shares.values()):
            room = share * sizes.sum()
            for article in order[owner[order] < 0]:
                if sizes[article] <= room:  # an article that would overshoot is passed over
                    owner[article] = number
                    room -= sizes[article]
            if not sizes[owner == number].any():  # all are too large: the smallest one
                with_words = np.flatnonzero((owner < 0) & (sizes > 0))
                if len(with_words) < 2:
                    raise ValueError(few.format(f", as one of them has {int(sizes.max()):,} of the {sizes.sum():,} words"))
                owner[with_words[np.argmin(sizes[with_words])]] = number
        texts = {split: self._select(owner == number) for number, split in enumerate(shares)}
        return {"train": self._select(owner == -1), **texts}

    def _select(self, chosen: np.ndarray) -> CodedLines:
        """The chosen articles (a mask) alone."""
        keep_line = np.repeat(chosen, np.diff(self.article_starts))
        part = object.__new__(CodedLines)
        part.source, part.words, part.units = self.source, self.words, self.units
        part.ids = self.ids[np.repeat(keep_line, self.lengths)]
        part.lengths, part.line_numbers = self.lengths[keep_line], self.line_numbers[keep_line]
        part.article_starts = np.cumsum([0, *np.diff(self.article_starts)[chosen]])
        return part

    def encode(self, vocabulary: Vocabulary, *, with_unknown: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a vocabulary, `<eos>` appended to every line where it has one.

        Args:
            with_unknown: where the vocabulary has an unknown word, and all words are known, the last occurrence of the rarest
                one (of several, the first to appear) becomes unknown, so that what learns from the text gives new words a
                probability: that of a word seen once.

        Returns:
            tokens (N,) int32; line_starts (num_lines + 1,) int64.

        Raises:
            ValueError: `<eos>` stands in the text, or a word is unknown and the vocabulary has no `<unk>`.
        """
        unknown_id = -1 if vocabulary.unknown_id is None else vocabulary.unknown_id
        new_ids = np.array([vocabulary.number(word, unknown_id) for word in self.words], dtype=np.int32)
        tokens = new_ids[self.ids]
        if with_unknown and vocabulary.unknown_id is not None and not (tokens == unknown_id).any():
            counts = np.bincount(self.ids, minlength=len(self.words))
            rarest = np.where(counts > 1, counts, len(self.ids) + 1).argmin()
            tokens[np.flatnonzero(self.ids == rarest)[-1]] = unknown_id
        if vocabulary.eos_id is not None and (tokens == vocabulary.eos_id).any():
            _, line = self._first(tokens == vocabulary.eos_id)
            raise ValueError(
                f"{self.source}, line {line}: the text holds the end-of-line word {checks.shown(vocabulary.eos)} itself; "
                "remove it, one is added at the end of every line"
            )
        if tokens.min() < 0:
            word, line = self._first(tokens < 0)
            raise ValueError(vocabulary.unknown_word_message(word, f"{self.source}, line {line}"))
        line_starts = np.concatenate([[0], np.cumsum(self.lengths)])
        if vocabulary.eos_id is not None:
            tokens = np.insert(tokens, line_starts[1:], vocabulary.eos_id)
            line_starts = line_starts + np.arange(len(line_starts))
        return tokens, line_starts

    def _first(self, mask: np.ndarray) -> tuple[str, int]:
        """The first word under a mask and the number of its line."""
        place = int(np.argmax(mask))
        line = np.searchsorted(np.cumsum(self.lengths), place, side="right")
        return self.words[self.ids[place]], int(self.line_numbers[line])
