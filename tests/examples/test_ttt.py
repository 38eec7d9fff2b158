"""TTT: the language exactly, how many questions, and that long counterexamples leave no long suffixes."""

import math
import sys

import numpy as np
import pytest
from asking_automata import TTT, learn_by_asking

from pplseq.models.automata.automaton import Automaton

pytestmark = pytest.mark.slow  # no part of the library


def drawn(seed):
    """A random automaton of up to 24 states, three symbols and three labels, in its smallest form."""
    generator = np.random.default_rng(seed)
    size, symbols, labels = generator.integers(1, 25), generator.integers(1, 4), generator.integers(2, 4)
    moves, outputs = generator.integers(size, size=(size, symbols)), generator.integers(labels, size=size)
    return Automaton(tuple("abc"[:symbols]), moves, outputs, 0, tuple("xyz"[:labels])).minimise(), generator


def hypothesis_of(learner, truth):
    found = learner.hypothesis
    outputs = [truth.labels.index(label) for label in found.labels]
    return Automaton(truth.symbols, np.array(found.transitions), np.array(outputs), 0, truth.labels)


@pytest.mark.parametrize("seed", range(25))
def test_random_automata_from_long_counterexamples(seed):
    truth, generator = drawn(seed)
    asked = set()

    def ask(word):
        asked.add(word)
        return truth.classify(word)

    learner, longest = TTT(truth.symbols, ask), 1
    while (short := truth.difference(found := hypothesis_of(learner, truth))) is not None:
        long = (tuple(generator.choice(truth.symbols, 150).tolist()) for _ in range(100))
        word = next((word for word in long if truth.classify(word) != found.classify(word)), tuple(short))
        longest = max(longest, len(word))
        learner.refine(word)
        assert hypothesis_of(learner, truth).classify(word) == truth.classify(word)
        # access strings lead where they say
        assert [hypothesis_of(learner, truth).run(access) for access in learner.hypothesis.accesses] == list(
            range(len(learner.found))
        )
    assert found.num_states == truth.num_states
    size, symbols = truth.num_states, len(truth.symbols)
    assert len(asked) <= symbols * size**2 + size * (math.ceil(math.log2(longest)) + 2)
    # every suffix but the empty one is a symbol before another: none is longer than there are states
    suffixes = {node.suffix for node in learner.root.below() if node.children}
    assert all(suffix[1:] in suffixes for suffix in suffixes if suffix) and max(map(len, suffixes)) < size
    # every leaf is told apart by answers
    for node in learner.root.below():
        for label, child in node.children.items():
            assert all(truth.classify(state.access + node.suffix) == label for state in child.states())


def test_a_string_that_is_no_counterexample():
    learner = TTT("ab", lambda word: len(word) % 2 == 0)
    with pytest.raises(ValueError, match="word: expected a string of another label"):
        learner.refine(())
    assert len(learner.found) == 2


def test_moves_that_lead_to_further_states_of_a_block():
    """No symbol splits the block and no suffix contradicts the hypothesis until moves are followed into it: then one does."""
    moves, outputs = [[4], [7], [1], [2], [5], [8], [4], [3], [6], [2]], [1, 1, 1, 0, 1, 1, 0, 2, 2, 2]
    truth = Automaton(("a",), np.array(moves), np.array(outputs), 0, ("a", "b", "c"))
    learner = TTT("a", truth.classify)
    word = ("a",) * 8
    while word is not None:
        if hypothesis_of(learner, truth).classify(word) != truth.classify(word):
            learner.refine(word)
        word = truth.difference(hypothesis_of(learner, truth))
    assert len(learner.found) == truth.minimise().num_states


def test_trees_deeper_than_calls_of_python():
    size = 150
    learner = TTT("a", lambda word: len(word) % size == size - 1)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(size)
    try:
        learner.refine(("a",) * (size - 1))
    finally:
        sys.setrecursionlimit(limit)
    assert len(learner.found) == size


@pytest.mark.parametrize("seed", range(3))
def test_the_same_language_as_lstar(seed):
    pytest.importorskip("aalpy")
    truth, _ = drawn(seed)
    found, asked = {}, {}
    for method in ("lstar", "ttt"):
        asked[method] = []

        def answer(string, words=asked[method]):
            words.append(string)
            return truth.classify(string)

        found[method] = learn_by_asking(answer, truth.symbols, method=method, walk_length=30)
    assert found["ttt"].key == found["lstar"].key
    assert found["ttt"].num_states == truth.num_states
