"""Chains of observed numbers: whose gradients, how many digits, and what does not fit."""

import pytest
import torch

from pplseq.distributions.gaussian_types import GaussianBelief, LinearEvidence
from pplseq.distributions.linear_gaussian import LinearEmission
from pplseq.distributions.noise import DiagonalNoise
from pplseq.infer.gaussian.chain import Dynamics, GaussianChain
from pplseq.kernels import kalman

F64 = torch.float64


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def psd(size, seed):
    root = normal(size, size, seed=seed)
    return root @ root.T / size + 0.1 * torch.eye(size, dtype=F64)


def parts(T, B, h, n):
    matrix = normal(h, h, seed=1)
    return {
        "mean": normal(B, h, seed=2), "covariance": psd(h, 3), "A": 0.9 * matrix / torch.linalg.matrix_norm(matrix, 2),
        "Q": psd(h, 4), "C": normal(n, h, seed=5), "D": normal(n, seed=6).exp(), "y": normal(T, B, n, seed=7),
    }  # fmt: skip


def test_gradients_are_asked_for_when_states_are():
    """Covariances made later have, or have not, the gradients of when the states were asked for."""
    p = parts(6, 2, 3, 2)
    p["A"].requires_grad_()
    start, dynamics = GaussianBelief(p["mean"], p["covariance"]), Dynamics(p["A"], p["Q"])
    chain = GaussianChain(start, dynamics, LinearEvidence(p["y"], p["C"], p["D"]))
    with torch.no_grad():
        without = chain.filtered_states()
    states = chain.smoothed_states()
    with torch.no_grad():
        assert states.covariances.table.requires_grad and states.means.requires_grad
    assert not without.covariances.table.requires_grad and not without.means.requires_grad


def test_precise_observations_lose_no_digits():
    """Noise of 1e-14 beside states of size 1: Joseph's form keeps what the short one loses."""
    predicted = psd(4, 1).unsqueeze(0)
    loadings, noise = 1e7 * normal(4, 4, seed=2).unsqueeze(0), torch.eye(4, dtype=F64).unsqueeze(0)
    exact = torch.linalg.inv(torch.linalg.inv(predicted) + loadings.mT @ loadings)
    errors = {}
    for careful in (False, True):
        found = kalman.update_by_numbers(predicted, loadings, noise, careful=careful).filtered
        errors[careful] = float((found - exact).norm() / exact.norm())
    assert errors[True] < 1e-8 and errors[True] < 1e-3 * errors[False]


def test_what_does_not_fit_is_named():
    p = parts(4, 2, 3, 2)
    start, dynamics = GaussianBelief(p["mean"], p["covariance"]), Dynamics(p["A"], p["Q"], None)
    evidence = LinearEmission(p["C"], DiagonalNoise(p["D"])).evidence(p["y"])
    whole = (evidence.residual, evidence.loadings, evidence.noise)
    wrong = {
        "evidence: loadings": (evidence.residual[..., :1], *whole[1:]),
        "evidence.residual must be": (torch.zeros(2, dtype=F64), *whole[1:]),
        "evidence.residual: a chain needs": (evidence.residual[:0], *whole[1:]),
        "evidence.residual: row 1, step 2": (evidence.residual.clone().index_put_((torch.tensor(2), torch.tensor(1)), F64_NAN),
                                             *whole[1:]),
        "evidence.loadings must be finite": (whole[0], evidence.loadings * torch.nan, *whole[2:]),
        "must agree in": (torch.zeros(4, 5, 2, dtype=F64), *whole[1:]),
    }  # fmt: skip
    for message, numbers in wrong.items():
        with pytest.raises(ValueError, match=message):
            GaussianChain(start, dynamics, LinearEvidence(*numbers))
    with pytest.raises(TypeError, match=r"evidence.loadings is torch.float32, but evidence.residual is torch.float64"):
        GaussianChain(start, dynamics, LinearEvidence(whole[0], whole[1].float(), *whole[2:]))
    with pytest.raises(TypeError, match=r"start.covariance is torch.float64, but start.mean is torch.float32"):
        GaussianChain(start._replace(mean=start.mean.float()), dynamics, LinearEvidence(*whole))


F64_NAN = torch.tensor(float("nan"), dtype=F64)
