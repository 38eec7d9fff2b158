"""Rows that frames and series label: what is given beside observations is of their steps, and what comes next goes on."""

import re

import numpy as np
import pytest
from support.grids import grid

from pplseq import ARHMM, HMM, IOHMM, LDS, PROPS, SwitchingRegression, sequences_by
from pplseq.models.row_labels import check_rows_ahead, check_rows_together, in_steps, labels_ahead

pd = pytest.importorskip("pandas")

DRIVEN = {
    "lds": lambda: LDS(1, 1, num_inputs=1), "arhmm": lambda: ARHMM(1, 1, num_inputs=1),
    "switching": lambda: SwitchingRegression(2, num_inputs=1),
    "iohmm": lambda: IOHMM(1, num_inputs=1, outputs="gaussian", num_outputs=1, mealy=True),
}  # fmt: skip
OTHER_STEPS = "inputs: rows are of other steps than those of x: row 0 is 2024-01-01 00:00:00 beside 2024-01-02 00:00:00; "
AHEAD = pd.date_range("2024-01-31", periods=3)  # behind the frame below


@pytest.fixture(scope="module")
def frame():
    numbers = np.random.default_rng(0).normal(size=(30, 2))
    return pd.DataFrame(numbers, columns=["y", "u"], index=pd.date_range("2024", periods=30))


@pytest.fixture(scope="module", params=DRIVEN)
def driven(request, frame):
    return DRIVEN[request.param]().fit(frame["y"], inputs=frame["u"], seed=0)


def test_inputs_of_other_steps(driven, frame):
    x, inputs = frame["y"].iloc[1:], frame["u"].iloc[:-1]
    by_place = driven.score(x, inputs=inputs.to_numpy())
    assert driven.score(x.reset_index(drop=True), inputs=inputs.reset_index(drop=True)) == by_place
    assert driven.score(x, inputs=inputs.reset_index(drop=True)) == driven.score(x.to_numpy(), inputs=inputs) == by_place
    assert driven.score(x, inputs=frame["u"].reindex(x.index)) != by_place
    for ask in (driven.score, driven.smooth, driven.decode, driven.bic, driven.fit):
        with pytest.raises(ValueError, match=re.escape(OTHER_STEPS)):
            ask(x, inputs=inputs)
    ahead = {} if isinstance(driven, IOHMM) else {"num_steps": 3}
    with pytest.raises(ValueError, match=re.escape(OTHER_STEPS)):
        driven.forecast(x, **ahead, inputs=inputs, future_inputs=np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"inputs\[1\]: rows are of other steps than those of x\[1\]"):
        driven.score([x, x], inputs=[frame["u"].iloc[1:], inputs])
    places = frame.reset_index(drop=True)
    with pytest.raises(ValueError, match="row 0 is 0 beside 1; .* write inputs.to_numpy"):
        driven.score(places["y"].iloc[1:], inputs=places["u"].iloc[:-1])


def test_inputs_of_other_sequences(driven, frame):
    table = frame.assign(trip=np.repeat([1, 2, 3], 10))
    x, inputs = sequences_by(table, "trip", ["y"]), sequences_by(table, "trip", ["u"])
    turned = sequences_by(table.iloc[::-1], "trip", ["u"])
    assert turned.ids == [3, 2, 1]
    expected = driven.score(x, inputs=inputs)
    assert driven.score([*x], inputs=inputs) == driven.score(x, inputs=[*inputs]) == expected
    assert driven.score(x, inputs=list(turned)) != expected
    for ask in (driven.score, driven.fit):
        with pytest.raises(ValueError, match="inputs: sequences stand in another order .* sequence 0 is trip 3 beside trip 1"):
            ask(x, inputs=turned)
    with pytest.raises(ValueError, match="inputs: sequences are others than those of x: sequence 0 is trip 2 beside trip 1"):
        driven.score(x[:2], inputs=inputs[1:])


