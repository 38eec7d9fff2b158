"""Automata from labelled strings by merging states of the prefix tree: greedily, and the smallest ones by search.

Where a language shows in its strings, merging finds it in milliseconds, and the search can tell that nothing smaller, or
nothing else as small, labels all strings right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pplseq.kernels import compiled
from pplseq.models.automata.automaton import Automaton, String
from pplseq.models.automata.em import SymbolTables
from pplseq.models.automata.labels import encoded_labels, refuse_contradictions
from pplseq.models.automata.prefix_tree import PrefixTree

MOST_STATES = 1000  # of a greedy merging; more means that the strings show no automaton
WORK = 20_000_000  # changes of the tree in a search for automata of one size: a fifth of a second or so
MAX_TABLE = 2**26  # numbers of a tree, half a GiB; merging takes a few times that
LONGEST = 100  # random strings that automata are compared by
MOST_FOUND = 200  # automata of one size that are kept


class Merged(NamedTuple):
    """What merging found.

    Attributes:
        moves: (M, Z, L) the next state of each state and symbol of M automata, all of which label all strings right.
        labels: (M, Z) of their states.
        least: no automaton of fewer states labels all strings right; up to Z.
        whole: whether least is Z and there are no other automata of Z states, but where no string goes.
        open: whether any of them has moves or labels of states that no string shows.
    """

    moves: np.ndarray
    labels: np.ndarray
    least: int
    whole: bool
    open: bool

    @property
    def num_states(self) -> int:
        return self.labels.shape[1]

    def tables(self, num_labels: int) -> SymbolTables:
        """As tables of 0 and 1, automata last."""

        def one_hot(numbers: np.ndarray, size: int) -> Tensor:
            return torch.nn.functional.one_hot(torch.from_numpy(numbers), size).double()

        start = torch.zeros(self.num_states, len(self.labels), dtype=torch.float64)
        start[0] = 1.0
        return SymbolTables(
            start,
            one_hot(self.moves, self.num_states).permute(2, 1, 3, 0).contiguous(),
            one_hot(self.labels, num_labels).permute(1, 2, 0).contiguous(),
        )


class _Tree:
    """A prefix tree as the loops take it, with their room."""

    def __init__(self, tree: PrefixTree):
        self.size, self.num_symbols = tree.num_nodes, len(tree.symbols)
        if too_large(tree):
            raise ValueError(f"strings: {self.size:,} prefixes and {self.num_symbols:,} symbols are more than merging holds")
        table = np.full(self.size * (2 + self.num_symbols), -1, np.int64)
        table[: self.size] = np.arange(self.size)
        table[self.size + tree.end.numpy()] = tree.label.numpy()
        for nodes, symbol, parents in tree.groups:
            places = 2 * self.size + parents.numpy() * self.num_symbols + symbol
            table[places] = np.arange(nodes.start, nodes.stop)
        self.table = table
        self.trail = np.empty((len(table), 2), np.int64)
        self.pairs = np.empty((self.size * self.num_symbols + 2, 2), np.int64)

    def room(self, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Red states, the place of each node among them, and blue states."""
        return np.empty(most, np.int64), np.full(self.size, -1), np.empty(most * self.num_symbols + 1, np.int64)

    def greedy(self, most: int, by_evidence: bool) -> tuple[np.ndarray, np.ndarray] | None:
        """Moves (Z, L) and labels (Z,) by merging in one pass; None for more states than allowed."""
        from pplseq.models.automata import merging_loops

        most = min(most, self.size)
        moves, labels = np.full((most, self.num_symbols), -1), np.full(most, -1)
        found = merging_loops.greedy(
            self.table.copy(), self.size, self.num_symbols, most, by_evidence, self.trail, self.pairs,
            *self.room(most), moves, labels,
        )  # fmt: skip
        return (moves[:found], labels[:found]) if found else None

    def search(self, limit: int, work: int) -> tuple[np.ndarray, np.ndarray, bool]:
        """Moves (M, Z, L) and labels (M, Z) of automata of at most Z states, and whether these are all."""
        from pplseq.models.automata import merging_loops

        moves, labels = np.full((MOST_FOUND, limit, self.num_symbols), -1), np.full((MOST_FOUND, limit), -1)
        found, whole = merging_loops.search(
            self.table.copy(), self.size, self.num_symbols, limit, work, self.trail, self.pairs, *self.room(limit),
            np.empty(self.size, np.int64), np.empty((self.size, limit + 1), np.int16), np.empty(self.size, np.int64),
            moves, labels,
        )  # fmt: skip
        return moves[:found], labels[:found], whole


def too_large(tree: PrefixTree) -> bool:
    """Whether a tree takes more memory than merging may."""
    return tree.num_nodes * (2 + len(tree.symbols)) > MAX_TABLE


