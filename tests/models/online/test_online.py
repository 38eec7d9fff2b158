"""Reading step by step is reading the whole: readings, gaps, forecasts, files; and what cannot be is refused by name."""

import json
import math

import numpy as np
import pytest
import torch
from support.model_cases import CASES

from pplseq import ARHMM, HMM, IOHMM, LDS, VLHMM, SwitchingRegression, Vocabulary
from pplseq.models.gaussian import GaussianEstimator

close = torch.testing.assert_close
FAST = {
    "hmm, full": lambda: HMM(3, num_features=2, covariance="full"), "one state": lambda: HMM(1, num_words=6),
    "hmm, tied": lambda: HMM(3, num_features=2, covariance="tied"), "lds, no offsets": lambda: LDS(1, 2, offsets="none"),
    "hmm, family": lambda: HMM(2, emission=["poisson", "normal"]),
    "lds, diagonal": lambda: LDS(3, 2, emission_noise="diagonal"),
}  # fmt: skip


def read(model, x, known):
    """Readings of a row, and the row with gaps as all questions take it."""
    online = model.online()
    of_step = [{name: part[t].tolist() for name, part in known.items()} for t in range(len(x))]
    return online, [online.step(value, **told) for value, told in zip(x.tolist(), of_step, strict=True)]


def with_gaps(x, parts=True):
    x = x.clone()
    if x.is_floating_point():
        x[1] = torch.nan
        if x.shape[-1] > 1 and parts:
            x[3, 0] = torch.nan
    else:
        x[1] = -1
    return x


def agrees(model, x, known, near=1e-9):
    online, steps = read(model, x, {name: part[0] for name, part in known.items()})
    told = model.token_log_probs(x[None], **known)[0]
    close(torch.tensor([step.log_prob for step in steps], dtype=torch.float64), told.double(), rtol=near, atol=near)
    assert online.num_steps == len(x) and online.log_prob == pytest.approx(float(told.sum()), rel=near, abs=near)
    found = model.filter(x[None], **known)
    if isinstance(model, GaussianEstimator):
        close(torch.tensor(np.stack([step.states for step in steps])), found.means[0].double(), rtol=1e-7, atol=1e-8)
        close(torch.tensor(np.stack([step.covariance for step in steps])), found.covariances[0].double(), rtol=1e-7, atol=1e-8)
    else:
        states = torch.tensor(np.stack([step.states for step in steps]))
        close(states, found.dense(states.shape[1])[0].double(), rtol=0, atol=1e-6)
    return online


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.verbs >= {"filter"}])
def test_readings_are_those_of_the_whole(name, gaps):
    case = CASES[name]
    model, x, known = case.model(), case.data()[0], {key: value[:1] for key, value in case.known.items()}
    if gaps and (name.startswith("iohmm") or "sources" in str(case.known)):
        pytest.skip("its own tests say which gaps it takes")
    model.is_fitted = True
    x = with_gaps(x, name not in ("autoregressive hmm", "hmm, counts of a total")) if gaps else x
    agrees(model, x, known, near=1e-6)  # some chains are in single precision


@pytest.mark.parametrize("name", FAST)
def test_numbers_alone(name, tmp_path):
    torch.manual_seed(0)
    model = FAST[name]()
    x = torch.randint(0, 6, (40,)) if model.num_words else torch.randn(40, 2).double()
    x = x.round().abs() if name == "hmm, family" else x
    model.is_fitted = True
    online = agrees(model, with_gaps(x), {})
    ahead, expected = online.forecast(3), model.forecast(with_gaps(x)[None], 3)
    for field in ("state_log_probs", "word_log_probs", "means", "covariances", "state_means", "state_covariances"):
        if getattr(expected, field, None) is not None:
            close(getattr(ahead, field), getattr(expected, field).detach(), rtol=1e-8, atol=1e-9)
    again = model.online(online.save(tmp_path / "place.json"))
    assert (again.num_steps, again.log_prob) == (40, online.log_prob)
    for value in x[:5].tolist():
        one, two = online.step(value), again.step(value)
        assert one.log_prob == pytest.approx(two.log_prob, rel=1e-12) and np.allclose(one.states, two.states, rtol=1e-12)
    first = model.online().forecast(2)
    what = "state_means" if first.state_log_probs is None else "state_log_probs"
    close(getattr(first, what), getattr(model.forecast(x[:0][None], 2), what).detach())


