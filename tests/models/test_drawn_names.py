"""States that have names are told by these wherever they are drawn, as `decode` tells them."""

import numpy as np
import pytest
import torch

from pplseq import ARHMM, HMM, IOHMM, Constraint, MixtureHMM, SemiMarkovHMM, SwitchingRegression
from pplseq.data import Vocabulary

WORDS = [["a", "b", "a", "c"], ["b", "c"]] * 4
X = torch.randn(2, 40, 1, generator=torch.Generator().manual_seed(0)).double()
INPUTS = X.cumsum(1) / 5
NAMES = ["high", "low"]
MODELS = {
    "hmm": lambda: HMM(2, num_features=1),
    "semi-markov": lambda: SemiMarkovHMM(2, num_features=1, max_duration=3),
    "autoregressive": lambda: ARHMM(2, 1, order=1),
    "autoregressive, durations": lambda: ARHMM(2, 1, order=1, duration="poisson", max_duration=3),
    "switching": lambda: SwitchingRegression(2, order=1, lags_of="deviations"),
    "iohmm": lambda: IOHMM(2, num_inputs={"emission": 1}, num_outputs=1, outputs="gaussian", mealy=True),
    "mixture": lambda: MixtureHMM(2, 1, num_features=1),
}


def known_states(names):
    """Of some steps: a row each, by name or by number."""
    name = NAMES.__getitem__ if names else int
    unknown = [None] * 40 if names else [-1] * 40
    return [[*unknown[:10], name(k), *unknown[11:20], name(k), *unknown[21:]] for k in (0, 1)]


def few(name):
    return {"num_steps" if name == "switching" else "max_iterations": 3}


def by_name(states):
    return np.array([*NAMES, None], dtype=object)[np.asarray(states)]


@pytest.mark.parametrize("name", MODELS)
def test_what_is_drawn_is_told_as_what_is_decoded(name):
    known = {"inputs": INPUTS} if name == "iohmm" else {}
    given = {**known, "lengths": [40, 25]}
    named, plain = (MODELS[name]().fit(X, states=known_states(names), seed=0, **known, **few(name)) for names in (True, False))
    assert isinstance(named.decode(X, **known), np.ndarray)
    paths = named.sample_states(X, 3, seed=1, **given)
    assert paths.shape == (3, 2, 40) and (paths == by_name(plain.sample_states(X, 3, seed=1, **given))).all()
    assert set(paths[:, 1, 25:].flatten()) == {None} and set(paths[:, 1, :25].flatten()) <= set(NAMES)
    ask = {"inputs": INPUTS, "lengths": [40, 25]} if name == "iohmm" else {"num_steps": 30, "num_sequences": 2}
    drawn, numbers = named.sample(seed=2, **ask), plain.sample(seed=2, **ask)
    assert torch.equal(drawn.x.nan_to_num(-9.0), numbers.x.nan_to_num(-9.0)) and (drawn.states == by_name(numbers.states)).all()
    assert "low" in drawn._repr_html_() or "high" in drawn._repr_html_()


def test_texts_end_and_hold_to_constraints_by_name():
    vocabulary = Vocabulary(("a", "b", "c", "<eos>"), unknown=None, eos="<eos>")
    named, plain = (HMM(2, vocabulary=vocabulary, state_names=names).fit(WORDS, seed=0) for names in (NAMES, None))
    for ask in ({"num_steps": 8}, {"constraint": Constraint.containing("a"), "length": (2, 5)}):
        drawn, numbers = (model.sample(num_sequences=5, seed=1, **ask) for model in (named, plain))
        assert drawn.words == numbers.words and (drawn.states == by_name(numbers.states)).all()
        assert (drawn.states == None).any()  # noqa: E711  (behind the end of a text)
    under = [model.under(Constraint.matching("0 .*")).sample_states(WORDS[:1], 4, seed=1) for model in (named, plain)]
    assert (under[0] == by_name(under[1])).all() and set(under[0][:, 0, 0]) == {"high"}
