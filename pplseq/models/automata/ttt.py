"""The TTT algorithm: active learning by a spanning tree of states and a tree of short suffixes that tell them apart.

A counterexample's suffix, which may be long, tells two states apart for the time being only. It is replaced as soon as a symbol
leads the states to where a shorter suffix tells apart: that symbol and that suffix then take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

Word = tuple[str, ...]
Label = Hashable


class Node:
    """Of the discrimination tree: a leaf holds a state, the others a suffix and a child for each label that it led to."""

    def __init__(self, parent: Node | None = None, label: Label = None, state: State | None = None):
        self.parent, self.label, self.state = parent, label, state  # label: of the edge that leads here
        self.suffix: Word = ()
        self.final = False  # whether the suffix stays; of nodes that are no leaves
        self.children: dict[Label, Node] = {}

    def above(self) -> list[Node]:
        """From the root to this node."""
        path: list[Node] = []
        node: Node | None = self
        while node is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    def below(self) -> Iterator[Node]:
        """This node and all under it, parents first; trees may be deeper than Python's calls."""
        waiting: list[Node] = [self]
        while waiting:
            yield (node := waiting.pop())
            waiting.extend(reversed(node.children.values()))

    def states(self) -> list[State]:
        return [node.state for node in self.below() if node.state is not None]


class State:
    """A state, by the string that leads to it; moves are states along the spanning tree, else nodes known so far."""

    def __init__(self, access: Word, leaf: Node, root: Node, num_symbols: int):
        self.access, self.leaf = access, leaf
        self.moves: list[State | Node] = [root] * num_symbols
        leaf.state = self

    def target(self, symbol: int) -> Node:
        move = self.moves[symbol]
        return move.leaf if isinstance(move, State) else move


class Hypothesis(NamedTuple):
    """States in the order they were found, the start first: (Z, L) numbers of next states, Z labels, Z access strings."""

    transitions: list[list[int]]
    labels: list[Label]
    accesses: list[Word]