FAR = {
    "an outlier on the way to a state without return": (
        dict(graph="left_right"), [[0.99, 0.01], [0, 1.0]], 0.1, [0, 0, 0, 5.0, 0, 0, 0],
    ),
    "a first step far from all": ({}, [[0.5, 0.5], [0.5, 0.5]], 1.0, [50.0, 0.0]),
    "states that never change": ({}, [[1.0, 0.0], [0.0, 1.0]], 1.0, [0.0] * 200 + [3.0] * 230),
    "moves of e^-500": ({}, [[1.0, math.exp(-500)], [math.exp(-500), 1.0]], 0.01, [0.0, 0.0, 9.0, 9.0, 0.0]),
}


@pytest.mark.parametrize("name", FAR)
def test_states_that_are_all_but_ruled_out_come_back(name, tmp_path):
    options, moves, scale, x = FAR[name]
    loc = [[0.0], [50.0]] if "first" in name else [[0.0], [3.0]] if "never" in name else [[0.0], [5.0]]
    model = HMM(2, num_features=1, **options).set_parameters(
        initial=[1.0, 0.0] if "first" in name or options else [0.5, 0.5], transition=moves, loc=loc,
        covariance=[[scale**2], [scale**2]],
    )  # fmt: skip
    x = torch.tensor(x).double().unsqueeze(-1)
    online = agrees(model, x, {})
    again = model.online(online.save(tmp_path / "place"))
    assert again.step(0.0).log_prob == online.step(0.0).log_prob > -math.inf


def test_a_covariance_that_stands_still_moves_again_behind_a_gap():
    torch.manual_seed(0)
    model, x = LDS(2, 2), torch.randn(400, 2).double()
    x[200] = torch.nan
    model.is_fitted = True
    online = model.online()
    for value in x[:200].numpy():
        online.step(value)
    assert online._filter.steady is not None
    agrees(model, x, {})


def test_models_of_blocks_are_saved(tmp_path):
    torch.manual_seed(0)
    model = VLHMM(num_words=6, num_states=6, blocks=[0, 0, 1, 1, 2, 2], hidden_size=4).double().eval()
    model.is_fitted, online = True, model.online()
    for word in (0, 3, -1, 5):
        online.step(word)
    again = model.online(online.save(tmp_path / "place"))
    then = online.step(2).log_prob
    assert again.step(2).log_prob == then
    told = json.loads((tmp_path / "place").read_text())
    (tmp_path / "older").write_text(json.dumps({name: value for name, value in told.items() if name != "last"}))
    older = model.online(tmp_path / "older")  # as files were before they said the last step
    with pytest.raises(ValueError, match="forecast: the file does not say what the last step was"):
        older.forecast()
    assert older.step(2).log_prob == then and older.forecast().word_log_probs.shape == (1, 1, 6)


def test_words_columns_and_what_is_impossible():
    model = HMM(2, num_words=3).set_parameters(emission=[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    model.vocabulary = Vocabulary(("a", "b", "<unk>"))
    online = model.online()
    before = online.step("b").states
    reading = online.step("new")  # of a probability of 0
    assert reading.log_prob == -math.inf and reading.states.sum() == pytest.approx(1) and online.log_prob == -math.inf
    assert np.allclose(reading.states, before @ model.transition.numpy())
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"temp": np.arange(30.0) % 7, "wind": np.arange(30.0) % 5})
    model = HMM(2, num_features=2).fit(frame, max_iterations=2, seed=0)
    row = frame.iloc[3]
    assert model.online().step({"wind": row["wind"], "temp": row["temp"]}).log_prob == model.online().step(row).log_prob
    assert model.online().step(row[::-1]).log_prob == model.online().step(row).log_prob
    assert model.online().forecast(1).column_names == ("temp", "wind")
    with pytest.raises(ValueError, match="x: expected a number for each column"):
        model.online().step({"wind": 1.0})


def test_fed_back_outputs_go_on_too(tmp_path):
    model = fitted(IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1, feedback=True))
    x, inputs = torch.randn(2, 1, 6, 1).double()
    online = agrees(model, x[0], {"inputs": inputs})
    again = model.online(online.save(tmp_path / "place"))
    assert again.step(0.3, inputs=0.1).log_prob == online.step(0.3, inputs=0.1).log_prob
    begun = model.posterior(x[:, :2], inputs=inputs[:, :2]).filtered()
    with pytest.raises(ValueError, match="start: a row that goes on needs the output before it"):
        model.posterior(x[:, 2:], start=begun, inputs=inputs[:, 2:])


