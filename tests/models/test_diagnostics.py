"""Residuals of one-step predictions, their tests, draws held against data, and models beside each other."""

import copy
import math

import matplotlib
import numpy as np
import pytest
import torch
from scipy import stats
from support.model_cases import CASES
from support.structural_series import NILE

from pplseq import ARHMM, HMM, IOHMM, LDS, VLHMM, StructuralModel, SwitchingRegression, TextLDS, plot
from pplseq.models import compare
from pplseq.models.diagnostics.residuals import diagnose

matplotlib.use("Agg")
# others are chains in blocks, and of words by vectors
ANSWERED = [name for name in CASES if not name.startswith(("vlhmm", "text_lds"))]


def draws(name, steps):
    """A model, a sequence drawn from it, and what is known of its steps."""
    case = CASES[name]
    model = case.model()
    model.is_fitted = True
    repeats = steps // 6
    known = {key: value[:1].repeat(1, repeats, *(1,) * (value.dim() - 2)) for key, value in case.known.items()}
    sized = {} if name.startswith("iohmm") else {"num_steps": steps}
    return model, model.sample(**sized, seed=3, **known).x, known


@pytest.mark.parametrize("name", ANSWERED)
def test_residuals_of_draws_are_independent_and_normal(name):
    model, x, known = draws(name, 180)
    found = model.diagnostics(x, seed=0, **known)
    for column in found.errors[0].T:
        assert stats.kstest(column, "norm").pvalue > 1e-3
    assert bool((found.ljung_box[:, 1] > 1e-3).all())
    assert bool((found.jarque_bera[:, 1] > 1e-3).all())


