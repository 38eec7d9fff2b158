"""State merging: against all automata there are, against strings, and inside the learner."""

import itertools
import os
import signal

import numpy as np
import pytest
import torch

from pplseq.data.tomita import GRAMMARS, random_strings, tomita
from pplseq.kernels import compiled
from pplseq.models.automata import state_merging
from pplseq.models.automata.automaton import Automaton
from pplseq.models.automata.learner import AutomatonLearner
from pplseq.models.automata.prefix_tree import PrefixTree
from pplseq.models.automata.state_merging import merge_states, smallest_by_merging
from pplseq.models.iohmm.restarts.history import RestartBlock

FEW = (RestartBlock(10),)


def partitions(strings, labels, symbols, num_states, num_labels):
    """What prefixes share a state, of every automaton of at most so many states that labels all strings right."""
    prefixes = sorted({string[:end] for string in strings for end in range(len(string) + 1)})
    found = set()
    for moves in itertools.product(range(num_states), repeat=num_states * len(symbols)):
        table = np.reshape(moves, (num_states, len(symbols)))
        states = []
        for prefix in prefixes:
            state = 0
            for symbol in prefix:
                state = table[state, symbols.index(symbol)]
            states.append(state)
        of = dict(zip(prefixes, states, strict=True))
        told = {}
        if all(told.setdefault(of[s], label) == label for s, label in zip(strings, labels, strict=True)):
            first = {}
            found.add(tuple(first.setdefault(state, len(first)) for state in states))
    return found


@pytest.mark.parametrize("seed, symbols, num_labels", [(0, "a", 2), (1, "ab", 2), (2, "ab", 3), (3, "ab", 2), (4, "ab", 2)])
def test_the_search_finds_all_of_the_smallest_automata(seed, symbols, num_labels):
    """Against every table of moves there is."""
    generator = np.random.default_rng(seed)
    strings = sorted({"".join(generator.choice(list(symbols), generator.integers(5))) for _ in range(11)})
    labels = generator.integers(num_labels, size=len(strings)).tolist()
    if seed == 3:
        labels = [len(string) % 2 for string in strings]
    tree = PrefixTree.grow(strings, labels, tuple(symbols))
    found = smallest_by_merging(tree, num_labels)
    for size in range(1, 4):
        expected = partitions(strings, labels, symbols, size, num_labels)
        if expected:
            break
    if not expected:
        assert found.smallest > 3 and (found.least > 3 or not found.whole)
        return
    assert found.smallest == found.least == size and found.whole
    prefixes = sorted({string[:end] for string in strings for end in range(len(string) + 1)})
    for moves, outputs in zip(found.moves, found.labels, strict=True):
        automaton = Automaton(tuple(symbols), moves, outputs, 0, tuple("xyz"[:num_labels]))
        if automaton.minimise().num_states > size:
            continue  # a larger one that is simpler
        assert [automaton.outputs[automaton.run(string)] for string in strings] == labels
        first = {}
        shared = tuple(first.setdefault(automaton.run(prefix), len(first)) for prefix in prefixes)
        assert shared in expected
        expected.remove(shared)
    assert not expected


@pytest.mark.parametrize("number", [pytest.param(n, marks=[pytest.mark.slow] * (n in (2, 5, 7))) for n in GRAMMARS])
def test_tomitas_languages_in_no_time(number):
    grammar = tomita(number)
    strings = random_strings(20, 12, seed=number)
    told = strings, [grammar.accepts(string) for string in strings]
    found = AutomatonLearner(blocks=FEW, max_iterations=5).fit(grammar.strings, grammar.labels, validation=told)
    assert found.automaton.equals(Automaton.from_regex(grammar.regex, "01")) and not found.sizes
    assert found.automaton.num_states == grammar.num_states and found.consistent
    assert "merging states: " in found.report and "found by state merging" in found.report
    assert found.log_likelihoods == [0.0] * len(found.candidates)
    assert f"num_states={grammar.num_states}, consistent=True" in repr(found) and len(repr(found)) < 100
    assert found.model.num_states == found.tables.start.shape[0] == grammar.num_states


