"""Counts of words and of pairs of words k places apart: all that learning a linear dynamical system needs of a text."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pplseq import checks
from pplseq.data.lag_counting import PairCounter, add_matrices, csr_counts
from pplseq.data.text import Text
from pplseq.data.vocabulary import Vocabulary, WordForms

UNITS = ("line", "article")
MOST_LAGS = 1000  # of a count that does not ask for more


class Part(NamedTuple):
    """Where counts come from: shard `shard` of `num_shards` (1/1: all) of a source.

    Args:
        source: name of the source, for messages.
        fingerprint: of its content.
        shard, num_shards: unit j (a line or an article, from 0) is in shard j mod num_shards + 1.
    """

    source: str
    fingerprint: str
    shard: int = 1
    num_shards: int = 1

    def __str__(self) -> str:
        return self.source if self.num_shards == 1 else f"shard {self.shard}/{self.num_shards} of {self.source}"


@dataclass(frozen=True, eq=False, repr=False)
class LagCounts:
    """Word counts n_i and pair counts N_k[i, j] = #{t : w_{t+k} = i, w_t = j}, k = 1..L: **row = the later word**.

    Pairs are counted within a unit, a line or an article, never across. Counts of parts of a text add up (`merge`).

    Args:
        vocabulary: the V words.
        counts: (V,) int64, n_i.
        lags: L matrices (V, V), scipy csr_array int64; lags[k - 1] is N_k.
        unit: "line" or "article".
        parts: what was counted.
        forms: how words were rewritten before they were looked up.

    Raises:
        ValueError: shapes that do not fit the vocabulary, or an unknown unit.

    Source:
        Belanger & Kakade, "A Linear Dynamical System Model for Text" (2015), equation 3.
    """

    vocabulary: Vocabulary
    counts: np.ndarray
    lags: tuple
    unit: str = "line"
    parts: tuple[Part, ...] = ()
    forms: WordForms = WordForms()

    def __post_init__(self):
        size = len(self.vocabulary)
        object.__setattr__(self, "counts", np.asarray(self.counts, dtype=np.int64))
        object.__setattr__(self, "lags", tuple(self.lags))
        object.__setattr__(self, "parts", tuple(Part(*part) for part in self.parts))
        check_settings(len(self.lags), self.unit)
        if self.counts.shape != (size,):
            raise ValueError(f"counts: expected shape ({size},), a number a word, got {self.counts.shape}")
        for lag, matrix in enumerate(self.lags, 1):
            if matrix.shape != (size, size):
                raise ValueError(f"lags: lag {lag} has shape {matrix.shape}; expected ({size}, {size}), words by words")

    @property
    def max_lag(self) -> int:
        """L."""
        return len(self.lags)

    @property
    def num_words(self) -> int:
        """V."""
        return len(self.vocabulary)

    @property
    def num_tokens(self) -> int:
        """T, `<eos>` counted where the vocabulary has it."""
        return int(self.counts.sum())

    @property
    def num_pairs(self) -> np.ndarray:
        """(L,) int64, T_k: pairs k places apart."""
        return np.array([matrix.data.sum() for matrix in self.lags], dtype=np.int64)

    @property
    def missing(self) -> tuple[Part, ...]:
        """Shards that were not counted, of sources of which others were."""
        return missing_shards(self.parts)

    def __eq__(self, other: object) -> bool:
        """Equal numbers of equal words; where they come from does not matter."""
        if not isinstance(other, LagCounts):
            return NotImplemented
        return (
            self.vocabulary == other.vocabulary
            and (self.unit, self.forms, self.max_lag) == (other.unit, other.forms, other.max_lag)
            and np.array_equal(self.counts, other.counts)
            and all(a.nnz == b.nnz and (a != b).nnz == 0 for a, b in zip(self.lags, other.lags, strict=True))
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return (
            f"LagCounts(num_words={self.num_words}, num_tokens={self.num_tokens}, max_lag={self.max_lag}, "
            f"unit={self.unit!r}, num_parts={len(self.parts)})"
        )

    @classmethod
    def from_text(
        cls, text: Text, max_lag: int, unit: str = "line", *, shard: tuple[int, int] | None = None
    ) -> LagCounts:
        """Count an encoded text.

        Args:
            text: its vocabulary decides whether `<eos>` is a token.
            max_lag: L.
            unit: "line" or "article": pairs are counted within these.
            shard: (i, n): every n-th unit from unit i - 1 on; None for all.

        Raises:
            ValueError: an empty text, or one in which no two tokens share a unit (a shard may have none).
        """
        check_settings(max_lag, unit)
        number, num_shards = check_shard(shard)
        if text.num_tokens == 0:
            raise ValueError(f"text: {text.name!r} is empty; expected at least two tokens in a {unit}")
        starts = text.line_starts if unit == "line" else text.line_starts[text.article_starts]
        tokens, begins = text.tokens, starts[:-1]
        if num_shards > 1:
            chosen = np.arange(len(begins)) % num_shards == number - 1
            sizes = np.diff(starts)
            tokens = tokens[np.repeat(chosen, sizes)]
            begins = np.cumsum(sizes[chosen]) - sizes[chosen]
        counter = PairCounter(len(text.vocabulary), max_lag)
        counter.add(tokens, begins)
        content = hashlib.sha256(text.tokens.tobytes() + starts.tobytes() + text.vocabulary.fingerprint().encode())
        part = Part(text.name, content.hexdigest(), number, num_shards)
        result = cls(text.vocabulary, *counter.result(), unit, (part,))
        return result if num_shards > 1 else result.check_learnable()

    def check_learnable(self) -> LagCounts:
        """Raise ValueError where no two tokens share a unit; returns itself."""
        check_pairs(self.parts, self.unit, self.num_tokens, self.lags[0].nnz)
        return self

    @classmethod
    def merge(cls, *parts: LagCounts) -> LagCounts:
        """Sum of counts of different texts, or of shards of one; the order does not matter.

        Raises:
            ValueError: nothing to merge; parts of different vocabularies, word forms, lags or units; or a text, or a
                shard of one, that was counted twice.
        """
        if not parts:
            raise ValueError("parts: expected LagCounts to add up, got none")
        for part in parts:
            if not isinstance(part, LagCounts):
                raise TypeError(f"parts: expected LagCounts, got {type(part).__name__}")
        first = parts[0]
        for other in parts[1:]:
            _check_alike(first, other)
        sources = tuple(sorted({source for part in parts for source in part.parts}))
        check_disjoint([source for part in parts for source in part.parts])
        counts = np.sum([part.counts for part in parts], axis=0)
        lags = tuple(add_matrices(matrices) for matrices in zip(*(part.lags for part in parts), strict=True))
        return replace(first, counts=counts, lags=lags, parts=sources)

    def cut(self, max_vocabulary: int) -> LagCounts:
        """Keep the most frequent words and let the unknown word stand for the others, exactly as if the text had been
        counted with the smaller vocabulary.

        Args:
            max_vocabulary: V at most, `<eos>` and the unknown word included; words that were never seen go first.

        Raises:
            ValueError: no room beside `<eos>` and the unknown word.
        """
        old = self.vocabulary
        if max_vocabulary >= len(old):
            return self
        unknown = "<unk>" if old.unknown is None else old.unknown
        seen = dict(zip(old.words, self.counts.tolist(), strict=True))
        num_lines = seen.pop(old.eos, None)
        try:
            new = Vocabulary.from_counts(
                seen, num_lines=num_lines, max_size=max_vocabulary, unknown=unknown, eos=old.eos
            )
        except ValueError as error:
            raise ValueError(f"max_vocabulary: {error}") from error
        ids = np.array([new.index.get(word, new.unknown_id) for word in old.words], dtype=np.int64)
        counts = np.zeros(len(new), dtype=np.int64)
        np.add.at(counts, ids, self.counts)
        return replace(self, vocabulary=new, counts=counts, lags=tuple(_renumber(m, ids, len(new)) for m in self.lags))


def check_settings(max_lag: int, unit: str, most_lags: int | None = None) -> None:
    """Raise ValueError for a lag below 1, too many lags or an unknown unit."""
    if isinstance(max_lag, bool) or not isinstance(max_lag, (int, np.integer)):
        raise TypeError(f"max_lag: expected a whole number, got {checks.shown(max_lag)}")
    checks.count("max_lag", max_lag)
    if most_lags is not None and max_lag > most_lags:
        raise ValueError(
            f"max_lag: got {max_lag:,}, and each lag has pairs of its own, in memory and on the disk; more than {most_lags:,} "
            "have to be allowed (--most-lags, most_lags)"
        )
    if unit not in UNITS:
        raise ValueError(f"unit: expected 'line' or 'article', got {checks.shown(unit)}")


def check_pairs(parts: Sequence[Part], unit: str, num_tokens: int, num_pairs: int) -> None:
    """Raise ValueError for a text of so many tokens without a pair of neighbours."""
    if not num_pairs:
        tokens = f"{num_tokens} token" + "s" * (num_tokens != 1)
        raise ValueError(
            f"{', '.join(map(str, parts)) or 'counts'}: no two words share a {unit} ({tokens} in all), so "
            "there are no pairs to count; expected sentences of two words or more, or unit='article'"
        )


def check_shard(shard: tuple[int, int] | None) -> tuple[int, int]:
    """(i, n) with 1 <= i <= n; (1, 1) for None."""
    number, num_shards = (1, 1) if shard is None else shard
    if not 1 <= number <= num_shards:
        raise ValueError(f"shard: expected (i, n) with i from 1 to n, got ({number}, {num_shards})")
    return number, num_shards


def _check_alike(first: LagCounts, other: LagCounts) -> None:
    names = [f"{part.parts[0]}" if part.parts else "a part" for part in (first, other)]
    advice = "count both with the same settings"
    if first.vocabulary.words != other.vocabulary.words:
        raise ValueError(
            f"parts: {names[0]} and {names[1]} have different vocabularies ({first.num_words} words, fingerprint "
            f"{first.vocabulary.fingerprint()[:12]}; {other.num_words} words, {other.vocabulary.fingerprint()[:12]}); "
            "count all parts with one vocabulary file"
        )
    for what, values in (
        ("max_lag", (first.max_lag, other.max_lag)),
        ("unit", (first.unit, other.unit)),
        ("word forms", (first.forms, other.forms)),
    ):
        if values[0] != values[1]:
            raise ValueError(f"parts: {names[0]} has {what} {values[0]!r} and {names[1]} has {values[1]!r}; {advice}")


def check_disjoint(parts: Sequence[Part]) -> None:
    """Raise ValueError where a text, or a shard of one, stands twice, or shards overlap."""
    seen: dict[str, Part] = {}
    shards: set[tuple] = set()
    for part in parts:
        if (part.fingerprint, part.num_shards, part.shard) in shards:
            raise ValueError(f"parts: {part} is counted twice; give it once")
        before = seen.setdefault(part.fingerprint, part)
        if before.num_shards != part.num_shards:
            raise ValueError(f"parts: {before} and {part} overlap; cut a text into shards in one way only")
        shards.add((part.fingerprint, part.num_shards, part.shard))


def missing_shards(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Shards that are not among `parts`, of texts of which others are."""
    groups: dict[tuple[str, int], dict[int, Part]] = defaultdict(dict)
    for part in parts:
        groups[part.fingerprint, part.num_shards][part.shard] = part
    return tuple(
        next(iter(found.values()))._replace(shard=shard)
        for (_, num_shards), found in groups.items()
        for shard in range(1, num_shards + 1)
        if shard not in found
    )


def _renumber(matrix, ids: np.ndarray, num_words: int):
    """Entries moved to new rows and columns; those that meet are added."""
    rows = np.repeat(ids, np.diff(matrix.indptr))
    keys = rows * num_words + ids[matrix.indices]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
    values = np.add.reduceat(matrix.data[order], first) if len(keys) else matrix.data
    keys = keys[first]
    indptr = np.searchsorted(keys, np.arange(num_words + 1) * num_words)
    return csr_counts(values, keys % num_words, indptr, num_words)
