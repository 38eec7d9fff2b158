"""Automata over words against what phrases and expressions say of every short text."""

import itertools
import re
from dataclasses import replace

import pytest

from pplseq.data.vocabulary import Vocabulary
from pplseq.models.automata.automaton import Automaton
from pplseq.models.constraints.constraint import Constraint
from pplseq.models.constraints.tables import TooLarge

WORDS = ["a", "b", "c", "z"]  # z is named nowhere
TEXTS = [text for length in range(6) for text in itertools.product(WORDS, repeat=length)]
VOCABULARY = Vocabulary(tuple(WORDS), unknown=None)
containing, excluding, in_order, matching = (
    Constraint.containing, Constraint.excluding, Constraint.in_order, Constraint.matching,
)  # fmt: skip


def has(text, *phrases):
    joined = f" {' '.join(text)} "
    return [f" {phrase} " in re.sub(" ", "  ", joined).replace("  ", " ") for phrase in phrases]


def follow(text, phrases):
    place = 0
    for phrase in phrases:
        words = tuple(phrase.split())
        places = [p for p in range(place, len(text)) if text[p : p + len(words)] == words]
        if not places:
            return False
        place = places[0] + len(words)
    return True


CASES = {
    "one": (containing("a b a"), lambda t: all(has(t, "a b a"))),
    "all, overlapping": (containing("a b", "b a", "c"), lambda t: all(has(t, "a b", "b a", "c"))),
    "all, one inside another": (containing("a b", "b"), lambda t: all(has(t, "a b", "b"))),
    "any": (containing("a b", "c c", how="any"), lambda t: any(has(t, "a b", "c c"))),
    "none": (excluding("a b", "c"), lambda t: not any(has(t, "a b", "c"))),
    "order": (in_order("a b", "b", "a"), lambda t: follow(t, ["a b", "b", "a"])),
    "order of the same": (in_order("a a", "a a"), lambda t: follow(t, ["a a", "a a"])),
    "and": (containing("a") & excluding("b"), lambda t: "a" in t and "b" not in t),
    "or": (containing("a a") | matching("c .*"), lambda t: all(has(t, "a a")) or t[:1] == ("c",)),
    "not": (~matching("a* b"), lambda t: not re.fullmatch("a*b", "".join(t))),
    "length": (Constraint.length(2, 3), lambda t: 2 <= len(t) <= 3),
    "length or more": (Constraint.length(3), lambda t: len(t) >= 3),
    "no words": (Constraint.length(0, 0), lambda t: not t),
    "then": (containing("a").then(matching("b c?")), lambda t: re.fullmatch(".*a.*bc?", "".join(t))),
    "then, empty inside": (
        matching("a*").then(matching("b*")).then(matching("c?")),
        lambda t: re.fullmatch("a*b*c?", "".join(t)),
    ),
    "anything": (Constraint.anything(), lambda t: True),
    "automaton": (Constraint.of_automaton(Automaton.from_regex("(ab)*c")), lambda t: re.fullmatch("(ab)*c", "".join(t))),
    "automaton whose accepted label stands first": (
        Constraint.of_automaton(replace(Automaton.from_regex("(ab)*c"), labels=("+", "-"), pos_label="+")),
        lambda t: {*t} <= {*"abc"} and not re.fullmatch("(ab)*c", "".join(t)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_says_what_it_means(name):
    constraint, means = CASES[name]
    moves = constraint.over(VOCABULARY)
    import torch

    for text in TEXTS:
        assert constraint.accepts(text) == bool(means(text)), text
    for length in range(6):
        texts = [text for text in TEXTS if len(text) == length]
        ids = torch.tensor([VOCABULARY.encode(text).tolist() for text in texts]).view(len(texts), length)
        assert moves.accepting[moves.run(ids)].tolist() == [bool(means(text)) for text in texts]
    # as small as it can be, in states and in classes
    table = constraint.table
    least = constraint.automaton.minimise()
    assert least.num_states == constraint.num_states
    columns = {tuple(column) for column in table.moves.T.tolist()}
    assert len(columns) == table.moves.shape[1]


PATTERNS = [
    ("a .* b", "a.*b"), ("(a|b c)+", "(a|bc)+"), ("[a b]{2,3} c?", "[ab]{2,3}c?"), ("[^a b] .", "[^ab]."), (". {2}", ".{2}"),
    ("<vowel> <vowel> b", "[aaz][az]b"), ("[<vowel> c]* b", "[azc]*b"), ("[^<vowel>]*", "[^az]*"),
    ("(a b)?.{0,2}", "(ab)?.{0,2}"), ("a<vowel>", None),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "same"), PATTERNS)
def test_patterns_are_those_of_characters(pattern, same):
    found = matching(pattern, {"vowel": ["a", "z"]})
    for text in TEXTS:
        expected = re.fullmatch(same, "".join(text)) if same is not None else text == ("a<vowel>",)
        assert found.accepts(text) == bool(expected), text


def test_words_of_several_letters_and_signs():
    found = matching(r"the price rose \. (\(why\?\))? <eos> i\.e\. b\\c")
    assert found.accepts("the price rose . <eos> i.e. b\\c") and found.accepts("the price rose . (why?) <eos> i.e. b\\c")
    assert not found.accepts("the price rose x <eos> i.e. b\\c")
    assert set(found.words) == {"the", "price", "rose", ".", "(why?)", "<eos>", "i.e.", "b\\c"}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("the (stock", "a parenthesis that is not closed, at place 10 of 'the \\(stock'"),
        ("a b) c", "a closing parenthesis that nothing opens, at place 3 of 'a b\\) c'"),
        ("stock **", "a repetition of a repetition"),
        ("stock {x}", "expected {m}, {m,} or {m,n}, at place 6"),
        ("* stock", "'\\*' out of place, at place 0"),
        ("[]", "expected \\[symbols\\]"),
        ("a \\", "a backslash with nothing behind it, at place 2"),
        ("a{20000}", "more than 10,000 repetitions"),
    ],
)
def test_patterns_that_cannot_be_read(pattern, message):
    with pytest.raises(ValueError, match=message):
        matching(pattern)


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        (".{0,300} cat .{0,300}", "1,000 states"),
        ("a? " * 1000, "500,000 steps"),
        ("(" * 6 + "()" + "{999})" * 6, "500,000 steps"),
        ("a{1" + "0" * 5000 + "}", "1,000 repetitions"),
        (f"[{' '.join(f'w{place}' for place in range(2000))}] " + "w1 w2 . " * 332, "1,000,000 moves, states times symbols"),
        ("a " * 30_000, "20,000 words and signs"),
    ],
)
def test_patterns_that_would_take_long_are_refused_at_once(pattern, limit):
    with pytest.raises(ValueError, match=f"more than {limit}.*raise max_states") as raised:
        matching(pattern, max_states=1000)
    assert len(str(raised.value)) < 400


