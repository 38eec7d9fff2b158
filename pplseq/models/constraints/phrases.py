"""Automata of key phrases: all, any, or in order, anywhere in a text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pplseq import checks
from pplseq.data.vocabulary import split_words
from pplseq.models.constraints.tables import WordTable, explored

Phrase = tuple[str, ...]


def read_phrases(phrases: Sequence[str | Sequence[str]]) -> list[Phrase]:
    """Phrases as tuples of words, each once.

    Raises:
        TypeError: for what is neither a string nor words. ValueError: for no phrase, or one without words.
    """
    found: list[Phrase] = []
    for phrase in phrases:
        words = split_words(phrase) if isinstance(phrase, str) else phrase
        if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and word for word in words):
            raise TypeError(f"phrases: expected strings, or lists of words, got {checks.shown(phrase)}")
        if not words:
            raise ValueError("phrases: one has no words; leave it out")
        if tuple(words) not in found:
            found.append(tuple(words))
    if not found:
        raise ValueError("phrases: expected one or more, got none")
    return found


class Trie:
    """The beginnings of phrases, and to which one each word leads: the longest that a text ends with.

    Source: A. Aho and M. Corasick, Efficient string matching (1975).

    Attributes:
        classes: of the words in phrases, each its own. moves: from each beginning, by class. ends: the phrases, as places, that
            stand at the end of a text that led here.
    """

    def __init__(self, phrases: Sequence[Phrase]):
        self.classes: dict[str, int] = {}
        for phrase in phrases:
            for word in phrase:
                self.classes.setdefault(word, len(self.classes) + 1)
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
        self.moves = [[0] * num_classes for _ in children]
        shorter = [0] * len(children)  # the longest other beginning that ends like this one
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for own in range(num_classes):
                fallback = self.moves[shorter[node]][own] if node else 0
                child = children[node].get(own)
                if child is None:
                    self.moves[node][own] = fallback
                    continue
                self.moves[node][own], shorter[child] = child, fallback
                self.ends[child] |= self.ends[fallback]
                queue.append(child)


def containing(phrases: Sequence[Phrase], every: bool, most: int, what: str) -> WordTable:
    """Of texts with each phrase in them, or with one of them."""
    trie = Trie(phrases)
    whole = frozenset(range(len(phrases)))

    def seen(node: int, before: frozenset[int]) -> tuple[int, frozenset[int]]:
        now = before | trie.ends[node]
        if now and not every:
            now = whole
        return (0, whole) if now == whole else (node, now)

    def step(state, own):
        return state if state[1] == whole else seen(trie.moves[state[0]][own], state[1])

    start = 0, frozenset[int]()
    return explored(start, step, lambda state: state[1] == whole, len(trie.classes) + 1, trie.classes, most, what)


def in_order(phrases: Sequence[Phrase], most: int, what: str) -> WordTable:
    """Of texts with each phrase behind the one before, without overlap: the first place of each is the best to go on from."""
    tries = [Trie([phrase]) for phrase in phrases]
    classes: dict[str, int] = {}
    for phrase in phrases:
        for word in phrase:
            classes.setdefault(word, len(classes) + 1)
    own_class = [[0, *(trie.classes.get(word, 0) for word in classes)] for trie in tries]

    def step(state, own):
        place, node = state
        if place == len(tries):
            return state
        node = tries[place].moves[node][own_class[place][own]]
        return (place + 1, 0) if tries[place].ends[node] else (place, node)

    return explored((0, 0), step, lambda state: state[0] == len(tries), len(classes) + 1, classes, most, what)
