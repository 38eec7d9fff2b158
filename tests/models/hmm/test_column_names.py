"""Names of a frame's columns: kept with the model, looked for at the next call, and told in summaries and forecasts."""

import numpy as np
import pytest

import pplseq
from pplseq import ARHMM, HMM, IOHMM, LDS, SwitchingRegression

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def frame():
    generator, state = np.random.default_rng(0), np.arange(60) // 15 % 2
    return pd.DataFrame({name: generator.normal(size=60) + sign * state for name, sign in (("temp", 3), ("wind", -3))})


@pytest.fixture(scope="module", params=["hmm", "lds"])
def model(request, frame):
    if request.param == "lds":
        return LDS(1, num_features=2).fit(frame, max_iterations=2)
    return HMM(2, num_features=2).fit(frame, max_iterations=3)


def test_columns_are_found_by_name(model, frame, tmp_path):
    assert model.column_names == ("temp", "wind")
    turned = frame[["wind", "temp"]].assign(more=1.0)
    for other in (turned, turned.to_numpy()[:, [1, 0]], [turned]):
        assert model.score(other) == model.score(frame)
    np.testing.assert_array_equal(model.forecast(turned, 2).means, model.forecast([frame], 2).means)
    with pytest.raises(ValueError, match="x: no column 'wind', and the model was fitted to temp, wind; there are temp, speed"):
        model.score(frame.rename(columns={"wind": "speed"}))
    with pytest.raises(ValueError, match=r"x\[1\]: no column 'temp'"):
        model.smooth([frame, frame[["wind"]]])
    again = pplseq.load(model.save(tmp_path / "model"))
    assert again.column_names == model.column_names and again.score(turned) == model.score(frame)


def test_columns_of_another_library_are_found_by_name(model, frame):
    polars = pytest.importorskip("polars")
    turned = polars.DataFrame(frame[["wind", "temp"]].to_dict("list"))
    assert model.score(turned) == model.score([turned]) == model.score(frame)


def test_a_fit_learns_them_anew_and_an_error_keeps_them(frame):
    model = HMM(2, num_features=2).fit(frame, max_iterations=1)
    with pytest.raises(TypeError, match="column 'b' must hold numbers"):
        model.fit(pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}))
    assert model.column_names == ("temp", "wind")
    turned = frame[["wind", "temp"]]
    assert model.fit(turned, warm_start=True, max_iterations=1).column_names == ("temp", "wind")
    assert model.fit(turned, max_iterations=1).column_names == ("wind", "temp")
    assert model.fit(pd.DataFrame(frame.to_numpy()), max_iterations=1).column_names is None
    assert model.fit(frame, max_iterations=1).set_params(num_states=2).column_names == ("temp", "wind")


@pytest.mark.parametrize("covariance", ["diag", "spherical", "full", "tied"])
def test_summaries_and_forecasts_name_them(frame, covariance):
    model = HMM(2, num_features=2, covariance=covariance).fit(frame, method="lbfgs", num_steps=8)
    names = model.summary(frame).names
    assert {"transition[0][1]", "loc[1][temp]", "loc[0][wind]"} <= set(names)
    expected = {"diag": "precision[0][wind]", "spherical": "precision[0][0]", "full": "precision[1][temp][wind]"}
    assert expected.get(covariance, "precision[wind][temp]") in names
    found = model.forecast(frame, 3)
    table, (low, high) = found.frame(level=0.5), found.intervals(0.5)
    assert list(table) == ["temp", "temp low", "temp high", "wind", "wind low", "wind high"] and len(table) == 3
    np.testing.assert_array_equal(table.filter(like="wind"), np.stack([found.means, low, high], -1)[0, :, 1])
    assert model.predict_next(frame).column_names == ("temp", "wind")
    with pytest.raises(ValueError, match="one step no rows"):
        model.predict_next(frame).frame()


@pytest.mark.parametrize("kind", ["lds", "arhmm", "switching", "iohmm"])
def test_inputs_are_found_by_name(kind, tmp_path):
    """Two inputs of which the first alone matters: turned round, one renamed, one more, of steps to come, after loading."""
    generator = np.random.default_rng(0)
    given = pd.DataFrame(generator.normal(size=(40, 2)), columns=["slope", "wind"])
    y = (3 * given["slope"] + 0.1 * generator.normal(size=40)).to_numpy()
    model = {
        "lds": lambda: LDS(1, 1, num_inputs=2), "arhmm": lambda: pplseq.ARHMM(1, 1, num_inputs=2),
        "switching": lambda: pplseq.SwitchingRegression(1, num_inputs=2),
        "iohmm": lambda: pplseq.IOHMM(2, num_inputs=2, outputs="gaussian", num_outputs=1, mealy=True),
    }[kind]()  # fmt: skip
    model.fit(y, inputs=given, **({"max_iterations": 3} if kind != "switching" else {}))
    assert model.input_column_names == ("slope", "wind")
    turned = given[["wind", "slope"]].assign(more=1.0)
    assert model.score(y, inputs=turned) == model.score(y, inputs=given)
    with pytest.raises(ValueError, match="inputs: no column 'wind', and the model was fitted to slope, wind"):
        model.score(y, inputs=given.rename(columns={"wind": "w"}))
    ahead = [model.forecast(y, 3, inputs=given, future_inputs=future[:3]).means for future in (given, turned)]
    np.testing.assert_allclose(*ahead)
    with pytest.raises(ValueError, match="future_inputs: no column 'slope'"):
        model.forecast(y, 3, inputs=given, future_inputs=given[["wind"]][:3])
    again = pplseq.load(model.save(tmp_path / "model"))
    assert again.input_column_names == model.input_column_names
    assert again.score(y, inputs=turned) == pytest.approx(model.score(y, inputs=given))


