"""Formulas over a frame: against the columns by hand; levels of the first frame hold; names in the summary."""

import numpy as np
import pytest
import torch

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
    assert formulas.levels == {"road": ["r", "s"]}


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
