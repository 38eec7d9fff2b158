"""Held-out data in a fit: the model ends with what was best on them, as a loop by hand finds it, also as a run that goes on."""

import json
import os
import signal
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import pplseq
from pplseq import Vocabulary, sequences_by
from pplseq.data.text import Text
from pplseq.data.text_parts import TextFiles
from pplseq.models import HMM, LDS, StructuralModel, SwitchingRegression
from pplseq.runs.fits import DescentTraining, EMTraining

RANDOM = np.random.default_rng(3)
WORDS = [RANDOM.integers(5, size=8).tolist() for _ in range(6)]
OTHERS = [RANDOM.integers(5, size=30).tolist() for _ in range(4)]
ROWS = [RANDOM.normal(size=(12, 2)).cumsum(0) for _ in range(2)]
OTHER_ROWS = [RANDOM.normal(size=(12, 2)).cumsum(0) for _ in range(3)]
CASES = {
    "hmm": (lambda: HMM(4, 5, priors={"emission": 1.1, "transition": 1.05, "initial": 1.05}, dtype="float64"), WORDS, OTHERS),
    "lds": (lambda: LDS(2, 2), ROWS, OTHER_ROWS),
}
EM: dict[str, Any] = {"method": "em", "tolerance": 0.0, "seed": 1}


