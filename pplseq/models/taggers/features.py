"""What a tagger looks at around each word: templates of words, affixes, capitals and shapes, as sparse feature numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain as chained
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from pplseq import checks
from pplseq.kernels import compiled
from pplseq.models.taggers.spans.word_lists import Gazetteers
from pplseq.threads import once

BEGIN, END, FIRST_VALUE = 0, 1, 2  # values beyond a sentence's ends, and the first of an attribute's own
ABSENT = -1
PART_BITS = 21  # of a value number in the code of a template's value; three parts fit into 63 bits
FEW_WORDS = 256  # up to which words go one by one: the time for a sentence alone is that of calls
KEPT_WORDS = 50_000  # whose own features are remembered
PART = re.compile(r"([a-z_]+?)([0-9]+)?\[([+-]?[0-9]+)\]")

ASCII_SHAPES = str.maketrans(
    {chr(c): "d" if c < 58 else "X" if c < 91 else "x" for c in (*range(48, 58), *range(65, 91), *range(97, 123))}
)

Sentences = Sequence[Sequence[str]]


# ------------------------------------------------------------------------------------------------ attributes of one word
def word_shape(word: str) -> str:
    """Upper-case letters as X, lower-case ones as x, digits as d, the rest as it is: `McDonald's-4` is `XxXxxxxx'x-d`."""
    if word.isascii():
        return word.translate(ASCII_SHAPES)
    return "".join("d" if c.isdigit() else "X" if c.isupper() else "x" if c.isalpha() else c for c in word)


def short_shape(word: str) -> str:
    """:func:`word_shape` with each run of one sign as that sign: `McDonald's-4` is `XxXx'x-d`."""
    return "".join(sign for sign, _ in groupby(word_shape(word)))


def capitals(word: str) -> str | None:
    """ "all" of the letters are capitals (two or more), the "first" is one, or "some" further one is; None without any."""
    if word.islower() or not any(c.isupper() for c in word):
        return None
    if len(word) > 1 and word.isupper():
        return "all"
    return "first" if word[0].isupper() else "some"


def digits(word: str) -> str | None:
    """ "all" or "some" of the signs are digits; None without any."""
    count = 0 if word.isalpha() else sum(c.isdigit() for c in word)
    return None if count == 0 else "all" if count == len(word) else "some"


def hyphen(word: str) -> str | None:
    """ "inside" a word, or None."""
    return "inside" if "-" in word[1:-1] else None


def prefix(word: str, size: int) -> str | None:
    """The first letters, in lower case; None for shorter words."""
    return word[:size].lower() if len(word) >= size else None


def suffix(word: str, size: int) -> str | None:
    """The last letters, in lower case; None for shorter words."""
    return word[-size:].lower() if len(word) >= size else None


def cluster(clusters: Mapping[str, str], size: int, word: str) -> str | None:
    """The first bits of a word's cluster; a path that is shorter is a cluster of its own."""
    return (clusters.get(word) or clusters.get(word.lower(), ""))[:size] or None


def listed(lexicon: Mapping[str, Iterable[str]], word: str) -> str | None:
    """All tags that a lexicon lists of a word, or else of the word in lower case."""
    return "+".join(sorted(lexicon.get(word) or lexicon.get(word.lower(), ()))) or None


ATTRIBUTES: dict[str, Callable[[str], str | None]] = {
    "word": str,
    "lower": str.lower,
    "shape": word_shape,
    "short_shape": short_shape,
    "capitals": capitals,
    "digits": digits,
    "hyphen": hyphen,
}
AFFIXES = {"prefix": prefix, "suffix": suffix}
# of tokens; of words with lists; of tokens with lists; of words with lists
COLUMN, CLUSTER, GAZETTEER, LEXICON = "column", "cluster", "gazetteer", "lexicon"