@pytest.mark.parametrize("by_evidence", [True, False])
def test_merging_of_a_random_automaton(by_evidence):
    generator = np.random.default_rng(3)
    truth = Automaton(tuple("ab"), generator.integers(12, size=(12, 2)), generator.integers(2, size=12)).minimise()
    strings = ["".join(generator.choice(["a", "b"], generator.integers(12))) for _ in range(2000)]
    labels = [truth.accepts(string) for string in strings]
    learnt = merge_states(strings, labels, by_evidence=by_evidence)
    assert learnt.equals(truth)
    assert AutomatonLearner().fit(strings, labels).automaton.equals(truth)


def test_moves_that_no_string_makes():
    stays = merge_states(["", "a", "aa"], [True, False, True], symbols="ab")
    assert stays.accepts("bb") and not stays.accepts("ab") and stays.num_states == 2
    leaves = merge_states(["", "a", "aa", "aaa", "b"], [True, False, False, False, True], symbols="abc")
    assert not leaves.accepts("c") and not leaves.accepts("ab")  # a state that is never left rejects
    assert leaves.accepts("bb")


def test_several_classes_and_words_as_symbols():
    strings = [("up",) * n for n in range(9)]
    learnt = merge_states(strings, [["zero", "one", "two"][n % 3] for n in range(9)])
    assert learnt.num_states == 3 and learnt.classify(["up"] * 10) == "one"


def test_the_empty_string_and_one_symbol():
    assert merge_states(["", "a"], [0, 1]).accepts("aa")
    assert AutomatonLearner().fit(["", "a"], [0, 1]).automaton.num_states == 2


def test_few_sizes_are_kept_to():
    """Merging has more states than are asked for: EM's best of those sizes, which is not consistent."""
    grammar = tomita(3)
    found = AutomatonLearner([1, 2], blocks=FEW, max_iterations=20).fit(grammar.strings, grammar.labels)
    assert not found.consistent and found.automaton.num_states <= 2 and len(found.sizes) == 2
    assert "found no automaton of so few states" in found.report


def test_noise_is_left_to_em(monkeypatch):
    """A string in eight has the wrong label: no small automaton is consistent, and telling the exceptions takes few bits."""
    monkeypatch.setattr(state_merging.smallest_by_merging, "__kwdefaults__", {"work": 50_000})
    generator = np.random.default_rng(0)
    strings = sorted({"".join(generator.choice(["a", "b"], generator.integers(1, 11))) for _ in range(250)})
    labels = [bool(string.count("a") % 2) ^ bool(place % 8 == 0) for place, string in enumerate(strings)]
    learner = AutomatonLearner(blocks=(RestartBlock(8, 0.5, True),), max_iterations=40)
    learnt = learner.fit(strings, labels)
    assert learnt.automaton.equals("b*ab*(ab*ab*)*") and not learnt.consistent and learnt.noisy
    assert [size.num_states for size in learnt.sizes] == [2, 3, 4]  # two that are worse end it
    assert "21 of 166 labels are taken for wrong: 2 states with these exceptions take" in learnt.report
    assert "no automaton that was tried" not in learnt.report
    assert len(learner.fit(strings, labels, max_time=1e-9).sizes) <= 1  # the best so far, when the time is over
    for max_wrong, wrong in ((0, False), (0.1, False), (0.2, True)):
        learner = AutomatonLearner(max_wrong=max_wrong)
        learner.sizes = [2]
        assert learner.fit(strings, labels).noisy == wrong
    few = dict(list(zip(strings, labels, strict=True))[:90])  # of so few none is taken for wrong, unless it is said
    assert AutomatonLearner().fit(list(few), list(few.values())).consistent


def test_no_automaton_that_is_wrong_comes_before_one_that_is_right(monkeypatch):
    """Twelve states, more than EM tries, and a search that proves nothing."""
    monkeypatch.setattr(state_merging.smallest_by_merging, "__kwdefaults__", {"work": 0})
    strings = ["".join(symbols) for length in range(10) for symbols in itertools.product("ab", repeat=length)]
    labels = [string.count("a") % 3 == 0 and string.count("b") % 4 == 1 for string in strings]
    found = AutomatonLearner().fit(strings, labels)
    assert found.consistent and found.automaton.num_states == 12 and not found.sizes
    learner = AutomatonLearner(blocks=FEW, max_iterations=5)
    learner.sizes = [10, 11]
    found = learner.fit(strings, labels)
    assert found.consistent and [size.num_states for size in found.sizes] == [11]  # 10 states would be 11 as well


