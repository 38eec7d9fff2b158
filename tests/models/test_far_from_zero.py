"""Fits of data far from zero are those of the same data around it: moments are taken about the data's own means."""

import math

import pytest
import torch

from pplseq import HMM, IOHMM

F64 = torch.float64
close = torch.testing.assert_close


def data(far, gaps=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, dtype=F64, generator=generator)
    x[60:] += 2.0
    x = (x * 2**20).round() / 2**20  # nothing is rounded where 1e8 is added
    if gaps:
        x[::7, 0] = math.nan
    return x + far


@pytest.mark.parametrize(
    "options",
    [{"covariance": kind} for kind in ("diag", "spherical", "full", "tied")]
    + [{"emission": kind} for kind in ("mixture", "normal", "student_t")]
    + [{"gaps": True}, {"gaps": True, "emission": ["normal", "student_t"]}],
    ids=str,
)
def test_hidden_markov_models(options):
    options = dict(options)
    gaps = options.pop("gaps", False)
    near, far = (HMM(2, num_features=2, **options).fit([data(where, gaps)], seed=0, max_iterations=8) for where in (0.0, 1e8))
    own = {k: v for k, v in near.emission_parameters.items()}
    for name, value in own.items():
        moved = far.emission_parameters[name] - (1e8 if name.endswith("loc") else 0.0)
        close(moved, value, rtol=1e-5, atol=1e-5)
    assert far.score([data(1e8, gaps)]) == pytest.approx(near.score([data(0.0, gaps)]), rel=1e-6)


@pytest.mark.parametrize("batches", [{}, {"batch_size": 2}, {"batch_size": 2, "step_size": 0.7}])
def test_in_parts_and_stepwise(batches):
    def score(far):
        rows = list(data(far).split(30))
        return HMM(2, num_features=2).fit(rows, seed=0, max_iterations=5, **batches).score(rows)

    assert score(1e8) == pytest.approx(score(0.0), rel=1e-6)


def test_priors_stand_where_they_were_put():
    def fitted(far):
        priors = {"loc": far + 5.0, "loc_strength": 40.0}
        return HMM(1, num_features=2, priors=priors).fit([data(far)], seed=0, max_iterations=5).loc - far

    close(fitted(1e6), fitted(0.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("outputs", ["gaussian", ["normal", "normal"]])
def test_outputs_of_an_input_output_model(outputs):
    def score(far):
        options = {"num_outputs": 2} if outputs == "gaussian" else {}
        model = IOHMM(1, num_inputs=0, outputs=outputs, **options)
        return model.fit([data(far)], seed=0, max_iterations=30, num_restarts=2).score([data(far)])

    x = data(0.0)
    if outputs != "gaussian":
        exact = torch.distributions.Normal(x.mean(0), x.std(0, correction=0)).log_prob(x).sum()
        assert score(1e9) == pytest.approx(float(exact), rel=1e-6)
    assert score(1e8) == pytest.approx(score(0.0), rel=1e-6)


def test_a_column_of_one_value_has_the_spread_of_rounding():
    x = data(0.0)
    x[:, 1] = 3.0
    with pytest.warns(RuntimeWarning):
        model = HMM(1, num_features=2).fit([x], seed=0, max_iterations=3)
    assert float(model.covariances[0, 1, 1]) == pytest.approx(1e-3 * 1e-12 * 9, rel=1e-6)