@pytest.mark.filterwarnings("ignore:no standard errors")
def test_outputs_that_see_inputs_are_found_by_name(tmp_path):
    """Two outputs of an input-output HMM, turned round; its summary tells both frames' names."""
    generator = np.random.default_rng(1)
    given = pd.DataFrame({"slope": generator.normal(size=50)})
    seen = pd.DataFrame(generator.normal(size=(50, 2)) + 2 * given.to_numpy(), columns=["power", "heat"])
    model = pplseq.IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=2, mealy=True)
    model.fit(seen, inputs=given, max_iterations=3)
    assert model.column_names == ("power", "heat") and model.input_column_names == ("slope",)
    turned = seen[["heat", "power"]].assign(more=1.0)
    assert model.score(turned, inputs=given) == model.score(seen, inputs=given)
    with pytest.raises(ValueError, match="x: no column 'heat', and the model was fitted to power, heat"):
        model.score(seen.rename(columns={"heat": "h"}), inputs=given)
    names = model.summary(seen, inputs=given).names
    assert any("power" in name for name in names) and any("slope" in name for name in names)
    again = pplseq.load(model.save(tmp_path / "model"))
    assert again.score(turned, inputs=given) == pytest.approx(model.score(seen, inputs=given))
    words = pplseq.IOHMM(2, num_inputs=1, num_outputs=2, mealy=True)  # of words there are no columns
    words.fit(pd.DataFrame({"word": [0, 1] * 10}), inputs=given[:20], max_iterations=2)
    assert words.column_names is None


@pytest.mark.parametrize("columns", [
    [("wind", "mean"), ("wind", "gusts")], [3, 5], pd.to_datetime(["2024-01-01", "2024-01-02"]).to_list(), [1, 0],
])  # fmt: skip
def test_names_that_are_no_texts(columns):
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=(40, 2)) + [0, 9]
    frame = pd.DataFrame(numbers)
    frame.columns = pd.MultiIndex.from_tuples(columns) if isinstance(columns[0], tuple) else columns
    model = HMM(2, num_features=2).fit(frame, seed=0)
    expected = model.score(numbers)
    assert model.score(frame) == model.score(frame[columns[::-1]]) == expected
    made = numbers[:, ::-1] if columns == [1, 0] else numbers  # a frame of an array is as it is, but has columns 0 and 1
    assert model.score(pd.DataFrame(made)) == expected
    assert model.column_names == tuple(str(c) if not isinstance(c, tuple) else " ".join(c) for c in columns)
    with pytest.raises(ValueError, match="x: no column "):
        model.score(frame.set_axis(["other", columns[1]], axis=1))


def test_columns_of_a_frame_made_of_an_array_keep_their_places():
    numbers = np.random.default_rng(0).normal(size=(40, 2)) + [0, 9]
    frame = pd.DataFrame(numbers)
    model = HMM(2, num_features=2).fit(frame, seed=0)
    assert model.column_names is None
    assert model.score(frame[[1, 0]]) == model.score(frame) == model.score(numbers)
    with pytest.raises(ValueError, match="columns must have names of their own, got 1 and '1'"):
        HMM(2, num_features=2).fit(frame.set_axis([1, "1"], axis=1))


@pytest.mark.parametrize("make", [
    lambda: LDS(1, 1, num_inputs=1), lambda: ARHMM(1, 1, num_inputs=1), lambda: SwitchingRegression(2, num_inputs=1),
    lambda: IOHMM(1, num_inputs=1, outputs="gaussian", num_outputs=1, mealy=True),
])  # fmt: skip
def test_inputs_in_another_order_than_the_rows_beside_them(make):
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(30, 2)), columns=["y", "u"], index=pd.date_range("2024", periods=30))
    model, turned = make().fit(frame[["y"]], inputs=frame[["u"]], seed=0), frame[["u"]].sort_index(ascending=False)
    expected = model.score(frame["y"], inputs=frame["u"])
    assert model.score(frame["y"], inputs=turned.loc[frame.index]) == expected
    assert model.score(frame["y"], inputs=frame["u"].reset_index(drop=True)) == expected  # an index of its own: by place
    assert np.isfinite(model.score(frame["y"][1:], inputs=frame["u"][:-1].to_numpy()))  # the inputs of the day before
    for x, inputs in ((frame["y"], turned), ([frame["y"]], [turned])):
        for ask in (model.score, model.smooth, model.fit):
            with pytest.raises(ValueError, match=r"inputs(\[0\])?: rows stand in another order .*: row 0 is 2024-01-30"):
                ask(x, inputs=inputs)
    with pytest.raises(ValueError, match="another order"):
        model.forecast(frame["y"], 2, inputs=turned, future_inputs=np.zeros((2, 1)))
