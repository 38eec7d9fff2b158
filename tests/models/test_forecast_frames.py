"""Forecasts as tables: of every model of vectors, with the columns' names and the times of the steps to come."""

import copy
import pickle

import numpy as np
import pytest

import pplseq
from pplseq import ARHMM, HMM, IOHMM, LDS, StructuralModel, SwitchingRegression, sequences_by
from pplseq.models.forms import Sequences
from pplseq.models.row_labels import index_ahead

pd = pytest.importorskip("pandas")

MODELS = {
    "hmm": lambda: HMM(2, num_features=2), "lds": lambda: LDS(1, 2), "arhmm": lambda: ARHMM(1, 2, order=1),
    "iohmm": lambda: IOHMM(2, num_inputs=0, outputs="gaussian", num_outputs=2),
}  # fmt: skip
SINGLE = {
    "switching": lambda: SwitchingRegression(1, order=1), "structural": lambda: StructuralModel(trend="fixed"),
    "hmm": lambda: HMM(1, num_features=1),
}  # fmt: skip


@pytest.fixture(scope="module")
def frame():
    generator = np.random.default_rng(0)
    values = {name: generator.normal(size=40) for name in ("temp", "wind")}
    return pd.DataFrame(values, index=pd.date_range("2024-01-31", periods=40, freq="ME", name="month"))


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_of_vectors_tells_a_frame(kind, frame):
    model = MODELS[kind]().fit(frame, max_iterations=2)
    found = model.forecast(frame[["wind", "temp"]], 3)
    table, (low, high) = found.frame(level=0.5), found.intervals(0.5)
    assert list(table) == ["temp", "temp low", "temp high", "wind", "wind low", "wind high"]
    np.testing.assert_array_equal(table.filter(like="wind"), np.stack([found.means, low, high], -1)[0, :, 1])
    assert table.index.equals(pd.DatetimeIndex(["2027-05-31", "2027-06-30", "2027-07-31"])) and table.index.name == "month"
    rows = model.forecast([frame[:30], frame[:35]], 2)
    assert [str(rows.frame(row).index[0].date()) for row in (0, 1)] == ["2026-07-31", "2026-12-31"]
    bare = model.forecast(frame.to_numpy(), 3)
    assert bare.times is None and list(bare.frame().index) == [0, 1, 2] and list(bare.frame()) == list(table)
    one = model.predict_next(frame)
    assert one.column_names == ("temp", "wind")
    with pytest.raises(ValueError, match="one step no rows"):
        one.frame()


@pytest.mark.parametrize("kind", SINGLE)
def test_a_series_gives_its_name_and_index(kind, frame):
    model = SINGLE[kind]().fit(frame["wind"])
    found = model.forecast(frame["temp"][10:], 2)  # one column, whatever its name
    table, (low, high) = found.frame(), found.intervals()
    np.testing.assert_array_equal(table.to_numpy(), np.stack([part.reshape(2) for part in (found.means, low, high)], -1))
    assert list(table) == ["wind", "wind low", "wind high"] and str(table.index[0].date()) == "2027-05-31"
    assert model.score(frame) == model.score(frame[["wind"]]) == model.score(frame["wind"])
    with pytest.raises(ValueError, match="x: no column 'wind', and the model was fitted to wind; there are temp"):
        model.score(frame[["temp"]])
    with pytest.raises(ValueError, match="one step no rows"):
        model.predict_next(frame).frame()
    for row in (1, 0.9):
        with pytest.raises(ValueError, match=f"row: which of the 1 sequences, 0 to 0, got {row}; shares go to level="):
            model.forecast(frame, 2).frame(row)


def test_formulas_name_the_outputs():
    pytest.importorskip("formulaic")
    from pplseq.models.iohmm.formulas import Formulas

    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"trip": [1] * 20 + [2] * 20, "power": generator.normal(size=40), "speed": generator.normal(size=40)})
    formulas = Formulas("power ~ speed", sequence_id="trip")
    formulas.read(frame)
    model = IOHMM(1, outputs="gaussian", **(formulas.options | {"num_outputs": 1})).fit(frame, max_iterations=2)
    found = model.forecast(frame, future_inputs=frame[18:22])
    assert found.times is None  # one frame of two sequences
    assert list(found.frame(1)) == ["power", "power low", "power high"]


def steps(index, num_steps=2):
    found = index_ahead(pd.Series(np.zeros(len(index)), index=index), num_steps)
    return None if found is None else list(found[0])


