"""Pictures on axes: what is drawn is what was given, and what does not fit is refused by name."""

import numpy as np
import pytest
import torch

from pplseq import HMM, LDS, SwitchingRegression, plot
from pplseq.models.automata.automaton import Automaton

pyplot = pytest.importorskip("matplotlib.pyplot")
PROBS = np.array([[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]])


@pytest.fixture(autouse=True)
def close():
    yield
    pyplot.close("all")


@pytest.fixture
def ax():
    return pyplot.figure().add_subplot()


def test_a_series_leaves_gaps_open(ax):
    assert plot.series(torch.tensor([[1.0, 4.0], [float("nan"), 5.0]]), ax=ax, labels=["a", "b"]) is ax
    assert np.isnan(ax.lines[0].get_ydata()[1]) and list(ax.lines[1].get_ydata()) == [4, 5]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


def test_states_are_as_strong_as_they_are_sure(ax):
    plot.states(np.arange(3.0), PROBS, ax=ax)
    shades = [mesh.get_array()[0, :, 3] for mesh in ax.collections]
    assert np.allclose(np.stack(shades, 1), 0.45 * PROBS)
    assert len(ax.get_legend().get_texts()) == 2
    ax.figure.canvas.draw()


def test_sums_of_floats_may_pass_one(ax):
    plot.states([0.0, 1.0], [[1 + 1e-6, -1e-6], [0.5, 0.5]], ax=ax)
    ax.figure.canvas.draw()


def test_states_of_a_path_and_dates(ax):
    dates = np.array(["2026-01-01", "2026-01-02", "2026-01-05"], "datetime64[D]").astype("datetime64[ns]")
    plot.states(np.arange(3.0), torch.tensor([0, 2, 1]), index=dates, ax=ax, labels=["x", "y", "z"])
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["x", "y", "z"]
    assert len(plot.states([1.0, 2.0], [0, 0], labels=["x", "y"]).get_legend().get_texts()) == 2  # y is not visited
    plot.states([1.0], [0], index=dates[:1]).figure.canvas.draw()


def test_states_are_told_by_name(ax):
    frame = pytest.importorskip("pandas").DataFrame(PROBS, columns=list("xyz")[: len(PROBS[0])])
    frame.index = np.arange("2024-01-01", "2024-01-04", dtype="datetime64[D]")
    legend = [text.get_text() for text in plot.states(np.arange(3.0), frame, ax=ax).get_legend().get_texts()]
    assert legend == [*frame.columns] and ax.get_xlim()[0] > 19000  # days
    assert plot.probabilities(np.array(["up", "down", "up"], dtype=object)).collections[1].get_label() == "up"
    named = plot.states([1.0, 2.0], ["b", "b"], labels=["a", "b"])
    assert [text.get_text() for text in named.get_legend().get_texts()] == ["a", "b"]
    with pytest.raises(ValueError, match="'c' is among the states and not among"):
        plot.probabilities(["a", "c"], labels=["a", "b"])


def test_probabilities_reach_one(ax):
    plot.probabilities(PROBS, ax=ax)
    assert max(path.vertices[:, 1].max() for area in ax.collections for path in area.get_paths()) == pytest.approx(1)


