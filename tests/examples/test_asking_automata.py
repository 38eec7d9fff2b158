"""Active learning: a callable's language, with few questions, each asked once."""

import random
import sys

import pytest
from asking_automata import METHODS, learn_by_asking
from support.grids import grid

from pplseq.data.tomita import GRAMMARS, tomita
from pplseq.models.automata.automaton import Automaton

pytestmark = pytest.mark.slow  # no part of the library


@grid({"number": GRAMMARS, "method": METHODS})
def test_tomitas_languages_are_found_by_asking(number, method):
    pytest.importorskip("aalpy")
    grammar, asked = tomita(number), []

    def answer(string):
        asked.append(string)
        return grammar.accepts(string)

    state = random.getstate()
    learnt = learn_by_asking(answer, "01", method=method)
    assert learnt.equals(Automaton.from_regex(grammar.regex, "01"))
    assert len(asked) == len(set(asked)) and all(isinstance(string, str) for string in asked)
    assert random.getstate() == state


@pytest.mark.parametrize("method", METHODS)
def test_classes_and_words(method):
    pytest.importorskip("aalpy")
    names = ["zero", "one", "two"]
    learnt = learn_by_asking(lambda s: names[(s.count("up") - s.count("down")) % 3], ["up", "down"], method=method)
    assert learnt.num_states == 3 and learnt.classify(["down"]) == "two" and learnt.labels == ("one", "two", "zero")
    assert learn_by_asking(lambda s: True, "a").num_states == 1


@pytest.mark.parametrize(
    "answer, options, error, message",
    [
        (lambda s: 1, {}, TypeError, "answer: expected True or False, or a name"),
        (lambda s: "even" if len(s) % 2 else True, {}, TypeError, "answer: expected True or False"),
        (lambda s: True, {"symbols": ""}, ValueError, "symbols: expected one or more"),
        (lambda s: True, {"symbols": "aa"}, ValueError, "symbols: expected one or more different"),
        (lambda s: True, {"method": "ttl"}, ValueError, "method"),
        (lambda s: True, {"walk_length": 0}, ValueError, "walk_length"),
    ],
)
def test_what_cannot_be_asked(answer, options, error, message):
    pytest.importorskip("aalpy")
    with pytest.raises(error, match=message):
        learn_by_asking(answer, **{"symbols": "ab", **options})


def rare(string):
    return "abbabbab" in string


@pytest.mark.parametrize("method", METHODS)
def test_a_rare_language_needs_an_example_and_says_so(method):
    pytest.importorskip("aalpy")
    few = {"walks_per_state": 3, "walk_length": 4, "method": method}
    with pytest.warns(RuntimeWarning, match=r"not one of .* strings that were asked is in the language.*examples=\["):
        assert learn_by_asking(rare, "ab", **few).num_states == 1
    learnt = learn_by_asking(rare, "ab", examples=["aabbabbaba"], **(few | {"walks_per_state": 100}))
    assert learnt.num_states == 9 and learnt.equals(Automaton.from_regex("(a|b)*abbabbab(a|b)*", "ab"))
    with pytest.warns(RuntimeWarning, match="max_rounds = 1 ran out"):
        learn_by_asking(lambda s: s.count("a") % 5 == 0, "ab", max_rounds=1, method=method)
    with pytest.raises(ValueError, match="examples: expected strings of the symbols a, b, got 'c'"):
        learn_by_asking(rare, "ab", examples=["abc"])
    with pytest.raises(TypeError, match="examples: expected a list of strings"):
        learn_by_asking(rare, "ab", examples="abbabbab")


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "aalpy.learning_algs", None)
    with pytest.raises(ImportError, match=r"pplseq\[automata\]"):
        learn_by_asking(lambda s: True, "a")
