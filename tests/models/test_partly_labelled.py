"""Observed states of some steps: a fit keeps what they are called, in every model with states, and may be given their names."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from pplseq import HMM, IOHMM, load
from pplseq.models import ARHMM, SemiMarkovHMM, SwitchingRegression

Z = 3
WORDS = np.array([[0.85, 0.05, 0.05, 0.05], [0.05, 0.85, 0.05, 0.05], [0.05, 0.05, 0.45, 0.45]])


def vectors(rng, states):
    return 4.0 * np.eye(Z)[states] + rng.normal(size=(len(states), Z))


def counts(rng, states):
    return rng.poisson(np.array([1, 9, 30])[states])


def levels(rng, states):
    return 6.0 * states + rng.normal(size=len(states))


def words(rng, states):
    return np.array([rng.choice(4, p=WORDS[k]) for k in states])


CASES = {
    "diag": (lambda: HMM(Z, num_features=Z), vectors),
    "tied": (lambda: HMM(Z, num_features=Z, covariance="tied"), vectors),
    "mixture": (lambda: HMM(Z, num_features=Z, emission="mixture"), vectors),
    "words": (lambda: HMM(Z, 4), words),
    "poisson": (lambda: HMM(Z, emission="poisson"), counts),
    "student_t": (lambda: HMM(Z, emission="student_t"), levels),
    "a class": (lambda: HMM(Z, emission="Laplace"), levels),
    "semi-Markov": (lambda: SemiMarkovHMM(Z, num_features=Z, max_duration=25), vectors),
    "phases": (lambda: SemiMarkovHMM(Z, emission="poisson", duration="negative_binomial", num_phases=3), counts),
    "arhmm": (lambda: ARHMM(Z, 1, order=0), levels),
    "switching": (lambda: SwitchingRegression(Z), levels),
    "iohmm, gaussian": (lambda: IOHMM(Z, num_inputs=0, outputs="gaussian", num_outputs=Z), vectors),
    "iohmm, categorical": (lambda: IOHMM(Z, num_inputs=0, outputs="categorical", num_outputs=4), words),
    "iohmm, poisson": (lambda: IOHMM(Z, num_inputs=0, outputs="poisson"), counts),
}


def data(emit, seed, share=0.05):
    rng = np.random.default_rng(seed)
    states = np.concatenate([np.repeat(rng.permutation(Z), 20) for _ in range(5)])
    x = emit(rng, states)
    return x, states, np.where(rng.random(len(states)) < share, states, -1)


@pytest.mark.parametrize("name", CASES)
def test_labels_of_some_steps_are_kept(name):
    make, emit = CASES[name]
    x, states, labels = data(emit, seed=1)
    found = np.asarray(make().fit(x, states=labels, seed=1).decode(x)[0])
    assert (found == states).mean() > 0.9


@pytest.mark.parametrize("name", ["diag", "poisson", "a class", "semi-Markov", "arhmm"])
def test_states_without_labels_start_from_the_rest(name):
    make, emit = CASES[name]
    x, states, labels = data(emit, 1, share=0.1)
    found = np.asarray(make().fit(x, states=np.where(labels == 1, -1, labels), seed=0).decode(x)[0])
    assert (found == states).mean() > 0.9


def test_labels_of_one_step_and_of_all_steps():
    x, states, labels = data(vectors, 0)
    labels[:] = -1
    labels[[np.flatnonzero(states == k)[3] for k in range(Z)]] = np.arange(Z)
    assert (HMM(Z, num_features=Z).fit(x, states=labels, seed=0).decode(x)[0].numpy() == states).mean() > 0.9
    model = HMM(Z, num_features=Z).fit(x, states=states, seed=0)
    for k in range(Z):
        assert model.loc[k].numpy() == pytest.approx(x[states == k].mean(0), abs=1e-9)


NAMED = np.array(["home", "walk", "work"])


FORMS = ("list", "array", "series", "None", "NaN", "numbers and NaN", "categories", "sequences", "masked")


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_labels(form, tmp_path):
    x, states, labels = data(vectors, 2, share=0.2)
    named = [None if k < 0 else str(NAMED[k]) for k in labels]
    made = {
        "list": named, "array": np.array(named, dtype=object), "series": pd.Series(named),
        "None": [None if k < 0 else int(k) for k in labels],
        "NaN": [np.nan if k is None else k for k in named], "numbers and NaN": np.where(labels < 0, np.nan, labels),
        "masked": np.ma.array(np.where(labels < 0, "work", NAMED[labels]), mask=labels < 0, dtype=object),
        "categories": pd.Series(pd.Categorical(named)), "sequences": [named[:100], named[100:]],
    }[form]  # fmt: skip
    given = [x[:100], x[100:]] if form == "sequences" else x
    model, plain = HMM(Z, num_features=Z), HMM(Z, num_features=Z)
    model.fit(given, states=made, seed=0)
    plain.fit(given, states=[labels[:100], labels[100:]] if form == "sequences" else labels, seed=0)
    assert torch.equal(model.loc, plain.loc)
    if "N" not in form:
        assert model.state_names == tuple(NAMED) and load(model.save(tmp_path / "model")).state_names == tuple(NAMED)
        assert model.score(x, states=[str(NAMED[k]) for k in states]) == pytest.approx(plain.score(x, states=states))
        with pytest.raises(ValueError, match=r"no state is called 'wallk'\. Did you mean 'walk'"):
            model.score(x[:2], states=["home", "wallk"])
        with pytest.raises(ValueError, match=f"no state is called 'odd'\\. There are: {', '.join(NAMED)}$"):
            model.score(x[:2], states=["home", "odd"])


def test_labels_that_say_nothing_are_refused():
    x, states, labels = data(vectors, 0)
    named = HMM(Z, num_features=Z).fit(x, states=[("a", "b", None)[k] for k in states], seed=0)
    assert named.state_names == ("a", "b", "state 2")
    assert set(named.decode(x, states=["state 2"] * len(x)).flat) == {"state 2"}
    for states, message in (
        (["a", ""], "the name of a state is empty"), (["a", " "], "empty"), (["a", 1], "names and numbers are mixed, 'a' "),
        (np.array(["a", 1.5], dtype=object), "mixed"), ([["a"], [2]], "mixed"), ([["a"], np.array([2])], "mixed"),
        ([["a"], torch.tensor([0])], "mixed"), (pd.Series(["a", 0]), "mixed"),
    ):  # fmt: skip
        two = [x[:1], x[1:2]] if np.ndim(states[0]) else x[:2]
        for ask in (HMM(Z, num_features=Z).fit, named.score):
            with pytest.raises(ValueError, match=message):
                ask(two, states=states)
    with pytest.raises(ValueError, match=r"4 names \(a, b, c, d\) for 3 states"):
        HMM(Z, num_features=Z).fit(x, states=list("abcd") * 75)
    with pytest.raises(ValueError, match="the model's have numbers, as no fit was given names"):
        HMM(Z, num_features=Z).fit(x, states=labels, seed=0).score(x, states=["a"] * len(x))
    with pytest.raises(TypeError, match="numbers 0, 1, ... of states, or their names, got True"):
        HMM(Z, num_features=Z).fit(x, states=[True] * len(x))


@pytest.mark.parametrize("duration", [{"max_duration": 3}, {"duration": "negative_binomial", "num_phases": 2}])
def test_known_regimes_against_enumeration(duration):
    """Of a semi-Markov chain, by its direct way and by its program, a missing observation among them."""
    torch.manual_seed(0)
    model = SemiMarkovHMM(2, num_features=1, **duration)
    x = torch.randn(1, 5, 1).double()
    x[0, 1] = torch.nan
    initial, matrix, regime = model.initial, model.transition, model.regime_of.tolist()
    density = model.emissions.spec().log_likelihood(x[0].nan_to_num(0.0)).detach()
    density[1] = 0.0
    for labels in ([-1, 1, -1, 0, -1], [0, 0, 1, 1, 1], [-1] * 5):
        total = 0.0
        for path in itertools.product(range(len(initial)), repeat=5):
            if any(k >= 0 and regime[state] != k for state, k in zip(path, labels, strict=True)):
                continue
            p = initial[path[0]] * torch.stack([matrix[a, b] for a, b in itertools.pairwise(path)]).prod()
            total += float(p * torch.stack([density[t, regime[state]] for t, state in enumerate(path)]).sum().exp())
        known = torch.tensor([labels])
        assert float(model.log_prob(x, states=known).exp()) == pytest.approx(total, rel=1e-12)
        model(x, states=known)  # the program
        assert float(model.chain.log_prob().detach().exp()) == pytest.approx(total, rel=1e-12)
        path = model.decode(x, states=known)[0].tolist()
        assert all(k < 0 or k == found for k, found in zip(labels, path, strict=True))


def test_real_autoregressions():
    rng = np.random.default_rng(0)
    states = np.repeat(rng.permutation(np.arange(12) % 2), 30)
    x = np.zeros((360, 1))
    for t in range(1, 360):
        x[t] = np.array([0.95, -0.6])[states[t]] * x[t - 1] + rng.normal()
    labels = np.where(rng.random(360) < 0.1, states, -1)
    for model in (ARHMM(2, 1), SwitchingRegression(2, order=1)):
        found = np.asarray(model.fit(x, states=labels, seed=0).decode(x)[0])
        assert (found == states)[1:].mean() > 0.8
