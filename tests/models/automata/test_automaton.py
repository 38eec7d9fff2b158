"""Automata: regular expressions as Python reads them, smallest forms, differences, hardening, DOT."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pplseq.data.tomita import GRAMMARS, all_strings, tomita
from pplseq.models.automata.automaton import Automaton, distinct_automata, harden

SHORT = all_strings(7)


def random_automaton(seed, num_states=6, symbols="01", num_labels=2):
    rng = np.random.default_rng(seed)
    labels = ("reject", "accept") if num_labels == 2 else tuple("abcdefg"[:num_labels])
    transitions = rng.integers(num_states, size=(num_states, len(symbols)))
    outputs = rng.integers(num_labels, size=num_states)
    return Automaton(tuple(symbols), transitions, outputs, int(rng.integers(num_states)), labels)


patterns = st.recursive(
    st.sampled_from(["0", "1", ".", "[01]", "[^0]", ""]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: f"{p[0]}{p[1]}"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]}|{p[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{,1}", "{0}", "{1,3}"])).map(
            lambda p: f"({p[0]}){p[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(patterns)
def test_pattern_accepts_what_python_matches(pattern):
    automaton = Automaton.from_regex(pattern, "01")
    expression = re.compile(pattern)
    assert [automaton.accepts(s) for s in SHORT] == [expression.fullmatch(s) is not None for s in SHORT]


@pytest.mark.parametrize("number", GRAMMARS)
def test_tomita_automata_have_the_known_sizes(number):
    grammar = tomita(number)
    automaton = Automaton.from_regex(grammar.regex, "01")
    assert automaton.num_states == grammar.num_states
    assert [automaton.accepts(s) for s in SHORT] == [grammar.accepts(s) for s in SHORT]


@pytest.mark.parametrize(
    "pattern, message",
    [
        ("(0", "a parenthesis that is not closed, at place 2"),
        ("0)", "a closing parenthesis that nothing opens, at place 1"),
        ("*0", r"'\*' out of place, at place 0"),
        ("0**", "a repetition of a repetition"),
        ("2", "symbol '2' is not one of '0', '1'"),
        ("0{2", "expected {m}"),
        ("0{2,1}", "m <= n"),
        ("[", "expected \\[symbols\\]"),
    ],
)
def test_patterns_that_cannot_be_read(pattern, message):
    with pytest.raises(ValueError, match="pattern: .*" + message):
        Automaton.from_regex(pattern, "01")


def test_symbols_of_a_pattern():
    assert Automaton.from_regex(r"(ab)*\*{2}").symbols == ("*", "a", "b")
    with pytest.raises(ValueError, match="no symbol in it"):
        Automaton.from_regex("")
    assert Automaton.from_regex("", "0").accepts("") and not Automaton.from_regex("", "0").accepts("0")


# ------------------------------------------------------------------------------------------------ languages
@pytest.mark.parametrize("seed", range(30))
def test_smallest_form_is_the_same_language_and_no_smaller_one_is(seed):
    automaton = random_automaton(seed, num_labels=2 + seed % 2)
    least = automaton.minimise()
    assert [least.classify(s) for s in SHORT] == [automaton.classify(s) for s in SHORT]
    # states are told apart by strings shorter than their number: Myhill and Nerode
    suffixes = all_strings(5)
    rows = {tuple(automaton.classify(p + s) for s in suffixes) for p in all_strings(5)}
    assert least.num_states == len(rows)
    assert least.key == least.minimise().key == automaton.key


@pytest.mark.parametrize("seed", range(40))
def test_difference_is_the_shortest(seed):
    one, two = random_automaton(seed, 3), random_automaton(seed + 1000, 3)
    told = [s for s in SHORT if one.accepts(s) != two.accepts(s)]
    found = one.difference(two)
    assert found == (told[0] if told else None)
    assert one.equals(two) == (one.key == two.key) == (not told)


def test_difference_with_symbols_and_labels_in_another_order():
    one = Automaton(("0", "1"), [[1, 0], [0, 1]], [0, 1])
    two = Automaton(("1", "0"), [[0, 1], [1, 0]], [1, 0], labels=("accept", "reject"))
    assert one.equals(two)
    with pytest.raises(ValueError, match="other: expected the symbols 0, 1, got a, b"):
        one.difference(Automaton(("a", "b"), [[0, 0]], [0]))
    words = Automaton(("on", "off"), [[1, 0], [1, 0]], [0, 1])
    assert words.difference(Automaton(("on", "off"), [[0, 0]], [0])) == ("on",)


def test_difference_from_an_expression():
    automaton = Automaton.from_regex("(10)*", "01")
    assert automaton.equals("(10)*") and automaton.equals("((10)*)*")
    assert automaton.difference("(10)*1?") == "1"


def test_distinct_automata_are_counted_by_language():
    even = Automaton.from_regex("(01*0|1)*", "01")
    doubled = Automaton(("0", "1"), [[1, 2], [0, 3], [3, 0], [2, 1]], [1, 0, 1, 0])
    groups = distinct_automata([Automaton.from_regex("1*", "01"), even, doubled, even])
    assert [(group.num_found, group.members) for group in groups] == [(3, (1, 2, 3)), (1, (0,))]
    assert groups[0].automaton.num_states == 2 and groups[0].automaton.equals(doubled)
    assert distinct_automata([]) == []


def test_harden():
    start, output = np.array([0.3, 0.7]), np.array([[0.4, 0.6], [0.9, 0.1]])
    transition = np.array([[[0.2, 0.8], [0.6, 0.4]], [[0.9, 0.1], [0.0, 1.0]]])  # [symbol, from, to]
    automaton = harden(start, transition, output, "01")
    assert automaton.start == 1
    assert automaton.transitions.tolist() == [[1, 0], [0, 1]]
    assert automaton.outputs.tolist() == [1, 0]
    assert harden(start, transition, output[:, 1], "01").equals(automaton)
    with pytest.raises(ValueError, match="transition: expected start"):
        harden(start, transition, output, "012")


def test_dot_and_dictionary():
    automaton = Automaton.from_regex("(10)*", "01")
    text = automaton.to_dot("(10)*")
    assert text.count("doublecircle") == 1 and "start -> 0;" in text and '1 -> 1 [label="0, 1"];' in text
    assert 'digraph "(10)*" {' in text and text.count("{") == text.count("}")
    again = Automaton.from_dict(json.loads(json.dumps(automaton.to_dict())))
    assert again.key == automaton.key
    with pytest.raises(ValueError, match="entries: .* start missing"):
        Automaton.from_dict({k: v for k, v in automaton.to_dict().items() if k != "start"})
    moore = Automaton(('"', "\\"), [[0, 0]], [2], labels=("a", "b", "c"))
    assert '0 [shape=circle, label="0: c"];' in moore.to_dot() and 'label="\\", \\\\"' in moore.to_dot()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"transitions": [[0, 2], [0, 1]]}, "transitions: expected whole numbers from 0 to 1"),
        ({"transitions": [[0, 1]]}, r"transitions: expected shape .* = \(2, 2\), got \(1, 2\)"),
        ({"outputs": [0, 2]}, "outputs: expected whole numbers from 0 to 1"),
        ({"outputs": []}, "outputs: expected the label of each"),
        ({"start": 2}, "start: expected whole numbers from 0 to 1"),
        ({"start": -1}, "start: expected whole numbers"),
        ({"symbols": ("0", "0")}, "symbols: expected each once"),
    ],
)
def test_automata_that_are_none(changes, message):
    entries = {"symbols": ("0", "1"), "transitions": [[0, 1], [1, 0]], "outputs": [0, 1], "start": 0}
    with pytest.raises(ValueError, match=message):
        Automaton(**(entries | changes))


def test_strings_that_cannot_be_run():
    automaton = Automaton.from_regex("(10)*", "01")
    with pytest.raises(ValueError, match="string: symbol '2' at place 1"):
        automaton.accepts("12")
    with pytest.raises(ValueError, match="ask classify"):
        random_automaton(0, num_labels=3).accepts("0")


@given(st.integers(0, 10_000), st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_dot_is_read_as_it_is_written(seed, num_labels):
    automaton = random_automaton(seed, num_labels=num_labels)
    again = Automaton.from_dot(automaton.to_dot('a "name" -> {x}'))
    for string in all_strings(4):
        assert again.classify(string) == automaton.classify(string)


def test_dot_of_a_symbol_that_ends_a_line():
    automaton = Automaton.from_regex("a(\n|b)*")
    assert automaton.equals(Automaton.from_dot(automaton.to_dot()))


def test_dot_of_other_tools():
    """As AALpy writes it, and with what Graphviz allows beside: comments, settings, several statements a line."""
    read = Automaton.from_dot("""/* made
    elsewhere */ strict digraph learned {
      rankdir=LR; node [shape=circle]
      s0 [label="s0", shape=doublecircle]; s1 [label="s1"]  // a comment
      s0 -> s0 [label="0"]; s0 -> s1 [label="1"]
      s1 -> s0 [label="1" color=red];
      # another
      __start0 [label="", shape=none];
      __start0 -> s0 [label=""];
    }""")
    assert read.equals(Automaton.from_regex("(0|11)*", "01"))  # what is not drawn rejects
    moore = Automaton.from_dot(
        'digraph { i [shape=point]; i -> a; a [label="a/on"]; b [label="b/off"]; a -> b [label=x]; b -> a [label=x] }'
    )
    assert [moore.classify("x" * k) for k in range(3)] == ["on", "off", "on"]


BEGIN = "digraph { i [shape=none]; i -> a;"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("graph { a -- b }", "expected a graph of arrows"), ("digraph { a -> b [label=x] }", "marks the start, got 0"),
        (f"{BEGIN} a -> a }}", "has no label, which is its symbol"),
        (f'{BEGIN} a -> a [label="x/y"] }}', "as of a Mealy machine"),
        (f"{BEGIN} a -> a [label=x]; a -> b [label=x] }}", "state 'a' has two moves with 'x'"),
        (f'{BEGIN} a [label="a: p"]; b [label="b: q"]; a -> b [label=x] }}', "'b' has a label of its own"),
        ("digraph { subgraph c { a } }", "cannot be read at"), (f'{BEGIN} a -> a [label=", x"] }}', "empty symbol"),
    ],
)
def test_dot_that_is_no_automaton_is_refused(text, what):
    with pytest.raises(ValueError, match=what):
        Automaton.from_dot(text)
    with pytest.raises(TypeError, match="text: expected a graph in Graphviz's language"):
        Automaton.from_dot(None)
