"""Structural models whose first state nobody knows, beside statsmodels' with ``use_exact_diffuse=True`` (0.14)."""

import numpy as np
import pytest
import torch
from support.structural_series import NILE, seasons

from pplseq import StructuralModel
from pplseq.models import SequenceModel

NILE_VARIANCES = {"noise": 15099.0, "level": 1469.1, "slope": 10.0}
# options, what statsmodels calls them, its log-likelihoods of the whole series and of one with gaps (also at the start)
STORED = [
    ({}, "llevel", -633.4645636488787, -607.363185161848),
    ({"trend": "stochastic"}, "lltrend", -633.1415480735104, -607.0214630895138),
    ({"trend": "stochastic", "level": "fixed"}, "strend", -635.5925681698234, -609.412346395759),
    ({"trend": "fixed"}, "lldtrend", -631.7301487070056, -605.6810915847228),
    ({"trend": "fixed", "level": "fixed"}, "dtrend", -644.9151440644188, -618.9391735761767),
    ({"level": "fixed"}, "dconstant", -664.3900164588347, -634.7919941403221),
]


def with_gaps(x):
    x = np.array(x)
    x[[0, 3, 4, 17]] = np.nan
    return x


@pytest.mark.parametrize(("options", "name", "whole", "gaps"), STORED, ids=[case[1] for case in STORED])
def test_scores_are_those_of_statsmodels(options, name, whole, gaps):
    model = StructuralModel(initial="diffuse", **options)
    model.set_parameters(**{k: v for k, v in NILE_VARIANCES.items() if k in (*model.variances, "noise")})
    assert model.score(NILE) == pytest.approx(whole, abs=1e-9)
    assert model.score(with_gaps(NILE)) == pytest.approx(gaps, abs=1e-9)


def test_seasons_forecasts_and_intervals():
    x = seasons(40)
    x[[0, 3, 17]] = np.nan
    model = StructuralModel(trend="stochastic", seasonal=4, initial="diffuse")
    model.set_parameters(noise=0.09, level=0.01, slope=0.001, seasonal=0.02)
    found = model.forecast(x, 2)
    assert model.score(x) == pytest.approx(-22.322258629167855, abs=1e-9)
    assert found.means[0, :, 0].tolist() == pytest.approx([9.095887565988734, 11.391956540677334], abs=1e-9)
    low, high = found.intervals(0.9)
    assert low[0, :, 0].tolist() == pytest.approx([8.23689976408895, 10.498523230203475], abs=1e-9)
    assert high[0, :, 0].tolist() == pytest.approx([9.95487536788852, 12.285389851151194], abs=1e-9)
    twelve = StructuralModel(seasonal=12, initial="diffuse").set_parameters(noise=0.09, level=0.01, seasonal=0.02)
    assert twelve.score(seasons(60)) == pytest.approx(-60.84880120185107, abs=1e-9)


def test_a_step_in_the_level_of_the_nile():
    x = NILE.copy()
    x[[0, 3, 17]] = np.nan
    step = (torch.arange(100) > 27).double()[:, None]
    model = StructuralModel(num_inputs=1, initial="diffuse").set_parameters(noise=15099.0, level=1469.1, inputs=[-250.0])
    assert model.score(x, inputs=[step]) == pytest.approx(-608.280567323495, abs=1e-9)
    found = model.forecast(x, 2, inputs=[step], future_inputs=torch.ones(2, 1))
    assert found.means[0, :, 0].tolist() == pytest.approx([798.3702925607777] * 2, abs=1e-8)
    assert found.covariances[0, :, 0, 0].tolist() == pytest.approx([20600.25794180848, 22069.357941808477], rel=1e-11)


def test_gradients_fits_and_folders(tmp_path):
    model = StructuralModel(trend="stochastic", level="fixed", initial="diffuse").set_parameters(noise=15099.0, slope=10.0)
    batch = model._as_batch(with_gaps(NILE))
    slopes = torch.autograd.grad(model.log_joint(batch.x), list(model.parameters()))
    for parameter, slope in zip(model.parameters(), slopes, strict=True):
        ends = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter += step
                ends.append(float(model.log_joint(batch.x)))
                parameter -= step
        assert float(slope) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-6)
    level = StructuralModel(initial="diffuse").fit(NILE, initialization="still")
    assert level.summary(NILE).estimates.tolist() == pytest.approx([1469.18, 15098.5], rel=1e-4)
    assert level.score(NILE) == pytest.approx(-633.46456, abs=1e-5)
    again = SequenceModel.load(level.save(tmp_path / "model"))
    assert again.config["initial"] == "diffuse" and again.score(NILE) == level.score(NILE)


def test_components_do_not_depend_on_the_wide_start():
    x = seasons(40)
    found = [
        StructuralModel(trend="fixed", seasonal=4, initial=how).set_parameters(noise=0.09, level=0.01, seasonal=0.02, **width)
        for how, width in (("diffuse", {}), ("wide", {"width": 1e7}))
    ]
    exact, near = (model.components(x) for model in found)
    assert list(exact) == ["trend", "slope", "seasonal"]
    for name, part in exact.items():
        torch.testing.assert_close(part.means, near[name].means, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(part.covariances, near[name].covariances, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StructuralModel(initial="exact"), "initial must be one of wide, diffuse"),
        (lambda: StructuralModel(initial="diffuse").set_parameters(width=3.0), "width: nothing is known of a diffuse start"),
        (
            lambda: StructuralModel(trend="fixed", initial="diffuse").set_parameters(noise=1.0).score(NILE[:1]),
            "never determine|do not determine",
        ),
        (lambda: StructuralModel(initial="diffuse").set_parameters(noise=1.0).forecast([[]], 2), "no row may be empty"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_criteria_compare_models_of_different_components():
    """statsmodels 0.14: AIC 414.71157838694, BIC 460.30780924805 of UnobservedComponents(y, "lltrend", seasonal=12), exactly
    diffuse, whose 13 diffuse states count as parameters."""
    rng, t = np.random.default_rng(9), np.arange(108)
    y = 50 + 0.3 * t + np.cumsum(rng.normal(0, 0.5, 108)) + 2.5 * np.sin(2 * np.pi * t / 12) + rng.normal(0, 1, 108)
    wide, other = (StructuralModel(trend="stochastic", seasonal=seasonal).fit(y) for seasonal in (12, None))
    assert (wide.aic(y), wide.bic(y)) == pytest.approx((414.71157838694, 460.30780924805), rel=1e-6)
    assert wide.bic(y) < other.bic(y) and wide.score(y) < other.score(y)
    assert wide.summary(y).bic == pytest.approx(wide.bic(y))
    exact = StructuralModel(trend="stochastic", seasonal=12, initial="diffuse")
    exact.load_state_dict(wide.state_dict())
    assert exact.bic(y) == pytest.approx(wide.bic(y)) and exact.aic([y, y]) == pytest.approx(2 * wide.aic(y) - 2 * 4)


def test_rows_that_say_too_little_for_criteria_keep_their_estimates():
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(30))
    model = StructuralModel(seasonal=4).fit([x, x[:3]])
    with pytest.raises(ValueError, match="aic and bic are those of a diffuse start, and row 1: its observations"):
        model.bic([x, x[:3]])
    found = model.summary([x, x[:3]])
    assert np.isnan(found.bic) and bool(found.estimates.isfinite().all())
    with pytest.raises(ValueError, match="every observation is missing"):
        model.bic(np.full(5, np.nan))
