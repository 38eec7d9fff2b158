"""Numbers beside all others of their row: leave-one-out predictions beside one big Gaussian, and outliers that are told."""

import numpy as np
import pytest
import torch
from support.dense_lds import joint, values
from support.structural_series import NILE, seasons

from pplseq import LDS, StructuralModel
from pplseq.distributions.gaussian_types import Evidence, GaussianBelief
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from pplseq.kernels.parallel.time_scan import parallel_in_time

LEVEL = {"noise": 15099.0, "level": 1469.1}


def left_out(model, x, lengths=None, **known):
    batch = model._as_batch(x, lengths, **known)
    return model.posterior(batch.x, batch.lengths, **batch.known).left_out()


def dense(model, x, inputs=None, **of_steps):
    """Errors and variances (T, n) of each number, its row of the joint distribution and that number left out."""
    mean, prior, look, shift, noise = joint(values(model), len(x), inputs, **of_steps)
    seen = np.flatnonzero(~np.isnan(x.ravel()))
    centre, spread = look @ mean + shift, look @ prior @ look.T + noise
    errors, variances = np.full((2, x.size), np.nan)
    for one in seen:
        others = seen[seen != one]
        weights = np.linalg.solve(spread[np.ix_(others, others)], spread[others, one])
        errors[one] = x.ravel()[one] - centre[one] - weights @ (x.ravel() - centre)[others]
        variances[one] = spread[one, one] - weights @ spread[others, one]
    return errors.reshape(x.shape), variances.reshape(x.shape)


def drawn(num_states, num_features, num_inputs=0, seed=0, **options):
    torch.manual_seed(seed)
    model = LDS(num_states, num_features, num_inputs=num_inputs, **options)
    root = torch.randn(num_features, num_features).double()
    model.set_parameters(emission_noise=root @ root.T + 0.3 * torch.eye(num_features))
    model.is_fitted = True
    return model


def gaps(x, seed=0):
    x = np.array(x)
    x[np.random.default_rng(seed).random(x.shape) < 0.15] = np.nan
    x[2] = np.nan
    return x


@pytest.mark.parametrize(("num_states", "num_features"), [(1, 1), (3, 1), (2, 2), (2, 4), (4, 3)])
def test_errors_and_variances_are_those_of_one_value_left_out_of_the_joint_gaussian(num_states, num_features):
    model = drawn(num_states, num_features, num_inputs=2)
    random = np.random.default_rng(1)
    rows = [gaps(random.normal(size=(size, num_features)), size) for size in (9, 6)] + [np.full((1, num_features), 0.3)]
    inputs = [random.normal(size=(len(row), 2)) for row in rows]
    found = left_out(model, rows, inputs=inputs)
    for k, (row, given) in enumerate(zip(rows, inputs, strict=True)):
        errors, variances = dense(model, row, given)
        np.testing.assert_allclose(found.errors[k, : len(row)], errors, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.variances[k, : len(row)], variances, rtol=1e-9)
        assert found.errors[k, len(row) :].isnan().all() and found.variances[k, len(row) :].isnan().all()