@pytest.mark.parametrize(("modulus", "other"), [(5, 2), pytest.param(3, 3, marks=pytest.mark.slow)])
def test_larger_automata_that_are_simpler(modulus, other):
    """Fewer states label the strings right, but only counters permute their states."""
    generator = np.random.default_rng(1)
    strings = sorted({"".join(generator.choice(["a", "b"], generator.integers(13))) for _ in range(70)})
    labels = [string.count("a") % modulus == 0 and string.count("b") % other == 0 for string in strings]
    found = AutomatonLearner().fit(strings, labels)
    assert found.automaton.num_states == modulus * other == len(found.tables.start) == found.model.num_states
    assert all(
        found.automaton.accepts("a" * n + "b" * m) == (n % modulus == 0 and m % other == 0) for n in range(9) for m in range(9)
    )


def test_reports_are_short():
    strings = ["", "ab", "bbba", "abba", "a" * 9, "bab", "c", "acb"]
    labels = [True, False] * 4
    found = AutomatonLearner().fit(strings, labels, symbols="abc")
    lines = found.report.splitlines()
    assert len(found.candidates) > 20 and len(lines) < 20 and lines[-1].startswith("  ... and ")
    assert f"{len(found.candidates)} different automata fit your data" in found.report


def test_a_search_that_is_cut_short_leaves_sizes_to_em(monkeypatch):
    monkeypatch.setattr(state_merging.smallest_by_merging, "__kwdefaults__", {"work": 0})
    grammar = tomita(4)
    found = AutomatonLearner(blocks=(RestartBlock(60, 0.5, True),), max_iterations=80).fit(grammar.strings, grammar.labels)
    assert found.sizes and found.automaton.equals(Automaton.from_regex(grammar.regex, "01"))
    assert "none has fewer than 2" in found.report and [size.num_states for size in found.sizes] == [3]


def test_moves_that_validation_strings_show():
    """No training string has b after a; validation strings do, and EM draws what they may mean."""
    strings, labels = ["", "a", "aa", "b", "ba", "bb"], [True, False, True, True, False, True]
    found = AutomatonLearner(blocks=(RestartBlock(100),), max_iterations=40).fit(strings, labels, validation=(["ab"], [True]))
    assert found.automaton.accepts("ab") and not found.automaton.accepts("a")
    plain = AutomatonLearner().fit(strings, labels)
    assert not plain.sizes and not plain.automaton.accepts("ab")


def test_a_stopped_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(state_merging.smallest_by_merging, "__kwdefaults__", {"work": 0})
    grammar = tomita(4)

    def fit(**more):
        return AutomatonLearner(blocks=FEW, max_iterations=5).fit(grammar.strings, grammar.labels, **more)

    def stop(record):
        if record["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    whole = fit()
    with pytest.raises(KeyboardInterrupt):
        fit(folder=tmp_path, on_record=stop)
    found = fit(folder=tmp_path, resume=True)
    assert found.merging == whole.merging and [s[:-1] for s in found.sizes] == [s[:-1] for s in whole.sizes]
    assert all(torch.equal(a, b) for a, b in zip(found.candidate_tables, whole.candidate_tables, strict=True))


def test_trees_that_are_too_large(monkeypatch):
    monkeypatch.setattr(state_merging, "MAX_TABLE", 10)
    with pytest.raises(ValueError, match="strings: 3 prefixes and 2 symbols are more than merging holds"):
        merge_states(["a", "b"], [True, False])
    found = AutomatonLearner(2, blocks=FEW, max_iterations=20).fit(["a", "b"], [True, False])
    assert found.sizes and "too many prefixes and symbols" in found.report


def test_without_compiled_loops_it_is_em():
    with compiled.twins_only():
        with pytest.raises(ImportError, match="merge_states needs numba"):
            merge_states(["a", "b"], [True, False])
        found = AutomatonLearner(2, blocks=FEW, max_iterations=20).fit(["a", "b"], [True, False])
    assert found.sizes and not found.merging


@pytest.mark.parametrize(
    "strings, labels, message",
    [
        (["a", "a"], [True, False], "labels: expected one label for each string"),
        (["a", "b"], [True, True], "labels: expected strings of two classes"),
        (["a"], [True, False], "labels: expected one for each of 1 strings"),
    ],
)
def test_strings_that_cannot_be_merged(strings, labels, message):
    with pytest.raises(ValueError, match=message):
        merge_states(strings, labels)