FIELDS = ("state_log_probs", "word_log_probs", "means", "covariances", "state_means", "state_covariances")
AHEAD = [name for name, case in CASES.items() if case.verbs >= {"filter", "forecast"}]


def forecasts_agree(told, expected, near=1e-9):
    named = [name for name in FIELDS if isinstance(getattr(expected, name, None), torch.Tensor)]
    assert named
    for name in named:
        one, other = getattr(told, name), getattr(expected, name)
        close(*(each.exp() if "log" in name else each for each in (one, other.detach())), rtol=near, atol=near)


@pytest.mark.parametrize("name", AHEAD)
def test_forecasts_are_those_behind_the_whole_row(name, tmp_path):
    case = CASES[name]
    model, x, known = fitted(case.model()), case.data()[0], {key: value[0] for key, value in case.known.items()}
    future = {f"future_{key}": value[:2] for key, value in known.items()}
    online = read(model, x, known)[0]
    whole = {key: value[None] for key, value in known.items()}
    expected = model.forecast(x[None], 2, **whole, **future)
    forecasts_agree(online.forecast(2, **future), expected, 1e-6)
    again = model.online(online.save(tmp_path / "place"))
    forecasts_agree(again.forecast(2, **future), expected, 1e-6)
    assert again.log_prob == online.log_prob