@pytest.fixture(autouse=True)
def quiet():
    """Of models that are meant to learn too much of too little, states that are empty say nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def same(model, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", CASES)
def test_em_keeps_the_iteration_that_a_loop_by_hand_finds_best(name):
    make, x, held_out = CASES[name]
    by_hand = [make().fit(x, **EM, max_iterations=n) for n in range(1, 13)]
    values = [-model.score(held_out, per_token=True) for model in by_hand]
    best = int(np.argmin(values))
    assert best < 11 and values[-1] > values[best] + 1e-3  # it learns too much
    model = make().fit(x, **EM, max_iterations=12, validation=held_out)
    assert model.history.validations == list(enumerate(values, 1)) and model.history.best_iteration == best + 1
    assert same(model, by_hand[best]) and model.history.reason == "max_iterations = 12 reached"
    assert model.history.log_likelihoods == by_hand[-1].history.log_likelihoods  # learning goes the same way
    stopped = make().fit(x, **EM, max_iterations=12, validation=held_out, early_stop=2)
    assert stopped.history.reason == "early_stop" and same(stopped, model)
    assert stopped.history.validations == model.history.validations[: best + 3]


def test_gradients_are_scored_every_twenty_steps_and_at_the_end():
    model = HMM(4, 5, dtype="float64")
    torch.manual_seed(1)
    batch = model._as_batch(WORDS)
    model.initialize(batch)
    steps, values, states = DescentTraining(model, [batch], num_steps=130), {}, {}
    model.train()
    for k in range(1, 131):
        steps.step()
        if k % 20 == 0 or k == 130:
            model.is_fitted = True
            values[k] = -model.score(OTHERS, per_token=True)
            states[k] = {name: value.clone() for name, value in model.state_dict().items()}
    best = min(values, key=values.get)
    assert best < 130
    how: dict[str, Any] = {"method": "sgd", "num_steps": 130, "seed": 1}
    found = HMM(4, 5, dtype="float64").fit(WORDS, **how, validation=OTHERS)
    assert dict(found.history.validations) == values and found.history.best_iteration == best
    assert all(torch.equal(value, states[best][name]) for name, value in found.state_dict().items())
    assert not found.training
    assert found.history.losses == HMM(4, 5, dtype="float64").fit(WORDS, **how).history.losses


SGD: dict[str, Any] = {"method": "sgd", "num_steps": 100, "batch_size": 2, "seed": 1}


@pytest.mark.parametrize(("training", "how", "at"), [(EMTraining, EM | {"max_iterations": 12}, 9), (DescentTraining, SGD, 75)])
def test_a_run_that_goes_on_is_the_run_that_was_never_stopped(training, how, at, tmp_path, monkeypatch):
    """Also where the best parameters were found before it was stopped, so that they are in its folder alone."""
    make, x, held_out = CASES["hmm"]
    whole = make().fit(x, **how, validation=held_out)
    disk = make().fit(x, **how, validation=held_out, folder=tmp_path / "whole")
    assert same(whole, disk) and whole.history.validations == disk.history.validations
    assert whole.history.best_iteration < at

    step = training.step

    def interrupted(self):
        if self.progress.step == at - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "step", interrupted)
        make().fit(x, **how, validation=held_out, folder=tmp_path / "run")
    resumed = make().fit(x, **how, validation=held_out, folder=tmp_path / "run", resume=True)
    assert same(resumed, whole) and resumed.history.validations == whole.history.validations
    assert resumed.history.best_iteration == whole.history.best_iteration
    for folder in ("run", "whole"):
        last = pplseq.load(tmp_path / folder / "last")
        assert same(pplseq.load(tmp_path / folder / "best"), whole) and same(pplseq.load(tmp_path / folder), whole)
        assert last.score(held_out, per_token=True) == pytest.approx(-whole.history.validations[-1][1])
        assert not same(last, whole)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    told = [record["nats_per_token"] for record in map(json.loads, lines) if record["kind"] == "validation"]
    assert told == [value for _, value in whole.history.validations]
    again = make().fit(x, **how, validation=held_out, folder=tmp_path / "run", resume=True)  # there is nothing left to do
    assert same(again, whole) and again.history.validations == whole.history.validations
    for other in (held_out[:2], None):
        with pytest.raises(ValueError, match="validation: the run in .* is of another validation"):
            make().fit(x, **how, validation=other, folder=tmp_path / "run", resume=True)


def test_the_start_is_chosen_by_the_data_that_are_learned_from():
    how = EM | {"max_iterations": 3, "num_restarts": 4}
    alone, checked = (HMM(4, 5).fit(WORDS, **how, validation=held_out) for held_out in (None, OTHERS))
    assert checked.history.log_likelihoods == alone.history.log_likelihoods


def test_held_out_data_come_in_every_form_of_x(tmp_path):
    """The same data, so the same values; and what is known with them by the names of score's arguments."""
    how = EM | {"max_iterations": 4}
    frame = pd.DataFrame(np.concatenate(ROWS), columns=["heat", "flow"]).assign(who=np.repeat(["a", "b"], 12))
    x = np.stack(ROWS)
    x[0, 3, 1] = x[1, 5] = np.nan  # gaps
    whole = HMM(2, num_features=2).fit(x, **how, validation=x)
    values = [value for _, value in whole.history.validations]
    padded = np.concatenate([x, np.full((2, 3, 2), 7.0)], 1)
    for form in ([*x], torch.as_tensor(x), {"x": padded, "lengths": [12, 12]}, {"x": np.concatenate(x), "lengths": [12, 12]}):
        found = HMM(2, num_features=2).fit(x, **how, validation=form).history.validations
        assert [value for _, value in found] == pytest.approx(values, abs=1e-9)
    by_name = sequences_by(frame, "who")
    turned = sequences_by(frame[["who", "flow", "heat"]], "who")
    forms = by_name, turned, ROWS
    found = [HMM(2, num_features=2).fit(by_name, **how, validation=form).history.validations for form in forms]
    assert found[0] == found[1] == found[2]

    sentences = ["a b c", "c d", "d a b a"]
    vocabulary = Vocabulary.build([line.split() for line in sentences])
    text = Text.from_lines([line.split() for line in sentences], vocabulary)
    (tmp_path / "text.txt").write_text("\n".join(sentences))
    forms = text, sentences, [line.split() for line in sentences]
    found = []
    for given in (text, TextFiles(tmp_path / "text.txt", vocabulary=vocabulary)):
        found += [HMM(2, vocabulary=vocabulary).fit(given, **how, validation=form).history.validations for form in forms]
    for values in found:
        assert [value for _, value in values] == pytest.approx([value for _, value in found[0]], abs=1e-5)

    counts, exposure = RANDOM.poisson(3, size=(4, 9, 1)).astype(float), RANDOM.uniform(1, 2, size=(4, 9))
    model = HMM(2, emission=["poisson"])
    model.fit(counts, exposure=exposure, **how, validation={"x": counts[:2], "exposure": exposure[:2]})
    expected = -model.score(counts[:2], exposure=exposure[:2], per_token=True)
    assert dict(model.history.validations)[model.history.best_iteration] == pytest.approx(expected)
    inputs = RANDOM.normal(size=(2, 12, 1))
    model = LDS(1, 2, num_inputs=1).fit(x, inputs=inputs, **how, validation={"x": x[:1], "inputs": inputs[:1]})
    expected = -model.score(x[:1], inputs=inputs[:1], per_token=True)
    assert dict(model.history.validations)[model.history.best_iteration] == pytest.approx(expected)
    times, walk = np.arange(30.0) * 2, RANDOM.normal(size=30).cumsum()
    quick: dict[str, Any] = {"method": "sgd", "num_steps": 3, "initialization": "still"}
    model = StructuralModel().fit(walk, times=times, **quick, validation={"x": walk, "times": times})
    expected = -model.score(walk, times=times, per_token=True)
    assert dict(model.history.validations)[model.history.best_iteration] == pytest.approx(expected)
    with pytest.raises(ValueError, match="validation: times: this model was fitted with times"):
        StructuralModel().fit(walk, times=times, **quick, validation=walk)