FAMILIES = {
    "poisson": {}, "negative_binomial": {}, "binomial": {"trials": 8}, "categorical": {"num_levels": 4}, "bernoulli": {},
    "zero_inflated_poisson": {}, "hurdle_gamma": {}, "exponential": {}, "student_t": {}, "Laplace": {}, "Beta": {},
    "zero_truncated_poisson": {}, "zero_truncated_negative_binomial": {},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_residuals_of_every_family_are_normal_also_beside_gaps_and_another_column(family):
    options = {"num_levels": [4, None]} if family == "categorical" else FAMILIES[family]
    torch.manual_seed(1)
    model = HMM(3, emission=[family, "normal"], ties=[0, 1, 1], **options)
    model.is_fitted = True
    x = model.sample(300, 2, seed=2).x.double()
    x[0, 7:11] = torch.nan
    x[1, 20:40, 0] = torch.nan
    found = model.diagnostics([x[0, :250], x[1]], seed=1)
    assert found.errors.isnan().equal(x.isnan() | (torch.arange(300) >= torch.tensor([250, 300])[:, None])[..., None])
    for column in found.errors.flatten(0, 1).T:
        assert stats.kstest(column[~column.isnan()], "norm").pvalue > 1e-3
    assert found.errors.nan_to_num().equal(model.diagnostics([x[0, :250], x[1]], seed=1).errors.nan_to_num())


def test_a_quantile_residual_lies_in_the_jump_of_the_distribution_function():
    transition, rates = np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([1.0, 6.0])
    model = HMM(2, emission="poisson").set_parameters(initial=[0.5, 0.5], transition=transition, rate=rates[:, None])
    x = model.sample(60, seed=0).x[0, :, 0].numpy()
    belief, shares = np.array([0.5, 0.5]), stats.norm.cdf(model.diagnostics(x, seed=0).errors[0, :, 0])
    within = []
    for number, share in zip(x, shares, strict=True):
        below, above = (belief @ stats.poisson.cdf(value, rates) for value in (number - 1, number))
        within.append((share - below) / (above - below))
        belief = belief * stats.poisson.pmf(number, rates)
        belief = belief / belief.sum() @ transition
    assert 0 < min(within) < max(within) < 1
    assert stats.kstest(within, "uniform").pvalue > 1e-3  # anywhere in it


def test_what_has_no_distribution_function_is_refused():
    circle = HMM(2, emission="von_mises").fit(np.linspace(0, 3, 40), seed=0, max_iterations=2)
    with pytest.raises(ValueError, match="what this HMM predicts has no distribution function here .*token_log_probs"):
        circle.diagnostics(np.linspace(0, 3, 40))
    words = VLHMM(4, num_words=3, hidden_size=4)
    words.is_fitted = True
    with pytest.raises(ValueError, match="what this VLHMM predicts has no distribution function"):
        words.diagnostics([[0, 1, 2, 1]])
    with pytest.raises(ValueError, match="lag 10 need more residuals than the 2 that column 0 has behind the first 3 steps"):
        HMM(1, num_features=1).fit([0.0, 1, 3, 2, 4]).diagnostics([0.0, 1, 3, 2, 4], skip=3)


def test_tests_are_those_of_statsmodels():
    """acorr_ljungbox(e, lags=[5]) and jarque_bera(e) of statsmodels 0.14; of the Nile those of its UnobservedComponents."""
    steps = torch.arange(40).double()
    found = diagnose(((steps * 1.7).sin() + steps.square().cos()).reshape(1, -1, 1), 0, 5)
    assert found.ljung_box[0].tolist() == pytest.approx([25.686195, 0.000103], abs=1e-6)
    assert found.jarque_bera[0].tolist() == pytest.approx([1.3934125082265947, 0.4982236262209039], abs=1e-9)
    nile = StructuralModel(initial="diffuse").set_parameters(noise=15099.0, level=1469.1)
    found = nile.diagnostics(NILE)
    assert found.errors[0, 1:5, 0].tolist() == pytest.approx([0.22477906, -1.13748616, 0.91774955, 0.29137784], abs=1e-7)
    assert found.ljung_box[0].tolist() == pytest.approx([13.19531804, 0.2129555], abs=1e-6)
    assert found.jarque_bera[0].tolist() == pytest.approx([0.04686965, 0.97683764], abs=1e-6)
    assert found.heteroskedasticity[0].tolist() == pytest.approx([0.61295871, 0.16500525], abs=1e-6)


def test_a_picture_of_residuals():
    x = np.sin(np.arange(30)) + np.cos(np.arange(30) ** 2)
    found = HMM(2, num_features=1).fit(x, seed=0).diagnostics(x)
    axes = plot.diagnostics(found, lags=6)
    assert [ax.get_ylabel() for ax in axes] == ["residual", "density", "residual", "autocorrelation"]
    assert len(axes[3].patches) == 6
    about = found.errors[0, :, 0] - found.errors[0, :, 0].mean()
    assert axes[3].patches[1].get_height() == pytest.approx(float(about[2:] @ about[:-2] / (about @ about)))
    axes[0].figure.canvas.draw()
    matplotlib.pyplot.close("all")


# ------------------------------------------------------------------------------------------------ draws beside data
def test_draws_show_what_a_model_does_not_make():
    x = np.cumsum(np.random.default_rng(0).normal(size=(4, 60)), 1)[..., None]
    x[0, 10:20] = np.nan
    alone = HMM(1, num_features=1).fit(x)

    def moves(data):
        return np.nanmean(np.abs(np.diff(data[..., 0], axis=1))), np.nanmean(data)

    found = alone.predictive_check(x, moves, 99, seed=0)
    assert found.drawn.shape == (99, 2) and found.observed.tolist() == pytest.approx(moves(x))
    assert found.p_values[0] == 1.0 and 0.05 < found.p_values[1] < 0.95
    assert found.p_values.tolist() == ((1 + (found.drawn >= found.observed).sum(0)) / 100).tolist()
    lengths = alone.predictive_check([row[: 9 + k] for k, row in enumerate(x[1:])], lambda rows: sum(map(len, rows)), 2)
    assert lengths.observed == 30 and lengths.drawn.tolist() == [30, 30]
    with pytest.raises(ValueError, match="statistic: it must give a finite number"):
        alone.predictive_check(x, lambda data: data.mean(), 2)


TOLD = ["iohmm", "lds, inputs", "switching regression", "semi-markov hmm", "mixture of hmms", "props"]


@pytest.mark.parametrize("name", TOLD)
def test_draws_are_told_what_is_known_of_steps(name):
    model, x, known = draws(name, 60)
    found = model.predictive_check(x, lambda data: data.double().mean(), 60, seed=0, **known)
    assert 0.01 < float(found.p_values) < 0.99


ONE = dict(transition=[[0.9]], state_noise=[[1.0]], emission=[[2.0]], emission_noise=[[0.5]])


@pytest.mark.parametrize(
    "model",
    [StructuralModel().set_parameters(level=1.0, noise=1.0, width=1e7), LDS(1, 1, initial="diffuse").set_parameters(**ONE),
     StructuralModel(trend="stochastic", seasonal=4, initial="diffuse").set_parameters(level=1.0, noise=1.0)],
)  # fmt: skip
def test_draws_of_a_wide_start_begin_where_the_data_begin(model):
    """The first state has its smoothed mean and covariance, row by row; what follows is the model's."""
    model.is_fitted = True
    x = np.random.default_rng(0).normal(size=(2, 40, 1)).cumsum(1) + [[[50.0]], [[-900.0]]]
    x[0, :2] = np.nan
    found = model.predictive_check(x, lambda data: data[:, 2, 0], 400, seed=0)
    mean, spread = (part[:, 0] for part in model.smooth(x))
    matrix, loadings = model.transition.detach(), model.emission.detach()
    for _ in range(2):
        mean, spread = mean @ matrix.mT, matrix @ spread @ matrix.mT + model.state_noise.detach()
    deviation = (loadings @ spread @ loadings.mT + model.emission_noise.detach())[:, 0, 0].sqrt()
    assert ((found.drawn.mean(0) - (mean @ loadings.mT)[:, 0]).abs() < 4 * deviation / 20).all()
    assert found.drawn.std(0).numpy() == pytest.approx(deviation.numpy(), rel=0.15)


def test_words_of_a_linear_system_are_drawn_too():
    model, x, _ = draws("text_lds", 30)
    for statistic in (lambda data: (data == 0).double().mean(), lambda data: (data[:, 1:] == data[:, :-1]).double().mean()):
        assert 0.01 < float(model.predictive_check(x, statistic, 40, seed=0).p_values) < 0.99


# ------------------------------------------------------------------------------------------------ models beside each other
def series():
    random = np.random.default_rng(0)
    return [random.normal(size=12 + k) + 2 * (np.arange(12 + k) // 6 % 2) for k in range(6)]


def test_a_comparison_is_what_fits_by_hand_come_to():
    x, fit = series(), {"seed": 0, "max_iterations": 5}
    models = {k: HMM(k, num_features=1).fit(x, **fit) for k in (1, 2)}
    found = compare(models, x, folds=3, fit=fit)
    tokens = np.array([len(row) for row in x])
    each = {}
    for place, (k, model) in enumerate(models.items()):
        own = [model.score(x), model.num_free_parameters, model.aic(x), model.bic(x), sum(tokens)]
        assert [column[place] for column in found[1:6]] == own
        each[k] = np.empty(6)
        for fold in range(3):
            fitted = copy.deepcopy(model).fit([row for n, row in enumerate(x) if n % 3 != fold], **fit)
            each[k][fold::3] = [fitted.score([row]) for row in x[fold::3]]
        assert found.score[place] == pytest.approx(each[k].sum() / tokens.sum())
    best = max(each, key=lambda k: each[k].sum())
    around = {k: value - value.sum() / tokens.sum() * tokens for k, value in each.items()}
    errors = [math.sqrt(6 * (part / tokens.sum()).var(ddof=1)) for part in around.values()]
    assert found.error == pytest.approx(errors)
    apart = [math.sqrt(6 * ((around[best] - part) / tokens.sum()).var(ddof=1)) for part in around.values()]
    assert found.behind_error == pytest.approx(apart)
    assert found.behind == pytest.approx([max(found.score) - score for score in found.score])
    assert str(found).count("\n") == 2 and "held out" in str(found)
    assert found.frame().loc["2", "aic"] == found.aic[1]


def test_blocks_of_time_are_scored_given_the_past_alone():
    x = np.concatenate(series())
    x[30] = np.nan
    model = LDS(1, 1).fit(x, max_iterations=3)
    found, cut = compare([model], x, folds=2, fit={"max_iterations": 3}), len(x) // 3
    total = 0.0
    for first, last in ((cut, 2 * len(x) // 3), (2 * len(x) // 3, len(x))):
        fitted = copy.deepcopy(model).fit(x[:first], max_iterations=3)
        total += fitted.score(x[:last]) - fitted.score(x[:first])
    assert found.names == ["LDS 0"]
    assert found.score[0] == pytest.approx(total / (len(x) - cut - (cut <= 30)))


def test_what_is_held_stays_held_and_inputs_are_cut_with_their_steps():
    x, inputs = series(), [np.arange(12.0 + k)[:, None] for k in range(6)]
    model = HMM(2, num_features=1).set_parameters(loc=[[0.0], [2.0]])
    model.fit(x, fixed="loc", seed=0, max_iterations=3, warm_start=True)
    compare([model], x, folds=2, fit={"warm_start": True, "max_iterations": 2})
    assert model.loc.flatten().tolist() == [0, 2]
    driven = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1).fit(x, inputs=inputs, seed=0, max_iterations=2)
    for by in ("rows", "time"):
        found = compare({"a": driven}, x, inputs=inputs, folds=3, by=by, fit={"seed": 0, "max_iterations": 2})
        assert found.score[0] > -10 and found.behind == [0.0]


def test_what_was_bounded_is_fitted_anew_within_its_bounds(tmp_path):
    x, fit = series(), {"seed": 0, "max_iterations": 5}
    for bounds in ({"loc": "equal", "covariance": "equal"}, {"loc": ([[-math.inf], [2.5]], None), "covariance": (None, 2)}):
        model, free = HMM(2, num_features=1).fit(x, bounds=bounds, **fit), HMM(2, num_features=1).fit(x, **fit)
        found = compare({"free": free, "bounded": model}, x, folds=2, fit=fit)
        alone = [compare([one], x, folds=2, fit=fit | more).score[0] for one, more in ((free, {}), (free, {"bounds": bounds}))]
        assert found.score == alone and alone[0] != alone[1]
        model.save(tmp_path / "m")
        other = HMM.load(tmp_path / "m")
        assert other.num_free_parameters == model.num_free_parameters
        assert compare([other, other.permuted([1, 0])], x, folds=2, fit=fit).score[0] == alone[1]


def test_comparisons_say_what_they_cannot_compare():
    x = series()[0]
    models = [ARHMM(1, 1, order=k).fit(x, max_iterations=2) for k in (1, 2)]
    with pytest.warns(RuntimeWarning, match="different numbers of observations .ARHMM 0 11, ARHMM 1 10."):
        assert compare(models, x).num_tokens == [11, 10]
    one = SwitchingRegression(2).fit(x, num_steps=2, seed=0)
    for arguments, what in (
        ({"folds": 12}, "folds: at most 11 of these data by time, got 12"),
        ({"folds": 2, "by": "rows"}, "folds: at most 1 of these data by rows"),
        ({"by": "time"}, "give folds too"), ({"folds": 2, "by": "year"}, "by must be"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            compare([one], x, **arguments)
    with pytest.raises(ValueError, match="at least one"):
        compare([], x)
    for given in (one, None, [3], {"a": None}):
        with pytest.raises(TypeError, match="models: expected"):
            compare(given, x)


def test_word_vectors_are_not_compared_with_words():
    x = torch.randint(5, (6, 20))
    vectors = TextLDS(num_words=5, num_states=2).fit(x)
    compare([vectors, vectors], x)
    with pytest.raises(ValueError, match="likelihood of TextLDS 1 is a density of word vectors.*predict_next"):
        compare([HMM(2, 5).fit(x, seed=0, max_iterations=2), vectors], x)


def test_residuals_at_times():
    """Those of a level at even times are those of even steps, and of a row with a gap those of its missing value."""
    model, level = StructuralModel().fit(NILE, times=np.arange(100.0), num_steps=1, initialization="still"), StructuralModel()
    level.load_state_dict(model.state_dict())
    level.time_unit.zero_()
    level.is_fitted = True
    x, seen = NILE.copy(), np.arange(100) != 40
    x[40] = np.nan
    found = model.diagnostics(NILE[seen], times=np.flatnonzero(seen)).errors[0, :, 0]
    torch.testing.assert_close(found, level.diagnostics(x).errors[0, seen, 0], rtol=1e-6, atol=1e-9)
