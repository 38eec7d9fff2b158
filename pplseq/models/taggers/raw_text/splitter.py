"""Sentences and tokens of raw text, by a conditional random field over runs of letters, digits and signs."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pplseq.data.columns import TaggedSentence
from pplseq.data.tag_formats import Word
from pplseq.models.storage import MODEL
from pplseq.models.taggers.conditional import CRFTagger
from pplseq.models.taggers.raw_text.treebank import Sentence, Token, raw_text

GOES_ON, TOKEN, SENTENCE = "I", "T", "S"  # a unit goes on with a token, begins one, or begins a sentence
SPACE = 1  # the column that tells what stands before a unit
PIECES = re.compile(r"\s+|[^\W\d_]+|\d+|.", re.DOTALL)
PARAGRAPHS = re.compile(r"\n[^\S\n]*\n\s*")
AT_A_TIME = 256  # pieces that are tagged together
LONGEST = 2_000  # units of a sequence: of text without paragraphs
ENDINGS = 4  # letters of a token that may tell how it is made of words
TEMPLATES = (
    *(f"word[{place}]" for place in range(-2, 3)), *(f"short_shape[{place}]" for place in range(-2, 3)),
    *(f"column1[{place}]" for place in range(-2, 4)), "lower[0]", "lower[-1]", "suffix2[-1]", "shape[-1]", "shape[0]",
    "word[-1]|column1[0]", "column1[0]|word[0]", "word[-1]|word[0]", "word[-1]|column1[0]|word[0]", "word[0]|column1[1]",
    "column1[0]|word[0]|column1[1]", "short_shape[-1]|column1[0]|short_shape[0]", "word[-1]|column1[0]|short_shape[0]",
    "shape[-1]|column1[0]|word[0]", "column1[0]|word[0]|word[1]", "word[-1]|column1[-1]|column1[0]",
    "lower[-2]|word[-1]|column1[0]", "word[-2]|word[-1]|word[0]", "column1[-1]|column1[0]|column1[1]",
)  # fmt: skip


class Unit(NamedTuple):
    """A run of letters or digits, or a sign; a letter of a script without spaces is one.

    start: its place in the text. space: the white space before it.
    """

    text: str
    start: int
    space: str

    @property
    def spaced(self) -> bool:
        """Whether white space stands before it."""
        return bool(self.space)


def units_of(text: str) -> list[Unit]:
    """The units of a text; all its characters but white space are in one."""
    units: list[Unit] = []
    space = ""
    for match in PIECES.finditer(text):
        piece = match[0]
        if piece.isspace():
            space += piece
            continue
        if units and not space and unicodedata.combining(piece[0]):
            last = units.pop()
            units.append(Unit(last.text + piece, last.start, last.space))
            continue
        # Chinese, Thai and others write words without spaces; their letters have no case and are letters "other"
        parts = list(piece) if any(unicodedata.category(c) == "Lo" for c in piece) else [piece]
        for i, part in enumerate(parts):
            units.append(Unit(part, match.start() + (i if len(parts) > 1 else 0), space if i == 0 else ""))
        space = ""
    return units


def words_of(units: Sequence[Unit]) -> tuple[Word, ...]:
    """Units as the tagger sees them."""
    return tuple(Word(unit.text, {SPACE: "space" if unit.spaced else "none"}) for unit in units)


def _lower(text: str) -> str:
    """In lower case, letter for letter: one whose lower case is longer (İ) stays, so that places in both are the same."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)


