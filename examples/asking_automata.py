"""Automata of what answers questions: active learning of a callable, through AALpy (``pip install "pplseq[automata]"``).

    from asking_automata import learn_by_asking  # this folder on the path

    learn_by_asking(lambda string: "000" not in string, "01").num_states

Angluin's L*, Kearns and Vazirani's tree, and TTT, which AALpy lacks: active learning by a spanning tree of
states and a tree of short suffixes that tell them apart.

A counterexample's suffix, which may be long, tells two states apart for the time being only. It is replaced as soon as a symbol
leads the states to where a shorter suffix tells apart: that symbol and that suffix then take its place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from rpni import of_peer

from pplseq import checks
from pplseq.models.automata.automaton import Automaton, String
from pplseq.threads import from_shared_generator

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


# ------------------------------------------------------------------------------------------------ asking
METHODS = ("lstar", "kearns_vazirani", "ttt")


def learn_by_asking(
    answer: Callable[[String], bool | str],
    symbols: Sequence[str],
    *,
    method: str = "kearns_vazirani",
    walks_per_state: int = 100,
    walk_length: int = 12,
    max_rounds: int | None = None,
    examples: Iterable[String] = (),
    seed: int = 0,
) -> Automaton:
    """The smallest automaton of a language that can be asked about.

    What was learned is compared with the answers on random walks from every state, behind the shortest string to it; it is
    right on all that was asked, and exactly right unless every difference was missed.

    Args:
        answer: takes a string (a str where every symbol is one character, else a tuple) and says whether it is in the language,
            or names its class, always the same. Each string is asked once.
        symbols: that strings are made of, one or more.
        method: "kearns_vazirani" (a tree of what tells states apart; few questions), "lstar" (Angluin's table) or "ttt" (a
            tree of which every suffix is soon a short one); all look for the place in a counterexample by binary search.
        walks_per_state, walk_length: of the comparison. max_rounds: hypotheses at most; None: as many as it takes.
        examples: strings that what was learned is compared on first: of a rare language, which walks do not meet, some of it.
        seed: of the walks.

    Warns:
        RuntimeWarning: no string that was asked is in the language, or the rounds ran out before the comparison found nothing.

    Raises:
        ImportError: AALpy is not installed. TypeError: answers that are neither bools nor names. ValueError: no symbols, or
        an example of others.

    Source: M. J. Kearns and U. V. Vazirani, An introduction to computational learning theory (1994), chapter 8; D. Angluin,
        Learning regular sets from queries and counterexamples (1987); M. Isberner, F. Howar and B. Steffen, The TTT
        algorithm (2014), in :class:`TTT`.
    """
    try:
        from aalpy.base import SUL
        from aalpy.learning_algs import run_KV, run_Lstar
        from aalpy.oracles import RandomWMethodEqOracle
    except ImportError as error:
        raise ImportError('learn_by_asking needs the package AALpy: pip install "pplseq[automata]"') from error
    checks.choice("method", method, METHODS)
    for name, value in (("walks_per_state", walks_per_state), ("walk_length", walk_length)):
        checks.count(name, value)
    if max_rounds is not None:
        checks.count("max_rounds", max_rounds)
    symbols = tuple(symbols)
    if not symbols or len(set(symbols)) != len(symbols) or not all(isinstance(s, str) and s for s in symbols):
        raise ValueError(f"symbols: expected one or more different ones, each a str, got {symbols}")
    one_character = all(len(symbol) == 1 for symbol in symbols)
    if isinstance(examples, str):
        raise TypeError(
            f"examples: expected a list of strings, got the string {checks.shown(examples)}; write [{checks.shown(examples)}]"
        )
    given = [tuple(string) for string in examples]
    for word in given:
        if (other := next((symbol for symbol in word if symbol not in symbols), None)) is not None:
            raise ValueError(
                f"examples: expected strings of the symbols {', '.join(symbols)}, got {checks.shown(other)} in {word}"
            )
    known: dict[tuple[str, ...], bool | str] = {}

    def ask(word: tuple[str, ...]) -> bool | str:
        if word not in known:
            said = answer("".join(word) if one_character else word)
            said = bool(said) if isinstance(said, (bool, np.bool_)) else said
            before = next(iter(known.values()), said)
            if not isinstance(said, (bool, str)) or isinstance(said, bool) != isinstance(before, bool):
                raise TypeError(
                    f"answer: expected True or False, or a name for every string, got {checks.shown(said)} for {word}"
                )
            known[word] = said
        return known[word]

    class Asked(SUL):
        def pre(self) -> None:
            self.word: tuple[str, ...] = ()

        def post(self) -> None:
            pass

        def step(self, letter: str | None) -> bool | str:
            self.word = self.word if letter is None else (*self.word, letter)
            return ask(self.word)

    class Compared(RandomWMethodEqOracle):
        """Examples before random walks; it keeps whether the last comparison found nothing."""

        agreed = False

        def find_cex(self, hypothesis: Any) -> Any:
            found = self.on_examples(hypothesis) or super().find_cex(hypothesis)
            self.agreed = found is None
            return found

        def on_examples(self, hypothesis: Any) -> tuple[str, ...] | None:
            for word in given:
                self.reset_hyp_and_sul(hypothesis)
                for end, letter in enumerate(word, start=1):
                    if self.sul.step(letter) != hypothesis.step(letter):
                        return word[:end]
            return None

    kind = "dfa" if isinstance(ask(()), bool) else "moore"
    with from_shared_generator(seed):  # of AALpy
        asked = Asked()
        oracle = Compared(list(symbols), asked, walks_per_state, walk_length)
        if method == "ttt":
            learnt = run_ttt(symbols, ask, oracle.find_cex, max_rounds)
        else:
            run = run_Lstar if method == "lstar" else run_KV
            # answers are remembered above
            learnt = run(
                list(symbols), asked, oracle, kind, cex_processing="rs", max_learning_rounds=max_rounds,
                cache_and_non_det_check=False, print_level=0,
            )  # fmt: skip
    if not oracle.agreed:
        warnings.warn(
            f"max_rounds = {max_rounds} ran out before a comparison with the answers found no difference: the language may be "
            "another; give more rounds, or None for as many as it takes",
            RuntimeWarning,
            stacklevel=2,
        )
    if kind == "dfa" and not any(known.values()):
        warnings.warn(
            f"not one of {len(known):,} strings that were asked is in the language, so that what was learned rejects all; give "
            "examples=[a string of it, ...], or a larger walk_length or walks_per_state",
            RuntimeWarning,
            stacklevel=2,
        )
    return of_peer(learnt, symbols)


def run_ttt(symbols: tuple[str, ...], ask: Callable, counterexample: Callable[[Any], Any], max_rounds: int | None) -> Any:
    """The last hypothesis of TTT as an automaton of AALpy, whose comparisons give the counterexamples."""
    learner, rounds = TTT(symbols, ask), 1
    while (word := counterexample(hypothesis := to_peer(symbols, learner.hypothesis))) is not None:
        if rounds == max_rounds:
            break
        learner.refine(word)
        rounds += 1
    return hypothesis


def to_peer(symbols: tuple[str, ...], found: Hypothesis) -> Any:
    """A hypothesis as an automaton of AALpy, with the strings that its comparisons begin at."""
    from aalpy.automata import Dfa, DfaState, MooreMachine, MooreState

    # the two kinds differ in the name of a state's label alone, which both take second
    whole, of_state = (Dfa, DfaState) if isinstance(found.labels[0], bool) else (MooreMachine, MooreState)
    states: list[Any] = [of_state(f"s{number}", cast(Any, label)) for number, label in enumerate(found.labels)]
    for state, moves, access in zip(states, found.transitions, found.accesses, strict=True):
        state.prefix = access
        state.transitions = {symbol: states[move] for symbol, move in zip(symbols, moves, strict=True)}
    return whole(states[0], states)