def smallest_by_merging(tree: PrefixTree, num_labels: int, *, work: int = WORK) -> Merged | None:
    """The smallest automata that merging finds, those of one size.

    Greedy merging in two orders gives a size; sizes below it are searched from 1 on, until one has an automaton. A search
    that took more than ``work`` changes of the tree leaves open whether there are others.

    Returns:
        None where greedy merging has more than 1,000 states.

    Source: K. Lang, B. Pearlmutter and R. Price, Results of the Abbadingo One DFA learning competition and a new
        evidence-driven state merging algorithm (1998); the search: K. Lang, Faster algorithms for finding minimal
        consistent DFAs (1999), Exbar.
    """
    own = _Tree(tree)
    greedy = [found for by_evidence in (True, False) if (found := own.greedy(MOST_STATES, by_evidence)) is not None]
    if not greedy:
        return None
    moves, labels = min(greedy, key=lambda found: len(found[1]))
    moves, labels, least, proved = moves[None], labels[None], 1, True
    whole = False
    for limit in range(1, len(labels[0]) + 1):
        more, their_labels, whole = own.search(limit, work)
        if len(more):
            moves, labels = more, their_labels
            break
        proved = proved and whole
        least = limit + 1 if proved else least
        if not whole and limit < len(labels[0]) - 1 and len(labels[0]) > 3 * limit:
            break  # far from what greedy merging found: searches of larger sizes will not end either
    is_open = bool((moves < 0).any() or (labels < 0).any())
    moves, labels = _completed(moves, labels, tree, num_labels)
    order = _by_agreement(moves, labels, num_labels, len(tree.groups) + 1)
    return Merged(moves[order], labels[order], least, whole and proved, is_open)


def _by_agreement(moves: np.ndarray, labels: np.ndarray, num_labels: int, longest: int) -> np.ndarray:
    """The order of automata by how often they give random strings the label that most of them give: what a mean would say."""
    if len(moves) == 1:
        return np.zeros(1, np.int64)
    generator, longest = np.random.default_rng(0), min(longest, LONGEST)
    lengths = generator.integers(longest + 1, size=500)
    every = np.arange(len(moves))[:, None]
    state = np.zeros((len(moves), len(lengths)), np.int64)
    for step in range(longest):
        symbols = generator.integers(moves.shape[2], size=len(lengths))
        state = np.where(step < lengths, moves[every, state, symbols], state)
    given = labels[every, state]
    votes = np.stack([(given == label).sum(0) for label in range(num_labels)])
    return np.argsort(-(given == votes.argmax(0)).sum(1), kind="stable")


def held_out_accuracy(strings: Sequence[String], labels: Sequence[int], symbols: tuple[str, ...]) -> float:
    """The share of every fifth string that merging of the others labels right: low where labels are noisy or strings few."""
    left_out = [place % 5 == 4 for place in range(len(strings))]

    def part(out: bool) -> tuple[list[String], list[int]]:
        kept = [place for place, own in enumerate(left_out) if own == out]
        return [strings[place] for place in kept], [labels[place] for place in kept]

    others, held_out = part(False), part(True)
    if not held_out[0] or len(set(others[1])) < 2:
        return 0.0
    tree = PrefixTree.grow(*others, symbols)
    found = _Tree(tree).greedy(MOST_STATES, True)
    if found is None:
        return 0.0
    (moves,), (outputs,) = _completed(found[0][None], found[1][None], tree, max(labels) + 1)
    number = {symbol: place for place, symbol in enumerate(symbols)}
    right = 0
    for string, label in zip(*held_out, strict=True):
        state = 0
        for symbol in string:
            state = moves[state, number[symbol]]
        right += int(outputs[state] == label)
    return right / len(held_out[0])


def _completed(moves: np.ndarray, labels: np.ndarray, tree: PrefixTree, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Moves that no string makes lead to a state that rejects for ever where there is one, else stay; labels: the usual one."""
    usual = int(torch.bincount(tree.label, minlength=num_labels).argmax())
    moves, labels = moves.copy(), np.where(labels < 0, usual, labels)
    own = np.arange(moves.shape[1])[None, :, None]
    stays = ((moves == own) | (moves < 0)).all(-1) & (moves >= 0).any(-1)
    for number, free in enumerate(moves < 0):
        sinks = np.flatnonzero(stays[number] & (labels[number] == 0))
        to = np.full_like(moves[number], sinks[0]) if len(sinks) else np.broadcast_to(own[0], free.shape)
        to = np.where(stays[number][:, None], own[0], to)
        moves[number] = np.where(free, to, moves[number])
    return moves, labels


def merge_states(
    strings: Sequence[String],
    labels: Sequence[bool | int | str],
    *,
    symbols: Sequence[str] | None = None,
    pos_label: bool | int | str | None = None,
    by_evidence: bool = True,
) -> Automaton:
    """The automaton of evidence-driven state merging (EDSM, blue-fringe), in its smallest form.

    Args:
        strings, labels, symbols, pos_label: as :meth:`~pplseq.models.automata.learner.AutomatonLearner.fit` takes them; it
            labels all strings right. Moves that no string makes lead to a state that rejects for ever where there is one, else
            stay.
        by_evidence: the merge of most evidence first; else the first that is possible, as RPNI does.

    Raises:
        ValueError: as the learner; more than 1,000 states. ImportError: without numba.

    Source: K. Lang, B. Pearlmutter and R. Price (1998).

    Cost: for Z states, Z^2 L tries for each merge, most of which meet a contradiction soon.
    """
    if not compiled.available():
        raise ImportError("merge_states needs numba, which is not there or switched off; AutomatonLearner does without")
    names, numbers, positive = encoded_labels(strings, labels, pos_label)
    tree = PrefixTree.grow(strings, numbers, symbols)
    refuse_contradictions(tree, strings)
    found = _Tree(tree).greedy(MOST_STATES, by_evidence)
    if found is None:
        raise ValueError(f"strings: merging leaves more than {MOST_STATES} states; give more strings")
    (moves,), (outputs,) = _completed(found[0][None], found[1][None], tree, len(names))
    return Automaton(tree.symbols, moves, outputs, 0, names, positive).minimise()
