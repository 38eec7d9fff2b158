"""Steps at any times: a dense Gaussian whose covariances are those of the processes in continuous time."""

import math

import numpy as np
import pytest
import torch

from pplseq import LDS, StructuralModel

WIDTH, NOISE = 4.0, 0.3
TIMES = np.cumsum([0.0, 0.5, 2.25, 0.0, 0.125, 7.0, 1.0, 0.75])


def brownian(early, late):
    return early + 0 * late


def integrated(early, late):
    return early**2 * (3 * late - early) / 6


def kernels(time, other):
    """Covariances of the components of the models below at two times since the first, by the name of the option."""
    early, late, apart = np.minimum(time, other), np.maximum(time, other), np.abs(time - other)
    level = WIDTH + 0.2 * brownian(early, late)
    line = WIDTH * (1 + time * other) + 0.1 * integrated(early, late)
    waves = sum((WIDTH + 0.05 * early) * np.cos(2 * np.pi * k / 5.5 * apart) for k in (1, 2))
    damped = 0.4 / (1 - 0.81) * 0.9**apart
    return {
        "level": level, "trend": line + 0.2 * brownian(early, late), "velocity": line, "seasonal": level + waves,
        "cycle": level + damped * np.cos(0.7 * apart), "ar": level + damped,
    }  # fmt: skip


MODELS = {
    "level": (lambda **o: StructuralModel(**o), {"level": 0.2}),
    "trend": (lambda **o: StructuralModel(trend="stochastic", **o), {"level": 0.2, "slope": 0.1}),
    "velocity": (lambda **o: StructuralModel(trend="stochastic", level="fixed", **o), {"slope": 0.1}),
    "seasonal": (lambda **o: StructuralModel(seasonal=5.5, harmonics=2, **o), {"level": 0.2, "seasonal": 0.05}),
    "cycle": (lambda **o: StructuralModel(cycle=True, **o), {"level": 0.2, "cycle": 0.4, "frequency": 0.7, "damping": 0.9}),
    "ar": (lambda **o: StructuralModel(ar=1, **o), {"level": 0.2, "ar": 0.4, "ar_weights": [0.9]}),
}


def make(name):
    model, values = MODELS[name]
    return model().set_parameters(width=WIDTH, noise=NOISE, **values)