def test_impossible_held_out_data_choose_nothing():
    model, alone = HMM(2, 5), HMM(2, 5).fit([[0, 1, 2] * 5], **EM, max_iterations=4)
    with pytest.warns(RuntimeWarning, match="validation: the held-out data are impossible under .* every iteration"):
        model.fit([[0, 1, 2] * 5], **EM, max_iterations=4, validation=[[3, 4]])
    assert model.history.best_iteration is None and same(model, alone)


REFUSED: dict[str, dict[str, Any]] = {
    "validation: .* got method 'lbfgs'.*method='em' or 'sgd'": {"method": "lbfgs", "validation": OTHERS},
    "validation: .* got method 'svi'": {"method": "svi", "validation": OTHERS},
    "early_stop: counts scores of held-out data; give validation": {"early_stop": 3},
    "early_stop must be at least 1, got 0": {"early_stop": 0, "validation": OTHERS},
    "validation: data by the names of score's arguments .* with 'x', got the names 'y'": {"validation": {"y": OTHERS}},
    "validation: HMM: no argument 'inputs' beside the data": {"validation": {"x": OTHERS, "inputs": 3}},
    "validation: x must hold ids 0..4": {"validation": [[0, 5]]},
    "validation: x: every observation is missing": {"validation": [[-1, -1]]},
    "step_size: .* or validation is batch EM": {"validation": OTHERS, "step_size": 0.7},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_held_out_is_refused_by_name(message):
    model = HMM(2, 5, priors=True)
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(WORDS, **REFUSED[message])
    assert not model.is_fitted


def test_texts_of_other_words_are_refused():
    text, other = (Text.from_lines([line.split()]) for line in ("a b c", "c b d"))
    for model in (HMM(2, len(text.vocabulary)), HMM(2, vocabulary=text.vocabulary)):
        with pytest.raises(ValueError, match="validation: .*encoded with other words"):
            model.fit(text, validation=other)
    with pytest.raises(ValueError, match="validation: .* leave it out, or fit SwitchingRegression with method='em' or 'sgd'"):
        SwitchingRegression(2).fit(ROWS[0][:, :1], validation=ROWS[1][:, :1])


def test_a_text_goes_through_em_some_lines_at_a_time(tmp_path):
    """To the sums of all its lines together, whatever their order; a run of it goes on exactly, and looks at its words."""
    lines = [RANDOM.choice(list("abcde"), size=n).tolist() for n in RANDOM.integers(1, 40, size=400)]
    text = Text.from_lines(lines)
    rows = list(text.lines())
    start = HMM(3, len(text.vocabulary), dtype="float64").fit(rows[:20], **EM, max_iterations=1).state_dict()

    def model():
        own = HMM(3, len(text.vocabulary), dtype="float64")
        own.load_state_dict(start)
        return own

    how: dict[str, Any] = {"tolerance": 0.0, "warm_start": True, "acceleration": 0}
    together, parts = model().fit(rows, **how, max_iterations=6), model().fit(text, **how, max_iterations=6)
    for name, value in together.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=0, atol=1e-9)
    assert parts.history.num_tokens == text.num_tokens == sum(map(len, rows))
    model().fit(text, **how, max_iterations=2, folder=tmp_path / "run", validation=text)
    resumed = HMM(3, len(text.vocabulary), dtype="float64").fit(
        text, tolerance=0.0, acceleration=0, max_iterations=6, folder=tmp_path / "run", validation=text, resume=True
    )
    assert same(resumed, parts)
    other = Text.from_lines(lines[:-1], text.vocabulary)
    with pytest.raises(ValueError, match="x: the run in .* is of another x"):
        HMM(3, len(text.vocabulary), dtype="float64").fit(
            other, tolerance=0.0, acceleration=0, max_iterations=6, folder=tmp_path / "run", validation=text, resume=True
        )
    with pytest.raises(ValueError, match=r"x must hold ids 0\.\.1"):
        HMM(2, 2).set_parameters(initial=[0.5, 0.5]).fit(text, warm_start=True)