class TextSplitter:
    """Splits raw text into sentences and tokens, and tokens into words, as a treebank does.

    A unit is a run of letters or of digits, or a single sign; each begins a sentence, begins a token, or goes on with one, by a
    linear-chain CRF over the units around and the spaces between them. A boundary within a run of letters is never found. A
    token that the treebank splits into words (can't) is split as there, or as others with its ending are.

    Attributes:
        crf: the tagger of units. tables: of tokens, in lower case, and of endings, the words they are made of.

    Example::

        splitter = TextSplitter().fit(read_paragraphs("train.conllu"))
        splitter.split("Mr. Smith can't come. He's ill.")

    Source: M. Straka and J. Strakova (2017), Tokenizing, POS tagging, lemmatizing and parsing UD 2.0 with UDPipe, section 3.1,
        for what is learned from SpaceAfter; the classifier there is a recurrent network.
    """

    def __init__(self, *, l2: float = 0.1, max_iterations: int = 100):
        self.crf = CRFTagger(TEMPLATES, l2=l2, max_iterations=max_iterations, min_count=1, tolerance=1e-3)
        self.words: dict[str, tuple[str, ...]] = {}
        self.endings: dict[str, str] = {}

    # ---------------------------------------------------------------- learning
    def fit(self, x: Sequence[Sequence[Sentence]], *, progress: bool = False) -> TextSplitter:
        """Learns from paragraphs of sentences of tokens, as
        :func:`~pplseq.models.taggers.raw_text.treebank.read_paragraphs` gives them."""
        self.crf.fit([self._tagged(paragraph) for paragraph in x], progress=progress)
        self._learn_words([token for paragraph in x for sentence in paragraph for token in sentence])
        return self

    def _tagged(self, paragraph: Sequence[Sentence]) -> TaggedSentence:
        """The units of a paragraph and what they begin. One that goes over a boundary is told by where it begins."""
        starts: dict[int, str] = {}
        place = 0
        for sentence in paragraph:
            for i, token in enumerate(sentence):
                starts[place] = TOKEN if i else SENTENCE
                place += len(token.text) + token.space_after
        units = units_of(raw_text(paragraph))
        return TaggedSentence(words_of(units), tuple(starts.get(unit.start, GOES_ON) for unit in units))

    def _learn_words(self, tokens: Iterable[Token]) -> None:
        made: dict[str, Counter[tuple[str, ...]]] = {}
        ends: dict[str, Counter[str]] = {}
        for token in tokens:
            lower = _lower(token.text)
            words = tuple(_lower(word) for word in token.words)
            made.setdefault(lower, Counter())[words] += 1
            last = words[-1] if len(words) == 2 and "".join(words) == lower else ""
            for size in range(1, min(ENDINGS, len(lower) - 1) + 1):
                ends.setdefault(lower[-size:], Counter())[last] += 1
        self.endings = {
            ending: last
            for ending, counts in ends.items()
            for last, number in counts.most_common(1)
            if last and number > 1 and ending.endswith(last)
        }
        found = {lower: counts.most_common(1)[0][0] for lower, counts in made.items()}
        self.words = {lower: words for lower, words in found.items() if words and words != self._by_ending(lower)}

    def _by_ending(self, lower: str) -> tuple[str, ...]:
        """The words of a token, in lower case, that was never seen."""
        for size in range(min(ENDINGS, len(lower) - 1), 0, -1):
            last = self.endings.get(lower[-size:])
            if last is not None:
                return lower[: -len(last)], last
        return (lower,)

    # ---------------------------------------------------------------- use
    def split(self, text: str) -> list[list[Token]]:
        """The sentences of a text. A blank line ends one; other white space is as a space."""
        paragraphs = [units_of(part) for part in PARAGRAPHS.split(text)]
        pieces = [units[i : i + LONGEST] for units in paragraphs for i in range(0, len(units), LONGEST)]
        joined = [i > 0 for units in paragraphs for i in range(0, len(units), LONGEST)]
        found: list[list[Token]] = []
        for units, tags, goes_on in zip(pieces, self._tags(pieces), joined, strict=True):
            for number, (unit, tag) in enumerate(zip(units, tags, strict=True)):
                if tag == SENTENCE or not found or (number == 0 and not goes_on):
                    found.append([Token(unit.text)])
                elif tag == GOES_ON and found[-1]:
                    last = found[-1][-1]
                    found[-1][-1] = Token(last.text + unit.space + unit.text)
                else:
                    found[-1][-1] = found[-1][-1]._replace(space_after=unit.spaced)
                    found[-1].append(Token(unit.text))
                if tag == SENTENCE and (number or goes_on) and len(found) > 1:
                    found[-2][-1] = found[-2][-1]._replace(space_after=unit.spaced)
        return [[token._replace(words=self.words_of_token(token.text)) for token in sentence] for sentence in found]

    def _tags(self, pieces: Sequence[Sequence[Unit]]) -> Iterator[tuple[str, ...]]:
        """What units begin, some pieces at a time, so that a book needs no memory for all of its units' features."""
        for i in range(0, len(pieces), AT_A_TIME):
            yield from self.crf.tag([words_of(units) for units in pieces[i : i + AT_A_TIME]])

    def words_of_token(self, text: str) -> tuple[str, ...]:
        """The words of a token, written as it is."""
        lower = _lower(text)
        words = self.words.get(lower) or self._by_ending(lower)
        if len(words) == 1:
            return (text,)
        if "".join(words) != lower:
            return words if not text[:1].isupper() else (words[0].capitalize(), *words[1:])
        places = [sum(map(len, words[:i])) for i in range(len(words) + 1)]
        return tuple(text[a:b] for a, b in zip(places, places[1:], strict=False))

    # ---------------------------------------------------------------- on disk
    def save(self, folder: str | Path) -> Path:
        """Writes config.json and model.safetensors, whole or not at all."""
        return self.crf.save(folder, {"splitter": {"words": self.words, "endings": self.endings}})

    @classmethod
    def load(cls, folder: str | Path) -> TextSplitter:
        """The splitter of a folder.

        Raises:
            FileNotFoundError: there is none. ValueError: it is damaged, or holds something else.
        """
        crf = CRFTagger.load(folder)
        notes: dict[str, Any] = MODEL.read_header(Path(folder)).get("training") or {}
        if "splitter" not in notes:
            raise ValueError(f"{folder}: holds a tagger of words, no splitter of text; `pplseq tag splitter` makes one")
        splitter = cls()
        splitter.crf = crf
        splitter.words = {token: tuple(words) for token, words in notes["splitter"]["words"].items()}
        splitter.endings = dict(notes["splitter"]["endings"])
        return splitter
