"""Gaussian outputs of input-output models do not depend on their units."""

import warnings

import numpy as np
import pytest
import torch

from pplseq.models import IOHMM

close = torch.testing.assert_close


def regimes():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(80, 1))
    calm = np.repeat([1.0, 0.0, 1.0, 0.0], 20)[:, None]
    x = np.where(calm, 1 + inputs, -1 - 2 * inputs) + 0.3 * rng.normal(size=(80, 2))
    return x, inputs


@pytest.mark.parametrize("covariance", ["diag", "full", "spherical", pytest.param("tied", marks=pytest.mark.slow)])
def test_fits_of_scaled_outputs_are_scaled(covariance):
    x, inputs = regimes()

    def fit(scale):
        model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=2, mealy=True, covariance=covariance)
        return model.fit([x * scale], inputs=[inputs], num_restarts=2, seed=0, max_iterations=6)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = fit(1.0)
        for scale in (1e-4, 1e4):
            other = fit(scale)
            close(other.decode([x * scale], inputs=[inputs])[0], whole.decode([x], inputs=[inputs])[0])
            jacobian = x.size * np.log(scale)
            score = other.score([x * scale], inputs=[inputs])
            assert score + jacobian == pytest.approx(whole.score([x], inputs=[inputs]), abs=1e-4)


def test_the_floor_is_a_share_of_the_outputs():
    x, inputs = regimes()
    x = np.stack([x[:, 0], np.repeat([5.0, 7.0, 5.0, 7.0], 20)], 1) * [1e-3, 1e3]  # regimes of one value each
    with pytest.warns(RuntimeWarning, match="0.0001 of the outputs' own"):
        model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=2, mealy=True)
        model.fit([x], inputs=[inputs], num_restarts=4, seed=0)
    lowest = (2 * model.noise.log_scale.detach()).exp().amin(0)
    close(lowest[1], torch.tensor(1e-4 * x[:, 1].var(), dtype=torch.float64))
    assert lowest[0] > 1e-3 * x[:, 0].var()


@pytest.mark.parametrize("steps", [200, 1100])  # regressions by tensor operations, and by compiled loops
def test_fits_do_not_depend_on_the_units_of_inputs(steps):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(steps, 1))
    state = rng.random(steps) < 1 / (1 + np.exp(-3 * inputs[:, 0]))
    x = np.where(rng.random(steps) < 0.9, state, rng.integers(3, size=steps)).astype(int)

    def fit(mean, scale):
        model = IOHMM(2, num_inputs={"transition": 1}, outputs="categorical", num_outputs=3)
        model.fit([x], inputs=[mean + scale * inputs], num_restarts=2, seed=0, max_iterations=30)
        return model.score([x], inputs=[mean + scale * inputs])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = fit(0.0, 1.0)
        for mean, scale in ((1000.0, 1.0), (0.0, 1e4), (0.0, 1e-6)):
            assert fit(mean, scale) == pytest.approx(expected, abs=1e-3), (mean, scale)


@pytest.mark.parametrize("outputs", ["gaussian", "normal", "bernoulli"])
def test_a_constant_input_has_no_slope_to_begin_with(outputs):
    x, inputs = regimes()
    x = (x > 0).astype(float) if outputs == "bernoulli" else x

    def score(constant):
        beside = np.concatenate([inputs, np.full_like(inputs, constant)], 1)
        model = IOHMM(2, num_inputs=2, outputs=outputs, num_outputs=2, mealy=True)
        return model.fit([x], inputs=[beside], num_restarts=2, seed=0, max_iterations=5).score([x], inputs=[beside])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = score(0.0)
        for constant in (0.1, 1e3):  # the mean of 80 times 0.1 is not 0.1
            assert score(constant) == pytest.approx(expected, abs=1e-3), constant


WAYS = [("sgd", ()), ("gem", ()), ("svi", ()), ("em", (3,))]


@pytest.mark.parametrize(("method", "hidden"), WAYS)
def test_fits_that_depend_on_the_units_of_inputs_say_so(method, hidden):
    x, inputs = regimes()
    short = {"seed": 0, "method": method, "num_steps" if method in ("sgd", "svi") else "max_iterations": 2}
    made = dict(num_inputs=3, outputs="gaussian", num_outputs=2, mealy=True, hidden=hidden, priors=method == "svi")
    rare = np.arange(80) == 7

    def fit(*columns, **more):
        given = np.stack([np.broadcast_to(column, 80) for column in columns], 1)
        IOHMM(2, **made, **more).fit([x[:60], x[60:]], inputs=[given[:60], given[60:]], **short)

    own = inputs[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "states .* are empty|a variance met|EM's objective")
        fit(own, rare, 1.0)
        fit(2 + own, 0.2 * own, 8 * own)
    names = {"emission": ["wind", "level", "gust"], "transition": ["wind", "level", "gust"]}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit(20 + own, 1e3, 0.01 * own, input_names=names)
        fit(own, own, 100 * own)
    notes = [str(one.message) for one in told if "units of inputs" in str(one.message)]
    assert len(notes) == 2 and {one.filename for one in told if str(one.message) in notes} == {__file__}
    wind = own.std()
    assert notes[0].startswith(f"inputs: wind is {20 + own.mean():.3g} +- {wind:.3g}, level is 1e+03 +- 0, gust is ")
    assert "inputs: u2 is" in notes[1] and "as `pplseq train iohmm` does" in notes[1]


def test_em_says_nothing_of_the_units_of_inputs():
    x, inputs = regimes()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=2, mealy=True)
        model.fit([x], inputs=[1e3 + 50 * inputs], seed=0, max_iterations=2)
    assert not any("units of inputs" in str(one.message) for one in told)
