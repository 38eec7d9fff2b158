"""Probabilistic automata out of strings, against the distributions that the strings were drawn from."""

import itertools
import math
import sys

import numpy as np
import pytest
from string_distributions import learn_distribution
from support.grids import grid

pytestmark = pytest.mark.slow  # no part of the library

# state -> (symbol, next state, probability); None is the end
REBER = {
    0: [("B", 1, 1.0)], 1: [("T", 2, 0.5), ("P", 3, 0.5)], 2: [("S", 2, 0.6), ("X", 4, 0.4)],
    3: [("T", 3, 0.7), ("V", 5, 0.3)], 4: [("X", 3, 0.5), ("S", 6, 0.5)], 5: [("P", 4, 0.5), ("V", 6, 0.5)],
    6: [("E", None, 1.0)],
}  # fmt: skip
EVEN = {0: [("a", 0, 0.5), ("b", 1, 0.3), ("", None, 0.2)], 1: [("a", 1, 0.2), ("b", 0, 0.8)]}  # an even number of b


def draw(moves, random):
    state, string = 0, []
    while state is not None:
        options = moves[state]
        symbol, state, _ = options[random.choice(len(options), p=[share for *_, share in options])]
        string.append(symbol)
    return "".join(string)


def true_prob(moves, string):
    state, prob = 0, 1.0
    for symbol in string:
        found = [move for move in moves.get(state, ()) if move[0] == symbol]
        if not found:
            return 0.0
        state, prob = found[0][1], prob * found[0][2]
    if state is None:
        return prob
    return prob * sum(share for symbol, _, share in moves[state] if symbol == "")


@grid({"size, most": [(200, 0.6), (2000, 0.02)], "moves": [REBER, EVEN]})
def test_what_is_learned_comes_close_to_the_truth(moves, size, most):
    """KL(truth || learned) on strings of its own, nats a string; an entropy is 4 nats."""
    pytest.importorskip("aalpy")
    random = np.random.default_rng(0)
    learned = learn_distribution([draw(moves, random) for _ in range(size)])
    held_out = [draw(moves, random) for _ in range(500)]
    truth = np.log([true_prob(moves, string) for string in held_out])
    assert -0.02 < (truth - learned.log_prob(held_out)).mean() < most
    wrong = {"".join(s) for n in (1, 2, 3) for s in itertools.product(learned.symbols, repeat=n)}
    wrong = [string for string in wrong if true_prob(moves, string) == 0]
    if size == 2000:
        assert len(wrong) > 5 and np.exp(learned.log_prob(wrong)).max() < 0.01


def test_the_model_is_the_automaton():
    """Exactly the shares of the strings, where nothing can be merged; all of them sum to one."""
    pytest.importorskip("aalpy")
    strings = ["a"] * 3 + ["ab"] * 6 + ["b"] * 1
    learned = learn_distribution(strings, "abc", confidence=1.99)
    found = np.exp(learned.log_prob(["a", "ab", "b", "", "c", "aa"]))
    np.testing.assert_allclose(found, [0.3, 0.6, 0.1, 0, 0, 0], atol=1e-12)
    assert learned.log_prob([]).shape == (0,) and math.isinf(learned.log_prob(["bb"])[0])
    drawn = learned.sample(2000, seed=0)
    assert abs(np.mean([string == ("a", "b") for string in drawn]) - 0.6) < 0.05
    empty = learn_distribution(["", ""])
    assert empty.log_prob([""]).tolist() == [0.0] and empty.sample(2, seed=0) == [(), ()]
    words = learn_distribution([["up", "down"], ["up"]])
    assert words.symbols == ("down", "up") and np.isfinite(words.log_prob([("up",)])).all()


def test_likelihoods_are_those_of_the_model():
    pytest.importorskip("aalpy")
    random = np.random.default_rng(2)
    strings = [draw(REBER, random) for _ in range(40)]
    learned = learn_distribution(strings, confidence=0.05)
    expected = [float(learned.model.score([row])) for row in learned.encode(strings[:5])]
    np.testing.assert_allclose(learned.log_prob(strings[:5]), expected, rtol=1e-9)


def test_one_string_has_one_probability():
    pytest.importorskip("aalpy")
    learned = learn_distribution(["ab", "ab", "aab", "b"], confidence=0.05)
    one = learned.log_prob("ab")
    assert isinstance(one, float) and one == learned.log_prob(["ab"])[0] == learned.log_prob([["a", "b"]])[0]
    assert learned.log_prob("") == learned.log_prob([""])[0]


def test_em_goes_on_from_it():
    pytest.importorskip("aalpy")
    random = np.random.default_rng(1)
    strings = [draw(REBER, random) for _ in range(60)]
    learned = learn_distribution(strings, confidence=0.05)
    before = learned.log_prob(strings).sum()
    learned.model.fit(learned.encode(strings), max_iterations=5, warm_start=True)
    assert learned.log_prob(strings).sum() >= before - 1e-9


def test_what_cannot_be_learned(monkeypatch):
    pytest.importorskip("aalpy")
    for strings, options, message in (
        ([], {}, "strings: got none"),
        (["ab", "ad"], {"symbols": "abc"}, "strings: string 1 has the symbol 'd'"),
        (["a"], {"symbols": ("a", "b", "a")}, "symbols: 'a' is there twice"),
        (["a"], {"confidence": 2.0}, "confidence must lie in"),
    ):
        with pytest.raises(ValueError, match=message):
            learn_distribution(strings, **options)
    learned = learn_distribution(["aaaa", "aaaaaaaa"], confidence=0.05)
    with pytest.raises(RuntimeError, match="max_length = 1"):
        learned.sample(50, max_length=1, seed=0)
    monkeypatch.setitem(sys.modules, "aalpy.learning_algs", None)
    with pytest.raises(ImportError, match=r"pplseq\[automata\]"):
        learn_distribution(["a"])