def test_an_index_goes_on_where_it_says_how():
    assert steps(pd.RangeIndex(5, 15, 5)) == [15, 20]
    assert steps(pd.Index([1990, 1991, 1992])) == [1993, 1994]
    assert steps(pd.Index([3, 1])) == [-1, -3]
    assert steps(pd.period_range("2024Q3", periods=3, freq="Q")) == [pd.Period("2025Q2"), pd.Period("2025Q3")]
    assert steps(pd.PeriodIndex(["2024-01"], freq="M")) == [pd.Period("2024-02"), pd.Period("2024-03")]
    assert steps(pd.DatetimeIndex(["2024-01-01", "2024-02-01", "2024-03-01"])) == [
        pd.Timestamp("2024-04-01"), pd.Timestamp("2024-05-01"),
    ]  # fmt: skip
    paris = pd.date_range("2024-03-30", periods=3, freq="D", tz="Europe/Paris")  # on the second of which the clocks change
    assert steps(paris[:1]) == list(paris[1:])
    hours = pd.timedelta_range("0h", periods=6, freq="90min")
    assert steps(hours[:4]) == steps(pd.TimedeltaIndex(list(hours[:2])), 4)[2:] == list(hours[4:])
    assert steps(hours[:1]) == list(hours[1:3]) and steps(hours[::-1], 1) == [pd.Timedelta("-90min")]
    assert index_ahead(pd.Series(0.0, index=hours.rename("since")), 2)[0].name == "since"
    unsaid = [
        pd.Index([1, 2, 4]), pd.Index([1, 1]), pd.Index([7]), pd.Index(["a", "b"]), pd.Index([0.1, 0.2]),
        pd.DatetimeIndex(["2024-01-01", "2024-01-02", "2024-01-05"]), pd.DatetimeIndex(["2024-01-01", "2024-01-02"]),
        pd.PeriodIndex(["2024-01", "2024-03"], freq="M"), pd.RangeIndex(0), hours[[0, 1, 3]], hours[[1, 1]], hours[:0],
        pd.TimedeltaIndex(["0h"]), pd.TimedeltaIndex(["0h", None, "2h"]), pd.TimedeltaIndex(["0h", "1h", None]),
    ]  # fmt: skip
    assert [steps(index) for index in unsaid] == [None] * len(unsaid)
    assert index_ahead([pd.Series([1.0]), np.zeros(3)], 1) is None and index_ahead([], 1) is None
    polars = pytest.importorskip("polars")
    assert index_ahead(polars.DataFrame({"a": [1.0]}), 2) is None


def test_groups_of_a_frame_keep_its_names(frame, tmp_path):
    table = frame.assign(trip=["b"] * 15 + ["a"] * 25)
    groups = sequences_by(table, "trip", ["temp", "wind"])
    assert groups.ids == ["b", "a"] and [len(rows) for rows in groups] == [15, 25]
    model = HMM(2, num_features=2).fit(groups, max_iterations=2)
    assert model.column_names == ("temp", "wind")
    turned = sequences_by(table.assign(more=1.0), "trip", ["wind", "more", "temp"])
    assert model.score(turned) == model.score(groups) == model.score([np.asarray(rows) for rows in groups])
    assert model.score(turned[1:]) == model.score(frame[15:]) and turned[1:].ids == ["a"]
    assert type(turned[0]) is np.ndarray and len(model.decode(turned)) == 2
    assert list(model.forecast(turned, 1).frame(1))[3] == "wind"
    with pytest.raises(ValueError, match="x: no column 'wind', and the model was fitted to temp, wind; there are temp"):
        model.score(sequences_by(table, "trip", ["temp"]))
    assert sequences_by(table.rename(columns={"temp": 3}), "trip").column_names == ("3", "wind")
    again = pplseq.load(model.save(tmp_path / "model"))
    assert again.score(turned) == model.score(groups)


def test_groups_of_one_column_and_of_inputs(frame):
    table = frame.assign(trip=[1] * 20 + [2] * 20)
    one, both = sequences_by(table, "trip", "wind"), sequences_by(table, "trip", ["temp", "wind"])
    model = HMM(1, num_features=1).fit(one, max_iterations=2)
    assert model.column_names == ("wind",) and model.score(both) == model.score(one) == model.score([*one])
    driven = LDS(1, 1, num_inputs=2).fit(one, inputs=both, method="lbfgs", num_steps=2)
    assert driven.input_column_names == ("temp", "wind")
    turned = sequences_by(table, "trip", ["wind", "temp"])
    assert driven.score(one, inputs=turned) == driven.score(one, inputs=[*both])
    words = sequences_by(pd.DataFrame({"line": [1, 1, 2], "word": ["a", "b", "a"]}), "line", "word")
    assert words.column_names is None and words == [["a", "b"], ["a"]]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda rows: pickle.loads(pickle.dumps(rows))])
