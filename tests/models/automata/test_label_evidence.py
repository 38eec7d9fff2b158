"""How strings were drawn tells languages apart: against counts of all strings, and inside the learner."""

import itertools
import math
import random

import numpy as np
import pytest

from pplseq.models.automata import label_evidence as module
from pplseq.models.automata.automaton import Automaton
from pplseq.models.automata.label_evidence import label_evidence
from pplseq.models.automata.learner import AutomatonLearner
from pplseq.models.automata.prefix_tree import PrefixTree
from pplseq.models.iohmm.restarts.history import RestartBlock


def counted(automaton, strings, labels):
    """The same by listing all strings of each length; labels are drawn from shares that are drawn uniformly."""
    counts = [labels.count(label) for label in range(len(automaton.labels))]
    value = math.log(math.factorial(len(counts) - 1) / math.factorial(len(labels) + len(counts) - 1))
    value += sum(math.log(math.factorial(count)) for count in counts)
    for string, label in zip(strings, labels, strict=True):
        every = [automaton.run(other) for other in itertools.product(automaton.symbols, repeat=len(string))]
        value -= math.log(np.mean(automaton.outputs[every] == label))
    return value


@pytest.mark.parametrize("seed, symbols, num_labels", [(0, "ab", 2), (1, "abc", 3), (2, "a", 2)])
def test_against_all_strings_of_each_length(seed, symbols, num_labels):
    generator = np.random.default_rng(seed)
    automata = []
    for size in (5, 1, 3):
        moves, outputs = generator.integers(size, size=(size, len(symbols))), generator.integers(num_labels, size=size)
        names = tuple("xyz"[:num_labels])
        automata.append(Automaton(tuple(symbols), moves, outputs, int(generator.integers(size)), names))
    strings = sorted({"".join(generator.choice(list(symbols), generator.integers(6))) for _ in range(12)})
    for place, automaton in enumerate(automata):
        labels = [int(automaton.outputs[automaton.run(string)]) for string in strings]
        alone = label_evidence([automaton], PrefixTree.grow(strings, labels, tuple(symbols)))
        np.testing.assert_allclose(alone, counted(automaton, strings, labels), atol=1e-12)
        # others beside it change nothing; where one labels a string wrong its evidence has no meaning
        with np.errstate(divide="ignore"):
            beside = label_evidence(automata, PrefixTree.grow(strings, labels, tuple(symbols)))
        np.testing.assert_allclose(beside[place], alone[0], atol=1e-12)


def test_long_strings_have_no_say(monkeypatch):
    automaton = Automaton.from_regex("(ab)*", "ab")
    short = ["", "ab", "b"], [1, 1, 0]
    tree = PrefixTree.grow([*short[0], "ab" * 400], [*short[1], 1], ("a", "b"))
    assert label_evidence([automaton], tree)[0] > 500  # 800 log 2 for a string that is the only one of its length
    monkeypatch.setattr(module, "SMALLEST", 1e-200)
    np.testing.assert_allclose(label_evidence([automaton], tree), counted(automaton, *short))


@pytest.mark.parametrize("merging", [True, False])
def test_a_rare_language_is_chosen_where_examples_of_it_were_looked_for(merging):
    """All strings of (ab)* up to 12 symbols, and as many others; beside it fit languages of many more strings."""
    strings = ["ab" * times for times in range(7)] + ["a", "b", "ba", "aab", "abba", "bab", "abab" + "b"]
    labels = [True] * 7 + [False] * 7
    learner = AutomatonLearner(3, merging=merging, blocks=(RestartBlock(200, 0.5, True),), max_iterations=60)
    learnt = learner.fit(strings, labels, symbols="ab")
    assert len(learnt.candidates) > 1 and learnt.automaton.equals("(ab)*")
    tree = PrefixTree.grow(strings, labels, ("a", "b"))
    evidence = label_evidence([c.automaton for c in learnt.candidates if c.automaton.num_states == 3], tree)
    assert evidence[0] == evidence.max() > 0


def test_strings_that_came_as_they_came_leave_the_order():
    """Half of random strings are in the language: nothing says that they were drawn label by label."""
    generator = random.Random(3)
    strings = sorted({"".join(generator.choices("ab", k=generator.randrange(9))) for _ in range(12)})
    labels = [string.count("a") % 2 == 0 and string[-1:] != "b" or len(string) % 3 == 0 for string in strings]
    learnt = AutomatonLearner().fit(strings, labels)
    tree = PrefixTree.grow(strings, labels, ("a", "b"))
    size = learnt.automaton.num_states
    smallest = [c for c in learnt.candidates if c.automaton.num_states == size]
    evidence = label_evidence([c.automaton for c in smallest], tree)
    assert len(smallest) > 1 and evidence.max() < 0
    assert [c.members[0] for c in smallest] == sorted(c.members[0] for c in smallest)