def test_long_lists():
    words = [f"w{place}" for place in range(4000)]
    for found in (matching(" | ".join(words)), matching(f"[{' '.join(words)}]")):
        assert found.num_states == 3 and found.accepts("w3999") and not found.accepts("w1 w2") and not found.accepts("x")
    never = excluding(*words, "w3 x", "y z")
    assert never.num_states == 3 and never.accepts("a x y") and not never.accepts("a w5") and not never.accepts("y z")
    assert matching(" ".join(words[:500])).accepts(words[:500])
    for make in (containing, in_order):
        with pytest.raises(TooLarge, match="moves, states times words that it tells apart") as raised:
            make(*words)
        assert len(str(raised.value)) < 900
    with pytest.raises(TooLarge, match="moves, states times words that it tells apart"):
        excluding(*(f"{word} x" for word in words))


def test_what_is_refused():
    with pytest.raises(ValueError, match="needs an automaton of more than 20 states; raise max_states"):
        containing("a b c", "b c a", "c a b", max_states=20)
    with pytest.raises(ValueError, match="the pattern '\\(a|b\\)\\* a \\.{6}' needs an automaton of more than 50 states"):
        matching("(a|b)* a .{6}", max_states=50)
    with pytest.raises(ValueError, match="a length of 3 to 300 words needs an automaton of more than 100 states"):
        Constraint.length(3, 300, max_states=100)
    small = containing("a b", max_states=4)
    with pytest.raises(ValueError, match="containing 'a b' and containing 'c c' needs an automaton of more than 4 states"):
        small & containing("c c", max_states=4)
    with pytest.raises(ValueError, match="phrases: expected one or more, got none"):
        containing()
    with pytest.raises(ValueError, match="phrases: one has no words"):
        containing("a", " ")
    with pytest.raises(TypeError, match="phrases: expected strings, or lists of words, got 3"):
        containing(3)
    with pytest.raises(TypeError, match="expected a Constraint, such as"):
        containing("a") & "b"
    with pytest.raises(ValueError, match="longest: expected at least shortest = 3, got 2"):
        Constraint.length(3, 2)
    with pytest.raises(ValueError, match="automaton: which of its labels .*'x', 'y'.* is that of accepted texts is not known"):
        Constraint.of_automaton(replace(Automaton.from_regex("a"), labels=("x", "y"), pos_label=None))
    with pytest.raises(ValueError, match="how must be"):
        containing("a", how="some")
    with pytest.raises(ValueError, match="constraint: 'bb', 'q' of containing 'a bb' and 'q' are not in the vocabulary"):
        containing("a bb", "q").over(VOCABULARY)


