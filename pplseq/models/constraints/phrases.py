"""Automata of key phrases: all, any, or in order, anywhere in a text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from pplseq import checks
from pplseq.data.vocabulary import split_words
from pplseq.models.constraints.tables import EXPLORED, WordTable, check_moves, explored

Phrase = tuple[str, ...]


def read_phrases(phrases: Sequence[str | Sequence[str]]) -> list[Phrase]:
    """Phrases as tuples of words, each once.

    Raises:
        TypeError: for what is neither a string nor words. ValueError: for no phrase, or one without words.
    """
    found: dict[Phrase, None] = {}
    for phrase in phrases:
        words = split_words(phrase) if isinstance(phrase, str) else phrase
        if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and word for word in words):
            raise TypeError(f"phrases: expected strings, or lists of words, got {checks.shown(phrase)}")
        if not words:
            raise ValueError("phrases: one has no words; leave it out")
        found[tuple(words)] = None
    if not found:
        raise ValueError("phrases: expected one or more, got none")
    return list(found)


class Trie:
    """The beginnings of phrases, and to which one each word leads: the longest that a text ends with.

    Source: A. Aho and M. Corasick, Efficient string matching (1975).

    Attributes:
        classes: of the words in phrases, each its own. moves: from each beginning, by class. ends: the phrases, as places, that
            stand at the end of a text that led here.
    """

    def __init__(self, phrases: Sequence[Phrase], most: int, what: str):
        self.classes: dict[str, int] = {}
        for phrase in phrases:
            for word in phrase:
                self.classes.setdefault(word, len(self.classes) + 1)
        beginnings = {phrase[:end] for phrase in phrases for end in range(len(phrase) + 1)}
        check_moves(len(beginnings), len(self.classes) + 1, most, what)
        children: list[dict[int, int]] = [{}]
        self.ends: list[frozenset[int]] = [frozenset()]
        for place, phrase in enumerate(phrases):
            node = 0
            for word in phrase:
                own = self.classes[word]
                if own not in children[node]:
                    children[node][own] = len(children)
                    children.append({})
                    self.ends.append(frozenset())
                node = children[node][own]
            self.ends[node] |= {place}
        num_classes = len(self.classes) + 1
        self.moves = np.zeros((len(children), num_classes), np.int64)
        shorter = [0] * len(children)  # the longest other beginning that ends like this one
        queue = deque([0])
        while queue:
            node = queue.popleft()
            short = shorter[node]
            self.moves[node] = self.moves[short]
            for own, child in children[node].items():
                shorter[child] = int(self.moves[short, own]) if node else 0
                self.moves[node, own] = child
                self.ends[child] |= self.ends[shorter[child]]
                queue.append(child)


def containing(phrases: Sequence[Phrase], every: bool, most: int, what: str) -> WordTable:
    """Of texts with each phrase in them, or with one of them."""
    alone: dict[str, str] = {}  # single words, any of which is enough: they move alike, and phrases around them add nothing
    if not every and (single := {phrase[0] for phrase in phrases if len(phrase) == 1}):
        first = next(phrase[0] for phrase in phrases if len(phrase) == 1)
        alone = dict.fromkeys(single, first)
        phrases = [(first,), *(phrase for phrase in phrases if single.isdisjoint(phrase))]
    trie = Trie(phrases, most, what)
    if not every:
        accepting = np.array([bool(ends) for ends in trie.ends])
        trie.moves[accepting] = np.flatnonzero(accepting)[:, None]  # once in it, always in it
        classes = trie.classes | {word: trie.classes[first] for word, first in alone.items()}
        return WordTable(classes, trie.moves, accepting).smallest()
    moves, whole = trie.moves.tolist(), frozenset(range(len(phrases)))

    def seen(node: int, before: frozenset[int]) -> tuple[int, frozenset[int]]:
        now = before | trie.ends[node]
        return (0, whole) if now == whole else (node, now)

    def step(state, own):
        return state if state[1] == whole else seen(moves[state[0]][own], state[1])

    start = 0, frozenset[int]()
    return explored(start, step, lambda state: state[1] == whole, len(trie.classes) + 1, trie.classes, most, what)


def in_order(phrases: Sequence[Phrase], most: int, what: str) -> WordTable:
    """Of texts with each phrase behind the one before, without overlap: the first place of each is the best to go on from."""
    classes: dict[str, int] = {}
    for phrase in phrases:
        for word in phrase:
            classes.setdefault(word, len(classes) + 1)
    check_moves(sum(map(len, phrases)) + 1, len(classes) + 1, most, what, EXPLORED)
    tries = [Trie([phrase], most, what) for phrase in phrases]
    moves = [trie.moves.tolist() for trie in tries]
    own_class = [[0, *(trie.classes.get(word, 0) for word in classes)] for trie in tries]

    def step(state, own):
        place, node = state
        if place == len(tries):
            return state
        node = moves[place][node][own_class[place][own]]
        return (place + 1, 0) if tries[place].ends[node] else (place, node)

    return explored((0, 0), step, lambda state: state[0] == len(tries), len(classes) + 1, classes, most, what)