class TTT:
    """Learns the smallest automaton that gives all strings the labels that ``ask`` gives; ``refine`` takes counterexamples.

    Args:
        symbols: L of them. ask: the label of a string, always the same; it is asked again about strings that it has answered.

    Source: M. Isberner, F. Howar and B. Steffen, The TTT algorithm: a redundancy-free approach to active automata learning
        (2014).

    Cost: for Z states and counterexamples of up to m symbols O(L Z^2 + Z log m) questions.
    """

    def __init__(self, symbols: Sequence[str], ask: Callable[[Word], Label]):
        self.symbols, self.ask = tuple(symbols), ask
        self.root, self.found = Node(), []
        self.root.final = True
        self._state((), ask(()), self.root)
        self._close()

    @property
    def hypothesis(self) -> Hypothesis:
        number = {state: place for place, state in enumerate(self.found)}
        transitions = [[number[self._next(state, s)] for s in range(len(self.symbols))] for state in self.found]
        return Hypothesis(transitions, [self._label(state) for state in self.found], [s.access for s in self.found])

    def refine(self, word: Word) -> None:
        """Makes the hypothesis give a string the label that it is asked to have, where it does not.

        Raises:
            ValueError: a string that has this label already.
        """
        word = tuple(word)
        if self._label(self._run(self.found[0], word)) == self.ask(word):
            raise ValueError(f"word: expected a string of another label than the hypothesis gives it, got {word}")
        while self._label(self._run(self.found[0], word)) != self.ask(word):
            self._split_leaf(word)
            self._close()
            while blocks := self._blocks():
                if not self._split_block(blocks):
                    # no symbol tells the states of a block apart, so that the hypothesis contradicts one of its suffixes, or
                    # moves lead to further states of the block, by which it can be split
                    self._close(through_blocks=True)
                    if (other := self._contradiction(blocks)) is not None:
                        self._split_leaf(other)
                    elif not self._split_block(self._blocks()):
                        raise RuntimeError(
                            "the answers contradict each other: the same string must always have the same label"
                        )
                self._close()

    # ------------------------------------------------------------------------------------------------ the hypothesis
    def _state(self, access: Word, label: Label, parent: Node) -> State:
        leaf = parent.children[label] = Node(parent, label)
        self.found.append(State(access, leaf, self.root, len(self.symbols)))
        return self.found[-1]

    def _close(self, through_blocks: bool = False) -> None:
        """Follows moves down the tree: to a leaf, or to suffixes that do not stay, which are long, unless these are wanted."""
        for state in self.found:  # which new states join
            for place, symbol in enumerate(self.symbols):
                while (node := state.target(place)).children and (node.final or through_blocks):
                    word = (*state.access, symbol)
                    label = self.ask(word + node.suffix)
                    state.moves[place] = (
                        node.children[label] if label in node.children else self._state(word, label, node)
                    )

    def _next(self, state: State, symbol: int) -> State:
        found = state.target(symbol).state
        assert found is not None
        return found

    def _run(self, state: State, word: Word) -> State:
        for symbol in word:
            state = self._next(state, self.symbols.index(symbol))
        return state

    @staticmethod
    def _label(state: State) -> Label:
        return state.leaf.above()[1].label  # the root's suffix is the empty one

    # ------------------------------------------------------------------------------------------------ splits
    def _split_leaf(self, word: Word) -> None:
        """Finds a move of a counterexample that leads to a new state: by binary search, as Rivest and Schapire (1993)."""

        def seen(place: int) -> Label:
            return self.ask(self._run(self.found[0], word[:place]).access + word[place:])

        right, first, last = seen(0), 0, len(word)
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if seen(middle) == right else (first, middle)
        state, suffix = self._run(self.found[0], word[:first]), word[last:]
        symbol = self.symbols.index(word[first])
        old, wrong = self._next(state, symbol), seen(last)
        node, old.leaf = old.leaf, Node(old.leaf, wrong, old)
        node.state, node.suffix, node.children = None, suffix, {wrong: old.leaf}
        state.moves[symbol] = self._state((*state.access, word[first]), right, node)

    def _blocks(self) -> list[Node]:
        """The first nodes from the root on whose suffix does not stay: each with the states that it tells apart for now."""
        passing = [node for node in self.root.below() if node.children and not node.final]
        return [node for node in passing if node.parent is None or node.parent.final]

    def _split_block(self, blocks: list[Node]) -> bool:
        """Splits a block of states by the shortest suffix that begins with a symbol and goes on with one that stays."""
        best: tuple[Node, int, Node] | None = None
        for block in blocks:
            for symbol in range(len(self.symbols)):
                paths = [state.target(symbol).above() for state in block.states()]
                shared = [nodes[0] for nodes in zip(*paths, strict=False) if all(node is nodes[0] for node in nodes)][
                    -1
                ]
                if shared.children and shared.final and (best is None or len(shared.suffix) < len(best[2].suffix)):
                    best = block, symbol, shared
        if best is None:
            return False
        block, symbol, shared = best
        depth = len(shared.above())
        label_of = {state: state.target(symbol).above()[depth].label for state in block.states()}
        inside = set(block.below())
        for state in self.found:
            state.moves = [block if move in inside else move for move in state.moves]
        old = Node(block.parent, block.label)
        old.suffix, old.children = block.suffix, block.children
        block.suffix, block.final = (self.symbols[symbol], *shared.suffix), True
        block.children = {}
        for label in dict.fromkeys(label_of.values()):
            kept = _restricted(old, {state for state, own in label_of.items() if own == label})
            assert kept is not None
            kept.parent, kept.label = block, label
            block.children[label] = kept
        return True

    def _contradiction(self, blocks: list[Node]) -> Word | None:
        """A string that the hypothesis gives another label than the tree has for it, if there is one."""
        for block in blocks:
            for node in block.below():
                for label, child in node.children.items():
                    for state in child.states():
                        if self._label(self._run(state, node.suffix)) != label:
                            return state.access + node.suffix
        return None


def _restricted(node: Node, states: set[State]) -> Node | None:
    """A copy of a block for some of its states, without suffixes that tell none of these apart; None for no states."""
    copies: dict[Node, Node | None] = {}
    for old in reversed(list(node.below())):  # children first
        if old.state is not None:
            copies[old] = copy = Node(state=old.state) if old.state in states else None
            if copy is not None:
                old.state.leaf = copy
            continue
        kept = {label: child for label, below in old.children.items() if (child := copies[below]) is not None}
        if len(kept) < 2:
            copies[old] = next(iter(kept.values()), None)
            continue
        copies[old] = copy = Node()
        copy.suffix, copy.children = old.suffix, kept
        for label, child in kept.items():
            child.parent, child.label = copy, label
    return copies[node]