def test_with_matrices_of_single_steps_rows_without_gaps_and_in_float32():
    model, random = drawn(2, 2), np.random.default_rng(2)
    moves, looks = 0.5 * random.normal(size=(7, 2, 2)), random.normal(size=(7, 2, 2))
    rows = random.normal(size=(3, 7, 2))
    found = left_out(model, rows, transitions=moves, emissions=looks)
    plain = left_out(model, rows)
    for k, row in enumerate(rows):
        for answer, options in ((found, {"transitions": moves, "emissions": looks}), (plain, {})):
            errors, variances = dense(model, row, **options)
            np.testing.assert_allclose(answer.errors[k], errors, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(answer.variances[k], variances, rtol=1e-9)
    small = left_out(model.float(), rows)
    np.testing.assert_allclose(small.errors, plain.errors, rtol=1e-4, atol=1e-4)


def test_outliers_of_some_rows_with_matrices_of_steps_and_inputs():
    model, random = drawn(2, 2, num_inputs=1), np.random.default_rng(2)
    moves = 0.5 * random.normal(size=(20, 2, 2))
    rows, inputs = random.normal(size=(3, 20, 2)), random.normal(size=(3, 20, 1))
    rows[1, 4, 1] = rows[2, 7, 0] = rows[2, 8, 0] = 80
    found = model.outliers(rows, transitions=moves, inputs=inputs)
    assert found.rows.tolist() == [1, 2, 2] and found.steps.tolist() == [4, 7, 8] and found.columns.tolist() == [1, 0, 0]
    for k, (row, step, column) in enumerate(zip(found.rows, found.steps, found.columns, strict=True)):
        x = found.without()[row].copy()
        x[step, column] = rows[row, step, column]
        errors, variances = dense(model, x, inputs[row], transitions=moves)
        assert float(found.deviations[k]) == pytest.approx(variances[step, column] ** 0.5)
        assert float(found.scores[k]) == pytest.approx((errors / variances**0.5)[step, column])
        assert float(found.means[k]) == pytest.approx(80 - errors[step, column])


def quadratic(model, x, **known):
    """Errors and variances from log p of the row with another number in each place, which is quadratic in it."""
    errors, variances = np.full((2, *x.shape), np.nan)
    for place in zip(*np.nonzero(~np.isnan(x)), strict=True):
        logs = []
        for change in (-1.0, 0.0, 1.0):
            other = x.copy()
            other[place] += change
            logs.append(float(model.log_prob(torch.as_tensor(other)[None], **known)))
        variances[place] = -1 / (logs[0] + logs[2] - 2 * logs[1])
        errors[place] = -variances[place] * (logs[2] - logs[0]) / 2
    return errors, variances


STRUCTURES = {
    "diffuse": {"trend": "stochastic", "initial": "diffuse"},
    "diffuse seasons": {"seasonal": 4, "initial": "diffuse"},
    "wide": {"trend": "stochastic", "seasonal": 4},
    "no noise": {"level": "none", "ar": 2, "ma": 1},
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structural_models_also_with_diffuse_starts_and_without_noise(name):
    model = StructuralModel(**STRUCTURES[name])
    if name == "no noise":
        model.set_parameters(noise=0)
    x = seasons(14)[:, None]
    x[[0, 5]] = np.nan
    found = left_out(model, x)
    errors, variances = quadratic(model, x)
    np.testing.assert_allclose(found.errors[0], errors, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.variances[0], variances, rtol=1e-5)
    both = left_out(model, [x, x[:9]])  # rows that end, and so differ
    np.testing.assert_allclose(both.errors[0], found.errors[0], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(both.errors[1, :9], left_out(model, x[:9]).errors[0], rtol=1e-7, atol=1e-9)


def test_times_between_steps():
    times = np.array([0.0, 0.5, 2.0, 2.1, 5.0, 6.5, 7.0])
    x = seasons(7)[:, None]
    model = StructuralModel(trend="stochastic")
    model.is_fitted = True
    model.time_unit.fill_(1.0)
    found = left_out(model, x, times=times)
    batch = model._as_batch(x, times=times)
    errors, variances = quadratic(model, x, gaps=batch.gaps)
    np.testing.assert_allclose(found.errors[0], errors, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.variances[0], variances, rtol=1e-5)


def test_what_others_do_not_determine_has_no_prediction():
    model = StructuralModel(trend="stochastic", initial="diffuse").set_parameters(noise=0.1, level=0.1, slope=0.1)
    x = np.full((12, 1), np.nan)
    x[[3, 9]] = [[1.0], [2.0]]  # either of which alone leaves level or slope open
    assert left_out(model, x).errors.isnan().all()
    model.is_fitted = True
    assert len(model.outliers(x)) == 0
    x[5] = 1.5
    assert left_out(model, x).errors[0, [3, 5, 9]].isfinite().all()


def test_what_cannot_be_asked():
    model = drawn(2, 2)
    x = np.zeros((4, 2))
    with pytest.raises(ValueError, match=r"level must lie in \(0, 1\), got 5"):
        model.outliers(x, level=5)
    with pytest.raises(TypeError, match="no argument 'levels' beside the data"):
        model.outliers(x, levels=0.1)
    with parallel_in_time(), pytest.raises(ValueError, match="leave parallel_in_time out"):
        model.outliers(x)
    exact = LDS(1, 2, offsets="none").set_parameters(
        emission=[[1.0], [1.0]], emission_noise=1e-12 * torch.eye(2), initial_covariance=[[1e6]]
    )
    exact.is_fitted = True
    with pytest.raises(ValueError, match="give observations more noise"):
        exact.outliers(x)


# ---------------------------------------------------------------- outliers
def level_model():
    model = StructuralModel(initial="diffuse").set_parameters(**LEVEL)
    model.is_fitted = True
    return model


@pytest.mark.parametrize("value", [1e15, 1e18, 1e300, -1e300])
def test_what_the_others_say_has_its_digits_beside_any_number(value):
    """Columns whose noise goes together, so that the other column of its step says something, too."""
    model, x = drawn(2, 2), np.random.default_rng(0).normal(size=(30, 2))
    model.is_fitted = True
    x[11, 1], x[4, 0] = value, np.nan
    found = model.outliers(x)
    assert found.steps.tolist() == [11] and found.columns.tolist() == [1] and found.values.tolist() == [value]
    x[11, 1] = 0.0
    errors, variances = dense(model, x)
    assert float(found.means[0]) == pytest.approx(-errors[11, 1], rel=1e-9)
    assert float(found.deviations[0]) == pytest.approx(variances[11, 1] ** 0.5, rel=1e-9)
    assert float(found.scores[0]) == pytest.approx((value + errors[11, 1]) / variances[11, 1] ** 0.5, rel=1e-9)


def test_where_nothing_was_seen_nothing_was_looked_at():
    model = drawn(2, 1)
    model.is_fitted = True
    found = model.outliers([np.nan] * 5)
    assert found.num_values == 0 and len(found) == 0 and "0 of 0 values" in repr(found)


def test_several_outliers_one_beside_another_and_none():
    model, x = level_model(), NILE.copy()
    assert len(model.outliers(NILE)) == 0
    x[20], x[21], x[23], x[60] = 2400, 2300, 2350, 100  # 22 lies between outliers, and is none
    found = model.outliers(x)
    assert found.steps.tolist() == [20, 21, 23, 60] and found.num_values == 100
    kept = found.without()
    assert np.flatnonzero(np.isnan(kept)).tolist() == [20, 21, 23, 60] and kept.shape == x.shape
    assert np.array_equal(kept[~np.isnan(kept)], x[~np.isnan(kept)])
    # each beside all that stay: what the model says of a missing value
    back = model.reconstruct(kept)
    torch.testing.assert_close(found.means, back.means[0, found.steps, 0])
    spread = (back.covariances[0, found.steps, 0, 0] + LEVEL["noise"]).sqrt()
    torch.testing.assert_close(found.deviations, spread)
    torch.testing.assert_close(found.scores, (torch.as_tensor(x)[found.steps] - found.means) / spread)
    assert (found.p_values < 0.05).all()


@pytest.mark.parametrize(("slope", "size"), [(0.1, 10), (1.0, 8)])
def test_a_number_between_outliers_that_looks_farther_off_than_they_do(slope, size):
    """Taken out first, it would bring more and more of its neighbours along."""
    model = StructuralModel(trend="stochastic", level="fixed", initial="diffuse").set_parameters(noise=0.01, slope=slope)
    model.is_fitted = True
    x = np.arange(40.0) + 0.1 * np.random.default_rng(0).normal(size=40)
    x[[19, 21]] += size
    found = left_out(model, x)
    assert int((found.errors / found.variances.sqrt()).abs().argmax()) == 20
    assert model.outliers(x).steps.tolist() == [19, 21]
    times = np.arange(40.0)
    model.time_unit.fill_(1.0)
    assert model.outliers([x, x[:30]], times=[times, times[:30]]).steps.tolist() == [19, 21, 19, 21]


def test_what_was_taken_out_for_the_sake_of_others_comes_back():
    random = np.random.default_rng(1)
    model = StructuralModel(trend="stochastic", level="fixed", initial="diffuse").set_parameters(noise=0.1, slope=1.0)
    model.is_fitted = True
    x = np.arange(40.0) + 0.1**0.5 * random.normal(size=40)
    where = 15 + np.sort(random.choice(10, random.integers(2, 5), replace=False))
    x[where] += random.choice([-1, 1], len(where)) * random.choice([2, 4, 8])
    assert model.outliers(x).steps.tolist() == where.tolist() == [16, 20, 23, 24]  # 25 goes, and comes


def test_false_alarms_are_as_rare_as_was_asked():
    model = LDS(2, 2).set_parameters(transition=[[0.9, 0.1], [0.0, 0.5]], emission=torch.eye(2))
    model.is_fitted = True
    x = model.sample(40, 200, seed=0).x
    told = torch.tensor([len(model.outliers(row, level=0.2)) > 0 for row in x])
    assert 0.1 < float(told.double().mean()) < 0.26  # Bonferroni's bound, nearly met
    together = model.outliers(x, level=0.2)
    assert together.num_values == 200 * 40 * 2 and len(together) <= 3


def test_forms_of_data():
    pandas = pytest.importorskip("pandas")
    model, x = drawn(1, 2), np.random.default_rng(0).normal(size=(30, 2))
    x[7, 1], x[20, 0] = 60, -70
    places = [[7, 1], [20, 0]]

    def gone(kept):
        return np.argwhere(np.isnan(np.asarray(kept, dtype=float))).tolist()

    assert gone(model.outliers(x).without()) == places
    tensor = model.outliers(torch.as_tensor(x)[None])
    assert gone(tensor.without()[0]) == places and isinstance(tensor.without(), torch.Tensor)
    both = model.outliers([x[:15], x[15:].tolist()])
    assert [gone(row) for row in both.without()] == [[[7, 1]], [[5, 0]]] and both.rows.tolist() == [0, 1]
    assert gone(model.outliers(x, [15, 15]).without()) == places
    padded = np.stack([x, np.r_[x[:10], np.full((20, 2), 999.0)]])
    found = model.outliers(padded, [30, 10])
    assert np.argwhere(np.isnan(found.without())).tolist() == [[0, 7, 1], [0, 20, 0], [1, 7, 1]]
    days = pandas.date_range("2024-01-01", periods=30)
    frame = pandas.DataFrame(x, days, ["a", "b"])
    model.column_names = ("a", "b")
    found = model.outliers(frame[["b", "a"]].assign(c="text"))
    assert list(found.without().columns) == ["b", "a", "c"]
    assert gone(found.without()[["a", "b"]]) == places and found.without().index.equals(days)
    table = found.frame()
    assert table.index.tolist() == [days[7], days[20]] and table["column"].tolist() == ["b", "a"]
    assert table["value"].tolist() == [60, -70] and list(table) == ["column", "value", "mean", "deviation", "score", "p"]
    several = model.outliers([frame[:15], frame[15:]]).frame()
    assert several["sequence"].tolist() == [0, 1] and several.index.tolist() == [days[7], days[20]]
    with pytest.warns(UserWarning, match="1 of 30 steps of a day are not there"):
        found = model.outliers(frame.drop(days[3]))
    assert gone(found.without()) == [[3, 0], [3, 1], *places] and found.frame().index.tolist() == [days[7], days[20]]
    whole = pandas.DataFrame({"a": x[:, 0].round().astype(int), "b": x[:, 1]}, days)
    assert gone(model.outliers(whole).without()) == places


def test_series_with_times_of_the_index_and_polars():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    days = pandas.DatetimeIndex(np.sort(rng.choice(pandas.date_range("2024-01-01", periods=300), 60, replace=False)))
    x = pandas.Series(np.arange(60), days, name="count") + rng.integers(0, 3, 60)
    x.iloc[31] = 500
    model = StructuralModel(trend="stochastic").fit(x[:25], times="index", num_steps=10, initialization="turning")
    found = model.outliers(x, times="index")
    assert 31 in found.steps.tolist() and found.without().index.equals(days)
    assert np.flatnonzero(found.without().isna()).tolist() == found.steps.tolist()
    assert model.score(found.without(), times="index") > model.score(x, times="index")


def test_polars():
    polars = pytest.importorskip("polars")
    x = NILE.copy()
    x[20] = 3000
    model = level_model()
    assert model.outliers(polars.Series("flow", x)).without().is_null().arg_true().to_list() == [20]
    found = model.outliers(polars.DataFrame({"flow": x.astype(int)})).without()
    assert found["flow"].is_null().arg_true().to_list() == [20]


def test_a_gated_fit_is_that_without_the_outliers():
    x = NILE[:40].copy()
    x[[20, 35]] = 4000, -2000
    model = StructuralModel().fit(x, initialization="still")
    model.fit(model.outliers(x).without(), initialization="still")
    x[[20, 35]] = np.nan
    assert model.score(x) == pytest.approx(StructuralModel().fit(x, initialization="still").score(x), abs=1e-4)


def test_shown_in_notebooks():
    x = NILE.copy()
    x[20] = 3000
    found = level_model().outliers([x, x[:50]])
    assert repr(found) == "<Outliers: 2 of 150 values at level 0.05>"
    shown = found._repr_html_()
    assert shown.startswith("<table><caption>Outliers: 2 of 150 values at level 0.05</caption>")
    assert "<th>sequence</th><th>step</th><th>column</th><th>value</th>" in shown and shown.count("<td>3000</td>") == 2


def test_a_chain_of_other_evidence_says_so():
    eye = torch.eye(1).double()
    evidence = Evidence(torch.zeros(3, 1).double(), eye, torch.zeros(3).double())
    chain = GaussianChain(GaussianBelief(torch.zeros(1).double(), eye), Dynamics(eye, eye), evidence)
    with pytest.raises(ValueError, match="observations must enter as numbers"):
        chain.left_out()
