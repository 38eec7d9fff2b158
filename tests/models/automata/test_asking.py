"""Active learning: a callable's language, with few questions, each asked once."""

import random
import sys

import pytest

from pplseq.data.tomita import GRAMMARS, tomita
from pplseq.models import learn_by_asking
from pplseq.models.automata.automaton import Automaton


@pytest.mark.parametrize("method", ["lstar", "kearns_vazirani"])
@pytest.mark.parametrize("number", GRAMMARS)
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


def test_classes_and_words():
    pytest.importorskip("aalpy")
    learnt = learn_by_asking(lambda s: ["zero", "one", "two"][(s.count("up") - s.count("down")) % 3], ["up", "down"])
    assert learnt.num_states == 3 and learnt.classify(["down"]) == "two" and learnt.labels == ("one", "two", "zero")
    assert learn_by_asking(lambda s: True, "a").num_states == 1


@pytest.mark.parametrize(
    "answer, options, error, message",
    [
        (lambda s: 1, {}, TypeError, "answer: expected True or False, or a name"),
        (lambda s: "even" if len(s) % 2 else True, {}, TypeError, "answer: expected True or False"),
        (lambda s: True, {"symbols": ""}, ValueError, "symbols: expected one or more"),
        (lambda s: True, {"symbols": "aa"}, ValueError, "symbols: expected one or more different"),
        (lambda s: True, {"method": "ttt"}, ValueError, "method"),
        (lambda s: True, {"walk_length": 0}, ValueError, "walk_length"),
    ],
)
def test_what_cannot_be_asked(answer, options, error, message):
    pytest.importorskip("aalpy")
    with pytest.raises(error, match=message):
        learn_by_asking(answer, **{"symbols": "ab", **options})


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "aalpy.learning_algs", None)
    with pytest.raises(ImportError, match=r"pplseq\[automata\]"):
        learn_by_asking(lambda s: True, "a")
