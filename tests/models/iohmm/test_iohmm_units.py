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