def test_transitions_are_as_wide_as_probable(ax):
    from matplotlib.patches import FancyArrowPatch

    plot.transitions([[0.9, 0.1], [0.0, 1.0]], ax=ax, labels=["calm", "wild"])
    widths = [patch.get_linewidth() for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    assert widths == pytest.approx([0.5 + 2.5 * 0.9, 0.5 + 2.5 * 0.1, 3.0])
    assert {"calm", "wild", "0.9", "0.1", "1"} == {text.get_text() for text in ax.texts}


def test_the_interval_of_a_forecast(ax):
    plot.forecast([0.0, 1.0], [[2.0], [3.0]], [[[1.0]], [[4.0]]], level=0.95, ax=ax)
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(3 + 1.96 * 2, abs=1e-3) and band[:, 0].min() == 2


def test_the_interval_of_a_forecast_is_the_models_own(ax):
    """Of a mixture, exact quantiles, which are not even about the mean; of a normal, those of its covariances."""

    def edges(axes):
        return axes.collections[0].get_paths()[0].vertices[:, 1]

    model = HMM(2, num_features=1).set_parameters(
        initial=[0.95, 0.05], transition=[[0.95, 0.05], [0.3, 0.7]], loc=[[0.0], [9.0]], covariance=[[1.0], [1.0]]
    )
    past = np.array([0.1, -0.2])
    found = model.forecast([past, past[:1]], 1)
    plot.forecast(past, found, level=0.95, ax=ax)
    low, high = (float(end[0, 0, 0]) for end in found.intervals(0.95))
    assert sorted({round(y, 6) for y in edges(ax)}) == [round(low, 6), round(high, 6)]
    mean = float(found.means[0, 0, 0])
    assert high - mean > 2 * (mean - low)  # the other state is far above
    normal = LDS(1, 1).set_parameters(transition=[[0.9]], emission=[[1.0]], state_noise=[1.0], emission_noise=[1.0])
    told = normal.forecast([past], 2)
    both = [pyplot.subplots()[1] for _ in range(2)]
    plot.forecast(past, told, level=0.8, ax=both[0])
    plot.forecast(past, told.means[0], told.covariances[0], level=0.8, ax=both[1])
    np.testing.assert_allclose(edges(both[0]), edges(both[1]))


def test_a_forecast_of_a_series_has_its_times():
    pandas = pytest.importorskip("pandas")
    y = pandas.Series([1.0, 3.0, 2.0, 4.0, 3.0, 5.0], index=pandas.period_range("2024-01", periods=6, freq="M"), name="sales")
    model = SwitchingRegression(1, order=1).fit(y, num_steps=1)
    found = model.forecast(y, 2)
    axes = plot.forecast(y, found)
    assert [str(time)[:10] for time in axes.lines[1].get_xdata()] == ["2024-07-01", "2024-08-01"]
    assert axes.lines[1].get_ydata() == pytest.approx(found.means[0, :, 0].numpy())
    assert list(plot.forecast(y.to_numpy(), found).lines[1].get_xdata()) == [6, 7]
    durations = y.set_axis(pandas.timedelta_range("0h", periods=6, freq="h"))
    assert list(plot.forecast(durations, model.forecast(durations, 2)).lines[1].get_xdata()) == [6, 7]
    system = LDS(1, 1).set_parameters(transition=[[0.5]], emission=[[1.0]])
    for wrong, message in (
        ((y, model.predict_next(y)), r"means must have shape \(B, K, D\), got \(1, 1\)"),
        ((y, system.predict_next([y])), r"must have shape \(B, K, D\), got \(1, 1\)"),
        ((y, found.means[0]), "covariances must be given with means, got None; or give what model.forecast told"),
        ((y, HMM(2, num_words=3).fit([[1, 2]], max_iterations=1).forecast([[1, 2]], 1)), "of words, which have"),
    ):
        with pytest.raises(ValueError, match=message):
            plot.forecast(*wrong)
    with pytest.raises(ValueError, match="sequence must lie in 0..0, the rows of the forecast; got 1"):
        plot.forecast(y, found, sequence=1)
    with pytest.raises(ValueError, match="past must have the 1 columns of the forecast, got 2"):
        plot.forecast(np.zeros((3, 2)), found)


def test_effects_and_automata(ax):
    curves = np.array([[[0.2, 0.8], [1, 0]], [[0.6, 0.4], [1, 0]]])
    plot.effects(curves, [1.0, 0.0], "slope", ax=ax)
    assert list(ax.lines[0].get_ydata()) == [0.6, 0.2] and ax.get_xlabel() == "slope"
    assert plot.automaton(Automaton.from_regex("1*", "01")).texts


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: plot.series(np.zeros((1, 2, 3))), r"x must have shape .*; of a batch, give one sequence: x\[0\]"),
        (lambda: plot.series([1.0], index=[1, 2]), "index: expected one time for each of 1 steps, got 2"),
        (lambda: plot.states([1.0], PROBS), "probs: expected one row for each of 1 steps, got 3"),
        (lambda: plot.states([1.0, 2.0], [0, -1]), "cut padded steps off"),
        (lambda: plot.states([1.0, 2.0], np.array(["calm", None])), "cut padded steps off"),
        (lambda: plot.probabilities([[-0.7, -0.7]]), "of log probabilities, give .exp()"),
        (lambda: plot.probabilities(PROBS, labels=["a"]), "labels: expected one for each of 2 states, got 1"),
        (lambda: plot.transitions(np.ones((2, 2))), "matrix must be square with rows of probabilities"),
        (lambda: plot.transitions(np.eye(41)), "at most 40 states, got 41"),
        (lambda: plot.forecast([1.0], [[1.0]], [[1.0]]), "covariances must have shape"),
        (lambda: plot.effects(np.full((1, 1, 1), 1.0), [0.0], state=1), "state must lie in 0..0, got 1"),
    ],
)
def test_what_does_not_fit_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
