"""Floors of variances: relative to the variance of the data, so that fits do not depend on units."""

import warnings

import numpy as np
import pytest
import torch

from pplseq.models import HMM


@pytest.mark.parametrize("covariance", ["diag", "full", "tied", "spherical"])
def test_fits_do_not_depend_on_the_units_of_the_data(covariance):
    """Daily returns in calm and rough times: whole, as thousandths, as thousands."""
    rng = np.random.default_rng(3)
    rough = np.repeat([0, 1, 0, 1], 40)
    x = rng.normal(size=(160, 2)) * np.where(rough, 3.0, 0.5)[:, None] + 0.2

    def fit(scale):
        return HMM(2, num_features=2, covariance=covariance).fit([x * scale], seed=0, max_iterations=15, tolerance=0.0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged
        whole = fit(1.0)
        for scale in (1e-3,) if covariance == "tied" else (1e3,):
            other = fit(scale)
            torch.testing.assert_close(other.predict([x * scale])[0], whole.predict([x])[0])
            torch.testing.assert_close(other.covariances / scale**2, whole.covariances, rtol=1e-6, atol=1e-9)
            jacobian = x.size * np.log(scale)
            assert other.score([x * scale]) + jacobian == pytest.approx(whole.score([x]), abs=1e-5)
    if covariance in ("diag", "full"):  # fifteen steps have found the regimes
        found = whole.predict([x])[0].numpy() == 1
        assert max((found == rough).mean(), (found != rough).mean()) > 0.9


def test_columns_in_different_units_have_floors_of_their_own():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.full((30, 2), 7.0), rng.normal(size=(30, 2))]) * [1e-3, 1e3]  # a state of one value
    for covariance in ("diag", "full"):
        with pytest.warns(RuntimeWarning, match="smallest variance allowed, 0.001 of the data's"):
            model = HMM(2, num_features=2, covariance=covariance).fit([x], seed=0)
        lowest = model.covariances.diagonal(dim1=-2, dim2=-1).amin(0)
        torch.testing.assert_close(lowest, torch.from_numpy(1e-3 * x.var(0)))
    with pytest.warns(RuntimeWarning, match="smallest variance allowed, 0.5;"):
        model = HMM(2, num_features=2, covariance_floor=0.5).fit([x], seed=0)
    assert model.covariances.diagonal(dim1=-2, dim2=-1).amin() == pytest.approx(0.5)


@pytest.mark.parametrize("covariance", ["diag", "full", "tied"])
def test_a_column_of_one_value_is_fitted(covariance):
    x = np.random.default_rng(0).normal(size=(40, 3)) * [1.0, 0.0, 0.0] + [0.0, 5.0, 0.0]
    collapsed, named = (pytest.warns(RuntimeWarning, match=of) for of in ("variance allowed", r"columns \[1, 2\] .* one value"))
    with collapsed, named:
        model = HMM(2, num_features=3, covariance=covariance).fit([x], seed=0, max_iterations=5)
    assert np.isfinite(model.score([x])) and bool((model.covariances.diagonal(dim1=-2, dim2=-1) > 0).all())


@pytest.mark.parametrize("covariance", ["diag", "spherical"])
def test_spread_that_is_none_is_refused(covariance):
    model = HMM(2, num_features=1, covariance=covariance)
    before = model.loc.clone()
    for name, values in (("covariance", [[-1.0], [1.0]]), ("precision", [[0.0], [1.0]]), ("covariance", [[torch.nan], [1.0]])):
        with pytest.raises(ValueError, match=f"{name}: expected numbers above 0"):
            model.set_parameters(loc=[[1.0], [2.0]], **{name: values})
        assert torch.equal(model.loc, before)