@pytest.mark.parametrize("name", MODELS)
def test_any_times_are_those_of_one_gaussian(name):
    model, x = make(name), np.random.default_rng(0).normal(size=(2, 8)).cumsum(1)
    x[0, 4] = np.nan
    ahead = TIMES[-1] + np.array([0.4, 3.0])
    every = np.concatenate([TIMES, ahead])
    covariance = kernels(every[:, None], every[None])[name] + NOISE * np.eye(10)
    wanted = 0.0
    for row in x:
        seen = np.isfinite(row).nonzero()[0]
        past = covariance[np.ix_(seen, seen)]
        wanted += float(
            torch.distributions.MultivariateNormal(torch.zeros(len(seen)).double(), torch.tensor(past)).log_prob(
                torch.tensor(row[seen])
            )
        )
        gain = np.linalg.solve(past, covariance[np.ix_(seen, [8, 9])]).T
        found = model.forecast(row, times=5 + TIMES, future_times=5 + ahead)
        np.testing.assert_allclose(found.means[0, :, 0], gain @ row[seen], rtol=1e-8)
        left = covariance[8:, 8:] - gain @ covariance[np.ix_(seen, [8, 9])]
        np.testing.assert_allclose(found.covariances[0, :, 0, 0], left.diagonal(), rtol=1e-8)
    ragged = [x[0], x[1, :5]], [TIMES, TIMES[:5]]
    assert model.score(x[..., None], times=np.stack([TIMES, TIMES])) == pytest.approx(wanted, abs=1e-8)
    assert model.score(ragged[0], times=ragged[1]) == pytest.approx(sum(map(lambda a, t: model.score(a, times=t), *ragged)))
    parts = model.components(x[1], times=TIMES)
    total = sum(part.means for key, part in parts.items() if key != "slope")
    torch.testing.assert_close(total, model.reconstruct(x[1], times=TIMES).means[..., 0])


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("trend", "velocity")])
def test_whole_times_are_steps(name):
    x = np.random.default_rng(1).normal(size=12).cumsum()
    model = make(name)
    assert model.score(x, times=np.arange(12)) == pytest.approx(model.score(x), abs=1e-8)
    gradients = []
    for known in ({}, {"gaps": model._as_batch(x, times=np.arange(12)).gaps}):
        value = model.log_joint(model._as_batch(x).x, **known)
        gradients.append(torch.autograd.grad(value, list(model.parameters())))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_times_of_an_index_and_fits():
    pd = pytest.importorskip("pandas")
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.cumsum([0, 1, 0.5, 2, 9, 0.25, 3, 1, 1, 4, 2]), "D")
    x = pd.Series(np.random.default_rng(2).normal(size=11).cumsum(), index=days)
    model = StructuralModel().fit(x, times="index", initialization="still")
    numbers = (days - days[0]) / pd.Timedelta("1D")
    value = model.score(x, times="index")
    assert value == model.score(x.to_numpy(), times=numbers) == model.score(x, times=days.tz_localize("UTC"))
    assert model.score([x, x[:5]], times="index") == pytest.approx(value + model.score(x[:5], times=days[:5]))
    together = pd.concat([x, x[:5]])
    assert model.score(together, [11, 5], times="index") == pytest.approx(model.score([x, x[:5]], times="index"))
    assert model.aic(x, times="index") == model.aic(x.to_numpy(), times=numbers.to_numpy())
    texts = [day.isoformat() for day in days.tz_localize("Asia/Kolkata")]
    assert value == model.score(x, times=texts) == model.score(x.set_axis(texts), times="index")
    ahead = days[-1] + pd.to_timedelta([1.5, 2], "D")
    assert model.forecast(x, times="index", future_times=ahead).frame().index.equals(ahead)
    for call, message in (
        (lambda: model.score(x, times=days[::-1]), "times: those of a sequence must rise"),
        (lambda: model.score(x, times=days[:5]), "times: expected one for each step of x"),
        (lambda: model.score(x, times=["1 Jan 2024"] * 11), "times: expected numbers, or dates like 2024-01-31 18:00"),
        (lambda: model.score(x.to_numpy(), times="index"), "times: x has no index"),
        (lambda: model.forecast(x, 2, times="index"), "future_times: must be given"),
        (lambda: model.forecast(x, times="index", future_times=days[:2]), "future_times: those of a sequence must rise"),
        (lambda: model.forecast(x.to_numpy(), 2, future_times=days[:2]), "future_times: they go on from times"),
        (lambda: StructuralModel(seasonal=4).fit(x, times="index"), "times: seasonal moves step by step"),
        (lambda: StructuralModel(ar=2).fit(x, times="index"), "times: ar moves step by step"),
        (lambda: LDS(1, 1).fit(x, times="index"), "times: LDS moves step by step; a StructuralModel moves over any time"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert math.isfinite(model.predict_next(x, times="index", future_times=ahead[:1]).means)


@pytest.mark.parametrize(
    "options",
    [{"trend": "stochastic"}, {"trend": "stochastic", "initial": "diffuse"}, {"cycle": True}, {"ar": 1}, {"season": 15.5}],
)  # fmt: skip
def test_a_fit_does_not_depend_on_the_unit_of_times(options):
    days = np.cumsum(np.random.default_rng(3).choice([0.5, 1.0, 1.0, 2.0], 14))
    x = np.random.default_rng(4).normal(size=14).cumsum() + 0.3 * days
    season, scores, means, estimates, slopes = options.get("season"), [], [], [], []
    for unit in (1.0, 86400.0):
        made = {"seasonal": season * unit, "harmonics": 1} if season else options
        model = StructuralModel(**made).fit(x, times=days * unit, num_steps=5, initialization="shaken")
        scores += [[model.score(x, times=days * unit), model.bic(x, times=days * unit)]]
        means += [model.forecast(x, times=days * unit, future_times=(days[-1] + np.arange(1, 4)) * unit).means]
        found = model.estimates()
        estimates += [{name: value.detach() for name, value in found.items()}]
        if "initial" not in options:  # what is told of the model is the model, but for a slope that starts wide
            again = StructuralModel(**made).set_parameters(width=float(model.width), **named(found))
            torch.testing.assert_close(again.estimates(), found, rtol=1e-7, atol=0.0)
            if "trend" not in options:
                assert again.score(x, times=days * unit) == pytest.approx(scores[-1][0], rel=1e-6)
        slopes += [model.components(x, times=days * unit).get("slope")]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-7)
    torch.testing.assert_close(means[1], means[0], rtol=1e-6, atol=1e-6)
    if slopes[0] is not None:
        torch.testing.assert_close(slopes[1].means * 86400, slopes[0].means, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(slopes[1].covariances * 86400**2, slopes[0].covariances, rtol=1e-6, atol=1e-9)
    per_second = estimates[1]["variance of level"] * 86400
    torch.testing.assert_close(per_second, estimates[0]["variance of level"], rtol=1e-5, atol=0.0)


def named(estimates):
    """Estimates as ``set_parameters`` takes them."""
    found = {name.removeprefix("variance of "): value.tolist() for name, value in estimates.items() if name != "ar"}
    return found | ({"ar_weights": estimates["ar"].tolist()} if "ar" in estimates else {})


def test_what_is_held_stays_when_times_come_in_another_unit():
    days, x = np.arange(0.0, 12, 1.0), np.random.default_rng(5).normal(size=12)
    model = StructuralModel(cycle=True).set_parameters(level=1e-6, cycle=2e-6, frequency=1e-5, damping=0.99999, noise=1.0)
    held = ["level", "cycle", "frequency", "damping"]
    model.fit(x, times=days * 86400, fixed=held, num_steps=3, initialization="still")
    found = model.estimates()
    for name, value in (("variance of level", 1e-6), ("variance of cycle", 2e-6), ("frequency", 1e-5), ("damping", 0.99999)):
        assert found[name].item() == pytest.approx(value, rel=1e-9)
    model.set_parameters(damping=0.9999)  # alone: other parameters say what they said
    assert model.estimates()["variance of cycle"].item() == pytest.approx(2e-6, rel=1e-9)
    fast = StructuralModel(cycle=True).set_parameters(frequency=1.0)
    with pytest.raises(ValueError, match="times: most steps are 86400 apart, and the frequency that is kept"):
        fast.fit(x, times=days * 86400, fixed="frequency")


def test_a_model_of_times_is_asked_with_times(tmp_path):
    times, x = np.cumsum([1.0, 2, 1, 1, 3, 0.5, 1, 1]), np.random.default_rng(6).normal(size=8).cumsum()
    model = StructuralModel().fit(x, times=times, num_steps=3, initialization="still")
    model.save(tmp_path / "model")
    loaded = StructuralModel.load(tmp_path / "model")
    assert loaded.score(x, times=times) == model.score(x, times=times)
    row = torch.as_tensor(x)[None, :, None]
    for own in (model, loaded):
        for ask in (
            own.score, own.smooth, own.filter, own.components, own.bic, own.summary, lambda x: own.forecast(x, 2),
            own.predict_next, lambda x: own.sample(3), own.sample_states, own.reconstruct, own.posterior, own.log_prob,
            own.log_joint, lambda x: own.fit(x, warm_start=True),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="times: this model was fitted with times"):
                ask(row if ask in (own.posterior, own.log_prob, own.log_joint) else x)
    assert model.sample(8, 2, times=times, seed=0).x.shape == (2, 8, 1)
    model.fit(x, num_steps=3, initialization="still")
    assert math.isfinite(model.score(x))


def test_periods_and_durations_in_any_form_are_one():
    pandas = pytest.importorskip("pandas")
    x = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(0).numpy()
    months = pandas.period_range("2020-01", periods=20, freq="M")
    starts = months.to_timestamp()
    model = StructuralModel().fit(x, times=months, num_steps=3, initialization="still")
    forms = [months, list(months), list(map(str, months)), starts, list(starts), pandas.Series(months), pandas.Series(starts)]
    scores = [model.score(x, times=times) for times in forms]
    assert scores == pytest.approx([scores[0]] * len(forms))
    days = pandas.to_timedelta(range(0, 600, 30), unit="D")
    scores = [model.score(x, times=times) for times in (days, list(days), days.to_pytimedelta().tolist(), pandas.Series(days))]
    assert scores == pytest.approx([scores[0]] * 4)
    assert model.score(x, times=pandas.Series(range(0, 600, 30))) == pytest.approx(scores[0])


def test_dates_to_come_in_a_list_are_the_index_of_a_forecast():
    pandas = pytest.importorskip("pandas")
    x = pandas.Series(range(20), index=pandas.date_range("2020-01-01", periods=20)).astype(float) % 7
    model = StructuralModel().fit(x, times="index", num_steps=3, initialization="still")
    for future in (["2020-03-05"], [pandas.Timestamp("2020-03-05")], pandas.DatetimeIndex(["2020-03-05"])):
        assert list(model.forecast(x, times="index", future_times=future).frame().index) == [pandas.Timestamp("2020-03-05")]


@pytest.mark.parametrize("form", [torch.tensor, np.array, list])
def test_padded_times_end_where_their_rows_do(form):
    """A forecast of rows of different lengths is that of each row alone, whatever holds the lengths."""
    draw, lengths = np.random.default_rng(0), [7, 4]
    x, times = draw.normal(size=(2, 7, 1)).cumsum(1), np.stack([np.arange(7.0) * 1.5, np.arange(7.0)])
    model = StructuralModel().fit(x, form(lengths), times=times, num_steps=3, initialization="still")
    found = model.forecast(x, lengths=form(lengths), times=times, future_times=[20.0, 21.0]).means
    for row, size in enumerate(lengths):
        alone = model.forecast(x[row, :size], times=times[row, :size], future_times=[20.0, 21.0]).means
        assert torch.allclose(found[row], alone.reshape(found[row].shape))


def test_a_sequence_as_a_list_has_times_as_a_list():
    x, times = [1.0, 3.0, 2.0, 5.0], [0, 1, 3, 4]
    model = StructuralModel().fit(np.array(x), times=np.array(times), num_steps=3, initialization="still")
    expected = model.score(np.array(x), times=np.array(times))
    assert model.score(x, times=times) == model.score([x], times=[times]) == model.score(x, times=(0, 1, 3, 4)) == expected
    for rows in ([x], [x, x]):
        with pytest.raises(ValueError, match="times: expected those of each of the"):
            model.score(rows, times=times)


@pytest.mark.parametrize("kind", ["uint8", "uint64", "int8"])
def test_integers_of_any_size_have_differences(kind):
    x, times = np.array([1.0, 3.0, 2.0, 5.0]), np.array([0, 100, 110, 120])
    model = StructuralModel().fit(x, times=times, num_steps=3, initialization="still")
    assert model.score(x, times=times.astype(kind)) == model.score(x, times=times)
    wide = np.array([-100, 50, 60, 70]) if kind == "int8" else times
    assert model.score(x, times=wide.astype(kind)) == model.score(x, times=wide)
    with pytest.raises(ValueError, match="rise"):
        model.score(x, times=times[[0, 2, 1, 3]].astype(kind))


def test_durations_go_on_from_durations():
    x, times = np.array([1.0, 3.0, 2.0, 5.0]), np.arange(4)
    model = StructuralModel().fit(x, times=times, num_steps=3, initialization="still")
    for past, future in ((times, np.array([60, 66], "m8[h]")), (times.astype("m8[D]"), [5.0])):
        with pytest.raises(TypeError, match="durations from durations"):
            model.forecast(x, times=past, future_times=future)


def test_a_negative_autoregression_has_no_times():
    """Over a time of a half it would be imaginary: it is no other weight than was asked for that is taken."""
    x, times = np.array([1.0, -1.5, 1.0, -0.5, 1.0, -1.0]), np.arange(6.0)
    made = lambda: StructuralModel(level="none", ar=1).set_parameters(ar_weights=[-0.5], ar=1.0, noise=0.1)  # noqa: E731
    model = made()
    assert model.score(x) != pytest.approx(made().set_parameters(ar_weights=[0.5]).score(x))
    for call in (
        lambda: model.score(x, times=times), lambda: model.forecast(x, times=times, future_times=[6.5]),
        lambda: model.sample(6, times=times), lambda: made().fit(x, times=times, fixed="ar_weights"),
        lambda: made().fit(x, times=2 * times, fixed="ar_weights"), lambda: made().fit(x, times=times, warm_start=True),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="times: a negative weight of ar has no continuous form"):
            call()
    fitted = model.fit(x, times=times, num_steps=3, initialization="still")
    with pytest.raises(ValueError, match="ar_weights: a negative weight"):
        fitted.set_parameters(ar_weights=[-0.5])
    with torch.no_grad():
        fitted.raw_ar.fill_(-0.4)  # as a search may leave it
    expected = fitted.estimates()["ar"].tolist()
    assert min(expected) > 0
    assert fitted.fit(x, fixed="ar_weights", num_steps=1, initialization="still").estimates()["ar"].tolist() == expected


@pytest.mark.parametrize(("name", "other"), [("cycle", "damping"), ("ar", "ar_weights")])
def test_a_variance_that_decays_is_held_with_what_it_decays_by(name, other):
    """Over a median step of 3 it is another share of what is learned: it moved while it was said to be held."""
    x, times = np.random.default_rng(0).normal(size=12).cumsum(), 3.0 * np.arange(12)
    values = {name: 0.05} | ({"damping": 0.9} if name == "cycle" else {"ar_weights": [0.9]})
    model = StructuralModel(level="none", **({"cycle": True} if name == "cycle" else {"ar": 1})).set_parameters(**values)
    for known, message in (
        ({"fixed": name}, f"fixed: a variance of '{name}' a unit of time changes with its {other}, which is learned"),
        ({"bounds": {name: (0.01, 0.1)}}, f"bounds: a variance of '{name}' .* give times in units of 3"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(x, times=times, **known)
    model.fit(x, times=times, fixed=[name, other], num_steps=3, initialization="still")
    assert model.estimates()[f"variance of {name}"].item() == pytest.approx(0.05)
    model.fit(x, times=times / 3, bounds={name: (0.01, 0.1)}, num_steps=10, initialization="still")
    assert model.estimates()[f"variance of {name}"].item() <= 0.1 + 1e-9
