"""Mealy machines: learned ones say what others said, DOT files, smallest forms."""

import itertools

import numpy as np
import pytest

from pplseq.models import Automaton, MealyMachine


def drawn(seed, num_states=5, num_symbols=2, num_labels=3):
    rng = np.random.default_rng(seed)
    shape = (num_states, num_symbols)
    symbols, labels = "abcd"[:num_symbols], "xyz"[:num_labels]
    return MealyMachine(tuple(symbols), rng.integers(0, num_states, shape), rng.integers(0, num_labels, shape), tuple(labels))


def traces(machine, seed, number=120, length=15):
    rng = np.random.default_rng(seed)
    inputs = ["".join(rng.choice(list(machine.symbols), length)) for _ in range(number)]
    return inputs, [machine.run(string) for string in inputs]


@pytest.mark.parametrize("seed", range(4))
def test_a_machine_is_learned_from_what_it_said(seed):
    machine = drawn(seed).minimise()
    inputs, outputs = traces(machine, seed)
    found = MealyMachine.learn(inputs, outputs)
    assert found.equals(machine) and found.num_states == machine.num_states
    few = MealyMachine.learn(inputs[:5], outputs[:5])
    assert [few.run(string) for string in inputs[:5]] == outputs[:5]


def test_one_output_has_one_state():
    assert MealyMachine.learn(["ab", "a"], ["xx", "x"]).num_states == 1


@pytest.mark.parametrize("seed", range(4))
def test_smallest_forms_and_moore_machines_say_the_same(seed):
    machine = drawn(seed, num_states=6, num_labels=2)
    twice = MealyMachine(  # each state a second time
        machine.symbols, np.concatenate([machine.transitions + 6, machine.transitions]), np.tile(machine.outputs, (2, 1)),
        machine.labels, start=8,
    )  # fmt: skip
    other = MealyMachine(machine.symbols, machine.transitions, machine.outputs, machine.labels, start=2)
    least = twice.minimise()
    assert least.num_states == other.minimise().num_states <= 6 and least.equals(twice) and least.equals(other)
    moore = machine.to_moore("start")
    assert moore.classify("") == "start"
    for string in itertools.chain.from_iterable(itertools.product("ab", repeat=n) for n in range(1, 6)):
        assert moore.classify(string) == machine.run(string)[-1]
    changed = machine.outputs.copy()
    changed[machine.start, 1] = 1 - changed[machine.start, 1]
    assert machine.difference(MealyMachine(machine.symbols, machine.transitions, changed, machine.labels)) == "b"


def test_dot_there_and_back():
    symbols, labels = ('"q', "b c", "x/y", ",", "/", " a"), ("no", "yes\\", "1,2/3", "/ ", "\\/")
    rng = np.random.default_rng(0)
    machine = MealyMachine(symbols, rng.integers(0, 5, (5, 6)), rng.permutation(30).reshape(5, 6) % 5, labels)
    again = MealyMachine.from_dot(machine.to_dot())
    assert again.equals(machine)
    moore = machine.to_moore()
    assert Automaton.from_dot(moore.to_dot()).equals(moore)
    lines = 'digraph {i [shape=none]; i -> a; a -> a [label="x / 1\\ny/2,z/1"]}'
    assert MealyMachine.from_dot(lines).run("xyz") == ["1", "2", "1"]
    aalpy = """digraph learned {
        s0 [label="s0"]; s1 [label="s1"];
        s0 -> s1 [label="coin/ok"]; s0 -> s0 [label="push/none"]; s1 -> s1 [label="coin/ok"]; s1 -> s0 [label="push/tea"];
        __start0 [label="", shape="none"]; __start0 -> s0 [label=""];
    }"""
    assert MealyMachine.from_dot(aalpy).run(["coin", "push", "push"]) == ["ok", "tea", "none"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MealyMachine.learn(["ab", "ab"], ["xx", "xy"]), r"both 'x' and 'y' were said at its end.*sequence 1"),
        (lambda: MealyMachine.learn(["ab"], ["x"]), "sequence 0 has 2 inputs and 1 outputs"),
        (lambda: MealyMachine.learn(["ab"], []), "expected one sequence for each of 1"),
        (lambda: MealyMachine.learn([""], [""]), "inputs: expected at least one symbol"),
        (lambda: MealyMachine.from_dot('digraph {i [shape=none]; i -> a; a -> a [label="x"]}'), "expected input/output"),
        (lambda: MealyMachine.from_dot('digraph {i [shape=none]; i -> a; a -> b [label="x/1"]}'), "'b' has no move with 'x'"),
        (lambda: MealyMachine.from_dot('digraph {i [shape=none]; i -> a; a -> a [label="a/b/1"]}'), "has a backslash"),
        (lambda: MealyMachine(("a",), [[0]], [[0]], ("x",), start=0.5), "start: expected whole numbers from 0 to 0, got 0.5"),
        (lambda: MealyMachine(("a",), 0, 0, ("x",)), "outputs: expected the label of each of one or more states"),
        (lambda: MealyMachine(("a", "b"), [[0], [0, 1]], [[0, 0]], ("x",)), "transitions: expected a table whose rows are as"),
        (lambda: MealyMachine(("a",), [[1]], [[0]], ("x",)), "transitions: expected whole numbers from 0 to 0"),
        (lambda: drawn(0).run("ae"), "symbol 'e' at place 1"),
        (lambda: drawn(0).difference(drawn(0, num_symbols=3)), "other: expected the symbols a, b"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MealyMachine.learn("ab", "01"), "inputs: expected a list of sequences of str, got 'ab'"),
        (lambda: MealyMachine.learn(["ab"], None), "outputs: expected a list of sequences"),
        (lambda: MealyMachine((0,), [[0]], [[0]], ("x",)), r"symbols: expected names that are str, got 0"),
        (lambda: Automaton("a", [[0]], [0], labels=(0, 1)), r"labels: expected names that are str, got 0"),
        (lambda: drawn(0).equals(drawn(0).to_moore()), "other: expected a MealyMachine, got Automaton"),
        (lambda: drawn(0).to_moore().equals(drawn(0)), "other: expected an Automaton or a regular expression, got MealyM"),
    ],
)
def test_what_is_of_another_type_is_said(make, message):
    with pytest.raises(TypeError, match=message):
        make()
