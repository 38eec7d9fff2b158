"""Formulas over a frame: against the columns by hand; levels of the first frame hold; names in the summary."""

import json

import numpy as np
import pytest
import torch
from sklearn.base import clone

from pplseq.models import IOHMM
from pplseq.models.iohmm.formulas import Formulas

pandas = pytest.importorskip("pandas")


def frame(rows=12):
    random = np.random.default_rng(0)
    speed = random.normal(20, 3, rows)
    return pandas.DataFrame({
        "trip": np.arange(rows) // 6, "speed": speed, "load": random.normal(size=rows),
        "rain": (["no", "some", "no"] * rows)[:rows],
        "power": 1 + speed / 2 + random.normal(size=rows), "road": (["r", "s"] * rows)[:rows],
    })  # fmt: skip


def test_outputs_need_no_library():
    table = frame()
    table.loc[2, "power"] = np.nan
    data = Formulas("power + road ~ 1", sequence_id="trip").read(table)
    assert [rows.shape for rows in data.x] == [(6, 2), (6, 2)] and data.inputs == {} and data.ids == [0, 1]
    assert np.isnan(data.x[0][2, 0]) and data.x[1][:, 1].tolist() == [0, 1, 0, 1, 0, 1]
    for change, message in ((dict(road="q"), "'q', which the first frame lacked"),):
        formulas = Formulas("power + road ~ 1")
        formulas.read(table)
        with pytest.raises(ValueError, match=message):
            formulas.read(table.assign(**change))
    with pytest.raises(ValueError, match="no column 'powr'.*power"):
        Formulas("powr ~ 1").read(table)
    with pytest.raises(ValueError, match="must be a formula"):
        Formulas("power")
    with pytest.raises(ValueError, match="one class only"):
        Formulas("road ~ 1").read(table.assign(road="r"))
    with pytest.raises(ValueError, match="neither numbers nor words"):
        Formulas("day ~ 1").read(table.assign(day=pandas.Timestamp(0)))


@pytest.mark.parametrize("ids", [[1.0, np.nan], [None, "a"]], ids=["numbers", "words"])
def test_rows_of_no_sequence_are_refused(ids):
    table = frame().assign(trip=(6 * ids))
    with pytest.raises(ValueError, match="row [01] has no 'trip'"):
        Formulas("power ~ 1", sequence_id="trip").read(table)


def test_sequences_may_be_interleaved():
    table = frame().assign(trip=["b", "a", "b"] * 4)
    data = Formulas("power ~ 1", sequence_id="trip").read(table)
    assert data.ids == ["b", "a"]
    np.testing.assert_array_equal(data.x[1][:, 0], table.power[table.trip == "a"])


def test_a_frame_that_is_refused_says_nothing():
    pytest.importorskip("formulaic")
    table = frame()
    formulas = Formulas("power + road ~ center(speed)", transition="~ center(load)")
    with pytest.raises(ValueError, match="speed"):
        formulas.read(table.assign(load=table.load + 9, road=["q", "p"] * 6, speed=np.nan))
    data = formulas.read(table)
    np.testing.assert_allclose(data.inputs["transition"][0][:, 0], table.load - table.load.mean())
    assert formulas.levels == {"power": [], "road": ["r", "s"]}


def test_names_must_be_as_many_as_inputs():
    with pytest.raises(ValueError, match="input_names: 'transition' takes 2 names"):
        IOHMM(2, num_inputs=2, num_outputs=2, input_names={"transition": ["a"]})
    with pytest.raises(ValueError, match="output_names: 'outputs' takes 1 names"):
        IOHMM(2, num_inputs=2, outputs=["poisson"], output_names=["a", "b"])


