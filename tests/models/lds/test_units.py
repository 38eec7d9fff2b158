"""Fits do not depend on the units of the data, and EM does not stop before it is there."""

import warnings

import numpy as np
import pytest
import torch

from pplseq.infer.fit.em import Acceleration
from pplseq.models import LDS
from pplseq.models.lds.fit import from_coordinates, to_coordinates
from pplseq.models.lds.parameters import RegressionPrior
from pplseq.models.lds.statistics import Regression, regression_mode

close = torch.testing.assert_close
F64 = torch.float64


def walk(columns=2, steps=30):
    rng = np.random.default_rng(1)
    return np.cumsum(rng.normal(size=(steps, 1)), 0) @ np.ones((1, columns)) + rng.normal(size=(steps, columns)) + 3


DIAGONAL = {"emission_noise": "diagonal", "state_noise": "diagonal"}
SLOW = [pytest.param(options, marks=pytest.mark.slow) for options in (DIAGONAL, {"initial": "diffuse"})]


@pytest.mark.parametrize("options", [{}, *SLOW])
def test_fits_of_scaled_data_are_scaled(options):
    x, fitted = walk(), {}
    for scale in (1.0, 1e-4, 1e4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted[scale] = LDS(1, 2, **options).fit([x * scale], max_iterations=8, tolerance=0.0)
    whole = fitted[1.0]
    for scale in (1e-4, 1e4):
        other = fitted[scale]
        rough = {"rtol": 1e-4, "atol": 1e-6}
        close(other.emission_noise / scale**2, whole.emission_noise, **rough)
        close(other.emission / scale, whole.emission, **rough)
        close(other.transition, whole.transition, **rough)
        close(other.transform([x * scale])[0], whole.transform([x])[0], **rough)
        assert other.score([x * scale]) + x.size * np.log(scale) == pytest.approx(whole.score([x]), abs=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_the_floor_is_a_share_of_the_data(scale):
    """Two columns of which the second repeats the first, which a state can say exactly."""
    x = walk(1) * scale
    x = np.concatenate([x, 10 * x], 1)
    with pytest.warns(RuntimeWarning, match="emission_noise met its floor of 1e-06 of the data's variance"):
        model = LDS(1, 2, emission_noise="diagonal").fit([x], max_iterations=60, acceleration=0)
    assert model.emission_noise.diagonal().min().item() <= 1.001e-6 * x.var(0).max()
    assert bool((model.emission_noise.diagonal() >= 0.999e-6 * torch.from_numpy(x.var(0))).all())


def test_coordinates_lead_back_to_the_parameters():
    torch.manual_seed(0)
    for noise in ("full", "diagonal"):
        model = LDS(3, 2, state_noise=noise, emission_noise=noise, num_inputs=1)
        for value in model.parameters():
            value.data.normal_()
        names = model._free
        found = from_coordinates(LDS(3, 2, state_noise=noise, emission_noise=noise, num_inputs=1).values, names,
                                 to_coordinates(model.values, names)[0])  # fmt: skip
        close(found, model.values)
        other = LDS(3, 2, num_inputs=1, state_noise=noise, emission_noise=noise)  # in other units of the observations
        scaled = {n: getattr(model, n) * 9 for n in ("emission", "emission_offset", "emission_inputs")}
        other.load_state_dict(model.state_dict())
        other.set_parameters(**scaled, emission_noise=model.emission_noise * 81)
        (here, units), (there, other_units) = to_coordinates(model.values, names), to_coordinates(other.values, names)
        change = there / other_units - here / units
        assert int((change.abs() > 1e-9).sum()) == 2  # the logarithms of two deviations
        close(change[change.abs() > 1e-9], torch.full((2,), np.log(9.0), dtype=F64))


class Linear:
    """A linear map whose fixed point is zero."""

    def __init__(self):
        self.place, self.map = (
            torch.tensor([0.3, -0.2, 0.4], dtype=F64),
            torch.diag(torch.tensor([0.99, 0.9, 0.5], dtype=F64)),
        )

    def _em_coordinates(self):
        return self.place.clone(), torch.ones(3, dtype=F64)

    def _set_em_coordinates(self, coordinates):
        self.place = coordinates

    def named_parameters(self):
        return [("place", self.place)]


def test_a_linear_map_ends_after_as_many_steps_as_it_has_directions():
    model = Linear()
    acceleration = Acceleration(model)
    for _ in range(5):
        here = model.place
        model.place = model.map @ model.place
        acceleration.keep(here)
        is_ahead = acceleration.go_ahead()
    assert float(model.place.abs().max()) < 1e-9
    assert is_ahead
    image = acceleration.memory["images"][-1]
    acceleration.fall_back()
    close(model.place, image)
    assert not acceleration.go_ahead()


def test_em_finds_the_level_of_the_nile():
    """Durbin and Koopman (2012), Time Series Analysis by State Space Methods, section 2.10."""
    nile = pytest.importorskip("statsmodels.datasets.nile")
    x = nile.load().data["volume"].to_numpy()[None, :, None].astype(float)
    for scale in (1.0, 1e-3):
        model = LDS(1, 1, offsets="none", initial="diffuse")
        variance = [[x.var() * scale**2 / 2]]
        model.set_parameters(transition=[[1.0]], emission=[[1.0]], state_noise=variance, emission_noise=variance)
        model.fit(x * scale, fixed=("transition", "emission"))
        assert model.emission_noise.item() / scale**2 == pytest.approx(15099, rel=0.005)
        assert model.state_noise.item() / scale**2 == pytest.approx(1469, rel=0.005)
        assert model.history.converged and (np.diff(model.history.log_likelihoods) >= 0).all()
        assert model.history.num_iterations < 25
    assert model.score(x * scale) + 99 * np.log(scale) == pytest.approx(-633.4646, abs=1e-4)  # n - 1: Koopman's convention


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32))
def test_columns_that_say_the_same_keep_the_smallest_weights(dtype):
    """Rounding fills directions that the data leave open: digits of the type tell which these are."""
    torch.manual_seed(0)
    columns, about = torch.randn(300, 4).to(dtype), torch.randn(4, 2).to(dtype)
    columns[:, 3] = 1.7 * columns[:, 2]
    seen = columns @ about + 0.1 * torch.randn(300, 2).to(dtype)
    statistics = Regression(torch.tensor(300.0).to(dtype), columns.T @ columns, seen.T @ columns, seen.T @ seen)
    every = torch.ones(4, dtype=torch.bool)
    weights, noise, _ = regression_mode(
        torch.zeros(2, 4, dtype=dtype), torch.eye(2, dtype=dtype), statistics, free=every, shrunk=every,
        prior=RegressionPrior(), floor=1e-9,
    )  # fmt: skip
    assert weights.dtype == noise.dtype == dtype
    least = torch.linalg.lstsq(columns[:, :3], seen).solution  # columns 2 and 3 as one
    close(weights[:, 2] + 1.7 * weights[:, 3], least[2], rtol=1e-3, atol=1e-3)
    close(1.7 * weights[:, 3], weights[:, 2], rtol=0.02, atol=0.02)  # the smallest in units of the columns


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_units_of_inputs_do_not_matter(unit):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(1, 200, 1))
    sign = np.where(np.arange(200) // 40 % 2 == 0, 1, -1)[None, :, None]
    x = sign * (1 + inputs) + 0.3 * rng.normal(size=(1, 200, 1))
    plain = dict(seed=0, max_iterations=3, acceleration=0)
    one, other = (LDS(2, 1, num_inputs=1).fit(x, inputs=scale * inputs, **plain) for scale in (1.0, unit))
    assert other.score(x, inputs=unit * inputs) == pytest.approx(one.score(x, inputs=inputs), abs=1e-3)
