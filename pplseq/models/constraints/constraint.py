"""Constraints on texts, put together from phrases, patterns and lengths; exact on every model of words with hidden states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pplseq import checks
from pplseq.data.vocabulary import split_words
from pplseq.models.automata.automaton import Automaton
from pplseq.models.constraints import patterns, phrases, tables
from pplseq.models.constraints.tables import TooLarge, WordTable

if TYPE_CHECKING:
    from pplseq.data.vocabulary import Vocabulary
    from pplseq.infer.discrete.constrained.moves import WordMoves

MAX_STATES = 10_000


class Constraint:
    """A set of texts, as the smallest deterministic automaton over words that accepts them.

    Made by :meth:`containing`, :meth:`excluding`, :meth:`in_order`, :meth:`matching`, :meth:`length`, :meth:`of_automaton` and
    :meth:`of_edges`; put together by ``&`` (both), ``|`` (one of them), ``~`` (not) and :meth:`then` (one behind the other). It
    knows words, and no vocabulary: words that are not named move it alike, so it has few classes of words and serves any model.

    Args:
        table: the automaton. text: how it reads in messages. words: that must be in a model's vocabulary.
        parts: the constraints that it joins by ``&``; itself where it is one. max_states: of automata made from it.

    Example::

        about = Constraint.containing("stock market", "today") & ~Constraint.containing("fell")
        model.sample(constraint=about, prefix="the", length=(8, 15), num_sequences=10)
    """

    def __init__(
        self,
        table: WordTable,
        text: str,
        words: Iterable[str] = (),
        parts: tuple[Constraint, ...] = (),
        max_states: int = MAX_STATES,
    ):
        self.table, self.text, self.words, self.max_states = table, text, tuple(dict.fromkeys(words)), max_states
        self.parts = parts or (self,)

    # ---------------------------------------------------------------- what there is
    @classmethod
    def containing(
        cls, *sought: str | Sequence[str], how: str = "all", max_states: int = MAX_STATES
    ) -> Constraint:
        """Texts in which phrases stand, anywhere and as often as you like.

        Args:
            *sought: phrases: strings, or lists of words. how: "all" of them, in any order and overlapping too, or "any".
            max_states: of the automaton; k phrases of n words, all of them, take up to 2^k n k.

        Raises:
            ValueError: more states, or no phrase. TypeError: what is no phrase.
        """
        every = checks.choice("how", how, ("all", "any")) == "all"
        found = phrases.read_phrases(sought)
        what = (" and " if every else " or ").join(repr(" ".join(phrase)) for phrase in found)
        table = phrases.containing(found, every, max_states, f"containing {what}")
        return cls(table, f"containing {what}", [w for phrase in found for w in phrase], max_states=max_states)

    @classmethod
    def excluding(cls, *sought: str | Sequence[str], max_states: int = MAX_STATES) -> Constraint:
        """Texts in which none of the phrases stands; see :meth:`containing`."""
        found = cls.containing(*sought, how="any", max_states=max_states)
        return cls(found.table.complement(), f"not {found.text}", found.words, max_states=max_states)

    @classmethod
    def in_order(cls, *sought: str | Sequence[str], max_states: int = MAX_STATES) -> Constraint:
        """Texts in which every phrase stands behind the one before it, without overlap; see :meth:`containing`."""
        if not sought:
            raise ValueError("phrases: expected one or more, got none")
        found = [phrases.read_phrases([phrase])[0] for phrase in sought]
        what = "in order " + ", ".join(repr(" ".join(phrase)) for phrase in found)
        table = phrases.in_order(found, max_states, what)
        return cls(table, what, [w for phrase in found for w in phrase], max_states=max_states)

    @classmethod
    def matching(
        cls, pattern: str, classes: Mapping[str, Iterable[str]] | None = None, *, max_states: int = MAX_STATES
    ) -> Constraint:
        r"""Texts that a regular expression over words matches as a whole.

        Args:
            pattern: of words between spaces, ``.`` (any word), ``[a b]``, ``[^a b]``, ``<name>`` (a word of a class), ``( )``,
                ``|`` and ``* + ? {m} {m,} {m,n}`` behind what is repeated; a backslash takes the next character as it is.
            classes: words by the name of their class; those outside a model's vocabulary cannot come up.

        Raises:
            ValueError: a pattern that cannot be read, by the place in it, or that needs more than ``max_states``.

        Example::

            Constraint.matching("the (stock | bond) market .{0,3} <verb> .*", {"verb": ["rose", "fell"]})
        """
        table, literals = patterns.matching(pattern, {} if classes is None else classes, max_states)
        return cls(table, f"matching {pattern!r}", literals, max_states=max_states)

    @classmethod
    def length(cls, shortest: int, longest: int | None = None, *, max_states: int = MAX_STATES) -> Constraint:
        """Texts of so many words; longest: None for any number above.

        A bound on the whole text is cheaper as the ``length`` of a question: as a constraint it has a state a word.
        """
        checks.count("shortest", shortest, 0)
        if longest is not None and checks.count("longest", longest, 0) < shortest:
            raise ValueError(f"longest: expected at least shortest = {shortest}, got {longest}")
        last = shortest if longest is None else longest + 1
        what = f"of {shortest} words or more" if longest is None else f"of {shortest} to {longest} words"
        if last >= max_states:
            raise TooLarge(f"a length {what}", max_states)
        moves = np.minimum(np.arange(1, last + 2), last).reshape(-1, 1)
        accepting = np.arange(last + 1) >= shortest
        if longest is not None:
            accepting[-1] = False
        return cls(WordTable({}, moves, accepting).smallest(), what, max_states=max_states)

    @classmethod
    def anything(cls) -> Constraint:
        """All texts."""
        return cls(WordTable({}, np.array([[0]]), np.array([True])), "anything")

    @classmethod
    def of_automaton(cls, automaton: Automaton, *, max_states: int = MAX_STATES) -> Constraint:
        """Texts of words that are the automaton's symbols, which it accepts: one that was learned, for instance.

        Raises:
            ValueError: for an automaton whose ``pos_label`` is not known.
        """
        if automaton.pos_label is None:
            raise ValueError(
                f"automaton: which of its labels {checks.shown(automaton.labels)} is that of accepted texts is not known; say "
                f"it, dataclasses.replace(automaton, pos_label={checks.shown(automaton.labels[-1])})"
            )
        least = automaton.minimise()
        moves = np.full((least.num_states + 1, len(least.symbols) + 1), least.num_states)
        moves[:-1, 1:] = least.transitions
        classes = {word: place for place, word in enumerate(least.symbols, 1)}
        table = WordTable(classes, moves, np.append(least.outputs == least.labels.index(automaton.pos_label), False)).smallest()
        return cls(table, f"of an automaton of {least.num_states} states", max_states=max_states)

    @classmethod
    def of_edges(
        cls, graph: str | Path | Mapping[str, Any], vocabulary: Vocabulary | int, *, max_states: int = MAX_STATES
    ) -> Constraint:
        """Texts of tokens that an automaton in the form of Ctrl-G accepts.

        An edge is (from, to, tokens); a token without an edge out of a state must not stand there. A state to which no edge
        leads is never reached, and one without an edge out of it ends its texts. Ctrl-G has the automaton
        read the end of text as a token like any other; beside ``end=`` of a question it is asked before that.

        Args:
            graph: a mapping of "edges", "initial_state" and "accept_states", as Ctrl-G's builders return, or a file of JSON of
                it, in which states may be lists in the place of tuples. Tokens are V truth values or ids.
            vocabulary: what the tokens are called, or how many there are: V, of a model whose words are ids.

        Raises:
            ValueError, TypeError: for what is no such automaton, with the edge, pickled files, more states than ``max_states``.

        Source: H. Zhang et al., Adaptable logical control for large language models (2024).
        """
        from pplseq.models.constraints.edges import read_edges

        words = [*map(str, range(vocabulary))] if isinstance(vocabulary, int) else vocabulary.words
        table = read_edges(graph, words, max_states)
        return cls(table, f"of an automaton of {len(table.moves)} states", max_states=max_states)

    @classmethod
    def bio(cls, tags: Sequence[str]) -> Constraint:
        """Sequences of tags in which I-X only stands behind B-X or I-X (the scheme BIO, or IOB2); other tags stand anywhere."""
        kinds = {tag[2:]: place for place, tag in enumerate((t for t in tags if t.startswith("B-")), 1)}
        dead = len(kinds) + 1
        moves = np.zeros((dead + 1, len(tags) + 1), dtype=np.int64)
        moves[:, 0] = dead  # what is none of the tags
        for own, tag in enumerate(tags, 1):
            if tag.startswith("B-"):
                moves[:, own] = kinds[tag[2:]]
            elif tag.startswith("I-"):
                moves[:, own] = dead
                if tag[2:] in kinds:
                    moves[kinds[tag[2:]], own] = kinds[tag[2:]]
        moves[dead] = dead
        accepting = np.arange(dead + 1) < dead
        table = WordTable({tag: own for own, tag in enumerate(tags, 1)}, moves, accepting)
        return cls(table.smallest(), "of the scheme BIO")

    # ---------------------------------------------------------------- put together
    def __and__(self, other: Constraint) -> Constraint:
        parts = tuple(dict.fromkeys((*self.parts, *self._checked(other).parts)))
        return self._product(other, np.logical_and, " and ", parts)

    def __or__(self, other: Constraint) -> Constraint:
        return self._product(other, np.logical_or, " or ")

    def __invert__(self) -> Constraint:
        return Constraint(self.table.complement(), f"not ({self.text})", self.words, max_states=self.max_states)

    def then(self, other: Constraint) -> Constraint:
        """Texts of this one with texts of the other right behind them; ``.then(Constraint.anything())`` lets more follow."""
        most, what = max(self.max_states, self._checked(other).max_states), f"({self.text}) then ({other.text})"
        table = tables.joined(self.table, other.table, most, what)
        return Constraint(table, what, (*self.words, *other.words), max_states=most)

    def _product(self, other: Constraint, accepts: Any, sign: str, parts: tuple[Constraint, ...] = ()) -> Constraint:
        most, what = max(self.max_states, self._checked(other).max_states), f"{self.text}{sign}{other.text}"
        table = tables.product(self.table, other.table, accepts, most, what)
        return Constraint(table, what, (*self.words, *other.words), parts, most)

    @staticmethod
    def _checked(other: Any) -> Constraint:
        if not isinstance(other, Constraint):
            raise TypeError(f"constraint: expected a Constraint, such as Constraint.containing(...), got {checks.shown(other)}")
        return other

    # ---------------------------------------------------------------- what it is
    @property
    def num_states(self) -> int:
        """D of the smallest automaton."""
        return len(self.table.moves)

    def accepts(self, text: str | Sequence[str]) -> bool:
        """Whether a text, a string or words, is one of its."""
        state = 0
        for word in split_words(text) if isinstance(text, str) else text:
            state = self.table.moves[state, self.table.class_of(word)]
        return bool(self.table.accepting[state])

    def equals(self, other: Constraint) -> bool:
        """Whether both accept the same texts."""
        return not (self._product(other, np.logical_xor, " differs from ")).table.accepting.any()

    @property
    def automaton(self) -> Automaton:
        """With classes of words for symbols."""
        return self.table.automaton()

    def to_dot(self, name: str = "constraint") -> str:
        """Graphviz's language; ``dot -Tpng`` draws it."""
        return self.automaton.to_dot(name)

    def __repr__(self) -> str:
        return f"Constraint({self.text}; {self.num_states} states)"

    # ---------------------------------------------------------------- over a vocabulary
    def over(self, vocabulary: Vocabulary) -> WordMoves:
        """The automaton over the ids of a vocabulary.

        Raises:
            ValueError: words of phrases and patterns that are not in the vocabulary, by name.
        """
        from pplseq.infer.discrete.constrained.moves import WordMoves

        unknown = [word for word in self.words if word not in vocabulary]
        if unknown:
            near = [checks.similar(word, vocabulary.words) for word in unknown[:3]]
            raise ValueError(
                f"constraint: {', '.join(map(repr, unknown))} of {self.text} "
                f"{'is' if len(unknown) == 1 else 'are'} not in the vocabulary ({len(vocabulary)} words)."
                f"{''.join(near)} Only words that the model knows can be asked for"
            )
        classes = np.array([self.table.class_of(word) for word in vocabulary.words])
        used, numbers = np.unique(classes, return_inverse=True)
        return WordMoves.of(numbers.reshape(-1), self.table.moves[:, used], self.table.accepting)

    def check(self, vocabulary: Vocabulary, shortest: int, longest: int, end: int | None = None) -> None:
        """Raises ValueError where no text of so many of the vocabulary's words is accepted, with the shortest reason.

        Args:
            end: the id of a word that ends texts, and so stands in none.
        """
        from pplseq.models.constraints.reasons import why_impossible

        why = why_impossible(self, vocabulary, shortest, longest, end)
        if why:
            raise ValueError(f"constraint: {why}")
