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
from pplseq.models.automata.description import log_weights
from pplseq.models.automata.em import SymbolTables
from pplseq.models.automata.labels import encoded_labels, refuse_contradictions
from pplseq.models.automata.prefix_tree import PrefixTree

MOST_STATES = 1000  # of a greedy merging; more means that the strings show no automaton
WORK = 100_000_000  # changes of the tree in a search for the smallest automata, of one size: a second or so
UNDECIDED = 3  # sizes whose search was cut short, after which no larger ones are searched
WORK_BEYOND = 20_000_000  # the same for those that are larger
MAX_TABLE = 2**26  # numbers of a tree, half a GiB; merging takes a few times that
LONGEST = 100  # random strings that automata are compared by
MOST_FOUND = 2000  # automata of one size
KEPT = 200  # of all that were found, the most probable
SMALLEST = 2.0  # nats, by which larger automata must be more probable than the smallest ones
ALIKE = 1.0  # nats, within which automata are as good as the best: the average of all decides
UNLIKELY = 7.0  # nats, by which larger automata that have a say may be less probable than the most probable one
LARGER, LARGER_REVERSIBLE = 2, 6  # states more than the smallest automata have, up to which simpler ones are looked for
MANY, MANY_REVERSIBLE = 1500, 300  # automata of one size, from which on those of the next size would be too many