@pytest.mark.filterwarnings("ignore:x. its times are in no even steps")
def test_future_inputs_go_on_where_the_data_end(driven, frame):
    def forecast(x, future, **known):
        return driven.forecast(x, inputs=frame["u"].reindex(x.index), future_inputs=future, **known)

    x, future = frame["y"], pd.DataFrame({"u": [0.0, 1.0, 2.0]}, index=AHEAD)
    found = forecast(x, future)
    assert found.frame().index.equals(AHEAD)
    np.testing.assert_array_equal(found.means, forecast(x, future.to_numpy()).means)
    assert forecast(x, future.reset_index(drop=True)).frame().index.equals(AHEAD)
    message = "future_inputs: row 0 is 2030-01-01 00:00:00, where x goes on with 2024-01-31 00:00:00; .*future_inputs.to_numpy"
    with pytest.raises(ValueError, match=message):
        forecast(x, future.set_axis(pd.date_range("2030", periods=3)))
    uneven = frame.set_axis(frame.index[0] + pd.to_timedelta(np.arange(30) ** 2, "h"))  # ends on the 5th of February
    x, later = uneven["y"], future.set_axis(pd.DatetimeIndex(["2024-02-06", "2024-02-08", "2024-02-13"]))
    with pytest.warns(UserWarning, match="x: its times are in no even steps"):
        assert driven.forecast(x, inputs=uneven["u"].to_numpy(), future_inputs=later).frame().index.equals(later.index)
    with pytest.raises(ValueError, match="future_inputs: row 0 is 2024-02-05 00:00:00, and x ends with 2024-02-05 01:00:00"):
        driven.forecast(x, inputs=uneven["u"].to_numpy(), future_inputs=future.set_axis(pd.date_range("2024-02-05", periods=3)))
    lacking = future.set_axis(AHEAD + pd.to_timedelta([0, 1, 1], "D"))
    with pytest.raises(ValueError, match="future_inputs: row 1 is"):
        forecast(frame["y"], lacking)
    with pytest.raises(ValueError, match="future_inputs: its rows are in no order of time"):
        driven.forecast(frame["y"].to_numpy(), inputs=frame["u"].to_numpy(), future_inputs=future.set_axis(AHEAD[[1, 0, 2]]))


def test_future_inputs_of_several_sequences(frame):
    model = LDS(1, 1, num_inputs=1).fit(frame["y"], inputs=frame["u"], max_iterations=2)
    x, inputs = [frame["y"], frame["y"][:20]], [frame["u"], frame["u"][:20]]
    future = [pd.Series(0.0, index=AHEAD), pd.Series(1.0, index=pd.date_range("2024-01-21", periods=3))]
    assert len(model.forecast(x, inputs=inputs, future_inputs=[part.to_frame() for part in future]).frame()) == 6
    assert len(model.forecast(x, inputs=inputs, future_inputs=future[1]).frame()) == 6  # of all: it is behind one of them
    with pytest.raises(ValueError, match=r"future_inputs\[0\]: row 0 is 2024-01-21"):
        model.forecast(x, inputs=inputs, future_inputs=[part.to_frame() for part in future[::-1]])
    together = pd.concat(x)
    with pytest.raises(ValueError, match="future_inputs: row 0 is 2024-02-01"):
        model.forecast(together, None, [30, 20], inputs=pd.concat(inputs), future_inputs=future[0].shift(freq="D"))
    assert model.forecast(together, None, [30, 20], inputs=pd.concat(inputs), future_inputs=future[0]).means.shape == (2, 3, 1)


def test_offsets_of_other_steps(frame):
    model = LDS(1, 1).fit(frame[["y"]], max_iterations=2)
    offsets, x = frame[["u"]], frame[["y"]]
    expected = model.score(x, emission_offsets=offsets.to_numpy())
    assert model.score(x, emission_offsets=offsets) == expected
    ahead = pd.DataFrame({"u": [0.0]}, index=AHEAD[:1])
    assert model.forecast(x, 1, emission_offsets=offsets, future_emission_offsets=ahead).means.shape == (1, 1, 1)
    for ask in (model.score, lambda *data, **known: model.forecast(*data, 1, **known, future_emission_offsets=ahead)):
        with pytest.raises(ValueError, match="emission_offsets: rows are of other steps"):
            ask(x.iloc[1:], emission_offsets=offsets.iloc[:-1])
    with pytest.raises(ValueError, match="future_emission_offsets: row 0 is 2024-01-31 .* goes on with 2024-01-30"):
        model.forecast(x[:-1], 1, emission_offsets=offsets[:-1], future_emission_offsets=ahead)


def test_states_in_a_series(frame):
    states = pd.Series([0, 1] * 15, index=frame.index)
    model = HMM(2, num_features=1).fit(frame["y"], states=states)
    assert model.score(frame["y"], states=states) == model.score([frame["y"]], states=[states.to_numpy()])
    known = states.astype("Int64").where(states == 0)  # missing where unknown
    assert model.score(frame["y"], states=known) == model.score(frame["y"], states=known.fillna(-1).tolist())
    for ask in (model.score, model.fit):
        with pytest.raises(ValueError, match="states: rows are of other steps than those of x: row 0 is 2024-01-01"):
            ask(frame["y"].iloc[1:], states=states.iloc[:-1])