def test_terms_are_the_columns_and_names_come_into_the_summary(tmp_path):
    pytest.importorskip("formulaic")
    table = frame()
    formulas = Formulas("power + road ~ speed + rain", transition="~ center(load)", sequence_id="trip")
    data = formulas.read(table)
    expected = np.stack([table.speed, table.rain == "some"], -1).astype(float)
    np.testing.assert_allclose(np.concatenate(data.inputs["emission"]), expected)
    np.testing.assert_allclose(np.concatenate(data.inputs["transition"])[:, 0], table.load - table.load.mean())
    later = formulas.read(table.iloc[6:])  # about the mean of the first frame
    np.testing.assert_allclose(later.inputs["transition"][0], data.inputs["transition"][1])
    torch.manual_seed(0)
    model = IOHMM(1, outputs=["normal", "categorical"], **formulas.options).fit(data.x, inputs=data.inputs, max_iterations=3)
    assert {"emission[0].power.speed", "emission[0].power.rain[T.some]", "emission[0].road=1.1"} <= set(model.estimates())
    again = IOHMM.load(model.save(tmp_path / "model"))
    assert list(again.estimates()) == list(model.estimates()) and "scale.power" in again.estimates()
    for change, message in (
        (dict(rain="snow"), "emission"), (dict(speed=np.nan), "emission, row 0: speed is missing"),
        (dict(load=np.inf), "transition"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            formulas.read(table.assign(**change))
    with pytest.raises(ValueError, match="constant of their own"):
        Formulas("power ~ 0 + speed").read(table)
    for terms in ("speed | load", "speed ~ load"):
        with pytest.raises(ValueError, match="without another '~' or '\\|'"):
            Formulas(f"power ~ {terms}").read(table)
    with pytest.raises(ValueError, match="emission 'spede'"):
        Formulas("power ~ spede").read(table)


@pytest.mark.parametrize("terms", [
    "center(speed) + rain * load", "scale(speed) + C(road, contr.sum):load", "poly(speed, 2) + bs(load, df=4)",
    "C(rain, levels=['some', 'no']) + C(trip)",
])  # fmt: skip
def test_formulas_are_kept_as_json(terms):
    """What the terms were in the first frame, as written down and read again."""
    pytest.importorskip("formulaic")
    table = frame()
    first = Formulas(f"power ~ {terms}", transition="~ rain", sequence_id="trip")
    first.read(table)
    again = Formulas.of(json.loads(json.dumps(first.as_config())))
    later = table.iloc[[1, 7, 8]].assign(rain=["no", "some", "no"])
    for part, rows in first.read(later).inputs.items():
        for row, other in zip(rows, again.read(later).inputs[part], strict=True):
            np.testing.assert_array_equal(row, other)
    assert again.as_config() == first.as_config() and again.input_names == first.input_names
    with pytest.raises(ValueError, match="transition"):
        again.read(later.assign(rain="snow"))


def model_and_frame():
    pytest.importorskip("formulaic")
    table = frame(24)
    formulas = Formulas("power + road ~ center(speed) + rain", transition="~ load", sequence_id="trip")
    data = formulas.read(table)
    torch.manual_seed(1)
    return IOHMM(2, outputs=["normal", "categorical"], **formulas.options), table, data


def test_frames_in_the_place_of_outputs_and_inputs(tmp_path):
    """Fit, answers, forecasts: as of the arrays that the formulas read; also of the model that was saved, and of its clone."""
    model, table, data = model_and_frame()
    built = clone(model)
    model.fit(table, max_iterations=3, seed=0)
    expected = clone(model).fit(data.x, inputs=data.inputs, max_iterations=3, seed=0)
    again = IOHMM.load(model.save(tmp_path / "model"))
    assert again.config == model.config and built.config == model.config
    planned = table.iloc[[12, 0, 18, 6, 13, 1, 19, 7]].drop(columns=["power", "road"])  # trips 2, 0, 3, 1, twice
    ahead = model.formulas.read(planned, outputs=False)
    assert ahead.ids == [2, 0, 3, 1] and ahead.x[0].shape == (2, 0)
    future = {part: [rows[n] for n in (1, 3, 0, 2)] for part, rows in ahead.inputs.items()}
    for one in (model, again):
        assert one.score(table) == pytest.approx(expected.score(data.x, inputs=data.inputs), abs=1e-9)
        asked = [
            (one.decode(table), expected.decode(data.x, inputs=data.inputs)),
            (one.one_step(table).outputs, expected.one_step(data.x, inputs=data.inputs).outputs),
            (one.open_loop(table.drop(columns=["power", "road"])).outputs, expected.open_loop(data.inputs).outputs),
            (one.forecast(table, future_inputs=planned).means, expected.forecast(
                data.x, inputs=data.inputs, future_inputs={p: np.stack(rows) for p, rows in future.items()}).means),
            (one.predict_next(table, next_inputs=planned.iloc[:4]).means, expected.predict_next(
                data.x, inputs=data.inputs, next_inputs={p: np.stack(rows)[:, 0] for p, rows in future.items()}).means),
        ]  # fmt: skip
        for got, wanted in asked:
            assert len(got) == len(wanted) == 4
            for row, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(row, other)
    polars = pytest.importorskip("polars")
    assert model.score(polars.DataFrame(table.to_dict("list"))) == pytest.approx(model.score(table))


def test_frames_that_do_not_fit_formulas():
    model, table, data = model_and_frame()
    model.is_fitted = True
    planned = table.iloc[[0, 6, 12, 18]]
    for call, error, message in [
        (lambda: model.formulas.read(table.to_dict("list")), TypeError, r"got columns in a dict; .* pandas.DataFrame\(frame\)"),
        (lambda: model.formulas.read(table.power.to_numpy()), TypeError, "they read a frame, of pandas or polars; got ndarray"),
        (lambda: model.formulas.read(pandas.concat([table, table.load], axis=1)), ValueError, "two columns 'load'; rename one"),
        (lambda: model.fit(table.drop(columns="load")), ValueError, "transition 'load'"),
        (lambda: model.fit(table, [12, 12]), ValueError, "lengths: column 'trip' says which rows are a sequence"),
        (lambda: model.forecast(table, future_inputs=planned.iloc[1:]), ValueError, "future_inputs: .* rows of sequence 0"),
        (lambda: model.forecast(table.iloc[6:], future_inputs=planned), ValueError, "x: the frame has no rows of sequence 0"),
        (lambda: model.forecast(table, future_inputs=pandas.concat([planned, planned[1:]])), ValueError, "0 has 1, 1 2"),
        (lambda: Formulas("power ~ day").read(table.assign(day=pandas.Timestamp(0))), ValueError, "emission"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            call()


def test_one_sequence_and_formulas_without_terms(tmp_path):
    table = frame()
    model = IOHMM(2, outputs=["normal"], **Formulas("power ~ 1").options).fit(table, max_iterations=2, seed=0)
    again = IOHMM.load(model.save(tmp_path / "model"))
    power = table.power.to_numpy()[:, None]
    assert again.score(table) == pytest.approx(model.score([power]))
    assert again.score(table, [6, 6]) == pytest.approx(model.score([power[:6], power[6:]]))
    assert again.decode(table).shape == (1, 12) and again.forecast(table, 3).means.shape == (1, 3, 1)


def test_outputs_stay_numbers_or_words():
    """What an output was in the first frame holds: text in the place of numbers is no factor, and objects may be numbers."""
    model, table, data = model_and_frame()
    model.is_fitted = True
    expected = model.score(data.x, inputs=data.inputs)
    again = clone(model)  # knows it, too
    again.load_state_dict(model.state_dict())
    again.is_fitted = True
    for one in (model, again):
        with pytest.raises(ValueError, match="output 'power' held numbers in the first frame, got '.*'; make numbers of it"):
            one.score(table.assign(power=table.power.astype(str)))
        assert one.score(table.assign(power=table.power.astype(object))) == pytest.approx(expected)
        gone = one.formulas.read(table.assign(power=None, road=None))
        assert all(np.isnan(row).all() for row in gone.x)
    first = Formulas("power ~ 1")
    first.read(table.assign(power=table.power.astype(object)))
    assert first.options["num_outputs"] == [1]
    with pytest.raises(ValueError, match="'power' is missing everywhere in the first frame"):
        Formulas("power ~ 1").read(table.assign(power=None))


def test_errors_of_formulas_name_what_came():
    pytest.importorskip("formulaic")
    table = frame().rename(columns={}).assign(extra=1.0)
    for build, message in (
        (lambda: Formulas(None), "outputs must be a formula in a string, such as 'power ~ speed.*'; got NoneType"),
        (lambda: Formulas("power ~ speed", transition=["load"]), "transition must be a formula in a string.*; got list"),
        (lambda: IOHMM(1, num_inputs=0, outputs="states", formulas="power ~ speed"), "formulas must be Formulas"),
        (lambda: IOHMM(1, num_inputs=0, outputs="states", formulas={"outputs": "y ~ x"}), "formulas must be Formulas"),
    ):
        with pytest.raises(TypeError, match=message):
            build()
    name = next(column for column in table.columns if table[column].dtype.kind == "f")
    with pytest.raises(ValueError, match="formulas: emission 'sped': the frame has no column 'sped'.*"):
        Formulas(f"{name} ~ sped").read(table)
    with pytest.raises(ValueError, match=r"^formulas: emission 'extra \+': [^\x1b\n⧛]*$"):  # in one line, without colours
        Formulas(f"{name} ~ extra +").read(table)
    formulas = Formulas(f"{name} ~ extra")
    formulas.read(table.assign(extra=range(len(table))))
    model = IOHMM(1, outputs=["normal"], **formulas.options)
    for x in (None, table[[name]].to_numpy()):
        with pytest.raises(TypeError, match=f"x: this model reads data frames by its formulas .{name}, extra., "):
            model.fit(x)


def test_formulas_need_families():
    formulas = Formulas("power + road ~ speed")
    formulas.read(frame())
    with pytest.raises(ValueError, match="outputs: expected a list of families, .* 'categorical', which"):
        IOHMM(2, **formulas.options)


def test_names_in_the_place_of_numbers():
    model = IOHMM(2, num_inputs=1, outputs="categorical", num_outputs=2)
    for x in (np.array(["a", "b", "a"]), ["a", "b", "a"], [["a", "b", "a"]], pandas.Series(["a", "b", "a"])):
        with pytest.raises(TypeError, match="x.*got the text 'a'"):
            model.fit(x, inputs=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="states: no state is called 'a'; the model's have numbers"):
        model._as_batch([0, 1, 0], inputs=[1.0, 2.0, 3.0], states=["a", "b", "a"])
    model.fit([0, 1, 0], inputs=[1.0, 2.0, 3.0], states=["a", "b", "a"], seed=0)
    assert model.state_names == ("a", "b")


@pytest.mark.parametrize("kinds", [{}, {"dtype_backend": "pyarrow"}])
def test_a_frame_of_types_of_pandas_is_that_of_numpy(kinds):
    """formulaic takes text of these types for numbers."""
    pytest.importorskip("formulaic")
    table, text = frame(), "power + road ~ speed + rain"
    own = table.convert_dtypes(**kinds)
    for first, other in ((table, own), (own, table)):
        formulas = Formulas(text, transition="~ load", sequence_id="trip")
        expected, found = formulas.read(first), formulas.read(other)
        for rows, others in zip(expected.x, found.x, strict=True):
            np.testing.assert_array_equal(rows, others)
        for part in expected.inputs:
            np.testing.assert_array_equal(np.concatenate(expected.inputs[part]), np.concatenate(found.inputs[part]))
    with pytest.raises(ValueError, match="formulas: emission: speed holds complex numbers"):
        Formulas(text).read(table.assign(speed=table.speed + 1j))