class Merged(NamedTuple):
    """What merging found.

    Attributes:
        moves: (M, Z, L) the next state of each state and symbol of M automata, all of which label all strings right, the most
            probable first. Those of fewer than Z states end with states that nothing leads to.
        labels: (M, Z) of their states.
        smallest: states of the smallest of them.
        least: no automaton of fewer states labels all strings right; up to ``smallest``.
        whole: whether least is ``smallest`` and there are no other automata of so many states, but where no string goes.
        only: whether the smallest is the only one of its size.
        open: whether any of them has moves or labels of states that no string shows.
    """

    moves: np.ndarray
    labels: np.ndarray
    smallest: int
    least: int
    whole: bool
    only: bool
    open: bool

    def tables(self, num_labels: int) -> SymbolTables:
        """As tables of 0 and 1, automata last."""

        def one_hot(numbers: np.ndarray, size: int) -> Tensor:
            return torch.nn.functional.one_hot(torch.from_numpy(numbers), size).double()

        size = self.labels.shape[1]
        start = torch.zeros(size, len(self.labels), dtype=torch.float64)
        start[0] = 1.0
        return SymbolTables(
            start,
            one_hot(self.moves, size).permute(2, 1, 3, 0).contiguous(),
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

    def search(self, limit: int, work: int, reversible: bool = False) -> tuple[np.ndarray, np.ndarray, bool]:
        """Moves (M, Z, L) and labels (M, Z) of automata of at most Z states, and whether these are all."""
        from pplseq.models.automata import merging_loops

        moves, labels = np.full((MOST_FOUND, limit, self.num_symbols), -1), np.full((MOST_FOUND, limit), -1)
        found, whole = merging_loops.search(
            self.table.copy(), self.size, self.num_symbols, limit, reversible, work, self.trail, self.pairs, *self.room(limit),
            np.empty(self.size, np.int64), np.empty((self.size, limit + 1), np.int16), np.empty(self.size, np.int64),
            moves, labels,
        )  # fmt: skip
        return moves[:found], labels[:found], whole


def too_large(tree: PrefixTree) -> bool:
    """Whether a tree takes more memory than merging may."""
    return tree.num_nodes * (2 + len(tree.symbols)) > MAX_TABLE


def smallest_by_merging(tree: PrefixTree, num_labels: int, *, work: int = WORK) -> Merged | None:
    """The smallest automata that merging finds, and larger ones that are simpler.

    Greedy merging in two orders gives a size; sizes below it are searched from 1 on, until one has an automaton. A search
    that took more than ``work`` changes of the tree leaves open whether there are others. Where it found some, larger ones
    are looked for: any, and those whose symbols permute the states. Those that are more probable than the smallest are kept.

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
    found, smallest, least, proved = [(moves[None], labels[None])], len(labels), 1, True
    whole, undecided = False, 0
    for limit in range(1, smallest + 1):
        more, their_labels, whole = own.search(limit, work)
        if len(more):
            found, smallest = [(more, their_labels)], limit
            found += _larger(own, limit, min(work, WORK_BEYOND))
            break
        proved, undecided = proved and whole, undecided + (not whole)
        least = limit + 1 if proved else least
        if undecided == UNDECIDED:
            break
        if not whole and limit < smallest - 1 and smallest > 3 * limit:
            break  # far from what greedy merging found: searches of larger sizes will not end either
    is_open = any((moves < 0).any() or (labels < 0).any() for moves, labels in found[:1])
    found = [_completed(moves, labels, tree, num_labels) for moves, labels in found]
    size = max(labels.shape[1] for _, labels in found)
    moves = np.concatenate([_padded(moves, np.arange(size)[None, :, None], size) for moves, _ in found])
    labels = np.concatenate([_padded(labels, np.zeros((1, size), np.int64), size) for _, labels in found])
    names = tuple(map(str, range(num_labels)))
    languages: dict[tuple, tuple[int, Automaton]] = {}  # larger automata have those of smaller ones among them
    for place, (to, of) in enumerate(zip(moves, labels, strict=True)):
        least_form = Automaton(tree.symbols, to, of, 0, names).minimise()
        languages.setdefault((least_form.transitions.tobytes(), least_form.outputs.tobytes()), (place, least_form))
    places = np.array([place for place, _ in languages.values()])
    weights = log_weights([automaton for _, automaton in languages.values()], tree)
    small = np.array([automaton.num_states <= smallest for _, automaton in languages.values()])
    weights = np.where(small, weights + SMALLEST, weights).round(9)
    by_weight = np.argsort(-weights, kind="stable")
    by_weight = by_weight[(small | (weights >= weights.max() - UNLIKELY))[by_weight]][:KEPT]
    order, weights, small = places[by_weight], weights[by_weight], small[by_weight]
    first = _by_agreement(moves[order], labels[order], np.exp(weights - weights[0]), num_labels, len(tree.groups) + 1)
    alike = int((weights >= weights[0] - ALIKE).sum())
    ranked = np.concatenate([first[first < alike], np.arange(alike, len(order))])
    order = order[ranked[(small | (weights >= weights[small].max(initial=-np.inf)))[ranked]]]
    return Merged(moves[order], labels[order], smallest, least, whole and proved, len(found[0][1]) == 1, is_open)


def _larger(own: _Tree, smallest: int, work: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Moves and labels of automata of more states than needed, those of one size together."""
    found = []
    for reversible, more, many in ((False, LARGER, MANY), (True, LARGER_REVERSIBLE, MANY_REVERSIBLE)):
        for limit in range(smallest + 1, smallest + 1 + more):
            moves, labels, _ = own.search(limit, work, reversible)
            if len(labels):
                found.append((moves, labels))
            if len(labels) >= many:
                break
    return found


def _padded(numbers: np.ndarray, fill: np.ndarray, size: int) -> np.ndarray:
    """Numbers of Z states (M, Z, ...) with those of ``fill`` (1, size, ...) behind them."""
    wanted = np.broadcast_to(fill, (len(numbers), size, *numbers.shape[2:]))[:, numbers.shape[1] :]
    return np.concatenate([numbers, wanted], axis=1)


def _by_agreement(moves: np.ndarray, labels: np.ndarray, weights: np.ndarray, num_labels: int, longest: int) -> np.ndarray:
    """The order of automata by how probable the labels are that they give to random strings, under the average of all."""
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
    votes = np.stack([weights @ (given == label) for label in range(num_labels)])
    return np.argsort(-votes[given, np.arange(len(lengths))].sum(1).round(9), kind="stable")


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