@pytest.mark.parametrize(
    ("constraint", "lengths", "reason"),
    [
        (containing("a b") & excluding("a"), (1, 9), "containing 'a b' and not containing 'a': no text .* satisfies both"),
        (containing("a b a") & containing("c"), (1, 2), "'a b a': takes 3 words or more, and the length allows 1 to 2"),
        (containing("a b") & containing("c c"), (3, 3), "'a b' and containing 'c c': takes 4 words or more, and .* allows 3"),
        (matching("a b?") & containing("a"), (4, 5), "matching 'a b\\?': takes 2 words at most, and the length allows 4 to 5"),
        (matching("(a a)*"), (3, 3), "takes another number of words"),
        (matching("(a a)*"), (101, 101), "takes another number of words"),
        (matching("a|b") & matching("b|c") & matching("a|c"), (1, 1), "no text of the model's words satisfies all of it"),
        (matching("[^a b c z]"), (1, 1), "matching .*: no text of the model's words satisfies it"),
    ],
)
def test_the_shortest_reason(constraint, lengths, reason):
    with pytest.raises(ValueError, match=reason):
        constraint.check(VOCABULARY, *lengths)


def test_what_can_be_satisfied_is_not_refused():
    for constraint, means in CASES.values():
        longest = [len(text) for text in TEXTS if means(text)]
        constraint.check(VOCABULARY, 0, max(longest))


def test_the_same_texts_by_other_ways():
    assert containing("a", "b").equals(in_order("a", "b") | in_order("b", "a"))
    assert matching(".* a .*").equals(containing("a")) and not containing("a").equals(containing("b"))
    assert (~(~containing("a") & ~containing("b"))).equals(containing("a", "b", how="any"))
    assert containing("a").then(containing("b")).equals(in_order("a", "b"))


def test_pictures():
    dot = containing("a b").to_dot()
    assert '0 -> 1 [label="a"];' in dot and '1 -> 2 [label="b"];' in dot and "any other word" in dot
    assert r"c \/ d \/ e \/ ... (4 words)" in matching("<x>", {"x": "cdef"}).to_dot()  # slashes as Graphviz reads them
