"""Structural models: a dense Gaussian over all numbers at once, the numbers of statsmodels, components, tests, pictures."""

import warnings

import matplotlib
import numpy as np
import pytest
import torch
from support.structural_series import NILE, seasons

from pplseq import StructuralModel, plot
from pplseq.models import SequenceModel

matplotlib.use("Agg")
close = torch.testing.assert_close


def dense(model, x, inputs=None):
    """log p(x) from the mean and covariance of all numbers, and the covariance of states with them."""
    steps, h = len(x), model.num_states
    matrix, noise, loading = model.transition, model.state_noise, model.emission[0]
    spread = [model._initial_belief.covariance]
    for _ in range(steps - 1):
        spread.append(matrix @ spread[-1] @ matrix.T + noise)
    both = torch.zeros(steps, h, steps, h).double()
    for s in range(steps):
        power = torch.eye(h).double()
        for t in range(s, steps):
            pair = power @ spread[s]
            both[t, :, s], both[s, :, t] = pair, pair.T
            power = matrix @ power
    seen = ~np.isnan(x)
    cross = torch.einsum("shti,i->sht", both, loading)[:, :, seen]
    covariance = torch.einsum("sht,h->st", cross, loading)[seen] + model.emission_noise * torch.eye(int(seen.sum())).double()
    mean = 0.0 if inputs is None else (inputs @ model.emission_inputs[0])[seen]
    residual = torch.tensor(x[seen]) - mean
    density = torch.distributions.MultivariateNormal(torch.zeros_like(residual), covariance)
    return density.log_prob(residual), torch.einsum("sht,t->sh", cross, torch.linalg.solve(covariance, residual))


@pytest.mark.parametrize("options", [{}, dict(trend="stochastic", seasonal=4), dict(trend="fixed", level="fixed", seasonal=2)])
@pytest.mark.parametrize("inputs", [0, 1])
def test_values_gradients_and_components_are_those_of_one_gaussian(options, inputs):
    x = seasons(12)
    x[[3, 7]] = np.nan
    model = StructuralModel(**options, num_inputs=inputs).set_parameters(width=30.0, noise=0.4)
    drawn = torch.randn(12, inputs).double() if inputs else None
    known = {"inputs": [drawn]} if inputs else {}
    if inputs:
        model.set_parameters(inputs=[0.7])
    wanted, states = dense(model, x, drawn)
    assert model.score([x], **known) == pytest.approx(float(wanted.detach()), abs=1e-8)
    batch = model._as_batch([x], **known)
    value = model.log_joint(batch.x, **batch.known)
    parameters = [parameter for parameter in model.parameters() if parameter.numel()]
    for ours, theirs in zip(torch.autograd.grad(value, parameters), torch.autograd.grad(wanted, parameters), strict=True):
        close(ours, theirs)
    found = model.components([x], **known)
    first = found["trend" if "trend" in options else "level"]
    close(first.means[0], states[:, 0].detach())
    total = sum(part.means[0] for name, part in found.items() if name != "slope")
    close(total, model.reconstruct([x], **known).means[0][:, 0])


def test_the_nile_is_that_of_the_textbook():
    """Durbin and Koopman (2012), section 2.10: 15099 and 1469.1; statsmodels with the same first state: -641.5855784594."""
    model = StructuralModel().set_parameters(noise=15099.0, level=1469.1, width=1e7)
    assert model.score(NILE) == pytest.approx(-641.5855784594, abs=1e-8)
    model.fit(NILE)
    found = model.summary(NILE)
    assert found.estimates.tolist() == pytest.approx([1469.1, 15099], rel=1e-3)
    assert found.errors.tolist() == pytest.approx([1280, 3146], rel=1e-2)
    tests = model.diagnostics(NILE, lags=10)
    assert tests.ljung_box[0].tolist() == pytest.approx([13.19, 0.213], rel=1e-2)  # statsmodels 13.23, .2113 at its estimates
    assert tests.heteroskedasticity[0].tolist() == pytest.approx([0.6131, 0.1651], rel=1e-2)
    assert tests.jarque_bera[0].tolist() == pytest.approx([0.0466, 0.977], rel=1e-1)


def test_forecasts_go_on_and_pictures_are_drawn(tmp_path):
    x = seasons(48)
    model = StructuralModel(trend="fixed", seasonal=4).fit(x[:40], initialization="still")
    found = model.forecast(x[:40], 8)
    low, high = found.intervals(0.99)
    assert ((torch.tensor(x[40:]) > low[0, :, 0]) & (torch.tensor(x[40:]) < high[0, :, 0])).all()
    narrow = found.intervals(0.5)
    close((narrow[1] - narrow[0]) / (high - low), torch.full((1, 8, 1), 0.67449 / 2.57583).double(), rtol=1e-4, atol=1e-4)
    axes = plot.components(model.components(x[:40]))
    assert [ax.get_ylabel() for ax in axes] == ["trend", "slope", "seasonal"]
    axes[0].figure.savefig(tmp_path / "components.png")
    matplotlib.pyplot.close("all")
    assert SequenceModel.load(model.save(tmp_path / "model")).score(x) == pytest.approx(model.score(x))


