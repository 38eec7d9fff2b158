"""Names of states: into labels and constructors, out of paths and summaries."""

import numpy as np
import pytest

from pplseq import ARHMM, HMM, IOHMM, SemiMarkovHMM, SwitchingRegression, Vocabulary, load
from pplseq.models import MixtureIOHMM
from pplseq.recipes.text.questions import decode_states, sample_states

X = np.r_[np.zeros(20), np.full(20, 5.0)] + np.random.default_rng(0).normal(size=40)


def plain_and_named():
    named = HMM(2, num_features=1, state_names=["calm", "busy"]).fit(X, seed=0)
    return HMM(2, num_features=1).fit(X, seed=0), named


def test_paths_are_told_by_name(tmp_path):
    plain, named = plain_and_named()
    told = np.array(["calm", "busy"], dtype=object)
    assert (named.decode(X) == told[plain.decode(X)]).all() and (named.predict([X])[0] == told[plain.predict([X])[0]]).all()
    ragged, lengths = np.stack([X, X])[..., None], [40, 3]
    assert named.decode(ragged, lengths)[1, 3:].tolist() == [None] * 37
    assert (named.n_best(X, 3).states == told[plain.n_best(X, 3).states]).all()
    with pytest.warns(RuntimeWarning, match=r"no standard errors of initial\[calm\]"):
        summary = str(named.summary(X))
    assert "transition[calm][busy]" in summary and "loc[busy][0]" in summary
    again = load(named.save(tmp_path / "model"))
    assert (again.decode(X) == named.decode(X)).all()
    assert type(named)(**named.get_params()).state_names == ("calm", "busy")


def test_labels_by_name_come_out_by_name():
    labels = [["low", "high"][int(value > 2.5)] for value in X]
    model = HMM(2, num_features=1).fit(X, states=labels, seed=0)
    assert model.decode(X)[0].tolist() == labels
    model = HMM(2, num_features=1, state_names=["low", "high"]).fit(X, states=labels, seed=0)
    assert model.decode(X)[0].tolist() == labels and model.state_names == ("low", "high")


def test_regimes_have_names():
    model = SemiMarkovHMM(2, num_features=1, max_duration=3, state_names=["a", "b"]).fit(X, seed=0, max_iterations=2)
    assert set(model.decode(X)[0]) <= {"a", "b"} and model.n_best(X, 2).states.shape == (1, 2, 40)


NAMED = {
    "autoregression": (lambda **told: ARHMM(2, 1, **told), {}, ["constants[up][0]", "transition[up][down]"]),
    "that lasts": (lambda **told: ARHMM(2, 1, duration="poisson", max_duration=30, **told), {}, ["duration[down]"]),
    "regression": (
        lambda **told: SwitchingRegression(2, num_inputs=1, switching=("mean", "inputs"), **told), {"inputs": X},
        ["mean[up]", "inputs[down][0]", "variance[0]"],
    ),
    "iohmm": (
        lambda **told: IOHMM(2, num_inputs=1, mealy=True, outputs="normal", **told), {"inputs": X},
        ["transition[up->down].u0", "emission[down].x0.u0", "scale.x0[up]"],
    ),
    "iohmm, tied": (
        lambda **told: IOHMM(2, num_inputs=0, outputs="gaussian", num_outputs=2, covariance="tied", **told), {},
        ["covariance[0][1]", "emission[down][1]", "initial[up]"],
    ),
    "iohmm, a table": (
        lambda **told: IOHMM(2, num_symbols=3, num_outputs=2, mealy=True, **told), {"inputs": np.arange(40) % 3},
        ["emission[2][down][1]", "transition[2][up][down]"],
    ),
    "clusters": (lambda **told: MixtureIOHMM(1, 2, num_inputs=1, outputs="normal", **told), {"inputs": X}, ["scale.x0[down]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_model_of_states_tells_them_by_name(name, tmp_path):
    make, known, entries = NAMED[name]
    x = X if "table" not in name else (np.abs(X) > 1).astype(int)
    x = np.stack([X, X[::-1]], 1) if "tied" in name else x
    labels = [["up", "down"][k // 20] if k % 3 else None for k in range(40)]
    model = make(state_names=["up", "down"]).fit(x, states=labels, seed=0, method="em", max_iterations=5, **known)
    assert set(entries) <= set(model.summary(x, **known).names)
    path = model.decode(x, **known)[0].tolist()
    given = model.decode(x, states=labels, **known)[0].tolist()
    assert {*path} <= {"up", "down"} and all(label in (None, found) for label, found in zip(labels, given, strict=True))
    assert list(model.smooth(x, **known).frame()) == ["up", "down"]
    again = load(model.save(tmp_path / "m"))
    assert again.state_names == ("up", "down") and again.decode(x, **known)[0].tolist() == path
    assert type(model)(**model.get_params()).state_names == ("up", "down")
    found = model.permuted([1, 0])
    assert found.state_names == ("down", "up") and found.decode(x, **known)[0].tolist() == path
    with pytest.raises(ValueError, match="state_names: expected 2 different names"):
        make(state_names=["a", "a"])


def test_a_vocabulary_says_how_many_words_there_are():
    model = HMM(1, vocabulary=Vocabulary(("a", "b", "<unk>")), priors=True)
    assert model.num_words == 3 and model.fit(["a b a"], seed=0).score(["a"]) < 0


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"state_names": ["a"]}, ValueError, "state_names: expected 2 different names"),
        ({"state_names": ["a", "a"]}, ValueError, "different names"),
        ({"state_names": {"a", "b"}}, TypeError, "state_names: expected a list, in the order of the states, got a set"),
        ({"state_names": {"a": 0, "b": 1}}, TypeError, "state_names: expected a list, .*, got a dict"),
        ({"state_names": "ab"}, TypeError, "state_names: expected"), ({"state_names": [1, 2]}, TypeError, "state_names"),
        ({"vocabulary": ["a"]}, TypeError, "expected a Vocabulary"),
        ({"vocabulary": Vocabulary(("a", "b"))}, ValueError, "num_words: the vocabulary has 2 words, got 3"),
    ],
)  # fmt: skip
def test_refusals(options, error, message):
    with pytest.raises(error, match=message):
        HMM(2, num_words=3, **options)


def test_the_command_answers_by_name():
    vocabulary = Vocabulary(("the", "cat", "dog", "<unk>"))
    model = HMM(2, vocabulary=vocabulary, state_names=["D", "N"]).fit([["the", "cat"], ["the", "dog"]], seed=0)
    told = decode_states(model, vocabulary, ["the", "cat"])["paths"][0]["states"]
    assert told == model.decode([["the", "cat"]])[0].tolist() and set(told) == {"D", "N"}
    assert set(sample_states(model, vocabulary, ["the"])["samples"][0]) <= {"D", "N"}


def test_names_follow_a_model_that_is_built_anew():
    model = HMM(2, num_words=3, state_names=["a", "b"])
    assert model.set_params(state_names=["c", "d"]).state_names == ("c", "d")
    learned = HMM(2, num_features=1).fit(X, states=[["low", "high"][int(value > 2.5)] for value in X], seed=0)
    assert learned.set_params(covariance_floor=0.1).state_names == ("high", "low")
    assert learned.set_params(num_states=3).state_names is None  # names of two states are none of three