def test_copies_of_groups_keep_their_names(copied):
    again = copied(Sequences([np.zeros(2)], ["a"], ("x",)))
    assert (type(again), again.ids, again.column_names, len(again)) == (Sequences, ["a"], ("x",), 1)


def test_a_frame_of_all_sequences(frame):
    table = frame.assign(trip=["b"] * 15 + ["a"] * 25)
    model = HMM(1, num_features=2).fit(frame)
    found = model.forecast(sequences_by(table, "trip", ["temp", "wind"]), 2)
    told = found.frame(level=0.5)
    assert list(told) == ["trip", *found.frame(0)] and list(told["trip"]) == ["b", "b", "a", "a"]
    for row in (0, 1):
        pd.testing.assert_frame_equal(told[2 * row : 2 * row + 2].drop(columns="trip"), found.frame(row, level=0.5))
    dated = model.forecast([frame, frame[:20]], 2).frame()
    assert list(dated["sequence"]) == [0, 0, 1, 1] and list(dated.index) == [
        *pd.date_range("2027-05-31", periods=2, freq="ME"), *pd.date_range("2025-09-30", periods=2, freq="ME"),
    ]  # fmt: skip
    assert "sequence" not in model.forecast([frame], 2).frame()
    own = HMM(1, num_features=2).fit(named := frame.set_axis(["sequence", "wind"], axis=1))
    assert list(own.forecast([named, named], 1).frame())[:2] == ["sequence id", "sequence"]


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_tells_all_sequences(kind, frame):
    table = frame.assign(trip=[7] * 20 + [3] * 20)
    model = MODELS[kind]().fit(frame, max_iterations=2)
    told = model.forecast(sequences_by(table, "trip", ["temp", "wind"]), 3).frame()
    assert list(told["trip"]) == [7] * 3 + [3] * 3 and list(told)[1:4] == ["temp", "temp low", "temp high"]


def test_a_switching_regression_and_formulas_tell_all_sequences(frame):
    model = SwitchingRegression(1, order=1).fit(frame["wind"])
    assert list(model.forecast([frame["wind"], frame["wind"][:30]], 2).frame()["sequence"]) == [0, 0, 1, 1]
    pytest.importorskip("formulaic")
    from pplseq.models.iohmm.formulas import Formulas

    formulas = Formulas("power ~ 1", sequence_id="trip")
    table = pd.DataFrame({"trip": ["b", "a"] * 20, "power": np.random.default_rng(0).normal(size=40)})
    formulas.read(table)
    model = IOHMM(1, outputs="gaussian", **(formulas.options | {"num_outputs": 1})).fit(table, max_iterations=2)
    assert list(model.forecast(table, 2).frame()["trip"]) == ["b", "b", "a", "a"]


@pytest.mark.parametrize("outputs", ["bernoulli", "categorical", "poisson", "words of an HMM"])
def test_frames_of_bits_words_and_counts(outputs):
    """The mean, and the smallest interval of 0 and 1, or of counts, that holds at least .95."""
    rng, u = np.random.default_rng(0), np.linspace(-1, 1, 40)
    x = rng.poisson(3, 40) if outputs == "poisson" else rng.integers(0, 3, 40)
    x = (rng.random((40, 2)) < [0.01, 0.5]) * 1.0 if outputs == "bernoulli" else x
    if outputs == "words of an HMM":
        found = HMM(2, 3).fit(x, seed=0).forecast(x, 3)
    else:
        size = {"bernoulli": {"num_outputs": 2}, "categorical": {"num_outputs": 3}}.get(outputs, {})
        model = IOHMM(2, num_inputs=1, outputs=outputs, **size).fit(x, inputs=u, seed=0, max_iterations=5)
        found = model.forecast(x, inputs=u, future_inputs=np.zeros(3))
    frame = found.frame()
    means = found.word_log_probs.exp() if found.means is None else found.means
    assert len(frame) == 3
    for k in range(means.shape[-1]):
        assert frame[f"x{k}"].tolist() == pytest.approx(means[0, :, k].tolist())
        if outputs != "poisson":
            assert frame[f"x{k} low"].tolist() == [float(1 - p < 0.025) for p in means[0, :, k]]
            assert frame[f"x{k} high"].tolist() == [float(1 - p < 0.975) for p in means[0, :, k]]