@pytest.mark.parametrize("kind", ["hmm", *DRIVEN])
def test_rows_that_go_back_in_time(kind, frame):
    newest_first = frame.sort_index(ascending=False)
    model = HMM(1, num_features=1) if kind == "hmm" else DRIVEN[kind]()
    known = (lambda table: {}) if kind == "hmm" else lambda table: {"inputs": table["u"]}
    model.fit(frame["y"], **known(frame), seed=0)
    for ask in (model.fit, model.score, model.decode):
        with pytest.raises(ValueError, match=r"go back in time, from 2024-01-30 00:00:00 to 2024-01-01 .*\.sort_index\(\)"):
            ask(newest_first["y"], **known(newest_first))
    if kind == "hmm":
        with pytest.raises(ValueError, match=r"x\[1\]: its rows go back in time"):
            model.forecast([frame["y"], newest_first["y"]], 2)
    turned = frame.reset_index(drop=True).iloc[::-1]  # a table that stood newest first, turned round: now its rows are in time
    assert np.isfinite(model.score(turned["y"], **known(turned)))


def of(index):
    return pd.Series(np.arange(len(index)), index=index, dtype=float)


def test_which_indexes_are_refused():
    days = pd.date_range("2024-01-01", periods=4)
    back, mixed, twice = days[::-1], days[[0, 2, 1, 3]], days[[0, 1, 1, 3]]
    for index, message in (
        (back, "go back in time, from 2024-01-04"), (mixed, "in no order of time: row 2, 2024-01-02.* behind 2024-01-03"),
        (twice, "2024-01-02.* is there more than once, in rows 1 and 2; write x.groupby"),
    ):  # fmt: skip
        for kind in (index, index.to_period("D"), pd.Index(index.date), index.tz_localize("Europe/Paris")):
            with pytest.raises(ValueError, match=f"x: .*{message}"):
                in_steps(of(kind))
        with pytest.raises(ValueError, match=r"x\[1\]: "):
            in_steps([of(days), of(index)])
    with pytest.raises(ValueError, match="x: row 1 has no time"):
        in_steps(of(days.where(days != days[1])))
    in_steps(of(back), [1, 1, 1, 1])  # sequences of one step
    in_steps(of(days[[2, 3, 0, 1]]), [2, 2])
    with pytest.raises(ValueError, match="from 2024-01-03"):
        in_steps(of(back), [1, 2])
    for index in (pd.Index(["c", "b"]), days[:1], pd.RangeIndex(3, 0, -1), pd.MultiIndex.from_tuples([("b", 1)])):
        assert in_steps(x := of(index))[0] is x


def as_texts(dates):
    return pd.Index(dates.strftime("%Y-%m-%d"), dtype=object)


TOLD = {  # indexes that are no DatetimeIndex and say the same, of days from the first of 2024
    "texts": as_texts,
    "texts and hours": lambda dates: pd.Index([f"{date} 18:00+02:00" for date in as_texts(dates)]),
    "pandas texts": lambda dates: as_texts(dates).astype("string"),
    "categories": lambda dates: pd.CategoricalIndex(as_texts(dates)),
    "numbers": lambda dates: pd.Index(3 + (dates - pd.Timestamp("2024-01-01")).days),
    "objects": lambda dates: pd.Index(3 + (dates - pd.Timestamp("2024-01-01")).days, dtype=object),
    "numbers in texts": lambda dates: pd.Index([str(8 + date.day_of_year) for date in dates]),
    "real numbers": lambda dates: pd.Index(0.1 * (dates - pd.Timestamp("2024-01-01")).days),
    "one id": lambda dates: pd.MultiIndex.from_arrays([["a"] * len(dates), dates], names=["id", "day"]),
    "one id and texts": lambda dates: pd.MultiIndex.from_arrays([["a"] * len(dates), as_texts(dates)], names=["id", "day"]),
}