DEFAULT_TEMPLATES = (
    "word[0]", "lower[0]", *(f"prefix{n}[0]" for n in range(1, 5)), *(f"suffix{n}[0]" for n in range(1, 6)),
    "capitals[0]", "digits[0]", "hyphen[0]", "shape[0]", "short_shape[0]",
    "lower[-2]", "lower[-1]", "lower[1]", "lower[2]",
    "suffix2[-1]", "suffix3[-1]", "suffix2[1]", "suffix3[1]", "short_shape[-1]", "short_shape[1]", "capitals[-1]|capitals[0]",
    "lower[-1]|lower[0]", "lower[0]|lower[1]", "lower[-1]|lower[1]",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ templates
class _Template:
    """One or more (attribute, offset) whose values together are one feature."""

    def __init__(self, text: str):
        self.text, self.parts = text, []
        for part in text.split("|"):
            match = PART.fullmatch(part)
            name, size = (match[1], match[2]) if match else ("", None)
            known_names = (*ATTRIBUTES, GAZETTEER, LEXICON) if size is None else (*AFFIXES, COLUMN, CLUSTER)
            if match is None or name not in known_names or (size and int(size) < 1):
                known = ", ".join([*ATTRIBUTES, GAZETTEER, LEXICON, *(f"{name}N" for name in (*AFFIXES, COLUMN, CLUSTER))])
                raise ValueError(
                    f"templates: {checks.shown(text)} is none; expected attributes with the place they are looked up at, such "
                    "as "
                    f"'suffix3[-1]' or 'lower[0]|lower[1]', with attributes of: {known}"
                )
            self.parts.append((name + (size or ""), int(match[3])))
        if len(self.parts) > 63 // PART_BITS:
            raise ValueError(
                f"templates: {checks.shown(text)} has {len(self.parts)} parts, at most {63 // PART_BITS} are possible"
            )


def _of_token(name: str) -> bool:
    """Whether an attribute differs between places where the same word stands."""
    return name.startswith((COLUMN, GAZETTEER))


def _column(word: str, number: int) -> str | None:
    """What a file's further column says of a word."""
    columns = getattr(word, "columns", {})
    if number not in columns:
        raise ValueError(
            f"x: the word {str(word)!r} has no column {number}, which features look at; read the text with "
            f"word_columns=({number},), or give words as Word({str(word)!r}, {{{number}: ...}})"
        )
    return columns[number]


class _Plan(NamedTuple):
    """Templates as arrays; shapes are those of :mod:`pplseq.kernels.feature_loops`."""

    attributes: np.ndarray
    offsets: np.ndarray
    alone: np.ndarray
    codes: np.ndarray
    starts: np.ndarray
    edges: np.ndarray

    def records(self, values: np.ndarray) -> np.ndarray:
        """(N, A + F) the values of attributes (N, A), and what they are as features of templates of one attribute."""
        from pplseq.kernels import feature_loops

        records = np.empty((len(values), values.shape[1] + len(self.alone)), np.int64)
        feature_loops.add_features(values, self.attributes, self.alone, self.codes, self.starts, records)
        return records


class TagFeatures:
    """Numbers the features of words in sentences: a feature is a template together with its value, `suffix2[-1]=ly`.

    Args:
        templates: attributes of words at places relative to the current one, joined by `|`. Attributes: word, lower, shape,
            short_shape, capitals, digits, hyphen, prefixN, suffixN (N letters), columnN (the N-th column of a file, of words
            that are a :class:`~pplseq.data.tag_formats.Word`), clusterN (N bits), gazetteer, lexicon (all its tags). Beyond the
            ends of a sentence an attribute has values of its own.
        min_count: how often a feature must occur in training to be kept.
        clusters: the cluster of each word as a string of bits. gazetteers: names, by what they are lists of.
        lexicon: the tags of words.

    Example::

        features = TagFeatures().fit([["The", "dog", "barks"]])
        features.encode([["The", "cat"]])       # (2, number of templates) feature numbers
    """

    def __init__(
        self,
        templates: Iterable[str] = DEFAULT_TEMPLATES,
        min_count: int = 1,
        *,
        clusters: Mapping[str, str] | None = None,
        gazetteers: Mapping[str, Sequence[str]] | None = None,
        lexicon: Mapping[str, Iterable[str]] | None = None,
    ):
        self.templates, self.clusters, self.lexicon = tuple(templates), clusters or {}, lexicon or {}
        self.gazetteers = Gazetteers(gazetteers or {})
        if not self.templates:
            raise ValueError("templates: expected at least one, such as 'word[0]'; got none")
        checks.count("min_count", min_count)
        self.min_count = min_count
        self._templates = [_Template(text) for text in self.templates]
        names = dict.fromkeys(name for template in self._templates for name, _ in template.parts)
        self._values: dict[str, dict[str, int]] = {name: {} for name in names}
        self._codes: list[np.ndarray] = [np.zeros(0, dtype=np.int64) for _ in self._templates]
        self._of_word: dict[str, bytes] = {}

    # ---------------------------------------------------------------- numbering
    @property
    def num_features(self) -> int:
        """How many were seen in training; they have the numbers below."""
        return sum(map(len, self._codes))

    def fit(self, x: Sentences) -> TagFeatures:
        """Takes in the features of training sentences."""
        self._values = {name: {} for name in self._values}
        self._codes = []
        self._forget()
        for codes in self._each_code(x, grow=True):
            known, counts = np.unique(codes[codes != ABSENT], return_counts=True)
            self._codes.append(known[counts >= self.min_count])
        return self

    def _forget(self) -> None:
        """Drops what follows from values and codes."""
        self._of_word = {}
        for name in ("_plan", "_lookups"):
            vars(self).pop(name, None)

    def encode(self, sentences: Sentences) -> np.ndarray:
        """(N, F) int64 feature numbers of all words, one column a template; -1 where there is no known feature."""
        are_few, work = 0 < sum(map(len, sentences)) <= FEW_WORDS, 10 * len(self.templates)
        if are_few and compiled.pays("kernels.feature_loops.encode", work):
            return self._encode_few(sentences)
        return self._encode_many(sentences)

    def _encode_many(self, sentences: Sentences) -> np.ndarray:
        """:meth:`encode` template by template, which needs no room for all of them at once."""
        columns, first = [], 0
        for codes, known in zip(self._each_code(sentences), self._codes, strict=True):
            place = np.searchsorted(known, codes)
            found = place < len(known)
            found[found] = known[place[found]] == codes[found]
            columns.append(np.where(found, place + first, ABSENT))
            first += len(known)
        return np.stack(columns, 1)

    def _encode_few(self, sentences: Sentences) -> np.ndarray:
        """:meth:`encode` word by word, with what words say by themselves remembered from call to call."""
        from pplseq.kernels import feature_loops  # which imports numba

        words, plan = list(chained.from_iterable(sentences)), self._plan
        records = np.frombuffer(bytearray().join(self._records(words)), np.int64)
        records = records.reshape(len(words), len(self._values) + len(self._templates))
        for column, name in enumerate(self._values):
            if _of_token(name):
                records[:, column] = self._numbers(name, self._of_tokens(name, sentences), False)
        begins, found = np.zeros(len(sentences) + 1, np.int64), np.empty((len(words), len(self._templates)), np.int64)
        np.cumsum([len(sentence) for sentence in sentences], out=begins[1:])
        feature_loops.encode(records, begins, *plan, found)
        return found

    @once
    def _plan(self) -> _Plan:
        numbers, count = {name: i for i, name in enumerate(self._values)}, len(self._templates)
        shape = count, max(len(template.parts) for template in self._templates)
        attributes, offsets = np.full(shape, -1), np.zeros(shape, np.int64)
        for row, template in enumerate(self._templates):
            for part, (name, offset) in enumerate(template.parts):
                attributes[row, part], offsets[row, part] = numbers[name], offset
        of_token = np.array([_of_token(name) for name in self._values])
        alone = ((attributes >= 0).sum(1) == 1) & ~of_token[attributes[:, 0]]
        starts = np.cumsum([0, *map(len, self._codes)])
        plan = _Plan(attributes, offsets, alone, np.concatenate(self._codes), starts, np.empty((0, count), np.int64))
        ends = np.repeat([[BEGIN], [END]], len(numbers), 1)
        return plan._replace(edges=np.ascontiguousarray(plan.records(ends)[:, len(numbers) :]))

    @once
    def _lookups(self) -> list[tuple[Callable[[str], str | None], Callable[[Any, int], int]]]:
        """For each attribute what gives its value of a word, and what gives the number of a value."""
        none = dict[str, int]().get  # of attributes of tokens, which are no word's own
        return [
            (str, none) if _of_token(name) else (self._attribute(name), numbers.get)
            for name, numbers in self._values.items()
        ]

    def _records(self, words: Sequence[str]) -> list[bytes]:
        """What is remembered of each word, a record as :mod:`pplseq.kernels.feature_loops` has it: the numbers of all
        attributes' values, and of the features of templates that look at one attribute."""
        known = self._of_word
        new = [word for word in dict.fromkeys(words) if word not in known]
        if new and len(known) >= KEPT_WORDS:
            known = self._of_word = {}  # not emptied, as other threads may read it
            new = list(dict.fromkeys(words))
        if new:
            values = np.array([[number(value(word), ABSENT) for value, number in self._lookups] for word in new])
            known.update(zip(new, map(bytes, self._plan.records(values)), strict=True))
        return [known[word] for word in words]

    def _each_code(self, sentences: Sentences, grow: bool = False):
        """For every template in turn, (N,) codes of its value at each word; -1 where it has none.

        Attributes are worked out once for each different word, and looked up from there.
        """
        words = list(chained.from_iterable(sentences))
        number = {word: i for i, word in enumerate(dict.fromkeys(words))}
        tokens = np.fromiter((number[word] for word in words), dtype=np.int64, count=len(words))
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        place = np.arange(len(tokens)) - np.repeat(lengths.cumsum() - lengths, lengths)
        rest = np.repeat(lengths, lengths) - place  # how many words of the sentence from here on
        of_token = {
            name: self._numbers(name, self._of_tokens(name, sentences), grow)
            if _of_token(name)
            else self._value_numbers(name, number, grow)[tokens]
            for name in self._values
        }
        for template in self._templates:
            code, absent = np.zeros(len(tokens), dtype=np.int64), np.zeros(len(tokens), dtype=bool)
            for name, offset in template.parts:
                before, behind = place + offset < 0, rest - offset <= 0
                inside = ~(before | behind)
                value = np.where(before, BEGIN, END)
                value[inside] = of_token[name][np.flatnonzero(inside) + offset]
                absent |= value == ABSENT
                code = (code << PART_BITS) | value.clip(0)
            code[absent] = ABSENT
            yield code

    def _attribute(self, name: str) -> Callable[[str], str | None]:
        """What gives an attribute's value of a word."""
        if name in ATTRIBUTES:
            return ATTRIBUTES[name]
        if name == LEXICON:
            return partial(listed, self.lexicon)
        stem = name.rstrip("0123456789")
        size = int(name[len(stem) :])
        if stem == CLUSTER:
            return partial(cluster, self.clusters, size)
        return partial(AFFIXES[stem], size=size)

    def _of_tokens(self, name: str, sentences: Sentences) -> Iterable[str | None]:
        """The values of an attribute of tokens at all of them."""
        if name == GAZETTEER:
            return chained.from_iterable(map(self.gazetteers.of_sentence, sentences))
        number = int(name.removeprefix(COLUMN))
        return (_column(word, number) for word in chained.from_iterable(sentences))

    def _value_numbers(self, name: str, words: Iterable[str], grow: bool) -> np.ndarray:
        """(number of different words,) the number of an attribute's value of each."""
        return self._numbers(name, map(self._attribute(name), words), grow)

    def _numbers(self, name: str, found: Iterable[str | None], grow: bool) -> np.ndarray:
        """The numbers of an attribute's values."""
        values = self._values[name]
        if not grow:
            return np.array([ABSENT if value is None else values.get(value, ABSENT) for value in found], dtype=np.int64)
        numbers = [ABSENT if value is None else values.setdefault(value, len(values) + FIRST_VALUE) for value in found]
        if len(values) + FIRST_VALUE > 1 << PART_BITS:
            raise ValueError(
                f"x: {len(values)} values of {name}, at most {(1 << PART_BITS) - FIRST_VALUE} are possible"
            )
        return np.array(numbers, dtype=np.int64)

    # ---------------------------------------------------------------- reading and keeping
    def names(self) -> list[str]:
        """What each feature number stands for, `suffix2[-1]=ly`; values beyond the ends are `<begin>` and `<end>`."""
        texts = {name: ["<begin>", "<end>", *values] for name, values in self._values.items()}
        found, mask = [], (1 << PART_BITS) - 1
        for template, codes in zip(self._templates, self._codes, strict=True):
            last = len(template.parts) - 1
            for code in codes.tolist():
                parts = (code >> PART_BITS * (last - i) & mask for i in range(last + 1))
                value = "|".join(texts[name][part] for (name, _), part in zip(template.parts, parts, strict=True))
                found.append(f"{template.text}={value}")
        return found

    def as_strings(self, sentences: Sentences) -> list[list[list[str]]]:
        """The known features of every word of every sentence by name, as other programs take them."""
        names, rows = self.names(), iter(self.encode(sentences).tolist())
        return [[[names[i] for i in next(rows) if i != ABSENT] for _ in sentence] for sentence in sentences]

    def state(self) -> tuple[dict, dict[str, np.ndarray]]:
        """All of it: a JSON-able part and arrays, for :meth:`from_state`."""
        header = {
            "templates": list(self.templates),
            "min_count": self.min_count,
            "values": {name: list(values) for name, values in self._values.items()},
        }
        return header, {f"codes_{i}": codes for i, codes in enumerate(self._codes)}

    @classmethod
    def from_state(cls, header: dict, arrays: dict[str, np.ndarray]) -> TagFeatures:
        """What :meth:`state` was called on, which keeps no clusters or gazetteers."""
        return cls(header["templates"], header["min_count"]).restored(header, arrays)

    def restored(self, header: dict, arrays: dict[str, np.ndarray]) -> TagFeatures:
        """With the values and codes that :meth:`state` told."""
        for name in self._values:
            self._values[name] = {value: i for i, value in enumerate(header["values"][name], FIRST_VALUE)}
        self._codes = [np.asarray(arrays[f"codes_{i}"]) for i in range(len(self.templates))]
        self._forget()
        return self
