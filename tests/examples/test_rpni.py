"""RPNI through AALpy: consistent with its strings, and right on the languages it is known to find."""

import sys

import pytest
from rpni import rpni as rpni_of_aalpy

from pplseq.data.tomita import GRAMMARS, all_strings, tomita
from pplseq.models.automata.automaton import Automaton

pytestmark = pytest.mark.slow  # no part of the library


@pytest.fixture
def rpni():
    pytest.importorskip("aalpy")
    return rpni_of_aalpy


@pytest.mark.parametrize("number", GRAMMARS)
def test_training_strings_are_labelled_right(number, rpni):
    grammar = tomita(number)
    learnt = rpni(grammar.strings, grammar.labels)
    assert [learnt.accepts(string) for string in grammar.strings] == grammar.labels
    assert learnt.equals(Automaton.from_regex(grammar.regex, "01")) == (number in (1, 4, 6))


def test_symbols_that_were_never_seen_reject(rpni):
    learnt = rpni(["a", "", "aa"], [True, False, True], symbols="ab")
    assert learnt.accepts("aaa") and not any(learnt.accepts(s) for s in all_strings(3, "ab") if "b" in s)


def test_contradictions_are_refused(rpni):
    with pytest.raises(ValueError, match="labels: expected one label for each string"):
        rpni(["a", "a"], [True, False])


def test_named_labels(rpni):
    learnt = rpni(["0", "1", "00", "11"], ["+", "-", "+", "-"])
    assert [learnt.accepts(string) for string in ("0", "1", "00", "11")] == [True, False, True, False]
    assert rpni(["0", "1", "00"], [1, 2, 1], pos_label=1).accepts("00")
    with pytest.raises(ValueError, match="pos_label: expected two labels"):
        rpni(["0", "1"], [1, 2])


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "aalpy.learning_algs", None)
    with pytest.raises(ImportError, match=r"pplseq\[automata\]"):
        rpni_of_aalpy(["a", "b"], [True, False])