@pytest.mark.parametrize("kind", TOLD)
def test_indexes_that_say_times_in_other_ways(kind):
    days, told = pd.date_range("2024-01-01", periods=30), TOLD[kind]
    there = np.delete(np.arange(30), [3, 7, 8])
    assert in_steps(x := of(told(days)))[0] is x
    with pytest.warns(UserWarning, match="x: 3 of 30 steps of"):
        found, _ = in_steps(of(told(days)).iloc[there])
    assert found.isna().to_numpy().nonzero()[0].tolist() == [3, 7, 8] and found.iloc[-1] == 29
    with pytest.warns(UserWarning, match="x: its times are in no even steps"):
        in_steps(of(told(days[[0, 1, 4, 9, 16, 25]])))
    for index, message in (
        (days[::-1], "go back in time"), (days[[0, 2, 1, 3]], "in no order of time"), (days[[0, 1, 1]], "more than once"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"x: .*{message}"):
            in_steps(of(told(index)))
    two = pd.concat([of(told(days)), of(told(days))])
    assert in_steps(two, [30, 30])[0] is two
    check_rows_together(of(told(days)), of(told(days)))
    with pytest.raises(ValueError, match="inputs: rows are of other steps"):
        check_rows_together(of(told(days[:29])), of(told(days[1:])))
    model = HMM(2, num_features=1).fit(of(told(days)), seed=0)
    with pytest.warns(UserWarning, match="x: 3 of 30 steps of"):
        assert model.score(of(told(days)).iloc[there]) == model.score(of(days).where(np.isin(np.arange(30), there)))


def test_numbers_as_words_and_several_sequences_at_steps():
    there = pd.Index([0, 1, 2, 4, 5])
    words, model = pd.Series([0, 1, 0, 1, 1], index=there), HMM(1, num_words=2).set_parameters(emission=[[0.25, 0.75]])
    for x, lengths in ((words, None), (words.to_frame(), [5]), (words.astype(float), None)):
        with pytest.warns(UserWarning, match="x: 1 of 6 steps of 1 are not there"):
            assert len(model.decode(x, lengths)[0]) == 6
    with pytest.warns(UserWarning, match=r"x\[1\]: 1 of 6 steps of 1 are not there"):
        assert [len(row) for row in model.decode([words[:3], words])] == [3, 6]
    targets = pd.Series([0.0, 1.0, 1.0], index=[2, 5, 3])  # one a sequence: its index says no steps
    driven = DRIVEN["iohmm"]()
    assert driven._as_batch(targets, inputs=[np.zeros((2, 1))] * 3).x.shape[0] == 3
    assert driven._as_batch(targets, inputs=np.zeros((3, 2, 1))).x.shape[0] == 3


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["id", "day"]),
         r"x: its index has 2 levels \(id, day\).*sequences_by\(x.reset_index\(\), 'id', order_by='day'\)"),
        (pd.Index(["01/02/2024", "02/02/2024", "05/02/2024", "06/02/2024"]), "x: its index has dates as text, '01/02/2024'"),
        (pd.Index(["1 Jan 2024", "2 Jan 2024", "9 Jan 2024", "10 Jan 2024"]), "x: its index has dates as text"),
        (pd.Index(["Jan 2024", "Feb 2024", "Apr 2024", "May 2024"]), "x: its index has dates as text"),
    ],
)  # fmt: skip
def test_indexes_that_do_not_say_which_times(index, message):
    for ask in (in_steps, HMM(1, num_features=1).fit):
        with pytest.raises(ValueError, match=message):
            ask(of(index))


def test_months_and_quarters_as_text():
    quarters = ["2024Q1", "2024Q2", "2024Q4", "2025-Q1"]
    for texts, kind in ((["2024-01", "2024-02", "2024-04", "2024-05"], "a month"), (quarters, "one Q")):
        with pytest.warns(UserWarning, match=f"x: 1 of . steps of {kind}"):
            assert np.isnan(in_steps(of(pd.Index(texts)))[0].iloc[2])


@grid({
    "freq, said": [
        ("D", "a day"), ("B", "a business day"), ("W", "7 days"), ("MS", "a month"), ("ME", "a month"), ("BME", "a month"),
        ("BMS", "a month"), ("QE", "3 months"), ("YS", "12 months"), ("h", "an hour"), ("5min", "5 minutes"),
        ("10ms", "10 mil"),
    ],
    "tz": [None, "Europe/Paris"],
})  # fmt: skip
def test_steps_that_dates_lack_are_missing(freq, said, tz):
    """What ``asfreq`` makes of them; hours and days also where clocks are changed."""
    whole = pd.date_range("2024-03-20", periods=300, freq=freq, tz=tz)[-200:]
    assert in_steps(x := of(whole))[0] is x and in_steps(x := of(whole[np.arange(200)]))[0] is x
    there = np.random.default_rng(0).random(200) < 0.6
    there[[0, -1]] = True
    with pytest.warns(UserWarning, match=f"x: {int((~there).sum())} of 200 steps of {said}.* are not there, the first is"):
        found, _ = in_steps(of(whole)[there])
    pd.testing.assert_series_equal(found, of(whole).where(there), check_freq=False)