def test_read_only_arrays_are_no_warning():
    x = seasons(12)[None, :, None]
    x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        StructuralModel().set_parameters(width=9.0).forecast(x, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StructuralModel(trend="linear"), "trend must be one of stochastic, fixed"),
        (lambda: StructuralModel(seasonal=1), "seasonal"),
        (lambda: StructuralModel().fit(NILE, fixed=["transition"]), "by the options level and trend"),
    ],
)
def test_what_does_not_fit_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_stands_behind_the_end_of_a_row_is_not_fitted():
    lists = [NILE[:40], NILE[40:]]
    padded = np.full((2, 60, 1), 1e6)
    padded[0, :40, 0], padded[1, :, 0] = lists
    model = StructuralModel().fit(lists, num_steps=3, initialization="still")
    other = StructuralModel().fit(padded, lengths=[40, 60], num_steps=3, initialization="still")
    close(other.width, model.width)
    assert other.score(lists) == pytest.approx(model.score(lists))
    assert float(model.width) == pytest.approx(1e6 * np.mean(NILE**2))


def test_a_variance_that_ends_at_zero_is_said_to_be_at_its_bound():
    model = StructuralModel(trend="stochastic").fit(NILE, initialization="still")
    with pytest.warns(RuntimeWarning, match="^variance of slope is at its bound 0: no standard error; those of the others"):
        found = model.summary(NILE)
    assert found.bounds == {"variance of slope": 0.0} and "at its bound 0: no standard error" in str(found)
    assert found.errors.isnan().tolist() == [False, True, False]
    model.set_parameters(slope=0.0)  # and the others' errors are those of a slope that never changes
    with pytest.warns(RuntimeWarning, match="variance of slope is at its bound"):
        close(model.summary(NILE).errors[[0, 2]], found.errors[[0, 2]], rtol=1e-3, atol=0.0)
    model.set_parameters(slope=5.0)  # far from the bound, though the likelihood is larger there
    assert not model._at_bounds(model._as_batch(NILE))


@pytest.mark.parametrize("name", ["plain", "logarithms"])
def test_of_several_maxima_the_highest_is_found(name):
    """A wave that a trend follows by its slope, or calls noise: each way of starting ends at one of them, and not the same."""
    x = 50 + 40 * np.sin(2 * np.pi * np.arange(60) / 11) + 3 * np.random.default_rng(0).normal(size=60)
    x = np.log(x) if name == "logarithms" else x
    ends = {how: StructuralModel(trend="stochastic", level="fixed").fit(x, initialization=how).score(x)
            for how in ("still", "shaken", "turning")}  # fmt: skip
    found = StructuralModel(trend="stochastic", level="fixed").fit(x).score(x)
    assert found == pytest.approx(max(ends.values()), abs=0.01) and found > min(ends.values()) + 5


def test_what_is_known_is_held():
    """Variances by their names, weights one by one; the others are those of the model in which these are constants."""
    rng = np.random.default_rng(0)
    u = rng.normal(size=(150, 2))
    x = rng.normal(size=150).cumsum() + rng.normal(size=150) + u @ [1.0, -2.0]
    model = StructuralModel(num_inputs=2).set_parameters(noise=0.7, inputs=[1.0, 0.0])
    found = model.fit(x, inputs=u, fixed={"noise": True, "inputs": [True, False]}).estimates()
    found = {name: value.tolist() for name, value in found.items()}
    assert found["variance of noise"] == pytest.approx(0.7, rel=1e-12)
    assert found["inputs"][0] == 1.0 and model.num_free_parameters == 2
    scores = []
    for factor in (0.97, 1.0, 1.03):  # at a maximum in what is free
        level = found["variance of level"] * factor
        other = StructuralModel(num_inputs=2).set_parameters(
            noise=0.7, level=level, inputs=found["inputs"], width=float(model.width)
        )
        scores.append(other.score(x, inputs=u))
    assert scores[1] == pytest.approx(model.score(x, inputs=u), abs=1e-9) and scores[1] > max(scores[0], scores[2])
    table = model.summary(x, inputs=u)
    assert set(table.fixed) == {"variance of noise", "inputs[0]"}
    assert np.isfinite(table.errors.numpy()).tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match="fixed: this model has no parameter 'slope'"):
        model.fit(x, inputs=u, fixed="slope")
    with pytest.raises(ValueError, match="'noise' is held whole; give True"):
        found = model.fit(x, inputs=u, fixed={"noise": [True]})


@pytest.mark.parametrize("options", [{}, {"cycle": True}])
def test_a_fit_in_a_folder_is_resumed(options, tmp_path):
    x = np.random.default_rng(0).normal(size=30).cumsum()
    whole = StructuralModel(**options).fit(x, folder=tmp_path / "run")
    again = StructuralModel(**options).fit(x, folder=tmp_path / "run", resume=True)
    assert again.score(x) == pytest.approx(whole.score(x), rel=1e-12)


def test_a_model_without_noise_is_stored(tmp_path):
    """The logarithm of a variance of 0 is no sign of a spoilt model."""
    x = np.random.default_rng(0).normal(size=30)
    model = StructuralModel(level="none", ar=1, ma=1).set_parameters(noise=0.0).fit(x, fixed=["noise"])
    assert SequenceModel.load(model.save(tmp_path / "model")).score(x) == model.score(x)
    still = StructuralModel().set_parameters(level=0.0, noise=1.0)
    assert SequenceModel.load(still.save(tmp_path / "still")).score(x) == still.score(x)
