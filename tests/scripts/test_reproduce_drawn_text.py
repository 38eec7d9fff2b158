"""Text that scripts/reproduce/drawn_text.py draws from a network."""

import numpy as np
import pytest
import torch
from support.scripts import load_script

from pplseq.baselines import LSTM, KneserNey
from pplseq.data import Text, Vocabulary


@pytest.fixture(scope="module")
def script():
    return load_script("reproduce/drawn_text.py")


def test_words_are_drawn_as_the_network_says_given_the_words_before(script):
    model = LSTM(Vocabulary(("a", "b", "c", "<eos>")), hidden_size=4, seed=0)
    with torch.no_grad():  # far from even
        for parameter in model.parameters():
            parameter.mul_(3)
    drawn = script.draw(model, 40_000, 2, seed=0).numpy()
    first = np.bincount(drawn[:, 0], minlength=4) / len(drawn)
    np.testing.assert_allclose(first, np.exp(model.next_word(())), atol=0.015)
    for word in range(4):
        behind = drawn[drawn[:, 0] == word, 1]
        if len(behind) > 2_000:
            shares = np.bincount(behind, minlength=4) / len(behind)
            np.testing.assert_allclose(shares, np.exp(model.next_word([word])), atol=0.04)


def test_words_of_a_mixture_with_a_5_gram(script):
    vocabulary = Vocabulary(("a", "b", "c", "<eos>"))
    model = LSTM(vocabulary, hidden_size=4, seed=0)
    five_gram = KneserNey(5).fit(Text.from_lines(map(list, ["ab", "acb", "bb", "aba"]), vocabulary))
    drawn = script.draw(model, 20_000, 3, seed=0, five_gram=five_gram, weight=0.6).numpy()
    for before in ((), (0,), (0, 2), (3,), (1, 3)):  # of the 5-gram, what stands behind the end of a line is a line of its own
        words = drawn[(drawn[:, : len(before)] == before).all(1), len(before)]
        line = before[before.index(3) + 1 :] if 3 in before else before
        expected = 0.4 * np.exp(model.next_word(before)) + 0.6 * np.exp(five_gram.next_word(line))
        assert len(words) > 500
        np.testing.assert_allclose(np.bincount(words, minlength=4) / len(words), expected, atol=0.06)


def test_lines_that_do_not_end_are_cut_off(script):
    row = torch.tensor([0, 1, 2, 2, 1, 0])
    assert script.whole_lines(row, 2, ["a", "b", "<eos>"]) == ["a b", ""]