LAGS = {
    "autoregression": lambda: ARHMM(2, 2, order=2), "that lasts": lambda: ARHMM(2, 2, duration="explicit", max_duration=3),
    "with inputs": lambda: ARHMM(2, 2, num_inputs=1), "without lags": lambda: ARHMM(2, 2, order=0, num_inputs=1),
    "regression": lambda: SwitchingRegression(2, order=2, num_inputs=1),
    "deviations": lambda: SwitchingRegression(2, order=2, num_inputs=1, lags_of="deviations"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAGS)
def test_models_of_lags_remember_them(name, tmp_path):
    torch.manual_seed(0)
    model = fitted(LAGS[name]())
    x, inputs = torch.randn(9, model.num_features).double(), torch.randn(11, 1).double()
    if not model.order:
        x[3] = torch.nan
    known = {"inputs": inputs[:9]} if model.num_inputs else {}
    ahead = {"future_inputs": inputs[9:]} if model.num_inputs else {}
    online = agrees(model, x, {key: value[None] for key, value in known.items()})
    expected = model.forecast([x], 2, **{key: [value] for key, value in known.items()}, **ahead)
    forecasts_agree(online.forecast(2, **ahead), expected)
    low, high = online.forecast(**ahead | ({} if ahead else {"num_steps": 2})).intervals(0.8)
    close(torch.stack([low, high]), torch.stack(expected.intervals(0.8)))
    again = model.online(online.save(tmp_path / "place"))
    forecasts_agree(again.forecast(2, **ahead), expected)
    more = {"inputs": inputs[9]} if model.num_inputs else {}
    assert again.step(x[0], **more).log_prob == online.step(x[0], **more).log_prob
    states = [0 if k % 4 == 1 else None for k in range(9)]  # some are known
    online = model.online()
    for k in range(9):
        online.step(x[k], states=states[k], **{key: value[k] for key, value in known.items()})
    whole = model.score([x], states=[states], **{key: [value] for key, value in known.items()})
    assert online.log_prob == pytest.approx(whole, rel=1e-9)


def test_what_models_of_lags_refuse():
    model = fitted(ARHMM(2, 1, order=2, num_inputs=1))
    online = model.online()
    online.step(1.0, inputs=0.5)
    for known, message in (({}, "expected the 1 numbers"), ({"inputs": [1.0, 2.0]}, "1 finite"), ({"inputs": "a"}, "1 finite")):
        with pytest.raises(ValueError, match=f"inputs: expected .*{message.split()[-1]}|{message}"):
            online.step(1.0, **known)
    with pytest.raises(ValueError, match="a number is missing"):
        online.step(None, inputs=0.5)
    with pytest.raises(ValueError, match="states: expected a state 0..1"):
        online.step(1.0, inputs=0.5, states=2)
    with pytest.raises(ValueError, match="goes on from the last 2 vectors; read 1 more"):
        online.forecast(future_inputs=[[1.0]])
    assert online.num_steps == 1
    online.step(2.0, inputs=0.5)
    with pytest.raises(ValueError, match="future_inputs must be given"):
        online.forecast()
    with pytest.raises(TypeError, match="no argument 'future_trials'"):
        online.forecast(future_trials=3)
    with pytest.raises(ValueError, match="goes on from a step; read one before"):
        fitted(ARHMM(2, 1, order=0, num_inputs=1)).online().forecast(future_inputs=[[1.0]])


def test_exposures_and_inputs_of_the_steps_to_come():
    model = HMM(2, emission="poisson").fit([3, 5, 9, 1, 0, 2, 7, 8], exposure=[1, 2, 3, 1, 1, 1, 2, 2], max_iterations=2)
    online = model.online()
    for count, hours in ((3, 1.0), (9, 2.0)):
        online.step(count, exposure=hours)
    told = online.forecast(2, future_exposure=[4.0, 1.0])
    close(told.means, model.forecast([[3, 9]], 2, exposure=[[1.0, 2.0]], future_exposure=[4.0, 1.0]).means)
    model = fitted(LDS(1, 1, num_inputs=1))
    online = model.online()
    online.step(1.0, inputs=0.5)
    told = online.forecast(future_inputs=[[1.0], [2.0]])
    close(told.means, model.forecast([[1.0]], inputs=[[[0.5]]], future_inputs=[[1.0], [2.0]]).means)


@pytest.mark.parametrize("none", [None, math.nan, np.ma.masked, np.float64("nan")])
def test_a_number_that_is_not_there(none):
    model = HMM(2, num_features=1).set_parameters(loc=[[0.0], [3.0]])
    online = model.online()
    online.step(1.0)
    assert online.step(none).log_prob == 0.0 and LDS(1, 1)._reader().step(none, {}).log_prob == 0.0
    pd = pytest.importorskip("pandas")
    assert online.step(pd.NA).log_prob == 0.0 == online.step(pd.NaT).log_prob
    assert online.step(torch.tensor(1.0, requires_grad=True)).log_prob < 0


@pytest.mark.parametrize("none", [None, math.nan, -1, np.ma.masked])
def test_a_word_that_is_not_there(none):
    for model in (HMM(2, num_words=3), VLHMM(num_words=4, num_states=4, blocks=[0, 0, 1, 1], hidden_size=4)):
        assert fitted(model).online().step(none).log_prob == 0.0
    model = fitted(IOHMM(2, num_inputs=1, outputs="categorical", num_outputs=3))
    assert model.online().step(none, inputs=0.5).log_prob == 0.0


def fitted(model):
    model.is_fitted = True
    return model


@pytest.mark.parametrize(
    "make, x, error, message",
    [
        (lambda: HMM(2, num_words=3), 3, ValueError, "x: expected a word's number in 0..2"),
        (lambda: HMM(2, num_words=3), 1.5, ValueError, "x: expected a word's number"),
        (lambda: HMM(2, num_words=3), "word", TypeError, "the model has no vocabulary"),
        (lambda: HMM(2, num_features=2), [1.0], ValueError, "x: expected 2 numbers, got 1"),
        (lambda: LDS(2, 2), [1.0, math.inf], ValueError, "x: expected finite numbers"),
        (lambda: LDS(2, 2), "ab", TypeError, "x: expected 2 numbers"),
        (lambda: HMM(1, num_features=1), "3", TypeError, "x: expected 1 numbers"),
        (lambda: HMM(1, num_features=1), b"3", TypeError, "x: expected 1 numbers"),
        (lambda: HMM(1, num_features=1), True, TypeError, "x: expected 1 numbers"),
    ],
)
def test_odd_observations_are_not_read(make, x, error, message):
    online = fitted(make()).online()
    with pytest.raises(error, match=message):
        online.step(x)
    assert online.num_steps == 0
    with pytest.raises((TypeError, ValueError), match="inputs"):
        online.step(None, inputs=[1.0])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda told: "{", "cannot read it"), (lambda told: json.dumps(told | {"model": "lds"}), "of a model 'hmm'"),
        (lambda told: json.dumps(told | {"belief": [-0.5, -0.6]}), "sum to one"),
        (lambda told: json.dumps(told | {"belief": [0.0]}), "belief must be finite"),
        (lambda told: json.dumps(told | {"num_steps": -1}), "its counts are none"),
        (lambda told: json.dumps({k: v for k, v in told.items() if k != "belief"}), "does not fit this model"),
        (lambda told: "[1]", "expected 'pplseq online 1'"),
    ],
)
def test_files_of_strangers(change, message, tmp_path):
    model = fitted(HMM(2, num_words=3))
    online = model.online()
    online.step(1)
    path = online.save(tmp_path / "place.json")
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(ValueError, match=message):
        model.online(path)