def test_other_indexes_of_time_that_lack_steps():
    days = pd.date_range("2024-01-01", periods=30)
    there = np.delete(np.arange(30), [3, 7, 8])
    for index in (
        days.to_period("D"), pd.period_range("2020-01", periods=30, freq="M"), days - days[0], pd.Index(days.date),
        pd.date_range("2024", periods=30, freq="WOM-3FRI"),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match="x: 3 of 30 steps"):
            found, _ = in_steps(of(index).iloc[there])
        assert found.isna().to_numpy().nonzero()[0].tolist() == [3, 7, 8]
    for index in (days[[0, 1, 4, 9, 16, 25]], pd.DatetimeIndex(days[:9].to_numpy() + np.arange(9) ** 3),    ):
        with pytest.warns(UserWarning, match="x: its times are in no even steps .*, and its rows are taken for equal steps"):
            assert in_steps(x := of(index))[0] is x
    two = pd.concat([of(days).iloc[there], of(days)])
    with pytest.warns(UserWarning, match="x: 3 of 30 steps"):
        rows, lengths = in_steps(two, [27, 30])
    assert lengths is None and [len(row) for row in rows] == [30, 30]


@pytest.mark.filterwarnings("ignore:.*are not there")
@pytest.mark.parametrize("kind", ["hmm", *DRIVEN])
def test_every_model_takes_lacking_steps_for_missing(kind, frame):
    there = np.delete(np.arange(30), [3, 7, 8])
    some, whole = frame["y"].iloc[there], frame["y"].where(np.isin(np.arange(30), there))
    model = HMM(2, num_features=1) if kind == "hmm" else DRIVEN[kind]()
    if kind == "arhmm":
        model = ARHMM(1, 1, order=0, num_inputs=1)
    known = {} if kind == "hmm" else {"inputs": frame["u"]}
    model.fit(frame["y"], **known, seed=0)
    ahead = {"future_inputs": np.zeros((2, 1))} if known else {"num_steps": 2}
    assert model.score(some, **known) == model.score(whole, **known)
    found, wanted = model.decode(some, **known), model.decode(whole, **known)
    np.testing.assert_array_equal(found, wanted)
    listed = {name: [value, value] for name, value in known.items()}
    assert [len(row) for row in model.decode([some, whole], **listed)] == [30, 30]
    found, wanted = (model.forecast(x, **known, **ahead).frame() for x in (some, whole))
    pd.testing.assert_frame_equal(found, wanted)
    if known:
        for inputs, message in (
            (frame["u"].iloc[there], "inputs: 3 of 30 steps of a day are not there"),
            (frame["u"].iloc[there].to_numpy(), "inputs: the index of x lacks 3 of 30 steps"),
        ):
            with pytest.raises(ValueError, match=message):
                model.score(some, inputs=inputs)
    else:
        states = pd.Series(np.arange(27) % 2, index=some.index)
        batch = model._as_batch(some, states=states)
        assert batch.states[0, [3, 7, 8]].tolist() == [-1, -1, -1] and batch.states[0, 4] == 1
        with pytest.raises(ValueError, match="states: the index of x lacks 3 of 30 steps"):
            model._as_batch(some, states=states.to_numpy())
        with pytest.raises(ValueError, match="emission_noises: the index of x lacks"):
            model._as_batch([some, whole], emission_noises=np.zeros((2, 30, 1, 1)))


