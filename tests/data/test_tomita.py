"""Tomita's languages: words, expressions and training strings agree; the strings they are tested on."""

import re

import pytest

from pplseq.data.tomita import GRAMMARS, all_strings, random_strings, tomita

STRINGS = all_strings(12)


@pytest.mark.parametrize("number", GRAMMARS)
def test_expression_and_words_are_one_language(number):
    grammar = tomita(number)
    expression = re.compile(grammar.regex)
    assert [grammar.accepts(s) for s in STRINGS] == [expression.fullmatch(s) is not None for s in STRINGS]


@pytest.mark.parametrize("number", GRAMMARS)
def test_training_strings_are_labelled_right(number):
    grammar = tomita(number)
    assert [grammar.accepts(s) for s in grammar.strings] == grammar.labels
    assert len(set(grammar.strings)) == len(grammar.strings)


@pytest.mark.parametrize(
    "number, share", [(1, 0.0016), (2, 0.0009), (3, 0.234), (4, 0.456), (5, 0.3334), (6, 0.3334), (7, 0.1333)]
)
def test_share_of_accepted_strings(number, share):
    accepted = sum(tomita(number).accepts(s) for s in STRINGS)
    assert accepted / len(STRINGS) == pytest.approx(share, abs=6e-5 if share < 0.01 else 1e-4, rel=0.001)


def test_third_grammar_is_not_about_neighbouring_runs_alone():
    grammar = tomita(3)
    assert not grammar.accepts("10010")  # the odd run of 0s comes later
    assert grammar.accepts("0110") and grammar.accepts("110") and grammar.accepts("")


def test_all_strings():
    assert len(STRINGS) == len(set(STRINGS)) == 8191
    assert STRINGS[:4] == ["", "0", "1", "00"]
    assert all_strings(2, "ab") == ["", "a", "b", "aa", "ab", "ba", "bb"]


def test_random_strings_are_uniform_over_all():
    drawn = random_strings(4000, 3, seed=0)
    counts = [drawn.count(s) for s in all_strings(3)]
    assert sum(counts) == 4000
    assert min(counts) > 200 and max(counts) < 340  # 267 expected of each of the 15
    assert random_strings(5, 12, seed=1) == random_strings(5, 12, seed=1) != random_strings(5, 12, seed=2)


def test_unknown_number():
    with pytest.raises(ValueError, match="number: expected one of 1, 2, 3, 4, 5, 6, 7, got 8"):
        tomita(8)