def test_what_stands_beside_what():
    def pair(one, other, name="inputs"):
        return check_rows_together(pd.Series(0.0, index=one), pd.Series(0.0, index=other), name)

    days = pd.date_range("2024-01-01", periods=3)
    pair(days, days.as_unit("s"))
    pair(days, pd.RangeIndex(3))
    pair(pd.Index([4, 7, 9]), pd.RangeIndex(3))
    pair(pd.Index([5, 6, 7]), pd.RangeIndex(5, 8))
    pair(pd.Index([0.1, 0.2, 0.3]), pd.Index(np.arange(1, 4) * 0.1))
    pair(pd.Index([1.0, np.nan]), pd.Index([1.0, np.nan]))
    pair(days, days[:2])  # as many as there are steps is for those to say who know the shapes
    for one, other in ((days, days.to_period()), (pd.RangeIndex(3), pd.RangeIndex(1, 4)), (days, days.tz_localize("UTC"))):
        with pytest.raises(ValueError, match="states: rows are of other steps than those of x: row 0 is"):
            pair(one, other, "states")
    with pytest.raises(ValueError, match=r"inputs\['emission'\]: rows are of other steps"):
        check_rows_together(pd.Series(0.0, index=days), {"emission": pd.Series(0.0, index=days.shift(1))})
    with pytest.raises(ValueError, match="rows stand in another order"):
        pair(pd.RangeIndex(3), pd.Index([2, 0, 1]))
    words = pd.Series(["a b", "b"], index=days[:2][::-1])
    check_rows_together(words, [[0, 1], [1]], "states")


def test_labels_of_the_steps_to_come():
    def ahead(past, future, num_steps=2):
        x, given = pd.Series(np.zeros(len(past)), index=past), pd.Series(np.zeros(len(future)), index=future)
        check_rows_ahead(x, given, num_steps)
        return labels_ahead(x, given, num_steps, 1)[0]

    days = pd.date_range("2024-01-01", periods=4)
    assert ahead(pd.RangeIndex(4), days[:2]).equals(days[:2])  # places beside dates
    assert ahead(days[:2], days[2:]).equals(days[2:]) and ahead(days, pd.RangeIndex(2))[0] == pd.Timestamp("2024-01-05")
    assert list(ahead(pd.RangeIndex(4), pd.RangeIndex(2))) == list(ahead(pd.RangeIndex(4), pd.RangeIndex(4, 6))) == [4, 5]
    assert list(ahead(pd.RangeIndex(2, 4), pd.RangeIndex(2))) == [4, 5]  # a frame made of the numbers to come
    assert list(ahead(pd.Index(["a", "b"]), pd.Index(["a", "c"]))) == ["a", "c"]
    assert list(ahead(pd.Index([0.1, 0.2]), pd.Index([0.3, 0.4]))) == [0.3, 0.4]
    assert list(ahead(pd.RangeIndex(99, 95, -1), pd.RangeIndex(95, 93, -1))) == [95, 94]
    for past, future in (
        (pd.RangeIndex(4), pd.RangeIndex(5, 7)), (pd.Index([0.1, 0.2]), pd.Index([0.2, 0.3])), (days, pd.RangeIndex(4, 6)),
        (days[[0, 1, 3]], pd.RangeIndex(4, 6)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="future_inputs: row 0 is"):
            ahead(past, future)
    with pytest.raises(ValueError, match=r"future_inputs\['emission'\]: row 0 is 7, where x goes on with 4"):
        check_rows_ahead(pd.Series(np.zeros(4)), {"emission": pd.Series([0.0], index=pd.RangeIndex(7, 8))}, None)


@pytest.mark.parametrize("make", [lambda: LDS(1, 1, num_inputs=2), lambda: ARHMM(1, 1, num_inputs=2),
                                  lambda: SwitchingRegression(2, num_inputs=2)])  # fmt: skip
def test_next_inputs_go_by_their_names(make, frame):
    table = frame.assign(v=frame["u"] ** 2)
    model = make()
    few = {"max_iterations" if model.methods[0] == "em" else "num_steps": 3}
    model.fit(table["y"], inputs=table[["u", "v"]], seed=0, **few)
    further = pd.DataFrame({"v": [1.0], "u": [3.0]})
    expected = model.predict_next(table["y"], inputs=table[["u", "v"]], next_inputs=np.array([3.0, 1.0])).means
    np.testing.assert_array_equal(model.predict_next(table["y"], inputs=table[["u", "v"]], next_inputs=further).means, expected)


def test_what_sources_say_of_other_steps():
    model = PROPS(3, num_sources=1)
    x, words = pd.Series([0, 1, 2], index=[4, 5, 6]), np.log(np.full((3, 1), 1 / 3))
    told = pd.DataFrame(words, index=x.index + 1)
    with pytest.raises(ValueError, match=r"source_log_probs\[0\]: rows are of other steps .*: row 0 is 5 beside 4"):
        model._as_batch([x], source_log_probs=[told])
    assert model._as_batch([x], source_log_probs=[told.set_axis(x.index)]).source_log_probs.shape[:2] == (1, 3)
